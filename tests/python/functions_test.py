"""compute_metrics, compute_loss and parameter_groups of concord.train: functions_test.py PROGRAM."""

import math
import os
import unittest

from runs import MODEL, ROWS, TOKENS, RunTest, program, values

import concord
import torch
from torch.nn import functional

EVALUATES = {"eval_data": TOKENS, "eval_strategy": "steps", "eval_steps": 2, "compute_accuracy": True}


def cross_entropy(logits, batch):
    return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none").view_as(batch["labels"])


class MetricsTest(RunTest):
    def test_metrics_of_predictions_are_those_of_the_program(self):
        def metrics(samples):
            right = sum(a == b for each in samples for a, b in zip(each.labels, each.predictions, strict=True))
            log_probs = [p for each in samples for p in each.log_probs]
            assert [each.index for each in samples] == list(range(len(samples)))
            assert samples[0].loss == -math.fsum(samples[0].log_probs) / len(samples[0].log_probs)
            return {"right": torch.tensor(right / len(log_probs)), "nll": -math.fsum(log_probs) / len(log_probs)}

        result = concord.train(**self.settings("python", **EVALUATES), compute_metrics=metrics)
        program(self.settings("program", **EVALUATES))
        self.assertEqual(values(result.output_dir), values(self.folder / "program"))
        theirs = concord.load(self.folder / "program/eval_metrics.jsonl")
        self.assertEqual(len(result.eval_log), 2)
        for ours, loss, accuracy in zip(result.eval_log, theirs["eval_loss"], theirs["eval_accuracy"], strict=True):
            # A count in fp32 divided in fp64; a mean of fp32 losses, whose sums differ by their order only.
            self.assertAlmostEqual(ours["eval_right"], accuracy.item(), delta=2**-23)
            self.assertAlmostEqual(ours["eval_nll"], loss.item(), delta=2**-22 * loss.item())

    def test_wrong_results_end_the_run(self):
        for metrics, message in ((lambda samples: 5, "compute_metrics returned 5; must return a dict of numbers"),
                                 (5, "compute_metrics is 5; must be a function of one argument, the list of samples")):
            with self.assertRaisesRegex(concord.ConfigError, message):
                concord.train(**self.settings("python", **EVALUATES, overwrite_output_dir=True), compute_metrics=metrics)
        with self.assertRaises(ZeroDivisionError):
            concord.train(**self.settings("python", **EVALUATES, overwrite_output_dir=True),
                          compute_metrics=lambda samples: {"a": 1 / (len(samples) - len(samples))})


