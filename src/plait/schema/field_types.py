"""The kinds of values that fields may hold, and the records that describe fields and maps.

A kind is only data. `validate` compares nodes with kinds, `fields` reads nodes by them,
`json_schema` and `reference` write them for editors and people.
"""

from __future__ import annotations

from plait.core.hints import Final, TypeAlias
from plait.core.records import dataclass
from plait.core.values import Json

WARNED: Final = frozenset({"no-effect", "deprecated-field"})
"""Codes of problems that are only warnings."""

# ── kinds ────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class PlainText:
    """Text without placeholders; `pattern` must match all of it."""

    description: str = "text"
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class TemplateText:
    """Text with placeholders."""

    description: str = "text"


@dataclass(frozen=True, slots=True)
class ShellText:
    """Shell text: its values are bound."""

    description: str = "shell text"
    decisions: tuple[tuple[str, str], ...] = ()
    """Words that look like a decision but would run as a command, and what to write instead."""


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """Text that begins with a slash."""

    description: str = "a command of an agent, which begins with '/'"


@dataclass(frozen=True, slots=True)
class SingleValue:
    """Text that is one placeholder and nothing else: a value of any type."""

    description: str = "a template that is one value"


@dataclass(frozen=True, slots=True)
class TemplateTree:
    """Any data; every string in it is a template."""

    description: str = "any data"


@dataclass(frozen=True, slots=True)
class Data:
    """Any data without templates."""

    description: str = "any data"


@dataclass(frozen=True, slots=True)
class Null:
    """Nothing."""

    description: str = "nothing"


@dataclass(frozen=True, slots=True)
class Boolean:
    description: str = "true or false"


@dataclass(frozen=True, slots=True)
class Condition:
    """A `when`: an expression, true or false, or a map of tests."""

    description: str = "a condition"


@dataclass(frozen=True, slots=True)
class Integer:
    least: int = 0
    most: int | None = None

    @property
    def description(self) -> str:
        return f"a whole number{_range(self.least, self.most)}"


@dataclass(frozen=True, slots=True)
class Number:
    least: float = 0
    most: float | None = None

    @property
    def description(self) -> str:
        return f"a number{_range(self.least, self.most)}"


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds, or a number with a unit."""

    zero: bool = False

    @property
    def description(self) -> str:
        return (
            "a duration"
            + (", also 0" if self.zero else "")
            + ": seconds, or 500ms, 90s, 5m, 1h30m, 2d"
        )


@dataclass(frozen=True, slots=True)
class Choice:
    words: tuple[str, ...]
    elsewhere: tuple[tuple[str, str], ...] = ()
    """Words of other systems, each with the word that it means here."""

    @property
    def description(self) -> str:
        return "one of " + ", ".join(self.words)


@dataclass(frozen=True, slots=True)
class Record:
    """A map that one of the tables describes."""

    form: str


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map whose keys the author chooses."""

    kind: Kind
    keys: PlainText = PlainText()


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list with at least `least` elements."""

    kind: Kind
    least: int = 0


@dataclass(frozen=True, slots=True)
class OneOf:
    """The first of several kinds that fits a node."""

    kinds: tuple[Kind, ...]
    description: str = ""
    """The description; if it is empty, the descriptions of the kinds are joined."""


@dataclass(frozen=True, slots=True)
class NoEffect:
    """A field of other systems that has no effect here: a warning."""

    why: str
    description: str = "anything"


@dataclass(frozen=True, slots=True)
class Refused:
    """A field of other systems that does not exist here: an error."""

    why: str
    description: str = "nothing"


Kind: TypeAlias = (
    PlainText
    | TemplateText
    | ShellText
    | AgentCommand
    | SingleValue
    | TemplateTree
    | Data
    | Null
    | Boolean
    | Condition
    | Integer
    | Number
    | Duration
    | Choice | Record | MapOf | ListOf | OneOf | NoEffect | Refused
)  # fmt: skip


def _range(least: float, most: float | None) -> str:
    return f" from {least:g}" + ("" if most is None else f" to {most:g}") if least or most else ""


# ── fields and forms ─────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: Kind
    what: str
    default: Json = None
    required: bool = False
    aliases: tuple[str, ...] = ()
    """Other spellings, which are equally valid."""
    deprecated: tuple[str, ...] = ()
    """Spellings that will be removed."""
    is_documentation: bool = False
    """It is only for people, so it is not part of a fingerprint."""
    only_for: tuple[str, ...] = ()
    """The field has a meaning only together with one of these fields."""
    needs: tuple[str, str] | None = None
    """A field that is required beside it, and why."""

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.aliases, *self.deprecated)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Values of two fields of one map that contradict each other."""

    one: str
    values: tuple[Json, ...]
    other: str
    others: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class RecordType:
    """A map: exactly one field of `one_of`, at least one of `some_of`."""

    name: str
    title: str
    """Its name in messages: `a step`."""
    what: str
    fields: tuple[Field, ...]
    one_of: tuple[str, ...] = ()
    some_of: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    """Fields that may replace those of `one_of`."""
    apart: tuple[tuple[str, str], ...] = ()
    """Pairs of fields that exclude each other."""
    at_odds: tuple[Conflict, ...] = ()
    marks: tuple[str, ...] = ()
    """In a union, a map is of this form if a list stands under one of these keys."""
    elsewhere: tuple[tuple[str, str], ...] = ()
    """Words that other systems use, and the field that is meant: `run`, `shell`."""
