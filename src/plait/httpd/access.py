"""Who may use a server: one-time links and cookies for browsers, a bearer token for programs.

Every secret is 256 random bits or the password of the user.  Only their digests are kept and looked
up, so the time that a wrong guess takes says nothing about the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterable

from plait.core.hints import Final

MOST_LINKS: Final = 16
"""Links that wait for their visit; the oldest is dropped."""
MOST_COOKIES: Final = 1000
MOST_GUESSES: Final = 10
"""Wrong passwords of one address in a minute."""
_MINUTE: Final = 60.0
_MOST_ADDRESSES: Final = 1000


class Access:
    """The secrets of one start of a server."""

    def __init__(
        self, *, password: str | None, cookie: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cookie = cookie
        """Name of the cookie."""
        self.has_password = password is not None
        self.token = None if password is not None else secrets.token_urlsafe(32)
        """For programs, unless there is a password."""
        self._bearer = _digest(password if password is not None else self.token or "")
        self._links: dict[bytes, None] = {}
        self._cookies: dict[bytes, None] = {}
        self._guesses: dict[str, list[float]] = {}
        self._clock = clock

    # ── browsers ─────────────────────────────────────────────────────────

    def make_link_token(self) -> str:
        """A token that one visit exchanges for a cookie."""
        token = secrets.token_urlsafe(32)
        _keep(self._links, _digest(token), MOST_LINKS)
        return token

    def use_link_token(self, token: str) -> bool:
        """True once for each token that was made."""
        return self._links.pop(_digest(token), False) is None

    def make_cookie(self) -> str:
        value = secrets.token_urlsafe(32)
        _keep(self._cookies, _digest(value), MOST_COOKIES)
        return value

    def knows_cookie(self, headers: Iterable[str]) -> bool:
        """Is a cookie of this start in these `Cookie` headers?"""
        for header in headers:
            for part in header.split(";"):
                name, _, value = part.strip().partition("=")
                if name == self.cookie and _digest(value) in self._cookies:
                    return True
        return False

    def end_cookies(self) -> None:
        """Everybody has to come in again."""
        self._cookies.clear()

    # ── programs, and passwords ──────────────────────────────────────────

    def knows_bearer(self, secret: str) -> bool:
        return hmac.compare_digest(_digest(secret), self._bearer)

    def may_guess(self, address: str) -> bool:
        """False: too many wrong passwords came from there during the last minute."""
        since = self._clock() - _MINUTE
        times = [at for at in self._guesses.get(address, ()) if at > since]
        if times:
            self._guesses[address] = times
        else:
            self._guesses.pop(address, None)
        return len(times) < MOST_GUESSES

    def note_wrong(self, address: str) -> None:
        if address not in self._guesses and len(self._guesses) >= _MOST_ADDRESSES:
            del self._guesses[next(iter(self._guesses))]
        self._guesses.setdefault(address, []).append(self._clock())


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def _keep(kept: dict[bytes, None], digest: bytes, most: int) -> None:
    if len(kept) >= most:
        del kept[next(iter(kept))]
    kept[digest] = None
