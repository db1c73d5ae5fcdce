"""A parsed template: text and placeholders, each with its place.

Nodes are frozen and hold offsets, not sources, so one parse serves every occurrence of the same
text. A `FilledPlaceholder` has been answered by a stage; no later stage reads its value as a
template.
"""

from __future__ import annotations

from plait.core.hints import ClassVar, TypeAlias
from plait.core.records import dataclass, field
from plait.core.values import Json


@dataclass(frozen=True, slots=True)
class Text:
    """Literal text, escapes already resolved."""

    text: str


@dataclass(frozen=True, slots=True)
class FilledPlaceholder:
    """A placeholder with its value; sinks read its formats, such as `raw`, from the placeholder."""

    value: Json
    start: int
    end: int
    placeholder: Placeholder | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Path:
    """`item.path`, `files[0]`, `a["b c"]`: the root picks a frame, the keys walk in."""

    root: str
    keys: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        return self.root + "".join(map(_format_key, self.keys)) if self.keys else self.root


@dataclass(frozen=True, slots=True)
class Literal:
    value: Json


@dataclass(frozen=True, slots=True)
class Computed:
    """`file:` and `cmd:`, whose argument is a template; `date:`, whose argument is a format.

    `variable` is the other reading: `${file:path}` is also the variable `file`
    in the format `path`, and a variable of that name wins.
    """

    kind: str
    argument: Parts
    variable: Alternative | None = None


@dataclass(frozen=True, slots=True)
class Extract:
    """`json:PATH:from:NAME`: a path into a variable that holds JSON, parsed or as text."""

    path: Path
    origin: Path


@dataclass(frozen=True, slots=True)
class Format:
    """`:json`, or a glob that filters a list of paths."""

    name: str
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class Filter:
    name: str
    arguments: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternative:
    origin: Path | Literal | Computed | Extract
    formats: tuple[Format, ...] = ()


@dataclass(frozen=True, slots=True)
class ContextPlaceholder:
    """`${a.b || c | filter :- default}`, and `$NAME`, which is `bare`."""

    kind: ClassVar[str] = "context"
    stage: ClassVar[int] = 2

    start: int
    end: int
    alternatives: tuple[Alternative, ...]
    filters: tuple[Filter, ...] = ()
    default: Parts | None = None
    required: str | None = None
    spread: bool = False
    bare: bool = False

    @property
    def name(self) -> str:
        return " || ".join([_origin_name(alternative.origin) for alternative in self.alternatives])


@dataclass(frozen=True, slots=True)
class InputPlaceholder:
    """`{input:key}`, with `?` or a default."""

    kind: ClassVar[str] = "input"
    stage: ClassVar[int] = 1

    start: int
    end: int
    key: str
    optional: bool = False
    default: Parts | None = None

    @property
    def name(self) -> str:
        return f"input:{self.key}"


@dataclass(frozen=True, slots=True)
class EnvPlaceholder:
    """`${NAME}` of the config profile."""

    kind: ClassVar[str] = "env"
    stage: ClassVar[int] = 3

    start: int
    end: int
    name: str
    default: Parts | None = None
    required: str | None = None


@dataclass(frozen=True, slots=True)
class ParamPlaceholder:
    """`{name}` of the config profile."""

    kind: ClassVar[str] = "param"
    stage: ClassVar[int] = 4

    start: int
    end: int
    name: str


@dataclass(frozen=True, slots=True)
class PromptPlaceholder:
    """`{name}` of the prompt profile."""

    kind: ClassVar[str] = "prompt"
    stage: ClassVar[int] = 0

    start: int
    end: int
    name: str


Placeholder: TypeAlias = (
    ContextPlaceholder | InputPlaceholder | EnvPlaceholder | ParamPlaceholder | PromptPlaceholder
)
Part: TypeAlias = Text | Placeholder | FilledPlaceholder
Parts: TypeAlias = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class MalformedPlaceholder:
    """Text that looks like a placeholder but is not one: an error in strict mode, otherwise
    text.

    A `fatal` flaw can never be meant as text (an unknown format) and is always an error.
    """

    start: int
    end: int
    what: str
    fix: str
    code: str
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Parsed:
    text: str
    profile: str
    parts: Parts
    flaws: tuple[MalformedPlaceholder, ...] = ()


def default_parts(placeholder: Placeholder) -> Parts | None:
    match placeholder:
        case ContextPlaceholder() | InputPlaceholder() | EnvPlaceholder():
            return placeholder.default
        case ParamPlaceholder() | PromptPlaceholder():
            return None


def nested_parts(placeholder: Placeholder) -> tuple[Parts, ...]:
    """The templates inside a placeholder: its default, and the arguments of `file:` and `cmd:`."""
    found: list[Parts] = []
    if isinstance(placeholder, ContextPlaceholder):
        for alternative in placeholder.alternatives:
            if isinstance(alternative.origin, Computed):
                found.append(alternative.origin.argument)
    if (default := default_parts(placeholder)) is not None:
        found.append(default)
    return tuple(found)


def placeholders(parts: Parts) -> list[Placeholder]:
    """Every placeholder, also those in defaults and arguments, in order of appearance."""
    found: list[Placeholder] = []
    for part in parts:
        if isinstance(part, Text | FilledPlaceholder):
            continue
        found.append(part)
        for inner in nested_parts(part):
            found += placeholders(inner)
    return found


def _origin_name(origin: Path | Literal | Computed | Extract) -> str:
    match origin:
        case Path():
            return str(origin)
        case Literal():
            return repr(origin.value)
        case Computed():
            return f"{origin.kind}:{_argument_text(origin.argument)}"
        case Extract():
            return f"json:{origin.path}:from:{origin.origin}"


def _argument_text(parts: Parts) -> str:
    return "".join(part.text if isinstance(part, Text) else "…" for part in parts)


def _format_key(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    plain = key.replace("-", "").replace("_", "").isalnum()
    return f".{key}" if plain else f'["{key}"]'
