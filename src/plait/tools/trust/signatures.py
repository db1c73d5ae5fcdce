"""A signature is valid for one id, one kind and all bytes of a file.

It is a comment on the first line, or on the second line after `#!`:

    # plait:signed:TIME:HASH:SIG:FP

    TIME  2026-03-30T03:47:11Z
    HASH  SHA-256 of every byte of the file except this one line
    SIG   Ed25519 over (format, kind, id with extension, TIME, HASH, FP), base64url
    FP    SHA-256 of the signer's public key

The line does not contain the id. The id is the one under which the file is requested, so a copy
under another name does not verify. A file that cannot hold a comment (JSON) has the same text in a
file beside it, `NAME.json.sig`. Lines with the tag `rye` are read, but they cover only the content,
and `verify` refuses them.

Everything here works on bytes that were already read, without files and clock.
"""

from __future__ import annotations

import re
from time import gmtime, strftime

from plait.core.digests import sha256
from plait.core.documents import parse_json
from plait.core.errors import DocumentError, InputError, LimitError, TrustError
from plait.core.hints import Final, Literal
from plait.core.records import dataclass, field
from plait.core.values import Json
from plait.tools.spaces import FILE_TYPES

FORMAT: Final = "plait.item.v2"
ROTATION: Final = "plait.rotation.v1"
KEY_BYTES: Final = 32

Tag = Literal["plait", "rye"]

