"""A run of which nothing stays: its folder is temporary, and its journal is in memory."""

from __future__ import annotations

from plait.core.values import Json


class TemporaryRun:
    """A run in a temporary folder, which is removed at the end."""

    def __init__(self) -> None:
        from tempfile import TemporaryDirectory

        from plait.engine.journal import MemoryJournal

        self.id = "unkept"
        self.journal = MemoryJournal()
        self.facts: dict[str, Json] = {}
        self.why_unsealed = ""
        self._temporary = TemporaryDirectory(prefix="plait-run-")
        self.folder = self._temporary.name

    def update_facts(self, **facts: Json) -> None:
        self.facts |= facts

    def __enter__(self) -> TemporaryRun:
        return self

    def __exit__(self, *_: object) -> None:
        self._temporary.cleanup()
