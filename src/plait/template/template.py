"""A template, or a tree of templates, that is rendered many times.

The first renderings use closures. A template that is rendered often gets one generated function for
its whole tree; where that function cannot answer, the closures do and report all missing names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from plait.core.errors import InputError, LimitError, PromptTemplateError, closest_name
from plait.core.hints import Final, TypeAlias
from plait.core.records import dataclass, replace
from plait.core.source import Source, Span
from plait.core.values import UNDEFINED, Json
from plait.template.compiled import (
    FEW_PLACEHOLDERS,
    MOST_GUESSES,
    CompiledTemplate,
    Lookup,
    Piece,
    PlainLookup,
    Rendering,
    compile_text,
    getter,
    has_repeated,
    require_bounded,
    resolve_placeholder,
    suggested_names,
)
from plait.template.nodes import (
    Computed,
    ContextPlaceholder,
    EnvPlaceholder,
    FilledPlaceholder,
    InputPlaceholder,
    MalformedPlaceholder,
    ParamPlaceholder,
    Part,
    Parts,
    Placeholder,
    PromptPlaceholder,
    Text,
    default_parts,
)
from plait.template.nodes import (
    placeholders as placeholders,
)
from plait.template.profiles import Profile, profile_named

RENDERINGS_UNTIL_HOT: Final = 200
SURPRISES_UNTIL_CAUTIOUS: Final = 50
MAX_TREE_DEPTH: Final = 100


LookupMaker: TypeAlias = Callable[[Mapping[str, Json], Mapping[str, str] | None], Lookup]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A string of the tree."""

    compiled: CompiledTemplate
    source: Source


