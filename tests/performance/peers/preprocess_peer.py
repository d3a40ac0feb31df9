"""`concord data build` compared with Megatron's tools/preprocess_data.py, alternating on the same corpus: one JSON
object.

usage: preprocess_peer.py CONCORD FOLDER [--workers N] [--mebibytes N] [--rounds N] [--accented SHARE]

The peer is Megatron's loop with its components: a multiprocessing pool whose workers json.loads a line and call a
Hugging Face fast tokenizer on it (imap with a chunk size of 32), and one process that writes the ids like
IndexedDatasetBuilder (a numpy array per document to the .bin, lengths and offsets to the .idx at the end). Both results
must have the same tokens.

The corpus is generated from this folder's repository: its documents and sources, split into documents at empty lines,
shuffled and repeated, so that words have the distribution of real text and code. A tenth of the documents gets letters
that are not ASCII, which Concord passes to HF's tokenizers as a whole.
"""
import argparse
import json
import multiprocessing
import os
import random
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast


def make_corpus(path, mebibytes, accented):
    root = Path(__file__).resolve().parents[3]
    files = sorted(file for ending in ("*.md", "*.py", "*.cpp", "*.h") for folder in ("docs", "trainer", "core", "platform")
                   for file in (root / folder).rglob(ending))
    parts = [part for file in files for part in file.read_text(errors="replace").split("\n\n") if part.strip()]
    rng, written, documents = random.Random(7), 0, []
    with open(path, "w") as file:
        while written < mebibytes << 20:
            text = "\n\n".join(rng.choices(parts, k=rng.randrange(1, 12)))
            if rng.random() < accented:
                text = text.replace("e", "é", 3)
            documents.append(text)
            written += file.write(json.dumps({"text": text}) + "\n")
    return documents


def make_tokenizer(folder, documents):
    """Splits like Qwen's, with a vocabulary of 32,000."""
    tokenizer = Tokenizer(models.BPE())
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.train_from_iterator(documents[:4000], trainers.BpeTrainer(
        vocab_size=32000, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))


class Encoder:
    """Megatron's encoder, with its HuggingFaceTokenizer."""
    tokenizer, end = None, None

    def __init__(self, file):
        self.file = file

    def initializer(self):
        Encoder.tokenizer = PreTrainedTokenizerFast(tokenizer_file=self.file)
        Encoder.end = Encoder.tokenizer.convert_tokens_to_ids("<|endoftext|>")

    def encode(self, line):
        data = json.loads(line)
        ids = Encoder.tokenizer(data["text"]).input_ids
        if len(ids) > 0:
            ids.append(Encoder.end)
        return ids, len(line)


def peer(corpus, tokenizer, output, workers):
    encoder = Encoder(tokenizer)
    lengths = []
    with open(corpus, encoding="utf-8") as lines, open(output + ".bin", "wb") as binary:
        pool = multiprocessing.Pool(workers, initializer=encoder.initializer)
        for ids, _ in pool.imap(encoder.encode, lines, 32):
            array = numpy.array(ids, dtype=numpy.uint16)
            binary.write(array.tobytes(order="C"))
            lengths.append(len(array))
        pool.close()
        pool.join()
    with open(output + ".idx", "wb") as index:
        index.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1))
        sizes = numpy.array(lengths, dtype=numpy.int32)
        offsets = numpy.zeros(len(lengths), dtype=numpy.int64)
        numpy.cumsum(sizes[:-1].astype(numpy.int64) * 2, out=offsets[1:])
        for array in sizes, offsets, numpy.arange(len(lengths) + 1, dtype=numpy.int64):
            index.write(array.tobytes(order="C"))


def ours(program, corpus, tokenizer, output, workers):
    subprocess.run([program, "data", "build", "--input", corpus, "--output", output, "--tokenizer", tokenizer, "--workers", str(workers),
                    "--overwrite"], check=True, stdout=subprocess.DEVNULL, env=os.environ | {"CONCORD_PYTHON": sys.executable})


def seconds(function, *arguments):
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--mebibytes", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--accented", type=float, default=0.1, help="share of documents that get letters that are not ASCII")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    corpus, tokenizer = str(given.folder / "corpus.jsonl"), str(given.folder / "tokenizer.json")
    documents = make_corpus(corpus, given.mebibytes, given.accented)
    make_tokenizer(given.folder, documents)
    times = {"ours": [], "peer": []}
    for _ in range(given.rounds):  # alternating: other load on the machine affects both
        times["ours"].append(seconds(ours, given.program, corpus, tokenizer, str(given.folder / "ours"), given.workers))
        times["peer"].append(seconds(peer, corpus, tokenizer, str(given.folder / "peer"), given.workers))
    for ending in ".bin", ".idx":
        if (given.folder / ("ours" + ending)).read_bytes() != (given.folder / ("peer" + ending)).read_bytes():
            raise SystemExit(f"{ending}: the peer's bytes differ")
    size = os.path.getsize(corpus) / (1 << 20)
    ratios = [theirs / own for own, theirs in zip(times["ours"], times["peer"])]
    print(json.dumps({"ours": size / statistics.median(times["ours"]), "peer": size / statistics.median(times["peer"]), "unit": "MiB/s",
                      "ratio": statistics.median(ratios), "ratios": ratios,
                      "ascii_documents": sum(text.isascii() for text in documents) / len(documents)}))


if __name__ == "__main__":
    main()
