"""Answers that a program gives: a list of them, one after the other, or a function of the question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

from plait.engine.outcome import Failure, Interrupted, StepError
from plait.engine.run import Stop
from plait.hints import TypeAlias
from plait.providers.asking import Asking
from plait.steps.model import Answer, Ask, OnText, Usage

Said: TypeAlias = Answer | str
"""An answer, or its text alone."""
Script: TypeAlias = Sequence[Said] | Callable[[Ask], Said]


def scripted(script: Script, *, name: str = "scripted") -> Asking:
    """A provider that needs no server: `scripted(["Hello"])`, `scripted(lambda ask: …)`."""
    return Asking(Scripted(script, name=name))


class Scripted:
    """Remembers what it was asked, as `asked`."""

    def __init__(self, script: Script, *, name: str = "scripted") -> None:
        self.name = name
        self.fingerprint = f"scripted:{name}"
        self.asked: list[Ask] = []
        self._script = script
        self._lock = Lock()

    def once(
        self,
        ask: Ask,
        *,
        timeout: float | None,  # noqa: ARG002 - a function takes the time it takes
        stop: Stop,
        on_text: OnText | None = None,
    ) -> Answer:
        if stop.is_set():
            raise Interrupted
        said = self._said(ask)
        answer = Answer(said) if isinstance(said, str) else said
        if on_text is not None and answer.text:
            on_text(answer.text)
        return answer

    def _said(self, ask: Ask) -> Said:
        with self._lock:
            number = len(self.asked)
            self.asked.append(ask)
        if callable(self._script):
            return self._script(ask)
        if number >= len(self._script):
            told = f"the provider '{self.name}' has {len(self._script)} answers, and was asked once more"
            raise StepError(Failure(told, "refused"))
        return self._script[number]

    def price(self, model: str | None, usage: Usage) -> float | None:  # noqa: ARG002 - nothing is paid
        return usage.cost
