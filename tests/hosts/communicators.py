"""Communicators with ranks on two hosts (network namespaces), made, used for one call and destroyed at once.

    communicators.py HOST_RANK PLUGIN SETUPS [JOBS]

JOBS times, four processes make SETUPS communicators one after another. All sums are right, and all processes end by
themselves: none crashes or waits for ever. Before that, reductions of many kinds and sizes on two hosts, and on three,
give the bits that the same number of ranks gets on one host.
"""

import sys
import time

from hosts import Hosts, skip_without_engine
from ranks import Ranks


def bits(host_count, ranks_per_host, program, plugin, **environment):
    with Hosts(host_count) as hosts:
        ranks = Ranks.ours(hosts, program, plugin, host_count * ranks_per_host, **environment)
        answers = ranks.ask_all("bits")
        assert all(answer.isdigit() for answer in answers), answers
        ranks.end()
        return answers


def check_bits(program, plugin):
    for host_count, ranks_per_host in ((2, 2), (3, 1)):
        count = host_count * ranks_per_host
        together = bits(1, count, program, plugin, CONCORD_CPU_NETWORK="never")
        apart = bits(host_count, ranks_per_host, program, plugin)
        assert together == apart, f"{count} ranks on one host {together}, on {host_count} hosts {apart}"
        print(f"{count} ranks have the same bits on {host_count} hosts as on one")


def main(arguments):
    program, plugin, setups, *jobs = arguments
    skip_without_engine(plugin)
    start = time.monotonic()
    count = int(jobs[0]) if jobs else 1
    check_bits(program, plugin)
    with Hosts(2) as hosts:
        for job in range(count):
            ranks = Ranks.ours(hosts, program, plugin)
            answers = ranks.ask_all(f"setups {setups}")
            assert answers == ["done"] * 4, f"job {job}: {answers}"
            # The last communicator: some destroy it, and some just exit.
            if job % 2 == 0:
                answers = ranks.ask_all("leave")
                assert answers == ["left"] * 4, f"job {job}: {answers}"
            codes = ranks.end()
            assert codes == [0] * 4, f"job {job}: exit codes {codes}"
    print(f"{count} x {setups} communicators of 4 ranks on two hosts in {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
