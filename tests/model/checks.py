"""What must hold of each life of a run, by the documentation: docs/runs.md, "Stop, and go on"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from model.expected import Expected, expect
from model.flow import PHASES, Flow, Place, places
from model.world import Record, RunAttempt, World
from plait.engine.paths import is_at_or_below

DEAD = "map/item:"
BEHIND_MAP = tuple(f"{phase}/" for phase in PHASES[PHASES.index("map") + 1 :])
HANDLER = re.compile(r"/on_(failure|incomplete)@\d+$|/on_exit_code:0$")
"""Lists inside a step behind which something else of the step may stand."""


@dataclass
class Memory:
    """What the model knows of a run besides its journal and ledger."""

    says: dict[str, tuple[object, ...]] = field(default_factory=dict)
    """By path: what a step said when it was last recorded."""
    items: tuple[str, ...] = ()
    """Those that were written down."""
    inside: dict[str, object] = field(default_factory=dict)
    """By path: the steps that were in a step then."""
    each: dict[str, tuple[object, ...]] = field(default_factory=dict)
    """By the path of an item: what all its steps said when it was last recorded."""
    accepted: tuple[object, ...] | None = None
    """What the file said when somebody accepted it last, if the run has not gone on by another text since."""
    text: dict[str, tuple[object, ...]] = field(default_factory=dict)
    """By path: what the steps said when the run went on last.  Nobody is asked about these words again."""
    retried_by_another_text: bool = False
    retried: set[str] = field(default_factory=set)
    """Paths of the items that were, by another text: in others all stays done that was done by then."""

    def learn(self, flow: Flow, before: Mapping[str, Record], after: Mapping[str, Record]) -> None:
        if "map/items" in after and after["map/items"] != before.get("map/items"):
            self.items = flow.items
        known = {place.path: place.says for place in places(flow, self.items)}
        inner = {place.path: place.inside for place in places(flow, self.items)}
        for path, record in after.items():
            if record == before.get(path):
                continue
            if path in known:
                self.says[path], self.inside[path] = known[path], inner[path]
            elif path.startswith(DEAD) and path.count("/") == 1:
                self.each[path] = inside(path, known)

    def has_accepted(self, flow: Flow) -> bool:
        return self.accepted == essence(flow)

    def go_on_by(self, flow: Flow, *, accepted: bool) -> None:
        self.accepted = essence(flow) if accepted else None
        self.text = {place.path: place.says for place in places(flow, self.items or flow.items)}

    def accept(self, flow: Flow, records: Mapping[str, Record]) -> None:
        """Items were retried: what was done stays done, whatever it says now, and what is gone is no question."""
        now = {place.path: place.says for place in places(flow, self.items)}
        self.says = {path: said for path, said in self.says.items() if path in now} | {
            path: said
            for path, said in now.items()
            if path in records and "/".join(path.split("/")[:2]) not in self.retried
        }


def essence(flow: Flow) -> tuple[object, ...]:
    """What is compared: where the steps are, and what they say."""
    return tuple((place.path, place.says) for place in places(flow, ("*",)))


@dataclass
class Moment:
    """A life, and what was known before it."""

    flow: Flow
    memory: Memory
    before: Mapping[str, Record]
    world: World
    accept: bool = False
    retried: frozenset[str] | None = None
    """Paths of the items that are retried in it."""
    repeat: Sequence[str] = ()
    done: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.begun, self.open, self.ends = (
            set(self.world.begun),
            set(self.world.open),
            dict(self.world.ends),
        )
        self.last = max((record.number for record in self.before.values()), default=0)
        items = self.memory.items or self.flow.items
        if "map/items" in self.changed_paths() and not self.retry:
            items = self.flow.items
        self.take(items)

    @property
    def retry(self) -> bool:
        return self.retried is not None

    def take(self, items: Sequence[str]) -> None:
        """These are the items of this life."""
        self.items = tuple(items)
        self.places = {place.path: place for place in places(self.flow, items)}

    def expected(self) -> Expected:
        def is_broken(path: str) -> bool:
            return self.world.last_code(path) != 0

        return expect(self.flow, self.items, is_broken, self.world.marked_done)

    def questions(self) -> list[str]:
        """The steps that may run at most once, were begun, and whose end is not known."""
        return [
            path
            for path, place in self.places.items()
            if place.once
            and path in self.open
            and not any(one in self.before for one in _above(path))
        ]

    def changed_paths(self) -> set[str]:
        """The steps that have ended and say something else now."""
        now = {
            place.path: place for place in places(self.flow, self.memory.items or self.flow.items)
        }
        return {
            path
            for path, record in self.before.items()
            if path in now
            and self.counts(path, record, now)
            and self.memory.says.get(path) != now[path].says
            if not self.may_change(now[path], record)
        }

    def may_change(self, place: Place, record: Record) -> bool:
        """Is it the action of a step that has failed since, and no payment?"""
        return bool(place.of) and not place.once and self.has_failed_since(place.of, record.number)

    def has_failed_since(self, path: str, number: int) -> bool:
        record = self.ends.get(path)  # also if it was begun again since, and cut
        return record is not None and record.status == "failed" and record.number > number

    def removed(self) -> set[str]:
        """The steps that were done in a list in which they do not stand any more."""
        lists = {path.rpartition("/")[0] for path in self.places}
        return {
            path
            for path in self.before
            if path in self.memory.says and path not in self.places
            if path.rpartition("/")[0] in lists or self.is_of_removed_phase(path)
            if not self.is_end_of_list(path)
        }

    def is_of_removed_phase(self, path: str) -> bool:
        """Is a phase gone that was done?"""
        phase = path.partition("/")[0]
        if phase in self.flow.phases or phase not in self.before:
            return False
        return self.before[phase].status != "failed"

    def is_end_of_list(self, path: str) -> bool:
        """Did its list fail with it?  Then nothing has followed."""
        above, record = path.rpartition("/")[0], self.before[path]
        if record.status != "failed" or (
            above in self.before and self.before[above].status != "failed"
        ):
            return False
        beside = (one for one in self.before if one.rpartition("/")[0] == above)
        return all(self.before[one].number <= record.number for one in beside)

    def may_be_asked(self) -> bool:
        return (
            bool(self.removed())
            or self.has_changed_inside()
            or self.is_handled()
            or self.is_misplaced()
        )

    def is_handled(self) -> bool:
        """Has an action that failed and was handled, perhaps not to the end, another text now?"""
        return any(
            path in self.places
            and self.places[path].handled
            and self.memory.says.get(path) != self.places[path].says
            for path in self.before
        )

    def is_misplaced(self) -> bool:
        """Is there a step before one that has ended, and was never begun, or ended behind it?"""
        before = self.expected().before
        places = list(self.places)
        for path in self.before:
            beside = places[: places.index(path)] if path in self.places else []
            listed = [one for one in beside if one.rpartition("/")[0] == path.rpartition("/")[0]]
            for one in [*before.get(path, ()), *listed]:
                if one not in self.begun:
                    return True
                if one in self.before and self.before[one].number > self.before[path].number:
                    return True
        return False

    def has_changed_inside(self) -> bool:
        """Has a step that has ended others inside it now, which need not have ended themselves?"""
        return any(
            path in self.before and self.memory.inside.get(path) != place.inside
            for path, place in self.places.items()
        )

    def counts(self, path: str, record: Record, now: Mapping[str, Place]) -> bool:
        """Is it an end that is remembered?"""
        if record.status in ("done", "skipped"):
            return True
        if path not in now:
            return False
        if handled := now[path].handled:
            return handled not in self.ends or record.number > self.ends[handled].number
        return now[path].goes_on

    def is_stale(self, path: str, expected: Expected) -> bool:
        """Was something before it done again since, or will it be, since it failed?"""
        own = self.before[path].number
        known = [
            (one, self.before[one]) for one in expected.before.get(path, ()) if one in self.before
        ]
        return any(
            record.number > own
            or (record.status == "failed" and not self.counts(one, record, self.places))
            for one, record in known
        )


def broken_rules(moment: Moment, run_attempt: RunAttempt, after: Mapping[str, Record]) -> list[str]:
    if "map/items" in after and after["map/items"].number > moment.last:
        moment.take(moment.flow.items)
    return [
        *_refusals(moment, run_attempt),
        *_questions(moment, run_attempt, after),
        *_repeated(moment, run_attempt, after),
        *_results(moment, run_attempt, after),
        *_shown(moment, run_attempt, after),
    ]


# ── what may run at most once is asked about ────────────────────────────────


def _questions(
    moment: Moment, run_attempt: RunAttempt, after: Mapping[str, Record]
) -> Iterator[str]:
    open_before = set(moment.questions()) - {*moment.repeat, *moment.done}
    if run_attempt.refused_code == "once":
        asked = set(re.findall(r"--repeat (\S+),", run_attempt.refused))
        if asked != open_before:
            yield f"asked about {sorted(asked)}, and not known is the end of {sorted(open_before)}"
    for line in run_attempt.lines:
        if line.path in open_before:
            yield f"begun again, its end was not known, and nobody was asked: {line.path}"
        if line.path in moment.done and not _has_reason(moment, run_attempt, line.path, after):
            yield f"done again, though somebody said that it was done: {line.path}"
    for path in {line.path for line in run_attempt.lines}:
        place = moment.places.get(path)
        if place is not None and place.once and path not in after and path not in moment.world.open:
            yield f"it was begun, and that is not recorded: {path}"


def _has_reason(
    moment: Moment, run_attempt: RunAttempt, path: str, after: Mapping[str, Record]
) -> bool:
    before = moment.expected().before.get(path, ())
    ran = {line.path for line in run_attempt.lines}
    return any(one in ran or (one in after and after[one].number > moment.last) for one in before)


# ── what is shown ────────────────────────────────────────────────────────


def _shown(moment: Moment, run_attempt: RunAttempt, after: Mapping[str, Record]) -> Iterator[str]:
    """Commands that look at a run count its items as they are recorded."""
    if not moment.world.run_id:
        return
    shown, listed = moment.world.shown()
    if shown["status"] != listed["status"]:
        yield f"show says {shown['status']}, runs says {listed['status']}"
    if run_attempt.result is not None and run_attempt.result.status != shown["status"]:
        yield f"the run was {run_attempt.result.status}, and show says {shown['status']}"
    chosen = after.get("map/items")
    if chosen is None:
        return
    ended = Counter(
        record.status
        for path, record in after.items()
        if path.startswith(DEAD) and path.count("/") == 1 and record.number > chosen.number
    )
    wanted = {"done": ended["done"], "failed": ended["failed"]}
    part: dict[str, Any] = next((one for one in shown["phases"] if one["name"] == "map"), {})
    for name, counts in (("show", part), ("runs", listed["counts"])):
        found = {status: counts.get(status, 0) for status in wanted}
        if found != wanted:
            yield f"{name} counts {found}, and recorded are {wanted}"
    items = moment.flow.items if chosen.number > moment.last else moment.memory.items
    if part and part["total"] not in (None, len(items)):
        yield f"show counts {part['total']} items of {len(items)}"


# ── a changed file is said, and nothing runs ─────────────────────────────


def _refusals(moment: Moment, run_attempt: RunAttempt) -> Iterator[str]:
    if run_attempt.refused_code == "once":
        return
    if run_attempt.refused and run_attempt.lines:
        yield f"refused, and {[line.path for line in run_attempt.lines]} ran: {run_attempt.refused}"
    changed = moment.changed_paths()
    if run_attempt.refused:
        if run_attempt.refused_code != "changed":
            yield f"refused: {run_attempt.refused}"
        elif moment.accept or not (changed or moment.may_be_asked()):
            yield f"refused without a change: {run_attempt.refused}"
        return
    failure = run_attempt.result.failure if run_attempt.result else None
    if failure is not None and failure.kind == "refused":
        yield f"refused in the middle: {failure.message}"
    if moment.accept or moment.retry:
        return
    expected = moment.expected()
    asked = [
        path
        for path in changed
        if path in expected.before and not moment.is_stale(path, expected)
        if moment.memory.text.get(path) != moment.places[path].says
    ]
    # Whether the flow has gone on from a failure is not known of a step that is gone.
    gone = [path for path in moment.removed() if moment.before[path].status != "failed"]
    asked += [path for path in gone if path.count("/") == 1]
    if asked:
        yield f"nobody was asked about {sorted(asked)}"


# ── what is recorded and unchanged is not done again ─────────────────────


def _repeated(
    moment: Moment, run_attempt: RunAttempt, after: Mapping[str, Record]
) -> Iterator[str]:
    expected = moment.expected()
    ran: set[str] = set()
    for line in run_attempt.lines:
        if line.path not in ran and not _is_needed(moment, line.path, ran, expected, after):
            yield f"done again without need: {line.path}"
        if line.path not in ran and _is_unasked(moment, line.path, expected):
            yield f"done again because of a step that is new or moved, and nobody was asked: {line.path}"
        ran.add(line.path)
    for path in (
        one for one in after if one.endswith("/items") and after[one].number > moment.last
    ):
        if not _is_needed(moment, path, ran, expected, after):
            yield f"chosen again without need: {path}"
    for path, count in Counter(line.path for line in run_attempt.lines).items():
        most = expected.attempts.get(path, 2)
        if count > most:
            yield f"done {count} times in one life: {path}"


def _is_needed(
    moment: Moment, path: str, ran: set[str], expected: Expected, after: Mapping[str, Record]
) -> bool:
    place = moment.places.get(path)
    if place is None:
        return False
    if not any(_is_remembered(moment, one, path) for one in _itself_and_above(path)):
        return True
    if path not in moment.before or moment.memory.says.get(path) != place.says:
        return True
    if path.startswith(DEAD) and _item_changed(moment, path):
        return True
    items = (one for one in moment.before if one.startswith(DEAD))
    if path.startswith(BEHIND_MAP) and any(_item_changed(moment, one) for one in items):
        return True
    if any(_follows(path, gone) for gone in moment.removed()):
        return True
    mine = moment.before[path].number
    if any(moment.has_failed_since(step, mine) for step in _checked_by(path)):
        return True
    if place.redone and moment.has_failed_since(place.of, mine):
        return True
    for one in expected.before.get(path, ()):
        if one in ran or (one in moment.before and moment.before[one].number > mine):
            return True
        if one in after and after[one].number > moment.last:
            return True
    return False


def _checked_by(path: str) -> Iterator[str]:
    """The steps whose checks it is inside of: what such a one says may be another thing the next time."""
    parts = path.split("/")
    yield from ("/".join(parts[:at]) for at, part in enumerate(parts) if part.startswith("check@"))


def _is_unasked(moment: Moment, path: str, expected: Expected) -> bool:
    """Is all in order before a step that had ended, but for steps that were never begun?"""
    if (
        moment.accept
        or moment.retry
        or moment.memory.retried_by_another_text
        or _item_changed(moment, path)
    ):
        return False
    if path not in moment.before or not moment.counts(path, moment.before[path], moment.places):
        return False
    if path in moment.changed_paths() or path.endswith("/run") or "/again@" in path:
        return False
    before = expected.before.get(path, ())
    if any(one in moment.memory.text for one in before if one not in moment.begun):
        return False  # somebody was asked about that step when the run went on last
    if any(
        one in moment.before and moment.before[one].status == "failed"
        for one in _itself_and_above(path)
    ):
        return False
    mine = moment.before[path].number
    known = [one for one in before if one in moment.begun]
    if not path.startswith(DEAD) and any(_item_changed(moment, one) for one in moment.before):
        return False  # an item that failed is done again by another text, and what is behind it
    return all(one in moment.before and moment.before[one].number < mine for one in known)


def _follows(path: str, gone: str) -> bool:
    """Does it stand behind a step that is not there any more?"""
    above = gone.rpartition("/")[0]
    if HANDLER.search(above):
        above = above.rpartition("/")[0]  # behind a handler stand other parts of its step
    phases = [one.partition("/")[0] for one in (gone, path)]
    return path.startswith(f"{above}/") or PHASES.index(phases[0]) < PHASES.index(phases[1])


def _is_remembered(moment: Moment, path: str, inside: str) -> bool:
    """Has it an end that stands for what is inside it?"""
    record, inner = moment.before.get(path), moment.before.get(inside)
    if record is None or (inner is not None and inner.number > record.number):
        return False
    if path == "map" and moment.retry:
        return False
    if path.startswith(DEAD) and path.count("/") == 1 and record.status == "failed":
        return path not in (moment.retried or ())
    return moment.counts(path, record, moment.places)


def _item_changed(moment: Moment, path: str) -> bool:
    """Of an item that failed: is there anything in it that says something else now?"""
    item = "/".join(path.split("/")[:2])
    record = moment.before.get(item)
    if record is None or record.status != "failed":
        return False
    now = {one: place.says for one, place in moment.places.items()}
    return moment.memory.each.get(item) != inside(item, now)


def inside(item: str, says: Mapping[str, tuple[object, ...]]) -> tuple[object, ...]:
    return tuple((path, said) for path, said in says.items() if path.startswith(f"{item}/"))


def _above(path: str) -> Iterator[str]:
    return _itself_and_above(path.rpartition("/")[0])


def _itself_and_above(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


# ── what comes out ───────────────────────────────────────────────────────


def _results(moment: Moment, run_attempt: RunAttempt, after: Mapping[str, Record]) -> Iterator[str]:
    if run_attempt.result is None or moment.memory.retried_by_another_text:
        return
    failure = run_attempt.result.failure
    if failure is not None and failure.kind == "refused":
        return
    expected = moment.expected()
    printed = {line.path: line.printed for line in moment.world.ledger}
    for path, words in expected.printed.items():
        if printed.get(path) != words:
            yield f"{path} printed {printed.get(path)}, and a run from the start prints {words}"
    if (run_attempt.result.status == "done") != expected.succeeded:
        yield f"the run is {run_attempt.result.status}: {failure}"
    for path, words in expected.files.items():
        if any(is_at_or_below(one, path) for one in moment.world.marked_done):
            continue  # nobody knows what it printed
        file = moment.world.root / f"out/{path}.txt"
        kept = file.read_text() if file.exists() else None
        if kept != words:
            yield f"in the file of {path} is {kept}, and a run from the start puts there {words}"
    if not expected.done:
        return
    yield from _order(expected.ended, expected, after)
    value = run_attempt.result.value
    ends_in_steps = moment.flow.phases.keys() & {"reduce", "merge"} and isinstance(value, dict)
    if ends_in_steps and value.get("output") != expected.output:
        yield f"the run gave {value.get('output')}, and one from the start gives {expected.output}"
    counts = {
        name: run_attempt.result.counts.get(name) for name in ("total", "successful", "failed")
    }
    wanted = {
        "total": len(moment.items),
        "successful": expected.successful,
        "failed": len(expected.failed),
    }
    if counts != wanted:
        yield f"counts are {counts}, not {wanted}"


def _order(paths: Sequence[str], expected: Expected, after: Mapping[str, Record]) -> Iterator[str]:
    """No end is older than that of something before it."""
    for path in paths:
        if path not in after:
            yield f"{path} has no end"
            continue
        newer = [
            one
            for one in expected.before[path]
            if one in after and after[one].number > after[path].number
        ]
        if newer:
            yield f"{path} was remembered, and {newer[0]} before it was done again"
