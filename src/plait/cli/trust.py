"""`plait trust`: decide which projects, signers and MCP tools may run.

    plait trust                      what is trusted
    plait trust DIR                  trust the tools and files of the project in this folder
    plait trust remove DIR           trust it no longer
    plait trust add FILE             trust a signer: the same as plait keys add FILE
    plait trust mcp SERVER TOOL      approve a tool of an MCP server as it is now; --params JSON
                                     if parameters choose the server
    plait trust reset ID             let an older version of a signed tool run again
    plait trust run RUN              take over a run from a clone, an archive or a copy

Write a folder with the name of an action as a path: ./status.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence

from plait.cli.keys import add_key, key_state
from plait.cli.project import add_project, load_toolbox, require_folder
from plait.cli.trust_prompt import confirm
from plait.cli.values import read_json, require_mapping
from plait.core.errors import InputError, PlaitError, TrustError, closest_name
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.values import Json
from plait.views.terminal import (
    cut,
    fold_line,
    is_interactive,
    paint_for,
    pluralize,
    printable,
    width,
    write_json,
)

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser
    from plait.tools.invocation import McpCall
    from plait.tools.prepare import PreparedCall, Toolbox

EXAMPLES: Final = (
    "plait trust .",
    "plait trust mcp time get_current_time",
)
ACTIONS: Final = ("status", "remove", "add", "mcp", "reset", "run")
_TAKES: Final = {"status": 0, "remove": 1, "add": 1, "mcp": 2, "reset": 1, "run": 1}


def configure(parser: Parser) -> None:
    parser.add_argument(
        "words",
        metavar="DIR | ACTION",
        nargs="*",
        help="a project's folder, or status, remove, add, mcp, reset, run",
    )
    parser.add_argument("--owner", metavar="WHO", help="whose key is added")
    parser.add_argument(
        "--ids", metavar="PATTERN", action="append", help="trust an added key for these ids only"
    )
    parser.add_argument(
        "--space", metavar="SPACE", action="append", help="and only in project or in user"
    )
    parser.add_argument(
        "--params",
        metavar="JSON",
        help="of an MCP tool: the parameters in its command line or url",
    )
    add_project(parser, lockable=False)
    parser.add_argument("--json", action="store_true", help="the status for programs")


def run(options: argparse.Namespace) -> int:
    action, *rest = options.words or ["status"]
    if action in ACTIONS and len(rest) != _TAKES[action]:
        count = ("no argument", "one argument", "two arguments")[_TAKES[action]]
        raise InputError(
            f"plait trust {action} takes {count}", fix="see plait trust --help", code="arguments"
        )
    match action, rest:
        case "status", []:
            _status(load_toolbox(options), as_json=options.json)
        case "remove", [folder]:
            _remove(load_toolbox(options), folder)
        case "add", [file]:
            add_key(load_toolbox(options).trust.store, file, options)
        case "mcp", [server, tool]:
            return _approve(load_toolbox(options), server, tool, _params(options.params))
        case "reset", [item_id]:
            from plait.tools.spaces import normalize_id

            if not load_toolbox(options).trust.store.forget_versions(normalize_id(item_id)):
                raise InputError(
                    f"no version of '{item_id}' is recorded",
                    fix="'plait tools' lists the ids",
                    code="unknown-tool",
                )
            print(f"any signed version of '{item_id}' may run again")
        case "run", [run]:
            return _take_over(run, options.project)
        case folder, []:
            _trust(folder)
        case _:
            raise InputError(
                "plait trust takes one folder", fix="see plait trust --help", code="arguments"
            )
    return 0


# ── projects ─────────────────────────────────────────────────────────────


def _trust(folder: str) -> None:
    from plait.app.toolbox import toolbox
    from plait.tools.trust.decisions import project_files

    if not os.path.isdir(folder):
        guess = closest_name(folder, ACTIONS)
        meant = f"did you mean 'plait trust {guess}'? " if guess else ""
        raise InputError(
            f"there is no folder '{folder[:200]}'",
            fix=f"{meant}actions: {', '.join(ACTIONS)}",
            code="no-directory",
        )
    tools = toolbox(folder)
    files = project_files(tools.trust.project or folder)
    if not files:
        raise InputError(
            "this folder has no files that need trust",
            os.path.realpath(folder),
            "name the folder that holds .ai",
            code="nothing-to-trust",
        )
    tools.trust.trust_project(origin="plait trust")
    print(f"trusted: {printable(tools.trust.project or folder)}")
    for path in files[:50]:
        print(f"  {printable(path)}")
    if len(files) > 50:
        print(f"  … and {len(files) - 50} more")
    if not tools.trust.project_trusted:
        print(
            "but this project requires signatures (trust: signed): trust its signer with plait "
            "trust add FILE"
        )
    print(f"to take it back:  plait trust remove {shlex.quote(folder)}")


def _remove(tools: Toolbox, folder: str) -> None:
    if not tools.trust.store.forget_project(folder):
        raise InputError(
            "this project was not trusted",
            os.path.realpath(folder),
            "'plait trust' lists those that are",
            code="not-trusted",
        )
    print(f"no longer trusted: {printable(os.path.realpath(folder))}")


def _status(tools: Toolbox, *, as_json: bool) -> None:
    from plait.tools.trust.decisions import project_files

    trust = tools.trust
    here = trust.project or os.getcwd()
    files, projects, keys = project_files(here), trust.store.projects(), trust.store.keys()
    if as_json:
        write_json(
            {
                "project": {"root": here, "trusted": trust.project_trusted, "files": list(files)},
                "projects": [
                    {"root": it.root, "trusted": it.trusted, "origin": it.origin} for it in projects
                ],
                "keys": [key.record() for key in keys],
            }
        )
        return
    paint = paint_for(sys.stdout)
    if not files:
        state = "has no files that need trust"
    elif trust.project_trusted:
        state = paint("trusted", "green")
    elif trust.store.trusts(here):
        state = (
            paint("trusted", "yellow")
            + ", but it requires signatures (trust: signed): see plait verify"
        )
    else:
        command = f"plait trust {shlex.quote(here)}"
        count = pluralize(len(files), "file")
        state = f"{paint('not trusted', 'yellow')}; it has {count}; trust it: {command}"
    print(f"{paint('here', 'bold')}  {cut(here, None)}: {state}")
    print(paint("projects", "bold"))
    for project in projects:
        print(f"  {cut(project.root, None)}   since {project.trusted} ({project.origin})")
    print(paint("keys", "bold"))
    for key in keys:
        scope = f"{', '.join(key.ids)} in {' and '.join(key.spaces)}"
        print(
            f"  {key.fingerprint[:16]}…   {cut(key.owner, None)}   {cut(scope, None)}   "
            f"{key_state(key)}"
        )


# ── runs ─────────────────────────────────────────────────────────────────


def _take_over(run: str, project: str | None) -> int:
    """Show another user's run and take it over; at a terminal, only after a yes."""
    from plait.app import takeover

    require_folder(project)
    found = takeover.look_at(run, project)
    began_in = os.path.realpath(found.began_in) if os.path.isabs(found.began_in) else found.project
    print(f"run {printable(found.id)}   {cut(found.flow, None)}")
    print(f"  flow      {printable(found.file) or 'of a program in Python'}")
    if began_in != found.project:
        print(f"  began in  {printable(found.began_in)}")
    if found.backend:
        print(f"  backend   {printable(found.backend)}")
    if is_interactive() and not confirm("take it over, with all that it has recorded?"):
        return TrustError.exit_code
    takeover.take_over(found)
    where = "" if found.project == os.getcwd() else f" --project {shlex.quote(found.project)}"
    print(f"your own from now on, in this folder:  plait resume {found.id}{printable(where)}")
    return 0


