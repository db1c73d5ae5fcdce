"""The tables of a provider file: endpoint, request, authentication, prices."""

from __future__ import annotations

from plait.core.hints import Final
from plait.schema.field_types import (
    Boolean,
    Choice,
    Duration,
    Field,
    Integer,
    ListOf,
    MapOf,
    Number,
    PlainText,
    Record,
    RecordType,
    TemplateText,
    TemplateTree,
)

FAMILY_NAMES: Final = ("chat_completions", "anthropic_messages", "replay")
VARIABLE: Final = PlainText("the name of an environment variable", r"[A-Za-z_][A-Za-z0-9_]*")
HEADER: Final = PlainText("the name of a header", r"[A-Za-z0-9-]+")
PROVIDER_NAME: Final = PlainText("the name of a provider", r"[A-Za-z0-9][A-Za-z0-9_-]*")
STATUS: Final = Integer(400, 599)

FORMS: Final = (
    RecordType(
        "provider",
        "provider",
        "A file `config/providers/NAME.yaml`.  Its templates know `${NAME}`, a variable of the "
        "environment in which Plait was started, and `{name}`, a part of the model request.",
        (
            Field(
                "extends",
                PROVIDER_NAME,
                "a provider whose fields apply where this file has none",
            ),
            Field(
                "family",
                Choice(FAMILY_NAMES),
                "the wire format of the server; replay uses no server",
            ),
            Field("description", PlainText(), "for people", is_documentation=True),
            Field(
                "base_url",
                TemplateText(),
                "the address of the server; it cannot contain the name of a model",
            ),
            Field("path", TemplateText(), "the path after the address; it may contain `{model}`"),
            Field("auth", Record("provider_auth"), "the key, and how it is sent"),
            Field("headers", MapOf(TemplateText(), HEADER), "further headers"),
            Field(
                "body",
                TemplateTree(),
                "the body of a request; an entry that is only a `{name}` without a value is left out",
            ),
            Field(
                "models",
                MapOf(PlainText()),
                "names for models, such as fast, and the server's names",
                aliases=("tiers",),
            ),
            Field("default_model", TemplateText(), "the model, if a request names none"),
            Field(
                "prices",
                MapOf(Record("provider_price")),
                "what models cost, by the server's names; the cost of other models is unknown",
            ),
            Field("limits", Record("provider_limits"), "bounds of the server"),
            Field("retry", Record("provider_retry"), "when a request is sent again"),
            Field(
                "timeout", Duration(), "how long a response may take, all attempts included", 600
            ),
            Field(
                "structured",
                Choice(("json_schema", "tool", "prompt")),
                "how structured output is requested: by a field of the request, "
                "as a tool call, or in the prompt",
                "prompt",
            ),
            Field("stream", Boolean(), "the response arrives in pieces", True),
            Field(
                "file",
                TemplateText(),
                "for replay: the file with the recorded exchanges, YAML or JSON lines",
            ),
            Field(
                "record",
                PROVIDER_NAME,
                "for replay: use this provider, and record its responses",
            ),
            Field(
                "match",
                Choice(("exact", "order")),
                "for replay: find a response by its request, or give the responses in order",
                "exact",
            ),
        ),
    ),
    RecordType(
        "provider_auth",
        "auth",
        "The key of a provider, which is in an environment variable and never in a file.",
        (
            Field(
                "type",
                Choice(("bearer", "header", "none")),
                "bearer: as `authorization: Bearer …`; header: alone, in the named header",
                "bearer",
            ),
            Field("env", VARIABLE, "the variable that holds the key"),
            Field("header", HEADER, "for header: its name"),
            Field("optional", Boolean(), "the request is also sent without a key", False),
        ),
    ),
    RecordType(
        "provider_price",
        "price",
        "Money for a million tokens.",
        (
            Field("input", Number(), "tokens of the request", required=True),
            Field("output", Number(), "tokens of the response", required=True),
            Field(
                "cached",
                Number(),
                "tokens of the request that the server had cached; the price of input by default",
            ),
        ),
    ),
    RecordType(
        "provider_limits",
        "limits",
        "Bounds of a provider.",
        (
            Field(
                "max_tokens",
                Integer(1),
                "the most tokens of one response; also sent if a request sets none",
            ),
        ),
    ),
    RecordType(
        "provider_retry",
        "retry",
        "When a request is sent again.  Plait waits as long as the server asks (Retry-After).",
        (
            Field("attempts", Integer(1, 100), "how many attempts, the first included", 4),
            Field(
                "initial_delay", Duration(zero=True), "the first pause; each is twice as long", 1
            ),
            Field("max_delay", Duration(zero=True), "the longest pause", 30),
            Field(
                "statuses",
                ListOf(STATUS),
                "the statuses after which a request is sent again",
                [408, 425, 429, 500, 502, 503, 504, 529],
            ),
        ),
    ),
)
