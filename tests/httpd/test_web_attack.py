"""A share of `tests/attack/web_attack.py`; `make attack` opens 1,000 connections and waits for slow ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from attack.web_attack import attack

pytest.importorskip("uvicorn", reason="no HTTP server is here: pip install 'plait-flow[web]'")


def test_attacks_are_refused_and_the_run_is_not_harmed(tmp_path: Path) -> None:
    assert attack(tmp_path, 300, with_slow=False) == []
