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

FAMILIES: Final = ("chat_completions", "anthropic_messages", "replay")
VARIABLE: Final = PlainText("the name of an environment variable", r"[A-Za-z_][A-Za-z0-9_]*")
HEADER: Final = PlainText("the name of a header", r"[A-Za-z0-9-]+")
PROVIDER_NAME: Final = PlainText("the name of a provider", r"[A-Za-z0-9][A-Za-z0-9_-]*")
STATUS: Final = Integer(400, 599)

FORMS: Final = (
    RecordType(
        "provider",
        "provider",
        "A file `config/providers/NAME.yaml`.  Its templates know `${NAME}`, a variable of the "
        "environment "
        "that Plait was started in, and `{name}`, a part of the question.",
        (
            Field(
                "extends",
                PROVIDER_NAME,
                "a provider whose fields hold where this file says nothing",
            ),
            Field("family", Choice(FAMILIES), "what the server speaks; replay asks no server"),
            Field("description", PlainText(), "for people", is_documentation=True),
            Field(
                "base_url",
                TemplateText(),
                "the address of the server; a model's name cannot be a part of it",
            ),
            Field("path", TemplateText(), "what follows the address; `{model}` may stand in it"),
            Field("auth", Record("provider_auth"), "the key, and how it is sent"),
            Field("headers", MapOf(TemplateText(), HEADER), "further headers"),
            Field(
                "body",
                TemplateTree(),
                "the body of a request; an entry that is one `{name}` which the question lacks is "
                "left out",
            ),
            Field(
                "models",
                MapOf(PlainText()),
                "names of models here, such as fast, and theirs there",
                aliases=("tiers",),
            ),
            Field("default_model", TemplateText(), "the model, if a question names none"),
            Field(
                "prices",
                MapOf(Record("provider_price")),
                "what models cost, by their names there; the cost of other models is unknown",
            ),
            Field("limits", Record("provider_limits"), "bounds of the server"),
            Field("retry", Record("provider_retry"), "when a request is sent again"),
            Field(
                "timeout", Duration(), "how long an answer may take, further attempts included", 600
            ),
            Field(
                "structured",
                Choice(("json_schema", "tool", "prompt")),
                "how an answer of a given form is asked for: by a field of the request, "
                "as the call of a tool, or in words",
                "prompt",
            ),
            Field("stream", Boolean(), "the answer comes piece by piece", True),
            Field(
                "file",
                TemplateText(),
                "for replay: the file with the conversations, YAML or JSON lines",
            ),
            Field(
                "record",
                PROVIDER_NAME,
                "for replay: ask this provider, and write down what it answers",
            ),
            Field(
                "match",
                Choice(("exact", "order")),
                "for replay: an answer is found by its question, or they are given in their order",
                "exact",
            ),
        ),
    ),
    RecordType(
        "provider_auth",
        "auth",
        "The key of a provider.  It stands in a variable and never in a file.",
        (
            Field(
                "type",
                Choice(("bearer", "header", "none")),
                "bearer: as `authorization: Bearer …`; header: alone, in the header that is named",
                "bearer",
            ),
            Field("env", VARIABLE, "the variable that holds the key"),
            Field("header", HEADER, "for header: its name"),
            Field("optional", Boolean(), "without a key the request is sent, too", False),
        ),
    ),
    RecordType(
        "provider_price",
        "price",
        "Money for a million tokens.",
        (
            Field("input", Number(), "tokens of the question", required=True),
            Field("output", Number(), "tokens of the answer", required=True),
            Field(
                "cached",
                Number(),
                "tokens of the question that the server remembered; else as input",
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
                "the most that one answer may have; this is also sent if a question says nothing",
            ),
        ),
    ),
    RecordType(
        "provider_retry",
        "retry",
        "When a request is sent again.  A server that says how long to wait (Retry-After) is "
        "obeyed.",
        (
            Field("attempts", Integer(1, 100), "in all, the first included", 4),
            Field(
                "initial_delay", Duration(zero=True), "the first pause; each is twice as long", 1
            ),
            Field("max_delay", Duration(zero=True), "the longest pause", 30),
            Field(
                "statuses",
                ListOf(STATUS),
                "answers after which a request is sent again",
                [408, 425, 429, 500, 502, 503, 504, 529],
            ),
        ),
    ),
)
