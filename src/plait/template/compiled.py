"""A parsed template that can be rendered: one closure per placeholder.

The closures define what a placeholder means. Generated code (`codegen`) answers the simple ones
faster and falls back to the closures, which collect every missing name of the whole template before
reporting.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import lru_cache

from plait.core.errors import (
    LimitError,
    MissingNamesError,
    PlaitError,
    Problem,
    TemplateSyntaxError,
    closest_name,
    format_names,
)
from plait.core.hints import Final, Protocol, TypeAlias
from plait.core.records import dataclass
from plait.core.source import Source, Span
from plait.core.values import (
    NOT_KNOWN,
    UNDEFINED,
    Json,
    Secret,
    Undefined,
    Unknown,
    contains_unknown,
    json_size,
    least_text,
    reveal_text,
    text,
)
from plait.template.filters import FILTERS, FORMATS, filter_paths, holds_secret
from plait.template.filters import MAX_OUTPUT as MAX_OUTPUT
from plait.template.grammar import SMALL_TEXT, parse
from plait.template.nodes import (
    Alternative,
    Computed,
    ContextPlaceholder,
    EnvPlaceholder,
    Extract,
    FilledPlaceholder,
    Filter,
    Format,
    InputPlaceholder,
    Literal,
    MalformedPlaceholder,
    ParamPlaceholder,
    Part,
    Parts,
    Path,
    Placeholder,
    PromptPlaceholder,
    Text,
    placeholders,
)
from plait.template.profiles import PROFILES, Profile

FEW_PLACEHOLDERS: Final = 64
"""Up to this number, generated code checks only values that occur twice; above it, all sizes are
added up.
"""
MOST_GUESSES: Final = 20
"""The number of missing names for which the message suggests a known one."""
MOST_LISTED: Final = 1000
"""The number of known names that a message about a missing one lists."""
FALLBACK_ROOTS: Final = frozenset({"env", "uuid", "ARG", "ARGUMENT", "FILE", "FILE_PATH"})
"""The only roots that `Lookup.fallback` can know."""

FACTS: Final = ":facts"
"""`name:facts` holds what is known about the value of a name besides the value itself:
`${name.exit_code}`. No path can spell this name.
"""

Answer: TypeAlias = Json | Undefined
Getter: TypeAlias = Callable[["Rendering"], Answer]


class Lookup(Protocol):
    """Where names get values; `scope.Scope` is one."""

    @property
    def names(self) -> Mapping[str, Json]:
        """Every plain name in one map; inner frames win."""

    def fallback(self, path: Path) -> Answer:
        """Look up a name that is not plain: aliases, `env.X`, `uuid`, facts about a value."""

    def compute(self, kind: str, argument: str) -> Answer:
        """Compute the value of `file:` or `date:`."""

    def command(self, pieces: list[Piece], source: Source) -> Answer:
        """Run the shell text of `cmd:`, whose values are bound, never pasted."""


@dataclass(frozen=True, slots=True)
class PlacedValue:
    """A value and its placeholder, for sinks that must know where a value is used."""

    value: Json
    placeholder: Placeholder | FilledPlaceholder


Piece: TypeAlias = str | PlacedValue


_NOTHING: Final = Text("")
_NO_NAMES: Final[frozenset[str]] = frozenset()


class Rendering:
    """One rendering: the source of names, and the names that are missing."""

    __slots__ = (
        "_lookup", "counted", "env", "is_shell", "missing", "names", "problems", "sealing",
        "shell_names", "show", "size", "source", "strict", "unanswered", "unknown",
    )  # fmt: skip

    def __init__(
        self,
        names: Mapping[str, Json],
        lookup: Callable[[], Lookup],
        *,
        env: Mapping[str, str],
        strict: bool,
        source: Source,
        counted: bool,
    ) -> None:
        self.names = names
        self._lookup = lookup
        self.env = env
        self.strict = strict
        self.source = source
        self.counted = counted
        self.size = 0
        self.show: Callable[[Json], str] = text
        self.is_shell = False
        self.shell_names = _NO_NAMES
        self.sealing = False
        self.missing: list[tuple[Source, Placeholder]] = []
        self.unanswered: list[tuple[Source, Placeholder]] = []
        self.problems: list[Problem] = []
        self.unknown = 0
        """The number of placeholders that only a run can fill."""

    @property
    def lookup(self) -> Lookup:
        """The lookup; only computed values and aliases need more than `names`."""
        return self._lookup()

    def count(self, characters: int) -> None:
        """Add to the size of the output before it is joined."""
        self.size += characters
        if self.size > MAX_OUTPUT:
            raise output_too_long(Span(self.source, 0, min(len(self.source.text), 1)))

    def finish(self) -> None:
        """Raise all errors together."""
        if self.problems:
            raise TemplateSyntaxError.together(self.problems)
        if self.missing:
            raise missing_names(self.missing, self.names, self.env, is_shell=self.is_shell)


class PlainLookup:
    """A lookup that knows plain names and nothing computed."""

    __slots__ = ("names",)

    def __init__(self, names: Mapping[str, Json]) -> None:
        self.names = names

    def fallback(self, path: Path) -> Answer:  # noqa: ARG002 - the protocol's shape
        return UNDEFINED

    def compute(self, kind: str, argument: str) -> Answer:  # noqa: ARG002
        return UNDEFINED

    def command(self, pieces: list[Piece], source: Source) -> Answer:  # noqa: ARG002
        return UNDEFINED


class CompiledTemplate:
    """A template ready to be rendered; shared by every place where its text stands."""

    __slots__ = (
        "_steps",
        "flaws",
        "getters",
        "names",
        "parts",
        "placeholder_count",
        "profile",
        "repeats",
        "whole",
    )

    def __init__(
        self, parts: Parts, profile: Profile, flaws: tuple[MalformedPlaceholder, ...] = ()
    ) -> None:
        self.parts = parts
        self.profile = profile
        self.flaws = flaws
        self.getters: tuple[Getter | None, ...] = tuple(
            None if part.__class__ is Text else getter(part, profile)  # type: ignore[arg-type]
            for part in parts
        )
        self._steps = tuple(zip(parts, self.getters, strict=True))
        self.whole = profile.typed and len(parts) == 1 and self.getters[0] is not None
        """Is the template a single placeholder, in a profile that keeps the type of its value?"""
        self.names = [placeholder.name for placeholder in placeholders(parts)]
        self.placeholder_count = len(self.names)
        self.repeats = 1 < self.placeholder_count <= FEW_PLACEHOLDERS and has_repeated(self.names)

    @property
    def may_grow(self) -> bool:
        """May its text be longer than its values, because one occurs twice or is changed?"""
        return (
            self.repeats
            or self.placeholder_count > FEW_PLACEHOLDERS
            or any(
                isinstance(placeholder, ContextPlaceholder)
                and (placeholder.filters or any(a.formats for a in placeholder.alternatives))
                for placeholder in (placeholders(self.parts) if self.placeholder_count else ())
            )
        )

    def value(self, rendering: Rendering) -> Json:
        """The typed value of a whole placeholder, or the text."""
        if self.flaws:
            rendering.problems += self.flaw_problems(rendering.source, strict=rendering.strict)
        if self.whole:
            answer = self._part_value(self.parts[0], self.getters[0], rendering)
            if isinstance(answer, Unknown):
                return Unknown(_source_text(self.parts[0], rendering.source), answer.least)
            return _source_text(self.parts[0], rendering.source) if answer is UNDEFINED else answer
        if rendering.sealing:
            return self.text_or_secret(rendering)
        unknown, whole = rendering.unknown, self.text(rendering)
        return whole if rendering.unknown == unknown else Unknown(whole)

    def text_or_secret(self, rendering: Rendering) -> Json:
        """The text. If a secret is part of it, the text is a secret, which a sink can reveal."""
        pieces = self.pieces(rendering)
        values = [piece.value for piece in pieces if isinstance(piece, PlacedValue)]
        if any(value.__class__ is Unknown for value in values):
            return unknown_text(pieces)
        if any(map(holds_secret, values)):
            return Secret(
                "".join(p if isinstance(p, str) else reveal_text(p.value) for p in pieces)
            )
        return "".join(p if isinstance(p, str) else text(p.value) for p in pieces)

    def text(self, rendering: Rendering) -> str:
        pieces: list[str] = []
        part: Part = _NOTHING
        try:
            for part, get in self._steps:
                piece = part.text if get is None else get(rendering)  # type: ignore[union-attr]  # a Text
                if piece.__class__ is not str:
                    piece = self._part_text(part, piece, rendering)
                pieces.append(piece)
                if rendering.counted:
                    rendering.count(len(piece))
        except PlaitError as error:
            raise _locate_error(error, part, rendering.source) from None
        return "".join(pieces)

    def _part_text(self, part: Part, answer: Answer, rendering: Rendering) -> str:
        """A value as text; a placeholder without a value stays as its author wrote it."""
        if answer is UNDEFINED:
            answer = self._missing_value(part, rendering)
        if contains_unknown(answer):
            rendering.unknown += 1
            kept = _source_text(part, rendering.source)
            rendering.size += len(least_text(answer)) - len(kept)  # the caller counts `kept`
            return kept
        return (
            _source_text(part, rendering.source) if answer is UNDEFINED else rendering.show(answer)
        )

    def pieces(self, rendering: Rendering) -> list[Piece]:
        """Text and placed values, for sinks that treat the two differently."""
        pieces: list[Piece] = []
        for part, get in self._steps:
            if isinstance(part, Text):
                pieces.append(part.text)
                if rendering.counted:
                    rendering.count(len(part.text))
                continue
            answer = self._part_value(part, get, rendering)
            if answer.__class__ is not str and contains_unknown(answer):
                rendering.unknown += 1
                answer = Unknown(_source_text(part, rendering.source), least_text(answer))
            pieces.append(
                _source_text(part, rendering.source)
                if answer is UNDEFINED
                else PlacedValue(answer, part)
            )
            if rendering.counted and answer is not UNDEFINED:
                written = answer.least if isinstance(answer, Unknown) else answer
                rendering.count(
                    len(
                        written
                        if isinstance(written, str)
                        else _show_value(part, written, rendering)
                    )
                )
        return pieces

    def _part_value(self, part: Part, get: Getter | None, rendering: Rendering) -> Answer:
        """The value of a placeholder; UNDEFINED if it stays as it is written."""
        answer = resolve_placeholder(part, get, rendering)  # type: ignore[arg-type]
        return answer if answer is not UNDEFINED else self._missing_value(part, rendering)

    def _missing_value(self, placeholder: Part, rendering: Rendering) -> Answer:
        assert not isinstance(placeholder, Text | FilledPlaceholder)
        if is_unknown_bare(placeholder, rendering.names):
            return UNDEFINED
        if (
            isinstance(placeholder, ContextPlaceholder | EnvPlaceholder)
            and placeholder.required is not None
        ):
            rendering.missing.append((rendering.source, placeholder))
            return ""
        if (
            rendering.is_shell
            and not rendering.strict
            and _is_of_shell(placeholder, rendering.shell_names)
        ):
            # so is ${NAME} in capitals, and a variable that the script sets itself
            return UNDEFINED
        if rendering.strict or self.profile.always_strict:
            if placeholder.name not in rendering.shell_names:
                rendering.missing.append((rendering.source, placeholder))
            return UNDEFINED
        rendering.unanswered.append((rendering.source, placeholder))
        if isinstance(placeholder, EnvPlaceholder) or (
            isinstance(placeholder, ContextPlaceholder) and self.profile.missing_context == "empty"
        ):
            return ""
        return UNDEFINED

    def flaw_problems(self, source: Source, *, strict: bool) -> list[Problem]:
        if not self.flaws:
            return []
        return [
            Problem(flaw.what, Span(source, flaw.start, flaw.end), flaw.fix, code=flaw.code)
            for flaw in self.flaws
            if flaw.fatal or strict
        ]


def unknown_text(pieces: Sequence[Piece]) -> Unknown:
    """Join pieces of which some are unknown before a run."""
    shown = "".join(p if isinstance(p, str) else text(p.value) for p in pieces)
    return Unknown(shown, "".join(map(_least_of_piece, pieces)))


def _least_of_piece(piece: Piece) -> str:
    if isinstance(piece, str):
        return piece
    return piece.value.least if isinstance(piece.value, Unknown) else reveal_text(piece.value)


def _is_of_shell(placeholder: Placeholder, assigned: frozenset[str]) -> bool:
    return placeholder.name in assigned or (
        isinstance(placeholder, ContextPlaceholder)
        and placeholder.name.isupper()
        and "." not in placeholder.name
    )


def has_repeated(names: Sequence[str]) -> bool:
    """Does a name, or a part of its value, occur more than once?"""
    seen: set[str] = set()
    within: set[str] = set()
    if len(set(names)) < len(names):
        return True
    if not any("." in name or "[" in name for name in names):
        return False
    for name in names:
        keys = name.replace("[", ".").split(".")
        above = [".".join(keys[:at]) for at in range(1, len(keys))]
        whole = ".".join(keys)
        if whole in seen or whole in within or not seen.isdisjoint(above):
            return True
        seen.add(whole)
        within.update(above)
    return False


@lru_cache(maxsize=2048)
def _compile_small(text: str, profile: str) -> CompiledTemplate:
    parsed = parse(text, profile)
    return CompiledTemplate(parsed.parts, PROFILES[profile], parsed.flaws)


def compile_text(text: str, profile: Profile) -> CompiledTemplate:
    """The compiled form of a text; made once per text and profile."""
    if len(text) <= SMALL_TEXT:
        return _compile_small(text, profile.name)
    parsed = parse(text, profile)
    return CompiledTemplate(parsed.parts, profile, parsed.flaws)


def resolve_placeholder(part: Part, get: Getter, rendering: Rendering) -> Answer:
    """Return the value of a placeholder; add its place to an error that has none."""
    try:
        return get(rendering)
    except PlaitError as error:
        raise _locate_error(error, part, rendering.source) from None


def output_too_long(where: Span | None) -> LimitError:
    return LimitError(
        f"the rendered text is longer than {MAX_OUTPUT:,} characters",
        where,
        fix="pass a large value as a whole ('${x}' alone), or name a file instead",
        code="output-too-long",
    )


def require_bounded(value: Json, where: Span | None = None) -> None:
    """Refuse a tree that is small in memory (its parts are shared) but large when written."""
    try:
        size = json_size(value)
    except RecursionError:
        return  # too deep to be written: the serialiser reports it
    if size > MAX_OUTPUT:
        raise output_too_long(where)


class Budget:
    """The size limit for all values of one place: its variables, its config or its arguments."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_OUTPUT

    def spend(self, value: Json, where: Span | str | None) -> None:
        """Count one more value."""
        self._left -= json_size(value)
        if self._left < 0:
            raise values_too_long(where)


