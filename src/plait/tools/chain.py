"""Build the chain of a tool: tool → runtime … → primitive, each file read once.

A chain is kept until one of its files changes, or a folder in which a file could appear that would
shadow one of them. Getting an unchanged chain costs a few `stat` calls and reads nothing.
"""

from __future__ import annotations

import os
import time
from _thread import allocate_lock
from collections.abc import Callable, Iterable

from plait.core.digests import sha256_hex
from plait.core.errors import InputError, LimitError, closest_name
from plait.core.hints import Final, Protocol, TypeAlias
from plait.core.records import dataclass, field
from plait.tools.spaces import Space, Spaces, ToolLocation, current_id, normalize_id
from plait.tools.tool_file import ToolFile

MAX_CHAIN_DEPTH: Final = 10
MAX_CACHED: Final = 1000

PRIMITIVES: Final = (
    "core/primitives/subprocess",
    "core/primitives/http_client",
    "core/primitives/function",
    "core/primitives/mcp",
    "core/primitives/flow",
)
"""Terminal elements; they need no file."""
FLOW: Final = "core/primitives/flow"
"""This primitive runs nothing itself: the caller performs the steps of such a tool."""

# ── dependencies of a cached result ──────────────────────────────────────────

State: TypeAlias = tuple[int, int, int, int, int]
"""Change time, modification time, inode, size and device."""


@dataclass(frozen=True, slots=True, eq=False)
class StatKind:
    """How the state of a path is read, and which part of it counts."""

    stat: Callable[[str], os.stat_result]
    whole: bool = True
    """True: everything must stay the same. False: only the identity of the folder must."""


FILE: Final = StatKind(os.lstat)
"""A file itself; a link is not followed."""
TARGET: Final = StatKind(os.stat)
"""The entries of a folder, or the target of a link."""
IDENTITY: Final = StatKind(os.stat, whole=False)

Place: TypeAlias = tuple[StatKind, str]
"""A path, and how its state is read."""
PathState: TypeAlias = tuple[StatKind, str, State | None]
"""A place and its state; None if there was nothing."""

# A file that has just changed may change again within one tick of the clock, and look the same.
_RACY: Final = 0.1


def path_state(kind: StatKind, path: str) -> PathState:
    try:
        seen = kind.stat(path)
    except OSError:
        return kind, path, None
    return kind, path, (seen.st_ctime_ns, seen.st_mtime_ns, seen.st_ino, seen.st_size, seen.st_dev)


def is_unchanged(states: Iterable[PathState]) -> bool:
    """Are all these paths unchanged?"""
    # One loop with direct attribute access: half the time of a cached call is spent here.
    for kind, path, state in states:
        try:
            seen = kind.stat(path)
        except OSError:
            if state is not None:
                return False
            continue
        if state is None or seen.st_ino != state[2] or seen.st_dev != state[4]:
            return False
        if kind.whole and (
            seen.st_ctime_ns != state[0] or seen.st_mtime_ns != state[1] or seen.st_size != state[3]
        ):
            return False
    return True


def is_old_enough(states: Iterable[PathState], now: float) -> bool:
    """Are all changes so old that a new one would have another time stamp?"""
    whole = [state for kind, _, state in states if state is not None and kind.whole]
    latest = max((max(changed, modified) for changed, modified, *_ in whole), default=0)
    return now - latest / 1e9 > _RACY


def watched_path(path: str) -> Place:
    """The path that shows a change of a file: the file, or the nearest existing folder above."""
    if os.path.lexists(path):
        return FILE, path
    return state_above(path)[:2]


def state_above(path: str) -> PathState:
    """The nearest existing folder above a path: it changes when the path appears."""
    while True:
        above = os.path.dirname(path)
        found = path_state(TARGET, above)
        if found[2] is not None or above == path:
            return found
        path = above


# ── chains ───────────────────────────────────────────────────────────────


class ItemReader(Protocol):
    def get(self, found: ToolLocation) -> ToolFile: ...


@dataclass(frozen=True, slots=True)
class Chain:
    """`elements` from the tool to the last file; `primitive` ends it."""

    elements: tuple[ToolFile, ...]
    primitive: str
    rests_on: tuple[Place, ...] = field(default=(), compare=False, repr=False)
    """Its files, and the folders in which a file could appear that would shadow one of them."""

    @property
    def tool(self) -> ToolFile:
        return self.elements[0]

    @property
    def ids(self) -> tuple[str, ...]:
        return (*(item.id for item in self.elements), self.primitive)

    @property
    def digest(self) -> str:
        """One SHA-256 for all files of the chain."""
        return sha256_hex("".join(item.digest for item in self.elements).encode())


