"""concord.train(model=module) compared with torch.optim.AdamW and plain autograd: module_test.py PROGRAM."""

import json
import os
import pathlib
import unittest

import modules
from modules import EPSILON, RATE, ROWS, STEPS, TRAINING, VOCABULARY, ByHand, Net, Whole
from runs import RunTest

import concord
import torch
from torch import nn

# A gradient of size 1 has some 30 roundings of 2^-24 in it, on either side. The update is lr g / (|g| + eps) or smaller,
# so an error d of the gradient changes it by at most lr d / eps.
ROUNDING = 60 * 2**-24
PER_STEP = RATE * ROUNDING / EPSILON
ACROSS_RANKS = {"one": {"gradient_accumulation_steps": 2}, "data": {}, "zero": {"use_distributed_optimizer": True},
                "other": {"another_seed": True, "overlap_grad_reduce": True},
                "pipeline": {"pipeline_model_parallel_size": 2, "gradient_accumulation_steps": 2},
                "tensor": {"tensor_model_parallel_size": 2, "gradient_accumulation_steps": 2}}


class ModuleTest(RunTest):
    def expect_like_torch(self, trained, module):
        log, weights = trained
        before = {name: each.detach().clone() for name, each in module.named_parameters()}
        expected = modules.train_by_torch(module)
        self.assertEqual(len(log), STEPS)
        for step, (ours, theirs) in enumerate(zip(log, expected, strict=True)):
            for a, b in zip(ours, theirs, strict=True):
                self.assertAlmostEqual(a, b, delta=ROUNDING * max(1, b) + 100 * (step + 1) * PER_STEP, msg=f"step {step + 1}")
        named = dict(module.named_parameters())
        self.assertEqual(weights.keys(), named.keys())
        for name, parameter in named.items():
            bound = STEPS * PER_STEP
            self.assertLessEqual((weights[name] - parameter.detach()).abs().max().item(), bound, name)
            self.assertGreater((weights[name] - before[name]).abs().max().item(), 10 * bound, name)

    def settings(self, name, **more):
        return {"output_dir": str(self.folder / name), **more}

    def test_one_rank(self):
        for kind, module in (("stages", Net), ("whole", Whole), ("by hand", ByHand)):
            with self.subTest(kind):
                trained = modules.train(kind, self.settings(kind, **ACROSS_RANKS["one"]))
                self.expect_like_torch(trained, module())

    def test_two_ranks(self):
        for layout in ("data", "zero", "other", "pipeline", "tensor"):
            with self.subTest(layout):
                trained = concord.launch(modules.train, ["stages", self.settings(layout, **ACROSS_RANKS[layout])], nproc=2)
                self.expect_like_torch(trained, Net())
        with self.subTest("by hand"):
            trained = concord.launch(modules.train, ["by hand", self.settings("hand", **ACROSS_RANKS["tensor"])], nproc=2)
            self.expect_like_torch(trained, ByHand())

    def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(self):
        whole = modules.train("dropout", self.settings("whole", **ACROSS_RANKS["one"]))
        self.assertNotEqual(whole[0], modules.train("stages", self.settings("none", max_steps=3, **ACROSS_RANKS["one"]))[0])
        resumed = modules.train("dropout", self.settings("resumed", **ACROSS_RANKS["one"],
                                                         resume_from_checkpoint=str(self.folder / "whole/checkpoint-10")))
        self.assertEqual(resumed[0], whole[0][10:])
        for name, weight in whole[1].items():
            self.assertTrue(torch.equal(weight, resumed[1][name]), name)
        # Under another layout the numbers are the same to within rounding: the same elements are dropped.
        other = self.settings("other", resume_from_checkpoint=str(self.folder / "whole/checkpoint-10"))
        log, _ = concord.launch(modules.train, ["dropout", other], nproc=2)
        for ours, theirs in zip(log, whole[0][10:], strict=True):
            self.assertAlmostEqual(ours[0], theirs[0], delta=100 * STEPS * PER_STEP)
        with self.assertRaisesRegex(concord.ConfigError, r"was saved with .*layers\.0\.up\.weight 64 96.* but this run has"):
            concord.train(model=ByHand(), **{**TRAINING, **self.settings(
                "wrong", resume_from_checkpoint=str(self.folder / "whole/checkpoint-10"))})

    def test_evaluation_metrics_and_losses_of_ones_own(self):
        seen = []

        def loss(logits, batch):
            seen.append(logits.shape)
            return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none").view_as(batch["labels"])

        settings = {**TRAINING, "max_steps": 3, "eval_data": ROWS[:6], "eval_strategy": "steps", "eval_steps": 3,
                    "compute_accuracy": True, "save_strategy": "no"}
        plain = Net()
        result = concord.train(model=plain, **settings, output_dir=self.folder / "plain",
                               compute_metrics=lambda samples: {"count": sum(len(each.labels) for each in samples)})
        own = concord.train(model=Net(), **settings, output_dir=self.folder / "own", compute_loss=loss)
        self.assertEqual(seen[0], (2, 33, VOCABULARY))
        for a, b in zip(own.log, result.log, strict=True):
            self.assertAlmostEqual(a["loss"], b["loss"], delta=1e-5)
        ids = torch.tensor([row["input_ids"] for row in ROWS[:6]])
        with torch.no_grad():  # the module itself was trained
            logits = modules.run_stages(plain, ids)[:, :-1]
        expected = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item()
        [evaluated] = result.eval_log
        self.assertAlmostEqual(evaluated["eval_loss"], expected, delta=1e-5)
        self.assertAlmostEqual(evaluated["eval_accuracy"], (logits.argmax(-1) == ids[:, 1:]).float().mean().item(), delta=1e-6)
        self.assertEqual(evaluated["eval_count"], ids[:, 1:].numel())

    def test_frozen_and_patterned_parameters(self):
        frozen = Net()
        frozen.embedding.weight.requires_grad_(False)
        before = {name: each.detach().clone() for name, each in frozen.named_parameters()}
        concord.train(model=frozen, **{**TRAINING, "max_steps": 2, "save_strategy": "no"}, output_dir=self.folder / "frozen",
                      freeze=[r"layers\.0"])
        changed = {name for name, each in frozen.named_parameters() if not torch.equal(before[name], each)}
        self.assertEqual(changed, {name for name in before if not name.startswith(("embedding", "layers.0"))})
        with self.assertRaisesRegex(concord.ConfigError, "freeze: 'nothing' matches no parameter that is trained; names are like emb"):
            concord.train(model=Net(), **TRAINING, output_dir=self.folder / "frozen", freeze=["nothing"])

    def test_a_failing_module_has_its_traceback(self):
        class Fails(Whole):
            def forward(self, ids):
                return {}["forward"]

        class InBackward(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                raise ZeroDivisionError("in backward")

        class FailsLater(Whole):
            def forward(self, ids):
                return InBackward.apply(super().forward(ids))

        for module, error in ((Fails(), KeyError), (FailsLater(), ZeroDivisionError)):
            with self.assertRaises(error):
                concord.train(model=module, **TRAINING, output_dir=self.folder / "fails", overwrite_output_dir=True)

    def test_wrong_modules_and_settings(self):
        class NoVocabulary(Whole):
            vocab_size = None

        class Scattered(Net):
            def stages(self):
                return [self.embedding, self.head]

        class Strange(Net):
            def stages(self):
                return "embedding, head"

        class Pooled(Whole):
            def forward(self, ids):
                return super().forward(ids).mean(1)

        class Nothing(Whole):
            def forward(self, ids):
                return None

        class Tied(Net):
            def __init__(self):
                super().__init__()
                self.head.weight = self.embedding.weight

        short = {"seq_length": None}
        for module, settings, message in (
                (NoVocabulary(), {}, "NoVocabulary has no vocab_size; set the attribute"),
                (Scattered(), {}, r"parameter layers\.0\.norm\.weight of Scattered is in none of its stages"),
                (Strange(), {}, "stages of Strange is 'embedding, head'; must be its parts in the order"),
                (Tied(), {}, r"parameter embedding\.weight of Tied is in parts 0 and 4 of its stages"),
                (Pooled(), {}, r"Pooled returned a tensor of 2 dimensions; must return logits \[2, 33, vocabulary\]"),
                (Nothing(), {}, "a part of Nothing returned NoneType; must return a tensor"),
                (Whole(), {"pipeline_model_parallel_size": 2}, "a pipeline of 2 stages, but Whole has 1 part that runs in turn"),
                (Net(), short, "Net has no max_position_embeddings; give seq_length"),
                (Net(), {"sequence_packing": True}, "sequence_packing: forward of Net has no argument cu_seqlens"),
                (Net(), {"finetuning_type": "lora"}, "finetuning_type is .*lora.*, but model is a module of Python"),
                (Net(), {"fp8": "hybrid"}, "fp8 is .*hybrid.*, but model is a module of Python, which computes itself; must be"),
                (Net(), {"context_parallel_size": 2}, "context_parallel_size is 2, but model is a module"),
                (Net(), {"model_config": "x.json"}, "model_config is .*x.json.*, but model is a module"),
                (Net(), {"learning_rte": 1}, "unknown argument 'learning_rte'")):
            with self.subTest(message), self.assertRaisesRegex(concord.ConfigError, message):
                concord.train(model=module, **{**TRAINING, **settings}, output_dir=self.folder / "wrong", overwrite_output_dir=True)

    def test_the_program_cannot_compute_it(self):
        modules.train("whole", self.settings("whole", max_steps=1))
        with self.assertRaisesRegex(concord.ConfigError, "Whole is a network of a Python program .*concord.train"):
            concord.generate(self.folder / "whole/model", "a", tokenizer="byte")
        described = json.loads((self.folder / "whole/model/config.json").read_text())
        self.assertEqual((described["model_type"], described["architectures"]), ("concord_module", ["Whole"]))


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join([os.environ["PYTHONPATH"], str(pathlib.Path(__file__).parent)])
    unittest.main()
