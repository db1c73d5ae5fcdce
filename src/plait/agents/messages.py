"""What is said to a language model, and what it answers: data that a journal can keep.

Nothing here knows a wire format, a key or a price.  Whoever carries a question out
is a `Provider`, given by the hands of a run; tests and demos give one that plays back
what was said before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from plait.core.hints import TYPE_CHECKING, Literal, Protocol, TypeAlias
from plait.core.records import dataclass, field
from plait.core.values import Json
from plait.engine.event_bus import StopSignal

if TYPE_CHECKING:
    from plait.core.hints import Final

Role: TypeAlias = Literal["user", "assistant", "tool"]
Ending: TypeAlias = Literal["end", "tools", "length", "refused"]
"""Why a model stopped: it was done, wants tools to be called, had no room left, or declined."""
OnText: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A model asks for a call of a tool."""

    id: str
    name: str
    """As it was offered."""
    arguments: Json = field(default_factory=dict)
    """A map; whatever else a model wrote is kept as it wrote it, and refused."""

    def record(self) -> dict[str, Json]:
        return {"id": self.id, "name": self.name, "arguments": self.arguments}


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    text: str = ""
    uses: tuple[ToolRequest, ...] = ()
    """Of an assistant."""
    answers: str = ""
    """Of a tool: the id of the use that this is the answer to."""
    failed: bool = False
    """Of a tool: the text says why there is no answer."""
    blocks: Json = None
    """Of an assistant: see `Answer.blocks`."""


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """A tool that a model may ask for."""

    name: str
    """What a wire format allows: letters, digits, `_` and `-`, at most 64."""
    description: str
    schema: Mapping[str, Json]
    tool_id: str = ""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A question, with all that was said before it."""

    messages: tuple[Message, ...]
    system: str = ""
    model: str | None = None
    """A name or a tier of the provider; None: the one that it is configured with."""
    tools: tuple[ToolOffer, ...] = ()
    schema: Mapping[str, Json] | None = None
    """The answer has to be JSON of this schema."""
    options: Mapping[str, Json] = field(default_factory=dict)
    """max_tokens, temperature, stop, … and whatever else the provider's body takes."""
    schema_retries: int = 2
    """How often a model hears what is wrong with an answer that does not meet the schema."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    input: int = 0
    output: int = 0
    cached: int = 0
    """Of the input: read from the provider's cache, at its price."""
    cost: float | None = None
    """None: nobody knows the price."""
    calls: int = 1
    """Requests that were answered, with those whose answer was not usable."""
    estimated: int = 0
    """Of the tokens: those that no server counted; they are reckoned from the length of what was
    said.
    """

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
    """Of a question with a schema: what the text says, checked."""
    blocks: Json = None
    """What the model said in the words of its wire format, where text and uses do not say all of it
    (its thoughts, signed by the server): it wants to hear that again as it was."""

    def message(self) -> Message:
        return Message("assistant", self.text, self.uses, blocks=self.blocks)

    def record(self) -> dict[str, Json]:
        """As a journal keeps it."""
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
        """The answer that was recorded."""
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
    """Whoever answers questions to a model."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str:
        """Digest of how it is configured, without keys; a recorded answer counts only for the
        same.
        """

    def ask(
        self,
        ask: ModelRequest,
        *,
        timeout: float | None,
        stop: StopSignal,
        on_text: OnText | None = None,
    ) -> ModelResponse:
        """The whole answer; `on_text` hears its text as it comes.

        Raises StepError, of kind network, server_error, rate_limit, timeout, refused or bad_answer;
        what was paid for such an answer is in the failure's output, as `usage`.  A run that is to
        stop is `Interrupted`.
        """

    def price(self, model: str | None, usage: TokenUsage) -> float | None:
        """What so much costs, if that is known."""


def sum_usage(usages: Sequence[TokenUsage]) -> TokenUsage:
    """What several answers took together."""
    whole = NO_USAGE
    for usage in usages:
        whole = whole + usage
    return whole


FIRST: Final = "turn:1"
"""The only question of such a step, whichever attempt asks it."""

ASKING: Final = ("turns", "tokens", "spend", "seconds")
"""The limits that are looked at before a question."""

NOBODY: Final = (
    "nobody said which provider to ask: name one (provider: openai), set PLAIT_PROVIDER to its "
    "name, "
    "or write .ai/config/providers/default.yaml; an 'agent:' step starts a command-line agent "
    "instead"
)


def provider_fingerprint(provider: str | Provider | None) -> Json:
    """What tells one provider from another, in a fingerprint."""
    return provider if isinstance(provider, str | None) else [provider.name, provider.fingerprint]


def options_fingerprint(options: Mapping[str, Json]) -> Json:
    """What of the options an answer depends on; its room is a limit: a run may go on with more of
    it.
    """
    return {name: value for name, value in options.items() if name != "max_tokens"}
