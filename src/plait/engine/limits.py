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
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import accumulate
from operator import add, sub
from sys import maxsize
from threading import Condition, Lock

from plait.core.hints import TYPE_CHECKING, Final, TypeAlias
from plait.core.records import dataclass, field, replace
from plait.core.values import Json
from plait.engine.events import EarlierUsage, StepFinished, StepRetrying, Usage
from plait.engine.outcome import LIMIT, Failure, StepError

if TYPE_CHECKING:
    from plait.engine.events import Event
    from plait.engine.journal import Journal


NAMES: Final = ("turns", "tokens", "spend", "seconds", "steps", "depth")
COUNTED: Final = ("turns", "tokens", "spend", "steps")
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
class LimitReached:
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
    holder: Budget | None = field(default=None, repr=False, compare=False)
    """Who has the limit; None: whoever says so."""

    def record(self) -> dict[str, Json]:
        return {"code": self.code, "value": self.value, "max": self.max}

    def now(self) -> LimitReached:
        """With what has been used up by now."""
        holder = self.holder
        return self if holder is None else replace(self, value=round(holder._amount(self.code), 9))

    def failure(self, partial: Json = None) -> Failure:
        """The end of a step that could not go on, with what it had made until then."""
        more = f", the next call needs about {self.next:.6g}" if self.next else ""
        code = self.code.removesuffix("s") if self.max == 1 else self.code
        said = (
            f"{self.what} has reached its limit of {self.max:g} {code} ({self.value:g} used{more})"
        )
        return Failure(f"{said}: {self.why}" if self.why else said, LIMIT, output=partial)


