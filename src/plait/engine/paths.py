"""Step paths: how items are named in them, and which path is below another."""

from __future__ import annotations

import re

from plait.core.hints import TYPE_CHECKING

if TYPE_CHECKING:
    from plait.core.hints import Final


ITEM: Final = "item:"
"""The prefix of an item's name."""


def is_item(path: str) -> bool:
    return path.rpartition("/")[2].startswith(ITEM)


def generic_path(path: str) -> str:
    """Turn a path of a run into one of the flow: `item:*` for each item, handlers without number."""
    return "/".join(
        f"{ITEM}*" if part.startswith(ITEM) else _HANDLED.sub(r"\1", part)
        for part in path.split("/")
    )


_HANDLED: Final = re.compile(r"^(on_failure|on_incomplete|check)@\d+$")


def is_below(path: str, top: str) -> bool:
    """Is this path below the other one?"""
    return path.startswith(f"{top}/")


def is_at_or_below(path: str, top: str) -> bool:
    """Is this path the other one, or below it?"""
    return path == top or path.startswith(f"{top}/")
