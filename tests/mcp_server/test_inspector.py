"""Exchanges of `plait mcp` with the official inspector, a client in another language."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npm import INSPECTOR, NODE, node, npm_folder


@pytest.fixture(scope="module")
def inspector() -> list[str]:
    folder = npm_folder(INSPECTOR, NODE)
    return [node(folder), str(folder / "node_modules" / ".bin" / "mcp-inspector"), "--cli"]


def ask(inspector: list[str], project: Path, method: str, *options: str) -> tuple[int, Any]:
    server = [sys.executable, "-m", "plait", "mcp"]
    ended = subprocess.run(
        [*inspector, *server, "--method", method, *options],
        cwd=project, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return ended.returncode, json.loads(ended.stdout) if ended.returncode == 0 else ended.stderr


def test_the_inspector_lists_calls_and_reads(trusted: Path, inspector: list[str]) -> None:
    (trusted / "go").touch()
    _, listed = ask(inspector, trusted, "tools/list")
    assert {"team__report", "flow__ledger"} <= {one["name"] for one in listed["tools"]}
    code, made = ask(inspector, trusted, "tools/call", "--tool-name", "team__report", "--tool-arg", "week=46")  # fmt: skip
    assert (code, made["structuredContent"]) == (0, {"week": 46, "name": "Ada"})
    _, run = ask(inspector, trusted, "tools/call", "--tool-name", "flow__ledger")
    state = run["structuredContent"]
    assert (state["status"], state["output"]) == ("done", "end\n")
    _, read = ask(
        inspector, trusted, "resources/read", "--uri", f"plait://runs/{state['run']}/output"
    )
    assert read["contents"][0]["text"] == "end\n"
    _, prompts = ask(inspector, trusted, "prompts/list")
    assert [one["name"] for one in prompts["prompts"]] == ["directive-_team__review"]
    _, prompt = ask(inspector, trusted, "prompts/get", "--prompt-name", "directive-_team__review", "--prompt-args", "file=a.py")  # fmt: skip
    assert prompt["messages"][0]["content"]["text"] == "Review a.py please."
    code, _ = ask(inspector, trusted, "tools/call", "--tool-name", "nothing")
    assert code != 0


def test_the_inspector_finds_no_fault_with_the_schemas(trusted: Path, inspector: list[str]) -> None:
    code, _ = ask(inspector, trusted, "tools/list", "--strict")
    assert code == 0


def test_the_inspector_lists_and_calls_over_http(trusted: Path, inspector: list[str]) -> None:
    pytest.importorskip("uvicorn", reason="plait mcp --http needs: pip install 'plait-flow[web]'")
    with subprocess.Popen(
        [sys.executable, "-m", "plait", "mcp", "--http", "127.0.0.1:0"],
        cwd=trusted, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdout
        url = re.findall(r"http://\S+/mcp", server.stdout.readline())[0]
        token = server.stdout.readline().strip()

        def ask_http(*options: str) -> tuple[int, Any]:
            ended = subprocess.run(
                [*inspector, url, "--transport", "http", *options],
                cwd=trusted, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            return ended.returncode, ended.stdout

        try:
            code, said = ask_http("--header", token, "--method", "tools/list")
            assert code == 0
            assert "team__report" in {one["name"] for one in json.loads(said)["tools"]}
            code, said = ask_http(
                "--header", token, "--method", "tools/call", "--tool-name", "team__report", "--tool-arg", "week=46"
            )  # fmt: skip
            assert (code, json.loads(said)["structuredContent"]["week"]) == (0, 46)
            assert ask_http("--method", "tools/list")[0] != 0
        finally:
            server.terminate()
