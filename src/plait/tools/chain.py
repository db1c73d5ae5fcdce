"""What runs what: tool → runtime … → primitive, each file read once.

A chain is remembered until something it rests on changes: one of its files, or
a folder in which a file could appear that would shadow one of them.  Asking for
an unchanged chain costs a few `stat` calls and reads nothing.
"""

from __future__ import annotations

import os
import time
from _thread import allocate_lock
from collections.abc import Callable

from plait.errors import InputError, LimitError, nearest
from plait.hints import Final, Protocol, TypeAlias
from plait.records import dataclass
from plait.tools.items import Item, digest_of
from plait.tools.spaces import Found, Space, Spaces, normal_id, renamed

MAX_CHAIN_DEPTH: Final = 10
MAX_REMEMBERED: Final = 1000

PRIMITIVES: Final = (
    "core/primitives/subprocess",
    "core/primitives/http_client",
    "core/primitives/function",
    "core/primitives/mcp",
)
"""Terminal elements; they need no file."""

# What changed so recently may change again within the clock's grain and look the same.
_RACY: Final = 0.1


_FileState: TypeAlias = tuple[str, tuple[int, int, int]]
"""A file, and its inode, size and time of change."""


class ItemReader(Protocol):
    def get(self, found: Found) -> Item: ...


@dataclass(frozen=True, slots=True)
class Chain:
    """`elements` from the tool to the last file; `primitive` ends it."""

    elements: tuple[Item, ...]
    primitive: str

    @property
    def tool(self) -> Item:
        return self.elements[0]

    @property
    def ids(self) -> tuple[str, ...]:
        return (*(item.id for item in self.elements), self.primitive)

    @property
    def digest(self) -> str:
        """One SHA-256 for all files of the chain."""
        return digest_of("".join(item.digest for item in self.elements).encode())


@dataclass(frozen=True, slots=True)
class _Witness:
    """A folder as it was: nothing has been added to it or removed since."""

    path: str
    inode: int
    modified: int

    def unchanged(self) -> bool:
        try:
            status = os.stat(self.path)
        except OSError:
            return self.inode == 0
        return (status.st_ino, status.st_mtime_ns) == (self.inode, self.modified)


@dataclass(frozen=True, slots=True)
class _Remembered:
    chain: Chain
    files: tuple[_FileState, ...]
    folders: tuple[_Witness, ...]

    def holds(self) -> bool:
        return all(w.unchanged() for w in self.folders) and all(_file_state(p) == s for p, s in self.files)


@dataclass(slots=True)
class ChainCounts:
    hits: int = 0
    misses: int = 0


class Chains:
    """Builds chains, and remembers them.  Safe to share between threads."""

    def __init__(self, spaces: Spaces, items: ItemReader, *, clock: Callable[[], float] = time.time) -> None:
        self.spaces = spaces
        self.items = items
        self.counts = ChainCounts()
        self._clock = clock
        self._known: dict[str, _Remembered] = {}
        self._lock = allocate_lock()

    def get(self, item_id: str) -> Chain:
        item_id = normal_id(item_id)
        known = self._known.get(item_id)
        if known is not None and known.holds():
            self.counts.hits += 1
            return known.chain
        self.counts.misses += 1
        # Witnesses are taken before anything is read: a change in between is seen next time.
        chain, files, folders = self._build(item_id)
        if self._settled(files, folders):
            with self._lock:
                if len(self._known) >= MAX_REMEMBERED:
                    self._known.pop(next(iter(self._known)))
                self._known[item_id] = _Remembered(chain, files, folders)
        return chain

    def _build(self, item_id: str) -> tuple[Chain, tuple[_FileState, ...], tuple[_Witness, ...]]:
        elements: list[Item] = []
        files: list[_FileState] = []
        folders: list[_Witness] = []
        current, within = item_id, None
        while (primitive := renamed(current)) not in PRIMITIVES:
            folders += _witnesses(self.spaces, current)
            found = self.spaces.find(current, within=within)
            if found is None:
                raise self._missing(current, elements)
            if any(found.path == item.path for item in elements):
                raise _cycle(elements, found)
            if len(elements) + 1 >= MAX_CHAIN_DEPTH:
                raise _too_deep(elements, found)
            item = self.items.get(found)
            elements.append(item)
            # As it was found, before its bytes were read: a change in between is seen next time.
            files.append((item.path, (found.stamp.inode, found.stamp.size, found.stamp.changed)))
            executor = item.header.executor_id
            if executor is None:
                raise InputError(
                    f"'{item.id}' names no executor, and it is no primitive",
                    item.path,
                    "write executor_id, for example core/runtimes/python/script; "
                    f"primitives: {', '.join(PRIMITIVES)}",
                    code="no-executor",
                )
            current, within = executor, found.space
        if not elements:
            raise InputError(
                f"'{item_id}' is a primitive: it runs tools, it is none",
                fix="call a tool whose chain ends there",
                code="not-a-tool",
            )
        return Chain(tuple(elements), primitive), tuple(files), tuple(folders)

    def _settled(self, files: tuple[_FileState, ...], folders: tuple[_Witness, ...]) -> bool:
        changes = [*(folder.modified for folder in folders), *(changed for _, (_, _, changed) in files)]
        return self._clock() - max(changes, default=0) / 1e9 > _RACY

    def _missing(self, item_id: str, elements: list[Item]) -> InputError:
        if not elements:
            return self.spaces.missing(item_id)
        known = [*sorted(self.spaces.ids()), *PRIMITIVES]
        guess = nearest(renamed(item_id), known)
        child = elements[-1]
        return InputError(
            f"'{child.id}' is executed by '{item_id}', "
            f"which does not exist in the {child.space} space or below",
            child.path,
            f"did you mean '{guess}'?" if guess else "look at 'plait tools' for what there is",
            code="missing-executor",
        )


def _witnesses(spaces: Spaces, item_id: str) -> list[_Witness]:
    """For each space the folder in which a file for this id would stand, or its nearest ancestor."""
    names = dict.fromkeys((normal_id(item_id), renamed(item_id)))
    return [_witness(space, name) for space in spaces.spaces for name in names]


def _witness(space: Space, item_id: str) -> _Witness:
    folder = os.path.join(space.root, "tools", os.path.dirname(item_id)).rstrip("/")
    while True:
        try:
            status = os.stat(folder)
        except OSError:
            parent = os.path.dirname(folder)
            if parent == folder:
                return _Witness(folder, 0, 0)
            folder = parent
            continue
        return _Witness(folder, status.st_ino, status.st_mtime_ns)


def _file_state(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_size, status.st_ctime_ns)


def _cycle(elements: list[Item], again: Found) -> InputError:
    ids = [item.id for item in elements]
    return InputError(
        f"the chain runs in a circle: {' → '.join([*ids, again.id])}",
        elements[-1].path,
        "let one of them end in a primitive, for example core/primitives/subprocess",
        code="chain-cycle",
    )


def _too_deep(elements: list[Item], last: Found) -> LimitError:
    ids = [item.id for item in elements]
    return LimitError(
        f"a chain of more than {MAX_CHAIN_DEPTH} elements: {' → '.join([*ids, last.id])} …",
        elements[0].path,
        "let runtimes point to a primitive sooner",
        code="chain-too-deep",
    )
