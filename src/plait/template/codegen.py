"""One generated function for a hot template: the lookups of its plain holes, inlined.

The function is an optimist.  It reads plain names from one dict and joins; any
surprise (a missing name, a list where a map was expected, a number where text
was) raises, and the careful rendering starts again from the beginning.  So this
module may be wrong about speed, never about meaning.

The values at hand when the function is made shape it: which holes hold text,
which numbers, which defaults are used.  Text of the author enters the generated
source only as `repr` literals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from plait.template.nodes import (
    ContextHole,
    EnvHole,
    InputHole,
    ParamHole,
    Part,
    Parts,
    Path,
    PromptHole,
    Text,
)
from plait.template.program import FALLBACK_ROOTS, Answer, Getter, Program, Rendering
from plait.template.template import Branch, Constant, Leaf, Node, Render, Template
from plait.values import UNDEFINED, Json, text

CONCATENATED: Final = 8
"""Up to this many pieces `a + b + c` is faster than `join`."""


def generate(template: Template, sample: Rendering, *, plain: bool, bold: bool = True) -> Render:
    """A render function for a template, shaped by the values seen just now.

    `plain`: the values come as a dict, not as a scope.  `bold`: a hole that
    holds text now is taken to hold text always.
    """
    # What could grow without bound is counted while it grows, and a flaw is reported each time.
    if template.counted or template.flaws:
        return template.careful
    return _Writer(template, sample, plain=plain, bold=bold).function()


class _Surprise(Exception):
    """The careful way must answer."""


class _Writer:
    def __init__(self, template: Template, sample: Rendering, *, plain: bool, bold: bool) -> None:
        self.template = template
        self.sample = sample
        self.names = "values" if plain else "d"
        self.bold = bold
        self.lines: list[str] = []
        self.known: dict[tuple[str, ...], str] = {}
        self.given: dict[str, object] = {
            "surprised": template.surprised,
            "rendering_of": template.rendering,
            "show": text,
            "join": "".join,
            "missing": UNDEFINED,
            "Surprise": _Surprise,
            "Surprises": (_Surprise, KeyError, TypeError, AttributeError),
            "Absent": (KeyError, TypeError),
        }
        self.asks = False
        self.variables = 0

    def function(self) -> Render:
        result = self._node(self.template.root)
        if self.asks:
            self.lines.insert(0, "r = rendering_of(values, strict=strict, env=env)")
            self.lines.append("if r.missing or r.unanswered or r.problems: raise Surprise")
        if self.names == "d":
            self.lines.insert(0, "d = values.names")
        body = "\n            ".join([*self.lines, f"return {result}"])
        # Names are arguments of a maker, so that the function reads cells and not globals.
        source = (
            f"def make({', '.join(self.given)}):\n"
            f"    def render(values, *, strict=False, env=None):\n"
            f"        try:\n"
            f"            {body}\n"
            f"        except Surprises:\n"
            f"            pass\n"
            f"        return surprised(values, strict=strict, env=env)\n"
            f"    return render\n"
        )
        made: dict[str, object] = {}
        exec(compile(source, "<generated for a template>", "exec"), {}, made)  # see the docstring: literals only
        make = cast(Callable[..., Render], made["make"])
        return make(**self.given)

    # ── the tree ─────────────────────────────────────────────────────────

    def _node(self, node: Node) -> str:
        match node:
            case Constant():
                return self._constant(node.value)
            case Leaf():
                self.sample.source = node.source
                return self._leaf(node.program)
            case Branch(items, None):
                return "[" + ", ".join(self._node(item) for item in items) + "]"
            case Branch(items, keys):
                pairs = zip(keys or (), items, strict=True)
                return "{" + ", ".join(f"{key!r}: {self._node(item)}" for key, item in pairs) + "}"

    def _leaf(self, program: Program) -> str:
        if program.whole:
            return self._value(program.parts[0], program.getters[0])[0]
        if not program.parts:
            return "''"
        pieces = [self._piece(part, get) for part, get in zip(program.parts, program.getters, strict=True)]
        if len(pieces) == 1:
            return f"join(({pieces[0]},))"
        if len(pieces) > CONCATENATED:
            return f"join(({', '.join(pieces)}))"
        if not any(isinstance(part, Text) for part in program.parts[:2]):
            pieces.insert(0, "''")  # two numbers side by side must not add up
        return " + ".join(pieces)

    def _piece(self, part: Part, get: Getter | None) -> str:
        """An expression that is text, or fails as soon as it is joined with text."""
        if isinstance(part, Text):
            return repr(part.text)
        variable, seen = self._value(part, get)
        if isinstance(seen, str) and self.bold:
            return variable
        if type(seen) is int and self.bold:
            return f'(f"{{{variable}}}" if {variable}.__class__ is int else {variable})'
        return f"({variable} if {variable}.__class__ is str else show({variable}))"

    def _constant(self, value: Json) -> str:
        if value is None or isinstance(value, bool | int):
            return repr(value)
        name = f"k{len(self.given)}"
        self.given[name] = value
        return name

    # ── holes ────────────────────────────────────────────────────────────

    def _value(self, part: Part, get: Getter | None) -> tuple[str, Answer]:
        """A variable that holds the hole's value, and the value it has now."""
        assert get is not None
        seen = get(self.sample)
        match part:
            case ContextHole() if (path := _plain_path(part)) is not None:
                return self._lookup(self.names, path, part.default, seen), seen
            case InputHole(default=None, optional=False):
                return self._lookup(self.names, ("inputs", part.key), None, seen), seen
            case EnvHole() if _is_constant(part.default):
                return self._lookup("env", (part.name,), part.default, seen), seen
            case ParamHole() | PromptHole():
                return self._lookup(self.names, (part.name,), None, seen), seen
            case _:
                return self._asked(get), seen

    def _lookup(self, names: str, path: tuple[str, ...], default: Parts | None, seen: Answer) -> str:
        if default is None:
            return self._walked(names, path)
        # What an earlier hole needs anyway is not looked up again.
        shared = next((n for n in range(len(path) - 1, 0, -1) if (names, *path[:n]) in self.known), 0)
        base = self.known[(names, *path[:shared])] if shared else names
        variable = self._fresh()
        constant = repr(_joined_text(default))
        if not self.bold or seen == _joined_text(default):  # the default is in use: do not pay for an exception
            self.lines.append(f"{variable} = {base}.get({path[shared]!r}, missing)")
            for key in path[shared + 1 :]:
                self.lines.append(f"if {variable} is not missing: {variable} = {variable}.get({key!r}, missing)")
            self.lines.append(f"if {variable} is missing: {variable} = {constant}")
        else:
            steps = "".join(f"[{key!r}]" for key in path[shared:])
            self.lines += [f"try: {variable} = {base}{steps}", f"except Absent: {variable} = {constant}"]
        return variable

    def _walked(self, names: str, path: tuple[str, ...]) -> str:
        """Look up step by step; what several holes share is looked up once."""
        at = names
        for count, key in enumerate(path, start=1):
            known = (names, *path[:count])
            if known not in self.known:
                self.known[known] = self._fresh()
                self.lines.append(f"{self.known[known]} = {at}[{key!r}]")
            at = self.known[known]
        return at

    def _asked(self, get: Getter) -> str:
        """A hole with filters, alternatives, indexes or computed values: ask its closure."""
        self.asks = True
        asked, variable = f"g{len(self.given)}", self._fresh()
        self.given[asked] = get
        self.lines += [f"{variable} = {asked}(r)", f"if {variable} is missing: raise Surprise"]
        return variable

    def _fresh(self) -> str:
        self.variables += 1
        return f"v{self.variables}"


def _plain_path(hole: ContextHole) -> tuple[str, ...] | None:
    """The keys of a hole that is a path of names, with at most a constant default."""
    [first, *others] = hole.alternatives
    if others or hole.filters or first.formats or not isinstance(first.origin, Path):
        return None
    path = (first.origin.root, *first.origin.keys)
    plain = first.origin.root not in FALLBACK_ROOTS and _is_constant(hole.default)
    names = tuple(key for key in path if isinstance(key, str))
    return names if plain and len(names) == len(path) else None


def _is_constant(default: Parts | None) -> bool:
    return default is None or all(isinstance(part, Text) for part in default)


def _joined_text(default: Parts) -> str:
    return "".join(part.text for part in default if isinstance(part, Text))
