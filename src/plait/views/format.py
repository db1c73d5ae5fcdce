"""Numbers, times, titles, signs, failures and other text for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from math import floor, log10

from plait.core.hints import TYPE_CHECKING
from plait.core.patterns import lazy_pattern
from plait.core.records import replace
from plait.core.values import json_text
from plait.engine.kinds import failure_kinds
from plait.engine.outcome import HANDLER_FAILED, Failure
from plait.views.terminal import cut, paint_for, printable

if TYPE_CHECKING:
    from plait.core.hints import Final, TextIO
    from plait.core.values import Json
    from plait.views.terminal import Paint


LEAST_MONEY: Final = 0.000001
ROUNDING: Final = 1e-6
"""Differences of times are not exact: 1.3 s may come as 1.2999999 s."""

TITLE_LENGTH: Final = 60

Line = tuple[str, str]
"""A text, and its colour where there are colours."""

LAST_LINES: Final = 5
LINE_LENGTH: Final = 400
PLAIT_FAILURE_KINDS: Final = frozenset(failure_kinds("by_plait"))

SIGNS: Final = {
    # state       sign  in ASCII  colour
    "waiting":     ("○", "o", "dim"),
    "running":     ("●", "*", "cyan"),
    "done":        ("✓", "+", "green"),
    "failed":      ("✗", "x", "red"),
    "skipped":     ("–", "-", "dim"),
    "interrupted": ("■", "#", "yellow"),
    "partial":     ("!", "!", "yellow"),
}  # fmt: skip


def sign(state: str, *, ascii_only: bool = False) -> str:
    return SIGNS[state][1 if ascii_only else 0]


def state_colour(state: str) -> str:
    return SIGNS[state][2]


def json_line(value: Json) -> str:
    """One line of JSON that cannot drive a terminal: what is not printable is escaped."""
    line = json_text(value)
    return line if line.isprintable() else json.dumps(json.loads(line), separators=(",", ":"))


def short(number: int) -> str:
    """812, 4.1k, 3.2M."""
    for size, sign in ((1_000_000, "M"), (1000, "k")):
        if number >= size:
            return f"{number / size:.1f}{sign}"
    return str(number)


def money(cost: float) -> str:
    """$1.20, $0.02, $0.0043."""
    if cost >= 0.01 or not cost:
        return f"${cost:.2f}"
    if cost < LEAST_MONEY:
        return f"<${LEAST_MONEY:f}"
    return f"${cost:.{1 - floor(log10(cost))}f}".rstrip("0")


def nth_attempt(attempt: int, of: int) -> str:
    """attempt 2 of 3; attempt 2 if `of` is 0."""
    return f"attempt {attempt} of {of}" if of else f"attempt {attempt}"


def clock(seconds: float) -> str:
    """0.4 s, 12.3 s, 3:05, 1:02:03, 2d 3:04:05."""
    tenths = int(max(0.0, seconds) * 10 + ROUNDING)
    if tenths < 600:
        return f"{tenths // 10}.{tenths % 10} s"
    whole = tenths // 10
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}d ' if days else ''}{hours}:{minutes:02}:{rest:02}"


def rough_clock(seconds: float) -> str:
    """An estimate: 6 s, 3:05."""
    whole = round(max(0.0, seconds))
    return f"{whole} s" if whole < 60 else clock(whole)


def speed(rate: float) -> str:
    """1.5/s, 12.0/min, 3.0/h."""
    for per, name in ((1, "s"), (60, "min")):
        if rate * per >= 1:
            return f"{rate * per:.1f}/{name}" if rate * per < 100 else f"{rate * per:.0f}/{name}"
    return f"{rate * 3600:.1f}/h"


_SEQUENCES: Final = lazy_pattern(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])"
)


def without_sequences(text: str) -> str:
    """Output without the escape sequences of a terminal; a carriage return is a new line."""
    return _SEQUENCES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


def one_line(text: str, room: int | None = TITLE_LENGTH) -> str:
    """One printable line of at most `room` characters."""
    return cut(without_sequences(text).replace("\t", " "), room)


def first_line(text: str) -> str:
    return text.partition("\n")[0]


def clean_block(text: str) -> str:
    """Several printable lines."""
    return printable(without_sequences(text))


def write_lines(lines: Iterator[Line], stream: TextIO | None = None) -> None:
    """Print lines without cutting them: a person copies commands from them."""
    stream = sys.stdout if stream is None else stream
    paint: Paint = paint_for(stream)
    for text, colour in lines:
        print(paint(text, colour) if colour else text, file=stream)


# ── failures ─────────────────────────────────────────────────────────────


def describe_failure(failure: Failure) -> tuple[str, tuple[str, ...]]:
    """The cause in a word or two, such as `exit 2`, and the lines that explain it."""
    cause = failure.kind
    own, handler = _split_handler(failure.message)
    if failure.kind == "exit" and failure.exit_code is not None:
        cause = f"exit {failure.exit_code}"
        own = own.removeprefix(f"exit code {failure.exit_code}").removeprefix(": ")
    printed = _last_printed(failure.output) if failure.kind == "timeout" else ()
    lines = (*_message_lines(own, failure.kind), *printed)
    return cause, (*lines, *_message_lines(handler, failure.kind))


def short_failure(failure: Failure) -> str:
    """The one line of a failure that explains most; empty if it has none.

    Plait writes the problem first, then where it is and how to fix it.  A program writes the
    problem last.
    """
    lines = describe_failure(replace(failure, message=_split_handler(failure.message)[0]))[1]
    without_fix = [line for line in lines if not line.startswith("fix: ")]
    if not without_fix:
        return ""
    problem_is_first = failure.kind in PLAIT_FAILURE_KINDS or len(without_fix) < len(lines)
    return without_fix[0] if problem_is_first else without_fix[-1]


def _last_printed(output: Json) -> list[str]:
    """The last lines that a command printed before it timed out: they show where it hung."""
    if not isinstance(output, Mapping):
        return []
    texts = (output.get(name) for name in ("stderr", "output"))
    text = next((one for one in texts if isinstance(one, str) and one.strip()), "")
    return _message_lines(text[-LINE_LENGTH * LAST_LINES :], "exit")


def _split_handler(message: str) -> tuple[str, str]:
    """The message of a step, and that of its failure handler if the handler failed, too."""
    before, mark, _ = message.partition(HANDLER_FAILED)
    own = before.rpartition("\n")[0] if mark else message
    return own, message[len(own) :]


def _message_lines(message: str, kind: str) -> list[str]:
    lines = [line.rstrip()[:LINE_LENGTH] for line in message.splitlines() if line.strip()]
    return lines[:LAST_LINES] if kind in PLAIT_FAILURE_KINDS else lines[-LAST_LINES:]
