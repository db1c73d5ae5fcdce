"""`plait tools import`: write tool files for the tools that the MCP servers of an `.mcp.json`
declare.

Each server is started and asked for its tools. Everything that a server declares is shown, as by
`plait trust mcp`, and approved together with the file. A server that does not answer does not stop
the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from plait.app.mcp_import import (
    MAX_FILE,
    ServerEntry,
    list_tools,
    read_servers,
    tool_file,
    tool_id,
)
from plait.cli.scaffold import require_new, write_new
from plait.cli.trust_prompt import confirm, trust_new_files
from plait.core.errors import NO_OUTCOMES, InputError, PlaitError, closest_name
from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass
from plait.core.values import Json
from plait.tools.spaces import normalize_id
from plait.tools.trust.decisions import project_files as files_to_trust
from plait.views.terminal import (
    error_data,
    fold_line,
    is_interactive,
    pluralize,
    printable,
    width,
    write_json,
)

if TYPE_CHECKING:
    import argparse

    from plait.app.mcp_import import McpToolInfo
    from plait.tools.prepare import Toolbox


@dataclass(frozen=True, slots=True)
class Imported:
    """The result for a tool of a server, or for a server."""

    server: str
    tool: str | None
    id: str | None
    state: str
    """new, same, exists, skipped, failed; in a dry run `new` would be written."""
    error: PlaitError | None = None

    def record(self) -> Json:
        return {
            "server": self.server,
            "tool": self.tool,
            "id": self.id,
            "state": self.state,
            "error": error_data(self.error) if self.error else None,
        }


def import_tools(tools: Toolbox, file: str, options: argparse.Namespace) -> int:
    """Import tools; return 0 if every chosen server was imported, else 1."""
    servers = _choose(read_servers(_read(file), file, tools.host), options.server, file)
    root = tools.spaces.project or os.getcwd()
    alone = not files_to_trust(root)
    done: list[Imported] = []
    taken: set[str] = set()
    needs: dict[str, str] = {}
    for name, entry in servers.items():
        if isinstance(entry, PlaitError):
            done.append(Imported(name, None, None, "failed", entry))
            _report(entry)
            continue
        found = list(_import_server(root, name, entry, file, options, taken))
        done += found
        if any(one.state in ("new", "same") for one in found):
            needs |= dict.fromkeys(entry.needs, name)
    if options.json:
        write_json([one.record() for one in done])
    else:
        _show_end(tools, done, needs, alone=alone, dry=options.dry_run)
    return 1 if any(one.state in ("failed", "exists") for one in done) else 0


def _read(file: str) -> str:
    try:
        with open(file, "rb") as opened:
            contents = opened.read(MAX_FILE + 1)
    except OSError as error:
        what = f"this file cannot be read: {error.strerror}"
        raise InputError(what, file, "name an .mcp.json", code="no-file") from None
    if len(contents) > MAX_FILE:
        what = f"this file is longer than {MAX_FILE >> 20} MiB"
        raise InputError(what, file, "name an .mcp.json", code="bad-mcp-file")
    try:
        return contents.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(
            "this file is not UTF-8", file, "name an .mcp.json", code="bad-mcp-file"
        ) from None


def _choose(
    servers: Mapping[str, ServerEntry | PlaitError], names: Sequence[str] | None, file: str
) -> Mapping[str, ServerEntry | PlaitError]:
    if not names:
        return servers
    for name in names:
        if name not in servers:
            guess = closest_name(name, servers)
            known = ", ".join(servers) or "none"
            fix = f"did you mean '{guess}'?" if guess else f"it has: {known}"
            what = f"there is no server '{name[:60]}'"
            raise InputError(what, file, printable(fix), code="unknown-server")
    return {name: servers[name] for name in names}


def _import_server(
    root: str,
    name: str,
    entry: ServerEntry,
    file: str,
    options: argparse.Namespace,
    taken: set[str],
) -> Iterator[Imported]:
    """Import the tools of one server; `taken`: the files of tools that were imported before."""
    out = sys.stderr if is_interactive() or options.json else sys.stdout
    print(f"{printable(name)}: {printable(entry.address)}", file=out)
    if is_interactive() and not confirm("start it and ask for its tools?"):
        yield Imported(name, None, None, "skipped")
        return
    try:
        declared = list_tools(entry.server)
    except NO_OUTCOMES:
        raise
    except PlaitError as error:
        _report(error)
        yield Imported(name, None, None, "failed", error)
        return
    for tool in declared:
        for line in tool.lines(entry.address):
            print(*fold_line(line, width(out)), sep="\n", file=out)
    if (
        declared
        and is_interactive()
        and not options.dry_run
        and not confirm(f"import and approve {pluralize(len(declared), 'tool')} as they are?")
    ):
        yield Imported(name, None, None, "skipped")
        return
    for tool in declared:
        made = _import_tool(root, entry, tool, file, taken, dry=options.dry_run)
        if made.error is not None:
            _report(made.error)
        yield made


def _import_tool(
    root: str, entry: ServerEntry, tool: McpToolInfo, file: str, taken: set[str], *, dry: bool
) -> Imported:
    from plait.app.toolbox import approve_mcp

    server = tool.server
    try:
        id = normalize_id(tool_id(server, tool.tool))
        relative = f".ai/tools/{id}.yaml"
        text = tool_file(entry, tool, os.path.basename(file))
        if relative in taken:
            what = f"this file is that of another tool; {server} / {tool.tool} is not imported"
            fix = "give its server another name in the file that you import"
            raise InputError(what, relative, printable(fix), code="exists")
        is_same = _contents(os.path.join(root, relative)) == text
        if dry and not is_same:
            require_new(root, [relative])
        elif not is_same:
            write_new(root, {relative: text})
        taken.add(relative)
    except InputError as error:
        state = "exists" if error.code == "exists" else "failed"
        return Imported(server, tool.tool, None, state, error)
    if not dry:
        approve_mcp(tool)
    return Imported(server, tool.tool, id, "same" if is_same else "new")


def _contents(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


def _report(error: PlaitError) -> None:
    print(printable(str(error)), file=sys.stderr)


def _show_end(
    tools: Toolbox, done: Sequence[Imported], needs: Mapping[str, str], *, alone: bool, dry: bool
) -> None:
    made = [one for one in done if one.state in ("new", "same")]
    for one in made:
        state = "would be written" if dry else "wrote" if one.state == "new" else "unchanged"
        print(
            f"{state}: .ai/tools/{one.id}.yaml" if not dry else f".ai/tools/{one.id}.yaml {state}"
        )
    for variable, server in needs.items():
        print(
            f"set {variable} in your environment or in .env: a secret of '{printable(server)}' "
            "is not copied"
        )
    if dry or not made:
        return
    print(f"approved {pluralize(len(made), 'tool')}; if a server declares one anew, it is refused")
    first = trust_new_files(tools.trust, alone=alone, origin="plait tools import")
    if first is not None:
        print(f"they run after you trust them:  {first}")
    print(f"call one:  plait call {made[0].id}")
