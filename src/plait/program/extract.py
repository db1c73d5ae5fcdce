"""Parts of a step's output under names of their own, by pattern or path.

A part that cannot be found fails the step, unless it has a default; no message holds the output.
Beside each name are the facts of the step, as beside any other capture; a step that failed has
them, too, and what it did not print is null.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass, replace
from plait.core.values import NOT_KNOWN, UNDEFINED, Json, json_value
from plait.engine.dry_run import is_not_known
from plait.engine.outcome import Failure, StepError
from plait.engine.perform import act, plans
from plait.program.capture import STREAMS, expect_whole, facts_of
from plait.template.program import FACTS

if TYPE_CHECKING:
    from plait.engine.perform import Turn
    from plait.engine.step import Step
    from plait.program.action_step import Action


@dataclass(frozen=True, slots=True)
class ExtractOutput:
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
        expect_whole(value, *STREAMS.get(self.source, STREAMS["both"]), use="captured")
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
class Extracting:
    """An action parts of whose output get names."""

    action: Action
    extracts: tuple[ExtractOutput, ...]

    @property
    def inner(self) -> tuple[Step, ...]:
        return tuple(getattr(self.action, "inner", ()))

    @property
    def captures(self) -> tuple[str, ...]:
        """Names that it may give to those after it."""
        return (*getattr(self.action, "captures", ()), *(extract.name for extract in self.extracts))

    @plans
    def run(self, turn: Turn) -> dict[str, Json]:
        try:
            value = act(self.action, turn)
            assert isinstance(value, dict), "it is how an action ended"
        except StepError as error:
            ended = error.failure.as_ended()
            found = {extract.name: extract.of_failed(ended) for extract in self.extracts}
            raise StepError(replace(error.failure, output=_with(ended, found))) from None
        if is_not_known(value):
            return _with(value, dict.fromkeys((extract.name for extract in self.extracts), NOT_KNOWN))
        return _with(value, {extract.name: extract.of(value) for extract in self.extracts})


FACTS_KEPT: Final = ("stderr", "exit_code", "success", "duration")


def _with(ended: dict[str, Json], found: dict[str, Json]) -> dict[str, Json]:
    """How a step ended, with names for parts of its output, and its facts beside each."""
    all_facts = facts_of(ended)
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
    from plait.template.program import walk

    try:
        data = json_value(text)
        keys = parse_path(
            "value" if path in ("$", "") else f"value.{path.removeprefix('$').lstrip('.')}"
        ).keys
    except (ValueError, RecursionError, InputError):
        return UNDEFINED
    return walk(data, keys)


def _not_captured(name: str, why: str) -> StepError:
    return StepError(Failure(f"the output to be captured as '{name}' {why}", "capture"))
