"""`concord data build` compared with HF's tokenizers and pyarrow.

data_build.py PROGRAM

Random texts of every kind of ASCII byte, words, blanks, contractions, digits, other scripts and special tokens, with
tokenizers that split text like GPT-2, Qwen and Llama 3 and one that splits it otherwise: ids equal encode() of each
document. The same corpus as compressed lines, Parquet, Arrow, a folder and a pattern gives the same bytes, also after
kill -9, and with the options of Megatron's preprocess_data.py. Exit code 77: tokenizers or pyarrow is missing, nothing was compared.
"""

import gzip
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy
    import pyarrow
    import pyarrow.ipc
    import pyarrow.parquet
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
except ImportError as missing:
    print(f"skipped: {missing}; install tokenizers, pyarrow and numpy for this Python")
    sys.exit(77)

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = ["the", "The", "of", "x", "don't", "DON'T", "we'll", "I'VE", "'sam", "'SAM", "'LLama", "''d", "12", "123456", "3.14", "a_b", "(x)", "!?", "--",
         "#include", "é", "naïve", "東京", "Ω", "\u00a0", "ſ", "<|endoftext|>", "<|endoftext", "\x7f", "\x1c", "\x00"[:0]]
GAPS = [" ", " ", " ", "  ", "   ", "\n", "\n\n", " \n ", "\t", "\r\n", "\t \n\n  ", "\f", "\v", ""]


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


CUTS = {"gpt2": (pre_tokenizers.ByteLevel(add_prefix_space=False), None),
        "qwen2": (split(CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + REST), normalizers.NFC()),
        "llama3": (split(CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + REST), None),
        "prefix space": (pre_tokenizers.ByteLevel(add_prefix_space=True), None),
        "lower case": (pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.Lowercase())}


def make_tokenizer(cut, normalizer, texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = cut, decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tokenizer


def random_texts(seed, count):
    """Half of them are ASCII, a quarter of them arbitrary ASCII bytes."""
    rng = random.Random(seed)
    texts = []
    for i in range(count):
        if i % 4 == 0:
            texts.append("".join(chr(rng.randrange(1, 128)) for _ in range(rng.randrange(1, 80))))
            continue
        words = [word for word in WORDS if word.isascii() and "|" not in word] if i % 4 == 1 else WORDS
        texts.append("".join(rng.choice(words) + rng.choice(GAPS) for _ in range(rng.randrange(1, 60))) + "z")
    return texts


def build(program, folder, output, inputs, tokenizer, *more):
    command = [program, "data", "build", "--input", *map(str, inputs), "--output", str(folder / output), "--tokenizer", str(tokenizer),
               "--overwrite", *map(str, more)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"CONCORD_PYTHON": sys.executable})
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\n{done.stderr}")
    return (folder / (output + ".bin")).read_bytes(), (folder / (output + ".idx")).read_bytes()


def write_lines(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def check_ids(program, folder):
    """Every document has the ids of encode(), however its tokenizer splits text."""
    texts = random_texts(1, 1200)
    write_lines(folder / "texts.jsonl", texts)
    for name, (cut, normalizer) in CUTS.items():
        tokenizer = make_tokenizer(cut, normalizer, texts[:300])
        tokenizer.save(str(folder / "tokenizer.json"))
        found = numpy.frombuffer(build(program, folder, "out", [folder / "texts.jsonl"], folder / "tokenizer.json", "--workers", 2,
                                       "--shard_bytes", 20000)[0], dtype=numpy.uint16)
        end, at = tokenizer.token_to_id("<|endoftext|>"), 0
        for text in texts:
            wanted = tokenizer.encode(text, add_special_tokens=False).ids + [end]
            if found[at:at + len(wanted)].tolist() != wanted:
                raise AssertionError(f"{name}: {text!r} is {found[at:at + len(wanted)].tolist()}, not {wanted}")
            at += len(wanted)
        assert at == len(found), name


def check_formats(program, folder):
    """The same corpus in every format of Hugging Face's datasets gives the same bytes."""
    texts = random_texts(2, 400)
    make_tokenizer(*CUTS["qwen2"], texts[:100]).save(str(folder / "tokenizer.json"))
    write_lines(folder / "a.jsonl", texts)
    wanted = build(program, folder, "lines", [folder / "a.jsonl"], folder / "tokenizer.json")
    lines = (folder / "a.jsonl").read_bytes()
    (folder / "a.json").write_text(json.dumps([{"text": text, "id": i} for i, text in enumerate(texts)], indent=1))
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "a.jsonl.xz").write_bytes(lzma.compress(lines))
    (folder / "a.jsonl.zst").write_bytes(pyarrow.compress(lines, codec="zstd", asbytes=True))
    table = pyarrow.table({"text": texts, "id": list(range(len(texts)))})
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=90, compression="snappy")
    with pyarrow.ipc.new_stream(str(folder / "a.arrow"), table.schema) as writer:  # as datasets.save_to_disk
        writer.write_table(table, max_chunksize=70)
    for name in "a.json", "a.jsonl.gz", "a.jsonl.xz", "a.jsonl.zst", "a.parquet", "a.arrow":
        assert build(program, folder, "other", [folder / name], folder / "tokenizer.json", "--shard_bytes", 5000) == wanted, name
    parts = folder / "parts"
    (parts / "train").mkdir(parents=True)
    for i in range(3):
        part = table.slice(150 * i, 150)
        pyarrow.parquet.write_table(part, parts / "train" / f"data-{i:05}.parquet")
    for name in "dataset_info.json", "state.json":  # not data
        (parts / name).write_text("{}")
    assert build(program, folder, "other", [parts], folder / "tokenizer.json") == wanted, "a folder"
    assert build(program, folder, "other", [parts / "train" / "data-0000[0-2].*"], folder / "tokenizer.json") == wanted, "a pattern"


