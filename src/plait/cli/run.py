"""`plait run`: run a flow and show it. `resume` and `retry` use the same functions.

On a terminal it draws frames, elsewhere it prints lines, with `--json` events. For Ctrl-C see
`signals.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial

from plait.cli import start_garbage_collection
from plait.cli.project import add_project, require_folder, trust_project
from plait.cli.values import HIDDEN, add_inputs, read_inputs, read_mapping_file, whole_number
from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final, Protocol, TextIO
from plait.core.values import Json
from plait.views.terminal import is_interactive

if TYPE_CHECKING:
    import argparse

    from plait.app.runs import Options, RunObservers
    from plait.cli.arguments import Parser
    from plait.tools.trust.decisions import AskTrust, TrustQuestion
    from plait.views.summary import Result
    from plait.views.view import View

EXAMPLES: Final = (
    "plait run flow.yaml",
    "plait run fix-worst.yaml -i folder=src -j 8 --dry-run",
)


def configure(parser: Parser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="a workflow, graph, directive or ensemble; without one, list those of the project",
    )
    add_run_inputs(parser, "one input: text, or the type of the parameter")
    parser.add_argument(
        "--strict", action="store_true", help="a placeholder without a value is an error"
    )
    parser.add_argument("--profile", metavar="P", help="one of the flow's profiles")
    parser.add_argument(
        "-n",
        "--dry-run",
        action="store_true",
        help="show what would run, with its values, and run nothing",
    )
    parser.add_argument(
        "--prompt-only",
        action="store_true",
        help="of a directive: print its prompt, and send nothing",
    )
    parser.add_argument("--trust", action="store_true", help="trust the project first")
    add_watching(parser)


def add_run_inputs(parser: Parser, single: str) -> None:
    """`-i`, and `--inputs FILE`, which is `-i @FILE`."""
    add_inputs(parser, single)
    parser.add_argument("--inputs", metavar="F", help=HIDDEN)


def add_watching(parser: Parser) -> None:
    """The options of the commands that execute a run."""
    parser.add_argument(
        "--backend", metavar="B", help="where items run: local, dask, or dask://HOST:PORT"
    )
    parser.add_argument("-j", "--max-parallel", metavar="N", help="at most so many items at a time")
    parser.add_argument(
        "-k",
        "--keep-going",
        action="store_true",
        help="a failed item of a map stops no other one, whatever the flow says",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object per event, and one at the end"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing unless it fails")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print all output, with the item before it"
    )
    add_project(parser, lockable=False)


def load_all() -> None:
    """Load the modules of a run while the guardian starts; then turn the garbage collector on."""
    from importlib import import_module

    from plait.app import runs as flows
    from plait.app.toolbox import warm_up
    from plait.cli.bundle import keep_bundle

    warm_up()
    flows.load_all()
    import_module("plait.views.text")
    keep_bundle("run")
    start_garbage_collection()


def own_help(options: argparse.Namespace) -> str | None:
    """`plait run FILE --help`: the flow's own help."""
    if options.file is None or not os.path.isfile(options.file):
        return None
    from plait.cli.flow_list import flow_help

    return flow_help(options.file)


def run(options: argparse.Namespace) -> int:
    if options.file is None:
        return _list_flows(options)
    from plait.app import runs as flows
    from plait.app.toolbox import toolbox

    load_all()
    require_folder(options.project)
    wanted = _options(options)
    if options.trust:
        trust_project(toolbox(options.project or flows.project_of_file(options.file)).trust)
    if options.prompt_only:
        from plait.views.format import json_line

        filled = flows.directive_prompt(options.file, wanted, project=options.project)
        print(json_line(filled.record()) if options.json else filled.body)
        return 0
    if options.dry_run:
        from plait.views.plan import show_plan

        return show_plan(
            flows.plan_run(options.file, wanted, project=options.project), as_json=options.json
        )
    work = partial(flows.run_flow, options.file, wanted, project=options.project)
    return run_with_view(work, view_for(options))


def _list_flows(options: argparse.Namespace) -> int:
    from plait.app.toolbox import project_root

    if options.input or options.inputs or options.dry_run or options.prompt_only or options.trust:
        raise InputError(
            "plait run: FILE is missing",
            fix="plait run alone lists the flows of this project",
            code="arguments",
        )
    start_garbage_collection()
    require_folder(options.project)
    from plait.cli.flow_list import show_flows

    show_flows(project_root(options.project), as_json=options.json)
    return 0


# ── watching ─────────────────────────────────────────────────────────────


def view_for(options: argparse.Namespace, stream: TextIO | None = None) -> View:
    from plait.views.text import PlainView, QuietView

    stream = sys.stdout if stream is None else stream
    if options.json:
        from plait.views.json_view import JsonView

        return JsonView(stream)
    if options.quiet and options.verbose:
        raise InputError("-q and -v exclude each other", fix="give one of them", code="arguments")
    if options.quiet:
        return QuietView(sys.stderr)
    if options.verbose:
        from plait.views.verbose import VerboseView

        return VerboseView(stream)
    if stream.isatty() and os.environ.get("TERM") not in ("dumb", None):
        from plait.views.live import LiveView

        return LiveView()
    return PlainView(stream)


class RunCommand(Protocol):
    """Executes a run with observers: a view, a stop signal, a question about trust."""

    def __call__(self, *, observers: RunObservers) -> Result: ...


def run_with_view(work: RunCommand, view: View) -> int:
    """Execute a run and show it; returns the exit code."""
    from plait.app.runs import RunObservers
    from plait.cli.signals import stop_on_signal
    from plait.engine.stop import StopSignal

    stop = StopSignal()
    observers = RunObservers([view.watch], stop, _trust_prompt(view) if is_interactive() else None)
    with stop_on_signal(stop, view):
        with view:
            result = work(observers=observers)
        view.finish(result)  # a late signal must not interrupt the end of the run
    return result.exit_code


def _trust_prompt(view: View) -> AskTrust:
    from plait.cli.trust_prompt import ask_for_trust

    def ask(question: TrustQuestion) -> bool:
        with view.pause():
            return ask_for_trust(question)

    return ask


# ── options ──────────────────────────────────────────────────────────────


def _options(options: argparse.Namespace) -> Options:
    from plait.app.runs import Options

    return Options(
        inputs=parse_inputs(options.inputs, options.input),
        strict=True if options.strict else None,
        max_parallel=whole_number("--max-parallel", options.max_parallel),
        profile=options.profile,
        backend=options.backend,
        keep_going=options.keep_going,
    )


def parse_inputs(file: str | None, given: Sequence[str]) -> dict[str, Json]:
    """The inputs of `--inputs`, then of each `-i`, which wins."""
    inputs = {} if file is None else read_mapping_file(file)
    return {**inputs, **read_inputs(given)[0]}
