"""Repeat a model request until its response matches the schema, a limited number of times.

Each new request tells the model what is wrong. The usage of the response includes all attempts.
If the last response does not match either, the failure keeps its text.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from plait.agents.messages import NO_USAGE, Message, ModelRequest, ModelResponse, OnText, TokenUsage
from plait.agents.providers.wire_formats import ANSWER_TOOL
from plait.agents.structured_output import StructuredResult, parse_structured
from plait.core.hints import Protocol
from plait.core.json_schema import is_schema, schema_violations
from plait.core.records import replace
from plait.core.values import Json, json_text
from plait.engine.outcome import Failure, StepError
from plait.engine.stop import StopSignal


class Model(Protocol):
    """Sends one request and returns its response."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def send(
        self,
        request: ModelRequest,
        *,
        timeout: float | None,
        stop: StopSignal,
        on_text: OnText | None = None,
    ) -> ModelResponse: ...

    def price(self, model: str | None, usage: TokenUsage) -> float | None: ...


class StructuredProvider:
    """The provider that steps use."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def fingerprint(self) -> str:
        return self.model.fingerprint

    def price(self, model: str | None, usage: TokenUsage) -> float | None:
        return self.model.price(model, usage)

    def ask(
        self,
        request: ModelRequest,
        *,
        timeout: float | None,
        stop: StopSignal,
        on_text: OnText | None = None,
    ) -> ModelResponse:
        if request.schema is None:
            return self.model.send(request, timeout=timeout, stop=stop, on_text=on_text)
        if not is_schema(request.schema):
            raise StepError(Failure("the schema of the answer is not JSON Schema", "refused"))
        return self._ask_until_valid(request, request.schema, _Clock(timeout), stop, on_text)

    def _ask_until_valid(
        self,
        request: ModelRequest,
        schema: Mapping[str, Json],
        clock: _Clock,
        stop: StopSignal,
        on_text: OnText | None,
    ) -> ModelResponse:
        used, left = NO_USAGE, request.schema_retries
        while True:
            try:
                answer = self.model.send(
                    request, timeout=clock.time_left(), stop=stop, on_text=on_text
                )
            except StepError as error:
                raise _with_usage(error, used) from None
            used = used + answer.usage
            answer = replace(_plain(answer), usage=used)
            if answer.uses:
                return answer
            found = parse_structured(answer.text, schema)
            if found.fits:
                return replace(answer, data=found.data)
            if left <= 0 or answer.ending == "refused":
                raise StepError(
                    _bad(self.name, answer, _why(found, schema), request.schema_retries - left + 1)
                )
            left -= 1
            response = Message("assistant", answer.text or "(nothing)")
            wrong = "\n".join(f"- {one}" for one in found.wrong)
            correction = Message(
                "user",
                f"This answer cannot be used:\n{wrong}\n"
                f"It has to be valid against this JSON Schema:\n{json_text(schema)}\n"
                "Give the whole answer again, as JSON alone.",
            )
            request = replace(request, messages=(*request.messages, response, correction))


class _Clock:
    """The time that is left for all attempts."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def time_left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())


def _plain(answer: ModelResponse) -> ModelResponse:
    """The response without the answer tool: the arguments of its call become the text."""
    given = [use for use in answer.uses if use.name == ANSWER_TOOL]
    others = tuple(use for use in answer.uses if use.name != ANSWER_TOOL)
    if not given:
        return answer
    if others:  # the model needs other tools before it answers
        return replace(answer, uses=others, blocks=None)
    arguments = given[0].arguments
    text = arguments if isinstance(arguments, str) else json_text(arguments)
    return replace(answer, text=text, uses=(), ending="end", blocks=None)


def _why(found: StructuredResult, schema: Mapping[str, Json]) -> str:
    """Explain what does not match, by places in the schema, which its author knows."""
    if not found.is_json:
        return "is not JSON"
    return f"does not fit the schema: see {', '.join(schema_violations(found.data, schema))} there"


def _bad(name: str, answer: ModelResponse, why: str, asked: int) -> Failure:
    if answer.ending == "refused":
        why = "declines to answer"
    room = "; it had no room left: raise max_tokens" if answer.ending == "length" else ""
    times = "" if asked == 1 else f", asked {asked} times"
    output = {
        "text": answer.text,
        "usage": answer.usage.record(),
        "model": answer.model,
        "ending": answer.ending,
    }
    return Failure(f"the answer of '{name}' {why}{room}{times}", "bad_answer", output=output)


def _with_usage(error: StepError, used: TokenUsage) -> StepError:
    """The error, with the usage of the responses before it."""
    output = error.failure.output if isinstance(error.failure.output, dict) else {}
    last = output.get("usage")
    whole = used + TokenUsage(**last) if isinstance(last, dict) else used
    if whole == NO_USAGE:
        return error
    return StepError(replace(error.failure, output={**output, "usage": whole.record()}))
