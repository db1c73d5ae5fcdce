"""Measure Plait against f-strings and its peers, print tables, and write docs/benchmarks.md.

    python bench/run.py                     half an hour; writes docs/benchmarks.md
    python bench/run.py --brief             a quarter of an hour: no engines that take minutes
    python bench/run.py --quick             a minute; prints only
    python bench/run.py --only fanout       one part alone
    python bench/run.py --only fanout.1000  its tables with `1000` in their title
    python bench/run.py --list              prints the parts and the titles of their tables
    python bench/run.py --beside-load       measures also on a busy machine
    python bench/run.py --history           prints what was measured so far
    python bench/run.py --page              writes the page of what is kept, and measures nothing

Each part is kept in bench/results as soon as it is measured, and the page is made of what is there:
a run that is cut loses the part in which it was, and a part or some of its tables can be measured
anew.  Tables of another machine do not get into a part: they are printed and noted in the history.
A bar that is missed needs a text in bench/bars.py that says what would reach it; without it the page
is not written, and this ends with exit code 1.
Only ratios within one part mean something: times depend on the machine and on who else uses it.  So
before each part this looks for a second at the cores, and stops if others use more than a tenth of
them.

Rows that are whole processes or maps have two times: wall time, and computing time (user and
system) of the whole process tree, which depends less on others.  bench/results/history.jsonl gets a
line for each table that a run without --quick measures.  Every run prints the rows whose ratio
changed by more than 5 % since the last line of the same table on the same machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))  # use this tree, not an installed Plait

from bars import texts_about, without_text  # noqa: E402
from cluster import cluster_tables  # noqa: E402
from ensembles import ensemble_tables  # noqa: E402
from fanout import FULL as MANY  # noqa: E402
from fanout import QUICK as FEW  # noqa: E402
from fanout import Sizes, fanout_tables  # noqa: E402
from graphs import graph_tables  # noqa: E402
from history import history_tables  # noqa: E402
from load import STAT, busy_share, refuse_beside_load  # noqa: E402
from mcp_calls import mcp_tables  # noqa: E402
from measure import adopt_orphans, pin_to_one_core  # noqa: E402
from million import million_tables  # noqa: E402
from otel import otel_tables  # noqa: E402
from results import (  # noqa: E402
    Measured,
    Note,
    add_note,
    changes,
    commit_name,
    figures_in,
    history_text,
    keep,
    kept,
    last_note,
    notes,
)
from startup import startup_tables  # noqa: E402
from streaming import streaming_tables  # noqa: E402
from tables import Plan, Table, holds, part_and_piece  # noqa: E402
from worktrees import worktree_tables  # noqa: E402

from engine import SIZES, first_tables, hot_tables, linearity_table, yaml_table  # noqa: E402
from tools import tool_tables  # noqa: E402
from web import web_tables  # noqa: E402


@dataclass(frozen=True)
class Rounds:
    hot: int
    first: int
    linear: int
    sizes: tuple[int, ...]
    yaml: int
    processes: int
    calls: int
    commands: int
    fanout: Sizes
    million: int = 0
    pages: int = 100_000
    history: tuple[int, ...] = (10, 1_000, 10_000, 100_000)


FULL = Rounds(
    hot=400,
    first=1500,
    linear=2,
    sizes=SIZES,
    yaml=3,
    processes=60,
    calls=40,
    commands=1000,
    fanout=MANY,
    million=1_000_000,
)
BRIEF = replace(
    FULL,
    hot=150,
    first=600,
    processes=40,
    calls=30,
    commands=500,
    fanout=Sizes(((1000, 3), (10_000, 1)), (2, 8), starts=10, peers=False),
    million=1_000_000,
)
QUICK = Rounds(
    hot=40,
    first=100,
    linear=1,
    sizes=SIZES[:2],
    yaml=1,
    processes=10,
    calls=10,
    commands=200,
    fanout=FEW,
    history=(10, 1_000),
    pages=2_000,
)


def main() -> int:
    options = _options()
    rounds = QUICK if options.quick else BRIEF if options.brief else FULL
    only, piece = options.only or ("", "")
    parts = {name: part for name, part in PARTS.items() if only in ("", name)}
    if options.history:
        print(history_text(notes()) or "nothing was measured yet")
        return 0
    if options.list:
        _print_list(parts, rounds, piece)
        return 0
    if options.page:
        return _exit_code(_write_page())
    start = perf_counter()
    load = busy_share() if options.beside_load else refuse_beside_load()
    beside = ", beside other load" if options.beside_load else ""
    machine = f"{_machine()}, {pin_to_one_core()}{beside}"
    adopt_orphans()
    print(machine, flush=True)
    earlier, commit, today = notes(), commit_name(), date.today().isoformat()
    missed: list[str] = []
    changed: list[str] = []
    lacks: list[str] = []
    for number, (name, part) in enumerate(parts.items()):
        # The load average of a minute would include the part before.
        if number and not options.beside_load and STAT.exists():
            load = refuse_beside_load()
        done: list[Table] = []
        for plan in part(rounds):
            if not holds(plan.title, piece):
                continue
            table = plan.measure(plan.title)
            print(f"\n{table.plain()}", flush=True)
            done.append(table)
            note = Note(
                today, commit, machine, round(load, 2), name, table.title, figures_in(table)
            )
            before = last_note(earlier, note)
            changed += changes(note, before) if before else []
            if note.rows and not options.quick:
                add_note(note)
        missed += [one for table in done for one in table.missed]
        if piece and not done:
            raise SystemExit(f"bench: no table of {name} has {piece!r} in its title; see --list")
        newest: Measured | None = Measured(today, machine, done)
        if piece and (part_before := kept(name)) is not None:
            newest = part_before.with_newer(done, today, machine)
        elif piece:
            newest = None
        if not options.quick and newest is not None:
            keep(name, newest)
            lacks = _write_page()
    if changed:
        print("\nRatios that changed by more than 5 %:", *changed, sep="\n  ")
    print(f"\n{_summary(missed)}; {perf_counter() - start:.0f} s")
    return _exit_code(lacks)


def _print_list(parts: Mapping[str, Part], rounds: Rounds, piece: str) -> None:
    for name, part in parts.items():
        print(name)
        for plan in part(rounds):
            if holds(plan.title, piece):
                print(f"  {plan.title}")


def _write_page() -> list[str]:
    """Write the page, and return the missed rows without an explanation; if there are any, write nothing."""
    parts = [one for name in PARTS if (one := kept(name)) is not None]
    page = ROOT / "docs" / "benchmarks.md"
    if lacks := without_text(_missed(parts)):
        print(f"not written: {page.relative_to(ROOT)}", flush=True)
    else:
        page.write_text(_page(parts), encoding="utf-8")
        print(f"written: {page.relative_to(ROOT)}", flush=True)
    return lacks


def _missed(parts: list[Measured]) -> list[str]:
    return [name for part in parts for table in part.tables for name in table.missed]


def _exit_code(lacks: list[str]) -> int:
    if not lacks:
        return 0
    rows = "".join(f"\n  {name}" for name in lacks)
    print(
        f"bench: nothing says what would reach these bars, so the page was not written:{rows}\n"
        "fix: add a text for each to REACHED_BY in bench/bars.py, then --page writes the page of "
        "what is kept",
        file=sys.stderr,
    )
    return 1


def _engine_tables(rounds: Rounds) -> Iterator[Plan]:
    yield from hot_tables(rounds=rounds.hot)
    yield from first_tables(rounds=rounds.first)
    yield linearity_table(rounds=rounds.linear, sizes=rounds.sizes)
    yield yaml_table(rounds=rounds.yaml)


Part = Callable[[Rounds], Iterator[Plan]]
PARTS: dict[str, Part] = {
    "engine": _engine_tables,
    "ensembles": lambda rounds: ensemble_tables(rounds=rounds.hot),
    "startup": lambda rounds: startup_tables(rounds=rounds.processes),
    "tools": lambda rounds: tool_tables(rounds=rounds.calls, commands=rounds.commands),
    "mcp": lambda rounds: mcp_tables(rounds=rounds.calls),
    "fanout": lambda rounds: fanout_tables(rounds.fanout),
    "million": lambda rounds: million_tables(rounds.million),
    # A few per cent of a map: with fewer rounds the noise of a machine is larger.
    "otel": lambda rounds: otel_tables(items=10 * rounds.commands, rounds=4 * rounds.linear),
    "streaming": lambda rounds: streaming_tables(
        items=10 * rounds.commands, rounds=4 * rounds.linear, slow_rounds=rounds.linear
    ),
    "web": lambda rounds: web_tables(
        items=rounds.pages,
        updates=20,
        watched=10 * rounds.commands,
        rounds=4 * rounds.linear,
        # A bar of 2 % needs more: the ratio of a single round is off by some per cent.
        pairs=9 * rounds.linear,
    ),
    "history": lambda rounds: history_tables(
        sizes=rounds.history, rounds=max(rounds.processes // 4, 3)
    ),
    "cluster": lambda rounds: cluster_tables(items=3 * rounds.commands, rounds=rounds.linear),
    "graphs": lambda rounds: graph_tables(rounds=rounds.linear + 2),
    "worktrees": lambda rounds: worktree_tables(rounds=rounds.linear + 2),
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure Plait against f-strings and its peers.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and no page is written")
    parser.add_argument(
        "--brief", action="store_true", help="fewer rounds, and only quick peers of a map"
    )
    parser.add_argument(
        "--only",
        type=_part_of,
        metavar="PART[.PIECE]",
        help="one part, or its tables with this piece in their title",
    )
    parser.add_argument("--list", action="store_true", help="print parts and titles, then stop")
    parser.add_argument("--history", action="store_true", help="print what was measured so far")
    parser.add_argument(
        "--page", action="store_true", help="write the page of what is kept; measure nothing"
    )
    parser.add_argument("--beside-load", action="store_true", help="also on a busy machine")
    return parser.parse_args()


def _part_of(only: str) -> tuple[str, str]:
    part, piece = part_and_piece(only)
    if part not in PARTS:
        raise argparse.ArgumentTypeError(f"no part {part!r}; there are: {', '.join(PARTS)}")
    return part, piece


def _summary(missed: list[str]) -> str:
    return "every bar is met" if not missed else f"missed: {'; '.join(missed)}"


# ── the page ─────────────────────────────────────────────────────────────


def _machine() -> str:
    cores = os.cpu_count()
    return (
        f"{_cpu()}, {cores} cores, {platform.python_implementation()} {platform.python_version()}"
    )


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [
        line.partition(":")[2].strip()
        for line in text.splitlines()
        if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


INTRODUCTION = """\
# Benchmarks

