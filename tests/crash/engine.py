"""Plait as the crash harness starts it: the real command line, with a clock, limits and flaws that the options name.

    python -P engine.py [--clock SECONDS] [--largest-file BYTES] [--flaw NAME] -- run flow.yaml

A flaw breaks Plait on purpose, to show that the harness notices:
`forgetful` records no finished step, `amnesiac` does not look up what is recorded,
`unsynced` leaves the sync of its journal to the system, and `selfish` is an MCP server that
knows only the runs that it has begun itself.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from plait.engine.events import Event


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clock", type=float, default=0.0)
    parser.add_argument("--largest-file", type=int)
    parser.add_argument("--flaw", choices=FLAWS)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    # A harness in the background ignores SIGINT, and the engine would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if options.largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (options.largest_file, options.largest_file))
    if options.clock:
        shift_clock(options.clock)
    if options.flaw is not None:
        FLAWS[options.flaw]()
    sys.argv[1:] = options.command
    from plait.cli import enter

    enter()


def shift_clock(seconds: float) -> None:
    """Patch the clock before anything of Plait is loaded and keeps the real one."""
    real = time.time
    time.time = lambda: real() + seconds


def forgetful() -> None:
    from plait.adapters.store.writer import Writer
    from plait.engine.events import StepFinished

    really_append = Writer.append

    def append(self: Writer, *events: Event) -> None:
        really_append(self, *(event for event in events if not isinstance(event, StepFinished)))

    Writer.append = append  # type: ignore[method-assign]


def amnesiac() -> None:
    from plait.engine.replay import Replay

    def known(*_: object) -> None:
        return None

    Replay.find = known  # type: ignore[assignment, method-assign]


def unsynced() -> None:
    from plait.adapters.store.writer import Writer

    def sync(self: Writer) -> None:  # noqa: ARG001
        return None

    Writer.sync = sync  # type: ignore[method-assign]


def selfish() -> None:
    from plait.core.errors import InputError
    from plait.mcp.run_jobs import RunJobs, RunState

    really_look = RunJobs.state

    def state(self: RunJobs, run: str) -> RunState:
        if self.job(run) is None:
            raise InputError(f"there is no run '{run}' here", code="unknown-run")
        return really_look(self, run)

    RunJobs.state = state  # type: ignore[method-assign]


FLAWS: Final[dict[str, Callable[[], None]]] = {
    "forgetful": forgetful,
    "amnesiac": amnesiac,
    "unsynced": unsynced,
    "selfish": selfish,
}


if __name__ == "__main__":
    main()
