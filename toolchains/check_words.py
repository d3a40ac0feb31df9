#!/usr/bin/env python3
"""Checks the English of comments, strings and docs against the phrases of words.txt.

Usage: check_words.py ROOT [FILE...]. Checks the given files, or every source and page of the checkout. Prints each finding
with what to write instead, and exits with code 1 if there is any.
"""

import bisect
import collections
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SUFFIXES = {".h", ".hpp", ".cuh", ".c", ".cpp", ".cu", ".inc", ".md", ".py", ".sh", ".cmake", ".yaml"}
NAMES = {"CMakeLists.txt", "run"}
# Golden and frozen files are not rewritten.
LEFT_OUT = re.compile(r"tests/(golden|fuzz/corpus|abi/v1_0)/")
CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n]){1,4}\'', re.S)
PYTHON = re.compile(r'#[^\n]*|("""|\'\'\')(?:\\.|[^\\])*?\1|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
SCRIPT = re.compile(r'(?<!\S)#[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'')  # sh, CMake and YAML
MARKS = re.compile(r"^\s*(//+|#+!?|/\*+|\*+(?!/)|R?\"+\(?|'+)|(\*+/|\"+|'+)$")


def read_rules(text):
    """Returns the rules of words.txt as tuples: kinds of text, pattern, suggestion."""
    rules = []
    for line in text.splitlines():
        parts = re.fullmatch(r"(\*|[chtsd]+)  (\S.*?)  =>  (.*)", line)
        if parts:
            kinds = parts[1].replace("*", "ctsd").replace("c", "ch")
            rules.append((kinds, re.compile(parts[2].replace("[^", r"[^\n"), re.M), parts[3]))
        elif line and not line.startswith("#"):
            sys.exit(f"check_words: cannot read the rule '{line}'; it must be 'WHERE  PATTERN  =>  SUGGESTION'")
    return rules


def code_blocks(path, text):
    """Yields (kind, [(line, text)]) for each comment and string; strings of tests quote messages and are left out."""
    header, script = path.endswith((".h", ".hpp", ".cuh")), path.endswith((".sh", ".cmake", ".yaml", *NAMES))
    pattern = PYTHON if path.endswith(".py") else SCRIPT if script else CODE
    is_test = re.search(r"_test\.|^tests/|/testing/", path)
    kind, parts, end, line = "", [], 0, 1
    for token in pattern.finditer(text):
        word, gap = token.group(), text[end:token.start()]
        line, end = line + gap.count("\n"), token.end()
        is_comment = word[0] == ("/" if pattern is CODE else "#")
        trails = text[text.rfind("\n", 0, token.start()) + 1:token.start()].strip()
        new = "s" if not is_comment else "t" if trails else "h" if header else "c"
        follows = new == kind != "t" and not gap.strip() and (new == "s" or gap.count("\n") == 1)
        if is_comment or not (is_test or (word[0] == "'" and pattern is CODE)):
            for number, part in enumerate(word.split("\n")):
                part = MARKS.sub("", part).strip()
                if parts and (not part or not (follows or number)):
                    yield kind, parts
                    parts = []
                kind = new
                if part:
                    parts.append((line + number, part))
        line += word.count("\n")
    if parts:
        yield kind, parts


def doc_blocks(text):
    """Yields the paragraphs, list items and table rows of Markdown, without code."""
    text = re.sub(r"(?ms)^ *```.*?^ *```", lambda fence: "\n" * fence.group().count("\n"), text)
    block = []
    for number, line in enumerate(text.split("\n"), 1):
        words = "" if line.startswith("    ") and not block else line.strip()
        words = re.sub(r"`[^`]*`", lambda code: "x" * len(code.group()), words)
        if block and (not words or re.match(r"[|#>]|[-*] |\d+\. ", words)):
            yield "d", block
            block = []
        if words:
            block.append((number, words))
    if block:
        yield "d", block


def findings(path, text, rules):
    """Returns (line, phrase, suggestion) of each match, sorted."""
    texts = collections.defaultdict(str)  # by kind: one block per line
    starts = collections.defaultdict(list)  # by kind: (offset in its text, line of the file)
    for kind, parts in doc_blocks(text) if path.endswith(".md") else code_blocks(path, text):
        if kind == "s" and sum(part.count(" ") for _, part in parts) < 2:  # a name, a key or a format
            continue
        for number, part in parts:
            starts[kind].append((len(texts[kind]), number))
            texts[kind] += part + " "
        texts[kind] = texts[kind][:-1] + "\n"
    found = []
    for kinds, pattern, suggestion in rules:
        for kind in filter(kinds.count, texts):
            for match in pattern.finditer(texts[kind]):
                first = bisect.bisect_right(starts[kind], (match.start(), 1 << 30)) - 1
                phrase = texts[kind][match.start():max(match.end(), match.start() + 40)].split("\n")[0].strip(" .;:")
                found.append((starts[kind][first][1], phrase, suggestion))
    return sorted(found)


def sources(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"],
                            check=True, capture_output=True, text=True).stdout
    return [name for name in listed.splitlines()
            if (pathlib.PurePath(name).suffix in SUFFIXES or pathlib.PurePath(name).name in NAMES)
            and not LEFT_OUT.search(name) and (root / name).is_file()]


def main():
    root, files = pathlib.Path(sys.argv[1]), sys.argv[2:]
    rules = read_rules((HERE / "words.txt").read_text())
    files, count = files or sources(root), 0
    for path in files:
        for line, phrase, suggestion in findings(path, (root / path).read_text(errors="replace"), rules):
            print(f"{path}:{line}: '{phrase}'; write: {suggestion}")
            count += 1
    if count:
        sys.exit(f"check_words: {count} phrases to rewrite (toolchains/words.txt has the rules)")
    print(f"{len(files)} files have no phrase of words.txt")


if __name__ == "__main__":
    main()
