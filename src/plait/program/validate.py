"""`validate`: check what a step did, complete what is missing, and check again.

The check prints JSON, or writes it to a file: `{completion_percentage, status, implemented,
missing, gaps}`. Below the threshold the steps of `on_incomplete` run with `validation.*`, and the
check repeats. A result that is unreadable or does not match the expected schema never counts as
complete. Neither does a file of an earlier check if this check failed without writing it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from plait.core.errors import PlaitError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass, replace
from plait.core.values import NOT_KNOWN, Json, json_value
from plait.engine.kinds import failure_kinds
from plait.engine.outcome import (
    INCOMPLETE,
    Failed,
    Failure,
    Outcome,
    StepError,
    Succeeded,
    require_success,
)
from plait.engine.paths import CHECK, ON_INCOMPLETE, numbered_name
from plait.engine.perform import StepContext
from plait.engine.replay import replay_unless_failed
from plait.engine.step import Step
from plait.program.capture import complete_output, strip_newlines
from plait.program.ports import FileReader
from plait.template.sinks import render_text

if TYPE_CHECKING:
    from plait.program.step_list import StepList as Steps
    from plait.scope import Scope
    from plait.template.template import Template


ANSWERS: Final = tuple(failure_kinds("answers"))
"""The failure kinds of a check that mean "incomplete"; any other means that the check itself broke.
"""


@dataclass(frozen=True, slots=True)
class Validation:
    check: Steps
    threshold: float = 100.0
    result_file: Template | None = None
    on_incomplete: Steps | None = None
    attempts: int = 2
    """The maximum number of times that `on_incomplete` runs, each followed by another check."""
    fails: bool = True
    """Whether the step fails if it stays incomplete."""
    schema: Json = None
    """The JSON Schema of the result."""

    @property
    def children(self) -> Sequence[Step]:
        return [self.check, *([self.on_incomplete] if self.on_incomplete else [])]

    @property
    def captures(self) -> list[str]:
        """The variables that it may set for later steps."""
        steps = () if self.on_incomplete is None else self.on_incomplete.steps
        return ["validation", *(name for step in steps for name in step.may_capture())]

    def run(self, ctx: StepContext) -> tuple[Json, StepContext]:
        """Return the captures and the context after the check; raises StepError if the step stays
        incomplete.
        """
        captures: dict[str, Json] = {}
        found, ctx = self._run_check(ctx, ctx.scope, 1)
        self._note_score(ctx, found, 1)
        for attempt in range(1, self.attempts + 1):
            if found.completion >= self.threshold or self.on_incomplete is None:
                break
            scope = ctx.scope.frame(
                "validation", captures=captures, phase={"validation": found.record(attempt)}
            )
            outcome, ctx = ctx.perform_next(
                self.on_incomplete, scope=scope, name=numbered_name(ON_INCOMPLETE, attempt)
            )
            captures |= _captures(require_success(outcome))
            found, ctx = self._run_check(ctx, scope, attempt + 1)
            self._note_score(ctx, found, attempt + 1)
        if found.completion < self.threshold and self.fails:
            raise StepError(
                Failure(
                    f"only {found.completion:g} % complete, {self.threshold:g} % required"
                    + (f"; missing: {found.missing_text}" if found.missing else ""),
                    INCOMPLETE,
                )
            )
        facts: dict[str, Json] = {
            "validation": NOT_KNOWN if found is NOT_CHECKED else found.record(1)
        }
        return {"captures": {**captures, **facts}}, ctx

    def _note_score(self, ctx: StepContext, found: ValidationResult, number: int) -> None:
        """Note the completion that each check found; a step that is complete at once needs no note."""
        if found is NOT_CHECKED or self.on_incomplete is None:
            return
        if number == 1 and found.completion >= self.threshold:
            return
        ctx.run.events.note_once(
            f"check {ctx.path} {number}",
            ctx.path,
            f"check {number} of {self.attempts + 1}: {found.completion:g} % complete"
            f", {self.threshold:g} % required",
        )

    def _run_check(
        self, ctx: StepContext, scope: Scope, number: int
    ) -> tuple[ValidationResult, StepContext]:
        is_dry_run = ctx.run.is_dry_run
        file = (
            None if self.result_file is None or is_dry_run else render_text(self.result_file, scope)
        )
        before = None if file is None else _file_state(file, ctx)
        fresh = ctx.run.replay.is_first_run
        # A failed check is also an answer, so its failure is recorded.
        check = replace(self.check, policy=replace(self.check.policy, keep_failure=True))
        name = numbered_name(CHECK, number)
        # A check that found the step incomplete may give another answer now.
        since = replay_unless_failed(ctx, name, lambda _, failure: failure.kind == INCOMPLETE)
        outcome, ctx = since.perform_next(check, scope=scope, name=name)
        if is_dry_run and (fresh or not ctx.can_replay):
            return NOT_CHECKED, ctx  # only a run knows the result
        if is_dry_run and self.result_file is not None:
            file = render_text(self.result_file, scope)
            if not _file_state(file, ctx):
                return NOT_CHECKED, ctx
        failed = isinstance(outcome, Failed)
        if isinstance(outcome, Failed) and outcome.failure.kind not in ANSWERS:
            why = f"the check could not run: {outcome.failure.message}"
            raise StepError(replace(outcome.failure, message=why))
        result = _output(outcome)
        if file is not None and not (failed and _file_state(file, ctx) == before):
            result = (
                ctx.run.services.get(FileReader)
                .read(file, directory=ctx.directory)
                .decode("utf-8", "replace")
            )
        found = parse_validation(
            result,
            threshold=self.threshold,
            failed=failed,
            promised=self._promises_result,
            schema=self.schema,
        )
        return found, ctx

    @property
    def _promises_result(self) -> bool:
        """Whether the check must print a result. An exit code is not enough for agents and models:
        they always succeed.
        """
        by = self.check.steps[-1].kind if self.check.steps else ""
        return self.result_file is not None or self.schema is not None or by in ("agent", "prompt")


def _output(outcome: Outcome) -> Json:
    match outcome:
        case Succeeded(Mapping() as value):
            return complete_output(value)
        case Failed(failure):
            return complete_output(failure.as_result())
    return None


def _file_state(file: str, ctx: StepContext) -> tuple[Json, ...]:
    """The content, time and inode of a file, to see whether a check has written it."""
    try:
        data = ctx.run.services.get(FileReader).read(file, directory=ctx.directory)
    except PlaitError:
        return ()
    try:
        found = os.stat(os.path.join(ctx.directory, file))
    except OSError:
        return (data,)
    return data, found.st_mtime_ns, found.st_ino


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The result of a check."""

    completion: float
    status: str = "complete"
    implemented: Json = None
    missing: Json = None
    gaps: Json = None
    raw: Json = None

    @property
    def missing_text(self) -> str:
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


