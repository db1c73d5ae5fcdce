"""One model request to a server, with its key, attempts, deadline and stop signal.

A request is sent again only if the server did not act on it: its status says so, or it could not
be reached. A response that may have begun may have been paid for. An incomplete response fails;
the failure keeps the part that arrived. The key goes into one header, only to the address in the
provider file. A redirect is not followed. Everywhere else the key is masked.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC
from functools import partial
from http import HTTPStatus
from math import ceil
from queue import Empty, SimpleQueue
from random import Random
from threading import Event, Thread

from plait.agents.messages import ModelRequest, ModelResponse, OnText, TokenUsage
from plait.agents.providers import sse
from plait.agents.providers.spec import Spec
from plait.agents.providers.wire_formats import (
    RESERVED,
    MissingStopReason,
    RequestShape,
    ServerFault,
    UnreadableError,
    error_code,
    error_text,
)
from plait.agents.providers.wire_formats.table import WIRE_FORMATS
from plait.agents.turn_budget import estimate_usage
from plait.core.errors import (
    InternalError,
    PlaitError,
    RequestError,
    closest_name,
    format_names,
    shorten,
)
from plait.core.hints import Final, Protocol, TypeAlias
from plait.core.masking import Masker, mask_value
from plait.core.records import dataclass, replace
from plait.core.secret_names import looks_secret
from plait.core.values import MASK, Json
from plait.engine.outcome import (
    Failure,
    Interrupted,
    StepError,
    failure_kind_of_error,
    failure_kind_of_status,
)
from plait.engine.stop import StopSignal
from plait.template.sinks import render_header, render_json, render_url
from plait.tools.invocation import CallLimits, RequestCall

STOP_CHECK_SECONDS: Final = 0.05
"""Seconds between two checks of the stop signal while the server is silent."""
MOST_KEPT: Final = 2000
"""Characters of a server's error message that the failure keeps."""
MOST_QUOTED: Final = 300
"""Characters of that message that the failure's own message quotes."""
FIXES: Final[Mapping[str, str | None]] = {
    "too-large": "no answer of a model is that long: look at base_url and path of the provider",
    "encoding": "look at the server, or at what stands between",
}
"""Fixes for unreadable responses. The usual fixes name fields that a provider does not have."""


