"""HTML that cannot hold a value unescaped.

`tag` makes an element of texts and other elements.  A `str` is always text: only `tag`, `join` and
`trusted` make `Markup`, and `trusted` is for the texts of this package.

No element gets an event handler or a style, and addresses stay on this server.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from plait.core.hints import Final, TypeAlias
from plait.core.patterns import lazy_pattern

_HIDDEN: Final = lazy_pattern(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Characters that change how others are shown, or are not shown at all."""
_NAME: Final = lazy_pattern(r"[a-zA-Z][a-zA-Z0-9-]*")
_FORBIDDEN: Final = frozenset({"style", "srcdoc", "srcset", "ping", "background"})
_ADDRESSES: Final = frozenset({"href", "src", "action", "formaction", "data", "poster"})
_ADDRESS: Final = lazy_pattern(
    r"(?:/(?!/)|[?#])[!-\[\]-~]*|data:image/svg\+xml;base64,[A-Za-z0-9+/=]*"
)
"""A path, a query or a fragment on this server; no backslash, which browsers read as a slash."""
_EMPTY: Final = frozenset({"br", "hr", "img", "input", "link", "meta"})
_NEVER: Final = frozenset({"script", "style", "iframe", "object", "embed", "base"})


class Markup:
    """A piece of HTML that is safe."""

    __slots__ = ("text",)

    def __init__(self, text: str, *, _made_here: object = None) -> None:
        if _made_here is not _KEY:
            raise TypeError("text becomes Markup by tag(), join() or trusted()")
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return bool(self.text)


_KEY: Final = object()
NOTHING: Final = Markup("", _made_here=_KEY)
Child: TypeAlias = "Markup | str | int | Iterable[Child] | None"


def visible(text: str) -> str:
    """The text with a sign in place of each character that a person cannot see."""
    return _HIDDEN.sub("\ufffd", text)


def trusted(text: str) -> Markup:
    """HTML that Plait itself wrote, with every value in it escaped."""
    return Markup(text, _made_here=_KEY)


def join(*children: Child) -> Markup:
    found: list[str] = []
    _collect(children, found)
    return Markup("".join(found), _made_here=_KEY)


def tag(name: str, /, *children: Child, **attributes: object) -> Markup:
    """An element.  `class_` is `class`, `aria_label` is `aria-label`; None and False leave one out."""
    if _NAME.fullmatch(name) is None or name in _NEVER:
        raise ValueError(f"no element is called {name!r} here")
    found = [f"<{name}"]
    for written, value in attributes.items():
        if value is None or value is False:
            continue
        found.append(_attribute(written.rstrip("_").replace("_", "-"), value))
    found.append(">")
    if name not in _EMPTY:
        _collect(children, found)
        found.append(f"</{name}>")
    return Markup("".join(found), _made_here=_KEY)


def _attribute(name: str, value: object) -> str:
    lower = name.lower()
    if _NAME.fullmatch(name) is None or lower in _FORBIDDEN or lower.startswith("on"):
        raise ValueError(f"no attribute is called {name!r} here")
    if value is True:
        return f" {name}"
    text = visible(str(value))
    if lower in _ADDRESSES and _ADDRESS.fullmatch(text) is None:
        raise ValueError("an address must be a path on this server")
    return f' {name}="{escape(text)}"'


def _collect(children: Iterable[Child], found: list[str]) -> None:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            found.append(child.text)
        elif isinstance(child, str):
            found.append(escape(visible(child), quote=False))
        elif isinstance(child, int):
            found.append(str(child))
        else:
            _collect(child, found)
