"""What a run, a graph or an agent may use up, and what it has used up.

A limit is looked at before a call, never after it: what is reached is not exceeded.
What a call uses up is often known only afterwards.  Such a call sets aside what it may use
at most, so that those beside it cannot use the same; where that is not there, it waits for
them, and is alone when it gets the rest.
Whoever is inside another spends the other's as well, so that no chain of agents
spends more than the first of them was given.  What earlier lives of a run used up is counted
before anything is used in this one, and a remembered call uses nothing: a resumed run has what its
earlier lives left over, in whatever order it comes to its places.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from threading import Condition, Lock

from plait.engine.events import StepFinished, StepRetrying
from plait.engine.outcome import Done, Failed, Failure, Outcome, StepError
from plait.hints import TYPE_CHECKING, Final, TypeAlias
from plait.records import dataclass, field, replace
from plait.values import Json

if TYPE_CHECKING:
    from plait.engine.journal import Journal

NAMES: Final = ("turns", "tokens", "spend", "seconds", "steps", "depth")
COUNTED: Final = ("turns", "tokens", "spend", "steps")
LAST: Final = "\U0010ffff"
"""Behind every path."""
LOOK: Final = 0.05
"""Seconds between two looks of a call that waits for others."""


@dataclass(frozen=True, slots=True)
class Limits:
    """None: as much as it takes."""

    turns: int | None = None
    """Questions to a model."""
    tokens: int | None = None
    """Into the model and out of it."""
    spend: float | None = None
    """In the currency of the provider's prices."""
    seconds: float | None = None
    steps: int | None = None
    """Steps of a flow, nodes of a graph, calls of tools."""
    depth: int | None = None
    """Agents and flows inside one another; 0: none may be called."""

    def record(self) -> dict[str, Json]:
        """Those that are set."""
        return {name: value for name in NAMES if (value := getattr(self, name)) is not None}


NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Reached:
    """A limit of which nothing is left: for hooks and people."""

    code: str
    value: float
    max: float
    what: str
    """Whose limit it is."""
    next: float = 0
    """What the next call would take at least, where that is more than is left."""
    why: str = ""
    """What came of it, for people."""
    holder: Spent | None = field(default=None, repr=False, compare=False)
    """Who has the limit; None: whoever says so."""

    def record(self) -> dict[str, Json]:
        return {"code": self.code, "value": self.value, "max": self.max}

    def now(self) -> Reached:
        """With what has been used up by now."""
        holder = self.holder
        return self if holder is None else replace(self, value=round(holder._amount(self.code), 9))

    def failure(self, partial: Json = None) -> Failure:
        """The end of a step that could not go on, with what it had made until then."""
        more = f", the next call needs about {self.next:.6g}" if self.next else ""
        said = f"{self.what} has reached its limit of {self.max:g} {self.code} ({self.value:g} used{more})"
        return Failure(f"{said}: {self.why}" if self.why else said, "limit", output=partial)


