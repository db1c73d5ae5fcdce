"""`plait web`: where it says that its pages are, and what it says where it cannot."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

pytest.importorskip("uvicorn", reason="no HTTP server is here: pip install 'plait-flow[web]'")

WORDS = (sys.executable, "-m", "plait", "web")


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = subprocess.run(
            [*WORDS, "--listen", str(port), "--no-browser"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"port {port} of 127.0.0.1 is taken\n"
        "fix: end the program that has it, or give another port (0: any)\n",
    )


def test_without_a_browser_the_address_is_enough(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / ".ai").mkdir(parents=True)
    process = subprocess.Popen(
        [*WORDS, "--project", "one", "--project", "two"],
        cwd=tmp_path,
        env={**os.environ, "BROWSER": "/nonexistent"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        link = process.stdout.readline().split()[-1]
        lines = {process.stderr.readline() for _ in range(2)}
        assert lines == {
            "Ctrl-C ends it; runs that it started go on\n",
            "no browser could be opened: open the address above\n",
        }
        with build_opener(HTTPCookieProcessor()).open(link, timeout=60) as answer:
            page = answer.read().decode()
        assert re.findall(r"<option value=\"[0-9a-f]{10}\">(\w+)</option>", page) == ["one", "two"]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.communicate()