NOT_CHECKED: Final = ValidationResult(completion=100.0)
"""The result in a dry run, which checks nothing."""


def parse_validation(
    output: Json,
    *,
    threshold: float = 100.0,
    failed: bool = False,
    promised: bool = False,
    schema: Json = None,
) -> ValidationResult:
    """Parse the output of a check; plain text only says whether the check succeeded.

    Without a status, the completion decides. If a result is `promised`, only a failed check may
    omit it.
    """
    data = output
    if isinstance(output, str):
        try:
            data = json_value(output)
        except (ValueError, RecursionError):
            if output.strip().startswith(("{", "[")):
                raise _unreadable() from None
            data = None
    if not isinstance(data, Mapping):
        if promised and not failed:
            raise _unreadable()
        return ValidationResult(
            0.0 if failed else 100.0, "failed" if failed else "complete", raw=strip_newlines(output)
        )
    if schema is not None:
        _require_schema_match(data, schema)
    completion = data.get("completion_percentage", data.get("completion"))
    status = data.get("status")
    if completion is None:
        if promised and not failed and "status" not in data:
            raise _unreadable()
        status = status or ("failed" if failed else "complete")
        completion = 0.0 if failed or status in ("incomplete", "failed") else 100.0
    # The comparison also rejects NaN, which would pass any threshold test in one direction.
    if (
        isinstance(completion, bool)
        or not isinstance(completion, int | float)
        or not 0 <= completion <= 100
    ):
        raise _unreadable()
    status = status or ("complete" if completion >= threshold else "incomplete")
    return ValidationResult(
        float(completion),
        str(status),
        data.get("implemented"),
        data.get("missing"),
        data.get("gaps"),
        strip_newlines(output),
    )


def _require_schema_match(data: Json, schema: Json) -> None:
    from plait.core.json_schema import schema_violations

    places = schema_violations(data, schema)
    if places:
        what = f"the result of the check does not match expected_schema at {', '.join(places)}"
        raise StepError(Failure(what, INCOMPLETE))


def _unreadable() -> StepError:
    return StepError(
        Failure(
            "the check printed no result: expected is JSON with completion_percentage, a number from "
            "0 to 100",
            INCOMPLETE,
        )
    )


def _plain(number: float) -> Json:
    return int(number) if number == int(number) else number


def _captures(value: Json) -> dict[str, Json]:
    captures = value.get("captures") if isinstance(value, Mapping) else None
    return dict(captures) if isinstance(captures, Mapping) else {}
