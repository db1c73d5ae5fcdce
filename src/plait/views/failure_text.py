"""A failure in a few words and lines, as every view shows it."""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.hints import Final
from plait.core.records import replace
from plait.core.values import Json
from plait.engine.outcome import IN_VAIN, TOO_MANY, Failure

LAST_LINES: Final = 5
LINE_LENGTH: Final = 400
PLAIT_FAILURE_KINDS: Final = frozenset(
    {"refused", "timeout", "network", "capture", "incomplete", "stopped", "empty", TOO_MANY}
)
"""Kinds of failures whose message Plait writes.  Other messages come from a program."""


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
    before, mark, _ = message.partition(IN_VAIN)
    own = before.rpartition("\n")[0] if mark else message
    return own, message[len(own) :]


def _message_lines(message: str, kind: str) -> list[str]:
    lines = [line.rstrip()[:LINE_LENGTH] for line in message.splitlines() if line.strip()]
    return lines[:LAST_LINES] if kind in PLAIT_FAILURE_KINDS else lines[-LAST_LINES:]
