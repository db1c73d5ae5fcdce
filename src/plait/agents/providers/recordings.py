"""Record the exchanges with a model, and replay them without a server or a key.

A file holds exchanges, as a YAML list or as JSON lines. `ask` is a request, or only the text of
its last message. `answer` is a response, or only its text. A replay finds the response by its
request, or gives the responses in order. A request that is not recorded is refused; the failure
names the fields in which it differs from the most similar one, and quotes the last text of the
request as the `ask` of a new exchange. The recorded one is not quoted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock

from plait.agents.messages import (
    Message,
    ModelRequest,
    ModelResponse,
    OnText,
    TokenUsage,
    ToolRequest,
)
from plait.agents.providers.structured import Model
from plait.core import documents
from plait.core.digests import json_digest
from plait.core.errors import InputError, Problem, shorten
from plait.core.hints import Final, Literal
from plait.core.masking import mask_value
from plait.core.records import dataclass
from plait.core.values import Json, json_text
from plait.engine.outcome import Failure, Interrupted, StepError
from plait.engine.stop import StopSignal

LINES: Final = (".jsonl", ".ndjson")
ENTRY: Final = ("ask", "answer")
ANSWER: Final = ("text", "uses", "usage", "model", "ending", "data", "blocks")
USE: Final = ("id", "name", "arguments")
_FIX: Final = (
    "an exchange has ask and answer; an answer is text, or a map: text, uses, usage, model, ending"
)
ASKED_LENGTH: Final = 300
"""Characters of a request that its refusal shows."""
ENDINGS: Final = ("end", "tools", "length", "refused")


# ── requests and responses as data ───────────────────────────────────────


def request_key(request: ModelRequest) -> dict[str, Json]:
    """The parts of a request that identify it: all that the model gets, without empty fields."""
    fields: dict[str, Json] = {
        "model": request.model,
        "system": request.system,
        "messages": [_message(message) for message in request.messages],
        "tools": [
            {"name": offer.name, "description": offer.description, "schema": dict(offer.schema)}
            for offer in request.tools
        ],
        "schema": None if request.schema is None else dict(request.schema),
    }
    return {name: value for name, value in fields.items() if value}


def _message(message: Message) -> dict[str, Json]:
    fields: dict[str, Json] = {
        "text": message.text,
        "uses": [use.record() for use in message.uses],
        "answers": message.answers,
        "failed": message.failed,
        "blocks": message.blocks,
    }
    return {"role": message.role, **{name: value for name, value in fields.items() if value}}


# ── files ────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Entry:
    """An exchange of a file. It matches every request if `request` is None."""

    request: Json
    answer: ModelResponse

    def fits(self, request: Mapping[str, Json]) -> bool:
        return not any(_differences(self.request, request))


def load(path: str) -> list[Entry]:
    """The exchanges of a file. Raises InputError with all problems of the file."""
    found = list(_lines(path) if path.endswith(LINES) else _items(path))
    entries: list[Entry] = []
    problems: list[Problem] = []
    for number, exchange in enumerate(found, 1):
        wrong = list(_wrong(exchange))
        problems += [
            Problem(f"exchange {number}: {what}", path, _FIX, code="replay") for what in wrong
        ]
        if not wrong:
            entries.append(Entry(exchange.get("ask"), _answer(exchange["answer"])))
    if problems:
        raise InputError.together(problems)
    return entries


def _items(path: str) -> Iterator[Json]:
    data = documents.load(path).data()
    if not isinstance(data, list):
        raise InputError(
            "a replay file is a list of exchanges",
            path,
            "write - ask: … and answer: …",
            code="replay",
        )
    yield from data


def _lines(path: str) -> Iterator[Json]:
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.strip():
                    yield documents.parse_json(line, path)
    except FileNotFoundError:
        raise InputError(
            "there is no such file", path, "record it first, or check the path", code="no-file"
        ) from None
    except (OSError, UnicodeDecodeError):
        raise InputError(
            "this file cannot be read", path, "check that it is UTF-8 text", code="no-file"
        ) from None


def _wrong(exchange: Json) -> Iterator[str]:
    if not isinstance(exchange, dict) or "answer" not in exchange:
        yield "it has no answer"
        return
    yield from (f"it has no field '{name}'" for name in exchange if name not in ENTRY)
    if not isinstance(exchange.get("ask"), str | dict | None):
        yield "'ask' is text or a map"
    answer = exchange["answer"]
    if isinstance(answer, dict):
        yield from _wrong_answer(answer)
    elif not isinstance(answer, str):
        yield "'answer' is text or a map"


def _wrong_answer(answer: dict[str, Json]) -> Iterator[str]:
    yield from (f"an answer has no field '{name}'" for name in answer if name not in ANSWER)
    if not isinstance(answer.get("text") or "", str):
        yield "'text' is text"
    if answer.get("ending", "end") not in ENDINGS:
        yield f"'ending' is one of {', '.join(ENDINGS)}"
    uses = answer.get("uses") or []
    if not isinstance(uses, list) or not all(_is_use(use) for use in uses):
        yield "'uses' is a list of maps: name, arguments, id"
    counts = answer.get("usage") or {}
    known = list(TokenUsage(estimated=1).record())
    if not isinstance(counts, dict) or not all(
        name in known and (isinstance(count, int | float) or (count is None and name == "cost"))
        for name, count in counts.items()
    ):
        yield f"'usage' is a map of numbers: {', '.join(known)}"


def _is_use(use: Json) -> bool:
    return (
        isinstance(use, dict)
        and isinstance(use.get("name"), str)
        and all(name in USE for name in use)
    )


def _answer(answer: Json) -> ModelResponse:
    if isinstance(answer, str):
        return ModelResponse(answer)
    uses = [
        ToolRequest(use.get("id") or f"call_{place}", use["name"], use.get("arguments", {}))
        for place, use in enumerate(answer.get("uses") or [], 1)
    ]
    usage = TokenUsage(**(answer.get("usage") or {}))
    ending: Json = answer.get("ending") or ("tools" if uses else "end")
    text, model = answer.get("text") or "", answer.get("model") or ""
    return ModelResponse(
        text, tuple(uses), usage, model, ending, answer.get("data"), answer.get("blocks")
    )


# ── replay ───────────────────────────────────────────────────────────────


class RecordedModel:
    def __init__(self, name: str, path: str, match: Literal["exact", "order"] = "exact") -> None:
        self.name = name
        self._path = path
        self._match = match
        self._entries = load(path)
        self._given: Counter[int] = Counter()
        self._lock = Lock()
        exchanges = [[entry.request, entry.answer.record()] for entry in self._entries]
        self.fingerprint = json_digest([name, match, exchanges])

    def send(
        self,
        request: ModelRequest,
        *,
        timeout: float | None,  # noqa: ARG002 - nothing to wait for
        stop: StopSignal,
        on_text: OnText | None = None,
    ) -> ModelResponse:
        if stop.is_set():
            raise Interrupted
        with self._lock:
            answer = (self._next if self._match == "order" else self._find_response)(
                request_key(request)
            )
        if on_text is not None and answer.text:
            on_text(answer.text)
        return answer

    def price(self, model: str | None, usage: TokenUsage) -> float | None:  # noqa: ARG002 - as it was paid then
        return usage.cost or 0.0

    def _find_response(self, request: dict[str, Json]) -> ModelResponse:
        """Recorded responses to the same request are given in order, then the last one again."""
        fitting = [place for place, entry in enumerate(self._entries) if entry.fits(request)]
        if not fitting:
            raise self._unknown(request)
        fresh = [place for place in fitting if not self._given[place]]
        place = fresh[0] if fresh else fitting[-1]
        self._given[place] += 1
        return self._entries[place].answer

    def _next(self, request: dict[str, Json]) -> ModelResponse:
        place = self._given.total()
        if place >= len(self._entries):
            why = f"{self._path} holds {len(self._entries)} answers, and one more is asked for"
            raise self._refusal(request, why)
        entry = self._entries[place]
        if not entry.fits(request):
            where = next(_differences(entry.request, request))
            why = f"exchange {place + 1} of {self._path} is another question: it differs in {where}"
            raise self._refusal(request, why)
        self._given[place] += 1
        return entry.answer

    def _unknown(self, request: dict[str, Json]) -> StepError:
        count = len(self._entries)
        alike = [list(_differences(entry.request, request)) for entry in self._entries]
        why = f"none of the {count} questions in {self._path} is this one"
        if alike:
            place = min(range(count), key=lambda one: len(alike[one]))
            why += f"; exchange {place + 1} is most like it, and differs in {', '.join(alike[place][:3])}"
        messages, tools = (len(request.get(part, [])) for part in ("messages", "tools"))
        shape = f"messages: {messages}, tools: {tools}, digest {json_digest(request)[:12]}"
        return self._refusal(request, f"{why} ({shape})")

    def _refusal(self, request: Mapping[str, Json], why: str) -> StepError:
        # The texts of a request are masked when it is made, so a cut leaves no part of a secret.
        asked = json_text(shorten(_last_text(request), ASKED_LENGTH))
        what = f"the provider '{self.name}' knows no answer: {why}"
        return StepError(Failure(f"{what}; record it, or add it there: ask: {asked}", "refused"))


def _last_text(request: Mapping[str, Json]) -> str:
    messages = request.get("messages") or [{}]
    return str(messages[-1].get("text", ""))


def _differences(wanted: Json, request: Mapping[str, Json]) -> Iterator[str]:
    """The fields in which a request differs from the recorded one."""
    match wanted:
        case None:
            return
        case str():
            if _last_text(request) != wanted:
                yield f"messages[{max(len(request.get('messages') or ()) - 1, 0)}].text"
        case _:
            yield from _unlike(wanted, request, "")


def _unlike(one: Json, other: Json, place: str) -> Iterator[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in dict.fromkeys([*one, *other]):
            yield from _unlike(one.get(name), other.get(name), f"{place}.{name}" if place else name)
    elif isinstance(one, list) and isinstance(other, list):
        for at in range(max(len(one), len(other))):
            yield from _unlike(_item(one, at), _item(other, at), f"{place}[{at}]")
    elif one != other:
        yield place or "all"


def _item(items: Sequence[Json], at: int) -> Json:
    return items[at] if at < len(items) else None


# ── recording ────────────────────────────────────────────────────────────


class RecordingModel:
    """Sends requests to another model and records every exchange, without keys and headers."""

    def __init__(
        self, name: str, path: str, inner: Model, *, mask: Callable[[str], str] = str
    ) -> None:
        self.name = name
        self.fingerprint = inner.fingerprint
        self.price = inner.price
        self._path = path
        self._inner = inner
        self._mask = mask
        self._lock = Lock()

    def send(
        self,
        request: ModelRequest,
        *,
        timeout: float | None,
        stop: StopSignal,
        on_text: OnText | None = None,
    ) -> ModelResponse:
        answer = self._inner.send(request, timeout=timeout, stop=stop, on_text=on_text)
        sparse = {
            name: value
            for name, value in answer.record().items()
            if value or name in ("text", "usage")
        }
        exchange = {"ask": request_key(request), "answer": sparse}
        self._write(json_text(mask_value(exchange, self._mask)) + "\n")
        return answer

    def _write(self, line: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with self._lock:
                descriptor = os.open(self._path, flags, 0o600)
                with open(descriptor, "ab") as file:
                    file.write(line.encode("utf-8", "replace"))
        except OSError as error:
            why = (error.strerror or "it cannot be written").lower()
            raise InputError(
                f"the exchange cannot be written down: {why}",
                self._path,
                "choose another file",
                code="replay",
            ) from None
