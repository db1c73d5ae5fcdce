"""Values that stand in the code of a tool as `${name}`: put in once, as that code writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from plait.tool_api import InputError

_NAME: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def with_values(
    code: str, values: Mapping[str, Any], write: Callable[[Any], str], *, quotes: str = ""
) -> str:
    """The code with its values written by `write`; a value inside of `quotes` is refused."""
    pieces: list[str] = []
    end = 0
    for found in _NAME.finditer(code):
        name = found[1]
        if name not in values:
            continue
        pieces.append(code[end : found.start()])
        if _is_quoted(code[: found.start()], quotes):
            raise InputError(
                f"'{found[0]}' stands inside of quotes, where a value cannot be put in",
                fix="write it without the quotes: it is text already",
                code="value-as-code",
            )
        try:
            pieces.append(write(values[name]))
        except UnicodeEncodeError:
            raise InputError(
                f"the value of '{name}' holds bytes that are not UTF-8",
                fix="give text",
                code="bad-parameters",
            ) from None
        end = found.end()
    return "".join([*pieces, code[end:]])


def _is_quoted(before: str, quotes: str) -> bool:
    """Is a quote open behind this text?  A backslash hides the character that follows it in
    quotes.
    """
    opened = ""
    hidden = False
    for char in before:
        if hidden:
            hidden = False
        elif opened and char == "\\":
            hidden = True
        elif char == opened:
            opened = ""
        elif not opened and char in quotes:
            opened = char
    return bool(opened)
