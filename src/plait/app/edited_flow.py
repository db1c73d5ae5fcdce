"""Resume a run whose flow was edited: which recorded outcomes still count.

The rule: within each list of steps, and within each item, recorded outcomes count up to the first
changed step; that step and all that follow it run again.  A step has changed if its text differs,
or if it is new, moved or removed.  `plait resume` asks about at-most-once steps whose end is
unknown.

A run stores its text (`RunText`).  A resume compares it with the text of the flow.  If a change
makes something run again that was done, it refuses, and names the changed steps; with
`--accept-changes` it continues.  The present text then becomes the text of the run, in one
transaction with the invalidation of removed steps.  `perform` does the rest: an outcome counts only
if its fingerprint is in the text of the run, and if no step before it ran later (engine/replay.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from plait.app.env_digest import describe_change, env_change_problem
from plait.app.step_records import (
    counts_as_done,
    find_instances,
    find_records,
    is_done,
)
from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass
from plait.engine.context import Secrets
from plait.engine.events import StepInvalidated
from plait.engine.outcome import Failed
from plait.engine.paths import (
    ANY_ITEM,
    first_name,
    generic_path,
    is_at_or_below,
    join_path,
    parent_path,
    split_path,
)
from plait.engine.replay import changed_steps_error
from plait.engine.run_text import RunText
from plait.engine.step import LeafStep, Step, iter_program

if TYPE_CHECKING:
    from plait.adapters.store import OpenRun
    from plait.engine.journal import Journal, StepRecord
    from plait.lang.loaded import LoadedFlow


class EditedFlow:
    """The flow of a run as it is now, and the text of the run."""

    def __init__(self, loaded: LoadedFlow, opened: OpenRun) -> None:
        self.loaded = loaded
        self.journal = opened.journal
        self.steps: Mapping[str, Step] = dict(iter_program(loaded.program.children))
        self._run = opened.id
        self._facts = opened.facts
        self._known = RunText.from_fact(self._facts.get("text"))
        before = [(path, known[0]) for path, known in self._known.steps.items()]
        now = [(path, step.fingerprint) for path, step in self.steps.items()]
        self.has_changed = bool(before) and before != now

    def require_accepted(self) -> None:
        """Raise InputError with all changes that nobody has accepted, before anything runs."""
        changed = find_changed_steps(self) if self.has_changed else {}
        mask = Secrets(self.loaded.secret_texts()).mask_title  # an author may have written one
        named = [(path, mask(title)) for path, title in changed.items()]
        problems = [*changed_steps_error(self._run, named).problems] if named else []
        change = describe_change(self._facts.get("env_files"), self.loaded.environment.filed)
        if change is not None:
            problems.append(env_change_problem(self._run, change))
        if problems:
            raise InputError.together(problems)

    def text(self, *, accepted: bool) -> RunText:
        """Return the text of the resumed run: changed steps run again, wherever they were done."""
        steps = {path: self._texts(path, step) for path, step in self.steps.items()}
        earlier = self._known.is_accepted and not self.has_changed
        return RunText(steps, accepted or earlier)

    def text_of_retry(self) -> RunText:
        """Return the text of the run when some items are retried: what others have done counts."""
        steps = {
            path: list(dict.fromkeys((step.fingerprint, *self._known.steps.get(path, ()))))
            for path, step in self.steps.items()
        }
        return RunText(steps, self._known.is_accepted or self.has_changed)

    def _texts(self, path: str, step: Step) -> Sequence[str]:
        return self._known.fingerprints(path, step.fingerprint)

    def find_changed_texts(self) -> Iterator[tuple[str, Step]]:
        for path, step in self.steps.items():
            known = self._known.steps.get(path)
            if known is not None and known[0] != step.fingerprint:
                yield path, step

    def find_edited_lists(self) -> Iterator[EditedList]:
        """Yield the lists whose steps have other names or another order now."""
        from plait.program.action_step import ActionAttempt, ActionStep
        from plait.program.step_list import StepList

        before: dict[str, list[str]] = {}
        for path in self._known.steps:
            above, name = split_path(path)
            before.setdefault(above, []).append(name)
        parts = [part for part in self.loaded.program.children if part.children]
        yield EditedList("", parts, [name for name in before.get("", ()) if name in before])
        for path, step in self.steps.items():
            if path not in before or isinstance(step, ActionStep | ActionAttempt):
                continue
            # An item with a worktree performs its list by an action, and has steps of its own.
            steps = step.action if isinstance(step, LeafStep) else step
            own = steps.steps if isinstance(steps, StepList) else step.children
            added = {one.name for one in step.children} - {one.name for one in own}
            yield EditedList(
                path,
                own,
                [name for name in before[path] if name not in added],
                is_ordered=isinstance(steps, StepList),
                is_followed=self._is_followed(path, parts),
            )

    def _is_followed(self, path: str, parts: Sequence[Step]) -> bool:
        """Is it the list of a phase, or of the items of a map, and was a later phase started?"""
        names, phase = [part.name for part in parts], first_name(path)
        if phase not in names or path not in (phase, join_path(phase, ANY_ITEM)):
            return False
        return any(map(self.journal.was_ever_started, names[names.index(phase) + 1 :]))


def find_changed_steps(edited: EditedFlow) -> dict[str, str]:
    """Return the titles, by path, of changed steps that were done or that make others run again."""
    texts, places = _other_texts(edited), _other_places(edited)
    return texts | {path: what for path, what in places.items() if not _is_inside(path, texts)}


def _is_inside(path: str, others: Mapping[str, str]) -> bool:
    return any(path != one and is_at_or_below(path, one) for one in others)


def _other_texts(edited: EditedFlow) -> dict[str, str]:
    """Return the steps that were done by another text."""
    from plait.program.action_step import ActionAttempt, ActionStep

    changed: dict[str, str] = {}
    around: dict[str, str] = {}
    for path, step in edited.find_changed_texts():
        if step.children and not isinstance(step, ActionStep):
            continue
        if not any(
            known.fingerprint != step.fingerprint and counts_as_done(known, step, edited.journal)
            for known in find_records(edited.journal, path, step)
        ):
            continue
        if step.children:
            around[path] = step.title
        else:  # to its author, a step and its action are one
            is_action = isinstance(step, ActionAttempt)
            changed.setdefault(parent_path(path) if is_action else path, step.title)
    # A step with children is named only if none of its children has changed.
    for path in reversed(around):
        if not any(is_at_or_below(one, path) for one in changed):
            changed[path] = around[path]
    in_order = (path for path in edited.steps if path in changed)
    return {path: changed[path] for path in in_order if not _is_inside(path, changed)}


# ── places ───────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class EditedList:
    """A list of steps, and the names of its steps in the text of the run."""

    path: str
    """In the flow; empty: the phases."""
    steps: Sequence[Step]
    before: Sequence[str]
    is_ordered: bool = True
    """The steps run one after the other.  Those of a graph or an ensemble do not."""
    is_followed: bool = False
    """A later phase was started."""

    def instances(self, journal: Journal) -> Iterator[tuple[str, int]]:
        """Yield its paths in the run, with the event before which records do not count."""
        return find_instances(journal, self.path) if self.path else iter([("", 0)])

    def find_new_steps(self) -> Iterator[tuple[Step, Sequence[Step]]]:
        """Yield each new step and the steps after it."""
        for at, step in enumerate(self.steps):
            if self.is_ordered and step.name not in self.before:
                yield step, self.steps[at + 1 :]

    def find_moved_steps(self) -> Iterator[Step]:
        """Yield each step that was in front of the one that is before it now."""
        places = [
            (self.before.index(step.name), step) for step in self.steps if step.name in self.before
        ]
        for (before, _), (at, step) in pairwise(places):
            if self.is_ordered and before > at:
                yield step

    def find_removed_steps(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the name of each removed step and the names of those that followed it."""
        names = {step.name for step in self.steps}
        for at, name in enumerate(self.before):
            if name not in names:
                yield name, self.before[at + 1 :] if self.is_ordered else ()


