"""The user's private keys: one file per key that only the user can read, encrypted if you like.

A key never overwrites another one. A file is refused if its private key does not match the public
key beside it.

A rotation first writes the new key to `NAME.next`, with the statement that both keys have signed.
While that file exists the rotation is not finished, and `rotate` continues it. Wherever it was
interrupted, the name leads to a trusted key.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress

from plait.core.errors import InputError
from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.core.private_files import (
    ABSENT,
    damaged_file_error,
    lock_folder,
    make_private_folder,
    read_private_json,
    sync_folder,
    with_os_errors,
    write_atomic,
    write_new,
)
from plait.core.records import dataclass
from plait.core.values import Json, Secret
from plait.tools.trust.signatures import (
    PrivateKey,
    is_key,
    key_fingerprint,
    read_rotation,
    sign_rotation,
)
from plait.tools.trust.store import Now, TrustStore

_NAME = lazy_pattern(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Effort:
    """The cost to try one passphrase; by default about a second and 256 MiB."""

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
        self,
        name: str = "signing",
        *,
        passphrase: Secret | None = None,
        effort: Effort | None = None,
    ) -> PrivateKey:
        """Make a new key, encrypted if there is a passphrase. Never overwrites a key."""
        key = PrivateKey.generate()
        path = self._path(name)
        make_private_folder(self.root)
        try:
            write_new(path, _encode_record(_encode_key(key, passphrase, effort)))
        except FileExistsError:
            raise InputError(
                f"there is a key '{name}' already",
                path,
                "give the new one another name",
                code="key-exists",
            ) from None
        sync_folder(self.root)
        return key

    def open(self, name: str = "signing", *, passphrase: Secret | None = None) -> PrivateKey:
        path = self._path(name)
        record = self._record(name)
        key = _decode_key(record, passphrase, path)
        if key.public.hex() != record.get("public"):
            raise damaged_file_error(path)
        return key

    def public(self, name: str = "signing") -> bytes:
        """The public key, which needs no passphrase."""
        match self._record(name):
            case {"public": str(public)} if is_key(public):
                return bytes.fromhex(public)
        raise damaged_file_error(self._path(name))

    # ── rotation ─────────────────────────────────────────────────────────

    def begin_rotation(
        self,
        name: str,
        statement_about: Callable[[PrivateKey], bytes],
        *,
        passphrase: Secret | None = None,
        effort: Effort | None = None,
    ) -> bytes:
        """Write a new key and the statement about it, until `end_rotation`."""
        key = PrivateKey.generate()
        statement = statement_about(key)
        record = {**_encode_key(key, passphrase, effort), "rotation": statement.decode()}
        write_atomic(self.root, f"{name}.next", _encode_record(record))
        return statement

    def rotation(self, name: str) -> bytes | None:
        """The statement of an unfinished rotation, or None."""
        record = self._next(name)
        return None if record is None else record["rotation"].encode()

    def exchange(self, name: str, reached: Callable[[str], None]) -> str:
        """Give the name to the new key; may be repeated. Returns the new name of the old key."""
        record = self._next(name)
        if record is None:
            raise damaged_file_error(self._path(name))
        kept = f"{name}-until-{key_fingerprint(bytes.fromhex(record['public']))[:8]}"
        if self.public(name).hex() != record["public"]:
            with suppress(FileExistsError):
                # The old key gets its second name first, so that it always has one.
                with_os_errors(
                    lambda: os.link(self._path(name), self._path(kept)),
                    self.root,
                    passing=(FileExistsError,),
                )
            reached("kept")
            key = {field: value for field, value in record.items() if field != "rotation"}
            write_atomic(self.root, f"{name}.key", _encode_record(key))
        return kept

    def end_rotation(self, name: str) -> None:
        """Finish the rotation, after the caller has published the statement."""
        with suppress(FileNotFoundError):
            os.unlink(self._path(name, "next"))
        sync_folder(self.root)

    def _next(self, name: str) -> dict[str, Json] | None:
        path = self._path(name, "next")
        try:
            record = read_private_json(path, secret=True)
        except ABSENT:
            return None
        match record:
            case {"format": self.FORMAT, "public": str(public), "rotation": str()} if is_key(
                public
            ):
                return dict(record)
        raise damaged_file_error(path)

    def _record(self, name: str) -> Json:
        path = self._path(name)
        try:
            return read_private_json(path, secret=True)
        except ABSENT:
            fix = "make one: plait keys new"
            raise InputError(f"there is no key '{name}'", path, fix, code="no-key") from None

    def _path(self, name: str, kind: str = "key") -> str:
        if not _NAME.fullmatch(name):
            what = "a key's name is letters, digits, '_' and '-'"
            raise InputError(what, fix="for example signing", code="bad-name")
        return os.path.join(self.root, f"{name}.{kind}")


@dataclass(frozen=True, slots=True)
class Rotated:
    """The result of a rotation. The statement is for all who trust the old key."""

    statement: bytes
    fingerprint: str
    kept: str
    """The name of the old key."""


def rotate(
    folder: KeyFolder,
    store: TrustStore,
    name: str,
    *,
    opened: Callable[[str], PrivateKey],
    passphrase: Callable[[], Secret | None],
    origin: str,
    effort: Effort | None = None,
    now: Now = time.time,
    reached: Callable[[str], None] = lambda _: None,
) -> Rotated:
    """Replace a key by a new one, or continue an unfinished rotation. `reached` is called after
    each step.

    The caller publishes the statement, then calls `folder.end_rotation`.
    """
    with lock_folder(folder.root):
        statement = folder.rotation(name)
        if statement is None:
            old = opened(name)
            version = store.require_key(old.fingerprint).version + 1
            statement = folder.begin_rotation(
                name,
                lambda new: sign_rotation(old, new, version=version, now=now()),
                passphrase=passphrase(),
                effort=effort,
            )
        reached("begun")
        kept: list[str] = []

        def exchange() -> None:
            reached("trusted")
            kept.append(folder.exchange(name, reached))
            reached("exchanged")

        rotation = read_rotation(statement)
        if store.require_key(key_fingerprint(rotation.old)).version < rotation.version:
            store.rotate(statement, origin=origin, meanwhile=exchange)
        else:  # only `end_rotation` is missing
            exchange()
        reached("ended")
    return Rotated(statement, key_fingerprint(rotation.new), kept[0])


def _encode_record(record: Json) -> bytes:
    return json.dumps(record, indent=1).encode() + b"\n"


def _encode_key(
    key: PrivateKey, passphrase: Secret | None, effort: Effort | None
) -> dict[str, Json]:
    record = {"format": KeyFolder.FORMAT, "public": key.public.hex()}
    if passphrase is None:
        return {**record, "seed": key.seed.hex()}
    effort = effort or Effort()
    from nacl.pwhash import argon2id
    from nacl.secret import SecretBox
    from nacl.utils import random

    salt = random(argon2id.SALTBYTES)
    box = SecretBox(_derive_key(passphrase, salt, effort)).encrypt(key.seed)
    return {
        **record,
        "salt": salt.hex(),
        "operations": effort.operations,
        "memory": effort.memory,
        "box": bytes(box).hex(),
    }


def _decode_key(record: Json, passphrase: Secret | None, path: str) -> PrivateKey:
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
                return _decrypt_key(
                    bytes.fromhex(box),
                    bytes.fromhex(salt),
                    Effort(operations, memory),
                    passphrase,
                    path,
                )
    except ValueError:
        raise damaged_file_error(path) from None
    raise damaged_file_error(path)


def _decrypt_key(
    box: bytes, salt: bytes, effort: Effort, passphrase: Secret | None, path: str
) -> PrivateKey:
    from nacl.exceptions import CryptoError
    from nacl.secret import SecretBox

    if passphrase is None:
        raise InputError(
            "this key needs its passphrase", path, "type it when asked", code="passphrase"
        )
    try:
        return PrivateKey(SecretBox(_derive_key(passphrase, salt, effort)).decrypt(box))
    except CryptoError:
        what = "that is not the passphrase of this key"
        raise InputError(what, path, "try again", code="passphrase") from None


def _derive_key(passphrase: Secret, salt: bytes, effort: Effort) -> bytes:
    from nacl.pwhash import argon2id

    return argon2id.kdf(32, passphrase.reveal().encode(), salt, effort.operations, effort.memory)
