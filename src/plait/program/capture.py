"""What a step's output becomes when a flow keeps it under a name.

The value itself answers `${name}` and its own fields; `.stderr`, `.exit_code`,
`.success` and `.duration` are facts beside it, which never hide a field of JSON.

Every text that comes from an output is without the newlines at its end, as `$(…)` gives
it, under whatever name.  Of an output that is too long only the beginning is there:
nobody gets it for the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final, Literal, TypeAlias
from plait.core.records import dataclass, replace
from plait.core.values import NOT_KNOWN, UNDEFINED, Json, json_value
from plait.engine.outcome import Failure, StepError
from plait.engine.perform import act
from plait.engine.step import Composite
from plait.engine.unknown import _UNSEEN, is_unknown_result
from plait.template.program import FACTS

if TYPE_CHECKING:
    from plait.engine.perform import StepContext
    from plait.engine.step import Step
    from plait.program.action_step import Action

Format: TypeAlias = Literal["string", "json", "lines", "number", "boolean"]
Stream: TypeAlias = Literal["stdout", "stderr", "both"]

UNPARSABLE: Final = "misread"
"""In the record of a step that ended well, and whose output had not the format in which it is
captured.
"""
TRUNCATED: Final = "cut"
"""In the record of a process: how many bytes there are of each stream that had more."""
LOST: Final = {"output": "output_lost", "stderr": "stderr_lost"}
"""In the record of a process, for each stream: why the file with all of it has only a part, or is
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
    """Those that are kept beside the value."""


def capture_values(capture: Capture, ended: Mapping[str, Json]) -> dict[str, Json]:
    """The name and its facts, as a frame takes them.

    Raises StepError if the output has another format, or only its beginning is there. A step that
    failed need not have come to that: what it printed is null then, for whoever handles it; and so
    it is of one that nobody saw.
    """
    facts = result_facts(ended)
    if facts["success"]:
        require_complete_output(ended, *STREAMS[capture.stream], use="captured")
    try:
        value = _parse_output(capture, ended)
    except _Mismatch as mismatch:
        if facts["success"] and _UNSEEN not in ended:
            raise StepError(_failure(capture, mismatch.wanted, ended)) from None
        value = None
    return {
        capture.name: value,
        capture.name + FACTS: {k: facts[k] for k in facts if k in capture.facts},
    }


def by_id(id: str, ended: Mapping[str, Json]) -> dict[str, Json]:
    """What a step gave and how it ended, under its id; of an output that is too long there is
    nothing.
    """
    return {id: complete_output(ended), id + FACTS: dict(result_facts(ended))}


def result_facts(ended: Mapping[str, Json]) -> dict[str, Json]:
    """The fields of `last`, `shell` and every capture; without those that are there in part
    only.
    """
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
    cut = ended.get(TRUNCATED)
    return _Cut(facts, cut) if isinstance(cut, Mapping) else facts


class _Cut(dict[str, Json]):
    """Facts of a step that printed too much: whoever asks for an output of it has to know."""

    def __init__(self, facts: Mapping[str, Json], cut: Mapping[str, int]) -> None:
        parts = {**cut, "stdout": cut["output"]} if "output" in cut else cut
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
    """The beginning of an output looks like an output, so nobody may take it for one."""
    kept = _bytes_kept(ended, fields)
    if kept is not None:
        why = _too_much(kept, use)
        raise StepError(Failure(why, "capture", output={**ended, UNPARSABLE: True}))


def _too_much(kept: int, use: str) -> str:
    return f"printed more than {kept:,} bytes, which cannot be {use}; write it to a file"


def complete_output(ended: Mapping[str, Json]) -> Json:
    """What a step printed; None if only the beginning of it is there."""
    return (
        None if _bytes_kept(ended, ("output",)) is not None else strip_newlines(ended.get("output"))
    )


def _bytes_kept(ended: Mapping[str, Json], fields: Iterable[str]) -> int | None:
    cut = ended.get(TRUNCATED)
    return (
        next((cut[name] for name in fields if name in cut), None)
        if isinstance(cut, Mapping)
        else None
    )


