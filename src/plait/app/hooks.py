"""Find the hooks of a run (user, flow, project) and of subflows, and fire the events of a run.

Hook files of a project are read only if the project, or the signer of the file, is trusted.  The
verified bytes are the ones that are read.

"""

from __future__ import annotations

import os
from collections.abc import Sequence

from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass, replace
from plait.core.values import Json
from plait.engine.hook_port import NO_HOOKS
from plait.engine.outcome import (
    Aborted,
    DeadlineExceeded,
    Failure,
    LimitExceeded,
    StepError,
    too_long,
)
from plait.engine.perform import StepContext, act

if TYPE_CHECKING:
    from plait.engine.budgets import Budgets
    from plait.engine.hook_events import Hook
    from plait.engine.hook_port import Hooks
    from plait.engine.journal import Journal
    from plait.engine.limits import Limits
    from plait.engine.replay import Replay
    from plait.engine.step import Step
    from plait.lang.loaded import LoadedFlow
    from plait.program.ports import Subflow
    from plait.program.program import Program
    from plait.tools.trust.decisions import AskTrust


def add_space_hooks(
    loaded: LoadedFlow, project: str, ask: AskTrust | None, *, running: bool
) -> LoadedFlow:
    """Return the flow with the hooks of user and project; TrustError if they may not run."""
    from plait.app.toolbox import user_space

    roots = (os.path.join(project, ".ai"), user_space())
    if not any(os.path.lexists(os.path.join(root, "config", "hooks.yaml")) for root in roots):
        return loaded
    from plait.lang.hooks import hook_tools

    hooks = _of_spaces(project, ask, running=running)
    uses = {**hook_tools(hooks), **loaded.tool_uses}
    program = replace(loaded.program, hooks=(*hooks, *loaded.program.hooks))
    return replace(loaded, program=program, tool_uses=uses)


def _of_spaces(project: str, ask: AskTrust | None, *, running: bool) -> tuple[Hook, ...]:
    from plait.app.toolbox import toolbox
    from plait.lang.hooks import FILE, load_hooks
    from plait.tools.config import config_files
    from plait.tools.tool_file import ConfigResolve

    tools = toolbox(project, ask=ask)
    found = config_files([ConfigResolve(FILE)], tools.spaces, project)
    files = [file for file in found if file.space.name != "system"]
    tools.trust.require(files, running=running)
    return tuple(
        hook
        for file in files
        for hook in load_hooks(
            file.data.decode("utf-8", "surrogateescape"), file.path, space=file.space.name
        )
    )


def build_hooks(
    loaded: LoadedFlow, run_id: str, journal: Journal, replay: Replay
) -> tuple[Hooks, Budgets]:
    """Return the hooks and budgets of a run; without hooks and limits they cost nothing."""
    from plait.engine.budgets import Budgets
    from plait.engine.limits import Budget

    program = loaded.program
    total, limited = Budget(_limits_around(program)), bool(program.limits.record())
    is_watched = limited or bool(program.hooks)
    budgets = Budgets(journal, total, first_event=replay.first_event, has_hooks=is_watched)
    if not is_watched:
        return NO_HOOKS, budgets
    from plait.engine.hooks import HookRunner
    from plait.program.actions.tool import make_tool_call

    if not replay.is_first_run:
        if limited:
            total.add(seconds=budgets.earlier.seconds)
        # Counted before the first step: parallel steps may use some of it before others replay.
        total.add_earlier(**budgets.earlier.inside(""))
    names = _names(loaded, run_id)
    return HookRunner(program.hooks, call=make_tool_call, names=names, budget=total), budgets


def _limits_around(program: Program) -> Limits:
    """Return the limits of a run; those of a directive are its agent's, and bound hooks, too."""
    if not program.hooks or program.directive is None:
        return program.limits
    own = program.directive.limits
    # Only what hooks use: seconds and depth start with the agent, and hook steps are not counted.
    return replace(program.limits, turns=own.turns, tokens=own.tokens, spend=own.spend)


