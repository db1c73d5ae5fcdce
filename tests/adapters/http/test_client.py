"""HTTP requests against real servers on loopback; names, time and chance are fakes."""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.adapters.http.client import Client, send_request, stream_request
from plait.adapters.http.connect import dial, not_public
from plait.core.errors import RequestError
from plait.tools.invocation import CallLimits, HttpRetry, RequestCall

PUBLIC = "93.184.216.34"
SECRET = "s3cr3t-value"
SOON = CallLimits(timeout=0.3)
LONG = CallLimits(timeout=30.0)


# ── servers ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Exchange(BaseHTTPRequestHandler):
    """A handler that keeps what came, and answers as the test says."""

    protocol_version = "HTTP/1.1"
    server: Site

    def answer_as_reported(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.seen.append(Seen(self.command, self.path, headers, body))
        self.server.routes[self.path.partition("?")[0]](self)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer_as_reported

    def reply(self, status: int = 200, body: bytes = b"", /, **headers: str) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def raw(self, data: bytes) -> None:
        """Exactly these bytes, and then the end of the connection."""
        self.wfile.write(data)
        self.close_connection = True

    def drip(self, head: bytes, drop: bytes) -> None:
        """Drop by drop until the other side hangs up or the test is over."""
        self.close_connection = True
        try:
            self.wfile.write(head)
            while not self.server.over.wait(0.02):
                self.wfile.write(drop)
        except OSError:
            return

    def log_message(self, *_: object) -> None:
        return


Route: TypeAlias = Callable[[Exchange], None]


class Site(ThreadingHTTPServer):
    """One origin: routes that the test fills in, requests that it may look at."""

    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.routes: dict[str, Route] = {}
        self.seen: list[Seen] = []
        self.over = threading.Event()
        self.scheme = "http"

    def handle_error(self, *_: object) -> None:
        return  # clients of these tests hang up on purpose

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.server_port}{path}"

    def on(self, path: str, route: Route, host: str = "127.0.0.1") -> str:
        self.routes[path] = route
        return self.url(path, host)


