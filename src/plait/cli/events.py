"""`plait events`: the events of a run as JSON, as `plait run --json` printed them."""

from __future__ import annotations

import sys
from functools import partial

from plait.cli.project import add_project, require_folder
from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait events 7f3a",
    "plait events -f | jq -r 'select(.status == \"failed\").path'",
    "plait events 7f3a --after 120",
)


def configure(parser: Parser) -> None:
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="the beginning of its id; default: the newest"
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="print more as it comes, until the run ends"
    )
    parser.add_argument("--after", metavar="N", help="only events with a larger number than N")
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    from plait.app import runs as flows
    from plait.app.recorded_result import recorded_result
    from plait.engine.limits import UsageSum
    from plait.views.following import follow_journal, pause_while_read
    from plait.views.json_view import JsonView

    require_folder(options.project)
    after = _event_number(options.after)
    runs, name = flows.find_run(options.run, options.project)
    with runs.open(name, write=False) as opened:
        usage = UsageSum()
        for _, used in opened.journal.usage_before(after + 1):
            usage.add(used)
        with JsonView(sys.stdout, usage) as view:
            is_running = partial(runs.is_running, name)
            if options.follow:
                pause = partial(pause_while_read, sys.stdout)
                looks = follow_journal(opened.journal, after, is_running=is_running, pause=pause)
                for record in (record for look in looks for record in look):
                    view.watch(record)
                view.finish(recorded_result(opened))
                return 0
            # asked first, so that the last events are read after the end
            is_over = not is_running()
            for record in opened.journal.events(after):
                view.watch(record)
            if is_over:
                view.finish(recorded_result(opened))
    return 0


def _event_number(given: str | None) -> int:
    if given is None:
        return 0
    if not (given.isascii() and given.isdecimal() and len(given) < 16):
        raise InputError(
            "--after needs the number of an event", fix="for example --after 120", code="arguments"
        )
    return int(given)