class Spent:
    """What has been used up of some limits; threads may share it."""

    def __init__(
        self,
        limits: Limits = NO_LIMITS,
        *,
        within: Spent | None = None,
        what: str = "the run",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.within = within
        self.what = what
        self.depth: int = 0 if within is None else within.depth + 1
        self._used: dict[str, float] = dict.fromkeys(COUNTED, 0)
        self._seconds = 0.0
        """Of earlier lives."""
        self._clock = clock
        self._began = clock()
        self._lock = Lock()
        self._aside: dict[str, float] = dict.fromkeys(COUNTED, 0)
        """What calls that are being made may still use."""
        self._calls = 0
        self._taking: Condition = Condition(Lock()) if within is None else within._taking

    def take(self, *names: str, **used: float) -> Reached | None:
        """Use something up unless one of these limits (any, if none is named) is reached, and say which.

        Two threads never take the last.
        """
        with self._taking:
            found = self.reach(*names)
            if found is None:
                self.add(**used)
        return found

    def set_aside(
        self, most: Mapping[str, float], least: Mapping[str, float], expect_time: Callable[[], None]
    ) -> Aside | Reached:
        """What a call may use: all it wants; or the rest, if nobody else is calling; or too little is left.

        While others use what it wants, it waits; `expect_time` raises if it may not wait any longer.
        """
        with self._taking:
            while (found := self._granted(most, least)) is None:
                expect_time()
                self._taking.wait(LOOK)
            if isinstance(found, Aside):
                found.begin()
        return found

    def _granted(self, most: Mapping[str, float], least: Mapping[str, float]) -> Aside | Reached | None:
        granted, must_wait = dict(most), False
        short: Reached | None = None
        for name in most:
            for holder, limit, used in self._holders(name):
                free = limit - used - holder._aside[name]
                if used >= limit or used + least[name] > limit:
                    wanted = 0 if used >= limit else least[name]
                    return Reached(name, round(used, 9), limit, holder.what, wanted, holder=holder)
                must_wait = must_wait or (holder._calls > 0 and free < most[name])
                if free < granted[name]:
                    granted[name] = free
                    short = Reached(name, used, limit, holder.what, holder=holder)
        return None if must_wait else Aside(self, granted, short)

    def add(self, **used: float) -> None:
        """`turns`, `tokens`, `spend`, `steps`; and `seconds` of earlier lives, which are its own alone."""
        earlier = used.pop("seconds", 0.0)
        with self._lock:
            self._seconds += earlier
            for name, amount in used.items():
                self._used[name] += amount
        if self.within is not None and used:
            self.within.add(**used)

    def add_earlier(self, **used: float) -> None:
        """What earlier lives used up, counted before this one uses anything; others count their own."""
        with self._lock:
            for name, amount in used.items():
                self._used[name] += amount

    def add_time(self, seconds: float) -> None:
        """What a step took in an earlier life, for all that it is inside of but the run, which knows."""
        spent = self
        while spent.within is not None:
            spent.add(seconds=seconds)
            spent = spent.within

    def is_limited(self, *names: str) -> bool:
        """Does anybody limit one of these (anything, if none is named), here or outside?"""
        return any(True for name in names or NAMES for _ in self._holders(name))

    def used(self) -> dict[str, Json]:
        """For hooks, events and people."""
        with self._lock:
            whole = {name: int(self._used[name]) for name in ("turns", "tokens", "steps")}
            return {
                **whole,
                "spend": round(self._used["spend"], 9),
                "seconds": round(self._all_seconds(), 3),
                "depth": self.depth,
            }

    def left(self, name: str) -> float | None:
        """What may still be used of one, here and outside; None: as much as it takes."""
        rests = [max(0.0, limit - used) for _, limit, used in self._holders(name)]
        return min(rests, default=None)

    def reached(self, *names: str) -> str | None:
        """The first of these limits (all, if none is named) of which nothing is left."""
        found = self.reach(*names)
        return None if found is None else found.code

    def reach(self, *names: str) -> Reached | None:
        """The same, with its numbers, and whose limit it is: the nearest that is used up."""
        for name in names or NAMES:
            for holder, limit, used in self._holders(name):
                # So deep it may be called, and no deeper; of everything else what is reached is used up.
                if used > limit or (used == limit and name != "depth"):
                    return Reached(name, round(used, 9), limit, holder.what, holder=holder)
        return None

    def expect(self, *names: str, partial: Json = None) -> None:
        """Raises StepError of kind `limit` if one is reached, with what was made until then."""
        found = self.reach(*names)
        if found is not None:
            raise StepError(found.failure(partial))

    def failure(self, name: str, partial: Json = None) -> Failure:
        """The end of whoever has reached this limit."""
        found = self.reach(name)
        assert found is not None, f"nobody has reached {name}"
        return found.failure(partial)

    def _holders(self, name: str) -> Iterator[tuple[Spent, float, float]]:
        """Whoever limits it, from here outwards: with the limit, and what counts against it."""
        spent: Spent | None = self
        while spent is not None:
            limit = getattr(spent.limits, name)
            if limit is not None:
                yield spent, limit, self.depth - spent.depth if name == "depth" else spent._amount(name)
            spent = spent.within

    def _amount(self, name: str) -> float:
        with self._lock:
            return self._all_seconds() if name == "seconds" else self._used[name]

    def _all_seconds(self) -> float:
        return self._seconds + self._clock() - self._began


class Aside:
    """What is set aside for a call while it is made."""

    def __init__(self, spent: Spent, amounts: Mapping[str, float], short: Reached | None = None) -> None:
        self.amounts = amounts
        self.short = short
        """The limit because of which it is less than was wanted."""
        self._spent = spent

    def begin(self) -> None:
        """Only `Spent.set_aside` says this."""
        self._move(1)

    def settle(self, **used: float) -> None:
        """The call is over, and this is what it took: nobody sees the one without the other."""
        with self._spent._taking:
            self._move(-1)
            self._spent.add(**used)
            self._spent._taking.notify_all()

    def _move(self, way: int) -> None:
        spent: Spent | None = self._spent
        while spent is not None:
            spent._calls += way
            for name, amount in self.amounts.items():
                # Sums of fractions leave crumbs: with the last call nothing is aside.
                spent._aside[name] = spent._aside[name] + way * amount if spent._calls else 0
            spent = spent.within


def limits_of(said: Mapping[str, Json]) -> Limits:
    """Limits from a checked map; the names of other systems (`duration_seconds`) are read by its table."""
    return Limits(**{name: said[name] for name in NAMES if said.get(name) is not None})


# ── earlier lives ────────────────────────────────────────────────────────


class Earlier:
    """What the earlier lives of a run have used up, as a whole and inside each place.

    What was paid for attempts that came to nothing is paid for whatever follows.  A step counts
    once, however often it is done again in later lives.  `is_counted` says of a path and a kind
    whether that step counts as one of `steps`; `before` is the number of the first event of this life.
    """

    def __init__(
        self, journal: Journal, is_counted: Callable[[str, str], bool], *, before: float = inf
    ) -> None:
        self.seconds = 0.0
        counted: set[str] = set()
        self._paid: dict[str, _Paid] = {}
        asked: set[str] = set()
        worked = _Union()
        for stamped in journal.events():
            if stamped.number >= before:
                break
            match stamped.event:
                case StepFinished(path=path, kind=kind, outcome=outcome, duration=duration):
                    worked.add(stamped.at - duration, stamped.at)
                    if is_counted(path, kind):
                        counted.add(path)
                    self._pay(path, outcome)
                    if _is_turn(path):
                        asked.add(path.rpartition("/")[0])
                case StepRetrying(path=path, failure=failure):
                    self._pay(path, Failed(failure))
        self.seconds = worked.length
        self._steps = sorted(counted - asked)
        self._usages = sorted(self._paid.items())

    def _pay(self, path: str, outcome: Outcome) -> None:
        if (usage := _usage(outcome)) is not None:
            self._paid[path] = _sum([self._paid.get(path, _NOTHING), usage])

    def inside(self, path: str) -> dict[str, float]:
        """What was used up inside the step at a path; of all steps, where the path is empty."""
        first, end = (f"{path}/", f"{path}0") if path else ("", LAST)  # "0" is the character behind "/"
        steps = bisect_left(self._steps, end) - bisect_left(self._steps, first)
        usages = dict(self._usages[bisect_left(self._usages, (first,)) : bisect_left(self._usages, (end,))])
        # Whoever sums up what is inside it is not counted as well.
        summed = {above for one in usages for above in _above(one)}
        turns, tokens, spend = _sum([usage for one, usage in usages.items() if one not in summed])
        return _amounts(steps=steps, turns=turns, tokens=tokens, spend=spend)

    def has_step(self, path: str) -> bool:
        """Is the step at a path one of those that were counted?"""
        at = bisect_left(self._steps, path)
        return at < len(self._steps) and self._steps[at] == path


_Paid: TypeAlias = tuple[float, float, float]
"""Questions, tokens, money."""
_NOTHING: Final[_Paid] = (0, 0, 0)


def _sum(all_paid: Sequence[_Paid]) -> _Paid:
    turns, tokens, spend = (sum(one[at] for one in all_paid) for at in range(3))
    return turns, tokens, spend


def _amounts(**used: float) -> dict[str, float]:
    return {name: amount for name, amount in used.items() if amount}


def _is_turn(path: str) -> bool:
    return path.rpartition("/")[2].startswith("turn:")


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _usage(outcome: Outcome) -> _Paid | None:
    """What a step says it took: an agent and its turns as such, a step of a workflow among its facts."""
    match outcome:
        case (
            Done({"usage": dict(usage)})
            | Done({"facts": {"usage": dict(usage)}})
            | Failed(Failure(output={"usage": dict(usage)}))
            | Failed(Failure(output={"facts": {"usage": dict(usage)}}))
        ):
            tokens = _number(usage.get("input")) + _number(usage.get("output"))
            return _number(usage.get("calls", 1)), tokens, _number(usage.get("cost"))
    return None


def _number(value: Json) -> float:
    return value if isinstance(value, int | float) else 0


class _Union:
    """How much of the time is covered by stretches that may overlap; they come in the order of their ends.

    What ran side by side counts once, and a clock that jumps makes it no longer than all durations together.
    """

    def __init__(self) -> None:
        self._stretches: list[tuple[float, float]] = []

    def add(self, start: float, end: float) -> None:
        while self._stretches and self._stretches[-1][1] >= start and self._stretches[-1][0] <= end:
            before = self._stretches.pop()
            start, end = min(start, before[0]), max(end, before[1])
        self._stretches.append((start, end))

    @property
    def length(self) -> float:
        return sum(end - start for start, end in self._stretches)
