"""Runs as tasks of the protocol, and what a run asks as forms of the client."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from mcp_server.peer import LIMIT, STATELESS, Peer
from plait.cli import main

TASKS = "io.modelcontextprotocol/tasks"
ASKED: dict[str, Any] = {"elicitation": {}}
EXTENSION: dict[str, Any] = {"extensions": {TASKS: {}}}
RELATED = "io.modelcontextprotocol/related-task"

ONCE = """\
steps:
  - shell: echo before >> ledger.txt
  - shell: |
      echo paid >> ledger.txt
      while [ ! -e go ]; do sleep 0.05; done
    once: true
  - shell: echo after >> ledger.txt
"""


def wait_for_line(project: Path, line: str) -> None:
    until, ledger = time.monotonic() + LIMIT, project / "ledger.txt"
    while not (ledger.exists() and line in ledger.read_text().split()):
        assert time.monotonic() < until
        time.sleep(0.02)


def ledger(project: Path) -> list[str]:
    return (project / "ledger.txt").read_text().split()


def poll(peer: Peer, task: str) -> Any:
    """The task as soon as it is not being worked on."""
    until = time.monotonic() + LIMIT
    while (found := peer.ask("tasks/get", {"taskId": task}))["status"] == "working":
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


# ── revision 2025-11-25 ──────────────────────────────────────────────────


def test_a_call_with_a_task_answers_at_once_and_its_result_is_fetched_later(trusted: Path) -> None:
    with Peer(trusted) as peer:
        tools = {one["name"]: one for one in peer.ask("tools/list")["tools"]}
        assert tools["flow__ledger"]["execution"] == {"taskSupport": "optional"}
        assert "execution" not in tools["team__report"]
        begun = peer.begin("tools/call", {"name": "flow__ledger", "task": {"ttl": 1}}, progressToken=7)  # fmt: skip
        result = peer.answer(begun)["result"]
        task = result["task"]
        assert (task["status"], task["ttl"], task["pollInterval"]) == ("working", None, 1000)
        assert task["createdAt"] <= task["lastUpdatedAt"]
        assert "io.modelcontextprotocol/model-immediate-response" in result["_meta"]
        id = task["taskId"]
        peer.wait_for_progress(2)  # the token stays valid
        assert peer.ask("tasks/get", {"taskId": id})["status"] == "working"
        assert [one["taskId"] for one in peer.ask("tasks/list")["tasks"]] == [id]
        waiting = peer.begin("tasks/result", {"taskId": id})
        (trusted / "go").touch()
        done = peer.answer(waiting)["result"]
        assert done["structuredContent"]["output"] == "end\n"
        assert done["_meta"] == {RELATED: {"taskId": id}}
        assert peer.ask("tasks/get", {"taskId": id})["status"] == "completed"
        ended = peer.ask("tasks/cancel", {"taskId": id})
        assert ended == {"code": -32602, "message": f"the task {id} has ended: it is done"}


def test_a_task_is_cancelled_with_its_processes_and_stays_cancelled(trusted: Path) -> None:
    with Peer(trusted) as peer:
        id = peer.ask("tools/call", {"name": "flow__ledger", "task": {}})["task"]["taskId"]
        wait_for_line(trusted, "c")
        assert peer.ask("tasks/cancel", {"taskId": id})["status"] == "cancelled"
        assert peer.ask("tasks/get", {"taskId": id})["status"] == "cancelled"
    (trusted / "go").touch()
    with Peer(trusted) as peer:
        assert peer.ask("tasks/get", {"taskId": id})["status"] == "cancelled"
        assert ledger(trusted) == ["a", "b", "c"]


@pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])
def test_a_task_that_its_server_left_can_be_cancelled(trusted: Path, revision: str) -> None:
    id = left_run(trusted, "flow__ledger", "c")
    (trusted / "go").touch()
    with Peer(trusted, revision=revision, capabilities=EXTENSION) as peer:
        peer.ask("tasks/cancel", {"taskId": id})
        assert poll(peer, id)["status"] == "cancelled"
    assert ledger(trusted) == ["a", "b", "c"]


def test_a_task_outlives_its_server_and_goes_on_when_it_is_asked_for(trusted: Path) -> None:
    id = left_run(trusted, "flow__ledger", "c")
    (trusted / "go").touch()
    with Peer(trusted) as peer:
        assert peer.ask("tasks/list")["tasks"][0]["status"] == "working"
        assert poll(peer, id)["status"] == "completed"
    assert [ledger(trusted).count(one) for one in "abcd"] == [1, 1, 2, 1]


WRONG: list[tuple[str, dict[str, Any], dict[str, Any], int, str]] = [
    # revision, capabilities, params of tasks/get, code, message
    ("2025-06-18", {},        {"taskId": "x"},  -32601, "tasks/get does not belong to revision 2025-06-18"),
    ("2025-11-25", {},        {},               -32602, "tasks/get: 'taskId' must be text"),
    ("2025-11-25", {},        {"taskId": "no-run"},  -32602, "there is no run 'no-run'\nfix: plait runs lists those that there are"),
    (STATELESS,    {},        {"taskId": "x"},  -32021, f"tasks/get needs the extension {TASKS} in the client's capabilities"),
    (STATELESS,    EXTENSION, {"taskId": "no-run"},  -32602, "there is no run 'no-run'\nfix: plait runs lists those that there are"),
]  # fmt: skip


@pytest.mark.parametrize(("revision", "capabilities", "params", "code", "message"), WRONG)
def test_a_wrong_request_about_a_task(
    trusted: Path,
    revision: str,
    capabilities: dict[str, Any],
    params: dict[str, Any],
    code: int,
    message: str,
) -> None:
    (trusted / "go").touch()
    assert main(["run", "ledger.yaml", "--quiet"]) == 0
    with Peer(trusted, revision=revision, capabilities=capabilities) as peer:
        error = peer.ask("tasks/get", params)
        assert (error["code"], error["message"]) == (code, message)


def test_only_flows_are_tasks(trusted: Path) -> None:
    with Peer(trusted) as peer:
        call = {"name": "team__report", "arguments": {"week": 1}, "task": {}}
        what = "team__report cannot be called as a task: only flows can"
        assert peer.ask("tools/call", call) == {"code": -32601, "message": what}
    with Peer(trusted, revision="2025-06-18") as peer:  # which has no tasks, and ignores the word
        assert peer.ask("tools/call", call)["isError"] is False


# ── the extension of 2026-07-28 ──────────────────────────────────────────


def test_a_long_flow_becomes_a_task_if_the_client_takes_tasks(trusted: Path) -> None:
    with Peer(trusted, "--answer-within", "0.01", revision=STATELESS, capabilities=EXTENSION) as peer:  # fmt: skip
        assert peer.ask("server/discover")["capabilities"]["extensions"] == {TASKS: {}}
        task = peer.call("flow__ledger")
        assert (task["resultType"], task["status"], task["ttlMs"]) == ("task", "working", None)
        assert task["pollIntervalMs"] == 1000
        assert "content" not in task
        (trusted / "go").touch()
        done = poll(peer, task["taskId"])
        assert (done["resultType"], done["status"]) == ("complete", "completed")
        assert done["result"]["structuredContent"]["output"] == "end\n"
        assert peer.ask("tasks/cancel", {"taskId": task["taskId"]})["resultType"] == "complete"
        assert peer.ask("tasks/list")["code"] == -32601


def test_a_task_says_only_the_beginning_of_a_long_output(trusted: Path) -> None:
    (trusted / "long.yaml").write_text("steps: [{shell: 'printf %5000s x'}]\n")
    with Peer(trusted) as peer:
        task = peer.ask("tools/call", {"name": "flow__long", "task": {}})["task"]["taskId"]
        done = poll(peer, task)
        assert (done["status"], len(done["statusMessage"])) == ("completed", 200)


def test_a_flow_that_fails_is_a_completed_task_with_an_error(trusted: Path) -> None:
    (trusted / "bad.yaml").write_text("steps: [{shell: 'while [ ! -e go ]; do sleep 0.05; done; exit 3'}]\n")  # fmt: skip
    with Peer(trusted, "--answer-within", "0.01", revision=STATELESS, capabilities=EXTENSION) as peer:  # fmt: skip
        task = peer.call("flow__bad")["taskId"]
        (trusted / "go").touch()
        done = poll(peer, task)
        assert (done["status"], done["result"]["isError"]) == ("completed", True)
    with Peer(trusted) as peer:
        assert peer.ask("tasks/get", {"taskId": task})["status"] == "failed"


# ── two servers ──────────────────────────────────────────────────────────

CONTINUED = [
    ("tools/call",   {"name": "plait_run_wait"}),
    ("tools/call",   {"name": "plait_run_resume"}),
    ("tasks/result", {}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "params"), CONTINUED)
def test_two_servers_that_continue_one_run_both_answer_with_its_end(
    trusted: Path, method: str, params: dict[str, Any]
) -> None:
    id = left_run(trusted, "flow__ledger", "c")
    (trusted / "go").touch()
    with Peer(trusted) as one, Peer(trusted) as other:
        asked = {**params, "arguments": {"run": id}, "taskId": id}
        waiting = [(peer, peer.begin(method, asked)) for peer in (one, other)]
        ends = [peer.answer(number)["result"]["structuredContent"] for peer, number in waiting]
    assert [end["status"] for end in ends] == ["done", "done"]
    assert [ledger(trusted).count(item) for item in "abcd"] == [1, 1, 2, 1]


def test_a_task_that_another_server_continues_just_now_is_working(trusted: Path) -> None:
    id = left_run(trusted, "flow__ledger", "c")
    with Peer(trusted) as one, Peer(trusted) as other:
        waiting = [(peer, peer.begin("tasks/get", {"taskId": id})) for peer in (one, other)]
        tasks = [peer.answer(number)["result"] for peer, number in waiting]
        assert [task["status"] for task in tasks] == ["working", "working"]
        (trusted / "go").touch()
        assert {poll(peer, id)["status"] for peer in (one, other)} == {"completed"}


# ── what a run asks ──────────────────────────────────────────────────────


def left_run(project: Path, flow: str, line: str) -> str:
    """A run whose server was killed after a step wrote this line."""
    with Peer(project) as peer:
        run = peer.call("plait_run_start", flow=flow)["structuredContent"]["run"]
        wait_for_line(project, line)
        peer.kill()
    return str(run)


@pytest.fixture
def unknown(trusted: Path) -> tuple[Path, str]:
    """A project, and a run that died in a step that may run at most once."""
    (trusted / "once.yaml").write_text(ONCE)
    run = left_run(trusted, "flow__once", "paid")
    (trusted / "go").touch()
    return trusted, run


ANSWERED = [
    ("done",   ["before", "paid", "after"]),
    ("repeat", ["before", "paid", "paid", "after"]),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "lines"), ANSWERED)
@pytest.mark.parametrize("revision", ["2025-11-25", "2025-06-18"])
def test_a_step_with_an_unknown_end_is_a_question_to_the_client(
    unknown: tuple[Path, str], revision: str, answer: str, lines: list[str]
) -> None:
    project, run = unknown
    with Peer(project, revision=revision, capabilities=ASKED) as peer:
        wait = peer.begin("tools/call", {"name": "plait_run_wait", "arguments": {"run": run}})
        asked = peer.question()
        assert asked["method"] == "elicitation/create"
        assert "step 'steps/1' ran" in asked["params"]["message"]
        form = asked["params"]["requestedSchema"]
        assert form["properties"]["answer"]["enum"] == ["done", "repeat"]
        peer.reply(asked, "accept", answer=answer)
        assert peer.answer(wait)["result"]["structuredContent"]["status"] == "done"
    assert ledger(project) == lines


@pytest.mark.parametrize(("answer", "lines"), ANSWERED)
def test_in_the_newest_revision_the_call_is_answered_with_the_question(
    unknown: tuple[Path, str], answer: str, lines: list[str]
) -> None:
    project, run = unknown
    with Peer(project, revision=STATELESS, capabilities=ASKED) as peer:
        call = {"name": "plait_run_wait", "arguments": {"run": run}}
        asked = peer.ask("tools/call", call)
        assert asked["resultType"] == "input_required"
        ((key, question),) = asked["inputRequests"].items()
        assert question["method"] == "elicitation/create"
        given = {key: {"action": "accept", "content": {"answer": answer}}}
        done = peer.ask("tools/call", {**call, "inputResponses": given})
        assert done["structuredContent"]["status"] == "done"
    assert ledger(project) == lines


def test_a_task_asks_by_its_state_and_takes_the_answer(unknown: tuple[Path, str]) -> None:
    project, run = unknown
    can = {**ASKED, **EXTENSION}
    with Peer(project, revision=STATELESS, capabilities=can) as peer:
        task = peer.ask("tasks/get", {"taskId": run})
        assert task["status"] == "input_required"
        ((key, _),) = task["inputRequests"].items()
        nothing = peer.ask("tasks/update", {"taskId": run, "inputResponses": {"other": {}}})
        assert nothing["resultType"] == "complete"
        assert peer.ask("tasks/get", {"taskId": run})["status"] == "input_required"
        wrong = {key: {"action": "accept", "content": {"answer": "maybe"}}}
        assert peer.ask("tasks/update", {"taskId": run, "inputResponses": wrong})["code"] == -32602
        given = {key: {"action": "accept", "content": {"answer": "done"}}}
        peer.ask("tasks/update", {"taskId": run, "inputResponses": given})
        assert poll(peer, run)["status"] == "completed"
    assert ledger(project) == ["before", "paid", "after"]


def test_the_result_of_a_task_asks_while_it_waits(unknown: tuple[Path, str]) -> None:
    project, run = unknown
    with Peer(project, capabilities=ASKED) as peer:
        assert peer.ask("tasks/get", {"taskId": run})["status"] == "input_required"
        waiting = peer.begin("tasks/result", {"taskId": run})
        asked = peer.question()
        assert asked["params"]["_meta"] == {RELATED: {"taskId": run}}
        peer.reply(asked, "accept", answer="done")
        assert peer.answer(waiting)["result"]["structuredContent"]["status"] == "done"
    assert ledger(project) == ["before", "paid", "after"]


def test_without_an_answer_the_run_stays_as_it_is(unknown: tuple[Path, str]) -> None:
    project, run = unknown
    with Peer(project) as peer:  # it cannot ask
        result = peer.call("plait_run_wait", run=run)
        assert result["isError"] is True
        assert result["structuredContent"]["questions"] == ["steps/1"]
        assert peer.ask("tasks/get", {"taskId": run})["status"] == "failed"
    with Peer(project, capabilities=ASKED) as peer:
        wait = peer.begin("tools/call", {"name": "plait_run_wait", "arguments": {"run": run}})
        peer.reply(peer.question(), "decline")
        assert peer.answer(wait)["result"]["structuredContent"]["status"] == "interrupted"
        wait = peer.begin("tools/call", {"name": "plait_run_wait", "arguments": {"run": run}})
        asked = peer.question()
        peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": wait}})  # fmt: skip
        while not any(one["method"] == "notifications/cancelled" for one in peer.notices):
            peer.take(peer.line())
        peer.reply(asked, "accept", answer="repeat")  # too late
        assert peer.ask("ping") == {}
    assert ledger(project) == ["before", "paid"]


def test_an_edited_flow_is_a_question(trusted: Path) -> None:
    flow = trusted / "edited.yaml"
    flow.write_text("steps:\n  - shell: echo one >> ledger.txt\n  - shell: echo two >> ledger.txt; while [ ! -e go ]; do sleep 0.05; done\n")  # fmt: skip
    run = left_run(trusted, "flow__edited", "two")
    flow.write_text(
        "steps:\n  - shell: echo ONE >> ledger.txt\n  - shell: echo two >> ledger.txt\n"
    )
    with Peer(trusted) as peer:
        refused = peer.call("plait_run_wait", run=run)
        assert "the file has changed since these steps were done" in str(refused)
    with Peer(trusted, capabilities=ASKED) as peer:
        wait = peer.begin("tools/call", {"name": "plait_run_wait", "arguments": {"run": run}})
        asked = peer.question()
        assert asked["params"]["requestedSchema"]["properties"]["answer"]["type"] == "boolean"
        peer.reply(asked, "accept", answer=False)
        assert peer.answer(wait)["result"]["isError"] is True
    with Peer(trusted, revision=STATELESS, capabilities=ASKED) as peer:
        call = {"name": "plait_run_wait", "arguments": {"run": run}}
        ((key, _),) = peer.ask("tools/call", call)["inputRequests"].items()
        given = {key: {"action": "accept", "content": {"answer": True}}}
        done = peer.ask("tools/call", {**call, "inputResponses": given})
        assert done["structuredContent"]["status"] == "done"
    assert ledger(trusted) == ["one", "two", "ONE", "two"]


def test_a_model_can_accept_changes_where_no_person_can_be_asked(trusted: Path) -> None:
    flow = trusted / "edited.yaml"
    flow.write_text("steps:\n  - shell: echo one >> ledger.txt\n  - shell: while [ ! -e go ]; do sleep 0.05; done\n")  # fmt: skip
    run = left_run(trusted, "flow__edited", "one")
    flow.write_text("steps:\n  - shell: echo ONE >> ledger.txt\n")
    with Peer(trusted) as peer:
        done = peer.call("plait_run_resume", run=run, accept_changes=True, seconds=60)
        assert done["structuredContent"]["status"] == "done"


def test_trust_that_was_taken_back_is_a_question(trusted: Path) -> None:
    with Peer(trusted, capabilities=ASKED) as peer:
        assert peer.call("team__report", week=1)["isError"] is False
        assert main(["trust", "remove", "."]) == 0
        for action, answer, is_error in (
            ("decline", {}, True),
            ("accept", {"answer": False}, True),
            ("accept", {"answer": True}, False),
        ):
            call = {"name": "team__report", "arguments": {"week": 1}}
            begun = peer.begin("tools/call", call)
            asked = peer.question()
            assert ".ai/tools/team/report.py" in asked["params"]["message"]
            peer.reply(asked, action, **answer)
            assert peer.answer(begun)["result"]["isError"] is is_error
        assert peer.call("team__report", week=1)["isError"] is False


def test_answers_of_earlier_rounds_come_back_with_the_state_of_the_request(trusted: Path) -> None:
    flow = trusted / "once.yaml"
    flow.write_text(ONCE)
    run = left_run(trusted, "flow__once", "paid")
    flow.write_text(ONCE.replace("echo before", "echo BEFORE"))
    (trusted / "go").touch()
    with Peer(trusted, revision=STATELESS, capabilities=ASKED) as peer:
        call = {"name": "plait_run_wait", "arguments": {"run": run}}
        first = peer.ask("tools/call", call)
        ((key, _),) = first["inputRequests"].items()
        given = {key: {"action": "accept", "content": {"answer": "repeat"}}}
        second = peer.ask("tools/call", {**call, "inputResponses": given})
        ((other, _),) = second["inputRequests"].items()
        assert other.startswith("changed:")
        given = {other: {"action": "accept", "content": {"answer": True}}}
        state = {"requestState": second["requestState"]}
        done = peer.ask("tools/call", {**call, "inputResponses": given, **state})
        assert done["structuredContent"]["status"] == "done"
        for bad in ("nonsense", "[" * 100_000, "[]", 3):
            again = peer.ask("tools/call", {**call, "requestState": bad})
            assert again["structuredContent"]["status"] == "done"
    assert ledger(trusted) == ["before", "paid", "BEFORE", "paid", "after"]