This page is written by `make bench` (`python bench/run.py`); do not edit it by hand.

Each table is one run in which all contenders take turns, round after round, so that a moment in
which the machine is busy hits all of them. The ratio is that of the least times; "by medians" is
the same ratio of the median times, and shows how quiet the machine was. Ratios can be compared
between machines, times cannot. Every contender must produce the same output, or the run stops.
Where the rows are whole processes or maps, "computing" is the least computing time (user and
system) of the whole process tree, and the ratio after it is that of the computing times.

What is rendered, "hot" meaning that a template has been rendered some hundreds of times:

- **T1** is a command with two placeholders, one of them with a default; three tables show what is
  found at that placeholder.
- **T2** is a prompt of 4 KB with 30 variables, in the profile `prompt` (`{name}`) and in the
  profile `workflow` (`${name}`).
- **T3** is a tree of maps and lists with 40 strings and 60 placeholders.

The contenders:

- **f-string**: a function that returns f-strings with the same lookups in their place; it is the
  limit, ratio 1. A default covers what it covers in Plait, that is, every key of its path but the
  first: `${item.metadata.priority:-5}` is 5 also where `metadata` is missing.
- **f-string, trusting**: lets only the last key be missing and fails without `metadata`, so it does
  less. The bar is not judged by it; the lines "÷ trusting" show Plait as a multiple of it.
