"""Secrets that nobody declared, known by the name of a variable or by how a value looks."""

from __future__ import annotations

import re
from functools import cache

from plait.hints import Final

_SECRET_PARTS: Final = (
    "pass", "token", "secret", "apikey", "api_key", "private", "credential", "bearer",
)  # fmt: skip
_SECRET_WORDS: Final = frozenset({"key", "keys", "pwd", "dsn", "pin", "otp", "sas"})
"""Words that tell a secret when they stand behind another: DB_PWD is one, PWD is a folder."""
_PASSWORD_IN_URL: Final = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")


@cache
def looks_secret(name: str) -> bool:
    plain = name.casefold()
    is_auth = any(not rest.startswith("or") for rest in plain.split("auth")[1:])  # and no author
    if is_auth or any(part in plain for part in _SECRET_PARTS):
        return True
    return not _SECRET_WORDS.isdisjoint(plain.replace("-", "_").split("_")[1:])


def password_in(value: str) -> str | None:
    """The password of a URL that has one, such as postgres://me:…@host."""
    found = _PASSWORD_IN_URL.search(value) if "://" in value else None
    return found[1] if found else None
