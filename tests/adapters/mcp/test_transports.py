"""Servers that do not behave: deaf, endless, gone, or at an address where they must not be."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.adapters.mcp.client import McpClients
from plait.adapters.mcp.transports import MAX_MESSAGE, MAX_STDERR, _Lines, _TooLongError
from plait.core.errors import RequestError
from plait.tools.invocation import CallLimits, McpCall, McpServer

ENV = {"PATH": os.environ["PATH"]}
SLOW = CallLimits(60.0)
LIMIT = 20

# Speaks just enough of the protocol, without the SDK; its argument names its fault.
SERVER = r"""
import json, os, signal, sys, time

how, note = sys.argv[1], sys.argv[2]

def never_leave():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

def daemon():
    # Forked twice, in a session of its own, and as deaf as we are: our output stays open in it.
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        never_leave()
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
            os.close(write)
            while True:
                time.sleep(3600)
        os._exit(0)
    os.close(write)
    return int(os.read(read, 20))

def say(message, **more):
    print(json.dumps({"jsonrpc": "2.0", **message, **more}), flush=True)

def result(request):
    if request["method"] == "initialize":
        return {"protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "raw", "version": "0"}}
    if request["method"] == "tools/list":
        return {"tools": [{"name": "do", "description": "", "inputSchema": {"type": "object"}}]}
    if request["method"] == "tools/call":
        misbehave()
        return {"content": [{"type": "text", "text": "done"}]}

def misbehave():
    if how == "endless-line":
        while True:
            sys.stdout.write("x" * 65536)
    if how == "endless-lines":
        for _ in range(3000):
            sys.stdout.write("x" * 65535 + "\n")
    if how == "loud":
        for _ in range(4000):
            sys.stderr.write("e" * 65536)
        sys.stderr.write(" the end")
        sys.stderr.flush()
        os._exit(3)
    if how == "leaves-a-daemon":
        daemon()
        os._exit(3)

if how in ("mute", "deaf"):
    never_leave()
    pids = f"{os.getpid()} {daemon()}"
    with open(note, "w") as file:
        file.write(pids)
if how == "mute":
    while True:
        time.sleep(3600)
for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        known = result(request)
        if known is None:
            say({"id": request["id"]}, error={"code": -32601, "message": "no such method"})
        else:
            say({"id": request["id"]}, result=known)
while how == "deaf":
    time.sleep(3600)
"""

PLAIT = """
import json, sys
from plait.adapters.mcp.client import McpClients
from plait.tools.invocation import CallLimits, McpCall, McpServer
class Pins:
    def get(self, key): return None
    def put(self, key, digest): pass
clients = McpClients(Pins(), approve=lambda _: True)
commands = json.loads(sys.argv[1])
def call(how):
    server = McpServer(how, tuple(commands[how]), {"PATH": "/usr/bin:/bin"}, "/")
    return McpCall(server, "do", {}, CallLimits(60.0))
"""


class Memory:
    """Approvals for the length of a test."""

    def __init__(self) -> None:
        self.pins: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        return self.pins.get(key)

    def put(self, key: str, digest: str) -> None:
        self.pins[key] = digest


class Raw:
    """The server above; `pids` are its own and its daemon's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "raw.py").write_text(SERVER)
        for how in ("mute", "deaf"):
            os.mkfifo(folder / how)

    def command(self, how: str) -> tuple[str, ...]:
        return (sys.executable, str(self.folder / "raw.py"), how, str(self.folder / how))

    def call(self, how: str, *, limits: CallLimits = SLOW) -> McpCall:
        return McpCall(McpServer("raw", self.command(how), ENV, "/"), "do", {}, limits)

    def plait(self, code: str, *hows: str) -> list[str]:
        """The command line of another Plait, which knows these servers as `call(how)`."""
        return [sys.executable, "-c", code, json.dumps({how: self.command(how) for how in hows})]

    def pids(self, how: str) -> list[int]:
        return [int(pid) for pid in (self.folder / how).read_text().split()]


@pytest.fixture
def raw(tmp_path: Path) -> Raw:
    return Raw(tmp_path)


def watched(pids: list[int]) -> list[int]:
    """Handles that name these very processes for ever, whatever becomes of their numbers."""
    assert len(pids) == 2
    return [os.pidfd_open(pid) for pid in pids]


def expect_ended(handles: list[int], within: float) -> None:
    for handle in handles:
        assert select.select([handle], [], [], within)[0], "a process was left behind"
        os.close(handle)


# ── deaf servers ─────────────────────────────────────────────────────────


def test_a_server_that_never_speaks_is_given_up_and_has_ended_with_its_daemon(raw: Raw) -> None:
    handles: list[int] = []
    reading = threading.Thread(target=lambda: handles.extend(watched(raw.pids("mute"))))
    reading.start()
    with McpClients(Memory()) as clients:
        result = clients.call(raw.call("mute", limits=CallLimits(2.0)))
        reading.join(LIMIT)
    assert (result.success, result.error) == (
        False,
        "the MCP server 'raw' did not list its tools in time",
    )
    assert len(handles) == 2
    expect_ended(handles, within=0)  # no wait remains after the connections are closed


def test_a_server_that_never_speaks_ends_at_the_deadline_of_the_call_not_of_the_run(
    raw: Raw,
) -> None:
    handles: list[int] = []
    reading = threading.Thread(target=lambda: handles.extend(watched(raw.pids("mute"))))
    reading.start()
    with McpClients(Memory()) as clients:
        clients.call(raw.call("mute", limits=CallLimits(2.0)))
        reading.join(LIMIT)
        expect_ended(handles, within=LIMIT)


def test_a_server_that_ignores_the_end_of_its_input_and_sigterm_ends_when_it_is_closed(
    raw: Raw,
) -> None:
    handles: list[int] = []
    reading = threading.Thread(target=lambda: handles.extend(watched(raw.pids("deaf"))))
    reading.start()
    with McpClients(Memory(), approve=lambda _: True) as clients:
        assert clients.call(raw.call("deaf")).data == "done"
        reading.join(LIMIT)
    assert len(handles) == 2
    expect_ended(handles, within=0)


def test_when_plait_is_killed_its_servers_end_and_their_daemons(raw: Raw) -> None:
    code = (
        PLAIT
        + """
import threading
print(clients.call(call("deaf")).data, flush=True)
threading.Thread(target=clients.call, args=[call("mute")], daemon=True).start()
sys.stdin.read()
"""
    )
    with subprocess.Popen(
        raw.plait(code, "deaf", "mute"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as plait:
        try:
            handles = watched(raw.pids("deaf"))
            assert plait.stdout is not None
            assert plait.stdout.readline() == b"done\n"
            handles += watched(raw.pids("mute"))
        finally:
            plait.send_signal(signal.SIGKILL)
            plait.wait(LIMIT)
    expect_ended(handles, within=LIMIT)


def test_a_server_that_leaves_a_daemon_with_its_output_is_not_waited_for(raw: Raw) -> None:
    with McpClients(Memory(), approve=lambda _: True) as clients:
        result = clients.call(raw.call("leaves-a-daemon", limits=CallLimits(3600.0)))
    assert (result.success, result.error) == (
        False,
        "the MCP server 'raw' ended before it answered",
    )


# ── endless servers ──────────────────────────────────────────────────────


TOO_LONG = (
    "the MCP server 'raw' was ended: it sent a message of more than 16,777,216 bytes (16 MiB)"
)


def test_a_line_without_end_is_an_error_that_names_server_and_limit(raw: Raw) -> None:
    with McpClients(Memory(), approve=lambda _: True) as clients:
        result = clients.call(raw.call("endless-line"))
        assert (result.success, result.error) == (False, TOO_LONG)
        assert not clients.call(
            raw.call("endless-line")
        ).success  # and not the end of the connections


def test_lines_that_are_no_messages_are_passed_over(raw: Raw) -> None:
    with McpClients(Memory(), approve=lambda _: True) as clients:
        assert clients.call(raw.call("endless-lines")).data == "done"


def test_memory_does_not_grow_with_what_servers_print(raw: Raw) -> None:
    code = (
        PLAIT
        + """
import resource
for how in commands:
    clients.tool_info(call(how))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clients.call(call(how))
    print(how, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
clients.close()
"""
    )
    # In an order in which none hides under the growth of the one before: each keeps more than the last.
    command = raw.plait(code, "loud", "endless-lines", "endless-line")
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert finished.stderr == ""
    grown = {how: int(kibibytes) for how, kibibytes in map(str.split, finished.stdout.splitlines())}
    # Each of them prints 190 MiB and more.
    assert len(grown) == 3
    assert {how: kibibytes for how, kibibytes in grown.items() if kibibytes >= 64 << 10} == {}


def test_the_end_of_a_long_stderr_is_kept(raw: Raw) -> None:
    with McpClients(Memory(), approve=lambda _: True) as clients:
        result = clients.call(raw.call("loud"))
    assert not result.success
    assert result.stderr.endswith("eee the end")
    assert len(result.stderr) == MAX_STDERR


@given(
    st.lists(st.binary(max_size=6).map(lambda line: line.replace(b"\n", b" "))),
    st.lists(st.integers(0, 40)),
)
def test_lines_are_the_same_however_they_are_cut_into_pieces(
    lines: list[bytes], cuts: list[int]
) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    cutter = _Lines(most=6)
    found = [
        line for start, end in itertools.pairwise(places) for line in cutter.feed(whole[start:end])
    ]
    assert found == lines


TOO_LONG_PIECES = [
    (b"", b"1234567"),
    (b"1234", b"567"),
    (b"", b"a\n1234567\n"),
    (b"a\n123", b"4567\n"),
]


@pytest.mark.parametrize(("begun", "piece"), TOO_LONG_PIECES)
def test_a_line_beyond_the_limit_is_refused_before_it_is_complete(
    begun: bytes, piece: bytes
) -> None:
    cutter = _Lines(most=6)
    cutter.feed(begun)
    with pytest.raises(_TooLongError):
        cutter.feed(piece)


# ── HTTP ─────────────────────────────────────────────────────────────────


class Endless(BaseHTTPRequestHandler):
    """Answers every request with JSON that does not end, or that is packed."""

    packed = False

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        if self.packed:
            self.send_header("content-encoding", "gzip")
        self.end_headers()
        piece = gzip.compress(b" " * (1 << 24)) if self.packed else b" " * 65536
        try:
            for _ in range(1 if self.packed else 2 * MAX_MESSAGE // len(piece)):
                self.wfile.write(piece)
        except OSError:
            return

    def log_message(self, *_: object) -> None:
        return


class Packed(Endless):
    packed = True


@pytest.fixture
def answering(request: pytest.FixtureRequest) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), request.param) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/mcp"
        server.shutdown()
        thread.join(LIMIT)


ANSWERS = [
    (
        Endless,
        "the MCP server 'web' was ended: it sent an answer of more than 16,777,216 bytes (16 MiB)",
    ),
    (Packed, "the MCP server 'web' was ended: its answer is packed, which was not asked for"),
]


@pytest.mark.parametrize(("answering", "error"), ANSWERS, indirect=["answering"])
def test_an_answer_beyond_the_limit_is_an_error_that_names_it(answering: str, error: str) -> None:
    with McpClients(Memory()) as clients:
        result = clients.call(McpCall(McpServer("web", url=answering), "x", {}, SLOW))
    assert (result.success, result.error) == (False, error)


# ── a url from data ──────────────────────────────────────────────────────


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        yield listening


PRIVATE = [
    # host                     kind
    ("127.0.0.1",              "loopback"),
    ("127.1",                  "loopback"),
    ("2130706433",             "loopback"),
    ("localhost",              "loopback"),
    ("[::1]",                  "loopback"),
    ("[::ffff:127.0.0.1]",     "loopback"),
    ("0.0.0.0",                "unspecified"),
    ("169.254.169.254",        "link-local"),
    ("10.0.0.1",               "private"),
    ("100.64.0.1",             "shared"),
]  # fmt: skip


@pytest.mark.parametrize(("host", "kind"), PRIVATE)
def test_a_url_from_data_leads_to_no_private_address(
    listener: socket.socket, host: str, kind: str
) -> None:
    server = McpServer(
        "web", url_from_data=True, url=f"http://{host}:{listener.getsockname()[1]}/mcp"
    )
    with McpClients(Memory()) as clients, pytest.raises(RequestError) as caught:
        clients.call(McpCall(server, "x", {}, SLOW))
    assert caught.value.code == "address-refused"
    assert str(caught.value) == (
        f"config.server.url: the MCP server 'web' has a {kind} address, "
        "where a url that comes from data may not lead\n"
        "fix: write scheme and host in the tool's own file if this place is meant"
    )
    with pytest.raises(BlockingIOError):
        listener.accept()  # no connection came


def test_a_name_that_leads_to_a_private_address_among_others_is_refused(
    listener: socket.socket,
) -> None:
    server = McpServer(
        "web", url_from_data=True, url=f"http://two.example:{listener.getsockname()[1]}/mcp"
    )
    asked: list[str] = []

    def resolve(host: str) -> list[str]:
        asked.append(host)
        return ["93.184.216.34", "127.0.0.1"]

    with McpClients(Memory(), resolve=resolve) as clients, pytest.raises(RequestError) as caught:
        clients.call(McpCall(server, "x", {}, SLOW))
    assert (caught.value.code, asked) == ("address-refused", ["two.example"])


def test_a_name_without_an_address_is_reported() -> None:
    def resolve(host: str) -> list[str]:
        raise OSError(host)

    server = McpServer("web", url_from_data=True, url="http://none.example/mcp")
    with McpClients(Memory(), resolve=resolve) as clients:
        result = clients.call(McpCall(server, "x", {}, SLOW))
    error = "the MCP server 'web' could not be connected: its host name has no address"
    assert (result.success, result.error) == (False, error)


@pytest.mark.parametrize("answering", [Endless], indirect=True)
def test_a_url_of_the_author_may_lead_to_this_machine(answering: str) -> None:
    with McpClients(Memory()) as clients:
        result = clients.call(McpCall(McpServer("web", url=answering), "x", {}, SLOW))
    assert "was ended: it sent an answer" in (result.error or "")  # so it was reached
