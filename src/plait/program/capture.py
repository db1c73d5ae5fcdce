"""Captures: turn the output of a step into variables.

`${name}` and its fields are the value. `.stderr`, `.exit_code`, `.success` and `.duration` are
facts beside it; a JSON field of the same name wins.

Text loses its trailing newlines, like `$(…)`. An output that was truncated is never used as if it
were complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final, Literal, TypeAlias
from plait.core.records import dataclass, replace
from plait.core.values import MOST_LEVELS, NOT_KNOWN, UNDEFINED, Json, json_value
from plait.engine.outcome import Failure, StepError
from plait.engine.unknown_results import is_marked_done, is_unknown_result
from plait.template.compiled import FACTS

if TYPE_CHECKING:
    from plait.engine.step import Step
    from plait.scope import Scope

Format: TypeAlias = Literal["string", "json", "lines", "number", "boolean"]
Stream: TypeAlias = Literal["stdout", "stderr", "both"]

UNPARSABLE: Final = "misread"
"""In the record of a successful step: its output did not match the capture format."""
TRUNCATED: Final = "cut"
"""In the record of a process: the stored number of bytes of each truncated stream."""
LOST: Final = {"output": "output_lost", "stderr": "stderr_lost"}
"""In the record of a process, for each stream: why the file with the full output is incomplete or
missing.
"""
STREAMS: Final = {"stdout": ("output",), "stderr": ("stderr",), "both": ("output", "stderr")}
BOOLEANS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class Capture:
    name: str
    format: Format = "string"
    stream: Stream = "stdout"
    facts: frozenset[str] = frozenset(
        {"output", "stdout", "stderr", "exit_code", "success", "duration"}
    )
    """The facts that are stored beside the value."""

    def can_fail(self, ended: Mapping[str, Json]) -> bool:
        """Can the capture fail, because the output does not have the format or is incomplete?"""
        return self.format not in ("string", "lines") or TRUNCATED in ended


def capture_values(capture: Capture, ended: Mapping[str, Json]) -> dict[str, Json]:
    """Return the variable and its facts for a frame.

    Raises StepError if the output of a successful step is truncated or has another format. For a
    failed step and for MARKED_DONE_RESULT the value is null then.
    """
    facts = result_facts(ended)
    if facts["success"]:
        require_complete_output(ended, *STREAMS[capture.stream], use="captured")
    try:
        value = _parse_output(capture, ended)
    except _Mismatch as mismatch:
        if facts["success"] and not is_marked_done(ended):
            raise StepError(_failure(capture, mismatch.wanted, ended)) from None
        value = None
    return {
        capture.name: value,
        capture.name + FACTS: {k: facts[k] for k in facts if k in capture.facts},
    }


def by_id(id: str, ended: Mapping[str, Json]) -> dict[str, Json]:
    """The output and facts of a step under its id; a truncated output is None."""
    return {id: complete_output(ended), id + FACTS: dict(result_facts(ended))}


def result_facts(ended: Mapping[str, Json]) -> dict[str, Json]:
    """The fields of `last`, `shell` and every capture, without truncated streams."""
    output = strip_newlines(ended.get("output"))
    facts: dict[str, Json] = {
        "output": output,
        "stdout": output,
        "stderr": strip_newlines(ended.get("stderr", "")),
        "exit_code": ended.get("exit_code", 0),
        "success": ended.get("exit_code", 0) == 0 and UNPARSABLE not in ended,
        "duration": ended.get("duration", 0.0),
    }
    if is_unknown_result(ended):
        facts["success"] = NOT_KNOWN
    truncated = ended.get(TRUNCATED)
    if truncated is None or not isinstance(truncated, Mapping):
        return facts
    return _TruncatedFacts(facts, truncated)


class _TruncatedFacts(dict[str, Json]):
    """Facts of a step with a truncated output: reading that output is an error."""

    def __init__(self, facts: Mapping[str, Json], truncated: Mapping[str, int]) -> None:
        parts = {**truncated, "stdout": truncated["output"]} if "output" in truncated else truncated
        super().__init__({name: fact for name, fact in facts.items() if name not in parts})
        self._parts = parts

    def get(self, name: str, default: Json = None) -> Json:
        if name in self._parts:
            why = f"a step before {_too_much(self._parts[name], 'put into a template')}"
            raise StepError(Failure(why, "capture"))
        return super().get(name, default)

    def __missing__(self, name: str) -> Json:
        self.get(name)
        raise KeyError(name)


def require_complete_output(ended: Mapping[str, Json], *fields: str, use: str) -> None:
    """Raise StepError if an output is truncated: the beginning looks like a whole output."""
    kept = _bytes_kept(ended, fields)
    if kept is not None:
        why = _too_much(kept, use)
        raise StepError(Failure(why, "capture", output={**ended, UNPARSABLE: True}))


def _too_much(kept: int, use: str) -> str:
    return f"printed more than {kept:,} bytes, which cannot be {use}; write it to a file"


def complete_output(ended: Mapping[str, Json]) -> Json:
    """The output of a step; None if it is truncated."""
    return (
        None if _bytes_kept(ended, ("output",)) is not None else strip_newlines(ended.get("output"))
    )


def _bytes_kept(ended: Mapping[str, Json], fields: Iterable[str]) -> int | None:
    truncated = ended.get(TRUNCATED)
    if truncated is None or not isinstance(truncated, Mapping):
        return None
    return next((truncated[name] for name in fields if name in truncated), None)


def strip_newlines(output: Json) -> Json:
    """Remove trailing newlines, like `$(…)`."""
    return output.rstrip("\n") if isinstance(output, str) else output


def _parse_output(capture: Capture, ended: Mapping[str, Json]) -> Json:
    if _bytes_kept(ended, STREAMS[capture.stream]) is not None:
        raise _Mismatch("whole")
    output = _stream(capture, ended)
    if not isinstance(output, str):
        return output  # the data of a tool already has a type
    text = output.rstrip("\n")
    match capture.format:
        case "string":
            return text
        case "lines":
            return text.split("\n") if text else []
        case "json":
            return _json(text)
        case "number":
            return _number(text)
        case "boolean":
            return _boolean(text, succeeded=ended.get("exit_code", 0) == 0)


def _stream(capture: Capture, ended: Mapping[str, Json]) -> Json:
    output, errors = ended.get("output"), ended.get("stderr", "")
    if capture.stream == "stderr":
        return errors
    if capture.stream == "both":
        return f"{output}{errors}" if isinstance(output, str) else output
    return output


def _json(text: str) -> Json:
    try:
        return json_value(text)
    except RecursionError:
        raise _Mismatch(f"JSON of at most {MOST_LEVELS} levels") from None
    except ValueError:
        raise _Mismatch("JSON") from None


_NUMBER: Final = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"


def _number(text: str) -> Json:
    stripped = text.strip()
    # int() and float() accept more: 1_000, digits of other scripts.
    if not re.fullmatch(_NUMBER, stripped):
        raise _Mismatch("a number")
    for kind in (int, float):
        try:
            number = kind(stripped)
        except ValueError:
            continue
        if number == number and number not in (float("inf"), float("-inf")):
            return number
    raise _Mismatch("a number")


def _boolean(text: str, *, succeeded: bool) -> bool:
    """Parse a boolean, ignoring case; an empty output means the exit code decides."""
    stripped = text.strip().lower()
    if not stripped:
        return succeeded
    if stripped not in BOOLEANS:
        raise _Mismatch("true or false, yes or no, 1 or 0")
    return BOOLEANS[stripped]


class _Mismatch(Exception):
    def __init__(self, wanted: str) -> None:
        super().__init__(wanted)
        self.wanted = wanted


def _failure(capture: Capture, wanted: str, ended: Mapping[str, Json]) -> Failure:
    """A failure that keeps the output for handlers and logs, marked because the exit code is 0."""
    what = f"the output captured as '{capture.name}' is not {wanted}"
    return Failure(what, "capture", output={**ended, UNPARSABLE: True})


@dataclass(frozen=True, slots=True)
class OutputPart:
    """One name of `capture_outputs`."""

    name: str
    source: str = "stdout"
    pattern: str | None = None
    json_path: str | None = None
    max_size: int = 1 << 20
    default: Json = None
    has_default: bool = False
    multiline: str = "preserve"

    def of(self, value: Mapping[str, Json]) -> Json:
        require_complete_output(value, *STREAMS.get(self.source, STREAMS["both"]), use="captured")
        text = self._text(value)
        if len(text.encode("utf-8", "surrogatepass")) > self.max_size:
            raise _not_captured(self.name, f"is larger than {self.max_size:,} bytes")
        found: Json = text
        if self.pattern is not None:
            found = _group(self.pattern, text)
        if self.json_path is not None:
            found = _inside_json(self.json_path, text)
        if found is UNDEFINED:
            if not self.has_default:
                raise _not_captured(self.name, "has no match")
            return self.default
        return self._lines(found) if isinstance(found, str) else found

    def of_failed(self, ended: Mapping[str, Json]) -> Json:
        """Like `of`, for a failed step: a missing value is the default or null."""
        try:
            return self.of(ended)
        except StepError:
            return self.default

    def _text(self, value: Mapping[str, Json]) -> str:
        output, errors = str(value.get("output") or ""), str(value.get("stderr") or "")
        whole = {"stdout": output, "stderr": errors}.get(self.source, output + errors)
        return whole.rstrip("\n")

    def _lines(self, text: str) -> Json:
        lines = text.split("\n")
        match self.multiline:
            case "join":
                return " ".join(line.strip() for line in lines)
            case "first_line":
                return lines[0]
            case "last_line":
                return lines[-1]
            case "array":
                return [line for line in lines if line.strip()]
        return text


def capture_parts(
    parts: Sequence[OutputPart], execute: Callable[[], dict[str, Json]]
) -> dict[str, Json]:
    """Execute an action with `capture_outputs`: parts of its output become variables."""
    try:
        value = execute()
    except StepError as error:
        ended = error.failure.as_result()
        found = {part.name: part.of_failed(ended) for part in parts}
        raise StepError(replace(error.failure, output=_with(ended, found))) from None
    if is_unknown_result(value):
        return _with(value, dict.fromkeys((part.name for part in parts), NOT_KNOWN))
    return _with(value, {part.name: part.of(value) for part in parts})


FACTS_KEPT: Final = ("stderr", "exit_code", "success", "duration")


def _with(ended: dict[str, Json], found: dict[str, Json]) -> dict[str, Json]:
    """Add the captured parts and their facts to a result."""
    all_facts = result_facts(ended)
    facts = {name: all_facts[name] for name in FACTS_KEPT if name in all_facts}
    known = ended.get("captures")
    facts_by_name = {name + FACTS: facts for name in found}
    return {
        **ended,
        "captures": {**(known if isinstance(known, dict) else {}), **found, **facts_by_name},
    }


def _group(pattern: str, text: str) -> Json:
    """The first group that matched, or the whole match; UNDEFINED without a match."""
    import re2

    found = re2.search(pattern, text)
    if found is None:
        return UNDEFINED
    group = found.group(1) if found.re.groups else None
    return found.group(0) if group is None else group


def _inside_json(path: str, text: str) -> Json:
    from plait.template.compiled import follow_path
    from plait.template.grammar import parse_path

    try:
        data = json_value(text)
        keys = parse_path(
            "value" if path in ("$", "") else f"value.{path.removeprefix('$').lstrip('.')}"
        ).keys
    except (ValueError, RecursionError, InputError):
        return UNDEFINED
    return follow_path(data, keys)


def _not_captured(name: str, why: str) -> StepError:
    return StepError(Failure(f"the output to be captured as '{name}' {why}", "capture"))


def scope_after(
    scope: Scope, step: Step, value: Mapping[str, Json], captures: Mapping[str, Json]
) -> Scope:
    """Return the scope after a step with these captures."""
    if "exit_code" not in value:
        return scope
    facts = result_facts(value)
    outputs: dict[str, Json] = {"last": facts}
    if step.kind == "shell":
        outputs["shell"] = shell = result_facts(value)
        shell[ATTEMPT] = NOT_KNOWN if is_unknown_result(value) else attempt_number(value)
    changed = value.get("changes")
    names = {"step": changed} if isinstance(changed, Mapping) else None
    return scope.frame(step.name, captures=captures, outputs=outputs, step=names)


ATTEMPT: Final = "attempt"
"""In the record of a step: the number of its last attempt, if it was not the first."""


def attempt_number(ended: Mapping[str, Json]) -> int:
    number = ended.get(ATTEMPT, 1)
    return number if isinstance(number, int) else 1
