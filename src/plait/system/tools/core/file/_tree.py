"""The files of a project, reached without ever leaving it.

A path is walked folder by folder from the project's root, each one held open and
none entered through a symbolic link, so nothing that happens to the tree
meanwhile leads outside.  A file is written whole: beside its place, then renamed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from plait.tool_api import InputError, Json, OutsideError, find_guarded_folder, read_file

GUARDED_FILES: Final = (
    ".env", ".env.*", ".envrc", "plait.lock", "*.pth", "sitecustomize.py", "usercustomize.py",
    ".gitattributes", ".gitconfig", ".gitmodules", ".gitlab-ci.yml", ".pre-commit-config.yaml", ".npmrc",
    ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", ".mcp.json", ".bashrc", ".profile", ".zshenv", ".zshrc",
)  # fmt: skip
"""Files that start programs, too, or say what others may do; in whatever folder."""
SKIPPED: Final = (".git", "node_modules", ".venv", "__pycache__")
"""Folders that a walk does not enter; to see one, begin in it."""
MAX_VISITED: Final = 100_000
"""Entries that a walk looks at."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Entry:
    path: str
    kind: str
    size: int | None


def root_of(project_path: str | None) -> str:
    if not project_path:
        raise InputError(
            "file tools work in a project", fix="call them with --project DIR", code="no-project"
        )
    return os.path.realpath(project_path)


