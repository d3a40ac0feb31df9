"""Bridges (platform/bridge) with one defect each, and the proof that conformance catches every one.

  bridge_mutants.py names                             prints the mutants, separated by semicolons
  bridge_mutants.py write NAME SOURCES FOLDER         writes the bridge with this defect to FOLDER/platform/bridge
  bridge_mutants.py run PREFIX CONFORM PLATFORM [--filter TEXT]
                                                      runs the programs PREFIX<name>, which are concord-conform with that
                                                      bridge, and CONFORM, which has no defect, on PLATFORM

A defect replaces one passage of the source. The tests that have to fail, and those that have to pass, because the defect
is as small as it says, are regular expressions for names without the number of ranks. As a mutant can hang, tests end
after DEADLINE seconds.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

DEADLINE, RANKS = 8, "OnThreeRanks"


class Mutant(NamedTuple):
    name: str
    what: str
    file: str
    old: str
    new: str
    meant: str
    control: str


SMALL = "AllReduceSumOfF32MatchesTheReference"
LARGE = "AllReduceOfF32IsRightWhenLarge"
OWN_PART_FIRST = """if (call.dtype != CONCORD_DTYPE_F32 || call.reduce != CONCORD_REDUCE_SUM)
             return host.all_reduce(queue, send, recv, count, dtype_of(call.dtype), reduce_of(call.reduce));
           auto all = std::make_shared<std::vector<float>>(static_cast<size_t>(count * host.size()));
           host.all_gather(queue, send, all->data(), count, DType::kF32);
           launch(queue, [all, count, recv, own = host.rank(), size = host.size()] {
             for (int64_t i = 0; i < count; ++i) {
               float sum = 0;
               for (int32_t r = 0; r < size; ++r) sum += all->data()[(own + r) % size * count + i];
               static_cast<float*>(recv)[i] = sum;
             }
           });"""

MUTANTS = [
    Mutant("ChunksComeBackInReverse", "results are copied to the place of another chunk", "staged_comm.cpp",
           "for (const Piece& piece : chunks_[index].up)", "for (const Piece& piece : chunks_[chunks_.size() - 1 - index].up)",
           LARGE, SMALL),
    Mutant("DataIsNotWaitedFor", "ranks exchange a chunk before it has been copied from the device", "staged_comm.cpp",
           "      comm_.copied_down_[index % 2].synchronize();\n", "", LARGE, "UniqueIdsAreUniqueAndOfTheStatedSize"),
    Mutant("OneStagingBuffer", "the next chunk overwrites the one that ranks exchange", "staged_comm.cpp",
           "return send_[chunk % 2].data();", "return send_[chunk * 0].data();", LARGE, SMALL),
    Mutant("PartsBeginAnew", "every chunk takes the beginning of each part", "chunk_plan.cpp",
           "(part * part_count + first) * element", "(part * part_count + first * 0) * element",
           "AllGatherOfF32IsRightWhenLarge|ReduceScatterOfF32IsRightWhenLarge", "AllGatherOfF32MovesEveryBit"),
    Mutant("GapsAreClosed", "the offsets of an all_to_all_v are ignored", "staged_table.cpp",
           "append(pieces, offsets[r] * element,", "append(pieces, offsets[0] * element + staged_bytes(pieces),",
           "AllToAllVOfF32MovesEveryBitAndLeavesTheGaps", "AllToAllOfF32MovesEveryBit"),
    Mutant("SendsAndReceivesShareMemory", "a transfer is received into the staging buffer of those that are sent",
           "staged_table.cpp", "(items[i].kind == CONCORD_P2P_SEND ? send : recv) + staged[i]",
           "(items[i].count > 0 ? send : recv) + staged[i]", "P2pOfF32MovesEveryBit", SMALL),
    Mutant("RootsAreForgotten", "broadcasts come from rank 0", "staged_table.cpp",
           "host.broadcast(queue, send, recv, count, dtype_of(call.dtype), call.root);",
           "host.broadcast(queue, send, recv, count, dtype_of(call.dtype), 0);", "BroadcastWorksWithEveryRoot",
           "ReduceWorksWithEveryRoot"),
    Mutant("OwnPartComesFirst", "each rank adds the parts starting at its own", "staged_table.cpp",
           "host.all_reduce(queue, send, recv, count, dtype_of(call.dtype), reduce_of(call.reduce));", OWN_PART_FIRST,
           "SumOfF32HasTheSameBitsOnEveryRankAndInEveryRun", "SumOfF64HasTheSameBitsOnEveryRankAndInEveryRun"),
    Mutant("FailuresStayHidden", "the host communicator's failure is not the bridge's", "staged_comm.cpp",
           "const std::optional<Communicator::Failure> failure = comm_.error();",
           "const std::optional<Communicator::Failure> failure;", "AKilledRankIsReportedAsLost", SMALL),
    Mutant("AbortIsNotPassedOn", "abort does nothing", "staged_comm.h", "void abort() { comm_.abort(); }",
           "void abort() {}", "AbortEndsAWaitingOperation", SMALL),
    Mutant("SizesAreNotCompared", "operations of several chunks can have different sizes", "staged_comm.cpp",
           "if (operation->chunks().size() > 1) exchange_sizes(", "if (operation->chunks().empty()) exchange_sizes(",
           "RanksThatDisagreeOnALargeCountAreRefused", SMALL),
    Mutant("DestroyDoesNotWait", "destroy frees what queued operations use", "staged_comm.h",
           "void close() const { last_.synchronize(); }", "void close() const {}", "DestroyWaitsForQueuedOperations", SMALL),
]


def write(name, sources, folder):
    mutant = next(each for each in MUTANTS if each.name == name)
    target = Path(folder) / "platform/bridge"
    target.mkdir(parents=True, exist_ok=True)
    for source in Path(sources).glob("*.*"):
        if source.name.endswith("_test.cpp"):
            continue
        text = source.read_text()
        if source.name == mutant.file:
            if text.count(mutant.old) != 1:
                sys.exit(f"{name}: {source} has {text.count(mutant.old)} times\n{mutant.old}\nadapt {__file__}")
            text = text.replace(mutant.old, mutant.new)
        (target / source.name).write_text(text)


def outcomes(program, platform, tests, deadline):
    """The status and the reason of each test, by name; the exit code is 1 if a mutant is caught."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        done = subprocess.run([program, "--platform", platform, "--world", "3", "--expectations", "none",
                               "--filter", rf"^comm\.({tests})({RANKS})?$", "--report", str(report), *deadline],
                              capture_output=True, text=True, check=False)
        if not report.exists():
            sys.exit(f"{program} left no report:\n{done.stdout}{done.stderr}")
        return {test["name"]: (test["status"], test["reason"]) for test in json.loads(report.read_text())["tests"]}


