"""A state graph: nodes that act, assign to the state and lead on, until one leads nowhere.

    visit   action → result → assign → the first edge that is open
               └ failed → on_error of the node, else that of the graph

Each visit of a node is a performed step: `nodes/draft`, `nodes/draft@2`, …  Its value is what the
visit added (`assign`, `next`), never the whole state, so that what is recorded grows with the
visits and no faster; a resumed run puts the state together again from what it remembers.

All assignments of a node are filled with the state as it was before the node; edges see the
state after it.  The clock (`_now`, `_timestamp`) is read inside a visit, and what was made of it is
recorded with the visit.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence

from plait.core.errors import PlaitError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.masking import masked
from plait.core.records import dataclass, field, replace
from plait.core.values import Json, detached, written_size
from plait.engine.events import StepRetrying
from plait.engine.hands import Rehearsed, out_of_limit, working
from plait.engine.hooks import Hook, Verdict, error_names
from plait.engine.journal import Recorded, number_of
from plait.engine.limits import NO_LIMITS, Limits, Reached, Spent
from plait.engine.outcome import LIMIT, Done, Failed, Failure, OutOfLimit, Skipped, StepError, expect_done
from plait.engine.perform import PLAIN, Policy, Step, Turn, plans
from plait.program.graph.calls import Action, filled_call, performed_items, result_of
from plait.program.graph.graph_nodes import Node, leads_to, shown
from plait.scope import Scope
from plait.template.program import expect_bounded
from plait.template.template import Template

if TYPE_CHECKING:
    from plait.core.source import Source, Span
    from plait.template.nodes import Path
    from plait.template.program import Answer, Piece

NODES: Final = "nodes"
"""The part of a run in which the visits are."""
MOST_DEPTH: Final = 16
"""Flows inside one another, whatever their limits say."""


# ── what a graph is made of ──────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Graph:
    """A program, with what it was given."""

    name: str
    start: str
    nodes: Mapping[str, Node]
    state: Mapping[str, Json] = field(default_factory=dict)
    inputs: Mapping[str, Json] = field(default_factory=dict, repr=False)
    max_steps: int = 1000
    goes_on: bool = False
    """`on_error: continue`."""
    limits: Limits = NO_LIMITS
    hooks: tuple[Hook, ...] = ()
    strict: bool = False
    has_secrets: bool = False

    @property
    def fan(self) -> None:
        return None

    @property
    def inner(self) -> Sequence[Step]:
        return (Walk(self),)

    @property
    def phases(self) -> tuple[tuple[str, int], ...]:
        # How many visits there will be nobody knows before: a view counts those that were made.
        return ((NODES, 0),)

    @plans
    def run(self, turn: Turn) -> Json:
        """`{output, state, steps}`, and `errors` if it went on from some; StepError when it fails."""
        with working(turn.run).spending(
            turn.path, self.limits, f"graph '{self.name}'", goes_on=turn.replaying
        ) as spent:
            _expect_depth(spent)
            return expect_done(turn.perform(Walk(self)))


def _expect_depth(spent: Spent) -> None:
    spent.expect("depth")
    if spent.depth > MOST_DEPTH:
        raise StepError(Failure(f"more than {MOST_DEPTH} flows are inside one another", "limit"))


# ── the way through it ───────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Walk:
    """All visits of a graph, as one step."""

    graph: Graph
    name: str = NODES
    kind: str = "graph"
    policy: Policy = PLAIN

    @property
    def title(self) -> str:
        return self.graph.name

    @property
    def fingerprint(self) -> str:
        from plait.program.step_list import joined

        return joined([node.fingerprint for node in self.graph.nodes.values()])

    @property
    def inner(self) -> Sequence[Step]:
        return tuple(self.graph.nodes.values())

    @plans
    def run(self, turn: Turn) -> Json:
        if working(turn.run).rehearsal is not None:
            return _rehearsed(self.graph, turn)
        if not turn.run.fresh and not turn.run.accept_changes:
            _expect_known_nodes(self.graph, turn)
        turn.run.journal.expect(node.fingerprint for node in self.graph.nodes.values())
        return _Way(self.graph, turn).walked()


class _Way:
    """One walk through a graph: where it is, the state there, and what it has used up."""

    def __init__(self, graph: Graph, turn: Turn) -> None:
        self.graph = graph
        self.turn = turn
        self.state: dict[str, Json] = dict(graph.state)
        self.steps = 0
        self.visits: dict[str, int] = {}
        self.errors: list[Json] = []
        self.hooks = turn.run.hooks
        self.spent = working(turn.run).spent_around(turn.path)
        self.limited = _limited(self.spent)
        self.around = turn.scope
        self.base = Scope({}, sources=turn.scope.sources)

    def walked(self) -> dict[str, Json]:
        try:
            return self._walked()
        except OutOfLimit as end:
            end.failure = replace(end.failure, output={**self.partial(), "ended": "limit"})
            raise

    def _walked(self) -> dict[str, Json]:
        self._fire("graph_started", {"start": self.graph.start})
        at: str | None = self.graph.start
        while at is not None:
            self._expect_steps_of_its_own()
            node = self.graph.nodes[at]
            visit = Visit(self, node, self._number(at))
            self._take_a_step(visit)
            outcome, self.turn = self._with_state().perform_next(visit, self.steps)
            self.steps += 1
            match outcome:
                case Done(value):
                    if "output" in value:
                        return self._completed(value["output"])
                    at = self._moved(node, value)
                case Failed(failure):
                    at = self._after_failure(node, failure)
                case Skipped():  # a hook wanted it so
                    names = Names(self, {"result": {"status": "skipped"}}, self.turn.path)
                    at = way_on(node, names).get("next")
        return self._completed(dict(self.state))

    def _with_state(self) -> Turn:
        """For hooks, which know the state at every step inside the graph."""
        if self.hooks is None:
            return self.turn
        return self.turn.with_scope(self.around.child(state=dict(self.state)))

    def _number(self, name: str) -> int:
        number = self.visits[name] = self.visits.get(name, 0) + 1
        return number

    def _moved(self, node: Node, value: Mapping[str, Json]) -> str | None:
        if "assign" in value:
            self.state.update(value["assign"])
        if "error" in value:
            self._remember(node, value["error"])
        return value.get("next")

    def _after_failure(self, node: Node, failure: Failure) -> str | None:
        error = error_of(node, failure)
        if node.on_error is None and not self.graph.goes_on:
            raise StepError(replace(failure, message=_at_node(node, failure.message), output=self.partial()))
        self._remember(node, error)
        if node.on_error is not None:
            return node.on_error
        names = Names(self, {"result": {"status": "error", **error}}, self.turn.path)
        return way_on(node, names).get("next")

    def _remember(self, node: Node, error: Mapping[str, Json]) -> None:
        self.state["_last_error"] = dict(error)
        self.errors.append(dict(error))
        self.turn.run.note(self.turn.path, f"node '{node.name}' failed, and the graph goes on")

    # ── limits, hooks, the end ───────────────────────────────────────────

    def _expect_steps_of_its_own(self) -> None:
        if self.steps >= self.graph.max_steps:
            own = Reached("steps", self.steps, self.graph.max_steps, f"graph '{self.graph.name}'")
            if self.hooks is not None:
                self.hooks.reach(self.turn, own, self.facts())
            raise StepError(own.failure({**self.partial(), "ended": "limit"}))

    def _take_a_step(self, visit: Visit) -> None:
        """Taken before the node is visited: of graphs side by side no two have the last step."""
        if not self.limited and self.hooks is None:
            return  # nobody asks
        run, path = self.turn.run, f"{self.turn.path}/{visit.name}"
        limited = self.limited
        if not run.fresh and run.journal.has_begun(path):
            # It is no next one: what its call needs is looked at there.
            limited = tuple(name for name in limited if name in ("steps", "seconds"))
        if (reached := run.take_step(path, self.spent, *limited)) is not None:
            raise out_of_limit(reached, self.turn, self.facts())

    def partial(self) -> dict[str, Json]:
        """What the graph has come to."""
        return {"output": None, "state": dict(self.state), "steps": self.steps, **self._errors()}

    def _completed(self, output: Json) -> dict[str, Json]:
        self._fire("graph_completed", {"result": output})
        return {"output": output, "state": dict(self.state), "steps": self.steps, **self._errors()}

    def _errors(self) -> dict[str, Json]:
        return {"errors": self.errors} if self.errors else {}

    def _fire(self, event: str, context: Mapping[str, Json]) -> None:
        verdict = self.asked(event, self.turn, context)
        if verdict is not None and verdict.verb == "fail":
            raise StepError(replace(verdict.failure(), output=self.partial()))
        if verdict is not None and verdict.verb == "abort":
            raise verdict.aborted()

    def asked(self, event: str, turn: Turn, context: Mapping[str, Json]) -> Verdict | None:
        """What hooks say, if there are any."""
        if self.hooks is None:
            return None
        return self.hooks.fire(event, turn, {**self.facts(), **context})

    def listens(self, event: str) -> bool:
        return self.hooks is not None and self.hooks.has(event, self.turn.path)

    def facts(self) -> dict[str, Json]:
        """What every hook of a graph may ask for."""
        return {
            "graph": self.graph.name,
            "state": dict(self.state),
            "inputs": detached(dict(self.graph.inputs)),
            "steps": self.steps,
        }


def _limited(spent: Spent) -> tuple[str, ...]:
    """The limits that somebody has set: to look at all of them takes longer than many a node."""
    found: dict[str, None] = {}
    around: Spent | None = spent
    while around is not None:
        found.update(dict.fromkeys(around.limits.record()))
        around = around.within
    return tuple(name for name in found if name != "depth")


def _expect_known_nodes(graph: Graph, turn: Turn) -> None:
    """A node that was visited and is no longer there was renamed or removed: the file has changed."""
    from plait.engine.context import changed_steps

    recorded = [known.path.rpartition("/")[2] for known in turn.run.journal.recorded_in(turn.path)]
    visits = (name for name in recorded if not name.startswith("hook:"))
    gone = {name for visit in visits if (name := visit.partition("@")[0]) not in graph.nodes}
    if gone:
        raise changed_steps((f"{turn.path}/{name}", "no longer a node") for name in sorted(gone))


# ── one visit ────────────────────────────────────────────────────────────


class Names:
    """What a visit knows by name; whatever it asks for in vain is noted, once in a run."""

    __slots__ = ("_path", "_way", "names")

    def __init__(self, way: _Way, more: Mapping[str, Json], path: str) -> None:
        self.names: dict[str, Json] = {"state": way.state, "inputs": way.graph.inputs, **more}
        self._way = way
        self._path = path

    def with_names(self, **more: Json) -> Names:
        names = Names.__new__(Names)
        names.names, names._way, names._path = {**self.names, **more}, self._way, self._path
        return names

    def lookup(self, path: Path) -> Answer:
        from plait.core.values import UNDEFINED
        from plait.template.program import walk

        found = self.names.get(path.root, UNDEFINED)
        return self.fallback(path) if found is UNDEFINED else walk(found, path.keys)

    def fallback(self, path: Path) -> Answer:
        return self._way.base.fallback(path)

    def compute(self, kind: str, argument: str) -> Answer:
        return self._way.base.compute(kind, argument)

    def command(self, pieces: list[Piece], source: Source) -> Answer:
        return self._way.base.command(pieces, source)

    def missed(self, where: Span, name: str, guess: str | None) -> None:
        run = working(self._way.turn.run)
        if str(where) not in run.noted:
            run.noted.add(str(where))
            meant = f"; did you mean '{guess}'?" if guess else ""
            run.note(self._path, f"{where}: nothing is named '{name}', and it stays empty{meant}")


class Visit:
    """One stay at a node, with the state as it is there."""

    __slots__ = (
        "_way", "attempts_inside", "fingerprint", "inner", "is_composed", "kind", "name", "node", "policy",
        "title",
    )  # fmt: skip
    counts_itself = True
    goes_on = "always"
    """What it has called is not called again because of what follows it."""

    def __init__(self, way: _Way, node: Node, number: int) -> None:
        self._way = way
        self.node = node
        self.name = self.title = node.name if number == 1 else f"{node.name}@{number}"
        self.is_composed = node.loop is not None or (
            node.call is not None
            and (way.listens("error") or way.listens("after_step") or _may_fail_behind(node))
        )
        """Its call or its items are steps of their own."""
        self.kind = node.kind
        self.fingerprint = node.fingerprint
        self.inner: Sequence[Step] = ()
        self.attempts_inside = 0
        """How often its call was tried, as a step of its own."""
        # What is inside is tried again by itself, where something may come between two attempts.
        self.policy = _whole_policy(node) if self.is_composed else node.policy

    def gone_on(self, failure: Failure) -> Json:
        """What the visit comes to where a hook swallows its failure; None: nobody can say where to go on."""
        error = error_of(self.node, failure)
        if self.node.on_error is not None:
            return {"error": error, "next": self.node.on_error}
        names = Names(self._way, {"result": {"status": "error", **error}}, self._way.turn.path)
        try:
            return {"error": error, **way_on(self.node, names)}
        except PlaitError:
            return None

    def run(self, turn: Turn) -> Json:
        node = self.node
        names = Names(self._way, clock_names() if node.clock else {}, turn.path)
        record = self._done(turn, names)
        if self._way.hooks is not None:
            after = {**self._way.state, **record.get("assign", {})}
            result = record["output"] if "output" in record else names.names.get("result")
            steps = self._way.steps + 1  # this one is done
            told = {
                "node": node.name,
                "next": record.get("next"),
                "result": result,
                "state": after,
                "steps": steps,
            }
            verdict = self._way.asked("after_step", turn, told)
            if verdict is not None and verdict.verb == "abort":
                # A gate that could not answer has not heard of the visit, which therefore has no end yet.
                outcome = Done(record) if verdict.is_all else None
                raise replace(verdict, path=turn.path).aborted(outcome)
        return record

    def _done(self, turn: Turn, names: Names) -> dict[str, Json]:
        node = self.node
        if node.kind == "return":
            output = None if node.output is None else self._filled(node.output, names)
            return {"output": self._recordable(output)}
        if node.call is None:
            return self._left(names)
        try:
            names.names["result"] = self._acted(node.call, turn, names)
        except _WentOnError as gone_on:
            names.names["result"] = {"status": "error", **gone_on.error}
            way = way_on(node, names) if node.on_error is None else {"next": node.on_error}
            return {"error": gone_on.error, **way}
        return self._left(names)

    def _left(self, names: Names) -> dict[str, Json]:
        """What is recorded: what it assigns, and where it leads."""
        node, record = self.node, dict[str, Json]()
        if node.assign is not None:
            assigned = record["assign"] = self._recordable(self._filled(node.assign, names))
            if written_size(assigned) > _MANY:  # two nodes may double each other's texts, visit by visit
                expect_bounded({**names.names["state"], **assigned})
        if node.loop is not None and node.loop.collect is not None:
            collected = names.names["result"]["results"]
            record["assign"] = {node.loop.collect: collected, **record.get("assign", {})}
        return {**record, **way_on(node, names, record.get("assign"))}

    def _acted(self, call: Action, turn: Turn, names: Names) -> dict[str, Json]:
        node = self.node
        if node.loop is not None:
            return performed_items(node.loop, call, node, turn, names, strict=self._way.graph.strict)
        if not self.is_composed:
            return result_of(call, turn, names, strict=self._way.graph.strict)
        return self._called_with_hooks(call, turn, names)

    def _called_with_hooks(self, call: Action, turn: Turn, names: Names) -> dict[str, Json]:
        """The call as a step of its own: hooks say what follows when it fails."""
        attempt = 1
        # What was done inside the call stays done, at whichever attempt: as of every other agent.
        first = f"{turn.path}/{CALL}"
        since = turn.after if turn.replaying else turn.run.journal.last()
        while True:
            name = CALL if attempt == 1 else f"{CALL}@{attempt}"
            called = Called(self, call, names, name, is_followed=self._is_followed(turn, name, attempt))
            if attempt > 1:
                turn.run.fresh = False
                called.goes_on_in = (first, since)
            outcome, turn = turn.perform_next(called, attempt - 1)
            self.attempts_inside = max(self.attempts_inside, attempt)
            if not isinstance(outcome, Failed):
                return dict(expect_done(outcome))
            if not self._tries_again(turn, outcome, attempt):
                raise StepError(outcome.failure)
            attempt += 1

    def _is_followed(self, turn: Turn, name: str, attempt: int) -> bool:
        """Has a hook said what follows from a failure, in an earlier life that did not end the visit?"""
        hooks, journal = self._way.hooks, turn.run.journal
        if hooks is None or turn.run.fresh or not turn.replaying:
            return False
        known = journal.recorded(f"{turn.path}/{name}")
        if known is None or number_of(journal.last_end(turn.path)) > known.number:
            return False
        return hooks.has_decided("error", replace(turn, attempt=attempt), known.number)

    def _tries_again(self, turn: Turn, outcome: Failed, attempt: int) -> bool:
        failure = outcome.failure
        told = {"error": error_names(failure), "node": self.node.name, "attempt": attempt}
        verdict = self._way.asked("error", turn, told)
        match verdict:
            case Verdict("retry"):
                if attempt > (verdict.max_retries or 0) or failure.kind == LIMIT:
                    return False
                turn.run.emit(StepRetrying(turn.path, attempt, failure, verdict.delay))
                turn.run.pause_at(turn, verdict.delay)
                return True
            case Verdict("continue" | "skip"):
                raise _WentOnError(error_of(self.node, failure))
            case Verdict("fail"):
                raise StepError(replace(failure, message=f"{failure.message}\n{verdict.said}"))
            case Verdict("abort"):
                raise verdict.aborted()
        return False

    def _filled(self, template: Template, names: Names) -> Json:
        return template.render(names, strict=self._way.graph.strict)

    def _recordable(self, value: Json) -> Json:
        if not self._way.graph.has_secrets:
            return value
        kept = masked(value, self._way.turn.run.mask)
        if kept != value:
            self._tell_of_secrets()
        return kept

    def _tell_of_secrets(self) -> None:
        """A resumed run has what is recorded, and no other state: so it is the same in this life."""
        run, about = working(self._way.turn.run), f"secrets of {self.node.name}"
        if about not in run.noted:
            run.noted.add(about)
            told = "what it gives on holds a secret, and *** stands for that from here on"
            run.note(
                self._way.turn.path, f"node '{self.node.name}': {told}; use ${{inputs.…}} where it is needed"
            )


_MANY: Final = 1 << 16
"""Characters of what a node assigns, from which on the whole state is measured."""
_AT_NODES: Final = re.compile(r"(?:node '[^']*': )*")


def _at_node(node: Node, message: str) -> str:
    """With the node at which a graph has failed; of graphs that call one another each node is named once."""
    at = f"node '{node.name}': "
    named = _AT_NODES.match(message)
    return message if named is not None and at in named[0] else at + message


class _WentOnError(Exception):
    """A hook has said that the graph goes on from an error."""

    def __init__(self, error: dict[str, Json]) -> None:
        super().__init__("the graph goes on")
        self.error = error


CALL: Final = "call"
"""The place of a node's call, where it is a step of its own; `call@2` that of the next attempt."""


