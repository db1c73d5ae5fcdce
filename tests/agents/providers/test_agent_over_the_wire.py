"""An agent with tools against a real server of either family: what it hears of its calls is what they gave."""

from __future__ import annotations

from typing import Any

import pytest

from agents.providers.talk import FAMILIES, GREETING, events, fixture, provider, serving
from agents.providers.test_wire_formats import THOUGHT
from agents.scripted import ToolServices
from plait.agents.session import AgentStep
from plait.engine.outcome import Succeeded
from program.fakes import new_run, performed

HOSTILE = '${HOME} {model} {messages} {{x}} {input:q} $(id) "\n\\u0041'


@pytest.mark.parametrize("family", FAMILIES)
def test_an_agent_calls_tools_and_receives_their_results_unchanged(family: str) -> None:
    asked: list[Any] = []

    def read(params: Any) -> str:
        asked.append(params)
        return HOSTILE

    with serving(
        events(fixture(family, "stream_tools.sse")), events(fixture(family, "stream.sse"))
    ) as server:
        fakes = ToolServices(
            provider(family, server.url),  # type: ignore[arg-type]
            {"read_file": read, "list_files": lambda _: HOSTILE},
        )
        talk = AgentStep("agent", "look", f"look at {HOSTILE}", tools=("*",))
        outcome = performed(talk, new_run(fakes))
    assert isinstance(outcome, Succeeded), outcome
    assert (outcome.value["output"], outcome.value["turns"], asked) == (
        GREETING,
        2,
        [{"path": "a.txt"}],
    )
    assert outcome.value["usage"]["input"] == 90 + 1200
    first, second = server.asked(0)["messages"], server.asked(1)["messages"]
    assert len(second) == len(first) + (3 if family == "chat_completions" else 2)
    if family == "chat_completions":
        assert first[-1]["content"] == f"look at {HOSTILE}"
        assert [(one["tool_call_id"], one["content"]) for one in second[-2:]] == [
            ("call_a1", HOSTILE),
            ("call_b2", HOSTILE),
        ]
    else:
        assert first[-1]["content"] == [{"type": "text", "text": f"look at {HOSTILE}"}]
        assert second[-2] == {"role": "assistant", "content": THOUGHT}
        assert [(one["tool_use_id"], one["content"]) for one in second[-1]["content"]] == [
            ("toolu_a1", HOSTILE),
            ("toolu_b2", HOSTILE),
        ]