@pytest.fixture
def sites() -> Iterator[Callable[[], Site]]:
    opened: list[Site] = []

    def another() -> Site:
        site = Site()
        opened.append(site)
        threading.Thread(
            target=site.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        return site

    yield another
    for site in opened:
        site.over.set()
        site.shutdown()
        site.server_close()


@pytest.fixture
def site(sites: Callable[[], Site]) -> Site:
    return sites()


# ── clients ───────────────────────────────────────────────────────────────────────────────────────


@dataclass
class World:
    """Names that all have one public address, whose port leads to loopback; pauses that cost no time."""

    addresses: Callable[[str], Sequence[str]] = lambda _: [PUBLIC]
    ports: dict[int, int] = field(default_factory=dict)
    moment: float = 1_000_000.0
    pauses: list[float] = field(default_factory=list)
    dialled: list[str] = field(default_factory=list)
    sockets: list[socket.socket] = field(default_factory=list)

    def dial(self, address: str, port: int, seconds: float) -> socket.socket:
        self.dialled.append(address)
        self.sockets.append(dial("127.0.0.1", self.ports.get(port, port), seconds))
        return self.sockets[-1]

    def client(self, **parts: Any) -> Client:
        return Client(
            resolve=lambda host: self.addresses(host),
            dial=self.dial,
            sleep=self.pauses.append,
            now=lambda: self.moment,
            jitter=lambda: 1.0,
            **parts,
        )


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Iterator[Client]:
    client = world.client()
    yield client
    client.close()


def get(url: str, **parts: Any) -> RequestCall:
    return RequestCall("GET", url, **{"limits": LONG, **parts})


def post(url: str, body: bytes = b"{}", **parts: Any) -> RequestCall:
    return RequestCall("POST", url, body=body, **{"limits": LONG, **parts})


def refused(client: Client, call: RequestCall) -> RequestError:
    with pytest.raises(RequestError) as caught:
        client.send(call)
    return caught.value


# ── answers become data ───────────────────────────────────────────────────────────────────────────

CONTENT = [
    # content type                          body                        data                  base64
    ("application/json",                    b'{"a": [1, null]}',        {"a": [1, None]},     False),
    ("application/json",                    b"[1]",                     [1],                  False),
    ("application/json",                    b"3",                       3,                    False),
    ("application/json",                    b"null",                    None,                 False),
    ("application/json",                    b"",                        None,                 False),
    ("application/problem+json; v=1",       b'"x"',                     "x",                  False),
    ("application/json",                    b'\xef\xbb\xbf{"a": 1}',    {"a": 1},             False),
    ("text/plain",                          b'{"a": 1}',                '{"a": 1}',           False),
    ("text/html; charset=iso-8859-1",       b"\xe9",                    "é",                  False),
    ("text/plain; charset=zip",             b"plain",                   "plain",              False),
    ("text/plain; charset=unicode_escape",  b"\\x41",                   "\\x41",              False),
    ("text/plain",                          b"",                        "",                   False),
    ("text/plain",                          b"\xff\xfe",                "//4=",               True),
    ("image/png",                           b"abc",                     "YWJj",               True),
    ("image/svg+xml",                       b"<svg/>",                  "<svg/>",             False),
    ("application/octet-stream",            b"abc",                     "YWJj",               True),
    ("",                                    b"words",                   "words",              False),
    ("",                                    b"a\0b",                    "YQBi",               True),
]  # fmt: skip


@pytest.mark.parametrize(("content_type", "body", "data", "base64"), CONTENT)
def test_a_body_is_json_text_or_base64_as_its_type_says(
    site: Site, client: Client, content_type: str, body: bytes, data: object, base64: bool
) -> None:
    url = site.on(
        "/",
        lambda x: x.reply(200, body, **({"content_type": content_type} if content_type else {})),
    )
    returned = client.send(get(url))
    assert (returned.success, returned.data, returned.error) == (True, data, None)
    assert returned.metadata["base64"] is base64


BROKEN_JSON = [
    # body                   data                     error
    (b'{"a":\n 1,}',         '{"a":\n 1,}',           "the answer says it is JSON and is not, from line 2, column 3"),
    (b"NaN",                 "NaN",                   "the answer says it is JSON and holds what JSON does not allow"),
    (b'{"n": 1e400}',        '{"n": 1e400}',          "the answer says it is JSON and holds what JSON does not allow"),
    (b'"\\ud800"',           '"\\ud800"',             "the answer says it is JSON and holds what JSON does not allow"),
    (b'"\xff"',              "Iv8i",                  "the answer says it is JSON and holds what JSON does not allow"),
    (b"1" * 5000,            "1" * 5000,              "the answer says it is JSON and holds what JSON does not allow"),
    (b"[" * 200_000,         "[" * 200_000,           "the answer is JSON that is nested too deeply"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "data", "error"), BROKEN_JSON)
def test_what_says_it_is_json_and_is_not_is_a_failure_that_shows_the_text(
    site: Site, client: Client, body: bytes, data: str, error: str
) -> None:
    url = site.on("/", lambda x: x.reply(200, body, content_type="application/json"))
    returned = client.send(get(url))
    assert (returned.success, returned.data, returned.error) == (False, data, error)


STATUSES = [
    # status  success  error
    (200,     True,    None),
    (201,     True,    None),
    (204,     True,    None),
    (302,     False,   "the server answered 302 Found; redirects are off for this call"),
    (404,     False,   "the server answered 404 Not Found"),
    (500,     False,   "the server answered 500 Internal Server Error"),
    (599,     False,   "the server answered 599"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "success", "error"), STATUSES)
def test_success_is_a_status_of_two_hundred_and_some(
    site: Site, client: Client, status: int, success: bool, error: str | None
) -> None:
    url = site.on("/", lambda x: x.reply(status, location=site.url("/never")))
    returned = client.send(get(url))
    assert (returned.success, returned.error, returned.metadata["status"]) == (
        success,
        error,
        status,
    )
    assert [seen.path for seen in site.seen] == ["/"]


def test_the_data_of_an_unwelcome_answer_is_kept(site: Site, client: Client) -> None:
    url = site.on("/", lambda x: x.reply(422, b'{"why": "no"}', content_type="application/json"))
    assert client.send(get(url)).data == {"why": "no"}


def test_metadata_shows_no_credentials(site: Site, client: Client) -> None:
    secrets = {"set_cookie": f"sid={SECRET}", "x_api_key": SECRET, "x_auth_token": SECRET}
    location = f"https://u:{SECRET}@there.example/p?sig={SECRET}&{SECRET}"
    url = site.on(
        "/p", lambda x: x.reply(200, b"ok", location=location, x_remaining_tokens="7", **secrets)
    )
    returned = client.send(get(f"{url}?key={SECRET}&{SECRET}#{SECRET}"))
    assert returned.metadata["url"] == f"{url}?key=***&***"
    assert returned.metadata["headers"] == {
        "location": "https://***@there.example/p?sig=***&***",
        "x-remaining-tokens": "7",
        "set-cookie": "***",
        "x-api-key": "***",
        "x-auth-token": "***",
        "content-length": "2",
    }
    assert SECRET not in json.dumps([returned.metadata, returned.data, returned.error])


def test_the_request_arrives_as_it_was_given(site: Site, client: Client) -> None:
    url = site.on("/a", lambda x: x.reply(200, b"ok"))
    headers = (("Content-Type", "application/json"), ("X-Word", "  é\t"))
    client.send(RequestCall("put", f"{url}?q=a%20b", headers, b'{"a": 1}'))
    [seen] = site.seen
    assert (seen.method, seen.path, seen.body) == ("PUT", "/a?q=a%20b", b'{"a": 1}')
    assert seen.headers == {
        "host": f"127.0.0.1:{site.server_port}",
        "accept": "*/*",
        "accept-encoding": "gzip",
        "user-agent": "plait",
        "content-type": "application/json",
        "x-word": "é".encode().decode("latin-1"),
        "content-length": "8",
    }


def test_the_answer_to_head_has_no_body(site: Site, client: Client) -> None:
    url = site.on("/", lambda x: x.reply(200, b"x" * 100))
    returned = client.send(RequestCall("HEAD", url, limits=CallLimits(timeout=30.0, max_output=10)))
    assert (returned.success, returned.data, returned.metadata["headers"]) == (
        True,
        "",
        {"content-length": "100"},
    )


def test_the_process_has_a_client_of_its_own(site: Site) -> None:
    url = site.on("/", lambda x: x.reply(200, b"hello"))
    assert send_request(get(url)).data == "hello"
    with stream_request(get(url)) as answer:
        assert b"".join(answer) == b"hello"


# ── refused before anything is sent ───────────────────────────────────────────────────────────────

BAD_URLS = [
    # url                                 why
    ("file:///etc/passwd",                "its scheme is not http or https"),
    ("ftp://h.example/",                  "its scheme is not http or https"),
    ("//h.example/",                      "its scheme is not http or https"),
    (" http://h.example/",                "its scheme is not http or https"),
    ("http://user:pw@h.example/",         "it holds a user name or password"),
    ("http://user@h.example/",            "it holds a user name or password"),
    ("http://@h.example/",                "it holds a user name or password"),
    ("http://good.example\\@h.example/",  "it holds a user name or password"),
    ("http:///path",                      "its host is not a name or address"),
    ("http://a..b/",                      "its host is not a name or address"),
    ("http://%31%32%37.1/",               "its host is not a name or address"),
    (f"http://{'a' * 64}.example/",       "its host is not a name or address"),
    ("http://h.example:0/",               "its port is not between 1 and 65535"),
    ("http://h.example:99999/",           "its port is not between 1 and 65535"),
    ("http://h.example/a\r\nX: y",        "it cannot be read"),
    ("http://h.example/\0",               "it cannot be read"),
    ("http://h.example:x/",               "it cannot be read"),
    ("http://0177.0.0.1/",                "it cannot be read"),
    ("http://[::1%25lo]/",                "its host is not a name or address"),
    ("http://h.example/a/../b",           "its path holds '.' or '..', which lead to another path than the one written"),
    ("http://h.example/a/%2E./b",         "its path holds '.' or '..', which lead to another path than the one written"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "why"), BAD_URLS)
def test_a_url_that_could_mean_something_else_is_refused(
    world: World, client: Client, url: str, why: str
) -> None:
    error = refused(client, get(url))
    assert (error.what, error.where, error.code) == (
        f"the URL cannot be used: {why}",
        "GET",
        "bad-url",
    )
    assert world.dialled == []


BAD_VALUES = ["a\r\nX-Evil: 1", "a\nb", "a\rb", "a\0b", "a\x1bb", "a\x7fb", "a\ud800b"]


@pytest.mark.parametrize("value", BAD_VALUES)
def test_a_header_value_cannot_become_another_header(
    world: World, client: Client, value: str
) -> None:
    error = refused(client, get("http://h.example/", headers=(("X-A", value),)))
    assert str(error) == (
        "GET h.example: the value of the header 'X-A' holds a line break or control character\nfix: remove that"
    )
    assert world.dialled == []


def test_all_bad_headers_are_named_at_once_and_no_value_is(client: Client) -> None:
    headers = (
        ("Host", SECRET),
        ("bad name", SECRET),
        ("X-B", f"{SECRET}\n"),
        ("Transfer-Encoding", "chunked"),
    )
    assert str(refused(client, get("http://h.example/", headers=headers))) == (
        "GET h.example: the header 'Host' is written by Plait itself\nfix: remove it\n"
        "GET h.example: header 2 has a name that HTTP does not allow\nfix: use letters, digits and '-'\n"
        "GET h.example: the value of the header 'X-B' holds a line break or control character\nfix: remove that\n"
        "GET h.example: the header 'Transfer-Encoding' is written by Plait itself\nfix: remove it"
    )


@pytest.mark.parametrize("method", ["", "GET /x", "GE\r\nT", "CONNECT"])
def test_a_method_that_is_none_is_refused(client: Client, method: str) -> None:
    error = refused(client, RequestCall(method, "http://h.example/"))
    assert (error.what, error.where, error.code) == (
        "the HTTP method cannot be used",
        None,
        "bad-method",
    )


@given(value=st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=30))
# One server for all examples is what we want: it keeps nothing but what it has seen.
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_header_value_without_control_characters_arrives_whole(
    site: Site, client: Client, value: str
) -> None:
    url = site.on("/", lambda x: x.reply())
    assert client.send(get(url, headers=(("X-A", value),))).success
    arrived = site.seen[-1].headers["x-a"].encode("latin-1").decode("utf-8")
    assert arrived == value.strip(" \t")


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────

