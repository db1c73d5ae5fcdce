"""The keys of one header, with their places and all problems.

A problem with one key does not stop the reading, so the author sees every problem at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite

from plait.core import documents
from plait.core.errors import DocumentError, LimitError, Problem, closest_name
from plait.core.hints import Final
from plait.core.records import field_names
from plait.core.source import Source, Span
from plait.core.values import Json
from plait.tools.tool_file import INFORMATIONAL, Entry, Header


class RefusedLiteral(Exception):
    """A value that is not plain data; `what` follows the name of its key in the message."""

    def __init__(self, what: str, where: Span, fix: str) -> None:
        self.what, self.where, self.fix = what, where, fix


def computed_value_error(where: Span) -> RefusedLiteral:
    fix = "write the value itself: text, a number, true, false, null, a list or a map of them"
    return RefusedLiteral("is computed: a header is read, never executed", where, fix)


def require_valid_text(value: str, where: Span) -> str:
    try:
        value.encode()
        is_whole = True
    except UnicodeEncodeError:
        is_whole = False
    if "\0" in value or not is_whole:
        raise RefusedLiteral("holds NUL or half of a character pair", where, "remove the escape")
    return value


def require_finite(value: float, where: Span) -> float:
    large = (
        value.bit_length() > 4 * documents.MAX_DIGITS
        if isinstance(value, int)
        else not isfinite(value)
    )
    if large:
        raise RefusedLiteral("holds a number that is too large", where, "write it as text")
    return value


def require_size(source: Source, limit: int) -> None:
    if len(source.text) > limit:
        what, fix = (
            f"this file is larger than {limit:,} characters",
            "keep large data in files of their own",
        )
        raise LimitError(what, source.name, fix, code="too-large")


def require_depth(depth: int, where: Span) -> None:
    if depth > documents.MAX_DEPTH:
        what = f"this is nested deeper than {documents.MAX_DEPTH} levels"
        raise LimitError(
            what, where, "flatten it, or move it to a file of its own", code="too-deep"
        )


def set_key(table: dict[str, Json], key: str, where: Span, value: Json) -> None:
    if key in table:
        raise RefusedLiteral("has a key that stands twice", where, "remove or rename one of them")
    table[key] = value


MAX_ODD_NAMES: Final = 200
"""The number of names like `__this__` that are compared with known ones, since comparing is slow.
"""

KEYS: Final = frozenset(field_names(Header))
EXECUTOR: Final = "executor_id"
"""The key that makes a file a tool; with a misspelt one, a file would look like one without a
header.
"""


class HeaderEntries:
    """The header in `source`; `names` maps names in code to keys."""

    def __init__(self, source: Source, names: Mapping[str, str]) -> None:
        self.source = source
        self.names = names
        self.entries: dict[str, Entry] = {}
        self.problems: list[Problem] = []
        self._refused: set[str] = set()
        self._odd_names = 0

    def add(self, key: str, value: Json, span: Span) -> None:
        known = self.entries.setdefault(key, Entry(value, span))
        if known.span != span:
            what = f"'{key}' is set twice, again at line {span.position[0]}"
            self.problems.append(
                Problem(what, known.span, "remove all but one", (span,), "duplicate-key")
            )

    @contextmanager
    def about(self, key: str, name: str) -> Iterator[None]:
        """Turn a refused literal inside into a problem of this key, and continue."""
        try:
            yield
        except RefusedLiteral as refused:
            self._refused.add(key)
            what = f"'{name}' {refused.what}"
            self.problems.append(Problem(what, refused.where, refused.fix, code="not-literal"))

    def check_name(self, name: str, span: Span) -> None:
        """Add a problem if the name of a variable is almost that of a key; `__all__` is not."""
        is_executor = name.strip("_").lower() == EXECUTOR
        if not (_is_dunder(name) or is_executor) or self._odd_names == MAX_ODD_NAMES:
            return
        self._odd_names += 1
        if (guess := _almost(name, self.names)) is not None:
            self.add_misspelt(name, guess, self.names[guess], span)

    def add_misspelt(self, name: str, guess: str, key: str, span: Span) -> None:
        self._refused.add(key)
        what = f"'{name}' is not a key of a header"
        self.problems.append(Problem(what, span, f"did you mean '{guess}'?", code="unknown-name"))

    def value(self, key: str) -> Json:
        return self.entries[key].value if key in self.entries else None

    def report_missing(self, key: str, what: str, fix: str, code: str) -> None:
        """Report a required key as missing, unless it already has a problem."""
        where = self.entries[key].span if key in self.entries else Span(self.source, 0, 0)
        misspelt = closest_name(key, self.entries.keys() - KEYS - INFORMATIONAL)
        wrong = any(problem.where == where for problem in self.problems)
        if not (wrong or misspelt or key in self._refused):
            self.problems.append(Problem(what, where, fix, code=code))


def _is_dunder(name: str) -> bool:
    return re.fullmatch(r"__[a-z0-9]++(?:_[a-z0-9]++)*__", name, re.IGNORECASE) is not None


_ALMOST: Final = 0.8


def _almost(name: str, names: Iterable[str]) -> str | None:
    # Compared without the surrounding underscores, which would make all such names similar.
    known = {other.strip("_"): other for other in names if _is_dunder(other)}
    plain = name.strip("_").lower()
    guess = closest_name(plain, known)
    return known[guess] if guess is not None and is_almost(plain, guess) else None


def is_almost(name: str, guess: str | None) -> bool:
    """Was one name probably meant to be the other?"""
    from difflib import SequenceMatcher  # only odd names need it, and it is slow to import

    return guess is not None and SequenceMatcher(None, name, guess).ratio() >= _ALMOST


def read_yaml(keys: HeaderEntries, _: str) -> None:
    node = documents.parse(keys.source.text, keys.source.name)
    add_all(node, keys, node.span)


def add_all(node: documents.Node, keys: HeaderEntries, where: Span) -> None:
    if not isinstance(node, documents.Mapping):
        raise DocumentError(
            "a header is a map", where, "write 'key: value' lines", code="not-a-map"
        )
    for key, value in node.entries:
        keys.add(str(key.value), value.data(), Span(keys.source, key.span.start, key.span.end))