def relative(root: str, path: Json) -> str:
    """A path of the project as names joined by '/'; '' is the project itself."""
    if not isinstance(path, str) or "\0" in path:
        raise _outside(path)
    inside = path
    if path.startswith("/"):
        if path != root and not path.startswith(root + "/"):
            raise _outside(path)
        inside = path[len(root) :]
    parts = [part for part in inside.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _outside(path)
    return "/".join(parts)


def read_text(root: str, path: Json) -> str:
    inside = relative(root, path)
    contents = read_file(root, inside) if inside else None
    if contents is None:
        raise InputError(
            f"there is no file '{path}'", root, "core/file/list shows what there is", code="no-file"
        )
    try:
        return contents.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(
            f"'{path}' is not text in UTF-8", root, "use another tool for it", code="not-text"
        ) from None


def write_text(root: str, path: Json, content: str) -> bool:
    """Put a whole file in place; True if it is new.  Folders on the way are made."""
    inside = relative(root, path)
    if not inside:
        raise _not_a_file(path)
    if (guarded := _guarded_by(inside)) is not None:
        raise InputError(
            f"'{path}' is not written by this tool",
            root,
            f"'{guarded}' can start programs, or decides what may run: change it by hand",
            code="guarded",
        )
    *folders, name = inside.split("/")
    try:
        with opened_folder(root, "/".join(folders), make=True) as folder:
            return _replace(folder, name, content.encode("utf-8", "surrogateescape"), path)
    except OSError as error:
        raise InputError(
            f"'{path}' cannot be written: {error.strerror}",
            root,
            "look at its folder and permissions",
            code="unwritable",
        ) from None


def _guarded_by(inside: str) -> str | None:
    """Which entry of the tables stands against a path; some file systems know no case."""
    name = inside.rpartition("/")[2].casefold()
    pattern = next((pattern for pattern in GUARDED_FILES if fnmatchcase(name, pattern)), None)
    return find_guarded_folder(inside) or pattern


@contextmanager
def opened_folder(root: str, inside: str, *, make: bool = False) -> Iterator[int]:
    """A folder of the project, held open; every name on the way is a real folder."""
    held = os.open(root, _FLAGS_OF_ROOT)
    try:
        for name in inside.split("/") if inside else ():
            inner = _step(held, name, inside, make=make)
            os.close(held)
            held = inner
        yield held
    finally:
        os.close(held)


_FLAGS_OF_ROOT: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def _step(held: int, name: str, inside: str, *, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, 0o777, dir_fd=held)
    try:
        return os.open(name, _FOLDER, dir_fd=held)
    except FileNotFoundError:
        raise InputError(
            f"there is no folder '{inside}'",
            fix="core/file/list shows what there is",
            code="no-file",
        ) from None
    except NotADirectoryError:
        status = os.stat(name, dir_fd=held, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            raise _outside(inside) from None
        raise InputError(
            f"'{inside}' is not a folder", fix="name a folder", code="not-a-folder"
        ) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _outside(inside) from None
        raise


def _replace(folder: int, name: str, data: bytes, path: Json) -> bool:
    try:
        standing: os.stat_result | None = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        standing = None
    if standing is not None and stat.S_ISLNK(standing.st_mode):
        raise _outside(path)
    if standing is not None and not stat.S_ISREG(standing.st_mode):
        raise _not_a_file(path)
    temporary = f".{name[:100]}.{os.urandom(6).hex()}.new"
    handle = os.open(
        temporary,
        os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
        0o666,
        dir_fd=folder,
    )
    try:
        with open(handle, "wb") as file:
            if standing is not None:
                os.fchmod(handle, stat.S_IMODE(standing.st_mode))
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.unlink(temporary, dir_fd=folder)
        raise
    os.fsync(folder)
    return standing is None


def entries(root: str, inside: str) -> list[Entry]:
    """What a folder holds, in the order of names."""
    with opened_folder(root, inside) as folder:
        return [_entry(folder, name, inside) for name in sorted(os.listdir(folder))]


def walk(root: str, inside: str) -> Iterator[Entry]:
    """Every file below a folder, links and special files left out."""
    pending, visited = [inside], 0
    while pending:
        folder = pending.pop()
        found = entries(root, folder)
        visited += len(found)
        if visited > MAX_VISITED:
            raise InputError(
                f"there are more than {MAX_VISITED:,} entries below '{inside or '.'}'",
                fix="begin in a smaller folder",
                code="too-many-files",
            )
        names = [entry for entry in found if entry.kind == "folder"]
        pending += [
            entry.path for entry in reversed(names) if entry.path.rpartition("/")[2] not in SKIPPED
        ]
        yield from (entry for entry in found if entry.kind == "file")


def matching(pattern: str) -> Callable[[str], bool]:
    """Does a path meet a glob?  `*` and `?` stay within a name, `**/` is any number of folders.

    A pattern without '/' is met by the name alone.
    """
    import re2

    whole = "".join(
        _glob_part(part)
        for part in re.findall(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", pattern, re.DOTALL)
    )
    try:
        compiled = re2.compile(whole)
    except re2.error:
        raise InputError(
            f"'{pattern}' is not a pattern of file names",
            fix="for example *.py or src/**/*.py",
            code="bad-glob",
        ) from None
    by_name = "/" not in pattern
    return lambda path: compiled.fullmatch(path.rpartition("/")[2] if by_name else path) is not None


def _glob_part(part: str) -> str:
    match part:
        case "**/":
            return "(?:[^/]+/)*"
        case "**":
            return "(?s:.*)"
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
    if len(part) > 1:
        inner = part[1:-1].replace("\\", "\\\\").replace("[", "\\[")
        return f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
    return re.escape(part)


def _entry(folder: int, name: str, inside: str) -> Entry:
    path = f"{inside}/{name}" if inside else name
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return Entry(path, "gone", None)
    if stat.S_ISDIR(status.st_mode):
        return Entry(path, "folder", None)
    if stat.S_ISLNK(status.st_mode):
        return Entry(path, "link", None)
    if stat.S_ISREG(status.st_mode):
        return Entry(path, "file", status.st_size)
    return Entry(path, "special", None)


def _outside(path: Json) -> OutsideError:
    return OutsideError(
        f"'{path}' leaves the project",
        fix="name a path inside it; links and '..' are not followed",
        code="outside-project",
    )


def _not_a_file(path: Json) -> InputError:
    return InputError(f"'{path}' is not a plain file", fix="name a file", code="not-a-file")
