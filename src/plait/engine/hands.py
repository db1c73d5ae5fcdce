"""What steps need of the world; `app` gives it to them, tests give fakes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from threading import Lock

from plait.core.hints import TYPE_CHECKING, Final, Literal, Protocol
from plait.core.masking import Masker
from plait.core.records import dataclass, replace
from plait.core.values import Json
from plait.engine.backend import Backend
from plait.engine.context import Run, Stop
from plait.engine.events import StepFinished
from plait.engine.journal import is_item
from plait.engine.limits import Earlier, Limits, Reached, Spent
from plait.engine.outcome import Failed, Failure, Outcome, OutOfLimit, Skipped, StepError
from plait.engine.perform import NO_TIME_LEFT
from plait.program.capture import NOT_KNOWN_END

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from plait.agents.messages import Offer, Provider
    from plait.agents.session import Agency
    from plait.engine.events import Event
    from plait.engine.perform import Step, Turn
    from plait.program.changes import Tracker
    from plait.program.worktrees.gather import Meeting
    from plait.program.worktrees.isolation import Shelter
    from plait.template.shell.binding import BoundScript
    from plait.tools.call import ToolResult
    from plait.tools.code_params import CodeParams
    from plait.tools.invocation import RequestCall, Returned


class Ended(Protocol):
    """How a process ended, and what it printed."""

    @property
    def exit_code(self) -> int: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...
    @property
    def duration(self) -> float: ...
    @property
    def truncated(self) -> bool:
        """Some output is not in `stdout` or `stderr`."""

    @property
    def stdout_truncated(self) -> bool: ...
    @property
    def stdout_file(self) -> str | None:
        """What it printed, if it was too long and there is such a file."""

    @property
    def stderr_file(self) -> str | None: ...
    @property
    def stdout_lost(self) -> str:
        """Why the file has not all of it, or is missing; empty if it has, or nobody wanted one."""

    @property
    def stderr_lost(self) -> str: ...


NO_ROOM: Final = "the run keeps no more long outputs"
TOOK_TOO_LONG: Final = 124
"""The exit code of what had to be ended, as timeout(1) gives it."""
"""Why an output is lost, said once for the whole run."""


class Inside(Protocol):
    """A flow that is called like a tool: its steps are performed where the call stands."""

    @property
    def name(self) -> str: ...

    def run(self, turn: Turn) -> Json:
        """`{output, …}`; raises StepError when it fails."""


class Hands(Protocol):
    """The ways in which a step touches the world."""

    def shell(
        self,
        bound: BoundScript,
        *,
        shell: str,
        cwd: str,
        env: Mapping[str, str],
        stdin: bytes,
        timeout: float | None,
        stop: Stop,
    ) -> Ended:
        """Run a bound script to its end; a ProcessError if it took too long or the run is to stop."""

    def call(self, tool_id: str, params: Mapping[str, Json], *, timeout: float | None) -> ToolResult: ...

    def program(self, tool_id: str, params: Mapping[str, Json]) -> Inside | None:
        """The flow that a tool is, with its parameters checked; None if it is no flow.

        Its file was judged as every tool is, before anything in it was looked at.
        """

    def expect_call(self, tool_id: str, params: Mapping[str, Json]) -> None:
        """Raises what is wrong with a call, as far as that is known before it; nothing is called."""

    def code(self, tool_id: str) -> CodeParams:
        """Which parameters of a tool are read as code; none of one that cannot be found."""

    def is_once(self, tool_id: str) -> bool:
        """Does the header of a tool say that it is rather asked about than called twice?"""

    def digest(self, tool_id: str) -> str | None:
        """One digest for all files of a tool's chain; None if they do not decide what it does."""

    def recall(self, key: str) -> Json:
        """What was kept in this project under a key; None if nothing was, or it had to make room."""

    def keep(self, key: str, value: Json) -> None: ...

    def offers(self, patterns: Sequence[str], *, ask_servers: bool = True) -> tuple[Offer, ...]:
        """The tools whose ids match a pattern, and that may run, as a model sees them, by id.

        A pattern without `*` names a tool that has to be there; a TrustError if one may not run.
        Without `ask_servers` nothing is started: of a tool of an MCP server its file alone is known.
        """

    def request(self, call: RequestCall) -> Returned: ...

    def read(self, path: str, *, directory: str) -> bytes:
        """A file below the project; an InputError if there is none."""

    def is_inside(self, directory: str) -> bool:
        """Is a folder the project, or below it, wherever links lead?"""

    def write(self, path: str, data: bytes, *, directory: str, mode: int | None, create_dirs: bool) -> str:
        """Put a whole file in place, below the project, at once or not at all; its full path."""

    def copy(self, source: str, path: str, *, directory: str) -> str:
        """Put a copy of a long output in place, as `write` does; a LimitError if there is not all of it."""

    def lines(
        self, bound: BoundScript, *, cwd: str, env: Mapping[str, str], timeout: float | None, stop: Stop
    ) -> Iterator[bytes]:
        """What a command prints, piece by piece; a ProcessError at the end if it fails."""

    def git(self, args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b"") -> bytes:
        """What `git ARGS` prints; a ProcessError if it fails or is not there.

        `env` is added to an environment without any `GIT_…` variable.
        """

    def provider(self, name: str | None) -> Provider | None:
        """The provider of that name, or the one that is used if nothing is said; None if there is none."""

    def at(self, directory: str, env: Mapping[str, str]) -> Hands:
        """The same hands for a step in a folder and an environment of its own: its tools are there, too."""


