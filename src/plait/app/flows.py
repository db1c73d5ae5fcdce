"""Runs of flows, put together: a loaded file, a journal, hands, and whoever watches.

`run_flow` begins a run, `resume_flow` goes on with one, `retry_flow` does dead
letters again; all three perform the same flow, and differ in what the journal
already knows.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from plait.app import env_changes
from plait.engine.events import RunEnded, RunStarted, Status, StepForgotten
from plait.engine.outcome import Aborted, Failed, Failure, Interrupted, OutOfTime, StepError, too_long
from plait.engine.perform import Step, Turn, inside
from plait.engine.run import Run, Stop, Watch, changed_steps
from plait.errors import InputError, PlaitError, Problem, TrustError, listed, nearest
from plait.hints import TYPE_CHECKING, Final
from plait.records import dataclass, field, replace
from plait.template.program import FACTS
from plait.values import Json, Secret

if TYPE_CHECKING:
    from plait.app.hands import RealHands
    from plait.engine.backend import Backend
    from plait.engine.journal import Journal, Recorded, Stamped
    from plait.flows.directive import Filled
    from plait.flows.loaded import Loaded
    from plait.steps.hands import Rehearsed, WorkingRun
    from plait.store import Opened, Runs, RunSummary
    from plait.tools.trust import Ask as AskTrust
    from plait.workspace import Left

KEEP_RUNS: Final = 200
KEEP_DAYS: Final = 30.0
INPUT: Final = "map/items"
"""The step that reads the input of a map."""
NOTED: Final = frozenset({"refused-variable", "short-secret"})
"""Warnings that depend on what a run is given, so that no check of the file tells of them."""


@dataclass(frozen=True, slots=True)
class FlowResult:
    """What became of a run."""

    run: str
    status: Status
    failure: Failure | None = None
    value: Json = None
    counts: Mapping[str, Json] = field(default_factory=dict)
    """`total`, `successful`, `failed` of its items."""
    trust_refused: bool = False

    @property
    def exit_code(self) -> int:
        if self.status == "interrupted":
            return 130
        if self.trust_refused:
            return 3
        if self.failure is not None and self.failure.kind == "refused" and self.failure.path == INPUT:
            return 2  # as for any other file of the user's that is missing or cannot be read
        return 1 if self.status == "failed" or self.counts.get("failed") else 0


@dataclass(frozen=True, slots=True)
class Options:
    """How a flow is to be run; kept with the run, so that it is resumed in the same way."""

    inputs: Mapping[str, Json] = field(default_factory=dict)
    strict: bool | None = None
    max_parallel: int | None = None
    profile: str | None = None
    backend: str | None = None
    """None: the one that the flow names."""

    def record(self) -> dict[str, Json]:
        return {
            "inputs": dict(self.inputs),
            "strict": self.strict,
            "max_parallel": self.max_parallel,
            "profile": self.profile,
            "backend": self.backend,
        }


@dataclass(frozen=True, slots=True)
class Company:
    """Who is there while a run is worked on: those who watch, who may stop it, who answers about trust."""

    watchers: Sequence[Watch] = ()
    stop: Stop = field(default_factory=Stop)
    ask: AskTrust | None = None


def load_all() -> None:
    """Load the parts that every run takes, before there is anything to wait for."""
    import plait.app.hands
    import plait.flows.load
    import plait.flows.workflow
    import plait.store  # noqa: F401 - for those who come after


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
    """Run a flow file to its end; `resume` goes on with an earlier run instead, given its secret inputs.

    The result says what became of it: `.status`, `.value`, `.failure`, `.counts`, `.run`.
    """
    where = None if project is None else os.fspath(project)
    if resume is not None:
        return resume_flow(
            resume,
            project=where,
            accept_changes=accept_changes,
            max_parallel=max_parallel,
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
    company: Company | None = None,
    adapt: Callable[[Loaded], Loaded] | None = None,
) -> FlowResult:
    """Begin a run, and work on it until it ends, fails or is to stop.

    `path` is a file, or the id of a directive; `adapt` may put another program in the place of its own.
    """
    flow = _flow_named(path, options or Options(), project)
    company = company or Company()
    loaded = flow.load(ask=company.ask)
    if adapt is not None:
        loaded = adapt(loaded)
    _expect_tools(flow, loaded, company.ask)
    runs = flow_store(flow.project)
    runs.remove_old(keep=KEEP_RUNS, days=KEEP_DAYS)
    with runs.create(flow.facts(loaded)) as opened:
        return _worked(flow, loaded, opened, company)


def call_flow(
    tool_id: str,
    params: Mapping[str, Json],
    *,
    project: str | None = None,
    company: Company | None = None,
) -> FlowResult:
    """Run a tool that is a flow, as a run of its own: it is recorded, and can be resumed."""
    from plait.app import toolbox

    company = company or Company()
    tools = toolbox(project, ask=company.ask)
    root = tools.spaces.project or os.getcwd()
    flow = _Flow(tools.chains.get(tool_id).tool.path, Options(params), root, tool=tool_id)
    loaded = flow.load(ask=company.ask)
    _expect_tools(flow, loaded, company.ask)
    runs = flow_store(flow.project)
    runs.remove_old(keep=KEEP_RUNS, days=KEEP_DAYS)
    with runs.create(flow.facts(loaded)) as opened:
        return _worked(flow, loaded, opened, company)


def run_made(
    loaded: Loaded,
    inputs: Mapping[str, Json],
    *,
    project: str | None,
    resume: str | None = None,
    accept_changes: bool = False,
    company: Company | None = None,
) -> tuple[FlowResult, list[Stamped]]:
    """Run a program that was made in Python, and no file: what became of it, and all that happened.

    Without a project nothing is kept of it; `resume` goes on with an earlier run of one.
    """
    flow = _Flow(loaded.path, Options(inputs), project or os.getcwd())
    company = company or Company()
    _expect_tools(flow, loaded, company.ask)
    if project is None:
        with _Unkept() as unkept:
            result = _worked(flow, loaded, unkept, company)
            return result, list(unkept.journal.events())
    runs = flow_store(project)
    if resume is None:
        runs.remove_old(keep=KEEP_RUNS, days=KEEP_DAYS)
        opening = runs.create({**flow.facts(loaded), "python": True})
    else:
        opening = runs.open(runs.find(resume), write=True)
    with opening as opened:
        if resume is not None and not accept_changes:
            _expect_unchanged(loaded, opened)
        result = _worked(flow, loaded, opened, company, accept_changes=accept_changes)
        return result, list(opened.journal.events())


def made_inputs(run: str, project: str) -> dict[str, Json]:
    """What a run of a program made in Python was given, but for secrets."""
    runs = flow_store(project)
    with runs.open(runs.find(run), write=False) as opened:
        options = opened.facts.get("options")
        if not opened.facts.get("python"):
            fix = f"plait resume {opened.id} goes on with it"
            raise InputError(f"run {opened.id} is that of a file", fix=fix, code="not-python")
        return dict(options.get("inputs") or {}) if isinstance(options, Mapping) else {}


class _Unkept:
    """A run of which nothing is left when it is over."""

    def __init__(self) -> None:
        from tempfile import TemporaryDirectory

        from plait.engine.journal import MemoryJournal

        self.id = "unkept"
        self.journal = MemoryJournal()
        self.facts: dict[str, Json] = {}
        self._temporary = TemporaryDirectory(prefix="plait-run-")
        self.folder = self._temporary.name

    def amend(self, **facts: Json) -> None:
        self.facts |= facts

    def __enter__(self) -> _Unkept:
        return self

    def __exit__(self, *_: object) -> None:
        self._temporary.cleanup()


def resume_flow(
    run: str | None = None,
    *,
    project: str | None = None,
    accept_changes: bool = False,
    repeat: Sequence[str] = (),
    done: Sequence[str] = (),
    max_parallel: int | None = None,
    inputs: Mapping[str, Json] | None = None,
    company: Company | None = None,
) -> FlowResult:
    """Go on with a run: what is recorded is not done again.  `inputs`: secret ones, which are not kept."""
    runs, name = find_run(run, project)
    with runs.open(name, write=True) as opened:
        flow = _Flow.of(opened, max_parallel, inputs=inputs)
        company = company or Company()
        loaded = flow.load(ask=company.ask)
        if not accept_changes:
            _expect_unchanged(loaded, opened)
        _expect_steps(loaded, opened.journal, [*repeat, *done])
        _say_done(loaded, opened.journal, done)
        return _worked(
            flow,
            loaded,
            opened,
            company,
            accept_changes=accept_changes,
            repeat=repeat,
        )


def retry_flow(
    run: str | None = None,
    *,
    project: str | None = None,
    items: Sequence[str] = (),
    from_start: bool = False,
    file: str | None = None,
    max_parallel: int | None = None,
    company: Company | None = None,
) -> FlowResult:
    """Do failed items again, all of them or those that are named; the file may have been edited since."""
    runs, name = find_run(run, project)
    with runs.open(name, write=True) as opened:
        flow = _Flow.of(opened, max_parallel, file)
        company = company or Company()
        loaded = flow.load(ask=company.ask)
        forgotten = list(_letters_to_retry(loaded, opened.journal, items, from_start=from_start))
        if not forgotten:
            raise InputError(
                f"run {opened.id} has no failed items",
                fix=f"plait show {opened.id}, or plait resume {opened.id} to go on with it",
                code="nothing-to-retry",
            )
        opened.journal.append(*forgotten)
        retried = [event.path for event in forgotten]
        return _worked(
            flow,
            loaded,
            opened,
            company,
            accept_changes=True,
            retried=retried,
        )


def rehearse_flow(
    path: str, options: Options | None = None, *, project: str | None = None
) -> list[Rehearsed]:
    """What a run would do, with the values that are known before it: nothing is run or written."""
    from tempfile import TemporaryDirectory

    from plait.engine.journal import MemoryJournal

    flow = _flow_named(path, options or Options(), project)
    loaded = flow.load(lenient=True)
    with TemporaryDirectory(prefix="plait-rehearsal-") as folder:
        return _rehearsed(flow, loaded, MemoryJournal(), folder)


def rehearse_call(tool_id: str, params: Mapping[str, Json], *, project: str | None = None) -> list[Rehearsed]:
    """The same for a tool that is a flow."""
    from tempfile import TemporaryDirectory

    from plait.app import toolbox
    from plait.engine.journal import MemoryJournal

    tools = toolbox(project)
    root = tools.spaces.project or os.getcwd()
    flow = _Flow(tools.chains.get(tool_id).tool.path, Options(params), root, tool=tool_id)
    loaded = flow.load(lenient=True)
    with TemporaryDirectory(prefix="plait-rehearsal-") as folder:
        return _rehearsed(flow, loaded, MemoryJournal(), folder)


def envelope(tool_id: str, result: FlowResult) -> dict[str, Json]:
    """What became of a flow that was called as a tool, as the result of every tool looks."""
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


def rehearse_resume(
    run: str | None = None, *, project: str | None = None, inputs: Mapping[str, Json] | None = None
) -> list[Rehearsed]:
    """What a resumed run would do again, and what it would remember."""
    from plait.engine.journal import Overlay

    runs, name = find_run(run, project)
    with runs.open(name, write=False) as opened:
        flow = _Flow.of(opened, None, inputs=inputs)
        loaded = flow.load(lenient=True)
        return _rehearsed(flow, loaded, Overlay(opened.journal), opened.folder)


def flow_store(project: str) -> Runs:
    from plait.store import Runs

    return Runs(project)


def flow_runs(project: str | None = None) -> list[RunSummary]:
    """The runs of a project, newest first."""
    return flow_store(_state_project(project)).list()


def left_worktrees(project: str | None = None, *, clean: bool = False) -> list[Left]:
    """What runs of a project left behind of the worktrees of their items; what still is, after cleaning."""
    from plait.app.hands import start_git
    from plait.workspace import clean as cleaned
    from plait.workspace import left_behind

    root = _state_project(project)
    store = flow_store(root)
    running = {one.id for one in store.list() if one.status == "running"}
    found = left_behind(start_git, root, store.folder, running)
    if not clean:
        return found
    remains = [cleaned(start_git, root, store.folder, one) for one in found]
    return [one for one in remains if one is not None]


def find_run(run: str | None, project: str | None) -> tuple[Runs, str]:
    """A run by the beginning of its id; the newest if none is named."""
    runs = flow_store(_state_project(project))
    return runs, runs.find(run)


def _state_project(project: str | None) -> str:
    from plait.app import project_root

    return project_root(project)


# ── one life of a run ────────────────────────────────────────────────────


class _Flow:
    """A file, how it is to be run, and where."""

    def __init__(self, path: str, options: Options, project: str | None, *, tool: str | None = None) -> None:
        self.path = path
        self.options = options
        self.tool = tool
        """Its id, if it was called as a tool: then its file is judged before it is looked at."""
        self.project = project or project_of_file(path)
        self.started = time.strftime("%Y-%m-%dT%H:%M:%S%z")

    @classmethod
    def of(
        cls,
        opened: Opened,
        max_parallel: int | None,
        file: str | None = None,
        *,
        inputs: Mapping[str, Json] | None = None,
    ) -> _Flow:
        facts = opened.facts
        if "file" not in facts:
            raise InputError(
                f"run {opened.id} was never begun: Plait was ended while it made it",
                fix="plait run FILE begins a new one",
                code="unknown-run",
            )
        if facts.get("python"):
            raise InputError(
                f"run {opened.id} was begun by a program in Python, and only that can go on with it",
                fix=f"there: ensemble.run(resume='{opened.id}')",
                code="made-in-python",
            )
        said = facts.get("options")
        kept = dict(said) if isinstance(said, Mapping) else {}
        if max_parallel is not None:
            kept["max_parallel"] = max_parallel
        kept["inputs"] = {**(kept.get("inputs") or {}), **_given_again(opened, inputs or {})}
        path = os.path.abspath(file) if file else str(facts["file"])
        tool = facts.get("tool")
        called = tool if isinstance(tool, str) and not file else None
        flow = cls(path, Options(**kept), str(facts["project"]), tool=called)
        flow.started = str(facts.get("started", ""))
        return flow

    def load(self, *, lenient: bool = False, ask: AskTrust | None = None) -> Loaded:
        from plait.app.hooks import with_layers

        loaded = self._load(lenient=lenient, ask=ask)
        return with_layers(loaded, self.project, ask, running=not lenient)

    def _load(self, *, lenient: bool, ask: AskTrust | None) -> Loaded:
        from plait.flows.load import load_flow

        options = self.options
        if self.tool is not None:
            return self._load_tool(self.tool, lenient=lenient, ask=ask)
        return load_flow(
            self.path,
            given=options.inputs,
            project=self.project,
            profile=options.profile,
            strict=False if lenient else options.strict,
            max_parallel=options.max_parallel,
            environ=os.environ,
        )

    def _load_tool(self, tool_id: str, *, lenient: bool, ask: AskTrust | None) -> Loaded:
        from plait.app import toolbox
        from plait.app.programs import load_tool

        loaded = load_tool(
            toolbox(self.project, ask=ask),
            tool_id,
            self.options.inputs,
            project=self.project,
            running=not lenient,
            strict=False if lenient else self.options.strict,
            max_parallel=self.options.max_parallel,
        )
        if loaded is None:
            raise InputError(
                f"'{tool_id}' is no flow any more", self.path, "begin a new run", code="not-a-flow"
            )
        return loaded

    def facts(self, loaded: Loaded) -> dict[str, Json]:
        # A secret is not kept with the run, also if that means that it has to be given again.
        given = self.options.inputs
        withheld = sorted(_with_secrets(given, loaded))
        kept = {name: value for name, value in given.items() if name not in withheld}
        return {
            **({} if self.tool is None else {"tool": self.tool}),
            "kind": loaded.kind,
            "flow": loaded.program.name,
            "file": self.path,
            "project": self.project,
            "started": self.started,
            "options": replace(self.options, inputs=kept).record(),
            **({"withheld": withheld} if withheld else {}),
            "env_files": env_changes.remembered(loaded.surroundings.filed),
        }


def _with_secrets(given: Mapping[str, Json], loaded: Loaded) -> Iterator[str]:
    """The inputs that are declared to be secret, or hold a declared secret, in whatever usual form."""
    from plait.masking import Masker, masked

    mask = Masker(loaded.secret_texts()).mask
    for name, value in given.items():
        if isinstance(loaded.parameters.get(name), Secret) or masked(value, mask) != value:
            yield name


GIVEN: Final = "PLAIT_INPUT_"
"""Before the name of a secret input: the variable from which a resumed run takes it."""


def _given_again(opened: Opened, inputs: Mapping[str, Json]) -> dict[str, Json]:
    """The secret inputs of a run, told anew; InputError if it cannot go on with what it gets."""
    said = opened.facts.get("withheld")
    withheld = [str(name) for name in said] if isinstance(said, list) else []
    others = [name for name in inputs if name not in withheld]
    if others:
        what = f"run {opened.id} has its inputs already: {listed(others)}"
        raise InputError(what, fix="begin a new run with other inputs: plait run …", code="input-kept")
    told = {name: os.environ[GIVEN + name] for name in withheld if GIVEN + name in os.environ}
    given = {**told, **inputs}
    missing = [name for name in withheld if name not in given]
    if missing:
        variables = " ".join(f"{GIVEN}{name}=…" for name in missing)
        raise InputError(
            f"run {opened.id} was given secrets, which are not kept with it: {listed(missing)}",
            fix=f"give them again: {variables} plait resume {opened.id}",
            code="secret-input",
        )
    return given


def prompt_of(path: str, options: Options | None = None, *, project: str | None = None) -> Filled:
    """The prompt of a directive with its inputs put in; nothing is sent."""
    from plait.flows.directive import Directed

    program = _flow_named(path, options or Options(), project).load().program
    if not isinstance(program, Directed):
        fix = "name a directive, or show what a run would do: --dry-run"
        raise InputError("this flow has no prompt of its own", path, fix, code="no-prompt")
    return program.prompt


def _flow_named(path: str, options: Options, project: str | None) -> _Flow:
    """The flow in a file; or, where there is no such file, the directive with such an id."""
    from plait.steps.permissions import DIRECTIVE, plain_id

    wanted = plain_id(DIRECTIVE + path.removeprefix(DIRECTIVE))
    if os.path.lexists(path) or wanted is None:
        return _Flow(os.path.abspath(path), options, project)
    from plait.app import toolbox
    from plait.tools.spaces import DIRECTIVES

    spaces = toolbox(project).spaces
    found = spaces.find(wanted.removeprefix(DIRECTIVE), folder=DIRECTIVES)
    if found is None:
        if path.startswith(DIRECTIVE):
            raise spaces.missing(path.removeprefix(DIRECTIVE), folder=DIRECTIVES)
        return _Flow(os.path.abspath(path), options, project)
    return _Flow(found.path, options, spaces.project or os.getcwd(), tool=wanted)


def project_of_file(path: str) -> str:
    """The project that a flow belongs to: the nearest folder above it with a `.ai`, or its own."""
    folder = own = os.path.dirname(os.path.realpath(path))
    while folder != os.path.dirname(folder):
        if os.path.isdir(os.path.join(folder, ".ai")) and folder != os.path.realpath(os.path.expanduser("~")):
            return folder
        folder = os.path.dirname(folder)
    return own


def _worked(
    flow: _Flow,
    loaded: Loaded,
    opened: Opened | _Unkept,
    company: Company,
    *,
    accept_changes: bool = False,
    repeat: Iterable[str] = (),
    retried: Iterable[str] = (),
) -> FlowResult:
    run = _new_run(
        flow,
        loaded,
        opened.journal,
        opened.id,
        opened.folder,
        company,
        accept_changes=accept_changes,
        repeat=repeat,
        retried=retried,
    )
    run.hands = _hands(flow, loaded, run, company.ask)
    _give_workspaces(flow, loaded, run)
    resumed = not opened.journal.is_fresh()
    if resumed:  # before anything begins in this life
        run.unanswered = dict(_unanswered(loaded, opened.journal))
    program = loaded.program
    run.emit(RunStarted(opened.id, program.name, flow.path, flow.project, resumed, program.phases))
    for finding in loaded.warnings:
        if finding.code in NOTED:
            run.note("", str(finding.problem))
    _note_new_variables(opened, loaded, run)
    result = FlowResult(opened.id, "failed")
    try:
        result = _outcome(opened.id, loaded, run, flow)
        run.emit(RunEnded(result.status, result.failure, facts=dict(result.counts)))
    finally:
        run.close()
    return result


def _note_new_variables(opened: Opened | _Unkept, loaded: Loaded, run: Run) -> None:
    """What the env files say now is accepted, and is what the next life of the run expects."""
    filed = loaded.surroundings.filed
    change = env_changes.change_of(opened.facts.get("env_files"), filed)
    if change is not None:
        run.note("", f"the env files have changed, and the run goes on with them: {change}")
        opened.amend(env_files=env_changes.remembered(filed))


def _outcome(id: str, loaded: Loaded, run: WorkingRun, flow: _Flow) -> FlowResult:
    from plait.app import hooks

    hooks.begin(loaded, run)
    turn = _first_turn(id, loaded, run, flow)
    result = _come_to(id, loaded, run, lambda: hooks.started(loaded.program.run, turn, run.hooks))
    if run.hooks is None or result.status == "interrupted":
        return result
    told = _come_to(id, loaded, run, lambda: hooks.ended(turn, run.hooks, result.value, result.failure))
    return result if told.status == "done" else replace(told, value=result.value)


def _come_to(id: str, loaded: Loaded, run: WorkingRun, work: Callable[[], Json]) -> FlowResult:
    try:
        value = work()
    except (StepError, Aborted) as error:
        refused = error.failure.kind == "trust"
        return FlowResult(id, "failed", error.failure, counts=_counts(loaded, run), trust_refused=refused)
    except Interrupted:
        why = Failure(run.stop.why or "interrupted", "stopped")
        return FlowResult(id, "interrupted", why, counts=_counts(loaded, run))
    except OutOfTime:
        return FlowResult(id, "failed", too_long(loaded.timeout or 0), counts=_counts(loaded, run))
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
    return {**value, "captures": {name: one for name, one in captures.items() if not name.endswith(FACTS)}}


def _first_turn(id: str, loaded: Loaded, run: WorkingRun, flow: _Flow) -> Turn:
    from plait.app import printed_by

    env = {**os.environ, **loaded.process_env()}
    commands = None if run.rehearsal is not None else lambda bound, place: printed_by(bound, place, env)
    return Turn(
        run,
        "",
        loaded.scope(id, sources=loaded.sources(run=commands), started=flow.started),
        deadline=None if loaded.timeout is None else time.monotonic() + loaded.timeout,
        directory=flow.project,
        env=env,
    )


def _counts(loaded: Loaded, run: WorkingRun) -> dict[str, Json]:
    fan = loaded.program.fan
    if fan is None:
        return {}
    known = run.journal.recorded(fan.name)
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
    flow: _Flow,
    loaded: Loaded,
    journal: Journal,
    id: str,
    folder: str,
    company: Company,
    *,
    accept_changes: bool = False,
    repeat: Iterable[str] = (),
    retried: Iterable[str] = (),
    kind: type[WorkingRun] | None = None,
) -> WorkingRun:
    from plait.backends import backend
    from plait.masking import Masker
    from plait.steps.hands import WorkingRun

    masker = Masker(secrets) if (secrets := loaded.secret_texts()) else None
    run = (kind or WorkingRun)(
        id,
        journal,
        watchers=company.watchers,
        stop=company.stop,
        mask=masker.mask if masker else str,
        accept_changes=accept_changes,
        repeat=repeat,
        retried=retried,
        full_durability=loaded.durability == "full",
    )
    run.masker = masker
    run.folder = folder
    run.backend = _placed(backend(flow.options.backend or loaded.backend), loaded, run, flow)
    return run


def _placed(backend: Backend, loaded: Loaded, run: WorkingRun, flow: _Flow) -> Backend:
    """A backend that sends items elsewhere gets somebody who can pack them."""
    if hasattr(backend, "office"):
        from plait.app.away import Away

        backend.office = Away(loaded, run, profile=flow.options.profile)
    return backend


def _expect_tools(flow: _Flow, loaded: Loaded, ask: AskTrust | None) -> None:
    """Every tool that the flow names exists and may run: all that is wrong, before anything runs."""
    if not loaded.uses:
        return
    from plait.app import toolbox
    from plait.app.programs import elements_of

    tools = toolbox(flow.project, ask=ask)
    problems: list[Problem] = []
    for tool_id in loaded.uses:
        try:
            tools.trust.require(elements_of(tools, tool_id))
        except TrustError:
            raise
        except PlaitError as error:
            place = loaded.uses[tool_id]
            problems += [replace(one, where=one.where or place) for one in error.problems]
    if problems:
        raise InputError.together(problems)


def _hands(flow: _Flow, loaded: Loaded, run: WorkingRun, ask: AskTrust | None) -> RealHands:
    from plait.app.hands import RealHands

    return RealHands(
        flow.project,
        run.folder,
        run.stop,
        env=loaded.process_env(),
        ask=ask,
        keeps_overflow=not loaded.secret_texts(),
        note=lambda message: run.note("", message),
    )


def _give_workspaces(flow: _Flow, loaded: Loaded, run: WorkingRun) -> None:
    if loaded.program.fan is None or loaded.program.fan.isolation is None:
        return
    from plait.app.hands import start_git
    from plait.workspace import Worktrees

    run.workspaces = Worktrees(start_git, flow.project, run.folder, run.id)


def _rehearsed(flow: _Flow, loaded: Loaded, journal: Journal, folder: str) -> list[Rehearsed]:
    from plait.steps.hands import RehearsedRun

    run = _new_run(
        flow, loaded, journal, "dry-run", folder, Company(), accept_changes=True, kind=RehearsedRun
    )
    run.hands = _hands(flow, loaded, run, None)
    run.rehearsal = []
    try:
        result = _outcome("dry-run", loaded, run, flow)
    finally:
        run.close()
    fatal = _fatal(loaded, run, result)
    shown = [replace(one, fatal=True) if one.fails and one.path in fatal else one for one in run.rehearsal]
    if result.failure is not None and not any(one.fatal for one in shown):
        raise would_fail(result.failure.message)  # not by a step that could be shown
    return shown


def would_fail(message: str) -> InputError:
    return InputError(f"a run would fail: {message}", fix="mend that first", code="would-fail")


def _fatal(loaded: Loaded, run: Run, result: FlowResult) -> set[str]:
    """The paths of the steps by which a run, or items of its map, would fail."""
    paths = set() if result.failure is None else {result.failure.path}
    fan = loaded.program.fan
    for known in run.journal.recorded_in(fan.name) if fan is not None else ():
        if isinstance(known.outcome, Failed):
            paths.add(known.outcome.failure.path)
    return paths


# ── what changed, what is to be done again ───────────────────────────────


def _expect_unchanged(loaded: Loaded, opened: Opened) -> None:
    """All that is not as it was, before anything is done."""
    problems = [*_changed_steps(loaded, opened.journal)]
    change = env_changes.change_of(opened.facts.get("env_files"), loaded.surroundings.filed)
    if change is not None:
        problems.append(env_changes.problem_of(change))
    if problems:
        raise InputError.together(problems)


def _changed_steps(loaded: Loaded, journal: Journal) -> Sequence[Problem]:
    """The steps that were done and have another text now."""
    changed: dict[str, str] = {}
    for path, step in _flow_steps(loaded):
        if step.inner:
            continue
        for recorded in _recorded_like(journal, path):
            if recorded.fingerprint != step.fingerprint and not isinstance(recorded.outcome, Failed):
                changed.setdefault(path, step.title)
                break
    return changed_steps(changed.items()).problems if changed else ()


def _flow_steps(loaded: Loaded) -> Iterator[tuple[str, Step]]:
    for part in loaded.program.inner:
        yield from inside(part)


def _recorded_like(journal: Journal, path: str) -> Iterator[Recorded]:
    """What is recorded at a path in which `item:*` stands for every item."""
    top, star, rest = path.partition("/item:*")
    if not star:
        known = journal.recorded(path)
        return iter(() if known is None else (known,))
    return _of_items(journal, top, rest)


def _of_items(journal: Journal, top: str, rest: str) -> Iterator[Recorded]:
    for item in journal.recorded_in(top):
        if "/item:" in item.path[len(top) :]:
            yield from _recorded_like(journal, item.path + rest)


def _expect_steps(loaded: Loaded, journal: Journal, paths: Sequence[str]) -> None:
    """Every path is that of a step, and where it is inside an item, the item has begun."""
    from plait.steps.conversation import use_at

    known = dict(_flow_steps(loaded))
    for path in paths:
        if journal.was_started(path) and (_is_call(path) or use_at(journal, path) is not None):
            continue
        if _step_at(known, path) is None or ("/item:" in path and not _has_begun(journal, path)):
            raise _no_step(path, known)


def _unanswered(loaded: Loaded, journal: Journal) -> Iterator[tuple[str, str]]:
    """The steps that may run only once and were under way when an earlier life of the run ended."""
    known = dict(_flow_steps(loaded))
    for path in journal.unfinished():
        step = _step_at(known, path)
        if step is not None and step.policy.once and not _is_inside_recorded(journal, path):
            yield path, step.title


def _is_inside_recorded(journal: Journal, path: str) -> bool:
    parts = path.split("/")
    return any(journal.recorded("/".join(parts[:length])) is not None for length in range(1, len(parts)))


def _has_begun(journal: Journal, path: str) -> bool:
    return journal.was_started(path) or journal.recorded(path) is not None


def _say_done(loaded: Loaded, journal: Journal, paths: Sequence[str]) -> None:
    """The user says of steps that may run only once that they did their work."""
    from plait.engine.events import StepFinished
    from plait.engine.outcome import Done
    from plait.steps.conversation import use_at

    known = dict(_flow_steps(loaded))
    for path in paths:
        if (call := use_at(journal, path)) is not None:
            title, fingerprint, result = call
            journal.append(StepFinished(path, "call", title, fingerprint, Done(result), 0.0))
            continue
        value: Json = {"output": "", "stderr": "", "exit_code": 0, "duration": 0.0}
        if _is_call(path):
            journal.append(StepFinished(path, "tool", "said to be done", "", Done(value), 0.0))
            continue
        step = _step_at(known, path)
        assert step is not None, "paths are looked at before"
        journal.append(StepFinished(path, step.kind, step.title, step.fingerprint, Done(value), 0.0))


def _is_call(path: str) -> bool:
    """Is it the place of a call that its tool wants to be made only once?"""
    from plait.steps.tool import ONCE

    return path.rpartition("/")[2] == ONCE


def _step_at(known: Mapping[str, Step], path: str) -> Step | None:
    """The step at a path of a run; that of an action is below the step whose action it is."""
    from plait.steps.work import Attempt, Work

    found = known.get(path) or known.get(_starred(path))
    if found is not None:
        return found
    above, _, name = path.rpartition("/")
    work = known.get(_starred(above))
    is_attempt = name == "run" or name.startswith("again@")
    return Attempt(work, name) if is_attempt and isinstance(work, Work) and not work.is_simple else None


def _starred(path: str) -> str:
    """A path of a run as one of the flow: of any item, and of any time that a handler or check is run."""
    return "/".join(
        "item:*" if part.startswith("item:") else _HANDLED.sub(r"\1", part) for part in path.split("/")
    )


_HANDLED: Final = re.compile(r"^(on_failure|on_incomplete|check)@\d+$")


def _no_step(path: str, known: Mapping[str, Step]) -> InputError:
    guess = nearest(path, known)
    return InputError(
        f"there is no step '{path}'",
        fix=f"did you mean '{guess}'?" if guess else "plait show lists the steps",
        code="unknown-step",
    )


def _letters_to_retry(
    loaded: Loaded, journal: Journal, wanted: Sequence[str], *, from_start: bool
) -> Iterator[StepForgotten]:
    fan = loaded.program.fan
    if fan is None:
        return
    letters = [
        known
        for known in journal.recorded_in(fan.name)
        if isinstance(known.outcome, Failed) and known.path.startswith(f"{fan.name}/item:")
    ]
    names = {known.path.rpartition("/item:")[2]: known for known in letters}
    unknown = [one for one in wanted if not _named(one, names.values())]
    if unknown:
        guess = nearest(unknown[0], [*names, *(known.title for known in letters)])
        raise InputError(
            f"no failed item is called {', '.join(map(repr, unknown))}",
            fix=f"did you mean '{guess}'?" if guess else "plait show lists the failed items",
            code="unknown-item",
        )
    chosen = [known for known in letters if not wanted or any(_is_called(known, one) for one in wanted)]
    if chosen:
        yield StepForgotten(fan.name, "items are retried", below=False)
    for known in chosen:
        yield StepForgotten(known.path, "retried", below=from_start)


def _named(name: str, letters: Iterable[Recorded]) -> bool:
    return any(_is_called(known, name) for known in letters)


def _is_called(known: Recorded, name: str) -> bool:
    key = known.path.rpartition("/item:")[2]
    return name in (key, known.title, known.path)
