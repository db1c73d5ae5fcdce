"""Read a header from Python: literals assigned to `__names__`, taken from the syntax tree."""

from __future__ import annotations

from collections.abc import Iterator

from plait.core.errors import DocumentError, LimitError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.source import Source, Span
from plait.core.values import Json
from plait.tools.headers.entries import (
    HeaderEntries,
    RefusedLiteral,
    computed_value_error,
    require_depth,
    require_finite,
    require_size,
    require_valid_text,
    set_key,
)

if TYPE_CHECKING:
    import ast
else:
    # only the nodes: the functions of `ast` take as long to load as reading a tool
    import _ast as ast

MAX_PYTHON: Final = 512 << 10
"""The limit in characters; a syntax tree takes some hundred times the memory of its text."""


def read_python(keys: HeaderEntries, _: str) -> None:
    places = _Places(keys.source)
    for statement in _tree(keys.source, places).body:
        for target, value in _assignments(statement):
            if target.id not in keys.names:
                keys.check_name(target.id, places.of(target))
                continue
            key = keys.names[target.id]
            with keys.about(key, target.id):
                if value is None:
                    raise computed_value_error(places.of(statement))
                keys.add(key, _value(value, places), places.of(target))


def _tree(source: Source, places: _Places) -> ast.Module:
    require_size(source, MAX_PYTHON)
    if (nul := source.text.find("\0")) >= 0:
        raise DocumentError(
            "a NUL stands here", Span(source, nul, nul + 1), "remove it", code="syntax"
        )
    try:
        tree = compile(source.text, source.name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        fix = "correct it: a file that is not Python has no header"
        what, where = f"this is not Python: {error.msg}", places.of_error(error)
        raise DocumentError(what, where, fix, code="syntax") from None
    except (RecursionError, MemoryError):
        # The parser reports a full stack as missing memory, without a place.
        what = "this Python is nested too deeply to be read"
        raise LimitError(
            what, source.name, "split its longest expression", code="too-deep"
        ) from None
    assert isinstance(tree, ast.Module)
    return tree


def _assignments(statement: ast.stmt) -> Iterator[tuple[ast.Name, ast.expr | None]]:
    """Yield the names that a statement assigns, with their values; None if the value is not
    written there.
    """
    match statement:
        case ast.Assign(targets, value):
            for target in targets:
                yield from [(target, value)] if isinstance(target, ast.Name) else _parts(target)
        case ast.AnnAssign(target, _, ast.expr() as value):
            yield from [(target, value)] if isinstance(target, ast.Name) else _parts(target)
        case ast.AugAssign(target):
            yield from _parts(target)


def _parts(target: ast.expr) -> Iterator[tuple[ast.Name, None]]:
    """Yield the names that an assignment changes: `A, B = …`, `A["key"] = …`, `A += …`."""
    match target:
        case ast.Name():
            yield target, None
        case ast.Tuple(elements) | ast.List(elements):
            for element in elements:
                yield from _parts(element)
        case ast.Subscript(inner) | ast.Attribute(inner) | ast.Starred(inner):
            yield from _parts(inner)


def _value(node: ast.expr, places: _Places, depth: int = 0) -> Json:
    """The data of a literal."""
    where = places.of(node)
    require_depth(depth, where)
    match node:
        case ast.Constant(None | bool()):
            return node.value
        case ast.Constant(str(value)):
            return require_valid_text(value, where)
        case ast.Constant(int() | float() as number):
            return require_finite(number, where)
        case ast.UnaryOp(
            ast.USub() | ast.UAdd() as sign, ast.Constant(int() | float() as number)
        ) if not (isinstance(number, bool)):
            return require_finite(-number if isinstance(sign, ast.USub) else number, where)
        case ast.List(elements) | ast.Tuple(elements):
            return [_value(element, places, depth + 1) for element in elements]
        case ast.Dict(keys, values):
            return _map(keys, values, places, depth)
        case ast.Set():
            raise RefusedLiteral("holds a set, which JSON does not have", where, "write a list")
        case ast.Constant():
            kind = "..." if node.value is ... else type(node.value).__name__
            raise RefusedLiteral(
                f"holds {kind}, which JSON does not have", where, "write text or a number"
            )
    raise computed_value_error(where)


def _map(
    keys: list[ast.expr | None], values: list[ast.expr], places: _Places, depth: int
) -> dict[str, Json]:
    table: dict[str, Json] = {}
    for key, value in zip(keys, values, strict=True):
        if key is None:  # {**other}
            raise computed_value_error(places.of(value))
        name = _value(key, places, depth + 1)
        if not isinstance(name, str):
            raise RefusedLiteral(
                "has a key that is not text", places.of(key), "put the key in quotes"
            )
        set_key(table, name, places.of(key), _value(value, places, depth + 1))
    return table


class _Places:
    """Converts Python's lines and columns, which count bytes, to offsets in the text."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.starts = _line_starts(source.text)

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
            return Span(
                self.source, start, start + len(text)
            )  # the column of an inner text, as in f"{a b}"
        width = (error.end_offset or 0) - column - 1 if error.end_lineno == error.lineno else 1
        return Span(self.source, start + column, start + column + max(width, 1))

    def _offset(self, line: int, column: int) -> int:
        start = self.starts[line - 1]
        before = self.source.text[start : start + column]
        if before.isascii():
            return start + column
        return start + len(before.encode()[:column].decode("utf-8", "ignore"))


def _line_starts(text: str) -> list[int]:
    if "\r" in text:  # Python also ends a line at a lone carriage return
        import re

        return [0, *(found.end() for found in re.finditer(r"\r\n?|\n", text))]
    starts = [0]
    while end := text.find("\n", starts[-1]) + 1:
        starts.append(end)
    return starts
