"""Digests: SHA-256 of bytes and of JSON, BLAKE2 where only damage must be found.

`hashlib` uses OpenSSL, which takes longer to load than Python's own SHA-256 takes to hash all the
files of a call.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import blake2b as blake2b
    from hashlib import sha256 as sha256
else:
    try:
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b
    try:
        from _sha2 import sha256  # since Python 3.12
    except ImportError:
        try:
            from _sha256 import sha256
        except ImportError:  # a Python that was built without it
            from hashlib import sha256


def sha256_hex(data: bytes) -> str:
    return sha256(data).hexdigest()


def json_digest(data: object) -> str:
    """Return 16 digits that are the same for equal data, whatever the order of keys."""
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)
    return sha256_hex(canonical.encode())[:16]


def quick_digest() -> blake2b:
    """Several times as fast as SHA-256; it finds damage, but no forgery."""
    return blake2b(digest_size=16)
