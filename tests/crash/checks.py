"""The rules for a run that died and was resumed any number of times.

The steps write the ledger, and the engine never opens it; the journal is read when
no engine is alive.  The rules compare the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

MAP = "map/item:"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the ledger, such as `START map/item:i07/work`."""

    what: str
    path: str


@dataclass(frozen=True, slots=True)
class Death:
    """The ledger and the journal after an engine had died with all its processes."""

    lines: int
    """The number of ledger lines."""
    recorded: frozenset[str]
    """The paths of the steps that the journal had recorded as finished."""


@dataclass(frozen=True, slots=True)
class Journaled:
    """A step that is recorded as finished."""

    path: str
    kind: str
    status: str


@dataclass(frozen=True, slots=True)
class Story:
    """Everything that happened to one run."""

    items: Sequence[str]
    parallel: int
    ledger: Sequence[Line]
    deaths: Sequence[Death]
    journal: Sequence[Journaled]
    """The final journal in order; a step that was recorded twice is in it twice."""
    result: bytes | None
    expected: bytes
    faults: Sequence[str] = field(default=())
    """Faults seen directly: a damaged file, a leftover process, a wrong exit code."""


def ledger_lines(text: str) -> list[Line]:
    """Parse the ledger.  Each line was one write, so a kill leaves only whole lines."""
    return [Line(*line.split(" ", 1)) for line in text.splitlines()]


def violations(story: Story) -> list[str]:
    return [
        *story.faults,
        *_recorded_and_begun_again(story),
        *_not_recorded_once(story),
        *_other_result(story),
        *_too_many_starts(story),
    ]


def extra_starts(ledger: Iterable[Line]) -> int:
    """Count the unneeded starts of item steps."""
    return sum(count - 1 for path, count in _starts(ledger).items() if path.startswith(MAP))


def _recorded_and_begun_again(story: Story) -> Iterator[str]:
    for number, death in enumerate(story.deaths, 1):
        for line in story.ledger[death.lines :]:
            if line.what == "START" and not death.recorded.isdisjoint(_itself_and_above(line.path)):
                yield f"A: {line.path} was recorded at death {number} and begun again"


def _itself_and_above(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def _not_recorded_once(story: Story) -> Iterator[str]:
    done = Counter(
        step.path for step in story.journal if step.kind == "item" and step.status == "done"
    )
    wanted = {MAP + item for item in story.items}
    for path in sorted(wanted | done.keys()):
        if done[path] != (path in wanted):
            yield f"B: {path} is recorded {done[path]} times"
    for step in story.journal:
        if step.status != "done":
            yield f"B: {step.path} is recorded as {step.status}"
    begun, ended = _starts(story.ledger), {line.path for line in story.ledger if line.what == "END"}
    for path in sorted(begun.keys() - ended):
        yield f"B: {path} was begun and never ended"


def _other_result(story: Story) -> Iterator[str]:
    if story.result != story.expected:
        yield (
            "C: reduce wrote nothing" if story.result is None else "C: reduce wrote something else"
        )


def _too_many_starts(story: Story) -> Iterator[str]:
    extra, allowed = extra_starts(story.ledger), len(story.deaths) * story.parallel
    if extra > allowed:
        yield f"D: {extra} extra starts after {len(story.deaths)} deaths, {allowed} are allowed"
    for path, count in _starts(story.ledger).items():
        if not path.startswith(MAP) and count > 1 + len(story.deaths):
            yield f"D: {path} was begun {count} times"


def _starts(ledger: Iterable[Line]) -> Counter[str]:
    return Counter(line.path for line in ledger if line.what == "START")
