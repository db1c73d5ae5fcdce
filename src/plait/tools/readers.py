"""What a tool file says about itself, read from its bytes and never by running it.

A reader finds the keys of a header with their places: in the syntax tree of
Python, in YAML, in the comments at the top of a script, in the literals of
JavaScript.  `system/extractors/tools.yaml` says which reader takes which
extension, and which name in code stands for which key.

Whatever the bytes are, the answer is an `Item`, a `DocumentError` with
everything that is wrong, or a `LimitError`.  A file that cannot be read is
never taken for one that says nothing.
"""

from __future__ import annotations

import ast
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from math import isfinite
from typing import Final, NamedTuple

from plait import documents
from plait.errors import DocumentError, InternalError, LimitError, Problem, nearest
from plait.source import Source, Span
from plait.tools.beneath import Stamp
from plait.tools.items import INFORMATIONAL, Entry, Header, Item, digest_of, header_of
from plait.tools.spaces import Found, Space
from plait.values import Json

MAX_PYTHON: Final = 512 << 10
"""Characters; a syntax tree takes some hundred times the memory of its text."""
MAX_ODD_NAMES: Final = 200
"""Names like `__this__` that are compared with ours; comparing is slow, and nobody has so many."""
MAX_JAVASCRIPT: Final = 1 << 20
MAX_PATTERN: Final = 10_000
MAX_OPEN: Final = 1_000
"""Brackets of JavaScript that may be open at once."""
MAX_REMEMBERED: Final = 1_000
MAX_REMEMBERED_BYTES: Final = 64 << 20


def read_item(found: Found, *, kind: str = "tool") -> Item:
    """The item in a file: its bytes read once, its digest, its header."""
    return _read(found, kind)[0]


