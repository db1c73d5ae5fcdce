"""A run goes on: what nobody knows the end of, and which items are done again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from plait.app.resume import flow_steps
from plait.core.errors import InputError, closest_name
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass
from plait.core.values import Json
from plait.engine.events import StepInvalidated
from plait.engine.outcome import Succeeded
from plait.engine.paths import ITEM, generic_path, is_at_or_below, is_item
from plait.engine.replay import items_selected_at

if TYPE_CHECKING:
    from plait.adapters.store import OpenRun
    from plait.engine.journal import Journal
    from plait.engine.step import Step
    from plait.lang.loaded import LoadedFlow


@dataclass(frozen=True, slots=True)
class ResumeAnswers:
    """What the user says of steps whose end nobody knows: to do them again, or that they are
    done.
    """

    repeat: Sequence[str] = ()
    done: Sequence[str] = ()

    def require_valid(self, loaded: LoadedFlow, opened: OpenRun) -> None:
        """InputError for what is no answer, before anything runs."""
        both = [path for path in self.repeat if path in self.done]
        if both:
            raise InputError(
                f"'{both[0]}' is either done or to be repeated, and not both",
                fix="say --repeat or --done of it",
                code="contradiction",
            )
        _require_steps(loaded, opened.journal, self, _earlier_done_marks(opened))

    def values(self, loaded: LoadedFlow, opened: OpenRun) -> dict[str, Json]:
        """By path: what steps give that are said to be done, now or in an earlier life that came to
        none.
        """
        steps = dict(flow_steps(loaded))
        found = {path: _value_at(path, steps, opened.journal) for path in self._done_marks(opened)}
        return {path: value for path, value in found.items() if value is not None}

    def keep(self, opened: OpenRun) -> None:
        """For later lives, should this one not come to these steps."""
        now: list[Json] = [path for path in self._done_marks(opened) if not _is_done(path, opened)]
        if now != opened.facts.get(SAID_DONE, []):
            opened.update_facts(**{SAID_DONE: now})

    def _done_marks(self, opened: OpenRun) -> list[str]:
        """The steps that are said to be done, now or before, but for those that are to be
        repeated.
        """
        return [
            path
            for path in dict.fromkeys((*_earlier_done_marks(opened), *self.done))
            if path not in self.repeat
        ]


SAID_DONE: Final = "said_done"
"""The name of that among the facts of a run: the paths."""


def _earlier_done_marks(opened: OpenRun) -> list[str]:
    """The steps that were said to be done in earlier lives, and are not."""
    said = opened.facts.get(SAID_DONE)
    return (
        [str(path) for path in said if not _is_done(str(path), opened)]
        if isinstance(said, list)
        else []
    )


def _is_done(path: str, opened: OpenRun) -> bool:
    return isinstance(getattr(opened.journal.step(path), "outcome", None), Succeeded)


def marked_done_in(opened: OpenRun, forgotten: Iterable[StepInvalidated]) -> list[str]:
    """The steps that were said to be done inside items that are begun from their start."""
    kept = _earlier_done_marks(opened)
    tops = [event.path for event in forgotten if event.below] if kept else []
    return [path for path in kept if any(is_at_or_below(path, top) for top in tops)]


def _value_at(path: str, steps: Mapping[str, Step], journal: Journal) -> Json:
    """What a step gives that did its work unseen; None if there is no such step any more."""
    from plait.agents.turns import recorded_tool_call
    from plait.engine.unknown import UNSEEN

    if (call := recorded_tool_call(journal, path)) is not None:
        return call
    if not _is_call(path) and _step_at(steps, path) is None:
        return None
    return dict(UNSEEN)


def _require_steps(
    loaded: LoadedFlow, journal: Journal, said: ResumeAnswers, kept: Sequence[str]
) -> None:
    """Every path is that of a step, in an item of one that has begun; and only a question is
    repeated.
    """
    from plait.agents.turns import recorded_tool_call

    known = dict(flow_steps(loaded))
    for path in (*said.repeat, *said.done):
        if journal.is_unfinished(path) and (
            _is_call(path) or recorded_tool_call(journal, path) is not None
        ):
            continue
        step = _step_at(known, path)
        if step is None or not _is_in_begun(path, journal):
            raise _no_step(path, known)
        if step.kind in LISTS:
            raise _no_action(path, step.kind)
        if path in said.repeat and not (
            step.policy.at_most_once or path in kept or journal.is_unfinished(path)
        ):
            raise _no_question(path)


LISTS: Final = ("phase", "fan", "item", "items", "handler", "rounds")
"""Kinds of what only holds steps, or finds what they are done for: what it gives is made of theirs.
"""


def _is_in_begun(path: str, journal: Journal) -> bool:
    """Is it in no item, or in one that has begun?"""
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
        f"nobody asked about '{path}': --repeat is an answer, about a step that may run only once",
        fix="plait resume does what has failed or has no end; what is done is done again if it is edited",
        code="no-question",
    )


def open_questions(loaded: LoadedFlow, journal: Journal) -> Iterator[tuple[str, str]]:
    """The steps that may run only once and were under way when an earlier life of the run ended."""
    known = dict(flow_steps(loaded))
    if not any(step.policy.at_most_once for step in known.values()):
        return  # to find out what was under way means to go through the journal
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
    """Is it the place of a call that its tool wants to be made only once?"""
    from plait.program.actions.tool import ONCE_CALL

    return path.rpartition("/")[2] == ONCE_CALL


def _step_at(known: Mapping[str, Step], path: str) -> Step | None:
    """The step at a path of a run; that of an action is below the step whose action it is."""
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
    """`waiting`: the paths of items that an earlier retry did not come to."""
    fan = loaded.program.fan
    if fan is None:
        return
    behind = items_selected_at(journal, fan.name, fan.items.name)
    letters = [
        known for known in journal.failure_titles(fan.name, after=behind) if is_item(known[0])
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
        yield StepInvalidated(fan.name, "items are retried", below=False)
    for path, _ in chosen:
        yield StepInvalidated(path, "retried", below=from_start)


def _key(letter: tuple[str, str]) -> str:
    return letter[0].rpartition("/item:")[2]


def _is_called(letter: tuple[str, str], name: str) -> bool:
    """Is it a failed item of this path, key or title?"""
    return name in (_key(letter), *letter)
