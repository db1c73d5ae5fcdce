"""Each item of a map in a place of its own: a git worktree, or a folder with copies of its inputs.

    ground → for each item: worktree → its steps → merge (in the order of the items) → for all: merge

Items begin at one commit.  What they commit is collected, in their order, on a branch of the run that
nobody else writes to; at the end that branch goes into the one that was checked out.  Each merge is
made beside all working trees, its intent {target, old, new} is recorded, and only then the branch is
moved, by compare-and-swap: a resumed run sees by the branch whether that has happened.

Nothing is dropped: what an item did is merged, or its branch stays, and its folder, too.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence

from plait.engine.events import StepForgotten
from plait.engine.journal import Recorded
from plait.engine.outcome import Done, Failed, Failure, Interrupted, Outcome, StepError, expect_done
from plait.engine.perform import PLAIN, Policy, Step, Turn, perform, remembered
from plait.errors import InputError, InternalError, PlaitError
from plait.hints import TYPE_CHECKING, Final, Literal, TypeAlias
from plait.records import dataclass, field, replace
from plait.steps.hands import Conflict, InTheWay, Look, Site, Spot, Workspaces, working
from plait.template.sinks import as_text
from plait.values import Json

if TYPE_CHECKING:
    from plait.engine.run import Run
    from plait.steps.fan import Fan
    from plait.steps.sequence import Sequence as Steps
    from plait.template.template import Template

Kind: TypeAlias = Literal["directory", "worktree"]
Uncommitted: TypeAlias = Literal["commit", "keep", "fail"]

WAITING: Final = 64
"""Items that have done their work and wait for their turn to be merged, besides those that work."""
LOOK: Final = 0.05
"""Seconds between two looks whether the run is to stop, while an item waits."""
MOST_NAMED: Final = 20
MOST_MOVES: Final = 20
"""How often a merge is made anew because somebody else was quicker."""
BRANCHES: Final = "refs/heads/"
REPOSITORY_VARIABLES: Final = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_CONFIG", "GIT_CONFIG_PARAMETERS",
    "GIT_CONFIG_COUNT", "GIT_GRAFT_FILE", "GIT_SHALLOW_FILE", "GIT_IMPLICIT_WORK_TREE",
    "GIT_INTERNAL_SUPER_PREFIX", "GIT_NO_REPLACE_OBJECTS", "GIT_REPLACE_REF_BASE",
)  # fmt: skip
"""Those by which git would work in another repository than the one around it."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """What a map says about the places of its items."""

    kind: Kind
    base: str = "HEAD"
    uncommitted: Uncommitted = "commit"
    merges: bool = True
    inputs: tuple[Template, ...] = ()
    fingerprint: str = ""
    ends_in_steps: bool = False
    """The flow has merge steps, which bring what was collected where it belongs."""

    @property
    def collects(self) -> bool:
        return self.kind == "worktree" and self.merges

    def steps(self, each: str) -> tuple[Step, ...]:
        """The steps that an item has besides its own."""
        own = _Fact("worktree", "the item's place", self.fingerprint)
        return (own, _Fact("merge", "merge what the item did", f"{self.fingerprint}{each}"))

    @property
    def around(self) -> tuple[Step, ...]:
        """The steps that the map has besides its items."""
        return (_Fact("merge", "merge what all items did", self.fingerprint),) if self.collects else ()


# ── what is waited for ───────────────────────────────────────────────────


class Line:
    """Items in their order: so many work at a time, each waits at its end until those before it left."""

    def __init__(self, parallel: int) -> None:
        self._free = threading.Semaphore(parallel)
        self._changed = threading.Condition()
        self._inside: set[int] = set()
        self._working: set[int] = set()
        self._broken = False

    def enter(self, order: int, run: Run) -> bool:
        """Wait until there is room to work; False if the run is to stop."""
        while not self._free.acquire(timeout=LOOK):
            if run.is_stopping() or self._broken:
                return False
        with self._changed:
            self._inside.add(order)
            self._working.add(order)
        return True

    def work_again(self, order: int, run: Run) -> None:
        """One that had done its work has to do it once more."""
        with self._changed:
            if order in self._working or order not in self._inside:
                return
        while not self._free.acquire(timeout=LOOK):
            run.expect_going()
        with self._changed:
            self._working.add(order)

    def has_worked(self, order: int) -> None:
        with self._changed:
            if order in self._working:
                self._working.discard(order)
                self._free.release()

    def wait_for_turn(self, order: int, run: Run) -> None:
        with self._changed:
            while order in self._inside and min(self._inside) != order:
                if self._broken:
                    raise Interrupted  # one before it has no end, so this one has no turn
                self._changed.wait(LOOK)
                run.expect_going()

    def leave(self, order: int, *, ended: bool) -> None:
        self.has_worked(order)
        with self._changed:
            self._broken = self._broken or not ended
            self._inside.discard(order)
            self._changed.notify_all()


# ── the places of one map ────────────────────────────────────────────────


class Shelter:
    """The places of the items of one map, while it runs."""

    def __init__(self, isolation: Isolation, turn: Turn, site: Site | None, parallel: int) -> None:
        self.isolation = isolation
        self.line = Line(parallel)
        self.site = site
        self._turn = turn
        self._spots: dict[str, tuple[Spot, str | None]] = {}
        """By path of an item: its place, if it is to be removed when the item's end is recorded."""

    @property
    def _workspaces(self) -> Workspaces:
        return expect_workspaces(self._turn)

    @property
    def branch(self) -> str:
        """On which the work of the items is collected."""
        return f"plait/{self._turn.run.id}/merged"

    @property
    def target(self) -> str:
        assert self.site is not None
        return self.site.branch

    def threads(self, parallel: int, total: int) -> int:
        """So many items are in hand: those that work, and those that wait for their turn to be merged."""
        return min(parallel + WAITING, max(total, 1)) if self.isolation.collects else parallel

    # ── one item ─────────────────────────────────────────────────────────

    def perform(self, item: Step, turn: Turn) -> Outcome:
        """Perform an item; it leaves the line when its end is recorded, and its place goes."""
        ended = False
        try:
            outcome = perform(item, turn)
            ended = True
        finally:
            self.line.leave(turn.order, ended=ended)
        self._leave(turn.path)
        return outcome

    def run(self, each: Steps, turn: Turn, title: str, key: str) -> Json:
        """The steps of an item in its own place; its value, and what became of the place."""
        spot, turn = self._place(turn, title, key)
        try:
            value = each.run(_inside(turn, spot))
        except StepError as error:
            raise StepError(_with_place(error.failure, spot)) from None
        turn.run.settle(turn.path)
        self.line.has_worked(turn.order)
        facts = self._concluded(each, replace(turn, deadline=None), spot)
        return {**value, "isolation": facts} if isinstance(value, dict) else value

    def _leave(self, path: str) -> None:
        spot, merged = self._spots.pop(path, (None, None))
        if spot is None:
            return
        if not self._workspaces.remove(spot, merged=merged):
            self._turn.run.note(path, f"the folder of an item stays, since it holds submodules: {spot.path}")

    def _place(self, turn: Turn, title: str, key: str) -> tuple[Spot, Turn]:
        self.line.work_again(turn.order, turn.run)
        again = turn.attempt > 1 or turn.run.is_retried(turn.path)
        step = _Place(self, title, key, again)
        inner = turn.inner(step, order=turn.order)
        known = remembered(step, inner) if turn.attempt == 1 else None
        before = _spot(known)
        if before is not None and self._workspaces.is_there(before):
            self._workspaces.break_locks(before)
            return before, turn
        if not turn.run.fresh or turn.attempt > 1:
            self._forget(turn)
        placed = _value(expect_done(perform(step, replace(inner, replaying=False))))
        return Spot(**placed), replace(turn, replaying=False)

    def _forget(self, turn: Turn) -> None:
        """What was done in another place was not done in the new one."""
        journal, path = turn.run.journal, turn.path
        recorded = journal.recorded(f"{path}/worktree")
        if recorded is not None and (earlier := _spot(recorded.outcome)) is not None:
            self.tidy(earlier)
        if next(iter(journal.recorded_in(path)), None) is not None:
            turn.run.emit(StepForgotten(path, "it begins anew in a new place"))

    def add(self, turn: Turn, title: str, key: str, *, again: bool) -> Spot:
        if self.isolation.kind == "directory":
            inputs = [as_text(one, turn.scope, strict=True) for one in self.isolation.inputs]
            return self._workspaces.copy(turn.order, title, key, inputs)
        return self._workspaces.add(turn.order, title, key, self._base(again=again))

    def _base(self, *, again: bool) -> str:
        """The first attempt of every item begins at one commit, a later one with what was merged since."""
        assert self.site is not None
        if again and self.isolation.collects and self.isolation.base == "HEAD":
            return self._workspaces.tip(BRANCHES + self.branch) or self.site.commit
        return self.site.commit

    # ── its end ──────────────────────────────────────────────────────────

    def _concluded(self, each: Steps, turn: Turn, spot: Spot) -> dict[str, Json]:
        if self.isolation.kind == "directory":
            if self._workspaces.is_unchanged(spot):
                self._spots[turn.path] = spot, None
                return {"directory": "", "kept": False}
            return {"directory": spot.path, "kept": True}
        look = self._expect_committed(turn, spot, self._workspaces.look(spot))
        facts: dict[str, Json] = {"branch": spot.branch, "base": spot.base, "head": look.head}
        keeps = bool(look.files)
        if look.head == spot.base:
            if not keeps:
                self._spots[turn.path] = spot, look.head
            return {**facts, "branch": spot.branch if keeps else "", "kept": keeps}
        if self.isolation.merges:
            step = _Merge(
                self, spot, look.head, turn.order, f"{self.isolation.fingerprint}{each.fingerprint}"
            )
            outcome, _ = turn.perform_next(step, len(each.steps), is_last=True)
            if isinstance(outcome, Failed):
                raise StepError(outcome.failure)
        if not keeps:
            self._spots[turn.path] = spot, look.head if self.isolation.merges else None
        return {**facts, "branch": spot.branch if keeps or not self.isolation.merges else "", "kept": keeps}

    def _expect_committed(self, turn: Turn, spot: Spot, look: Look) -> Look:
        """What the place holds, once its branch names all of it, as far as that is wanted."""
        if not look.on_branch and not self._workspaces.point(spot, look.head):
            raise _lost_its_branch(spot)
        if not look.files:
            return look
        if look.unmerged:
            raise StepError(
                _with_place(Failure(f"a merge was begun there and not ended: {_named(look.files)}"), spot)
            )
        match self.isolation.uncommitted:
            case "commit":
                message = f"{os.path.basename(spot.path)}: what was not committed\n"
                head = self._workspaces.commit(spot, message)
                if not look.on_branch and not self._workspaces.point(spot, head):
                    raise _lost_its_branch(spot)
                return replace(look, head=head, files=())
            case "fail":
                what = f"changes were not committed: {_named(look.files)}"
                raise StepError(_with_place(Failure(what, "incomplete", exit_code=1), spot))
            case "keep":
                turn.run.note(turn.path, f"changes that were not committed stay in {spot.path}")
                return look

    def tidy(self, spot: Spot) -> None:
        """The place of an attempt that nobody goes on with: its branch keeps what it has, the folder goes."""
        if self.isolation.kind == "directory" or not self._workspaces.is_there(spot):
            return
        look = self._workspaces.look(spot)
        if look.unmerged or (not look.on_branch and not self._workspaces.point(spot, look.head)):
            return
        if look.files:
            self._workspaces.commit(spot, f"{os.path.basename(spot.path)}: what an attempt left behind\n")
        self._workspaces.remove(spot, merged=None if look.files or look.head != spot.base else look.head)

    # ── all items ────────────────────────────────────────────────────────

    def collect(self) -> None:
        """Let there be the branch on which everything is collected."""
        if self.isolation.kind == "worktree" and not self._turn.run.fresh:
            self._workspaces.break_locks()
        if not self.isolation.collects or self._workspaces.tip(BRANCHES + self.branch):
            return
        assert self.site is not None
        begin = self._last_merged() or self.site.commit
        target = self._workspaces.tip(self.target)
        if self._turn.run.fresh or not self._workspaces.is_ancestor(begin, target):
            target = begin
        self._workspaces.move(BRANCHES + self.branch, target, "")

    def _last_merged(self) -> str:
        """Where the branch was, if this run had one that somebody has removed."""
        if self._turn.run.fresh:
            return ""
        journal, last = self._turn.run.journal, ""
        for item in journal.recorded_in(self._turn.path):
            merged = _value(journal.recorded(f"{item.path}/merge"))
            last = str(merged["new"]) if "new" in merged else last
        return last

    def conclude(self, failed: int) -> dict[str, Json]:
        """After the last item: all that was collected goes where it belongs; what nobody needs is removed."""
        self._tidy_leftovers()
        if not self.isolation.collects:
            return {}
        tip = self._workspaces.tip(BRANCHES + self.branch)
        facts: dict[str, Json] = {"source": self.branch, "target": self.target}
        if self.isolation.ends_in_steps:
            spot = self._workspaces.gather(self.branch)
            return {"isolation": {**facts, "worktree": spot.path, "directory": spot.directory}}
        step = _MergeAll(self, tip)
        path = f"{self._turn.path}/{step.name}"
        if _value(self._turn.run.journal.recorded(path)).get("head") not in (None, tip):
            self._turn.run.emit(StepForgotten(path, "more was merged since"))
        merged = expect_done(self._turn.perform(step))
        if not failed:
            self._workspaces.forget_branch(self.branch, tip)
        return {"isolation": {**facts, "merged": merged}}

    def _tidy_leftovers(self) -> None:
        """Places of which a crash kept us from taking leave; those of dead letters stay."""
        if self._turn.run.fresh:
            return
        journal = self._turn.run.journal
        needed = set()
        for item in journal.recorded_in(self._turn.path):
            spot = _spot_of(journal.recorded(f"{item.path}/worktree"))
            facts = _value(item).get("isolation")
            kept = not isinstance(facts, dict) or facts.get("kept")
            if spot is not None and kept:
                needed.add(os.path.realpath(spot.path))
        for path in self._workspaces.leftovers():
            if os.path.realpath(path) not in needed and os.path.basename(path) != "merged":
                self._tidy_path(path)
        if self.site is not None:
            tip = self._workspaces.tip(BRANCHES + self.branch) or self.site.commit
            self._workspaces.forget_merged(tip, {self.branch, *map(os.path.basename, needed)})

    def _tidy_path(self, path: str) -> None:
        if self.isolation.kind == "directory":
            return
        spot = self._workspaces.spot_at(path)
        if self._workspaces.is_unfinished(path):
            self._workspaces.remove(spot, merged=None)
            return
        self._workspaces.break_locks(spot)
        look = self._workspaces.look(spot)
        merged = self._workspaces.is_ancestor(look.head, self._workspaces.tip(BRANCHES + self.branch))
        base = look.head if (merged or (self.site and look.head == self.site.commit)) else ""
        self.tidy(replace(spot, base=base))


