"""A tool that prints without end: memory stays bounded, and the call fails.

A tool prints gigabytes on both streams, through the same call as every tool.  The
call has to fail, the file that it names has to stay within its bound, and this
process must not have grown by more than the limit that is kept in memory, a few
times over.

    python tests/attack/output_attack.py [--bytes 5000000000]
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[2] / "src"
KEPT: Final = 16 << 20
"""Bytes of each stream that are kept in memory."""
ROOM: Final = 6 * KEPT
"""The most bytes that the process may grow by: two streams, and temporary copies of them."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=5_000_000_000)
    printed = parser.parse_args().bytes
    with tempfile.TemporaryDirectory() as folder:
        grown, problems = attack(folder, printed)
    print(f"{printed:,} bytes printed, {grown / (1 << 20):.0f} MiB more memory used")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def attack(folder: str, printed: int) -> tuple[int, list[str]]:
    """Return the growth of this process, and the broken rules."""
    from plait.adapters.process.process import MAX_OVERFLOW, call_process
    from plait.tools.invocation import CallLimits, ProcessCall

    script = f"yes | head -c {printed // 2} >&2; yes | head -c {printed - printed // 2}"
    before = _peak()
    limits = CallLimits(600.0, KEPT, folder)
    returned = call_process(
        ProcessCall(("/bin/sh", "-c", script), "/", dict(os.environ), limits=limits)
    )
    grown = _peak() - before
    sizes = [file.stat().st_size for file in Path(folder).iterdir()]
    problems = {
        "it counts as a success": returned.success,
        "half an answer was given": returned.data is not None,
        "nothing was kept of it": not sizes,
        "a file is too large": any(size > MAX_OVERFLOW for size in sizes),
        "too much memory was used": grown > ROOM,
    }
    return grown, [problem for problem, found in problems.items() if found]


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


if __name__ == "__main__":
    sys.path.insert(0, str(SOURCE))
    sys.exit(main())
