"""The hooks of a run, put together: those of the user, of the flow's own file, and of the project.

What a project brings is not looked at before the project, or whoever signed the file, is
trusted; the bytes that were judged are those that are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from plait.engine.outcome import Failure
from plait.engine.perform import Turn
from plait.hints import TYPE_CHECKING
from plait.records import replace
from plait.values import Json

if TYPE_CHECKING:
    from plait.engine.hooks import Hook
    from plait.flows.loaded import Loaded
    from plait.steps.hands import WorkingRun
    from plait.tools.trust import Ask as AskTrust


def with_layers(loaded: Loaded, project: str, ask: AskTrust | None, *, running: bool) -> Loaded:
    """The flow with the hooks of the user and of the project as well; TrustError if those may not be used."""
    from plait.app import user_space

    roots = (os.path.join(project, ".ai"), user_space())
    if not any(os.path.lexists(os.path.join(root, "config", "hooks.yaml")) for root in roots):
        return loaded
    from plait.flows.hooks import tools_of

    hooks = _of_spaces(project, ask, running=running)
    uses = {**tools_of(hooks), **loaded.uses}
    return replace(loaded, hooks=(*hooks, *loaded.hooks), uses=uses)


def _of_spaces(project: str, ask: AskTrust | None, *, running: bool) -> tuple[Hook, ...]:
    from plait.app import toolbox
    from plait.flows.hooks import FILE, load_hooks
    from plait.tools.config import config_files
    from plait.tools.items import ConfigResolve

    tools = toolbox(project, ask=ask)
    found = config_files([ConfigResolve(FILE)], tools.spaces, project)
    files = [file for file in found if file.space.name != "system"]
    tools.trust.require(files, running=running)
    return tuple(
        hook
        for file in files
        for hook in load_hooks(file.data.decode("utf-8", "surrogateescape"), file.path, space=file.space.name)
    )


def begin(loaded: Loaded, run: WorkingRun) -> None:
    """Give a run its limits and its hooks; one that has neither is not slowed down by them."""
    from plait.engine.limits import Earlier, Spent

    limited = bool(loaded.limits.record())
    run.spent = Spent(loaded.limits)
    if not (limited or loaded.hooks):
        return
    from plait.engine.hooks import Hooks, is_counted
    from plait.steps.tool import called

    earlier = Earlier(run.journal, is_counted) if limited and not run.fresh else None
    if earlier is not None:
        run.spent.add(seconds=earlier.seconds)
    names: dict[str, Json] = {
        "run": {"id": run.id, "flow": loaded.program.name, "file": loaded.path},
        "inputs": dict(loaded.parameters),
        "limits": loaded.limits.record(),
        "directive": loaded.program.name if loaded.kind == "directive" else None,
    }
    run.hooks = Hooks(loaded.hooks, call=called, names=names, spent=run.spent, earlier=earlier)


def started(program: Callable[[Turn], Json], turn: Turn) -> Json:
    """What a program comes to, if no hook is against it."""
    if turn.run.hooks is not None:
        turn.run.hooks.expect("run_started", turn)
    return program(turn)


def ended(turn: Turn, value: Json, failure: Failure | None) -> Json:
    """Tell how a run has ended, each time that it ends; the value."""
    hooks = turn.run.hooks
    if hooks is None:
        return value
    turn = replace(turn, replaying=False, deadline=None)
    event, told = ("run_finished", {"result": value}) if failure is None else ("run_failed", _error(failure))
    verdict = hooks.fire(event, turn, told)
    if verdict is not None and verdict.verb == "abort":
        raise verdict.aborted()
    return value


def _error(failure: Failure) -> dict[str, Json]:
    from plait.engine.hooks import error_names

    return {"error": error_names(failure)}
