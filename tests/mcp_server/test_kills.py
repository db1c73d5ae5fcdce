"""Clients and servers that die at random moments: no recorded step is repeated, no handle is lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mcp_server.peer import STATELESS, Peer
from share import every

ITEMS = [f"i{number}" for number in range(12)]
FLOW = f"""\
map:
  input: [{", ".join(ITEMS)}]
  max_parallel: 1
  steps:
    - shell: echo ${{item}} >> ledger.txt; sleep 0.02
reduce:
  - shell: echo whole
"""


@pytest.mark.share
@pytest.mark.parametrize("seed", range(0, 12, every(6)))
def test_a_run_outlives_all_its_servers_and_clients(trusted: Path, seed: int) -> None:
    rng = random.Random(seed)
    (trusted / "many.yaml").write_text(FLOW)
    ledger = trusted / "ledger.txt"
    with Peer(trusted) as peer:
        run = peer.call("plait_run_start", flow="flow__many")["structuredContent"]["run"]
        seen, deaths = 0, 0
        counts: dict[str, int] = {}
        while seen < len(ITEMS) - 1:
            arguments = {"run": run, "seconds": 60}
            peer.begin("tools/call", {"name": "plait_run_wait", "arguments": arguments}, progressToken=1)  # fmt: skip
            seen = rng.randint(seen + 1, min(seen + 4, len(ITEMS)))
            peer.wait_for_progress(seen)  # so many items are recorded
            rng.choice([peer.kill, peer.leave])()
            deaths += 1
            peer = Peer(trusted, revision=rng.choice([STATELESS, "2025-11-25", "2025-06-18"]))
            state = peer.call("plait_run_status", run=run)["structuredContent"]
            assert (state["run"], state["progress"]["done"] >= seen) == (run, True)
            if state["status"] == "done":  # it ended before its server died
                break
            lines = ledger.read_text().split()
            assert {one: lines.count(one) for one in counts} == counts  # they were recorded
            counts = {one: lines.count(one) for one in ITEMS[:seen]}
        end = peer.call("plait_run_wait", run=run, seconds=60)["structuredContent"]
        peer.leave()
    assert (end["run"], end["status"], end["output"]) == (run, "done", "whole\n")
    lines = ledger.read_text().split()
    assert set(lines) == set(ITEMS)
    assert len(lines) <= len(ITEMS) + deaths, "a death may repeat the one item that was running"