def values_too_long(where: Span | str | None) -> LimitError:
    return LimitError(
        f"with this one, the values here have more than {MAX_OUTPUT:,} characters together",
        where,
        fix="put a large value in once, where it is needed, or name a file instead",
        code="output-too-long",
    )


def _show_value(part: Part, value: Json, rendering: Rendering) -> str:
    try:
        return rendering.show(value)
    except PlaitError as error:
        raise _locate_error(error, part, rendering.source) from None


def _locate_error(error: PlaitError, part: Part, source: Source) -> PlaitError:
    if error.where is not None:
        return error
    return type(error)(error.what, _span(part, source), error.fix, code=error.code)


# ── what a placeholder means ────────────────────────────────────────────────────


def getter(part: Placeholder | FilledPlaceholder, profile: Profile) -> Getter:
    match part:
        case FilledPlaceholder():
            value = part.value
            return lambda _: value
        case ContextPlaceholder():
            return _context(part, profile)
        case InputPlaceholder():
            return _input(part, profile)
        case EnvPlaceholder():
            return _env(part, profile)
        case ParamPlaceholder() | PromptPlaceholder():
            name = part.name
            return lambda rendering: rendering.names.get(name, UNDEFINED)


def follow_path(value: Json, keys: tuple[str | int, ...]) -> Answer:
    """Follow keys into maps and indexes into lists; other values have no parts."""
    for key in keys:
        # The first test nearly always answers, and is much faster than the second.
        if value.__class__ is dict or isinstance(value, Mapping):
            value = value.get(key if isinstance(key, str) else str(key), UNDEFINED)
            if value is UNDEFINED:
                return UNDEFINED
        elif (
            isinstance(value, list | tuple)
            and isinstance(key, int)
            and -len(value) <= key < len(value)
        ):
            value = value[key]
        else:
            return NOT_KNOWN if value.__class__ is Unknown else UNDEFINED
    return value