def _names(loaded: LoadedFlow, run: str) -> dict[str, Json]:
    """Return the hook variables of a flow."""
    program, directive = loaded.program, loaded.program.directive
    limits = program.limits if directive is None else directive.limits
    return {
        "run": {"id": run, "flow": program.name, "file": loaded.path},
        "inputs": dict(loaded.parameters),
        "limits": limits.record(),
        "directive": None if directive is None else program.name,
        "model": None if directive is None else directive.agent.model,
    }


def fire_run_ended(
    program: Program,
    ctx: StepContext,
    value: Json,
    failure: Failure | None,
) -> Json:
    """Report the end of a run to hooks: each failure, and success once.  Return the value."""
    if ctx.run.hooks.is_empty:
        return value
    ctx = ctx.without_timeout()
    if failure is None:
        # A hook that ran after the last part ended has been notified of this end.
        ctx = replace(ctx, replay_after=max(ctx.replay_after, _last_end(program, ctx)))
    else:
        ctx = replace(ctx, can_replay=False)
    event, variables = (
        ("run_finished", {"result": value}) if failure is None else ("run_failed", _error(failure))
    )
    decision = ctx.run.hooks.fire(event, ctx, variables, own_only=True)
    if decision is not None and decision.verb == "abort":
        raise decision.abort_error()
    return value


def _last_end(program: Program, ctx: StepContext) -> int:
    """Return the number of the event with which the last part of a program ended."""
    if ctx.run.replay.is_first_run:
        return 0
    from plait.engine.journal import record_number
    from plait.engine.paths import join_path

    paths = (join_path(ctx.path, name) for name, _ in program.phases)
    ends = map(ctx.run.journal.last_result, paths)
    return max(map(record_number, ends), default=0)


def _error(failure: Failure) -> dict[str, Json]:
    from plait.engine.hook_events import error_names

    return {"error": error_names(failure)}


# ── flows inside others ──────────────────────────────────────────────────


def make_subflow(loaded: LoadedFlow) -> Subflow:
    """A flow that is called like a tool, with its hooks, its secrets and its timeout."""
    is_special = loaded.program.hooks or loaded.timeout is not None or loaded.secret_texts()
    return _Called(loaded) if is_special else loaded.program


@dataclass(frozen=True, slots=True)
class _Called:
    loaded: LoadedFlow

    @property
    def name(self) -> str:
        return self.loaded.program.name

    @property
    def children(self) -> Sequence[Step]:
        return self.loaded.program.children

    def run(self, ctx: StepContext) -> Json:
        # The caller does not know which inputs of the subflow are secret.
        ctx.run.secrets.add(self.loaded.secret_texts())
        limit = self.loaded.timeout
        if limit is None:
            return self._with_hooks(ctx)
        try:
            return self._with_hooks(ctx.with_deadline(limit))
        except DeadlineExceeded:
            if ctx.is_expired():
                raise  # the caller has no time left, either
            raise StepError(too_long(limit)) from None

    def _with_hooks(self, ctx: StepContext) -> Json:
        loaded = self.loaded
        if not loaded.program.hooks:
            return act(loaded.program, ctx)
        ctx = _add_hooks(loaded, ctx)
        try:
            ctx.run.hooks.require("run_started", ctx, own_only=True)
            value = act(loaded.program, ctx)
        except StepError as error:
            self._fire_failure(ctx, error.failure)
            raise
        return fire_run_ended(loaded.program, ctx, value, None)

    def _fire_failure(self, ctx: StepContext, failure: Failure) -> None:
        try:
            fire_run_ended(self.loaded.program, ctx, None, failure)
        except LimitExceeded:
            raise  # a limit is not a hook decision: the flow or agent with the limit ends
        except Aborted as end:
            # The run ends with both messages, so that no hook hides the failure.
            end.failure = replace(failure, message=f"{failure.message}\n{end.failure.message}")
            raise


def _add_hooks(loaded: LoadedFlow, ctx: StepContext) -> StepContext:
    """Return the context of a subflow: its hooks run besides those around it."""
    from plait.engine.hooks import HookRunner
    from plait.program.actions.tool import make_tool_call

    names = _names(loaded, ctx.run.id)
    own = HookRunner(loaded.program.hooks, call=make_tool_call, names=names, around=ctx.run.hooks)
    return replace(ctx, run=replace(ctx.run, hooks=own))
