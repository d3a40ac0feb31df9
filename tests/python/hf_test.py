"""concord.hf compared with transformers' Trainer and peft: hf_test.py PROGRAM.

Losses of the same data in the same order have to agree to 1e-5 of their size. CONCORD_WRITE_DOCS=1 writes the table in
docs/transformers.md again. Exit code 77: a package is missing.
"""

import importlib.util
import itertools
import math
import os
import sys
import unittest

MISSING = [name for name in ("transformers", "accelerate", "peft") if importlib.util.find_spec(name) is None]
if MISSING:
    print(f"skipped: {', '.join(MISSING)} not installed; ./run test installs them")
    sys.exit(77)

import torch
import transformers
from runs import GOLDEN, MODEL, ROWS, RunTest

import concord
from concord import hf

PAGE = GOLDEN.parents[1] / "docs/transformers.md"
MARK = "<!-- The table below is written by tests/python/hf_test.py. -->\n"
HOW_CLOSE = 1e-5
DATA = [{**row, "labels": [-100] * (index % 3) + row["input_ids"][index % 3:], "unused": "x"} for index, row in enumerate(ROWS)]


def padded(samples):
    longest = max(len(each["input_ids"]) for each in samples)
    pad = lambda name, value: torch.tensor([each[name] + [value] * (longest - len(each[name])) for each in samples])  # noqa: E731
    return {"input_ids": pad("input_ids", 0), "labels": pad("labels", -100),
            "attention_mask": (torch.arange(longest)[None] < torch.tensor([[len(each["input_ids"])] for each in samples])).long()}


def arguments(folder, **more):
    return transformers.TrainingArguments(**{
        "output_dir": str(folder), "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "num_train_epochs": 2,
        "learning_rate": 1e-3, "logging_steps": 1, "save_strategy": "no", "report_to": [], "weight_decay": 0.1, "warmup_steps": 2,
        "lr_scheduler_type": "cosine", "use_cpu": True, "disable_tqdm": True, "eval_strategy": "epoch", **more})


def causal_model(path=MODEL):
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def gpt_neox():
    transformers.set_seed(7)
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2,
                                                                      num_attention_heads=2, intermediate_size=64,
                                                                      max_position_embeddings=32))


def history(trainer, name):
    return [(row["step"], row[name]) for row in trainer.state.log_history if name in row]


