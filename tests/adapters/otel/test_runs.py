"""Runs as a collector sees them: exactly one span for each step, whatever happens to run or collector."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from adapters.otel.collector import WAIT, Received, attributes, collector, free_port, real_sink
from lang.graph.graphs import graph_place, graph_tool, tool, trusted
from plait.adapters.otel.exporter import Delivery, read_state
from plait.app.runs import flow_store
from plait.app.telemetry import describe_loss
from plait.core.extras import install_extra
from plait.engine.events import StepFinished
from plait.engine.trace import parse_traceparent
from runs.stories import Place, new_place
from share import examples

PLAIT = [sys.executable, "-m", "plait"]
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

PLAIN = """\
setup:
  - shell: echo hello
map:
  input: [a, b]
  steps:
    - {id: say, shell: 'echo ${item}'}
reduce:
  - shell: "false"
"""
PLAIN_SPANS = Counter(
    {"run flow": 1, "phase setup": 1, "shell": 2, "map": 1, "items": 1, "item": 2, "shell say": 2, "phase reduce": 1}
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = graph_place(tmp_path, monkeypatch, PLAIT_PROVIDER="replay")
    trusted(made)
    return made


def environment(received: Received, **more: str) -> dict[str, str]:
    return {**os.environ, ENDPOINT: received.url, **more}


def plait(place: Place, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PLAIT, *arguments], cwd=place.root, env=env, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


# ── what arrives ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["our collector", "the sink of oteltest"])
def test_a_plain_run_is_one_trace_with_a_span_for_each_step(
    place: Place, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with real_sink() if kind.startswith("the sink") else collector() as received:
        monkeypatch.setenv(ENDPOINT, received.url)
        ran = place.run(PLAIN)
        assert ran.result.status == "failed"
        assert received.names == PLAIN_SPANS
        root = received.require_one_tree()
        assert root.name == "run flow"
        assert root.status.code == 2
        assert attributes(root) == {
            "plait.run.id": ran.result.run,
            "plait.run.flow": "flow",
            "plait.run.file": str(place.file),
            "plait.run.attempts": 1,
            "plait.run.status": "failed",
            "plait.items.total": 2,
            "plait.items.successful": 2,
            "plait.items.failed": 0,
            "plait.items.skipped": 0,
            "error.type": "exit",
        }
        failed = [span for span in received.spans if span.name == "shell" and span.status.code == 2]
        assert [attributes(span) for span in failed] == [
            {
                "plait.step.kind": "shell",
                "plait.step.status": "failed",
                "plait.step.path": "reduce/0",
                "plait.step.title": "false",
                "process.exit.code": 1,
                "error.type": "exit",
            }
        ]
        assert failed[0].status.message == "exit code 1"
        assert received.resource["service.name"] == "plait"
        assert ran.notes == []


def test_an_old_run_is_sent_as_it_was_sent_while_it_ran(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as live:
        monkeypatch.setenv(ENDPOINT, live.url)
        ran = place.run(PLAIN)
    with collector() as later:
        done = plait(place, "export", "otel", ran.result.run, env=environment(later))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"run {ran.result.run}: 11 spans sent\n"
        one, two = (
            sorted(span.SerializeToString(deterministic=True) for span in received.spans)
            for received in (live, later)
        )
        assert one == two
        nothing = plait(place, "export", "otel", "--rest", "--json", env=environment(later))
        assert json.loads(nothing.stdout)["sent"] == 0


def test_logs_and_metrics_come_with_the_trace(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as received:
        monkeypatch.setenv(ENDPOINT, received.url)
        place.run(PLAIN)
        root = received.require_one_tree()
        texts = [(one.severity_text, one.body.string_value) for one in received.log_records]
        assert [one for one in texts if not one[1].startswith("run ")] == [
            ("ERROR", "false: exit code 1"),
            ("ERROR", "reduce: exit code 1"),
        ]
        assert {one.trace_id for one in received.log_records} == {root.trace_id}
        assert {one.span_id for one in received.log_records} <= {
            one.span_id for one in received.spans
        }
        found = received.last_metrics
        assert set(found) == {"plait.run.duration", "plait.step.duration", "plait.step.failures"}
        counts = {
            tuple(sorted(attributes(point).items())): point.count
            for point in found["plait.step.duration"].histogram.data_points
        }
        flow = ("plait.run.flow", "flow")
        assert counts[flow, ("plait.step.kind", "item"), ("plait.step.status", "done")] == 2
        assert counts[flow, ("plait.step.kind", "shell"), ("plait.step.status", "done")] == 3
        assert [point.as_int for point in found["plait.step.failures"].sum.data_points] == [1, 1]


def test_attempts_are_spans_inside_their_step(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as received:
        monkeypatch.setenv(ENDPOINT, received.url)
        place.run(
            "setup:\n"
            "  - {shell: 'echo $TRACEPARENT >> seen; test -e again || { touch again; false; }',"
            " retry: {attempts: 3, initial_delay: 10ms}}\n"
        )
        assert received.names == Counter(
            {"run flow": 1, "phase setup": 1, "shell": 1, "attempt 1": 1, "attempt 2": 1}
        )
        received.require_one_tree()
        step, first, second = (received.span(one) for one in ("shell", "attempt 1", "attempt 2"))
        assert first.parent_span_id == second.parent_span_id == step.span_id
        assert first.status.code == 2
        assert second.status.code == 0
        seen = [parse_traceparent(line) for line in place.text("seen").split()]
        assert [one.span_id for one in seen if one] == [step.span_id.hex(), second.span_id.hex()]
        retries = received.last_metrics["plait.step.retries"].sum.data_points
        assert [(one.as_int, attributes(one)) for one in retries] == [
            (1, {"plait.run.flow": "flow"})
        ]


def test_items_that_have_not_ended_are_counted_while_a_map_runs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(place.root / "pipe")
    seen: list[tuple[int, dict[str, Any]]] = []

    def wait_and_go_on() -> None:
        for _ in range(int(WAIT * 100)):
            found = received.last_metrics if received.metrics else {}
            if "plait.items.waiting" in found:
                for one in found["plait.items.waiting"].gauge.data_points:
                    seen.append((one.as_int, attributes(one)))
                if seen[-1][0] == 3:
                    break
            threading.Event().wait(0.01)
        (place.root / "pipe").write_text("go")

    with collector() as received:
        monkeypatch.setenv(ENDPOINT, received.url)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "10")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
        thread = threading.Thread(target=wait_and_go_on, daemon=True)
        thread.start()
        place.done(
            "map:\n  input: [a, b, c, d]\n  max_parallel: 1\n  steps:\n"
            "    - shell: 'test ${item} != b || cat pipe'\n"
        )
        thread.join()
        about = {"plait.run.flow": "flow", "plait.step.path": "map"}
        assert seen[-1] == (3, about)  # one of four has ended
        assert "plait.items.waiting" not in received.last_metrics


# ── killed, stopped, retried ─────────────────────────────────────────────

LONG = """\
setup:
  - shell: echo hello
