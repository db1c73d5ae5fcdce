"""Read the fields that several languages share: conditions, retries, limits, captures."""

from __future__ import annotations

from collections.abc import Sequence as Many

from plait import schema
from plait.core.documents import nodes
from plait.core.errors import shorten
from plait.core.hints import TYPE_CHECKING, Any, Final, Literal
from plait.core.records import replace
from plait.core.values import Json
from plait.engine.limits import NO_LIMITS, Limits
from plait.engine.step import DEFAULT_POLICY, NO_RETRY, Policy, Retry
from plait.program.capture import Capture
from plait.program.item_list import OnEmpty
from plait.schema import Fields, to_template
from plait.schema.directive_tables import MOST_TURNS
from plait.template.template import Template

if TYPE_CHECKING:
    from plait.scope.expressions import Expression


TITLE_LENGTH: Final = 60


def step_names(steps: Many[nodes.Node]) -> list[str]:
    """The names of steps in paths: the id, else the number.  A `name` may change without effect."""
    ids = [plain_field(step, "id") for step in steps]
    return [own or (f"step-{at}" if str(at) in ids else str(at)) for at, own in enumerate(ids)]


def plain_field(step: nodes.Node, name: str) -> str:
    node = step.get(name) if isinstance(step, nodes.Mapping) else None
    return str(node.value) if isinstance(node, nodes.Scalar) and node.value is not None else ""


def expand_short_step(node: nodes.Scalar) -> nodes.Mapping:
    """A step that is written as one text: a slash command, or shell text."""
    command = "claude" if str(node.value).startswith("/") else "shell"
    return nodes.Mapping(((nodes.Scalar(command, node.span), node),), node.span)


def step_title(fields: Fields, kind: str) -> str:
    """The first line of its action, cut; of a list of items all of them."""
    node = next(
        (node for name in schema.ACTION_FIELDS if (node := fields.get(name)) is not None), None
    )
    texts = [] if node is None else [leaf.source.text for leaf in to_template(node).leaves()]
    written = ", ".join(texts) if isinstance(node, nodes.Sequence) else "".join(texts[:1])
    first = " ".join((written.strip().splitlines() or [""])[0].split())
    return shorten(first, TITLE_LENGTH) or kind


def parse_interpreter(fields: Fields) -> Literal["sh", "dash", "bash"]:
    """The shell that runs the shell text of a step or a node."""
    match fields.text("interpreter"):
        case "bash":
            return "bash"
        case "dash":
            return "dash"
    return "sh"


def handler_commands(fields: Fields) -> Many[nodes.Node]:
    """The steps of a handler or check: a list, or one step for each command in its map."""
    if fields.has("steps"):
        return fields.items("steps")
    table = schema.fields_by_spelling("step")
    beside = [
        entry
        for entry in fields.node.entries
        if str(entry[0].value) in _OF_ONE_COMMAND and str(entry[0].value) in table
    ]
    commands = [entry for entry in fields.node.entries if _command(fields, entry[0]) is not None]
    return [
        nodes.Mapping(
            ((nodes.Scalar(_command(fields, entry[0]) or "", entry[0].span), entry[1]), *beside),
            fields.node.span,
        )
        for entry in commands
    ]


_OF_ONE_COMMAND: Final = frozenset({
    "name", "id", "params", "model", "capture_output", "capture", "capture_format", "capture_streams",
    "commit_required",
})  # fmt: skip
"""Fields of a handler or check that belong to the commands beside them."""


def _command(fields: Fields, key: nodes.Scalar) -> str | None:
    field = schema.fields_by_spelling(fields.form).get(str(key.value))
    return field.name if field is not None and field.name in schema.ACTION_FIELDS else None


def required_template(fields: Fields, name: str) -> Template:
    template = fields.template(name)
    assert template is not None
    return template


def parse_step_when(fields: Fields) -> Expression | None:
    node = fields.get("when")
    return None if node is None else parse_condition(node)


def parse_condition(node: nodes.Node) -> Expression:
    """An expression, or a map of tests; errors point into the file."""
    from plait.scope.expressions import parse_when

    source = (
        node.source() if isinstance(node, nodes.Scalar) and isinstance(node.value, str) else None
    )
    return parse_when(node.data(), source=source, locate=lambda place: nodes.span_at(node, place))


