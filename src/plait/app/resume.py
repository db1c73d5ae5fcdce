"""Resume a run: which recorded outcomes still count when the flow or its variables have changed.

The rule: within each list of steps, and within each item, recorded outcomes count up to the first
changed step; that step and all that follow it run again.  A step has changed if its text differs,
or if it is new, moved or removed.  `plait resume` asks about at-most-once steps whose end is
unknown.

It refuses a changed flow before anything runs, and names every changed step that was done
(`require_unchanged`).  With `--accept-changes` it continues: `perform` compares fingerprints and
does the rest (see engine/replay.py); only removed steps need an event (`invalidate_removed`).  The
facts of the run hold what later resumes need:

- `accepted`: the digest of the accepted text.  While the text stays the same, the user is not asked
  again, neither after Ctrl-C nor after a crash.
- `retried`: the items of the last `plait retry`, and the text by which they ran.  The outcomes of
  all other steps count, even if their text was different.
- `marked_done`: paths of steps that the user marked with `--done`, until the run comes to them.
- `env_files`: names of the variables of env files, and one salted digest of their values.  Changed
  variables need `--accept-changes`, too; recorded outcomes still count.

"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, takewhile

from plait.core.digests import sha256_hex
from plait.core.errors import InputError, Problem, closest_name, format_names
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass, field, replace
from plait.core.values import Json, json_text
from plait.engine.events import RETRY_REASON, StepInvalidated
from plait.engine.kinds import step_kind
from plait.engine.outcome import Failed, Succeeded
from plait.engine.paths import ITEM, generic_path, is_at_or_below, is_item
from plait.engine.replay import RetriedItems, changed_steps_error, items_selected_at
from plait.engine.step import LeafStep, Step, iter_steps

if TYPE_CHECKING:
    from plait.adapters.store import OpenRun
    from plait.engine.journal import Journal, StepRecord
    from plait.lang.loaded import LoadedFlow
    from plait.program.step_list import StepList as Steps


@dataclass(frozen=True, slots=True)
class RetryRecord:
    """The last `plait retry` of a run, perhaps with an edited text.

    The outcomes of all other steps count in later resumes, while the text stays the same.
    """

    items: frozenset[str] = frozenset()
    """Their paths, and that of the map; empty: there was no retry."""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """By path: the fingerprints of the steps of the flow at that time."""
    asked: frozenset[str] = frozenset()
    """The paths of the items that the user named; empty: too many to store."""

    @classmethod
    def of(cls, opened: OpenRun) -> RetryRecord:
        fact = opened.facts.get(RETRIED)
        if not isinstance(fact, Mapping):
            return cls()
        return cls(frozenset(fact["items"]), fact["fingerprints"], frozenset(fact.get("asked", ())))

    @classmethod
    def from_items(cls, loaded: LoadedFlow, opened: OpenRun, items: Iterable[str]) -> RetryRecord:
        """Return the record for items to retry now, with earlier ones that did not run yet."""
        items = frozenset((*items, *cls.of(opened).waiting(opened)))
        asked = frozenset(filter(is_item, items)) if len(items) <= MOST_ASKED else frozenset[str]()
        return cls(items, _fingerprints(loaded), asked)

    def waiting(self, opened: OpenRun) -> list[str]:
        """Return the items that did not run yet."""
        if self.asked and _has_come_to_all(next(iter(self.asked)), opened.journal):
            return []
        return [path for path in sorted(self.asked) if opened.journal.step(path) is None]

    def for_next_attempt(self, loaded: LoadedFlow, opened: OpenRun) -> RetryRecord:
        """Return what later resumes need: no items, if all recorded outcomes have the present text.

        It may keep more than needed: an exact answer would read all items first.
        """
        is_alike = not RetryRecord.of(opened).items and _is_of_one_text(loaded, opened)
        return RetryRecord(asked=self.asked) if is_alike else self

    def holds(self, path: str, step: Step) -> bool:
        """Is the text of a step, at a path of the flow, the one of the retry?"""
        return self.fingerprints.get(path) == step.fingerprint

    def without_changes(self, loaded: LoadedFlow) -> RetryRecord:
        """Drop the fingerprints of changed steps, so that they run again in all items."""
        now = _fingerprints(loaded)
        kept = {path: known for path, known in self.fingerprints.items() if now.get(path) == known}
        return replace(self, fingerprints=kept)

    def kept_items(self) -> RetriedItems:
        """Return what `Replay` needs."""
        return RetriedItems(self.items, self.fingerprints)

    def facts(self) -> dict[str, Json]:
        return {
            RETRIED: {
                "items": sorted(self.items),
                "fingerprints": dict(self.fingerprints),
                "asked": sorted(self.asked),
            }
        }


def _has_come_to_all(item: str, journal: Journal) -> bool:
    """Has the map of an item ended since the retry, which invalidated it?"""
    end = journal.step(item.rpartition("/")[0])
    return end is not None and not isinstance(end.outcome, Failed)


def _is_of_one_text(loaded: LoadedFlow, opened: OpenRun) -> bool:
    """Have all started parts of the flow ended with the present text?  Fast even for many items."""
    parts = [
        (part, opened.journal.step(part.name)) for part in loaded.program.children if part.children
    ]
    now = [part.name for part, _ in parts]
    if any(opened.journal.was_ever_started(name) for name in PHASES if name not in now):
        return False
    begun = [
        (part, known)
        for part, known in parts
        if known or opened.journal.was_ever_started(part.name)
    ]
    return all(known is not None and known.fingerprint == part.fingerprint for part, known in begun)


MOST_ASKED: Final = 10_000
RETRIED: Final = "retried"
"""The key of `RetryRecord` in the facts of a run."""
ACCEPTED: Final = "accepted"
"""The key of the digest of the accepted text."""


def changes_accepted(loaded: LoadedFlow, opened: OpenRun, *, accepted: bool) -> bool:
    """Are changes accepted, now or earlier?  InputError if there are changes and they are not."""
    if not accepted:
        require_unchanged(loaded, opened)
    return accepted or _is_accepted(loaded, opened)


def keep_accepted(loaded: LoadedFlow, opened: OpenRun, *, accepted: bool) -> None:
    """Record that the text is accepted, until a resume uses another text."""
    digest = _digest(loaded) if accepted else None
    if opened.facts.get(ACCEPTED) != digest:
        opened.update_facts(**{ACCEPTED: digest})


def _is_accepted(loaded: LoadedFlow, opened: OpenRun) -> bool:
    return opened.facts.get(ACCEPTED) == _digest(loaded)


def _digest(loaded: LoadedFlow) -> str:
    """Return a digest of what a resume compares: the steps, their paths and their text."""
    return sha256_hex(json_text(list(_fingerprints(loaded).items())).encode())[:16]


def require_unchanged(loaded: LoadedFlow, opened: OpenRun) -> None:
    """Raise InputError with all changes that are not accepted, before anything runs."""
    changed = {} if _is_accepted(loaded, opened) else changed_steps(loaded, opened)
    problems = [*changed_steps_error(changed.items()).problems] if changed else []
    change = describe_change(opened.facts.get("env_files"), loaded.environment.filed)
    if change is not None:
        problems.append(env_change_problem(change))
    if problems:
        raise InputError.together(problems)


def changed_steps(loaded: LoadedFlow, opened: OpenRun) -> dict[str, str]:
    """Return the titles, by path, of changed steps that were done or that make others run again.

    After `plait retry` the text of that retry counts as the old one.
    """
    retry = RetryRecord.of(opened)
    changed = _other_texts(loaded, opened, retry)
    places = _other_places(loaded, opened, retry)
    return changed | {path: what for path, what in places.items() if not _is_inside(path, changed)}


# ── texts ────────────────────────────────────────────────────────────────


def _other_texts(loaded: LoadedFlow, opened: OpenRun, retry: RetryRecord) -> dict[str, str]:
    from plait.program.action_step import ActionStep

    changed: dict[str, str] = {}
    around: dict[str, str] = {}
    for path, step in flow_steps(loaded):
        if not step.children and _has_changed(opened, path, step, retry):
            changed.setdefault(_of_people(path, step), step.title)
        elif isinstance(step, ActionStep) and _has_changed(opened, path, step, retry):
            around[path] = step.title
    # A step with children is named only if none of its children has changed.
    for path in reversed(around):
        if not any(is_at_or_below(one, path) for one in changed):
            changed[path] = around[path]
    in_order = (path for path, _ in flow_steps(loaded) if path in changed)
    return {path: changed[path] for path in in_order if not _is_inside(path, changed)}


def _has_changed(opened: OpenRun, path: str, step: Step, retry: RetryRecord) -> bool:
    """Has the text of a step that was done changed?"""
    if retry.holds(path, step):
        return False
    if opened.journal.reader.is_long() and _is_alike(opened, path, step):
        return False
    return any(
        known.fingerprint != step.fingerprint and _counts(known, step, opened.journal)
        for known in _matching_records(opened.journal, path, step)
    )


def _counts(known: StepRecord, step: Step, journal: Journal) -> bool:
    """Would the record count if the text were the same?"""
    from plait.program.action_step import ActionAttempt

    if _was_in_vain(known, journal):
        return False
    if isinstance(step, ActionAttempt) and _has_failed_since(
        known, known.path.rpartition("/")[0], journal
    ):
        return step.policy.at_most_once and not isinstance(known.outcome, Failed)
    return _is_done(known, step)


def _was_in_vain(known: StepRecord, journal: Journal) -> bool:
    """Is it in a failure handler or check of a step that failed later?  Those run again."""
    parts = known.path.split("/")
    places = [at for at, part in enumerate(parts) if part.partition("@")[0] in _CHECKS]
    return any(_has_failed_since(known, "/".join(parts[:at]), journal) for at in places)


def _has_failed_since(known: StepRecord, path: str, journal: Journal) -> bool:
    """Did the step at a path, around the known one, fail after it?"""
    end = journal.last_result(path)
    return end is not None and end.number > known.number and isinstance(end.outcome, Failed)


def _is_done(known: StepRecord, step: Step) -> bool:
    """Does the record count as done?  After a kept failure the flow has continued."""
    return step.policy.keep_failure or not isinstance(known.outcome, Failed)


# ── places ───────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _List:
    """A list of steps that a run has performed, in its present form."""

    path: str
    steps: Sequence[Step]
    since: int
    """Records before this event number do not count."""
    done: bool = False
    followed: bool = False
    """It is done, and a later part was started."""

    def at(self, step: Step) -> str:
        return f"{self.path}/{step.name}" if self.path else step.name


def _other_places(loaded: LoadedFlow, opened: OpenRun, retry: RetryRecord) -> dict[str, str]:
    """Return the removed, new and moved steps that make steps that were done run again."""
    if retry.items and retry.fingerprints == _fingerprints(loaded):
        return {}  # accepted when items were retried
    found: dict[str, str] = {}
    for listed in _lists(loaded, opened, retry):
        for path, what in _find_new_or_moved(listed, opened.journal):
            found.setdefault(generic_path(path), what)
    is_long = opened.journal.reader.is_long()
    for gone in _find_removed(loaded, opened, retry, every=not is_long):
        found.setdefault(generic_path(gone.path), f"{gone.title}, removed")
    if is_long:
        found |= _find_item_changes(loaded, opened)
    return found


def _find_new_or_moved(listed: _List, journal: Journal) -> Iterator[tuple[str, str]]:
    before: StepRecord | None = None
    for at, step in enumerate(listed.steps):
        path = listed.at(step)
        known = journal.step(path)
        if known is None or known.number <= listed.since:
            is_new = not journal.was_ever_started(path)
            if is_new and (listed.followed or _has_done(listed, listed.steps[at + 1 :], journal)):
                yield path, f"{step.title}, new"
            continue
        if before is not None and _is_done(known, step) and _has_moved(before, known):
            yield path, f"{step.title}, moved"
        before = known


def _has_moved(before: StepRecord, known: StepRecord) -> bool:
    """Was the step in front of the one that is before it now?  One that ran again has not moved."""
    return before.order > known.order and before.number > known.number


def _has_done(listed: _List, steps: Iterable[Step], journal: Journal) -> bool:
    """Was one of these steps, or a child of it, done?"""
    for step in steps:
        path = listed.at(step)
        if not listed.path and journal.was_ever_started(path):
            return True
        known = journal.step(path)
        if known is None or known.number <= listed.since:
            continue
        inside_it = journal.steps_in(path) if isinstance(known.outcome, Failed) else ()
        if _is_done(known, step) or any(not isinstance(one.outcome, Failed) for one in inside_it):
            return True
    return False


def _find_item_changes(loaded: LoadedFlow, opened: OpenRun) -> dict[str, str]:
    """Find new, moved and removed steps of many items, with one query."""
    map_step = loaded.program.map
    if map_step is None:
        return {}
    end = opened.journal.step(map_step.name)
    since = end.number if end is not None and end.fingerprint == map_step.fingerprint else 0
    known = opened.journal.reader.steps_in_items(
        map_step.name, max(since, items_selected_at(opened.journal, map_step.name))
    )
    found: dict[str, str] = {}
    steps = map_step.steps.steps
    names = [step.name for step in steps]
    last = max((at for at, name in enumerate(names) if name in known), default=-1)
    for at, step in enumerate(steps[: last + 1]):
        later = steps[at + 1] if at < last else None
        if step.name not in known:
            found[step.name] = f"{step.title}, new"
        elif (
            later is not None and later.name in known and known[step.name][0] > known[later.name][1]
        ):
            found[later.name] = f"{later.title}, moved"
    if map_step.isolation is None:
        found |= {
            name: f"{name}, removed" for name in known if _ID.match(name) and name not in names
        }
    return {f"{map_step.name}/item:*/{name}": what for name, what in found.items()}


def _find_removed(
    loaded: LoadedFlow, opened: OpenRun, retry: RetryRecord, *, every: bool = True
) -> Iterator[StepRecord]:
    """Yield the steps that were done and are not in their list any more; `every`: of all items."""
    for listed in _lists(loaded, opened, retry, every=every):
        if _is_isolated(loaded, listed):
            continue
        names = {step.name for step in listed.steps}
        known = list(_in_list(listed.path, opened.journal))
        for one in known:
            name = one.path.rpartition("/")[2]
            was_gone = retry.items and generic_path(one.path) not in retry.fingerprints
            is_step = _ID.match(name) and name not in names and one.number > listed.since
            # No step followed a failure that ended its list.
            # A phase after a failed one ran without it.
            may_be_last = isinstance(one.outcome, Failed) and not listed.done
            is_last = may_be_last and not (
                listed.path and any(_is_followed_by(one, other) for other in known)
            )
            if is_step and not is_last and not was_gone:
                yield one


def _in_list(path: str, journal: Journal) -> Iterator[StepRecord]:
    """Yield the records of the steps of a list; for the flow, those of its phases."""
    if path:
        return journal.steps_in(path)
    ended = (journal.step(name) for name in PHASES if journal.was_ever_started(name))
    return (known for known in ended if known is not None)


def _is_followed_by(one: StepRecord, other: StepRecord) -> bool:
    """Did another step of the same list follow?"""
    if "/" in one.path:
        return other.number > one.number
    return PHASES.index(other.path) > PHASES.index(one.path)


def _is_isolated(loaded: LoadedFlow, listed: _List) -> bool:
    """Does the list have steps that its author did not write?  Items with a worktree do."""
    map_step = loaded.program.map
    return map_step is not None and map_step.isolation is not None and is_item(listed.path)


PHASES: Final = ("setup", "map", "reduce", "merge")
"""The phases of a flow, in order."""
_ID: Final = re.compile(r"[\w-]+\Z")
"""Names of steps, by their authors or by number; hooks and handlers have other names."""


def _lists(
    loaded: LoadedFlow, opened: OpenRun, retry: RetryRecord, *, every: bool = False
) -> Iterator[_List]:
    """Yield the lists of the flow, of the items of its map and of all children.

    Without those whose text is that of the last retry.
    """
    from plait.program.step_list import StepList as Steps

    journal, parts = opened.journal, [part for part in loaded.program.children if part.children]
    yield _List("", parts, 0)
    # With many items this would take too long.
    hidden = "" if every or not journal.reader.is_long() else "/item:*"
    for at, part in enumerate(parts):
        followed = any(journal.was_ever_started(later.name) for later in parts[at + 1 :])
        for path, step in iter_steps(part):
            # An item with a worktree performs its list by an action.
            steps = step.action if isinstance(step, LeafStep) else step
            if (
                not isinstance(steps, Steps)
                or (hidden and hidden in path)
                or retry.holds(path, step)
            ):
                continue
            is_outer = path in (part.name, f"{part.name}/item:*")
            for place, since in _instances(journal, path):
                yield _list(place, steps, journal, since, followed=followed and is_outer)


def _list(path: str, steps: Steps, journal: Journal, since: int, *, followed: bool) -> _List:
    end = journal.step(path)
    if end is None or end.number <= since:
        return _List(path, steps.steps, since)
    done = not isinstance(end.outcome, Failed)
    # Records before the end of a list with the present text were accepted then.
    if end.fingerprint == steps.fingerprint:
        return _List(path, steps.steps, end.number, done)
    return _List(path, steps.steps, since, done, done and followed)


def invalidate_removed(loaded: LoadedFlow, opened: OpenRun) -> list[StepInvalidated]:
    """Invalidate removed steps, and the steps after them in their list.

    The text of the list has changed with that, so `perform` runs the steps after the list again.
    """
    forgotten: dict[str, str] = {}
    for gone in _find_removed(loaded, opened, RetryRecord.of(opened)):
        forgotten[gone.path] = "it is not in the file any more"
        for known in _in_list(gone.path.rpartition("/")[0], opened.journal):
            if _is_followed_by(gone, known):
                forgotten.setdefault(known.path, "a step before it is not in the file any more")
    return [StepInvalidated(path, why, below=True) for path, why in forgotten.items()]


# ── what is recorded of a step ───────────────────────────────────────────


def _is_alike(opened: OpenRun, path: str, step: Step) -> bool:
    """Do all records of a step of items have the present text?  One query for a million items."""
    top, star, rest = path.partition("/item:*")
    is_plain = star and "item:" not in rest and not any(check in rest for check in _CHECKS)
    return bool(is_plain and rest) and opened.journal.reader.same_fingerprint(
        top, rest, step.fingerprint
    )


def _is_inside(path: str, others: Iterable[str]) -> bool:
    return any(path != one and is_at_or_below(path, one) for one in others)


def _fingerprints(loaded: LoadedFlow) -> dict[str, str]:
    return {path: step.fingerprint for path, step in flow_steps(loaded)}


def flow_steps(loaded: LoadedFlow) -> Iterator[tuple[str, Step]]:
    for part in loaded.program.children:
        yield from iter_steps(part)


def _matching_records(journal: Journal, path: str, step: Step) -> Iterator[StepRecord]:
    """Yield the records of a step at a path in which `item:*` stands for every item."""
    for place, since in _instances(journal, path):
        for one in _tries(place, step):
            known = journal.step(one)
            if known is not None and known.number > since:
                yield known


def _instances(journal: Journal, path: str, since: int = 0) -> Iterator[tuple[str, int]]:
    """Yield the paths of a step in a run, each with the event before which records do not count."""
    top, star, rest = path.partition("/item:*")
    if not star:
        yield from ((place, since) for place in _times(journal, "", path))
        return
    for map_path in _times(journal, "", top):
        chosen = max(since, items_selected_at(journal, map_path))
        for item in journal.started_in(map_path):
            if is_item(item):
                yield from _instances(journal, item + rest, chosen)


def _times(journal: Journal, above: str, path: str) -> Iterator[str]:
    """Yield the paths of a run for a path of the flow: checks and handlers run several times."""
    name, _, rest = path.partition("/")
    here = f"{above}/{name}" if above else name
    times = (f"{here}@{number}" for number in count(1)) if name in _CHECKS else iter(())
    for place in (here, *takewhile(lambda time: journal.was_ever_started(time), times)):
        if rest:
            yield from _times(journal, place, rest)
        else:
            yield place


_CHECKS: Final = ("check", "on_incomplete", "on_failure")


def _tries(path: str, step: Step) -> Iterator[str]:
    """Yield the paths of a step: after a failure handler, its action has another one."""
    from plait.program.action_step import AGAIN, ActionAttempt

    yield path
    if isinstance(step, ActionAttempt) and step.owner.on_failure is not None:
        above = path.rpartition("/")[0]
        yield from (
            f"{above}/{AGAIN}{number + 1}" for number in range(step.owner.on_failure.attempts)
        )


def _of_people(path: str, step: Step) -> str:
    """Return the path that the author knows: a step and its action are one."""
    from plait.program.action_step import ActionAttempt

    return path.rpartition("/")[0] if isinstance(step, ActionAttempt) else path


# ── answers: steps whose end is not known ────────────────────────────────


@dataclass(frozen=True, slots=True)
class ResumeAnswers:
    """The user's answers about steps whose end is unknown: run again, or done."""

    repeat: Sequence[str] = ()
    done: Sequence[str] = ()

    def require_valid(self, loaded: LoadedFlow, opened: OpenRun) -> None:
        """Raise InputError for invalid answers, before anything runs."""
        both = [path for path in self.repeat if path in self.done]
        if both:
            raise InputError(
                f"'{both[0]}' is named with --repeat and with --done",
                fix="use one of them",
                code="contradiction",
            )
        _require_steps(loaded, opened.journal, self, _earlier_done_marks(opened))

    def values(self, loaded: LoadedFlow, opened: OpenRun) -> dict[str, Json]:
        """Return the values, by path, of steps marked as done, now or in an earlier resume."""
        steps = dict(flow_steps(loaded))
        found = {path: _value_at(path, steps, opened.journal) for path in self._done_marks(opened)}
        return {path: value for path, value in found.items() if value is not None}

    def keep(self, opened: OpenRun) -> None:
        """Record the marks for later resumes, if this one does not come to the steps."""
        now: list[Json] = [
            path for path in self._done_marks(opened) if not _has_succeeded(path, opened)
        ]
        if now != opened.facts.get(MARKED_DONE, []):
            opened.update_facts(**{MARKED_DONE: now})

    def _done_marks(self, opened: OpenRun) -> list[str]:
        """Return the steps marked as done, now or earlier, without those to repeat."""
        return [
            path
            for path in dict.fromkeys((*_earlier_done_marks(opened), *self.done))
            if path not in self.repeat
        ]