ADDRESSES = [
    # address                        what it is
    ("93.184.216.34",                None),
    ("2606:2800:220:1::1",           None),
    ("::ffff:93.184.216.34",         None),
    ("64:ff9b::5db8:d822",           None),
    ("127.0.0.1",                    "loopback"),
    ("127.255.255.254",              "loopback"),
    ("::1",                          "loopback"),
    ("::ffff:127.0.0.1",             "loopback"),
    ("64:ff9b::7f00:1",              "loopback"),
    ("2002:7f00:1::",                "loopback"),
    ("0.0.0.0",                      "unspecified"),
    ("::",                           "unspecified"),
    ("0.1.2.3",                      "private"),
    ("10.0.0.1",                     "private"),
    ("172.16.0.1",                   "private"),
    ("192.168.1.1",                  "private"),
    ("::ffff:10.0.0.1",              "private"),
    ("192.0.2.1",                    "private"),
    ("fc00::1",                      "private"),
    ("fd12:3456::1",                 "private"),
    ("255.255.255.255",              "private"),
    ("169.254.169.254",              "link-local"),
    ("fe80::1",                      "link-local"),
    ("fe80::1%2",                    "link-local"),
    ("224.0.1.1",                    "multicast"),
    ("ff02::1",                      "multicast"),
    ("100.64.0.1",                   "shared"),
    ("::127.0.0.1",                  "reserved"),
    ("fec0::1",                      "reserved"),
]  # fmt: skip


@pytest.mark.parametrize(("address", "kind"), ADDRESSES)
def test_an_address_is_public_or_the_reason_is_given(address: str, kind: str | None) -> None:
    assert not_public(address) == kind


SPELLINGS = [
    # host                     kind
    ("127.0.0.1",              "loopback"),
    ("127.1",                  "loopback"),
    ("2130706433",             "loopback"),
    ("0x7f000001",             "loopback"),
    ("0x7f.1",                 "loopback"),
    ("0",                      "unspecified"),
    ("[::]",                   "unspecified"),
    ("[::1]",                  "loopback"),
    ("[::ffff:127.0.0.1]",     "loopback"),
    ("[::ffff:7f00:1]",        "loopback"),
    ("169.254.169.254",        "link-local"),
    ("2852039166",             "link-local"),
]  # fmt: skip


@pytest.mark.parametrize(("host", "kind"), SPELLINGS)
def test_a_url_from_data_reaches_no_inner_address_however_it_is_spelt(
    world: World, client: Client, host: str, kind: str
) -> None:
    assert str(refused(client, get(f"http://{host}/", url_from_data=True))) == (
        f"GET {host}: the host has a {kind} address, where a URL that comes from data may not lead\n"
        "fix: write scheme and host in the tool's own file if this place is meant"
    )
    assert world.dialled == []


def test_one_inner_address_among_public_ones_refuses_the_name(world: World, client: Client) -> None:
    world.addresses = lambda _: [PUBLIC, "10.0.0.1", "127.0.0.1"]
    error = refused(
        client, get("http://h.example/", url_from_data=True, retry=HttpRetry(attempts=3))
    )
    assert error.what == (
        "the host has a private and a loopback address, where a URL that comes from data may not lead"
    )
    assert (error.code, world.dialled, world.pauses) == ("address-refused", [], [])


def test_a_url_from_data_may_lead_to_a_public_address(
    site: Site, world: World, client: Client
) -> None:
    url = site.on("/", lambda x: x.reply(200, b"ok"), "h.example")
    assert client.send(get(url, url_from_data=True)).data == "ok"
    assert site.seen[0].headers["host"] == f"h.example:{site.server_port}"
    assert world.dialled == [PUBLIC]


def test_the_authors_own_url_may_lead_to_an_inner_address(
    site: Site, world: World, client: Client
) -> None:
    world.addresses = lambda _: ["10.0.0.1"]
    assert client.send(get(site.on("/", lambda x: x.reply(200, b"ok"), "intranet"))).data == "ok"
    assert world.dialled == ["10.0.0.1"]


