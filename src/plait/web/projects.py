"""The projects that are shown, and their runs, kept up to date while somebody looks at them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from threading import Lock, RLock

from plait.app.flow_source import CHAT, INPUT_ENV_PREFIX
from plait.core.errors import InputError, PlaitError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.projects import has_runs
from plait.core.records import dataclass, field
from plait.engine.limits import UsageSum
from plait.engine.paths import is_item
from plait.views.run_watch import RunWatch
from plait.web.addresses import project_key
from plait.web.run_actions import MOST_QUESTIONS, Question
from plait.web.run_page import RunFacts, shown_state

if TYPE_CHECKING:
    from plait.app.runs import OpenRun, Runs

MOST_RUNS: Final = 200
"""Runs of a project in the list."""
IDLE_SECONDS: Final = 20.0
"""A run that nobody has looked at for so long is closed."""
MOST_OPEN: Final = 24
QUESTION_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run in the list."""

    run: str
    project: str
    key: str
    flow: str
    file: str
    state: str
    started: float
    duration: float
    is_running: bool
    counts: Mapping[str, int] = field(default_factory=dict)
    total: int = 0
    usage: UsageSum | None = None
    problem: str = ""
    foreign: bool = False


class ShownRun:
    """A run whose journal is open to read.  Hold `lock` while you use `watch`."""

    def __init__(self, runs: Runs, run: str) -> None:
        self._opened: OpenRun = runs.open(run, write=False)
        self.lock = RLock()
        self.used_at = time.monotonic()
        try:
            self.watch = RunWatch(
                run, self._opened.journal, self._opened.folder, partial(runs.is_running, run)
            )
            facts = self._opened.facts
            options = facts.get("options")
            inputs = options.get("inputs") if isinstance(options, Mapping) else None
            self.facts = RunFacts(
                run,
                self._opened.project,
                self._opened.folder,
                str(facts.get("file", "")),
                str(facts.get("kind", "")),
                self._opened.is_own,
                dict(inputs) if isinstance(inputs, Mapping) else {},
            )
            withheld = facts.get("secret_inputs")
            self.secrets = [
                str(name)
                for name in (withheld if isinstance(withheld, list) else ())
                if f"{INPUT_ENV_PREFIX}{name}" not in os.environ
            ]
            """Inputs that the run does not record, and that a command to continue it needs."""
            self.can_act = (
                self.facts.is_own and facts.get("kind") != CHAT and not facts.get("python")
            )
        except BaseException:
            self.close()
            raise
        self._questions: tuple[int, float, list[Question]] = (-1, 0.0, [])

    def questions(self) -> Sequence[Question]:
        """Steps of a stopped run that may run at most once, and whose end is not known."""
        from plait.app.resume_answers import find_questions

        if not self.can_act or self.watch.status not in ("interrupted", "failed"):
            return ()
        version, at, _ = self._questions
        if version != self.watch.version or time.monotonic() - at > QUESTION_SECONDS:
            found = [self._question(path) for path in find_questions(self._opened)[:MOST_QUESTIONS]]
            self._questions = (self.watch.version, time.monotonic(), found)
        return self._questions[2]

    def _question(self, path: str) -> Question:
        detail = self.watch.read_step(path)
        if detail is None:
            return Question(path, path)
        items = [title for above, title in detail.above if is_item(above)]
        return Question(path, detail.node.title, items[-1] if items else "")

    def is_gone(self) -> bool:
        """Was the run removed?"""
        return not os.path.exists(os.path.join(self._opened.folder, "journal.db"))

    def close(self) -> None:
        self._opened.close()