MARKED_DONE: Final = "marked_done"
"""The key of these paths in the facts of a run."""


def _earlier_done_marks(opened: OpenRun) -> list[str]:
    """Return the steps marked as done in earlier resumes that are not recorded as done yet."""
    fact = opened.facts.get(MARKED_DONE)
    return (
        [str(path) for path in fact if not _has_succeeded(str(path), opened)]
        if isinstance(fact, list)
        else []
    )


def _has_succeeded(path: str, opened: OpenRun) -> bool:
    return isinstance(getattr(opened.journal.step(path), "outcome", None), Succeeded)


def marked_done_in(opened: OpenRun, forgotten: Iterable[StepInvalidated]) -> list[str]:
    """Return the steps marked as done inside items that start again."""
    kept = _earlier_done_marks(opened)
    tops = [event.path for event in forgotten if event.below] if kept else []
    return [path for path in kept if any(is_at_or_below(path, top) for top in tops)]


def _value_at(path: str, steps: Mapping[str, Step], journal: Journal) -> Json:
    """Return the value of a step marked as done; None: there is no such step any more."""
    from plait.agents.turns import recorded_tool_call
    from plait.engine.unknown import UNSEEN

    if (call := recorded_tool_call(journal, path)) is not None:
        return call
    if not _is_call(path) and _step_at(steps, path) is None:
        return None
    return dict(UNSEEN)