@dataclass(slots=True)
class ChainCounts:
    hits: int = 0
    misses: int = 0


class Chains:
    """Builds chains, and caches them.  Safe to share between threads."""

    def __init__(
        self, spaces: Spaces, items: ItemReader, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.spaces = spaces
        self.items = items
        self.counts = ChainCounts()
        self._clock = clock
        self._known: dict[str, tuple[Chain, tuple[PathState, ...]]] = {}
        self._lock = allocate_lock()

    def get(self, item_id: str) -> Chain:
        item_id = normalize_id(item_id)
        known = self._known.get(item_id)
        if known is not None and is_unchanged(known[1]):
            self.counts.hits += 1
            return known[0]
        self.counts.misses += 1
        # Witnesses are taken before anything is read: a change in between is seen next time.
        chain, seen = self._build(item_id)
        if is_old_enough(seen, self._clock()):
            with self._lock:
                if len(self._known) >= MAX_CACHED:
                    self._known.pop(next(iter(self._known)))
                self._known[item_id] = (chain, seen)
        return chain

    def require_executor(self, item: ToolFile) -> None:
        """Raise InputError if the executor of a tool does not exist; the tool may be
        outside all spaces.
        """
        executor = item.header.executor_id
        if executor is None or current_id(executor) in PRIMITIVES:
            return
        if self.spaces.find(executor) is None:
            raise self._missing_error(executor, [item])

    def _build(self, item_id: str) -> tuple[Chain, tuple[PathState, ...]]:
        elements: list[ToolFile] = []
        seen: list[PathState] = []

        def on_search(space: Space, name: str) -> None:
            seen.append(state_above(os.path.join(space.root, "tools", name)))

        current, within = item_id, None
        while (primitive := current_id(current)) not in PRIMITIVES:
            found = self.spaces.find(current, within=within, on_search=on_search)
            if found is None:
                raise self._missing_error(current, elements)
            if any(found.path == item.path for item in elements):
                raise _cycle(elements, found)
            if len(elements) + 1 >= MAX_CHAIN_DEPTH:
                raise _too_deep(elements, found)
            item = self.items.get(found)
            elements.append(item)
            # As it was found, before its bytes were read: a change in between is seen next time.
            stamp = found.stamp
            state = (stamp.changed, stamp.modified, stamp.inode, stamp.size, stamp.device)
            seen.append((FILE, item.path, state))
            executor = item.header.executor_id
            if executor is None:
                raise InputError(
                    f"'{item.id}' names no executor and is not a primitive",
                    item.path,
                    "write executor_id, for example core/runtimes/python/script; "
                    f"primitives: {', '.join(PRIMITIVES)}",
                    code="no-executor",
                )
            current, within = executor, found.space
        if not elements:
            raise InputError(
                f"'{item_id}' is a primitive, not a tool",
                fix="call a tool whose chain ends there",
                code="not-a-tool",
            )
        places = tuple(dict.fromkeys((kind, path) for kind, path, _ in seen))
        return Chain(tuple(elements), primitive, places), tuple(dict.fromkeys(seen))

    def _missing_error(self, item_id: str, elements: list[ToolFile]) -> InputError:
        if not elements:
            return self.spaces.missing_error(item_id)
        known = [*sorted(self.spaces.ids()), *PRIMITIVES]
        guess = closest_name(current_id(item_id), known)
        child = elements[-1]
        return InputError(
            f"'{child.id}' is executed by '{item_id}', "
            f"which does not exist in the {child.space} space or below",
            child.path,
            f"did you mean '{guess}'?" if guess else "'plait tools' lists all tools",
            code="missing-executor",
        )


def _cycle(elements: list[ToolFile], again: ToolLocation) -> InputError:
    ids = [item.id for item in elements]
    return InputError(
        f"the chain runs in a circle: {' → '.join([*ids, again.id])}",
        elements[-1].path,
        "let one of them end in a primitive, for example core/primitives/subprocess",
        code="chain-cycle",
    )


def _too_deep(elements: list[ToolFile], last: ToolLocation) -> LimitError:
    ids = [item.id for item in elements]
    return LimitError(
        f"a chain of more than {MAX_CHAIN_DEPTH} elements: {' → '.join([*ids, last.id])} …",
        elements[0].path,
        "let runtimes point to a primitive sooner",
        code="chain-too-deep",
    )
