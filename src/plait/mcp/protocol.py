"""Messages of the Model Context Protocol: parsed, checked, and put into the form of a revision.

Three revisions are spoken.  The two older ones begin with `initialize`; in the newest each request
names its revision in `_meta`.
"""

from __future__ import annotations

from collections.abc import Mapping
from json import JSONDecoder

from plait import __version__
from plait.core.hints import Any, Final, NoReturn, TypeAlias
from plait.core.records import dataclass
from plait.core.values import MOST_LEVELS, Json, is_deeper

STATELESS: Final = "2026-07-28"
HANDSHAKES: Final = ("2025-11-25", "2025-06-18")
"""Revisions that begin with `initialize`, the newest first."""
WITH_TASKS: Final = "2025-11-25"
"""The revision whose requests may ask for a task; later ones have an extension for that."""
STRICT_ARGUMENTS: Final = "2025-06-18"
"""In this revision wrong arguments are an error of the protocol; later ones let the model read it."""

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
RESOURCE_NOT_FOUND: Final = -32002
TOO_MANY: Final = -32000
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_REVISION: Final = -32022

_META: Final = "io.modelcontextprotocol/"
REVISION_KEY: Final = f"{_META}protocolVersion"
CAPABILITIES_KEY: Final = f"{_META}clientCapabilities"
TASKS: Final = f"{_META}tasks"
"""The extension for tasks."""
SERVER: Final[Mapping[str, Json]] = {"name": "plait", "title": "Plait", "version": __version__}

Id: TypeAlias = "str | int"
Message: TypeAlias = "dict[str, Json]"


class ProtocolError(Exception):
    """A message that cannot be served; the sender gets code, text and data."""

    def __init__(self, code: int, what: str, data: Json = None) -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.data = data


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a client."""

    id: Id
    method: str
    params: Mapping[str, Json]
    revision: str
    capabilities: Mapping[str, Json]
    """What the client can do."""

    @property
    def is_stateless(self) -> bool:
        return self.revision == STATELESS

    @property
    def progress_token(self) -> Json:
        """None: the client wants no notifications about progress."""
        meta = self.params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, Mapping) else None
        return token if isinstance(token, str | int) and not isinstance(token, bool) else None

    @property
    def can_be_asked(self) -> bool:
        """Does the client show forms to its user?"""
        can = self.capabilities.get("elicitation")
        return isinstance(can, Mapping) and (not can or "form" in can)

    @property
    def offers_tasks(self) -> bool:
        """May a call of the newest revision be answered with a task?"""
        extensions = self.capabilities.get("extensions")
        return self.is_stateless and isinstance(extensions, Mapping) and TASKS in extensions

    @property
    def asks_for_task(self) -> bool:
        """Is it a call of revision 2025-11-25 that has to become a task?"""
        return self.revision == WITH_TASKS and self.params.get("task") is not None

    def text(self, name: str) -> str:
        """A parameter that must be text."""
        value = self.params.get(name)
        if not isinstance(value, str):
            raise ProtocolError(INVALID_PARAMS, f"{self.method}: '{name}' must be text")
        return value

    def mapping(self, name: str) -> dict[str, Json]:
        """A parameter that is an object, or missing."""
        value = self.params.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise ProtocolError(INVALID_PARAMS, f"{self.method}: '{name}' must be an object")
        return value


def parse_message(line: bytes) -> Message:
    """A message without a look at its method; ProtocolError: it is none."""
    try:
        message = _DECODE(line.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ProtocolError(PARSE_ERROR, "this line is not JSON in UTF-8") from None
    if line.count(b"[") + line.count(b"{") > MOST_LEVELS and is_deeper(message, MOST_LEVELS):
        what = f"a message may have at most {MOST_LEVELS} lists and maps inside one another"
        raise ProtocolError(INVALID_REQUEST, what)
    if isinstance(message, list):
        raise ProtocolError(INVALID_REQUEST, "a batch is not allowed: send one message a line")
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise ProtocolError(INVALID_REQUEST, 'a message is an object with "jsonrpc": "2.0"')
    return message


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_DECODE: Final = JSONDecoder(parse_constant=_refuse_constant).decode


def message_id(message: Mapping[str, Any]) -> Id | None:
    """None: the message has no id that can be answered."""
    id = message.get("id")
    return id if isinstance(id, str | int) and not isinstance(id, bool) else None


def make_request(
    message: Mapping[str, Json], session: str | None, known: Mapping[str, Json]
) -> Request:
    """Check a request.  `session`: the revision of an earlier `initialize`; `known`: its client."""
    id, method = message_id(message), message.get("method")
    if id is None or not isinstance(method, str):
        what = "a request has an 'id' (text or a whole number) and a 'method' (text)"
        raise ProtocolError(INVALID_REQUEST, what)
    params = message.get("params")
    if params is not None and not isinstance(params, dict):
        raise ProtocolError(INVALID_PARAMS, f"{method}: 'params' must be an object")
    params = params or {}
    meta = params.get("_meta")
    if isinstance(meta, Mapping) and REVISION_KEY in meta:
        return Request(id, method, params, _read_revision(meta), _client(method, meta))
    if method == "initialize":
        return Request(id, method, params, _choose_revision(params), known)
    if session is None and method != "ping":
        what = f"{method}: send initialize first, or name the revision in params._meta"
        raise ProtocolError(INVALID_REQUEST, f"{what} as {REVISION_KEY}")
    return Request(id, method, params, session or HANDSHAKES[0], known)


def _read_revision(meta: Mapping[str, Json]) -> str:
    named = meta[REVISION_KEY]
    if named != STATELESS:
        raise ProtocolError(
            UNSUPPORTED_REVISION,
            "this revision is not supported in _meta",
            {"supported": [STATELESS], "requested": named if isinstance(named, str) else ""},
        )
    return STATELESS


def _client(method: str, meta: Mapping[str, Json]) -> Mapping[str, Json]:
    can = meta.get(CAPABILITIES_KEY)
    if not isinstance(can, Mapping):
        raise ProtocolError(INVALID_PARAMS, f"{method}: _meta needs {CAPABILITIES_KEY}")
    return can


def _choose_revision(params: Mapping[str, Json]) -> str:
    """The revision that the client asks for, else the newest that begins like this."""
    asked = params.get("protocolVersion")
    if not isinstance(asked, str):
        raise ProtocolError(INVALID_PARAMS, "initialize: 'protocolVersion' must be text")
    return asked if asked in HANDSHAKES else HANDSHAKES[0]


# ── answers ──────────────────────────────────────────────────────────────


def make_response(request: Request, result: Mapping[str, Json], *, is_cacheable: bool) -> Message:
    """A result in the form of the request's revision."""
    shaped = dict(result)
    if request.is_stateless:
        if is_cacheable:
            shaped = {**shaped, "ttlMs": 0, "cacheScope": "private"}
        shaped = {"resultType": "complete", **shaped, "_meta": {f"{_META}serverInfo": dict(SERVER)}}
    return {"jsonrpc": "2.0", "id": request.id, "result": shaped}


def make_error(id: Id | None, error: ProtocolError) -> Message:
    body: Message = {"code": error.code, "message": error.what}
    if error.data is not None:
        body["data"] = error.data
    return {"jsonrpc": "2.0", "id": id, "error": body}


def make_question(id: str, method: str, params: Mapping[str, Json]) -> Message:
    """A request to a client."""
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": dict(params)}


def make_notification(method: str, params: Mapping[str, Json]) -> Message:
    return {"jsonrpc": "2.0", "method": method, "params": dict(params)}