def begin_shelter(isolation: Isolation | None, turn: Turn, parallel: int) -> Shelter | None:
    """Before the first item: look at the repository, once for all lives of the run."""
    run = working(turn.run)
    if isolation is None:
        return None
    if run.rehearsal is not None:
        run.rehearse(turn, isolation.kind, _promised(isolation))
        return None
    site = None
    if isolation.kind == "worktree":
        site = Site(**_value(expect_done(turn.perform(_Ground(isolation)))))
        expect_workspaces(turn).open(site)
    shelter = run.shelters[turn.path] = Shelter(isolation, turn, site, parallel)
    shelter.collect()
    return shelter


# ── steps of the flow that merge ─────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Meeting:
    """A worktree with all that the items did, and the branch that it is meant for."""

    spot: Spot
    target: str
    """A whole ref."""

    def names(self, workspaces: Workspaces) -> dict[str, Json]:
        """What `merge.*` says of it."""
        return {
            "worktree": self.spot.path,
            "source_branch": self.spot.branch,
            "target_branch": _short(self.target),
            **workspaces.facts(self.target, BRANCHES + self.spot.branch),
        }


def met(turn: Turn, fan: Fan, value: Json) -> Turn:
    """The turn of what follows the map: where its items met, if steps of the flow merge what they did."""
    facts = value.get("isolation") if isinstance(value, dict) else None
    if not isinstance(facts, dict) or "worktree" not in facts:
        return turn
    run = working(turn.run)
    if fan.name not in run.shelters:  # the map was done in an earlier life of the run
        expect_workspaces(turn).open(Site(**_value(run.journal.recorded(f"{fan.name}/ground"))))
    spot = expect_workspaces(turn).gather(str(facts["source"]))
    run.meeting = Meeting(spot, str(facts["target"]))
    return _inside(turn, spot)


