"""The time to start: whole processes, in turn."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from measure import race_processes
from tables import Bar, Plan, Row, Table, compared, figures_of, shown

SOURCES = Path(__file__).resolve().parent.parent / "src"
SCRIPT = Path(sys.executable).parent / "plait"


def startup_tables(*, rounds: int) -> Iterator[Plan]:
    # All contenders get the same environment, so all search the same path.
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # users keep compiled modules
    yield Plan("Importing", partial(_import_table, rounds, env))
    yield Plan("The command", partial(_command_table, rounds, env))
    yield Plan("Completion", partial(_completion_table, rounds, env))
    yield Plan("The MCP server", partial(_mcp_table, rounds, env))


def _import_table(rounds: int, env: dict[str, str], title: str) -> Table:
    reference = 'python -c "import json, re"'
    commands = {
        reference: _python("import json, re"),
        'python -c "import plait"': _python("import plait"),
        "a first plait.render": _python("import plait; plait.render('${a}', {'a': 1})"),
    }
    return compared(
        title,
        "Whole processes. The bar: `import plait` costs at most 1.5 times what two modules of the "
        "standard library cost. The engine is imported when it is first used; the last line shows "
        "that.",
        race_processes(commands, rounds=rounds, env=env),
        to=reference,
        bars={'python -c "import plait"': Bar(1.5)},
    )


def _command_table(rounds: int, env: dict[str, str], title: str) -> Table:
    reference = "python -c pass"
    version = [*_program(env), "--version"]
    name = "plait --version" if version[0] == str(SCRIPT) else "python -m plait --version"
    values = ["render", "Hello ${name}", "--values", '{"name": "world"}']
    commands = {
        reference: _python("pass"),
        name: version,
        "python -m plait render": _module(*values),
    }
    return compared(
        title,
        "Whole processes, with compiled modules on disk. The bar: `plait --version` costs at most "
        "three times what an interpreter that does nothing costs. It can cost less, because Plait "
        "ends without the cleanup of the interpreter. Until 2026-11-18 the modules were compiled at "
        "each start, so earlier ratios are higher.",
        race_processes(commands, rounds=rounds, env=env),
        to=reference,
        bars={name: Bar(3)},
    )


MOST_BEYOND = 0.040


def _completion_table(rounds: int, env: dict[str, str], title: str) -> Table:
    reference, plait = "python -c pass", _program(env)
    with TemporaryDirectory() as folder:
        for number in range(50):
            (Path(folder) / ".ai/state/runs" / f"{number:08x}").mkdir(parents=True)
        flow = Path(folder) / "flow.yaml"
        flow.write_text("parameters:\n  target: {type: string}\nsteps: [{shell: echo hello}]\n")
        times = race_processes(
            {
                reference: _python("pass"),
                "without its cleanup": _python("import os; os._exit(0)"),
                "plait --version": [*plait, "--version"],
                "a command": [*plait, "__complete", "ru"],
                "an option": [*plait, "__complete", "run", "--dr"],
                "a run": [*plait, "__complete", "show", "--project", folder, ""],
                "a tool": [*plait, "__complete", "call", "core/file/re"],
                "a parameter": [*plait, "__complete", "run", str(flow), "-i", "t"],
            },
            rounds=rounds,
            env=env,
        )
    bare = times[reference].median_computing or 0.0
    rows = []
    for name, seen in times.items():
        median = seen.median_computing or 0.0
        beyond = median - bare
        cells = (shown(median), "" if name == reference else f"{beyond * 1e3:+.1f} ms")
        judged = name not in (reference, "without its cleanup")
        passed = beyond < MOST_BEYOND if judged else None
        bar = "" if passed is None else f"< {shown(MOST_BEYOND)}"
        rows.append(Row(name, cells, bar, passed, figures_of(seen, times[reference])))
    return Table(
        title,
        "Medians of the computing time of whole processes: what one TAB costs, for each kind of "
        "word, in a project with 50 runs. The bar: less than 40 ms beyond an interpreter that does "
        "nothing. Plait ends without the cleanup of the interpreter; the second row does so too.",
        ("", "computing", f"beyond {reference}"),
        tuple(rows),
    )


MOST_UNTIL_READY = 0.150
_BEGIN = {"protocolVersion": "2025-11-25", "capabilities": {}}


def _mcp_table(rounds: int, env: dict[str, str], title: str) -> Table:
    reference, plait = "python -c pass", _program(env)
    begin = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _BEGIN})
    ask = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
    with TemporaryDirectory() as folder:
        serve = shlex.join([*plait, "mcp", "--project", folder])
        commands = {reference: _python("pass")}
        for name, lines in (("ready", [begin]), ("ready, and its tools are listed", [begin, ask])):
            given = Path(folder) / f"{len(lines)}.jsonl"
            given.write_text("".join(f"{line}\n" for line in lines))
            commands[name] = ["sh", "-c", f"exec {serve} < {shlex.quote(str(given))}"]
        times = race_processes(commands, rounds=rounds, env=env)
    rows = []
    for name, seen in times.items():
        median = seen.median_computing or 0.0
        passed = None if name == reference else median < MOST_UNTIL_READY
        bar = "" if passed is None else f"< {shown(MOST_UNTIL_READY)}"
        rows.append(Row(name, (shown(median),), bar, passed, figures_of(seen, times[reference])))
    return Table(
        title,
        "Medians of the computing time of `plait mcp`, from its start to its end: it answers "
        "`initialize`, and the client leaves; then also `tools/list` with the standard tools. The "
        "bar: less than 150 ms.",
        ("", "computing"),
        tuple(rows),
    )


def _program(env: dict[str, str]) -> list[str]:
    """The installed program, or `python -m plait` if it does not work."""
    return [str(SCRIPT)] if _works([str(SCRIPT), "--version"], env) else _module()


def _works(command: list[str], env: dict[str, str]) -> bool:
    if not Path(command[0]).exists():
        return False
    return subprocess.run(command, env=env, check=False, capture_output=True).returncode == 0


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def _module(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "plait", *arguments]
