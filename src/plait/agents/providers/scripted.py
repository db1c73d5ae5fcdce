"""Responses from a program: a list, a function of the request, or an object with `ask`.

An exception or a wrong result of the program is a failure of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

from plait.agents.messages import ModelRequest, ModelResponse, OnText, TokenUsage
from plait.agents.providers.structured import StructuredProvider
from plait.core.hints import Any, TypeAlias
from plait.engine.outcome import Failure, Interrupted, StepError, call_author_function
from plait.engine.stop import StopSignal

Response: TypeAlias = ModelResponse | str
"""A response, or only its text."""
Script: TypeAlias = Sequence[Response] | Callable[[ModelRequest], Response]


def scripted(script: Script, *, name: str = "scripted") -> StructuredProvider:
    """A provider that needs no server: `scripted(["Hello"])`, `scripted(lambda request: …)`."""
    return StructuredProvider(Scripted(script, name=name))


class Scripted:
    """Keeps its requests as `asked`."""

    def __init__(self, script: Script, *, name: str = "scripted") -> None:
        self.name = name
        self.fingerprint = f"scripted:{name}"
        self.asked: list[ModelRequest] = []
        self._script = script
        self._lock = Lock()

    def send(
        self,
        request: ModelRequest,
        *,
        timeout: float | None,  # noqa: ARG002 - a function cannot be interrupted
        stop: StopSignal,
        on_text: OnText | None = None,
    ) -> ModelResponse:
        if stop.is_set():
            raise Interrupted
        response = self._next_response(request)
        answer = require_response(
            ModelResponse(response) if isinstance(response, str) else response, self.name
        )
        if on_text is not None and answer.text:
            on_text(answer.text)
        return answer

    def _next_response(self, request: ModelRequest) -> Response:
        with self._lock:
            number = len(self.asked)
            self.asked.append(request)
        if callable(self._script):
            script = self._script
            return call_author_function(lambda: script(request), f"provider '{self.name}'")
        if number >= len(self._script):
            what = (
                f"the provider '{self.name}' has {len(self._script)} answers, and was asked once "
                "more"
            )
            raise StepError(Failure(what, "refused"))
        return self._script[number]

    def price(self, model: str | None, usage: TokenUsage) -> float | None:  # noqa: ARG002 - nothing is paid
        return usage.cost or 0.0


class AuthorProvider:
    """An author's object with `ask`. `name`, `fingerprint` and `price` are optional."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self.name: str = str(getattr(given, "name", type(given).__qualname__))
        self.fingerprint: str = str(getattr(given, "fingerprint", f"python:{self.name}"))

    def ask(
        self,
        request: ModelRequest,
        *,
        timeout: float | None,
        stop: StopSignal,
        on_text: OnText | None = None,
    ) -> ModelResponse:
        given = self._given
        answer = call_author_function(
            lambda: given.ask(request, timeout=timeout, stop=stop, on_text=on_text),
            f"provider '{self.name}'",
        )
        return require_response(answer, self.name)

    def price(self, model: str | None, usage: TokenUsage) -> float | None:
        price = getattr(self._given, "price", None)
        return usage.cost if price is None else price(model, usage)


def require_response(given: object, name: str) -> ModelResponse:
    if isinstance(given, ModelResponse):
        return given
    what = (
        f"the provider '{name}' gave no answer, but {type(given).__name__}: return text, or an "
        "Answer"
    )
    raise StepError(Failure(what, "bad_answer"))