map:
  input: [a, b, c, d]
  max_parallel: 1
  steps:
    - shell: 'echo ${item}'
    - shell: 'if test ${item} = c && ! test -e go; then mkfifo pipe; echo > waits; cat pipe; fi'
reduce:
  - shell: echo end
"""


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    for _ in range(int(WAIT * 100)):
        if path.exists():
            return
        assert process.poll() is None, "plait ended too early"
        threading.Event().wait(0.01)
    raise AssertionError(f"{path} did not appear")


def wait_for_state(place: Place, process: subprocess.Popen[str]) -> None:
    """Wait until `otel.json` says that the ten steps before the pipe were sent."""
    for _ in range(int(WAIT * 100)):
        for file in place.root.glob(".ai/state/runs/*/otel.json"):
            with flow_store(str(place.root)).open(file.parent.name, write=False) as opened:
                records = list(opened.journal.events())
            ended = [one.number for one in records if isinstance(one.event, StepFinished)]
            if len(ended) == 10 and read_state(str(file.parent)) >= ended[-1]:
                return
        assert process.poll() is None, "plait ended too early"
        threading.Event().wait(0.01)
    raise AssertionError("not all spans were sent")


def all_spans(times: int = 1) -> Counter[str]:
    once = {
        "run flow": 1,
        "phase setup": 1,
        "shell": 10,
        "map": 1,
        "items": 1,
        "item": 4,
        "phase reduce": 1,
    }
    return Counter({name: times * count for name, count in once.items()})


@pytest.mark.parametrize(
    "delay", ["50", "60000"], ids=["sent before the kill", "nothing sent before"]
)
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_a_run_that_was_cut_off_and_resumed_is_one_trace_without_duplicates(
    place: Place, sign: signal.Signals, delay: str
) -> None:
    place.write("flow.yaml", LONG)
    with real_sink() as received:
        env = environment(received, OTEL_BSP_SCHEDULE_DELAY=delay)
        with subprocess.Popen([*PLAIT, "run", "flow.yaml"], cwd=place.root, env=env,
                              stdout=subprocess.DEVNULL, text=True) as process:  # fmt: skip
            wait_for(place.root / "waits", process)
            if delay == "50":
                wait_for_state(place, process)
            process.send_signal(sign)
            process.wait(WAIT)
        assert not any(span.name == "run flow" for span in received.spans)
        place.write("go", "")
        done = plait(place, "resume", env={**env, "OTEL_BSP_SCHEDULE_DELAY": "50"})
        assert done.returncode == 0, done.stderr
        assert received.names == all_spans()
        root = received.require_one_tree()
        assert attributes(root)["plait.run.attempts"] == 2
        # The map was cut off, so it starts in the first run attempt, as what is inside.
        first = received.span("items").start_time_unix_nano
        assert root.start_time_unix_nano <= received.span("map").start_time_unix_nano <= first


def run_until_cut_off(place: Place, env: dict[str, str], sign: signal.Signals) -> str:
    """Start a run and end it when ten steps were sent; return its id."""
    place.write("flow.yaml", LONG)
    with subprocess.Popen([*PLAIT, "run", "flow.yaml"], cwd=place.root, env=env,
                          stdout=subprocess.DEVNULL, text=True) as process:  # fmt: skip
        wait_for(place.root / "waits", process)
        wait_for_state(place, process)
        process.send_signal(sign)
        process.wait(WAIT)
    place.write("go", "")
    return flow_store(str(place.root)).find()


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_a_run_that_is_never_resumed_has_the_steps_that_ended_and_no_root(
    place: Place, sign: signal.Signals
) -> None:
    ended = Counter({"phase setup": 1, "items": 1, "shell": 6, "item": 2})
    with collector() as received, collector() as later:
        env = environment(received, OTEL_BSP_SCHEDULE_DELAY="50")
        run = run_until_cut_off(place, env, sign)
        assert received.names == ended
        assert plait(place, "export", "otel", run, env=environment(later)).returncode == 0
        assert later.names == ended


def test_what_was_sent_and_not_noted_before_a_kill_is_sent_again_with_the_same_ids(
    place: Place,
) -> None:
    with collector() as received:
        env = environment(received, OTEL_BSP_SCHEDULE_DELAY="50")
        run = run_until_cut_off(place, env, signal.SIGKILL)
        before = {span.span_id: span.SerializeToString() for span in received.spans}
        (place.root / ".ai/state/runs" / run / "otel.json").unlink()
        assert plait(place, "resume", env=env).returncode == 0
        twice = Counter(span.span_id for span in received.spans)
        assert {id for id, count in twice.items() if count > 1} == before.keys()
        found = {span.span_id: span for span in received.spans}
        assert {id: found[id].SerializeToString() for id in before} == before
        assert Counter(span.name for span in found.values()) == all_spans()


def test_what_runs_again_after_the_end_is_a_part_of_the_same_trace(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as received:
        monkeypatch.setenv(ENDPOINT, received.url)
        ran = place.run(
            "map:\n  input: [a, b]\n  steps:\n    - shell: 'echo $TRACEPARENT >> seen; test ${item} = a || test -e go'\n"
        )
        place.write("go", "")
        place.retry(ran.result.run)
        root = received.require_one_tree()
        assert received.names == Counter(
            {"run flow": 2, "map": 2, "items": 1, "item": 3, "shell": 3}
        )
        (again,) = [one for one in received.spans if one.name == "run flow" and one != root]
        assert again.parent_span_id == root.span_id
        shells = {one.span_id.hex() for one in received.spans if one.name == "shell"}
        seen = [parse_traceparent(line) for line in place.text("seen").split()]
        assert {one.span_id for one in seen if one} == shells


@pytest.mark.parametrize(
    "more", [{"OTEL_TRACES_SAMPLER": "always_off"}, {"OTEL_TRACES_EXPORTER": "none"}],
    ids=["sampled out", "no traces"],
)  # fmt: skip
def test_a_resumed_run_without_traces_sends_no_log_twice(
    place: Place, monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    with collector() as received:
        for name, one in {ENDPOINT: received.url, **more}.items():
            monkeypatch.setenv(name, one)
        ran = place.run("setup:\n  - shell: test -e go\n")
        place.write("go", "")
        place.resume(ran.result.run)
        run = ran.result.run
        assert received.spans == []
        assert [one.body.string_value for one in received.log_records] == [
            f"run {run} started", "test -e go: exit code 1", "setup: exit code 1", "run failed",
            f"run {run} resumed", "run done",
        ]  # fmt: skip
        for name in more:
            monkeypatch.delenv(name)
    with collector() as later:  # what was not sent, for that signal, is the rest
        done = plait(place, "export", "otel", run, "--rest", env=environment(later))
        assert done.stdout == f"run {run}: 6 spans sent\n"


# ── agents ───────────────────────────────────────────────────────────────

MARK = "def execute(params, project_path):\n    return {'line': params['line']}\n"


@pytest.mark.parametrize("content", [False, True])
def test_an_agent_with_tools_follows_the_conventions(
    place: Place, monkeypatch: pytest.MonkeyPatch, content: bool
) -> None:
    tool(place, "demo/mark", MARK)
    place.write(".ai/directives/helper.md", "---\npermissions: [demo/mark]\n---\nDo it.\n")
    place.write("replay.yaml", [
        {"ask": "Do it.", "answer": {"uses": [{"name": "demo__mark", "arguments": {"line": "secret-line"}}],
                                     "model": "small-1",
                                     "usage": {"input": 10, "output": 2, "cost": 0.5}}},
        {"ask": None, "answer": {"text": "done-text", "model": "small-1", "usage": {"input": 20, "output": 3, "cost": 0.25}}},
    ])  # fmt: skip
    with real_sink() as received:
        if content:
            place.write(
                ".ai/plait.yaml", f"telemetry: {{endpoint: '{received.url}', content: true}}\n"
            )
        else:
            monkeypatch.setenv(ENDPOINT, received.url)
        trusted(place)
        place.write("flow.yaml", "setup:\n  - {tool: 'directive:helper', id: ask}\n")
        ran = place.run()
        assert ran.result.status == "done", ran.message
        received.require_one_tree()
        assert received.names == Counter(
            {
                "run flow": 1, "phase setup": 1, "invoke_agent helper": 1, "chat small-1": 2,
                "execute_tool demo/mark": 1, "tool ask": 1,
            }
        )  # fmt: skip
        turns = [one for one in received.spans if one.name.startswith("chat")]
        assert [one.kind for one in turns] == [3, 3]
        facts = attributes(turns[0])
        assert facts["gen_ai.operation.name"] == "chat"
        assert (facts["gen_ai.usage.input_tokens"], facts["gen_ai.usage.output_tokens"]) == (10, 2)
        assert facts["plait.usage.cost"] == 0.5
        assert facts["gen_ai.request.model"] == facts["gen_ai.response.model"] == "small-1"
        call = attributes(received.span("execute_tool demo/mark"))
        assert "error.type" not in call
        assert call["gen_ai.operation.name"] == "execute_tool"
        assert call["gen_ai.tool.name"] == "demo/mark"
        (agent,) = [one for one in received.spans if one.name.startswith("invoke_agent")]
        assert attributes(agent)["gen_ai.usage.input_tokens"] == 30
        received_bytes = received.bytes
        assert [
            (b"Do it" in received_bytes),
            (b"done-text" in received_bytes),
            (b"secret-line" in received_bytes),
        ] == [content] * 3
        assert facts["gen_ai.provider.name"] == "replay"
        assert attributes(agent)["gen_ai.provider.name"] == "replay"
        assert attributes(agent)["gen_ai.agent.name"] == "helper"
        assert facts["gen_ai.response.finish_reasons"] == ["tool_call"]
        assert attributes(turns[1])["gen_ai.response.finish_reasons"] == ["stop"]
        assert ("gen_ai.tool.call.arguments" in call) is content
        if content:
            (asked,) = json.loads(facts["gen_ai.input.messages"])
            assert asked == {"role": "user", "parts": [{"type": "text", "content": "Do it."}]}
            request = {"type": "tool_call", "id": "call_1", "name": "demo__mark", "arguments": {"line": "secret-line"}}  # fmt: skip
            assert json.loads(facts["gen_ai.output.messages"]) == [
                {"role": "assistant", "parts": [request], "finish_reason": "tool_call"}
            ]
            answer = {"type": "text", "content": "done-text"}
            assert json.loads(attributes(turns[1])["gen_ai.output.messages"]) == [
                {"role": "assistant", "parts": [answer], "finish_reason": "stop"}
            ]
        about = {
            "plait.run.flow": "flow",
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "replay",
            "gen_ai.request.model": "small-1",
        }
        took = received.last_metrics["gen_ai.client.operation.duration"]
        (point,) = took.histogram.data_points
        assert (took.unit, point.count, attributes(point)) == ("s", 2, about)
        whole = sum(one.end_time_unix_nano - one.start_time_unix_nano for one in turns) / 1e9
        assert point.sum == pytest.approx(whole, abs=1e-5)
        tokens = {
            attributes(point)["gen_ai.token.type"]: point.sum
            for point in received.last_metrics["gen_ai.client.token.usage"].histogram.data_points
        }
        assert tokens == {"input": 30, "output": 5}
        cost = received.last_metrics["plait.usage.cost"].sum.data_points
        assert sum(point.as_double for point in cost) == 0.75


def test_a_tool_call_that_failed_is_an_error_although_the_agent_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(place, "demo/mark", MARK)
    place.write(".ai/directives/helper.md", "---\npermissions: [demo/mark]\n---\nDo it.\n")
    place.write("replay.yaml", [
        {"ask": "Do it.", "answer": {"uses": [{"name": "demo__unknown", "arguments": {}}]}},
        {"ask": None, "answer": {"text": "done-text"}},
    ])  # fmt: skip
    with collector() as received:
        monkeypatch.setenv(ENDPOINT, received.url)
        trusted(place)
        ran = place.run("setup:\n  - {tool: 'directive:helper', id: ask}\n")
        assert ran.result.status == "done", ran.message
        call = received.span("execute_tool demo__unknown")
        assert (call.status.code, attributes(call)["error.type"]) == (2, "refused")
        assert attributes(call)["plait.step.status"] == "done"
        others = {one.status.code for one in received.spans if one is not call}
        assert others == {0}
        (failed,) = received.last_metrics["plait.step.failures"].sum.data_points
        assert attributes(failed) == {
            "plait.run.flow": "flow", "plait.step.kind": "call", "error.type": "refused"
        }  # fmt: skip


WITHOUT_NAMES = """\
setup:
  - {prompt: "prompt-text one"}
  - {prompt: "prompt-text two", on_failure: true}
  - {agent: "prompt-text three", continue_on_error: true}
  - {prompt: {prompt: "prompt-text four", tools: [demo/fail]}}
  - {shell: 'printf "output-%s" text >&2; exit 3', continue_on_error: true}
  - {tool: demo/fail, params: {line: x}, continue_on_error: true}
  - {id: asked, prompt: {prompt: "prompt-text five", tools: [demo/each]}}
  - {prompt: "prompt-text without a recording", continue_on_error: true}
  - {shell: 'printf "output-%s" text', capture_output: said}
  - {tool: demo/number, params: {line: '${said}'}, continue_on_error: true}
  - shell: "true"
    validate: {shell: 'printf ''{"completion_percentage": 1, "missing": ["output-%s"]}'' text'}
    continue_on_error: true
