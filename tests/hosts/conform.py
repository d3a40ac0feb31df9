"""The conformance kit with its ranks on two hosts (network namespaces): the first half of the ranks on one, the rest on the
other.

    conform.py CONCORD_CONFORM PLUGIN [arguments of the kit]...

PLUGIN is a path, or bridge:PATH[,PATH] for the bridge between platforms, in the folder of the cpu plugin.
"""

import os
import subprocess
import sys
import tempfile

from hosts import Hosts, skip_without_engine


def main(arguments):
    kit, plugin, *more = arguments
    skip_without_engine(plugin.removeprefix("bridge:").split(",")[0])
    with tempfile.TemporaryDirectory() as folder, Hosts(2) as hosts:
        program = os.path.join(folder, "on_its_host")
        with open(program, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\nrank=$1; world=$2; shift 2\n"
                       f"if [ $((rank * 2)) -lt $world ]; then host={hosts.names[0]}; else host={hosts.names[1]}; fi\n"
                       'exec ip netns exec $host "$@"\n')
        os.chmod(program, 0o755)
        words = [kit, "--platform", plugin, "--world", "4", "--rank_program", program, *more]
        return subprocess.run(words, env={**os.environ, "CONCORD_CPU_NETWORK": "always"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
