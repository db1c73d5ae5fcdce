"""`plait mcp`: an MCP server over standard input and output, for the clients of this project.

plait mcp                 serve, until the client leaves
plait mcp list            what would be offered, and under which names
plait mcp config CLIENT   the entry for the settings of a client
"""

from __future__ import annotations

import os
import signal
import sys

from plait.cli.arguments import require_choice
from plait.cli.project import add_project, require_folder
from plait.cli.serving import add_serving, first_serving_option
from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse
    from types import FrameType

    from plait.cli.arguments import Parser
    from plait.mcp.catalog import Catalog

EXAMPLES: Final = (
    "plait mcp",
    "plait mcp list --expose 'core/file/*' --expose 'flow:*'",
    "plait mcp config claude",
)
ACTIONS: Final = ("serve", "list", "config")
CLIENTS: Final = {
    # client: its file, and the key of the servers in it
    "claude": (".mcp.json", "mcpServers"),
    "claude-desktop": ("claude_desktop_config.json", "mcpServers"),
    "codex": ("~/.codex/config.toml", "mcp_servers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "gemini": (".gemini/settings.json", "mcpServers"),
    "vscode": (".vscode/mcp.json", "servers"),
}


def configure(parser: Parser) -> None:
    parser.add_argument(
        "action",
        metavar="serve|list|config",
        nargs="?",
        default="serve",
        help="serve is the default",
    )
    parser.add_argument(
        "client", metavar="CLIENT", nargs="?", help=f"of config: {', '.join(CLIENTS)}"
    )
    parser.add_argument(
        "--expose",
        metavar="PATTERN",
        action="append",
        help="offer only this: a tool (team/*), directive:…, flow:… (may be repeated)",
    )
    parser.add_argument(
        "--answer-within",
        metavar="S",
        help="a call of a flow that takes longer answers with its run id; default: 25",
    )
    parser.add_argument(
        "--http",
        metavar="[HOST:]PORT",
        help="serve over HTTP instead of standard input (0: any free port)",
    )
    add_serving(parser)
    add_project(parser, lockable=False)
    parser.add_argument("--json", action="store_true", help="the list for programs")


def run(options: argparse.Namespace) -> int:
    from plait.app.toolbox import project_root
    from plait.mcp.catalog import Catalog

    action = require_choice("action", options.action, ACTIONS)
    require_folder(options.project)
    catalog = Catalog(project_root(options.project), options.expose)
    if action != "config" and options.client is not None:
        what = f"plait mcp {action} takes no CLIENT"
        raise InputError(what, fix="plait mcp config CLIENT", code="arguments")
    if action != "serve" and options.http is not None:
        what = f"plait mcp {action} takes no --http"
        fix = "plait mcp --http ADDRESS prints what its clients need"
        raise InputError(what, fix=fix, code="arguments")
    if options.http is None and (given := first_serving_option(options)) is not None:
        fix = f"plait mcp --http PORT {given} …"
        raise InputError(f"{given} needs --http", fix=fix, code="arguments")
    within = _answer_within(options)
    if action == "config":
        client = require_choice("client", options.client or "claude", tuple(CLIENTS))
        _show_config(client, catalog.project, options)
        return 0
    if action == "list":
        _list(catalog, as_json=options.json)
        return 0
    return _serve(catalog, options, within)


def _answer_within(options: argparse.Namespace) -> float | None:
    if options.answer_within is None:
        return None
    from plait.cli.arguments import seconds

    return seconds(options.answer_within, "--answer-within")


class _Leave(Exception):
    """Raised when a signal asks the server to end."""


def _serve(catalog: Catalog, options: argparse.Namespace, within: float | None) -> int:
    from plait.cli.crash_report import report
    from plait.mcp.server import ANSWER_WITHIN, Server

    within = within or ANSWER_WITHIN
    catalog.patterns()  # report a wrong setting before a client connects
    if options.http is not None:
        _serve_http(catalog, options, within)
        return 0
    from plait.mcp.stdio import Outbox, Readers, read_lines, take_streams

    if sys.stdin is not None and sys.stdin.isatty():
        print("plait mcp waits for a client on standard input; Ctrl-C ends it", file=sys.stderr)
    incoming, outgoing = take_streams()
    outbox = Outbox(outgoing)
    server = Server(catalog, outbox, answer_within=within, report_bug=report)

    def leave(_number: int, _frame: FrameType | None) -> None:
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, signal.SIG_DFL)  # the second signal ends Plait at once
        raise _Leave

    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, leave)
    try:
        Readers(read_lines(incoming, outbox.wait_for_room), server.take).serve()
    except _Leave:
        pass
    finally:
        server.end()
    return 0