map:
  input: [one]
  on_item_failure: skip
  steps: [{shell: 'printf "output-%s" text >&2; exit 3'}]
"""
FAIL = "def execute(params, project_path):\n    raise ValueError('output-' + 'text')\n"
NUMBER = "CONFIG_SCHEMA = {'type': 'object', 'properties': {'line': {'type': 'integer'}}}\n" + FAIL
EACH = """\
inputs: {line: {type: string}}
start: each
nodes:
  each: {type: foreach, over: ["${inputs.line}"], tool: demo/number, params: {line: "${item}"}, on_error: wrong, next: wrong}
  wrong: {tool: demo/number, params: {line: "${inputs.line}"}, on_error: end, next: end}
  end: {type: return}
"""


@pytest.mark.parametrize("content", [False, True])
def test_prompts_answers_and_outputs_are_sent_only_if_they_are_asked_for(
    place: Place, monkeypatch: pytest.MonkeyPatch, content: bool
) -> None:
    tool(place, "demo/fail", FAIL)
    tool(place, "demo/number", NUMBER)
    graph_tool(place, "demo/each", EACH)
    arguments = {"line": "argument-text"}
    request = {"name": "demo__fail", "arguments": arguments}
    place.write("replay.yaml", [
        {"ask": "prompt-text one", "answer": {"text": "answer-text"}},
        {"ask": "prompt-text two", "answer": {"text": "answer-text", "ending": "refused"}},
        {"ask": "prompt-text four", "answer": {"uses": [request]}},
        {"ask": None, "answer": {"text": "answer-text"}},
        {"ask": "prompt-text five", "answer": {"uses": [{"name": "demo__each", "arguments": arguments}]}},
        {"ask": None, "answer": {"text": "answer-text"}},
    ])  # fmt: skip
    monkeypatch.setenv("PLAIT_CLAUDE", "/nowhere/claude")
    with collector() as received:
        place.write(
            ".ai/plait.yaml",
            f"telemetry: {{endpoint: '{received.url}', content: {json.dumps(content)}}}\n",
        )
        trusted(place)
        ran = place.run(WITHOUT_NAMES)
        assert ran.result.status == "done", ran.message
        received.require_one_tree()
        texts = (b"prompt-text", b"answer-text", b"argument-text", b"output-text")
        assert [words for words in texts if (words in received.bytes) is not content] == []
        agents = [attributes(one) for one in received.spans if one.name.startswith("invoke_agent")]
        assert [one.get("gen_ai.agent.name") for one in agents] == [None, "agent", "asked"]


# ── many items, sampling ─────────────────────────────────────────────────

MANY = "map:\n  input: items.json\n  max_parallel: 8\n  steps:\n    - write_file: {path: out, content: x}\n"


@pytest.mark.share
@pytest.mark.parametrize("share", ["0", "1"])
def test_ten_thousand_items_are_sampled_as_a_whole(
    place: Place, share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = examples(10_000)
    place.write("items.json", list(range(count)))
    with real_sink() as received:
        monkeypatch.setenv(ENDPOINT, received.url)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", share)
        monkeypatch.setenv("OTEL_BSP_EXPORT_TIMEOUT", "60000")
        assert place.run(MANY).result.status == "done"
        expected = {"run flow": 1, "map": 1, "items": 1, "item": count, "write_file": count}
        assert received.names == Counter(expected if share == "1" else {})
        if share == "1":
            received.require_one_tree()
        (point,) = received.last_metrics["plait.run.duration"].histogram.data_points
        assert point.count == 1


SAMPLED = [
    # the second half of a trace id
    "0000000000000001", "7fffffffffffffff", "8000000000000000", "ffffffffffffffff",
]  # fmt: skip


def sdk_samples(trace_id: str) -> bool:
    decision = TraceIdRatioBased(0.5).should_sample(None, int(trace_id, 16), "run").decision
    return decision is Decision.RECORD_AND_SAMPLE


@pytest.mark.parametrize("half", SAMPLED)
def test_half_of_the_traces_are_sent_each_as_a_whole(
    place: Place, half: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what a resumed run adds."""
    trace = PARENT[3:19] + half
    with collector() as received:
        monkeypatch.setenv(ENDPOINT, received.url)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
        monkeypatch.setenv("TRACEPARENT", f"00-{trace}-{PARENT[36:52]}-01")
        place.write("go", "")
        ran = place.run(PLAIN)
        place.resume(ran.result.run)
        again = Counter({"run flow": 1, "phase reduce": 1, "shell": 1})
        expected = PLAIN_SPANS + again if sdk_samples(trace) else Counter[str]()
        assert received.names == expected
        assert {span.trace_id.hex() for span in received.spans} == ({trace} if expected else set())


