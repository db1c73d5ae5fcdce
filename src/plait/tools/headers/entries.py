"""The keys that one file says about itself, with their places, and all that is wrong with them.

A reader says what it finds; a problem with one key does not keep it from
reading the others, so that the author sees every problem at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from plait.core.errors import Problem, nearest
from plait.core.hints import Final
from plait.core.records import field_names
from plait.core.source import Source, Span
from plait.core.values import Json
from plait.tools.headers.literals import Refused
from plait.tools.items import INFORMATIONAL, Entry, Header

MAX_ODD_NAMES: Final = 200
"""Names like `__this__` that are compared with ours; comparing is slow, and nobody has so many."""

KEYS: Final = frozenset(field_names(Header))


class Said:
    """What `source` says; `names` are the keys by their names in code."""

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
            what = f"'{key}' is said twice, again at line {span.position[0]}"
            self.problems.append(Problem(what, known.span, "remove all but one", (span,), "said-twice"))

    @contextmanager
    def about(self, key: str, name: str) -> Iterator[None]:
        """What is refused inside is a problem of this key; the others are read nevertheless."""
        try:
            yield
        except Refused as refused:
            self._refused.add(key)
            what = f"'{name}' {refused.what}"
            self.problems.append(Problem(what, refused.where, refused.fix, code="not-literal"))

    def misspelt(self, name: str, span: Span) -> None:
        """A name that is almost one of ours was meant to be it; `__all__` and its like were not."""
        if not _is_dunder(name) or self._odd_names == MAX_ODD_NAMES:
            return
        self._odd_names += 1
        if (guess := _almost(name, self.names)) is not None:
            self._refused.add(self.names[guess])
            what = f"'{name}' is not a key of a header"
            self.problems.append(Problem(what, span, f"did you mean '{guess}'?", code="unknown-name"))

    def value(self, key: str) -> Json:
        return self.entries[key].value if key in self.entries else None

    def missing(self, key: str, what: str, fix: str, code: str) -> None:
        """A key that is needed; nothing is added where something else is wrong with it already."""
        where = self.entries[key].span if key in self.entries else Span(self.source, 0, 0)
        misspelt = nearest(key, self.entries.keys() - KEYS - INFORMATIONAL)
        wrong = any(problem.where == where for problem in self.problems)
        if not (wrong or misspelt or key in self._refused):
            self.problems.append(Problem(what, where, fix, code=code))


def _is_dunder(name: str) -> bool:
    return re.fullmatch(r"__[a-z0-9]++(?:_[a-z0-9]++)*__", name, re.IGNORECASE) is not None


_ALMOST: Final = 0.8


def _almost(name: str, names: Iterable[str]) -> str | None:
    # Compared without the underscores around them, which would make all such names alike.
    known = {other.strip("_"): other for other in names if _is_dunder(other)}
    guess = nearest(name.strip("_"), known)
    return known[guess] if guess is not None and is_almost(name.strip("_"), guess) else None


def is_almost(name: str, guess: str | None) -> bool:
    """Was one name probably meant to be the other?"""
    from difflib import SequenceMatcher  # only odd names need it, and it is slow to import

    return guess is not None and SequenceMatcher(None, name, guess).ratio() >= _ALMOST
