"""What the text of a YAML scalar means: the core schema of YAML 1.2.

`no`, `on`, `12:30` and `1_000` are strings, `014` is fourteen.  A tag may
confirm what a scalar is; no tag makes anything but JSON data.
"""

from __future__ import annotations

import re
from math import isfinite

from plait.core.documents.limits import MAX_DIGITS, shown
from plait.core.documents.nodes import Plain
from plait.core.hints import Final

CORE: Final = "tag:yaml.org,2002:"
_CONSTANTS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER_STARTS: Final = frozenset("0123456789+-.")
_INT = re.compile(r"[-+]?[0-9]++|0o[0-7]++|0x[0-9a-fA-F]++")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]++|[0-9]++(?:\.[0-9]*+)?)(?:[eE][-+]?[0-9]++)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_TAGGED_TYPES: Final[dict[str, set[type]]] = {
    "null": {type(None)},
    "bool": {bool},
    "int": {int},
    "float": {int, float},
}
_NUL_OR_SURROGATE = re.compile("[\\x00\\ud800-\\udfff]")


class Refused(Exception):
    """A scalar that cannot be what it is written as."""

    def __init__(self, what: str, fix: str, code: str = "value") -> None:
        self.what, self.fix, self.code = what, fix, code


def scalar_value(tag: str | None, text: str, style: str) -> Plain:
    """The value of a scalar; refused if it cannot be what its tag or its form says."""
    if style == '"' and _NUL_OR_SURROGATE.search(text):
        raise Refused("NUL and halves of character pairs are not text", "remove the escape", "character")
    if tag is None:
        return text if style else _plain(text)
    kind = tag.removeprefix(CORE)
    if tag in ("!", CORE + "str"):
        return text
    if tag == kind or kind not in _TAGGED_TYPES:
        raise Refused(*tag_words(tag), "tag")
    value = _plain(text)
    if type(value) not in _TAGGED_TYPES[kind]:
        raise Refused(f"this text is not what the tag '!!{kind}' says", "remove the tag or correct the text")
    return _finite(str(value)) if kind == "float" else value


def tag_words(tag: str) -> tuple[str, str]:
    """What is wrong with a tag that no node may have, and what to do."""
    written = "!!" + tag.removeprefix(CORE) if tag.startswith(CORE) else tag
    return f"the tag '{shown(written)}' means nothing here", "remove it: a document is plain data"


def _plain(text: str) -> Plain:
    """The core schema of YAML 1.2."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in _NUMBER_STARTS:
        return text
    if _INT.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise Refused("this number has too many digits", "put it in quotes to keep it as text")
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text):
        return _finite(text)
    if _NOT_FINITE.fullmatch(text):
        raise Refused("infinity and NaN are not JSON data", "write a finite number, or put it in quotes")
    return text


def _finite(text: str) -> float:
    if not isfinite(number := float(text)):
        raise Refused("this number is too large", "put it in quotes to keep it as text")
    return number
