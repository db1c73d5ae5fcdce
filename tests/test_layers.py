"""The order of the packages, and six more rules, held over the syntax tree of src/plait.

Function bodies and imports for type checking count, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PLAIT = Path(__file__).parent.parent / "src" / "plait"

# A package imports packages with a smaller rank, and itself.
RANK = {
    "core": 0,
    "template": 1,
    "scope": 2,
    "tools": 3,
    "engine": 3,
    "tool_api": 4,
    "schema": 4,
    "agents": 5,
    "program": 6,
    "lang": 7,
    "adapters": 8,
    "views": 8,
    "app": 9,
    "httpd": 10,  # what the HTTP servers have in common
    "mcp": 11,  # a server beside the commands, which `plait mcp` starts
    "web": 11,
    "lsp": 11,
    "cli": 12,
    "__main__": 13,
}
ONLY_FOR = {"adapters": ("adapters", "app"), "views": ("views", "mcp", "web", "cli", "__main__")}
"""Who alone may import a package."""
WITHOUT_CYCLES = ("core", "template", "scope", "tools", "tool_api", "schema", "lang", "lsp")
"""Packages whose modules import each other in one direction only, for type checkers too."""
LAZY = {("template/template.py", "template/codegen.py")}
"""Only templates that are rendered often load the code generator, which reads templates."""
PURE = {"os", "pathlib", "time", "random", "subprocess"}
PROCESSES: tuple[str, ...] = ()
"""Modules that may import subprocess: none, since the guardian starts processes."""
ASYNC = ("adapters/mcp/", "httpd/", "mcp/http.py", "web/server.py", "web/live.py")
"""Uses a library of coroutines."""
COROUTINES = (
    *ASYNC,
    "engine/perform.py",
    "program/ports.py",
    "program/map_progress.py",
    "program/step_list.py",
    "program/action_step.py",
    "program/actions/shell.py",
    "program/actions/tool.py",
    "app/services.py",
)
"""Steps between a map and the processes of its items (docs/decisions/0036-steps-are-coroutines.md)."""
GRAMMAR = "template/grammar.py"
PATHS = "engine/paths.py"
WITH_PATHS = ("engine/", "agents/", "program/", "lang/", "adapters/store/", "views/", "app/")
"""The packages that meet step paths."""
OTHER_PATHS = ("program/items/sources.py",)
"""Modules that split other texts at `/`: patterns of files."""
STEP_NAME = re.compile(
    r"/?(item|turn|task|loop|map|round|reduce|say|hook|on_exit_code):(\S|$)"
    r"|/?(again|check|on_failure|on_incomplete|call)@"
    r"|(turn:)?\.call:"
)
"""How a name of a step begins that has a form of its own."""
DYNAMIC = ("__import__", "import_module")
PARSING = re.compile(
    "r?find|r?index|startswith|endswith|r?split|r?partition|count|replace"
    "|compile|search|match|fullmatch|finditer|findall|subn?"
)


def violations(path: str, code: str) -> Iterator[str]:
    """What a module at this path below plait/ may not do and does."""
    tree = ast.parse(code)
    package = path.split("/")[0].removesuffix(".py")
    if package in RANK:
        for module in imports(tree, path):
            yield from wrong_import(path, package, module)
    elif package != "__init__":  # the public names, lazily; a test of their own holds them
        yield f"{path} belongs to no package"
    for node in ast.walk(tree):
        if path != GRAMMAR and parses_dollar(node):
            yield f"{path}:{getattr(node, 'lineno', 0)} parses ${{"
        if not path.startswith(COROUTINES) and is_async(node):
            yield f"{path} is asynchronous"
        if knows_step_paths(node, path):
            yield f"{path}:{getattr(node, 'lineno', 0)} writes or reads step paths itself"


def wrong_import(path: str, package: str, module: str) -> Iterator[str]:
    first, _, rest = module.partition(".")
    if first == "plait" and rest != "__version__":
        # `import plait` itself brings the public names, which are those of the app.
        other = rest.split(".")[0] if rest.split(".")[0] in RANK else "app"
        allowed = other == package or RANK[other] < RANK[package]
        if not allowed or package not in ONLY_FOR.get(other, RANK):
            yield f"{path} may not import {other}"
    if path.startswith("template/") and first in PURE:
        yield f"{path} is not pure: {first}"
    if first == "subprocess" and path not in PROCESSES:
        yield f"{path} starts processes"
    if first in ("asyncio", "anyio", "trio") and not path.startswith(ASYNC):
        yield f"{path} is asynchronous"


def imports(tree: ast.AST, path: str) -> Iterator[str]:
    """Every imported module, and `module.name` for `from module import name`."""
    here = ["plait", *path.split("/")[:-1]]
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module, names, level):
                base = here[: len(here) + 1 - level] if level else []
                yield from (
                    ".".join([*base, *([module] if module else []), alias.name]) for alias in names
                )
            case ast.Call(function, [ast.Constant(str(name)), *_]) if (
                called_name(function) in DYNAMIC
            ):
                yield name


def called_name(function: ast.expr) -> str | None:
    match function:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
    return None


def parses_dollar(node: ast.AST) -> bool:
    """Looks for `${` in a text: by a method, by a pattern, by comparing; a message only mentions it."""
    match node:
        case ast.Call(function, arguments) if PARSING.fullmatch(called_name(function) or ""):
            return any(map(holds_dollar, arguments))
        case ast.Compare(left, _, others):
            return any(map(holds_dollar, [left, *others]))
        case ast.Assign(_, ast.Constant() as value) | ast.AnnAssign(_, _, ast.Constant() as value):
            return value.value == "${"  # a name for the opener, to be looked for elsewhere
    return False


def holds_dollar(node: ast.AST) -> bool:
    constants = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    texts = (value.replace("\\", "") for value in constants if isinstance(value, str))
    return any("${" in text.replace("[$]", "$").replace("[{]", "{") for text in texts)


def knows_step_paths(node: ast.AST, path: str) -> bool:
    if not path.startswith(WITH_PATHS) or path.startswith((PATHS, *OTHER_PATHS)):
        return False
    return names_step(node) or (not path.startswith("engine/") and splits_path(node))


def names_step(node: ast.AST) -> bool:
    """Holds a text that begins like a name of a step, as `item:`; a docstring begins otherwise."""
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and STEP_NAME.match(node.value) is not None
    )


def splits_path(node: ast.AST) -> bool:
    """Splits a text at `/` or `@`, or joins a path and a name.

    In `engine/`, where each microsecond counts, this is allowed.
    """
    match node:
        case ast.Call(
            ast.Attribute(_, "split" | "partition" | "rpartition"), [ast.Constant(at), *_]
        ):
            return at in ("/", "@")
        case ast.JoinedStr([ast.FormattedValue(start), ast.Constant(str(rest)), *_]):
            return called_name(start) == "path" and rest.startswith("/")
    return False


def is_async(node: ast.AST) -> bool:
    asynchronous = ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await
    return isinstance(node, asynchronous) or (
        isinstance(node, ast.comprehension) and bool(node.is_async)
    )


def test_every_module_keeps_the_order() -> None:
    modules = {file.relative_to(PLAIT).as_posix(): file for file in sorted(PLAIT.rglob("*.py"))}
    assert GRAMMAR in modules
    found = {
        wrong
        for path, file in modules.items()
        if not path.startswith("system/")  # data: tools that the project starts, not modules of it
        for wrong in violations(path, file.read_text("utf-8"))
    }
    assert found == set()


def test_no_modules_import_each_other_at_run_time() -> None:
    files = {
        path.relative_to(PLAIT).as_posix(): path
        for path in sorted(PLAIT.rglob("*.py"))
        if "system" not in path.relative_to(PLAIT).parts and path != PLAIT / "__init__.py"
    }
    graph = import_graph(files, types=False)
    assert graph["app/run_builder.py"] >= {"engine/context.py", "app/services.py"}  # in functions
    TopologicalSorter(graph).prepare()  # CycleError names the modules of a cycle


def test_these_packages_have_no_import_cycle_for_type_checkers_either() -> None:
    files = {path.relative_to(PLAIT).as_posix(): path for path in sorted(PLAIT.rglob("*.py"))}
    modules = {path: file for path, file in files.items() if path.startswith(WITHOUT_CYCLES)}
    graph = import_graph(modules, types=True)
    assert graph["template/sinks.py"] >= {"template/template.py", "core/values.py"}
    TopologicalSorter(graph).prepare()


def import_graph(files: Mapping[str, Path], *, types: bool) -> dict[str, set[str]]:
    """By module: those that it imports, in functions too; `types`: for type checkers as well."""
    graph: dict[str, set[str]] = {}
    for path, file in files.items():
        tree = ast.parse(file.read_text("utf-8"))
        if not types:
            for node in ast.walk(tree):
                if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                    node.body = [ast.Pass()]
        found = {module_file(module, files) for module in imports(tree, path)}
        graph[path] = {one for one in found if one not in (None, path) and (path, one) not in LAZY}
    return graph


def module_file(module: str, files: Container[str]) -> str | None:
    """The file of `plait.a.b` or of `plait.a.b.name`."""
    parts = module.split(".")[1:]
    for folder in ("/".join(parts), "/".join(parts[:-1])):
        for path in (f"{folder}.py", f"{folder}/__init__.py"):
            if path in files:
                return path
    return None


def test_the_standard_tools_import_only_the_public_names_and_each_other() -> None:
    for file in sorted(PLAIT.glob("system/**/*.py")):
        path = file.relative_to(PLAIT).as_posix()
        for module in imports(ast.parse(file.read_text("utf-8")), path):
            if module.split(".")[0] == "plait" and module != "plait":
                assert module.startswith(("plait.tool_api.", "plait.system.tools.")), path


BAD = [
    # path                           code                                                   what is wrong with it
    ("core/errors.py",               "import plait.template.grammar",                       "core/errors.py may not import template"),
    ("template/nodes.py",            "from plait.scope import Scope",                       "template/nodes.py may not import scope"),
    ("scope/frames.py",              "def f():\n  from plait import engine",                "scope/frames.py may not import engine"),
    ("tools/chain.py",               "from plait.engine.events import Event",               "tools/chain.py may not import engine"),
    ("engine/perform.py",            "import plait.tools.chain as c",                       "engine/perform.py may not import tools"),
    ("engine/perform.py",            "from plait.program import map",                       "engine/perform.py may not import program"),
    ("agents/session.py",            "if TYPE_CHECKING:\n  from plait.program import map",  "agents/session.py may not import program"),
    ("program/actions/shell.py",     "from plait.adapters.process.process import start",    "program/actions/shell.py may not import adapters"),
    ("program/phases.py",            "from ..lang import names",                            "program/phases.py may not import lang"),
    ("lang/workflow/read.py",        "import importlib; importlib.import_module('plait.adapters.store.journal')", "lang/workflow/read.py may not import adapters"),
    ("lang/workflow/read.py",        "__import__('plait.app.api')",                         "lang/workflow/read.py may not import app"),
    ("lang/workflow/read.py",        "import plait",                                        "lang/workflow/read.py may not import app"),
    ("adapters/process/process.py",  "from plait.views import text",                        "adapters/process/process.py may not import views"),
    ("adapters/store/journal.py",    "from plait.app.api import run",                       "adapters/store/journal.py may not import app"),
    ("views/text.py",                "from plait.app import runs",                          "views/text.py may not import app"),
    ("app/api.py",                   "from plait.cli import main",                          "app/api.py may not import cli"),
    ("app/api.py",                   "from plait.views import text",                        "app/api.py may not import views"),
    ("cli/run.py",                   "from plait.adapters.store import journal",            "cli/run.py may not import adapters"),
    ("helpers.py",                   "",                                                    "helpers.py belongs to no package"),
    ("template/sinks.py",            "def f():\n  import os.path",                          "template/sinks.py is not pure: os"),
    ("template/sinks.py",            "from pathlib import Path",                            "template/sinks.py is not pure: pathlib"),
    ("template/sinks.py",            "from time import time",                               "template/sinks.py is not pure: time"),
    ("template/sinks.py",            "import random",                                       "template/sinks.py is not pure: random"),
    ("adapters/process/process.py",  "import subprocess",                                   "adapters/process/process.py starts processes"),
    ("scope/computed.py",            "import subprocess",                                   "scope/computed.py starts processes"),
    ("adapters/http/client.py",      "from subprocess import run",                          "adapters/http/client.py starts processes"),
    ("tools/config.py",              "x.find('${')",                                        "tools/config.py:1 parses ${"),
    ("tools/config.py",              "x.split('${', 1)",                                    "tools/config.py:1 parses ${"),
    ("tools/config.py",              "import re\nre.compile(r'\\$\\{(\\w+)\\}')",           "tools/config.py:2 parses ${"),
    ("tools/config.py",              "re.sub('[$]{a}', b, c)",                              "tools/config.py:1 parses ${"),
    ("tools/config.py",              "x.replace('${' + name + '}', value)",                 "tools/config.py:1 parses ${"),
    ("tools/config.py",              "x.replace(f'${{{name}}}', value)",                    "tools/config.py:1 parses ${"),
    ("tools/config.py",              "if '${' in x: pass",                                  "tools/config.py:1 parses ${"),
    ("tools/config.py",              "if x[:2] == '${': pass",                              "tools/config.py:1 parses ${"),
    ("tools/config.py",              "OPEN = '${'",                                         "tools/config.py:1 parses ${"),
    ("program/map.py",               "name = f'item:{key}'",                                "program/map.py:1 writes or reads step paths itself"),
    ("engine/hooks.py",              "name.startswith('hook:')",                            "engine/hooks.py:1 writes or reads step paths itself"),
    ("agents/session.py",            "x = f'{path}/turn:{n}.call:{m}'",                     "agents/session.py:1 writes or reads step paths itself"),
    ("program/validate.py",          "name = f'check@{n}'",                                 "program/validate.py:1 writes or reads step paths itself"),
    ("views/report.py",              "name = known.path.rpartition('/')[2]",                "views/report.py:1 writes or reads step paths itself"),
    ("views/report.py",              "name.partition('@')[0]",                              "views/report.py:1 writes or reads step paths itself"),
    ("adapters/store/reader.py",     "one = f'{self.ctx.path}/{name}'",                     "adapters/store/reader.py:1 writes or reads step paths itself"),
    ("engine/replay.py",             "async def f(): pass",                                 "engine/replay.py is asynchronous"),
    ("engine/perform.py",            "import asyncio",                                      "engine/perform.py is asynchronous"),
    ("adapters/process/process.py",  "import asyncio",                                      "adapters/process/process.py is asynchronous"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "code", "wrong"), BAD)
def test_a_module_that_breaks_a_rule_is_found(path: str, code: str, wrong: str) -> None:
    assert wrong in list(violations(path, code))


GOOD = [
    ("core/values.py",               "from plait.core.errors import PlaitError"),
    ("core/documents/files.py",      "import os, pathlib, time\nfrom plait.core.errors import InputError"),
    ("tools/call.py",                "from plait.tools import chain\nfrom plait.scope import Scope"),
    ("adapters/store/journal.py",    "from plait.engine.journal import Journal\nfrom plait.lang import languages"),
    ("adapters/git/git.py",          "from plait.adapters.process import process"),
    ("app/services.py",              "from plait.adapters import store, git\nfrom plait import __version__"),
    ("cli/__init__.py",              "import plait\nfrom plait import app, views, __version__"),
    ("adapters/mcp/client.py",       "import anyio\nasync def f(): await g()"),
    ("engine/perform.py",            "async def f(): await g()"),
    ("engine/paths.py",              "x = f'item:{key}'\nname.partition('@')"),
    ("engine/perform.py",            "path = f'{self.path}/{name}'"),
    ("core/safe_files.py",           "parts = path.split('/')"),
    ("lang/findings.py",             "raise E('map: it has no items', f'{path}:{line}')"),
    ("template/grammar.py",          "text.find('${')"),
    ("tools/config.py",              "raise E('${ is not closed')\nshow(f'${{{name}}}')\nx.split('$')"),
    ("__init__.py",                  "def __getattr__(n):\n  from plait import app"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "code"), GOOD)
def test_a_module_that_keeps_the_rules_is_left_alone(path: str, code: str) -> None:
    assert list(violations(path, code)) == []
