"""The tokenization cache of `concord train`, and data sets by LLaMA-Factory's dataset_info.json, through the
program.

token_cache.py PROGRAM CONFIG TOKENIZER

A run that finds its tokens in the cache starts no Python and trains on the same samples; a change of anything that they
depend on, or damage, rebuilds them. Converted records are compared with LLaMA-Factory's rules, reimplemented here. Exit
code 77: tokenizers or pyarrow is missing, nothing was compared.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import preloaded

try:
    import pyarrow
    import pyarrow.parquet
    import tokenizers  # noqa: F401, in the program's own Python process
except ImportError as missing:
    print(f"skipped: {missing}; install tokenizers and pyarrow for this Python")
    sys.exit(77)

TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>"
            "{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}")
CHATS = [{"messages": [{"role": "user", "content": f"question {i} é"}, {"role": "assistant", "content": f"answer {i * i}"}]}
         for i in range(40)]
NO_PYTHON = "/there/is/no/python"


class Runs:
    def __init__(self, program, model, tokenizer, folder):
        self.program, self.model, self.tokenizer, self.folder = program, model, tokenizer, folder
        (folder / "template.jinja").write_text(TEMPLATE)
        config = json.loads(Path(model).read_text()) | {"vocab_size": 400}
        (folder / "config.json").write_text(json.dumps(config))

    def train(self, *words, python=sys.executable, code=0, cache="cache", env=None):
        """Returns the losses, and the output."""
        command = [self.program, "train", "--model_config", self.folder / "config.json", "--tokenizer", self.tokenizer, "--chat_template",
                   self.folder / "template.jinja", "--max_steps", 3, "--logging_steps", 1, "--save_strategy", "no",
                   "--per_device_train_batch_size", 2, "--report_to", "none", "--output_dir", self.folder / "out",
                   "--overwrite_output_dir", "--cutoff_len", 48, *words]
        if cache is not None:
            command += ["--data_cache_path", self.folder / cache if cache != "none" else cache]
        done = preloaded.run(command, os.environ | {"CONCORD_PYTHON": python, "OMP_NUM_THREADS": "1"} | (env or {}))
        if done.returncode != code:
            raise AssertionError(f"exit code {done.returncode}, not {code}: {command}\n{done.stdout}\n{done.stderr}")
        if code != 0:
            return done.stderr
        lines = (self.folder / "out" / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines], done.stdout + done.stderr

    def entries(self, cache="cache"):
        return sorted(path for path in (self.folder / cache / "tokens").iterdir() if path.is_dir())


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def check_second_start(runs):
    """The second start, also with two ranks, needs no Python and has the same losses as a run without a cache."""
    chats = write_lines(runs.folder / "chats.jsonl", CHATS)
    wanted, _ = runs.train("--train_data", chats, cache="none")
    assert runs.train("--train_data", chats)[0] == wanted
    assert runs.train("--train_data", chats, python=NO_PYTHON)[0] == wanted
    assert "tokenize" in runs.train("--train_data", chats, python=NO_PYTHON, cache="none", code=2)
    moved = shutil.move(chats, runs.folder / "moved.jsonl")
    assert runs.train("--train_data", moved, python=NO_PYTHON)[0] == wanted, "the name of the file matters"
    assert runs.train("--train_data", moved, python=NO_PYTHON, cache=None, env={"CONCORD_CACHE": str(runs.folder / "cache")})[0] == wanted
    assert runs.train("--train_data", moved, "--nproc", 2, cache="cache2")[0] == runs.train(
        "--train_data", moved, "--nproc", 2, cache="cache2", python=NO_PYTHON)[0]
    assert len(runs.entries()) == len(runs.entries("cache2")) == 1


def check_key(runs):
    """Other bytes, another template, another tokenizer: other tokens."""
    chats = write_lines(runs.folder / "chats.jsonl", CHATS)
    runs.train("--train_data", chats)
    first = chats.read_text()
    chats.write_text(first.replace("answer 0", "answer 1"))
    assert "Python" in runs.train("--train_data", chats, python=NO_PYTHON, code=2)
    chats.write_text(first)
    (runs.folder / "template.jinja").write_text(TEMPLATE.replace("<|im_end|>", "<|im_end|> "))
    assert "Python" in runs.train("--train_data", chats, python=NO_PYTHON, code=2)
    (runs.folder / "template.jinja").write_text(TEMPLATE)
    runs.train("--train_data", chats, python=NO_PYTHON)
    copy = runs.folder / "tokenizer"
    shutil.copytree(runs.tokenizer, copy)
    (copy / "tokenizer.json").write_text((copy / "tokenizer.json").read_text() + "\n")
    runs.tokenizer = copy
    assert "Python" in runs.train("--train_data", chats, python=NO_PYTHON, code=2)


def check_damage(runs):
    """A flipped byte or a missing file is detected, reported, and repaired."""
    chats = write_lines(runs.folder / "chats.jsonl", CHATS)
    texts = write_lines(runs.folder / "texts.jsonl", [{"text": f"some text {i} é " * 20} for i in range(30)])
    for data, name in (chats, "data.jsonl"), (texts, "data.bin"):
        wanted, _ = runs.train("--train_data", data, "--seq_length", 48, cache=name)
        [entry] = runs.entries(name)
        file = entry / name
        whole = file.read_bytes()
        damages = {"flipped": whole[:100] + bytes([whole[100] ^ 1]) + whole[101:], "gone": None}
        for kind, damaged in damages.items():
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
            losses, said = runs.train("--train_data", data, "--seq_length", 48, cache=name)
            assert losses == wanted and "is damaged" in said, (name, kind, said)
            assert file.read_bytes() == whole, (name, kind)
        assert "is damaged" not in runs.train("--train_data", data, "--seq_length", 48, cache=name, python=NO_PYTHON)[1]


def check_several_files(runs):
    """A folder of Parquet files trains like the same records in one file of lines, both corpora and conversations."""
    texts = [{"text": f"text number {i} " * (1 + i % 7)} for i in range(60)]
    for name, records in ("texts", texts), ("chats", CHATS):
        wanted, _ = runs.train("--train_data", write_lines(runs.folder / f"{name}.jsonl", records), "--seq_length", 48, cache="none")
        folder = runs.folder / name
        folder.mkdir()
        for i in range(2):
            part = records[len(records) // 2 * i:len(records) // 2 * (i + 1)]
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(part), folder / f"train-{i}.parquet")
        assert runs.train("--train_data", folder, "--seq_length", 48)[0] == wanted, name
        assert runs.train("--train_data", folder / "train-*.parquet", "--seq_length", 48, python=NO_PYTHON)[0] == wanted, name
    assert "data_cache_path" in runs.train("--train_data", runs.folder / "texts", cache="none", code=2)


def alpaca(record, columns, ranking):
    """Like LLaMA-Factory's AlpacaDatasetConverter: prompt and query joined by a line break, after the history."""
    get = lambda name: record.get(columns[name]) if name in columns else None
    messages = [{"role": "system", "content": get("system")}] if get("system") else []
    for question, answer in get("history") or []:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    messages.append({"role": "user", "content": "\n".join(part for part in (get("prompt"), get("query")) if part)})
    answers = [[{"role": "assistant", "content": get(name)}] for name in (("chosen", "rejected") if ranking else ("response",))]
    if ranking:
        return {"prompt": messages, "chosen": answers[0], "rejected": answers[1]}
    return {"messages": messages + answers[0]}


