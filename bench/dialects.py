"""One text, written in the language of every contender.

A text is written once, with placeholders `<<item.path>>` and `<<item.priority:5>>`; from
it come the f-string, Plait's template and the templates of the peers, so that
all of them say the same thing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

Tree: TypeAlias = Any
"""A string with placeholders, or lists and maps of such strings."""

PLACEHOLDER = re.compile(r"<<([a-z0-9_.]+)(?::([^>]*))?>>")

Written: TypeAlias = Callable[[list[str], str | None], str]
"""Writes a placeholder, given its keys and its default."""


def written(tree: Tree, placeholder: Written, plain: Callable[[str], str] = str) -> Tree:
    """Return the tree with its placeholders in another language; `plain` converts the text between them."""
    if isinstance(tree, dict):
        return {key: written(item, placeholder, plain) for key, item in tree.items()}
    if isinstance(tree, list):
        return [written(item, placeholder, plain) for item in tree]
    return "".join(
        plain(piece) if isinstance(piece, str) else placeholder(piece[1].split("."), piece[2])
        for piece in _pieces(tree)
    )


def strings(tree: Tree) -> list[str]:
    """Return every string of a tree."""
    if isinstance(tree, str):
        return [tree]
    items = tree.values() if isinstance(tree, dict) else tree
    return [text for item in items for text in strings(item)]


def placeholder_count(tree: Tree) -> int:
    return sum(len(PLACEHOLDER.findall(text)) for text in strings(tree))


def _pieces(text: str) -> Iterator[str | re.Match[str]]:
    at = 0
    for found in PLACEHOLDER.finditer(text):
        yield text[at : found.start()]
        yield found
        at = found.end()
    yield text[at:]


# ── the f-string, which is the limit ─────────────────────────────────────


def limit(tree: Tree, *, trusting: bool = False) -> Callable[[dict[str, Any]], Tree]:
    """A function that returns f-strings with the lookups of the template in their place.

    A default stands for every key of its path but the first, as it does in Plait;
    `trusting`: only the last key may be missing.
    """
    placeholder: Written = _trusting_placeholder if trusting else _f_string_placeholder
    made: dict[str, Any] = {}
    exec(f"def limit(values):\n    return {_display(tree, placeholder)}\n", made)
    function: Callable[[dict[str, Any]], Tree] = made["limit"]
    return function


def _display(tree: Tree, placeholder: Written) -> str:
    if isinstance(tree, dict):
        return (
            "{"
            + ", ".join(f"{key!r}: {_display(item, placeholder)}" for key, item in tree.items())
            + "}"
        )
    if isinstance(tree, list):
        return "[" + ", ".join(_display(item, placeholder) for item in tree) + "]"
    return f'f"{written(tree, placeholder, _f_string_text)}"'


def _f_string_placeholder(keys: list[str], default: str | None) -> str:
    if default is None:
        return "{values" + "".join(f"['{key}']" for key in keys) + "}"
    first, *middle, last = keys
    inner = "".join(f".get('{key}', {{}})" for key in middle)
    # Parentheses: an f-string would read `{{` as a brace.
    return "{" + f"(values['{first}']{inner}.get('{last}', {default!r}))" + "}"


def _trusting_placeholder(keys: list[str], default: str | None) -> str:
    *outer, last = keys
    if default is None:
        return _f_string_placeholder(keys, None)
    return "{values" + "".join(f"['{key}']" for key in outer) + f".get('{last}', {default!r})" + "}"


def _f_string_text(text: str) -> str:
    return json.dumps(text)[1:-1].replace("{", "{{").replace("}", "}}")


# ── the others ───────────────────────────────────────────────────────────


def dollar(keys: list[str], default: str | None) -> str:
    """Plait's workflow profile, string.Template, and the pattern for re.sub."""
    return "${" + ".".join(keys) + ("" if default is None else f":-{default}") + "}"


def prompt(keys: list[str], default: str | None) -> str:
    """Plait's prompt profile."""
    assert default is None
    assert len(keys) == 1
    return "{" + keys[0] + "}"


def format_field(keys: list[str], default: str | None) -> str:  # noqa: ARG001 - it knows no defaults
    return "{" + keys[0] + "".join(f"[{key}]" for key in keys[1:]) + "}"


def jinja(keys: list[str], default: str | None) -> str:
    # Subscripts: with a dot Jinja2 would try an attribute first, and be slower.
    path = keys[0] + "".join(f"['{key}']" for key in keys[1:])
    return "{{ " + path + ("" if default is None else f" | default({default!r})") + " }}"


def omegaconf(keys: list[str], default: str | None) -> str:
    path = ".".join(keys)
    return "${" + (path if default is None else f"oc.select:{path},{default}") + "}"