def _require_steps(
    loaded: LoadedFlow, journal: Journal, answers: ResumeAnswers, kept: Sequence[str]
) -> None:
    """Raise InputError unless every path is a step, and those to repeat need an answer."""
    from plait.agents.turns import recorded_tool_call

    known = dict(flow_steps(loaded))
    for path in (*answers.repeat, *answers.done):
        if journal.is_unfinished(path) and (
            _is_call(path) or recorded_tool_call(journal, path) is not None
        ):
            continue
        step = _step_at(known, path)
        if step is None or not _is_in_begun(path, journal):
            raise _no_step(path, known)
        if step_kind(step.kind).only_holds_steps:
            raise _no_action(path, step.kind)
        if path in answers.repeat and not (
            step.policy.at_most_once or path in kept or journal.is_unfinished(path)
        ):
            raise _no_question(path)


def _is_in_begun(path: str, journal: Journal) -> bool:
    """Is it outside of items, or in an item that was started?"""
    above, item, rest = path.rpartition(f"/{ITEM}")
    return not item or journal.was_ever_started(f"{above}{item}{rest.partition('/')[0]}")


def _no_action(path: str, kind: str) -> InputError:
    return InputError(
        f"'{path}' ({kind}) only holds steps: --done and --repeat are about a step that does "
        "something",
        fix="name the steps in it; plait show lists them",
        code="no-action",
    )


