"""Open connections: only to checked addresses, and before a deadline.

A host name is looked up once, all its addresses are checked, and the socket is opened to one of
them. There is no second look-up, so a name cannot move to another machine after the check.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from threading import Thread

from plait.core.errors import RequestError
from plait.core.hints import Final, TypeAlias
from plait.core.records import dataclass

Resolve: TypeAlias = Callable[[str], Sequence[str]]
"""Returns the numeric addresses of a host name; raises `OSError` if it has none."""

Dial: TypeAlias = Callable[[str, int, float], socket.socket]
"""Returns a connected socket for a numeric address, a port and seconds; otherwise raises `OSError`.
"""

# Seconds for one address: a silent one must not use up the time of the call.
ADDRESS_PATIENCE: Final = 10.0

# Seconds: a socket does not accept arbitrarily long timeouts.
LONGEST_WAIT: Final = 86_400.0

NAT64: Final = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of a call, whatever it is doing."""

    at: float
    clock: Callable[[], float]

    @property
    def remaining(self) -> float:
        return self.at - self.clock()

    def require_time_left(self) -> float:
        """Return the seconds left; raise a RequestError if there are none."""
        if (seconds := self.remaining) <= 0:
            raise timeout_error()
        return min(seconds, LONGEST_WAIT)


def timeout_error() -> RequestError:
    return RequestError(
        "the time limit passed before the answer was complete",
        fix="raise `timeout`, or find out why the server is slow",
        code="deadline",
    )


def look_up(host: str) -> list[str]:
    """The addresses of a name, without repetition."""
    return _addresses(host, flags=0)


def dial(address: str, port: int, seconds: float) -> socket.socket:
    return socket.create_connection((address, port), timeout=seconds)


@dataclass(frozen=True, slots=True)
class Dialler:
    """Opens sockets to any address, or to public ones only."""

    resolve: Resolve
    dial: Dial
    public_only: bool

    def connect(self, host: str, port: int, deadline: Deadline) -> socket.socket:
        addresses = _parse_numeric_host(host) or _resolve_host(self.resolve, host, deadline)
        if self.public_only:
            _require_public(addresses)
        return self._reach(addresses, port, deadline)

    def _reach(self, addresses: Sequence[str], port: int, deadline: Deadline) -> socket.socket:
        why = "its name has no address"
        for address in addresses:
            try:
                return self.dial(address, port, min(deadline.require_time_left(), ADDRESS_PATIENCE))
            except OSError as error:
                why = _reason(error)
        deadline.require_time_left()
        raise RequestError(
            f"the host cannot be reached: {why}",
            fix="check host and port, and that the server runs",
            code="unreachable",
        )


def not_public(address: str) -> str | None:
    """Why an address is not on the public internet; None if it is."""
    parsed = ip_address(address)
    inner = _inner_ipv4(parsed) if isinstance(parsed, IPv6Address) else None
    return _kind(inner or parsed)


def _inner_ipv4(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that packets to an IPv6 address finally reach."""
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def _kind(address: IPv4Address | IPv6Address) -> str | None:
    if address.is_unspecified:
        return "unspecified"
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if address.is_multicast:
        return "multicast"
    if address.is_private:
        return "private"
    # Neither private nor global: the space that providers share (100.64.0.0/10).
    if not address.is_global:
        return "shared"
    if address.is_reserved or (isinstance(address, IPv6Address) and address.is_site_local):
        return "reserved"
    return None


def _require_public(addresses: Sequence[str]) -> None:
    # One bad address refuses the name: the name server decides which address a later attempt gets.
    kinds = dict.fromkeys(kind for address in addresses if (kind := not_public(address)))
    if kinds:
        raise RequestError(
            f"the host has a {' and a '.join(kinds)} address, where a URL that comes from data may "
            "not lead",
            fix="write scheme and host in the tool's own file if this place is meant",
            code="address-refused",
        )


def _parse_numeric_host(host: str) -> list[str]:
    """`127.1`, `2130706433`, `0x7f000001`, `::1`: addresses, read as `connect` would read them."""
    try:
        return _addresses(host, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return []


def _resolve_host(resolve: Resolve, host: str, deadline: Deadline) -> Sequence[str]:
    # A look-up cannot be interrupted, so it runs in a thread for which we need not wait.
    found: Future[Sequence[str]] = Future()
    Thread(target=_settle, args=(found, resolve, host), name="plait-look-up", daemon=True).start()
    try:
        return found.result(timeout=deadline.require_time_left())
    except TimeoutError:
        raise timeout_error() from None
    except (OSError, UnicodeError) as error:
        # A name server that does not answer may answer later, so `unreachable` is retried.
        is_temporary = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
        raise RequestError(
            "the host name cannot be looked up just now"
            if is_temporary
            else "the host name does not exist",
            fix="check the network and its name server"
            if is_temporary
            else "check the spelling of the host",
            code="unreachable" if is_temporary else "name-not-found",
        ) from None


def _settle(found: Future[Sequence[str]], resolve: Resolve, host: str) -> None:
    try:
        found.set_result(resolve(host))
    except (OSError, UnicodeError) as error:
        found.set_exception(error)


def _addresses(host: str, *, flags: int) -> list[str]:
    entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys(_digits(*entry[4][:1], *entry[4][3:4]) for entry in entries))


def _digits(address: str | int, scope: str | int = 0) -> str:
    # A link-local address means nothing without its interface.
    return f"{address}%{scope}" if scope and "%" not in str(address) else str(address)


def _reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return os.strerror(error.errno).lower() if error.errno else "the connection failed"
