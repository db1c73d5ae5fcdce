"""Seals prove that this user's Plait wrote a text on this machine.

Plait seals what it writes into a project and believes later: the facts of a run, a cached result.
Everything else in a project may have come with a clone or an archive, and is not believed.

The key is random and made on first use. It is in the user space, in a file that only its owner can
read. A user space that may have come with the project makes no seals, and its seals do not hold.
"""

from __future__ import annotations

import os
from contextlib import suppress

from plait.core.digests import sha256
from plait.core.errors import TrustError
from plait.core.hints import Final
from plait.core.private_files import (
    ABSENT,
    damaged_file_error,
    lock_folder,
    read_private,
    require_private_folder,
    write_atomic,
)
from plait.tools.trust.user_space import account_home, foreign_fix, foreign_place

NAME: Final = "seal.key"
KEY_BYTES: Final = 32
BLOCK: Final = 64
"""The block size of SHA-256 in bytes, to which HMAC pads its key."""


class Seals:
    """The seals of one user in the folder `project`."""

    def __init__(self, user: str, project: str, *, home: str | None = None) -> None:
        self._folder = os.path.join(user, "trust")
        self._foreign = foreign_place(user, os.path.realpath(project), home or account_home())
        self._key: bytes | None = None

    def make(self, text: str) -> str:
        """The seal of a text. Raises TrustError if there is no key and none can be made."""
        self._require_own()
        key = self._load_key()
        if key is None:
            with lock_folder(self._folder):
                key = self._load_key()  # another process may have made it meanwhile
                if key is None:
                    key = os.urandom(KEY_BYTES)
                    write_atomic(self._folder, NAME, key.hex().encode())
        return _hmac(key, text)

    def holds(self, text: str, seal: str) -> bool:
        """Did this user seal this text? Raises TrustError if the user space is not believed."""
        self._require_own()
        key = self._load_key()
        # Digests are compared, so that the time reveals nothing about the seal.
        return key is not None and _digest(_hmac(key, text)) == _digest(seal)

    @property
    def viewer(self) -> str:
        """Names whose seals hold here and tells nothing of the key; empty if none does."""
        with suppress(TrustError, OSError):
            key = None if self._foreign else self._load_key()
            return "" if key is None else _hmac(key, "plait viewer")[:16]
        return ""

    def _require_own(self) -> None:
        if self._foreign:
            raise TrustError(
                f"the user space lies {self._foreign} this project, which cannot vouch for itself",
                self._folder,
                foreign_fix(self._foreign),
                code="foreign-store",
            )

    def _load_key(self) -> bytes | None:
        if self._key is None:
            path = os.path.join(self._folder, NAME)
            try:
                written = read_private(path, secret=True)
                require_private_folder(self._folder)
            except ABSENT:
                return None
            try:
                key = bytes.fromhex(written.decode("ascii"))
            except ValueError:
                raise damaged_file_error(path) from None
            if len(key) != KEY_BYTES:
                raise damaged_file_error(path)
            self._key = key
        return self._key


def _hmac(key: bytes, text: str) -> str:
    """RFC 2104 with SHA-256. The module `hmac` loads OpenSSL, which takes much longer."""
    padded = key.ljust(BLOCK, b"\0")
    inner = sha256(
        bytes(byte ^ 0x36 for byte in padded) + text.encode("utf-8", "surrogatepass")
    ).digest()
    return sha256(bytes(byte ^ 0x5C for byte in padded) + inner).hexdigest()


def _digest(seal: str) -> bytes:
    return sha256(seal.encode("utf-8", "surrogatepass")).digest()
