"""Read a header from the comments at the top of a script.

It is YAML between two `---`, or lines `key: value`. The comments become YAML text of the same
length: lines of the header get a blank for their `#`, other lines become YAML comments. So every
place in the YAML text is the same place in the file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from plait.core import documents
from plait.core.errors import DocumentError, LimitError
from plait.core.patterns import lazy_pattern
from plait.core.records import replace
from plait.core.source import Source, Span
from plait.tools.headers.entries import (
    EXECUTOR,
    KEYS,
    MAX_ODD_NAMES,
    HeaderEntries,
    add_all,
    is_almost,
)


class _Line(NamedTuple):
    """A line of the comments at the top; `content` is where the text after the `#` begins."""

    start: int
    content: int
    end: int
    text: str


def read_comments(keys: HeaderEntries, comment: str) -> None:
    lines = top_comments(keys.source.text, comment)
    if read_fenced(keys, lines):
        return
    if chosen := _key_lines(lines):
        _read_lines(keys, lines, chosen, where=None)
    if EXECUTOR not in keys.entries:
        _find_misspelt_executor(keys, lines)


_REST_OF_LINE: Final = r"(?P<text>(?:[^\r\n]|\r(?!\n))*)(?:\r?\n|\Z)"


def top_comments(text: str, comment: str) -> list[_Line]:
    """The comments before the first line that is not one."""
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


def read_fenced(keys: HeaderEntries, lines: list[_Line]) -> bool:
    """Read the YAML between two `---`; return whether there is such a block."""
    fences = [number for number, line in enumerate(lines) if line.text.strip() == "---"]
    if not fences:
        return False
    opening, *others = (_text_span(keys.source, lines[number]) for number in fences)
    if not others:
        what, fix = (
            "this '---' opens a header that is never closed",
            "write '---' below its last line",
        )
        raise DocumentError(what, opening, fix, code="unclosed-header")
    if len(others) > 1:
        what, fix = "a second header begins here", "a file has one header between '---' and '---'"
        raise DocumentError(what, others[1], fix, code="second-header")
    _read_lines(keys, lines, range(fences[0] + 1, fences[1]), where=opening)
    return True


def _text_span(source: Source, line: _Line) -> Span:
    text = line.text.strip()
    start = line.content + line.text.find(text)
    return Span(source, start, start + len(text))


_KEY_LINE = lazy_pattern(r"[ \t]*+([a-z_]++):(?=[ \t]|\Z)")


def _key_lines(lines: list[_Line]) -> set[int]:
    """Lines `key: value` with a key of a header, and the lines indented below them."""
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


_ID_LINE = lazy_pattern(r"[ \t]*+([a-z_]++):[ \t]++[\w.-]++/\S++[ \t]*+\Z")


def _find_misspelt_executor(keys: HeaderEntries, lines: list[_Line]) -> None:
    """Report a misspelt `executor_id`, only on a line that gives the id of a tool; `#
    executors: two` is prose.
    """
    for line in lines[:MAX_ODD_NAMES]:
        found = _ID_LINE.match(line.text)
        if found and found[1] not in KEYS and is_almost(found[1], EXECUTOR):
            span = Span(keys.source, line.content + found.start(1), line.content + found.end(1))
            keys.add_misspelt(found[1], EXECUTOR, EXECUTOR, span)


def _read_lines(
    keys: HeaderEntries, lines: list[_Line], chosen: Collection[int], *, where: Span | None
) -> None:
    source = keys.source
    with _relocate_problems(source):
        node = documents.parse(_as_yaml(source.text, lines, chosen), source.name)
    add_all(node, keys, where or Span(source, node.span.start, node.span.end))


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
    """Move the problems of a text of the same length to this source."""

    def relocate(span: Span) -> Span:
        return Span(source, span.start, span.end)

    try:
        yield
    except (DocumentError, LimitError) as error:
        error.problems = tuple(
            replace(
                problem,
                where=relocate(problem.where) if isinstance(problem.where, Span) else problem.where,
                also=tuple(relocate(span) for span in problem.also),
            )
            for problem in error.problems
        )
        raise