def _context(placeholder: ContextPlaceholder, profile: Profile) -> Getter:
    getters = [_alternative(alternative, profile) for alternative in placeholder.alternatives]
    find = getters[0] if len(getters) == 1 else _first_value(getters)
    if placeholder.filters:
        find = _apply_filters(find, placeholder)
    if placeholder.default is not None:
        find = _with_default(find, placeholder.default, profile, null_is_missing=len(getters) > 1)
    return (
        _if_known(find, placeholder)
        if placeholder.bare and (placeholder.filters or placeholder.default is not None)
        else find
    )


def _if_known(find: Getter, placeholder: ContextPlaceholder) -> Getter:
    """Without default and filters where the placeholder counts as plain text."""
    return lambda rendering: (
        UNDEFINED if is_unknown_bare(placeholder, rendering.names) else find(rendering)
    )


def is_unknown_bare(placeholder: Placeholder, names: Container[str]) -> bool:
    """Is it `$NAME` or `${a-b}` with an unknown name? Then it is text, or belongs to the shell."""
    if not (isinstance(placeholder, ContextPlaceholder) and placeholder.bare):
        return False
    origin = placeholder.alternatives[0].origin
    return not isinstance(origin, Path) or origin.root not in names


def _alternative(alternative: Alternative, profile: Profile) -> Getter:
    find = _origin(alternative.origin, profile)
    if not alternative.formats:
        return find
    change = [_format(form) for form in alternative.formats]
    named = [(form.name, step) for form, step in zip(alternative.formats, change, strict=True)]

    def formatted(rendering: Rendering) -> Answer:
        value = find(rendering)
        if value.__class__ is not str and contains_unknown(value):
            return _made_of_unknown(value, named)
        if value is not UNDEFINED:
            for step in change:
                value = _require_short_text(step(value), steps=len(change))
        return value

    return formatted


