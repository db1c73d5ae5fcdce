"""`plait resume`: continue a run that was stopped or has failed; recorded steps are replayed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from plait.cli.project import require_folder
from plait.cli.run import (
    add_run_inputs,
    add_watching,
    load_all,
    parse_inputs,
    run_with_view,
    view_for,
)
from plait.cli.values import whole_number
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

    from plait.app.result import FlowResult
    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait resume 7f3a",
    "plait resume 7f3a --accept-changes --dry-run",
)

MOST_NAMES: Final = 5
"""The number of failed items that a message names."""


def configure(parser: Parser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help="the beginning of its id; default: the newest that has not finished",
    )
    parser.add_argument(
        "--accept-changes",
        action="store_true",
        help="the file was edited on purpose: run what has changed, and what follows it; "
        "accept changed env_files",
    )
    parser.add_argument(
        "--repeat",
        metavar="PATH",
        action="append",
        default=[],
        help="run this step again, although it may run at most once and has started (may be repeated)",
    )
    parser.add_argument(
        "--done",
        metavar="PATH",
        action="append",
        default=[],
        help="count this step as done (may be repeated)",
    )
    add_run_inputs(parser, "a secret input, which the run does not record")
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="show what would run and what is replayed"
    )
    add_watching(parser)


def run(options: argparse.Namespace) -> int:
    from plait.app import runs as flows
    from plait.views.format import clean_block
    from plait.views.plan import show_plan

    load_all()
    require_folder(options.project)
    inputs = parse_inputs(options.inputs, options.input)
    chosen = options.run or flows.find_unfinished_run(options.project)
    # A finished run is not resumed, unless answers for it are given.
    if not (options.accept_changes or options.repeat or options.done):
        from plait.cli.nothing_to_do import report_nothing_to_do

        if chosen is None:
            message = "every run has finished: nothing to resume; plait runs lists them"
            return report_nothing_to_do(message, options)
        lasting = flows.find_lasting_failures(chosen, project=options.project, inputs=inputs)
        if lasting is not None:
            result, titles = lasting
            return report_nothing_to_do(
                _lasting_failures_message(result, titles, options.project),
                options,
                result.exit_code,
            )
    if options.dry_run:
        plan = flows.plan_resume(
            chosen,
            project=options.project,
            repeat=options.repeat,
            done=options.done,
            inputs=inputs,
        )
        code = show_plan(plan, as_json=options.json)
        if not options.accept_changes:
            refused = flows.resume_blocker(chosen, project=options.project, inputs=inputs)
            if refused is not None:
                print(
                    f"note: plait resume would refuse this: {clean_block(str(refused))}",
                    file=sys.stderr,
                )
        return code
    work = partial(
        flows.resume_flow,
        chosen,
        project=options.project,
        accept_changes=options.accept_changes,
        repeat=options.repeat,
        done=options.done,
        max_parallel=whole_number("--max-parallel", options.max_parallel),
        backend=options.backend,
        keep_going=options.keep_going,
        inputs=inputs,
    )
    return run_with_view(work, view_for(options))


def _lasting_failures_message(
    result: FlowResult, titles: Sequence[str], project: str | None
) -> str:
    import shlex

    from plait.core.errors import format_names
    from plait.views.format import one_line
    from plait.views.terminal import pluralize

    where = f" --project {shlex.quote(project)}" if project else ""
    ended = "finished" if result.status == "done" else "failed"
    names = format_names(map(one_line, titles), most=MOST_NAMES)
    return (
        f"run {result.run} has {ended}: nothing is left to resume\n"
        f"{pluralize(len(titles), 'item')} failed: {names}\n"
        f"retry: plait retry {result.run} --failed{where}"
    )
