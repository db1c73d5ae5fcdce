"""`plait tools`: list the tools, show one, make a new one, import those of MCP servers.

plait tools                        the table; for a tool that cannot be read, the reason
plait tools show ID                its chain, signatures, parameters, and what it shadows
plait tools new NAME --runtime R   a file that runs at once
plait tools import FILE            tool files for what the MCP servers of an .mcp.json declare
plait tools lock                   write plait.lock: the digest of each file of the project
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from plait.cli.arguments import require_choice
from plait.cli.keys import signer_label
from plait.cli.project import add_project, load_toolbox
from plait.cli.scaffold import new_tool
from plait.cli.sign import replace_file
from plait.core.errors import InputError, PlaitError, format_names
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass
from plait.core.values import Json, json_text
from plait.tools.chain_rules import check_pairs, short_id
from plait.tools.headers import NO_HEADER
from plait.tools.spaces import Space, Spaces
from plait.tools.trust.decisions import Lockfile
from plait.tools.trust.lockfile import LOCK
from plait.views.terminal import (
    Paint,
    cut,
    error_data,
    format_table,
    paint_for,
    pluralize,
    printable,
    width,
    write_json,
)

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser
    from plait.tools.chain import Chain
    from plait.tools.prepare import Toolbox
    from plait.tools.spaces import ToolLocation
    from plait.tools.tool_file import ToolFile
    from plait.tools.trust.decisions import TrustDecision, TrustStore

EXAMPLES: Final = (
    "plait tools show core/file/read",
    "plait tools new team/report --runtime python",
    "plait tools import .mcp.json --dry-run",
)
ACTIONS: Final = ("list", "show", "new", "import", "lock")
_UNNAMED: Final = ("list", "lock")
UNREADABLE: Final = 2


def configure(parser: Parser) -> None:
    parser.add_argument(
        "action",
        metavar="list|show|new|import|lock",
        nargs="?",
        default="list",
        help="list is the default",
    )
    parser.add_argument(
        "name",
        metavar="ID",
        nargs="?",
        help="which tool to show, how to call the new one, or the .mcp.json to import",
    )
    parser.add_argument(
        "--runtime", metavar="R", help="of a new tool: python, node, bash, function or http"
    )
    parser.add_argument(
        "--server", metavar="NAME", action="append", help="import only this (may be repeated)"
    )
    parser.add_argument(
        "-n",
        "--dry-run",
        action="store_true",
        help="of import: start the servers and show their tools; write and approve nothing",
    )
    parser.add_argument("--all", action="store_true", help="list runtimes too")
    add_project(parser, lockable=False)
    parser.add_argument("--json", action="store_true", help="the same for programs")


def run(options: argparse.Namespace) -> int:
    action = require_choice("action", options.action, ACTIONS)
    if (action in _UNNAMED) != (options.name is None):
        wrong = " takes no ID" if action in _UNNAMED else ": ID is missing"
        what = f"plait tools {action}{wrong}"
        raise InputError(what, fix="see plait tools --help", code="arguments")
    tools = load_toolbox(options)
    match action:
        case "list":
            return _list(tools, everything=options.all, as_json=options.json)
        case "show":
            _show(tools, options.name, as_json=options.json)
        case "lock":
            _lock(tools)
        case "import":
            from plait.cli.tools_import import import_tools

            return import_tools(tools, options.name, options)
        case _:
            new_tool(tools, options.name, options.runtime)
    return 0


# ── the table ────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Row:
    """An id in a space: its file and its trust decision, or the error."""

    id: str
    space: Space
    path: str
    """The path of the file; that of the tools' folder if it is unknown which file is meant."""
    shadowed_by: str | None
    item: ToolFile | None = None
    decision: TrustDecision | None = None
    error: PlaitError | None = None

    @property
    def runtime(self) -> bool:
        return self.item is not None and self.item.header.tool_type == "runtime"


def rows(tools: Toolbox) -> list[Row]:
    """Every tool of every space; a shadowed one follows the one that shadows it."""
    found: list[Row] = []
    for item_id in sorted(tools.spaces.ids()):
        answering: str | None = None
        for space in tools.spaces.all:
            row = _row(tools, item_id, space, answering)
            if row is not None:
                answering = answering or space.label
                found.append(row)
    return found


