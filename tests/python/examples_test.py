"""examples/python compared with the same runs of the program, bit for bit: examples_test.py PROGRAM.

Each call of concord.train in an example is shortened, and made again by `concord train` with the same settings.
"""

import json
import pathlib
import runpy
import sys
import unittest

from runs import GOLDEN, RunTest, program, values

import concord

EXAMPLES = GOLDEN.parents[1] / "examples/python"
STEPS = 12
ONLY_PYTHON = ("callbacks", "loop")


class ExamplesTest(RunTest):
    def test_each_has_the_losses_of_the_program(self):
        for name, runs in {"sft.py": 1, "own_loop.py": 1, "lora.py": 2, "dpo.py": 2}.items():
            with self.subTest(name):
                self.assertLess(len((EXAMPLES / name).read_text().splitlines()), 40)
                calls = self.run_example(name)
                self.assertEqual(len(calls), runs)
                for given in calls:
                    self.compare(given, self.folder / name)
        self.assertEqual({path.name for path in EXAMPLES.glob("*.py")},
                         {"sft.py", "own_loop.py", "lora.py", "dpo.py", "own_model.py"})

    def test_a_model_of_ones_own_learns(self):  # module_test.py compares such models with torch
        self.assertLess(len((EXAMPLES / "own_model.py").read_text().splitlines()), 40)
        [given] = self.run_example("own_model.py")
        losses = [row[1] for row in values(given["output_dir"])]
        self.assertEqual(len(losses), STEPS)
        self.assertLess(losses[-1], 0.8 * losses[0])

    def run_example(self, name):
        """Runs the example in its folder; returns the settings of its runs."""
        calls, train = [], concord.train

        def shortened(**settings):
            for data in {"train_data", "eval_data"} & set(settings):
                settings[data] = list(settings[data])
            calls.append({**settings, "max_steps": STEPS, "logging_steps": 1})
            return train(**calls[-1])

        concord.train = shortened
        sys.argv, before = [name, str(self.folder / name / "python")], sys.argv
        sys.path.insert(0, str(EXAMPLES))
        try:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        finally:
            concord.train, sys.argv = train, before
            sys.path.remove(str(EXAMPLES))
        return calls

    def compare(self, given, folder):
        """Trains with the program what `given` has trained; files of the example's earlier runs are those of the program's."""
        python = given["output_dir"]
        settings = {name: value for name, value in given.items() if name not in ONLY_PYTHON}
        for data in {"train_data", "eval_data"} & set(settings):
            rows = self.folder / f"{data}.jsonl"
            rows.write_text("".join(json.dumps(row) + "\n" for row in settings[data]))
            settings[data] = str(rows)
        for name, value in settings.items():
            if isinstance(value, (str, pathlib.Path)):
                settings[name] = str(value).replace(str(folder / "python"), str(folder / "program"))
        program(settings)
        self.assertEqual(len(values(python)), STEPS)
        self.assertEqual(values(python), values(settings["output_dir"]))


if __name__ == "__main__":
    unittest.main()
