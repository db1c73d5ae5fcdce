"""What a dry run of a tool call prints: its checked chain and its invocation."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping

from plait.core.hints import TYPE_CHECKING
from plait.core.secret_names import looks_secret
from plait.core.values import MASK, json_text
from plait.views.terminal import cut, paint_for, printable, width

if TYPE_CHECKING:
    from plait.core.hints import Final
    from plait.core.values import Json
    from plait.views.terminal import Paint


LABEL: Final = 8

_CHECKS: Final = (("space_ok", "space"), ("io_ok", "i/o"), ("version_ok", "versions"))


def show_call_plan(record: Mapping[str, Json]) -> None:
    paint = paint_for(sys.stdout)
    columns = width(sys.stdout)
    room = None if columns is None else columns - LABEL
    for label, text in rows(record, paint):
        print(paint(f"{label:<{LABEL - 1}}", "dim"), text if label == "chain" else cut(text, room))


def rows(record: Mapping[str, Json], paint: Paint) -> Iterator[tuple[str, str]]:
    chain = printable(" → ".join(record["chain"]))
    yield "chain", f"{chain}      {paint(checks(record['validated_pairs']), 'green')}"
    for path in record["shadows"]:
        yield "hides", path
    yield "trust", ", ".join(f"{one['item_id']}: {one['why']}" for one in record["trust"])
    if "argv" in record:
        yield "argv", shlex.join(record["argv"])
        yield "cwd", record["cwd"]
        yield "env", _environment(record["env"])
        if record["stdin"]:
            yield "stdin", record["stdin"]
    elif "request" in record:
        yield from _request(record["request"])
    elif "function" in record:
        yield "calls", f"{record['function']}(params, project_path) of {record['file']}"
        yield "params", json_text(record["params"])
    else:
        server = record["server"]
        yield "server", shlex.join(server) if isinstance(server, list) else server
        yield "tool", record["tool"]
        yield "params", json_text(record["params"])
        yield "env", _environment(record["env"])
    if refused := record.get("refused_env"):
        yield "refused", f"{' '.join(refused)} (.env may not set them)"
    if limits := record.get("limits"):
        yield "limits", ", ".join(_limit(name, value) for name, value in limits.items())


def checks(pairs: list[Mapping[str, Json]]) -> str:
    """Whether each rule holds for all pairs; a rule that a pair does not mention holds."""
    results = [(name, all(pair.get(key, True) for pair in pairs)) for key, name in _CHECKS]
    return ", ".join(f"{name} {'ok' if holds else 'WRONG'}" for name, holds in results)


def _limit(name: str, value: float) -> str:
    return f"{value:g} seconds" if name == "timeout" else f"{name.replace('_', ' ')} {value:,}"


def _environment(env: Mapping[str, str]) -> str:
    """Names by their origin, without values; a secret one is marked."""
    by_origin: dict[str, list[str]] = {}
    for name, origin in env.items():
        secret = looks_secret(name)
        by_origin.setdefault(origin, []).append(f"{name} {MASK}" if secret else name)
    return " · ".join(f"{' '.join(names)} ({origin})" for origin, names in by_origin.items())


def _request(request: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    yield "request", f"{request['method']} {request['url']}"
    for name, value in request["headers"].items():
        yield "header", f"{name}: {value}"
    if request["body"] is not None:
        yield "body", request["body"]
