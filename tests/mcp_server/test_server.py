"""What a client of `plait mcp` can see and do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mcp_server.peer import LIMIT, STATELESS, Peer
from plait.cli import main
from plait.engine.stop import StopSignal
from plait.mcp.catalog import Catalog
from plait.mcp.run_jobs import CANCELLED, RunJobs

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


def test_a_flow_of_a_project_that_is_no_longer_trusted_does_not_run(trusted: Path) -> None:
    (trusted / "secret.yaml").rename(trusted.parent / "elsewhere.yaml")
    (trusted / "secret.yaml").symlink_to(trusted.parent / "elsewhere.yaml")
    with Peer(trusted, "--answer-within", "0.01") as peer:
        run = peer.call("flow__ledger")["structuredContent"]["run"]
        wait_for(trusted / "ledger.txt")
    with Peer(trusted) as peer:
        assert "flow__secret" in names(peer)
        assert main(["trust", "remove", "."]) == 0
        for call in (
            {"name": "flow__secret"},
            {"name": "plait_run_start", "flow": "flow__secret"},
        ):
            refused = peer.call(**call)
            assert refused["isError"] is True
            assert text(refused) == (
                f"{trusted}: the flow secret.yaml may not run: you no longer trust this project\n"
                f"fix: look at what it brings, then type: plait trust {trusted}"
            )
        refused = peer.call("plait_run_wait", run=run)
        assert "the flow ledger.yaml may not run" in text(refused)
        status = peer.call("plait_run_status", run=run)["structuredContent"]["status"]
        assert status == "interrupted"


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


def test_the_list_names_each_pattern_that_fits_nothing(
    trusted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--expose", "team/*", "--expose", "flwo:*", "--expose", "report"]
    assert main(["mcp", "list", *words]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        f"1 tool for MCP clients of {trusted}",
        "nothing that may run fits 'flwo:*', 'report'",
    ]
    assert main(["mcp", "list"]) == 0
    assert "fits" not in capsys.readouterr().out


def test_a_project_chooses_what_is_offered_and_the_option_wins(trusted: Path) -> None:
    (trusted / ".ai/plait.yaml").write_text("mcp_expose: [team/*]\n")
    with Peer(trusted) as peer:
        assert names(peer) == ["team__report"]
        assert peer.call("team__report", week=1)["isError"] is False
        (trusted / ".ai/plait.yaml").write_text("mcp_expose: [core/file/read]\n")
        assert peer.call("team__report", week=1)["message"] == "Unknown tool: team__report"
    with Peer(trusted, "--expose", "core/file/read") as peer:
        assert names(peer) == ["core__file__read"]


def test_the_runs_of_a_flow_that_is_no_longer_exposed_are_not_offered(trusted: Path) -> None:
    settings = trusted / ".ai/plait.yaml"
    settings.write_text("mcp_expose: ['flow:*']\n")
    (trusted / "short.yaml").write_text("steps: [{shell: 'true'}]\n")
    with Peer(trusted) as peer:
        run = peer.call("flow__short")["structuredContent"]["run"]
        assert peer.call("plait_run_status", run=run)["isError"] is False
        settings.write_text("mcp_expose: ['flow:led*']\n")
        for name in ("plait_run_status", "plait_run_resume"):
            refused = peer.call(name, run=run)
            assert text(refused).splitlines()[0] == (
                f"there is no run '{run}' of a flow that is offered here"
            )


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


def test_a_flow_whose_items_fail_says_which_and_why(trusted: Path) -> None:
    steps = "[{shell: 'echo no ${item} >&2; [ ${item} = 0 ]'}]"
    items = ", ".join(map(str, range(15)))
    (trusted / "some.yaml").write_text(f"map: {{input: [{items}], max_parallel: 1, steps: {steps}}}\n")  # fmt: skip
    with Peer(trusted) as peer:
        result = peer.call("flow__some")
    assert result["isError"] is True
    first, *failed, rest = text(result).split("\n")
    assert first.endswith(" of some ended; 14 of 15 items failed")
    assert failed == [f"- {item}: exit 1, no {item}" for item in range(5, 15)]
    run = result["structuredContent"]["run"]
    assert rest == f"- 4 more: plait show {run} --json lists them"


def test_a_function_that_acts_as_if_ctrl_c_was_pressed_gets_an_answer(trusted: Path) -> None:
    report = trusted / ".ai/tools/team/report.py"
    written = report.read_text()
    report.write_text(written.replace("    return {", "    raise KeyboardInterrupt\n    return {"))
    with Peer(trusted) as peer:
        error = {"code": -32603, "message": "it was cancelled"}
        assert peer.call("team__report", week=1) == error
        assert peer.ask("ping") == {}


def test_a_slow_call_does_not_hold_up_others(trusted: Path) -> None:
    with Peer(trusted) as peer:
        slow = peer.begin("tools/call", {"name": "flow__ledger"})
        assert peer.ask("ping") == {}
        assert peer.call("team__report", week=1)["isError"] is False
        (trusted / "go").touch()
        assert text(peer.answer(slow)["result"]) == "end\n"


@pytest.mark.parametrize("id", [0, 7, "", "a"])
def test_cancelling_a_call_ends_the_process_of_its_tool(trusted: Path, id: int | str) -> None:
    with Peer(trusted) as peer:
        command = "echo $$ > waiting.tmp && mv waiting.tmp waiting.pid && sleep 600"
        call = {"name": "core__shell", "arguments": {"command": command}}
        peer.send({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": call})
        pid = int(wait_for(trusted / "waiting.pid"))
        params = {"requestId": id, "reason": "no longer needed"}
        peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        wait_until(lambda: not is_alive(pid))
        assert peer.ask("ping") == {}
        assert id not in peer._answers


def test_secrets_are_masked_in_answers_and_resources(trusted: Path) -> None:
    with Peer(trusted, TOKEN="s3cret-value-42") as peer:
        result = peer.call("flow__secret")
        assert text(result) == "the token is ***\n"
        run = result["structuredContent"]["run"]
        for what in ("", "/output", "/log"):
            read = peer.ask("resources/read", {"uri": f"plait://runs/{run}{what}"})
            assert "s3cret" not in str(read)
        assert "s3cret" not in str(result)


def test_secret_inputs_are_given_again_where_a_run_is_resumed(trusted: Path) -> None:
    (trusted / "sealed.yaml").write_text(SEALED)
    with Peer(trusted, "--answer-within", "0.01") as peer:
        run = peer.call("flow__sealed", code="op3n-sesame")["structuredContent"]["run"]
        wait_for(trusted / "began")
        peer.kill()
    (trusted / "go").touch()
    with Peer(trusted) as peer:
        assert text(peer.call("plait_run_wait", run=run)) == (
            f"run {run} was given secrets, which are not kept with it: code\n"
            "fix: call plait_run_resume with them in 'inputs'"
        )
        given = {"code": "op3n-sesame"}
        done = peer.call("plait_run_resume", run=run, inputs=given, seconds=60)
        assert done["structuredContent"]["status"] == "done"
        assert "op3n" not in str(done)


def test_an_ensemble_is_a_tool_with_the_schema_of_its_inputs(trusted: Path) -> None:
    (trusted / "tides.yaml").write_text(ENSEMBLE)
    (trusted / "replay.yaml").write_text(RECORDED_ANSWERS)
    (trusted / ".ai/config/providers").mkdir(parents=True)
    (trusted / ".ai/config/providers/default.yaml").write_text("extends: replay\nmatch: order\n")
    with Peer(trusted) as peer:
        tools = {one["name"]: one for one in peer.ask("tools/list")["tools"]}
        assert tools["flow__tides"]["inputSchema"] == {
            "type": "object",
            "properties": {
                "topic": {"type": "string"},
                "most": {"type": "integer", "default": 2},
            },
            "required": ["topic"],
            "additionalProperties": False,
        }
        assert "'topic'" in text(peer.call("flow__tides", most=3))
        result = peer.call("flow__tides", topic="tides")
        assert text(result) == "They come twice a day."
        state = result["structuredContent"]
        assert {name: state[name] for name in ("flow", "status", "output", "failure")} == {
            "flow": "tides",
            "status": "done",
            "output": "They come twice a day.",
            "failure": None,
        }
        asked = peer.ask("resources/read", {"uri": f"plait://runs/{state['run']}/log"})
        assert "They come twice a day." in asked["contents"][0]["text"]


ENSEMBLE = """\
name: tides
inputs: {topic: string, most: {type: integer, default: 2}}
agents:
  writer: {role: a writer, goal: be brief}
