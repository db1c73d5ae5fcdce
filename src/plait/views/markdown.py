"""What `plait show --markdown` prints: a run as Markdown, for a job summary or a comment.

Text of a run is escaped: it cannot become a heading, a link, an image, HTML or the end of a block.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

from plait.core.hints import TYPE_CHECKING, Final
from plait.core.patterns import lazy_pattern
from plait.engine.kinds import step_kind
from plait.views.format import clean_block, clock, one_line, sign
from plait.views.lines import part_summary, usage_line
from plait.views.summary import end_reason, failed_items, next_commands, project_option
from plait.views.terminal import pluralize

if TYPE_CHECKING:
    from plait.views.diagram.model import Diagram
    from plait.views.parts import FailedStep, Part
    from plait.views.report import Report

MOST_FAILURES: Final = 20
PLAIN: Final = frozenset(" .,/()=+'-")
"""Characters beside letters and digits that mean nothing in the middle of a line."""


_WWW: Final = lazy_pattern(r"(?i)(www)\.")


def markdown_report(
    report: Report, *, now: float, diagram: Diagram | None = None, can_resume: bool = True
) -> str:
    return "\n".join([*_lines(report, now, diagram), *_next_lines(report, can_resume), ""])


def _lines(report: Report, now: float, diagram: Diagram | None) -> Iterator[str]:
    progress, status = report.progress, report.status
    shown = progress.shown_status if status == "done" else status
    words = f"finished{failed_items(progress)}" if status == "done" else status
    seconds = progress.duration(now if status == "running" else progress.last_at)
    started = now if progress.started is None else progress.started
    start_time = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started))
    yield f"## {sign(shown)} {escape(progress.flow)}: {words}"
    yield ""
    yield f"Run {code(report.run)} of {code(progress.file)}, {start_time}, {clock(seconds)}"
    yield ""
    yield "| | part | what happened |"
    yield "|---|---|---|"
    for part in progress.parts.values():
        yield _row(part, report)
    if progress.usage.turns:
        yield ""
        yield f"Models: {escape(usage_line(progress.usage))}"
    for note in progress.notes:
        if note.warning:
            yield ""
            yield f"> **Warning:** {escape(note.message)}"
    yield from _failures(report)
    if diagram is not None:
        from plait.views.diagram.mermaid import render_mermaid

        yield ""
        yield from ("```mermaid", render_mermaid(diagram).rstrip("\n"), "```")


def _next_lines(report: Report, can_resume: bool) -> Iterator[str]:
    commands = next_commands(
        report.run,
        report.progress,
        retry=can_resume and report.status != "running",
        resume=can_resume and report.status in ("failed", "interrupted"),
    )
    words = ", or ".join(f"{before}{code(command)}" for _, before, command in commands)
    if words:
        yield ""
        yield f"Continue it with {words}."


def _row(part: Part, report: Report) -> str:
    state = report.status if part.state == "running" else part.shown_state
    is_waiting = part.state == "waiting" and not part.group.outcome_count
    words = "not started" if is_waiting else part_summary(part)
    if part.state == "running":
        words = f"{report.status}{_progress(part)}"
    return f"| {sign(state)} | {escape(part.name)} | {escape(words)} |"


def _progress(part: Part) -> str:
    group = part.group
    noun = "item" if group.is_map else step_kind(part.kind).noun
    ended = f", {group.outcome_count} of {pluralize(group.total, noun)}" if group.total else ""
    return ended + (f", {group.failure_count} failed" if group.failure_count else "")


def _failures(report: Report) -> Iterator[str]:
    failures = report.progress.failures
    shown = list(failures.last)[-MOST_FAILURES:]
    if shown:
        yield ""
        yield f"### {pluralize(failures.count, 'failure')}"
    for one in shown:
        yield ""
        yield from _failure(one)
    if more := failures.count - len(shown):
        yield ""
        command = f"plait show {report.run} --json{project_option(report.progress)}"
        yield f"… and {more} more: {code(command)}"
    if reason := [line.strip() for line, _ in end_reason(report.progress.failure, failures.last)]:
        yield ""
        yield from fence(reason)


def _failure(failed: FailedStep) -> Iterator[str]:
    yield f"- **{escape(failed.title)}**: {escape(failed.cause)}, at {code(failed.path)}"
    if failed.lines:
        yield ""
        yield from (f"  {line}" for line in fence(failed.lines))


def escape(text: str) -> str:
    """One line of text, in which nothing is Markdown or HTML."""
    line = one_line(" ".join(text.split()), None).strip()  # a space would keep bold text open
    plain = "".join(
        char
        if char.isalnum() or not char.isascii() or (at and char in PLAIN)
        else f"&#{ord(char)};"
        for at, char in enumerate(line)
    )
    # GitHub makes links of addresses in plain text, of those of mail even if the sign is a code.
    return _WWW.sub(r"\1&#46;", plain).replace("&#64;", "&#64;<!-- -->")


def code(text: str) -> str:
    """One line of text as code; in a table too."""
    line = one_line(text, None)
    if "`" in line or "|" in line or not line.strip():
        return f"<code>{escape(line)}</code>"
    return f"`{line}`"


def fence(lines: Sequence[str]) -> Iterator[str]:
    """Lines as a block that they cannot end."""
    block = clean_block("\n".join(lines)).split("\n")
    longest = max((len(found) for line in block for found in re.findall("`+", line)), default=0)
    mark = "`" * max(3, longest + 1)
    yield f"{mark}text"
    yield from block
    yield mark