def _other_places(edited: EditedFlow) -> dict[str, str]:
    """Return the new, moved and removed steps that make steps that were done run again."""
    journal, found, removed = edited.journal, dict[str, str](), dict[str, str]()
    for listed in edited.find_edited_lists():
        for step, later in listed.find_new_steps():
            if any(
                _has_done(later, place, since, journal)
                or (listed.is_followed and _has_ended(place, since, journal))
                for place, since in listed.instances(journal)
            ):
                found[join_path(listed.path, step.name)] = f"{step.title}, new"
        for step in listed.find_moved_steps():
            places = (
                (join_path(place, step.name), since) for place, since in listed.instances(journal)
            )
            records = ((journal.step(path), since) for path, since in places)
            if any(
                known and known.number > since and is_done(known, step) for known, since in records
            ):
                found[join_path(listed.path, step.name)] = f"{step.title}, moved"
        for known, _ in _find_removed_records(listed, journal):
            removed.setdefault(generic_path(known.path), f"{known.title}, removed")
    return found | removed


def _has_ended(place: str, since: int, journal: Journal) -> bool:
    """Has a list ended without a failure?"""
    end = journal.step(place)
    return end is not None and end.number > since and not isinstance(end.outcome, Failed)


def _has_done(steps: Sequence[Step], place: str, since: int, journal: Journal) -> bool:
    """Was one of these steps of a list, or a child of it, done?"""
    for step in steps:
        path = join_path(place, step.name)
        if not place and journal.was_ever_started(path):
            return True
        known = journal.step(path)
        if known is None or known.number <= since:
            continue
        inside_it = journal.steps_in(path) if isinstance(known.outcome, Failed) else ()
        if is_done(known, step) or any(not isinstance(one.outcome, Failed) for one in inside_it):
            return True
    return False


def _find_removed_records(
    listed: EditedList, journal: Journal
) -> Iterator[tuple[StepRecord, list[StepRecord]]]:
    """Yield what was done by each removed step, and what was recorded of those that followed it."""
    removed = list(listed.find_removed_steps())
    for place, since in listed.instances(journal) if removed else ():
        for name, later in removed:
            known = journal.step(join_path(place, name))
            if known is None or known.number <= since:
                continue
            after = [
                one for name in later if (one := journal.step(join_path(place, name))) is not None
            ]
            if isinstance(known.outcome, Failed) and not _went_on(known, after, place, journal):
                continue
            yield known, after


def _went_on(known: StepRecord, after: Sequence[StepRecord], place: str, journal: Journal) -> bool:
    """Has a list continued after this failure?  A phase after a failed one ran without it."""
    if not place:
        return False
    return _has_ended(place, known.number, journal) or any(
        one.number > known.number for one in after
    )


def invalidate_removed(edited: EditedFlow) -> list[StepInvalidated]:
    """Invalidate removed steps, and the steps after them in their list.

    The text of the list has changed with that, so `perform` runs the steps after the list again.
    """
    invalidated: dict[str, str] = {}
    for listed in edited.find_edited_lists() if edited.has_changed else ():
        for known, after in _find_removed_records(listed, edited.journal):
            invalidated[known.path] = "it is not in the file any more"
            for one in after:
                invalidated.setdefault(one.path, "a step before it is not in the file any more")
    return [StepInvalidated(path, why, below=True) for path, why in invalidated.items()]
