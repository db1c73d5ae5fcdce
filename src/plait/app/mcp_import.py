"""Servers of an `.mcp.json`, and tool files for what they declare.

The file is that of other MCP clients: `mcpServers` (or `servers`) with a command or a url each.
`${NAME}` and `${NAME:-text}` stay as they are written.  A secret that is written out is not copied:
the tool file names a variable instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from plait.core.errors import InputError, PlaitError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass, field
from plait.core.secret_names import has_form_of_key, is_secret, looks_secret, password_in
from plait.core.values import Json
from plait.tools.environment import FIXED
from plait.tools.invocation import McpServer

if TYPE_CHECKING:
    from plait.adapters.mcp.client import McpToolInfo as McpToolInfo

MAX_FILE: Final = 1 << 20
LIST_SECONDS: Final = 60.0
KEYS: Final = ("mcpServers", "servers")
_HTTP: Final = ("http", "streamable-http", "streamableHttp")
_VARIABLE: Final = lazy_pattern(r"\$\{([A-Za-z_]\w*)(?::-([^${}]*))?\}", re.ASCII)
_OPENER: Final = lazy_pattern(r"\$\{")
_PLAIN_BRACES: Final = lazy_pattern(r"\{(\w+)\}", re.ASCII)
_URL: Final = lazy_pattern(r"https?://|\$\{")
_SECRET_HEADERS: Final = ("auth", "key", "token", "cookie", "secret")
_NAMED_VALUE: Final = lazy_pattern(r"([A-Za-z_][\w-]*)(=|:)\s*(?=([^\s&]+))", re.ASCII)
"""In a word or a URL: `API_KEY=…` after `docker run -e`, `Authorization: …` after `--header`."""


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """A server of the file."""

    server: McpServer
    written: Mapping[str, Json]
    """Its `config.server` in tool files: without secrets."""
    needs: tuple[str, ...] = ()
    """Variables that have to hold secrets which the file has written out."""
    address: str = field(default="")
    """How it is reached, as it is written."""


def read_servers(
    text: str, path: str, host: Mapping[str, str]
) -> dict[str, ServerEntry | PlaitError]:
    """The servers by name; an error for one that cannot be used.  InputError: the file cannot."""
    try:
        contents = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}:{error.lineno}:{error.colno}"
        raise InputError(
            f"this is not JSON: {error.msg}", where, "see docs/tools.md#mcp", code="not-json"
        ) from None
    except RecursionError:
        raise InputError("this is nested too deeply", path, code="not-json") from None
    found = None
    if isinstance(contents, dict):
        found = next((contents[key] for key in KEYS if key in contents), None)
    if not isinstance(found, dict):
        fix = 'the file has the form {"mcpServers": {"name": {"command": "…", "args": []}}}'
        raise InputError("this file names no MCP servers", path, fix, code="bad-mcp-file")
    servers: dict[str, ServerEntry | PlaitError] = {}
    for name, entry in found.items():
        try:
            servers[name] = _read_entry(name, entry, path, host)
        except InputError as error:
            servers[name] = error
    return servers


def list_tools(server: McpServer) -> list[McpToolInfo]:
    """Start a server, or connect to it, and return what it declares."""
    from plait.adapters.mcp.client import McpClients
    from plait.app.toolbox import mcp_approvals

    with McpClients(mcp_approvals()) as clients:
        return clients.list_tools(server, LIST_SECONDS)


def tool_id(server: str, tool: str) -> str:
    """The id of the tool file."""
    return f"mcp/{_plain_name(server)}/{_plain_name(tool)}"


def tool_file(entry: ServerEntry, tool: McpToolInfo, source: str) -> str:
    """The text of a tool file: YAML in which every value is written as JSON."""
    kind = "http" if entry.server.url else "stdio"
    schema = tool.input_schema
    fields: dict[str, Json] = {
        "version": "1.0.0",
        "executor_id": f"core/runtimes/mcp/{kind}",
        "description": tool.description or f"{tool.tool} of the MCP server {tool.server}",
    }
    if isinstance(schema, Mapping):
        fields["config_schema"] = dict(schema)
    fields["config"] = {"server": dict(entry.written), "tool_name": _escape(tool.tool)}
    lines = [f"{name}: {_yaml(value)}" for name, value in fields.items()]
    return "\n".join([f"# Made from {_yaml(source)} by plait tools import.", *lines, ""])


# ── an entry ─────────────────────────────────────────────────────────────


def _read_entry(name: str, entry: Json, path: str, host: Mapping[str, str]) -> ServerEntry:
    where = f"{path}: {name}"
    if not isinstance(entry, dict):
        raise _bad(where, "is not a map", 'write {"command": "…", "args": []}')
    command, url, kind = entry.get("command"), entry.get("url"), entry.get("type")
    if (command is None) == (url is None):
        raise _bad(where, "needs either a command or a url", "give one of them")
    if url is not None and kind is not None and kind not in _HTTP:
        raise _bad(
            where,
            f"has the type {json.dumps(kind)[:40]}",
            "servers at a url speak http (streamable)",
        )
    reader = _Reader(where, name, host)
    if url is not None:
        return reader.http(url, _texts(where, entry, "headers"))
    args = entry.get("args", [])
    if not isinstance(command, str) or not command:
        raise _bad(where, "has a command that is not text", "name a program")
    if not isinstance(args, list) or not all(isinstance(one, str) for one in args):
        raise _bad(where, "has args that are not a list of texts", 'write "args": ["-m", "server"]')
    return reader.stdio([command, *args], _texts(where, entry, "env"))


def _texts(where: str, entry: Mapping[str, Json], key: str) -> dict[str, str]:
    found = entry.get(key) or {}
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise _bad(
            where, f"has {key} that are not a map of texts", f'write "{key}": {{"NAME": "x"}}'
        )
    return found


class _Reader:
    """Reads one entry; `host` fills its variables."""

    def __init__(self, where: str, name: str, host: Mapping[str, str]) -> None:
        self._where = where
        self._name = name
        self._host = host
        self._needs: list[str] = []

    def stdio(self, command: Sequence[str], env: Mapping[str, str]) -> ServerEntry:
        for before, word in zip(("", *command), command, strict=False):
            self._require_no_secret(before, word, "args")
        given = {name: self._host[name] for name in FIXED if name in self._host}
        written: dict[str, Json] = {
            "name": _escape(self._name),
            "command": self._template_text(command[0]),
            "args": [self._template_text(word) for word in command[1:]],
        }
        if env:
            written["env"] = {name: self._hide_secret(name, name, env[name]) for name in env}
        server = McpServer(
            name=self._name,
            command=tuple(map(self._fill, command)),
            env={**given, **{name: self._fill(value) for name, value in env.items()}},
        )
        return ServerEntry(server, written, tuple(self._needs), " ".join(command))

    def http(self, url: Json, headers: Mapping[str, str]) -> ServerEntry:
        if not isinstance(url, str) or not _URL.match(url):
            raise _bad(self._where, "has a url that is not http or https", "write https://…")
        self._require_no_secret("", url, "url")
        written: dict[str, Json] = {"name": _escape(self._name), "url": self._template_text(url)}
        if headers:
            written["headers"] = {
                name: self._hide_secret(self._variable(name), name, value, is_header=True)
                for name, value in headers.items()
            }
        filled = tuple((name, self._fill(value)) for name, value in headers.items())
        server = McpServer(name=self._name, url=self._fill(url), headers=filled)
        return ServerEntry(server, written, tuple(self._needs), url)

    def _fill(self, value: str) -> str:
        def fill(found: re.Match[str]) -> str:
            name, otherwise = found[1], found[2]
            text = self._host.get(name)
            if text or (text is not None and otherwise is None):
                return text
            if otherwise is None:
                raise _bad(self._where, f"needs the variable {name}", f"set it: export {name}=…")
            return otherwise

        return _VARIABLE.sub(fill, value)

    def _template_text(self, value: str) -> str:
        """The same text as a template of a tool file: its variables stay."""
        kept, at = "", 0
        for found in _VARIABLE.finditer(value):
            kept += self._literal(value[at : found.start()]) + found[0]
            at = found.end()
        return kept + self._literal(value[at:])

    def _literal(self, text: str) -> str:
        if _OPENER.search(text):
            fix = "use ${NAME} or ${NAME:-text}"
            raise _bad(self._where, "has a placeholder that is not a variable", fix)
        return _escape(text)

    def _hide_secret(self, variable: str, name: str, value: str, *, is_header: bool = False) -> str:
        """As `_template_text`, but a secret that is written out becomes a variable."""
        plain = _literal_part(value)
        is_named = is_header and any(word in name.casefold() for word in _SECRET_HEADERS)
        is_whole = plain.strip() not in ("", "Bearer", "Basic", "Token")
        if is_whole and (is_named or is_secret(name, plain) or is_secret("", value)):
            self._needs.append(variable)
            return f"${{{variable}}}"
        return self._template_text(value)

    def _variable(self, header: str) -> str:
        return re.sub(r"\W+", "_", f"{self._name}_{header}").upper().lstrip("_0123456789")

    def _require_no_secret(self, before: str, word: str, part: str) -> None:
        name, _, value = word.partition("=") if word.startswith("-") else ("", "", word)
        option = before if not name and before.startswith("-") else name
        plain = option.strip("-").replace("-", "_")
        secret = (value and not word.startswith("-")) or bool(name and value)
        variables = [found[1] for found in _VARIABLE.finditer(word)]
        if (
            (secret and plain and looks_secret(plain))
            or has_form_of_key(value)
            or password_in(value) is not None
            or any(looks_secret(one) for one in variables)
            or _names_secret(_literal_part(word))
        ):
            raise _bad(
                self._where,
                f"has a secret in its {part}, where others can read it",
                "give it to the server by env or headers",
            )


def _literal_part(value: str) -> str:
    """What a text says itself: of its variables only what stands for one that is not set."""
    return _VARIABLE.sub(lambda found: found[2] or "", value)


def _names_secret(word: str) -> bool:
    for name, sign, value in _NAMED_VALUE.findall(word):
        is_header = sign == ":" and name.casefold().endswith(("authorization", "cookie"))
        if is_header or is_secret(name, value):
            return True
    return False


def _bad(where: str, what: str, fix: str) -> InputError:
    return InputError(f"this server {what}", where, fix, code="bad-mcp-file")


# ── texts ────────────────────────────────────────────────────────────────


def _escape(text: str) -> str:
    """Text that means itself in the config of a tool."""
    return _PLAIN_BRACES.sub(r"{{\1}}", _OPENER.sub(r"$\g<0>", text))


def _plain_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_") or "unnamed"


def _yaml(value: Json) -> str:
    """JSON that is YAML as well: what YAML does not print is an escape."""
    return "".join(_yaml_letters(json.dumps(value, ensure_ascii=False)))


def _yaml_letters(text: str) -> Iterator[str]:
    for letter in text:
        code = ord(letter)
        if letter.isprintable():
            yield letter
        else:
            yield f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
