"""What a client of `plait mcp` can see and do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mcp_server.peer import LIMIT, STATELESS, Peer
from plait.cli import main

RUN_TOOLS = ["plait_run_start", "plait_run_status", "plait_run_wait", "plait_run_cancel", "plait_run_resume"]  # fmt: skip


def names(peer: Peer) -> list[str]:
    return [one["name"] for one in peer.ask("tools/list")["tools"]]


def text(result: Any) -> str:
    (content,) = result["content"]
    return str(content["text"])


# ── what is offered ──────────────────────────────────────────────────────


def test_files_without_trust_are_not_offered(project: Path) -> None:
    with Peer(project) as peer:
        found = names(peer)
        assert [one for one in found if not one.startswith("core__")] == []
        assert "core__file__read" in found
        assert peer.call("team__report", week=1)["message"] == "Unknown tool: team__report"
        assert peer.call("flow__ledger")["message"] == "Unknown tool: flow__ledger"
        assert peer.ask("prompts/list")["prompts"] == []


def test_a_tool_is_no_longer_offered_when_trust_is_taken_back(trusted: Path) -> None:
    with Peer(trusted) as peer:
        assert peer.call("team__report", week=1)["isError"] is False
        assert main(["trust", "remove", "."]) == 0
        refused = peer.call("team__report", week=1)
        assert refused["isError"] is True
        assert "trust" in text(refused)
        assert "team__report" not in names(peer)


EXPOSED = [
    # patterns, and what is offered
    (["team/*"],                     ["team__report"]),
    (["team/report", "flow:led*"],   ["team__report", "flow__ledger", *RUN_TOOLS]),
    (["directive:*"],                ["directive-_team__review", *RUN_TOOLS]),
    (["nothing"],                    []),
]  # fmt: skip


@pytest.mark.parametrize(("patterns", "offered"), EXPOSED)
def test_only_what_a_pattern_names_is_offered(
    trusted: Path, patterns: list[str], offered: list[str]
) -> None:
    with Peer(trusted, *(word for one in patterns for word in ("--expose", one))) as peer:
        assert names(peer) == offered


def test_a_project_chooses_what_is_offered_and_the_option_wins(trusted: Path) -> None:
    (trusted / ".ai/plait.yaml").write_text("mcp_expose: [team/*]\n")
    with Peer(trusted) as peer:
        assert names(peer) == ["team__report"]
    with Peer(trusted, "--expose", "core/file/read") as peer:
        assert names(peer) == ["core__file__read"]


def test_a_wrong_setting_is_an_error_before_a_client_is_served(
    trusted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (trusted / ".ai/plait.yaml").write_text("mcp_expose: team\n")
    assert main(["mcp", "list"]) == 2
    assert "'mcp_expose' is a list of patterns for what plait mcp offers" in capsys.readouterr().err


def test_a_tool_has_its_schema_and_truthful_hints(trusted: Path) -> None:
    with Peer(trusted) as peer:
        tools = {one["name"]: one for one in peer.ask("tools/list")["tools"]}
    report = tools["team__report"]
    assert report["inputSchema"]["required"] == ["week"]
    assert report["annotations"] == {"title": "team/report", "readOnlyHint": False}
    assert tools["core__file__read"]["annotations"] == {
        "title": "core/file/read",
        "readOnlyHint": True,
        "destructiveHint": False,
        "idempotentHint": True,
        "openWorldHint": False,
    }
    assert tools["flow__ledger"]["inputSchema"] == {
        "type": "object",
        "properties": {
            "last": {
                "type": "string",
                "description": "what is written at the end",
                "default": "end",
            }
        },
        "required": [],
        "additionalProperties": False,
    }
    reading = {name for name, tool in tools.items() if tool["annotations"]["readOnlyHint"]}
    assert reading == {
        "core__file__list", "core__file__read", "core__file__search", "core__json__query", "plait_run_status",
    }  # fmt: skip


def test_two_files_with_one_name_are_two_tools(trusted: Path) -> None:
    (trusted / "ledger.yml").write_text("steps: [{shell: echo other}]\n")
    (trusted / ".ai/tools/flow").mkdir()
    (trusted / ".ai/tools/flow/ledger.py").write_bytes(
        (trusted / ".ai/tools/team/report.py").read_bytes()
    )
    with Peer(trusted, "--expose", "flow:ledger*", "--expose", "flow/*") as peer:
        found = names(peer)[:3]
        assert found[0] == "flow__ledger"
        assert len(set(found)) == 3
        assert [peer.call(one, **({"week": 1} if one == found[0] else {}))["isError"] for one in (found[0], found[2])] == [False, False]  # fmt: skip


# ── calls ────────────────────────────────────────────────────────────────


def test_a_tool_answers_with_text_and_data_and_what_it_prints_goes_elsewhere(trusted: Path) -> None:
    peer = Peer(trusted)
    assert peer.call("team__report", week=46) == {
        "content": [{"type": "text", "text": '{"week":46,"name":"Ada"}'}],
        "structuredContent": {"week": 46, "name": "Ada"},
        "isError": False,
    }
    assert b"this must not reach the client" in peer.leave()


def test_wrong_arguments_are_an_error_of_the_protocol_or_one_that_a_model_reads(
    trusted: Path,
) -> None:
    with Peer(trusted, revision="2025-06-18") as peer:
        error = peer.call("team__report", week="x")
        assert error["code"] == -32602
        assert error["message"].startswith("team__report: ")
        assert peer.call("flow__ledger", lst=1) == {
            "code": -32602,
            "message": "flow__ledger: the arguments of 'flow__ledger' do not fit its schema: 'lst' is not a parameter",
        }  # fmt: skip
    for revision in ("2025-11-25", STATELESS):
        with Peer(trusted, revision=revision) as peer:
            result = peer.call("team__report", week="x")
            assert result["isError"] is True
            assert "week" in text(result)
            assert peer.call("plait_run_wait", run="")["isError"] is True


def test_a_tool_that_fails_says_why(trusted: Path) -> None:
    with Peer(trusted) as peer:
        result = peer.call("core__file__read", path="missing.txt")
        assert result["isError"] is True
        assert "missing.txt" in text(result)


def test_a_slow_call_does_not_hold_up_others(trusted: Path) -> None:
    with Peer(trusted) as peer:
        slow = peer.begin("tools/call", {"name": "flow__ledger"})
        assert peer.ask("ping") == {}
        assert peer.call("team__report", week=1)["isError"] is False
        (trusted / "go").touch()
        assert text(peer.answer(slow)["result"]) == "end\n"


def test_cancelling_a_call_ends_the_process_of_its_tool(trusted: Path) -> None:
    with Peer(trusted) as peer:
        command = "echo $$ > waiting.tmp && mv waiting.tmp waiting.pid && sleep 600"
        call = peer.begin("tools/call", {"name": "core__shell", "arguments": {"command": command}})
        pid = int(wait_for(trusted / "waiting.pid"))
        params = {"requestId": call, "reason": "no longer needed"}
        peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        wait_until(lambda: not is_alive(pid))
        assert peer.ask("ping") == {}
        assert call not in peer._answers


def test_secrets_are_masked_in_answers_and_resources(trusted: Path) -> None:
    with Peer(trusted, TOKEN="s3cret-value-42") as peer:
        result = peer.call("flow__secret")
        assert text(result) == "the token is ***\n"
        run = result["structuredContent"]["run"]
        for what in ("", "/output", "/log"):
            read = peer.ask("resources/read", {"uri": f"plait://runs/{run}{what}"})
            assert "s3cret" not in str(read)
        assert "s3cret" not in str(result)


def test_a_flow_with_problems_is_offered_with_its_problem_and_does_not_run(trusted: Path) -> None:
    with Peer(trusted) as peer:
        result = peer.call("flow__broken")
        assert result["isError"] is True
        assert "'shel' is not a field of a step" in text(result)


# ── durable runs ─────────────────────────────────────────────────────────


def test_a_long_flow_answers_with_its_run_and_tells_its_progress(trusted: Path) -> None:
    with Peer(trusted, "--answer-within", "0.01") as peer:
        call = peer.begin("tools/call", {"name": "flow__ledger"}, progressToken="p")
        result = peer.answer(call)["result"]
        run = result["structuredContent"]["run"]
        assert result["structuredContent"]["status"] == "running"
        assert result["isError"] is False
        assert text(result).endswith(
            f'call plait_run_wait with {{"run": "{run}"}} to wait for its end'
        )
        peer.notices.clear()
        wait = peer.begin(
            "tools/call",
            {"name": "plait_run_wait", "arguments": {"run": run, "seconds": 60}},
            progressToken="w",
        )
        peer.wait_for_progress(0)  # a client that waits is told at once how the run stands
        (trusted / "go").touch()
        done = peer.answer(wait)["result"]
        assert done["structuredContent"]["status"] == "done"
        assert text(done) == "end\n"
        assert {one["params"]["progressToken"] for one in peer.notices} == {"w"}
        counts = [one["params"]["progress"] for one in peer.notices]
        assert counts == sorted(set(counts))
        assert peer.call("plait_run_status", run=run[:4])["structuredContent"]["status"] == "done"


@pytest.mark.parametrize("how", ["kill", "leave"])
def test_a_run_survives_its_server_and_no_recorded_step_is_repeated(
    trusted: Path, how: str
) -> None:
    with Peer(trusted, "--answer-within", "60") as peer:
        peer.begin("tools/call", {"name": "flow__ledger"}, progressToken=1)
        peer.wait_for_progress(2)
        (listed,) = peer.ask("resources/list")["resources"]
        run = listed["name"]
        getattr(peer, how)()
    (trusted / "go").touch()
    with Peer(trusted) as peer:
        stopped = peer.call("plait_run_status", run=run)["structuredContent"]
        assert stopped["status"] == "interrupted"
        done = peer.call("plait_run_wait", run=run, seconds=60)["structuredContent"]
        assert (done["run"], done["status"], done["output"]) == (run, "done", "end\n")
    with Peer(trusted, revision=STATELESS) as peer:
        again = peer.call("plait_run_wait", run=run)["structuredContent"]
        assert again == done
    lines = (trusted / "ledger.txt").read_text().split()
    assert [lines.count(one) for one in "abcd"] == [1, 1, 2, 1]


def test_a_cancelled_run_stops_and_only_resume_continues_it(trusted: Path) -> None:
    with Peer(trusted) as peer:
        run = peer.call("plait_run_start", flow="flow__ledger", params={"last": "x"})
        id = run["structuredContent"]["run"]
        wait_for(trusted / "ledger.txt")
        stopped = peer.call("plait_run_cancel", run=id)
        assert stopped["structuredContent"]["status"] == "interrupted"
        assert stopped["isError"] is False
        (trusted / "go").touch()
        assert peer.call("plait_run_wait", run=id)["structuredContent"]["status"] == "interrupted"
        resumed = peer.call("plait_run_resume", run=id, seconds=60)
        assert resumed["structuredContent"]["status"] == "done"
        assert text(resumed) == "x\n"


def test_a_run_of_another_process_is_cancelled(trusted: Path) -> None:
    words = [sys.executable, "-m", "plait", "run", "ledger.yaml", "--quiet"]
    other = subprocess.Popen(words, cwd=trusted, stderr=subprocess.DEVNULL)
    file = trusted / "ledger.txt"
    while not file.exists() or "c" not in file.read_text():
        assert other.poll() is None
        time.sleep(0.02)
    with Peer(trusted) as peer:
        uri = peer.ask("resources/list")["resources"][0]["uri"]
        id = uri.removeprefix("plait://runs/").partition("/")[0]
        stopped = peer.call("plait_run_cancel", run=id)["structuredContent"]
        assert (stopped["run"], stopped["status"]) == (id, "interrupted")
        assert other.wait(60) != 0
        assert peer.call("plait_run_wait", run=id)["structuredContent"]["status"] == "interrupted"
    assert file.read_text().split() == ["a", "b", "c"]


def test_a_command_does_not_stop_a_server_and_its_other_runs(
    trusted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Peer(trusted) as peer:
        call = peer.begin("tools/call", {"name": "flow__ledger"}, progressToken=1)
        peer.wait_for_progress(2)
        (listed,) = peer.ask("resources/list")["resources"]
        assert main(["stop", listed["name"], "--project", str(trusted)]) == 2
        assert "belongs to a 'plait mcp'" in capsys.readouterr().err
        (trusted / "go").touch()
        assert peer.answer(call)["result"]["structuredContent"]["status"] == "done"


def test_cancelling_the_call_of_a_flow_stops_the_run(trusted: Path) -> None:
    with Peer(trusted) as peer:
        call = peer.begin("tools/call", {"name": "flow__ledger"}, progressToken=1)
        peer.wait_for_progress(2)
        peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}})  # fmt: skip
        (listed,) = peer.ask("resources/list")["resources"]

        def state() -> Any:
            return peer.call("plait_run_status", run=listed["name"])["structuredContent"]

        wait_until(lambda: state()["status"] == "interrupted")
        assert state()["failure"]["message"] == "cancelled"


def test_a_run_whose_flow_is_not_offered_is_unknown(trusted: Path) -> None:
    (trusted / "go").touch()
    assert main(["run", "ledger.yaml", "--quiet"]) == 0
    with Peer(trusted, "--expose", "flow:secret.yaml") as peer:
        refused = peer.call("plait_run_status", run="last")
        assert text(refused) == (
            "there is no run 'last' of a flow that is offered here\n"
            "fix: plait runs lists the runs of the project"
        )
        assert peer.ask("resources/list")["resources"] == []
        assert peer.ask("resources/read", {"uri": "plait://runs/last/log"})["code"] == -32002
    with Peer(trusted) as peer:
        assert peer.call("plait_run_status", run="last")["structuredContent"]["status"] == "done"


# ── prompts and resources ────────────────────────────────────────────────


def test_a_directive_is_a_prompt(trusted: Path) -> None:
    with Peer(trusted) as peer:
        (prompt,) = peer.ask("prompts/list")["prompts"]
        assert prompt == {
            "name": "directive-_team__review",
            "title": "directive:team/review",
            "description": "Review a file",
            "arguments": [{"name": "file", "description": "which file", "required": True}],
        }
        given = {"name": prompt["name"], "arguments": {"file": "a.py"}}
        (message,) = peer.ask("prompts/get", given)["messages"]
        assert message["content"] == {"type": "text", "text": "Review a.py please."}
        missing = peer.ask("prompts/get", {"name": prompt["name"]})
        assert missing == {
            "code": -32602,
            "message": "directive-_team__review: missing arguments: file",
        }


def test_runs_logs_and_outputs_are_resources(trusted: Path) -> None:
    (trusted / "go").touch()
    with Peer(trusted) as peer:
        run = peer.call("flow__ledger")["structuredContent"]["run"]
        (listed,) = peer.ask("resources/list")["resources"]
        assert (listed["uri"], listed["title"]) == (f"plait://runs/{run}", "ledger: done")

        def read(what: str) -> Any:
            uri = f"plait://runs/{run}{what}"
            (one,) = peer.ask("resources/read", {"uri": uri})["contents"]
            assert one["uri"] == uri
            return one["mimeType"], one["text"]

        assert read("/output") == ("text/plain", "end\n")
        assert read("")[0] == "application/json"
        assert f'"id":"{run}"' in read("")[1]
        assert "echo end" in read("/log")[1] or "end" in read("/log")[1]
        assert "ledger.txt" in read("/log/a")[1]
        templates = [one["uriTemplate"] for one in peer.ask("resources/templates/list")["resourceTemplates"]]  # fmt: skip
        assert templates == [
            "plait://runs/{run}",
            "plait://runs/{run}/output",
            "plait://runs/{run}/log",
            "plait://runs/{run}/log/{step}",
        ]
        for uri in ("file:///etc/passwd", "plait://runs/", "plait://runs/../x", f"plait://runs/{run}/x"):  # fmt: skip
            assert peer.ask("resources/read", {"uri": uri})["code"] == -32002


# ── waiting ──────────────────────────────────────────────────────────────


def wait_until(holds: Any) -> None:
    until = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def wait_for(file: Path) -> str:
    wait_until(file.exists)
    return file.read_text()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