# ── places of their own for items ────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Site:
    """A repository, and where in it items begin."""

    root: str
    common: str
    """The folder of its refs and objects."""
    prefix: str
    """The project, as seen from the root."""
    commit: str
    branch: str
    """The ref that is checked out; empty if none is."""

    def record(self) -> dict[str, Json]:
        return {name: getattr(self, name) for name in ("root", "common", "prefix", "commit", "branch")}


@dataclass(frozen=True, slots=True)
class Spot:
    """The place of one item."""

    path: str
    directory: str
    """Where the project is, in it."""
    branch: str
    base: str
    """The commit with which it began."""
    stamps: str = ""
    """Of a folder of copies: what tells whether anything in it has changed."""

    def record(self) -> dict[str, Json]:
        return {name: getattr(self, name) for name in ("path", "directory", "branch", "base", "stamps")}


@dataclass(frozen=True, slots=True)
class Look:
    """What a worktree holds."""

    head: str
    on_branch: bool
    """Its own branch is still checked out."""
    files: tuple[str, ...] = ()
    """Those with changes that are not committed."""
    unmerged: bool = False
    repositories: tuple[str, ...] = ()
    """Folders that are repositories of their own, and that no commit can hold."""


LONGEST_PATH: Final = 400
"""Characters of a path that people are told."""


@dataclass(frozen=True, slots=True)
class Remains:
    """What stays of a place that was to be removed, and why."""

    path: str
    cause: Literal["repositories", "closed", "cannot-move", "aside"]
    said: str = ""
    """By the system."""

    @property
    def message(self) -> str:
        path = short_path(self.path)
        match self.cause:
            case "repositories":
                return f"the folder of an item stays, since it holds repositories of its own: {path}"
            case "closed":
                return (
                    "the folder of an item stays, since a part of it cannot be read, and so may hold what is "
                    f"not committed: {path} ({self.said}); "
                    "make it readable, then plait worktrees --clean"
                )
            case "cannot-move":
                return (
                    f"the folder of an item stays, since it cannot be moved: {path} ({self.said}); "
                    "plait worktrees --clean tries again"
                )
            case "aside":
                return (
                    "all that an item did is on its branch or merged, but its folder could not be wholly "
                    f"removed: {path} ({self.said}); plait worktrees --clean tries again, or remove it "
                    "yourself"
                )


def short_path(path: str) -> str:
    """A path for people: of one that is nested without end, how it begins and how it ends."""
    return path if len(path) <= LONGEST_PATH else f"{path[: LONGEST_PATH // 2]}…{path[-LONGEST_PATH // 4 :]}"