tasks:
  write:
    description: Write about {topic} in at most {most} sentences
    expected_output: a sentence
    agent: writer
"""
RECORDED_ANSWERS = """\
- answer: {text: They come twice a day., usage: {input: 10, output: 5}, model: demo-1}
"""
SEALED = """\
inputs: {code: string}
secrets: [code]
start: a
nodes:
  a: {shell: "touch began; while [ ! -e go ]; do sleep 0.05; done"}
"""


def test_a_flow_with_problems_is_offered_with_its_problem_and_does_not_run(trusted: Path) -> None:
    with Peer(trusted) as peer:
        result = peer.call("flow__broken")
        assert result["isError"] is True
        assert "'shel' is not a field of a step" in text(result)


# ── durable runs ─────────────────────────────────────────────────────────


def test_a_long_flow_answers_with_its_run_and_reports_its_progress(trusted: Path) -> None:
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
        peer.wait_for_progress(0)  # a waiting client gets the state of the run at once
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


def test_a_run_that_is_being_stopped_is_resumed_after_its_end(trusted: Path) -> None:
    catalog = Catalog(str(trusted), None)
    runs = RunJobs(catalog, print)
    flow = catalog.get("flow__ledger")
    assert flow is not None
    stopped = runs.start(flow, {})
    wait_until(lambda: "c" in wait_for(trusted / "ledger.txt"))
    stopped.stop.ask(CANCELLED)
    resumed = runs.resume(stopped.run)
    assert resumed is not stopped
    assert runs.resume(stopped.run) is resumed
    (trusted / "go").touch()
    assert runs.wait(stopped.run, LIMIT, StopSignal()).status == "done"


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


def test_a_busy_server_still_reports_the_state_of_runs_and_stops_them(
    trusted: Path,
) -> None:
    with Peer(trusted) as peer:
        run = peer.call("plait_run_start", flow="flow__ledger")["structuredContent"]["run"]
        wait = {"name": "plait_run_wait", "arguments": {"run": run, "seconds": 60}}
        waiting = [peer.begin("tools/call", wait) for _ in range(64)]
        full = {"code": -32000, "message": "64 requests are being performed: wait for one"}
        assert peer.call("team__report", week=1) == full
        assert peer.call("plait_run_start", flow="flow__ledger") == full
        assert peer.ask("ping") == {}
        assert peer.call("plait_run_status", run=run)["structuredContent"]["status"] == "running"
        assert peer.ask("tasks/get", {"taskId": run})["status"] == "working"
        stopped = peer.call("plait_run_cancel", run=run)["structuredContent"]
        assert (stopped["run"], stopped["status"]) == (run, "interrupted")
        for one in waiting:
            assert peer.answer(one)["result"]["structuredContent"]["status"] == "interrupted"
        assert peer.call("team__report", week=1)["isError"] is False


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


ITEMS = {"a": "ac8d8342bbb2", "b": "c100f95c1913", "c": "879923da020d", "d": "3fa5834dc920"}
"""Of the flow `ledger`: digests of the items."""


def test_runs_logs_and_outputs_are_resources(trusted: Path) -> None:
    (trusted / "go").touch()
    (trusted / "nothing.yaml").write_text("map: {input: [1], steps: [{shell: echo a}]}\n")
    with Peer(trusted) as peer:
        run = peer.call("flow__ledger")["structuredContent"]["run"]
        (listed,) = peer.ask("resources/list")["resources"]
        assert (listed["uri"], listed["title"]) == (f"plait://runs/{run}", "ledger: done")

        def read(what: str) -> Any:
            uri = f"plait://runs/{run}{what}"
            (one,) = peer.ask("resources/read", {"uri": uri})["contents"]
            assert one["uri"] == uri
            return one["mimeType"], one["text"]

        def read_log(what: str) -> list[str]:
            """The lines, without how long each step took."""
            kind, log = read(what)
            assert (kind, log[-1]) == ("text/plain", "\n")
            return [re.sub(r" {3}[0-9.]+ s$", "", line) for line in log.splitlines()]

        assert read("/output") == ("text/plain", "end\n")
        nothing = peer.call("flow__nothing")["structuredContent"]["run"]
        (one,) = peer.ask("resources/read", {"uri": f"plait://runs/{nothing}/output"})["contents"]
        assert (one["mimeType"], one["text"]) == ("application/json", "null")
        assert read("")[0] == "application/json"
        assert f'"id":"{run}"' in read("")[1]
        log = read_log("/log")
        assert log == [
            *(f"── map/item:{id}/0   {item} › echo {item} >> ledger.txt…   done" for item, id in ITEMS.items()),
            "── reduce/0   reduce › echo end   done",
            "end",
        ]  # fmt: skip
        assert read_log("/log/a") == log[:1]
        assert read_log("/log/reduce/0") == log[-2:]
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
