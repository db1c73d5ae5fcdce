"""A header in the comments at the top of a script: YAML between two `---`, or `key: value` lines.

The comments become a YAML text of the same length: what belongs to the header
loses its `#` to a blank, every other line becomes a YAML comment.  So each place
in it is the same place in the file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from plait.core import documents
from plait.core.errors import DocumentError, LimitError
from plait.core.records import replace
from plait.core.source import Source, Span
from plait.tools.headers.entries import (
    EXECUTOR,
    KEYS,
    MAX_ODD_NAMES,
    HeaderEntries,
    is_almost,
    say_all,
)


class _Line(NamedTuple):
    """A line of the comments at the top; `content` is where the text behind the `#` begins."""

    start: int
    content: int
    end: int
    text: str


def read_comments(said: HeaderEntries, comment: str) -> None:
    lines = top_comments(said.source.text, comment)
    if read_fenced(said, lines):
        return
    if chosen := _key_lines(lines):
        _read_lines(said, lines, chosen, where=None)
    if EXECUTOR not in said.entries:
        _find_misspelt_executor(said, lines)


_REST_OF_LINE: Final = r"(?P<text>(?:[^\r\n]|\r(?!\n))*)(?:\r?\n|\Z)"


def top_comments(text: str, comment: str) -> list[_Line]:
    """All comments before the first line that is something else."""
    pattern = re.compile(rf"(?P<before>[ \t]*+(?:{re.escape(comment)})?){_REST_OF_LINE}")
    lines: list[_Line] = []
    at = 0
    while at < len(text) and (found := pattern.match(text, at)):
        is_comment = found["before"].endswith(comment)
        if found["text"] and not is_comment and not (at == 0 and found["text"].startswith("#!")):
            break
        shown = found["text"] if is_comment else ""
        lines.append(_Line(at, found.start("text"), found.end("text"), shown))
        at = found.end()
    return lines


def read_fenced(said: HeaderEntries, lines: list[_Line]) -> bool:
    """The YAML between two `---`, if there is such a block."""
    fences = [number for number, line in enumerate(lines) if line.text.strip() == "---"]
    if not fences:
        return False
    opening, *others = (_text_span(said.source, lines[number]) for number in fences)
    if not others:
        what, fix = (
            "this '---' opens a header that is never closed",
            "write '---' below its last line",
        )
        raise DocumentError(what, opening, fix, code="unclosed-header")
    if len(others) > 1:
        what, fix = "a second header begins here", "a file has one header between '---' and '---'"
        raise DocumentError(what, others[1], fix, code="second-header")
    _read_lines(said, lines, range(fences[0] + 1, fences[1]), where=opening)
    return True


def _text_span(source: Source, line: _Line) -> Span:
    text = line.text.strip()
    start = line.content + line.text.find(text)
    return Span(source, start, start + len(text))


_KEY_LINE = re.compile(r"[ \t]*+([a-z_]++):(?=[ \t]|\Z)")


def _key_lines(lines: list[_Line]) -> set[int]:
    """`key: value` where the key is one of a header, and what is indented below it; all else is
    prose.
    """
    chosen: set[int] = set()
    indent = -1
    for number, line in enumerate(lines):
        blanks = len(line.text) - len(line.text.lstrip())
        found = _KEY_LINE.match(line.text)
        if not line.text.strip():
            continue
        if 0 <= indent < blanks:
            chosen.add(number)
        elif found and found[1] in KEYS:
            chosen.add(number)
            indent = blanks
        else:
            indent = -1
    return chosen


_ID_LINE = re.compile(r"[ \t]*+([a-z_]++):[ \t]++[\w.-]++/\S++[ \t]*+\Z")


def _find_misspelt_executor(said: HeaderEntries, lines: list[_Line]) -> None:
    """Only a line that gives the id of a tool; `# executors: two` is prose."""
    for line in lines[:MAX_ODD_NAMES]:
        found = _ID_LINE.match(line.text)
        if found and found[1] not in KEYS and is_almost(found[1], EXECUTOR):
            span = Span(said.source, line.content + found.start(1), line.content + found.end(1))
            said.add_misspelt(found[1], EXECUTOR, EXECUTOR, span)


def _read_lines(
    said: HeaderEntries, lines: list[_Line], chosen: Collection[int], *, where: Span | None
) -> None:
    source = said.source
    with _relocate_problems(source):
        node = documents.parse(_as_yaml(source.text, lines, chosen), source.name)
    say_all(node, said, where or Span(source, node.span.start, node.span.end))


def _as_yaml(text: str, lines: list[_Line], chosen: Collection[int]) -> str:
    parts = []
    for number, line in enumerate(lines):
        following = lines[number + 1].start if number + 1 < len(lines) else line.end
        if number in chosen:
            parts.append(" " * (line.content - line.start) + text[line.content : line.end])
        elif line.text.strip():
            parts.append("#".ljust(line.end - line.start))
        else:
            parts.append(" " * (line.end - line.start))
        parts.append(text[line.end : following])
    return "".join(parts)


@contextmanager
def _relocate_problems(source: Source) -> Iterator[None]:
    """Problems of a text of the same length are shown in this one."""

    def placed(span: Span) -> Span:
        return Span(source, span.start, span.end)

    try:
        yield
    except (DocumentError, LimitError) as error:
        error.problems = tuple(
            replace(
                problem,
                where=placed(problem.where) if isinstance(problem.where, Span) else problem.where,
                also=tuple(placed(span) for span in problem.also),
            )
            for problem in error.problems
        )
        raise