def check_megatron_options(program, folder):
    """Options of Megatron's preprocess_data.py give the bytes of the command's own."""
    texts, titles = random_texts(4, 300), [*random_texts(5, 299), ""]
    (folder / "words").mkdir()
    tokenizer = folder / "words/tokenizer.json"
    make_tokenizer(*CUTS["qwen2"], texts).save(str(tokenizer))
    (folder / "both.jsonl").write_text("".join(json.dumps({"text": text, "title": title}) + "\n" for text, title in zip(texts, titles)))
    write_lines(folder / "texts.jsonl", texts)
    write_lines(folder / "titles.jsonl", titles)

    def megatron(*words, code=0):
        command = [program, "data", "build", "--input", str(folder / "both.jsonl"), "--output-prefix", str(folder / "out"), "--overwrite",
                   "--tokenizer-model", str(folder / "words"), *words]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"CONCORD_PYTHON": sys.executable})
        assert done.returncode == code, f"{' '.join(command)}\n{done.stderr}"
        return done.stderr

    def written(key):
        return tuple((folder / f"out_{key}_document.{ending}").read_bytes() for ending in ("bin", "idx"))

    wanted = {key: build(program, folder, key, [folder / f"{key}s.jsonl"], tokenizer) for key in ("text", "title")}
    said = megatron("--append-eod", "--json-keys", "text", "title", "--tokenizer-type", "HuggingFaceTokenizer", "--workers", "4",
                    "--partitions", "2", "--keep-sequential-samples", "--log-interval", "100", "--trust-remote-code")
    assert {key: written(key) for key in wanted} == wanted
    for name in "partitions", "log_interval", "trust_remote_code":
        assert f"--{name} has no effect" in said, said
    megatron("--workers", "2")  # without --append-eod, as there
    assert written("text") == build(program, folder, "plain", [folder / "texts.jsonl"], tokenizer, "--append_eod", "false")
    assert written("text") != wanted["text"] and written("title") == wanted["title"]
    for words, remedy in ((["--split-sentences", "--lang", "english"], "documents are tokenized whole"),
                          (["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", "vocab.json", "--merge-file", "merges.txt"], "save_pretrained"),
                          (["--tokenizer-type", "Llama2Tokenizer"], "save_pretrained"),
                          (["--find-optimal-num-workers", "--workers-to-check", "4", "8"], "--workers 0"),
                          (["--json-keys", "none"], 'has no "none"'), (["--output", str(folder / "b")], "give one of --output")):
        said = megatron(*words, code=2)
        assert remedy in said, f"{words}: {said}"


def check_killed(program, folder):
    """A build from Parquet that is killed at random moments and restarted gives the same bytes."""
    texts = random_texts(3, 3000)
    tokenizer = folder / "tokenizer.json"
    make_tokenizer(*CUTS["prefix space"], texts[:100]).save(str(tokenizer))  # the slow way, so that there is time
    for i in range(2):
        pyarrow.parquet.write_table(pyarrow.table({"text": texts[1500 * i:1500 * i + 1500]}), folder / f"{i}.parquet")
    wanted = build(program, folder, "whole", [folder / "*.parquet"], tokenizer, "--shard_bytes", 8000)
    command = [program, "data", "build", "--input", str(folder / "*.parquet"), "--output", str(folder / "parts"), "--tokenizer",
               str(tokenizer), "--shard_bytes", "8000", "--workers", "2"]
    rng, kills, code = random.Random(5), 0, None
    while code != 0 and not (folder / "parts.idx").exists():  # it may be killed after everything is written
        run = subprocess.Popen(command, env=os.environ | {"CONCORD_PYTHON": sys.executable}, stdout=subprocess.DEVNULL)
        try:
            code = run.wait(timeout=rng.uniform(0.1, 1.0) if kills < 6 else None)
            assert code == 0, f"exit code {code}"
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGKILL)
            run.wait()
            kills += 1
    assert kills > 0, "it was never killed"
    assert (folder / "parts.bin").read_bytes() == wanted[0] and (folder / "parts.idx").read_bytes() == wanted[1]
    assert code != 0 or not (folder / "parts.build").exists()


def main():
    program = sys.argv[1]
    for check in check_ids, check_formats, check_megatron_options, check_killed:
        with tempfile.TemporaryDirectory() as name:
            check(program, Path(name))
        print(f"{check.__name__}: {check.__doc__}")


if __name__ == "__main__":
    main()