_COMMENTS: Final = {
    **{extension: (f"{kind.comment} ", "") for extension, kind in FILE_TYPES.items()},
    ".toml": ("# ", ""),
    **dict.fromkeys((".md", ".html"), ("<!-- ", " -->")),
}
_STATEMENT: Final = (
    rb"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ):(?P<hash>[0-9a-f]{64}):(?P<value>[\w-]{86})"
)
# Patterns are compiled only for a signed file. Most files are not, and a call should not wait.
_PLAIT: Final = rb"plait:signed:" + _STATEMENT + rb":(?P<key>[0-9a-f]{64})"
_RYE: Final = (
    rb"rye:signed:"
    + _STATEMENT
    + rb"(?:==)?:(?P<key>[0-9a-f]{64}|[0-9a-f]{16})(?:\|[^\s|@]+@[^\s|@]+)?"
)
_BEFORE: Final = "|".join(sorted({re.escape(kind.comment) for kind in FILE_TYPES.values()}))
_COMMENTED: Final = rb"(?:(?:" + _BEFORE.encode() + rb") (?P<plain>\S+)|<!-- (?P<marked>\S+) -->)\n"
_MARKS: Final = (b"plait:signed:", b"rye:signed:")
_MOST_BEFORE_MARK: Final = 16
_MOMENT: Final = "%Y-%m-%dT%H:%M:%SZ"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature as it is written; it proves nothing before it is verified."""

    tag: Tag
    time: str
    hash: str
    value: str
    fingerprint: str
    line: tuple[int, int] | None = None
    """Where its line starts and ends in the file. None if it is in a `.sig` file."""

    @property
    def content_only(self) -> bool:
        """Does it not cover the id, the kind and the time?"""
        return self.tag == "rye"

    @property
    def text(self) -> str:
        return f"{self.tag}:signed:{self.time}:{self.hash}:{self.value}:{self.fingerprint}"


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """The 32 bytes from which an Ed25519 key is made; they are never shown."""

    seed: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> PrivateKey:
        from nacl.utils import random

        return cls(random(KEY_BYTES))

    @property
    def public(self) -> bytes:
        return self._key()[0]

    @property
    def fingerprint(self) -> str:
        return key_fingerprint(self.public)

    def sign(self, message: bytes) -> bytes:
        """The 64 bytes of a signature."""
        from nacl.bindings import crypto_sign, crypto_sign_BYTES

        return crypto_sign(message, self._key()[1])[:crypto_sign_BYTES]

    def _key(self) -> tuple[bytes, bytes]:
        from nacl.bindings import crypto_sign_seed_keypair

        return crypto_sign_seed_keypair(self.seed)


def key_fingerprint(public_key: bytes) -> str:
    return sha256(public_key).hexdigest()


def require_valid_key(public_key: bytes) -> bytes:
    """Return the key. Raises unless it is canonical and of the full order, so safe from forgery."""
    from nacl.bindings import crypto_core_ed25519_is_valid_point

    if len(public_key) != KEY_BYTES:
        raise InputError(
            f"an Ed25519 public key has {KEY_BYTES} bytes, this has {len(public_key)}",
            fix="give the key as 'plait keys' prints it",
            code="bad-key",
        )
    if not crypto_core_ed25519_is_valid_point(public_key):
        raise InputError(
            "this is not an Ed25519 public key that can be trusted: anybody could sign for it",
            fix="give the key as 'plait keys' prints it",
            code="weak-key",
        )
    return public_key


def time_text(now: float) -> str:
    """A time in the form of signatures. These texts sort by time."""
    return strftime(_MOMENT, gmtime(int(now)))


def has_comment_syntax(extension: str) -> bool:
    """Can a file with this extension hold its signature?"""
    return extension in _COMMENTS


# ── signing ──────────────────────────────────────────────────────────────


def sign_bytes(
    data: bytes, *, kind: str, item_id: str, extension: str, key: PrivateKey, now: float
) -> bytes:
    """The file with its signature line, which replaces an old one."""
    if not has_comment_syntax(extension):
        raise InputError(
            f"a {extension or 'nameless'} file cannot hold a signature",
            fix=f"sign it beside itself, as {item_id}{extension}.sig",
            code="no-comment",
        )
    if data.startswith(_BYTE_ORDER_MARK):
        raise InputError(
            f"{item_id}{extension} begins with a byte order mark, which must stay first",
            fix="save it as UTF-8 without a byte order mark",
            code="byte-order-mark",
        )
    bare = data + b"\n" if data.startswith(b"#!") and b"\n" not in data else data
    for start, end in reversed(_signature_lines(bare)):
        bare = bare[:start] + bare[end:]
    at = _place(bare)
    signature = _make_signature(bare, kind=kind, name=item_id + extension, key=key, now=now)
    return bare[:at] + _line(signature, extension) + bare[at:]


def sign_detached(
    data: bytes, *, kind: str, item_id: str, extension: str, key: PrivateKey, now: float
) -> bytes:
    """The contents of the `.sig` file beside a file that cannot hold a comment."""
    return f"{_make_signature(data, kind=kind, name=item_id + extension, key=key, now=now).text}\n".encode()


def _make_signature(data: bytes, *, kind: str, name: str, key: PrivateKey, now: float) -> Signature:
    time, digest = time_text(now), sha256(data).hexdigest()
    value = key.sign(_statement(kind, name, time, digest, key.fingerprint))
    return Signature("plait", time, digest, _encode_signature(value), key.fingerprint)


def _line(signature: Signature, extension: str) -> bytes:
    """The only valid spelling of a signature line. The hash excludes just this line."""
    before, after = _COMMENTS.get(extension, ("", ""))
    return f"{before}{signature.text}{after}\n".encode()


# ── reading ──────────────────────────────────────────────────────────────


def read_signature(data: bytes) -> Signature | None:
    """The signature that a file holds, or None.  A line that only resembles one is an error."""
    lines = _signature_lines(data)
    if not lines:
        return None
    if len(lines) > 1:
        raise _signature_error("it has two signature lines")
    start, end = lines[0]
    if start != _place(data):
        raise _signature_error(
            "its signature is neither on the first line nor on the second after '#!'"
        )
    commented = re.compile(_COMMENTED).fullmatch(data, start, end)
    if commented is None:
        raise _signature_error(
            "its signature line is not of the form '# plait:signed:TIME:HASH:SIG:FP'"
        )
    return _parse_signature(commented["plain"] or commented["marked"], (start, end))


def read_detached(data: bytes) -> Signature:
    """The signature in a `.sig` file."""
    if not data.endswith(b"\n"):
        raise _signature_error("its signature file does not end with a line break")
    return _parse_signature(data[:-1], None)


def _parse_signature(text: bytes, line: tuple[int, int] | None) -> Signature:
    tag: Tag = "rye" if text.startswith(b"rye:") else "plait"
    found = re.fullmatch(_RYE if tag == "rye" else _PLAIT, text)
    if found is None:
        raise _signature_error("its signature is not of the form 'plait:signed:TIME:HASH:SIG:FP'")
    fields = {name: value.decode() for name, value in found.groupdict().items()}
    _require_time(fields["time"])
    _decode_signature(fields["value"])
    return Signature(tag, fields["time"], fields["hash"], fields["value"], fields["key"], line)


def _signature_lines(data: bytes) -> list[tuple[int, int]]:
    """Those of the first three lines that look like a signature."""
    lines: list[tuple[int, int]] = []
    start = 0
    for _ in range(3):
        end = data.find(b"\n", start) + 1 or len(data)
        # A mark stands right after the start of a comment.
        if any(
            data.find(mark, start, min(end, start + _MOST_BEFORE_MARK + len(mark))) >= 0
            for mark in _MARKS
        ):
            lines.append((start, end))
        start = end
    return lines


def _place(data: bytes) -> int:
    """Where the signature line starts: at the top, or below `#!`."""
    return data.find(b"\n") + 1 if data.startswith(b"#!") else 0


def _require_time(text: str) -> None:
    from datetime import datetime

    try:
        datetime.strptime(text, _MOMENT)
    except ValueError:
        raise _signature_error("the time of its signature is no time") from None


# ── verifying ────────────────────────────────────────────────────────────


def verify(
    data: bytes, signature: Signature, public_key: bytes, *, kind: str, item_id: str, extension: str
) -> None:
    """Raise TrustError unless this key signed these bytes for this id and kind."""
    if signature.content_only:
        raise TrustError(
            "its signature (rye) covers only the content, not the id, the kind and the time",
            fix="sign it with 'plait sign'",
            code="content-only",
        )
    if signature.line is not None and data[slice(*signature.line)] != _line(signature, extension):
        raise _signature_error("its signature line is not written as in such a file")
    if key_fingerprint(public_key) != signature.fingerprint:
        raise TrustError("it was signed with another key", code="other-key")
    start, end = signature.line or (0, 0)
    content = sha256(memoryview(data)[:start])
    content.update(memoryview(data)[end:])
    if content.hexdigest() != signature.hash:
        raise TrustError("its bytes are not those that were signed", code="changed")
    statement = _statement(
        kind, item_id + extension, signature.time, signature.hash, signature.fingerprint
    )
    if not _holds(statement, _decode_signature(signature.value), public_key):
        raise TrustError(
            f"its signature is not for the {kind} {item_id}{extension} of this time: "
            "it was made for another one, or forged",
            code="forged",
        )


def _holds(message: bytes, value: bytes, public_key: bytes) -> bool:
    from nacl.bindings import crypto_sign_open
    from nacl.exceptions import BadSignatureError

    try:
        crypto_sign_open(value + message, public_key)
    except (BadSignatureError, ValueError):
        return False
    return True


def _statement(kind: str, name: str, time: str, digest: str, fingerprint: str) -> bytes:
    return _fields(FORMAT, kind, name, time, digest, fingerprint)


def _fields(*fields: str) -> bytes:
    """Each field after its length, so that no field can be read as part of the next."""
    encoded = [text.encode() for text in fields]
    return b" ".join(b"%d %s" % (len(part), part) for part in encoded)


def _encode_signature(value: bytes) -> str:
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(value).rstrip(b"=").decode()


def _decode_signature(text: str) -> bytes:
    """The bytes of a signature. Only one spelling is valid."""
    from base64 import urlsafe_b64decode

    try:
        value = urlsafe_b64decode(text + "==")
    except ValueError:
        raise _signature_error("its signature is not base64url") from None
    if len(value) != 64 or _encode_signature(value) != text:
        raise _signature_error("its signature is not canonical base64url")
    return value


def _signature_error(what: str) -> TrustError:
    return TrustError(what, fix="sign it again with 'plait sign'", code="malformed-signature")


# ── rotation ─────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Rotation:
    """A statement that a new key replaces an old one, signed by both."""

    old: bytes
    new: bytes
    version: int
    time: str


def sign_rotation(old: PrivateKey, new: PrivateKey, *, version: int, now: float) -> bytes:
    """The statement for all who trust the old key."""
    time = time_text(now)
    message = _fields(ROTATION, old.public.hex(), new.public.hex(), str(version), time)
    record = {
        "format": ROTATION,
        "old": old.public.hex(),
        "new": new.public.hex(),
        "version": version,
        "time": time,
        "signatures": [_encode_signature(old.sign(message)), _encode_signature(new.sign(message))],
    }
    import json

    return json.dumps(record, indent=1).encode() + b"\n"


def read_rotation(data: bytes) -> Rotation:
    """Parse a rotation. Raises unless both keys have signed it."""
    try:
        record = parse_json(data.decode("utf-8", "replace"), "the rotation statement")
    except (DocumentError, LimitError):
        raise _bad_rotation("is not JSON") from None
    rotation = _rotation(record)
    message = _fields(
        ROTATION, rotation.old.hex(), rotation.new.hex(), str(rotation.version), rotation.time
    )
    by_old, by_new = record["signatures"]
    for name, key, value in (("old", rotation.old, by_old), ("new", rotation.new, by_new)):
        if not _holds(message, _decode_signature(value), key):
            raise _bad_rotation(f"is not signed by its {name} key")
    return rotation


def _rotation(record: Json) -> Rotation:
    match record:
        case {
            "format": "plait.rotation.v1",
            "old": str(old),
            "new": str(new),
            "version": int(version),
            "time": str(time),
            "signatures": [str(), str()],
        } if is_key(old) and is_key(new) and old != new and version > 0:
            _require_time(time)
            return Rotation(
                bytes.fromhex(old), require_valid_key(bytes.fromhex(new)), version, time
            )
    raise _bad_rotation("lacks one of format, old, new, version, time and two signatures")


def is_key(text: str) -> bool:
    """Is this 32 bytes in hexadecimal, as public keys and fingerprints are written?"""
    return re.fullmatch(r"[0-9a-f]{64}", text) is not None


def _bad_rotation(what: str) -> TrustError:
    return TrustError(
        f"the rotation statement {what}", fix="ask its author for a new one", code="bad-rotation"
    )
