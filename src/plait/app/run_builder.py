"""Build the context of a run, and perform or plan a loaded flow until it ends, fails or stops."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial

from plait.adapters.process import guardian_process
from plait.app.result import FlowResult, RunObservers
from plait.app.temporary_run import TemporaryRun
from plait.core.errors import (
    NO_OUTCOMES,
    InputError,
    JournalError,
    PlaitError,
    Problem,
    TrustError,
)
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.os_errors import map_machine_errors
from plait.core.records import replace
from plait.core.values import Json
from plait.engine.backend import RemoteBackend
from plait.engine.events import EarlierUsage, Note, RunEnded, RunStarted
from plait.engine.outcome import (
    ALL_FAILED,
    SOME_FAILED,
    Aborted,
    DeadlineExceeded,
    Failed,
    Failure,
    Interrupted,
    StepError,
    Succeeded,
    too_long,
)
from plait.engine.perform import StepContext, act
from plait.engine.run_text import NO_TEXT, RunText
from plait.engine.stop import StopSignal
from plait.template.compiled import FACTS

if TYPE_CHECKING:
    from plait.adapters.store import OpenRun
    from plait.app.flow_source import FlowSource
    from plait.app.telemetry import Telemetry
    from plait.engine.context import RunContext
    from plait.engine.journal import Journal
    from plait.engine.plan_log import PlannedStep
    from plait.lang.loaded import LoadedFlow
    from plait.program.worktrees.ports import Worktrees
    from plait.tools.trust.decisions import AskTrust

NOTED: Final = frozenset({"refused-variable", "short-secret"})
"""Codes of warnings that depend on the inputs of a run, so `plait check` cannot report them."""


def execute_run(
    flow: FlowSource,
    loaded: LoadedFlow,
    opened: OpenRun | TemporaryRun,
    observers: RunObservers,
    *,
    text: RunText = NO_TEXT,
    repeat: Iterable[str] = (),
    marked_done: Mapping[str, Json] | None = None,
    retried: Collection[str] = (),
    notes: Iterable[str] = (),
) -> FlowResult:
    """Perform a loaded flow as one attempt of a run; `notes`: what to report with it."""
    with map_machine_errors(run=None if isinstance(opened, TemporaryRun) else opened.id):
        run = build_run_context(
            flow,
            loaded,
            opened.journal,
            opened.id,
            opened.folder,
            observers,
            text=text,
            repeat=repeat,
            marked_done=marked_done,
            retried=retried,
        )
        found: list[str] = []
        telemetry = _prepare_telemetry(flow, loaded, opened, run, found.append)
        if telemetry is not None:
            run = replace(run, trace=telemetry.trace)
        resumed = not run.replay.is_first_run
        program = loaded.program
        run.events.emit(
            RunStarted(opened.id, program.name, flow.path, flow.project, resumed, program.phases)
        )
        if resumed:
            run.events.notify(EarlierUsage(run.budgets.earlier.by_part()))
        for note in (*notes, *found):
            run.events.note("", note)
        for finding in loaded.warnings:
            if finding.code in NOTED:
                run.events.note("", str(finding.problem))
        _note_new_variables(opened, loaded, run)
        if opened.why_unsealed:
            fix = f"correct this, then: plait trust run {opened.id}"
            run.events.note(
                "",
                f"this run has no seal, so it cannot be resumed: {opened.why_unsealed}; {fix}",
            )
        result = FlowResult(opened.id, "failed")
        if telemetry is not None:
            telemetry.start()
        try:
            with guardian_process.listening(partial(run.events.warn, "")):
                result = _run_program(opened.id, loaded, run, flow)
            result = replace(result, has_seal=not opened.why_unsealed)
            run.events.emit(
                RunEnded(result.status, result.failure, result.value, dict(result.counts))
            )
        except JournalError:
            with suppress(JournalError):  # the first error says more
                run.events.close()
            raise
        except BaseException:  # close the journal first; then the error is raised as it is
            run.events.close()
            raise
        if telemetry is not None and (loss := telemetry.finish(run.stop)):
            run.events.notify(Note("", run.secrets.mask(loss), warning=True))
        run.events.close()
        return result


def _prepare_telemetry(
    flow: FlowSource,
    loaded: LoadedFlow,
    opened: OpenRun | TemporaryRun,
    run: RunContext,
    note: Callable[[str], None],
) -> Telemetry | None:
    """Return the telemetry of this attempt of the run; None, and nothing is loaded: it is off."""
    if not any(name.startswith("OTEL_") for name in os.environ) and not _has_setting(
        flow.project, b"telemetry"
    ):
        return None
    from plait.app.telemetry import prepare_telemetry

    name, first = loaded.program.name, run.replay.first_event
    return prepare_telemetry(opened, flow.project, name, first, note)


def _has_setting(project: str, name: bytes) -> bool:
    try:
        with open(os.path.join(project, ".ai", "plait.yaml"), "rb") as file:
            return name in file.read()
    except OSError:
        return False


def _note_new_variables(
    opened: OpenRun | TemporaryRun, loaded: LoadedFlow, run: RunContext
) -> None:
    """Accept the changed env files, for this and later attempts of the run."""
    variables, known = loaded.environment.filed, opened.facts.get("env_files")
    if not variables and not known:
        return
    from plait.app.env_digest import describe_change, env_digest

    change = describe_change(known, variables)
    if change is not None:
        run.events.note(
            "", f"the env files have changed, and the run continues with them: {change}"
        )
        opened.update_facts(env_files=env_digest(variables))


def _run_program(id: str, loaded: LoadedFlow, run: RunContext, flow: FlowSource) -> FlowResult:
    """Run, or plan, the program of a flow, and notify the hooks of the run."""
    from plait.app.hooks import fire_run_ended

    program, ctx = loaded.program, _first_context(id, loaded, run, flow)
    try:
        run.hooks.require("run_started", ctx, own_only=True)
        result = FlowResult(id, "done", value=_for_callers(act(program, ctx)))
        result = _require_one_success(result, loaded, run)
    except _ENDS as error:
        result = _failure_result(error, id, loaded, run)
    if not run.hooks.is_empty and result.status != "interrupted":
        failure = result.failure or _items_failure(loaded, run)
        try:
            fire_run_ended(program, ctx, result.value, failure)
        except _ENDS as error:
            after = _failure_result(error, id, loaded, run)
            if failure is None or after.status == "interrupted":
                result = replace(after, value=result.value)
            elif after.failure is not None:
                # The first failure stays the failure of the run, whatever `run_failed` hooks do.
                run.events.note("", f"at run_failed: {after.failure.message}")
    return replace(result, counts=_counts(loaded, run))


def _require_one_success(result: FlowResult, loaded: LoadedFlow, run: RunContext) -> FlowResult:
    """The result of a run that came to its end; it failed if every item of its map failed."""
    failure = _items_failure(loaded, run)
    if failure is None or failure.kind != ALL_FAILED:
        return result
    return replace(result, status="failed", failure=failure)


def _items_failure(loaded: LoadedFlow, run: RunContext) -> Failure | None:
    """The failed items of the map as a failure: hooks get it, and the exit code is 1."""
    counts = {} if run.is_dry_run else _counts(loaded, run)
    total, failed = counts.get("total"), counts.get("failed")
    if loaded.program.map is None or not failed:
        return None
    path = loaded.program.map.name
    if failed != total:
        what = f"{failed} of {total} items failed"
        return Failure(what, SOME_FAILED, output=counts, path=path)
    what = "the only item failed" if total == 1 else f"all {total} items failed"
    return Failure(what, ALL_FAILED, output=counts, path=path)


_ENDS: Final = (StepError, Aborted, Interrupted, DeadlineExceeded, PlaitError)
"""What ends a program before its last step."""


def _failure_result(
    error: BaseException, id: str, loaded: LoadedFlow, run: RunContext
) -> FlowResult:
    """Return the result of a program that an error ended."""
    match error:
        case JournalError():
            raise error  # nothing more can be recorded or read
        case StepError() | Aborted():
            failure = error.failure
        case Interrupted():
            return FlowResult(id, "interrupted", Failure(run.stop.why or "interrupted", "stopped"))
        case DeadlineExceeded():
            failure = too_long(loaded.timeout or 0)
        case _:
            kind = "trust" if isinstance(error, TrustError) else "refused"
            failure = Failure(run.secrets.mask(str(error)), kind)
    return FlowResult(id, "failed", failure, trust_refused=failure.kind == "trust")


def _for_callers(value: Json) -> Json:
    """Return the value of a flow without the facts beside its captures, which are for templates."""
    captures = value.get("captures") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(captures, dict):
        return value
    return {
        **value,
        "captures": {name: one for name, one in captures.items() if not name.endswith(FACTS)},
    }


def _first_context(id: str, loaded: LoadedFlow, run: RunContext, flow: FlowSource) -> StepContext:
    from plait.app.toolbox import command_output

    env = {**os.environ, **loaded.process_env()}
    may_change = None if run.plan_log is None else run.plan_log.has_planned_step
    return StepContext(
        run,
        "",
        loaded.scope(
            id,
            sources=loaded.sources(
                run=lambda bound, place: command_output(bound, place, env), may_change=may_change
            ),
            started=flow.started,
        ),
        deadline=None if loaded.timeout is None else time.monotonic() + loaded.timeout,
        directory=flow.project,
        env=env,
    )


def _counts(loaded: LoadedFlow, run: RunContext) -> dict[str, Json]:
    map_step = loaded.program.map
    if map_step is None:
        return {}
    known = run.journal.step(map_step.name)
    if known is None:
        from plait.program.ports import ItemCounts

        counts = run.shared(ItemCounts).get(map_step.name)
        return {} if counts is None else counts()
    value = (
        known.outcome.failure.output
        if isinstance(known.outcome, Failed)
        else getattr(known.outcome, "value", None)
    )
    if not isinstance(value, dict):
        return {}
    return {name: count for name, count in value.items() if name != "isolation"}


def build_run_context(
    flow: FlowSource,
    loaded: LoadedFlow,
    journal: Journal,
    id: str,
    folder: str,
    observers: RunObservers,
    *,
    text: RunText = NO_TEXT,
    repeat: Iterable[str] = (),
    marked_done: Mapping[str, Json] | None = None,
    retried: Collection[str] = (),
    is_dry: bool = False,
) -> RunContext:
    """Build the context of a run in this process; `app/remote/jobs.py` does so on a worker."""
    from plait.adapters.local import make_backend
    from plait.app.hooks import build_hooks
    from plait.app.services import local_services
    from plait.engine.backend import SERIAL
    from plait.engine.context import RunContext, Secrets
    from plait.engine.event_bus import EventBus
    from plait.engine.live_output import LiveOutput
    from plait.engine.replay import Replay

    secrets = Secrets(loaded.secret_texts())
    plan_log = None
    if is_dry:
        from plait.engine.plan_log import PlanLog

        plan_log = PlanLog(secrets.mask)
    stop = observers.stop or StopSignal()
    is_resumed = not is_dry and not journal.is_fresh()
    replay = Replay(
        id,
        journal,
        text=text,
        repeat=repeat,
        marked_done=marked_done,
        retried=retried,
        open_questions=_open_questions(loaded, journal) if is_resumed else None,
    )
    events = EventBus(
        journal,
        observers.watchers,
        mask=secrets.mask,
        mask_title=secrets.mask_title,
        full_durability=loaded.durability == "full",
        plan_log=plan_log,
        live=None if is_dry else LiveOutput(secrets, folder),
    )
    hooks, budgets = build_hooks(loaded, id, journal, replay)
    backend = make_backend(flow.options.backend or loaded.backend)
    if is_dry:
        backend = SERIAL  # a dry run shows the items in their order
    run = RunContext(
        id,
        journal,
        events,
        replay,
        budgets,
        hooks,
        secrets,
        local_services(
            flow.project,
            folder,
            stop,
            env=loaded.process_env(),
            ask=observers.ask,
            keeps_overflow=secrets.is_empty,
            note=partial(events.note, ""),
            worktrees=None if is_dry else _worktrees(flow, loaded, folder, id),
            is_dry=is_dry,
        ),
        backend,
        stop,
        folder,
        plan_log,
        _call_tool,
    )
    if isinstance(backend, RemoteBackend):
        from plait.app.remote.pack import FlowPacker

        backend.bind(
            FlowPacker(loaded, run, profile=flow.options.profile),
            stall_timeout=loaded.stall_timeout,
            wait_for_workers=loaded.wait_for_workers,
        )
    return run


def _open_questions(loaded: LoadedFlow, journal: Journal) -> dict[str, str]:
    from plait.app.resume_answers import open_questions

    return dict(open_questions(loaded, journal))


def _call_tool(ctx: StepContext, tool_id: str, params: Mapping[str, Json]) -> dict[str, Json]:
    from plait.program.actions.tool import call_tool_step

    return call_tool_step(ctx, tool_id, params)


def _worktrees(flow: FlowSource, loaded: LoadedFlow, folder: str, run_id: str) -> Worktrees | None:
    if loaded.program.map is None or loaded.program.map.isolation is None:
        return None
    from plait.adapters.git import GitWorktrees
    from plait.app.services import start_git

    return GitWorktrees(start_git, flow.project, folder, run_id)


def require_backend(
    flow: FlowSource, loaded: LoadedFlow, stop: StopSignal, journal: Journal | None = None
) -> None:
    """Raise an InputError unless the backend can perform the items that are left."""
    from plait.adapters.local import make_backend

    backend = make_backend(flow.options.backend or loaded.backend)
    map_step = loaded.program.map
    if map_step is None or map_step.isolation is not None or not isinstance(backend, RemoteBackend):
        return  # items with a worktree run in this process
    if journal is not None and isinstance(
        getattr(journal.step(map_step.name), "outcome", None), Succeeded
    ):
        return  # all items have ended
    from plait.app.remote.pack import require_remote_capable

    require_remote_capable(loaded)
    backend.check(stop)


def require_tools(
    flow: FlowSource, loaded: LoadedFlow, ask: AskTrust | None, *, running: bool = True
) -> None:
    """Raise all errors about the tools that a flow names, before anything runs.

    Without `running` (a dry run) trust stores nothing about them.
    """
    if not loaded.tool_uses:
        return
    from plait.app.subflows import chain_items, require_callable
    from plait.app.toolbox import toolbox

    tools = toolbox(flow.project, ask=ask)
    require_callable(tools, loaded)  # before the user is asked whether a tool may run
    problems: list[Problem] = []
    for tool_id in loaded.tool_uses:
        try:
            tools.trust.require(chain_items(tools, tool_id), running=running)
        except NO_OUTCOMES:
            raise
        except PlaitError as error:
            place = loaded.tool_uses[tool_id]
            problems += [replace(one, where=one.where or place) for one in error.problems]
    if problems:
        raise InputError.together(problems)


def plan_program(
    flow: FlowSource,
    loaded: LoadedFlow,
    journal: Journal,
    folder: str,
    *,
    repeat: Iterable[str] = (),
    marked_done: Mapping[str, Json] | None = None,
    text: RunText = NO_TEXT,
    retried: Collection[str] = (),
) -> list[PlannedStep]:

    require_tools(flow, loaded, None, running=False)
    run = build_run_context(
        flow,
        loaded,
        journal,
        "dry-run",
        folder,
        RunObservers(),
        text=text,
        repeat=repeat,
        marked_done=marked_done,
        retried=retried,
        is_dry=True,
    )
    assert run.plan_log is not None
    try:
        result = _run_program("dry-run", loaded, run, flow)
    finally:
        run.events.close()
    fatal = _fatal(loaded, run, result)
    shown = [
        replace(one, fatal=True) if one.fails and one.path in fatal else one
        for one in run.plan_log.steps
    ]
    if result.failure is not None and not any(one.fatal for one in shown):
        raise would_fail_error(result.failure.message)  # no step that the plan shows fails
    return shown


def would_fail_error(message: str) -> InputError:
    return InputError(f"a run would fail: {message}", fix="fix that first", code="would-fail")


def _fatal(loaded: LoadedFlow, run: RunContext, result: FlowResult) -> set[str]:
    """Yield the paths of the steps by which a run, or items of its map, would fail."""
    paths = set() if result.failure is None else {result.failure.path}
    map_step = loaded.program.map
    for known in run.journal.steps_in(map_step.name) if map_step is not None else ():
        if isinstance(known.outcome, Failed):
            paths.add(known.outcome.failure.path)
    return paths