def _serve_http(catalog: Catalog, options: argparse.Namespace, within: float) -> None:
    from plait.cli.crash_report import report
    from plait.cli.serving import read_serving
    from plait.httpd.listen import parse_address
    from plait.httpd.serve import HttpServer, require_web

    listen = read_serving(options, *parse_address(options.http))
    require_web()
    from plait.httpd.guard import Limits
    from plait.mcp.http import PATH, McpApp
    from plait.mcp.stdio import MAX_MESSAGE

    app = McpApp(catalog, answer_within=within, report_bug=report)
    secret = "its password" if listen.password else "the token that it printed"
    server = HttpServer(
        app,
        listen,
        limits=Limits(body=MAX_MESSAGE),
        way_in=f"this server needs the header Authorization: Bearer, with {secret}",
        report_bug=report,
    )

    def announce() -> None:
        print(f"plait mcp listens at {server.url}{PATH}; Ctrl-C ends it")
        print(f"Authorization: Bearer {server.token or '(the password)'}", flush=True)

    try:
        server.run(announce)
    finally:
        app.close()


def _show_config(client: str, project: str, options: argparse.Namespace) -> None:
    """Print only the entry, so that it can be written to a file."""
    import json
    import shutil

    beside = os.path.join(os.path.dirname(sys.executable), "plait")
    found = beside if os.access(beside, os.X_OK) else shutil.which("plait")
    command = [found] if found else [sys.executable, "-m", "plait"]
    args = [*command[1:], "mcp", "--project", project]
    for pattern in options.expose or ():
        args += ["--expose", pattern]
    if options.answer_within is not None:
        args += ["--answer-within", options.answer_within]
    file, key = CLIENTS[client]
    if client == "codex":
        # A JSON string is also a TOML string, except for DEL.
        print(f"[{key}.plait]")
        for name, value in (("command", command[0]), ("args", args)):
            written = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            print(f"{name} = {written}")
    else:
        kind = {"type": "stdio"} if client == "vscode" else {}
        entry = {**kind, "command": command[0], "args": args}
        print(json.dumps({key: {"plait": entry}}, indent=2, ensure_ascii=False))
    print(f"put this into {file}; clients: {', '.join(CLIENTS)}", file=sys.stderr)


def _list(catalog: Catalog, *, as_json: bool) -> None:
    from plait.views.terminal import cut, format_table, pluralize, width, write_json

    entries = catalog.entries()
    if as_json:
        write_json([{"id": one.id, "kind": one.kind, **one.record()} for one in entries])
        return
    rows = [("NAME", "ID", "READS ONLY", "WHAT")]
    for one in entries:
        reads = "yes" if one.hints["readOnlyHint"] else "no"
        rows.append((one.name, one.id, reads, " ".join(one.offer.description.split())))
    for line in format_table(rows, width(sys.stdout)):
        print(line)
    from plait.app.toolbox import toolbox

    print(f"{pluralize(len(entries), 'tool')} for MCP clients of {cut(catalog.project, None)}")
    if unused := catalog.patterns_without_entry(entries):
        print("nothing that may run fits " + cut(", ".join(map(repr, unused)), None))
    if not toolbox(catalog.project).trust.project_trusted:
        from plait.tools.trust.decisions import project_files

        made = "" if project_files(catalog.project) else "make its folder .ai (plait init), then "
        print(f"flows are offered when you trust this project: {made}plait trust .")