def end_meeting(turn: Turn) -> None:
    """After the merge steps: what they have merged needs no worktree any more."""
    run, spaces = working(turn.run), expect_workspaces(turn)
    meeting = run.meeting
    if meeting is None or not spaces.is_there(meeting.spot):
        return
    look, spot = spaces.look(meeting.spot), meeting.spot
    if look.files or not spaces.is_ancestor(look.head, meeting.target):
        turn.run.note(
            "merge",
            f"the merge steps have not merged all of {spot.branch} into {_short(meeting.target)}: "
            f"the branch stays, and its worktree {spot.path}",
        )
        return
    spaces.remove(spot, merged=look.head)


def expect_workspaces(turn: Turn) -> Workspaces:
    found = working(turn.run).workspaces
    if found is None:
        raise InternalError("this run has no workspaces")
    return found


def _promised(isolation: Isolation) -> str:
    if isolation.kind == "directory":
        return "each item in a folder of its own"
    merged = "merged back in the order of the items" if isolation.merges else "left on its branch"
    return f"each item in a git worktree of its own, from {isolation.base}; {merged}"


# ── steps ────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Fact:
    """A step as `plait show` and `--repeat` know it, without what it does."""

    name: str
    title: str
    fingerprint: str
    kind: str = "isolation"
    policy: Policy = PLAIN
    inner: Sequence[Step] = ()

    def run(self, turn: Turn) -> Json:
        raise InternalError(f"{turn.path} is not performed by this")