class ItemCache:
    """Items by file; one whose stamp is unchanged is neither read nor hashed again.

    Safe to share between threads.  The items used longest ago go first when
    there are too many of them, or too many bytes in them.
    """

    def __init__(
        self,
        *,
        kind: str = "tool",
        most: int = MAX_REMEMBERED,
        most_bytes: int = MAX_REMEMBERED_BYTES,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.hits = 0
        self.misses = 0
        self._kind, self._most, self._most_bytes, self._clock = kind, most, most_bytes, clock
        self._known: dict[_Key, tuple[Item, Stamp]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, found: Found) -> Item:
        key = _Key(found.space, found.relative, found.id)
        with self._lock:
            known = self._forget(key)
            if known is not None and known[1] == found.stamp:
                self.hits += 1
                self._remember(key, *known)
                return known[0]
            self.misses += 1
        now = self._clock()
        item, stamp = _read(found, self._kind)
        if now - stamp.changed >= _GRAIN:
            with self._lock:
                self._forget(key)
                self._remember(key, item, stamp)
        return item

    def _forget(self, key: _Key) -> tuple[Item, Stamp] | None:
        known = self._known.pop(key, None)
        self._bytes -= len(known[0].data) if known else 0
        return known

    def _remember(self, key: _Key, item: Item, stamp: Stamp) -> None:
        self._known[key] = (item, stamp)
        self._bytes += len(item.data)
        while len(self._known) > self._most or self._bytes > self._most_bytes:
            self._forget(next(iter(self._known)))


# A file changed within the grain of the kernel's clock can change again and keep its stamp.
_GRAIN: Final = 20_000_000


class _Key(NamedTuple):
    """One path can belong to two spaces: that of a project in the home folder, and the user's."""

    space: Space
    relative: str
    id: str


def _read(found: Found, kind: str) -> tuple[Item, Stamp]:
    data, stamp = found.read()
    source = _decoded(data, found.path)
    header = _header(source, _format(found.path), kind)
    return Item(kind, found.id, found.space, found.path, data, digest_of(data), header), stamp


def _decoded(data: bytes, name: str) -> Source:
    try:
        return Source(name, data.decode("utf-8").removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        before = len(data[: error.start].decode("utf-8"))
        shown = Source(name, data.decode("utf-8", "replace"))
        what = f"byte {error.start:,} of this file is not UTF-8"
        where = Span(shown, before, before + 1)
        raise DocumentError(what, where, "save the file as UTF-8", code="not-utf-8") from None


def _header(source: Source, form: _Format, kind: str) -> Header:
    said = _Said(source)
    _READERS[form.reader](source, form, said)
    try:
        header = header_of(said.entries, kind=kind)
    except DocumentError as error:
        said.problems += error.problems
    if kind == "tool" and said.value("tool_type") != "primitive" and not said.value("executor_id"):
        said.missing("executor_id", "this tool says no executor_id", _executor_fix(form), "no-executor")
    if said.problems:
        raise DocumentError.together(said.problems[: documents.MAX_PROBLEMS])
    return header


_SAMPLES: Final = {
    "python": '__executor_id__ = "{0}"',
    "yaml": "executor_id: {0}",
    "comments": "{1} executor_id: {0}",
    "javascript": 'const __executor_id__ = "{0}";',
}


def _executor_fix(form: _Format) -> str:
    sample = _SAMPLES[form.reader].format(form.executor, form.comment)
    common = dict.fromkeys(each.executor for each in _extractors().formats.values())
    return f"write {sample} (common: {', '.join(common)}); only tool_type 'primitive' needs none"


# ── What a file says ─────────────────────────────────────────────────────────────────────────────


class _Said:
    """The keys of one header, and all that is wrong with them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.entries: dict[str, Entry] = {}
        self.problems: list[Problem] = []
        self._refused: set[str] = set()
        self._odd_names = 0

    def add(self, key: str, value: Json, span: Span) -> None:
        known = self.entries.setdefault(key, Entry(value, span))
        if known.span != span:
            what = f"'{key}' is said twice, again at line {span.position[0]}"
            self.problems.append(Problem(what, known.span, "remove all but one", (span,), "said-twice"))

    @contextmanager
    def about(self, key: str, name: str) -> Iterator[None]:
        """What is refused inside is a problem of this key; the others are read nevertheless."""
        try:
            yield
        except _Refused as refused:
            self._refused.add(key)
            what = f"'{name}' {refused.what}"
            self.problems.append(Problem(what, refused.where, refused.fix, code="not-literal"))

    def misspelt(self, name: str, names: Mapping[str, str], span: Span) -> None:
        """A name that is almost one of ours was meant to be it; `__all__` and its like were not."""
        if not _DUNDER.fullmatch(name) or self._odd_names == MAX_ODD_NAMES:
            return
        self._odd_names += 1
        if (guess := _almost(name, names)) is not None:
            self._refused.add(names[guess])
            what = f"'{name}' is not a key of a header"
            self.problems.append(Problem(what, span, f"did you mean '{guess}'?", code="unknown-name"))

    def value(self, key: str) -> Json:
        return self.entries[key].value if key in self.entries else None

    def missing(self, key: str, what: str, fix: str, code: str) -> None:
        """A key that is needed; nothing is added where something else is wrong with it already."""
        where = self.entries[key].span if key in self.entries else Span(self.source, 0, 0)
        misspelt = nearest(key, self.entries.keys() - _KEYS - INFORMATIONAL)
        wrong = any(problem.where == where for problem in self.problems)
        if not (wrong or misspelt or key in self._refused):
            self.problems.append(Problem(what, where, fix, code=code))


class _Refused(Exception):
    """A value that is no plain data; `what` goes on after the name of its key."""

    def __init__(self, what: str, where: Span, fix: str) -> None:
        self.what, self.where, self.fix = what, where, fix


def _computed(where: Span) -> _Refused:
    fix = "write the value itself: text, a number, true, false, null, a list or a map of them"
    return _Refused("is computed: a header is read, never executed", where, fix)


_DUNDER = re.compile(r"__[a-z0-9]++(?:_[a-z0-9]++)*+__", re.IGNORECASE)
_ALMOST: Final = 0.8


def _almost(name: str, names: Iterable[str]) -> str | None:
    from difflib import SequenceMatcher  # only odd names need it, and it is slow to import

    # Compared without the underscores around them, which would make all such names alike.
    known = {other.strip("_"): other for other in names if _DUNDER.fullmatch(other)}
    guess = nearest(name.strip("_"), known)
    if guess is None or SequenceMatcher(None, name.strip("_"), guess).ratio() < _ALMOST:
        return None
    return known[guess]


def _expect_size(source: Source, limit: int) -> None:
    if len(source.text) > limit:
        what, fix = f"this file is larger than {limit:,} characters", "keep large data in files of their own"
        raise LimitError(what, source.name, fix, code="too-large")


def _expect_text(value: str, where: Span) -> str:
    if _NO_TEXT.search(value):
        raise _Refused("holds NUL or half of a character pair", where, "remove the escape")
    return value


_NO_TEXT = re.compile("[\\x00\\ud800-\\udfff]")


def _expect_finite(value: float, where: Span) -> float:
    large = value.bit_length() > 4 * documents.MAX_DIGITS if isinstance(value, int) else not isfinite(value)
    if large:
        raise _Refused("holds a number that is too large", where, "write it as text")
    return value


def _expect_depth(depth: int, where: Span) -> None:
    if depth > documents.MAX_DEPTH:
        what = f"this is nested deeper than {documents.MAX_DEPTH} levels"
        raise LimitError(what, where, "flatten it, or move it to a file of its own", code="too-deep")


def _put(table: dict[str, Json], key: str, where: Span, value: Json) -> None:
    if key in table:
        raise _Refused("has a key that stands twice", where, "remove or rename one of them")
    table[key] = value


# ── Which reader, which names ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Format:
    """How files of one extension are read; `executor` is what such a file usually names."""

    reader: str
    comment: str
    executor: str


@dataclass(frozen=True, slots=True)
class _Extractors:
    formats: Mapping[str, _Format]
    names: Mapping[str, str]


def _format(path: str) -> _Format:
    extension = os.path.splitext(path)[1]
    form = _extractors().formats.get(extension)
    if form is None:
        known = ", ".join(_extractors().formats)
        raise DocumentError("no reader knows this kind of file", path, f"known: {known}", code="no-reader")
    return form


@cache
def _extractors() -> _Extractors:
    """The map that comes with Plait; wrong, it is our own bug."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.path.join(package, "system", "extractors", "tools.yaml")
    data: Json = documents.load(path).data()
    formats = {extension: _Format(**form) for extension, form in data["extensions"].items()}
    unread = {form.reader for form in formats.values()} - _READERS.keys()
    unknown = set(data["names"].values()) - _KEYS - INFORMATIONAL
    if unread or unknown:
        raise InternalError(f"no such reader or key: {', '.join(sorted(unread | unknown))}", path)
    return _Extractors(formats, data["names"])


_KEYS: Final = frozenset(Header.__dataclass_fields__)


# ── YAML ─────────────────────────────────────────────────────────────────────────────────────────


def _read_yaml(source: Source, _: _Format, said: _Said) -> None:
    node = documents.parse(source.text, source.name)
    _say_all(node, said, node.span)


def _say_all(node: documents.Node, said: _Said, where: Span) -> None:
    if not isinstance(node, documents.Mapping):
        raise DocumentError("a header is a map", where, "write 'key: value' lines", code="not-a-map")
    for key, value in node.entries:
        said.add(str(key.value), value.data(), Span(said.source, key.span.start, key.span.end))


# ── Comments at the top ──────────────────────────────────────────────────────────────────────────
#
# The comments become a YAML text of the same length: what belongs to the header loses its `#` to a
# blank, every other line becomes a YAML comment.  So each place in it is the same place in the file.


class _Line(NamedTuple):
    """A line of the comments at the top; `content` is where the text behind the `#` begins."""

    start: int
    content: int
    end: int
    text: str


def _read_comments(source: Source, form: _Format, said: _Said) -> None:
    lines = _top_comments(source.text, form.comment)
    if not _read_fenced(source, lines, said) and (chosen := _key_lines(lines)):
        _read_lines(source, lines, chosen, said, where=None)


_REST_OF_LINE: Final = r"(?P<text>(?:[^\r\n]|\r(?!\n))*+)(?:\r?\n|\Z)"


def _top_comments(text: str, comment: str) -> list[_Line]:
    """All comments before the first line that is something else."""
    pattern = re.compile(rf"(?P<before>[ \t]*+(?:{re.escape(comment)})?+){_REST_OF_LINE}")
    lines: list[_Line] = []
    at = 0
    while at < len(text) and (found := pattern.match(text, at)):
        is_comment = found["before"].endswith(comment)
        if found["text"] and not is_comment and not (at == 0 and found["text"].startswith("#!")):
            break
        shown = found["text"] if is_comment else ""
        lines.append(_Line(at, found.start("text"), found.end("text"), shown))
        at = found.end()
    return lines


def _read_fenced(source: Source, lines: list[_Line], said: _Said) -> bool:
    """The YAML between two `---`, if there is such a block."""
    fences = [number for number, line in enumerate(lines) if line.text.strip() == "---"]
    if not fences:
        return False
    opening, *others = (_text_span(source, lines[number]) for number in fences)
    if not others:
        what, fix = "this '---' opens a header that is never closed", "write '---' below its last line"
        raise DocumentError(what, opening, fix, code="unclosed-header")
    if len(others) > 1:
        what, fix = "a second header begins here", "a file has one header between '---' and '---'"
        raise DocumentError(what, others[1], fix, code="second-header")
    _read_lines(source, lines, range(fences[0] + 1, fences[1]), said, where=opening)
    return True


def _text_span(source: Source, line: _Line) -> Span:
    text = line.text.strip()
    start = line.content + line.text.find(text)
    return Span(source, start, start + len(text))


_KEY_LINE = re.compile(r"[ \t]*+([a-z_]++):(?=[ \t]|\Z)")


def _key_lines(lines: list[_Line]) -> set[int]:
    """`key: value` where the key is one of a header, and what is indented below it; all else is prose."""
    chosen: set[int] = set()
    indent = -1
    for number, line in enumerate(lines):
        blanks = len(line.text) - len(line.text.lstrip())
        found = _KEY_LINE.match(line.text)
        if not line.text.strip():
            continue
        if 0 <= indent < blanks:
            chosen.add(number)
        elif found and found[1] in _KEYS:
            chosen.add(number)
            indent = blanks
        else:
            indent = -1
    return chosen


def _read_lines(
    source: Source, lines: list[_Line], chosen: Iterable[int], said: _Said, *, where: Span | None
) -> None:
    chosen = frozenset(chosen)
    with _placed_in(source):
        node = documents.parse(_as_yaml(source.text, lines, chosen), source.name)
    _say_all(node, said, where or Span(source, node.span.start, node.span.end))


def _as_yaml(text: str, lines: list[_Line], chosen: frozenset[int]) -> str:
    parts = []
    for number, line in enumerate(lines):
        following = lines[number + 1].start if number + 1 < len(lines) else line.end
        if number in chosen:
            parts.append(" " * (line.content - line.start) + text[line.content : line.end])
        elif line.text.strip():
            parts.append("#".ljust(line.end - line.start))
        else:
            parts.append(" " * (line.end - line.start))
        parts.append(text[line.end : following])
    return "".join(parts)


@contextmanager
def _placed_in(source: Source) -> Iterator[None]:
    """Problems of a text of the same length are shown in this one."""

    def placed(span: Span) -> Span:
        return Span(source, span.start, span.end)

    try:
        yield
    except (DocumentError, LimitError) as error:
        error.problems = tuple(
            replace(
                problem,
                where=placed(problem.where) if isinstance(problem.where, Span) else problem.where,
                also=tuple(placed(span) for span in problem.also),
            )
            for problem in error.problems
        )
        raise


# ── Python ───────────────────────────────────────────────────────────────────────────────────────


def _read_python(source: Source, _: _Format, said: _Said) -> None:
    places = _PythonPlaces(source)
    names = _extractors().names
    for statement in _python_tree(source, places).body:
        for target, value in _assignments(statement):
            if target.id not in names:
                said.misspelt(target.id, names, places.of(target))
                continue
            key = names[target.id]
            with said.about(key, target.id):
                if value is None:
                    raise _computed(places.of(statement))
                said.add(key, _python_value(value, places), places.of(target))


def _python_tree(source: Source, places: _PythonPlaces) -> ast.Module:
    _expect_size(source, MAX_PYTHON)
    if (nul := source.text.find("\0")) >= 0:
        raise DocumentError("a NUL stands here", Span(source, nul, nul + 1), "remove it", code="syntax")
    try:
        return ast.parse(source.text, source.name)
    except SyntaxError as error:
        fix = "correct it: a file that is not Python has no header"
        what, where = f"this is not Python: {error.msg}", places.of_error(error)
        raise DocumentError(what, where, fix, code="syntax") from None
    except (RecursionError, MemoryError):
        # The parser reports its own stack as memory; either way it says no place.
        what = "this Python is nested too deeply to be read"
        raise LimitError(what, source.name, "split its longest expression", code="too-deep") from None


def _assignments(statement: ast.stmt) -> Iterator[tuple[ast.Name, ast.expr | None]]:
    """Names that a statement of the module assigns; no value where it is not simply written there."""
    match statement:
        case ast.Assign(targets, value):
            for target in targets:
                yield from [(target, value)] if isinstance(target, ast.Name) else _parts(target)
        case ast.AnnAssign(target, _, ast.expr() as value):
            yield from [(target, value)] if isinstance(target, ast.Name) else _parts(target)
        case ast.AugAssign(target):
            yield from _parts(target)


def _parts(target: ast.expr) -> Iterator[tuple[ast.Name, None]]:
    """`A, B = …`, `A["key"] = …`, `A += …`: the names that are changed by it."""
    match target:
        case ast.Name():
            yield target, None
        case ast.Tuple(elements) | ast.List(elements):
            for element in elements:
                yield from _parts(element)
        case ast.Subscript(inner) | ast.Attribute(inner) | ast.Starred(inner):
            yield from _parts(inner)


def _python_value(node: ast.expr, places: _PythonPlaces, depth: int = 0) -> Json:
    """The data that a literal stands for."""
    where = places.of(node)
    _expect_depth(depth, where)
    match node:
        case ast.Constant(None | bool()):
            return node.value
        case ast.Constant(str(value)):
            return _expect_text(value, where)
        case ast.Constant(int() | float() as number):
            return _expect_finite(number, where)
        case ast.UnaryOp(ast.USub() | ast.UAdd() as sign, ast.Constant(int() | float() as number)) if not (
            isinstance(number, bool)
        ):
            return _expect_finite(-number if isinstance(sign, ast.USub) else number, where)
        case ast.List(elements) | ast.Tuple(elements):
            return [_python_value(element, places, depth + 1) for element in elements]
        case ast.Dict(keys, values):
            return _python_map(keys, values, places, depth)
        case ast.Set():
            raise _Refused("holds a set, which JSON does not have", where, "write a list")
        case ast.Constant():
            kind = "..." if node.value is ... else type(node.value).__name__
            raise _Refused(f"holds {kind}, which JSON does not have", where, "write text or a number")
    raise _computed(where)


def _python_map(
    keys: list[ast.expr | None], values: list[ast.expr], places: _PythonPlaces, depth: int
) -> dict[str, Json]:
    table: dict[str, Json] = {}
    for key, value in zip(keys, values, strict=True):
        if key is None:  # {**other}
            raise _computed(places.of(value))
        name = _python_value(key, places, depth + 1)
        if not isinstance(name, str):
            raise _Refused("has a key that is not text", places.of(key), "put the key in quotes")
        _put(table, name, places.of(key), _python_value(value, places, depth + 1))
    return table


class _PythonPlaces:
    """From Python's lines and columns, which count bytes, to offsets in the text."""

    def __init__(self, source: Source) -> None:
        self.source = source
        # Python ends a line at a lone carriage return too.
        self.starts = [0, *(found.end() for found in re.finditer(r"\r\n?|\n", source.text))]

    def of(self, node: ast.expr | ast.stmt) -> Span:
        start = self._offset(node.lineno, node.col_offset)
        end = self._offset(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
        return Span(self.source, start, max(start, end))

    def of_error(self, error: SyntaxError) -> Span:
        line = min(max(error.lineno or 1, 1), len(self.starts))
        start = self.starts[line - 1]
        end = self.starts[line] if line < len(self.starts) else len(self.source.text)
        text = self.source.text[start:end].rstrip()
        column = max(error.offset or 1, 1) - 1
        if column > len(text) or (error.text is not None and error.text.rstrip() != text):
            return Span(self.source, start, start + len(text))  # the column of an inner text, as in f"{a b}"
        width = (error.end_offset or 0) - column - 1 if error.end_lineno == error.lineno else 1
        return Span(self.source, start + column, start + column + max(width, 1))

    def _offset(self, line: int, column: int) -> int:
        start = self.starts[line - 1]
        before = self.source.text[start : start + column]
        if before.isascii():
            return start + column
        return start + len(before.encode()[:column].decode("utf-8", "ignore"))


# ── JavaScript: declarations ─────────────────────────────────────────────────────────────────────


def _read_javascript(source: Source, form: _Format, said: _Said) -> None:
    _expect_size(source, MAX_JAVASCRIPT)
    _read_fenced(source, _top_comments(source.text, form.comment), said)
    _Declarations(source, _extractors().names, said).read()


class _Declarations:
    """`const NAME = literal` at the top level, in JavaScript or TypeScript."""

    def __init__(self, source: Source, names: Mapping[str, str], said: _Said) -> None:
        self.source, self.names, self.said = source, names, said
        self.tokens = iter(_Tokens(source))
        self.last = _Token("end", "", 0, 0, 0, fresh=True)
        self.token = next(self.tokens)

    def read(self) -> None:
        while self.token.kind != "end":
            first, before = self.token, self.last
            self.advance()
            if first.depth or first.kind != "word" or before.text == ".":
                continue
            if first.text in ("const", "let", "var"):
                self.declared()
            elif first.text in self.names and self.token.text == "=" and before.text != "type":
                self.assigned(first)

    def assigned(self, name: _Token) -> None:
        with self.said.about(self.names[name.text], name.text):
            fix = f"write const {name.text} = … as a statement of its own"
            raise _Refused("is not declared here, only assigned", self.span(name), fix)

    def declared(self) -> None:
        """`NAME: type = literal, NAME = literal`, up to the first name that is not of a header."""
        while self.token.kind == "word":
            name = self.token
            self.advance()
            if name.text not in self.names:
                self.said.misspelt(name.text, self.names, self.span(name))
                return
            self.typed()
            if self.token.text == "=":
                self.advance()
                with self.said.about(self.names[name.text], name.text):
                    self.initialised(name)
            if self.token.text != ",":
                return
            self.advance()

    def typed(self) -> None:
        if self.token.text == "!":
            self.advance()
        if self.token.text == ":":
            self.skip_type()

    def initialised(self, name: _Token) -> None:
        first = self.token
        value = self.value(0)
        self.expect_end(first)
        self.said.add(self.names[name.text], value, self.span(name))

    def skip_type(self) -> None:
        """A type is skipped, up to what cannot belong to it or the end of its line."""
        angles = 0
        while self.token.kind != "end":
            at_top = self.token.depth == 0 and angles <= 0
            if at_top and (self.token.text in _BEHIND_TYPE or self.begins_statement()):
                return
            angles += (self.token.text == "<") - (self.token.text == ">")
            self.advance()

    def begins_statement(self) -> bool:
        ended = self.last.kind not in ("mark", "piece") or self.last.text in (">", "]", "}", ")")
        return self.token.fresh and self.token.kind == "word" and ended

    def expect_end(self, first: _Token) -> None:
        """Nothing goes on with the value: `"a" + b` is computed, `{…} as const` is not."""
        while self.token.text in ("as", "satisfies") and not self.token.fresh:
            self.skip_type()
        if self.token.kind == "end" or self.token.text in (",", ";"):
            return
        if not self.token.fresh or self.token.goes_on:
            raise _computed(Span(self.source, first.start, self.token.end))

    # ── literals ─────────────────────────────────────────────────────────

    def value(self, depth: int) -> Json:
        """The data that a literal stands for."""
        token = self.token
        _expect_depth(depth, self.span(token))
        self.advance()
        match token.kind, token.text:
            case (("string" | "template"), _):
                return _unescaped(token.text, self.span(token))
            case "number", _:
                return _number(token.text, self.span(token))
            case "word", ("true" | "false" | "null"):
                return {"true": True, "false": False, "null": None}[token.text]
            case "mark", ("-" | "+") if self.token.kind == "number":
                self.advance()
                number = _number(self.last.text, self.span(self.last))
                return -number if token.text == "-" else number
            case "mark", "[":
                return self.array(depth)
            case "mark", "{":
                return self.object(depth)
        raise _computed(self.span(token))

    def array(self, depth: int) -> list[Json]:
        items: list[Json] = []
        while self.token.text != "]":
            items.append(self.value(depth + 1))
            self.expect_comma("]")
        self.advance()
        return items

    def object(self, depth: int) -> dict[str, Json]:
        table: dict[str, Json] = {}
        while self.token.text != "}":
            where = self.span(self.token)
            key = self.key()
            if self.token.text != ":":  # {name}, {method() {}}
                raise _computed(where)
            self.advance()
            _put(table, key, where, self.value(depth + 1))
            self.expect_comma("}")
        self.advance()
        return table

    def key(self) -> str:
        token = self.token
        self.advance()
        match token.kind:
            case "word":
                return token.text
            case "string":
                return _unescaped(token.text, self.span(token))
            case "number" if token.text.isascii() and token.text.isdecimal():
                return token.text
        raise _computed(self.span(token))

    def expect_comma(self, closing: str) -> None:
        if self.token.text == ",":
            self.advance()
        elif self.token.text != closing:
            raise _computed(self.span(self.token))

    def advance(self) -> None:
        self.last, self.token = self.token, next(self.tokens, self.token)

    def span(self, token: _Token) -> Span:
        return Span(self.source, token.start, token.end)


_DIGITS: Final = "[0-9](?:_?[0-9])*+"
_DECIMAL: Final = "(?:0|[1-9](?:_?[0-9])*+)"
_WHOLE = re.compile(
    rf"{_DECIMAL}|0[xX][0-9a-fA-F](?:_?[0-9a-fA-F])*+|0[oO][0-7](?:_?[0-7])*+|0[bB][01](?:_?[01])*+"
)
_FLOAT = re.compile(rf"(?:{_DECIMAL}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?")


def _number(text: str, where: Span) -> float:
    if _WHOLE.fullmatch(text) and len(text) <= documents.MAX_DIGITS:
        return int(text.replace("_", ""), 0)
    if _FLOAT.fullmatch(text):
        return _expect_finite(float(text.replace("_", "")), where)
    raise _Refused("holds a number that JSON does not have", where, "write it in decimal digits, or as text")


_ESCAPE = re.compile(
    r"\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|u\{(?P<point>[0-9a-fA-F]{1,6})\}"
    r"|(?P<nul>0(?![0-9]))|(?P<bad>[xu0-9])|(?P<cut>\r\n|[\n\r\u2028\u2029])|(?P<one>[\s\S]))"
)
_SHORT: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v"}


def _unescaped(literal: str, where: Span) -> str:
    """The text between the quotes of a string, or of a template without holes."""
    inner = literal[1:-1]
    if literal[0] == "`":
        inner = re.sub(r"\r\n?", "\n", inner)
    text = _ESCAPE.sub(lambda found: _unescape(found, where), inner) if "\\" in inner else inner
    # JavaScript writes a character beyond U+FFFF as two escapes.
    paired = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return _expect_text(paired, where)


def _unescape(found: re.Match[str], where: Span) -> str:
    match found.lastgroup, found[found.lastgroup or 0]:
        case (("x" | "u" | "point"), digits) if int(digits, 16) <= 0x10FFFF:
            return chr(int(digits, 16))
        case "nul", _:
            return "\0"
        case "cut", _:
            return ""
        case "one", letter:
            return _SHORT.get(letter, letter)
    raise _Refused("holds an escape that is no character", where, "write '\\\\' for a backslash")


# ── JavaScript: tokens ───────────────────────────────────────────────────────────────────────────


class _Token(NamedTuple):
    """`depth` counts the brackets around it; `fresh` is first on its line.

    Kinds: word, number, string, template, piece (of a template with holes), pattern, mark, end.
    """

    kind: str
    text: str
    start: int
    end: int
    depth: int
    fresh: bool

    @property
    def goes_on(self) -> bool:
        """Goes on with the expression of the line before."""
        if self.kind == "word":
            return self.text in ("in", "instanceof")
        return self.kind in ("template", "piece") or (self.kind == "mark" and self.text not in _BEGINNINGS)


_BEGINNINGS: Final = frozenset("{}@#!~;") | {"++", "--"}
_BEHIND_TYPE: Final = frozenset("=,;+-*/%^~!")
_BRACKETS: Final = {")": "(", "]": "[", "}": "{"}
_BEFORE_VALUE: Final = frozenset(
    ["return", "typeof", "instanceof", "in", "of", "new", "delete", "void", "throw", "case", "yield", "await"]
)
_BEFORE_MAP: Final = frozenset("(,=:[!&|?+-*%<>~^")
_BEFORE_PATTERN: Final = _BEFORE_VALUE | {"do", "else"}
_BEFORE_CONDITION: Final = frozenset(["if", "while", "for", "with"])

_SKIPPED = re.compile(r"(?:[\s\ufeff]++|//[^\n\r\u2028\u2029]*+|/\*(?:[^*]++|\*(?!/))*+\*/)*+")
_LINE_END = re.compile(r"[\n\r\u2028\u2029]")
_HASHBANG = re.compile(r"#![^\n\r]*+")
_QUOTED: Final = {
    '"': re.compile(r'"(?:[^"\\\n\r]++|\\(?:\r\n|[\s\S]))*+"'),
    "'": re.compile(r"'(?:[^'\\\n\r]++|\\(?:\r\n|[\s\S]))*+'"),
}
_TEMPLATE_TEXT = re.compile(r"(?:[^`\\$]++|\\[\s\S]|\$(?!\{))*+")
_PATTERN = re.compile(r"/(?:[^/\\\[\n\r]|\\[^\n\r]|\[(?:[^\]\\\n\r]|\\[^\n\r])*+\])++/[\w$]*+")
_PLAIN = re.compile(
    r"(?P<number>\.?[0-9](?:[eE][+-](?=[0-9])|[\w.])*+)|(?P<word>[\w$]++)"
    r"|(?P<mark>=>|={2,3}|\+\+|--|\.\.\.|[\s\S])"
)


class _Open(NamedTuple):
    """A bracket that is not closed; `is_value` says that its end can be divided."""

    mark: str
    start: int
    is_value: bool


class _Tokens:
    """Tokens of JavaScript, without comments; what a string, template or pattern holds is no token.

    Whether `/` divides or begins a pattern is told by what stands before it.
    """

    def __init__(self, source: Source) -> None:
        self.source, self.text = source, source.text
        self.open: list[_Open] = []
        self.after = ""
        self.after_value = False

    def __iter__(self) -> Iterator[_Token]:
        found = _HASHBANG.match(self.text)
        at, fresh = (found.end() if found else 0), True
        while True:
            start = self.skipped(at)
            fresh = fresh or (start > at and bool(_LINE_END.search(self.text, at, start)))
            if start == len(self.text):
                break
            kind, end = self.scan(start)
            text = self.text[start:end]
            depth = self.account(kind, text, start)
            yield _Token(kind, text, start, end, depth, fresh)
            at, fresh = end, False
        if self.open:
            raise self.wrong(self.open[-1].start, f"this '{self.open[-1].mark}' is never closed")
        yield _Token("end", "", start, start, 0, fresh=True)

    def skipped(self, at: int) -> int:
        found = _SKIPPED.match(self.text, at)
        end = found.end() if found else at
        if self.text.startswith("/*", end):
            raise self.wrong(end, "this comment is never closed")
        return end

    def scan(self, at: int) -> tuple[str, int]:
        character = self.text[at]
        if character in _QUOTED:
            found = _QUOTED[character].match(self.text, at)
            if found is None:
                raise self.wrong(at, "this string is never closed")
            return "string", found.end()
        if character == "`" or (character == "}" and self.open and self.open[-1].mark == "`"):
            return self.template(at)
        if character == "/" and not self.after_value:
            # Bounded, or many openings of patterns without an end would be searched to the end each.
            found = _PATTERN.match(self.text, at, at + MAX_PATTERN)
            if found is not None:
                return "pattern", found.end()
        found = _PLAIN.match(self.text, at)
        assert found is not None  # any character is a mark
        return found.lastgroup or "mark", found.end()

    def template(self, at: int) -> tuple[str, int]:
        """Up to the closing backtick or the next hole; the code in a hole is read as code."""
        found = _TEMPLATE_TEXT.match(self.text, at + 1)
        end = found.end() if found else at + 1
        if end == len(self.text) or self.text[end] == "\\":
            raise self.wrong(at, "this template is never closed")
        is_whole = self.text[at] == "`" and self.text[end] == "`"
        return ("template", end + 1) if is_whole else ("piece", end + (1 if self.text[end] == "`" else 2))

    def account(self, kind: str, text: str, start: int) -> int:
        """Notes what is open and what came last; the number of brackets around the token."""
        before = len(self.open)
        match kind:
            case "mark":
                is_value = self.mark(text, start)
            case "piece":
                is_value = self.piece(text, start)
            case "word":
                is_value = self.after == "." or text not in _BEFORE_PATTERN
            case _:
                is_value = True
        self.after, self.after_value = text, is_value
        return min(before, len(self.open))

    def mark(self, text: str, start: int) -> bool:
        if text in _BRACKETS:
            return self.pop(text, start)
        if text in "([{":
            self.push(text, start)
        return text in ("++", "--")

    def piece(self, text: str, start: int) -> bool:
        if text[0] == "}":
            self.open.pop()
        if text[-1] != "`":
            self.push("`", start)
        return text[-1] == "`"

    def push(self, mark: str, start: int) -> None:
        if len(self.open) == MAX_OPEN:
            what = f"this is nested deeper than {MAX_OPEN:,} brackets"
            raise LimitError(what, Span(self.source, start, start + 1), "flatten it", code="too-deep")
        match mark:
            case "(":
                is_value = self.after not in _BEFORE_CONDITION
            case "{":
                # A map, not a block, where a value is expected.
                is_value = self.after in _BEFORE_VALUE or self.after in _BEFORE_MAP
            case _:
                is_value = True
        self.open.append(_Open(mark, start, is_value))

    def pop(self, mark: str, start: int) -> bool:
        if not self.open or self.open[-1].mark != _BRACKETS[mark]:
            raise self.wrong(start, f"this '{mark}' closes nothing")
        return self.open.pop().is_value

    def wrong(self, at: int, what: str) -> DocumentError:
        fix = "correct it: a file that is not JavaScript has no header"
        return DocumentError(what, Span(self.source, at, at + 1), fix, code="syntax")


_READERS: Final[Mapping[str, Callable[[Source, _Format, _Said], None]]] = {
    "python": _read_python,
    "yaml": _read_yaml,
    "comments": _read_comments,
    "javascript": _read_javascript,
}