@dataclass(frozen=True, slots=True)
class Conflict:
    files: tuple[str, ...]


class InTheWay(Exception):
    """A working tree cannot go along, because of what is in it; in git's words."""


class NotWritten(InTheWay):
    """Files of a working tree cannot be written; in git's words, and how much room there is."""


class Tree(Protocol):
    """A working tree of the user's."""

    @property
    def path(self) -> str: ...

    def expect_fits(self, old: str, new: str) -> None:
        """Raises InTheWay if the tree could not go from one commit to the other."""

    def update(self, old: str, new: str, *, again: bool) -> None:
        """Go from one commit to another; `again`: that was perhaps begun before.

        Local changes stay, or InTheWay; NotWritten if there is no room for it.
        """


class Workspaces(Protocol):
    """Worktrees, branches and merges of one run.  Commits are object ids, refs whole names."""

    def survey(self, base: str, *, needs_branch: bool) -> Site:
        """An InputError that says why, if items cannot have worktrees here."""

    def open(self, site: Site) -> None:
        """Work with a repository that was looked at before."""

    def project_branch(self) -> str:
        """The branch that is checked out where the project is, a whole ref; empty if there is none."""

    def add(self, order: int, title: str, key: str, commit: str) -> Spot: ...
    def copy(self, order: int, title: str, key: str, inputs: Sequence[str]) -> Spot: ...
    def hand_over(self, spot: Spot) -> None:
        """A place was recorded, and steps are about to work there; until then nobody keeps a copy."""

    def gather(self, branch: str) -> Spot:
        """The worktree of the branch on which everything is collected."""

    def leave(self, branch: str) -> str:
        """Remove it, since its branch moves on without it; the branch that keeps what is not committed."""

    def is_there(self, spot: Spot) -> bool: ...
    def is_unfinished(self, path: str) -> bool:
        """A folder that was being made for an item when an earlier life of the run ended."""

    def break_locks(self, spot: Spot | None = None) -> None:
        """Remove what git processes that died with an earlier life left locked: branches, or a place."""

    def is_unchanged(self, spot: Spot) -> bool: ...
    def look(self, spot: Spot) -> Look: ...
    def commit(self, spot: Spot, files: Sequence[str], message: str) -> str: ...
    def point(self, spot: Spot, head: str) -> bool:
        """Let its branch name what a worktree has, unless commits would lose their name by that."""

    def expect_whole(self, spot: Spot) -> None:
        """Raises if a worktree may be half removed: what is missing there is nobody's deletion."""

    def remove(self, spot: Spot, *, merged: str | None) -> Remains | None:
        """Remove a place, and its branch if that is still at `merged`; what stays of it, if anything.

        The branch is removed at the latest when it is said to `settle`.
        """

    def settle(self) -> None: ...
    def prune(self) -> None:
        """Remove what is left of places that nobody needs; when no item is at work."""

    def tip(self, ref: str) -> str: ...
    def move(self, ref: str, new: str, old: str) -> bool:
        """Compare and swap; False if the ref was somewhere else."""

    def forget_branch(self, branch: str, at: str) -> bool:
        """Remove a branch that is still there; False if somebody has it checked out."""

    def forget_merged(self, into: str, spare: Collection[str]) -> None:
        """Remove the branches of places that add nothing to a commit, but for these."""

    def unmerged(self, into: str) -> list[str]:
        """The branches of places that are gone, and that have commits which this one has not."""

    def undone(self, old: str, new: str, tip: str) -> list[str]:
        """The files that one commit changes, and that are at a later one as they were before it."""

    def is_ancestor(self, one: str, other: str) -> bool: ...
    def merge(self, ours: str, theirs: str, message: str) -> str | Conflict: ...
    def tree_of(self, ref: str, *, mark: str) -> AbstractContextManager[Tree | None]:
        """The working tree in which a branch is checked out; nobody else changes its index meanwhile."""

    def facts(self, target: str, source: str) -> dict[str, Json]:
        """`commits` that one ref has and another has not, and the `files` that they change."""

    def leftovers(self) -> list[str]: ...
    def spot_at(self, path: str) -> Spot: ...


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What a dry run shows of one step, instead of doing it."""

    path: str
    kind: str
    shown: str
    remembered: bool = False
    """It was done in an earlier life of the run, and is not done again."""
    why: str = ""
    """Why it is done again, although an earlier life of the run had begun or done it."""
    fails: str = ""
    """Why it would fail, as far as that is known without doing it."""
    fatal: bool = False
    """The run would fail with it, or count it as a failed item."""
    skipped: str = ""
    """Why it is not done at all."""


_HIDING: Final = Lock()
CRUMB: Final = 0.001
"""Seconds by which a pause may end too early."""


class WorkingRun(Run):
    """A run whose steps have hands, a place for their items, and a folder for what is large."""

    hands: Hands
    backend: Backend
    folder: str
    rehearsal: list[Rehearsed] | None = None
    """In a dry run: where steps say what they would do, instead of doing it."""
    masker: Masker | None = None
    """Whose `mask` it is; None where nothing is to be masked, so far."""
    changes: Tracker | None = None
    """Knows what steps change, in a flow that asks for it."""
    untracked: frozenset[str] = frozenset()
    """In a dry run: of which names only a run will know what has changed."""
    workspaces: Workspaces | None = None
    """Makes the places of items that work apart from each other."""
    meeting: Meeting | None = None
    """Where the work of such items was brought together, for the merge steps of the flow."""

    @cached_property
    def shelters(self) -> dict[str, Shelter]:
        """By the path of a fan: the places of its items."""
        return {}

    @cached_property
    def noted(self) -> set[str]:
        """What need not be said again in this run."""
        return set()

    @cached_property
    def agents(self) -> dict[str, Agency]:
        """By their paths: those that are at work."""
        return {}

    @cached_property
    def tallies(self) -> dict[str, Callable[[], dict[str, Json]]]:
        """By path: what has become of the items of a fan until now."""
        return {}

    # ── what may be used up ──────────────────────────────────────────────

    spent: Spent | None = None
    """Of the run as a whole."""

    @cached_property
    def _budgets(self) -> dict[str, Spent]:
        """By path: what those have used up that are inside others and still run."""
        return {}

    def spent_around(self, path: str) -> Spent:
        """What is used up by whoever is at a path: the nearest that has limits of its own.

        A hook about somebody is asked from outside, whether that one still runs or not.
        """
        is_about = False
        while path:
            if not is_about and (found := self._budgets.get(path)) is not None:
                return found
            if not is_about and (agent := self.agents.get(path)) is not None:
                return agent.spent
            path, _, name = path.rpartition("/")
            is_about = name.startswith("hook:")
        if self.spent is None:
            self.spent = Spent()
        return self.spent

    def time_left(self, turn: Turn) -> float | None:
        """Seconds for whoever is at a turn, by its deadline and by the limits around it."""
        rests = (turn.time_left(), self.spent_around(turn.path).left("seconds"))
        return min((rest for rest in rests if rest is not None), default=None)

    def pause_at(self, turn: Turn, seconds: float) -> None:
        """No attempt begins when the time of a limit is over: whoever has it ends, and not the step."""
        spent, end = self.spent_around(turn.path), time.monotonic() + seconds
        while (reached := spent.reach("seconds")) is None:
            rest, left = end - time.monotonic(), spent.left("seconds")
            if rest <= 0:
                return
            self.pause(rest if left is None else min(rest, left + CRUMB))
        raise out_of_limit(reached, turn)

    @contextmanager
    def spending(self, path: str, limits: Limits, what: str, *, goes_on: bool = False) -> Iterator[Spent]:
        """For as long as a flow or an agent at a path runs: what it uses up, of others as well.

        A limit of its own that is reached inside is its failure, and nobody else's.  `goes_on`: what was
        tried at this path before, in this life, counts as well.
        """
        if not path:
            if self.spent is None:
                self.spent = Spent(limits, what=what)
            yield self.spent
            return
        outer = self._budgets.get(path)
        inner = self._budgets[path] = Spent(limits, within=self.spent_around(path), what=what)
        self._count_earlier(path, inner)
        if goes_on and (before := self._tried_before.get(path)) is not None:
            inner.carry_on(before)
        try:
            yield inner
        except OutOfLimit as end:
            if end.reached.holder is not inner:
                raise
            raise StepError(replace(end.failure, path="")) from None
        except BaseException:  # also if its time was up: another attempt may follow
            self._tried_before[path] = inner
            raise
        finally:
            if outer is None:
                del self._budgets[path]
            else:
                self._budgets[path] = outer

    def rehearse(self, turn: Turn, kind: str, shown: str) -> dict[str, Json]:
        """Say what a step would do; how it would end, only a run can know."""
        assert self.rehearsal is not None
        self.rehearsal.append(Rehearsed(turn.path, kind, self.mask(shown), why=self._why_again(turn)))
        return dict(NOT_KNOWN_END)

    @property
    def is_dry(self) -> bool:
        return self.rehearsal is not None

    def would_run(self, turn: Turn, what: object) -> Json:
        kind, title = getattr(what, "kind", "step"), getattr(what, "title", "") or type(what).__name__
        return self.rehearse(turn, str(kind), f"would run: {title}")

    @property
    def would_have_run(self) -> bool:
        """In a dry run: is there something by now that a run would have done?  It may have written files."""
        return any(not one.remembered and not one.skipped for one in self.rehearsal or ())

    def hide_made(self, secrets: Iterable[str]) -> None:
        """Mask what a step has made of secrets, unless it is masked at least in part, as from the beginning.

        What a run masks must not depend on which steps it has performed, and which it remembers.
        """
        self.hide([one for one in secrets if self.mask(one) == one])

    def hide(self, secrets: Iterable[str]) -> None:
        """Mask these from now on, too: those of a flow inside this one, and what only a command knows."""
        for secret in secrets:
            with _HIDING:
                if self.masker is None:
                    self.masker = Masker()
                    self.mask = self.masker.mask
            self.masker.add(secret)

    def _why_again(self, turn: Turn) -> str:
        known = None if self.fresh else self.journal.recorded(turn.path)
        if known is None:
            return (
                "" if self.fresh or not self.journal.was_started(turn.path) else "it was begun, not finished"
            )
        if isinstance(known.outcome, Failed):
            was_cut = known.outcome.failure.message == NO_TIME_LEFT
            return "it was cut: the time of what it is part of was over" if was_cut else "it had failed"
        if not turn.replaying and self._failed_behind(turn.path, known.number):
            return "its step had failed by its check"
        follows = not turn.replaying or known.number <= turn.after
        return "a step before it is done again" if follows else "its text has changed"

    def _failed_behind(self, path: str, number: int) -> bool:
        """Of an action that is a step of its own: has the step failed, though the action had not?"""
        above, _, name = path.rpartition("/")
        end = self.journal.last_end(above) if name == "run" else None
        return end is not None and end.number > number and isinstance(end.outcome, Failed)

    @cached_property
    def earlier(self) -> Earlier:
        """What was used up before this life of the run."""
        return Earlier(self.journal, before=self.first)

    def _count_earlier(self, path: str, spent: Spent) -> None:
        """What earlier lives used up inside a place is used up there: once in this life."""
        if not self._looks_back(spent) or (path, spent.depth) in self._counted_places:
            return
        self._counted_places.add((path, spent.depth))
        spent.add_earlier(**self.earlier.inside(path))

    def was_counted(self, path: str) -> bool:
        if not self._looks_back(self.spent_around(path)) or not self.earlier.has_step(path):
            return False
        with self._counting:
            is_first = path not in self._counted_again
            self._counted_again.add(path)
        return is_first

    def _looks_back(self, spent: Spent) -> bool:
        """Does anybody care what was used up before?  To find out is to read the whole journal."""
        return not self.fresh and (self.hooks is not None or spent.is_limited())

    @cached_property
    def _tried_before(self) -> dict[str, Spent]:
        """By path: what attempts that failed have used up."""
        return {}

    @cached_property
    def _counted_places(self) -> set[tuple[str, int]]:
        return set()

    @cached_property
    def _counted_again(self) -> set[str]:
        return set()

    @cached_property
    def _counting(self) -> Lock:
        return Lock()

    def _recount_time(self, path: str) -> None:
        """The time of a remembered step is time of all that it is inside of."""
        spent = self.spent_around(path)
        if spent.within is None or path in self._timed or not self._looks_back(spent):
            return
        self._timed.add(path)
        recorded = self.journal.recorded(path)
        if recorded is None or recorded.number >= self.first:
            return  # what this life has done was counted then
        to = () if recorded.owed is None else recorded.owed.to
        heard = (self.journal.last_end(f"{path}/hook:{name}") for name in to)
        spent.add_time(recorded.duration + sum(one.duration for one in heard if one is not None))

    @cached_property
    def _timed(self) -> set[str]:
        return set()

    def take_as_done(self, step: Step, turn: Turn, value: Json) -> Outcome:
        if (capture := getattr(getattr(step, "work", step), "capture", None)) is not None:
            self.note(turn.path, f"taken as done: what it printed is not known, so '{capture.name}' is empty")
        return super().take_as_done(step, turn, value)

    def known(self, step: Step, turn: Turn) -> Outcome | None:
        outcome = super().known(step, turn)
        if outcome is not None:
            self._recount_time(turn.path)
        if outcome is not None and self.hooks is not None:
            self.hooks.catch_up(turn, outcome)
        if outcome is not None and self.rehearsal is not None:
            self.rehearsal.append(Rehearsed(turn.path, step.kind, step.title, remembered=True))
        return outcome


class RehearsedRun(WorkingRun):
    """A dry run: it shows what would be done, and in its place what would fail, wherever that leads."""

    rehearsal: list[Rehearsed]

    @cached_property
    def _failed(self) -> set[str]:
        return set()

    def ask_about(self, step: Step, turn: Turn) -> None:  # noqa: ARG002 - shown where it would be done
        self._asked.add(turn.path)

    def _why_again(self, turn: Turn) -> str:
        why = super()._why_again(turn)
        return f"{why}, and may run only once: plait resume asks" if turn.path in self._asked else why

    @cached_property
    def _asked(self) -> set[str]:
        return set()

    def emit(self, event: Event) -> None:
        self._show_end(event)
        super().emit(event)

    def emit_last(self, event: StepFinished) -> None:
        self._show_end(event)
        super().emit_last(event)

    def _show_end(self, event: Event) -> None:
        """Of a step that shows nothing else: one that would fail, or is not done."""
        if not isinstance(event, StepFinished) or event.replayed:
            return
        path, title = event.path, self.mask(event.title)
        match event.outcome:
            case Failed(failure) if failure.path == path and path not in self._failed:
                self._failed.add(path)
                self.rehearsal.append(Rehearsed(path, event.kind, title, fails=failure.message))
            case Skipped(why) if not is_item(path):  # which is skipped for what failed in it
                self.rehearsal.append(Rehearsed(path, event.kind, title, skipped=why))


def working(run: Run) -> WorkingRun:
    assert isinstance(run, WorkingRun), "steps run where `app` has given them hands"
    return run


def in_time(failure: Failure, turn: Turn) -> Failure:
    """The failure of a call; raises OutOfLimit if the call took longer than a limit lets it."""
    if failure.kind != "timeout" or turn.is_over():
        return failure
    reached = working(turn.run).spent_around(turn.path).reach("seconds")
    if reached is None:
        return failure
    raise out_of_limit(reached, turn, partial=failure.output)


def out_of_limit(
    reached: Reached, turn: Turn, context: Mapping[str, Json] | None = None, *, partial: Json = None
) -> OutOfLimit:
    """The end of whoever has this limit, to be raised where it is reached; hooks have heard of it."""
    hooks = turn.run.hooks
    if hooks is not None:
        hooks.reach(turn, reached, context or {})
    return OutOfLimit(reached, turn.path, partial)


def hands_at(turn: Turn) -> Hands:
    """The hands of a step, where it is and with what it was given."""
    return working(turn.run).hands.at(turn.directory, turn.env)