def _format(form: Format) -> Callable[[Json], Json]:
    if form.name == "glob":
        return lambda value: filter_paths(value, form.pattern)
    return FORMATS[form.name]


def _origin(origin: Path | Literal | Computed | Extract, profile: Profile) -> Getter:
    match origin:
        case Literal():
            constant = origin.value
            return lambda _: constant
        case Path():
            return _path(origin)
        case Extract():
            return _extract(origin)
        case Computed():
            return _make_computed(origin, profile)


def _path(path: Path) -> Getter:
    root, keys = path.root, path.keys

    def find(rendering: Rendering) -> Answer:
        value = rendering.names.get(root, UNDEFINED)
        if value is UNDEFINED:
            return rendering.lookup.fallback(path) if root in FALLBACK_ROOTS else UNDEFINED
        if not keys:
            return value
        found = follow_path(value, keys)
        # A part that the value does not have may be a fact about it: `${captured.exit_code}`.
        return rendering.lookup.fallback(path) if found is UNDEFINED else found

    return find


def _extract(extract: Extract) -> Getter:
    find = _path(extract.origin)
    keys = (extract.path.root, *extract.path.keys)
    keys = tuple(int(k) if isinstance(k, str) and k.lstrip("-").isdigit() else k for k in keys)

    def extracted(rendering: Rendering) -> Answer:
        value = find(rendering)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                raise TemplateSyntaxError(
                    f"'{extract.origin}' does not hold JSON",
                    fix="capture it with capture_format: json, or look at what it holds",
                    code="not-json",
                ) from None
        return value if value is UNDEFINED else follow_path(value, keys)

    return extracted


