#!/usr/bin/env python3
"""No fault loses a checkpoint: seeded trials with file_faults.cpp, and the order in which a save reaches the disk.

usage: checkpoint_faults.py PROGRAM LIBRARY MODEL_FOLDER [--trials N] [--seed N] [--trial N] [--jobs N]

A trial is one fault: a rank is killed in a save or while it loads, its disk is full, an fsync fails, writes are short
or calls are delayed; or a finished checkpoint is damaged. Four trials share a run, each resuming from the state of the
previous one with `--resume_from_checkpoint true`; then the run continues without a fault to its end. After each trial,
every file with its final name is complete and byte for byte that of the run that was never stopped, and no earlier file
is lost; at the end weights, optimizer state and log are bitwise identical to that run, and nothing unfinished is left.
`concord checkpoint verify` reports a damaged checkpoint, which cannot be resumed from. --trial repeats the run of that
trial.
"""

import argparse
import collections
import concurrent.futures
import filecmp
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "parity"))
import preloaded

STEPS, TRIALS_PER_RUN = 4, 4
HANG_S = 600  # only ends a hang: a run takes half a second
LAYOUTS = {
    "one": [],
    "zero": ["--nproc", "2", "--use_distributed_optimizer"],
    "tp": ["--nproc", "2", "--tensor_model_parallel_size", "2"],
}
RANKS = {"one": 1, "zero": 2, "tp": 2}
KIND_OF_CALL = {"create": "open", "write": "write", "fallocate": "allocate", "ftruncate": "allocate", "fsync": "sync",
                "rename": "rename", "exchange": "rename", "mkdir": "mkdir", "unlink": "unlink", "open": "read", "read": "read"}
# How often each kind of trial is drawn.
WEIGHTS = {"kill": 50, "kill-load": 9, "no-space": 11, "no-space-once": 7, "io-error": 10, "short": 5, "delay": 3, "damage": 10}
COMPARED = ("step", "loss", "grad_norm", "grad_norm_max", "learning_rate", "tokens", "epoch")
FAILED = (1, 75)  # 75: and this job has written a checkpoint before
ERRORS = {"no-space": "No space left on device", "no-space-once": "No space left on device", "io-error": "Input/output error"}


class Failure(Exception):
    pass


def expect(condition, *words):
    if not condition:
        raise Failure(" ".join(str(word) for word in words))


Call = collections.namedtuple("Call", "pid rank name path detail")


def read_log(path):
    """Returns the log of file_faults.cpp."""
    if not path.exists():
        return []
    return [Call(*line.split("\t")) for line in path.read_text().splitlines()]


def metrics(folder):
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return [{key: line.get(key) for key in COMPARED} for line in lines if "loss" in line]


def checkpoints(folder):
    """Returns those that have their final name, by step."""
    found = {}
    for path in folder.glob("checkpoint-*") if folder.exists() else []:
        if re.fullmatch(r"checkpoint-\d+", path.name):
            found[int(path.name.removeprefix("checkpoint-"))] = path
    return dict(sorted(found.items()))


class Program:
    def __init__(self, program, library, model, folder):
        self.program, self.library, self.model = program, library, model
        self.data = folder / "data.jsonl"
        with self.data.open("w") as file:
            for i in range(64):
                file.write(json.dumps({"input_ids": [(i * 31 + t * 7) % 300 for t in range(16)]}) + "\n")
        self.verifies = "checkpoint verify" in self.call("checkpoint", "verify", "--help").stdout

    def call(self, *words, environment=None):
        command = [self.program, *map(str, words)]
        try:
            return preloaded.run(command, {**os.environ, "OMP_NUM_THREADS": "1", "CONCORD_LOG": "warn", **(environment or {})},
                                 timeout=HANG_S, cwd=self.data.parent)
        except subprocess.TimeoutExpired:
            raise Failure("hangs:", *command) from None

    def train(self, layout, output, *words, faults=None):
        environment = {}
        if faults is not None:
            environment = {"LD_PRELOAD": self.library, **{f"FILE_FAULTS_{key.upper()}": str(value) for key, value in faults.items()}}
        return self.call("train", "--model", self.model, "--train_data", self.data, "--output_dir", output, "--max_steps", STEPS,
                         "--save_steps", 1, "--logging_steps", 1, "--per_device_train_batch_size", 1, "--learning_rate", "1e-3",
                         "--disable_tqdm", "true", *LAYOUTS[layout], *words, environment=environment)

    def verify(self, folder):
        done = self.call("checkpoint", "verify", folder)
        return done.returncode, done.stdout + done.stderr