@dataclass(frozen=True, slots=True)
class _Ground:
    """Where all items begin, and where their work goes."""

    isolation: Isolation
    name: str = "ground"
    kind: str = "isolation"
    title: str = "the repository"
    policy: Policy = PLAIN
    inner: Sequence[Step] = ()

    @property
    def fingerprint(self) -> str:
        return self.isolation.fingerprint

    def run(self, turn: Turn) -> Json:
        found = expect_workspaces(turn).survey(self.isolation.base, needs_branch=self.isolation.merges)
        return found.record()


@dataclass(frozen=True, slots=True)
class _Place:
    shelter: Shelter
    item: str
    key: str
    again: bool
    """The item was tried before."""
    name: str = "worktree"
    kind: str = "isolation"
    title: str = "the item's place"
    policy: Policy = PLAIN
    inner: Sequence[Step] = ()

    @property
    def fingerprint(self) -> str:
        return self.shelter.isolation.fingerprint

    def run(self, turn: Turn) -> Json:
        return self.shelter.add(turn, self.item, self.key, again=self.again).record()


@dataclass(frozen=True, slots=True)
class _Intent:
    """What a merge is about to do, recorded before it does it."""

    value: dict[str, Json] = field(default_factory=dict)
    name: str = "intent"
    kind: str = "isolation"
    title: str = "what the merge will do"
    fingerprint: str = "intent"
    policy: Policy = PLAIN
    inner: Sequence[Step] = ()

    def run(self, turn: Turn) -> Json:  # noqa: ARG002 - a step
        return self.value


