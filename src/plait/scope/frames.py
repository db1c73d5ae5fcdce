"""Variables and their values, innermost frame first.

The first segment of a path picks the frame, and only that frame answers: an item without a `name`
does not use the `name` of an outer item. A frame has seven levels. Computed values come after all
frames.

A scope is immutable. `names` holds every visible name in one plain dict, built once per scope,
because rendering reads that.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from plait.core.errors import InputError
from plait.core.hints import Final
from plait.core.records import dataclass
from plait.core.source import Source
from plait.core.values import UNDEFINED, Json
from plait.scope.computed import Sources
from plait.template.compiled import FACTS, Answer, Piece, follow_path
from plait.template.grammar import parse_path
from plait.template.nodes import Path

LEVELS: Final = ("captures", "phase", "step", "workflow", "outputs", "env")
"""Highest first; the seventh level, computed values, belongs to no frame."""

ALIASES: Final = MappingProxyType(
    {"ARG": "value", "ARGUMENT": "value", "FILE": "path", "FILE_PATH": "path"}
)
"""Deprecated names of the map phase, and the field of `item` each stands for."""

BUILT_IN: Final = frozenset({"step", "workflow", "outputs"})
"""Levels that each step sets again; they do not hide names that were captured in an outer frame."""
NOTHING: Final[frozenset[str]] = frozenset()

UNTRUSTED_LEVELS: Final = frozenset({"captures", "phase", "step", "outputs"})
"""Levels whose values come from outside: items, captures, output of commands and models."""

DATA_ENV_FRAME: Final = "step env, made of data"
"""The frame of a step's variables that are made from outside values, but are not these values."""


GIVEN: Final = "given"
"""The frame of the inputs of a flow, and of variables made from them."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The names of one place: the flow, a phase, an item, a step."""

    label: str
    levels: Mapping[str, Mapping[str, Json]]

    def find_level(self, name: str) -> str | None:
        for level in LEVELS:
            if level in self.levels and name in self.levels[level]:
                return level
        return None


@dataclass(frozen=True, slots=True)
class Origin:
    """The frame and level of a name."""

    frame: str
    level: str

    @property
    def is_trusted(self) -> bool:
        return self.level not in UNTRUSTED_LEVELS and self.frame != DATA_ENV_FRAME

    @property
    def of_author(self) -> bool:
        """Is the value written in the flow, without any part from outside?"""
        return self.is_trusted and self.frame != GIVEN


class Scope:
    """Immutable frames; `child(**names)` adds an inner frame, `lookup(path)` finds a value."""

    __slots__ = ("captured", "frames", "names", "sources")

    frames: tuple[Frame, ...]
    names: Mapping[str, Json]
    sources: Sources
    captured: frozenset[str]
    """The names that are captured in any frame."""

    def __init__(
        self,
        names: Mapping[str, Json] | None = None,
        *,
        label: str = "values",
        sources: Sources | None = None,
    ) -> None:
        if names is not None and not isinstance(names, Mapping):
            raise InputError(
                "a scope is made of a map of names", fix='pass {"name": value}', code="wrong-type"
            )
        own = dict(names or {})
        self._set((Frame(label, {"captures": own}),), own, sources or Sources(), frozenset(own))

    @classmethod
    def of(cls, values: Mapping[str, Json], env: Mapping[str, str] | None = None) -> Scope:
        """A scope for plain values; `env` holds the values of `${env.X}`."""
        scope = cls.__new__(cls)
        names = values if values.__class__ is dict else dict(values)
        scope._set((Frame("values", {"captures": names}),), names, Sources(environ=env))
        return scope

    def child(self, **names: Json) -> Scope:
        """An inner frame in which `names` are captured values."""
        return self.frame("local", captures=names)

    def frame(
        self,
        label: str,
        *,
        captures: Mapping[str, Json] | None = None,
        phase: Mapping[str, Json] | None = None,
        step: Mapping[str, Json] | None = None,
        workflow: Mapping[str, Json] | None = None,
        outputs: Mapping[str, Json] | None = None,
        env: Mapping[str, Json] | None = None,
    ) -> Scope:
        """Add an inner frame; its names are given by level."""
        levels: dict[str, Mapping[str, Json]] = {}
        visible = dict(self.names)
        # The lowest level first, as in LEVELS: later ones hide it.
        for level, names in (
            ("env", env), ("outputs", outputs), ("workflow", workflow),
            ("step", step), ("phase", phase), ("captures", captures),
        ):  # fmt: skip
            if names:
                own = levels[level] = dict(names)
                visible.update(own)
                if level in BUILT_IN and not self.captured.isdisjoint(own):
                    # If a flow captured a value under such a name, the captured value is used, also
                    # in later steps.
                    visible |= {name: self.names[name] for name in self.captured & own.keys()}
        scope = Scope.__new__(Scope)
        captured = self.captured | captures.keys() if captures else self.captured
        scope._set((Frame(label, levels), *self.frames), visible, self.sources, captured)
        return scope

    def at(self, directory: str) -> Scope:
        """The same names, with files and commands seen from another directory."""
        scope = Scope.__new__(Scope)
        scope._set(self.frames, self.names, self.sources.at(directory), self.captured)
        return scope

    def lookup(self, path: str | Path) -> Answer:
        """The value at a path, or UNDEFINED."""
        wanted = parse_path(path) if isinstance(path, str) else path
        value = self.names.get(wanted.root, UNDEFINED)
        found = value if value is UNDEFINED else follow_path(value, wanted.keys)
        return self.fallback(wanted) if found is UNDEFINED else found

    def origin(self, root: str) -> Origin | None:
        """The frame and level in which a name is found; None for computed and unknown names."""
        found: Origin | None = None
        for frame in self.frames:
            level = frame.find_level(root)
            if level is not None and (found is None or level == "captures"):
                found = Origin(frame.label, level)
            if found is not None and found.level not in BUILT_IN:
                break
        return found

    # ── lookups for names that are not plain ─────────────────────────────

    def fallback(self, path: Path) -> Answer:
        if path.root in self.names:
            facts = self.names.get(path.root + FACTS)
            return UNDEFINED if facts is None else follow_path(facts, path.keys)
        if path.root in ALIASES:
            item = self.names.get("item", UNDEFINED)
            if isinstance(item, Mapping):
                item = item.get(ALIASES[path.root], UNDEFINED)
            return item if item is UNDEFINED else follow_path(item, path.keys)
        if path.root == "env" and len(path.keys) == 1:
            return self.sources.environment(str(path.keys[0]))
        if path.root == "uuid" and not path.keys:
            return self.sources.fresh_uuid()
        return UNDEFINED

    def compute(self, kind: str, argument: str) -> Answer:
        return self.sources.file(argument) if kind == "file" else self.sources.date(argument)

    def command(self, pieces: list[Piece], source: Source) -> Answer:
        return self.sources.command(pieces, source)

    def _set(
        self,
        frames: tuple[Frame, ...],
        names: Mapping[str, Json],
        sources: Sources,
        captured: frozenset[str] = NOTHING,
    ) -> None:
        _set_captured(self, captured)
        _set_frames(self, frames)
        _set_names(self, names)
        _set_sources(self, sources)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Scope is immutable: '{name}' cannot be set; use child()")

    def __repr__(self) -> str:
        return f"Scope({' > '.join(frame.label for frame in self.frames)}; {len(self.names)} names)"


# A scope refuses assignment, even in its own methods; its slots do not, and are faster than
# `object.__setattr__`.
_set_captured, _set_frames, _set_names, _set_sources = (
    vars(Scope)[slot].__set__ for slot in Scope.__slots__
)