class Projects:
    """Every project that is shown.  Safe for threads."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = {project_key(one): one for one in folders}
        self._open: dict[tuple[str, str], ShownRun] = {}
        self._lock = Lock()
        self._usage: dict[tuple[str, str], tuple[float | None, UsageSum]] = {}

    @property
    def folders(self) -> Mapping[str, str]:
        """By key."""
        return self._folders

    def folder(self, key: str) -> str:
        found = self._folders.get(key)
        if found is None:
            raise InputError(
                "there is no such project here",
                fix="plait web --project DIR shows one",
                code="no-project",
            )
        return found

    def store(self, key: str) -> Runs:
        from plait.app.runs import flow_store

        return flow_store(self.folder(key))

    # ── one run ──────────────────────────────────────────────────────────

    def shown(self, key: str, run: str) -> ShownRun:
        """A run, open and up to date; PlaitError if there is none, or it cannot be read."""
        with self._lock:
            self._close_idle()
            found = self._open.get((key, run))
            if found is not None and found.is_gone():
                self._drop((key, run))
                found = None
            if found is None:
                found = self._open[key, run] = ShownRun(self.store(key), run)
            found.used_at = time.monotonic()
        return found

    def drop(self, key: str, run: str) -> None:
        with self._lock:
            self._drop((key, run))

    def close(self) -> None:
        with self._lock:
            for name in list(self._open):
                self._drop(name)

    def _close_idle(self) -> None:
        by_use = sorted(self._open.items(), key=lambda one: one[1].used_at)
        late = time.monotonic() - IDLE_SECONDS
        for place, (name, shown) in enumerate(by_use):
            if shown.used_at < late or len(by_use) - place > MOST_OPEN:
                self._drop(name)

    def _drop(self, name: tuple[str, str]) -> None:
        shown = self._open.pop(name, None)
        if shown is not None and shown.lock.acquire(timeout=5):
            try:
                shown.close()
            finally:
                shown.lock.release()

    # ── the list ─────────────────────────────────────────────────────────

    def lines(self, only: str = "") -> list[RunLine]:
        """The runs of all projects, or of one, the newest first."""
        found: list[RunLine] = []
        for key, folder in self._folders.items():
            if not only or only == key:
                found += self._lines_in(key, folder)
        return sorted(found, key=lambda one: one.started, reverse=True)

    def _lines_in(self, key: str, folder: str) -> Iterator[RunLine]:
        try:
            newest = list(self.store(key).newest(MOST_RUNS))
        except PlaitError:
            return
        for run, summary in newest:
            if summary is None:
                line = self._running_line(key, folder, run)
                if line is not None:
                    yield line
                continue
            partial_ = summary.status == "done" and summary.counts.get("failed")
            yield RunLine(
                run,
                folder,
                key,
                summary.flow,
                summary.file,
                "partial" if partial_ else summary.status,
                summary.start_time,
                summary.duration,
                is_running=False,
                counts=summary.counts,
                total=sum(summary.counts.values()),
                usage=self._find_usage(key, run, summary.last_at),
                problem=summary.problem,
                foreign=summary.foreign,
            )

    def _running_line(self, key: str, folder: str, run: str) -> RunLine | None:
        """From the events: a summary would read all of a long journal each time."""
        try:
            shown = self.shown(key, run)
            with shown.lock:
                shown.watch.update()
                progress = shown.watch.progress
                groups = [part.group for part in progress.maps]
                return RunLine(
                    run,
                    folder,
                    key,
                    progress.flow,
                    shown.facts.file,
                    shown_state(shown.watch),
                    progress.started or 0.0,
                    progress.duration(time.time()),
                    is_running=shown.watch.status == "running",
                    counts={
                        "done": sum(one.success_count for one in groups),
                        "failed": sum(one.failure_count for one in groups),
                        "skipped": sum(one.skip_count for one in groups),
                    },
                    total=sum(one.total or 0 for one in groups),
                    usage=progress.usage if progress.usage.turns else None,
                )
        except PlaitError:
            return None  # it has just begun, or was removed

    def _find_usage(self, key: str, run: str, last_at: float | None) -> UsageSum | None:
        """What the models of a run used; computed once for each end of a run."""
        known = self._usage.get((key, run))
        if known is None or known[0] != last_at:
            total = UsageSum()
            try:
                with self.store(key).open(run, write=False) as opened:
                    for _, used in opened.journal.reader.usage_before(1 << 60):
                        if "turns" in used:
                            total.add(used)
            except PlaitError:
                pass
            known = self._usage[key, run] = (last_at, total)
        return known[1] if known[1].turns else None


def known_projects(named: Sequence[str] | None, current: str) -> list[str]:
    """The projects that are named, else this one and those that the user trusts and has runs in."""
    if named:
        return list(dict.fromkeys(os.path.realpath(one) for one in named))
    from plait.app.toolbox import toolbox

    trusted = [one.root for one in toolbox(current).trust.store.projects()]
    others = [one for one in trusted if os.path.isdir(one) and has_runs(one)]
    return list(dict.fromkeys((os.path.realpath(current), *others)))