def test_the_id_of_its_own_decides_about_a_run_without_a_parent(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    with collector() as received:
        monkeypatch.setenv(ENDPOINT, received.url)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
        for _ in range(64):
            received.traces.clear()
            place.done("setup:\n  - shell: 'echo $TRACEPARENT > seen'\n")
            parent = place.text("seen").strip()
            is_sent = sdk_samples(parent[3:35])
            whole = Counter({"run flow": 1, "phase setup": 1, "shell": 1})
            assert received.names == (whole if is_sent else Counter())
            assert {span.trace_id.hex() for span in received.spans} <= {parent[3:35]}
            assert parent.endswith("-01" if is_sent else "-00")
            seen.add(is_sent)
            if len(seen) == 2:
                return
    pytest.fail("all runs were decided alike")


# ── the context of the trace ─────────────────────────────────────────────


def test_the_run_is_a_child_of_the_traceparent_also_when_it_is_resumed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as received:
        monkeypatch.setenv(ENDPOINT, received.url)
        monkeypatch.setenv("TRACEPARENT", PARENT)
        monkeypatch.setenv("TRACESTATE", "vendor=1")
        ran = place.run("setup:\n  - shell: 'echo $TRACEPARENT $TRACESTATE >> seen; test -e go'\n")
        monkeypatch.delenv("TRACEPARENT")
        place.write("go", "")
        place.resume(ran.result.run)
        assert {one.trace_id.hex() for one in received.spans} == {PARENT[3:35]}
        roots = [one for one in received.spans if one.parent_span_id.hex() == PARENT[36:52]]
        assert [one.name for one in roots] == ["run flow"]
        assert all(one.trace_state == "vendor=1" for one in received.spans)
        ids = {one.span_id.hex() for one in received.spans if one.name == "shell"}
        lines = [line.split() for line in place.text("seen").splitlines()]
        assert {state for _, state in lines} == {"vendor=1"}
        assert {parent[36:52] for parent, _ in lines} == ids


def test_a_state_without_a_valid_parent_is_not_passed_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as received:
        monkeypatch.setenv(ENDPOINT, received.url)
        monkeypatch.setenv("TRACEPARENT", f"{PARENT}\nX: y")
        monkeypatch.setenv("TRACESTATE", "vendor=1")
        place.done("setup:\n  - shell: 'echo \"$TRACEPARENT [$TRACESTATE]\" > seen'\n")
        root = received.require_one_tree()
        parent, state = place.text("seen").split()
        assert parent[3:35] == root.trace_id.hex() != PARENT[3:35]
        assert state == "[]"
        assert {one.trace_state for one in received.spans} == {""}


def test_a_parent_that_is_not_sampled_decides(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as received:
        monkeypatch.setenv(ENDPOINT, received.url)
        monkeypatch.setenv("TRACEPARENT", PARENT[:-2] + "00")
        ran = place.run("setup:\n  - shell: 'echo $TRACEPARENT > seen'\n")
        assert ran.result.status == "done"
        assert received.spans == []
        assert place.text("seen").strip().endswith("-00")


def test_without_telemetry_a_process_gets_no_traceparent(place: Place) -> None:
    place.done("setup:\n  - shell: 'echo ${TRACEPARENT:-none} > seen'\n".replace("${", "$${"))
    assert place.text("seen") == "none\n"


# ── collectors that do not work ──────────────────────────────────────────


def note(place: Place, monkeypatch: pytest.MonkeyPatch, url: str, **env: str) -> tuple[str, Any]:
    monkeypatch.setenv(ENDPOINT, url)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    ran = place.run("setup:\n  - shell: echo hello\n")
    assert ran.result.status == "done"
    (text,) = ran.notes
    return text, ran


def test_a_collector_that_is_gone_leaves_a_note_and_the_rest_is_sent_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    text, ran = note(place, monkeypatch, url)
    run = ran.result.run
    assert text == (
        f"telemetry: not all spans were sent to {url}/v1/traces: connection refused; "
        f"plait export otel {run} --rest sends the rest"
    )
    with collector() as received:
        done = plait(place, "export", "otel", run, "--rest", env=environment(received))
        assert done.stdout == f"run {run}: 3 spans sent\n"
        received.require_one_tree()
    with flow_store(str(place.root)).open(run, write=False) as opened:
        assert "telemetry" not in str(list(opened.journal.events()))


def test_a_collector_that_answers_500_changes_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector(status=500) as received:
        text, ran = note(place, monkeypatch, received.url)
        assert text.startswith(
            f"telemetry: not all spans were sent to {received.url}/v1/traces: it answered 500;"
        )
        done = plait(place, "export", "otel", ran.result.run, env=environment(received))
        assert done.returncode == 1
        assert done.stderr == (
            f"after 0 spans of run {ran.result.run}, the collector took no more: {received.url}/v1/traces: it answered 500\n"
            "fix: look at the collector and at OTEL_EXPORTER_OTLP_ENDPOINT, then try again\n"
        )


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_message_that_a_collector_refuses_does_not_hold_back_later_ones(
    place: Place, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    with collector(status=status) as received:
        text, ran = note(place, monkeypatch, received.url, OTEL_BSP_MAX_EXPORT_BATCH_SIZE="1")
        assert text == f"telemetry: the collector refused 3 spans: it answered {status}"
        done = plait(place, "export", "otel", ran.result.run, env=environment(received))
        assert done.stdout == (
            f"run {ran.result.run}: 0 spans sent, 3 refused: it answered {status}\n"
        )
        assert (done.returncode, done.stderr) == (1, "")


def test_a_collector_that_never_answers_does_not_hold_the_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector(gate=threading.Event()) as received:
        text, _ = note(place, monkeypatch, received.url, OTEL_BSP_EXPORT_TIMEOUT="200")
        assert "it did not answer in time" in text
        assert received.spans == []


def test_a_batch_whose_answer_came_too_late_is_sent_again_with_the_same_ids(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    with collector(gate=gate) as received, collector() as later:
        _, ran = note(place, monkeypatch, received.url, OTEL_BSP_EXPORT_TIMEOUT="200")
        gate.set()
        for _ in range(int(WAIT * 100)):
            if len(received.spans) == 3:
                break
            threading.Event().wait(0.01)
        plait(place, "export", "otel", ran.result.run, "--rest", env=environment(later))
        one, two = (sorted(span.span_id for span in each.spans) for each in (received, later))
        assert one == two
        assert len(one) == 3


def test_refused_spans_are_reported(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with collector(rejected=2) as received:
        text, _ = note(place, monkeypatch, received.url)
        assert text == "telemetry: the collector refused 2 spans"


def test_the_message_of_the_collector_about_refused_spans_is_reported(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector(rejected=2, says="too old\x1b[31m\n") as received:
        text, ran = note(place, monkeypatch, received.url)
        assert text == "telemetry: the collector refused 2 spans: it says: too old?[31m?"
        done = plait(place, "export", "otel", ran.result.run, env=environment(received))
        assert done.stdout == (
            f"run {ran.result.run}: 1 span sent, 2 refused: it says: too old?[31m?\n"
        )


LOSSES = [
    # spans                        what the user reads
    (Delivery(5, 0, True),         ""),
    (Delivery(5, 2, True),         "telemetry: the collector refused 2 spans"),
    (Delivery(5, 2, True, "", "no"), "telemetry: the collector refused 2 spans: no"),
    (Delivery(5, 0, True, "l: x"), "telemetry: not everything was sent to l: x"),
    (Delivery(5, 0, False, "t: x"), "telemetry: not all spans were sent to t: x; plait export otel 7f3a --rest sends the rest"),
    (Delivery(5, 2, False, "t: x"), "telemetry: the collector refused 2 spans; not all spans were sent to t: x; plait export otel 7f3a --rest sends the rest"),
    (Delivery(5, 2, True, "l: x"), "telemetry: the collector refused 2 spans; not everything was sent to l: x"),
]  # fmt: skip


@pytest.mark.parametrize(("delivery", "message"), LOSSES)
def test_the_end_of_a_run_names_all_that_was_lost(delivery: Delivery, message: str) -> None:
    assert describe_loss(delivery, "7f3a") == message


def test_an_export_without_traces_names_the_variable(place: Place) -> None:
    ran = place.run("steps: [{shell: 'true'}]\n")
    env = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
    done = plait(place, "export", "otel", ran.result.run, env=env)
    assert done.stderr == (
        "OTEL_TRACES_EXPORTER is none, so there is no collector\nfix: OTEL_TRACES_EXPORTER=otlp\n"
    )


WRONG = [
    # variables                                            note
    ({ENDPOINT: "localhost:4318"},                         "OTEL_EXPORTER_OTLP_ENDPOINT is no http:// or https:// URL; no traces are sent"),
    ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},              "OTEL_EXPORTER_OTLP_PROTOCOL: Plait sends http/protobuf only, so no traces are sent"),
    ({"OTEL_TRACES_EXPORTER": "console"},                  "OTEL_TRACES_EXPORTER is otlp or none; nothing is sent"),
    ({"OTEL_TRACES_SAMPLER": "magic"},                     "OTEL_TRACES_SAMPLER names no known sampler; known: always_on, always_off, traceidratio, each also after parentbased_"),
    ({"OTEL_TRACES_SAMPLER_ARG": "7"},                     "OTEL_TRACES_SAMPLER_ARG is a number from 0 to 1; 1 is used"),
    ({"OTEL_BSP_SCHEDULE_DELAY": "soon"},                  "OTEL_BSP_SCHEDULE_DELAY is no number from 0 to 1e+09; 1000 is used"),
    ({"OTEL_BSP_SCHEDULE_DELAY": "1e300"},                 "OTEL_BSP_SCHEDULE_DELAY is no number from 0 to 1e+09; 1000 is used"),
    ({"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1e300"},          "OTEL_BSP_MAX_EXPORT_BATCH_SIZE is no number from 0 to 1e+09; 2048 is used"),
]  # fmt: skip


@pytest.mark.parametrize(("env", "expected"), WRONG)
def test_a_wrong_variable_is_named_and_the_run_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], expected: str
) -> None:
    with collector() as received:
        for name, one in {ENDPOINT: received.url, **env}.items():
            monkeypatch.setenv(name, one)
        ran = place.run("setup:\n  - shell: echo hello\n")
        assert ran.result.status == "done"
        assert f"telemetry: {expected}" in ran.notes


@pytest.mark.parametrize(
    "env", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}]
)  # fmt: skip
def test_telemetry_can_be_switched_off(
    place: Place, monkeypatch: pytest.MonkeyPatch, env: dict[str, str]
) -> None:
    with collector() as received:
        for name, one in {ENDPOINT: received.url, **env}.items():
            monkeypatch.setenv(name, one)
        assert place.run(PLAIN).notes == []
        assert received.requests == 0