class TrainerTest(RunTest):
    def close(self, ours, theirs, bound=HOW_CLOSE):
        self.assertEqual([step for step, _ in ours], [step for step, _ in theirs])
        self.assertGreater(len(ours), 0)
        for (step, one), (_, other) in zip(ours, theirs, strict=True):
            self.assertLessEqual(abs(one - other), bound * max(1e-3, abs(other)), (step, one, other))

    def both(self, make, data=DATA[:22], model_of=lambda model: model, **more):
        """Trains with transformers and with Concord; returns the trainers. `make` returns a new model."""
        trainers = []
        for kind, options in ((transformers.Trainer, {}), (hf.ConcordTrainer, more.pop("concord", {}))):
            trainer = kind(model_of(make()), arguments(self.folder / kind.__name__, **more), data_collator=padded,
                           train_dataset=data, eval_dataset=DATA[:6], **options)
            output = trainer.train()
            self.assertEqual(output.global_step, trainer.state.global_step)
            trainers.append(trainer)
        theirs, ours = trainers
        for name in ("loss", "eval_loss"):
            self.close(history(ours, name), history(theirs, name))
        self.close(history(ours, "learning_rate"), history(theirs, "learning_rate"), 1e-9)
        self.close(history(ours, "grad_norm"), history(theirs, "grad_norm"), 1e-4)
        start, one, other = (torch.cat([each.detach().cpu().flatten() for each in model.parameters()])
                             for model in (model_of(make()), ours.model, theirs.model))
        # AdamW divides small gradients by their size, and their roundings too.
        self.assertLess((one - other).norm().item(), 1e-2 * (other - start).norm().item())
        self.assertAlmostEqual(ours.evaluate()["eval_loss"], theirs.evaluate()["eval_loss"], delta=1e-4)
        return ours, theirs

    def test_losses_order_and_weights_are_those_of_transformers(self):
        ours, _ = self.both(lambda: causal_model())  # 22 samples: the last step of an epoch has 2 of 4
        self.assertEqual(len(history(ours, "loss")), 12)
        ours.save_model(str(self.folder / "saved"))
        again = causal_model(self.folder / "saved")
        for one, other in zip(again.parameters(), ours.model.parameters(), strict=True):
            self.assertTrue(torch.equal(one, other.cpu()))

    def test_tied_weights(self):
        ours, _ = self.both(lambda: causal_model(str(GOLDEN / "hf/qwen2-tied")), num_train_epochs=1)
        self.assertIs(ours.model.lm_head.weight, ours.model.model.embed_tokens.weight)

    def test_a_family_that_concord_lacks_is_trained_as_a_module(self):
        ours, _ = self.both(gpt_neox, train_sampling_strategy="sequential")
        with self.assertRaisesRegex(concord.ConfigError, "implementation concord: .*gpt_neox.*; use implementation='torch'"):
            hf.ConcordTrainer(gpt_neox(), ours.args, train_dataset=DATA, data_collator=padded, eval_dataset=DATA,
                              implementation="concord").train()

    def test_the_module_itself_gives_the_same_losses(self):
        self.both(lambda: causal_model(), concord={"implementation": "torch"}, num_train_epochs=1)

    def test_adapters_of_peft_come_in_and_out(self):
        import peft

        def adapted(model):
            transformers.set_seed(11)
            return peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"],
                                                              task_type="CAUSAL_LM"))

        ours, theirs = self.both(lambda: causal_model(), model_of=adapted, num_train_epochs=1)
        ours.save_model(str(self.folder / "adapter"))
        again = peft.PeftModel.from_pretrained(causal_model(), self.folder / "adapter")
        with torch.no_grad():
            ids = torch.tensor([ROWS[0]["input_ids"]])
            torch.testing.assert_close(again(ids).logits, theirs.model(ids).logits, rtol=1e-3, atol=1e-4)

    def test_callbacks_of_transformers_see_and_stop_the_run(self):
        seen = []

        class Stop(transformers.TrainerCallback):
            def on_log(self, args, state, control, logs=None, **more):
                seen.append((state.global_step, logs["loss"]))
                control.should_training_stop = state.global_step == 3

            def on_train_end(self, args, state, control, **more):
                seen.append(state.global_step)

        trainer = hf.ConcordTrainer(causal_model(), arguments(self.folder, eval_strategy="no"), padded, DATA, callbacks=[Stop()])
        self.assertEqual(trainer.train().global_step, 3)
        self.assertEqual(seen, [*history(trainer, "loss"), 3])

    def test_metrics_of_run_clm(self):
        def accuracy(given):
            labels, predictions = given.label_ids[:, 1:].reshape(-1), given.predictions[:, :-1].reshape(-1)
            counted = labels != -100
            return {"accuracy": float((labels[counted] == predictions[counted]).mean())}

        options = {"compute_metrics": accuracy, "preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(-1)}
        values = []
        for kind in (transformers.Trainer, hf.ConcordTrainer):
            trainer = kind(causal_model(), arguments(self.folder / kind.__name__), padded, DATA, DATA[:7], **options)
            trainer.train()
            values.append(history(trainer, "eval_accuracy"))
            perplexity = math.exp(trainer.evaluate()["eval_loss"])
            values[-1].append((0, perplexity))
        self.close(*values)
        with self.assertRaisesRegex(concord.ConfigError, "compute_metrics: Concord keeps the most probable tokens"):
            hf.ConcordTrainer(causal_model(), arguments(self.folder), padded, DATA, DATA, compute_metrics=accuracy).train()

    def test_endless_data_and_several_sets_of_evaluation_data(self):
        class Endless(torch.utils.data.IterableDataset):
            def __iter__(self):
                return itertools.cycle(DATA)

        losses = []
        for kind in (transformers.Trainer, hf.ConcordTrainer):
            trainer = kind(causal_model(), arguments(self.folder / kind.__name__, max_steps=5, eval_strategy="steps", eval_steps=2),
                           padded, Endless(), {"first": DATA[:5], "second": DATA[5:9]})
            trainer.train()
            losses.append(trainer)
        for name in ("loss", "eval_first_loss", "eval_second_loss"):
            self.close(history(losses[1], name), history(losses[0], name))

    def test_a_run_is_resumed(self):
        kept = {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "no"}
        whole = hf.ConcordTrainer(causal_model(), arguments(self.folder / "whole", **kept), padded, DATA)
        whole.train()
        again = hf.ConcordTrainer(causal_model(), arguments(self.folder / "again", **kept), padded, DATA)
        again.train(resume_from_checkpoint=str(self.folder / "whole/checkpoint-8"))
        self.assertEqual(history(again, "loss"), history(whole, "loss")[8:])

    def test_what_would_be_ignored_is_refused(self):
        def trainer(kind=hf.ConcordTrainer, model=None, data=DATA, collator=padded, given=None, **more):
            return kind(model or causal_model(), arguments(self.folder / "refused", eval_strategy="no", **(given or {})), collator,
                        data, **more)

        class OwnLoss(hf.ConcordTrainer):
            def compute_loss(self, *given, **more):
                return 0

        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
        for message, make in {
            "overrides compute_loss": lambda: trainer(OwnLoss),
            "optimizers is given": lambda: trainer(optimizers=(optimizer, None)),
            "compute_loss_func is given": lambda: trainer(compute_loss_func=lambda *given: 0),
            "optim_target_modules": lambda: trainer(given={"optim_target_modules": "all-linear"}),
            "train_sampling_strategy is 'group_by_length'": lambda: trainer(given={"train_sampling_strategy": "group_by_length"}),
            "must make input_ids and labels": lambda: trainer(collator=lambda rows: {"input_ids": padded(rows)["input_ids"]}),
            "samples are packed": lambda: trainer(collator=lambda rows: {**padded(rows), "position_ids": torch.zeros(1, 9)}),
            "Concord trains causal language models": lambda: trainer(model=transformers.BertForMaskedLM(
                transformers.BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
                                        intermediate_size=8))),
            "tensor 3 x context 1 x pipeline 1 does not divide": lambda: trainer(settings={"tensor_model_parallel_size": 3}),
            "implementation is 'fast'": lambda: trainer(implementation="fast"),
        }.items():
            with self.subTest(message), self.assertRaisesRegex(concord.ConfigError, message):
                make().train()