def sharegpt(record, columns, tags, ranking):
    """Like its SharegptDatasetConverter: roles by tags; a system column only if the messages do not start with one."""
    roles = {tags["user_tag"]: "user", tags["assistant_tag"]: "assistant", tags["observation_tag"]: "tool",
             tags["function_tag"]: "assistant", tags["system_tag"]: "system"}
    convert = lambda turn: {"role": roles[turn[tags["role_tag"]]], "content": turn[tags["content_tag"]]}
    messages = [convert(turn) for turn in record[columns["messages"]]]
    if messages[0]["role"] != "system" and record.get(columns.get("system")):
        messages.insert(0, {"role": "system", "content": record[columns["system"]]})
    if ranking:
        return {"prompt": messages, "chosen": [convert(record[columns["chosen"]])], "rejected": [convert(record[columns["rejected"]])]}
    return {"messages": messages}


ALPACA = {"prompt": "instruction", "query": "input", "response": "output"}
TAGS = {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt", "observation_tag": "observation",
        "function_tag": "function_call", "system_tag": "system"}


def data_sets():
    """name -> (entry of dataset_info.json, records, their standard form)."""
    plain = [{"instruction": f"add {i}", "input": "" if i % 2 else f"to {i}", "output": f"it is {2 * i}"} for i in range(12)]
    named = [{"q": f"q{i}", "a": f"a{i}", "sys": "be brief" if i % 3 else "", "old": [["x", "y"]] if i % 2 else []} for i in range(12)]
    columns = {"prompt": "q", "response": "a", "system": "sys", "history": "old"}
    pairs = [{"instruction": f"why {i}", "input": "", "good": f"so {i}", "bad": "no"} for i in range(12)]
    ranked = {"chosen": "good", "rejected": "bad"}
    talk = [{"conversations": [{"from": "human", "value": f"hi {i}"}, {"from": "gpt", "value": "yes"}, {"from": "observation", "value": "7"},
                               {"from": "gpt", "value": f"{i}"}], "sys": "s" if i % 2 else ""} for i in range(12)]
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "u", "assistant_tag": "a"}
    other = [{"msgs": [{"role": "system", "content": "S"}, {"role": "u", "content": f"{i}"}], "sys": "not this",
              "good": {"role": "a", "content": f"yes {i}"}, "bad": {"role": "a", "content": "no"}} for i in range(12)]
    mine = {"messages": "msgs", "system": "sys", **ranked}
    return {
        "plain": ({}, plain, [alpaca(each, ALPACA, False) for each in plain]),
        "named": ({"formatting": "alpaca", "columns": columns}, named, [alpaca(each, ALPACA | columns, False) for each in named]),
        "pairs": ({"ranking": True, "columns": ranked}, pairs, [alpaca(each, ALPACA | ranked, True) for each in pairs]),
        "talk": ({"formatting": "sharegpt", "columns": {"messages": "conversations", "system": "sys"}}, talk,
                 [sharegpt(each, {"messages": "conversations", "system": "sys"}, TAGS, False) for each in talk]),
        "other": ({"formatting": "sharegpt", "ranking": True, "columns": mine, "tags": tags}, other,
                  [sharegpt(each, mine, TAGS | tags, True) for each in other])}