def test_the_setting_of_a_project_counts_only_if_the_project_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = new_place(tmp_path, monkeypatch)
    with collector() as received:
        place.write(".ai/plait.yaml", f"telemetry: {{endpoint: '{received.url}'}}\n")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=sesame")
        assert place.run("setup:\n  - shell: echo hello\n").notes == [
            "telemetry: 'telemetry' in .ai/plait.yaml does not count, since you do not trust this project; "
            f"plait trust {place.root}, or set OTEL_EXPORTER_OTLP_ENDPOINT"
        ]
        assert received.requests == 0
        trusted(place)
        assert place.run("setup:\n  - shell: echo hello\n").notes == []
        assert received.require_one_tree().name == "run flow"
        assert all("api-key" not in one for one in received.headers)
        monkeypatch.setenv(ENDPOINT, received.url)
        place.run("setup:\n  - shell: echo hello\n")
        assert received.headers[-1]["api-key"] == "sesame"


def test_a_project_without_trust_does_not_switch_content_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = new_place(tmp_path, monkeypatch)
    with collector() as received:
        monkeypatch.setenv(ENDPOINT, received.url)
        place.write(".ai/plait.yaml", "telemetry: {content: true}\n")
        place.run("setup:\n  - shell: echo hello\n")
        assert received.spans
        assert all("plait.step.output" not in attributes(one) for one in received.spans)


