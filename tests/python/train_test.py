"""concord.train compared with `concord train`: train_test.py PROGRAM.

Losses, gradient norms and weights have to be equal bit for bit, messages letter for letter.
"""

import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
import unittest

from runs import GOLDEN, PROGRAM, ROWS, TOKENS, RunTest, program, values

import concord
import torch


class TrainTest(RunTest):
    def test_losses_and_weights_are_those_of_the_program(self):
        adamw = {"weight_decay": 0.1, "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-4},
                 "save_strategy": "steps", "save_steps": 10}
        program(self.settings("program", **adamw))
        result = concord.train(**self.settings("python", **adamw))
        self.assertEqual(values(result.output_dir), values(self.folder / "program"))
        self.assertEqual(len(result.log), 4)
        self.assertEqual((result.global_step, result.reason), (4, "finished"))
        self.assertEqual((result.model / "model.safetensors").read_bytes(),
                         (self.folder / "program/model/model.safetensors").read_bytes())

    def test_rows_in_memory_are_those_of_a_file(self):
        path = self.folder / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        program(self.settings("program", train_data=str(path)))
        expected = values(self.folder / "program")

        class Indexed:  # like a torch Dataset: no index is too large
            def __len__(self):
                return len(ROWS)

            def __getitem__(self, index):
                return ROWS[index % len(ROWS)]

        kinds = {"list": ROWS, "generator": (row for row in ROWS), "indexed": Indexed(),
                 "tensors": [{"input_ids": torch.tensor(row["input_ids"])} for row in ROWS]}
        for kind, rows in kinds.items():
            self.assertEqual(values(concord.train(**self.settings(kind, train_data=rows)).output_dir), expected, kind)
        endless = itertools.chain(ROWS[:12], itertools.cycle(ROWS[12:]))
        limited = concord.train(**self.settings("endless", train_data=endless, max_samples=24))
        self.assertEqual(values(limited.output_dir), expected)
        with self.assertRaisesRegex(concord.ConfigError, "row 0 of train_data is 5; must be a dict"):
            concord.train(**self.settings("wrong", train_data=iter([5])))

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not installed")
    def test_a_tokenizer_of_transformers_is_that_of_its_folder(self):
        import transformers

        folder = GOLDEN / "tokenizer/qwen"
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token or '' }}{% endfor %}"
        tokenizer.save_pretrained(self.folder / "tokenizer")
        rows = self.folder / "rows.jsonl"
        rows.write_text("".join(json.dumps({"text": f"{a} and {a + 1}"}) + "\n" for a in range(24)))
        config = json.loads((GOLDEN / "hf/qwen2-tiny/config.json").read_text()) | {"vocab_size": len(tokenizer)}
        more = {"model": None, "model_config": json.dumps(config), "train_data": str(rows)}
        program({name: each for name, each in self.settings("program", **more, tokenizer=str(self.folder / "tokenizer")).items()
                 if each is not None})
        saves = {"save_strategy": "steps", "save_steps": 2}
        result = concord.train(**self.settings("python", **{**more, **saves}, tokenizer=tokenizer))
        self.assertEqual(values(result.output_dir), values(self.folder / "program"))
        self.assertTrue((result.model / "tokenizer.json").exists())
        resumed = concord.train(**self.settings("resumed", **{**more, **saves}, tokenizer=tokenizer,
                                                resume_from_checkpoint=str(result.output_dir / "checkpoint-2")))
        self.assertEqual([row[:4] for row in values(resumed.output_dir)], [row[:4] for row in values(result.output_dir)][2:])

    def test_messages_are_those_of_the_command_line(self):
        for wrong in ({"learning_rte": 1e-3}, {"learning_rate": "fast"}, {"max_steps": -5}, {"model": "/nowhere"},
                      {"tensor_model_parallel_size": 3}, {"lr_scheduler_type": "cosin"}, {"bf16": "perhaps"},
                      {"lr_scheduler_kwargs": [1]}, {"stage": "dpo"}):
            with self.assertRaises(ValueError) as raised:
                concord.train(**self.settings("wrong", **wrong))
            self.assertIsInstance(raised.exception, concord.ConfigError)
            said = program(self.settings("wrong", nproc=1, **wrong), code=2).stderr
            self.assertEqual(said.removeprefix("concord: ").strip(), str(raised.exception).strip())
        with self.assertRaisesRegex(concord.ConfigError, "learning_rate is <object"):
            concord.train(**self.settings("wrong", learning_rate=object()))
        with self.assertRaisesRegex(concord.ConfigError, "concord launch --nproc 2 -- python SCRIPT"):
            concord.train(**self.settings("wrong", nproc=2))
        self.assertFalse((self.folder / "wrong").exists())

    def test_callbacks_see_and_steer_the_run(self):
        seen = []

        class Stop(concord.Callback):
            def on_log(self, state, control, logs):
                seen.append((logs["step"], logs["loss"], logs["grad_norm"], logs["learning_rate"], logs["tokens"]))
                control.should_training_stop = state.global_step == 3

            def on_train_end(self, state):
                seen.append((state.global_step, state.max_steps, state.is_world_process_zero))

        result = concord.train(**self.settings("python"), callbacks=[Stop()])
        self.assertEqual(seen, values(result.output_dir) + [(3, 4, True)])
        self.assertEqual(result.global_step, 3)
        with self.assertRaisesRegex(concord.ConfigError, "a callback is 5, which has none of the methods of a callback"):
            concord.train(**self.settings("wrong"), callbacks=[5])

    def test_a_loop_trains_evaluates_and_saves(self):
        lines, kept = [], []

        def loop(trainer):
            kept.append(trainer)
            while logs := trainer.train_step():
                lines.append((logs["step"], logs["loss"], logs["grad_norm"], logs["learning_rate"], logs["tokens"]))
                if trainer.state.global_step == 2:
                    kept.append(trainer.evaluate()["eval_loss"])
                    kept.append(trainer.save())
            trainer.save_model(str(self.folder / "model"))

        saves = {"save_strategy": "steps", "save_steps": 100, "eval_data": TOKENS}
        result = concord.train(**self.settings("python", **saves), loop=loop)
        program(self.settings("program", **saves, eval_steps=2, eval_strategy="steps"))
        self.assertEqual(lines, values(self.folder / "program"))
        self.assertEqual((self.folder / "model/model.safetensors").read_bytes(),
                         (self.folder / "program/model/model.safetensors").read_bytes())
        evaluated = json.loads((self.folder / "program/eval_metrics.jsonl").read_text().splitlines()[0])
        self.assertEqual((evaluated["step"], evaluated["eval_loss"]), (2, kept[1]))
        self.assertEqual(result.eval_log[0]["eval_loss"], kept[1])
        # The checkpoint has the state of the whole run.
        self.assertEqual(kept[2], str(result.output_dir / "checkpoint-2"))
        resumed = concord.train(**self.settings("resumed", **saves, resume_from_checkpoint=kept[2]))
        self.assertEqual([row[:4] for row in values(resumed.output_dir)], [row[:4] for row in lines[2:]])
        with self.assertRaisesRegex(concord.ConfigError, "the run of this Trainer is over"):
            kept[0].train_step()
        with self.assertRaisesRegex(concord.ConfigError, "loop is 5; must be a function"):
            concord.train(**self.settings("wrong"), loop=5)

    def test_a_loop_may_stop_early_or_fail(self):
        result = concord.train(**self.settings("early"), loop=lambda trainer: [trainer.train_step() for _ in range(3)])
        self.assertEqual(result.global_step, 3)

        def fails(trainer):
            trainer.train_step()
            return {}["missing"]

        with self.assertRaises(KeyError):
            concord.train(**self.settings("failed"), loop=fails)
        self.assertEqual(concord.train(**self.settings("again")).global_step, 4)

    def test_an_exception_of_a_callback_ends_the_run_with_its_traceback(self):
        class Fails:
            def on_step_end(self, state, control):
                return 1 // (state.global_step - 2)

        try:  # assertRaises drops the traceback
            concord.train(**self.settings("failed"), callbacks=[Fails()])
            self.fail("no exception")
        except ZeroDivisionError:
            self.assertIn("return 1 // (state.global_step - 2)", traceback.format_exc())
        # The process can train again, also with other settings of the job.
        again = concord.train(**self.settings("again", seed=7, ddp_timeout=99))
        program(self.settings("program", seed=7, ddp_timeout=99))
        self.assertEqual(values(again.output_dir), values(self.folder / "program"))

    def test_other_threads_run_during_a_step(self):
        ticks, marks, done = [], [], threading.Event()

        class Marks:
            def on_train_begin(self, state, control):
                marks.append(len(ticks))

            def on_train_end(self, state):
                marks.append(len(ticks))

        def tick():
            while not done.wait(1e-4):
                ticks.append(None)

        thread = threading.Thread(target=tick)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1000)  # a thread that holds the lock keeps it until it releases it itself
        thread.start()
        try:
            concord.train(**self.settings("python", max_steps=50), callbacks=[Marks()])
        finally:
            done.set()
            sys.setswitchinterval(interval)
            thread.join()
        self.assertGreater(marks[1], marks[0])

    def test_interrupt_saves_and_the_run_can_be_resumed(self):
        class Interrupt:
            def on_step_end(self, state, control):
                if state.global_step == 2:
                    os.kill(os.getpid(), signal.SIGINT)

        saves = {"save_strategy": "steps", "save_steps": 100}
        handler = signal.getsignal(signal.SIGINT)
        with self.assertRaisesRegex(KeyboardInterrupt, "SIGINT"):
            concord.train(**self.settings("python", **saves), callbacks=[Interrupt()])
        self.assertIs(signal.getsignal(signal.SIGINT), handler)
        self.assertTrue((self.folder / "python/checkpoint-2").is_dir())
        result = concord.train(**self.settings("python", **saves, resume_from_checkpoint=True))
        program(self.settings("program", **saves))
        self.assertEqual(values(result.output_dir), values(self.folder / "program"))

    def test_two_ranks(self):
        script = self.folder / "script.py"
        script.write_text(
            "import concord, json, os, sys\n"
            "class Fails:\n"
            "    def on_step_end(self, state, control):\n"
            "        if os.environ['RANK'] == '1' and state.global_step == 2:\n"
            "            raise RuntimeError('rank 1 has had enough')\n"
            "concord.train(**json.loads(sys.argv[1]), callbacks=[Fails()] if len(sys.argv) > 2 else [])\n")
        launch = [PROGRAM, "launch", "--nproc", "2", "--", sys.executable, "-B", str(script)]
        tensor = {"tensor_model_parallel_size": 2}
        done = subprocess.run([*launch, json.dumps(self.settings("python", **tensor))], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        program(self.settings("program", **tensor, nproc=2))
        self.assertEqual(values(self.folder / "python"), values(self.folder / "program"))
        done = subprocess.run([*launch, json.dumps(self.settings("fails", **tensor)), "fail"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("raise RuntimeError('rank 1 has had enough')", done.stderr)

    def test_the_package_is_of_this_build(self):
        self.assertIn(f"concord {concord.__version__} (", program({}, command=(PROGRAM, "--version")).stdout)
        with self.assertRaisesRegex(AttributeError, "has no attribute 'trian'; it has Callback, "):
            concord.trian


if __name__ == "__main__":
    unittest.main()