class Reference:
    """The run that was never stopped: its files, and the number of calls of each kind that a save makes on each
    rank."""

    def __init__(self, program, layout, folder):
        self.layout, self.output, log = layout, folder / f"whole-{layout}", folder / f"whole-{layout}.log"
        done = program.train(layout, self.output, faults={"under": self.output, "log": log})
        expect(done.returncode == 0, "the run without faults failed:", done.stderr)
        expect(list(checkpoints(self.output)) == list(range(1, STEPS + 1)), "it saved", list(checkpoints(self.output)))
        self.calls = collections.Counter()  # (rank, kind): calls of the whole run in checkpoints
        for call in read_log(log):
            if call.path.startswith(f"{self.output}/checkpoint-") and call.detail != "done":
                self.calls[call.rank or "0", KIND_OF_CALL[call.name]] += 1
        check_order(read_log(log), self.output)

    def check_checkpoint(self, program, folder, step):
        for name in ("model.safetensors", "optimizer.safetensors", "config.json"):
            expect((folder / name).exists(), folder, "has no", name)
            expect(filecmp.cmp(folder / name, self.output / f"checkpoint-{step}" / name, shallow=False),
                   folder / name, "is not what the run without faults has written")
        expect(json.loads((folder / "metadata.json").read_text())["step"] == step, folder, "has metadata of another step")
        if program.verifies:
            code, said = program.verify(folder)
            expect(code == 0, "verify of", folder, "ended with", code, said)

    def check_end(self, output):
        expect((output / "model/model.safetensors").exists(), "there is no model at the end")
        for name in ("model/model.safetensors", "model/config.json"):
            expect(filecmp.cmp(output / name, self.output / name, shallow=False), name, "differs at the end")
        expect(metrics(output) == metrics(self.output), "metrics.jsonl differs:", metrics(output), "instead of", metrics(self.output))
        left = [str(path) for path in output.rglob("*") if ".tmp-" in path.name]
        expect(not left, "left over:", left)
        expect(STEPS in checkpoints(output), "the last checkpoint is missing")


def check_order(log, output):
    """Nothing is renamed before it is durable: after a power loss there is the old state or the new one."""
    published = 0
    for i, call in enumerate(log):
        if call.name not in ("rename", "exchange") or call.detail == "done":
            continue
        source, target = call.path, call.detail
        last_write, last_sync, created, entered = {}, {}, [], -1
        for at, before in enumerate(log[:i]):
            inside = before.path.startswith(source + "/")
            if before.path == source or inside:
                if before.name in ("write", "fallocate", "ftruncate"):
                    last_write[before.path] = at
                elif before.name == "fsync":
                    last_sync[before.path] = at
                elif before.name == "create" and inside:
                    created += [before.path] if before.path not in created else []
                    entered = at if before.path not in last_write else entered
                elif before.name == "unlink":
                    last_write.pop(before.path, None)
                    created = [path for path in created if path != before.path]
        for path, at in last_write.items():
            expect(last_sync.get(path, -1) > at, path, "is not synced after its last write and before the rename to", target)
        if re.search(r"\.tmp-[0-9a-f]{16}$", source) and target.startswith(str(output)):
            published += 1
            expect(last_sync.get(source, -1) > entered, "the folder", source, "is not synced before the rename to", target)
            after = [late for late in log[i:] if late.name == "fsync" and late.path == str(Path(target).parent)]
            expect(after and after[0].pid == call.pid, "the parent of", target, "is not synced after the rename")
            names = [Path(path).name for path in created]
            last = "manifest.json" if "manifest.json" in names else "metadata.json" if "metadata.json" in names else names[-1]
            expect(names[-1] == last, target, "is complete only with", last, "but that was not written last:", names)
            expect({"model.safetensors", "config.json"} <= set(names), target, "was seen with", names, "only")
    expect(published == STEPS + 1, "renames of", published, "folders were seen;", STEPS, "checkpoints and the model were expected")