@dataclass(frozen=True, slots=True)
class _Merge:
    """What one item did goes onto the branch of the run, after that of the items before it."""

    shelter: Shelter
    spot: Spot
    head: str
    order: int
    fingerprint: str
    name: str = "merge"
    kind: str = "isolation"
    title: str = "merge what the item did"
    policy: Policy = PLAIN

    @property
    def inner(self) -> Sequence[Step]:
        return (_Intent(),)

    def run(self, turn: Turn) -> Json:
        self.shelter.line.wait_for_turn(self.order, turn.run)
        name = os.path.basename(self.spot.path)
        target = BRANCHES + self.shelter.branch
        return _merged(turn, target, self.head, f"Merge {name}\n", self._conflict)

    def _conflict(self, files: Sequence[str]) -> Failure:
        path, branch = shlex.quote(self.spot.path), self.shelter.branch
        return Failure(
            f"what it did conflicts with what items before it did: {_named(files)}\n"
            f"its branch is {self.spot.branch}, its worktree {self.spot.path}\n"
            f"continue by hand: cd {path} && git merge {branch}, resolve, git commit; "
            "then plait retry",
            "conflict",
            exit_code=1,
        )


@dataclass(frozen=True, slots=True)
class _MergeAll:
    """What all items did goes into the branch that was checked out when the map began."""

    shelter: Shelter
    head: str
    name: str = "merge"
    kind: str = "isolation"
    title: str = "merge what all items did"
    policy: Policy = PLAIN

    @property
    def fingerprint(self) -> str:
        return self.shelter.isolation.fingerprint

    @property
    def inner(self) -> Sequence[Step]:
        return (_Intent(),)

    def run(self, turn: Turn) -> Json:
        message = f"Merge branch '{self.shelter.branch}'\n"
        target = self.shelter.target
        return _merged(turn, target, self.head, message, self._conflict, in_the_way=self._in_the_way)

    def _conflict(self, files: Sequence[str]) -> Failure:
        what = f"what the items did conflicts with what came to {_short(self.shelter.target)} since"
        message = f"{what}: {_named(files)}\n{_by_hand(self.shelter)}"
        return Failure(message, "conflict", exit_code=1)

    def _in_the_way(self, error: InTheWay) -> Failure:
        what = f"what the items did is not merged into {_short(self.shelter.target)} yet: {error}\n"
        return Failure(f"{what}{_by_hand(self.shelter)}", "refused", exit_code=1)


