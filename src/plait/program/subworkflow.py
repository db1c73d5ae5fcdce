"""The action of a `workflow:` step: run another workflow file below the calling step.

The called file sees the variables of the caller. Its declared variables and params take precedence.
Its captures end with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass, field, replace
from plait.core.values import Json, Unknown, contains_unknown
from plait.engine.outcome import DeadlineExceeded, StepError, too_long
from plait.engine.perform import StepContext, act
from plait.engine.step import Composite, Step
from plait.engine.unknown_results import UNKNOWN_RESULT
from plait.scope.frames import DATA_ENV_FRAME, GIVEN
from plait.template.sinks import is_own_text, render_json_value

if TYPE_CHECKING:
    from plait.program.phases import Phases
    from plait.scope import Scope
    from plait.template.template import Template


NO_MAP: Final = "the params of a workflow must be a map"


@dataclass(frozen=True, slots=True)
class Entered:
    """The variables and environment of a called file."""

    names: Mapping[str, Json] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)
    """Environment variables that are added for its processes."""
    secrets: Sequence[str] = field(default=(), repr=False)
    given: frozenset[str] = frozenset()
    """Variables whose value is not the literal text of an author."""
    data: frozenset[str] = frozenset()
    """Those of the given variables that contain data found by a run. A program must not read them
    as options.
    """


@dataclass(frozen=True, slots=True)
class Subworkflow(Composite):
    name: str
    phases: Phases
    path: str
    params: Template | None
    each: Mapping[str, Template]
    """The template of each param, if `params` is a literal map."""
    enter: Callable[[Mapping[str, Json], Scope, frozenset[str], frozenset[str]], Entered]
    """Make the environment from the params, the scope of the caller, the names in `given` and those
    in `data`.
    """
    written: Mapping[str, Json] = field(repr=False)
    """The variables with literal values, which are all that a dry run knows."""
    fingerprint: str
    """Covers everything in the file."""
    timeout: float | None = None
    strict: bool = False
    retry_scope = "inner"

    @property
    def children(self) -> Sequence[Step]:
        return self.phases.children

    def run(self, ctx: StepContext) -> dict[str, Json]:
        began = time.monotonic()
        entered = self._enter_flow(ctx)
        ctx.run.secrets.add(entered.secrets)
        outer = ctx.scope.names.get("workflow")
        facts = {
            **(outer if isinstance(outer, Mapping) else {}),
            "name": self.name,
            "path": self.path,
        }
        scope = ctx.scope.frame("workflow", workflow={"workflow": facts})
        frames = {name: _frame_name(name, entered) for name in entered.names}
        for label in ("workflow", GIVEN, DATA_ENV_FRAME):
            values = {name: value for name, value in entered.names.items() if frames[name] == label}
            scope = scope.frame(label, env=values)
        inner = replace(ctx, scope=scope, env={**ctx.env, **entered.env})
        value = self._run_in_time(inner)
        output = value.get("output") if isinstance(value, dict) else None
        if isinstance(output, Unknown):
            return dict(UNKNOWN_RESULT)
        return {
            "output": output,
            "stderr": "",
            "exit_code": 0,
            "duration": round(time.monotonic() - began, 6),
        }

    def _enter_flow(self, ctx: StepContext) -> Entered:
        params: Json = {}
        if self.params is not None:
            params = render_json_value(self.params, ctx.scope, strict=self.strict)
        data = frozenset(self._params_from_data(ctx.scope, params, of_author=False))
        given = data.union(self._params_from_data(ctx.scope, params, of_author=True))
        if isinstance(params, Unknown) or contains_unknown(params):
            known = {**self.written, **(params if isinstance(params, Mapping) else {})}
            return Entered(known, {}, given=given, data=data)
        if not isinstance(params, Mapping):
            raise InputError(NO_MAP, fix="write params: {name: value}", code="wrong-type")
        return self.enter(params, ctx.scope, given, data)

    def _params_from_data(self, scope: Scope, params: Json, *, of_author: bool) -> Iterator[str]:
        """Yield the params that contain more than text of authors or values given to the run."""
        for name in params if isinstance(params, Mapping) else ():
            template = self.each.get(name, self.params)
            if template is not None and not is_own_text(template, scope, of_author=of_author):
                yield name

    def _run_in_time(self, ctx: StepContext) -> Json:
        if self.timeout is None:
            return act(self.phases, ctx)
        try:
            return act(self.phases, ctx.with_deadline(self.timeout))
        except DeadlineExceeded:
            if ctx.is_expired():
                raise
            raise StepError(too_long(self.timeout)) from None


def _frame_name(name: str, entered: Entered) -> str:
    if name in entered.data:
        return DATA_ENV_FRAME
    return GIVEN if name in entered.given else "workflow"