@dataclass(frozen=True, slots=True)
class Branch:
    """A list, or a map when `keys` is given.  Keys are never templates."""

    items: tuple[Node, ...]
    keys: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, a boolean or null."""

    value: Json


Node: TypeAlias = Leaf | Branch | Constant


class PlaceholderName(str):
    """The name in a placeholder, and what kind of placeholder it is."""

    __slots__ = ("kind", "stage", "text")
    kind: str
    stage: int
    text: str


class Template:
    """Compiled templates: `render`, `fill`, `placeholders`."""

    __slots__ = (
        "_lookup_of", "_renderings", "_surprises", "counted", "many", "profile", "repeated", "root",
    )  # fmt: skip

    def __init__(self, root: Node, profile: Profile, lookup_of: LookupMaker | None = None) -> None:
        self.root = root
        self.profile = profile
        self._lookup_of = lookup_of
        self._renderings = 0
        self._surprises = 0
        leaves = self.leaves()
        self.many = sum(leaf.compiled.placeholder_count for leaf in leaves) > FEW_PLACEHOLDERS
        self.repeated = not self.many and _has_repeated(leaves)
        """A name occurs more than once, so the output can be larger than the values."""
        self.counted = self.many or self.repeated

    def __repr__(self) -> str:
        return f"Template({self.profile.name}, {len(self.placeholders)} placeholders)"

    @property
    def placeholders(self) -> tuple[PlaceholderName, ...]:
        """The names of all placeholders, once each, in order of appearance."""
        found: dict[str, PlaceholderName] = {}
        for leaf in self.leaves():
            for placeholder in placeholders(leaf.compiled.parts):
                found.setdefault(placeholder.name, _placeholder_name(placeholder, leaf.source))
        return tuple(found.values())

    @property
    def flaws(self) -> list[tuple[Source, MalformedPlaceholder]]:
        return [(leaf.source, flaw) for leaf in self.leaves() for flaw in leaf.compiled.flaws]

    @property
    def may_grow(self) -> bool:
        """May its text become longer than the values in it?"""
        return self.counted or any(leaf.compiled.may_grow for leaf in self.leaves())

    def leaves(self) -> list[Leaf]:
        return _leaves(self.root)

    def render(
        self,
        values: Mapping[str, Json] | Lookup,
        *,
        strict: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> Json:
        """The value of a template that is one placeholder, otherwise text; a tree with both inside."""
        if self.__class__ is not Template:
            return self.render(
                values, strict=strict, env=env
            )  # this method was fetched before it got hot
        self._renderings += 1
        if self._renderings > RENDERINGS_UNTIL_HOT:
            self._specialise(values, strict=strict, env=env, bold=True)
        return self.render_checked(values, strict=strict, env=env)

    def render_checked(
        self,
        values: Mapping[str, Json] | Lookup,
        *,
        strict: bool = False,
        env: Mapping[str, str] | None = None,
        sealing: bool = False,
    ) -> Json:
        """Render by closures; report everything that is missing or malformed.

        `sealing`: text with a secret in it is a secret, instead of showing `***` in its place.
        """
        rendering = self.rendering(values, strict=strict, env=env)
        rendering.sealing = sealing
        value = _value(self.root, rendering)
        self._finish(rendering)
        if self.repeated and self.root.__class__ is Branch:
            require_bounded(value)
        return value

    def with_root(self, root: Node) -> Template:
        """The same template for another tree, such as a part of this one."""
        return self if root == self.root else Template(root, self.profile, self._lookup_of)

    def pieces(
        self,
        values: Mapping[str, Json] | Lookup,
        *,
        strict: bool = False,
        env: Mapping[str, str] | None = None,
        shell_names: frozenset[str] | None = None,
    ) -> list[Piece]:
        """Text and placed values of a single string, for the sinks.

        `shell_names`: it is shell text, and sets these variables itself.
        """
        leaf = self.leaf
        rendering = self.rendering(values, strict=strict, env=env)
        if shell_names is not None:
            rendering.is_shell, rendering.shell_names = True, shell_names
        rendering.source = leaf.source
        rendering.problems += leaf.compiled.flaw_problems(leaf.source, strict=strict)
        pieces = leaf.compiled.pieces(rendering)
        self._finish(rendering)
        return pieces

    def fill(
        self,
        values: Mapping[str, Json] | Lookup,
        *,
        stage: int,
        env: Mapping[str, str] | None = None,
    ) -> Template:
        """Answer the placeholders of one stage; an answer is never read as a template."""
        rendering = self.rendering(values, strict=False, env=env)
        root = _fill_node(self.root, stage, rendering)
        self._finish(rendering)
        return Template(root, self.profile, self._lookup_of)

    def rendering(
        self, values: Mapping[str, Json] | Lookup, *, strict: bool, env: Mapping[str, str] | None
    ) -> Rendering:
        source = self.root.source if isinstance(self.root, Leaf) else _NOWHERE
        return Rendering(
            _names(values),
            lambda: self.lookup(values, env),
            env=_require_env(env),
            strict=strict,
            source=source,
            counted=self.counted,
        )

    def lookup(self, values: Mapping[str, Json] | Lookup, env: Mapping[str, str] | None) -> Lookup:
        if isinstance(values, Mapping):
            return self._lookup_of(values, env) if self._lookup_of else PlainLookup(values)
        return values

    @property
    def leaf(self) -> Leaf:
        if isinstance(self.root, Leaf):
            return self.root
        raise InputError("a single text is needed here, not a list or map", code="wrong-type")

    def render_fallback(
        self,
        values: Mapping[str, Json] | Lookup,
        *,
        strict: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> Json:
        """Render what the generated function could not; if that happens often, generate a
        more careful function.
        """
        self._surprises += 1
        if self._surprises == SURPRISES_UNTIL_CAUTIOUS:
            self._specialise(values, strict=strict, env=env, bold=False)
        return self.render_checked(values, strict=strict, env=env)

    def _specialise(
        self,
        values: Mapping[str, Json] | Lookup,
        *,
        strict: bool,
        env: Mapping[str, str] | None,
        bold: bool,
    ) -> None:
        """Generate a `render` for this template alone, shaped by values like these."""
        from plait.template.codegen import generate  # only hot templates need it

        sample = self.rendering(values, strict=strict, env=env)
        render = generate(self, sample, values, bold=bold)
        # The method needs a class of its own: CPython finds a method faster than an attribute of an
        # object.
        self.__class__ = type("Template", (Template,), {"__slots__": (), "render": render})

    def _finish(self, rendering: Rendering) -> None:
        if rendering.missing and self.profile.name == "prompt":
            raise _prompt_error(rendering)
        rendering.finish()
        if rendering.unanswered and self.profile.missing_context == "empty":
            _warn(rendering)


_NOWHERE: Final = Source("<template>", "")
_NO_ENV: Final[Mapping[str, str]] = {}


def _require_env(env: Mapping[str, str] | None) -> Mapping[str, str]:
    if env is None:
        return _NO_ENV
    if isinstance(env, Mapping):
        return env
    raise InputError(
        f"env is a map of names, not {_type_name(env)}",
        fix='pass {"NAME": "value"}',
        code="wrong-type",
    )


def _names(values: Mapping[str, Json] | Lookup) -> Mapping[str, Json]:
    # The first test is the faster one.
    if values.__class__ is dict or isinstance(values, Mapping):
        return values
    if hasattr(values, "names") and hasattr(values, "fallback"):
        return values.names
    raise InputError(
        f"values are a map of names, not {_type_name(values)}",
        fix='pass a map, for example {"name": "value"}, or a plait.Scope',
        code="wrong-type",
    )


def compile_template(
    template: Json,
    profile: str = "workflow",
    *,
    source: Source | None = None,
    lookup_of: LookupMaker | None = None,
) -> Template:
    """A template for a string, or for every string of a list or map."""
    rules = profile_named(profile)
    return Template(_node(template, rules, source or "<template>", 0), rules, lookup_of)


def _node(template: Json, profile: Profile, place: Source | str, depth: int) -> Node:
    if isinstance(template, str):
        source = place if isinstance(place, Source) else Source(place, template)
        return Leaf(compile_text(template, profile), source)
    name = place if isinstance(place, str) else place.name
    if depth > MAX_TREE_DEPTH and isinstance(template, Mapping | list | tuple):
        raise LimitError(
            f"this value is nested more than {MAX_TREE_DEPTH} levels deep",
            name,
            code="nested-too-deep",
        )
    if template.__class__ is dict or isinstance(template, Mapping):
        items = tuple(
            _node(item, profile, f"{name}.{key}", depth + 1) for key, item in template.items()
        )
        return Branch(items, tuple(template))
    if isinstance(template, list | tuple):
        return Branch(
            tuple(
                _node(item, profile, f"{name}[{i}]", depth + 1) for i, item in enumerate(template)
            )
        )
    if template is None or isinstance(template, bool | int | float):
        return Constant(template)
    raise InputError(
        f"a template is text, a list or a map, not {_type_name(template)}",
        name,
        fix="pass a string, or JSON data that contains strings",
        code="wrong-type",
    )


def _value(node: Node, rendering: Rendering) -> Json:
    # Not `match`, which is slower: this is asked of every string that is rendered.
    if isinstance(node, Leaf):
        rendering.source = node.source
        return node.compiled.value(rendering)
    if isinstance(node, Constant):
        return node.value
    values = [_value(item, rendering) for item in node.items]
    return values if node.keys is None else dict(zip(node.keys, values, strict=True))


def _leaves(node: Node) -> list[Leaf]:
    match node:
        case Leaf():
            return [node]
        case Branch():
            return [leaf for item in node.items for leaf in _leaves(item)]
        case Constant():
            return []


def _has_repeated(leaves: Sequence[Leaf]) -> bool:
    if len(leaves) == 1:
        return leaves[0].compiled.repeats
    names = [name for leaf in leaves for name in leaf.compiled.names]
    return len(names) > 1 and has_repeated(names)


# ── stages ───────────────────────────────────────────────────────────────


def _fill_node(node: Node, stage: int, rendering: Rendering) -> Node:
    match node:
        case Leaf(old, source):
            rendering.source = source
            parts = _fill_parts(old.parts, stage, rendering, old.profile)
            return Leaf(CompiledTemplate(parts, old.profile, old.flaws), source)
        case Branch(items, keys):
            return Branch(tuple(_fill_node(item, stage, rendering) for item in items), keys)
        case Constant():
            return node


def _fill_parts(parts: Parts, stage: int, rendering: Rendering, profile: Profile) -> Parts:
    return tuple(filled for part in parts for filled in _fill_part(part, stage, rendering, profile))


def _fill_part(part: Part, stage: int, rendering: Rendering, profile: Profile) -> Parts:
    if isinstance(part, Text | FilledPlaceholder):
        return (part,)
    part = _with_filled_inner(part, stage, rendering, profile)
    if part.stage != stage:
        return (part,)
    default = default_parts(part)
    if default is not None and _needs_default(part, rendering, profile):
        # Placeholders of a later stage inside the default stay placeholders.
        # Empty text counts as a part: a placeholder beside it is not a whole value.
        return _fill_parts(default, stage, rendering, profile) or (Text(""),)
    [piece] = CompiledTemplate((part,), profile).pieces(rendering)
    return (
        (part,)
        if isinstance(piece, str)
        else (FilledPlaceholder(piece.value, part.start, part.end, part),)
    )


def _needs_default(placeholder: Placeholder, rendering: Rendering, profile: Profile) -> bool:
    if isinstance(placeholder, ParamPlaceholder | PromptPlaceholder):
        return False
    answer = resolve_placeholder(
        placeholder, getter(replace(placeholder, default=None), profile), rendering
    )
    one_of_several = (
        isinstance(placeholder, ContextPlaceholder) and len(placeholder.alternatives) > 1
    )
    return answer is UNDEFINED or (one_of_several and answer is None)


def _with_filled_inner(
    placeholder: Placeholder, stage: int, rendering: Rendering, profile: Profile
) -> Placeholder:
    """Fill the placeholders inside a default or an argument that belong to this stage."""
    match placeholder:
        case ContextPlaceholder():
            alternatives = tuple(
                replace(
                    a,
                    origin=replace(o, argument=_fill_parts(o.argument, stage, rendering, profile)),
                )
                if isinstance(o := a.origin, Computed)
                else a
                for a in placeholder.alternatives
            )
            placeholder = replace(placeholder, alternatives=alternatives)
        case ParamPlaceholder() | PromptPlaceholder():
            return placeholder
        case InputPlaceholder() | EnvPlaceholder():
            pass
    if placeholder.default is None or placeholder.stage == stage:
        return placeholder
    return replace(placeholder, default=_fill_parts(placeholder.default, stage, rendering, profile))


# ── messages ─────────────────────────────────────────────────────────────────


def _placeholder_name(placeholder: Placeholder, source: Source) -> PlaceholderName:
    name = PlaceholderName(placeholder.name)
    name.kind, name.stage = placeholder.kind, placeholder.stage
    name.text = source.text[placeholder.start : placeholder.end]
    return name


def _prompt_error(rendering: Rendering) -> PromptTemplateError:
    names = list(dict.fromkeys(placeholder.name for _, placeholder in rendering.missing))
    template = rendering.missing[0][0].text
    shown = template if len(template) <= 100 else template[:100] + "..."
    return PromptTemplateError(
        f"Missing template variables: [{', '.join(names)}]. "
        f"Provide them in ensemble.run(inputs). Template: '{shown}'",
        names,
        template,
    )


def _warn(rendering: Rendering) -> None:
    """Report each missing name to the caller if it wants to know, otherwise to the log."""
    known = suggested_names(rendering.names)
    report = getattr(rendering.lookup, "report_missing", None) or _log_missed
    for count, (source, placeholder) in enumerate(rendering.unanswered):
        if isinstance(placeholder, ContextPlaceholder):
            guess = closest_name(placeholder.name, known) if count < MOST_GUESSES else None
            report(Span(source, placeholder.start, placeholder.end), placeholder.name, guess)


def _log_missed(where: Span, name: str, guess: str | None) -> None:
    import logging  # slow to import, and only a missing name needs it

    logging.getLogger("plait.template").warning(
        "%s: unknown variable '%s'; it stays empty%s",
        where,
        name,
        f" (did you mean '{guess}'?)" if guess else "",
    )


def _type_name(value: object) -> str:
    return {"NoneType": "null"}.get(type(value).__name__, type(value).__name__)