class Called:
    """The call of a node, as a step of its own."""

    kind = "tool"
    inner: Sequence[Step] = ()

    def __init__(self, visit: Visit, call: Action, names: Names, name: str, *, is_followed: bool) -> None:
        self.name = name
        self.title = visit.title
        self.fingerprint = call.fingerprint
        self.policy = replace(visit.node.policy, failure_is_final=is_followed)
        self._visit, self._call, self._names = visit, call, names
        self.goes_on_in: tuple[str, int] | None = None
        """The path of the first attempt, and the event behind which what is recorded there counts."""

    goes_on = "inner"

    def run(self, turn: Turn) -> Json:
        self._visit.attempts_inside += 1
        if self.goes_on_in is not None:
            path, since = self.goes_on_in
            turn = replace(turn, path=path, replaying=True, after=since)
        return result_of(self._call, turn, self._names, strict=self._visit._way.graph.strict)


def _may_fail_behind(node: Node) -> bool:
    """Is there something behind its call that could fail?  The call is not made again for that."""
    return node.assign is not None or any(edge.when is not None for edge in node.edges)


def _whole_policy(node: Node) -> Policy:
    # The time of a call is that of each attempt; of a loop it is that of all its items.
    timeout = None if node.loop is None else node.policy.timeout
    return Policy(timeout=timeout, failure_is_final=node.policy.failure_is_final)


