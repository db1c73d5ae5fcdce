"""What a guard lets through, and what it answers otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from httpd.ask import HERE, OWN, PASSWORD, PORT, Door, echo
from plait.httpd.guard import CONTENT_SECURITY_POLICY, Limits
from plait.httpd.listen import Listen, Tls

OTHER = "another site sent this request"
WRONG_HOST = "this server is not the host that the request names"
NOT_PLAIN = "the address is not a plain path"
NEEDS_ORIGIN = "a request that changes something needs an Origin, or a bearer token"

HOSTS = [
    # host                       status
    (HERE,                        200),
    (f"localhost:{PORT}",         200),
    (f"LOCALHOST:{PORT}",         200),
    (f"[::1]:{PORT}",             200),
    ("127.0.0.1",                 421),   # without the port
    (f"127.0.0.1:{PORT + 1}",     421),
    (f"127.0.0.2:{PORT}",         421),
    (f"evil.example:{PORT}",      421),   # rebinding
    (f"localhost.evil:{PORT}",    421),
    (f"evil.localhost:{PORT}",    421),
    (f"127.0.0.1.nip.io:{PORT}",  421),
    (f"me@127.0.0.1:{PORT}",      421),
    (f"{HERE} ",                  200),   # HTTP lets blanks stand around a value
    ("",                          421),   # no Host at all
]  # fmt: skip


@pytest.mark.parametrize(("host", "status"), HOSTS)
def test_only_the_own_host_is_answered(host: str, status: int) -> None:
    answer = Door().ask(headers={"host": host})
    assert (answer.status, answer.text) == (status, "/ 0" if status == 200 else f"{WRONG_HOST}\n")


def test_a_server_at_all_addresses_is_asked_by_the_address_of_the_connection() -> None:
    door = Door(listen=Listen("0.0.0.0", PORT, password=PASSWORD, names=("build.example.org",)))

    def status(host: str) -> int:
        return door.ask(headers={"host": host}, server="192.0.2.1").status

    assert status(f"192.0.2.1:{PORT}") == 200
    assert status(f"build.example.org:{PORT}") == 200
    assert status(f"192.0.2.2:{PORT}") == 421
    assert status(f"localhost:{PORT}") == 421


SITES = [
    # method    what a browser adds                                                                             status
    ("GET",     {},                                                                                             200),
    ("GET",     {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},         200),
    ("GET",     {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"},                                    200),
    ("GET",     {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},   200),  # a link leads here
    ("GET",     {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},     403),
    ("GET",     {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"},      403),
    ("GET",     {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},       403),
    ("GET",     {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},                                      403),  # another port
    ("GET",     {"origin": "http://localhost:3000"},                                                            403),
    ("GET",     {"origin": "null"},                                                                             403),
    ("POST",    {"origin": OWN, "sec-fetch-site": "same-origin"},                                               200),
    ("POST",    {"origin": OWN},                                                                                200),
    ("POST",    {"origin": OWN, "sec-fetch-site": "cross-site"},                                                403),
    ("POST",    {"origin": "http://evil.example"},                                                              403),
    ("POST",    {"origin": f"https://{HERE}"},                                                                  403),  # another scheme
    ("POST",    {"origin": f"http://localhost:{PORT}"},                                                         403),  # not the Host
    ("POST",    {"origin": "null"},                                                                             403),  # a sandboxed frame
    ("POST",    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},   403),  # a form elsewhere
    ("DELETE",  {"origin": "http://evil.example"},                                                              403),
]  # fmt: skip


@pytest.mark.parametrize(("method", "headers", "status"), SITES)
def test_another_site_can_only_lead_a_person_here(
    method: str, headers: dict[str, str], status: int
) -> None:
    answer = Door().ask(method=method, headers=headers)
    assert (answer.status, answer.text) == (status, "/ 0" if status == 200 else f"{OTHER}\n")


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_cookie_alone_changes_nothing(method: str) -> None:
    answer = Door().ask(method=method)
    assert (answer.status, answer.text) == (403, f"{NEEDS_ORIGIN}\n")


def test_a_bearer_token_of_another_site_is_refused_too() -> None:
    door = Door()
    headers = {"authorization": f"Bearer {door.access.token}"}
    assert door.ask(method="POST", headers=headers, known=False).status == 200
    headers["origin"] = "http://evil.example"
    assert door.ask(method="POST", headers=headers, known=False).status == 403


TARGETS = [
    # target                    status
    ("/runs/a%20b",              200),
    ("/runs/%C3%A4",             200),
    ("//evil.example/",          400),
    ("http://evil.example/",     400),
    ("*",                        400),
    ("/../etc/passwd",           400),
    ("/a/%2e%2e/b",              400),
    ("/a/%2E%2E%2Fb",            400),
    ("/a%5c..%5cb",              400),
    ("/a%00b",                   400),
    ("/a%0d%0aset-cookie:x",     400),
    ("/a%e2%80%aeb",             400),   # turns the text around
    ("/" + "a" * 9000,           414),
    ("/?" + "a" * 9000,          414),
]  # fmt: skip


@pytest.mark.parametrize(("target", "status"), TARGETS)
def test_an_address_is_plain(target: str, status: int) -> None:
    assert Door().ask(target).status == status


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "CONNECT", "PUT", "PATCH", "BREW"])
def test_other_methods_are_refused(method: str) -> None:
    answer = Door().ask(method=method, headers={"origin": OWN})
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, POST, DELETE")


# ── coming in ────────────────────────────────────────────────────────────


def test_a_link_works_once_and_leaves_no_token_in_the_address() -> None:
    door = Door()
    link = f"/runs/7?filter=a+b&token={door.access.make_link_token()}"
    first = door.ask(link, known=False)
    assert (first.status, first.headers["location"]) == (303, "/runs/7?filter=a+b")
    assert first.headers["set-cookie"].endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert door.ask(headers={"cookie": f"a=b; {first.cookie}"}, known=False).status == 200
    assert door.ask(link, known=False).status == 401
    again = door.ask(link, headers={"cookie": first.cookie}, known=False)  # the own back button
    assert (again.status, again.headers["location"]) == (303, "/runs/7?filter=a+b")


def test_a_browser_that_looks_ahead_does_not_use_the_link_up() -> None:
    door = Door()
    link = f"/?token={door.access.make_link_token()}"
    assert door.ask(link, headers={"sec-purpose": "prefetch"}, known=False).status == 403
    assert door.ask(link, method="HEAD", known=False).status == 401
    assert door.ask(link, known=False).status == 303


def test_old_links_and_cookies_are_dropped() -> None:
    door = Door()
    first = door.access.make_link_token()
    for _ in range(16):
        last = door.access.make_link_token()
    assert not door.access.use_link_token(first)
    assert door.access.use_link_token(last)
    cookie = door.access.make_cookie()
    for _ in range(1000):
        door.access.make_cookie()
    assert not door.access.knows_cookie([f"plait-test={cookie}"])


UNKNOWN: list[dict[str, str]] = [
    {},
    {"cookie": "plait-test="},
    {"cookie": "plait-test=guess"},
    {"authorization": "Bearer guess"},
    {"authorization": "Bearer "},
    {"authorization": "Basic Z3Vlc3M="},
    {"authorization": "guess"},
]


@pytest.mark.parametrize("headers", UNKNOWN)
def test_other_users_are_refused(headers: dict[str, str]) -> None:
    answer = Door().ask(headers=headers, known=False)
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")


def test_a_cookie_of_another_start_is_worth_nothing() -> None:
    cookie = f"plait-test={Door().access.make_cookie()}"
    assert Door().ask(headers={"cookie": cookie}, known=False).status == 401


def test_only_public_files_need_no_cookie() -> None:
    door = Door(public=("/static/plait.css",))
    assert door.ask("/static/plait.css", known=False).status == 200
    assert door.ask("/static/plait.css", method="POST", known=False).status == 401
    assert door.ask("/static/plait.css/", known=False).status == 401
    assert door.ask("/static/other.css", known=False).status == 401


def test_a_person_gets_a_page_and_a_program_a_line() -> None:
    page = Door().ask(headers={"accept": "text/html,*/*"}, known=False)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert '<html lang="en">' in page.text
    assert "Try again" in page.text
    line = Door().ask(known=False)
    assert line.headers["content-type"] == "text/plain; charset=utf-8"
    assert (
        line.text
        == "open the link that the server printed; Enter in its terminal prints a new one\n"
    )


# ── passwords ────────────────────────────────────────────────────────────


def with_password(**how: Any) -> Door:
    return Door(listen=Listen("192.0.2.1", PORT, password=PASSWORD), **how)


FORM = {"host": f"192.0.2.1:{PORT}", "origin": f"http://192.0.2.1:{PORT}"}


def log_in(door: Door, password: str, headers: dict[str, str] = FORM) -> Any:
    body = f"password={password.replace(' ', '+')}".encode()
    return door.ask("/login", "POST", headers, [body], known=False)


def test_a_password_opens_the_door() -> None:
    door = with_password()
    assert door.access.token is None
    page = door.ask(headers={**FORM, "origin": "", "accept": "text/html"}, known=False)
    assert (page.status, '<form method="post" action="/login">' in page.text) == (401, True)
    answer = log_in(door, PASSWORD)
    assert (answer.status, answer.headers["location"]) == (303, "/")
    assert door.ask(headers={**FORM, "cookie": answer.cookie}, known=False).status == 200
    bearer = {**FORM, "authorization": f"Bearer {PASSWORD}"}
    assert door.ask(headers=bearer, known=False).status == 200


def test_a_link_does_not_replace_a_password() -> None:
    door = with_password()
    token = door.access.make_link_token()
    assert door.ask(f"/?token={token}", headers=FORM, known=False).status == 401


def test_passwords_cannot_be_guessed_for_long() -> None:
    now = 0.0
    door = with_password(clock=lambda: now)
    statuses = [log_in(door, f"guess {number}").status for number in range(9)]
    bearer = {**FORM, "authorization": "Bearer guess"}
    statuses.append(door.ask(headers=bearer, known=False).status)
    assert statuses == [401] * 10
    assert log_in(door, PASSWORD).status == 429
    assert (
        door.ask(headers={**FORM, "authorization": f"Bearer {PASSWORD}"}, known=False).status == 429
    )
    assert door.ask(headers=FORM).status == 200  # who is in stays in
    now = 61.0
    assert log_in(door, PASSWORD).status == 303


def test_guesses_at_the_same_time_are_counted_too() -> None:
    door, all_wait = with_password(), asyncio.Barrier(30)

    async def guess() -> int:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/login",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in FORM.items()],
            "client": ("192.0.2.7", 50000),
        }
        found: list[int] = []

        async def receive() -> Any:
            async with asyncio.timeout(10):
                await all_wait.wait()  # each request has begun before the first body comes
            return {"type": "http.request", "body": b"password=guess"}

        async def send(message: Any) -> None:
            found.append(message.get("status", 0))

        await door.guard(scope, receive, send)
        return found[0]

    async def guess_all() -> list[int]:
        return await asyncio.gather(*(guess() for _ in range(30)))

    assert sorted(asyncio.run(guess_all())) == [401] * 10 + [429] * 20


def test_a_form_of_another_site_cannot_log_in() -> None:
    door = with_password()
    assert log_in(door, PASSWORD, {**FORM, "origin": "http://evil.example"}).status == 403
    assert log_in(door, PASSWORD, {**FORM, "origin": ""}).status == 403


def test_a_login_is_small() -> None:
    assert log_in(with_password(), "x" * 5000).status == 413


def test_over_tls_the_cookie_is_secure() -> None:
    door = Door(listen=Listen(port=PORT, tls=Tls("cert.pem", "key.pem")))
    answer = door.ask(f"/?token={door.access.make_link_token()}", known=False)
    assert answer.headers["set-cookie"].endswith("; Secure")
    assert door.ask(method="POST", headers={"origin": f"https://{HERE}"}).status == 200
    assert door.ask(method="POST", headers={"origin": OWN}).status == 403


# ── sizes and times ──────────────────────────────────────────────────────

SMALL = Limits(body=10, headers=1000, header_fields=20, streams=0, body_seconds=0.0)


def test_a_body_is_bounded() -> None:
    door = Door(limits=Limits(body=10))
    own = {"origin": OWN}
    assert door.ask(method="POST", headers=own, body=[b"12345", b"67890"]).text == "/ 10"
    answer = door.ask(method="POST", headers=own, body=[b"12345", b"67890", b"1"])
    assert (answer.status, answer.text) == (413, "the body has more than 10 bytes\n")
    assert answer.headers["connection"] == "close"
    for length in ("11", "99999999999999999999", "-1", "1e9"):
        assert door.ask(method="POST", headers={**own, "content-length": length}).status == 413
    assert door.bugs == []


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    class Late(list[bytes]):
        """One piece, and the promise of another."""

        def __len__(self) -> int:
            return 2

    door = Door(limits=Limits(body_seconds=0.05))
    answer = door.ask(method="POST", headers={"origin": OWN}, body=Late([b"1"]))
    assert (answer.status, answer.text) == (408, "the body did not arrive in time\n")
    assert door.bugs == []


def test_headers_are_bounded() -> None:
    door = Door(limits=Limits(headers=500, header_fields=20))
    assert door.ask(headers={"x": "1" * 500}).status == 431
    assert door.ask(headers={f"x{number}": "1" for number in range(20)}).status == 431


def test_event_streams_are_counted() -> None:
    answer = Door(limits=Limits(streams=0)).ask("/events")
    assert (answer.status, answer.text) == (503, "too many pages follow runs: close some\n")
    door = Door(limits=Limits(streams=1))
    assert [door.ask("/events").status for _ in range(3)] == [200] * 3  # each ends before the next


# ── what goes out ────────────────────────────────────────────────────────

SAFE = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@pytest.mark.parametrize("host", [HERE, "evil.example"])
def test_every_response_has_the_safe_headers(host: str) -> None:
    headers = Door().ask(headers={"host": host}).headers
    assert {name: headers.get(name) for name in SAFE} == SAFE
    assert not {"server", "access-control-allow-origin"} & headers.keys()


def test_a_bug_of_the_app_is_reported_and_not_shown() -> None:
    async def broken(_scope: Any, _receive: Any, _send: Any) -> None:
        raise ValueError("secret")

    door = Door(app=broken)
    answer = door.ask()
    assert (answer.status, answer.text) == (500, "this is a bug of Plait; the server says where\n")
    assert [str(bug) for bug in door.bugs] == ["secret"]


def test_no_secret_is_in_an_answer() -> None:
    door = Door()
    token, link = str(door.access.token), door.access.make_link_token()
    wrong = {"host": "evil.example", "authorization": f"Bearer {token}", "accept": "text/html"}
    for answer in (
        door.ask(f"/?token={link}", headers=wrong, known=False),
        door.ask(f"/?token={link}x", headers={"accept": "text/html"}, known=False),
        door.ask(headers={"authorization": f"Bearer {token}x"}, known=False),
    ):
        assert token not in answer.text + str(answer.headers)
        assert link not in answer.text + str(answer.headers)


def test_a_web_socket_is_closed() -> None:
    import asyncio

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    asyncio.run(Door(app=echo).guard({"type": "websocket"}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
