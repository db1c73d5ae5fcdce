"""What a step's output becomes when a flow keeps it under a name.

The value itself answers `${name}` and its own fields; `.stderr`, `.exit_code`,
`.success` and `.duration` are facts beside it, which never hide a field of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from plait.engine.outcome import Failure, StepError
from plait.hints import Literal, NoReturn, TypeAlias
from plait.records import dataclass
from plait.template.program import FACTS
from plait.values import Json

Format: TypeAlias = Literal["string", "json", "lines", "number", "boolean"]
Stream: TypeAlias = Literal["stdout", "stderr", "both"]


@dataclass(frozen=True, slots=True)
class Capture:
    name: str
    format: Format = "string"
    stream: Stream = "stdout"
    facts: frozenset[str] = frozenset({"output", "stdout", "stderr", "exit_code", "success", "duration"})
    """Those that are kept beside the value."""


def captured(capture: Capture, ended: Mapping[str, Json]) -> dict[str, Json]:
    """The name and its facts, as a frame takes them; raises StepError if the output has another format.

    A step that failed need not have come to that: what it printed is null then, for whoever handles it.
    """
    facts = facts_of(ended)
    try:
        value = _formatted(capture, ended)
    except StepError:
        if facts["success"]:
            raise
        value = None
    return {capture.name: value, capture.name + FACTS: {k: facts[k] for k in facts if k in capture.facts}}


def facts_of(ended: Mapping[str, Json]) -> dict[str, Json]:
    """The fields of `last`, `shell` and every capture."""
    output = stripped(ended.get("output"))
    return {
        "output": output,
        "stdout": output,
        "stderr": stripped(ended.get("stderr", "")),
        "exit_code": ended.get("exit_code", 0),
        "success": ended.get("exit_code", 0) == 0,
        "duration": ended.get("duration", 0.0),
    }


def stripped(output: Json) -> Json:
    """Without the newlines at its end, as `$(…)` gives it."""
    return output.rstrip("\n") if isinstance(output, str) else output


def _formatted(capture: Capture, ended: Mapping[str, Json]) -> Json:
    output = _stream(capture, ended)
    if not isinstance(output, str):
        return output  # a tool's data is of its own type
    text = output.rstrip("\n")
    match capture.format:
        case "string":
            return text
        case "lines":
            return text.split("\n") if text else []
        case "json":
            return _json(capture, text)
        case "number":
            return _number(capture, text)
        case "boolean":
            said = text.strip()
            return said == "true" if said in ("true", "false") else ended.get("exit_code", 0) == 0


def _stream(capture: Capture, ended: Mapping[str, Json]) -> Json:
    output, errors = ended.get("output"), ended.get("stderr", "")
    if capture.stream == "stderr":
        return errors
    if capture.stream == "both":
        return f"{output}{errors}" if isinstance(output, str) else output
    return output


def _json(capture: Capture, text: str) -> Json:
    try:
        value: Json = json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError):
        raise _mismatch(capture, "JSON") from None
    return value


def _not_json(constant: str) -> NoReturn:
    raise ValueError(constant)


def _number(capture: Capture, text: str) -> Json:
    for kind in (int, float):
        try:
            number = kind(text.strip())
        except ValueError:
            continue
        if number == number and number not in (float("inf"), float("-inf")):
            return number
    raise _mismatch(capture, "a number")


def _mismatch(capture: Capture, wanted: str) -> StepError:
    return StepError(Failure(f"the output captured as '{capture.name}' is not {wanted}", "capture"))
