"""A guardian that is killed or stopped in the middle of a run: what it ran was cut short, and is done again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from crash.scene import LIMIT, wait_for
from lang.graph.graphs import trusted
from plait.adapters.mcp import client as mcp
from plait.adapters.process.guardian_process import WAS_STOPPED
from plait.adapters.process.process import run
from plait.app.runs import RunObservers, resume_flow, run_flow
from plait.cli import main
from plait.core.errors import GuardianError
from plait.engine.events import Event, Note, StepFinished
from plait.engine.outcome import Failed
from runs.stories import Place, new_place

LOST = (
    "the guardian, through which Plait starts processes, has ended, and with it whatever it ran\n"
    "fix: find out what killed it (out of memory?), then plait resume: what it ran was cut short and is done again"
)
# The parent of every process that a step starts is the guardian.
KILLS = "[ -e killed ] || { touch killed; kill -9 $PPID; sleep 60; }; echo ok"

FLOWS = {
    "a step": f"steps:\n  - shell: '{KILLS}'\n",
    "an item": f"map:\n  input: {{items: [1, 2, 3]}}\n  max_parallel: 2\n  steps:\n    - shell: '{KILLS}'\n",
    "a step with a handler": (
        f"steps:\n  - shell: '{KILLS}'\n    retry: {{attempts: 3}}\n    on_failure: {{shell: touch handled}}\n"
    ),
    "a function": (
        f"map:\n  input: {{items: [1, 2]}}\n  steps:\n    - {{tool: core/shell, params: {{command: '{KILLS}'}}}}\n"
    ),
    "a graph": (
        "name: g\nstart: a\nnodes:\n"
        f"  a: {{tool: core/shell, params: {{command: '{KILLS}'}}, on_error: b}}\n"
        "  b: {tool: core/shell, params: {command: touch handled}}\n"
    ),
}


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS.keys())
def test_what_a_killed_guardian_cut_short_has_not_failed_and_is_done_again(
    tmp_path: Path, flow: str
) -> None:
    (tmp_path / ".ai").mkdir()
    (tmp_path / "f.yaml").write_text(flow)
    events: list[Event] = []
    observers = RunObservers([lambda one: events.append(one.event)])
    first = run_flow(str(tmp_path / "f.yaml"), project=str(tmp_path), observers=observers)
    assert (first.status, first.exit_code) == ("failed", 1)
    assert first.failure is not None
    assert first.failure.message == LOST
    assert [
        one for one in events if isinstance(one, StepFinished) and isinstance(one.outcome, Failed)
    ] == []
    again = resume_flow(first.run, project=str(tmp_path))
    assert (again.status, again.exit_code, again.counts.get("failed", 0)) == ("done", 0, 0)
    assert not (tmp_path / "handled").exists(), "no handler goes on after it"


def test_a_program_alone_says_so() -> None:
    with pytest.raises(GuardianError) as caught:
        run(["sh", "-c", "kill -9 $PPID; sleep 60"])
    assert str(caught.value) == LOST


def test_a_stopped_guardian_is_noticed_continued_and_reported(tmp_path: Path) -> None:
    (tmp_path / ".ai").mkdir()
    (tmp_path / "f.yaml").write_text("steps:\n  - shell: kill -STOP $PPID; echo ok\n")
    for _ in range(2):  # to each run by itself
        events: list[Event] = []
        observers = RunObservers([lambda one, events=events: events.append(one.event)])  # type: ignore[misc]
        result = run_flow(str(tmp_path / "f.yaml"), project=str(tmp_path), observers=observers)
        assert result.status == "done"
        assert [one for one in events if isinstance(one, Note)] == [
            Note("", WAS_STOPPED, warning=True)
        ]


# ── agents, servers, and what a model calls ──────────────────────────────

# What an item does.  `a` ends; `b` and `c` are in the middle when `b` strikes the guardian, by a signal.
WORK = """\
echo $2 >> begun
echo $$ >> pids
if [ $2 != a ] && [ ! -e struck ]; then
    touch begun-$2
    if [ $2 = b ]; then
        until [ -e begun-c ]; do sleep 0.01; done
        touch struck
        kill -$1 $PPID
    fi
    until [ -e struck ]; do sleep 0.01; done
    while [ $1 = KILL ]; do sleep 0.01; done
fi
printf 'did %s' $2
"""
SERVER = """\
import json, os, signal, sys, time

how, held = getattr(signal, "SIG" + sys.argv[1]), []
TOOL = {"name": "work", "inputSchema": {"type": "object", "properties": {"item": {"type": "string"}}}}


def note(file, word):
    with open(file, "a") as notes:
        notes.write(f"{word}\\n")


def say(request, result, kind="result"):
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], kind: result}), flush=True)


def status(pid, name):
    with open(f"/proc/{pid}/status") as file:
        return next(line.split()[1] for line in file if line.startswith(name))


def is_stopped(pid):
    pending = int(status(pid, "ShdPnd"), 16) & 1 << signal.SIGSTOP - 1
    return pending or status(pid, "State") == "T"


def did(request):
    say(request, {"content": [{"type": "text", "text": f"did {request['params']['arguments']['item']}"}]})