def way_on(node: Node, names: Names, assigned: Mapping[str, Json] | None = None) -> dict[str, Json]:
    """Where the first edge that is open leads, as `next`; {}: the graph ends here.

    `edge` is its number, where another one leads to the same node.
    """
    number = _first_open(node, names, assigned)
    if number is None:
        return {}
    to = node.edges[number].to
    alike = sum(edge.to == to for edge in node.edges) > 1
    return {"next": to, "edge": number + 1} if alike else {"next": to}


def _first_open(node: Node, names: Names, assigned: Mapping[str, Json] | None) -> int | None:
    seen: Names | None = None
    for number, edge in enumerate(node.edges):
        if edge.when is None:
            return number
        if seen is None:
            seen = names.with_names(state={**names.names["state"], **assigned}) if assigned else names
        if edge.when.holds(seen):
            return number
    return None


def error_of(node: Node, failure: Failure) -> dict[str, Json]:
    """A failure, as the state, hooks and edges know it."""
    return {"node": node.name, "error": failure.message, "kind": failure.kind}


def clock_names() -> dict[str, Json]:
    from datetime import UTC, datetime

    now = time.time()
    return {
        "_now": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
        "_timestamp": int(now * 1000),
    }


# ── a dry run ────────────────────────────────────────────────────────────


