"""Compare this tree with another one: whole commands, in turn, by computing time.

    python bench/compare.py OTHER [--rounds 9] [--only map] [--beside-load]

OTHER is a checkout of another version with its own `.venv` (`make .venv/.stamp` makes one).  Each
row is a command that both versions run in a folder of their own.  Computing time is that of the
whole process tree, user and system; the ratio is new ÷ old, by the least and by the median times.
On a busy machine it measures nothing unless --beside-load is given.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from load import refuse_beside_load
from measure import adopt_orphans, spent

ROOT = Path(__file__).resolve().parent.parent

ITEMS, NODES = 600, 300
FILES = {
    "one.yaml": "name: one\nsteps:\n  - shell: 'true'\n",
    "shells.yaml": (
        "name: shells\nmap:\n  input: items.json\n  json_path: '$[*]'\n  max_parallel: 8\n"
        "  steps:\n    - {shell: 'echo item ${item.n}', capture_output: printed}\n"
    ),
    "files.yaml": (
        "name: files\nmap:\n  input: items.json\n  json_path: '$[*]'\n  max_parallel: 2\n"
        "  steps:\n    - write_file: {path: 'out/${item.n}.txt', content: 'item ${item.n}', "
        "create_dirs: true}\n"
    ),
    "graph.yaml": json.dumps(
        {
            "name": "chain",
            "start": "n0",
            "nodes": {
                **{
                    f"n{number}": {"assign": {"x": number}, "next": f"n{number + 1}"}
                    for number in range(NODES)
                },
                f"n{NODES}": {"type": "return", "output": "${state.x}"},
            },
        }
    ),
}


@dataclass(frozen=True)
class Row:
    name: str
    arguments: tuple[str, ...]
    before: tuple[str, ...] = ()
    """A command that is not measured."""
    folder: str = "."


ROWS = (
    Row("plait --version", ("--version",)),
    Row("plait render", ("render", "Hello ${name}", "--values", '{"name": "world"}')),
    Row("plait run --help", ("run", "--help")),
    Row("plait check", ("check", "shells.yaml")),
    Row("plait run of one step", ("run", "one.yaml")),
    Row("plait run --dry-run", ("run", "shells.yaml", "--dry-run")),
    Row("plait runs", ("runs",)),
    Row(f"map of {ITEMS} shells", ("run", "shells.yaml")),
    Row(f"map of {ITEMS} files", ("run", "files.yaml")),
    Row(f"graph of {NODES} nodes", ("run", "graph.yaml")),
    Row("plait call", ("call", "hello", "-p", "name=Ada"), folder="demo"),
    Row(f"resume of {ITEMS} done items", ("resume",), before=("run", "shells.yaml")),
)


def main() -> int:
    options = _options()
    if not options.beside_load:
        refuse_beside_load()
    adopt_orphans()
    trees = {"old": options.other.resolve(), "new": ROOT}
    with tempfile.TemporaryDirectory() as folder:
        places = {name: _project(tree, Path(folder) / name) for name, tree in trees.items()}
        print(f"{'':32} {'old':>9} {'new':>9} {'least':>7} {'median':>7} {'wall':>7}")
        for row in ROWS:
            if options.only is None or options.only in row.name:
                _measure(row, trees, places, options.rounds)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare this tree with another one.")
    parser.add_argument("other", type=Path, help="a checkout with its own .venv")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--beside-load", action="store_true", help="also on a busy machine")
    parser.add_argument("--only", help="rows whose name holds this text")
    return parser.parse_args()


def _project(tree: Path, folder: Path) -> Path:
    for name, text in FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    items = json.dumps([{"n": number} for number in range(ITEMS)])
    (folder / "items.json").write_text(items, encoding="utf-8")
    _runner(tree, folder)(("init", "demo"))
    return folder


def _measure(row: Row, trees: dict[str, Path], places: dict[str, Path], rounds: int) -> None:
    computing: dict[str, list[float]] = {name: [] for name in trees}
    wall: dict[str, list[float]] = {name: [] for name in trees}
    for number in range(rounds + 1):
        for name, tree in trees.items():
            run = _runner(tree, places[name], row.folder)
            if row.before:
                run(row.before)
            seconds, used = run(row.arguments)
            if number:  # the first round fills caches
                computing[name].append(used)
                wall[name].append(seconds)
    old, new = computing["old"], computing["new"]
    print(
        f"{row.name:32} {min(old) * 1e3:6.1f} ms {min(new) * 1e3:6.1f} ms"
        f" {min(new) / min(old):7.3f} {statistics.median(new) / statistics.median(old):7.3f}"
        f" {min(wall['new']) / min(wall['old']):7.3f}",
        flush=True,
    )


def _runner(
    tree: Path, project: Path, folder: str = "."
) -> Callable[[tuple[str, ...]], tuple[float, float]]:
    home = project.with_name(f"home of {project.name}")
    home.mkdir(exist_ok=True)
    command = str(tree / ".venv" / "bin" / "plait")

    def run(arguments: tuple[str, ...]) -> tuple[float, float]:
        return spent(lambda: once(arguments))

    def once(arguments: tuple[str, ...]) -> None:
        done = subprocess.run(
            [command, *arguments],
            cwd=project / folder,
            # An empty value: bytecode is written, so that both versions start from it.
            env={**os.environ, "HOME": str(home), "PYTHONDONTWRITEBYTECODE": ""},
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{tree}: {arguments}: {done.stderr.decode()}{done.stdout.decode()}")

    return run


if __name__ == "__main__":
    sys.exit(main())
