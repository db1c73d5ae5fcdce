"""What calls of tools gave, kept in a project by key: `cache_result`.

Each is a file of its own, whole or not there.  There are at most so many; the one that was used
longest ago makes room.  Whatever cannot be read or written is a call that is made again; so is one
whose result bears no seal of this user's, for it came with the project and nobody here ever made
that call.
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
"""Of one result; what is larger is not kept."""


class ResultCache:
    def __init__(
        self, project: str, *, seals: Sealing | None = None, most: int = MOST_RESULTS
    ) -> None:
        self._project = project
        self._folder = os.path.join(project, ".ai", "state", "results")
        self._seals = Unsealed() if seals is None else seals
        self._most = most

    def get(self, key: str) -> Json:
        """None if there is none."""
        path = os.path.join(self._folder, f"{key}.json")
        try:
            found = read_below(self._project, os.path.relpath(path, self._project))
            kept = (
                json.loads(found[0].decode("utf-8", "surrogatepass")) if found is not None else None
            )
            if not isinstance(kept, dict) or not self._seals.holds(
                _text(key, kept["value"]), kept["seal"]
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
        return kept["value"]

    def put(self, key: str, value: Json) -> None:
        written = json_text(value)
        if len(written) > MOST_BYTES:
            return
        value = json.loads(written)
        # A project that cannot be written to, or a user without a seal, is one for whom nothing is
        # kept.
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
    """What is sealed: the result, and of which call it is."""
    return json_text(["plait result", 1, key, value])
