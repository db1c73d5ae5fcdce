"""Read JSON strictly: text that two readers could understand differently is refused.

Python's reader is fast but reports no places. It only detects that something is wrong, such as a
duplicate key or a number out of range. A second pass over the tokens then finds all problems and
their places.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from math import isfinite

from plait.core.documents.files import read_text
from plait.core.documents.limits import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_JSON_TEXT,
    MAX_PROBLEMS,
    printable_name,
    require_size,
    too_deep,
)
from plait.core.errors import DocumentError, InternalError, LimitError, PlaitError, Problem
from plait.core.hints import Final
from plait.core.records import replace
from plait.core.source import Source, Span
from plait.core.values import Json, is_deeper, json_error


def load_json(path: str | os.PathLike[str]) -> Json:
    """The JSON file at `path`."""
    return parse_json(read_text(path, MAX_JSON_TEXT), os.fspath(path))


def parse_json(text: str, name: str) -> Json:
    """Parse the JSON data in `text`; refuse text that two readers could understand differently."""
    require_size(len(text), MAX_JSON_TEXT, name, unit="characters")
    source = Source(name, text.removeprefix("\ufeff"))
    hooks = _Hooks()
    try:
        data = json.loads(
            source.text,
            object_pairs_hook=hooks.table,
            parse_constant=hooks.constant,
            parse_float=hooks.real,
            parse_int=hooks.integer,
        )
    except json.JSONDecodeError as raised:
        error = json_error(raised)
        problems = [_syntax_problem(source, error), *_problems(source, error.pos)]
        raise _together(problems) from None
    except RecursionError:
        raise _too_deep(source) from None
    may_hold_half_a_pair = "\\ud" in source.text or "\\uD" in source.text
    if hooks.doubt or may_hold_half_a_pair or not _is_whole(source.text):
        problems = _problems(source, len(source.text))
        if problems:
            raise _together(problems)
    if is_deeper(data, MAX_DEPTH):
        raise _too_deep(source)
    return data


def _together(problems: list[Problem]) -> PlaitError:
    """One error, whose places show no lines: this is data, not an author's text, and may be
    secret.
    """
    error = DocumentError.together(problems)
    error.problems = tuple(
        replace(problem, where=str(problem.where), also=()) for problem in error.problems
    )
    return error


class _Hooks:
    """Callbacks for json.loads; they set `doubt` if the slow check must run."""

    def __init__(self) -> None:
        self.doubt = False

    def table(self, pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        table = dict(pairs)
        self.doubt |= len(table) < len(pairs)
        return table

    def constant(self, _: str) -> None:
        self.doubt = True

    def real(self, text: str) -> float:
        number = float(text)
        self.doubt |= not isfinite(number)
        return number

    def integer(self, text: str) -> int | None:
        if len(text) <= MAX_DIGITS:
            return int(text)
        self.doubt = True
        return None


def _is_whole(text: str) -> bool:
    """Are all characters whole? Half of a surrogate pair has no bytes."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


# Compiled only if there is a doubt: most texts are read without it.
_TOKEN: Final = r'"(?:[^"\\]++|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]++'
_INTEGER: Final = r"-?[0-9]++"
_REAL: Final = r"-?[0-9]++(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?"


def _problems(source: Source, end: int) -> list[Problem]:
    """Find all problems up to `end`, with their places, in a second pass."""
    problems: list[Problem] = []
    objects: list[dict[str, Span] | None] = []
    wants_key = False
    for token in re.compile(_TOKEN, re.DOTALL).finditer(source.text, 0, end):
        span = Span(source, *token.span())
        match token[0][0]:
            case "{":
                objects.append({})
            case "[":
                objects.append(None)
            case "}" | "]":
                del objects[-1:]
            case '"':
                names = objects[-1] if objects and wants_key else None
                problems += _string_problems(token[0], span, names)
            case "," | ":":
                pass
            case _:
                problems += _word_problems(token[0], span)
        wants_key = token[0] in ("{", ",")
        if len(problems) >= MAX_PROBLEMS:
            break
    return problems


def _string_problems(token: str, span: Span, names: dict[str, Span] | None) -> Iterator[Problem]:
    try:
        string = json.loads(token)
    except json.JSONDecodeError:
        return  # the syntax error is reported separately
    if not _is_whole(string):
        what, fix = "this string holds half of a character pair", "write both halves, or neither"
        yield Problem(what, span, fix, code="character")
    if names is None:
        return
    if string in names:
        what = (
            f"the key '{printable_name(string)}' stands twice in one object, again at line "
            f"{span.position[0]}"
        )
        yield Problem(what, names[string], "remove or rename all but one", (span,), "duplicate-key")
    names.setdefault(string, span)


def _word_problems(token: str, span: Span) -> Iterator[Problem]:
    if token in ("NaN", "Infinity", "-Infinity"):
        what, fix = "infinity and NaN are not JSON data", "write a finite number, null or a string"
        yield Problem(what, span, fix, code="value")
    elif re.fullmatch(_INTEGER, token) and len(token) > MAX_DIGITS:
        yield Problem("this number has too many digits", span, "write it as a string", code="value")
    elif re.fullmatch(_REAL, token) and not isfinite(float(token)):
        yield Problem("this number is too large", span, "write it as a string", code="value")


def _too_deep(source: Source) -> LimitError:
    depth = 0
    for token in re.compile(_TOKEN, re.DOTALL).finditer(source.text):
        depth += (token[0] in ("[", "{")) - (token[0] in ("]", "}"))
        if depth > MAX_DEPTH:
            return too_deep(str(Span(source, *token.span())))
    raise InternalError("a JSON text was found too deep and is not", source.name)


_WORDS: Final = (
    # the beginnings of json's own messages, our messages, and what to do
    (
        "Expecting property name",
        "a key in double quotes is missing",
        "quote the key, or remove a last ','",
    ),
    ("Illegal trailing comma", "nothing follows this ','", "remove it"),
    ("Expecting ':'", "a ':' is missing after the key", "write ':' and the value"),
    ("Expecting ','", "a ',' or a closing bracket is missing here", "separate the values by ','"),
    (
        "Expecting value",
        "a value is missing here",
        "write a string in double quotes, a number or null",
    ),
    (
        "Extra data",
        "this stands after the end of the data",
        "remove it, or put all values in one list",
    ),
    ("Unterminated string", "this string is never closed", "close it with '\"'"),
    (
        "Invalid control",
        "a string cannot hold a control character",
        "write it as \\n, \\t or \\uNNNN",
    ),
    ("Invalid", "there is no such escape", "write '\\\\' for a backslash"),
)


def _syntax_problem(source: Source, error: json.JSONDecodeError) -> Problem:
    other = ("", "this cannot be read as JSON", "check quotes and commas")
    _, what, fix = next((row for row in _WORDS if error.msg.startswith(row[0])), other)
    # Does a value begin there, with nothing before it?  A closing bracket ends a list.
    is_begun = source.text[error.pos : error.pos + 1] not in ("", "]", "}", ",", ":")
    is_first = not source.text[: error.pos].strip()
    if error.msg.startswith("Expecting value") and is_begun and is_first:
        what, fix = (
            "this is not JSON",
            "JSON begins with [ or {; a single value is a string in double quotes or a number",
        )
    return Problem(what, Span(source, error.pos, error.pos + 1), fix, code="syntax")
