"""`plait call`: call a tool by its id.

Standard output is the result: text as it is, anything else as JSON, with secrets masked.  A failure
goes to standard error, with exit code 1; 2 is wrong input, 3 a tool that is not trusted.
`--dry-run` does everything up to the call.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from plait.cli import start_garbage_collection
from plait.cli.project import add_project, load_toolbox, trust_project
from plait.cli.values import (
    HIDDEN,
    add_inputs,
    read_inputs,
    read_json,
    read_mapping_file,
    require_mapping,
)
from plait.core.errors import InputError, PlaitError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.values import Json
from plait.views.terminal import printable, show_error, write_json, write_result

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser
    from plait.tools.call import ToolResult
    from plait.tools.prepare import Toolbox

EXAMPLES: Final = (
    "plait call core/file/read -i path=README.md",
    "plait call team/report -i week=46 --dry-run",
)


def configure(parser: Parser) -> None:
    parser.add_argument("tool", metavar="TOOL", help="its id, for example team/report")
    add_inputs(parser, "one parameter: text, or the type of its schema", "-p", "--param")
    parser.add_argument("--params", metavar="JSON", help=HIDDEN)
    parser.add_argument("--params-file", metavar="FILE", help=HIDDEN)
    add_project(parser)
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="show what would run, and run nothing"
    )
    parser.add_argument("--trust", action="store_true", help="trust the project first")
    parser.add_argument("--timeout", metavar="S", help="end the tool after so many seconds")
    parser.add_argument(
        "--allow-env",
        metavar="NAME",
        action="append",
        default=[],
        help="let .env set this variable although programs are found or loaded by it: PATH (may be repeated)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print status, data, chain and metadata"
    )


def run(options: argparse.Namespace) -> int:
    if not options.dry_run:
        from plait.app.toolbox import warm_up

        warm_up()  # the guardian starts while the other modules load
    from plait.tools import call as steps
    from plait.tools.chain import FLOW

    tools = _toolbox(options)
    params = _params(options, tools)
    start_garbage_collection()
    if tools.chains.get(options.tool).primitive == FLOW:
        return _call_flow(options, params)
    if options.dry_run:
        _show_dry_run(steps.plan_call(tools, options.tool, params), as_json=options.json)
        return 0
    result = steps.call_tool(tools, options.tool, params)
    if options.json:
        write_result(result.record())
    else:
        data = result.data if result.success else _besides_error(result)
        if data != "" and (result.success or data is not None):
            write_result(data)
        for note in _notes(result):
            print(f"note: {printable(note)}", file=sys.stderr)
        if not result.success:
            show_error(_failure(result))
    if result.success:
        from plait.cli.bundle import keep_bundle

        keep_bundle("call")
    return 0 if result.success else 1


def _call_flow(options: argparse.Namespace, params: Mapping[str, Json]) -> int:
    """Call a tool that is a flow. The call is a run, which can be shown and resumed."""
    from plait.app import runs as flows
    from plait.cli.run import run_with_view
    from plait.views.plan import show_plan
    from plait.views.text import QuietView

    for name in ("locked", "timeout", "allow_env"):
        if getattr(options, name):
            what = f"--{name.replace('_', '-')} means nothing to '{options.tool}', which is a flow"
            raise InputError(what, fix="the flow and its tools say it themselves", code="arguments")
    if options.dry_run:
        found = flows.plan_flow_call(options.tool, params, project=options.project)
        return show_plan(found, as_json=options.json)
    results: list[flows.FlowResult] = []

    def work(*, observers: flows.RunObservers) -> flows.FlowResult:
        results.append(
            flows.call_flow(options.tool, params, project=options.project, observers=observers)
        )
        return results[0]

    status = run_with_view(work, QuietView(sys.stderr))
    if options.json:
        write_result(flows.envelope(options.tool, results[0]))
    elif results[0].status == "done":
        write_result(flows.envelope(options.tool, results[0])["data"])
    return status


def _toolbox(options: argparse.Namespace) -> Toolbox:
    tools = load_toolbox(options, asking=True)
    if options.trust:
        trust_project(tools.trust)
    if options.timeout is None and not options.allow_env:
        return tools
    from plait.cli.arguments import seconds
    from plait.core.records import replace

    timeout = None if options.timeout is None else seconds(options.timeout)
    return replace(tools, timeout=timeout, dotenv_allowed=frozenset(options.allow_env))


# ── parameters ───────────────────────────────────────────────────────────


def _params(options: argparse.Namespace, tools: Toolbox) -> dict[str, Json]:
    params: dict[str, Json] = {}
    if options.params_file is not None:
        params |= read_mapping_file(options.params_file)
    if options.params is not None:
        params |= require_mapping(read_json(options.params, "--params"), "--params")
    given, texts = read_inputs(options.input)
    if texts:
        # The schema of each parameter that the tool declares.
        schema = tools.chains.get(options.tool).tool.header.config_schema or {}
        properties = schema.get("properties")
        types = properties if isinstance(properties, Mapping) else {}
        given |= {name: _parse_param(given[name], types.get(name)) for name in texts}
    return params | given


def _parse_param(text: str, schema: Json) -> Json:
    """Return the text, unless the schema has another type: `version=1.10` is not the number 1.1."""
    if not isinstance(schema, Mapping) or _takes_text(schema):
        return text
    try:
        return read_json(text, "-i")
    except InputError:
        return text  # the check of the parameters reports the expected type


def _takes_text(schema: Mapping[str, Json]) -> bool:
    kinds = schema.get("type")
    if kinds is None:
        choices = schema.get("enum")
        return not isinstance(choices, list) or any(isinstance(choice, str) for choice in choices)
    return "string" in (kinds if isinstance(kinds, list) else [kinds])


# ── what people see ──────────────────────────────────────────────────────


def _notes(result: ToolResult) -> Iterator[str]:
    """Yield remarks about the result. The error of a tool may already name its overflow file."""
    facts = result.metadata
    overflow = facts.get("stderr_overflow") or facts.get("overflow")
    if isinstance(overflow, str) and overflow not in (result.error or ""):
        yield f"it wrote more to standard error than is kept; all of it is in {overflow}"
    if isinstance(refused := facts.get("refused_env"), list):
        yield f".env may not set {', '.join(refused)}: they decide which programs run"
    if isinstance(left_out := facts.get("left_out"), list):
        yield "of the tool's folder, this did not come along:\n  " + "\n  ".join(
            map(str, left_out[:10])
        )
    if isinstance(log := facts.get("log"), str):
        yield f"before its result it printed:\n{log}"


def _besides_error(result: ToolResult) -> Json:
    """Return the data of a failed tool, without the parts that its error already contains."""
    error = (result.error or "").strip()
    match result.data:
        case str(text) if text.strip() == error:
            return None
        case {"success": False, "error": str(text), **rest} if text.strip() == error:
            return rest or None
        case dict() | list() if error[:1] in ("{", "[") and _is_same_json(error, result.data):
            return None
    return result.data


def _is_same_json(text: str, data: Json) -> bool:
    import json

    try:
        return bool(json.loads(text) == data)
    except ValueError:
        return False


def _failure(result: ToolResult) -> PlaitError:
    facts = [
        f"{name.replace('_', ' ')} {result.metadata[name]}"
        for name in ("exit_code", "signal")
        if result.metadata.get(name) is not None
    ]
    how = f" ({', '.join(facts)})" if facts else ""
    return PlaitError(
        f"'{result.item_id}' failed{how}: {(result.error or 'it does not say why').rstrip()}"
    )


def _show_dry_run(record: Mapping[str, Json], *, as_json: bool) -> None:
    if as_json:
        write_json(dict(record))
        return
    from plait.views.call_plan import show_call_plan

    show_call_plan(record)