def test_a_name_that_changes_its_address_after_the_check_moves_nothing(
    site: Site, world: World
) -> None:
    answers = iter([[PUBLIC], ["127.0.0.1"]])
    world.addresses = lambda _: next(answers)
    url = site.on("/", lambda x: x.reply(200, b"ok", connection="close"), "rebind.example")
    client = world.client()
    assert client.send(get(url, url_from_data=True)).success
    assert world.dialled == [PUBLIC]  # the address that was judged, asked for once
    assert refused(client, get(url, url_from_data=True)).code == "address-refused"
    assert world.dialled == [PUBLIC]


def test_a_connection_of_the_author_is_no_way_for_data(
    site: Site, world: World, client: Client
) -> None:
    world.addresses = lambda _: ["10.0.0.1"]
    url = site.on("/", lambda x: x.reply(200, b"ok"), "intranet")
    assert client.send(get(url)).success  # and the connection stays open
    assert refused(client, get(url, url_from_data=True)).code == "address-refused"


def test_the_next_address_is_tried_when_one_does_not_answer(site: Site) -> None:
    def picky(address: str, port: int, seconds: float) -> socket.socket:
        if address == "203.0.113.1":
            raise ConnectionRefusedError
        return dial("127.0.0.1", port, seconds)

    with closing(Client(resolve=lambda _: ["203.0.113.1", PUBLIC], dial=picky)) as client:
        assert (
            client.send(get(site.on("/", lambda x: x.reply(200, b"ok"), "h.example"))).data == "ok"
        )


# ── redirects ─────────────────────────────────────────────────────────────────────────────────────

CREDENTIALS = (
    ("Authorization", f"Bearer {SECRET}"),
    ("Cookie", f"sid={SECRET}"),
    ("X-Api-Key", SECRET),
    ("X-Custom", SECRET),
    ("Proxy-Authorization", SECRET),
)


def to(url: str, status: int = 302) -> Route:
    return lambda x: x.reply(status, location=url)


def test_nothing_the_caller_wrote_crosses_origins_but_the_safelist(
    sites: Callable[[], Site], client: Client
) -> None:
    first, second = sites(), sites()
    there = second.on("/there", to(first.url("/back", "a.example")), "b.example")
    first.on("/back", lambda x: x.reply(200, b"ok"))
    start = first.on("/", to(there), "a.example")
    plain = (("Accept", "text/plain"), ("Accept-Language", "cy"), ("User-Agent", "me"))
    returned = client.send(get(start, headers=(*CREDENTIALS, *plain), max_redirects=2))

    assert (returned.data, returned.metadata["url"]) == ("ok", first.url("/back", "a.example"))
    assert first.seen[0].headers["authorization"] == f"Bearer {SECRET}"
    for seen, site, host in [
        (second.seen[0], second, "b.example"),
        (first.seen[1], first, "a.example"),
    ]:
        assert seen.headers == {
            "host": f"{host}:{site.server_port}",
            "accept": "text/plain",
            "accept-language": "cy",
            "user-agent": "me",
            "accept-encoding": "gzip",
        }  # also not on the way back: that was the other server's idea


def test_another_port_of_the_same_host_is_another_origin(
    sites: Callable[[], Site], client: Client
) -> None:
    first, second = sites(), sites()
    there = second.on("/", lambda x: x.reply(), "a.example")
    client.send(get(first.on("/", to(there), "a.example"), headers=CREDENTIALS, max_redirects=1))
    assert SECRET not in str(second.seen[0].headers)


def test_within_an_origin_headers_are_kept(site: Site, client: Client) -> None:
    site.on("/b/c", lambda x: x.reply(200, b"ok"))
    url = site.on("/a", to("b/c?x=1"))
    returned = client.send(get(url, headers=CREDENTIALS, max_redirects=1))
    assert returned.data == "ok"
    assert site.seen[1].path == "/b/c?x=1"
    assert site.seen[1].headers["authorization"] == f"Bearer {SECRET}"


FOLLOWED = [
    # status  method    follows with  body kept
    (301,     "GET",    "GET",        True),
    (301,     "POST",   "GET",        False),
    (302,     "POST",   "GET",        False),
    (302,     "PUT",    "PUT",        True),
    (303,     "POST",   "GET",        False),
    (303,     "DELETE", "GET",        False),
    (303,     "HEAD",   "HEAD",       True),
    (307,     "POST",   "POST",       True),
    (308,     "PATCH",  "PATCH",      True),
]  # fmt: skip


@pytest.mark.parametrize(("status", "method", "after", "kept"), FOLLOWED)
def test_a_redirect_keeps_method_and_body_or_drops_both(
    sites: Callable[[], Site], client: Client, status: int, method: str, after: str, kept: bool
) -> None:
    first, second = sites(), sites()
    start = first.on("/", to(second.on("/", lambda x: x.reply(), "b.example"), status), "a.example")
    headers = (("Content-Type", "text/plain"), ("Content-Language", "cy"))
    client.send(RequestCall(method, start, headers, b"body", limits=LONG, max_redirects=1))
    [seen] = second.seen
    assert (seen.method, seen.body) == (after, b"body" if kept else b"")
    assert ("content-type" in seen.headers, "content-language" in seen.headers) == (kept, False)


BAD_REDIRECTS = [
    # location                     what
    ("file:///etc/passwd",         "the server redirects, and the URL cannot be used: its scheme is not http or https"),
    ("ftp://h.example/",           "the server redirects, and the URL cannot be used: its scheme is not http or https"),
    ("http://u:p@h.example/",      "the server redirects, and the URL cannot be used: it holds a user name or password"),
    ("http://h.example:0/",        "the server redirects, and the URL cannot be used: its port is not between 1 and 65535"),
    ("http://[::1",                "the server redirects, and the URL cannot be used: it cannot be read"),
]  # fmt: skip


@pytest.mark.parametrize(("location", "what"), BAD_REDIRECTS)
def test_a_redirect_is_judged_like_a_url(
    site: Site, client: Client, location: str, what: str
) -> None:
    error = refused(client, get(site.on("/", to(location), "a.example"), max_redirects=3))
    assert (error.what, error.code) == (what, "redirect")
    assert error.where == f"GET a.example:{site.server_port}"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "[::ffff:127.0.0.1]", "2130706433", "localhost.example"]
)
@pytest.mark.parametrize("url_from_data", [True, False])
def test_a_redirect_to_another_origin_reaches_no_inner_address(
    sites: Callable[[], Site], world: World, client: Client, host: str, url_from_data: bool
) -> None:
    first, second = sites(), sites()
    world.addresses = lambda name: ["127.0.0.1"] if name == "localhost.example" else [PUBLIC]
    start = first.on("/", to(second.on("/", lambda x: x.reply(), host)), "a.example")
    error = refused(client, get(start, url_from_data=url_from_data, max_redirects=3))
    assert (error.code, second.seen) == ("address-refused", [])


