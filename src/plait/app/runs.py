"""Run, resume and retry flows, and plan what they would do.

`run_flow` starts a run, `resume_flow` continues one, `retry_flow` runs dead letters again.  All
three perform the same flow; they differ in what the journal has recorded.

"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence

from plait.app.flow_source import (
    FlowSource,
    Options,
    find_flow,
    keep_backend,
    require_worktrees_in_place,
)
from plait.app.result import FlowResult, RunObservers
from plait.app.retention import remove_old_runs
from plait.app.run_builder import (
    execute_run,
    plan_program,
    require_backend,
    require_tools,
    would_fail_error,
)
from plait.app.toolbox import seals_for
from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING
from plait.core.projects import project_of_file
from plait.core.records import replace
from plait.core.values import Json
from plait.engine.outcome import ALL_FAILED
from plait.engine.run_text import NO_TEXT

if TYPE_CHECKING:
    from plait.adapters.git import Leftover
    from plait.adapters.store import OpenRun as OpenRun
    from plait.adapters.store import Runs as Runs
    from plait.adapters.store import RunSummary
    from plait.engine.events import EventRecord
    from plait.engine.plan_log import PlannedStep
    from plait.lang.loaded import LoadedFlow
    from plait.program.program import FilledDirective

__all__ = [
    "FlowResult",
    "Options",
    "RunObservers",
    "call_flow",
    "directive_prompt",
    "envelope",
    "find_lasting_failures",
    "find_run",
    "find_unfinished_run",
    "flow_runs",
    "flow_store",
    "list_leftovers",
    "load_all",
    "plan_flow_call",
    "plan_resume",
    "plan_run",
    "program_inputs",
    "project_of_file",
    "resume_flow",
    "retry_flow",
    "run",
    "run_flow",
    "run_program",
    "would_fail_error",
]


def load_all() -> None:
    """Import the modules that every run needs, before anything has to wait."""
    from importlib import import_module

    for name in (
        "plait.adapters.local",
        "plait.adapters.store",
        "plait.adapters.store.removal",
        "plait.app.hooks",
        "plait.app.services",
        "plait.lang.load",
        "plait.lang.workflow.read",
        "plait.tools.trust.seal",
    ):
        import_module(name)


def run(
    path: str | os.PathLike[str] | None = None,
    inputs: Mapping[str, Json] | None = None,
    *,
    project: str | os.PathLike[str] | None = None,
    strict: bool | None = None,
    max_parallel: int | None = None,
    profile: str | None = None,
    backend: str | None = None,
    resume: str | None = None,
    accept_changes: bool = False,
) -> FlowResult:
    """Run a flow file to its end; with `resume` continue an earlier run, given its secret inputs.

    The result has `.status`, `.value`, `.failure`, `.counts` and `.run`.
    """
    where = None if project is None else os.fspath(project)
    if resume is not None:
        return resume_flow(
            resume,
            project=where,
            accept_changes=accept_changes,
            max_parallel=max_parallel,
            backend=backend,
            inputs=inputs,
        )
    if path is None:
        raise InputError("a run needs a file", fix="plait.run('flow.yaml')", code="no-file")
    options = Options(inputs or {}, strict, max_parallel, profile, backend)
    return run_flow(os.fspath(path), options, project=where)


def run_flow(
    path: str,
    options: Options | None = None,
    *,
    project: str | None = None,
    observers: RunObservers | None = None,
    adapt: Callable[[LoadedFlow], LoadedFlow] | None = None,
) -> FlowResult:
    """Start a run, and work on it until it ends, fails or is stopped.

    `path` is a file, or the id of a directive; `adapt` may replace the program of the flow.
    """
    flow = find_flow(path, options or Options(), project)
    observers = observers or RunObservers()
    loaded = flow.load(ask=observers.ask)
    if adapt is not None:
        loaded = adapt(loaded)
    return _start_run(flow, loaded, observers)


def call_flow(
    tool_id: str,
    params: Mapping[str, Json],
    *,
    project: str | None = None,
    observers: RunObservers | None = None,
) -> FlowResult:
    """Run a tool that is a flow as a separate run, which is recorded and can be resumed."""
    from plait.app.toolbox import toolbox

    observers = observers or RunObservers()
    tools = toolbox(project, ask=observers.ask)
    root = tools.spaces.project or os.getcwd()
    flow = FlowSource(tools.chains.get(tool_id).tool.path, Options(params), root, tool=tool_id)
    loaded = flow.load(ask=observers.ask)
    return _start_run(flow, loaded, observers)


def _start_run(flow: FlowSource, loaded: LoadedFlow, observers: RunObservers) -> FlowResult:
    require_tools(flow, loaded, observers.ask)
    require_backend(flow, loaded, observers.stop)
    runs = flow_store(flow.project)
    notes = remove_old_runs(runs, flow.project)
    with runs.create(flow.facts(loaded)) as opened:
        return execute_run(flow, loaded, opened, observers, notes=notes)


def run_program(
    loaded: LoadedFlow,
    inputs: Mapping[str, Json],
    *,
    project: str | None,
    resume: str | None = None,
    accept_changes: bool = False,
    observers: RunObservers | None = None,
) -> tuple[FlowResult, list[EventRecord]]:
    """Run a program that was made in Python; return the result and all events.

    Without a project nothing is written; `resume` continues an earlier run of such a program.
    """
    flow = FlowSource(loaded.path, Options(inputs), project or os.getcwd())
    observers = observers or RunObservers()
    require_tools(flow, loaded, observers.ask)
    if project is None:
        from plait.app.temporary_run import TemporaryRun

        with TemporaryRun() as unkept:
            result = execute_run(flow, loaded, unkept, observers)
            return result, list(unkept.journal.events())
    runs = flow_store(project)
    notes: list[str] = []
    if resume is None:
        notes = remove_old_runs(runs, project)
        opening = runs.create({**flow.facts(loaded), "python": True})
    else:
        opening = runs.open_own(runs.find(resume), write=True)
    with opening as opened:
        text = NO_TEXT
        if resume is not None:
            from plait.app.edited_flow import EditedFlow, invalidate_removed

            edited = EditedFlow(loaded, opened)
            if not accept_changes:
                edited.require_accepted()
            text = edited.text(accepted=accept_changes)
            opened.update_facts(*invalidate_removed(edited), text=text.to_fact())
        result = execute_run(flow, loaded, opened, observers, text=text, notes=notes)
        return result, list(opened.journal.events())


def program_inputs(run: str, project: str) -> dict[str, Json]:
    """Return the inputs of a run of a Python program, without secrets."""
    runs = flow_store(project)
    with runs.open_own(runs.find(run), write=False) as opened:
        options = opened.facts.get("options")
        if not opened.facts.get("python"):
            fix = f"plait resume {opened.id} continues it"
            raise InputError(f"run {opened.id} is that of a file", fix=fix, code="not-python")
        return dict(options.get("inputs") or {}) if isinstance(options, Mapping) else {}


def resume_flow(
    run: str | None = None,
    *,
    project: str | None = None,
    accept_changes: bool = False,
    repeat: Sequence[str] = (),
    done: Sequence[str] = (),
    max_parallel: int | None = None,
    backend: str | None = None,
    keep_going: bool = False,
    inputs: Mapping[str, Json] | None = None,
    observers: RunObservers | None = None,
) -> FlowResult:
    """Resume a run: recorded outcomes are replayed.  `inputs`: secret ones, which are not stored."""
    from plait.app.edited_flow import EditedFlow, invalidate_removed
    from plait.app.failed_items import find_waiting_items
    from plait.app.resume_answers import ResumeAnswers

    runs, name = find_run(run, project)
    with runs.open_own(name, write=True) as opened:
        flow = FlowSource.of(
            opened, max_parallel, backend=backend, keep_going=keep_going, inputs=inputs
        )
        observers = observers or RunObservers()
        loaded = flow.load(ask=observers.ask)
        require_worktrees_in_place(flow, loaded, opened)
        edited = EditedFlow(loaded, opened)
        if not accept_changes:
            edited.require_accepted()
        answers = ResumeAnswers(repeat, done)
        answers.require_valid(loaded, opened)
        require_backend(flow, loaded, observers.stop, opened.journal)
        keep_backend(opened, backend)
        if flow.project != opened.facts["project"]:
            opened.update_facts(**flow.source(loaded))  # the project was moved
        text = edited.text(accepted=accept_changes)
        opened.update_facts(*invalidate_removed(edited), text=text.to_fact())
        marked_done = answers.values(loaded, opened)
        answers.keep(opened)
        return execute_run(
            flow,
            loaded,
            opened,
            observers,
            text=text,
            repeat=repeat,
            marked_done=marked_done,
            retried=find_waiting_items(loaded.program.map, opened),
        )


def retry_flow(
    run: str | None = None,
    *,
    project: str | None = None,
    items: Sequence[str] = (),
    from_start: bool = False,
    file: str | None = None,
    max_parallel: int | None = None,
    backend: str | None = None,
    keep_going: bool = False,
    observers: RunObservers | None = None,
) -> FlowResult:
    """Retry failed items, all or those that are named; the file may have been edited."""
    from plait.app.edited_flow import EditedFlow
    from plait.app.failed_items import (
        find_failed_items,
        find_waiting_items,
        invalidate_items,
    )
    from plait.app.resume_answers import ResumeAnswers, done_marks_in

    runs, name = find_run(run, project)
    with runs.open_own(name, write=True) as opened:
        flow = FlowSource.of(opened, max_parallel, file, backend=backend, keep_going=keep_going)
        observers = observers or RunObservers()
        loaded = flow.load(ask=observers.ask)
        require_worktrees_in_place(flow, loaded, opened)
        map_step = loaded.program.map
        waiting = find_waiting_items(map_step, opened)
        chosen = map_step and find_failed_items(map_step, opened.journal, items, waiting)
        if map_step is None or not chosen:
            raise InputError(
                f"run {opened.id} has no failed items",
                fix=f"plait show {opened.id}, or plait resume {opened.id} to continue it",
                code="nothing-to-retry",
            )
        require_backend(flow, loaded, observers.stop)
        keep_backend(opened, backend)
        answers = ResumeAnswers(repeat=done_marks_in(opened, chosen) if from_start else ())
        marked_done = answers.values(loaded, opened)
        answers.keep(opened)
        edited = EditedFlow(loaded, opened)
        text = edited.text_of_retry()
        opened.update_facts(
            *invalidate_items(map_step, chosen, from_start=from_start),
            **flow.source(loaded),
            text=text.to_fact(),
        )
        return execute_run(
            flow,
            loaded,
            opened,
            observers,
            text=replace(text, is_accepted=True),
            marked_done=marked_done,
            retried=[*chosen, *waiting],
        )


def plan_run(
    path: str, options: Options | None = None, *, project: str | None = None
) -> list[PlannedStep]:
    """Return what a run would do, with the values that are known before it."""
    from tempfile import TemporaryDirectory

    from plait.engine.journal import MemoryJournal

    flow = find_flow(path, options or Options(), project)
    loaded = flow.load(lenient=True)
    with TemporaryDirectory(prefix="plait-dry-run-") as folder:
        return plan_program(flow, loaded, MemoryJournal(), folder)


def plan_flow_call(
    tool_id: str, params: Mapping[str, Json], *, project: str | None = None
) -> list[PlannedStep]:
    """Return the same for a tool that is a flow."""
    from tempfile import TemporaryDirectory

    from plait.app.toolbox import toolbox
    from plait.engine.journal import MemoryJournal

    tools = toolbox(project)
    root = tools.spaces.project or os.getcwd()
    flow = FlowSource(tools.chains.get(tool_id).tool.path, Options(params), root, tool=tool_id)
    loaded = flow.load(lenient=True)
    with TemporaryDirectory(prefix="plait-dry-run-") as folder:
        return plan_program(flow, loaded, MemoryJournal(), folder)


def envelope(tool_id: str, result: FlowResult) -> dict[str, Json]:
    """Return the result of a flow that was called as a tool, in the form of every tool result."""
    value = result.value
    record: dict[str, Json] = {
        "status": "success" if result.status == "done" else "error",
        "type": "tool",
        "item_id": tool_id,
        "data": value.get("output") if isinstance(value, dict) else value,
        "metadata": {"run": result.run},
    }
    if result.failure is None:
        return record
    return {**record, "data": result.failure.output, "error": result.failure.message}


def plan_resume(
    run: str | None = None,
    *,
    project: str | None = None,
    repeat: Sequence[str] = (),
    done: Sequence[str] = (),
    inputs: Mapping[str, Json] | None = None,
) -> list[PlannedStep]:
    """Return what a resumed run would run again, and what it would replay."""
    from plait.app.edited_flow import EditedFlow, invalidate_removed
    from plait.app.failed_items import find_waiting_items
    from plait.app.resume_answers import ResumeAnswers
    from plait.engine.journal import Overlay

    runs, name = find_run(run, project)
    with runs.open_own(name, write=False) as opened:
        flow = FlowSource.of(opened, None, inputs=inputs)
        loaded = flow.load(lenient=True)
        require_worktrees_in_place(flow, loaded, opened)
        answers = ResumeAnswers(repeat, done)
        answers.require_valid(loaded, opened)
        journal = Overlay(opened.journal)
        edited = EditedFlow(loaded, opened)
        journal.append(*invalidate_removed(edited))
        return plan_program(
            flow,
            loaded,
            journal,
            opened.folder,
            repeat=repeat,
            marked_done=answers.values(loaded, opened),
            text=edited.text(accepted=True),
            retried=find_waiting_items(loaded.program.map, opened),
        )


def find_lasting_failures(
    run: str, *, project: str | None = None, inputs: Mapping[str, Json] | None = None
) -> tuple[FlowResult, list[str]] | None:
    """Return how a run has come to its end, and the titles of its failed items; None: resume it.

    A resumed run would only replay them.
    """
    from plait.app.edited_flow import EditedFlow
    from plait.app.failed_items import find_waiting_items, list_failed_items
    from plait.app.recorded_result import recorded_result

    runs, name = find_run(run, project)
    with runs.open_own(name, write=False) as opened:
        result = recorded_result(opened)
        kind = result.failure.kind if result.failure is not None else None
        if not result.exit_code or (result.status != "done" and kind != ALL_FAILED):
            return None
        loaded = FlowSource.of(opened, None, inputs=inputs).load(lenient=True)
        map_step = loaded.program.map
        if map_step is None or find_waiting_items(map_step, opened):
            return None
        try:
            EditedFlow(loaded, opened).require_accepted()
        except InputError:
            return None  # to resume it shows what has changed
        titles = [title for _, title in list_failed_items(map_step, opened.journal)]
    return (result, titles) if titles else None


def resume_blocker(
    run: str | None = None, *, project: str | None = None, inputs: Mapping[str, Json] | None = None
) -> InputError | None:
    """Return why a run cannot be resumed before its changes are accepted; None: it can."""
    from plait.app.edited_flow import EditedFlow

    runs, name = find_run(run, project)
    with runs.open_own(name, write=False) as opened:
        try:
            loaded = FlowSource.of(opened, None, inputs=inputs).load(lenient=True)
            EditedFlow(loaded, opened).require_accepted()
        except InputError as error:
            return error
    return None


def flow_store(project: str) -> Runs:
    from plait.adapters.store import Runs

    return Runs(project, seals=seals_for(project))


def flow_runs(project: str | None = None, most: int | None = None) -> list[RunSummary]:
    """Return the runs of a project, the newest first, at most `most`."""
    return flow_store(_state_project(project)).list(most)


def list_leftovers(project: str | None = None, *, clean: bool = False) -> list[Leftover]:
    """Return leftover worktrees of the runs of a project; with `clean`, those that remain."""
    from plait.adapters.git import clean_leftover as cleaned
    from plait.adapters.git import find_leftovers
    from plait.app.services import start_git

    root = _state_project(project)
    store = flow_store(root)
    own = {one.id for one in store.list() if not one.foreign}
    found = find_leftovers(start_git, root, store.folder, store.running(), own=own)
    if not clean:
        return found
    remains = [cleaned(start_git, root, store.folder, one) for one in found]
    return [one for one in remains if one is not None]


def find_run(run: str | None, project: str | None) -> tuple[Runs, str]:
    """Return the run whose id has a prefix; without one, the newest."""
    root = _state_project(project)
    runs = flow_store(root)
    if project is None and (above := runs_above(root)) is not None:
        raise InputError(
            f"there is no run in {root}",
            fix=f"{above} has runs: --project {shlex.quote(above)}",
            code="unknown-run",
        )
    return runs, runs.find(run)


def find_unfinished_run(project: str | None) -> str | None:
    """Return the newest run that was stopped or has failed; None: all have finished."""
    runs, _ = find_run(None, project)
    return runs.find_unfinished()


def runs_above(root: str) -> str | None:
    """Return a folder above that has runs, if this one has none."""
    from plait.core.projects import has_runs, nearest_runs

    return None if has_runs(root) else nearest_runs(root)


def _state_project(project: str | None) -> str:
    from plait.app.toolbox import project_root

    return project_root(project)


def directive_prompt(
    path: str, options: Options | None = None, *, project: str | None = None
) -> FilledDirective:
    """Return the prompt of a directive with its inputs filled; nothing is sent."""
    directive = find_flow(path, options or Options(), project).load().program.directive
    if directive is None:
        fix = "name a directive, or show what a run would do: --dry-run"
        raise InputError("this flow has no prompt of its own", path, fix, code="no-prompt")
    return directive.prompt