def table():
    """Returns what becomes of every field of TrainingArguments, from the tables of settings."""
    own = {name: help for name, _, _, help in hf.core.settings()}
    same, mapped, ignored, refused = [], dict(hf.MAPPED), {}, {}
    for name in transformers.TrainingArguments.__dataclass_fields__:
        if name in mapped:
            continue
        if name in own:
            same.append(name)
            continue
        found = hf.core.foreign_setting(name)
        assert found is not None, f"nothing is known of {name}"
        kind, text, accepted = found
        if kind in ("same", "converted"):
            mapped[name] = f"`{text}`" if kind == "same" else text
        elif kind == "ignored":
            ignored.setdefault(text, []).append(name)
        else:
            refused[name] = (", ".join(f"`{each}`" for each in accepted if each) or "its default", text)
    quoted = lambda names: ", ".join(f"`{each}`" for each in names)  # noqa: E731
    lines = [f"Of transformers {transformers.__version__}.", "", "| honoured, under the same name |", "|---|", f"| {quoted(same)} |", "",
             "| mapped | to |", "|---|---|", *(f"| `{name}` | {into} |" for name, into in mapped.items()), "",
             "| without effect | because |", "|---|---|", *(f"| {quoted(names)} | {why} |" for why, names in ignored.items()), "",
             "| refused | unless | instead |", "|---|---|---|",
             *(f"| `{name}` | {unless} | {instead} |" for name, (unless, instead) in refused.items()), ""]
    return "\n".join(lines)


class PageTest(unittest.TestCase):
    def test_the_page_has_every_argument(self):
        text, _, written = PAGE.read_text().partition(MARK)
        if os.environ.get("CONCORD_WRITE_DOCS"):
            written = "\n" + table()
            PAGE.write_text(text + MARK + written)
        self.assertEqual(written, "\n" + table(), f"{PAGE} is not of this program; write it with CONCORD_WRITE_DOCS=1")


if __name__ == "__main__":
    unittest.main()
