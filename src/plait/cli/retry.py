"""`plait retry`: run failed items of a run again, all of them or the named ones."""

from __future__ import annotations

from functools import partial

from plait.cli.project import require_folder
from plait.cli.run import (
    add_watching,
    load_all,
    run_with_view,
    view_for,
)
from plait.cli.values import whole_number
from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait retry 7f3a --failed",
    "plait retry 7f3a src/old.py --file fixed.yaml",
)


def configure(parser: Parser) -> None:
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="the beginning of its id; default: the newest"
    )
    parser.add_argument(
        "items", metavar="ITEM", nargs="*", help="a failed item: its title, key or path"
    )
    parser.add_argument("--failed", action="store_true", help="every item that failed")
    parser.add_argument(
        "--from-start",
        action="store_true",
        help="run all steps of an item again, also those that have succeeded",
    )
    parser.add_argument(
        "--file",
        metavar="F",
        help="use the flow in this file, now and in later resumes",
    )
    add_watching(parser)


def run(options: argparse.Namespace) -> int:
    from plait.app import runs as flows

    load_all()
    require_folder(options.project)
    _require_item_choice(options)
    work = partial(
        flows.retry_flow,
        options.run,
        project=options.project,
        items=options.items,
        from_start=options.from_start,
        file=options.file,
        max_parallel=whole_number("--max-parallel", options.max_parallel),
        backend=options.backend,
        keep_going=options.keep_going,
    )
    try:
        return run_with_view(work, view_for(options))
    except InputError as error:
        if options.failed and error.code == "nothing-to-retry":
            from plait.cli.nothing_to_do import report_nothing_to_do

            return report_nothing_to_do(f"{error.what}: nothing to retry", options)
        raise


def _require_item_choice(options: argparse.Namespace) -> None:
    if bool(options.items) == options.failed:
        what = (
            "--failed is for all failed items"
            if options.failed
            else "which items are to be retried"
        )
        raise InputError(
            f"plait retry: {what}",
            fix="name items, or give --failed for all of them; plait show lists those that failed",
            code="arguments",
        )