def _rehearsed(graph: Graph, turn: Turn) -> Json:
    """Which way is taken only a run can know: every node that can be reached is shown, as it is written.

    Of the first one more is known: what it would be called with.
    """
    run, again = working(turn.run), _first_done_again(graph, turn)
    assert run.rehearsal is not None
    for node in reachable(graph):
        inner = turn.inner(node)
        known = _visited(node, turn)
        if known is not None and known.number < again:
            run.rehearsal.append(Rehearsed(inner.path, node.kind, node.title, remembered=True))
            continue
        does = _first_call(graph, node, turn) if node.name == graph.start else None
        if _keeps_call(node, turn) and known is not None and known.number == again:
            does = "what it called is kept"
        is_changed = known is not None and known.fingerprint != node.fingerprint
        run.rehearse(replace(inner, replaying=inner.replaying and is_changed), node.kind, shown(node, does))
    return {}


def _visited(node: Node, turn: Turn) -> Recorded | None:
    """How the first visit of a node has ended, in a run that may remember it."""
    remembers = turn.replaying and not turn.run.fresh
    return turn.run.journal.recorded(turn.inner(node).path) if remembers else None


def _first_done_again(graph: Graph, turn: Turn) -> float:
    """The number of the first end that counts no more: all that is behind it is done again."""
    ends = ((node, known) for node in reachable(graph) if (known := _visited(node, turn)) is not None)
    return min((known.number for node, known in ends if not _counts(node, known)), default=float("inf"))