def test_without_the_extra_the_note_has_the_command_that_installs_it(place: Place) -> None:
    hide = (
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'opentelemetry': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hide())\n"
        "from plait.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    place.write("flow.yaml", "setup:\n  - shell: echo hello\n")
    env = {**os.environ, ENDPOINT: "http://127.0.0.1:9"}
    command = [sys.executable, "-c", hide]
    ran = subprocess.run([*command, "run", "flow.yaml"], cwd=place.root, env=env, capture_output=True, text=True, check=False)  # fmt: skip
    assert ran.returncode == 0
    fix = f"{install_extra('otel')}, or OTEL_SDK_DISABLED=true"
    assert f"telemetry: OpenTelemetry is configured, but not installed; {fix}" in ran.stdout
    done = subprocess.run([*command, "export", "otel"], cwd=place.root, env=env, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == f"OpenTelemetry is configured, but not installed\nfix: {fix}\n"


# ── who gets the trace ───────────────────────────────────────────────────


def test_tools_and_requests_get_the_id_of_their_step(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(
        ".ai/tools/who.yaml",
        {"version": "1.0.0", "executor_id": "core/primitives/subprocess",
         "config": {"command": "sh", "args": ["-c", "echo $TRACEPARENT"]}},
    )  # fmt: skip
    trusted(place)
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["traceparent"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Silence."""

    with collector() as received, HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv(ENDPOINT, received.url)
        ran = place.run(
            "setup:\n  - {id: ask, tool: who, capture_output: id}\n"
            f"  - {{id: web, http: {{url: 'http://127.0.0.1:{server.server_port}/'}}}}\n"
        )
        server.shutdown()
        assert ran.result.status == "done", ran.message
        assert ran.outputs["setup/ask"][36:52] == received.span("tool ask").span_id.hex()
        (header,) = seen
        assert header[36:52] == received.span("http web").span_id.hex()


def test_a_server_of_mcp_tools_gets_the_id_of_the_step_that_calls_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = [str(Path(__file__).parents[2] / "data" / "mcp" / "meta.py"), str(place.root / "calls")]
    server = {"name": "meta", "command": sys.executable, "args": args}
    place.write(
        ".ai/tools/note.yaml",
        {"version": "1.0.0", "executor_id": "core/runtimes/mcp/stdio",
         "config": {"server": server, "tool_name": "note"}},
    )  # fmt: skip
    trusted(place)
    assert place.plait("trust", "mcp", "meta", "note").returncode == 0
    with collector() as received:
        monkeypatch.setenv(ENDPOINT, received.url)
        monkeypatch.setenv("TRACEPARENT", PARENT)
        monkeypatch.setenv("TRACESTATE", "vendor=1")
        place.done("setup:\n  - {id: one, tool: note}\n  - {id: two, tool: note}\n")
        calls = [json.loads(line) for line in place.text("calls").splitlines()]
        assert [one["traceparent"] for one in calls] == [
            f"00-{PARENT[3:35]}-{received.span(name).span_id.hex()}-01"
            for name in ("tool one", "tool two")
        ]
        assert [one["tracestate"] for one in calls] == ["vendor=1", "vendor=1"]