def _by_hand(shelter: Shelter) -> str:
    return f"all of it is on the branch {shelter.branch}: git merge {shelter.branch}; then plait resume"


# ── one merge ────────────────────────────────────────────────────────────


def _merged(
    turn: Turn,
    target: str,
    head: str,
    message: str,
    conflict: Callable[[Sequence[str]], Failure],
    *,
    in_the_way: Callable[[InTheWay], Failure] | None = None,
) -> Json:
    """Bring a commit into a branch.

    `in_the_way`: the branch is one that people work on.  It is only moved forward where that is enough, and
    a working tree in which it is checked out goes with it; what is said if that cannot be done.
    """
    spaces, of_people = expect_workspaces(turn), in_the_way is not None
    begun = _value(turn.run.journal.recorded(f"{turn.path}/intent"))
    if begun.get("head") == head and _has_happened(turn, begun):
        if of_people and spaces.tip(target) == begun["new"]:
            _go_along(turn, target, begun, again=True)
        return begun
    for _ in range(MOST_MOVES):
        old = spaces.tip(target)
        if not old:
            raise StepError(
                Failure(f"the branch {_short(target)} is no longer there: make it, then plait resume")
            )
        if spaces.is_ancestor(head, old):
            return {"target": target, "old": old, "new": old, "head": head}
        is_ahead = of_people and spaces.is_ancestor(old, head)
        new = head if is_ahead else spaces.merge(old, head, message)
        if isinstance(new, Conflict):
            raise StepError(conflict(new.files))
        if in_the_way is not None:
            _expect_fits(turn, target, old, new, in_the_way)
        intent: dict[str, Json] = {"target": target, "old": old, "new": new, "head": head}
        expect_done(perform(_Intent(intent), replace(turn.inner(_Intent()), replaying=False)))
        turn.run.journal.sync()
        if _is_moved(turn, intent):
            if of_people:
                _go_along(turn, target, intent, again=False)
            return intent
    raise StepError(
        Failure(f"the branch {_short(target)} moves too often to be merged into; try again later")
    )


