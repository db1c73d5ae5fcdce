"""Where a server listens, and what that needs: a password and TLS beyond this machine.

The password comes from a file or from the environment, never from the command line, which every
user of the machine can read.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence
from ipaddress import ip_address
from socket import gethostname

from plait.core.errors import InputError, Problem
from plait.core.hints import Final
from plait.core.private_files import read_private
from plait.core.records import dataclass

LOOPBACK: Final = "127.0.0.1"
LEAST_PASSWORD: Final = 12
PASSWORD_VARIABLE: Final = "PLAIT_PASSWORD"
_LARGEST_PORT: Final = 65535


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM form."""

    certificate: str
    key: str


@dataclass(frozen=True, slots=True)
class Listen:
    """Made by `make_listen`, which refuses what is not safe."""

    host: str = LOOPBACK
    """An address, never a name."""
    port: int = 0
    """0: any free one."""
    tls: Tls | None = None
    password: str | None = None
    """None: a token of this start is enough."""
    names: Sequence[str] = ()
    """Names under which clients reach the server, beside its address."""

    @property
    def is_loopback(self) -> bool:
        return ip_address(self.host).is_loopback

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"


def parse_address(text: str) -> tuple[str, int]:
    """Read `PORT`, `HOST:PORT` or `[ADDRESS]:PORT`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise _bad_address(text)
    if colon and not host:
        raise _bad_address(text)
    if not (port.isascii() and port.isdigit() and int(port) <= _LARGEST_PORT):
        raise _bad_address(text)
    return parse_host(host or LOOPBACK), int(port)


def parse_host(text: str) -> str:
    """An address; `localhost` is one, too."""
    if text == "localhost":
        return LOOPBACK
    try:
        return str(ip_address(text))
    except ValueError:
        what = f"'{text[:100]}' is not an address of this machine"
        fix = "give an IP address, as 127.0.0.1 or ::1; --name gives the server a name"
        raise InputError(what, fix=fix, code="bad-address") from None


def make_listen(
    host: str,
    port: int,
    *,
    tls_certificate: str | None = None,
    tls_key: str | None = None,
    insecure: bool = False,
    password_file: str | None = None,
    names: Sequence[str] = (),
    environment: MutableMapping[str, str] = os.environ,
) -> Listen:
    """Everything together; InputError names all that is missing.

    The variable with the password is removed, so that no process of a run gets it.
    """
    from_environment = environment.pop(PASSWORD_VARIABLE, None)
    password = _read_password(password_file) if password_file else from_environment
    problems: list[Problem] = []
    if password is not None and len(password) < LEAST_PASSWORD:
        what = f"the password has less than {LEAST_PASSWORD} characters"
        problems.append(Problem(what, fix="make one: openssl rand -base64 24", code="bad-password"))
    if bool(tls_certificate) != bool(tls_key):
        what = "TLS needs a certificate and its key"
        problems.append(Problem(what, fix="give --tls-cert and --tls-key", code="bad-tls"))
    if not ip_address(host).is_loopback:
        if not tls_certificate and not insecure:
            what = f"{host} can be reached from other machines, and without TLS they can read all"
            fix = "give --tls-cert and --tls-key; or --insecure, if the network is yours alone"
            problems.append(Problem(what, fix=fix, code="tls-needed"))
        if password is None:
            what = f"{host} can be reached from other machines, so it needs a password"
            fix = f"write one into a file (--password-file), or into {PASSWORD_VARIABLE}"
            problems.append(Problem(what, fix=fix, code="password-needed"))
    problems += [problem for name in names if (problem := _bad_name(name))]
    if problems:
        raise InputError.together(problems)
    tls = Tls(tls_certificate, tls_key) if tls_certificate and tls_key else None
    if ip_address(host).is_unspecified and not _bad_name(gethostname()):
        names = [*names, gethostname()]  # an address of everything is not one to type
    return Listen(host, port, tls, password, tuple(name.lower() for name in names))


def _read_password(path: str) -> str:
    """The first line of a file that only its owner can read."""
    try:
        data = read_private(path, secret=True)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            "there is no such file", path, "check --password-file", code="no-file"
        ) from None
    try:
        return data.decode("utf-8").partition("\n")[0].rstrip("\r")
    except UnicodeDecodeError:
        what, fix = "the password is not UTF-8", "write it as text"
        raise InputError(what, path, fix, code="not-utf-8") from None


def _bad_name(name: str) -> Problem | None:
    labels = name.lower().split(".")
    if all(
        label and all((one.isalnum() and one.isascii()) or one == "-" for one in label)
        for label in labels
    ):
        return None
    fix = "give a name without port, as build.example.org"
    return Problem(f"'{name[:100]}' is not the name of a machine", fix=fix, code="bad-address")


def _bad_address(text: str) -> InputError:
    what = f"'{text[:100]}' is not an address to listen at"
    return InputError(what, fix="write PORT, HOST:PORT or [ADDRESS]:PORT", code="bad-address")
