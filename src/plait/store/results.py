"""What calls of tools gave, kept in a project by key: `cache_result`.

Each is a file of its own, whole or not there.  There are at most so many; the one that was used
longest ago makes room.  Whatever cannot be read or written is a call that is made again.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from plait.errors import JournalError
from plait.hints import Final
from plait.store.files import make_own_folder, write_whole
from plait.values import Json, json_text

MOST_RESULTS: Final = 1000
MOST_BYTES: Final = 1 << 20
"""Of one result; what is larger is not kept."""


class Results:
    def __init__(self, project: str, *, most: int = MOST_RESULTS) -> None:
        self._folder = os.path.join(project, ".ai", "state", "results")
        self._most = most

    def get(self, key: str) -> Json:
        """None if there is none."""
        path = os.path.join(self._folder, f"{key}.json")
        try:
            with open(path, encoding="utf-8") as file:
                value = json.load(file)
            os.utime(path)
        except (OSError, ValueError):
            return None
        return value

    def put(self, key: str, value: Json) -> None:
        data = json_text(value).encode("utf-8", "surrogatepass")
        if len(data) > MOST_BYTES:
            return
        # A project that cannot be written to is one in which nothing is kept.
        with suppress(JournalError):
            make_own_folder(self._folder)
            write_whole(self._folder, f"{key}.json", data)
            self._make_room()

    def _make_room(self) -> None:
        with suppress(OSError), os.scandir(self._folder) as entries:
            found = [
                (entry.stat().st_mtime_ns, entry.path) for entry in entries if entry.name.endswith(".json")
            ]
            for _, path in sorted(found)[: max(0, len(found) - self._most)]:
                os.unlink(path)
