"""TRL's own script sft.py with the import of SFTTrainer changed, compared with the original: hf_scripts_test.py PROGRAM PACKAGES.

PACKAGES is a folder with datasets, which TRL needs. Exit code 77: it does not exist. The scripts are those of the installed
packages; the changed copy is temporary.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import unittest

from runs import GOLDEN, RunTest

PACKAGES = pathlib.Path(sys.argv.pop(1))
IMPORT = "from trl import SFTTrainer, get_dataset"
CHANGED = "from concord.hf import SFTTrainer\n    from trl import get_dataset"
HOW_CLOSE = 1e-5
WORDS = ["--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2", "--learning_rate", "1e-3", "--logging_steps", "1",
         "--max_length", "48", "--num_train_epochs", "2", "--save_strategy", "steps", "--save_steps", "14", "--report_to", "none",
         "--bf16", "False", "--use_cpu", "True", "--dtype", "float32", "--eval_strategy", "steps", "--eval_steps", "5", "--seed", "3",
         "--disable_tqdm", "True"]
LORA = ["--use_peft", "--lora_r", "4", "--lora_alpha", "8", "--lora_dropout", "0", "--lora_target_modules", "q_proj", "v_proj"]
TEXTS = ["to be or not to be, that is the question", "the rain in spain", "all that glitters is not gold and so on",
         "a horse, a horse, my kingdom for a horse"]


class ScriptTest(RunTest):
    def setUp(self):
        super().setUp()
        import transformers

        self.model, self.data = self.folder / "model", self.folder / "data"
        tokenizer = transformers.AutoTokenizer.from_pretrained(GOLDEN / "tokenizer/qwen")
        tokenizer.save_pretrained(self.model)
        config = transformers.AutoConfig.from_pretrained(GOLDEN / "hf/qwen2-tiny")
        config.vocab_size, config.eos_token_id, config.bos_token_id = len(tokenizer), tokenizer.eos_token_id, None
        transformers.set_seed(1)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(self.model)
        self.data.mkdir()
        for name, count in (("train", 26), ("test", 6)):
            rows = [{"prompt": f"{index}: ", "completion": TEXTS[index % 4][index % 9:]} for index in range(count)]
            (self.data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        [where] = importlib.util.find_spec("trl").submodule_search_locations
        self.script = pathlib.Path(where) / "scripts/sft.py"

    def run_script(self, name, text, *words):
        path = self.folder / f"{name}.py"
        path.write_text(text)
        command = [sys.executable, "-B", path, "--model_name_or_path", self.model, "--dataset_name", self.data,
                   "--output_dir", self.folder / name, *WORDS, *words]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                              env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(self.folder / "hub")})
        self.assertEqual(done.returncode, 0, done.stderr[-5000:])
        return self.folder / name

    def compare(self, *words):
        text = self.script.read_text()
        self.assertEqual(text.count(IMPORT), 1)
        original = self.run_script("original", text, *words)
        changed = self.run_script("changed", text.replace(IMPORT, CHANGED), *words)
        state = json.loads((original / "checkpoint-14/trainer_state.json").read_text())["log_history"]
        for file, name, count in (("metrics.jsonl", "loss", 14), ("eval_metrics.jsonl", "eval_loss", 2)):
            theirs = {row["step"]: row[name] for row in state if name in row}
            rows = map(json.loads, (changed / file).read_text().splitlines())
            ours = {row["step"]: row[name] for row in rows if name in row}
            self.assertGreaterEqual(len(ours), count)
            self.assertLessEqual(ours.keys(), theirs.keys())  # transformers also evaluates after the last step
            for step, loss in ours.items():
                self.assertLessEqual(abs(theirs[step] - loss), HOW_CLOSE * loss, (name, step))
        return changed

    def test_sft_of_trl(self):
        changed = self.compare()
        self.assertTrue((changed / "model.safetensors").exists())  # trainer.save_model of the script

    def test_sft_of_trl_with_an_adapter(self):
        changed = self.compare(*LORA)
        self.assertTrue((changed / "adapter_model.safetensors").exists())


if __name__ == "__main__":
    if not (PACKAGES / "datasets").is_dir() or importlib.util.find_spec("trl") is None:
        print(f"skipped: no datasets in {PACKAGES}, or no trl; ./run test --sanitizers installs them")
        sys.exit(77)
    os.environ["PYTHONPATH"] = os.pathsep.join([os.environ["PYTHONPATH"], str(PACKAGES)])
    unittest.main()