def strip_newlines(output: Json) -> Json:
    """Without the newlines at its end, as `$(…)` gives it."""
    return output.rstrip("\n") if isinstance(output, str) else output


def _parse_output(capture: Capture, ended: Mapping[str, Json]) -> Json:
    if _bytes_kept(ended, STREAMS[capture.stream]) is not None:
        raise _Mismatch("whole")
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
    except (ValueError, RecursionError):
        raise _Mismatch("JSON") from None


_NUMBER: Final = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"


def _number(text: str) -> Json:
    said = text.strip()
    if not re.fullmatch(_NUMBER, said):  # Python reads more: 1_000, and the digits of other scripts
        raise _Mismatch("a number")
    for kind in (int, float):
        try:
            number = kind(said)
        except ValueError:
            continue
        if number == number and number not in (float("inf"), float("-inf")):
            return number
    raise _Mismatch("a number")


def _boolean(text: str, *, succeeded: bool) -> bool:
    """What it says, in any case; a command that says nothing answers by its exit code."""
    said = text.strip().lower()
    if not said:
        return succeeded
    if said not in BOOLEANS:
        raise _Mismatch("true or false, yes or no, 1 or 0")
    return BOOLEANS[said]


class _Mismatch(Exception):
    def __init__(self, wanted: str) -> None:
        super().__init__(wanted)
        self.wanted = wanted


def _failure(capture: Capture, wanted: str, ended: Mapping[str, Json]) -> Failure:
    """With all that the step printed, for handlers and logs; it ended well, so that is said beside
    it.
    """
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
                raise _not_captured(self.name, "does not hold what is sought")
            return self.default
        return self._lines(found) if isinstance(found, str) else found

    def of_failed(self, ended: Mapping[str, Json]) -> Json:
        """The same of a step that failed: what is not there is the default, or null."""
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


@dataclass(frozen=True, slots=True)
class ExtractingAction(Composite):
    """An action parts of whose output get names."""

    action: Action
    extracts: tuple[OutputPart, ...]

    @property
    def children(self) -> tuple[Step, ...]:
        return tuple(getattr(self.action, "children", ()))

    @property
    def captures(self) -> tuple[str, ...]:
        """Names that it may give to those after it."""
        return (*getattr(self.action, "captures", ()), *(extract.name for extract in self.extracts))

    def run(self, ctx: StepContext) -> dict[str, Json]:
        try:
            value = act(self.action, ctx)
            assert isinstance(value, dict), "it is how an action ended"
        except StepError as error:
            ended = error.failure.as_result()
            found = {extract.name: extract.of_failed(ended) for extract in self.extracts}
            raise StepError(replace(error.failure, output=_with(ended, found))) from None
        if is_unknown_result(value):
            return _with(
                value, dict.fromkeys((extract.name for extract in self.extracts), NOT_KNOWN)
            )
        return _with(value, {extract.name: extract.of(value) for extract in self.extracts})


FACTS_KEPT: Final = ("stderr", "exit_code", "success", "duration")


def _with(ended: dict[str, Json], found: dict[str, Json]) -> dict[str, Json]:
    """How a step ended, with names for parts of its output, and its facts beside each."""
    all_facts = result_facts(ended)
    facts = {name: all_facts[name] for name in FACTS_KEPT if name in all_facts}
    known = ended.get("captures")
    beside = {name + FACTS: facts for name in found}
    return {**ended, "captures": {**(known if isinstance(known, dict) else {}), **found, **beside}}


def _group(pattern: str, text: str) -> Json:
    """The first group that took part, or the whole match; UNDEFINED without one."""
    import re2

    found = re2.search(pattern, text)
    if found is None:
        return UNDEFINED
    group = found.group(1) if found.re.groups else None
    return found.group(0) if group is None else group


def _inside_json(path: str, text: str) -> Json:
    from plait.template.grammar import parse_path
    from plait.template.program import follow_path

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
