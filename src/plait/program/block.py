"""The action of a `use:` step: the steps of a block that is defined elsewhere."""

from __future__ import annotations

from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass
from plait.core.values import Json, Unknown
from plait.engine.outcome import require_success
from plait.engine.step import Composite
from plait.engine.unknown import UNKNOWN_RESULT
from plait.program.capture import TRUNCATED
from plait.template.sinks import render_json_value

if TYPE_CHECKING:
    from plait.engine.perform import StepContext
    from plait.engine.step import Step
    from plait.program.step_list import StepList as Steps
    from plait.template.template import Template


@dataclass(frozen=True, slots=True)
class BlockAction(Composite):
    """The steps of a block; they see the variables of `with`."""

    steps: Steps
    given: Template | None
    strict: bool = False

    @property
    def children(self) -> list[Step]:
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
