"""The compiled guardian under valgrind: no read or write where none may be, nothing lost.

    python tests/attack/memory_attack.py [arguments for pytest]

It serves the tests of its protocol, and then a map of 200 items.  valgrind makes a copy where the
guardian shares its memory with a child until that executes a program, and needs memory and
descriptors of its own; the tests that count these, or need the sharing, are left out (`LEFT_OUT`).
The sanitizers have those (tests/fuzz/guardian_fuzz.py).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "plait" / "adapters" / "process" / "guardian.c"
OPTIONS = [
    "--quiet",
    "--leak-check=full",
    "--show-leak-kinds=definite,indirect",
    "--errors-for-leak-kinds=definite,indirect",
    "--track-origins=yes",
    "--child-silent-after-fork=yes",
    "--error-exitcode=99",
]
LEFT_OUT = [
    "cannot_be_started",  # the error of a program that cannot be executed comes by shared memory
    "batch_of_orders",  # likewise
    "slow_reader_slows",  # counts memory
    "not_read_stop",
    "descriptors_do_not_come",
    "no_more_descriptors",  # limits descriptors
    "room_for_a_mark",  # gives up powers in a way that needs the program itself
    "another_version",
]
SERVES = """
import sys
from plait.adapters.process import guardian_process
guardian_process.COMPILED = sys.argv.pop(1)
"""
TESTS = f"{SERVES}\nimport pytest\nsys.exit(pytest.main(sys.argv[1:]))"
PLAIT = f"{SERVES}\nfrom plait.cli import enter\nsys.exit(enter())"
FLOW = """
name: many
mode: mapreduce
map:
  input: items.json
  json_path: "$[*]"
  max_parallel: 8
  agent_template:
    - shell: "echo ${item}; echo error >&2; test ${item} != 100"
      capture_output: line
"""


def build(folder: Path) -> Path | None:
    """A program that runs the guardian under valgrind; None: it cannot be had."""
    compiler, valgrind = shutil.which(os.environ.get("CC", "cc")), shutil.which("valgrind")
    if compiler is None or valgrind is None:
        return None
    program, wrapper = folder / "guardian", folder / "wrapper"
    subprocess.run([compiler, "-g", "-O1", "-o", str(program), str(SOURCE)], check=True)
    options = " ".join([*OPTIONS, f"--log-file={folder}/found.%p"])
    wrapper.write_text(f'#!/bin/sh\nexec {valgrind} {options} {program} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wrapper = build(folder)
        if wrapper is None:
            print("memory_attack: not tried: it needs a C compiler and valgrind (Debian: apt)")
            return 0
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
        environment.pop("PLAIT_PYTHON_GUARDIAN", None)
        tests = [
            *("-q", "-p", "no:cacheprovider", "-n", "0"),
            *("-k", " and ".join(["not Python", *(f"not {one}" for one in LEFT_OUT)])),
            str(ROOT / "tests" / "adapters" / "process" / "test_guardian_protocol.py"),
        ]
        failed = subprocess.run(
            [sys.executable, "-c", TESTS, str(wrapper), *tests, *sys.argv[1:]],
            cwd=ROOT,
            env=environment,
            check=False,
        ).returncode
        ran = len([*folder.glob("found.*")])
        (folder / "items.json").write_text(json.dumps([*range(200)]))
        (folder / "flow.yaml").write_text(FLOW)
        done = subprocess.run(
            [sys.executable, "-c", PLAIT, str(wrapper), "run", "flow.yaml"],
            cwd=folder,
            env={**environment, "PLAIT_HOME": name},
            capture_output=True,
            text=True,
            check=False,
        )
        print(done.stdout[-500:], done.stderr[-500:], sep="\n")
        logs = [*folder.glob("found.*")]
        # "--" begins what valgrind says of a system call that it does not know: it fails with ENOSYS.
        texts = [log.read_text() for log in logs]
        found = [text for text in texts if any(line[:2] == "==" for line in text.splitlines())]
        print(*found, sep="\n")
        print(
            f"memory_attack: {ran} guardians in tests, {len(logs) - ran} for a map, "
            f"{len(found)} with a fault; the tests ended with {failed}, the map with {done.returncode}"
        )
        is_whole = "199 done, 1 failed" in done.stdout  # item 100 fails on purpose
        return 1 if failed or found or ran == 0 or len(logs) == ran or not is_whole else 0


if __name__ == "__main__":
    sys.exit(main())
