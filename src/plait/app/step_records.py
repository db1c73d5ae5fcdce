"""Find what a run has recorded of a step of its flow: items, handlers and checks have many records."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, takewhile

from plait.core.hints import TYPE_CHECKING
from plait.engine.outcome import Failed
from plait.engine.paths import (
    HANDLERS,
    again_name,
    is_handler_name,
    is_item,
    join_path,
    last_name,
    numbered_name,
    parent_path,
    path_names,
    paths_around,
    split_at_item,
)
from plait.engine.replay import items_selected_at

if TYPE_CHECKING:
    from plait.engine.journal import Journal, StepRecord
    from plait.engine.step import Step


def find_records(journal: Journal, path: str, step: Step) -> Iterator[StepRecord]:
    """Yield the records of a step at a path in which `item:*` stands for every item."""
    for place, since in find_instances(journal, path):
        for one in _tries(place, step):
            known = journal.step(one)
            if known is not None and known.number > since:
                yield known


def find_instances(journal: Journal, path: str, since: int = 0) -> Iterator[tuple[str, int]]:
    """Yield the paths of a step in a run, each with the event before which records do not count."""
    top, star, rest = split_at_item(path)
    if not star:
        yield from ((place, since) for place in _times(journal, path))
        return
    for map_path in _times(journal, top):
        chosen = max(since, items_selected_at(journal, map_path))
        for item in journal.started_in(map_path):
            if is_item(item):
                yield from find_instances(journal, item + rest, chosen)


def _times(journal: Journal, path: str) -> Iterator[str]:
    """Yield the paths of a run for a path of the flow: checks and handlers run several times."""
    places = [""]
    for name in path_names(path):
        places = [
            one for place in places for one in _repetition_paths(journal, join_path(place, name))
        ]
    yield from places


def _repetition_paths(journal: Journal, here: str) -> Iterator[str]:
    yield here
    if last_name(here) in HANDLERS:
        times = (numbered_name(here, number) for number in count(1))
        yield from takewhile(journal.was_ever_started, times)


def _tries(path: str, step: Step) -> Iterator[str]:
    """Yield the paths of a step: after a failure handler, its action has another one."""
    from plait.program.action_step import ActionAttempt

    yield path
    if isinstance(step, ActionAttempt) and step.owner.on_failure is not None:
        for number in range(1, step.owner.on_failure.attempts + 1):
            yield join_path(parent_path(path), again_name(number))


def counts_as_done(known: StepRecord, step: Step, journal: Journal) -> bool:
    """Would the record count if the text were the same?"""
    from plait.program.action_step import ActionAttempt

    if _is_in_failed_handler(known, journal):
        return False
    if isinstance(step, ActionAttempt) and _has_failed_since(
        known, parent_path(known.path), journal
    ):
        return step.policy.at_most_once and not isinstance(known.outcome, Failed)
    return is_done(known, step)


def _is_in_failed_handler(known: StepRecord, journal: Journal) -> bool:
    """Is it in a failure handler or check of a step that failed later?  Those run again."""
    return any(
        _has_failed_since(known, parent_path(path), journal)
        for path in (*paths_around(known.path), known.path)
        if is_handler_name(last_name(path))
    )


def _has_failed_since(known: StepRecord, path: str, journal: Journal) -> bool:
    """Did the step at a path, around the known one, fail after it?"""
    end = journal.last_result(path)
    return end is not None and end.number > known.number and isinstance(end.outcome, Failed)


def is_done(known: StepRecord, step: Step) -> bool:
    """Does the record count as done?  After a kept failure the flow has continued."""
    return step.policy.keep_failure or not isinstance(known.outcome, Failed)
