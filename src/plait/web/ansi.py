"""Output with the colours of a terminal as HTML; every other control sequence is left out."""

from __future__ import annotations

from collections.abc import Iterator

from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.web.html import Markup, join, tag

_SEQUENCE: Final = lazy_pattern(
    r"\x1b\[([0-9;:]{0,99})m"  # colours and weights; Python reads no number of any length
    r"|\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_OVERWRITTEN: Final = lazy_pattern(r"(?m)^[^\n]*\r(?=[^\n])")
"""A line of which a carriage return wrote the start again, as progress bars do.

It matches at starts of lines: a search from each letter of a long line would take minutes.
"""
MOST: Final = 256 * 1024
"""Characters of an output on a page: its end."""
_WEIGHTS: Final = {1: "b", 2: "d", 3: "i", 4: "u", 7: "r", 9: "s"}
_ENDS: Final = {22: "bd", 23: "i", 24: "u", 27: "r", 29: "s"}


def shorten_output(text: str, most: int = MOST) -> tuple[str, int]:
    """The end of an output, from the start of a line, and how many characters were left out."""
    if len(text) <= most:
        return text, 0
    kept = text[-most:]
    kept = kept.partition("\n")[2] or kept
    return kept, len(text) - len(kept)


def to_markup(text: str) -> Markup:
    text = text.replace("\r\n", "\n")
    text = _OVERWRITTEN.sub("", text)
    return join(list(_pieces(text)))


def _pieces(text: str) -> Iterator[Markup | str]:
    style = _Style()
    at = 0
    for found in _SEQUENCE.finditer(text):
        if found.start() > at:
            yield style.wrap(text[at : found.start()])
        at = found.end()
        if found[1] is not None:
            style.change(found[1])
    if at < len(text):
        yield style.wrap(text[at:])


class _Style:
    """Colours and weights as classes: `f1` is red, `g4` a blue background, `b` bold."""

    def __init__(self) -> None:
        self._weights: set[str] = set()
        self._front = self._back = ""

    def wrap(self, text: str) -> Markup | str:
        names = [*sorted(self._weights), *filter(None, (self._front, self._back))]
        return tag("span", text, class_=" ".join(f"a-{name}" for name in names)) if names else text

    def change(self, written: str) -> None:
        codes = [int(one) if one.isdecimal() else 0 for one in written.replace(":", ";").split(";")]
        at = 0
        while at < len(codes):
            code = codes[at]
            at += 1
            if code in (38, 48):
                colour, at = _read_colour(codes, at)
                if code == 38:
                    self._front = f"f{colour}" if colour is not None else ""
                else:
                    self._back = f"g{colour}" if colour is not None else ""
            else:
                self._simple(code)

    def _simple(self, code: int) -> None:
        if code == 0:
            self._weights.clear()
            self._front = self._back = ""
        elif code in _WEIGHTS:
            self._weights.add(_WEIGHTS[code])
        elif code in _ENDS:
            self._weights -= set(_ENDS[code])
        elif 30 <= code <= 37 or 90 <= code <= 97:
            self._front = f"f{code - 30 if code < 90 else code - 82}"
        elif 40 <= code <= 47 or 100 <= code <= 107:
            self._back = f"g{code - 40 if code < 100 else code - 92}"
        elif code == 39:
            self._front = ""
        elif code == 49:
            self._back = ""


def _read_colour(codes: list[int], at: int) -> tuple[int | None, int]:
    """One of the 16 colours for `38;5;N` or `38;2;R;G;B`, and where the codes go on."""
    match codes[at : at + 1]:
        case [5]:
            number = codes[at + 1] if at + 1 < len(codes) else 0
            return _palette_colour(number), at + 2
        case [2]:
            red, green, blue = [*codes[at + 1 : at + 4], 0, 0, 0][:3]
            return _nearest(red, green, blue), at + 4
    return None, at + 1


def _palette_colour(number: int) -> int:
    if number < 16:
        return number
    if number >= 232:
        grey = (number - 232) * 10 + 8
        return _nearest(grey, grey, grey)
    number -= 16
    return _nearest(number // 36 * 51, number // 6 % 6 * 51, number % 6 * 51)


def _nearest(red: int, green: int, blue: int) -> int:
    most = max(red, green, blue)
    if most - min(red, green, blue) < 40:
        return 0 if most < 64 else 8 if most < 150 else 7 if most < 220 else 15
    half = most / 2
    number = (red > half) + 2 * (green > half) + 4 * (blue > half)
    return number + (8 if most > 200 else 0)