def place_of(path, offset):
    """Returns the tensor of a safetensors file that a byte belongs to; None for its header."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__" and entry["data_offsets"][0] <= offset - 8 - size < entry["data_offsets"][1]:
            return name
    return None


def damage(draw, path):
    """Changes a file. Returns what it did, and the tensor that must be reported, if any."""
    data = bytearray(path.read_bytes())
    kind = draw.choice(["bit", "byte", "cut", "grown", "removed"])
    at = draw.randrange(len(data))
    tensor = place_of(path, at) if path.suffix == ".safetensors" and kind in ("bit", "byte") else None
    if kind == "removed":
        path.unlink()
        return kind, None
    if kind == "bit":
        data[at] ^= 1 << draw.randrange(8)
    elif kind == "byte":
        data[at] ^= draw.randrange(1, 256)
    elif kind == "cut":
        del data[at:]
    else:
        data += b"x"
    path.write_bytes(data)
    return f"{kind} at {at}", tensor


class Run:
    """One run with its faults."""

    def __init__(self, program, references, folder, seed, number):
        self.program, self.folder = program, folder
        self.draw = random.Random(f"{seed}/{number}")
        self.first_trial = number * TRIALS_PER_RUN
        self.reference = references[self.draw.choices(list(LAYOUTS), [6, 2, 2])[0]]
        self.layout = self.reference.layout
        limit = self.draw.choice([0, 0, 1, 2])
        self.words = ["--resume_from_checkpoint", "true"] + (["--save_total_limit", str(limit)] if limit else [])
        self.limit = limit
        self.output, self.log = folder / "out", folder / "log"
        self.struck = collections.Counter()  # kind: faults that happened
        self.tried = collections.Counter()
        self.trial, self.history = self.first_trial, []

    def go(self, trials):
        for _ in range(trials):
            kinds = dict(WEIGHTS)
            if not checkpoints(self.output):
                del kinds["kill-load"], kinds["damage"]
            elif not self.program.verifies:
                del kinds["damage"]
            kind = self.draw.choices(list(kinds), list(kinds.values()))[0]
            if kind == "damage":
                self.damage_newest()
            else:
                self.fault(kind)
            self.trial += 1
        self.trial -= 1
        self.train("none", None)

    def faults(self, kind):
        rank = self.draw.randrange(RANKS[self.layout])
        calls = {"kill-load": "read", "io-error": "sync"}.get(kind)
        if calls is None:
            removing = ["unlink"] * (4 if self.limit else 1)
            calls = self.draw.choice(["open", "write", "write", "allocate", "sync", "rename", "mkdir", *removing])
            if kind.startswith("no-space") and calls == "unlink":
                calls = "write"
        made = self.reference.calls[str(rank), calls]
        if made == 0:  # rank 1 only opens, writes and syncs
            calls = "write"
            made = self.reference.calls[str(rank), calls]
        remaining = STEPS - max(checkpoints(self.output), default=0)
        if self.limit and calls == "unlink":
            made += STEPS * len(list((self.reference.output / "checkpoint-1").iterdir()))  # removed files
        at = self.draw.randint(1, max(1, made * remaining // STEPS))
        if kind == "kill-load":
            at = self.draw.randint(1, 12)
        if kind in ("short", "delay"):
            calls = ""
        everywhere = self.draw.random() < 0.15  # other files of the run, too
        return {"under": f"{self.output}/" if everywhere else f"{self.output}/checkpoint-", "log": self.log, "calls": calls,
                "action": kind.removesuffix("-load"), "at": at, "seed": self.draw.randrange(1 << 30),
                **({"rank": rank} if RANKS[self.layout] > 1 else {})}

    def fault(self, kind):
        self.log.unlink(missing_ok=True)
        faults = self.faults(kind)
        self.tried[kind] += 1
        code, said = self.train(kind, faults)
        struck = any(call.detail == "strike" for call in read_log(self.log)) or kind in ("short", "delay")
        self.struck[kind] += struck
        self.history[-1] += f" struck={struck} code={code}"
        if kind in ("short", "delay") or not struck:
            expect(code == 0, "nothing went wrong, but the run ended with", code, said)
        elif kind.startswith("kill"):
            expect(code != 0, "a rank was killed, but the run ended with 0")
        elif kind == "no-space":
            expect(code in FAILED, "the disk was full, but the run ended with", code, said)
        if code in FAILED and kind in ERRORS:
            expect(ERRORS[kind] in said, "the error does not say", ERRORS[kind], said)

    def train(self, kind, faults):
        """Runs one attempt and checks what holds after every one. Returns its exit code and output."""
        before = {step: path.stat().st_ino for step, path in checkpoints(self.output).items()}
        if (self.output / "model").exists():  # the run had ended
            shutil.rmtree(self.output)
            before = {}
        self.history.append(f"{kind} {({} if faults is None else {k: v for k, v in faults.items() if k not in ('log', 'under')})}")
        done = self.program.train(self.layout, self.output, *self.words, faults=faults)
        code, said = done.returncode, done.stdout[-1500:] + done.stderr[-3000:]
        expect(code != 2, "refused:", said)
        after = checkpoints(self.output)
        if self.limit == 0:
            expect(set(before) <= set(after), "lost", set(before) - set(after), said)
        expect(max(after, default=0) >= max(before, default=0), "the newest checkpoint is lost", said)
        for step, path in after.items():
            self.reference.check_checkpoint(self.program, path, step)
        self.check_list(after)
        if code == 0:
            self.reference.check_end(self.output)
            # A run that finds its last checkpoint saves none, and so removes none.
            expect(self.limit == 0 or len(after) <= self.limit or STEPS in before, "more checkpoints than allowed:", list(after))
        expect(code == 0 or faults is not None, "could not be resumed:", said)
        return code, said

    def check_list(self, expected):
        if not self.output.exists():
            return
        done = self.program.call("checkpoint", "list", self.output, "--json")
        expect(done.returncode == 0, "list failed", done.stderr)
        listed = [entry["step"] for entry in json.loads(done.stdout)["checkpoints"] if entry["complete"] and entry["resumable"]]
        expect(listed == list(expected), "list shows", listed, "but there are", list(expected))

    def damage_newest(self):
        """Verify reports every damage; and the checkpoint cannot be resumed from."""
        self.tried["damage"] += 1
        self.struck["damage"] += 1
        step, newest = list(checkpoints(self.output).items())[-1]
        listed = (newest / "manifest.json").read_text()
        files = sorted(path for path in newest.iterdir() if path.name in listed or path.name == "manifest.json")
        for i in range(6):
            path = self.draw.choice(files) if i else newest / self.draw.choice(["model.safetensors", "optimizer.safetensors"])
            bytes_before = path.read_bytes()
            what, tensor = damage(self.draw, path)
            self.history.append(f"damage {path.name}: {what}, tensor {tensor}")
            code, said = self.program.verify(newest)
            if path.name == "manifest.json":
                expect(code != 0, "verify does not see it:", said)
            else:
                expect(code == 1 and path.name in said, "verify ended with", code, "without naming", path.name, said)
                expect(tensor is None or tensor in said, "verify does not name the tensor", tensor, said)
            if i == 0:
                source = self.draw.choice(["true", newest])
                done = self.program.train(self.layout, self.output, *self.words, "--resume_from_checkpoint", source)
                expect(done.returncode in (1, 2) and path.name in done.stderr,
                       "a damaged checkpoint was resumed from, or not named:", done.returncode, done.stderr[-3000:])
            path.write_bytes(bytes_before)
        expect(newest.exists(), "checkpoint", step, "was removed")
        self.reference.check_checkpoint(self.program, newest, step)


def run_one(program, references, folder, seed, number, trials):
    own = folder / f"run-{number}"
    own.mkdir()
    run = Run(program, references, own, seed, number)
    try:
        run.go(trials)
        problem = None
    except Failure as failure:
        problem = f"seed {seed}, trial {run.trial} ({run.layout}, {' '.join(run.words)}): {failure}\n  " + "\n  ".join(run.history)
        problem += f"\n  repeat with --seed {seed} --trial {run.trial}"
    shutil.rmtree(own)
    return run, problem


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("library", type=os.path.abspath)
    parser.add_argument("model", type=os.path.abspath)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trial", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    numbers = range((arguments.trials + TRIALS_PER_RUN - 1) // TRIALS_PER_RUN)
    if arguments.trial is not None:
        numbers = [arguments.trial // TRIALS_PER_RUN]
    tried, struck, problems = collections.Counter(), collections.Counter(), []
    with tempfile.TemporaryDirectory(prefix="concord-faults-") as name:
        folder = Path(name)
        program = Program(arguments.program, arguments.library, arguments.model, folder)
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            references = dict(zip(LAYOUTS, pool.map(lambda layout: Reference(program, layout, folder), LAYOUTS)))
            runs = [pool.submit(run_one, program, references, folder, arguments.seed, number, TRIALS_PER_RUN) for number in numbers]
            for each in concurrent.futures.as_completed(runs):
                run, problem = each.result()
                tried += run.tried
                struck += run.struck
                if problem:
                    problems.append(problem)
                    print(problem, flush=True)
    print(f"order of writes, syncs and renames: checked for {', '.join(LAYOUTS)}")
    print(f"{sum(tried.values())} trials, seed {arguments.seed}: " +
          ", ".join(f"{kind} {struck[kind]} of {count}" for kind, count in sorted(tried.items())) + " faults happened")
    if not program.verifies:
        print("damaged checkpoints: not tried, the program cannot verify them")
    if arguments.trial is None:
        for kind, count in tried.items():
            if count >= 8 and struck[kind] * 2 < count:
                problems.append(f"{kind}: only {struck[kind]} of {count} faults happened")
                print(problems[-1])
    if problems:
        sys.exit(f"{len(problems)} problems")


if __name__ == "__main__":
    try:
        main()
    except Failure as found:
        sys.exit(str(found))
