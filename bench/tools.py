"""The cost of a tool call: the lookup, a function, a process, and many processes.

Where processes are started, all cores are used: Plait starts its guardian while
it loads, and eight workers are meant to run side by side.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import sleep, time

from measure import Contender, Times, all_cores, race, race_once_each, race_trees
from tables import Bar, Figures, Plan, Row, Table, compared, shown

from plait.adapters.function import call_function
from plait.adapters.process import process
from plait.app import api as app
from plait.app.toolbox import toolbox
from plait.tools.call import call_tool
from plait.tools.invocation import FunctionCall, ProcessCall
from plait.tools.prepare import Toolbox, prepare
from plait.tools.trust.signatures import PrivateKey, sign_bytes

SOURCES = Path(__file__).resolve().parent.parent / "src"
PARAMS = '{"week": 46}'

SCRIPT = '''\
"""Say what was asked for."""
import json, sys
__executor_id__ = "core/runtimes/python/script"
__version__ = "1.0.0"
__tool_type__ = "python"
__category__ = "team"
CONFIG_SCHEMA = {"type": "object", "properties": {"week": {"type": "integer"}}, "required": ["week"]}
if __name__ == "__main__":
    print(json.dumps({"got": json.load(sys.stdin)}))
'''
FUNCTION = '''\
"""The same without a process."""
__executor_id__ = "core/runtimes/python/function"
__version__ = "1.0.0"
__tool_type__ = "python"
__category__ = "team"
CONFIG_SCHEMA = {"type": "object", "properties": {"week": {"type": "integer"}}, "required": ["week"]}
def execute(params, project_path):
    return {"got": params}
'''
SETTLED = 0.2
"""Seconds; files that were just written are not cached, as they may change again
unnoticed.
"""
WARM = 3
"""Calls after which a tool is only checked for changes: the first finds its files, the second looks
at that.
"""
LIMIT = 100e-6
"""The most seconds for the parts of a call that start no process."""


def tool_tables(*, rounds: int, commands: int) -> Iterator[Plan]:
    with make_setup() as setup:
        yield Plan("What a call costs besides its process", partial(_parts_table, setup, rounds))
        with all_cores():
            warm, cold = partial(_warm_table, setup, rounds), partial(_cold_table, setup, rounds)
            yield Plan("Calling a tool from a long-running process", warm)
            yield Plan("The same call from the command line", cold)
            yield Plan(f"{commands} commands, 8 at a time", partial(_parallel_table, commands))


# ── a project ────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Setup:
    """A trusted project with two tools, one of them signed, and a user space of its own."""

    project: Path
    user: Path
    tools: Toolbox

    @property
    def script(self) -> Path:
        return self.project / ".ai" / "tools" / "team" / "report.py"

    @property
    def env(self) -> dict[str, str]:
        """As for an installed Plait, whose bytecode is written already; the interpreter is this
        one.
        """
        env = {**os.environ, "PYTHONPATH": str(SOURCES), "USER_SPACE": str(self.user)}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        return {**env, "RYE_PYTHON": sys.executable}


@contextlib.contextmanager
def make_setup() -> Iterator[Setup]:
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        project, user = Path(folder, "project"), Path(folder, "user")
        team = project / ".ai" / "tools" / "team"
        team.mkdir(parents=True)
        (user / ".ai").mkdir(parents=True, mode=0o700)
        (team / "report.py").write_text(SCRIPT)
        key = PrivateKey.generate()
        signed = sign_bytes(
            FUNCTION.encode(),
            kind="tool",
            item_id="team/quick",
            extension=".py",
            key=key,
            now=time() - 60,
        )
        (team / "quick.py").write_bytes(signed)
        os.environ |= {"USER_SPACE": str(user), "RYE_PYTHON": sys.executable}
        try:
            tools = toolbox(project)
            tools.trust.trust_project(origin="bench")
            tools.trust.store.add(key.public, owner="bench", origin="bench")
            prepare(tools, "team/quick", {"week": 46})  # creates the folder of verified copies
            sleep(SETTLED)
            yield Setup(project, user, tools)
        finally:
            os.environ.clear()
            os.environ |= before


# ── processes ────────────────────────────────────────────────────────────


def _warm_table(setup: Setup, rounds: int, title: str) -> Table:
    prepared = prepare(setup.tools, "team/report", {"week": 46}).invocation
    assert isinstance(prepared, ProcessCall)
    bare = "subprocess.run of the script"

    def by_subprocess(_: int) -> None:
        subprocess.run(
            prepared.argv, input=prepared.stdin, env=prepared.env, capture_output=True, check=True
        )

    def by_plait(_: int) -> None:
        assert call_tool(setup.tools, "team/report", {"week": 46}).data == {"got": {"week": 46}}

    def by_primitive(_: int) -> None:
        assert process.call_process(prepared).success

    contenders: dict[str, Callable[[int], None]] = {
        bare: by_subprocess,
        "a call of the tool": by_plait,
        "its process alone": by_primitive,
    }
    for call in contenders.values():
        call(0)
    return compared(
        title,
        "A Python script that reads JSON and prints JSON. A call finds its chain, checks rules, "
        "trust and "
        "schema, fills its config and environment, and starts it through the guardian. The bar: at "
        "most "
        "1.15 times the script alone, as `subprocess` starts it.",
        race_once_each(contenders, rounds=rounds),
        to=bare,
        bars={"a call of the tool": Bar(1.15)},
    )


def _cold_table(setup: Setup, rounds: int, title: str) -> Table:
    bare, cold = "python report.py", "plait call team/report"
    arguments = ["call", "team/report", "--params", PARAMS, "--project", str(setup.project)]
    commands = {
        bare: [sys.executable, str(setup.script)],
        "python -c pass": [sys.executable, "-c", "pass"],
        cold: [sys.executable, "-m", "plait", *arguments],
    }

    def runner(command: list[str]) -> Callable[[int], None]:
        def run(_: int) -> None:
            done = subprocess.run(
                command, input=PARAMS.encode(), env=setup.env, capture_output=True
            )
            assert done.returncode == 0, done.stderr.decode()

        return run

    contenders = {name: runner(command) for name, command in commands.items()}
    for call in contenders.values():
        call(0)
    return compared(
        title,
        "Whole processes, their bytecode written before. `plait call` is three interpreters: its "
        "own, the "
        "tool's, and the guardian's, which starts while the first one loads, so it needs two idle "
        "cores. The "
        "bar: at most 2.5 times the script alone. Two interpreters and the script itself are 1.6 "
        "times; what "
        "Plait adds is the loading of some fifty modules.",
        race_trees(contenders, rounds=rounds),
        to=bare,
        bars={cold: Bar(2.5)},
    )


# ── what starts no process ───────────────────────────────────────────────


def _parts_table(setup: Setup, rounds: int, title: str) -> Table:
    tools = setup.tools
    invocation = prepare(tools, "team/quick", {"week": 46}).invocation
    assert isinstance(invocation, FunctionCall)
    item = tools.chains.get("team/quick").tool
    assert tools.trust.decide(item).by == "signature"
    names = {"tools": tools, "item": item, "invocation": invocation, "call_tool": call_tool}
    named = {"call": app.call, "project": str(setup.project)}
    by_name = 'call("team/quick", {"week": 46}, project=project)'
    contenders = [
        Contender("a chain from the cache", 'tools.chains.get("team/quick")', names),
        Contender("the signature of an unchanged file", "tools.trust.decide(item)", names),
        Contender("a function in this process", "run(invocation)", {**names, "run": call_function}),
        Contender(
            "a whole call of a function", 'call_tool(tools, "team/quick", {"week": 46})', names
        ),
        Contender("the same by plait.call", by_name, named),
    ]
    for _ in range(WARM):
        for contender in contenders:
            contender.result()
    started = _processes_started(lambda: [contender.result() for contender in contenders])
    times = race(contenders, rounds=rounds)
    judged = tuple(contender.name for contender in contenders[:-1])
    return Table(
        title,
        f"In this process; one round of all of them started {started} processes. The bar of each "
        "part, and "
        "of a whole call of a function: at most 100 µs. A whole call looks again at each file and "
        "folder "
        "that it rests on (14 here, nearly half of its time), checks and fills the parameters, and "
        "passes "
        "them to a thread (a fifth). plait.call finds the project and its tools first, and wraps "
        "the result.",
        ("", "least time", "median"),
        tuple(_part(name, seen, judged) for name, seen in times.items()),
    )


def _part(name: str, seen: Times, judged: tuple[str, ...]) -> Row:
    cells = (shown(seen.least), shown(seen.median))
    figures = Figures(seen.least)
    if name not in judged:
        return Row(name, cells, figures=figures)
    return Row(name, cells, "≤ 100 µs", seen.least <= LIMIT, figures)


def _processes_started(act: Callable[[], object]) -> int:
    """By the events that Python itself raises; a hook cannot be taken away again, so it is told to
    stop.
    """
    seen: list[str] = []
    listening = True

    def hook(event: str, _: object) -> None:
        if listening and event in (
            "os.posix_spawn",
            "os.fork",
            "os.exec",
            "os.system",
            "subprocess.Popen",
        ):
            seen.append(event)

    sys.addaudithook(hook)
    act()
    listening = False
    return len(seen)


# ── many processes ───────────────────────────────────────────────────────


def _parallel_table(commands: int, title: str) -> Table:
    command = ["/bin/echo", "x"]
    xargs = "xargs -P 8"

    def by_threads(run: Callable[[], object]) -> Callable[[int], None]:
        def run_all(_: int) -> None:
            with ThreadPoolExecutor(8) as pool:
                for done in [pool.submit(run) for _ in range(commands)]:
                    done.result()

        return run_all

    contenders: Mapping[str, Callable[[int], None]] = {
        xargs: lambda _: _xargs(commands),
        "Plait's guardian, 8 threads": by_threads(lambda: process.run(command, env={})),
        "subprocess.run, 8 threads": by_threads(
            lambda: subprocess.run(command, env={}, capture_output=True)
        ),
    }
    if shutil.which("xargs") is None:
        raise SystemExit("bench: xargs is not installed")
    process.warm_up()
    return compared(
        title,
        "`echo`, its output captured (by xargs: thrown away). The guardian does more than the "
        "others: it "
        "knows every process that a command starts, and ends them all when Plait ends, however "
        "that comes.",
        race_trees(contenders, rounds=5),
        to=xargs,
        bars={},
    )


def _xargs(commands: int) -> None:
    lines = "x\n" * commands
    subprocess.run(
        ["xargs", "-P", "8", "-n", "1", "/bin/echo"],
        input=lines.encode(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
