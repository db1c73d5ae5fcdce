"""The output of `plait logs`. Only a run that is found needs it, not the command's help."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Protocol
from plait.engine.live_output import OutputFile
from plait.views.following import pause_while_read
from plait.views.format import json_line, one_line, write_lines
from plait.views.log import (
    SearchableJournal,
    failed_entries,
    find_paths,
    log_lines,
    read_log,
    unfinished_entries,
    unfinished_lines,
)
from plait.views.output_stream import follow

if TYPE_CHECKING:
    import argparse

    from plait.engine.outcome import Outcome


class RecordedRun(Protocol):
    """A run that is open for reading."""

    @property
    def id(self) -> str: ...
    @property
    def folder(self) -> str: ...
    @property
    def journal(self) -> SearchableJournal: ...


def print_log(opened: RecordedRun, options: argparse.Namespace, *, is_running: bool) -> int:
    """Print steps that have ended, then those that run or were interrupted."""
    journal, name = opened.journal, opened.id
    # Read before the journal: a step that ends meanwhile is then in one of the two.
    pieces = [] if options.failed else list(OutputFile(opened.folder).new_pieces())
    entries = read_log(journal, name, options.item)
    if options.failed:

        def last_outcome(path: str) -> Outcome | None:
            step = journal.step(path)
            return None if step is None else step.outcome

        entries = failed_entries(entries, last_outcome)
    count = 0
    for entry in entries:
        count += 1
        if options.json:
            print(json_line(entry.record()))
        else:
            write_lines(log_lines([entry]), sys.stdout)
    if options.failed and not count and not options.json:
        print(f"no step of run {one_line(name)} has failed")
    if pieces:
        wanted = None if options.item is None else find_paths(journal, options.item, name)
        unfinished = unfinished_entries(journal.reader, pieces, wanted, is_running=is_running)
        if options.json:
            for one in unfinished:
                print(json_line(one.record()))
        else:
            write_lines(unfinished_lines(unfinished, time.time()), sys.stdout)
    return 0


def follow_log(opened: RecordedRun, item: str | None, is_running: Callable[[], bool]) -> int:
    """Print lines as they come, until the run ends."""
    journal = opened.journal

    def wanted() -> list[str] | None:
        if item is None:
            return None
        try:
            return find_paths(journal, item, opened.id)
        except InputError:
            if is_running():
                return []  # it may start later
            raise

    try:
        for line in follow(
            journal,
            OutputFile(opened.folder),
            is_running=is_running,
            wanted=wanted,
            pause=partial(pause_while_read, sys.stdout),
        ):
            write_lines(iter([line]), sys.stdout)
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    return 0