def _no_question(path: str) -> InputError:
    return InputError(
        f"'{path}' needs no answer: --repeat is for a step that may run only once",
        fix="plait resume runs failed and unfinished steps again, and finished ones if you edit them",
        code="no-question",
    )


def open_questions(loaded: LoadedFlow, journal: Journal) -> Iterator[tuple[str, str]]:
    """Yield the at-most-once steps that an earlier attempt of the run started and did not end."""
    known = dict(flow_steps(loaded))
    if not any(step.policy.at_most_once for step in known.values()):
        return  # finding them reads the whole journal
    for path in journal.find_unfinished():
        step = _step_at(known, path)
        if step is not None and step.policy.at_most_once and not _is_inside_recorded(journal, path):
            yield path, step.title


def _is_inside_recorded(journal: Journal, path: str) -> bool:
    parts = path.split("/")
    return any(
        journal.step("/".join(parts[:length])) is not None for length in range(1, len(parts))
    )


def _is_call(path: str) -> bool:
    """Is it the path of a tool call that may happen only once?"""
    from plait.program.actions.tool import ONCE_CALL

    return path.rpartition("/")[2] == ONCE_CALL


def _step_at(known: Mapping[str, Step], path: str) -> Step | None:
    """Return the step at a path of a run; an action is below its step."""
    from plait.program.action_step import AGAIN, FIRST, ActionAttempt, ActionStep

    found = known.get(path) or known.get(generic_path(path))
    if found is not None:
        return found
    above, _, name = path.rpartition("/")
    work = known.get(generic_path(above))
    is_attempt = name == FIRST or name.startswith(AGAIN)
    return (
        ActionAttempt(work, name)
        if is_attempt and isinstance(work, ActionStep) and not work.has_no_handlers
        else None
    )


