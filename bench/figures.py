"""Readability figures of the code: `make figures` prints them.  They fail no build.

python bench/figures.py [FOLDER]      FOLDER: the package to count, src/plait if none is named
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

DEFS = (ast.FunctionDef, ast.AsyncFunctionDef)
IRREGULAR = {
    "begun",
    "bound",
    "broken",
    "built",
    "caught",
    "chosen",
    "done",
    "drawn",
    "found",
    "given",
    "gone",
    "heard",
    "held",
    "kept",
    "known",
    "left",
    "lost",
    "made",
    "meant",
    "met",
    "paid",
    "said",
    "seen",
    "sent",
    "shown",
    "spent",
    "taken",
    "told",
    "written",
}
NOT_PARTICIPLES = {"embed", "exceed", "feed", "indeed", "need", "proceed", "seed", "speed"}
MANY_METHODS = 12
DOWNCAST = re.compile(r"(?<!def )\bworking\(")
DRY_RUN = re.compile(r"(?:rehearsal|\bplan_log) is (?:not )?None|run\.is_dry_run\b")


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else Path(__file__).parent.parent / "src" / "plait"
    modules = {
        path.relative_to(folder).as_posix(): path.read_text("utf-8")
        for path in sorted(folder.rglob("*.py"))
        if path.relative_to(folder).parts[0] != "system"
    }
    for name, value in figures(modules):
        print(f"{name:<58} {value}")
    if not arguments:  # the code that is installed here
        from frames import take_stacks

        print(
            f"{'frames from run_flow to the process of an item':<58} {sum(map(len, take_stacks()))}"
        )
    return 0


def figures(modules: dict[str, str]) -> Iterator[tuple[str, str]]:
    trees = {path: ast.parse(text) for path, text in modules.items()}
    lines = sum(map(count_source_lines, modules.values()))
    nodes = sum(sum(1 for _ in ast.walk(tree)) for tree in trees.values())
    functions = [
        node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, DEFS)
    ]
    participles = [one for one in functions if begins_with_participle(one.name)]
    private, used_once = count_private(trees)
    classes = [
        node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    ]
    large = [
        one for one in classes if sum(isinstance(part, DEFS) for part in one.body) > MANY_METHODS
    ]
    text = "\n".join(modules.values())
    yield "modules", f"{len(modules)}"
    yield "source lines, without comments and docstrings", f"{lines:,}"
    yield "nodes of the syntax tree a line", f"{nodes / lines:.1f}"
    yield "functions that begin with a participle", share(len(participles), len(functions))
    yield "private functions with a single reference", share(used_once, private)
    yield f"classes with more than {MANY_METHODS} methods", f"{len(large)} of {len(classes)}"
    yield (
        "classes that are steps (fingerprint, and run or execute)",
        f"{sum(map(is_step, classes))}",
    )
    yield "downcasts of a run", str(len(DOWNCAST.findall(text)))
    yield "attributes set on a run from outside", str(sum(map(sets_on_run, ast_nodes(trees))))
    yield (
        "tests for a dry run (rehearsal, plan_log is None, or is_dry_run)",
        str(len(DRY_RUN.findall(text))),
    )
    for types in (False, True):
        cycles = find_cycles(import_graph(trees, types=types))
        what = "those for type checkers, too" if types else "imports in functions included"
        yield f"import cycles, {what}", f"{len(cycles)}"
        for cycle in cycles:
            shown = ", ".join(sorted(cycle)[:4])
            yield f"  of {len(cycle)} modules", f"{shown}{' …' * (len(cycle) > 4)}"


def ast_nodes(trees: dict[str, ast.Module]) -> Iterator[ast.AST]:
    for tree in trees.values():
        yield from ast.walk(tree)


def sets_on_run(node: ast.AST) -> int:
    """Count the attributes of `run`, `ctx.run` or the like that an assignment sets."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return sum(
        isinstance(target, ast.Attribute)
        and (
            (isinstance(target.value, ast.Name) and target.value.id == "run")
            or (isinstance(target.value, ast.Attribute) and target.value.attr == "run")
        )
        for target in targets
    )


def share(part: int, whole: int) -> str:
    return f"{part} of {whole}, {100 * part / max(1, whole):.1f} %"


def count_source_lines(text: str) -> int:
    """Count the lines with code."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if (
            isinstance(node, ast.Module | ast.ClassDef | DEFS[0] | DEFS[1])
            and isinstance(body, list)
            and body
        ):
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                documented.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    skipped = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def begins_with_participle(name: str) -> bool:
    word = name.lstrip("_").split("_")[0]
    return word in IRREGULAR or (
        word.endswith("ed") and len(word) > 4 and word not in NOT_PARTICIPLES
    )


def count_private(trees: dict[str, ast.Module]) -> tuple[int, int]:
    """Private module-level functions, and those among them that are used once."""
    private = once = 0
    for tree in trees.values():
        uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
        names = [
            node.name for node in tree.body if isinstance(node, DEFS) and node.name.startswith("_")
        ]
        private += len(names)
        once += sum(uses[name] == 1 for name in names)
    return private, once


def is_step(node: ast.ClassDef) -> bool:
    names = {part.name for part in node.body if isinstance(part, DEFS)}
    names |= {
        part.target.id
        for part in node.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    return "fingerprint" in names and bool({"run", "execute"} & names)


def import_graph(trees: dict[str, ast.Module], *, types: bool) -> dict[str, set[str]]:
    """The imports of each module, also inside functions; `types`: also those for type checkers."""

    def name(path: str) -> str:
        return ".".join(("plait", *path.removesuffix(".py").split("/"))).removesuffix(".__init__")

    known = {name(path) for path in trees}
    graph: dict[str, set[str]] = {}
    for path, tree in trees.items():
        found: set[str] = set()
        skipped = set() if types else set(imports_for_types(tree))
        for node in ast.walk(tree):
            if node in skipped:
                continue
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    found.add(full if full in known else node.module)
            elif isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
        graph[name(path)] = (found & known) - {name(path), "plait"}
    return graph


def imports_for_types(tree: ast.Module) -> Iterator[ast.AST]:
    """The imports below `if TYPE_CHECKING`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for part in node.body:
                yield from ast.walk(part)


def find_cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules that import each other (Tarjan's strongly connected components, without
    recursion).
    """
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    waiting: list[str] = []
    groups: list[set[str]] = []
    for start in graph:
        if start in order:
            continue
        work = [(start, iter(sorted(graph[start])))]
        order[start] = low[start] = len(order)
        waiting.append(start)
        while work:
            module, rest = work[-1]
            for other in rest:
                if other not in order:
                    order[other] = low[other] = len(order)
                    waiting.append(other)
                    work.append((other, iter(sorted(graph[other]))))
                    break
                if other in waiting:
                    low[module] = min(low[module], order[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[module])
                if low[module] == order[module]:
                    at = waiting.index(module)
                    group, waiting = set(waiting[at:]), waiting[:at]
                    if len(group) > 1:
                        groups.append(group)
    return sorted(groups, key=len, reverse=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
