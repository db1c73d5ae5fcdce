"""Recognise secrets that are not declared, by the name of a variable or the form of a value."""

from __future__ import annotations

import re
from functools import cache

from plait.core.hints import Final
from plait.core.patterns import lazy_pattern

_SECRET_PARTS: Final = (
    "pass", "token", "secret", "apikey", "api_key", "private", "credential", "bearer",
)  # fmt: skip
_SECRET_WORDS: Final = frozenset({"key", "keys", "pwd", "dsn", "pin", "otp", "sas"})
"""Words that mark a secret after another word: DB_PWD is one, PWD is a folder."""
_OF_DIGITS: Final = ("pass", "pwd", "pin", "otp", "secret", "code")
"""Words for secrets that may consist of a few digits."""
_SWITCHES: Final = frozenset({"", "true", "false", "yes", "no", "on", "off", "none", "null"})
_FORMS: Final = {
    "-----BEGIN ": "[A-Z ]*PRIVATE KEY-----",
    "eyJ": r"[\w-]{8,}[.]eyJ[\w-]{8,}[.][\w-]*",  # a JSON Web Token
    **dict.fromkeys(("sk-", "sk_", "pk_", "rk_"), r"[\w-]{16,}"),
    **dict.fromkeys(
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-"), r"[\w-]{16,}"
    ),
    **dict.fromkeys(("hf_", "npm_", "pypi-", "dop_v1_", "shpat_"), r"[\w-]{16,}"),
    "xox": r"[abeprs]-[\w-]{10,}",
    **dict.fromkeys(("AKIA", "ASIA"), "[A-Z0-9]{16}"),
    "AIza": r"[\w-]{30,}",
    **dict.fromkeys(("Bearer ", "Basic "), r"[\w+/=.~-]{16,}"),
}
"""How keys and tokens of well-known services begin, and what follows."""
_PASSWORD_IN_URL: Final = lazy_pattern(r"://[^/\s:@]*:([^/\s@]+)@")


@cache
def looks_secret(name: str) -> bool:
    plain = name.casefold()
    is_auth = any(not rest.startswith("or") for rest in plain.split("auth")[1:])  # but not `author`
    if is_auth or any(part in plain for part in _SECRET_PARTS):
        return True
    return not _SECRET_WORDS.isdisjoint(plain.replace("-", "_").split("_")[1:])


def is_secret(name: str, value: str) -> bool:
    """Does the name of a variable, or the form of its value, show that it is a secret?"""
    by_name = looks_secret(name) and not _is_setting(name, value)
    return by_name or password_in(value) is not None or has_form_of_key(value)


def _is_setting(name: str, value: str) -> bool:
    """Is it a setting such as MAX_TOKENS=4096 or AUTH_ENABLED=true? A number may be a password."""
    if value.casefold() in _SWITCHES:
        return True
    is_short_number = value.isascii() and value.isdigit() and len(value) < 8
    return is_short_number and not any(part in name.casefold() for part in _OF_DIGITS)


def has_form_of_key(value: str) -> bool:
    return any(
        value.startswith(begin) and re.match(rest, value[len(begin) :])
        for begin, rest in _FORMS.items()
    )


def password_in(value: str) -> str | None:
    """The password of a URL that has one, such as postgres://me:…@host."""
    found = _PASSWORD_IN_URL.search(value) if "://" in value else None
    return found[1] if found else None
