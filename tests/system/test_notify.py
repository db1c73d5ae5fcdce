"""`core/notify` sends what a hook gives it; a message that cannot be sent fails no run, and is reported."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from plait.cli import main

Capsys = pytest.CaptureFixture[str]
PART = "T0KEN-of-the-hook"
"""A part of the address that nothing may print."""
HOOK = """\
hooks:
  - {id: tell, event: run_failed, action: {tool: core/notify,
     params: {to: TO, event: "${event}", run: "${run}", error: "${error}"}}}
"""
FAILS = "name: nightly\nsteps: [{shell: 'echo \"<!channel> & more\" >&2; exit 3'}]\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HOME", "USER_SPACE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.delenv("PLAIT_NOTIFY_URL", raising=False)
    return project


class Server(ThreadingHTTPServer):
    status = 200
    headers: dict[str, str] = {}  # noqa: RUF012 - of one test

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.requests: list[tuple[str, str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{PART}"


class Answer(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, self.headers["Content-Type"], json.loads(body)))
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serve() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serve() as one:
        monkeypatch.setenv("PLAIT_NOTIFY_URL", one.url)
        yield one


def fail(capsys: Capsys, to: str, flow: str = FAILS) -> str:
    """Run a flow that fails, with the hook of three lines in the user space; what was printed."""
    config = Path(os.environ["HOME"], ".ai/config")
    config.mkdir(parents=True, exist_ok=True)
    (config / "hooks.yaml").write_text(HOOK.replace("TO", to))
    Path("flow.yaml").write_text(flow)
    assert main(["run", "flow.yaml"]) == 1
    printed = capsys.readouterr()
    main(["logs"])
    main(["show", "--json"])
    main(["events"])
    after = capsys.readouterr()
    everything = printed.out + printed.err + after.out + after.err
    assert PART not in everything
    assert not [
        file
        for file in Path(".ai").rglob("*")
        if file.is_file() and PART.encode() in file.read_bytes()
    ]
    assert "exit 3" in printed.out
    return everything


# ── web hooks ────────────────────────────────────────────────────────────


def test_a_hook_of_three_lines_posts_the_facts_of_a_failure(server: Server, capsys: Capsys) -> None:
    fail(capsys, "http")
    [(path, kind, body)] = server.requests
    assert (path, kind) == (f"/{PART}", "application/json")
    run = body["run"]
    assert (body["event"], run["flow"], body["error"]["kind"]) == ("run_failed", "nightly", "exit")
    assert body["text"] == f"nightly failed: {body['error']['message']} (run {run['id']})"


def test_a_chat_gets_text_that_is_no_markup(server: Server, capsys: Capsys) -> None:
    fail(capsys, "slack")
    [(_, _, body)] = server.requests
    assert body.keys() == {"text"}
    assert body["text"].startswith("nightly failed: exit code 3: &lt;!channel&gt; &amp; more (run ")


REFUSED = [
    # status  headers                                what is shown
    (500, {},                                        "the server behind PLAIT_NOTIFY_URL answered with status 500"),
    (404, {},                                        "the server behind PLAIT_NOTIFY_URL answered with status 404"),
    (302, {"Location": "http://127.0.0.1:1/other"},  "the server behind PLAIT_NOTIFY_URL answered with status 302"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "headers", "message"), REFUSED)
def test_a_server_that_refuses_fails_no_run_and_is_reported(
    server: Server, capsys: Capsys, status: int, headers: dict[str, str], message: str
) -> None:
    server.status, server.headers = status, headers
    assert f"the message was not sent: {message}" in fail(capsys, "http")
    assert len(server.requests) == 1


UNUSABLE = [
    ("", "PLAIT_NOTIFY_URL is not set: put the address of the web hook there"),
    (f"file:///{PART}", "PLAIT_NOTIFY_URL must start with https:// or http://"),
    (f"http://127.0.0.1:1/{PART}", "the server behind PLAIT_NOTIFY_URL cannot be reached: Connection refused"),
    (f"http://[/{PART}", "the address in PLAIT_NOTIFY_URL cannot be used (ValueError)"),
    (f"http://127.0.0.1:x/{PART}", "the address in PLAIT_NOTIFY_URL cannot be used (InvalidURL)"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "message"), UNUSABLE)
def test_an_unusable_address_is_reported_without_showing_it(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch, url: str, message: str
) -> None:
    monkeypatch.setenv("PLAIT_NOTIFY_URL", url)
    assert f"the message was not sent: {message}" in fail(capsys, "http")


def test_a_run_that_is_done_is_notified_too(server: Server, capsys: Capsys) -> None:
    Path("flow.yaml").write_text(
        "name: nightly\nhooks: [{id: tell, event: run_finished, action: {tool: core/notify, params: "
        '{to: http, event: "${event}", run: "${run}", data: {n: 1}}}}]\nsteps: [{shell: "true"}]\n'
    )
    assert main(["run", "flow.yaml"]) == 0
    [(_, _, body)] = server.requests
    assert body["text"] == f"nightly is done (run {body['run']['id']})"
    assert body["data"] == {"n": 1}
    assert capsys.readouterr().err == ""


# ── local programs ───────────────────────────────────────────────────────

FAKE = '#!/bin/sh\nprintf "%s\\n" "$@" > {folder}/arguments\ncat > {folder}/stdin\nexit {code}\n'


def fake(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, code: int = 0) -> Path:
    """A program of this name that writes down what it gets."""
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    (place / name).write_text(FAKE.format(folder=folder, code=code))
    (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    return folder


def call(capsys: Capsys, *params: str) -> tuple[int, dict[str, Any]]:
    words = [word for param in params for word in ("-p", param)]
    code = main(["call", "core/notify", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_desktop_gets_a_message_that_is_no_option(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = fake(monkeypatch, tmp_path, "notify-send")
    assert call(capsys, "to=desktop", "text=--help", 'run={"flow": "nightly"}')[0] == 0
    assert (heard / "arguments").read_text() == "--app-name=plait\n--\nnightly\n--help\n"


def test_a_mail_goes_through_sendmail(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = fake(monkeypatch, tmp_path, "sendmail")
    text = "text=it failed\nBcc: all@example.org\n\nmore"
    assert call(capsys, "to=mail", "address=ops@example.org", text)[0] == 0
    assert (heard / "arguments").read_text() == "-i\n--\nops@example.org\n"
    head, _, body = (heard / "stdin").read_text().partition("\n\n")
    assert "To: ops@example.org" in head
    assert "Subject: it failed Bcc: all@example.org more" in head
    assert "\nBcc:" not in head
    assert body == "it failed\nBcc: all@example.org\n\nmore\n"


def test_a_mail_through_mail_holds_no_command_of_that_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older programs named `mail` run what follows `~!` at the start of a line."""
    from plait.system.tools.core import notify

    heard = fake(monkeypatch, tmp_path, "mail")
    monkeypatch.setitem(notify.PROGRAMS, "mail", ("mail",))
    notify.mail({"address": "ops@example.org"}, "~!touch a\nplain ~ text\r\n~!touch b\r~|touch c")
    assert (heard / "stdin").read_text() == (" ~!touch a\nplain ~ text\n ~!touch b\n ~|touch c")


