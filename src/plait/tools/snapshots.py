"""Verified bytes, put where a program can open them: what was verified is what runs.

A tool's file (and, with an anchor, every verified file below it) is copied into
a folder of the user that is named by the digest of its contents.  The original
may change between check and start; the copy does not.  A folder that exists is
used again, so an unchanged tool costs one `stat`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence

from plait.digests import sha256
from plait.errors import InputError
from plait.hints import Final
from plait.records import dataclass
from plait.tools.anchors import Anchored
from plait.tools.items import Item

INSTALLED: Final = "node_modules"
"""Installed packages are too many to copy: a link leads to them, as a PATH leads to programs."""


@dataclass(frozen=True, slots=True)
class Placed:
    tool_path: str
    anchor_path: str


class Snapshots:
    """A cache of verified files, below a folder that only the user can write."""

    def __init__(self, root: str) -> None:
        self.root = root

    def place(
        self, tool: Item, anchored: Anchored | None, dependencies: Sequence[Item], *, installed: bool = False
    ) -> Placed:
        """Where the copies are; `installed` if the packages beside the tool may be loaded unverified."""
        base, name = os.path.split(tool.path)
        above = anchored.path if anchored and not anchored.is_project else base
        if above != base and os.path.commonpath([above, base]) == above:
            base, name = above, os.path.relpath(tool.path, above)
        files = {name: tool, **{os.path.relpath(item.path, base): item for item in dependencies}}
        packages = os.path.join(base, INSTALLED) if anchored and installed else ""
        folder = self._folder(files, packages if os.path.isdir(packages) else "")
        return Placed(os.path.join(folder, name), folder)

    def place_library(self, folder: str, files: Sequence[Item]) -> str:
        """Where the copy of a runtime's library is."""
        return self._folder({os.path.relpath(item.path, folder): item for item in files}, "")

    def _folder(self, files: Mapping[str, Item], packages: str) -> str:
        contents = [f"{path}\0{item.digest}" for path, item in sorted(files.items())]
        name = sha256("\0".join([*contents, packages]).encode("utf-8", "surrogateescape"))
        folder = os.path.join(self.root, name.hexdigest()[:40])
        if not os.path.isdir(folder):
            try:
                self._create(folder, files, packages)
            except OSError as error:
                raise InputError(
                    f"a verified copy cannot be written: {error.strerror}",
                    self.root,
                    "make room or permission there, or let USER_SPACE name another folder",
                    code="no-snapshot",
                ) from None
        return folder

    def _create(self, folder: str, files: Mapping[str, Item], packages: str) -> None:
        os.makedirs(self.root, mode=0o700, exist_ok=True)
        status = os.stat(self.root, follow_symlinks=False)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise InputError(
                f"{self.root} can be written by others",
                fix=f"chmod 700 {self.root}, or remove it",
                code="unsafe-cache",
            )
        import shutil  # slow to import, and a tool is copied once
        import tempfile

        made = tempfile.mkdtemp(prefix=".new-", dir=self.root)
        try:
            for relative, item in files.items():
                _write(os.path.join(made, relative), item.data)
            if packages:
                os.symlink(packages, os.path.join(made, INSTALLED))
            os.rename(made, folder)
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            if not os.path.isdir(folder):  # another process was first: its copy is the same
                raise


def _write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        # Before the folder gets its name: after a power cut it would be taken for complete.
        os.fsync(file.fileno())
    os.chmod(path, 0o500)
