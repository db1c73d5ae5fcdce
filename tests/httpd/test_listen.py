"""Where a server may listen, and what it needs there."""

from __future__ import annotations

from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

from plait.core.errors import InputError, PlaitError
from plait.httpd.listen import Listen, Tls, make_listen, parse_address

ADDRESSES = [
    ("8737",              ("127.0.0.1", 8737)),
    ("0",                 ("127.0.0.1", 0)),
    ("localhost:80",      ("127.0.0.1", 80)),
    ("0.0.0.0:8737",      ("0.0.0.0", 8737)),
    ("[::1]:8737",        ("::1", 8737)),
    ("192.0.2.1:65535",   ("192.0.2.1", 65535)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), ADDRESSES)
def test_an_address(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


NO_ADDRESSES = ["", ":", ":8737", "65536", "-1", "a", "127.0.0.1:", "::1:8737", "٣", "1:2:3"]


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_no_address(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_address(text)
    assert str(caught.value) == (
        f"'{text}' is not an address to listen at\nfix: write PORT, HOST:PORT or [ADDRESS]:PORT"
    )


def test_a_name_is_no_address() -> None:
    with pytest.raises(InputError) as caught:
        parse_address("example.org:80")
    assert str(caught.value) == (
        "'example.org' is not an address of this machine\n"
        "fix: give an IP address, as 127.0.0.1 or ::1; --name gives the server a name"
    )


GOOD = "a password of mine"
REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    # host         how                                                           codes
    ("0.0.0.0",    {},                                                           ["tls-needed", "password-needed"]),
    ("::",         {},                                                           ["tls-needed", "password-needed"]),
    ("192.0.2.1",  {"insecure": True},                                           ["password-needed"]),
    ("192.0.2.1",  {"environment": {"PLAIT_PASSWORD": GOOD}},                    ["tls-needed"]),
    ("192.0.2.1",  {"tls_certificate": "a", "tls_key": "b"},                     ["password-needed"]),
    ("192.0.2.1",  {"insecure": True, "environment": {"PLAIT_PASSWORD": "x"}},   ["bad-password"]),
    ("127.0.0.1",  {"environment": {"PLAIT_PASSWORD": ""}},                      ["bad-password"]),
    ("127.0.0.1",  {"tls_certificate": "a"},                                     ["bad-tls"]),
    ("127.0.0.1",  {"tls_key": "a"},                                             ["bad-tls"]),
    ("127.0.0.1",  {"names": ["a b", "x:80", "", "a..b"]},                       ["bad-address"] * 4),
]  # fmt: skip


@pytest.mark.parametrize(("host", "how", "codes"), REFUSED)
def test_what_is_missing_is_reported_at_once(
    host: str, how: dict[str, Any], codes: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        make_listen(host, 0, **{"environment": {}, **how})
    assert sorted(str(one.code) for one in caught.value.problems) == sorted(codes)
    assert GOOD not in str(caught.value)


def test_the_password_of_the_environment_is_taken_away() -> None:
    environment = {"PLAIT_PASSWORD": GOOD, "HOME": "/"}
    listen = make_listen("192.0.2.1", 80, insecure=True, environment=environment)
    assert (listen.password, environment) == (GOOD, {"HOME": "/"})


def test_a_password_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{GOOD}\r\nmore\n")
    file.chmod(0o600)
    tls = {"tls_certificate": "c", "tls_key": "k"}
    listen = make_listen("192.0.2.1", 80, password_file=str(file), **tls, environment={})  # type: ignore[arg-type]
    assert listen == Listen("192.0.2.1", 80, Tls("c", "k"), GOOD)
    file.chmod(0o644)
    with pytest.raises(PlaitError, match="chmod"):
        make_listen("127.0.0.1", 80, password_file=str(file), environment={})
    file.unlink()
    with pytest.raises(InputError, match="there is no such file"):
        make_listen("127.0.0.1", 80, password_file=str(file), environment={})


def test_a_server_at_all_addresses_is_shown_by_name() -> None:
    environment = {"PLAIT_PASSWORD": GOOD}
    listen = make_listen(
        "0.0.0.0", 80, insecure=True, environment=environment, names=["Build.Example"]
    )
    assert list(listen.names)[:1] == ["build.example"]
    assert set(listen.names) <= {"build.example", gethostname().lower()}