def _no_step(path: str, known: Mapping[str, Step]) -> InputError:
    named = [one for one in known if "*" not in one]
    called = [one for one in named if one.rpartition("/")[2] == path]
    guess = called[0] if len(called) == 1 else closest_name(path, named)
    return InputError(
        f"there is no step '{path}'",
        fix=f"did you mean '{guess}'?" if guess else "plait show lists the steps",
        code="unknown-step",
    )


def failed_items_to_retry(
    loaded: LoadedFlow,
    journal: Journal,
    wanted: Sequence[str],
    *,
    from_start: bool,
    waiting: Sequence[str] = (),
) -> Iterator[StepInvalidated]:
    """`waiting`: the paths of items that an earlier retry did not run."""
    map_step = loaded.program.map
    if map_step is None:
        return
    selected_at = items_selected_at(journal, map_step.name, map_step.items.name)
    letters = [
        known
        for known in journal.failure_titles(map_step.name, after=selected_at)
        if is_item(known[0])
    ]
    letters += [(path, path.rpartition("/item:")[2]) for path in waiting]
    unknown = [one for one in wanted if not any(_is_called(known, one) for known in letters)]
    if unknown:
        guess = closest_name(unknown[0], [*map(_key, letters), *(title for _, title in letters)])
        raise InputError(
            f"no failed item is called {', '.join(map(repr, unknown))}",
            fix=f"did you mean '{guess}'?" if guess else "plait show lists the failed items",
            code="unknown-item",
        )
    chosen = [
        known for known in letters if not wanted or any(_is_called(known, one) for one in wanted)
    ]
    if chosen:
        yield StepInvalidated(map_step.name, "items are retried", below=False)
    for path, _ in chosen:
        yield StepInvalidated(path, RETRY_REASON, below=from_start)


