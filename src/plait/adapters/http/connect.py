"""A connection goes to an address that was judged, before a moment that was fixed.

A host name is looked up once, every address it has is judged, and the socket is
opened to one of those very addresses: nobody asks the name server again in
between, so a name cannot move to another machine after the check.
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
"""Host name → its addresses in digits; `OSError` when it has none."""

Dial: TypeAlias = Callable[[str, int, float], socket.socket]
"""Address in digits, port, seconds → a connected socket; `OSError` when nobody answers."""

# One silent address of several must not use up the time of the whole call.
ADDRESS_PATIENCE: Final = 10.0

# A socket cannot be told to wait for ever and a day.
LONGEST_WAIT: Final = 86_400.0

NAT64: Final = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment at which a call ends, whatever it is doing."""

    at: float
    clock: Callable[[], float]

    @property
    def remaining(self) -> float:
        return self.at - self.clock()

    def require_time_left(self) -> float:
        """Seconds that may still be waited; at the deadline, the error."""
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
    """The addresses of a name, as the system knows them, without repetition."""
    return _addresses(host, flags=0)


def dial(address: str, port: int, seconds: float) -> socket.socket:
    return socket.create_connection((address, port), timeout=seconds)


@dataclass(frozen=True, slots=True)
class Dialler:
    """Opens sockets, under one policy: to any address, or to public ones only."""

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
    """Why an address is no place of the public internet; None when it is one."""
    place = ip_address(address)
    inner = _inner_ipv4(place) if isinstance(place, IPv6Address) else None
    return _kind(inner or place)


def _inner_ipv4(place: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for: packets go there in the end."""
    if place in NAT64:
        return IPv4Address(int(place) & 0xFFFFFFFF)
    return place.ipv4_mapped or place.sixtofour


def _kind(place: IPv4Address | IPv6Address) -> str | None:
    if place.is_unspecified:
        return "unspecified"
    if place.is_loopback:
        return "loopback"
    if place.is_link_local:
        return "link-local"
    if place.is_multicast:
        return "multicast"
    if place.is_private:
        return "private"
    # What is neither private nor global is the space that providers share (100.64.0.0/10).
    if not place.is_global:
        return "shared"
    if place.is_reserved or (isinstance(place, IPv6Address) and place.is_site_local):
        return "reserved"
    return None


def _require_public(addresses: Sequence[str]) -> None:
    # One bad address refuses the name: which one a later attempt takes is the name server's choice.
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
    # A look-up cannot be interrupted: it gets a thread of its own, for which we wait no longer than
    # we may.
    found: Future[Sequence[str]] = Future()
    Thread(target=_settle, args=(found, resolve, host), name="plait-look-up", daemon=True).start()
    try:
        return found.result(timeout=deadline.require_time_left())
    except TimeoutError:
        raise timeout_error() from None
    except (OSError, UnicodeError) as error:
        # A name server that has no answer just now may have one later; a name that does not exist
        # stays so.
        for_now = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
        raise RequestError(
            "the host name cannot be looked up just now"
            if for_now
            else "the host name does not exist",
            fix="check the network and its name server"
            if for_now
            else "check the spelling of the host",
            code="unreachable" if for_now else "name-not-found",
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
        return "nobody answers there"
    return os.strerror(error.errno).lower() if error.errno else "the connection failed"