note("pids", os.getpid())
for request in map(json.loads, sys.stdin):
    match request["method"]:
        case "initialize":
            info = {"serverInfo": {"name": "worker", "version": "0"}, "capabilities": {"tools": {}}}
            say(request, {**info, "protocolVersion": request["params"]["protocolVersion"]})
        case "tools/list":
            say(request, {"tools": [TOOL]})
        case "tools/call":
            item = request["params"]["arguments"]["item"]
            note("begun", item)
            if item == "a" or os.path.exists("struck"):
                did(request)
                continue
            held.append(request)
            if len(held) == 2:
                note("struck", "")
                os.kill(os.getppid(), how)
                while how == signal.SIGKILL or is_stopped(os.getppid()):
                    time.sleep(0.01)
                for one in held:
                    did(one)
        case _ if "id" in request:
            say(request, {"code": -32601, "message": "no such method"}, "error")
"""
FLOW = """\
name: struck
map:
  input: {{items: [a, b, c]}}
  max_parallel: 2
  steps:
    - {}
reduce: [{{shell: "echo ${{map.successful}} > result"}}]
"""
STEPS_IN_PROGRESS = {
    "an agent of the command line": "claude: do ${item}",
    "another agent": "agent: {tool: other, prompt: '${item}'}",
    "a tool": "{tool: process, params: {item: '${item}'}}",
    "a tool that a model calls": "prompt: {prompt: 'do ${item}', tools: [process]}",
    "a server": "{tool: server, params: {item: '${item}'}}",
    "a server that a model calls": "prompt: {prompt: 'do ${item}', tools: [server]}",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A project with agents, tools and a server that all do the same work."""
    made = new_place(tmp_path, monkeypatch, PLAIT_PROVIDER="replay")
    monkeypatch.chdir(made.root)
    return made


def prepare(place: Place, how: str) -> None:
    """`how`: the signal that strikes the guardian."""
    place.write("work.sh", WORK)
    place.program("claude", f"#!/bin/sh\nread -r _ item\nexec sh work.sh {how} $item\n")
    place.program("other", f"#!/bin/sh\nread -r item\nexec sh work.sh {how} $item\n")
    place.write("server.py", SERVER)
    command = {"name": "worker", "command": sys.executable, "args": ["server.py", how]}
    served = {"server": command, "tool_name": "work"}
    schema = {"type": "object", "required": ["item"], "properties": {"item": {"type": "string"}}}
    head = {"version": "1.0.0", "description": "Work"}
    tools = {
        "other": {"executor_id": "core/agents/command", "config": {"command": "other"}},
        "process": {
            "executor_id": "core/primitives/subprocess",
            "config_schema": schema,
            "config": {"command": "sh", "args": ["work.sh", how, "{item}"]},
        },
        "server": {
            "executor_id": "core/runtimes/mcp/stdio",
            "config_schema": schema,
            "config": served,
        },
    }
    for name, fields in tools.items():
        place.write(f".ai/tools/{name}.yaml", {**head, **fields})
    trusted(place)


def play(place: Place, tool: str) -> None:
    """A model that calls a tool, once for each item."""
    wants = [(f"do {one}", {"uses": [{"name": tool, "arguments": {"item": one}}]}) for one in "abc"]
    ends = [(f"did {one}", "All is done.") for one in "abc"]
    place.write("replay.yaml", [{"ask": ask, "answer": answer} for ask, answer in [*wants, *ends]])


def prepare_step(place: Place, step: str, how: str) -> None:
    prepare(place, how)
    if "server" in step:
        assert main(["trust", "mcp", "worker", "work"]) == 0
    play(place, "server" if "server" in step else "process")


def ended(capsys: pytest.CaptureFixture[str], *command: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and what `--json` says."""
    code = main([*command, "--json"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def live_through(place: Place, capsys: pytest.CaptureFixture[str], how: str, *options: str) -> str:
    """Run a flow whose guardian is attacked, and resume it if needed; return the messages about the guardian."""
    cut = {
        1: ["b", "c"],
        2: ["b"],
    }  # by how many items are done: `c` may have a guardian of its own
    code, events = ended(capsys, "run", "flow.yaml", *options)
    last = events[-1]
    assert sorted(place.text("begun").split()) == ["a", "b", "c"], events
    notes = [one["message"] for one in events if one["event"] == "note"]
    if how == "KILL":
        assert (code, last["exit_code"], last["status"], notes) == (1, 1, "failed", []), events
        ends = [one for one in events if one["event"] == "step_finished"]
        assert {one["status"] for one in ends} == {"done"}
        notes = [last["failure"]["message"]]
        done = [one for one in ends if one["kind"] == "item"]
        code, events = ended(capsys, "resume", last["run"])
        assert sorted(place.text("begun").split()[3:]) == cut[len(done)]
    assert (code, events[-1]["exit_code"], events[-1]["status"]) == (0, 0, "done"), events
    assert place.text("result") == "3\n"
    for clients in mcp._STANDARD.values():
        clients.close()
    pids = place.text("pids").split()
    assert wait_for(lambda: not any(map(is_alive, pids)), LIMIT)
    [note] = notes
    return str(note)


STRUCK = [("KILL", LOST), ("STOP", WAS_STOPPED)]


@pytest.mark.parametrize(("how", "status"), STRUCK)
@pytest.mark.parametrize("step", STEPS_IN_PROGRESS.values(), ids=STEPS_IN_PROGRESS.keys())
def test_a_killed_guardian_cuts_what_agents_and_servers_are_at_and_a_stopped_one_goes_on(
    place: Place, capsys: pytest.CaptureFixture[str], step: str, how: str, status: str
) -> None:
    prepare_step(place, step, how)
    capsys.readouterr()
    place.write("flow.yaml", FLOW.format(step))
    assert live_through(place, capsys, how) == status