def check_data_sets(runs):
    """dataset and dataset_dir give the tokens of the records converted by LLaMA-Factory's rules, and train on them."""
    folder = runs.folder / "data"
    folder.mkdir()
    sets = data_sets()
    (folder / "dataset_info.json").write_text(json.dumps(
        {name: {"file_name": f"{name}.json", **entry} for name, (entry, _, _) in sets.items()} | {"hub": {"hf_hub_url": "a/b"}}))
    for name, (entry, records, wanted) in sets.items():
        (folder / f"{name}.json").write_text(json.dumps(records))
        lines, ids = write_lines(runs.folder / f"{name}.jsonl", wanted), runs.folder / f"{name}-ids.jsonl"
        subprocess.run([runs.program, "data", "build", "--sft", "--input", lines, "--output", ids, "--tokenizer", runs.tokenizer,
                        "--chat_template", runs.folder / "template.jinja"], check=True, stdout=subprocess.DEVNULL,
                       env=os.environ | {"CONCORD_PYTHON": sys.executable})
        stage = ["--stage", "rm" if entry.get("ranking") else "sft"]
        given = ["--dataset", name, "--dataset_dir", folder, *stage]
        losses, _ = runs.train(*given, cache=name)
        [made] = runs.entries(name)
        assert (made / "data.jsonl").read_bytes() == ids.read_bytes(), name
        if name in ("named", "other"):
            assert runs.train("--train_data", lines, *stage, cache="none")[0] == losses, name
            assert runs.train(*given, cache="none")[0] == losses, name
    # Several: every record of each, in proportion to their sizes.
    both = runs.train("--dataset", "named, talk", "--dataset_dir", folder, "--shuffle", "false", cache="both")[0]
    blend = f"{runs.folder / 'named.jsonl'},{runs.folder / 'talk.jsonl'}"
    assert both == runs.train("--train_data_blend", blend, "--shuffle", "false", cache="none")[0]
    assert both != runs.train("--train_data", runs.folder / "named.jsonl", "--shuffle", "false", cache="none")[0]
    assert "train on pairs" in runs.train("--dataset", "pairs,other", "--dataset_dir", folder, "--stage", "rm", code=2)
    assert "nothing before or after a comma" in runs.train("--dataset", "named,", "--dataset_dir", folder, code=2)
    assert "it has: " in runs.train("--dataset", "named,nothing", "--dataset_dir", folder, code=2)
    assert "it has: " in runs.train("--dataset", "nothing", "--dataset_dir", folder, code=2)
    assert "hf_hub_url" in runs.train("--dataset", "hub", "--dataset_dir", folder, code=2)
    (folder / "plain.json").write_text(json.dumps([{"instruction": "a", "input": "b", "output": 7}]))
    assert "plain.json, line 1" in runs.train("--dataset", "plain", "--dataset_dir", folder, code=2)


def main():
    program, model, tokenizer = sys.argv[1:]
    for check in check_second_start, check_key, check_damage, check_several_files, check_data_sets:
        with tempfile.TemporaryDirectory() as name:
            check(Runs(program, model, tokenizer, Path(name)))
        print(f"{check.__name__}: {check.__doc__}")


if __name__ == "__main__":
    main()
