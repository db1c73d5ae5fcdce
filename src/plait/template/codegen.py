"""Generate one function for a hot template, with the lookups of its plain placeholders inlined.

The function assumes that later values look like those at generation time: which placeholders hold
text, which hold numbers, which defaults are used. Anything else (a missing name, a list instead of
a map, a number instead of text) raises, and the closures render the template from the beginning. So
this module can cost time, but never change a result.

The author's text enters the generated source only as `repr` literals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from plait.core.errors import PlaitError, ValueRefusedError
from plait.core.hints import Final, cast
from plait.core.source import Source
from plait.core.values import UNDEFINED, Json, contains_unknown, text
from plait.template.compiled import (
    FALLBACK_ROOTS,
    MAX_OUTPUT,
    Answer,
    CompiledTemplate,
    Getter,
    Rendering,
    follow_path,
    require_bounded,
    resolve_placeholder,
)
from plait.template.grammar import MAX_TEXT
from plait.template.nodes import (
    ContextPlaceholder,
    EnvPlaceholder,
    InputPlaceholder,
    ParamPlaceholder,
    Part,
    Parts,
    Path,
    PromptPlaceholder,
    Text,
)
from plait.template.template import Branch, Constant, Leaf, Node, Template

FORMATTED: Final = 8
"""Up to this many pieces, an f-string that tests each value is as fast as `join`."""


def generate(
    template: Template, sample: Rendering, values: object, *, bold: bool = True
) -> Callable[..., Json]:
    """Return a method `render` for a template, generated for values like the present ones.

    `values`: a dict, or a scope; the method accepts only scopes of the same class. `bold`:
    assume that a placeholder that holds text now always holds text.
    """
    # These check the size of every value while they render, and report each flaw every time.
    if template.many or template.flaws:
        return Template.render_checked
    return _Writer(template, sample, values, bold=bold).function()


class _Surprise(Exception):
    """Raised if the closures must render instead."""


class _Writer:
    def __init__(
        self, template: Template, sample: Rendering, values: object, *, bold: bool
    ) -> None:
        self.template = template
        self.sample = sample
        self.names = "values" if isinstance(values, Mapping) else "d"
        self.bold = bold
        self.lines: list[str] = []
        self.known: dict[tuple[str, ...], str] = {}
        self.given: dict[str, object] = {
            "show": _exact_text,
            "walk": follow_path,
            # As globals these are found in one lookup; builtins need two.
            "dict": dict,
            "str": str,
            "int": int,
            "ask": resolve_placeholder,
            "join": "".join,
            "missing": UNDEFINED,
            "Scope": values.__class__,
            "Surprise": _Surprise,
            "containers": (dict, list, tuple),
            "require_bounded": require_bounded,
            # The last two: a number too long to print, and a value without a text form.
            "Surprises": (
                _Surprise,
                KeyError,
                TypeError,
                AttributeError,
                ValueError,
                ValueRefusedError,
            ),
        }
        self.asks = False
        self.asks_in: Source | None = None
        self.guarded: set[str] = set()
        self.bounded: set[str] = set()
        self.wholes: list[str] = []
        placeholders = sum(leaf.compiled.placeholder_count for leaf in template.leaves())
        self.most = (MAX_OUTPUT - MAX_TEXT) // max(placeholders, 1)
        """Characters per value up to which the whole text cannot be too long."""
        self.variables = 0

    def function(self) -> Callable[..., Json]:
        result = self._node(self.template.root)
        if self.asks:
            self.lines.insert(0, "r = self.rendering(values, strict=strict, env=env)")
            self.lines.append("if r.missing or r.unanswered or r.problems: raise Surprise")
        if self.names == "d":
            self.lines[:0] = [
                "if values.__class__ is not Scope: raise Surprise",
                "d = values.names",
            ]
        self.lines.append(f"whole = {result}" if self.wholes else f"return {result}")
        if self.wholes:
            is_large = " or ".join(
                f"({self._is_large(name)})" for name in dict.fromkeys(self.wholes)
            )
            self.lines += [f"if {is_large}: require_bounded(whole)", "return whole"]
        body = "\n        ".join(self.lines)
        # Switches are keyword-only only in the type: CPython calls this form much faster.
        source = (
            f"def render(self, values, strict=False, env=None):\n"
            f"    try:\n"
            f"        {body}\n"
            f"    except Surprises:\n"
            f"        pass\n"
            f"    return self.render_fallback(values, strict=strict, env=env)\n"
        )
        # See the docstring: the source holds names and literals only.
        exec(compile(source, "<generated for a template>", "exec"), self.given)
        return cast(Callable[..., Json], self.given["render"])

    # ── the tree ─────────────────────────────────────────────────────────

    def _node(self, node: Node) -> str:
        match node:
            case Constant():
                return self._constant(node.value)
            case Leaf():
                self.sample.source = node.source
                return self._leaf(node.compiled)
            case Branch(items, None):
                return "[" + ", ".join(self._node(item) for item in items) + "]"
            case Branch(items, keys):
                pairs = zip(keys or (), items, strict=True)
                return (
                    "{"
                    + ", ".join(f"{self._key(key)}: {self._node(item)}" for key, item in pairs)
                    + "}"
                )

    def _leaf(self, compiled: CompiledTemplate) -> str:
        if compiled.whole:
            variable = self._value(compiled.parts[0], compiled.getters[0])[0]
            self.wholes += [variable] if self.template.repeated else []
            return variable
        if not compiled.parts:
            return "''"
        pieces = list(zip(compiled.parts, compiled.getters, strict=True))
        if len(pieces) <= FORMATTED:
            # Adjacent literals are one f-string.
            return "(" + " ".join(self._format_part(part, get) for part, get in pieces) + ")"
        return f"join(({', '.join(self._join_part(part, get) for part, get in pieces)}))"

    def _format_part(self, part: Part, get: Getter | None) -> str:
        """An expression for a part: a literal, or an f-string of one value."""
        if isinstance(part, Text):
            return repr(part.text)
        variable, seen = self._in_text(part, get)
        ready = "int" if seen.__class__ is int else "str"
        return f"f'{{{variable} if {variable}.__class__ is {ready} else show({variable})}}'"

    def _join_part(self, part: Part, get: Getter | None) -> str:
        """An expression for a part: text, or a value that `join` refuses."""
        if isinstance(part, Text):
            return repr(part.text)
        variable, seen = self._in_text(part, get)
        if isinstance(seen, str) and self.bold:
            return variable
        if seen.__class__ is int:
            return f"(f'{{{variable}}}' if {variable}.__class__ is int else show({variable}))"
        return f"({variable} if {variable}.__class__ is str else show({variable}))"

    def _in_text(self, part: Part, get: Getter | None) -> tuple[str, Answer]:
        """The variable and present value of a placeholder in text.

        If a name occurs more than once, the generated code leaves a long value to the
        closures, which count the size.
        """
        variable, seen = self._value(part, get)
        if self.template.repeated and variable not in self.bounded:
            self.bounded.add(variable)
            self.lines.append(f"if {self._is_large(variable)}: raise Surprise")
        return variable, seen

    def _is_large(self, variable: str) -> str:
        """May a value that occurs more than once be too long? A tree always may."""
        is_text = f"{variable}.__class__ is str"
        return f"len({variable}) > {self.most} if {is_text} else {variable}.__class__ in containers"

    def _key(self, key: object) -> str:
        # A key may be of a type whose repr is not its literal.
        return repr(key) if key.__class__ is str else self._add_constant(key)

    def _constant(self, value: Json) -> str:
        return (
            repr(value)
            if value is None or value.__class__ in (bool, int)
            else self._add_constant(value)
        )

    def _add_constant(self, value: object) -> str:
        name = f"k{len(self.given)}"
        self.given[name] = value
        return name

    # ── placeholders ────────────────────────────────────────────────────────────

    def _value(self, part: Part, get: Getter | None) -> tuple[str, Answer]:
        """A variable with the value of the placeholder, and its present value."""
        assert get is not None
        seen = self._sample_value(get)
        match part:
            case ContextPlaceholder() if (path := _plain_path(part)) is not None:
                return self._lookup(self.names, path, part.default), seen
            case InputPlaceholder(default=None, optional=False):
                return self._lookup(self.names, ("inputs", part.key), None), seen
            case EnvPlaceholder() if _is_constant(part.default):
                return self._lookup("env", (part.name,), part.default), seen
            case ParamPlaceholder() | PromptPlaceholder():
                return self._lookup(self.names, (part.name,), None), seen
            case _:
                return self._call_getter(part, get), seen

    def _sample_value(self, get: Getter) -> Answer:
        try:
            return get(self.sample)
        except PlaitError:
            return UNDEFINED  # this rendering fails and reports the error; the next one may succeed

    def _lookup(self, names: str, path: tuple[str, ...], default: Parts | None) -> str:
        if default is None:
            return self._follow_path(names, path)
        variable, constant = self._fresh(), repr(_literal_text(default))
        *outer, key = path
        if not (self.bold and self._is_map(names, outer)):
            self._guard(names)
            self.lines.append(f"{variable} = walk({names}, {path!r})")
            self.lines.append(f"if {variable} is missing: {variable} = {constant}")
            return variable
        self.lines.append(
            f"{variable} = {self._follow_path(names, outer)}.get({key!r}, {constant})"
        )
        return variable

    def _is_map(self, names: str, path: Sequence[str]) -> bool:
        """Is the present value at a path a map?"""
        known = self.sample.env if names == "env" else self.sample.names
        return isinstance(follow_path(known, tuple(path)), Mapping)

    def _follow_path(self, names: str, path: Sequence[str]) -> str:
        """Look up step by step; a part that several placeholders share is looked up once."""
        at = names
        for count, key in enumerate(path, start=1):
            known = (names, *path[:count])
            if known not in self.known:
                self._guard(at)
                self.known[known] = self._fresh()
                self.lines.append(f"{self.known[known]} = {at}[{key!r}]")
            at = self.known[known]
        return at

    def _guard(self, base: str) -> None:
        """Only a plain dict may be subscripted: a `defaultdict` would invent what is missing."""
        if base != "env" and base not in self.guarded:
            self.guarded.add(base)
            self.lines.append(f"if {base}.__class__ is not dict: raise Surprise")

    def _call_getter(self, part: Part, get: Getter) -> str:
        """Call the closure of a placeholder with filters, alternatives, indexes or computed
        values.
        """
        self.asks = True
        if self.asks_in is not self.sample.source:
            # Its errors, and text that stays as written, refer to the source of the placeholder.
            self.asks_in = self.sample.source
            self.lines.append(f"r.source = {self._add_constant(self.asks_in)}")
        variable = self._fresh()
        self.lines.append(
            f"{variable} = ask({self._add_constant(part)}, {self._add_constant(get)}, r)"
        )
        self.lines.append(f"if {variable} is missing: raise Surprise")
        return variable

    def _fresh(self) -> str:
        self.variables += 1
        return f"v{self.variables}"


def _plain_path(placeholder: ContextPlaceholder) -> tuple[str, ...] | None:
    """The keys of a placeholder that is a path of names, with at most a constant default."""
    [first, *others] = placeholder.alternatives
    if placeholder.bare and placeholder.default is not None:
        return None
    if others or placeholder.filters or first.formats or not isinstance(first.origin, Path):
        return None
    path = (first.origin.root, *first.origin.keys)
    plain = first.origin.root not in FALLBACK_ROOTS and _is_constant(placeholder.default)
    names = tuple(key for key in path if isinstance(key, str))
    return names if plain and len(names) == len(path) else None


def _is_constant(default: Parts | None) -> bool:
    return default is None or all(isinstance(part, Text) for part in default)


def _literal_text(default: Parts) -> str:
    return "".join(part.text for part in default if isinstance(part, Text))


def _exact_text(value: Json) -> str:
    if contains_unknown(value):
        raise _Surprise  # the text is unknown as a whole
    # A type derived from str may format itself in its own way; `join` takes its characters.
    return "".join((text(value),))
