"""A list of steps that run one after the other; each sees the captures of those before it.

The value is `{output, captures}`: the last output, and all captures of the steps. So a replayed
list gives the same captures. `BlockAction` uses such a list in a `use:` step.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many

from plait.core.digests import sha256_hex
from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass, replace
from plait.core.values import NOT_KNOWN, Json, Unknown
from plait.engine.outcome import Failed, Failure, Skipped, StepError, Succeeded, require_success
from plait.engine.perform import StepContext
from plait.engine.step import DEFAULT_POLICY, Composite, Policy, Step
from plait.engine.unknown_results import UNKNOWN_RESULT
from plait.program.capture import TRUNCATED, scope_after
from plait.template.sinks import render_json_value

if TYPE_CHECKING:
    from plait.program.action_step import ActionStep
    from plait.template.template import Template


@dataclass(frozen=True, slots=True)
class StepList(Composite):
    name: str
    steps: tuple[ActionStep, ...]
    fingerprint: str
    kind: str = "phase"
    title: str = ""
    policy: Policy = DEFAULT_POLICY

    @property
    def children(self) -> Many[Step]:
        return self.steps

    async def run(self, ctx: StepContext) -> Json:
        captures: dict[str, Json] = {}
        output: Json = None
        truncated: Json = None
        last = len(self.steps) - 1
        planned_failure: StepError | None = None
        for order, step in enumerate(self.steps):
            outcome, ctx = await ctx.perform_next_async(step, order, is_last=order == last)
            match outcome:
                case Succeeded(value):
                    assert isinstance(value, dict)
                    names = step.output_variables(value)
                    captures |= names
                    if "output" in value:
                        output, truncated = value["output"], value.get(TRUNCATED)
                    if order != last:  # no step reads the scope after the last one
                        ctx = _context_after(step, ctx, value, names)
                case Failed(failure):
                    if not step.continue_on_error:
                        planned_failure = planned_failure or StepError(
                            self._with_captures(failure, captures)
                        )
                        if not ctx.run.is_dry_run:
                            raise planned_failure
                        # A dry run also shows the steps after it, as if this step were fixed.
                        output, truncated = NOT_KNOWN, None
                        names = dict.fromkeys(step.may_capture(), NOT_KNOWN)
                        captures |= names
                        ctx = _context_after(step, ctx, dict(UNKNOWN_RESULT), names)
                        continue
                    ctx.run.events.note(
                        ctx.path,
                        f"'{step.title}' failed, and the flow continues: {failure.message}",
                    )
                    ended = failure.as_result()
                    names = step.output_variables(ended)
                    captures |= names
                    ctx = _context_after(step, ctx, ended, names)
                case Skipped():
                    pass
        if planned_failure is not None:
            raise planned_failure
        result: dict[str, Json] = {"output": output, "captures": captures}
        return result if truncated is None else {**result, TRUNCATED: truncated}

    def _with_captures(self, failure: Failure, captures: dict[str, Json]) -> Failure:
        """Add the captures of earlier steps to the failure of an item: the item results list them."""
        if self.kind != "item" or not captures:
            return failure
        return replace(failure, output={**failure.as_result(), "captures": captures})


def _context_after(
    step: ActionStep, ctx: StepContext, value: dict[str, Json], captures: dict[str, Json]
) -> StepContext:
    return ctx.with_scope(scope_after(ctx.scope, step, value, captures))


def step_list(
    name: str,
    steps: Iterable[ActionStep],
    *,
    kind: str = "phase",
    title: str = "",
    policy: Policy = DEFAULT_POLICY,
) -> StepList:
    """Make a list of steps. Its fingerprint covers the names and fingerprints of the steps."""
    steps = tuple(steps)
    fingerprint = join_fingerprints(f"{step.name} {step.fingerprint}" for step in steps)
    return StepList(name, steps, fingerprint, kind, title or name, policy)


def join_fingerprints(fingerprints: Iterable[str]) -> str:
    return sha256_hex("\n".join(fingerprints).encode())[:16]


@dataclass(frozen=True, slots=True)
class BlockAction(Composite):
    """The steps of a block; they see the variables of `with`."""

    steps: StepList
    given: Template | None
    strict: bool = False

    @property
    def children(self) -> Many[Step]:
        return [self.steps]

    @property
    def captures(self) -> list[str]:
        """The variables that the block may set for later steps."""
        return [name for step in self.steps.steps for name in step.may_capture()]

    def run(self, ctx: StepContext) -> dict[str, Json]:
        scope = ctx.scope
        if self.given is not None:
            scope = scope.frame(
                "with", phase=render_json_value(self.given, scope, strict=self.strict)
            )
        value = require_success(ctx.perform(self.steps, scope=scope))
        done: dict[str, Json] = dict(value) if isinstance(value, dict) else {}
        truncated = {TRUNCATED: done[TRUNCATED]} if TRUNCATED in done else {}
        captures = done.get("captures")
        if isinstance(done.get("output"), Unknown):
            return {**UNKNOWN_RESULT, "captures": captures}
        return {
            "output": done.get("output"),
            "stderr": "",
            "exit_code": 0,
            "captures": captures,
            **truncated,
        }
