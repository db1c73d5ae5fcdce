"""Hide declared secrets in a text, as they are and as programs usually write them.

Automata search for all of them at once, in time linear in the text:

    text        as it is; percent-encoded, in part or whole; with the escapes of JSON, of
                quoted shell words and of HTML (for letters and digits no numeric ones), also
                nested
    lines       each line of a secret that has several
    base64      both alphabets, at each of the three alignments, also broken into lines
    hex         in either case, also with ':' or blanks between the bytes, or broken into lines

A secret of fewer than four characters is hidden only as a word of its own: inside words it
occurs everywhere, and a mask there would reveal it. A secret of blanks alone is not hidden. Other
forms that a program makes of a secret (reversed, compressed, encrypted) are not found.

The journal masks nothing: the code that makes a value, a title or a message masks it before it is
recorded, in a run by `ctx.run.secrets` (`Secrets` in `engine/context.py`). The event bus masks
notes, and the titles of steps, which may contain the author's text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import ceil
from threading import Lock

from plait.core.hints import Final, Protocol
from plait.core.values import MASK, Json, Secret, too_deep_error

SHORTEST: Final = 4
"""The limit in characters: shorter secrets occur in nearly every text by chance."""
PIECE_LENGTH: Final = 1000
"""A longer secret is hidden in pieces of this many characters, to keep the automaton small."""

MOST_HELD: Final = 1 << 16
"""Characters that a stream holds back.  Only a text that imitates a secret reaches it."""
_NESTED: Final = 100
"""Characters of a secret in one nested pattern; re2 nests no deeper than 1000."""
_PATTERN: Final = 1 << 19
"""Characters in the pattern of one automaton, besides one piece; there may be several automata."""
_MEMORY: Final = 1 << 28
"""Bytes that an automaton may use: some kilobytes for each character of a secret."""


class Masker:
    """Masks texts; safe to share between threads. It never shows the secrets."""

    __slots__ = ("_automata", "_lock", "_secrets", "_stale")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._lock = Lock()
        self._secrets: set[str] = set()
        self._automata: _SecretAutomata | None = None
        self._stale = False
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Also hide this secret from now on."""
        with self._lock:
            if secret.strip() and secret not in self._secrets:
                self._secrets.add(secret)
                self._stale = True

    @property
    def secrets(self) -> list[str]:
        """Return the secrets in a fixed order, for another masker that must hide the same."""
        with self._lock:
            return sorted(self._secrets)

    def mask(self, text: str) -> str:
        """The text with `***` for every secret."""
        if self._stale:
            with self._lock:
                if self._stale:
                    self._automata = _SecretAutomata(self._secrets)
                    self._stale = False
        automata = self._automata
        return text if automata is None else automata.mask(text)

    def mask_title(self, title: str) -> str:
        """Mask a title, also the beginning of a secret where the title was shortened."""
        masked = self.mask(title)
        automata = self._automata
        if automata is None or not masked.endswith("…"):
            return masked
        begun = automata.find_beginning(masked[:-1])
        return masked if begun is None else f"{masked[:begun]}{MASK}…"

    def safe_length(self, text: str) -> int:
        """Return how much of a growing text can be masked and shown now.

        The rest could be the beginning of a secret, so it waits for more.
        """
        self.mask("")  # update the automata first
        automata = self._automata
        return len(text) if automata is None else automata.safe_length(text)


class MaskedStream:
    """Masks a text that comes in pieces, also secrets that cross the borders of pieces."""

    __slots__ = ("_held", "_mask", "_safe_length")

    def __init__(self, mask: Callable[[str], str], safe_length: Callable[[str], int]) -> None:
        self._mask = mask
        self._safe_length = safe_length
        self._held = ""

    def write(self, text: str) -> str:
        """Return the masked text up to a place where a secret could begin."""
        text = self._held + text
        safe = self._safe_length(text)
        if len(text) - safe > MOST_HELD:
            safe = len(text)
        self._held = text[safe:]
        return self._mask(text[:safe])

    def finish(self) -> str:
        """Return the masked rest at the end of the text."""
        text, self._held = self._held, ""
        return self._mask(text)


def mask_value(value: Json, mask: Callable[[str], str]) -> Json:
    """Mask every text in a value, also keys; raise ValueRefusedError if it is nested too deeply.

    Values come from outside: a thousand nested lists must not look like a bug of Plait.
    """
    try:
        return _mask_tree(value, mask)
    except RecursionError:
        raise too_deep_error() from None


def _mask_tree(value: Json, mask: Callable[[str], str]) -> Json:
    match value:
        case str():
            return mask(value)
        case Secret():
            return MASK
        case Mapping():
            return {mask(key): _mask_tree(inner, mask) for key, inner in value.items()}
        case list() | tuple():
            return [_mask_tree(inner, mask) for inner in value]
    return value


# ── the automaton ────────────────────────────────────────────────────────


class _Match(Protocol):
    def start(self) -> int: ...

    def end(self) -> int: ...