def _row(tools: Toolbox, item_id: str, space: Space, shadowed_by: str | None) -> Row | None:
    """One id in one space; None if the space does not have it."""
    path = os.path.join(space.root, "tools")
    try:
        # Only this space: problems of other spaces are in other rows.
        found = Spaces((space,)).find(item_id)
        if found is None or found.id != item_id:
            return None
        path = found.path
        item = tools.chains.items.get(found)
        decision = tools.trust.decide(item)
        if shadowed_by is None:
            tools.chains.get(item_id)  # this also finds cycles and missing executors
        return Row(item_id, space, path, shadowed_by, item, decision)
    except PlaitError as error:
        if error.code == NO_HEADER:
            return None  # the file lies beside a tool and is not one
        return Row(item_id, space, path, shadowed_by, error=error)


def listing_exit_code(checked: Iterable[Row]) -> int:
    return UNREADABLE if any(row.error is not None for row in checked) else 0


def report_broken(checked: Iterable[Row]) -> None:
    """Print on standard error why the exit code is not 0."""
    if broken := [row.id for row in checked if row.error is not None]:
        print(
            f"{pluralize(len(broken), 'tool')} cannot be used: {printable(format_names(broken))}",
            file=sys.stderr,
        )


def _list(tools: Toolbox, *, everything: bool, as_json: bool) -> int:
    all_rows = rows(tools)
    report_broken(all_rows)
    shown = [row for row in all_rows if everything or not row.runtime]
    if as_json:
        write_json([_record(row) for row in shown])
        return listing_exit_code(all_rows)
    paint = paint_for(sys.stdout)
    table = [
        ("ID", "SPACE", "RUNTIME", "SIGNED", "WHAT"),
        *(_cells(row, tools.trust.store) for row in shown),
    ]
    colours = ["bold", *(_colour(row) for row in shown)]
    for line, colour in zip(format_table(table, width(sys.stdout)), colours, strict=True):
        print(paint(line, colour) if colour else line)
    if hidden := len(all_rows) - len(shown):
        print(paint(f"and {hidden} runtimes: plait tools --all", "dim"))
    if untrusted := [
        row for row in shown if row.decision and row.decision.askable and not row.decision.allowed
    ]:
        count = "1 tool does" if len(untrusted) == 1 else f"{len(untrusted)} tools do"
        command = f"plait trust {_quote_path(tools.trust.project or '.')}"
        print(f"{count} not run before you trust this project: {command}")
    return listing_exit_code(all_rows)


def _cells(row: Row, store: TrustStore) -> tuple[str, str, str, str, str]:
    item = row.item
    space = row.space.label + (" (shadowed)" if row.shadowed_by else "")
    if item is None or row.decision is None:
        what = row.error.what if row.error else ""
        return row.id, space, "—", "—", f"cannot be used: {what}"
    runtime = short_id(item.header.executor_id or "—")
    return row.id, space, runtime, signer_label(row.decision, store), item.header.description or "—"


def _colour(row: Row) -> str:
    if row.error is not None or (row.decision is not None and not row.decision.allowed):
        return "yellow" if row.decision is not None and row.decision.askable else "red"
    return "dim" if row.shadowed_by else ""


def _record(row: Row) -> Json:
    record: dict[str, Json] = {
        "id": row.id,
        "space": row.space.label,
        "path": row.path,
        "shadowed_by": row.shadowed_by,
    }
    if row.item is None or row.decision is None:
        return {**record, "error": error_data(row.error) if row.error else None}
    header = row.item.header
    return {
        **record,
        "runtime": header.executor_id,
        "tool_type": header.tool_type,
        "version": header.version,
        "description": header.description,
        "parameters": header.config_schema and dict(header.config_schema),
        "trust": row.decision.record(),
    }


# ── one tool ─────────────────────────────────────────────────────────────


def _show(tools: Toolbox, item_id: str, *, as_json: bool) -> None:
    chain = tools.chains.get(item_id)
    decisions = [tools.trust.decide(item) for item in chain.elements]
    answering = tools.spaces.find(item_id)
    hidden = tools.spaces.find_shadowed(answering) if answering else ()
    if as_json:
        write_json(_chain_record(chain, decisions, hidden))
        return
    paint = paint_for(sys.stdout)
    columns = width(sys.stdout)
    for line in _render_chain(chain, decisions, tools.trust.store, paint):
        print(line)
    print()
    for label, text in _facts(chain, hidden):
        print(paint(f"{label:<10}", "dim"), cut(text, None if columns is None else columns - 11))