def test_redirects_end_at_their_number(site: Site, client: Client) -> None:
    url = site.on("/", to("/"))
    assert str(refused(client, get(url, max_redirects=3))) == (
        f"GET 127.0.0.1:{site.server_port}: the server redirects more than 3 times\n"
        "fix: give the URL at which the redirects end, or raise `max_redirects`"
    )
    assert len(site.seen) == 4


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────────

# A certificate for api.example that nobody else trusts, and its key.
CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBmjCCAUGgAwIBAgIUcKF2aPY/HkQFoCQm1NCnl5Z0Lk0wCgYIKoZIzj0EAwIw
FjEUMBIGA1UEAwwLYXBpLmV4YW1wbGUwIBcNMjYxMTE2MDAwMTQ3WhgPMjEyNjEw
MjMwMDAxNDdaMBYxFDASBgNVBAMMC2FwaS5leGFtcGxlMFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEClQDuu6gaqRBYz6fSzBdwbczxdComCFhYg4TlAarXJMElp6O
bbzTF6bsAOeyb7y3n4iOs6Kr3R6DjtrdzqQPZqNrMGkwHQYDVR0OBBYEFH2CVAc8
KiINuD3CBxEaG2iVRgYSMB8GA1UdIwQYMBaAFH2CVAc8KiINuD3CBxEaG2iVRgYS
MA8GA1UdEwEB/wQFMAMBAf8wFgYDVR0RBA8wDYILYXBpLmV4YW1wbGUwCgYIKoZI
zj0EAwIDRwAwRAIgRsNlidQegFPZcbGx/h2+KZhFuFUtckcJsmPiCa1SCJoCIAWq
lpAbuPUtYXNWbheGUFdNRwO+ErrKSGfTI9sQHYlj
-----END CERTIFICATE-----
"""
KEY = """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgap8dIqWOKjvY/VlS
axNG6SHxmL/sgIvt+KIEUD6M6vehRANCAAQKVAO67qBqpEFjPp9LMF3BtzPF0KiY
IWFiDhOUBqtckwSWno5tvNMXpuwA57JvvLefiI6zoqvdHoOO2t3OpA9m
-----END PRIVATE KEY-----
"""


@dataclass
class Secured:
    site: Site
    names: list[str | None]
    trust: ssl.SSLContext


@pytest.fixture
def secured(sites: Callable[[], Site], tmp_path: Path) -> Secured:
    (tmp_path / "both.pem").write_text(KEY + CERTIFICATE, "ascii")
    site, names = sites(), list[str | None]()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    # The handshake belongs to the thread of the connection, not to the one that accepts.
    site.socket = context.wrap_socket(site.socket, server_side=True, do_handshake_on_connect=False)
    site.scheme = "https"
    trust = ssl.create_default_context(cadata=CERTIFICATE)
    return Secured(site, names, trust)


def test_the_pinned_address_is_asked_for_the_name_that_was_written(
    secured: Secured, world: World
) -> None:
    client = world.client(tls=secured.trust)
    url = secured.site.on("/", lambda x: x.reply(200, b"ok"), "api.example")
    assert client.send(get(url, url_from_data=True)).data == "ok"
    assert client.send(get(url, url_from_data=True)).data == "ok"
    assert (world.dialled, secured.names) == ([PUBLIC], ["api.example"])
    assert secured.site.seen[0].headers["host"] == f"api.example:{secured.site.server_port}"
    client.close()


def test_a_certificate_for_another_name_is_refused(secured: Secured, world: World) -> None:
    url = secured.site.on("/", lambda x: x.reply(), "other.example")
    error = refused(world.client(tls=secured.trust), get(url, retry=HttpRetry(attempts=3)))
    assert error.code == "tls"
    assert error.what.startswith("the server's certificate is not trusted: Hostname mismatch")
    assert (secured.site.seen, world.pauses) == ([], [])


def test_a_certificate_that_this_machine_does_not_know_is_refused(
    secured: Secured, world: World
) -> None:
    url = secured.site.on("/", lambda x: x.reply(), "api.example")
    assert refused(world.client(), get(url)).code == "tls"


def test_a_server_without_tls_is_not_spoken_to_in_clear(site: Site, client: Client) -> None:
    site.on("/", lambda x: x.reply())
    error = refused(client, get(site.url("/", "api.example").replace("http:", "https:")))
    assert (error.what, error.code) == ("the TLS handshake failed", "tls")


def test_a_redirect_from_https_to_http_is_refused(
    secured: Secured, site: Site, world: World
) -> None:
    url = secured.site.on("/", to(site.on("/", lambda x: x.reply(), "api.example")), "api.example")
    error = refused(world.client(tls=secured.trust), get(url, max_redirects=1))
    assert (error.code, site.seen) == ("redirect", [])


@pytest.mark.parametrize(("there", "code"), [("", None), (":8443", "address-refused")])
def test_https_of_the_same_host_is_still_the_authors_word(
    secured: Secured, site: Site, world: World, there: str, code: str | None
) -> None:
    world.addresses = lambda _: ["10.0.0.1"]
    world.ports = {
        80: site.server_port,
        443: secured.site.server_port,
        8443: secured.site.server_port,
    }
    secured.site.on("/", lambda x: x.reply(200, b"ok"))
    site.on("/", to(f"https://api.example{there}/"))
    call = get("http://api.example/", headers=CREDENTIALS, max_redirects=1)
    client = world.client(tls=secured.trust)
    if code:
        assert refused(client, call).code == code
    else:
        assert client.send(call).data == "ok"
        assert SECRET not in str(secured.site.seen[0].headers)
    client.close()


# ── limits ────────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_of_the_size_allowed_is_kept_and_one_byte_more_is_not(
    site: Site, client: Client
) -> None:
    url = site.on("/", lambda x: x.reply(200, b"x" * 1000))
    assert len(client.send(get(url, limits=replace(LONG, max_output=1000))).data) == 1000
    assert str(refused(client, get(url, limits=replace(LONG, max_output=999)))) == (
        f"GET 127.0.0.1:{site.server_port}: the answer is larger than 999 bytes\n"
        "fix: raise `max_output`, or ask the server for less"
    )


def test_a_body_without_end_ends_at_the_limit(site: Site, client: Client) -> None:
    def endless(x: Exchange) -> None:
        x.close_connection = True
        try:
            x.wfile.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            while not x.server.over.is_set():
                x.wfile.write(b"10000\r\n" + bytes(65536) + b"\r\n")
        except OSError:
            return

    error = refused(client, get(site.on("/", endless), limits=replace(LONG, max_output=1 << 20)))
    assert error.code == "too-large"


def test_a_gzip_bomb_ends_at_the_limit_and_memory_stays_bounded(site: Site, client: Client) -> None:
    bomb = gzip.compress(bytes(256 << 20), compresslevel=1)
    url = site.on("/", lambda x: x.reply(200, bomb, content_encoding="gzip"))
    client.send(get(site.on("/warm", lambda x: x.reply())))
    tracemalloc.start()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    try:
        error = refused(client, get(url, limits=replace(LONG, max_output=1 << 20)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert error.code == "too-large"
    assert peak - before < 6 << 20


PACKED = [
    # encoding    body                                              data or code
    ("gzip",      gzip.compress(b"hello", mtime=0),                          "hello"),
    ("x-gzip",    gzip.compress(b"hello", mtime=0),                          "hello"),
    ("GZip",      gzip.compress(b"hello", mtime=0),                          "hello"),
    ("gzip",      gzip.compress(b"hel", mtime=0) + gzip.compress(b"lo", mtime=0),     "hello"),
    ("gzip",      gzip.compress(b"x" * 300_000, mtime=0),                    "x" * 300_000),
    ("gzip",      b"",                                              ""),
    ("identity",  b"hello",                                         "hello"),
    ("gzip",      gzip.compress(b"hello" * 99, mtime=0)[:-9],                RequestError),
    ("gzip",      gzip.compress(b"hello", mtime=0) + b"junk",                RequestError),
    ("gzip",      b"not gzip",                                      RequestError),
    ("br",        b"hello",                                         RequestError),
    ("gzip, gzip", gzip.compress(gzip.compress(b"hello", mtime=0), mtime=0),          RequestError),
]  # fmt: skip


@pytest.mark.parametrize(("encoding", "body", "expected"), PACKED)
def test_gzip_is_unpacked_and_what_cannot_be_is_an_error(
    site: Site, client: Client, encoding: str, body: bytes, expected: object
) -> None:
    url = site.on("/", lambda x: x.reply(200, body, content_encoding=encoding))
    if expected is RequestError:
        assert refused(client, get(url)).code == "encoding"
    else:
        assert client.send(get(url)).data == expected


DRIPS = [
    # head                                                                 drop
    (b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n",                 b"x"),
    (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",             b"1\r\nx\r\n"),
    (b"HTTP/1.1 200 OK\r\n",                                               b"x-a: b\r\n"),
    (b"HTTP",                                                              b""),
    (b"",                                                                  b"HTTP/1.1 100 Continue\r\n\r\n"),
    (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n",  gzip.compress(b"", mtime=0)),
]  # fmt: skip


@pytest.mark.parametrize(("head", "drop"), DRIPS)
def test_an_answer_that_drips_ends_at_the_deadline(
    site: Site, client: Client, head: bytes, drop: bytes
) -> None:
    url = site.on("/", lambda x: x.drip(head, drop))
    assert str(refused(client, get(url, limits=SOON, retry=HttpRetry(attempts=5)))) == (
        f"GET 127.0.0.1:{site.server_port}: the time limit passed before the answer was complete\n"
        "fix: raise `timeout`, or find out why the server is slow"
    )


@contextmanager
def ending_in_time() -> Iterator[None]:
    """Far more than the 0.3 seconds of these calls, far less than what the other side would wait."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < 10