def _make_computed(computed: Computed, profile: Profile) -> Getter:
    find = (
        _command(computed, profile)
        if computed.kind == "cmd"
        else _make_computed_text(computed, profile)
    )
    if computed.variable is None:
        return find
    root, variable = computed.kind, _alternative(computed.variable, profile)
    return lambda rendering: variable(rendering) if root in rendering.names else find(rendering)


def _make_computed_text(computed: Computed, profile: Profile) -> Getter:
    kind, argument = computed.kind, CompiledTemplate(computed.argument, profile)

    def find(rendering: Rendering) -> Answer:
        unknown, unanswered = rendering.unknown, len(rendering.missing) + len(rendering.unanswered)
        wanted = argument.text(rendering)
        if rendering.unknown > unknown:
            return NOT_KNOWN
        if len(rendering.missing) + len(rendering.unanswered) > unanswered:
            return UNDEFINED  # the file's name is not known, so its text is not known either
        return rendering.lookup.compute(kind, wanted)

    return find


def _command(computed: Computed, profile: Profile) -> Getter:
    argument = CompiledTemplate(computed.argument, profile)
    known: list[CompiledTemplate] = []
    """The argument, in which placeholders for variables of the command itself have become text."""

    def find(rendering: Rendering) -> Answer:
        if not known:
            # Few templates run commands, and the lexer for shell text is large.
            from plait.template.shell.script_names import without_own_placeholders

            known.append(
                CompiledTemplate(
                    without_own_placeholders(argument.parts, rendering.source), profile
                )
            )
        return rendering.lookup.command(known[0].pieces(rendering), rendering.source)

    return find


