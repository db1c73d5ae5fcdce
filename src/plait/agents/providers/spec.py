"""Parse a provider file: the server, the request body, the models and their prices.

The templates of a file know the environment and the parts of a request. A request never decides
the host of a server, and a file never contains a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from plait.agents.messages import TokenUsage
from plait.agents.providers.wire_formats import Structured
from plait.core.documents.nodes import Mapping as MappingNode
from plait.core.documents.nodes import Node, Scalar
from plait.core.errors import InputError, Problem
from plait.core.hints import Literal, TypeAlias
from plait.core.records import dataclass, field
from plait.core.values import Json, json_text
from plait.engine.step import Retry
from plait.schema import PROVIDER, Fields, fields_by_spelling, fingerprint_data, to_template
from plait.schema.validate import is_number, is_whole
from plait.scope import Scope
from plait.template.sinks import render_text
from plait.template.template import Template

AuthType: TypeAlias = Literal["bearer", "header", "none"]
JITTER = 0.25
MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Auth:
    type: AuthType = "none"
    env: str = ""
    header: str = ""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Price:
    """Money for a million tokens."""

    input: float
    output: float
    cached: float

    def of(self, usage: TokenUsage) -> float:
        fresh = max(0, usage.input - usage.cached)
        paid = fresh * self.input + usage.cached * self.cached + usage.output * self.output
        return paid / MILLION


@dataclass(frozen=True, slots=True)
class Spec:
    name: str
    family: str
    """A key of `WIRE_FORMATS` (`wire_formats/table.py`), or `replay`."""
    base_url: Template
    path: Template
    auth: Auth
    headers: tuple[tuple[str, Template], ...]
    body: Template
    models: Mapping[str, str]
    default_model: str | None
    prices: Mapping[str, Price]
    max_tokens: int | None
    retry: Retry
    statuses: frozenset[int]
    timeout: float
    structured: Structured
    stream: bool
    file: Template
    record: str | None
    match: Literal["exact", "order"]
    fingerprint: str = field(repr=False)

    model_variables: tuple[str, ...] = ()
    """Variables that may name the default model."""

    def model_id(self, model: str | None) -> str | None:
        """The server's name for a model. None if there is no default model either."""
        name = model or self.default_model
        return None if name is None else self.models.get(name, name)

    def price(self, model: str | None, usage: TokenUsage) -> float | None:
        price = self.prices.get(self.model_id(model) or "")
        return None if price is None else price.of(usage)


def read_spec(name: str, node: Node, environ: Mapping[str, str]) -> Spec:
    """The provider that a merged file describes. Raises InputError with all missing fields."""
    assert isinstance(node, MappingNode)
    fields = Fields("provider", node, Scope())
    if missing := list(_missing_field_problems(fields)):
        raise InputError.together(missing)
    retry = fields.child("retry") or _empty("provider_retry", fields)
    limits = fields.child("limits") or _empty("provider_limits", fields)
    models = {key: str(value.data()) for key, value in fields.entries("models")}
    default_model = _template(fields, "default_model")
    return Spec(
        name=name,
        family=fields.text("family") or "",
        base_url=_template(fields, "base_url"),
        path=_template(fields, "path"),
        auth=_auth(fields.child("auth")),
        headers=tuple(
            (key, to_template(value, "config")) for key, value in fields.entries("headers")
        ),
        body=_template(fields, "body"),
        models=models,
        default_model=render_text(default_model, {}, env=environ) or None,
        model_variables=tuple(
            str(placeholder)
            for placeholder in default_model.placeholders
            if placeholder.kind == "env"
        ),
        prices={model: _price(price.data()) for model, price in fields.entries("prices")},
        max_tokens=limits.integer("max_tokens"),
        retry=Retry(
            attempts=retry.integer("attempts") or 1,
            initial_delay=retry.seconds("initial_delay") or 0.0,
            max_delay=retry.seconds("max_delay") or 0.0,
            jitter=JITTER,
        ),
        statuses=_statuses(retry),
        timeout=fields.seconds("timeout") or 600.0,
        structured=_parse_structured(fields),
        stream=fields.flag("stream"),
        file=_template(fields, "file"),
        record=fields.text("record"),
        match="order" if fields.text("match") == "order" else "exact",
        fingerprint=_fingerprint(node),
    )


# ── required fields ──────────────────────────────────────────────────────


def _missing_field_problems(fields: Fields) -> Iterator[Problem]:
    where = fields.node.entries[0][0].span if fields.node.entries else fields.node.span
    match fields.text("family"):
        case None:
            needed: tuple[str, ...] = ("family",)
        case "replay":
            needed = ("file",)
        case _:
            needed = ("base_url", "path", "body")
    for part in needed:
        if not fields.has(part):
            yield Problem(
                f"a provider needs '{part}'",
                where,
                f"add {part}: …, or extends: NAME of a provider that has it",
                code="missing-field",
            )
    auth = fields.child("auth")
    kind = None if auth is None else auth.text("type")
    if auth is not None and kind != "none":
        for part in ("env", "header") if kind == "header" else ("env",):
            if not auth.has(part):
                yield Problem(
                    f"auth of type {kind} needs '{part}'", fields.span("auth"), f"add {part}: …",
                    code="missing-field",
                )  # fmt: skip


# ── parts ────────────────────────────────────────────────────────────────


def _empty(form: str, fields: Fields) -> Fields:
    return Fields(form, MappingNode((), fields.node.span), fields.scope)


def _template(fields: Fields, field: str) -> Template:
    node = fields.get(field)
    return to_template(Scalar("", fields.node.span) if node is None else node, "config")


def _parse_structured(fields: Fields) -> Structured:
    match fields.text("structured"):
        case "json_schema":
            return "json_schema"
        case "tool":
            return "tool"
    return "prompt"


def _auth(fields: Fields | None) -> Auth:
    if fields is None or fields.text("type") == "none":
        return Auth()
    header = fields.text("header") or ""
    named = (fields.text("env") or "", header, fields.flag("optional"))
    return Auth("header", *named) if fields.text("type") == "header" else Auth("bearer", *named)


def _price(price: Json) -> Price:
    given = {name: float(value) for name, value in price.items() if is_number(value)}
    return Price(given["input"], given["output"], given.get("cached", given["input"]))


def _statuses(retry: Fields) -> frozenset[int]:
    node = retry.get("statuses")
    given: Json = (
        fields_by_spelling("provider_retry")["statuses"].default if node is None else node.data()
    )
    return frozenset(status for status in given if is_whole(status))


def _fingerprint(node: Node) -> str:
    from plait.core.digests import sha256_hex

    return sha256_hex(json_text(fingerprint_data(node, PROVIDER)).encode("utf-8", "surrogatepass"))
