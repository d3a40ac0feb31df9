"""Tokenizes for `concord data build`: HF's tokenizers behind two pipes.

usage: python3 -c SCRIPT tokenizer.json SPECIAL...

First a greeting, one line of JSON: {"vocab_size", "specials": {name: id}, "end_of_document": id or null}, or {"error"}.
Then for each request, a line "COUNT LITERAL\n" followed by COUNT texts, each u32 bytes and as many bytes of UTF-8, the
answer: for each text u32 count and as many u32 ids, all little endian. LITERAL 1: specials in the text are text.
Exits at the end of its input.
"""
import sys

sys.path[:] = [folder for folder in sys.path if folder]  # the working folder holds data, not modules

import json
from array import array

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")


def greet(value):
    sys.stdout.buffer.write(json.dumps(value).encode() + b"\n")
    sys.stdout.buffer.flush()


def load(path):
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise SystemExit(greet({"error": f"{sys.executable} has no module tokenizers ({error}); "
                                         "install it (pip install tokenizers), or set "
                                         "CONCORD_PYTHON to a Python that has it"}))
    try:
        return Tokenizer.from_file(path), Tokenizer.from_file(path)
    except Exception as error:
        raise SystemExit(greet({"error": f"tokenizers cannot read {path}: {error}"}))


def exactly(count):
    data = sys.stdin.buffer.read(count)
    if len(data) != count:
        raise SystemExit(1)
    return data


def u32(values):
    numbers = array("I", values)
    assert numbers.itemsize == 4
    if sys.byteorder != "little":
        numbers.byteswap()
    return numbers.tobytes()


def main(path, names):
    plain, literal = load(path)
    literal.encode_special_tokens = True
    for tokenizer in plain, literal:
        tokenizer.no_truncation()
        tokenizer.no_padding()
    known = {name: plain.token_to_id(name) for name in (*names, *ENDS)}
    greet({"vocab_size": max(plain.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
           "specials": {name: known[name] for name in names if known[name] is not None},
           "end_of_document": next((known[name] for name in ENDS if known[name] is not None), None)})
    while line := sys.stdin.buffer.readline():
        count, as_text = map(int, line.split())
        texts = [exactly(int.from_bytes(exactly(4), "little")).decode() for _ in range(count)]
        tokenizer = literal if as_text else plain
        for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
            sys.stdout.buffer.write(u32([len(encoding.ids)]) + u32(encoding.ids))
        sys.stdout.buffer.flush()


try:
    main(sys.argv[1], sys.argv[2:])
except BrokenPipeError:  # the parent process is gone
    import os
    os._exit(1)
