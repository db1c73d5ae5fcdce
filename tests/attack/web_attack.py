"""Attacks on `plait web` and `plait mcp --http` while a run is going on: each is refused, and the run is not harmed.

Other names for the server (DNS rebinding), requests of other sites, frames, paths that lead out,
huge and slow requests, headers with line ends, links that were used, a thousand connections.  After
each kind the owner still gets an answer.  At the end the run has to finish, each item once.

    python tests/attack/web_attack.py [--connections 1000]
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[2] / "src"
SECRET: Final = "a line of a file that nobody may fetch"
FLOW: Final = """
map:
  input: [a, b, c, d]
  max_parallel: 1
  steps:
    - shell: |
        echo ${item} >> ledger.txt
        while [ ${item} = b ] && [ ! -e go ]; do sleep 0.05; done
"""
ROOM: Final = 150 << 20
"""Bytes of memory that the server may grow by."""
SECONDS: Final = 60.0


DISCOVER: Final = (
    b'{"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": '
    b'{"io.modelcontextprotocol/protocolVersion": "2026-07-28", '
    b'"io.modelcontextprotocol/clientCapabilities": {}}}}'
)


class Target:
    """A server, with the secrets of its owner."""

    def __init__(self, name: str, port: int, secret: str, link: str, pid: int, run: str) -> None:
        self.name = name
        self.port = port
        self.secret = secret
        """The header that lets the owner in."""
        self.link = link
        self.pid = pid
        self.run = run
        self.host = f"127.0.0.1:{port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)

    def send(self, data: bytes) -> bytes:
        """Return the complete response, up to the close by the server."""
        with self.connect() as connection:
            with suppress(OSError):  # the server may refuse before everything is sent
                connection.sendall(data)
            return read_all(connection)

    def ask(
        self, target: str = "/", method: str = "GET", *lines: str, host: str = "", body: bytes = b""
    ) -> bytes:
        head = [
            f"{method} {target} HTTP/1.1",
            f"Host: {host or self.host}",
            "Connection: close",
            *lines,
        ]
        if body:
            head.append(f"Content-Length: {len(body)}")
        return self.send("\r\n".join([*head, "", ""]).encode("latin-1") + body)

    def knock(self, *lines: str, host: str = "") -> bytes:
        """A request that the server answers to its owner."""
        if self.name == "web":
            return self.ask("/", "GET", *lines, host=host)
        kinds = ("Content-Type: application/json", "Accept: application/json, text/event-stream")
        about = ("MCP-Protocol-Version: 2026-07-28", "Mcp-Method: server/discover")
        return self.ask("/mcp", "POST", *kinds, *about, *lines, host=host, body=DISCOVER)

    def owner_gets_in(self) -> bool:
        return status(self.knock(self.secret)) == 200

    def memory(self) -> int:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())
        return int(found[1]) << 10 if found else 0


def read_all(connection: socket.socket) -> bytes:
    data = b""
    with suppress(OSError):
        while piece := connection.recv(1 << 16):
            data += piece
    return data


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def is_refused(answer: bytes) -> bool:
    return (answer == b"" or status(answer) >= 400) and SECRET.encode() not in answer


# ── the attacks: each returns what was not refused ───────────────────────


def rebinding(target: Target) -> list[str]:
    names = ("evil.example", f"evil.example:{target.port}", "127.0.0.1", f"127.0.0.1:{target.port + 1}",
             f"localhost.evil.example:{target.port}", f"127.0.0.1.nip.io:{target.port}", f"0.0.0.0:{target.port}",
             f"user@{target.host}", f"{target.host}, evil.example", "")  # fmt: skip
    found = [
        name for name in names if not is_refused(target.knock(target.secret, host=name or " "))
    ]
    two = target.knock(f"Host: {target.host}", target.secret, host="evil.example")
    return found + ([] if is_refused(two) else ["two hosts"])


def cross_site(target: Target) -> list[str]:
    act = f"/run/{target.run}/act" if target.name == "web" else "/mcp"
    form = b"action=stop"
    kind = "Content-Type: application/x-www-form-urlencoded"
    cases = {
        "another origin": ["Origin: http://evil.example"],
        "another port": [f"Origin: http://127.0.0.1:{target.port + 1}"],
        "another scheme": [f"Origin: https://{target.host}"],
        "a sandboxed frame": ["Origin: null"],
        "no origin": [],
        "cross-site": [f"Origin: http://{target.host}", "Sec-Fetch-Site: cross-site"],
        "same-site": [f"Origin: http://{target.host}", "Sec-Fetch-Site: same-site"],
    }
    # A browser would add the cookie; it is of no use without the right origin.
    found = [
        name
        for name, lines in cases.items()
        if not is_refused(target.ask(act, "POST", cookie(target), kind, *lines, body=form))
    ]
    embedded = ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: script"]
    if not is_refused(target.knock(target.secret, *embedded)):
        found.append("as a script")
    if not is_refused(target.knock(target.secret, "Origin: http://evil.example")):
        found.append("with the right secret")
    preflight = target.ask(
        act, "OPTIONS", "Origin: http://evil.example", "Access-Control-Request-Method: POST"
    )
    if not is_refused(preflight) or b"access-control-allow" in preflight.lower():
        found.append("preflight")
    return found


def cookie(target: Target) -> str:
    """The cookie of a browser that used the link of this server; programs have none."""
    if target.name == "web":
        return target.secret
    return target.secret.replace("Authorization: Bearer ", "Cookie: plait=")


def framing(target: Target) -> list[str]:
    found = []
    for path in ("/", "/nothing", "/mcp"):
        answer = target.ask(path, "GET", target.secret).lower()
        if b"x-frame-options: deny" not in answer or b"frame-ancestors 'none'" not in answer:
            found.append(path)
    frame = ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"]
    return found + ([] if is_refused(target.knock(target.secret, *frame)) else ["iframe"])


def traversal(target: Target) -> list[str]:
    ups = (
        "../",
        "..%2f",
        "%2e%2e/",
        "%2e%2e%2f",
        "..%5c",
        "..\\",
        "....//",
        "%252e%252e/",
        "..;/",
        "%c0%ae%c0%ae/",
        "/",
    )
    places = ("", "static/", "run/", "run/x/", "mcp/")
    files = ("secret.txt", "project/secret.txt", "etc/passwd", "flow.yaml")
    found = []
    for place in places:
        for up in ups:
            for file in files:
                answer = target.ask(f"/{place}{up * 6}{file}", "GET", target.secret)
                if not is_refused(answer) or b"root:" in answer:
                    found.append(f"/{place}{up * 6}{file}")
    return found


def oversized(target: Target) -> list[str]:
    before = target.memory()
    kind = "application/json" if target.name == "mcp" else "application/x-www-form-urlencoded"
    own = [target.secret, f"Origin: http://{target.host}", f"Content-Type: {kind}"]
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    head = "\r\n".join(
        [
            "POST /start HTTP/1.1" if target.name == "web" else "POST /mcp HTTP/1.1",
            f"Host: {target.host}",
            *own,
            "Transfer-Encoding: chunked",
            "",
            "",
        ]
    )
    cases = {
        "a long address": target.ask("/" + "a" * 60_000, "GET", target.secret),
        "a long query": target.ask("/?" + "a" * 60_000, "GET", target.secret),
        "a long header": target.ask("/", "GET", target.secret, "X: " + "a" * 200_000),
        "many headers": target.ask("/", "GET", target.secret, *(f"X{n}: 1" for n in range(5000))),
        "a length without end": target.ask(
            "/start", "POST", *own, "Content-Length: 99999999999999"
        ),
        "chunks without end": target.send(head.encode() + chunk * 400),
        "a chunk without end": target.send(head.encode() + b"F" * 100_000),
    }
    found = [name for name, answer in cases.items() if not is_refused(answer)]
    # The answer can get lost while the rest is still sent; another one would say that all was read.
    if status(cases["chunks without end"]) not in (0, 413):
        found.append("all chunks were read")
    grown = target.memory() - before
    return found + ([f"{grown >> 20} MiB more memory"] if grown > ROOM else [])


def slow(target: Target) -> list[str]:
    """Requests that do not end keep a connection only for a while."""
    begun = f"GET / HTTP/1.1\r\nHost: {target.host}\r\n{target.secret}\r\nX: ".encode()
    until = time.monotonic() + SECONDS
    with ExitStack() as opened:
        waiting = [opened.enter_context(target.connect()) for _ in range(50)]
        for connection in waiting:
            connection.sendall(begun)
        if not target.owner_gets_in():
            return ["the owner has to wait"]
        for connection in waiting:
            connection.settimeout(max(0.1, until - time.monotonic()))
            read_all(connection)
    return ["connections stay open"] if time.monotonic() > until else []


def header_injection(target: Target) -> list[str]:
    found = []
    for end in ("%0d%0a", "%0a", "%0d", "%E5%98%8D%E5%98%8A", "\r\n", "\n"):
        for path in (
            "/{}Injected:1",
            "/?token=x{}Injected:1",
            "/?q={}Injected:1",
            "/start?flow={}Injected:1",
        ):
            for lines in ((target.secret,), ()):
                answer = target.ask(path.format(end), "GET", *lines)
                if re.search(rb"\r?\ninjected:", answer.partition(b"\r\n\r\n")[0].lower()):
                    found.append(path.format(end))
    smuggled = f"POST / HTTP/1.1\r\nHost: {target.host}\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n"
    if not is_refused(target.send(smuggled.encode())):
        found.append("two lengths")
    return found


def stolen_links(target: Target) -> list[str]:
    found = []
    if target.link and not is_refused(target.ask(target.link)):
        found.append("a link that was used")
    for guess in ("", "x", "a" * 43, target.secret.split()[-1]):
        if not is_refused(target.ask(f"/?token={guess}")):
            found.append(f"token={guess}")
        if not is_refused(target.ask("/", "GET", f"Authorization: Bearer {guess}x")):
            found.append(f"Bearer {guess}x")
    answer = target.ask("/nothing", "GET", target.secret).lower()
    if b"referrer-policy: same-origin" not in answer:
        found.append("the address is passed on")
    return found


def connections(target: Target, count: int) -> list[str]:
    with ExitStack() as opened:
        for number in range(count):
            connection = opened.enter_context(target.connect())
            if number % 3 == 0:
                connection.sendall(b"GET / HTTP/1.1\r\n")
            if number % (count // 4) == 0 and not target.owner_gets_in():
                return [f"after {number} connections the owner is kept out"]
        return [] if target.owner_gets_in() else ["the owner is kept out"]


# ── servers, and a run beside them ───────────────────────────────────────


@contextmanager
def plait(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    environment = {
        **os.environ,
        "HOME": str(folder / "home"),
        "USER_SPACE": str(folder / "home"),
        "PYTHONPATH": str(SOURCE),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "plait", *words],
        cwd=folder / "project",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def attack(folder: Path, count: int, *, with_slow: bool = True) -> list[str]:
    """Return what was not refused."""
    project = folder / "project"
    (project / ".ai").mkdir(parents=True)
    (folder / "home").mkdir()
    (project / "flow.yaml").write_text(FLOW + f"# {SECRET}\n")
    (project / "secret.txt").write_text(SECRET)
    found: list[str] = []
    with (
        plait(folder, "run", "flow.yaml", "--json") as run,
        plait(folder, "web", "--no-browser", "--project", str(project)) as web,
        plait(folder, "mcp", "--http", "0") as mcp,
    ):
        while not (project / "ledger.txt").exists():
            if run.poll() is not None:
                return ["the run did not start"]
            time.sleep(0.05)
        for target in (web_target(web), mcp_target(mcp)):
            for name, perform in kinds(count, with_slow):
                wrong = perform(target)
                if not target.owner_gets_in():
                    wrong = [*wrong, "afterwards the owner is kept out"]
                print(f"{target.name:4} {name:20} {wrong or 'refused'}", flush=True)
                found += [f"{target.name} {name}: {one}" for one in wrong]
        (project / "go").touch()
        run.communicate(timeout=SECONDS)
        if run.returncode != 0 or (project / "ledger.txt").read_text() != "a\nb\nc\nd\n":
            found.append("the run was harmed")
        for server in (web, mcp):
            server.send_signal(signal.SIGINT)
            _out, errors = server.communicate(timeout=SECONDS)
            if server.returncode != 0 or "bug of Plait" in errors or "Traceback" in errors:
                found.append(f"a server ended with {server.returncode}: {errors[-500:]}")
    return found


def kinds(count: int, with_slow: bool) -> Iterator[tuple[str, Callable[[Target], list[str]]]]:
    yield "rebinding", rebinding
    yield "cross-site requests", cross_site
    yield "framing", framing
    yield "traversal", traversal
    yield "oversized requests", oversized
    yield "header injection", header_injection
    yield "stolen links", stolen_links
    if with_slow:
        yield "slow requests", slow
    yield f"{count:,} connections", lambda target: connections(target, count)


def web_target(process: subprocess.Popen[str]) -> Target:
    assert process.stdout is not None
    link = process.stdout.readline().split()[-1]
    port = int(link.split(":")[2].split("/")[0])
    target = Target("web", port, "", "/" + link.split("/", 3)[3], process.pid, "")
    first = target.ask(target.link).decode("latin-1")
    kept = re.search(r"set-cookie: ([^;]+);", first)
    assert kept, first
    target.secret = f"Cookie: {kept[1]}"
    page = target.ask("/", "GET", target.secret).decode()
    run = re.search(r"/run/(\w+/\w+)", page)
    assert run, page
    target.run = run[1]
    return target


def mcp_target(process: subprocess.Popen[str]) -> Target:
    assert process.stdout is not None
    first, second = process.stdout.readline(), process.stdout.readline()
    port = int(first.split(":")[2].split("/")[0])
    return Target("mcp", port, second.strip(), "", process.pid, "")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=1000)
    count = parser.parse_args().connections
    with tempfile.TemporaryDirectory() as folder:
        found = attack(Path(folder), count)
    print(f"{len(found)} attacks were not refused")
    for one in found:
        print(one)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
