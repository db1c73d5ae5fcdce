"""Values for `plait check`: values from the file are known, all others are unknown.

`plait check` fills templates with them by the same code as a run, to find texts that become too
long.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Iterator, Mapping

from plait.core.source import Source
from plait.core.values import NOT_KNOWN, Json
from plait.template.compiled import Answer, Piece
from plait.template.nodes import Path


class Assumed:
    """A lookup with a value for every name."""

    __slots__ = ("names",)

    def __init__(self, known: Mapping[str, Json]) -> None:
        self.names: Mapping[str, Json] = _Names(known)

    def fallback(self, path: Path) -> Answer:  # noqa: ARG002 - the protocol's shape
        return NOT_KNOWN

    def compute(self, kind: str, argument: str) -> Answer:  # noqa: ARG002
        return NOT_KNOWN

    def command(self, pieces: list[Piece], source: Source) -> Answer:  # noqa: ARG002
        return NOT_KNOWN


class _Names(abc.Mapping[str, Json]):
    """A map that contains every name; most values are unknown."""

    __slots__ = ("_known",)

    def __init__(self, known: Mapping[str, Json]) -> None:
        self._known = known

    def __getitem__(self, name: str) -> Json:
        return self._known.get(name, NOT_KNOWN)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
