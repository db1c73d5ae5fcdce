"""The user's private keys: a file for each that nobody else can read, closed with a passphrase if you like.

A key is never written over another, and a file that was tampered with is
refused: what is opened has the public half that stands beside it.
"""

from __future__ import annotations

import json
import os
import re
from typing import Final

from plait.errors import InputError
from plait.records import dataclass
from plait.tools.private_files import (
    ABSENT,
    attempt,
    damaged,
    make_own_folder,
    read_own_json,
    sync_folder,
    write_new,
)
from plait.tools.signing import PrivateKey, fingerprint_of, is_key
from plait.values import Json, Secret

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Effort:
    """What it costs to try one passphrase; the default takes about a second and 256 MiB."""

    operations: int = 3
    memory: int = 256 << 20


class KeyFolder:
    """Private keys in `<user space>/keys`."""

    FORMAT: Final = "plait.key.v1"

    def __init__(self, user: str) -> None:
        self.root = os.path.join(user, "keys")

    def names(self) -> tuple[str, ...]:
        try:
            files = sorted(os.listdir(self.root))
        except ABSENT:
            return ()
        return tuple(name.removesuffix(".key") for name in files if name.endswith(".key"))

    def create(
        self, name: str = "signing", *, passphrase: Secret | None = None, effort: Effort | None = None
    ) -> PrivateKey:
        """A new key, closed with the passphrase if there is one; never over an old one."""
        key = PrivateKey.generate()
        closed = _closed(key, passphrase, effort or Effort())
        record = {"format": self.FORMAT, "public": key.public.hex(), **closed}
        path = self._path(name)
        make_own_folder(self.root)
        try:
            write_new(path, json.dumps(record, indent=1).encode() + b"\n")
        except FileExistsError:
            raise InputError(
                f"there is a key '{name}' already", path, "give the new one another name", code="key-exists"
            ) from None
        sync_folder(self.root)
        return key

    def open(self, name: str = "signing", *, passphrase: Secret | None = None) -> PrivateKey:
        path = self._path(name)
        record = self._record(name)
        key = _opened(record, passphrase, path)
        if key.public.hex() != record.get("public"):
            raise damaged(path)
        return key

    def public(self, name: str = "signing") -> bytes:
        """The public half of a key; it needs no passphrase."""
        match self._record(name):
            case {"public": str(public)} if is_key(public):
                return bytes.fromhex(public)
        raise damaged(self._path(name))

    def succeed(self, name: str, successor: str) -> str:
        """Give a key's name to its successor; the name under which the old one is kept."""
        kept = f"{name}-until-{fingerprint_of(self.public(successor))[:8]}"
        attempt(lambda: os.rename(self._path(name), self._path(kept)), self.root)
        attempt(lambda: os.rename(self._path(successor), self._path(name)), self.root)
        sync_folder(self.root)
        return kept

    def _record(self, name: str) -> Json:
        path = self._path(name)
        try:
            return read_own_json(path, secret=True)
        except ABSENT:
            fix = "make one: plait keys new"
            raise InputError(f"there is no key '{name}'", path, fix, code="no-key") from None

    def _path(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            what = "a key's name is letters, digits, '_' and '-'"
            raise InputError(what, fix="for example signing", code="bad-name")
        return os.path.join(self.root, f"{name}.key")


def _closed(key: PrivateKey, passphrase: Secret | None, effort: Effort) -> dict[str, Json]:
    if passphrase is None:
        return {"seed": key.seed.hex()}
    from nacl.pwhash import argon2id
    from nacl.secret import SecretBox
    from nacl.utils import random

    salt = random(argon2id.SALTBYTES)
    box = SecretBox(_stretched(passphrase, salt, effort)).encrypt(key.seed)
    return {
        "salt": salt.hex(),
        "operations": effort.operations,
        "memory": effort.memory,
        "box": bytes(box).hex(),
    }


def _opened(record: Json, passphrase: Secret | None, path: str) -> PrivateKey:
    try:
        match record:
            case {"format": KeyFolder.FORMAT, "seed": str(seed)} if len(seed) == 64:
                return PrivateKey(bytes.fromhex(seed))
            case {
                "format": KeyFolder.FORMAT,
                "salt": str(salt),
                "operations": int(operations),
                "memory": int(memory),
                "box": str(box),
            }:
                return _unboxed(
                    bytes.fromhex(box), bytes.fromhex(salt), Effort(operations, memory), passphrase, path
                )
    except ValueError:
        raise damaged(path) from None
    raise damaged(path)


def _unboxed(box: bytes, salt: bytes, effort: Effort, passphrase: Secret | None, path: str) -> PrivateKey:
    from nacl.exceptions import CryptoError
    from nacl.secret import SecretBox

    if passphrase is None:
        raise InputError("this key needs its passphrase", path, "type it when asked", code="passphrase")
    try:
        return PrivateKey(SecretBox(_stretched(passphrase, salt, effort)).decrypt(box))
    except CryptoError:
        what = "that is not the passphrase of this key"
        raise InputError(what, path, "try again", code="passphrase") from None


def _stretched(passphrase: Secret, salt: bytes, effort: Effort) -> bytes:
    from nacl.pwhash import argon2id

    return argon2id.kdf(32, passphrase.reveal().encode(), salt, effort.operations, effort.memory)