def verdict(mutant, program, platform):
    found = outcomes(program, platform, f"{mutant.meant}|{mutant.control}", ["--deadline", str(DEADLINE)])
    def matching(tests):
        return {name: each for name, each in found.items() if re.fullmatch(rf"comm\.({tests})({RANKS})?", name)}
    meant, control = matching(mutant.meant), matching(mutant.control)
    if not meant or not control:
        return False, "a pattern of the table matches no test"
    for name, (status, reason) in {**meant, **control}.items():
        if (status == "fail") != (name in meant):
            return False, f"{name} should {'' if name in meant else 'not '}fail: {status} {reason}"
    return True, next(iter(meant.values()))[1].splitlines()[0]


def run(prefix, conform, platform, text):
    chosen = [mutant for mutant in MUTANTS if text in mutant.name]
    tests = "|".join(f"{mutant.meant}|{mutant.control}" for mutant in chosen)
    failed = {name: reason for name, (status, reason) in outcomes(conform, platform, tests, []).items() if status == "fail"}
    if failed:
        sys.exit(f"the bridge without a defect fails: {failed}")
    survived = 0
    for mutant in chosen:
        caught, reason = verdict(mutant, prefix + mutant.name, platform)
        survived += not caught
        print(f"{'caught  ' if caught else 'SURVIVED'} {mutant.name}: {mutant.what}\n         -> {reason}", flush=True)
    print(f"{len(chosen)} mutants: {len(chosen) - survived} caught, {survived} survived")
    return 1 if survived or not chosen else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["names", "write", "run"])
    parser.add_argument("operands", nargs="*")
    parser.add_argument("--filter", default="")
    arguments = parser.parse_args()
    if arguments.command == "names":
        print(";".join(mutant.name for mutant in MUTANTS), end="")
        return 0
    if arguments.command == "write":
        return write(*arguments.operands)
    return run(*arguments.operands, arguments.filter)


if __name__ == "__main__":
    sys.exit(main())
