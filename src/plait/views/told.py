"""How something failed, in few words."""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.hints import Final
from plait.core.records import replace
from plait.core.values import Json
from plait.engine.outcome import IN_VAIN, TOO_MANY, Failure

LAST_LINES: Final = 5
LINE_LENGTH: Final = 400
OWN_WORDS: Final = frozenset(
    {"refused", "timeout", "network", "capture", "incomplete", "stopped", "empty", TOO_MANY}
)
"""Kinds of failures whose message is written by Plait, and not by a program."""


def told(failure: Failure) -> tuple[str, tuple[str, ...]]:
    """How something failed, in a word or two, and the lines that say why."""
    how = failure.kind
    own, handler = _split(failure.message)
    if failure.kind == "exit" and failure.exit_code is not None:
        how = f"exit {failure.exit_code}"
        own = own.removeprefix(f"exit code {failure.exit_code}").removeprefix(": ")
    said = _last_words(failure.output) if failure.kind == "timeout" else ()
    return how, (*_told(own, failure.kind), *said, *_told(handler, failure.kind))


def _last_words(output: Json) -> list[str]:
    """What a command printed last before its time was up: that tells where it hung."""
    if not isinstance(output, Mapping):
        return []
    said = (output.get(name) for name in ("stderr", "output"))
    text = next((one for one in said if isinstance(one, str) and one.strip()), "")
    return _told(text[-LINE_LENGTH * LAST_LINES :], "exit")


def _split(message: str) -> tuple[str, str]:
    """What is said of a step, and of its handler, if that failed, too."""
    before, mark, _ = message.partition(IN_VAIN)
    own = before.rpartition("\n")[0] if mark else message
    return own, message[len(own) :]


def _told(message: str, kind: str) -> list[str]:
    lines = [line.rstrip()[:LINE_LENGTH] for line in message.splitlines() if line.strip()]
    return lines[:LAST_LINES] if kind in OWN_WORDS else lines[-LAST_LINES:]


def one_line_of(failure: Failure) -> str:
    """An error of ours says first what is wrong, then where and what to do; a program says it last."""
    lines = told(replace(failure, message=_split(failure.message)[0]))[1]
    words = [line for line in lines if not line.startswith("fix: ")]
    if not words:
        return ""
    # What ends with what to do is said by us, or by a program that says things as we do.
    return words[0] if failure.kind in OWN_WORDS or len(words) < len(lines) else words[-1]
