"""Limits and budgets: what a run, a graph or an agent may use, and what is left of it.

A limit is checked before a call, so it is reached but not exceeded.  What a call uses is often
known only afterwards.  Such a call reserves the most that it may use, so that parallel calls cannot
use the same.  If less is left, it waits until no other call runs, and gets the rest.

Usage inside a budget counts for the budgets around it, too: a chain of agents uses no more than the
limit of the first.  A resumed run first counts what earlier attempts of the run used; a replayed
call uses nothing.
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
from plait.engine.paths import HOOK, first_name, range_below

if TYPE_CHECKING:
    from plait.engine.events import Event
    from plait.engine.journal import Journal


NAMES: Final = ("turns", "tokens", "spend", "seconds", "steps", "depth")
COUNTED: Final = ("turns", "tokens", "spend", "steps")
POLL_SECONDS: Final = 0.05
"""How often a call that waits for others checks whether it may go on."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a run, a flow or an agent; None: no limit."""

    turns: int | None = None
    """Model turns."""
    tokens: int | None = None
    """Input and output of models."""
    spend: float | None = None
    """In the currency of the provider's prices."""
    seconds: float | None = None
    steps: int | None = None
    """Steps of a flow, nodes of a graph, tool calls."""
    depth: int | None = None
    """Nested agents and flows; 0: it may call none."""

    def record(self) -> dict[str, Json]:
        """Return the limits that are set."""
        return {name: value for name in NAMES if (value := getattr(self, name)) is not None}


NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class LimitReached:
    """A limit that is reached, for hooks and people."""

    code: str
    value: float
    max: float
    what: str
    """The run, flow or agent that has the limit, for people."""
    next: float = 0
    """The least that the next call needs, if that is more than is left."""
    why: str = ""
    """The consequence, for people."""
    holder: Budget | None = field(default=None, repr=False, compare=False)
    """The budget with the limit; None: the limit does not come from a budget."""

    def record(self) -> dict[str, Json]:
        return {"code": self.code, "value": self.value, "max": self.max}

    def now(self) -> LimitReached:
        """Return the same limit with the present usage."""
        holder = self.holder
        return self if holder is None else replace(self, value=round(holder._amount(self.code), 9))

    def failure(self, partial: Json = None) -> Failure:
        """Return the failure of a step that cannot go on, with its partial result."""
        more = f", the next call needs about {self.next:.6g}" if self.next else ""
        code = self.code.removesuffix("s") if self.max == 1 else self.code
        text = (
            f"{self.what} has reached its limit of {self.max:g} {code} ({self.value:g} used{more})"
        )
        return Failure(f"{text}: {self.why}" if self.why else text, LIMIT, output=partial)


class Budget:
    """Usage against some limits, and what is left.  Safe to use from many threads."""

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
        """Seconds of earlier attempts of the run."""
        self._clock = clock
        self._began = clock()
        self._lock = Lock()
        self._reserved: dict[str, float] = dict.fromkeys(COUNTED, 0)
        """What running calls may still use."""
        self._calls = 0
        self._taking: Condition = Condition(Lock()) if within is None else within._taking

    def take(self, *names: str, **used: float) -> LimitReached | None:
        """Use something, or return the limit that is reached: one of `names`, or any.

        Two threads never both take the last unit.
        """
        with self._taking:
            found = self.reach(*names)
            if found is None:
                self.add(**used)
        return found

    def reserve(
        self,
        most: Mapping[str, float],
        least: Mapping[str, float],
        require_time: Callable[[], None],
    ) -> Reservation | LimitReached:
        """Reserve `most` for a call, or what is left of it if no other call runs.

        Return the limit if less than `least` is left.  Wait while other calls hold what it wants;
        `require_time` raises when it may wait no longer.
        """
        with self._taking:
            while (found := self._try_reserve(most, least)) is None:
                require_time()
                self._taking.wait(POLL_SECONDS)
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
                free = limit - used - holder._reserved[name]
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
        """Count `turns`, `tokens`, `spend` and `steps`, here and in the budgets around.

        `seconds` of earlier attempts count here only.
        """
        earlier = used.pop("seconds", 0.0)
        with self._lock:
            self._seconds += earlier
            for name, amount in used.items():
                self._used[name] += amount
        if self.within is not None and used:
            self.within.add(**used)

    def add_earlier(self, **used: float) -> None:
        """Count what earlier attempts of the run used, here only; call it before anything is used."""
        with self._lock:
            for name, amount in used.items():
                self._used[name] += amount

    def continue_from(self, before: Budget) -> None:
        """Start with the usage of another budget for the same path; those around have counted it."""
        with before._lock:
            used, seconds = dict(before._used), before._all_seconds()
        with self._lock:
            self._used, self._seconds = used, seconds

    def add_time(self, seconds: float) -> None:
        """Count the seconds of a replayed step, here and around; the run's budget has them already."""
        budget = self
        while budget.within is not None:
            budget.add(seconds=seconds)
            budget = budget.within

    def is_limited(self, *names: str) -> bool:
        """Is there a limit for one of `names` (or any), here or around?"""
        return any(True for name in names or NAMES for _ in self._holders(name))

    def usage(self) -> dict[str, Json]:
        """Return the usage, for hooks, events and people."""
        with self._lock:
            whole = {name: int(self._used[name]) for name in ("turns", "tokens", "steps")}
            return {
                **whole,
                "spend": round(self._used["spend"], 9),
                "seconds": round(self._all_seconds(), 3),
                "depth": self.depth,
            }

    def available(self, name: str) -> float | None:
        """Return what is left, here and around; None: there is no limit."""
        rests = [max(0.0, limit - used) for _, limit, used in self._holders(name)]
        return min(rests, default=None)

    def reach(self, *names: str) -> LimitReached | None:
        """Return the first limit that is reached, of `names` or of all, with its nearest budget."""
        for name in names or NAMES:
            for holder, limit, used in self._holders(name):
                # A depth that equals its limit is allowed; of everything else nothing is left.
                if used > limit or (used == limit and name != "depth"):
                    return LimitReached(name, round(used, 9), limit, holder.what, holder=holder)
        return None

    def require(self, *names: str, partial: Json = None) -> None:
        """Raise StepError of kind `limit` if one is reached, with the partial result."""
        found = self.reach(*names)
        if found is not None:
            raise StepError(found.failure(partial))

    def failure(self, name: str, partial: Json = None) -> Failure:
        """Return the failure for a limit that is reached."""
        found = self.reach(name)
        assert found is not None, f"the limit {name} is not reached"
        return found.failure(partial)

    def _holders(self, name: str) -> Iterator[tuple[Budget, float, float]]:
        """Yield each budget with this limit, from here outwards, with the limit and the usage."""
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
    """What a budget reserves for a call while it runs."""

    def __init__(
        self, budget: Budget, amounts: Mapping[str, float], short: LimitReached | None = None
    ) -> None:
        self.amounts = amounts
        self.short = short
        """The limit that made it smaller than wanted."""
        self._budget = budget

    def begin(self) -> None:
        """Only `Budget.reserve` calls this."""
        self._move(1)

    def settle(self, **used: float) -> None:
        """End the call: release the reservation and count the usage, in one step."""
        with self._budget._taking:
            self._move(-1)
            self._budget.add(**used)
            self._budget._taking.notify_all()

    def _move(self, way: int) -> None:
        budget: Budget | None = self._budget
        while budget is not None:
            budget._calls += way
            for name, amount in self.amounts.items():
                # Sums of floats leave small rests: after the last call nothing is reserved.
                budget._reserved[name] = (
                    budget._reserved[name] + way * amount if budget._calls else 0
                )
            budget = budget.within