class _Automaton(Protocol):
    def search(self, text: bytes) -> _Match | None: ...

    def finditer(self, text: bytes) -> Iterator[_Match]: ...

    def sub(self, replacement: bytes, text: bytes) -> bytes: ...


class _SecretAutomata:
    """The automata of a set of secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        parts = sorted({part for secret in secrets for part in _parts(secret)})
        long = [part for part in parts if len(part) >= SHORTEST]
        short = [part for part in parts if len(part) < SHORTEST]
        # The longest go first: a secret that is part of another must not split it.
        long.sort(key=len, reverse=True)
        self._long = [_automaton(pattern) for pattern in _patterns(long)]
        self._short_mask = _short_mask(short) if short else None
        # Masking one secret can create the text of another that contains '*'.
        self._again = any("*" in part for part in long)
        self._parts = [*long, *short]
        self._beginnings: list[_Automaton] | None = None

    def mask(self, text: str) -> str:
        if self._short_mask is not None:
            text = self._short_mask(text)
        data = text.encode("utf-8", "surrogatepass")
        hidden = self._hide(data)
        if hidden is data:
            return text
        while (
            self._again and (again := self._hide(hidden)) is not hidden
        ):  # the text gets shorter each time
            hidden = again
        return hidden.decode("utf-8", "surrogatepass")

    def safe_length(self, text: str) -> int:
        """Return the first position from which the rest could be the beginning of a secret."""
        if self._beginnings is None:  # only streams need it
            patterns = _join_patterns(map(_beginnings, self._parts))
            self._beginnings = [_automaton(f"{pattern}\\z") for pattern in patterns]
        data = text.encode("utf-8", "surrogatepass")
        safe = len(data)
        for automaton in self._beginnings:
            if (found := automaton.search(data)) is not None:
                safe = min(safe, found.start())
        return len(data[: self._before_secret(data, safe)].decode("utf-8", "surrogatepass"))

    def find_beginning(self, text: str) -> int | None:
        """Return the position of the beginning of a secret that reaches the end of the
        text.

        A beginning of fewer than four characters does not count: it occurs by chance.
        """
        # Automata of the beginnings are not used: making them takes long.
        found = [at for part in self._parts for at in _beginnings_at_end(part, text)]
        return min(found, default=None)

    def _before_secret(self, data: bytes, safe: int) -> int:
        """Return `safe`, or the beginning of a secret that this position would cut in two."""
        while True:
            cut = [
                found.start()
                for automaton in self._long
                for found in automaton.finditer(data)
                if found.start() < safe < found.end()
            ]
            if not cut:
                return safe
            safe = min(cut)

    def _hide(self, data: bytes) -> bytes:
        """Return the bytes with every form of a secret hidden; the same object if there is none."""
        for automaton in self._long:
            if automaton.search(data) is not None:
                data = automaton.sub(MASK.encode(), data)
        return data


def _beginnings_at_end(part: str, text: str) -> Iterator[int]:
    first = part[:SHORTEST]
    at = text.find(first) if len(part) > SHORTEST else -1
    while at >= 0:
        if part.startswith(text[at:]):
            yield at
        at = text.find(first, at + 1)


def _parts(secret: str) -> Iterator[str]:
    """The secret, or pieces of about the same length; and its lines."""
    pieces = ceil(len(secret) / PIECE_LENGTH)
    size = ceil(len(secret) / pieces)
    yield from (secret[start : start + size] for start in range(0, len(secret), size))
    lines = secret.splitlines()
    if len(lines) > 1:
        for line in (line.strip() for line in lines):
            if len(line) >= SHORTEST:
                yield from _parts(line)


def _patterns(parts: Iterable[str]) -> Iterator[str]:
    """Every form of these, in patterns that are small enough to compile, in the same order."""
    return _join_patterns("|".join(_forms(part)) for part in parts)


def _join_patterns(written: Iterable[str]) -> Iterator[str]:
    forms: list[str] = []
    size = 0
    for one in written:
        if forms and size + len(one) > _PATTERN:
            yield f"(?:{'|'.join(forms)})"
            forms, size = [], 0
        forms.append(one)
        size += len(one)
    if forms:
        yield f"(?:{'|'.join(forms)})"


def _automaton(pattern: str) -> _Automaton:
    import re2  # slow to load, and most runs have no secret

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.longest_match = True
    options.never_capture = True
    options.log_errors = False
    options.max_mem = _MEMORY
    automaton: _Automaton = re2.compile(pattern.encode("latin-1"), options)
    return automaton


def _short_mask(secrets: Iterable[str]) -> Callable[[str], str]:
    """Masks short secrets that stand alone."""
    import re

    found = "|".join(re.escape(secret) for secret in sorted(secrets, key=len, reverse=True))
    pattern = re.compile(rf"(?<!\w)(?:{found})(?!\w)")
    return partial(pattern.sub, MASK)


# ── the forms of a secret, as patterns over bytes ────────────────────────


def _forms(secret: str) -> Iterator[str]:
    yield "".join(_character(char) for char in secret)
    data = _bytes(secret)
    yield _BETWEEN_BYTES.join(f"{_hex(byte)}" for byte in data)
    for alignment in range(3):
        yield _base64(data, alignment)


def _beginnings(secret: str) -> str:
    """A pattern of every text that is, or could become, a form of the secret."""
    data = _bytes(secret)
    texts = [
        _beginning([_character(char) for char in secret], f"(?:{_PART_OF_CHARACTER})?"),
        _beginning([f"{_hex(byte)}{_BETWEEN_BYTES}" for byte in data], r"(?:[0-9A-Fa-f]|\\+)?"),
    ]
    for alignment in range(3):
        digits = [f"{digit}(?:{_BREAK})*" for digit in _base64_digits(data, alignment)]
        texts.append(_beginning([*digits, "[A-Za-z0-9+/_-]", "=", "="], r"(?:\\+|%2?)?"))
    return "|".join(texts)


def _beginning(elements: list[str], rest: str) -> str:
    """The first elements, and a part of the next one."""
    found = []
    for start in range(0, len(elements), _NESTED):
        nested = rest
        for element in reversed(elements[start : start + _NESTED]):
            nested = f"(?:{element}{nested}|{rest})"
        found.append("".join(elements[:start]) + nested)
    return "|".join(found)


_PART_OF_CHARACTER: Final = (
    r"\\+(?:u[0-9A-Fa-f]{0,3}|x[0-9A-Fa-f]?)?|%[0-9A-Fa-f]?|&#?[A-Za-z0-9]{0,8}"
    r"""|'(?:\\+'?|"+'?"*)?|\r"""
)
"""The beginning of an escaped character."""

_BREAK: Final = r"\s|\\+[rn]"
"""A line break inside a long text, literally or in JSON."""
_BETWEEN_BYTES: Final = f"(?::|{_BREAK})*"


def _character(char: str) -> str:
    """A pattern for a character: as text, percent-encoded, or after the escapes of some
    language.
    """
    data = char.encode("utf-8", "surrogatepass")
    plain = "".join(f"\\x{byte:02x}" for byte in data)
    pairs = char.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(pairs[at : at + 2]) for at in range(0, len(pairs), 2)]
    escaped = "".join(rf"\\+u{_nibbles(unit)}" for unit in units)
    octets = _bytes(char)
    percent = "".join(f"%{_hex(byte)}" for byte in octets)
    quoted = "".join(rf"\\+x{_hex(byte)}" for byte in octets)
    forms = [plain, escaped, percent, quoted, *_SPECIAL.get(char, ())]
    if not (char.isascii() and char.isalnum()):
        forms.append(f"&#(?:0*{ord(char)}|[xX]0*{_nibbles(ord(char), width=1)});")
    if not char.isalnum():
        # A backslash before it; for a backslash, any number of them.
        forms[0] = r"\\+" if char == "\\" else rf"\\*{plain}"
    return f"(?:{'|'.join(forms)})"


_QUOTED_QUOTE: Final = r"""'(?:\\+'|"+'"+)'"""

