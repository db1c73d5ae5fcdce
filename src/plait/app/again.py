"""A run goes on: what has changed since, what nobody knows the end of, which items are done again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, takewhile

from plait.app import env_changes
from plait.engine.choice import chosen_at
from plait.engine.events import StepForgotten
from plait.engine.journal import is_below, is_item
from plait.engine.outcome import Failed
from plait.engine.perform import Step, inside
from plait.engine.run import changed_steps
from plait.errors import InputError, nearest
from plait.hints import TYPE_CHECKING, Final
from plait.records import dataclass, field
from plait.values import Json

if TYPE_CHECKING:
    from plait.engine.journal import Journal, Recorded
    from plait.flows.loaded import Loaded
    from plait.store import Opened


@dataclass(frozen=True, slots=True)
class Retry:
    """What a run keeps of the last time that items of it were retried, by a text that may have been new.

    All else that was done then stays done, also in later lives of the run.
    """

    items: frozenset[str] = frozenset()
    """Their paths, and that of the map; none: nothing was ever retried."""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """By path: those of the steps of the flow, as its text was then."""

    @classmethod
    def of(cls, opened: Opened) -> Retry:
        said = opened.facts.get(RETRIED)
        return cls(frozenset(said["items"]), said["fingerprints"]) if isinstance(said, Mapping) else cls()

    @classmethod
    def begun(cls, loaded: Loaded, opened: Opened, items: Iterable[str]) -> Retry:
        """The items that are retried now, and those of an earlier time to which it did not come."""
        waiting = (path for path in cls.of(opened).items if opened.journal.recorded(path) is None)
        fingerprints = {path: step.fingerprint for path, step in _flow_steps(loaded)}
        return cls(frozenset((*items, *waiting)), fingerprints)

    def kept(self, loaded: Loaded, opened: Opened) -> Retry:
        """What later lives have to know of it: nothing, if all that is done was done by the text of now."""
        # Of very many items that would have to be looked for while somebody waits; to know more does no harm.
        is_long = opened.journal.reader.is_long()
        return self if is_long or changed_since(loaded, opened, Retry()) else Retry()

    def concerns(self, path: str) -> bool:
        """Is it the path of an item that was retried, of something in it, or of what is in no item?"""
        item = _top(path, 2)
        return not self.items or not is_item(item) or item in self.items

    def with_changes(self, changed: Iterable[str]) -> Retry:
        """Steps that have changed since are done again, and so is what they are in."""
        changed = list(changed)
        again = (_top(path, length) for path in changed for length in (1, 2))
        kept = {
            path: known
            for path, known in self.fingerprints.items()
            if not any(is_below(path, one) for one in changed)
        }
        return type(self)(self.items.union(again), kept)

    def facts(self) -> dict[str, Json]:
        return {RETRIED: {"items": sorted(self.items), "fingerprints": dict(self.fingerprints)}}


RETRIED: Final = "retried"
"""The name of that among the facts of a run."""


def _top(path: str, length: int) -> str:
    return "/".join(path.split("/", length)[:length])


def expect_unchanged(loaded: Loaded, opened: Opened) -> None:
    """All that is not as it was, before anything is done."""
    changed = changed_since(loaded, opened)
    problems = [*changed_steps(changed.items()).problems] if changed else []
    change = env_changes.change_of(opened.facts.get("env_files"), loaded.surroundings.filed)
    if change is not None:
        problems.append(env_changes.problem_of(change))
    if problems:
        raise InputError.together(problems)


def changed_since(loaded: Loaded, opened: Opened, retry: Retry | None = None) -> dict[str, str]:
    """By path: titles of the steps that were done and have another text now.

    Of a run of which items were retried: another one than then, and not those of other items.
    """
    retry = Retry.of(opened) if retry is None else retry
    changed: dict[str, str] = {}
    for path, step in _flow_steps(loaded):
        if step.inner or retry.fingerprints.get(path) == step.fingerprint:
            continue
        if opened.journal.reader.is_long() and _is_alike(opened, path, step):
            continue
        done = (known for known in _recorded_like(opened.journal, path, step) if retry.concerns(known.path))
        if any(
            known.fingerprint != step.fingerprint and not isinstance(known.outcome, Failed) for known in done
        ):
            changed.setdefault(_of_people(path, step), step.title)
    return {path: title for path, title in changed.items() if not _is_inside(path, changed)}


def _is_alike(opened: Opened, path: str, step: Step) -> bool:
    """Has every end that a step of an item ever had the text of now?  One question for a million of them."""
    top, star, rest = path.partition("/item:*")
    is_plain = star and "item:" not in rest and not any(check in rest for check in _CHECKS)
    return bool(is_plain and rest) and opened.journal.reader.is_alike(top, rest, step.fingerprint)


def _is_inside(path: str, others: Iterable[str]) -> bool:
    return any(path != one and is_below(path, one) for one in others)


def _flow_steps(loaded: Loaded) -> Iterator[tuple[str, Step]]:
    for part in loaded.program.inner:
        yield from inside(part)


def _recorded_like(journal: Journal, path: str, step: Step) -> Iterator[Recorded]:
    """What is recorded of a step at a path in which `item:*` stands for every item."""
    top, star, rest = path.partition("/item:*")
    if not star:
        found = (journal.recorded(one) for time in _times(journal, "", path) for one in _tries(time, step))
        return (known for known in found if known is not None)
    return _of_items(journal, top, rest, step)


def _of_items(journal: Journal, top: str, rest: str, step: Step) -> Iterator[Recorded]:
    for item in journal.recorded_in(top):
        if "/item:" in item.path[len(top) :]:
            yield from _recorded_like(journal, item.path + rest, step)


def _times(journal: Journal, above: str, path: str) -> Iterator[str]:
    """The paths in a run of what is at one below another: whatever checks a step is done several times."""
    name, _, rest = path.partition("/")
    here = f"{above}/{name}" if above else name
    times = (f"{here}@{number}" for number in count(1)) if name in _CHECKS else iter(())
    for place in (here, *takewhile(lambda time: _has_begun(journal, time), times)):
        if rest:
            yield from _times(journal, place, rest)
        else:
            yield place


_CHECKS: Final = ("check", "on_incomplete")


def _tries(path: str, step: Step) -> Iterator[str]:
    """The paths of a step: an action is another one each time that it is tried after a handler."""
    from plait.steps.work import AGAIN, Attempt

    yield path
    if isinstance(step, Attempt) and step.work.on_failure is not None:
        above = path.rpartition("/")[0]
        yield from (f"{above}/{AGAIN}{number + 1}" for number in range(step.work.on_failure.attempts))


def _of_people(path: str, step: Step) -> str:
    """The path of what an author wrote, who knows a step and its action as one."""
    from plait.steps.work import Attempt

    return path.rpartition("/")[0] if isinstance(step, Attempt) else path


def expect_steps(loaded: Loaded, journal: Journal, paths: Sequence[str]) -> None:
    """Every path is that of a step, and where it is inside an item, the item has begun."""
    from plait.steps.conversation import use_at

    known = dict(_flow_steps(loaded))
    for path in paths:
        if journal.was_started(path) and (_is_call(path) or use_at(journal, path) is not None):
            continue
        if _step_at(known, path) is None or ("/item:" in path and not _has_begun(journal, path)):
            raise _no_step(path, known)


def unanswered(loaded: Loaded, journal: Journal) -> Iterator[tuple[str, str]]:
    """The steps that may run only once and were under way when an earlier life of the run ended."""
    known = dict(_flow_steps(loaded))
    if not any(step.policy.once for step in known.values()):
        return  # to find out what was under way means to go through the journal
    for path in journal.unfinished():
        step = _step_at(known, path)
        if step is not None and step.policy.once and not _is_inside_recorded(journal, path):
            yield path, step.title


def _is_inside_recorded(journal: Journal, path: str) -> bool:
    parts = path.split("/")
    return any(journal.recorded("/".join(parts[:length])) is not None for length in range(1, len(parts)))


def _has_begun(journal: Journal, path: str) -> bool:
    return journal.was_started(path) or journal.recorded(path) is not None


def say_done(loaded: Loaded, journal: Journal, paths: Sequence[str]) -> None:
    """The user says of steps that may run only once that they did their work."""
    from plait.engine.events import StepFinished
    from plait.engine.outcome import Done
    from plait.steps.conversation import use_at

    known = dict(_flow_steps(loaded))
    for path in paths:
        if (call := use_at(journal, path)) is not None:
            title, fingerprint, result = call
            journal.append(StepFinished(path, "call", title, fingerprint, Done(result), 0.0))
            continue
        value: Json = {"output": "", "stderr": "", "exit_code": 0, "duration": 0.0}
        if _is_call(path):
            journal.append(StepFinished(path, "tool", "said to be done", "", Done(value), 0.0))
            continue
        step = _step_at(known, path)
        assert step is not None, "paths are looked at before"
        journal.append(StepFinished(path, step.kind, step.title, step.fingerprint, Done(value), 0.0))


def _is_call(path: str) -> bool:
    """Is it the place of a call that its tool wants to be made only once?"""
    from plait.steps.tool import ONCE

    return path.rpartition("/")[2] == ONCE


def _step_at(known: Mapping[str, Step], path: str) -> Step | None:
    """The step at a path of a run; that of an action is below the step whose action it is."""
    from plait.steps.work import AGAIN, FIRST, Attempt, Work

    found = known.get(path) or known.get(_starred(path))
    if found is not None:
        return found
    above, _, name = path.rpartition("/")
    work = known.get(_starred(above))
    is_attempt = name == FIRST or name.startswith(AGAIN)
    return Attempt(work, name) if is_attempt and isinstance(work, Work) and not work.is_simple else None


def _starred(path: str) -> str:
    """A path of a run as one of the flow: of any item, and of any time that a handler or check is run."""
    return "/".join(
        "item:*" if part.startswith("item:") else _HANDLED.sub(r"\1", part) for part in path.split("/")
    )


_HANDLED: Final = re.compile(r"^(on_failure|on_incomplete|check)@\d+$")


def _no_step(path: str, known: Mapping[str, Step]) -> InputError:
    guess = nearest(path, known)
    return InputError(
        f"there is no step '{path}'",
        fix=f"did you mean '{guess}'?" if guess else "plait show lists the steps",
        code="unknown-step",
    )


def letters_to_retry(
    loaded: Loaded, journal: Journal, wanted: Sequence[str], *, from_start: bool
) -> Iterator[StepForgotten]:
    fan = loaded.program.fan
    if fan is None:
        return
    chosen_by = chosen_at(journal, fan.name, fan.items.name)
    letters = [
        known for known in journal.failed_in(fan.name) if is_item(known.path) and known.number > chosen_by
    ]
    names = {known.path.rpartition("/item:")[2]: known for known in letters}
    unknown = [one for one in wanted if not _named(one, names.values())]
    if unknown:
        guess = nearest(unknown[0], [*names, *(known.title for known in letters)])
        raise InputError(
            f"no failed item is called {', '.join(map(repr, unknown))}",
            fix=f"did you mean '{guess}'?" if guess else "plait show lists the failed items",
            code="unknown-item",
        )
    chosen = [known for known in letters if not wanted or any(_is_called(known, one) for one in wanted)]
    if chosen:
        yield StepForgotten(fan.name, "items are retried", below=False)
    for known in chosen:
        yield StepForgotten(known.path, "retried", below=from_start)


def _named(name: str, letters: Iterable[Recorded]) -> bool:
    return any(_is_called(known, name) for known in letters)


def _is_called(known: Recorded, name: str) -> bool:
    key = known.path.rpartition("/item:")[2]
    return name in (key, known.title, known.path)