def parse_limits(fields: Mapping[str, Json]) -> Limits:
    """Read limits from a validated map; the schema table has renamed other spellings already."""
    return Limits(**{name: fields[name] for name in NAMES if fields.get(name) is not None})


# ── earlier attempts of the run ──────────────────────────────────────────


class PriorUsage:
    """What earlier attempts of a run have used, in all and below each path.

    It is the usage in their events.  `before` is the number of the first event of this attempt.
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
        """The time of their steps; parallel steps count once."""
        worked = _Union()
        for stamped in self._journal.events():
            if stamped.number >= self._before:
                break
            if isinstance(stamped.event, StepFinished):
                worked.add(stamped.at - stamped.event.duration, stamped.at)
        return worked.length

    def inside(self, path: str) -> dict[str, float]:
        """Return the usage inside the step at a path; an empty path means the run.

        A hook about the step uses the budget around the step: see `Budgets.at`.
        """
        if not path:
            return _amounts(self._sums[-1])
        whole = self._between(*range_below(path))
        return _amounts(_minus(whole, self._between(*range_below(path, HOOK))))

    def _between(self, first: str, end: str) -> _Row:
        return _minus(
            self._sums[bisect_left(self._paths, end)], self._sums[bisect_left(self._paths, first)]
        )

    def has_step(self, path: str) -> bool:
        """Was the step at a path counted?"""
        return "steps" in self._at.get(path, ())

    def below(self, path: str) -> list[tuple[str, Usage]]:
        """Return the usage at a path and at each path below it."""
        first, end = (bisect_left(self._paths, one) for one in range_below(path))
        return [(one, self._at[one]) for one in (path, *self._paths[first:end]) if one in self._at]

    def by_part(self) -> Mapping[str, Usage]:
        """Return the usage of each part of the flow."""
        parts: dict[str, dict[str, float]] = {}
        for path, used in self._at.items():
            _add(parts.setdefault(first_name(path), {}), used)
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
    # Differences of sums of floats leave small rests.
    amounts = {name: round(amount, 9) for name, amount in zip(COUNTED, row, strict=True)}
    return {name: amount for name, amount in amounts.items() if amount}


class _Union:
    """The length of the union of time spans, added in the order of their ends.

    Parallel spans count once.  If the clock jumps, the length is at most the sum of all durations.
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
class UsageSum:
    """The usage of models in a run, as it counts against limits."""

    turns: int = 0
    tokens: int = 0
    cost: float = 0.0
    estimated: int = 0
    """Tokens that are estimated, because no server counted them."""

    def add(self, used: Usage) -> None:
        self.turns += int(used.get("turns", 0))
        self.tokens += int(used.get("tokens", 0))
        self.estimated += int(used.get("estimated", 0))
        self.cost += used.get("spend", 0.0)

    def count(self, event: Event) -> None:
        """Add the usage of an event; `EarlierUsage` has that of replayed steps."""
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