_SPECIAL: Final = {
    # other ways to write these: JSON and $'…', forms, shells, HTML
    "\n": (r"\\+n", r"\r\n", r"\\+r\\+n", "%0[Dd]%0[Aa]"),
    "\r": (r"\\+r",),
    "\t": (r"\\+t",),
    "\b": (r"\\+b",),
    "\f": (r"\\+f",),
    " ": (r"\+",),
    "'": (_QUOTED_QUOTE, "&apos;"),
    '"': ("&quot;",),
    "&": ("&amp;",),
    "<": ("&lt;",),
    ">": ("&gt;",),
}


_BASE64_DIGITS: Final = {"+": "(?:[+-]|%2[Bb])", "/": r"(?:\\*/|_|%2[Ff])"}
"""Digits that URLs and JSON write differently."""


def _base64(data: bytes, alignment: int) -> str:
    """A pattern for the part of a base64 text that these bytes decide, wherever it begins."""
    core = f"(?:{_BREAK})*".join(_base64_digits(data, alignment))
    rest = (alignment + len(data)) * 8 % 6
    # The last digit also holds bits of the following byte, so any digit matches there: it could
    # reveal bits of the secret.
    return core + ("[A-Za-z0-9+/_-]?=*" if rest else "=*")


def _base64_digits(data: bytes, alignment: int) -> list[str]:
    """Patterns of the digits that these bytes decide."""
    from base64 import b64encode

    coded = b64encode(bytes(alignment) + data).decode("ascii")
    first, whole = ceil(alignment * 8 / 6), (alignment + len(data)) * 8 // 6
    return [_BASE64_DIGITS.get(digit, digit) for digit in coded[first:whole]]


def _hex(byte: int) -> str:
    return _nibbles(byte, width=2)


def _nibbles(number: int, *, width: int = 4) -> str:
    """A number in hexadecimal digits of either case."""
    return "".join(
        digit if digit.isdecimal() else f"[{digit}{digit.upper()}]"
        for digit in f"{number:0{width}x}"
    )


def _bytes(text: str) -> bytes:
    """Encode a text as a program sees it; bytes that are not UTF-8 stay as they were."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
