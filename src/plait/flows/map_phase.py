"""The map of a flow becomes a fan: its items, the steps for each, how many at a time, what failures mean."""

from __future__ import annotations

from plait.documents import nodes
from plait.engine.retry import ONCE_ONLY, Retry
from plait.flows.format import Said, template_of
from plait.flows.inputs import read_input, read_selection
from plait.flows.map_items import MapItems
from plait.flows.parts import digest, retry_of
from plait.hints import TYPE_CHECKING
from plait.records import replace
from plait.steps.fan import Circuit, ErrorPolicy, Fan
from plait.steps.sequence import joined
from plait.template.template import Template

if TYPE_CHECKING:
    from plait.flows.build import Builder, Place


def fan(builder: Builder, place: Place) -> Fan | None:
    said = builder.said.inner("map")
    if said is None:
        return None
    node = said.get("steps")
    inner = said.inner("steps")
    items = inner.items("steps") if inner is not None else said.items("steps")
    assert node is not None
    place = replace(place, env=dict(said.entries("env")))
    each = builder.steps("each", items, place, kind="item", title="each item")
    found = _map_items(builder, said)
    limits = said.inner("timeout_config")
    timeout = said.seconds("timeout")
    return Fan(
        "map",
        found,
        each,
        joined([found.fingerprint, each.fingerprint]),
        parallel=_parallel(builder, said),
        item_timeout=limits.seconds("agent_timeout_secs") if timeout is None and limits else timeout,
        errors=_errors(builder, said),
    )


def _map_items(builder: Builder, said: Said) -> MapItems:
    node = said.get("input")
    assert node is not None
    chosen = ("input", "json_path", "filter", "sort_by", "distinct", "offset", "max_items", "id")
    told = {name: value.data() for name in chosen if (value := said.get(name)) is not None}
    return MapItems(
        read_input(node),
        replace(
            read_selection(_without_holes(said.node)),
            offset=said.whole("offset") or 0,
            max_items=said.whole("max_items"),
        ),
        said.template("id"),
        digest([told, builder.around]),
        allow_outside="outside_files" in builder.said.words("allow"),
        strict=builder.strict,
    )


def _parallel(builder: Builder, said: Said) -> int | Template:
    if builder.max_parallel is not None:
        return builder.max_parallel
    node = said.get("max_parallel") or builder.said.get("max_parallel")
    if node is None:
        return 10
    said_number = node.data()
    return said_number if isinstance(said_number, int) else template_of(node)


def _errors(builder: Builder, said: Said) -> ErrorPolicy:
    """From the map, else from the flow; written out, or in a map of their own."""
    places = [
        one
        for one in (said, said.inner("error_policy"), builder.said, builder.said.inner("error_policy"))
        if one
    ]
    retries = [one.inner("retry_config") for one in places if one.form == "error_policy"]
    retry = retry_of(said.get("retry"), said.inner("retry")) or retry_of(
        None, next((one for one in retries if one), None)
    )
    first = next((one for one in places if one.has("on_item_failure")), said)
    failing = first.text("on_item_failure") or "dlq"
    if any(one.has("continue_on_failure") and not one.flag("continue_on_failure") for one in places):
        failing = "stop"
    if said.has("retry") and not first.has("on_item_failure"):
        failing = "retry"
    circuit = next((one.inner("circuit_breaker") for one in places if one.has("circuit_breaker")), None)
    threshold = next(
        (one.number("failure_threshold") for one in places if one.has("failure_threshold")), None
    )
    most = next((one.whole("max_failures") for one in places if one.has("max_failures")), None)
    return ErrorPolicy(
        on_item_failure=failing,  # type: ignore[arg-type]  # one of the words of its table
        retry=retry or (Retry(attempts=3) if failing == "retry" else ONCE_ONLY),
        max_failures=most,
        failure_threshold=threshold,
        circuit=None
        if circuit is None
        else Circuit(
            circuit.whole("failure_threshold") or 5,
            circuit.seconds("timeout") or 30.0,
            circuit.whole("success_threshold") or 3,
        ),
    )


def _without_holes(node: nodes.Mapping) -> nodes.Mapping:
    """Without the numbers into which values are put: they are read elsewhere."""
    kept = [entry for entry in node.entries if entry[0].value not in ("offset", "max_items")]
    return nodes.Mapping(tuple(kept), node.span)
