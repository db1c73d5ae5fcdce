"""Compile a map: its items, the steps of each, parallelism, failures."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from itertools import pairwise

from plait.core.digests import json_digest
from plait.core.documents import nodes
from plait.core.errors import Problem
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import replace
from plait.engine.paths import MAP
from plait.engine.step import NO_RETRY, Retry
from plait.lang.analysis.declarations import names_before_items
from plait.lang.analysis.references import mentions_item
from plait.lang.common import parse_on_empty, parse_retry
from plait.program.items import CommandInput, read_input, read_selection
from plait.program.items.find import FindItems
from plait.program.map import CircuitBreaker, ErrorPolicy, Map
from plait.program.step_list import join_fingerprints
from plait.program.worktrees.isolation import Isolation
from plait.schema import AT_ODDS, Fields, text_template, to_template
from plait.template.template import Template

if TYPE_CHECKING:
    from plait.lang.workflow.compilation import Compilation, CompileContext

GOES_ON: Final = "continue_on_failure"
ONE_VALUE_FIELDS: Final = (
    "on_item_failure",
    GOES_ON,
    "max_failures",
    "failure_threshold",
    "circuit_breaker",
)
"""Fields that a map and its error_policy both may have."""

BELONGS_TO: Final = {
    "base": "worktree",
    "uncommitted": "worktree",
    "merge": "worktree",
    "inputs": "directory",
}
"""Fields of `isolation`, and the kind that each belongs to."""


def compile_map(builder: Compilation, fields: Fields, context: CompileContext) -> Map:
    node = fields.get("steps")
    inner = fields.child("steps")
    items = inner.items("steps") if inner is not None else fields.items("steps")
    assert node is not None
    context = replace(context, env=dict(fields.variables("env")))
    each = builder.steps("each", items, context, kind="item", title="each item")
    found = _map_items(builder, fields)
    limits = fields.child("timeout_config")
    timeout = fields.seconds("timeout")
    return Map(
        MAP,
        found,
        each,
        join_fingerprints([found.fingerprint, each.fingerprint]),
        parallel=_parallel(builder, fields),
        item_timeout=limits.seconds("agent_timeout_secs")
        if timeout is None and limits
        else timeout,
        errors=_errors(builder, fields),
        isolation=_isolation(builder, fields),
    )


def _map_items(builder: Compilation, fields: Fields) -> FindItems:
    node = fields.get("input")
    assert node is not None
    chosen = ("input", "json_path", "filter", "sort_by", "distinct", "offset", "max_items", "id")
    chosen_nodes = {name: value for name in chosen if (value := fields.get(name)) is not None}
    data = {name: value.data() for name, value in chosen_nodes.items()}
    input = read_input(node)
    named = names_before_items(builder.flow.document)
    env = dict(fields.variables("env")) if isinstance(input, CommandInput) else {}
    if env:
        data["env"] = {name: value.data() for name, value in env.items()}
    # Numbers that may have placeholders are not here; `Fields` reads those.
    kept = [entry for entry in fields.node.entries if entry[0].value not in ("offset", "max_items")]
    return FindItems(
        input,
        replace(
            read_selection(nodes.Mapping(tuple(kept), fields.node.span)),
            offset=fields.integer("offset") or 0,
            max_items=fields.integer("max_items"),
        ),
        fields.template("id"),
        json_digest([data, builder.around, *builder.head.used_in(*chosen_nodes.values())]),
        allow_outside="outside_files" in builder.fields.strings("allow"),
        strict=builder.strict,
        on_empty=parse_on_empty(fields),
        env={
            name: text_template(value)
            for name, value in env.items()
            if not mentions_item(value, named)
        },
    )


def _isolation(builder: Compilation, fields: Fields) -> Isolation | None:
    inner, node = fields.child("isolation"), fields.get("isolation")
    kind = fields.text("isolation") if inner is None else inner.text("kind")
    if kind in (None, "none"):
        return None
    fingerprint = json_digest([None if node is None else node.data()])
    ends_in_steps = builder.fields.has("merge")
    if inner is None:
        return Isolation(kind, fingerprint=fingerprint, ends_in_steps=ends_in_steps)  # type: ignore[arg-type]  # its words
    return Isolation(
        kind,  # type: ignore[arg-type]  # its words
        base=inner.text("base") or "HEAD",
        uncommitted=inner.text("uncommitted") or "commit",  # type: ignore[arg-type]  # its words
        merges=inner.text("merge") != "none",
        inputs=tuple(to_template(one) for one in inner.items("inputs")),
        fingerprint=fingerprint,
        ends_in_steps=ends_in_steps,
    )


def isolation_problems(fields: Fields | None) -> Iterator[Problem]:
    """Fields of `isolation` that belong to another kind."""
    inner = None if fields is None else fields.child("isolation")
    if inner is None:
        return
    kind = inner.text("kind") or ""
    for name, wanted in BELONGS_TO.items():
        if inner.has(name) and kind != wanted:
            what = (
                f"{name} belongs to isolation of the kind {wanted}, and this is of the kind {kind}"
            )
            yield Problem(
                what,
                inner.span(name),
                f"remove it, or write kind: {wanted}",
                code="contradiction",
            )


def _parallel(builder: Compilation, fields: Fields) -> int | Template:
    if builder.max_parallel is not None:
        return builder.max_parallel
    node = fields.get("max_parallel") or builder.fields.get("max_parallel")
    if node is None:
        return 10
    value = node.data()
    return value if isinstance(value, int) else to_template(node)


def _errors(builder: Compilation, fields: Fields) -> ErrorPolicy:
    """The policy of the map, else of the flow, from top-level fields or from `error_policy`."""
    own, outer = _levels(fields), _levels(builder.fields)
    places = [*own, *outer]
    failing = _failing(own) or _failing(outer)
    retries = (_retry_fields(one) for one in places)
    retry = next((retry for retry in retries if retry is not None), None)
    circuit = next(
        (one.child("circuit_breaker") for one in places if one.has("circuit_breaker")), None
    )
    threshold = next(
        (one.number("failure_threshold") for one in places if one.has("failure_threshold")), None
    )
    most = next((one.integer("max_failures") for one in places if one.has("max_failures")), None)
    if builder.keep_going:
        failing = "dlq" if failing == "stop" else failing
        most = threshold = None
    return ErrorPolicy(
        on_item_failure=failing or ("retry" if fields.has("retry") else "dlq"),  # type: ignore[arg-type]  # its words
        retry=retry or (Retry(attempts=3) if failing == "retry" else NO_RETRY),
        max_failures=most,
        failure_threshold=threshold,
        circuit=None
        if circuit is None
        else CircuitBreaker(
            circuit.integer("failure_threshold") or 5,
            circuit.seconds("timeout") or 30.0,
            circuit.integer("success_threshold") or 3,
        ),
    )


def policy_problems(*levels: Fields) -> Iterator[Problem]:
    """Contradictions about failing items."""
    for fields in levels:
        yield from _contradictions(_levels(fields))


def _levels(fields: Fields) -> list[Fields]:
    """A map or flow, and its `error_policy`."""
    return [one for one in (fields, fields.child("error_policy")) if one is not None]


def _failing(level: Many[Fields]) -> str | None:
    """The meaning of a failure, if a map or flow sets it; retries are separate."""
    goes_on = next((one.flag(GOES_ON) for one in level if one.has(GOES_ON)), None)
    if goes_on is False:
        return "stop"
    word = next((one.text("on_item_failure") for one in level if one.has("on_item_failure")), None)
    return word or ("dlq" if goes_on else None)


def _retry_fields(one: Fields) -> Retry | None:
    match one.form:
        case "map":
            return parse_retry(one)
        case "error_policy":
            return parse_retry(one, "retry_config")
    return None


def _contradictions(level: Many[Fields]) -> Iterator[Problem]:
    """Two fields of one map or flow that contradict each other."""
    for first, second in pairwise(level):
        for name in ONE_VALUE_FIELDS:
            one, other = first.get(name), second.get(name)
            if one is not None and other is not None and one.data() != other.data():
                yield _says_both(first, name, second, name, "keep one of them")
        if first.form == "map" and first.has("retry") and second.has("retry_config"):
            yield _says_both(first, "retry", second, "retry_config", "keep one of them")
    failing = next((one for one in level if one.has("on_item_failure")), None)
    going = next((one for one in level if one.has(GOES_ON)), None)
    if failing is not None and going is not None:
        word, goes_on = failing.text("on_item_failure"), going.flag(GOES_ON)
        if any(word in odds.values and goes_on in odds.others for odds in AT_ODDS):
            yield _says_both(failing, "on_item_failure", going, GOES_ON, f"remove {GOES_ON}")


def _says_both(one: Fields, name: str, other: Fields, name_there: str, fix: str) -> Problem:
    what = f"{name} and {name_there} contradict each other"
    if name == name_there:
        what = f"{name} has two different values, here and in error_policy"
    return Problem(what, one.span(name), fix, (other.span(name_there),), code="contradiction")