def _first_value(getters: list[Getter]) -> Getter:
    def find(rendering: Rendering) -> Answer:
        seen: Answer = UNDEFINED
        for get in getters:
            value = get(rendering)
            if value is not UNDEFINED and value is not None:
                return value
            seen = None if value is None else seen
        return seen

    return find


def _apply_filters(find: Getter, placeholder: ContextPlaceholder) -> Getter:
    steps = [(FILTERS[f.name][1], f.arguments, f.name == "default") for f in placeholder.filters]
    named = [(f.name, _filter(f)) for f in placeholder.filters]

    def filtered(rendering: Rendering) -> Answer:
        value = find(rendering)
        if value.__class__ is not str and contains_unknown(value):
            return _made_of_unknown(value, named)
        for function, arguments, takes_undefined in steps:
            if value is not UNDEFINED or takes_undefined:
                value = _require_short_text(function(value, *arguments), steps=len(steps))
        return value

    return filtered


def _filter(asked: Filter) -> Callable[[Json], Json]:
    function, arguments = FILTERS[asked.name][1], asked.arguments
    return lambda value: function(value, *arguments)


_GROWING: Final = frozenset({"json", "csv", "lines", "raw", "join", "upper", "lower", "trim"})
"""For a longer text, these return a text that is not shorter."""
_LEAVING: Final = frozenset({"opt", "path", "default"})
"""The result of these contains the whole text."""


