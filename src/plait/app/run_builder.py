"""One life of a run: a loaded flow is performed, or rehearsed, until it ends, fails or is to
stop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

from plait.adapters.process import jobs
from plait.app import env_changes
from plait.app.result import FlowResult, RunObservers, TemporaryRun
from plait.core.errors import NO_OUTCOMES, InputError, JournalError, PlaitError, TrustError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.machine import map_machine_errors
from plait.core.records import replace
from plait.core.values import Json
from plait.engine.context import RunContext
from plait.engine.event_bus import StopSignal
from plait.engine.events import EarlierUsage, RunEnded, RunStarted
from plait.engine.outcome import (
    Aborted,
    DeadlineExceeded,
    Failed,
    Failure,
    Interrupted,
    StepError,
    Succeeded,
    too_long,
)
from plait.engine.perform import StepContext
from plait.engine.replay import NOT_RETRIED, RetriedItems
from plait.template.program import FACTS

if TYPE_CHECKING:
    from plait.adapters.store import OpenRun
    from plait.app.flow_source import FlowSource
    from plait.app.services import LocalServices
    from plait.engine.backend import Backend
    from plait.engine.journal import Journal
    from plait.engine.working_run import PlannedStep, WorkingRun
    from plait.lang.loaded import LoadedFlow
    from plait.tools.trust.decisions import AskTrust

NOTED: Final = frozenset({"refused-variable", "short-secret"})
"""Warnings that depend on what a run is given, so that no check of the file tells of them."""


def execute_run(
    flow: FlowSource,
    loaded: LoadedFlow,
    opened: OpenRun | TemporaryRun,
    company: RunObservers,
    *,
    accept_changes: bool = False,
    repeat: Iterable[str] = (),
    said_done: Mapping[str, Json] | None = None,
    retried: RetriedItems = NOT_RETRIED,
    notes: Iterable[str] = (),
) -> FlowResult:
    """`notes`: what was done before it, and is to be told with it."""
    with map_machine_errors(run=None if isinstance(opened, TemporaryRun) else opened.id):
        run = _new_run(
            flow,
            loaded,
            opened.journal,
            opened.id,
            opened.folder,
            company,
            accept_changes=accept_changes,
            repeat=repeat,
            said_done=said_done,
            retried=retried,
        )
        run.hands = _hands(flow, loaded, run, company.ask)
        _give_workspaces(flow, loaded, run)
        resumed = not opened.journal.is_fresh()
        if resumed:  # before anything begins in this life
            from plait.app.again import open_questions

            run.open_questions = dict(open_questions(loaded, opened.journal))
        program = loaded.program
        run.emit(
            RunStarted(opened.id, program.name, flow.path, flow.project, resumed, program.phases)
        )
        if resumed:
            run.notify(EarlierUsage(run.earlier.by_part()))
        for note in notes:
            run.note("", note)
        for finding in loaded.warnings:
            if finding.code in NOTED:
                run.note("", str(finding.problem))
        _note_new_variables(opened, loaded, run)
        if opened.why_unsealed:
            fix = f"put that right, then plait trust run {opened.id}"
            run.note(
                "",
                f"this run cannot be resumed, since it has no seal: {opened.why_unsealed}; {fix}",
            )
        result = FlowResult(opened.id, "failed")
        try:
            with jobs.listening(partial(run.warn, "")):
                result = _outcome(opened.id, loaded, run, flow)
            result = replace(result, has_seal=not opened.why_unsealed)
            run.emit(RunEnded(result.status, result.failure, facts=dict(result.counts)))
        except JournalError:
            with suppress(JournalError):  # the first one says more
                run.close()
            raise
        except BaseException:  # nothing is hidden: what was recorded is made safe first
            run.close()
            raise
        run.close()
        return result


def _note_new_variables(
    opened: OpenRun | TemporaryRun, loaded: LoadedFlow, run: RunContext
) -> None:
    """What the env files say now is accepted, and is what the next life of the run expects."""
    filed = loaded.surroundings.filed
    change = env_changes.describe_change(opened.facts.get("env_files"), filed)
    if change is not None:
        run.note("", f"the env files have changed, and the run goes on with them: {change}")
        opened.update_facts(env_files=env_changes.env_digest(filed))


def _outcome(id: str, loaded: LoadedFlow, run: WorkingRun, flow: FlowSource) -> FlowResult:
    from plait.app import hooks

    hooks.begin(loaded, run)
    turn = _first_turn(id, loaded, run, flow)
    result = _run_to_result(
        id, loaded, run, lambda: hooks.fire_run_started(loaded.program, turn, run.hooks)
    )
    if run.hooks is None or result.status == "interrupted":
        return result
    of = loaded.program, turn, run.hooks, result.value, result.failure
    told = _run_to_result(id, loaded, run, lambda: hooks.fire_run_ended(*of))
    if result.failure is None or told.failure is None or told.status == "interrupted":
        return result if told.status == "done" else replace(told, value=result.value)
    # What it failed by stays, whatever is said or met behind it: whoever resumes it is told of the
    # next end.
    run.note("", f"at run_failed: {told.failure.message}")
    return result


def _run_to_result(
    id: str, loaded: LoadedFlow, run: WorkingRun, work: Callable[[], Json]
) -> FlowResult:
    try:
        value = work()
    except (StepError, Aborted) as error:
        refused = error.failure.kind == "trust"
        return FlowResult(
            id, "failed", error.failure, counts=_counts(loaded, run), trust_refused=refused
        )
    except Interrupted:
        why = Failure(run.stop.why or "interrupted", "stopped")
        return FlowResult(id, "interrupted", why, counts=_counts(loaded, run))
    except DeadlineExceeded:
        return FlowResult(id, "failed", too_long(loaded.timeout or 0), counts=_counts(loaded, run))
    except JournalError:
        raise  # nothing more can be recorded, or asked of the journal
    except PlaitError as error:
        refused = isinstance(error, TrustError)
        failure = Failure(run.mask(str(error)), "trust" if refused else "refused")
        return FlowResult(id, "failed", failure, counts=_counts(loaded, run), trust_refused=refused)
    return FlowResult(id, "done", value=_for_callers(value), counts=_counts(loaded, run))


def _for_callers(value: Json) -> Json:
    """The value of a flow without the facts beside its captures, which are for templates."""
    captures = value.get("captures") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(captures, dict):
        return value
    return {
        **value,
        "captures": {name: one for name, one in captures.items() if not name.endswith(FACTS)},
    }


def _first_turn(id: str, loaded: LoadedFlow, run: WorkingRun, flow: FlowSource) -> StepContext:
    from plait.app.toolbox import command_output

    env = {**os.environ, **loaded.process_env()}
    may_change = None if run.rehearsal is None else lambda: run.would_have_run
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


def _counts(loaded: LoadedFlow, run: WorkingRun) -> dict[str, Json]:
    fan = loaded.program.fan
    if fan is None:
        return {}
    known = run.journal.step(fan.name)
    if known is None:
        return run.tallies[fan.name]() if fan.name in run.tallies else {}
    value = (
        known.outcome.failure.output
        if isinstance(known.outcome, Failed)
        else getattr(known.outcome, "value", None)
    )
    if not isinstance(value, dict):
        return {}
    return {name: count for name, count in value.items() if name != "isolation"}


def _new_run(
    flow: FlowSource,
    loaded: LoadedFlow,
    journal: Journal,
    id: str,
    folder: str,
    company: RunObservers,
    *,
    accept_changes: bool = False,
    repeat: Iterable[str] = (),
    said_done: Mapping[str, Json] | None = None,
    retried: RetriedItems = NOT_RETRIED,
    kind: type[WorkingRun] | None = None,
) -> WorkingRun:
    from plait.adapters.local import backend
    from plait.core.masking import Masker
    from plait.engine.working_run import WorkingRun

    masker = Masker(secrets) if (secrets := loaded.secret_texts()) else None
    run = (kind or WorkingRun)(
        id,
        journal,
        watchers=company.watchers,
        stop=company.stop,
        mask=masker.mask if masker else str,
        accept_changes=accept_changes,
        repeat=repeat,
        said_done=said_done,
        retried=retried,
        full_durability=loaded.durability == "full",
    )
    run.masker = masker
    run.folder = folder
    run.backend = _configure_backend(
        backend(flow.options.backend or loaded.backend), loaded, run, flow
    )
    return run


def _configure_backend(
    backend: Backend, loaded: LoadedFlow, run: WorkingRun, flow: FlowSource
) -> Backend:
    """A backend that sends items elsewhere gets somebody who can pack them."""
    if hasattr(backend, "office"):
        from plait.app.remote.pack import JobPacker

        backend.office = JobPacker(loaded, run, profile=flow.options.profile)
        for setting in ("stall_timeout", "wait_for_workers"):
            if (seconds := getattr(loaded, setting)) is not None:
                setattr(backend, setting, seconds)
    return backend


def require_backend(
    flow: FlowSource, loaded: LoadedFlow, stop: StopSignal, journal: Journal | None = None
) -> None:
    """Items that go elsewhere may go there, and somebody is there: what is wrong, before anything
    runs.
    """
    from plait.adapters.local import backend

    place = backend(flow.options.backend or loaded.backend)
    fan = loaded.program.fan
    if fan is None or fan.isolation is not None or not hasattr(place, "require_available"):
        return  # what works in a place of its own does so here
    if journal is not None and isinstance(
        getattr(journal.step(fan.name), "outcome", None), Succeeded
    ):
        return  # all items have ended, and nothing will be sent
    from plait.app.remote.pack import require_remote_capable

    require_remote_capable(loaded)
    place.require_available(stop)


def require_tools(
    flow: FlowSource, loaded: LoadedFlow, ask: AskTrust | None, *, running: bool = True
) -> None:
    """Every tool that the flow names exists and may run: all that is wrong, before anything runs.

    Not `running`: for a dry run, which remembers nothing of them.
    """
    if not loaded.tool_uses:
        return
    from plait.app.subflows import chain_items, code_problems
    from plait.app.toolbox import toolbox

    tools = toolbox(flow.project, ask=ask)
    problems = code_problems(tools, loaded)
    if problems:  # before anybody is asked whether a tool may run
        raise InputError.together(problems)
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


def _hands(
    flow: FlowSource, loaded: LoadedFlow, run: WorkingRun, ask: AskTrust | None
) -> LocalServices:
    from plait.app.services import LocalServices

    return LocalServices(
        flow.project,
        run.folder,
        run.stop,
        env=loaded.process_env(),
        ask=ask,
        keeps_overflow=not loaded.secret_texts(),
        note=lambda message: run.note("", message),
    )


def _give_workspaces(flow: FlowSource, loaded: LoadedFlow, run: WorkingRun) -> None:
    if loaded.program.fan is None or loaded.program.fan.isolation is None:
        return
    from plait.adapters.git import GitWorktrees
    from plait.app.services import start_git

    run.workspaces = GitWorktrees(start_git, flow.project, run.folder, run.id)


def plan_program(
    flow: FlowSource,
    loaded: LoadedFlow,
    journal: Journal,
    folder: str,
    *,
    repeat: Iterable[str] = (),
    said_done: Mapping[str, Json] | None = None,
    retried: RetriedItems = NOT_RETRIED,
) -> list[PlannedStep]:
    from plait.engine.working_run import RehearsedRun

    require_tools(flow, loaded, None, running=False)
    run = _new_run(
        flow,
        loaded,
        journal,
        "dry-run",
        folder,
        RunObservers(),
        accept_changes=True,
        repeat=repeat,
        said_done=said_done,
        retried=retried,
        kind=RehearsedRun,
    )
    run.hands = _hands(flow, loaded, run, None)
    run.rehearsal = []
    try:
        result = _outcome("dry-run", loaded, run, flow)
    finally:
        run.close()
    fatal = _fatal(loaded, run, result)
    shown = [
        replace(one, fatal=True) if one.fails and one.path in fatal else one
        for one in run.rehearsal
    ]
    if result.failure is not None and not any(one.fatal for one in shown):
        raise would_fail_error(result.failure.message)  # not by a step that could be shown
    return shown


def would_fail_error(message: str) -> InputError:
    return InputError(f"a run would fail: {message}", fix="mend that first", code="would-fail")


def _fatal(loaded: LoadedFlow, run: RunContext, result: FlowResult) -> set[str]:
    """The paths of the steps by which a run, or items of its map, would fail."""
    paths = set() if result.failure is None else {result.failure.path}
    fan = loaded.program.fan
    for known in run.journal.steps_in(fan.name) if fan is not None else ():
        if isinstance(known.outcome, Failed):
            paths.add(known.outcome.failure.path)
    return paths