def _is_moved(turn: Turn, intent: Mapping[str, Json]) -> bool:
    """Do what was recorded as an intent; what surely was not done is no intent any more."""
    spaces, target, new = expect_workspaces(turn), str(intent["target"]), str(intent["new"])
    try:
        if spaces.move(target, new, str(intent["old"])):
            return True
    except PlaitError:
        if spaces.tip(target) == new:
            return True
        turn.run.emit(StepForgotten(f"{turn.path}/intent", "the branch could not be moved"))
        raise
    turn.run.emit(StepForgotten(f"{turn.path}/intent", "the branch was moved by somebody else"))
    return False


def _has_happened(turn: Turn, intent: Mapping[str, Json]) -> bool:
    """Did an earlier life of the run do what it recorded as its intent?"""
    spaces, target = expect_workspaces(turn), str(intent["target"])
    tip = spaces.tip(target)
    if spaces.is_ancestor(str(intent["new"]), tip):
        return True
    if tip == intent["old"] or turn.run.is_repeated(turn.path):
        return False
    resume = f"plait resume {turn.run.id}"
    raise InputError(
        f"the branch {_short(target)} is neither where a merge ({turn.path}) began nor where it was to end, "
        "and nobody knows whether the merge was made and undone",
        fix=f"look at it: git log {_short(target)}; then {resume} --repeat {turn.path} merges "
        f"{str(intent['head'])[:12]} into it, and {resume} --done {turn.path} leaves it as it is",
        code="once",
    )


def _expect_fits(
    turn: Turn, target: str, old: str, new: str, in_the_way: Callable[[InTheWay], Failure]
) -> None:
    tree = expect_workspaces(turn).checkout_of(target, mark=turn.run.id)
    if tree is None:
        return
    try:
        tree.expect_fits(old, new)
    except InTheWay as error:
        raise StepError(in_the_way(error)) from None


def _go_along(turn: Turn, target: str, intent: Mapping[str, Json], *, again: bool) -> None:
    """Bring the working tree of a branch to where the branch has gone."""
    tree = expect_workspaces(turn).checkout_of(target, mark=turn.run.id)
    if tree is None:
        return
    old, new = str(intent["old"]), str(intent["new"])
    try:
        tree.update(old, new, again=again)
    except InTheWay as error:
        branch = _short(target)
        raise StepError(
            Failure(
                f"{branch} has what the items did; your working tree {tree.path} could not go along: "
                f"{error}\n"
                "if that is because of changes of yours, bring both together: "
                f"git checkout --detach {old[:12]} && git stash && git checkout {branch} && git stash pop; "
                "then plait resume",
                "refused",
                exit_code=1,
            )
        ) from None


# ── small parts ──────────────────────────────────────────────────────────


def _inside(turn: Turn, spot: Spot) -> Turn:
    env = {name: value for name, value in turn.env.items() if name not in REPOSITORY_VARIABLES}
    return replace(turn, directory=spot.directory, scope=turn.scope.at(spot.directory), env=env)


def _with_place(failure: Failure, spot: Spot) -> Failure:
    place = (
        f"its worktree stays: {spot.path}, branch {spot.branch}"
        if spot.branch
        else f"its folder stays: {spot.path}"
    )
    return replace(failure, message=f"{failure.message}\n{place}")


def _lost_its_branch(spot: Spot) -> StepError:
    what = "its worktree has left its branch, and the two have gone apart: bring the branch to what is meant"
    return StepError(_with_place(Failure(what, "incomplete", exit_code=1), spot))


def _named(files: Sequence[str]) -> str:
    shown = ", ".join(
        name.encode("unicode_escape").decode() if not name.isprintable() else name
        for name in files[:MOST_NAMED]
    )
    return shown if len(files) <= MOST_NAMED else f"{shown} and {len(files) - MOST_NAMED} more"


def _short(ref: str) -> str:
    return ref.removeprefix(BRANCHES)


def _value(known: Recorded | Json) -> dict[str, Json]:
    """The map that a step gave, or none."""
    if isinstance(known, Recorded):
        known = known.outcome.value if isinstance(known.outcome, Done) else None
    return dict(known) if isinstance(known, dict) else {}


def _spot(outcome: Outcome | None) -> Spot | None:
    value = outcome.value if isinstance(outcome, Done) else None
    return Spot(**value) if isinstance(value, dict) and "path" in value else None


def _spot_of(known: Recorded | None) -> Spot | None:
    return None if known is None else _spot(known.outcome)
