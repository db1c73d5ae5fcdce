"""A real Chromium, and `plait web` in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from browser.install import CACHE, find_chromium, install, missing

DRIVER = Path(__file__).with_name("driver.mjs")


def require_browser() -> None:
    """Skip, or fail in continuous integration, where something is missing."""
    if missing():
        install()
    if not (lacks := missing()):
        return
    why = f"no browser tests, missing: {'; '.join(lacks)}"
    if os.environ.get("PLAIT_BROWSER") == "required":
        pytest.fail(why)
    pytest.skip(why)


class Browser:
    """Commands of driver.mjs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the browser has ended"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def do(self, command: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
        self._process.stdin.flush()
        return self.read()

    def open(self, url: str) -> int:
        status: int = self.do("open", url=url)
        return status

    def prepare(self, script: str) -> None:
        """A function as text, called in each page that is opened from now on, before its scripts."""
        self.do("prepare", script=script)

    def evaluate(self, script: str, given: object = None) -> Any:
        """A function as text, called in the page."""
        return self.do("evaluate", script=script, given=given)

    def wait(self, script: str, given: object = None) -> None:
        """Until the function is true."""
        self.do("wait", script=script, given=given)

    def wait_for_text(self, text: str, selector: str = "body") -> None:
        script = "([where, what]) => document.querySelector(where)?.innerText.includes(what)"
        self.wait(script, [selector, text])

    def require_clean(self, origin: str) -> None:
        """No error was reported, and no other host was contacted."""
        taken = self.do("take")
        assert taken["problems"] == []
        others = [
            url for url in taken["requests"] if f"{urlsplit(url)[0]}://{urlsplit(url)[1]}" != origin
        ]
        assert [url for url in others if not url.startswith("data:")] == []


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    require_browser()
    process = subprocess.Popen(
        ["node", str(DRIVER), str(CACHE), str(find_chromium()), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        browser = Browser(process)
        assert browser.read() == "ready"
        yield browser
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)
    finally:
        process.kill()
        process.wait()


class Web:
    """`plait web` for one project."""

    def __init__(self, link: str, project: Path) -> None:
        self.link = link
        parts = urlsplit(link)
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.project = project


@contextmanager
def plait_web(project: Path, environment: dict[str, str], *words: str) -> Iterator[Web]:
    """`words`: more options."""
    process = subprocess.Popen(
        [sys.executable, "-m", "plait", "web", "--no-browser", "--project", str(project), *words],
        cwd=project,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert "http://" in line, process.stderr.read()
        yield Web(line.split()[-1], project)
        process.send_signal(signal.SIGINT)
        _out, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert "bug of Plait" not in errors, errors
    finally:
        process.kill()
        process.communicate()