WRONG = [
    (["to=mail", "text=x"], "a mail needs an address: write address: ops@example.org beside to: mail"),
    (["to=desktop", "text=x"], "notify-send ended with exit code 7"),
]  # fmt: skip


@pytest.mark.parametrize(("params", "message"), WRONG)
def test_a_message_that_cannot_be_sent_is_reported(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, params: list[str], message: str
) -> None:
    fake(monkeypatch, tmp_path, "notify-send", 7)
    code, answer = call(capsys, *params)
    assert (code, answer["error"]) == (1, f"the message was not sent: {message}")


BAD = ["-oQ/tmp@x", "a b@example.org", "ops@example.org\nBcc: x@y", "@x", "ops"]


@pytest.mark.parametrize("address", BAD)
def test_an_address_of_a_mail_is_only_an_address(capsys: Capsys, address: str) -> None:
    code, answer = call(capsys, "to=mail", f"address={address}", "text=x")
    assert code == 2
    assert "address" in json.dumps(answer)


def test_a_machine_without_the_program_says_so(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("python", "python3"):
        (folder / name).symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(folder))
    code, answer = call(capsys, "to=desktop", "text=x")
    assert code == 1
    assert answer["error"] == (
        "the message was not sent: there is no program notify-send on this machine: "
        "install it, or choose another 'to'"
    )