# ── tools of MCP servers ─────────────────────────────────────────────────


def _params(written: str | None) -> dict[str, Json]:
    return {} if written is None else require_mapping(read_json(written, "--params"), "--params")


def _approve(tools: Toolbox, server: str, tool: str, params: Mapping[str, Json]) -> int:
    """Show a tool as its server describes it, and approve it; at a terminal, only after a yes."""
    from plait.app.toolbox import approve_mcp, inspect_mcp_tool

    found = _mcp_calls(tools, server, tool, params)
    refused = False
    for item_id, (call, address) in found.items():
        offered = inspect_mcp_tool(call)
        asking = is_interactive()
        # Show it at the place of the question, even if standard output is a pipe.
        stream = sys.stderr if asking else sys.stdout
        if len(found) > 1:
            # Several servers of one name: each is started, shown and approved.
            print(f"as '{printable(item_id)}' calls it:", file=stream)
        for line in offered.lines(address):
            print(*fold_line(line, width(stream)), sep="\n", file=stream)
        if asking and not confirm("approve it as it is?"):
            refused = True
            continue
        approve_mcp(offered)
        print(
            "approved: if anything shown here changes, the tool is refused until you approve it "
            "again"
        )
    return TrustError.exit_code if refused else 0


def _mcp_calls(
    tools: Toolbox, server: str, tool: str, params: Mapping[str, Json]
) -> dict[str, tuple[McpCall, str]]:
    """Return a call of each server of this name, and its address, by the id of the tool."""
    found: dict[tuple[tuple[str, ...], str], tuple[str, tuple[McpCall, str]]] = {}
    known: list[str] = []
    refused: list[PlaitError] = []
    for prepared, call in _prepare_mcp_calls(tools, params, refused):
        item_id = prepared.ready.chain.tool.id
        known.append(f"{call.server.name} {call.tool}")
        if (call.server.name, call.tool) != (server, tool):
            continue
        if missing := [name for name in call.chosen_by if name not in prepared.all_params]:
            refused.append(_parameters_missing(item_id, call, missing))
            continue
        address = prepared.secrets.mask_secrets(shlex.join(call.server.command) or call.server.url)
        found.setdefault((call.server.command, call.server.url), (item_id, (call, address)))
    if found:
        return dict(found.values())
    if helpful := [
        error for error in refused if isinstance(error, TrustError) or error.code == _MISSING
    ]:
        raise helpful[0]
    guess = closest_name(f"{server} {tool}", known)
    raise InputError(
        f"no tool here calls '{tool[:60]}' of the MCP server '{server[:60]}'",
        fix=(f"did you mean {guess}? " if guess else "")
        + "a tool names both: config.server.name and config.tool_name",
        code="unknown-tool",
    )


def _prepare_mcp_calls(
    tools: Toolbox, params: Mapping[str, Json], refused: list[PlaitError]
) -> Iterator[tuple[PreparedCall, McpCall]]:
    """Every tool that calls an MCP server; errors of other tools are added to `refused`."""
    from plait.tools.invocation import McpCall
    from plait.tools.prepare import prepare

    for item_id in sorted(tools.spaces.ids()):
        try:
            if tools.chains.get(item_id).primitive != "core/primitives/mcp":
                continue
            prepared = prepare(tools, item_id, params, checked=False)
        except PlaitError as error:
            refused.append(error)
            continue
        if isinstance(prepared.invocation, McpCall):
            yield prepared, prepared.invocation


_MISSING: Final = "missing-parameters"


def _parameters_missing(item_id: str, call: McpCall, names: Sequence[str]) -> InputError:
    sample = ", ".join(f'"{name}": …' for name in names)
    command = f"plait trust mcp {shlex.quote(call.server.name)} {shlex.quote(call.tool)}"
    return InputError(
        f"which server '{item_id}' calls depends on its parameters: {', '.join(names)}",
        fix=f"give those that you want to approve: {command} --params '{{{sample}}}'",
        code=_MISSING,
    )