def parse_policy(fields: Fields, older: Fields | None) -> Policy:
    timeout = fields.seconds("timeout")
    for other in (fields.child("test"), older):
        if timeout is None and other is not None:
            timeout = other.seconds("timeout")
    retry = parse_retry(fields)
    if retry is None and older is not None and (again := older.integer("retries")):
        retry = Retry(attempts=again + 1)
    if retry is None and timeout is None and not fields.flag("once"):
        return DEFAULT_POLICY
    return Policy(retry=retry or NO_RETRY, timeout=timeout, at_most_once=fields.flag("once"))


def parse_retry(place: Fields, name: str = "retry") -> Retry | None:
    """The retry policy: a number of attempts, or a map."""
    retry = place.child(name)
    if retry is None:
        attempts = place.integer(name)
        return None if attempts is None else Retry(attempts=attempts)
    backoff, base, increment = (
        retry.text("backoff") or "exponential",
        retry.number("base"),
        retry.seconds("increment"),
    )
    if (chosen := retry.child("backoff")) is not None:
        backoff = next(
            name
            for name in ("fixed", "linear", "exponential", "fibonacci")
            if chosen.node.get(name)
        )
        numbers = chosen.child(backoff)
        if numbers is not None and backoff == "linear":
            increment = numbers.seconds("increment")
        if numbers is not None and backoff == "exponential":
            base = numbers.number("base")
    first = retry.seconds("initial_delay")
    return Retry(
        attempts=retry.integer("attempts") or 1,
        backoff=backoff,  # type: ignore[arg-type]  # one of the words of its table
        initial_delay=1.0 if first is None else first,
        max_delay=retry.seconds("max_delay") or 30.0,
        increment=increment,
        base=base or 2.0,
        jitter=_jitter(retry),
        retry_on=retry.strings("retry_on"),
        budget=retry.seconds("budget"),
    )


def _jitter(fields: Fields) -> float:
    share = fields.number("jitter")
    if share is not None:
        return float(share)
    return float(fields.number("jitter_factor") or 0) if fields.flag("jitter") else 0.0


def parse_backend(flow: Fields) -> str:
    """Where items run: `backend` of the map, else of the flow."""
    own = flow.child("map")
    return (own.text("backend") if own else None) or flow.text("backend") or "local"


def parse_capture(fields: Fields) -> Capture | None:
    name = fields.text("capture_output")
    if name is None:
        return None
    capture = Capture(name, format=fields.text("capture_format") or "string")  # type: ignore[arg-type]
    streams = fields.child("capture_streams")
    if streams is None:
        stream: Any = fields.text("capture_streams") or "stdout"  # one of the words of its table
        return replace(capture, stream=stream)
    out, err = streams.flag("stdout"), streams.flag("stderr")
    facts = {
        "output",
        "stdout",
        "stderr",
        *(one for one in ("exit_code", "success", "duration") if streams.flag(one)),
    }
    return replace(
        capture,
        stream="both" if out and err else "stderr" if err else "stdout",
        facts=frozenset(facts),
    )


def sort_keys(data: Json) -> Json:
    match data:
        case dict():
            return {key: sort_keys(data[key]) for key in sorted(data)}
        case list():
            return [sort_keys(item) for item in data]
    return data


def read_limits(fields: Fields | None) -> Limits:
    """The limits in a map without problems; None: no limits."""
    if fields is None:
        return NO_LIMITS
    return Limits(
        turns=fields.integer("turns"),
        tokens=fields.integer("tokens"),
        spend=fields.number("spend"),
        seconds=fields.seconds("seconds"),
        steps=fields.integer("steps"),
        depth=fields.integer("depth"),
    )


def parse_on_empty(fields: Fields) -> OnEmpty:
    """What happens if there are no items."""
    return fields.text("on_empty") or "warn"  # type: ignore[return-value]  # one of the words of its table


def agent_limits(fields: Fields) -> Limits:
    """The limits of an agent, with the default for turns."""
    return with_default_turns(read_limits(fields.child("limits")))


def with_default_turns(limits: Limits) -> Limits:
    """The limits, with `MOST_TURNS` if they do not limit turns."""
    return replace(limits, turns=MOST_TURNS) if limits.turns is None else limits