- **plait Template.render**: `plait.compile` once, then `.render` with a dict or with a `Scope`. The
  bar: at most 1.25 times the f-string for T1, 1.5 times for T2 and T3, and ahead of every peer.
- **plait.render**: the template is passed each time and found in a cache.
- **plait, not yet hot**: the careful rendering that the first two hundred calls use.
- **the peers**, each prepared beforehand as its manual recommends, and helped where it cannot do
  the task: `str.format_map` gets maps that know the default, `string.Template` and `re.sub` a
  callback that walks paths, Jinja2 a compiled template, OmegaConf a config in which the values
  already are.

Then come tools: what it costs to call one, from a long-running process and from the command line,
and how fast many processes are started. The last tables are about runs: what a step costs, and one
command for many items, as a multiple of `xargs -P`, which keeps no record.
"""


def _page(parts: list[Measured]) -> str:
    peers = ", ".join(f"{name} {version(name)}" for name in ("Jinja2", "omegaconf", "PyYAML"))
    missed = _missed(parts)
    days = sorted({part.day for part in parts})
    machines = "; ".join(dict.fromkeys(part.machine for part in parts))
    facts = f"Measured on {' and '.join(days)}: {machines}; {peers}. Result: {_summary(missed)}."
    texts = [f"- *{part}*: {how}" for part, how in texts_about(missed).items()]
    notes = ["What would reach the bars that were missed:\n\n" + "\n".join(texts)] if texts else []
    tables = [table.markdown() for part in parts for table in part.tables]
    return "\n\n".join([INTRODUCTION.rstrip(), facts, *notes, *tables]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
