"""concord.launch, torchrun, concord.generate and what a notebook shows: launch_test.py PROGRAM."""

import html
import json
import os
import pickle
import subprocess
import sys
import unittest

from functions_test import cross_entropy
from runs import MODEL, PROGRAM, RunTest, program, values

import concord

SCRIPT = '''import json, os, signal, sys, concord
def train(settings):
    return concord.train(**settings)
def fails(settings):
    if os.environ["RANK"] == "1":
        raise RuntimeError("rank 1 has had enough")
    return concord.train(**settings)
class Interrupt:
    def on_step_end(self, state, control):
        if state.global_step == 2 and state.is_world_process_zero:
            os.kill(int(os.environ["CALLER"]), signal.SIGINT)
def interrupts(settings):
    return concord.train(**settings, callbacks=[Interrupt()])
if __name__ == "__main__":
    os.environ["CALLER"] = str(os.getpid())
    print(concord.launch(globals()[sys.argv[1]], [json.loads(sys.argv[2])], nproc=2))
'''
TWO = {"tensor_model_parallel_size": 2}


def train_with_loss(settings):
    return concord.train(**settings, compute_loss=cross_entropy)


class LaunchTest(RunTest):
    def script(self, text, *words, command=(sys.executable, "-B")):
        path = self.folder / "script.py"
        path.write_text(text)
        return subprocess.run([*command, str(path), *words], capture_output=True, text=True)

    def test_a_function_as_two_ranks(self):
        done = self.script(SCRIPT, "train", json.dumps(self.settings("python", **TWO)))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Result(global_step=4, ", done.stdout)
        program(self.settings("program", **TWO, nproc=2))
        self.assertEqual(values(self.folder / "python"), values(self.folder / "program"))

    def test_torchrun(self):
        torchrun = [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        done = self.script("import concord, json, sys\nconcord.train(**json.loads(sys.argv[1]))\n",
                           json.dumps(self.settings("python", **TWO)), command=torchrun)
        self.assertEqual(done.returncode, 0, done.stderr)
        program(self.settings("program", **TWO, nproc=2))
        self.assertEqual(values(self.folder / "python"), values(self.folder / "program"))

    def test_a_failure_has_the_traceback_of_its_rank(self):
        done = self.script(SCRIPT, "fails", json.dumps(self.settings("python", **TWO)))
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r'concord.Error: rank 1 of concord.launch raised\nTraceback[^$]*raise RuntimeError')

    def test_an_interrupt_saves(self):
        saves = {"save_strategy": "steps", "save_steps": 10**6, "max_steps": 10**6, **TWO}
        done = self.script(SCRIPT, "interrupts", json.dumps(self.settings("python", **saves)))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("\nKeyboardInterrupt", done.stderr)
        [saved] = (self.folder / "python").glob("checkpoint-*")
        self.assertGreaterEqual(int(saved.name.split("-")[1]), 2)

    def test_wrong_calls(self):
        with self.assertRaisesRegex(concord.ConfigError, "cannot be sent to the ranks: .*; give a function of a module"):
            concord.launch(lambda: None, nproc=2)
        done = self.script("import concord\nconcord.launch(print, nproc=2)\n")
        self.assertIn("concord.launch is called in a rank of a job; call it once, in a script under `if __name__", done.stderr)
        with self.assertRaisesRegex(concord.ConfigError, "cannot start 0 ranks"):
            concord.launch(print, nproc=0)

    def test_compute_loss_under_other_layouts(self):
        alone = train_with_loss(self.settings("alone", per_device_train_batch_size=2, gradient_accumulation_steps=2))
        for name, layout in {"data": {}, "pipeline": {"pipeline_model_parallel_size": 2, "gradient_accumulation_steps": 2},
                             "context": {"context_parallel_size": 2, "gradient_accumulation_steps": 2}}.items():
            with self.subTest(name):
                result = concord.launch(train_with_loss, [self.settings(name, **layout)], nproc=2)
                for ours, theirs in zip(values(result.output_dir), values(alone.output_dir), strict=True):
                    self.assertEqual((ours[0], ours[3:]), (theirs[0], theirs[3:]))
                    # Sums in another order, whose effect on the updates of AdamW is of size learning_rate.
                    scale = 2**-20 if ours[0] == 1 else 1e-4
                    self.assertLessEqual(abs(ours[1] - theirs[1]), scale * theirs[1], name)
                    self.assertLessEqual(abs(ours[2] - theirs[2]), max(scale, 2**-16) * theirs[2], name)


class GenerateTest(RunTest):
    def test_generates_what_the_program_does(self):
        prompts = [{"input_ids": [5, 7, 11]}, {"input_ids": [1, 2]}]
        path = self.folder / "prompts.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in prompts))
        options = {"max_new_tokens": 12, "temperature": 0.8, "seed": 3}
        ours = concord.generate(MODEL, prompts, **options)
        printed = program({"model": MODEL, "prompts": str(path), **options, "json": True}, command=(PROGRAM, "generate")).stdout
        self.assertEqual(ours, json.loads(printed)["generated"])
        self.assertEqual([len(each["ids"]) for each in ours], [12, 12])
        self.assertEqual(concord.generate(MODEL, prompts[1], max_new_tokens=5, nproc=2, tensor_model_parallel_size=2),
                         concord.generate(MODEL, iter(prompts[1:]), max_new_tokens=5))
        os.environ.update(RANK="1", WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT="1")
        try:  # in a rank, it does not join the job
            self.assertEqual(concord.generate(MODEL, prompts, **options), ours)
        finally:
            for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
                del os.environ[name]

    def test_messages_are_those_of_the_program(self):
        for wrong, message in (({"temperature": -1}, "temperature"), ({"max_new_tokenz": 1}, "max_new_tokenz"),
                               ({"tokenizer": "/nowhere"}, "/nowhere")):
            with self.assertRaisesRegex(concord.ConfigError, message):
                concord.generate(MODEL, {"input_ids": [1]}, **wrong)
        with self.assertRaisesRegex(concord.ConfigError, "row 1 of prompts is 5"):
            concord.generate(MODEL, ["a", 5])


class ResultTest(RunTest):
    def test_a_notebook_shows_the_curve(self):
        result = concord.train(**self.settings("a&b"))
        shown = result._repr_html_()
        self.assertIn(program({}, command=(PROGRAM, "report", result.output_dir, "--svg", "-")).stdout, shown)
        self.assertIn(f"<td>output_dir</td><td>{html.escape(str(result.output_dir))}</td>", shown)
        self.assertEqual(pickle.loads(pickle.dumps(result)), result)
        silent = concord.train(**{**self.settings("silent"), "logging_steps": 100, "logging_strategy": "no"})
        self.assertNotIn("<svg", silent._repr_html_())


if __name__ == "__main__":
    unittest.main()