def _render_chain(
    chain: Chain, decisions: Sequence[TrustDecision], store: TrustStore, paint: Paint
) -> Iterator[str]:
    """The chain as a tree: each element with its version, its space and its trust."""
    for depth, (item, decision) in enumerate(zip(chain.elements, decisions, strict=True)):
        branch = "   " * (depth - 1) + "└─ " if depth else ""
        version = item.header.version or "no version"
        reason = (
            f"signed by {signer_label(decision, store)}"
            if decision.by == "signature"
            else decision.why
        )
        trusted = paint(printable(reason), "green" if decision.allowed else "red")
        yield f"{branch}{paint(printable(item.id), 'bold')}  {printable(version)}, {item.space}: {trusted}"
    depth = len(chain.elements)
    yield f"{'   ' * (depth - 1)}└─ {chain.primitive}  built in"


def _facts(chain: Chain, hidden: Sequence[ToolLocation]) -> Iterator[tuple[str, str]]:
    tool = chain.tool
    if tool.header.description:
        yield "what", tool.header.description
    yield "file", tool.path
    for found in hidden:
        yield "shadows", f"{found.path} ({found.space})"
    wrong = [problem.what for pair in check_pairs(chain) for problem in pair.problems]
    yield "checks", "; ".join(wrong) or "space ok, i/o ok, versions ok"
    parameters = list(parameter_lines(tool.header.config_schema))
    for number, line in enumerate(parameters):
        yield "parameters" if number == 0 else "", line
    yield "call", f"plait call {tool.id}{sample_params(tool.header.config_schema)}"


def parameter_lines(schema: Mapping[str, Json] | None) -> Iterator[str]:
    """Name, type and default of each parameter, the required ones first."""
    if schema is None:
        yield "any: the tool has no schema"
        return
    properties = schema.get("properties") or {}
    required = schema.get("required") or []
    ordered = sorted(properties, key=lambda name: name not in required)
    cells = [
        (name, _kind(properties[name], needed=name in required), _about(properties[name]))
        for name in ordered
    ]
    yield from format_table(cells, None) if cells else ["none"]


def _kind(schema: Json, *, needed: bool) -> str:
    if not isinstance(schema, Mapping):
        return "needed" if needed else "anything"
    kinds = schema.get("type", "anything")
    name = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    if isinstance(choices := schema.get("enum"), list):
        name = " or ".join(json_text(choice) for choice in choices)
    bounds = [f"{word} {json_text(schema[key])}" for key, word in _BOUNDS.items() if key in schema]
    name = ", ".join((name, *bounds))
    if "default" in schema:
        return f"{name}, default {json_text(schema['default'])}"
    return f"{name}, needed" if needed else name


_BOUNDS: Final = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "more than",
    "exclusiveMaximum": "less than",
    "multipleOf": "a multiple of",
    "pattern": "like",
}


def _about(schema: Json) -> str:
    return str(schema.get("description", "")) if isinstance(schema, Mapping) else ""


def sample_params(schema: Mapping[str, Json] | None) -> str:
    """The required parameters, to be filled in."""
    required = (schema or {}).get("required") or []
    return "".join(f" -i {name}=…" for name in required)


def _chain_record(
    chain: Chain, decisions: Sequence[TrustDecision], hidden: Sequence[ToolLocation]
) -> Json:
    tool = chain.tool
    return {
        "id": tool.id,
        "path": tool.path,
        "description": tool.header.description,
        "parameters": tool.header.config_schema and dict(tool.header.config_schema),
        "chain": [
            {
                "version": item.header.version,
                "path": item.path,
                "digest": item.digest,
                **decision.record(),
            }
            for item, decision in zip(chain.elements, decisions, strict=True)
        ],
        "primitive": chain.primitive,
        "pairs": [pair.record() for pair in check_pairs(chain)],
        "shadows": [found.path for found in hidden],
    }


# ── the lockfile ─────────────────────────────────────────────────────────


def _lock(tools: Toolbox) -> None:
    project = tools.trust.project or os.getcwd()
    lock = Lockfile.of(project)
    if not lock.files:
        raise InputError(
            "there is nothing to lock",
            project,
            "make a tool: plait tools new NAME",
            code="nothing-to-sign",
        )
    path = os.path.join(project, LOCK)
    replace_file(path, lock.text.encode())
    print(f"wrote {printable(path)}: {pluralize(len(lock.files), 'file')}")
    print("use it:  plait call --locked …, plait verify --locked")


def _quote_path(path: str) -> str:
    return shlex.quote(os.path.normpath(path))
