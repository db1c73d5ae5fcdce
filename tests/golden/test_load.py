"""How much of Plait each command loads: an upper bound, so that a start does not become slower while modules move.

A command that loads less is no failure; then the table can be lowered.  Names of modules are not held.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from golden.cases import ENVIRONMENT
from plait.cli import COMMANDS

ROOM = 1.03

LOADED = [
    # command                                                        modules, nodes of their syntax trees
    (["--version"],                                                    2,   1900),
    (["render", "Hello ${name}", "--values", '{"name": "world"}'],    25,  38680),
    (["call", "core/file/read", "-p", "path=flow.yaml"],              64,  97630),
    (["run", "flow.yaml"],                                           189, 286150),
    (["check", "flow.yaml"],                                         168, 258810),
    (["runs"],                                                        67,  87890),
]  # fmt: skip

# The help of a command needs its options only: an import that belongs to the work goes into `run`.
HELP = [
    # plait … --help   modules, nodes
    ("run",               13,  13800),
    ("chat",              15,  15326),
    ("runs",              11,  10879),
    ("show",              11,  11661),
    ("logs",              11,  10978),
    ("resume",            14,  14585),
    ("retry",             14,  14050),
    ("stop",              11,  10820),
    ("web",               12,  11242),
    ("export",            11,  11045),
    ("events",            11,  11061),
    ("worktrees",         11,  10818),
    ("render",            12,  13784),
    ("sh",                12,  13227),
    ("explain",           12,  13467),
    ("graph",             11,  11088),
    ("check",            101, 165060),
    ("init",              37,  56510),
    ("new",               14,  13900),
    ("call",              14,  14369),
    ("tools",             48,  70240),
    ("sign",              23,  25033),
    ("verify",            63,  98730),
    ("keys",              12,  14769),
    ("trust",             15,  17522),
    ("mcp",               12,  12579),
    ("lsp",                8,   6907),
    ("schema",             8,   6875),
    ("doctor",            11,  10942),
    ("completion",         8,   6863),
]  # fmt: skip

FLOW = """\
setup: [{shell: echo one, capture_output: word}]
map: {input: [1, 2], max_parallel: 1, steps: [{when: "${item} > 1", shell: "echo ${item} ${word}"}]}
reduce: [{shell: "echo ${map.total}"}]
"""

PROGRAM = """\
import json, sys
from plait.cli import main
status = main(sys.argv[2:])
files = [module.__file__ for name, module in list(sys.modules.items()) if name.partition(".")[0] == "plait"]
files = [file for file in files if file]  # a folder without a file is no code
with open(sys.argv[1], "w") as out:
    json.dump([status, files], out)
"""


@pytest.mark.parametrize(
    ("command", "modules", "nodes"), LOADED, ids=[row[0][0].strip("-") for row in LOADED]
)
def test_a_command_loads_no_more_than_it_did(
    command: list[str], modules: int, nodes: int, tmp_path: Path
) -> None:
    require_at_most(modules, nodes, command, tmp_path)


@pytest.mark.parametrize(("command", "modules", "nodes"), HELP, ids=[row[0] for row in HELP])
def test_the_help_of_a_command_loads_no_more_than_it_did(
    command: str, modules: int, nodes: int, tmp_path: Path
) -> None:
    require_at_most(modules, nodes, [command, "--help"], tmp_path)


def test_each_command_has_a_budget_for_its_help() -> None:
    assert {row[0] for row in HELP} == set(COMMANDS)


def require_at_most(modules: int, nodes: int, command: list[str], tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(FLOW)
    (tmp_path / "home").mkdir()
    subprocess.run(
        [sys.executable, "-c", PROGRAM, "loaded.json", *command],
        cwd=tmp_path, check=True, capture_output=True,
        env={**ENVIRONMENT, "PATH": os.environ["PATH"], "HOME": f"{tmp_path}/home", "USER_SPACE": f"{tmp_path}/home"},
    )  # fmt: skip
    status, files = json.loads((tmp_path / "loaded.json").read_text("utf-8"))
    assert status == 0
    counts = [
        count for file in files if (count := count_nodes(Path(file)))
    ]  # a package may be empty
    assert len(counts) <= modules * ROOM, (len(counts), sum(counts))
    assert sum(counts) <= nodes * ROOM, (len(counts), sum(counts))


def count_nodes(path: Path) -> int:
    """Nodes of the syntax tree, without docstrings: how lines are broken does not count."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    return (
        len(nodes)
        - 1
        - 2
        * sum(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in nodes)
    )