def _key(letter: tuple[str, str]) -> str:
    return letter[0].rpartition("/item:")[2]


def _is_called(letter: tuple[str, str], name: str) -> bool:
    """Is it a failed item with this path, key or title?"""
    return name in (_key(letter), *letter)


# ── variables of env files ───────────────────────────────────────────────

ROUNDS: Final = 50_000
"""Rounds of the digest: some 10 ms, once for each attempt of a run with env files."""
SALT_BYTES: Final = 16


def env_digest(variables: Mapping[str, str], *, salt: bytes | None = None) -> dict[str, Json]:
    """Return what a run stores about its env files."""
    if not variables:
        return {}
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    return {
        "names": sorted(variables),
        "salt": salt.hex(),
        "digest": _salted_digest(variables, salt),
    }


def describe_change(known: Json, variables: Mapping[str, str]) -> str | None:
    """Return the changes by name; None: there are none."""
    before = known if isinstance(known, Mapping) else {}
    names = frozenset(before.get("names", ()))
    others = [
        *(f"{name} is new" for name in sorted(variables.keys() - names)),
        *(f"{name} is gone" for name in sorted(names - variables.keys())),
    ]
    kept = {name: variables[name] for name in names & variables.keys()}
    return "; ".join([format_names(others)] * bool(others) + [*_other_values(before, kept)]) or None


def _other_values(before: Mapping[str, Json], kept: Mapping[str, str]) -> Iterator[str]:
    """Return what is known about the variables that are still there."""
    if not kept:
        return
    named = format_names(sorted(kept))
    if len(kept) < len(before["names"]):  # the digest is of all variables, and one is gone
        have = "has another value" if len(kept) == 1 else "have other values"
        yield f"whether {named} {have} cannot be known"
    elif _salted_digest(kept, bytes.fromhex(str(before["salt"]))) != before["digest"]:
        yield (
            f"{named} has another value"
            if len(kept) == 1
            else f"at least one of {named} has another value"
        )


def env_change_problem(change: str) -> Problem:
    return Problem(
        f"the env files have changed since the run began: {change}",
        None,
        "plait resume --accept-changes goes on with them, and what is done stays done; "
        "or put the files back as they were",
        code="changed",
    )


def _salted_digest(variables: Mapping[str, str], salt: bytes) -> str:
    from hashlib import pbkdf2_hmac

    text = json_text([[name, variables[name]] for name in sorted(variables)])
    return pbkdf2_hmac("sha256", text.encode("utf-8", "surrogatepass"), salt, ROUNDS).hex()
