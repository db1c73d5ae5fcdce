"""The last lines about a run: how it ended, what it wrote, what failed, which command to type."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from plait.core.hints import TYPE_CHECKING, Final, Protocol
from plait.core.projects import current_project
from plait.core.values import Json, json_text
from plait.engine.events import Status
from plait.engine.kinds import step_kind
from plait.engine.outcome import ABORTED, ALL_FAILED, TOO_MANY, Failure
from plait.engine.paths import is_at_or_below
from plait.views.format import clock, one_line, sign, state_colour, without_sequences
from plait.views.lines import note_line, usage_line
from plait.views.parts import AGENT, HOOK, LISTED, FailedStep
from plait.views.progress import Progress
from plait.views.terminal import pluralize

if TYPE_CHECKING:
    from plait.views.format import Line

MOST_WARNINGS: Final = 5
"""Warnings that are printed again at the end."""
MOST_FAILURES: Final = 10
MOST_OUTPUT: Final = 10
"""Lines of the output of a flow."""
MOST_OF_A_LINE: Final = 500
"""Characters of one line of the output of a flow."""
LINE_OF_DATA: Final = 100
"""Longer data is printed on several lines."""


class Result(Protocol):
    """How a run ended, as the application returns it."""

    @property
    def run(self) -> str: ...
    @property
    def status(self) -> Status: ...
    @property
    def failure(self) -> Failure | None: ...
    @property
    def value(self) -> Json: ...
    @property
    def counts(self) -> Mapping[str, Json]: ...
    @property
    def has_seal(self) -> bool: ...
    @property
    def exit_code(self) -> int: ...


def summary_lines(progress: Progress, result: Result) -> Iterator[Line]:
    """The last lines of every view of a run."""
    yield from _status_lines(progress, result)
    for note in islice((note for note in progress.notes if note.warning), MOST_WARNINGS):
        yield f"  {note_line(note)}", "yellow"
    yield from _output_lines(progress, result)
    files = progress.facts.get("files")
    for path in files if isinstance(files, list) else ():
        yield f"  wrote  {one_line(str(path), None)}", ""
    if result.status != "interrupted":
        yield from _failure_lines(progress, result)
    if result.status == "done" and not progress.failures.count and _has_rows(progress):
        run, where = one_line(result.run), project_option(progress)
        yield f"  look at it   plait show {run}{where}   plait logs {run}{where}", "dim"


def _has_rows(progress: Progress) -> bool:
    """Is a part an agent, a graph or an ensemble?"""
    return any(part.kind in LISTED for part in progress.parts.values())


def _status_lines(progress: Progress, result: Result) -> Iterator[Line]:
    if result.status == "interrupted":
        run, where = one_line(result.run), project_option(progress)
        ended, total = progress.items or progress.steps
        kind = "item" if progress.items else "step"
        verb = "is" if total == 1 else "are"
        command = f"{_take_over_command(result, where)}plait resume {run}{where}"
        yield (
            f"stopped. {ended} of {pluralize(total, kind)} {verb} recorded. "
            f"Continue with:  {command}",
            "yellow",
        )
        return
    facts = "   ".join([*tallies(progress), *_cost(progress)])
    time = clock(progress.time(progress.last_at))
    if result.status == "done":
        state = progress.shown_status
        colour = "yellow" if progress.warning_count else state_colour(state)
        yield f"{sign(state)} finished in {time}{failed_items(progress)}   {facts}".rstrip(), colour
        return
    yield f"{sign('failed')} failed after {time}   {facts}".rstrip(), "red"
    yield from end_reason(result.failure, progress.failures.last)


def failed_items(progress: Progress) -> str:
    """`, 3 of 200 items failed`; empty if no item failed."""
    failed = sum(part.group.failure_count for part in progress.maps)
    total = sum(part.group.total or 0 for part in progress.maps)
    return f", {failed} of {pluralize(total, 'item')} failed" if failed else ""


def end_reason(failure: Failure | None, listed: Iterable[FailedStep]) -> Iterator[Line]:
    """Why a run ended, unless one of the listed failures says so."""
    if failure is None or any(_is_covered_by(failure, failed) for failed in listed):
        return
    for line in failure.message.splitlines():
        yield f"  {one_line(line, None)}", "red"


def _is_covered_by(failure: Failure, failed: FailedStep) -> bool:
    """Is it the failure of this step, or of one inside it?

    A hook that aborts the run at a step is not a failure of that step.
    """
    return is_at_or_below(failure.path, failed.path) and (
        failure.kind != ABORTED or failed.kind == HOOK
    )


def tallies(progress: Progress) -> Iterator[str]:
    """How many items and steps there were, and how they ended."""
    for part in progress.maps:
        group = part.group
        counts = [f"{group.success_count} done"]
        counts += [f"{group.failure_count} failed"] if group.failure_count else []
        counts += [f"{group.skip_count} skipped"] if group.skip_count else []
        if progress.ended is None:
            counts += [f"{group.pending_count} left"] if group.pending_count else []
        else:
            counts += [f"{part.cut_short} cut short"] if part.cut_short else []
            waiting = group.pending_count - part.cut_short
            counts += [f"{waiting} not started"] if waiting > 0 else []
        yield f"{one_line(part.name)}: {pluralize(group.total or 0, 'item')}, {', '.join(counts)}"
    ended, total = progress.steps
    kinds = {part.kind for part in progress.parts.values()}
    if total and kinds != {AGENT}:  # the usage of an agent says how many turns it took
        part_of = "" if ended == total else f"{ended} of "
        noun = step_kind(kinds.pop()).noun if len(kinds) == 1 else "step"
        yield f"{part_of}{pluralize(total, noun)}{_tolerated_failures(progress)}"
    if progress.retries:
        yield pluralize(progress.retries, "retry", "retries")
    if progress.warning_count:
        yield pluralize(progress.warning_count, "warning")
    if progress.note_count:
        yield pluralize(progress.note_count, "note")


def _tolerated_failures(progress: Progress) -> str:
    groups = [part.group for part in progress.parts.values()]
    failed = sum(group.failure_count for group in groups if not group.is_map)
    return f", {failed} failed and the run went on" if failed and progress.status == "done" else ""


def _cost(progress: Progress) -> Iterator[str]:
    cost = progress.facts.get("cost")
    if progress.usage.turns:
        yield usage_line(progress.usage)
    elif isinstance(cost, int | float) and not isinstance(cost, bool):
        yield f"${cost:.2f}"


# ── the output ───────────────────────────────────────────────────────────


def _output_lines(progress: Progress, result: Result) -> Iterator[Line]:
    """The output of the flow: text, or the data of a graph or an ensemble."""
    output = _output_text(result.value, data=_has_rows(progress))
    if not output.strip():
        return
    lines = without_sequences(output).strip("\n").split("\n")
    shown = lines[:MOST_OUTPUT]
    for line in shown:
        # Cut it first: a line may have millions of characters.
        yield f"  {one_line(line[: MOST_OF_A_LINE + 1], MOST_OF_A_LINE)}", ""
    command = f"plait logs {one_line(result.run)}{project_option(progress)}"
    if len(lines) > MOST_OUTPUT:
        yield f"  … {pluralize(len(lines) - MOST_OUTPUT, 'more line')}: {command}", "dim"
    elif any(len(line) > MOST_OF_A_LINE for line in shown):
        yield f"  … whole lines: {command}", "dim"


def _output_text(value: Json, *, data: bool) -> str:
    value = value if isinstance(value, Mapping) else {}
    output, text = value.get("output"), value.get("text")
    if isinstance(output, str):
        return output
    if isinstance(text, str) and text and (output is None or _is_same_json(text, output)):
        return text  # the answer of an agent, as the model wrote it
    if not data or output in (None, {}, []):
        return ""
    whole = json_text(output)
    return whole if len(whole) <= LINE_OF_DATA else json.dumps(output, indent=2, ensure_ascii=False)


def _is_same_json(text: str, data: Json) -> bool:
    try:
        return bool(json.loads(text) == data)
    except (ValueError, RecursionError):
        return False


# ── failures and commands ────────────────────────────────────────────────


def _failure_lines(progress: Progress, result: Result) -> Iterator[Line]:
    shown = list(progress.failures.last)[-MOST_FAILURES:]
    for failed in shown:
        yield f"  {sign('failed')} {one_line(failed.title)}   {one_line(failed.cause)}", "red"
        for line in failed.lines:
            yield f"      {one_line(line, None)}", ""
    where = project_option(progress)
    command = f"plait show {one_line(result.run)}{where}"
    if more := progress.failures.count - len(shown):
        yield f"  … and {more} more that failed: {command}", "red"
    if not shown and _has_failed_items(progress):  # an earlier run attempt has shown them
        yield f"  look at it   {command}", "dim"
    yield from suggested_commands(
        result.run,
        progress,
        retry=True,
        resume=result.status != "done",
        first=_take_over_command(result, where),
    )


def _take_over_command(result: Result, where: str) -> str:
    """A run without a seal must be taken over before it can be resumed."""
    return "" if result.has_seal else f"plait trust run {one_line(result.run)}{where}; "


def suggested_commands(
    run: str, progress: Progress, *, retry: bool, resume: bool, first: str = ""
) -> Iterator[Line]:
    """The commands that show the last failure, retry the failed items and resume the run.

    `first` is a command that must come before them.
    """
    if progress.failures.last:
        step = step_argument(_cause_to_look_at(progress))
        yield f"  look at it   plait logs {one_line(run)} {step}{project_option(progress)}", "dim"
    for name, before, command in next_commands(run, progress, retry=retry, resume=resume):
        yield f"  {name}{' ' * (13 - len(name))}{before}{first}{command}", "dim"


def next_commands(
    run: str, progress: Progress, *, retry: bool, resume: bool
) -> Iterator[tuple[str, str, str]]:
    """`retry` and `resume`: the name, what to do before, and the command."""
    run, where = one_line(run), project_option(progress)
    if retry and _has_failed_items(progress):
        yield "retry", "", f"plait retry {run} --failed{where}"
    failure = progress.failure
    if resume and not (failure is not None and _needs_more_than_resume(failure, run)):
        # Failed items stay failed: resume alone would stop at the same limit.
        has_too_many = failure is not None and failure.kind == TOO_MANY
        before = "allow more failures in the file, then " if has_too_many else ""
        yield "resume", before, f"plait resume {run}{where}"


def _cause_to_look_at(progress: Progress) -> FailedStep:
    """The last failure; of a map that stopped, the last item that failed: it printed something."""
    last = progress.failures.last[-1]
    below = [
        one
        for one in progress.failures.last
        if last.path in progress.parts and one.path != last.path
        if is_at_or_below(one.path, last.path)
    ]
    return below[-1] if below else last


def _needs_more_than_resume(failure: Failure, run: str) -> bool:
    """After the last item failed, only a retry can help; a question about a step names its answers."""
    return failure.kind == ALL_FAILED or f"plait resume {run} --" in failure.message


def _has_failed_items(progress: Progress) -> bool:
    return any(part.group.failure_count for part in progress.maps)


def project_option(progress: Progress) -> str:
    """` --project DIR` for a command, if the project of the run is not the current one."""
    project = progress.project
    if not os.path.isdir(project) or os.path.realpath(project) == os.path.realpath(
        current_project()
    ):
        return ""
    return f" --project {shlex.quote(one_line(os.path.relpath(project), None))}"


def step_argument(failed: FailedStep) -> str:
    """How to name it on the command line: its title, or its path if the title cannot be typed."""
    title = failed.title
    typable = title.isprintable() and not title.endswith("…") and not title.startswith("-")
    return shlex.quote(title if title and typable else one_line(failed.path, None))
