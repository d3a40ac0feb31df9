"""examples/python/notebook.ipynb, executed by nbclient and compared with the program: notebook_test.py PROGRAM PACKAGES.

PACKAGES is a folder with nbclient and ipykernel. Exit code 77: it does not exist.
"""

import json
import os
import pathlib
import signal
import sys
import threading
import time
import unittest

from runs import GOLDEN, RunTest, program, values

PACKAGES = pathlib.Path(sys.argv.pop(1))
EXAMPLES = GOLDEN.parents[1] / "examples/python"
SETTINGS = {"model_config": GOLDEN.parents[1] / "examples/sft/config.json", "tokenizer": "byte", "seq_length": 16, "max_steps": 200,
            "learning_rate": 4e-3, "per_device_train_batch_size": 25, "logging_steps": 5, "output_dir": "program"}


class NotebookTest(RunTest):
    def test_it_trains_like_the_program_and_shows_the_curve(self):
        import nbclient
        import nbformat

        notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        self.assertLess(sum(len(cell.source.splitlines()) for cell in code), 40)
        self.assertFalse(any(cell.outputs for cell in code), "the file is kept without outputs")
        nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3",
                                resources={"metadata": {"path": str(self.folder)}}).execute()
        [shown] = [each["data"] for each in code[1].outputs if each["output_type"] == "execute_result"]
        self.assertIn("<svg", shown["text/html"])
        [progress] = [each["data"]["text/html"] for each in code[1].outputs if each["output_type"] == "display_data"]
        self.assertIn('<progress value="200" max="200"></progress> 200/200 · loss ', progress)
        self.assertIn("<polyline", progress)
        [answers] = [each["data"]["text/plain"] for each in code[2].outputs if each["output_type"] == "execute_result"]
        self.assertIn("7 + 8 = 15", answers)
        self.assertFalse([each for cell in code for each in cell.outputs if each["output_type"] == "error"])
        rows = self.folder / "rows.jsonl"
        rows.write_text("".join(json.dumps({"prompt": f"{a} + {b} = ", "completion": str(a + b)}) + "\n"
                                for a in range(10) for b in range(10)))
        program({**{name: str(value) for name, value in SETTINGS.items()}, "train_data": str(rows),
                 "output_dir": str(self.folder / "program")})
        self.assertEqual(len(values(self.folder / "sums")), 40)
        self.assertEqual(values(self.folder / "sums"), values(self.folder / "program"))

    def test_an_interrupt_stops_the_cell_and_saves(self):
        import nbclient
        import nbformat

        text = ("import concord\n"
                "from sft import CONFIG, sums\n"
                "concord.train(model_config=CONFIG, tokenizer='byte', train_data=list(sums()), seq_length=16, max_steps=10**6,\n"
                "              save_strategy='steps', save_steps=10**6, logging_steps=1, output_dir='stopped')")
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text)])
        client = nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", allow_errors=True,
                                         resources={"metadata": {"path": str(self.folder)}})
        metrics = self.folder / "stopped/metrics.jsonl"

        def interrupt():
            while not metrics.exists() or not metrics.read_text():
                time.sleep(0.05)
            os.kill(client.km.provisioner.pid, signal.SIGINT)  # what the button of a notebook does

        thread = threading.Thread(target=interrupt, daemon=True)
        thread.start()
        client.execute()
        [error] = [each for each in notebook.cells[0].outputs if each["output_type"] == "error"]
        self.assertEqual(error["ename"], "KeyboardInterrupt")
        [saved] = (self.folder / "stopped").glob("checkpoint-*")
        self.assertGreaterEqual(int(saved.name.split("-")[1]), 1)


if __name__ == "__main__":
    if not (PACKAGES / "nbclient").is_dir():
        print(f"skipped: no nbclient in {PACKAGES}; ./run test --sanitizers installs it")
        sys.exit(77)
    sys.path.append(str(PACKAGES))
    # The kernel is another process of this Python.
    os.environ["PYTHONPATH"] = os.pathsep.join([os.environ["PYTHONPATH"], str(EXAMPLES), str(PACKAGES)])
    unittest.main()
