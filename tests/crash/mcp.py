"""A run that clients of `plait mcp` start and wait for, while clients and servers die at random moments.

All rules of checks.py must hold, and one more:

    H  the handle that the first client got answers in every later server

A third of the servers serve HTTP.  They end on request, not with their client.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, Final

from crash.scene import ENGINE, LIMIT, Failed, Scene, wait_for
from mcp_server.http_peer import HttpCaller
from mcp_server.peer import PLAIT, STATELESS, Peer

REVISIONS: Final = (STATELESS, "2025-11-25", "2025-06-18")
FLOW: Final = "flow__flow"
HTTP: Final = 1 / 3 if find_spec("uvicorn") else 0.0
"""The share of servers that serve HTTP."""
AnyPeer = Peer | HttpCaller
TASKS: Final[dict[str, Any]] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


class McpScene(Scene):
    """A scene whose engines are MCP servers.  The project is trusted, so that its flow is offered."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.handle: str | None = None
        (self.project / ".ai").mkdir()
        (self.project / ".ai/plait.yaml").write_text("mcp_expose: ['flow:*']\n")
        command = [sys.executable, "-m", "plait", "trust", "."]
        subprocess.run(command, cwd=self.project, env=self.env, check=True, capture_output=True)

    def expect_handle(self, peer: AnyPeer) -> bool:
        """Whether a new server knows the run.  The first client starts it."""
        if self.handle is None:
            self.handle = self.run
        if self.handle is None:
            started = peer.call("plait_run_start", flow=FLOW)
            self.handle = started["structuredContent"]["run"]
            return False
        state = peer.call("plait_run_status", run=self.handle).get("structuredContent") or {}
        if state.get("run") != self.handle:
            raise Failed(f"H: the handle {self.handle} is lost: {json.dumps(state)[:200]}")
        return state.get("status") == "done"


def play(scene: McpScene, chance: random.Random, deaths: int) -> None:
    """Kill clients and servers some times, then finish the run."""
    for _ in range(deaths):
        with _peer(scene, chance) as peer:
            if scene.expect_handle(peer):
                return
            _wait_somehow(scene, peer, chance)
            _wait_for_lines(scene, peer, chance.randint(1, 12))
            if chance.random() < 0.5:
                peer.kill()
            else:
                peer.leave()
        scene.note_death()
    with _peer(scene, chance) as peer:
        if not scene.expect_handle(peer):
            ended = peer.call("plait_run_wait", run=scene.handle, seconds=LIMIT)
            status = ended["structuredContent"]["status"]
            if status != "done":
                scene.faults.append(f"H: the run did not come to its end: it is {status}")


def _wait_somehow(scene: McpScene, peer: AnyPeer, chance: random.Random) -> None:
    """Wait with the tool, or as a client with tasks."""
    if peer.revision != "2025-06-18" and chance.random() < 0.5:
        peer.ask("tasks/get", {"taskId": scene.handle})
    else:
        arguments = {"run": scene.handle, "seconds": LIMIT}
        peer.begin("tools/call", {"name": "plait_run_wait", "arguments": arguments})


def _wait_for_lines(scene: McpScene, peer: AnyPeer, more: int) -> None:
    wanted = len(scene.ledger()) + more
    most = (scene.items * 2 + 2) * 2  # START and END of each step of each item, setup and reduce

    def holds() -> bool:
        lines = len(scene.ledger())
        return lines >= wanted or lines >= most or (scene.project / "result.json").exists()

    if not wait_for(holds, LIMIT):
        raise Failed(f"the run does not go on: {peer.notices[-3:]}")


@contextlib.contextmanager
def _peer(scene: McpScene, chance: random.Random) -> Iterator[AnyPeer]:
    env = {name: value for name, value in scene.env.items() if os.environ.get(name) != value}
    program = ("-P", str(ENGINE), *scene.engine_options, "--") if scene.engine_options else PLAIT
    make = HttpCaller if chance.random() < HTTP else Peer
    revision = chance.choice(REVISIONS)
    peer = make(scene.project, revision=revision, capabilities=TASKS, program=program, **env)
    try:
        yield peer
    finally:
        if peer.process.poll() is None:
            with contextlib.suppress(OSError):
                peer.leave()
        for stream in (peer.process.stdin, peer.process.stdout, peer.process.stderr):
            if stream is not None:
                stream.close()