def _made_of_unknown(value: Json, steps: Sequence[tuple[str, Callable[[Json], Json]]]) -> Unknown:
    """What formats and filters make of an unknown value; the part of its text that is certain
    stays known.
    """
    for name, change in steps:
        least = least_text(value) if isinstance(value, Unknown) or name == "json" else ""
        if not least or (isinstance(value, Unknown) and name not in _GROWING | _LEAVING):
            return NOT_KNOWN
        if isinstance(value, Unknown) and name in _GROWING:
            least = text(_require_short_text(change(least), steps=len(steps)))
        value = Unknown(least=least)
    return value if isinstance(value, Unknown) else NOT_KNOWN


def _require_short_text(value: Json, *, steps: int) -> Json:
    """Quoting a quoted text doubles it each time, so the growth over a chain of steps is
    limited.
    """
    if steps > 1 and isinstance(value, str | Secret):
        length = len(value if isinstance(value, str) else value.reveal())
        if length > MAX_OUTPUT:
            raise LimitError(
                f"formats and filters made a text of more than {MAX_OUTPUT:,} characters",
                fix="use fewer of them, or pass the value through a file",
                code="output-too-long",
            )
    return value


def _with_default(
    find: Getter, default: Parts, profile: Profile, *, null_is_missing: bool = False
) -> Getter:
    fallback = _default_value(default, profile)

    def find_or_default(rendering: Rendering) -> Answer:
        value = find(rendering)
        if value is UNDEFINED or (null_is_missing and value is None):
            return fallback(rendering)
        return value

    return find_or_default


def _default_value(parts: Parts, profile: Profile) -> Getter:
    """The getter of a default, which is a template itself: its unknown names stay as written in
    it.
    """
    if all(isinstance(part, Text) for part in parts):
        constant = "".join(part.text for part in parts if isinstance(part, Text))
        return lambda _: constant
    inner = CompiledTemplate(parts, profile)
    return inner.value if inner.whole else inner.text_or_secret


def _input(placeholder: InputPlaceholder, profile: Profile) -> Getter:
    key = placeholder.key

    def find(rendering: Rendering) -> Answer:
        inputs = rendering.names.get("inputs")
        return inputs.get(key, UNDEFINED) if isinstance(inputs, Mapping) else UNDEFINED

    if placeholder.default is not None:
        return _with_default(find, placeholder.default, profile)
    if not placeholder.optional:
        return find
    return lambda rendering: "" if (value := find(rendering)) is UNDEFINED else value


def _env(placeholder: EnvPlaceholder, profile: Profile) -> Getter:
    name = placeholder.name

    def find(rendering: Rendering) -> Answer:
        return rendering.env.get(name, UNDEFINED)

    return (
        find if placeholder.default is None else _with_default(find, placeholder.default, profile)
    )


# ── messages ─────────────────────────────────────────────────────────────────


def missing_names(
    missing: Sequence[tuple[Source, Placeholder]],
    names: Mapping[str, Json],
    env: Mapping[str, str],
    *,
    is_shell: bool = False,
) -> MissingNamesError:
    """One error for all missing names, with the nearest known ones."""
    unique = list(
        {
            (source, placeholder.name): (source, placeholder) for source, placeholder in missing
        }.values()
    )
    required = [
        (source, placeholder) for source, placeholder in unique if _message(placeholder) is not None
    ]
    unknown = [
        (source, placeholder) for source, placeholder in unique if _message(placeholder) is None
    ]
    problems = [_no_value_problem(placeholder, source) for source, placeholder in required]
    if unknown:
        problems.append(_unknown(unknown, names, env, is_shell=is_shell))
    error = MissingNamesError.together(problems)
    assert isinstance(error, MissingNamesError)
    error.names = tuple(dict.fromkeys(placeholder.name for _, placeholder in unique))
    return error