class LossTest(RunTest):
    def expect_close(self, ours, theirs):
        """The logits are equal, their losses and gradients are rounded differently: by some 2^-24 in the first step; the
        updates of AdamW that this changes are of size learning_rate."""
        self.assertEqual(len(ours), len(theirs))
        for (step, loss, norm, *rest), (step_, loss_, norm_, *rest_) in zip(ours, theirs, strict=True):
            self.assertEqual((step, rest), (step_, rest_))
            scale = 2**-22 if step == 1 else 1e-4
            self.assertLessEqual(abs(loss - loss_), scale * loss_, (step, loss, loss_))
            self.assertLessEqual(abs(norm - norm_), max(scale, 2**-18) * norm_, (step, norm, norm_))

    def test_cross_entropy_trains_like_the_program(self):
        rows = self.folder / "rows.jsonl"
        rows.write_text("".join(f'{{"input_ids": {row["input_ids"]}}}\n' for row in ROWS))  # of different lengths
        for name, more in {"tokens": {}, "recomputed": {"recompute_granularity": "full", "recompute_method": "uniform",
                                                        "recompute_num_layers": 1},
                           "rows": {"train_data": str(rows)},
                           "packed": {"train_data": str(rows), "sequence_packing": True, "per_device_train_batch_size": 1},
                           "evaluated": EVALUATES}.items():
            with self.subTest(name):
                ours = concord.train(**self.settings(f"python-{name}", **more), compute_loss=cross_entropy)
                program(self.settings(f"program-{name}", **more))
                self.expect_close(values(ours.output_dir), values(self.folder / f"program-{name}"))
                if name == "evaluated":
                    theirs = concord.load(self.folder / "program-evaluated/eval_metrics.jsonl")
                    self.assertAlmostEqual(ours.eval_log[0]["eval_loss"], theirs["eval_loss"][0].item(), delta=1e-4)
                    self.assertEqual(ours.eval_log[0]["eval_accuracy"], theirs["eval_accuracy"][0].item())

    def test_the_gradient_is_that_of_the_function(self):
        once = concord.train(**self.settings("once", max_steps=1), compute_loss=cross_entropy)

        def twice(logits, batch):
            assert batch["input_ids"].shape == batch["labels"].shape == logits.shape[:2]
            assert torch.equal(batch["input_ids"][:, 1:], batch["labels"][:, :-1])
            return 2 * cross_entropy(logits, batch)

        double = concord.train(**self.settings("twice", max_steps=1), compute_loss=twice)
        self.assertEqual(double.log[0]["loss"], 2 * once.log[0]["loss"])
        self.assertEqual(double.log[0]["grad_norm"], 2 * once.log[0]["grad_norm"])

    def test_ignored_labels_do_not_count(self):
        rows = [{"input_ids": row["input_ids"], "labels": [-100] * 5 + row["input_ids"][5:]} for row in ROWS]

        def spoiled(logits, batch):
            return cross_entropy(logits, batch) + (batch["labels"] == -100) * logits.abs().sum(-1)

        runs = [concord.train(**self.settings(loss.__name__, train_data=rows), compute_loss=loss)
                for loss in (cross_entropy, spoiled)]
        self.assertEqual(values(runs[0].output_dir), values(runs[1].output_dir))

    def test_wrong_results_and_settings(self):
        shape = r"must return a loss per token, a floating-point tensor \[2, 32\] computed from the logits"
        for loss, message in ((lambda logits, batch: None, f"compute_loss returned None; {shape}"),
                              (lambda logits, batch: logits.mean(), rf"compute_loss returned a tensor \[\] of Float; {shape}"),
                              (lambda logits, batch: batch["labels"], rf"compute_loss returned a tensor \[2, 32\] of Long; {shape}"),
                              (lambda logits, batch: logits.detach()[..., 0], f"a tensor without gradient; {shape}"),
                              (7, "compute_loss is 7; must be a function of two arguments")):
            with self.assertRaisesRegex(concord.ConfigError, message):
                concord.train(**self.settings("wrong", overwrite_output_dir=True), compute_loss=loss)
        for wrong in ({"label_smoothing_factor": 0.1}, {"z_loss_coeff": 0.1}, {"loss_chunk_size": 8}, {"mtp_num_layers": 1},
                      {"tensor_model_parallel_size": 2}, {"stage": "rm"}):
            with self.assertRaisesRegex(concord.ConfigError, "^compute_loss with "):
                concord.train(**self.settings("wrong", **wrong, overwrite_output_dir=True), compute_loss=cross_entropy)

    def test_an_exception_has_its_traceback(self):
        with self.assertRaisesRegex(KeyError, "missing"):
            concord.train(**self.settings("wrong"), compute_loss=lambda logits, batch: batch["missing"])


class GroupsTest(RunTest):
    def test_groups_by_a_function_are_those_of_patterns(self):
        seen = {}

        def groups(name, shape):
            seen[name] = shape
            if "mlp" in name:
                return {"lr": 0.1, "weight_decay": 0}
            return {"lr": 0.0} if name.startswith("model.embed") else None

        more = {"weight_decay": 0.1, "save_strategy": "steps", "save_steps": 10}
        ours = concord.train(**self.settings("python", **more), parameter_groups=groups)
        program(self.settings("program", **more, lr_mult_pattern={"mlp": 0.1, "^model.embed": 0.0},
                              weight_decay_mult_pattern={"mlp": 0}))
        self.assertEqual(values(ours.output_dir), values(self.folder / "program"))
        self.assertEqual((ours.model / "model.safetensors").read_bytes(),
                         (self.folder / "program/model/model.safetensors").read_bytes())
        start, end = concord.load(MODEL), concord.load(ours.model)
        self.assertTrue(torch.equal(start["model.embed_tokens.weight"], end["model.embed_tokens.weight"].float()))
        self.assertFalse(torch.equal(start["model.norm.weight"], end["model.norm.weight"].float()))
        self.assertEqual(seen["model.embed_tokens.weight"], tuple(start["model.embed_tokens.weight"].shape))

    def test_wrong_results_end_the_run(self):
        must = "must return None or a dict of multipliers >= 0: lr, weight_decay"
        for wrong in (5, {"learning_rate": 1}, {"lr": -1}, {"lr": math.nan}, {"lr": "much"}):
            with self.subTest(wrong), self.assertRaisesRegex(concord.ConfigError, f"parameter_groups returned .* for .*; {must}"):
                concord.train(**self.settings("wrong", overwrite_output_dir=True), parameter_groups=lambda name, shape, wrong=wrong: wrong)
        with self.assertRaisesRegex(concord.ConfigError, "parameter_groups is 5; must be a function of two arguments"):
            concord.train(**self.settings("wrong", overwrite_output_dir=True), parameter_groups=5)


if __name__ == "__main__":
    unittest.main()
