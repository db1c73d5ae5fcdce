"""Which kinds of failure there are."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import plait
from plait.engine.kinds import FAILURE_KINDS

SOURCE = Path(plait.__file__).parent


def kinds_in(path: Path) -> Iterator[str]:
    """Yield the kinds that a module writes: in `Failure(…)`, or as the value of `…_kind…`."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(ast.Name("Failure"), [_, kind, *_]):
                yield from texts_in(kind, path)
            case ast.FunctionDef(name) if name.endswith("_kind") or "failure_kind_of" in name:
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Return) and inner.value is not None:
                        yield from texts_in(inner.value, path)


def texts_in(node: ast.expr, path: Path) -> Iterator[str]:
    match node:
        case ast.Constant(str(text)):
            yield text
        case ast.IfExp(_, first, second):
            yield from texts_in(first, path)
            yield from texts_in(second, path)
        case ast.Name(name) if name.isupper():
            module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
            yield getattr(import_module(module), name)


def test_every_kind_of_failure_that_plait_gives_is_in_the_table() -> None:
    modules = [path for path in SOURCE.rglob("*.py") if "Failure" in path.read_text()]
    used = {kind for path in modules for kind in kinds_in(path)}
    assert {"exit", "limit", "bad_answer", "hook_decision", "network"} <= used
    assert used <= {kind.name for kind in FAILURE_KINDS}
