"""What must hold of a run that died and was resumed, however often.

The ledger is written by the steps themselves and never opened by the engine; the
journal is read when no engine is alive.  What the two say of each other decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

MAP = "map/item:"


@dataclass(frozen=True, slots=True)
class Line:
    """`START map/item:i07/work`: a step began, by its own account."""

    what: str
    path: str


@dataclass(frozen=True, slots=True)
class Death:
    """How things stood when an engine was dead and nobody of the run was left."""

    lines: int
    """So long was the ledger."""
    recorded: frozenset[str]
    """Paths that the journal called finished."""


@dataclass(frozen=True, slots=True)
class Journaled:
    """A step that the journal calls finished."""

    path: str
    kind: str
    status: str


@dataclass(frozen=True, slots=True)
class Story:
    """All that happened to one run."""

    items: Sequence[str]
    parallel: int
    ledger: Sequence[Line]
    deaths: Sequence[Death]
    journal: Sequence[Journaled]
    """Of the end, in its order; a step that was recorded twice is in it twice."""
    result: bytes | None
    expected: bytes
    faults: Sequence[str] = field(default=())
    """What went wrong at sight: a file that is not sound, a process that was left, an exit code."""


def ledger_lines(text: str) -> list[Line]:
    """Every line is one write of its own, so that even a kill leaves whole ones."""
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
    """How many steps of items were begun once more than needed."""
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
