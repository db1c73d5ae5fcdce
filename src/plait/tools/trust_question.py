"""What a project brings along: shown to a person who is asked whether it may run, or pinned in a lock.

A lock, `plait.lock` in the project's folder, lists the digest of each file below
`.ai/tools` and `.ai/config`.  It lets nothing run; who asks for it (`--locked`)
runs those very bytes and nothing else.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from plait.beneath import read_beneath
from plait.errors import DocumentError, InputError, LimitError, TrustError
from plait.records import dataclass
from plait.tools.items import Item, digest_of
from plait.tools.signing import is_key

_MOST_SHOWN: Final = 10_000


@dataclass(frozen=True, slots=True)
class Question:
    """What a person is asked: may this project run what it brings along?"""

    project: str
    items: tuple[Item, ...]
    """What is about to run."""
    brings: tuple[str, ...]
    """Every file that would be trusted, relative to the project."""

    def __str__(self) -> str:
        inside = [path for path in self.brings if path.count("/") > 1]
        folders = Counter(path.split("/")[1] for path in inside)
        parts = [_counted(folder, count) for folder, count in sorted(folders.items(), key=_tools_first)]
        parts += [path for path in self.brings if path not in inside]
        return f"this project brings {', '.join(parts)}, signed by nobody you trust: {self.project}"


Ask = Callable[[Question], bool]


def _counted(folder: str, count: int) -> str:
    if folder == "tools":
        return f"{count} tool{'s' * (count != 1)}"
    return f"{count} file{'s' * (count != 1)} in .ai/{folder}"


def _tools_first(entry: tuple[str, int]) -> tuple[bool, str]:
    return entry[0] != "tools", entry[0]


def brought_along(project: str) -> tuple[str, ...]:
    """The files that trusting a project lets run, for a person to look at."""
    found = [".env"] if os.path.lexists(os.path.join(project, ".env")) else []
    for folder, folders, files in os.walk(os.path.join(project, ".ai"), followlinks=False):
        inside = os.path.relpath(folder, project).replace(os.sep, "/")
        folders[:] = sorted(name for name in folders if f"{inside}/{name}" != ".ai/state")
        found += [f"{inside}/{name}" for name in sorted(files)]
        if len(found) > _MOST_SHOWN:
            break
    return tuple(sorted(found))


# ── the lock ─────────────────────────────────────────────────────────────

LOCK: Final = "plait.lock"
LOCK_FORMAT: Final = "plait.lock.v1"
_LOCKED: Final = ("tools", "config")


@dataclass(frozen=True, slots=True)
class Lock:
    """The files of a project, each with the digest that it must have."""

    files: Mapping[str, str]
    """By their path below `.ai`, for example `tools/team/report.py`."""

    @classmethod
    def of(cls, project: str) -> Lock:
        """The lock of what the project holds now."""
        root = os.path.join(project, ".ai")
        read = ((path, read_beneath(root, path)) for path in _lockable(root))
        return cls({path: digest_of(contents[0]) for path, contents in read if contents is not None})

    @classmethod
    def read(cls, project: str) -> Lock:
        """The lock that the project has."""
        path = os.path.join(project, LOCK)
        contents = read_beneath(project, LOCK)
        if contents is None:
            raise InputError("this project has no lock", path, "write it: plait tools lock", code="no-file")
        from plait.documents import parse_json

        try:
            record = parse_json(contents[0].decode("utf-8", "replace"), path)
        except (DocumentError, LimitError):
            record = None
        match record:
            case {"format": "plait.lock.v1", "files": dict(files)} if all(
                isinstance(digest, str) and is_key(digest) for digest in files.values()
            ):
                return cls(files)
        raise TrustError("this is no lock", path, "write it anew: plait tools lock", code="damaged-store")

    @property
    def text(self) -> str:
        """What stands in the file, sorted, so that two versions of it can be compared."""
        record = {"format": LOCK_FORMAT, "files": dict(sorted(self.files.items()))}
        return json.dumps(record, indent=1, ensure_ascii=False) + "\n"

    def differences(self, now: Lock) -> Iterator[tuple[str, str]]:
        """Each file that is not as it was locked, and what became of it."""
        for path in sorted({*self.files, *now.files}):
            if path not in now.files:
                yield path, "it has gone since plait.lock was written"
            elif path not in self.files:
                yield path, "plait.lock does not list it"
            elif self.files[path] != now.files[path]:
                yield path, "it has changed since plait.lock was written"


def _lockable(root: str) -> Iterator[str]:
    """The plain files that could run or be read; installed packages are pinned by their own tools."""
    for top in _LOCKED:
        for folder, folders, files in os.walk(os.path.join(root, top), followlinks=False):
            folders[:] = sorted(
                name for name in folders if not name.startswith((".", "__")) and name != "node_modules"
            )
            for name in sorted(files):
                path = os.path.join(folder, name)
                if not os.path.islink(path):
                    yield os.path.relpath(path, root).replace(os.sep, "/")
