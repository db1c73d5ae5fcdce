"""Check what a step did, complete what is missing, and check again.

The check prints, or writes into a file, JSON: `{completion_percentage, status,
implemented, missing, gaps}`.  Below the threshold the steps of `on_incomplete`
run with `validation.*`, and the check is repeated.  A result that cannot be
read counts as a failed check, never as a complete one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from plait.hints import TYPE_CHECKING
from plait.records import dataclass
from plait.run.outcome import Done, Failed, Failure, StepError, expect_done
from plait.run.perform import Step, Turn
from plait.steps.hands import working
from plait.template.sinks import as_text
from plait.values import Json

if TYPE_CHECKING:
    from plait.scope import Scope
    from plait.steps.sequence import Sequence as Steps
    from plait.template.template import Template


@dataclass(frozen=True, slots=True)
class Validation:
    check: Steps
    threshold: float = 100.0
    result_file: Template | None = None
    on_incomplete: Steps | None = None
    attempts: int = 2
    """How often `on_incomplete` runs at most, each time followed by another check."""
    fails: bool = True
    """What is still incomplete in the end fails the step."""
    schema: Json = None

    @property
    def inner(self) -> Sequence[Step]:
        return [self.check, *([self.on_incomplete] if self.on_incomplete else [])]

    def run(self, turn: Turn) -> Json:
        """What handlers captured; raises StepError if the work stays incomplete."""
        captures: dict[str, Json] = {}
        found = self._checked(turn, turn.scope, 1)
        for attempt in range(1, self.attempts + 1):
            if found.completion >= self.threshold or self.on_incomplete is None:
                break
            scope = turn.scope.frame(
                "validation", captures=captures, phase={"validation": found.record(attempt)}
            )
            captures |= _captures(turn, self.on_incomplete, scope, f"on_incomplete@{attempt}")
            found = self._checked(turn, scope, attempt + 1)
        if found.completion < self.threshold and self.fails:
            raise StepError(
                Failure(
                    f"only {found.completion:g} % complete, {self.threshold:g} % are wanted"
                    + (f"; missing: {found.shown_missing}" if found.missing else ""),
                    "incomplete",
                )
            )
        facts: dict[str, Json] = {"validation": found.record(1)}
        return {"captures": {**captures, **facts}}

    def _checked(self, turn: Turn, scope: Scope, number: int) -> Found:
        outcome = turn.perform(self.check, scope=scope, name=f"check@{number}")
        if working(turn.run).rehearsal is not None:
            return Found(completion=self.threshold)
        if isinstance(outcome, Failed) and self.result_file is None:
            ended = outcome.failure.as_ended()
            return read_result(ended.get("output"), failed=True)
        if self.result_file is not None:
            path = as_text(self.result_file, scope)
            data = working(turn.run).hands.read(path, directory=turn.directory)
            return read_result(data.decode("utf-8", "replace"))
        value = outcome.value if isinstance(outcome, Done) else None
        return read_result(value.get("output") if isinstance(value, Mapping) else None)


@dataclass(frozen=True, slots=True)
class Found:
    """What a check said."""

    completion: float
    status: str = "complete"
    implemented: Json = None
    missing: Json = None
    gaps: Json = None
    raw: Json = None

    @property
    def shown_missing(self) -> str:
        shown = self.missing if isinstance(self.missing, list) else [self.missing]
        return ", ".join(str(one) for one in shown[:5])

    def record(self, attempt: int) -> dict[str, Json]:
        return {
            "completion": _plain(self.completion),
            "completion_percentage": _plain(self.completion),
            "status": self.status,
            "implemented": self.implemented or [],
            "missing": self.missing or [],
            "missing_count": len(self.missing) if isinstance(self.missing, list) else 0,
            "gaps": self.gaps or {},
            "attempt": attempt,
            "attempt_number": attempt,
            "raw_output": self.raw,
        }


def read_result(output: Json, *, failed: bool = False) -> Found:
    """The result that a check printed; text that is no result says only whether the check succeeded."""
    data = output
    if isinstance(output, str):
        try:
            data = json.loads(output)
        except (ValueError, RecursionError):
            if output.strip().startswith(("{", "[")):
                raise _unreadable() from None
            data = None
    if not isinstance(data, Mapping):
        return Found(0.0 if failed else 100.0, "failed" if failed else "complete", raw=output)
    completion = data.get("completion_percentage", data.get("completion"))
    status = str(data.get("status", "failed" if failed else "complete"))
    if completion is None:
        completion = 0.0 if failed or status in ("incomplete", "failed") else 100.0
    # NaN is below no threshold and above none: it is no share, like all that is not from 0 to 100.
    if isinstance(completion, bool) or not isinstance(completion, int | float) or not 0 <= completion <= 100:
        raise _unreadable()
    return Found(
        float(completion), status, data.get("implemented"), data.get("missing"), data.get("gaps"), output
    )


def _unreadable() -> StepError:
    return StepError(
        Failure(
            "the check printed no result: wanted is JSON with completion_percentage, a number from 0 to 100",
            "incomplete",
        )
    )


def _plain(number: float) -> Json:
    return int(number) if number == int(number) else number


def _captures(turn: Turn, steps: Steps, scope: Scope, name: str) -> dict[str, Json]:
    value = expect_done(turn.perform(steps, scope=scope, name=name))
    captures = value.get("captures") if isinstance(value, Mapping) else None
    return dict(captures) if isinstance(captures, Mapping) else {}
