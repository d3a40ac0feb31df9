"""Container files by hadolint, workflows by zizmor: containers_test.py FOLDER, in which pip has installed both.

Exit code 77: they are not there, only what needs neither was checked.
"""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONTAINERS = sorted((ROOT / "toolchains/containers").glob("*.Dockerfile"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def check_rules():
    """Containers install the wheel and end as another user than root; workflows call ./run, which has these commands."""
    commands = re.search(r"^  ([\w |]+)\) \"command_", (ROOT / "run").read_text(), re.MULTILINE)[1].split(" | ")
    for path in CONTAINERS:
        text = path.read_text()
        users = re.findall(r"^USER (\S+)", text, re.MULTILINE)
        assert "/dist/concord-*.whl" in text and users and users[-1] not in ("root", "0"), path
    for path in WORKFLOWS:
        called = re.findall(r"\./run (\w+)", path.read_text())
        assert called and set(called) <= set(commands), (path, called, commands)
    assert len(CONTAINERS) == 3 and len(WORKFLOWS) == 2


def main():
    tools = pathlib.Path(sys.argv[1]) / "bin"
    check_rules()
    if not (tools / "hadolint").exists() or not (tools / "zizmor").exists():
        print(f"skipped: no hadolint and zizmor in {tools}; ./run test --sanitizers installs them")
        sys.exit(77)
    for command in ((tools / "hadolint", *CONTAINERS), (tools / "zizmor", "--offline", *WORKFLOWS)):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, "NO_COLOR": "1"})
        assert done.returncode == 0, done.stdout
    print(f"{len(CONTAINERS)} container files and {len(WORKFLOWS)} workflows have no findings")


if __name__ == "__main__":
    main()
