"""SHA-256 as Python itself brings it along.

`hashlib` prefers that of OpenSSL.  To load OpenSSL takes longer than to hash
all the files of a call.
"""

from __future__ import annotations

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


def quick_digest() -> blake2b:
    """Several times as fast, where nothing but damage is to be found."""
    return blake2b(digest_size=16)