def sip(listening: socket.socket, over: threading.Event) -> None:
    taken, _ = listening.accept()
    with taken:
        while not over.wait(0.02):
            taken.recv(4096)


@pytest.mark.parametrize("sips", [False, True])
def test_a_server_that_hardly_reads_ends_at_the_deadline(client: Client, sips: bool) -> None:
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as deaf, ending_in_time():
        reader = threading.Thread(target=sip, args=(deaf, over), daemon=True)
        if sips:
            reader.start()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        try:
            assert refused(client, post(url, bytes(32 << 20), limits=SOON)).code == "deadline"
        finally:
            over.set()
            if sips:
                reader.join(timeout=10)


def test_a_handshake_without_answer_ends_at_the_deadline(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf, ending_in_time():
        url = f"https://127.0.0.1:{deaf.getsockname()[1]}/"
        assert refused(client, get(url, limits=SOON)).code == "deadline"


def test_a_connection_that_took_all_the_time_is_closed_before_the_handshake(
    site: Site, world: World
) -> None:
    client = world.client(clock=lambda: 100.0 * len(world.sockets))
    assert refused(client, get(site.url("/").replace("http:", "https:"))).code == "deadline"
    assert [sock.fileno() for sock in world.sockets] == [-1]


def test_a_name_server_without_answer_ends_at_the_deadline() -> None:
    over = threading.Event()

    def silent(_: str) -> list[str]:
        over.wait(30)
        return []

    with ending_in_time():
        try:
            assert (
                refused(Client(resolve=silent), get("http://h.example/", limits=SOON)).code
                == "deadline"
            )
        finally:
            over.set()


def test_redirects_share_the_deadline_of_the_call(site: Site, world: World) -> None:
    moments = iter(range(0, 1000, 4))
    client = world.client(clock=lambda: float(next(moments)))
    url = site.on("/", to("/"))
    assert (
        refused(client, get(url, limits=CallLimits(timeout=60.0), max_redirects=100)).code
        == "deadline"
    )
    assert 0 < len(site.seen) < 20


# ── attempts ──────────────────────────────────────────────────────────────────────────────────────


def failing(times: int, status: int = 503, **headers: str) -> Route:
    left = [times]

    def route(x: Exchange) -> None:
        left[0] -= 1
        x.reply(*((status, b"no") if left[0] >= 0 else (200, b"yes")), **headers)

    return route


THREE = HttpRetry(attempts=3, initial_delay=1.0)


@pytest.mark.parametrize(
    ("failures", "calls", "data"), [(0, 1, "yes"), (1, 2, "yes"), (2, 3, "yes"), (3, 3, "no")]
)
def test_attempts_count_calls(
    site: Site, world: World, client: Client, failures: int, calls: int, data: str
) -> None:
    returned = client.send(get(site.on("/", failing(failures)), retry=THREE))
    assert (len(site.seen), returned.metadata["attempts"], returned.data) == (calls, calls, data)
    assert len(world.pauses) == calls - 1
    assert returned.success is (data == "yes")


BACKOFF = [
    # backoff         initial  most   pauses
    ("fixed",         2.0,     30.0,  [2.0, 2.0, 2.0, 2.0]),
    ("linear",        2.0,     30.0,  [2.0, 4.0, 6.0, 8.0]),
    ("exponential",   2.0,     30.0,  [2.0, 4.0, 8.0, 16.0]),
    ("exponential",   2.0,     5.0,   [2.0, 4.0, 5.0, 5.0]),
]  # fmt: skip


@pytest.mark.parametrize(("backoff", "initial", "most", "pauses"), BACKOFF)
def test_pauses_grow_as_the_policy_says(
    site: Site,
    world: World,
    client: Client,
    backoff: Any,
    initial: float,
    most: float,
    pauses: list[float],
) -> None:
    retry = HttpRetry(attempts=5, backoff=backoff, initial_delay=initial, max_delay=most)
    client.send(get(site.on("/", failing(9)), retry=retry, limits=CallLimits(timeout=600.0)))
    assert world.pauses == pauses


def test_chance_shortens_a_pause_by_at_most_half(site: Site) -> None:
    chances, pauses = iter([0.0, 0.5]), list[float]()
    retry = HttpRetry(attempts=3, initial_delay=4.0, backoff="fixed")
    with closing(Client(jitter=lambda: next(chances), sleep=pauses.append)) as client:
        client.send(get(site.on("/", failing(2)), retry=retry))
    assert pauses == [2.0, 3.0]


RETRY_AFTER = [
    # the server says                                pause
    ("7",                                            7.0),
    (formatdate(1_000_005, usegmt=True),             5.0),
    ("Mon, 12 Jan 1970 13:46:45 -0000",              5.0),
    ("0",                                            1.0),
    (formatdate(999_000, usegmt=True),               1.0),
    ("soon",                                         1.0),
    ("-5",                                           1.0),
    ("1e3",                                          1.0),
    ("9" * 5000,                                     1.0),
    ("Mon, 99 Foo 99999 99:99:99 GMT",               1.0),
]  # fmt: skip


@pytest.mark.parametrize(("written", "pause"), RETRY_AFTER)
def test_the_server_is_given_the_time_it_asks_for(
    site: Site, world: World, client: Client, written: str, pause: float
) -> None:
    url = site.on("/", failing(1, 429, retry_after=written))
    assert client.send(get(url, retry=THREE)).data == "yes"
    assert world.pauses == [pause]


@pytest.mark.parametrize("written", ["31", "999999999", formatdate(2_000_000, usegmt=True)])
def test_no_pause_goes_beyond_the_deadline(
    site: Site, world: World, client: Client, written: str
) -> None:
    url = site.on("/", failing(1, 429, retry_after=written))
    returned = client.send(get(url, retry=THREE))
    assert (returned.success, returned.metadata["attempts"], world.pauses) == (False, 1, [])


REPEATED = [
    # method    status  any_method  calls
    ("GET",     500,    False,      2),
    ("HEAD",    500,    False,      2),
    ("PUT",     502,    False,      2),
    ("DELETE",  504,    False,      2),
    ("GET",     404,    False,      1),
    ("GET",     501,    False,      1),
    ("POST",    500,    False,      1),
    ("PATCH",   502,    False,      1),
    ("POST",    429,    False,      2),
    ("POST",    503,    False,      2),
    ("POST",    500,    True,       2),
    ("POST",    404,    True,       1),
]  # fmt: skip


@pytest.mark.parametrize(("method", "status", "any_method", "calls"), REPEATED)
def test_only_what_does_no_harm_twice_is_repeated(
    site: Site, client: Client, method: str, status: int, any_method: bool, calls: int
) -> None:
    retry = HttpRetry(attempts=2, any_method=any_method)
    client.send(
        RequestCall(method, site.on("/", failing(9, status)), body=b"{}", limits=LONG, retry=retry)
    )
    assert [seen.body for seen in site.seen] == [b"{}"] * calls


def test_only_the_statuses_of_the_call_are_repeated(site: Site, client: Client) -> None:
    client.send(get(site.on("/", failing(9, 503)), retry=HttpRetry(attempts=3, statuses=(500,))))
    assert len(site.seen) == 1


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_refused_connection_is_tried_again_whatever_the_method(
    world: World, client: Client, method: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    error = refused(
        client, RequestCall(method, f"http://127.0.0.1:{port}/", limits=LONG, retry=THREE)
    )
    assert str(error) == (
        f"{method} 127.0.0.1:{port}: the host cannot be reached: the connection was refused (3 attempts)\n"
        "fix: check host and port, and that the server runs"
    )
    assert (len(world.dialled), world.pauses) == (3, [1.0, 2.0])


def no_such_name(_: str) -> list[str]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def no_answer_now(_: str) -> list[str]:
    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


def test_a_name_that_does_not_exist_is_not_asked_for_again(world: World, client: Client) -> None:
    world.addresses = no_such_name
    assert str(refused(client, get("http://h.example:8080/p", retry=THREE))) == (
        "GET h.example:8080: the host name does not exist\nfix: check the spelling of the host"
    )
    assert world.pauses == []


def test_a_name_server_in_trouble_is_asked_again(world: World, client: Client) -> None:
    world.addresses = no_answer_now
    assert str(refused(client, get("http://h.example/", retry=THREE))) == (
        "GET h.example: the host name cannot be looked up just now (3 attempts)\n"
        "fix: check the network and its name server"
    )
    assert len(world.pauses) == 2


BROKEN_OFF = [
    # what the server sends before it hangs up
    b"",
    b"HTTP/1.1 200 OK\r\ncontent-le",
    b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000,
]


@pytest.mark.parametrize("sent", BROKEN_OFF)
@pytest.mark.parametrize(
    ("method", "any_method", "calls"), [("GET", False, 3), ("POST", False, 1), ("POST", True, 3)]
)
def test_an_answer_broken_off_is_no_answer(
    site: Site, client: Client, sent: bytes, method: str, any_method: bool, calls: int
) -> None:
    url = site.on("/", lambda x: x.raw(sent))
    retry = replace(THREE, any_method=any_method)
    error = refused(
        client, RequestCall(method, url, body=SECRET.encode(), limits=LONG, retry=retry)
    )
    assert (error.code, len(site.seen)) == ("connection-lost", calls)
    assert SECRET not in str(error)


def test_a_broken_off_answer_may_be_followed_by_a_whole_one(site: Site, client: Client) -> None:
    routes: list[Route] = [lambda x: x.raw(BROKEN_OFF[2]), lambda x: x.reply(200, b"whole")]
    replies = iter(routes)
    returned = client.send(get(site.on("/", lambda x: next(replies)(x)), retry=THREE))
    assert (returned.data, returned.metadata["attempts"]) == ("whole", 2)


# ── nothing from the environment, nothing cached ──────────────────────────────────────────────────


def test_neither_proxy_nor_netrc_is_taken_from_the_environment(
    sites: Callable[[], Site], client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site, proxy = sites(), sites()
    (tmp_path / "netrc").write_text(f"default login me password {SECRET}\n", "ascii")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url(""))
    assert client.send(get(site.on("/", lambda x: x.reply(200, b"ok"), "h.example"))).data == "ok"
    assert (proxy.seen, "authorization" in site.seen[0].headers) == ([], False)


def test_a_cookie_is_not_carried_into_the_next_call(site: Site, client: Client) -> None:
    url = site.on("/", lambda x: x.reply(set_cookie=f"sid={SECRET}; Path=/"))
    client.send(get(url))
    client.send(get(url))
    assert "cookie" not in site.seen[1].headers


# ── connections ───────────────────────────────────────────────────────────────────────────────────


def test_a_connection_is_used_again(site: Site, world: World, client: Client) -> None:
    url = site.on("/", lambda x: x.reply(200, b"ok"))
    for _ in range(5):
        client.send(get(url))
    assert len(world.dialled) == 1


def test_two_hundred_calls_from_threads_leave_nothing_behind(site: Site, world: World) -> None:
    client = world.client()
    url = site.on("/", lambda x: x.reply(200, x.path.encode()), "h.example")
    with ThreadPoolExecutor(40) as threads:
        found = list(threads.map(lambda n: client.send(get(f"{url}?n={n}")).data, range(200)))
    assert found == [f"/?n={n}" for n in range(200)]
    assert len(world.sockets) <= 200
    client.close()
    assert [sock for sock in world.sockets if sock.fileno() >= 0] == []
    for thread in threading.enumerate():
        if thread.name == "plait-look-up":
            thread.join(timeout=10)
            assert not thread.is_alive()


FAILURES: list[Route] = [
    lambda x: x.raw(BROKEN_OFF[0]),
    lambda x: x.raw(BROKEN_OFF[2]),
    lambda x: x.reply(200, b"x" * 5000),
    lambda x: x.reply(200, b"damaged", content_encoding="gzip"),
    lambda x: x.reply(302, location="/"),
    lambda x: x.drip(*DRIPS[0]),
]


@pytest.mark.parametrize("route", FAILURES)
def test_a_failed_call_leaves_no_connection_open(
    site: Site, world: World, client: Client, route: Route
) -> None:
    refused(
        client,
        get(site.on("/", route), limits=CallLimits(timeout=0.5, max_output=1000), max_redirects=2),
    )
    assert world.sockets
    assert [sock for sock in world.sockets if sock.fileno() >= 0] == []


def test_a_closed_client_can_be_used_again(site: Site, client: Client) -> None:
    url = site.on("/", lambda x: x.reply(200, b"ok"))
    client.send(get(url))
    client.close()
    assert client.send(get(url)).data == "ok"


def test_httpx2_is_loaded_by_the_first_request_only() -> None:
    code = "import sys, plait.adapters.http.client; sys.exit('httpx2' in sys.modules or 'httpcore2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# ── streams ───────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_passes_on_each_piece_before_the_next_is_sent(site: Site, client: Client) -> None:
    taken = threading.Event()

    def in_two(x: Exchange) -> None:
        x.wfile.write(
            b"HTTP/1.1 201 Created\r\nX-Kind: sse\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n"
        )
        if taken.wait(20):
            x.wfile.write(b"6\r\nsecond\r\n0\r\n\r\n")

    with client.stream(get(site.on("/", in_two))) as answer:
        assert (answer.status, answer.headers["x-kind"], answer.attempts) == (201, "sse", 1)
        pieces = iter(answer)
        assert next(pieces) == b"first"
        taken.set()
        assert list(pieces) == [b"second"]


def test_a_stream_is_tried_again_until_its_head_is_welcome(
    site: Site, world: World, client: Client
) -> None:
    url = site.on("/", failing(2, 429, retry_after="3"))
    with client.stream(post(url, retry=THREE)) as answer:
        assert (answer.status, answer.attempts, b"".join(answer)) == (200, 3, b"yes")
    assert world.pauses == [3.0, 3.0]
    assert [sock.fileno() >= 0 for sock in world.sockets] == [
        False,
        False,
        True,
    ]  # unread answers are closed


def test_a_stream_that_is_left_early_closes_its_connection(
    site: Site, world: World, client: Client
) -> None:
    url = site.on("/", lambda x: x.drip(*DRIPS[0]))
    with client.stream(get(url)) as answer:
        pieces = iter(answer)
        assert next(pieces) == b"x"
    assert [sock.fileno() for sock in world.sockets] == [-1]


STREAM_ERRORS: list[tuple[Route, str]] = [
    (lambda x: x.raw(BROKEN_OFF[2]), "connection-lost"),
    (lambda x: x.reply(200, b"x" * 5000), "too-large"),
    (lambda x: x.drip(*DRIPS[0]), "deadline"),
]


@pytest.mark.parametrize(("route", "code"), STREAM_ERRORS)
def test_a_stream_is_held_to_the_same_limits(
    site: Site, client: Client, route: Route, code: str
) -> None:
    call = get(site.on("/", route), limits=CallLimits(timeout=0.5, max_output=1000))
    with client.stream(call) as answer, pytest.raises(RequestError) as caught:
        b"".join(answer)
    assert (caught.value.code, caught.value.where) == (code, f"GET 127.0.0.1:{site.server_port}")
