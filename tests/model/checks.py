"""The rules for each run attempt, as docs/runs.md documents them ("Stop, and go on")."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from model.expected import Expected, expect
from model.flow import PHASES, Flow, Place, places
from model.project import Project, Record, RunAttempt
from plait.engine.paths import is_at_or_below

DEAD = "map/item:"
BEHIND_MAP = tuple(f"{phase}/" for phase in PHASES[PHASES.index("map") + 1 :])
HANDLER = re.compile(r"/on_(failure|incomplete)@\d+$|/on_exit_code:0$")
"""Lists inside a step that other parts of the step may follow."""


@dataclass
class Memory:
    """What the model knows about a run besides its journal and ledger."""

    says: dict[str, tuple[object, ...]] = field(default_factory=dict)
    """The text of each step when it was last recorded, by path."""
    items: tuple[str, ...] = ()
    """The items that the run has written down."""
    inside: dict[str, object] = field(default_factory=dict)
    """The steps inside each step at that time, by path."""
    each: dict[str, tuple[object, ...]] = field(default_factory=dict)
    """The texts of all steps of each item when it was last recorded, by path."""
    accepted: tuple[object, ...] | None = None
    """The text of the file that was accepted last, unless the run has continued with another text since."""
    text: dict[str, tuple[object, ...]] = field(default_factory=dict)
    """The texts of the steps when the run last continued, by path.  Plait does not ask about them again."""
    retried_by_another_text: bool = False
    retried: set[str] = field(default_factory=set)
    """Paths of the items that were retried with another text.  In other items all finished steps stay done."""

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
        return self.accepted == step_words(flow)

    def continue_with(self, flow: Flow, *, accepted: bool) -> None:
        self.accepted = step_words(flow) if accepted else None
        self.text = {place.path: place.says for place in places(flow, self.items or flow.items)}

    def accept(self, flow: Flow, records: Mapping[str, Record]) -> None:
        """After a retry of items, finished steps stay done with any text, and removed ones raise no question."""
        now = {place.path: place.says for place in places(flow, self.items)}
        self.says = {path: words for path, words in self.says.items() if path in now} | {
            path: words
            for path, words in now.items()
            if path in records and "/".join(path.split("/")[:2]) not in self.retried
        }


def step_words(flow: Flow) -> tuple[object, ...]:
    """The paths and texts of the steps, to compare flows by."""
    return tuple((place.path, place.says) for place in places(flow, ("*",)))


@dataclass
class Situation:
    """A run attempt, and what was known before it."""

    flow: Flow
    memory: Memory
    before: Mapping[str, Record]
    project: Project
    accept: bool = False
    retried: frozenset[str] | None = None
    """Paths of the items that the attempt retries."""
    repeat: Sequence[str] = ()
    done: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.begun, self.open, self.ends = (
            set(self.project.begun),
            set(self.project.open),
            dict(self.project.ends),
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
        """Use these items in this run attempt."""
        self.items = tuple(items)
        self.places = {place.path: place for place in places(self.flow, items)}

    def expected(self) -> Expected:
        def is_broken(path: str) -> bool:
            return self.project.last_code(path) != 0

        return expect(self.flow, self.items, is_broken, self.project.marked_done)

    def questions(self) -> list[str]:
        """The started steps that may run at most once and whose outcome is unknown."""
        return [
            path
            for path, place in self.places.items()
            if place.once
            and path in self.open
            and not any(one in self.before for one in _above(path))
        ]

    def changed_paths(self) -> set[str]:
        """The finished steps whose text has changed."""
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
        """Whether it is a repeatable action of a step that has failed since."""
        return bool(place.of) and not place.once and self.has_failed_since(place.of, record.number)

    def has_failed_since(self, path: str, number: int) -> bool:
        record = self.ends.get(path)  # also if it was started again since, and killed
        return record is not None and record.status == "failed" and record.number > number

    def removed(self) -> set[str]:
        """The finished steps that were removed from their list."""
        lists = {path.rpartition("/")[0] for path in self.places}
        return {
            path
            for path in self.before
            if path in self.memory.says and path not in self.places
            if path.rpartition("/")[0] in lists or self.is_of_removed_phase(path)
            if not self.is_end_of_list(path)
        }

    def is_of_removed_phase(self, path: str) -> bool:
        """Whether a finished phase was removed."""
        phase = path.partition("/")[0]
        if phase in self.flow.phases or phase not in self.before:
            return False
        return self.before[phase].status != "failed"

    def is_end_of_list(self, path: str) -> bool:
        """Whether its list failed with it.  Then no later step has run."""
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
        """Whether the text of a failed action changed after its handler started."""
        return any(
            path in self.places
            and self.places[path].handled
            and self.memory.says.get(path) != self.places[path].says
            for path in self.before
        )

    def is_misplaced(self) -> bool:
        """Whether a step before a finished one never started, or ended after it."""
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
        """Whether a finished step has other steps inside it now."""
        return any(
            path in self.before and self.memory.inside.get(path) != place.inside
            for path, place in self.places.items()
        )

    def counts(self, path: str, record: Record, now: Mapping[str, Place]) -> bool:
        """Whether this end is replayed."""
        if record.status in ("done", "skipped"):
            return True
        if path not in now:
            return False
        if handled := now[path].handled:
            return handled not in self.ends or record.number > self.ends[handled].number
        return now[path].goes_on

    def is_stale(self, path: str, expected: Expected) -> bool:
        """Whether an earlier step ran again since then, or will run again because it failed."""
        own = self.before[path].number
        known = [
            (one, self.before[one]) for one in expected.before.get(path, ()) if one in self.before
        ]
        return any(
            record.number > own
            or (record.status == "failed" and not self.counts(one, record, self.places))
            for one, record in known
        )


def broken_rules(
    situation: Situation, run_attempt: RunAttempt, after: Mapping[str, Record]
) -> list[str]:
    if "map/items" in after and after["map/items"].number > situation.last:
        situation.take(situation.flow.items)
    return [
        *_refusals(situation, run_attempt),
        *_questions(situation, run_attempt, after),
        *_repeated(situation, run_attempt, after),
        *_results(situation, run_attempt, after),
        *_shown(situation, run_attempt, after),
    ]


# ── what may run at most once is asked about ─────────────────────────────


def _questions(
    situation: Situation, run_attempt: RunAttempt, after: Mapping[str, Record]
) -> Iterator[str]:
    open_before = set(situation.questions()) - {*situation.repeat, *situation.done}
    if run_attempt.refused_code == "once":
        asked = set(re.findall(r"--repeat (\S+),", run_attempt.refused))
        if asked != open_before:
            yield f"asked about {sorted(asked)}, and not known is the end of {sorted(open_before)}"
    for line in run_attempt.lines:
        if line.path in open_before:
            yield f"begun again, its end was not known, and nobody was asked: {line.path}"
        if line.path in situation.done and not _has_reason(
            situation, run_attempt, line.path, after
        ):
            yield f"done again, though somebody said that it was done: {line.path}"
    for path in {line.path for line in run_attempt.lines}:
        place = situation.places.get(path)
        if (
            place is not None
            and place.once
            and path not in after
            and path not in situation.project.open
        ):
            yield f"it was begun, and that is not recorded: {path}"


def _has_reason(
    situation: Situation, run_attempt: RunAttempt, path: str, after: Mapping[str, Record]
) -> bool:
    before = situation.expected().before.get(path, ())
    ran = {line.path for line in run_attempt.lines}
    return any(
        one in ran or (one in after and after[one].number > situation.last) for one in before
    )


# ── what is shown ────────────────────────────────────────────────────────


def _shown(
    situation: Situation, run_attempt: RunAttempt, after: Mapping[str, Record]
) -> Iterator[str]:
    """Check that commands that inspect a run count its items as recorded."""
    if not situation.project.run_id:
        return
    shown, listed = situation.project.shown()
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
    items = situation.flow.items if chosen.number > situation.last else situation.memory.items
    if part and part["total"] not in (None, len(items)):
        yield f"show counts {part['total']} items of {len(items)}"


# ── a changed file is reported, and nothing runs ─────────────────────────


def _refusals(situation: Situation, run_attempt: RunAttempt) -> Iterator[str]:
    if run_attempt.refused_code == "once":
        return
    if run_attempt.refused and run_attempt.lines:
        yield f"refused, and {[line.path for line in run_attempt.lines]} ran: {run_attempt.refused}"
    changed = situation.changed_paths()
    if run_attempt.refused:
        if run_attempt.refused_code != "changed":
            yield f"refused: {run_attempt.refused}"
        elif situation.accept or not (changed or situation.may_be_asked()):
            yield f"refused without a change: {run_attempt.refused}"
        return
    failure = run_attempt.result.failure if run_attempt.result else None
    if failure is not None and failure.kind == "refused":
        yield f"refused in the middle: {failure.message}"
    if situation.accept or situation.retry:
        return
    expected = situation.expected()
    asked = [
        path
        for path in changed
        if path in expected.before and not situation.is_stale(path, expected)
        if situation.memory.text.get(path) != situation.places[path].says
    ]
    # Whether the flow has gone on from a failure is not known of a step that is gone.
    gone = [path for path in situation.removed() if situation.before[path].status != "failed"]
    asked += [path for path in gone if path.count("/") == 1]
    if asked:
        yield f"nobody was asked about {sorted(asked)}"


# ── what is recorded and unchanged is not done again ─────────────────────


def _repeated(
    situation: Situation, run_attempt: RunAttempt, after: Mapping[str, Record]
) -> Iterator[str]:
    expected = situation.expected()
    ran: set[str] = set()
    for line in run_attempt.lines:
        if line.path not in ran and not _is_needed(situation, line.path, ran, expected, after):
            yield f"done again without need: {line.path}"
        if line.path not in ran and _is_unasked(situation, line.path, expected):
            yield f"done again because of a step that is new or moved, and nobody was asked: {line.path}"
        ran.add(line.path)
    for path in (
        one for one in after if one.endswith("/items") and after[one].number > situation.last
    ):
        if not _is_needed(situation, path, ran, expected, after):
            yield f"chosen again without need: {path}"
    for path, count in Counter(line.path for line in run_attempt.lines).items():
        most = expected.attempts.get(path, 2)
        if count > most:
            yield f"done {count} times in one run attempt: {path}"


def _is_needed(
    situation: Situation, path: str, ran: set[str], expected: Expected, after: Mapping[str, Record]
) -> bool:
    place = situation.places.get(path)
    if place is None:
        return False
    if not any(_is_replayed(situation, one, path) for one in _itself_and_above(path)):
        return True
    if path not in situation.before or situation.memory.says.get(path) != place.says:
        return True
    if path.startswith(DEAD) and _item_changed(situation, path):
        return True
    items = (one for one in situation.before if one.startswith(DEAD))
    if path.startswith(BEHIND_MAP) and any(_item_changed(situation, one) for one in items):
        return True
    if any(_follows(path, gone) for gone in situation.removed()):
        return True
    mine = situation.before[path].number
    if any(situation.has_failed_since(step, mine) for step in _checked_by(path)):
        return True
    if place.redone and situation.has_failed_since(place.of, mine):
        return True
    for one in expected.before.get(path, ()):
        if one in ran or (one in situation.before and situation.before[one].number > mine):
            return True
        if one in after and after[one].number > situation.last:
            return True
    return False


def _checked_by(path: str) -> Iterator[str]:
    """The steps whose checks contain it: the text of a check may differ the next time."""
    parts = path.split("/")
    yield from ("/".join(parts[:at]) for at, part in enumerate(parts) if part.startswith("check@"))


def _is_unasked(situation: Situation, path: str, expected: Expected) -> bool:
    """Whether all earlier steps of a finished one are in order, except steps that never started."""
    if (
        situation.accept
        or situation.retry
        or situation.memory.retried_by_another_text
        or _item_changed(situation, path)
    ):
        return False
    if path not in situation.before or not situation.counts(
        path, situation.before[path], situation.places
    ):
        return False
    if path in situation.changed_paths() or path.endswith("/run") or "/again@" in path:
        return False
    before = expected.before.get(path, ())
    if any(one in situation.memory.text for one in before if one not in situation.begun):
        return False  # Plait asked about that step when the run last continued
    if any(
        one in situation.before and situation.before[one].status == "failed"
        for one in _itself_and_above(path)
    ):
        return False
    mine = situation.before[path].number
    known = [one for one in before if one in situation.begun]
    if not path.startswith(DEAD) and any(_item_changed(situation, one) for one in situation.before):
        return False  # a failed item runs again with another text, and so do its later steps
    return all(one in situation.before and situation.before[one].number < mine for one in known)


def _follows(path: str, gone: str) -> bool:
    """Whether it comes after a removed step."""
    above = gone.rpartition("/")[0]
    if HANDLER.search(above):
        above = above.rpartition("/")[0]  # other parts of the step come after a handler
    phases = [one.partition("/")[0] for one in (gone, path)]
    return path.startswith(f"{above}/") or PHASES.index(phases[0]) < PHASES.index(phases[1])


def _is_replayed(situation: Situation, path: str, inside: str) -> bool:
    """Whether its end is replayed and stands for everything inside it."""
    record, inner = situation.before.get(path), situation.before.get(inside)
    if record is None or (inner is not None and inner.number > record.number):
        return False
    if path == "map" and situation.retry:
        return False
    if path.startswith(DEAD) and path.count("/") == 1 and record.status == "failed":
        return path not in (situation.retried or ())
    return situation.counts(path, record, situation.places)


def _item_changed(situation: Situation, path: str) -> bool:
    """Whether any step of a failed item has another text now."""
    item = "/".join(path.split("/")[:2])
    record = situation.before.get(item)
    if record is None or record.status != "failed":
        return False
    now = {one: place.says for one, place in situation.places.items()}
    return situation.memory.each.get(item) != inside(item, now)


def inside(item: str, says: Mapping[str, tuple[object, ...]]) -> tuple[object, ...]:
    return tuple((path, words) for path, words in says.items() if path.startswith(f"{item}/"))


def _above(path: str) -> Iterator[str]:
    return _itself_and_above(path.rpartition("/")[0])


def _itself_and_above(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


# ── what comes out ───────────────────────────────────────────────────────


def _results(
    situation: Situation, run_attempt: RunAttempt, after: Mapping[str, Record]
) -> Iterator[str]:
    if run_attempt.result is None or situation.memory.retried_by_another_text:
        return
    failure = run_attempt.result.failure
    if failure is not None and failure.kind == "refused":
        return
    expected = situation.expected()
    printed = {line.path: line.printed for line in situation.project.ledger}
    for path, words in expected.printed.items():
        if printed.get(path) != words:
            yield f"{path} printed {printed.get(path)}, and a run from the start prints {words}"
    if (run_attempt.result.status == "done") != expected.succeeded:
        yield f"the run is {run_attempt.result.status}: {failure}"
    for path, words in expected.files.items():
        if any(is_at_or_below(one, path) for one in situation.project.marked_done):
            continue  # its output is unknown
        file = situation.project.root / f"out/{path}.txt"
        kept = file.read_text() if file.exists() else None
        if kept != words:
            yield f"in the file of {path} is {kept}, and a run from the start puts there {words}"
    if not expected.done:
        return
    yield from _order(expected.ended, expected, after)
    value = run_attempt.result.value
    ends_in_steps = situation.flow.phases.keys() & {"reduce", "merge"} and isinstance(value, dict)
    if ends_in_steps and value.get("output") != expected.output:
        yield f"the run gave {value.get('output')}, and one from the start gives {expected.output}"
    counts = {
        name: run_attempt.result.counts.get(name) for name in ("total", "successful", "failed")
    }
    wanted = {
        "total": len(situation.items),
        "successful": expected.successful,
        "failed": len(expected.failed),
    }
    if counts != wanted:
        yield f"counts are {counts}, not {wanted}"


def _order(paths: Sequence[str], expected: Expected, after: Mapping[str, Record]) -> Iterator[str]:
    """Check that no end is older than that of an earlier step."""
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
            yield f"{path} was replayed, and {newer[0]} before it was done again"