def _unknown(
    unknown: list[tuple[Source, Placeholder]],
    names: Mapping[str, Json],
    env: Mapping[str, str],
    *,
    is_shell: bool,
) -> Problem:
    wanted = {placeholder.name: placeholder for _, placeholder in unknown}
    guesses = dict.fromkeys(
        guess
        for name, placeholder in list(wanted.items())[:MOST_GUESSES]
        if (guess := closest_name(name, _candidate_names(placeholder, names, env)))
    )
    meant = f"did you mean {', '.join(repr(guess) for guess in guesses)}? " if guesses else ""
    of_shell = [
        name
        for name, placeholder in wanted.items()
        if is_shell and _is_of_shell(placeholder, _NO_NAMES)
    ]
    if of_shell:
        meant += f"a variable of the shell is written ${of_shell[0]}; "
    spans = [Span(source, placeholder.start, placeholder.end) for source, placeholder in unknown]
    of_kinds = {
        type(placeholder): placeholder for placeholder in reversed(wanted.values())
    }  # all placeholders of one kind know the same names
    known = dict.fromkeys(
        name
        for placeholder in reversed(of_kinds.values())
        for name in _available_names(placeholder, names, env)
    )
    return Problem(
        f"unknown variable{'s' * (len(wanted) > 1)} {', '.join(map(repr, wanted))}",
        spans[0],
        f"{meant}known here: {format_names(known, most=MOST_LISTED) or 'nothing'}",
        also=tuple(spans[1:]),
        code="unknown-name",
    )


def _candidate_names(
    placeholder: Placeholder, names: Mapping[str, Json], env: Mapping[str, str]
) -> list[str]:
    """The known names that a name of this kind of placeholder could mean."""
    return (
        suggested_names(names)
        if isinstance(placeholder, ContextPlaceholder)
        else _available_names(placeholder, names, env)
    )


def _available_names(
    placeholder: Placeholder, names: Mapping[str, Json], env: Mapping[str, str]
) -> list[str]:
    match placeholder:
        case EnvPlaceholder():
            return list(env)
        case InputPlaceholder():
            inputs = names.get("inputs")
            return [f"input:{key}" for key in inputs] if isinstance(inputs, Mapping) else []
        case ContextPlaceholder():
            return [*_with_fields(names), *(name for name in COMPUTED if name not in names)]
        case _:
            return [name for name in names if isinstance(name, str) and not name.endswith(FACTS)]


COMPUTED: Final = ("env", "uuid")
"""The names that every scope knows besides its own."""


def _with_fields(names: Mapping[str, Json]) -> Iterator[str]:
    """Every name, and the fields of each map."""
    for name, value in names.items():
        if isinstance(name, str) and not name.endswith(FACTS):
            fields = (
                [key for key in value if isinstance(key, str)] if isinstance(value, Mapping) else []
            )
            yield from [f"{name}.{key}" for key in fields] or [name]


def _message(placeholder: Placeholder) -> str | None:
    return (
        placeholder.required
        if isinstance(placeholder, ContextPlaceholder | EnvPlaceholder)
        else None
    )


def _no_value_problem(placeholder: Placeholder, source: Source) -> Problem:
    message = _message(placeholder)
    return Problem(
        f"'{placeholder.name}' is required" + (f": {message}" if message else ""),
        _span(placeholder, source),
        f"give '{placeholder.name}' a value",
        code="required-name",
    )


def suggested_names(names: Mapping[str, Json], *, depth: int = 3, most: int = 2000) -> list[str]:
    """Names and dotted paths that the author may have meant."""
    found: list[str] = []
    level = [
        (name.removesuffix(FACTS), value) for name, value in names.items() if isinstance(name, str)
    ]
    for _ in range(depth):
        deeper: list[tuple[str, Json]] = []
        for name, value in level:
            found.append(name)
            if isinstance(value, Mapping):
                deeper += [
                    (f"{name}.{key}", inner) for key, inner in value.items() if isinstance(key, str)
                ]
            if len(found) >= most:
                return found
        level = deeper
    return found


def _source_text(part: Part, source: Source) -> str:
    assert not isinstance(part, Text)
    return source.text[part.start : part.end]


def _span(part: Part, source: Source) -> Span:
    assert not isinstance(part, Text)
    return Span(source, part.start, part.end)