class Budget:
    """What has been used up of some limits; threads may share it."""

    def __init__(
        self,
        limits: Limits = NO_LIMITS,
        *,
        within: Budget | None = None,
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

    def take(self, *names: str, **used: float) -> LimitReached | None:
        """Use something up unless one of these limits (any, if none is named) is reached, and say
        which.

        Two threads never take the last.
        """
        with self._taking:
            found = self.reach(*names)
            if found is None:
                self.add(**used)
        return found

    def reserve(
        self, most: Mapping[str, float], least: Mapping[str, float], expect_time: Callable[[], None]
    ) -> Reservation | LimitReached:
        """What a call may use: all it wants; or the rest, if nobody else is calling; or too little
        is left.

        While others use what it wants, it waits; `expect_time` raises if it may not wait any
        longer.
        """
        with self._taking:
            while (found := self._try_reserve(most, least)) is None:
                expect_time()
                self._taking.wait(LOOK)
            if isinstance(found, Reservation):
                found.begin()
        return found

    def _try_reserve(
        self, most: Mapping[str, float], least: Mapping[str, float]
    ) -> Reservation | LimitReached | None:
        granted, must_wait = dict(most), False
        short: LimitReached | None = None
        for name in most:
            for holder, limit, used in self._holders(name):
                free = limit - used - holder._aside[name]
                if used >= limit or used + least[name] > limit:
                    wanted = 0 if used >= limit else least[name]
                    return LimitReached(
                        name, round(used, 9), limit, holder.what, wanted, holder=holder
                    )
                must_wait = must_wait or (holder._calls > 0 and free < most[name])
                if free < granted[name]:
                    granted[name] = free
                    short = LimitReached(name, used, limit, holder.what, holder=holder)
        return None if must_wait else Reservation(self, granted, short)

    def add(self, **used: float) -> None:
        """`turns`, `tokens`, `spend`, `steps`; and `seconds` of earlier lives, which are its own
        alone.
        """
        earlier = used.pop("seconds", 0.0)
        with self._lock:
            self._seconds += earlier
            for name, amount in used.items():
                self._used[name] += amount
        if self.within is not None and used:
            self.within.add(**used)

    def add_earlier(self, **used: float) -> None:
        """What earlier lives used up, counted before this one uses anything; others count their
        own.
        """
        with self._lock:
            for name, amount in used.items():
                self._used[name] += amount

    def carry_on(self, before: Budget) -> None:
        """Begin with what another one of the same limits has used up; whoever is outside has
        counted it.
        """
        with before._lock:
            used, seconds = dict(before._used), before._all_seconds()
        with self._lock:
            self._used, self._seconds = used, seconds

    def add_time(self, seconds: float) -> None:
        """What a step took in an earlier life, for all that it is inside of but the run, which
        knows.
        """
        budget = self
        while budget.within is not None:
            budget.add(seconds=seconds)
            budget = budget.within

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

    def available(self, name: str) -> float | None:
        """What may still be used of one, here and outside; None: as much as it takes."""
        rests = [max(0.0, limit - used) for _, limit, used in self._holders(name)]
        return min(rests, default=None)

    def limit_code(self, *names: str) -> str | None:
        """The first of these limits (all, if none is named) of which nothing is left."""
        found = self.reach(*names)
        return None if found is None else found.code

    def reach(self, *names: str) -> LimitReached | None:
        """The same, with its numbers, and whose limit it is: the nearest that is used up."""
        for name in names or NAMES:
            for holder, limit, used in self._holders(name):
                # So deep it may be called, and no deeper; of everything else what is reached is
                # used up.
                if used > limit or (used == limit and name != "depth"):
                    return LimitReached(name, round(used, 9), limit, holder.what, holder=holder)
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

    def _holders(self, name: str) -> Iterator[tuple[Budget, float, float]]:
        """Whoever limits it, from here outwards: with the limit, and what counts against it."""
        budget: Budget | None = self
        while budget is not None:
            limit = getattr(budget.limits, name)
            if limit is not None:
                yield (
                    budget,
                    limit,
                    self.depth - budget.depth if name == "depth" else budget._amount(name),
                )
            budget = budget.within

    def _amount(self, name: str) -> float:
        with self._lock:
            return self._all_seconds() if name == "seconds" else self._used[name]

    def _all_seconds(self) -> float:
        return self._seconds + self._clock() - self._began


class Reservation:
    """What is set aside for a call while it is made."""

    def __init__(
        self, budget: Budget, amounts: Mapping[str, float], short: LimitReached | None = None
    ) -> None:
        self.amounts = amounts
        self.short = short
        """The limit because of which it is less than was wanted."""
        self._budget = budget

    def begin(self) -> None:
        """Only `Spent.set_aside` says this."""
        self._move(1)

    def settle(self, **used: float) -> None:
        """The call is over, and this is what it took: nobody sees the one without the other."""
        with self._budget._taking:
            self._move(-1)
            self._budget.add(**used)
            self._budget._taking.notify_all()

    def _move(self, way: int) -> None:
        budget: Budget | None = self._budget
        while budget is not None:
            budget._calls += way
            for name, amount in self.amounts.items():
                # Sums of fractions leave crumbs: with the last call nothing is aside.
                budget._aside[name] = budget._aside[name] + way * amount if budget._calls else 0
            budget = budget.within


def parse_limits(said: Mapping[str, Json]) -> Limits:
    """Limits from a checked map; the names of other systems (`duration_seconds`) are read by its
    table.
    """
    return Limits(**{name: said[name] for name in NAMES if said.get(name) is not None})


# ── earlier lives ────────────────────────────────────────────────────────


class PriorUsage:
    """What the earlier lives of a run have used up, as a whole and inside each place.

    It is what they took from their budgets, as they recorded it; nothing is made out of what came
    of a step. `before` is the number of the first event of this life.
    """

    def __init__(self, journal: Journal, *, before: int = maxsize) -> None:
        self._journal = journal
        self._before = before
        self._at: dict[str, dict[str, float]] = {}
        for path, used in journal.usage_before(before):
            _add(self._at.setdefault(path, {}), used)
        self._paths = sorted(self._at)
        self._sums = list(
            accumulate((_row(self._at[path]) for path in self._paths), _plus, initial=_NOTHING)
        )

    @cached_property
    def seconds(self) -> float:
        """What their steps took, side by side counted once."""
        worked = _Union()
        for stamped in self._journal.events():
            if stamped.number >= self._before:
                break
            if isinstance(stamped.event, StepFinished):
                worked.add(stamped.at - stamped.event.duration, stamped.at)
        return worked.length

    def inside(self, path: str) -> dict[str, float]:
        """What was used up inside the step at a path; of all steps, where the path is empty.

        What hooks about the step itself used is used around it: see `RunContext.spent_around`.
        """
        if not path:
            return _amounts(self._sums[-1])
        whole = self._between(f"{path}/", f"{path}0")  # "0" is the character behind "/"
        return _amounts(
            _minus(whole, self._between(f"{path}/hook:", f"{path}/hook;"))
        )  # and ";" behind ":"

    def _between(self, first: str, end: str) -> _Row:
        return _minus(
            self._sums[bisect_left(self._paths, end)], self._sums[bisect_left(self._paths, first)]
        )

    def has_step(self, path: str) -> bool:
        """Is the step at a path one of those that were counted?"""
        return "steps" in self._at.get(path, ())

    def below(self, path: str) -> list[tuple[str, Usage]]:
        """What was used up at a path and at each one below it."""
        first, end = bisect_left(self._paths, f"{path}/"), bisect_left(self._paths, f"{path}0")
        return [(one, self._at[one]) for one in (path, *self._paths[first:end]) if one in self._at]

    def by_part(self) -> Mapping[str, Usage]:
        """What was used up in each part of the flow."""
        parts: dict[str, dict[str, float]] = {}
        for path, used in self._at.items():
            _add(parts.setdefault(path.partition("/")[0], {}), used)
        return parts


_Row: TypeAlias = tuple[float, ...]
"""An amount for each of `COUNTED`."""
_NOTHING: Final[_Row] = (0,) * len(COUNTED)


def _add(sums: dict[str, float], used: Usage) -> None:
    for name, amount in used.items():
        sums[name] = sums.get(name, 0) + amount


def _row(used: Usage) -> _Row:
    return tuple(used.get(name, 0) for name in COUNTED)


def _plus(one: _Row, other: _Row) -> _Row:
    return tuple(map(add, one, other))


def _minus(one: _Row, other: _Row) -> _Row:
    return tuple(map(sub, one, other))


def _amounts(row: _Row) -> dict[str, float]:
    # Differences of sums of fractions leave crumbs.
    amounts = {name: round(amount, 9) for name, amount in zip(COUNTED, row, strict=True)}
    return {name: amount for name, amount in amounts.items() if amount}


class _Union:
    """How much of the time is covered by stretches that may overlap; they come in the order of
    their ends.

    What ran side by side counts once, and a clock that jumps makes it no longer than all durations
    together.
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


@dataclass(slots=True, eq=False)
class UsageTally:
    """What models have been asked, and what that took: the same that counts against limits."""

    turns: int = 0
    tokens: int = 0
    cost: float = 0.0
    estimated: int = 0
    """Of the tokens: those that no server counted."""

    def add(self, used: Usage) -> None:
        self.turns += int(used.get("turns", 0))
        self.tokens += int(used.get("tokens", 0))
        self.estimated += int(used.get("estimated", 0))
        self.cost += used.get("spend", 0.0)

    def count(self, event: Event) -> None:
        """Count what an event says was used up; what is replayed was counted with the earlier
        lives.
        """
        match event:
            case StepFinished(used=used, replayed=False) | StepRetrying(used=used):
                if used is not None:
                    self.add(used)
            case EarlierUsage(parts=parts):
                self.turns, self.tokens, self.cost, self.estimated = 0, 0, 0.0, 0
                for used in parts.values():
                    self.add(used)

    def record(self) -> dict[str, Json]:
        estimated: dict[str, Json] = {"estimated": self.estimated} if self.estimated else {}
        return {
            "turns": self.turns,
            "tokens": self.tokens,
            "cost": round(self.cost, 6),
            **estimated,
        }
