"""Results of tool calls that a project keeps by key: `cache_result`.

Each is one file, complete or missing. A new one replaces the one that was unused for the longest
time. A result that cannot be read, or has no seal of this user, counts as missing: it may have come
with the project.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from plait.adapters.store.files import make_own_folder, write_whole
from plait.adapters.store.ownership import Sealing, Unsealed, require_plain_folders
from plait.core.errors import JournalError, PlaitError, TrustError
from plait.core.hints import Final
from plait.core.safe_files import read_below
from plait.core.values import Json, json_text

MOST_RESULTS: Final = 1000
MOST_BYTES: Final = 1 << 20
"""Larger results are not kept."""


class ResultCache:
    def __init__(
        self, project: str, *, seals: Sealing | None = None, most: int = MOST_RESULTS
    ) -> None:
        self._project = project
        self._folder = os.path.join(project, ".ai", "state", "results")
        self._seals = Unsealed() if seals is None else seals
        self._most = most

    def get(self, key: str) -> Json:
        """Return the result for a key; None if there is none."""
        path = os.path.join(self._folder, f"{key}.json")
        try:
            found = read_below(self._project, os.path.relpath(path, self._project))
            entry = (
                json.loads(found[0].decode("utf-8", "surrogatepass")) if found is not None else None
            )
            if not isinstance(entry, dict) or not self._seals.holds(
                _text(key, entry["value"]), entry["seal"]
            ):
                return None
            os.utime(path, follow_symlinks=False)
        except (
            OSError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
            PlaitError,
        ):
            return None
        return entry["value"]

    def put(self, key: str, value: Json) -> None:
        text = json_text(value)
        if len(text) > MOST_BYTES:
            return
        value = json.loads(text)
        # Without write access to the project, or without a key for seals, nothing is kept.
        with suppress(JournalError, TrustError):
            seal = self._seals.make(_text(key, value))
            data = json_text({"seal": seal, "value": value}).encode("utf-8", "surrogatepass")
            require_plain_folders(self._project, self._folder)
            make_own_folder(self._folder)
            write_whole(self._folder, f"{key}.json", data)
            self._make_room()

    def _make_room(self) -> None:
        with suppress(OSError), os.scandir(self._folder) as entries:
            found = [
                (entry.stat().st_mtime_ns, entry.path)
                for entry in entries
                if entry.name.endswith(".json")
            ]
            for _, path in sorted(found)[: max(0, len(found) - self._most)]:
                os.unlink(path)


def _text(key: str, value: Json) -> str:
    """The text that is sealed."""
    return json_text(["plait result", 1, key, value])
