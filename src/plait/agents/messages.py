"""Model requests and responses as data that a journal can hold, and the `Provider` port.

Nothing here knows a wire format, a key or a price.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from plait.core.hints import TYPE_CHECKING, Literal, Protocol, TypeAlias
from plait.core.records import dataclass, field
from plait.core.values import Json
from plait.engine.stop import StopSignal

if TYPE_CHECKING:
    from plait.core.hints import Final

Role: TypeAlias = Literal["user", "assistant", "tool"]
Ending: TypeAlias = Literal["end", "tools", "length", "refused"]
"""Why a model stopped: it is done, requests tools, reached `max_tokens`, or declined."""
OnText: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A request of a model to call a tool."""

    id: str
    name: str
    """The name under which the tool was offered."""
    arguments: Json = field(default_factory=dict)
    """A map; any other value is kept as the model wrote it, and refused."""

    def record(self) -> dict[str, Json]:
        return {"id": self.id, "name": self.name, "arguments": self.arguments}


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    text: str = ""
    uses: tuple[ToolRequest, ...] = ()
    """Role assistant: the tool requests."""
    answers: str = ""
    """Role tool: the id of the request whose result this is."""
    failed: bool = False
    """Role tool: the text explains why there is no result."""
    blocks: Json = None
    """Role assistant: see `ModelResponse.blocks`."""


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """A tool that a model may request."""

    name: str
    """A name that wire formats allow: letters, digits, `_` and `-`, at most 64."""
    description: str
    schema: Mapping[str, Json]
    tool_id: str = ""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request to a model, with all earlier messages."""

    messages: tuple[Message, ...]
    system: str = ""
    model: str | None = None
    """A name or a tier of the provider; None: its default."""
    tools: tuple[ToolOffer, ...] = ()
    schema: Mapping[str, Json] | None = None
    """The response must be JSON that matches this schema."""
    options: Mapping[str, Json] = field(default_factory=dict)
    """max_tokens, temperature, stop, … and other fields of the provider's request body."""
    schema_retries: int = 2
    """How often the model may correct a response that does not match the schema."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    input: int = 0
    output: int = 0
    cached: int = 0
    """Input tokens that the provider read from its cache, at the price of the cache."""
    cost: float | None = None
    """None: the price is unknown."""
    calls: int = 1
    """Requests with a response, usable or not."""
    estimated: int = 0
    """Tokens that no server counted; they are estimated from the length of the text."""

    @property
    def tokens(self) -> int:
        return self.input + self.output

    def __add__(self, other: TokenUsage) -> TokenUsage:
        known = [one.cost for one in (self, other) if one.cost is not None]
        return TokenUsage(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            sum(known) if known else None,
            self.calls + other.calls,
            self.estimated + other.estimated,
        )

    def record(self) -> dict[str, Json]:
        return {
            "input": self.input,
            "output": self.output,
            "cached": self.cached,
            "cost": self.cost,
            "calls": self.calls,
            **({"estimated": self.estimated} if self.estimated else {}),
        }


NO_USAGE = TokenUsage(calls=0, cost=None)


@dataclass(frozen=True, slots=True)
class ModelResponse:
    text: str = ""
    uses: tuple[ToolRequest, ...] = ()
    usage: TokenUsage = TokenUsage()
    model: str = ""
    ending: Ending = "end"
    data: Json = None
    """The structured output, checked, if the request has a schema."""
    blocks: Json = None
    """The response in its wire format, if text and uses do not hold all of it (signed
    reasoning). The next request sends it back unchanged.
    """

    def message(self) -> Message:
        return Message("assistant", self.text, self.uses, blocks=self.blocks)

    def record(self) -> dict[str, Json]:
        """Return the response as a journal holds it."""
        return {
            "text": self.text,
            "uses": [use.record() for use in self.uses],
            "usage": self.usage.record(),
            "model": self.model,
            "ending": self.ending,
            "data": self.data,
            "blocks": self.blocks,
        }

    @classmethod
    def of(cls, record: Mapping[str, Json]) -> ModelResponse:
        """Return the response from its record."""
        uses = record.get("uses")
        usage = record.get("usage")
        return cls(
            str(record.get("text") or ""),
            tuple(ToolRequest(**use) for use in uses if isinstance(use, dict))
            if isinstance(uses, list)
            else (),
            TokenUsage(**usage) if isinstance(usage, dict) else TokenUsage(),
            str(record.get("model") or ""),
            record.get("ending") or "end",
            record.get("data"),
            record.get("blocks"),
        )


class Provider(Protocol):
    """Sends requests to a model.  `services` of a run has one; tests use scripted ones."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str:
        """Digest of its configuration, without keys; a record counts only for the same digest."""

    def ask(
        self,
        request: ModelRequest,
        *,
        timeout: float | None,
        stop: StopSignal,
        on_text: OnText | None = None,
    ) -> ModelResponse:
        """Return the whole response; call `on_text` with its text as it arrives.

        Raise StepError of kind network, server_error, rate_limit, timeout, refused or bad_answer,
        with the `usage` in the failure's output; raise Interrupted when the run stops.
        """

    def price(self, model: str | None, usage: TokenUsage) -> float | None:
        """Return the cost of a usage; None if it is unknown."""


def sum_usage(usages: Sequence[TokenUsage]) -> TokenUsage:
    """Return the usage of several responses together."""
    whole = NO_USAGE
    for usage in usages:
        whole = whole + usage
    return whole


TURN_LIMITS: Final = ("turns", "tokens", "spend", "seconds")
"""The limits that are checked before a turn."""

NAME_A_PROVIDER: Final = (
    "name one with 'provider:' (in a step: prompt: {prompt: …, provider: openai}), "
    "set PLAIT_PROVIDER to its name, or write .ai/config/providers/default.yaml"
)

NO_PROVIDER: Final = (
    f"no provider is configured: {NAME_A_PROVIDER}; "
    "an 'agent:' step starts a command-line agent instead"
)


def provider_fingerprint(provider: str | Provider | None) -> Json:
    """Return the data that identifies a provider in a fingerprint."""
    return provider if isinstance(provider, str | None) else [provider.name, provider.fingerprint]


def options_fingerprint(options: Mapping[str, Json]) -> Json:
    """Return the options that a response depends on, without `max_tokens`, which is a limit."""
    return {name: value for name, value in options.items() if name != "max_tokens"}