class Received(Protocol):
    """The response of a server: its head, and its body in pieces."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    def __iter__(self) -> Iterator[bytes]: ...


Open: TypeAlias = Callable[[RequestCall], AbstractContextManager[Received]]
"""Sends a request. Raises RequestError if there is no response."""
_Broken: TypeAlias = Callable[[ModelResponse, str, str], StepError]
"""Makes the failure for an incomplete response, from the response, the failure kind and why."""


class HttpModel:
    def __init__(
        self,
        spec: Spec,
        open: Open,
        *,
        environ: Mapping[str, str],
        now: Callable[[], float] = time.time,
        random: Random | None = None,
    ) -> None:
        self.name = spec.name
        self.fingerprint = spec.fingerprint
        self.price = spec.price
        self._spec = spec
        self._open = open
        self._environ = environ
        self._now = now
        self._random = random or Random()
        self._wire_format = WIRE_FORMATS[spec.family]
        self._key = environ.get(spec.auth.env, "").strip() if spec.auth.env else ""
        self._secrets = tuple(_secrets(spec, environ))
        self.mask = Masker(self._secrets).mask if self._secrets else str

    def send(
        self,
        request: ModelRequest,
        *,
        timeout: float | None,
        stop: StopSignal,
        on_text: OnText | None = None,
    ) -> ModelResponse:
        spec = self._spec
        deadline = time.monotonic() + (
            spec.timeout if timeout is None else min(timeout, spec.timeout)
        )
        model = self._model(request)
        call = self._call(request, model)
        stream = None if on_text is None else _MaskedStream(on_text, self._secrets)
        broken = partial(self._incomplete_error, request, model)
        with self._open_exchange(call, deadline, stop) as exchange:
            kind = exchange.head().headers.get("content-type", "").partition(";")[0]
            # Some servers do not stream although the request asks for it.
            is_streamed = kind.strip().lower() == "text/event-stream"
            read = self._read_stream if is_streamed else self._read_body
            response = read(exchange, stream, broken)
        if self._secrets:
            response = ModelResponse.of(mask_value(response.record(), self.mask))
        usage = self._with_cost(estimate_usage(response, request), model, response.model or model)
        return replace(response, usage=usage, model=response.model or model)

    def _with_cost(self, usage: TokenUsage, *names: str) -> TokenUsage:
        """Add the cost, by the first of these names that has a price: servers often return
        a more exact name.
        """
        known = (self._spec.price(name, usage) for name in names)
        return replace(usage, cost=next((one for one in known if one is not None), None))

    # ── the request ──────────────────────────────────────────────────────

    def _model(self, request: ModelRequest) -> str:
        model = self._spec.model_id(request.model)
        if model is None:
            variables = self._spec.model_variables
            or_so = (
                f", or put its name into the variable {format_names(variables)}"
                if variables
                else ""
            )
            raise _refusal_error(
                f"the provider '{self.name}' has no default_model: name a model{or_so}"
            )
        return model

    def _call(self, request: ModelRequest, model: str) -> RequestCall:
        spec = self._spec
        shape = RequestShape(model, spec.structured, spec.stream)
        values = self._wire_format.values(replace(request, options=self._options(request)), shape)
        body = render_json(spec.body, values, env=self._environ)
        base = render_url(spec.base_url, {}, env=self._environ, host_from_value=True)
        headers = [
            (name, render_header(value, {}, env=self._environ)) for name, value in spec.headers
        ]
        return RequestCall(
            "POST",
            base.rstrip("/") + render_url(spec.path, {"model": model}, env=self._environ),
            (*headers, *self._key_header(), ("content-type", "application/json")),
            # JSON cannot hold the bytes of a command's output that are not text.
            body.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode(),
        )

    def _options(self, request: ModelRequest) -> dict[str, Json]:
        """The options. Raises StepError if the body has no placeholder for one."""
        most = self._spec.max_tokens
        options = {**({} if most is None else {"max_tokens": most}), **request.options}
        places = {
            str(placeholder)
            for placeholder in self._spec.body.placeholders
            if placeholder.kind == "param"
        } - RESERVED
        for name in request.options:
            if name not in places:
                guess = closest_name(name, places)
                meant = (
                    f"did you mean '{guess}'?"
                    if guess
                    else f"it takes {format_names(sorted(places))}"
                )
                raise _refusal_error(
                    f"the provider '{self.name}' takes no option '{name}': {meant}"
                )
        asked = options.get("max_tokens")
        if most is not None and isinstance(asked, int | float) and asked > most:
            options["max_tokens"] = most
        return options

    def _key_header(self) -> list[tuple[str, str]]:
        auth = self._spec.auth
        if auth.type == "none" or (auth.optional and not self._key):
            return []
        if not self._key:
            raise _refusal_error(
                f"the provider '{self.name}' needs a key: put it into the variable {auth.env}"
            )
        if not self._key.isascii() or not self._key.isprintable() or " " in self._key:
            raise _refusal_error(
                f"the variable {auth.env} holds characters that no key has: look for line breaks"
            )
        if auth.type == "bearer":
            return [("authorization", f"Bearer {self._key}")]
        return [(auth.header, self._key)]

    # ── attempts ─────────────────────────────────────────────────────────

    def _open_exchange(self, call: RequestCall, deadline: float, stop: StopSignal) -> _Exchange:
        """An exchange with a status of success. Raises the failure of the last attempt."""
        pauses = self._spec.retry.delays(self._random)
        attempt = 0
        while True:
            attempt += 1
            exchange = self._attempt(call, deadline, stop)
            try:
                head = exchange.head()
                if 200 <= head.status < 300:
                    return exchange
                pause = next(pauses, None) if head.status in self._spec.statuses else None
                asked = None if pause is None else pause_asked(head.headers, self._now())
                pause = pause if asked is None else asked
                failure = self._status_failure(exchange, head, attempt)
            except RequestError as error:
                pause = next(pauses, None) if error.code == "unreachable" else None
                failure = self._request_failure(error, attempt)
            except BaseException:
                exchange.close()
                raise
            exchange.close()
            if pause is None or time.monotonic() + pause >= deadline:
                raise StepError(failure)
            if stop.wait(pause):
                raise Interrupted

    def _attempt(self, call: RequestCall, deadline: float, stop: StopSignal) -> _Exchange:
        if stop.is_set():
            raise Interrupted
        left = deadline - time.monotonic()
        if left <= 0:
            raise StepError(
                Failure(f"the provider '{self.name}' did not answer in time", "timeout")
            )
        return _Exchange(self._open, replace(call, limits=CallLimits(timeout=left)), stop)

    def _status_failure(self, exchange: _Exchange, head: Head, attempt: int) -> Failure:
        """The failure for a status that is not a success."""
        try:
            body = b"".join(exchange.pieces())
        except RequestError:
            body = b""
        data = _json(body)
        kind, todo = self._meaning(head)
        # Mask first: a secret that is cut in half is not found.
        text = error_text(data)
        message = self.mask(body.decode("utf-8", "replace") if text is None else text)[:MOST_KEPT]
        word = error_code(data)
        phrase = next((f" {known.phrase}" for known in HTTPStatus if known == head.status), "")
        named = f" ({word})" if word else ""
        quote = f", and says {quoted}" if (quoted := _quote_line(message)) else ""
        what = (
            f"the provider '{self.name}' answered "
            f"{head.status}{phrase}{named}{_after(attempt)}{quote}{todo}"
        )
        return Failure(what, kind, output={"said": message, "status": head.status})

    def _meaning(self, head: Head) -> tuple[str, str]:
        """The kind of failure, and what to do about it."""
        status, variable = head.status, self._spec.auth.env
        pause = ceil(pause_asked(head.headers, self._now()) or 0)
        wait = f": wait {pause} second{'' if pause == 1 else 's'}" if pause else ""
        if status in (401, 403):
            look = (
                f"look at the key in {variable}"
                if variable
                else "it wants a key: see auth in its file"
            )
            return "refused", f": {look}, and what it may do"
        if status == 404:
            return (
                "refused",
                ": look at the name of the model, and at base_url and path of the provider",
            )
        if status == 429:
            return (
                "rate_limit",
                f"{wait or ': wait'}, or look at the limits and the credit of your account there",
            )
        if 300 <= status < 400:
            return (
                "refused",
                ": it redirects, which a key does not follow; write the last address as base_url",
            )
        kind = failure_kind_of_status(status)
        return ("refused", ": it rejected the request") if kind == "failed" else (kind, wait)

    def _request_failure(self, error: RequestError, attempt: int) -> Failure:
        what = f"the provider '{self.name}' gave no answer: {error.what}{_after(attempt)}"
        fix = FIXES.get(error.code or "", error.fix)
        return Failure(f"{what}; {fix}" if fix else what, _failure_kind(error))

    # ── the response ─────────────────────────────────────────────────────────────

    def _read_body(
        self, exchange: _Exchange, stream: _MaskedStream | None, broken: _Broken
    ) -> ModelResponse:
        try:
            body = b"".join(exchange.pieces())
            response = self._wire_format.response(_json(body))
        except RequestError as error:
            # The status was a success, so the server accepted the request and may charge for it.
            paid = broken(ModelResponse(), "", "").failure.output
            raise StepError(replace(self._request_failure(error, 1), output=paid)) from None
        except UnreadableError as error:
            output = {"said": self.mask(body.decode("utf-8", "replace"))[:MOST_KEPT]}
            raise StepError(
                Failure(self._unreadable(error), "server_error", output=output)
            ) from None
        except MissingStopReason as error:
            raise broken(error.half, "server_error", "it does not say why it ends") from None
        if stream is not None:
            stream.write(response.text)
            stream.end()
        return response

    def _read_stream(
        self, exchange: _Exchange, stream: _MaskedStream | None, broken: _Broken
    ) -> ModelResponse:
        reader = self._wire_format.stream_reader()
        try:
            for data in sse.events(exchange.pieces()):
                text = reader.take(data)
                if stream is not None and text:
                    stream.write(text)
                if reader.is_last:
                    break
        except RequestError as error:
            raise broken(reader.response(), _failure_kind(error), error.what) from None
        except ServerFault as error:
            named = f" ({error.word})" if error.word else ""
            words = f", {quoted}" if (quoted := _quote_line(self.mask(error.text))) else ""
            raise broken(reader.response(), "server_error", f"{error}{named}{words}") from None
        except UnreadableError as error:
            raise broken(reader.response(), "server_error", self._unreadable(error)) from None
        if not reader.is_over:
            raise broken(reader.response(), "network", "the stream ended before the answer did")
        if stream is not None:
            stream.end()
        return reader.response()

    def _incomplete_error(
        self, request: ModelRequest, model: str, half: ModelResponse, kind: str, why: str
    ) -> StepError:
        usage = self._with_cost(
            estimate_usage(half, request, broke_off=True), model, half.model or model
        )
        output: dict[str, Json] = {
            "text": self.mask(half.text),
            "usage": usage.record(),
            "model": half.model or model,
        }
        return StepError(
            Failure(
                f"the answer of '{self.name}' broke off: {why}; the partial response is not used",
                kind,
                output=output,
            )
        )

    def _unreadable(self, error: UnreadableError) -> str:
        return f"the provider '{self.name}' does not speak {self._spec.family}: expected {error}"


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    headers: Mapping[str, str]


class _Exchange:
    """A request in a separate thread, so that the caller can stop waiting at any time.

    A silent server cannot delay a run that has to stop. The thread ends with the next byte or
    with the deadline, and what it still receives is dropped.
    """

    def __init__(self, open: Open, call: RequestCall, stop: StopSignal) -> None:
        self._open = open
        self._stop = stop
        self._queue: SimpleQueue[Head | bytes | PlaitError | None] = SimpleQueue()
        self._left = Event()
        self._head: Head | None = None
        self._ended = False
        Thread(target=self._carry_out, args=(call,), name="plait-provider", daemon=True).start()

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._left.set()

    def head(self) -> Head:
        if self._head is None:
            got = self._next()
            assert isinstance(got, Head)
            self._head = got
        return self._head

    def pieces(self) -> Iterator[bytes]:
        while not self._ended:
            got = self._next()
            if isinstance(got, bytes):
                yield got
            else:
                self._ended = True

    def _next(self) -> Head | bytes | None:
        while True:
            if self._stop.is_set():
                self.close()
                raise Interrupted
            try:
                got = self._queue.get(timeout=STOP_CHECK_SECONDS)
            except Empty:
                continue
            if isinstance(got, PlaitError):
                raise got
            return got

    def _carry_out(self, call: RequestCall) -> None:
        end: PlaitError | None = InternalError("a request ended without a result")
        try:
            with self._open(call) as response:
                self._queue.put(Head(response.status, response.headers))
                for piece in response:
                    if self._left.is_set():
                        return
                    self._queue.put(piece)
            end = None
        except PlaitError as error:
            end = error
        finally:
            self._queue.put(end)


class _MaskedStream:
    """Passes text on as it arrives, with keys masked even if they arrive in two pieces."""

    def __init__(self, on_text: OnText, secrets: Sequence[str]) -> None:
        self._on_text = on_text
        self._secrets = secrets
        self._kept = ""

    def write(self, text: str) -> None:
        whole = self._kept + text
        for secret in self._secrets:
            whole = whole.replace(secret, MASK)
        end = len(whole) - max(
            (_secret_prefix_length(secret, whole) for secret in self._secrets), default=0
        )
        self._kept = whole[end:]
        if end:
            self._on_text(whole[:end])

    def end(self) -> None:
        if self._kept:
            self._on_text(self._kept)
            self._kept = ""


# ── helpers, in order of use ─────────────────────────────────────────────


def _secrets(spec: Spec, environ: Mapping[str, str]) -> Iterator[str]:
    """The values of the variables that hold keys: that of `auth`, and those with a secret name."""
    templates = (spec.body, *(value for _, value in spec.headers))
    named = {
        str(placeholder)
        for one in templates
        for placeholder in one.placeholders
        if placeholder.kind == "env"
    }
    for name in sorted({spec.auth.env, *filter(looks_secret, named)}):
        if value := environ.get(name, "").strip():
            yield value


def _secret_prefix_length(secret: str, text: str) -> int:
    """How many of the last characters of a text could be the first of a secret."""
    longest = min(len(text), len(secret) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(secret[:n])), 0)


def pause_asked(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that a server asks to wait, as a number or a date. None without a usable value."""
    from email.utils import parsedate_to_datetime

    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", exact := headers.get("retry-after-ms", "")):
        return float(exact) / 1000
    written = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", written):
        return float(written)
    try:
        moment = parsedate_to_datetime(written)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0.0, moment.timestamp() - now)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _failure_kind(error: RequestError) -> str:
    """The failure kind of an error; an unreadable response is a fault of the server."""
    return "server_error" if error.code in FIXES else failure_kind_of_error(error)


def _refusal_error(what: str) -> StepError:
    return StepError(Failure(what, "refused"))


def _after(attempts: int) -> str:
    return "" if attempts == 1 else f", after {attempts} attempts"


def _json(body: bytes) -> Json:
    try:
        return json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _quote_line(message: str) -> str:
    """The message quoted on one line. Empty for markup and data, which are not for people."""
    line = " ".join(message.split())
    if not line or line[0] in "<{[":
        return ""
    return f'"{shorten(line, MOST_QUOTED)}"'
