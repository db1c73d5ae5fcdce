"""The spaces of tools: that of the project, of the user, and of the system.

    project   <project>/.ai            precedence 3
    user      $USER_SPACE/.ai or ~/.ai precedence 2
    system    package data and bundles precedence 1

An id is the path of a file below `tools/` without its extension. The first space with that id wins;
an id cannot name a file outside of its space.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from plait.core.errors import InputError, closest_name
from plait.core.hints import Final, Literal
from plait.core.records import dataclass
from plait.core.safe_files import FileStamp, read_below, stamp_below

SpaceName = Literal["project", "user", "system"]
PRECEDENCE: Final[Mapping[str, int]] = {"project": 3, "user": 2, "system": 1}


@dataclass(frozen=True, slots=True)
class FileType:
    """A type of tool file.

    `reader` reads the header (`READERS` in `headers/formats.py`), `comment` begins a comment.
    `executor` is the usual one; an error names it.
    """

    reader: str
    comment: str
    executor: str


_COMMAND: Final = "core/primitives/subprocess"
_BASH: Final = "core/runtimes/bash/bash"
_NODE: Final = "core/runtimes/node/node"

FILE_TYPES: Final[Mapping[str, FileType]] = {
    ".py": FileType("python", "#", "core/runtimes/python/script"),
    ".yaml": FileType("yaml", "#", _COMMAND),
    ".yml": FileType("yaml", "#", _COMMAND),
    ".sh": FileType("comments", "#", _BASH),
    ".bash": FileType("comments", "#", _BASH),
    ".js": FileType("javascript", "//", _NODE),
    ".mjs": FileType("javascript", "//", _NODE),
    ".cjs": FileType("javascript", "//", _NODE),
    ".ts": FileType("javascript", "//", _NODE),
    ".rb": FileType("comments", "#", _COMMAND),
    ".go": FileType("comments", "//", _COMMAND),
}
"""The files that can be tools, by extension. It is code, so a project cannot change it."""
EXTENSIONS: Final = tuple(FILE_TYPES)
DIRECTIVES: Final = "directives"
"""The folder of a space with its directives, which are Markdown files."""
MAX_ID: Final = 200

# The ids of the seed documents resolve to ours, so that their tool files run unchanged.
_RENAMED_PREFIXES: Final = (("rye/core/", "core/"), ("rye/mcp/", "core/mcp/"))
_RENAMED: Final = {
    "rye/bash/bash": "core/shell",
    "rye/bash": "core/shell",
    "rye/file-system/read": "core/file/read",
    "rye/file-system/write": "core/file/write",
    "rye/file-system/edit": "core/file/edit",
    "rye/file-system/edit_lines": "core/file/edit",
    "rye/file-system/ls": "core/file/list",
    "rye/file-system/glob": "core/file/list",
    "rye/file-system/grep": "core/file/search",
    "rye/web/fetch/fetch": "core/http/fetch",
}


@dataclass(frozen=True, slots=True)
class Space:
    """A folder of items; `bundle` distinguishes several system folders."""

    name: SpaceName
    root: str
    bundle: str = ""

    @property
    def precedence(self) -> int:
        return PRECEDENCE[self.name]

    @property
    def label(self) -> str:
        return f"{self.name}:{self.bundle}" if self.bundle else self.name

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True, slots=True)
class ToolLocation:
    """A file that has an id."""

    id: str
    space: Space
    relative: str
    stamp: FileStamp

    @property
    def path(self) -> str:
        return os.path.join(self.space.root, self.relative)

    def read(self) -> tuple[bytes, FileStamp]:
        contents = read_below(self.space.root, self.relative)
        if contents is None:
            raise InputError(
                f"{self.path} was removed just now", fix="run the command again", code="vanished"
            )
        return contents


@dataclass(frozen=True, slots=True)
class Spaces:
    """All spaces, highest precedence first."""

    spaces: tuple[Space, ...]
    project: str | None = None
    bundles: Callable[[], tuple[Space, ...]] = tuple
    """System folders of other installed packages: searched last, because finding them is slow."""

    @property
    def all(self) -> tuple[Space, ...]:
        return (*self.spaces, *self.bundles())

    def find(
        self,
        item_id: str,
        *,
        folder: str = "tools",
        within: Space | None = None,
        on_search: Callable[[Space, str], None] | None = None,
    ) -> ToolLocation | None:
        """Find the file with an id, from the space of `within` downwards.

        `on_search` gets each space and id just before the file is searched there.
        """
        names = tuple(dict.fromkeys((normalize_id(item_id), current_id(item_id))))
        # An item of `within` depends only on its own space and those below it.
        visible = [
            space
            for space in self.spaces
            if within is None or space.precedence <= within.precedence
        ]
        found = _first(visible, folder, names, on_search)
        return found if found is not None else _first(self.bundles(), folder, names, on_search)

    def find_shadowed(
        self, found: ToolLocation, *, folder: str = "tools"
    ) -> tuple[ToolLocation, ...]:
        """The files that `found` hides in spaces of lower precedence."""
        lower = [space for space in self.all if space.precedence < found.space.precedence]
        hidden = (_in_space(space, folder, found.id) for space in lower)
        return tuple(item for item in hidden if item is not None)

    def ids(self, *, folder: str = "tools") -> set[str]:
        """Every id, from file names alone: no file is opened, so an invalid file hides no other."""
        return {item_id for space in self.all for item_id in _ids_in(space, folder)}

    def missing_error(self, item_id: str, *, folder: str = "tools") -> InputError:
        guess = closest_name(item_id, sorted(self.ids(folder=folder)))
        looked = ", ".join(os.path.join(space.root, folder) for space in self.spaces)
        thing, listed = (
            ("directive", "") if folder == DIRECTIVES else ("tool", "; 'plait tools' lists them")
        )
        return InputError(
            f"there is no {thing} '{item_id}'",
            fix=(f"did you mean '{guess}'? " if guess else "") + f"looked in {looked}{listed}",
            code="unknown-tool",
        )


def _first(
    spaces: Sequence[Space],
    folder: str,
    names: Sequence[str],
    on_search: Callable[[Space, str], None] | None = None,
) -> ToolLocation | None:
    for name in names:
        for space in spaces:
            if on_search is not None:
                on_search(space, name)
            if (found := _in_space(space, folder, name)) is not None:
                return found
    return None


def normalize_id(item_id: str) -> str:
    """Return the canonical form of an id, or raise an error: an id cannot name a file outside a
    space.
    """
    plain = item_id.removeprefix("tool:") if isinstance(item_id, str) else ""
    if len(plain) > MAX_ID or not _is_id(plain):
        raise InputError(
            f"'{item_id}' is not a tool id",
            fix="an id is names joined by '/': letters, digits, '_' and '-', for example team/report",
            code="bad-id",
        )
    return plain


@lru_cache(maxsize=4096)
def _is_id(text: str) -> bool:
    """Are these names joined by '/'? A name has ASCII letters and digits, and after the first
    character '_', '-' and, except in the first name, '.'.
    """
    if not text.isascii():
        return False
    first, *rest = text.split("/")
    plain = [first, *(name.replace(".", "_") for name in rest)]
    return all(
        name[:1].isalnum() and name.replace("_", "0").replace("-", "0").isalnum() for name in plain
    )


def current_id(item_id: str) -> str:
    """The id of Plait for an id that the seed documents call `rye/…`."""
    plain = normalize_id(item_id)
    if plain in _RENAMED:
        return _RENAMED[plain]
    for old, new in _RENAMED_PREFIXES:
        if plain.startswith(old):
            return new + plain.removeprefix(old)
    return plain


def _in_space(space: Space, folder: str, item_id: str) -> ToolLocation | None:
    found: list[ToolLocation] = []
    for extension in _extensions(folder):
        relative = f"{folder}/{item_id}{extension}"
        # First check whether the path exists: most do not, and opening each safely takes much
        # longer.
        if not os.path.lexists(f"{space.root}/{relative}"):
            continue
        if (stamp := stamp_below(space.root, relative)) is not None:
            found.append(ToolLocation(item_id, space, relative, stamp))
    if len(found) > 1:
        names = ", ".join(item.relative for item in found)
        raise InputError(
            f"'{item_id}' names {len(found)} files in the {space} space: {names}",
            space.root,
            "rename or remove all but one",
            code="ambiguous-id",
        )
    return found[0] if found else None


def _ids_in(space: Space, folder: str) -> Iterable[str]:
    top = os.path.join(space.root, folder)
    for directory, folders, files in os.walk(top, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        for name in sorted(files):
            stem, extension = os.path.splitext(name)
            relative = os.path.relpath(os.path.join(directory, stem), top).replace(os.sep, "/")
            if extension in _extensions(folder) and _is_id(relative):
                yield relative


def _extensions(folder: str) -> tuple[str, ...]:
    return (".md",) if folder == DIRECTIVES else EXTENSIONS
