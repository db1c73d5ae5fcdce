"""The user's answers about steps whose end is unknown: `--done` and `--repeat`.

The facts of a run hold `marked_done`: the paths of steps that the user marked with `--done`, until
the run comes to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from plait.core.errors import InputError, PlaitError, closest_name
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass
from plait.core.values import Json
from plait.engine.context import Secrets
from plait.engine.kinds import step_kind
from plait.engine.outcome import Succeeded
from plait.engine.paths import (
    generic_path,
    is_at_or_below,
    is_attempt_name,
    is_item,
    last_name,
    paths_around,
    split_path,
)
from plait.engine.step import iter_program

if TYPE_CHECKING:
    from plait.adapters.store import OpenRun
    from plait.engine.journal import Journal
    from plait.engine.step import Step
    from plait.lang.loaded import LoadedFlow


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
        steps = dict(iter_program(loaded.program.children))
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


def done_marks_in(opened: OpenRun, items: Iterable[str]) -> list[str]:
    """Return the steps marked as done inside items that start again."""
    kept = _earlier_done_marks(opened)
    tops = list(items) if kept else []
    return [path for path in kept if any(is_at_or_below(path, top) for top in tops)]


def _value_at(path: str, steps: Mapping[str, Step], journal: Journal) -> Json:
    """Return the value of a step marked as done; None: there is no such step any more."""
    from plait.agents.turns import recorded_tool_call
    from plait.engine.unknown_results import MARKED_DONE_RESULT

    if (call := recorded_tool_call(journal, path)) is not None:
        return call
    if not _is_call(path) and _step_at(steps, path) is None:
        return None
    return dict(MARKED_DONE_RESULT)


def _require_steps(
    loaded: LoadedFlow, journal: Journal, answers: ResumeAnswers, kept: Sequence[str]
) -> None:
    """Raise InputError unless every path is a step, and those to repeat need an answer."""
    from plait.agents.turns import recorded_tool_call

    known = dict(iter_program(loaded.program.children))
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
    items = [one for one in (*paths_around(path), path) if is_item(one)]
    return not items or journal.was_ever_started(items[-1])


def _no_action(path: str, kind: str) -> InputError:
    return InputError(
        f"'{path}' ({kind}) only holds steps: --done and --repeat are about a step that does "
        "something",
        fix="name the steps in it; plait show lists them",
        code="no-action",
    )


def _no_question(path: str) -> InputError:
    return InputError(
        f"'{path}' needs no answer: --repeat is for a step that may run at most once",
        fix="plait resume runs failed and unfinished steps again, and finished ones if you edit them",
        code="no-question",
    )


def open_questions(loaded: LoadedFlow, journal: Journal) -> Iterator[tuple[str, str]]:
    """Yield the at-most-once steps that an earlier attempt of the run started and did not end."""
    known = dict(iter_program(loaded.program.children))
    if not any(step.policy.at_most_once for step in known.values()):
        return  # finding them reads the whole journal
    mask = Secrets(loaded.secret_texts()).mask_title
    for path in journal.find_unfinished():
        step = _step_at(known, path)
        if step is not None and step.policy.at_most_once and not _is_inside_recorded(journal, path):
            yield path, mask(step.title)


def find_questions(opened: OpenRun) -> list[str]:
    """Return the same of a recorded run; none if its flow cannot be read any more."""
    from plait.app.flow_source import FlowSource

    try:
        loaded = FlowSource.of(opened, None).load(lenient=True)
    except PlaitError:
        return []  # resuming it reports the problem
    return [path for path, _ in open_questions(loaded, opened.journal)]


def _is_inside_recorded(journal: Journal, path: str) -> bool:
    return any(journal.step(around) is not None for around in paths_around(path))


def _is_call(path: str) -> bool:
    """Is it the path of a tool call that runs at most once?"""
    from plait.program.actions.tool import ONCE_CALL

    return last_name(path) == ONCE_CALL


def _step_at(known: Mapping[str, Step], path: str) -> Step | None:
    """Return the step at a path of a run; an action is below its step."""
    from plait.program.action_step import ActionAttempt, ActionStep

    found = known.get(path) or known.get(generic_path(path))
    if found is not None:
        return found
    above, name = split_path(path)
    work = known.get(generic_path(above))
    is_attempt = is_attempt_name(name)
    return (
        ActionAttempt(work, name)
        if is_attempt and isinstance(work, ActionStep) and not work.has_no_handlers
        else None
    )


def _no_step(path: str, known: Mapping[str, Step]) -> InputError:
    named = [one for one in known if "*" not in one]
    called = [one for one in named if last_name(one) == path]
    guess = called[0] if len(called) == 1 else closest_name(path, named)
    return InputError(
        f"there is no step '{path}'",
        fix=f"did you mean '{guess}'?" if guess else "plait show lists the steps",
        code="unknown-step",
    )
