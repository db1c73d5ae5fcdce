"""Runs that this server works on, and answers about any run of the project from its journal.

A run id is the handle that a client gets.  The journal alone says how a run stands, so a server that
starts later answers the same.  A run that ended with its server can be resumed; recorded steps are
replayed, never repeated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Condition, Lock, Thread

from plait.app.result import RunObservers
from plait.core.errors import InputError, PlaitError, shorten
from plait.core.hints import TYPE_CHECKING, Final, Protocol
from plait.core.records import dataclass
from plait.core.values import Json, text
from plait.engine.events import EventRecord, RunStarted
from plait.engine.stop import StopSignal
from plait.mcp.catalog import Catalog, Exposed
from plait.views.progress import Progress

if TYPE_CHECKING:
    from plait.app.runs import FlowResult, OpenRun, Runs
    from plait.engine.outcome import Failure

CANCELLED: Final = "cancelled"
"""Why a run stopped that a client has cancelled; it is resumed only if a client asks for it."""
SERVER_LEFT: Final = "plait mcp ended"
"""Why a run stopped that was running when the server ended; waiting for it resumes it."""
MOST_FAILURES: Final = 10
"""Failed items that an answer names."""
MOST_TITLE: Final = 200
"""Characters of the title of a failed item."""
_LOOK_SECONDS: Final = 0.2
"""Between two looks at a run of another process."""
_CANCEL_SECONDS: Final = 60.0
"""How long a call that cancels a run waits for its end."""

OnProgress = Callable[[Progress], None]


class StartRun(Protocol):
    """Starts or resumes a run: a function of `app` with everything but its observers."""

    def __call__(self, *, observers: RunObservers) -> FlowResult: ...


class RunJob:
    """A run that a thread of this server works on."""

    def __init__(self) -> None:
        self.stop = StopSignal()
        self.run = ""
        """Its id, as soon as it is recorded."""
        self.error: Exception | None = None
        """Why there is no result: the flow could not start, or a bug."""
        self.is_over = False
        self._listeners: list[OnProgress] = []
        self._progress = Progress()
        self._changed = Condition()

    def watch(self, record: EventRecord) -> None:
        with self._changed:
            self._progress.add(record)
            if isinstance(record.event, RunStarted):
                self.run = record.event.run
                self._changed.notify_all()
            for listen in self._listeners:
                listen(self._progress)

    def listen(self, on_progress: OnProgress) -> None:
        """Until the run is over, `on_progress` gets its state, now and after each event."""
        with self._changed:
            self._listeners.append(on_progress)
            on_progress(self._progress)

    @contextmanager
    def listening(self, on_progress: OnProgress | None) -> Iterator[None]:
        """Inside this, `on_progress` gets the state of the run, now and after each event."""
        if on_progress is None:
            yield
            return
        self.listen(on_progress)
        try:
            yield
        finally:
            with self._changed:
                self._listeners.remove(on_progress)

    def end(self, error: Exception | None) -> None:
        with self._changed:
            self.error, self.is_over = error, True
            self._changed.notify_all()

    def wait_for_id(self) -> None:
        """Until the run is recorded, or cannot be."""
        with self._changed:
            self._changed.wait_for(lambda: self.run or self.is_over)

    def wait(self, seconds: float, stop: StopSignal) -> None:
        """Until the run is over, the time is, or `stop` asks."""
        until = time.monotonic() + seconds
        with self._changed:
            while not self.is_over and not stop.is_set():
                left = until - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(min(left, _LOOK_SECONDS))


@dataclass(frozen=True, slots=True)
class RunState:
    """A run as its journal has it."""

    run: str
    status: str
    progress: Progress
    questions: Sequence[str]
    """Steps that may run at most once and whose end is not known."""

    @property
    def flow(self) -> str:
        return self.progress.flow

    @property
    def failure(self) -> Failure | None:
        return self.progress.failure

    @property
    def counts(self) -> Mapping[str, Json]:
        return self.progress.facts

    @property
    def was_cancelled(self) -> bool:
        """Did somebody stop it?"""
        return self.status == "interrupted" and not self.is_left

    @property
    def is_left(self) -> bool:
        """Did it end with its server or its machine, without anybody asking for it?"""
        if self.status != "interrupted":
            return False
        return self.failure is None or self.failure.message == SERVER_LEFT

    @property
    def goes_on(self) -> bool:
        """Does it go on when a client waits for it, maybe after an answer?"""
        return self.is_left or (self.status == "failed" and bool(self.questions))

    @property
    def has_failed(self) -> bool:
        return self.status in ("failed", "interrupted") or bool(self.counts.get("failed"))

    @property
    def output(self) -> Json:
        value = self.progress.value
        return value.get("output") if isinstance(value, dict) else value

    def record(self) -> dict[str, Json]:
        done, total = count_ends(self.progress)
        return {
            "run": self.run,
            "flow": self.flow,
            "status": self.status,
            "output": self.output,
            "failure": self.failure and self.failure.record(),
            "counts": dict(self.counts),
            "progress": {"done": done, "total": total},
            **({"questions": list(self.questions)} if self.questions else {}),
        }

    def lines(self) -> Iterator[str]:
        """What a model reads."""
        named = f"run {self.run} of {self.flow}"
        match self.status:
            case "running":
                yield f"{named} is still running: {progress_text(self.progress)} ended"
                yield f'call plait_run_wait with {{"run": "{self.run}"}} to wait for its end'
                return
            case "done":
                if failed := self.counts.get("failed"):
                    yield f"{named} ended; {failed} of {self.counts.get('total')} items failed"
                    yield from self._failures()
                if self.output is not None:
                    yield text(self.output)
                elif not failed:
                    yield f"{named} is done"
                return
            case "failed":
                yield f"{named} failed: {self.failure.message if self.failure else 'no reason is known'}"
            case _:
                yield f"{named} was stopped before its end; what is done is recorded"
        for path in self.questions:
            yield f"it is not known whether step '{path}' was done: name it in 'repeat' or in 'done'"
        yield f'call plait_run_resume with {{"run": "{self.run}"}} to continue it'

    def _failures(self) -> Iterator[str]:
        failures = self.progress.failures
        shown = list(failures.last)[-MOST_FAILURES:]
        for one in shown:
            title = shorten(" ".join(one.title.split()), MOST_TITLE)
            yield f"- {title}: {one.cause}" + (f", {one.line}" if one.line else "")
        if more := failures.count - len(shown):
            yield f"- {more} more: plait show {self.run} --json lists them"


def count_ends(progress: Progress) -> tuple[int, int]:
    """How many steps and items have ended, and how many there are so far."""
    items, steps = progress.items or (0, 0), progress.steps
    return items[0] + steps[0], items[1] + steps[1]


def progress_text(progress: Progress) -> str:
    done, total = count_ends(progress)
    return f"{done} of {total} steps or items"


@dataclass(frozen=True, slots=True)
class ResumeWords:
    """What a client says when it resumes a run."""

    repeat: Sequence[str] = ()
    done: Sequence[str] = ()
    accept_changes: bool = False
    inputs: Mapping[str, Json] | None = None


class RunJobs:
    """Starts runs in threads, and answers about runs."""

    def __init__(self, catalog: Catalog, report_bug: Callable[[Exception], object]) -> None:
        self._catalog = catalog
        self._report_bug = report_bug
        self._jobs: dict[str, RunJob] = {}
        self._starting: set[RunJob] = set()
        self._lock = Lock()
        self._resuming = Lock()

    def start(self, flow: Exposed, inputs: Mapping[str, Json]) -> RunJob:
        """Start a run, and return when it is recorded; PlaitError if it cannot start."""
        from plait.app import runs as flows

        project = self._catalog.project
        self._catalog.require_trust(flow.path)
        if flow.kind in ("graph", "ensemble") and not flow.id.startswith("flow:"):
            work: StartRun = partial(flows.call_flow, flow.id, inputs, project=project)
        else:
            options = flows.Options(inputs)
            named = flow.path if flow.id.startswith("flow:") else flow.id
            work = partial(flows.run_flow, named, options, project=project)
        return self._begin(work)

    def resume(self, run: str, words: ResumeWords | None = None, *, stop: str = "") -> RunJob:
        """Continue a run; `stop`: only to record that it is stopped, and why."""
        from plait.app import runs as flows

        words = words or ResumeWords()
        with self._resuming:  # two clients that wait for one run resume it once
            if (job := self.job(run)) is not None:
                if job.stop.is_set():  # its journal may say already that it has stopped
                    job.wait(_CANCEL_SECONDS, StopSignal())
                if not job.is_over:
                    return job
            if not stop:
                with self.opened(run) as (_, opened):
                    self._catalog.require_trust(str(opened.facts.get("file", "")))
            work = partial(
                flows.resume_flow,
                run,
                project=self._catalog.project,
                accept_changes=words.accept_changes,
                repeat=words.repeat,
                done=words.done,
                inputs=words.inputs,
            )
            return self._begin(work, stop)

    def job(self, run: str) -> RunJob | None:
        with self._lock:
            return self._jobs.get(run)

    def wait(
        self, run: str, seconds: float, stop: StopSignal, on_progress: OnProgress | None = None
    ) -> RunState:
        """How a run stands when it is over, or after the time."""
        until = time.monotonic() + seconds
        job = self.job(run)
        if job is not None:
            with job.listening(on_progress):
                job.wait(until - time.monotonic(), stop)
            return self.state(run)
        state = self.state(run)  # another process may work on it
        while state.status == "running" and time.monotonic() < until and not stop.is_set():
            if on_progress is not None:
                on_progress(state.progress)
            stop.wait(min(_LOOK_SECONDS, max(until - time.monotonic(), 0)))
            state = self.state(run)
        return state

    def cancel(self, run: str) -> RunState:
        """Stop a run with its processes; one that was left is not resumed any more."""
        state = self.state(run)
        job = self.job(state.run)
        if job is None and state.status == "running":
            state = self._stop_elsewhere(state.run)
        if job is None and state.is_left:
            job = self.resume(state.run, stop=CANCELLED)
        if job is not None:
            job.stop.ask(CANCELLED)
            job.wait(_CANCEL_SECONDS, StopSignal())
            return self.state(state.run)
        return state

    def _stop_elsewhere(self, run: str) -> RunState:
        """Ask the process that works on a run to stop it, as `plait stop` does."""
        from plait.app.runs import find_run
        from plait.app.stop_run import stop_run

        if find_run(run, self._catalog.project)[0].holder(run) == os.getpid():
            what = f"run {run} is just being started or resumed here"
            raise InputError(what, fix="cancel it again", code="run-starting")
        try:
            stop_run(run, self._catalog.project)
        except InputError as error:
            if error.code != "not-running" or self.state(run).status == "running":
                raise  # else it has ended meanwhile
        return self.wait(run, _CANCEL_SECONDS, StopSignal())

    def state(self, run: str) -> RunState:
        """From the journal of a run whose flow is offered."""
        from plait.app.resume_answers import find_questions
        from plait.views.report import read_report

        with self.opened(run) as (runs, opened):
            is_running = partial(runs.is_running, opened.id)
            report = read_report(opened.id, opened.journal, is_running=is_running, short=True)
            questions: list[str] = []
            if report.status in ("interrupted", "failed"):
                questions = find_questions(opened)
            return RunState(opened.id, report.status, report.progress, questions)

    @contextmanager
    def opened(self, run: str) -> Iterator[tuple[Runs, OpenRun]]:
        """A run to read; InputError if there is none, or if it is not of a flow that is offered."""
        from plait.app import runs as flows

        runs, name = flows.find_run(run, self._catalog.project)
        with runs.open(name, write=False) as opened:
            if not opened.is_own or not self._catalog.has_run(str(opened.facts.get("file", ""))):
                raise InputError(
                    f"there is no run '{run}' of a flow that is offered here",
                    fix="plait runs lists the runs of the project",
                    code="unknown-run",
                )
            yield runs, opened

    def end(self, seconds: float) -> None:
        """Stop every run, so that it can be resumed, and wait for that."""
        with self._lock:
            jobs = [*self._starting, *self._jobs.values()]
        for job in jobs:
            job.stop.ask(SERVER_LEFT)
        until = time.monotonic() + seconds
        for job in jobs:
            job.wait(until - time.monotonic(), StopSignal())

    def _begin(self, work: StartRun, stop: str = "") -> RunJob:
        job = RunJob()
        if stop:
            job.stop.ask(stop)
        with self._lock:
            self._starting.add(job)
        Thread(target=self._perform, args=(job, work), name="plait-mcp-run", daemon=True).start()
        job.wait_for_id()
        if not job.run and job.error is not None:
            raise job.error
        return job

    def _perform(self, job: RunJob, work: StartRun) -> None:
        def watch(record: EventRecord) -> None:
            if isinstance(record.event, RunStarted):
                with self._lock:
                    self._jobs[record.event.run] = job
                    self._starting.discard(job)
            job.watch(record)

        error: Exception | None = None
        try:
            work(observers=RunObservers([watch], job.stop))
        except PlaitError as problem:
            error = problem
        except Exception as bug:
            self._report_bug(bug)
            error = bug
        finally:
            with self._lock:
                self._starting.discard(job)
                self._jobs.pop(job.run, None)
            job.end(error)