def _counts(node: Node, known: Recorded) -> bool:
    has_failed = isinstance(known.outcome, Failed) and not node.policy.failure_is_final
    return known.fingerprint == node.fingerprint and not has_failed


def _keeps_call(node: Node, turn: Turn) -> bool:
    """Was its call recorded as a step of its own, as it is now?"""
    known = turn.run.journal.recorded(f"{turn.inner(node).path}/call") if node.call else None
    return known is not None and node.call is not None and known.fingerprint == node.call.fingerprint


def _first_call(graph: Graph, node: Node, turn: Turn) -> str | None:
    if node.call is None:
        return None
    names = Names(_Way(graph, turn), clock_names() if node.clock else {}, turn.path)
    if node.loop is None:
        return filled_call(node.call, turn, names, strict=graph.strict)
    over = node.loop.over.render(names, strict=graph.strict)
    many = f" of {len(over)}" if isinstance(over, list) else ""
    return f"for each {node.loop.name}{many}: {node.call.shown()}"


def reachable(graph: Graph) -> Iterator[Node]:
    """The nodes to which a way leads, in the order in which they are found."""
    found = dict.fromkeys([graph.start])
    waiting = [graph.start]
    while waiting:
        node = graph.nodes[waiting.pop(0)]
        yield node
        for name in leads_to(node):
            if name not in found:
                found[name] = None
                waiting.append(name)
