"""The lockfile: the bytes that the tools and the config of a project must have.

`plait.lock` in the project folder lists the digest of each file below `.ai/tools` and
`.ai/config`. It grants no trust. With `--locked` only files with exactly these bytes run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping

from plait.core.digests import sha256_hex
from plait.core.documents import parse_json
from plait.core.errors import DocumentError, InputError, LimitError, TrustError
from plait.core.hints import Final
from plait.core.records import dataclass
from plait.core.safe_files import read_below
from plait.tools.trust.signatures import is_key

LOCK: Final = "plait.lock"
LOCK_FORMAT: Final = "plait.lock.v1"
_LOCKED: Final = ("tools", "config")


@dataclass(frozen=True, slots=True)
class Lockfile:
    """The files of a project with the digests that they must have."""

    files: Mapping[str, str]
    """By their path below `.ai`, for example `tools/team/report.py`."""

    @classmethod
    def of(cls, project: str) -> Lockfile:
        """The lockfile for the current files of the project."""
        root = os.path.join(project, ".ai")
        read = ((path, read_below(root, path)) for path in _lockable(root))
        return cls(
            {path: sha256_hex(contents[0]) for path, contents in read if contents is not None}
        )

    @classmethod
    def read(cls, project: str) -> Lockfile:
        """Read the lockfile of the project."""
        path = os.path.join(project, LOCK)
        contents = read_below(project, LOCK)
        if contents is None:
            raise InputError(
                "this project has no lock", path, "write it: plait tools lock", code="no-file"
            )
        try:
            record = parse_json(contents[0].decode("utf-8", "replace"), path)
        except (DocumentError, LimitError):
            record = None
        match record:
            case {"format": "plait.lock.v1", "files": dict(files)} if all(
                isinstance(digest, str) and is_key(digest) for digest in files.values()
            ):
                return cls(files)
        raise TrustError(
            "this is no lock", path, "write it anew: plait tools lock", code="damaged-store"
        )

    @property
    def text(self) -> str:
        """The content of the file, sorted, so that versions can be compared."""
        record = {"format": LOCK_FORMAT, "files": dict(sorted(self.files.items()))}
        return json.dumps(record, indent=1, ensure_ascii=False) + "\n"

    def differences(self, now: Lockfile) -> Iterator[tuple[str, str]]:
        """Each file that differs from the lockfile, and how."""
        for path in sorted({*self.files, *now.files}):
            if path not in now.files:
                yield path, "it has gone since plait.lock was written"
            elif path not in self.files:
                yield path, "plait.lock does not list it"
            elif self.files[path] != now.files[path]:
                yield path, "it has changed since plait.lock was written"


def _lockable(root: str) -> Iterator[str]:
    """The files that could run or be read. Installed packages have their own lockfiles."""
    for top in _LOCKED:
        for folder, folders, files in os.walk(os.path.join(root, top), followlinks=False):
            folders[:] = sorted(
                name
                for name in folders
                if not name.startswith((".", "__")) and name != "node_modules"
            )
            for name in sorted(files):
                path = os.path.join(folder, name)
                if not os.path.islink(path):
                    yield os.path.relpath(path, root).replace(os.sep, "/")
