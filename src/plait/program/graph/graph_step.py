"""The program of a state graph: visit nodes, change the state, follow edges, until no edge is open.

    visit   action → result → assign → the first edge that is open
               └ failed → on_error of the node, else that of the graph

Each visit is a recorded step: `nodes/draft`, `nodes/draft@2`, … Its value is what the visit added
(`assign`, `next`), not the whole state, so the journal grows only with the number of visits. A
resumed run rebuilds the state from these values.

All assignments of a node use the state before the node; edges see the state after it. A visit reads
the clock (`_now`, `_timestamp`), and what it computed from it is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from plait.core.hints import TYPE_CHECKING, Final
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass, replace
from plait.core.values import Json, deep_copy
from plait.engine.budgets import limit_error
from plait.engine.hook_events import HookDecision
from plait.engine.journal import StepRecord
from plait.engine.limits import Budget, LimitReached
from plait.engine.outcome import (
    Failed,
    Failure,
    LimitExceeded,
    StepError,
    Succeeded,
)
from plait.engine.paths import CALL, NODES, join_path, last_name, unnumbered_name
from plait.engine.perform import StepContext
from plait.engine.step import DEFAULT_POLICY, Plan, Policy, Step
from plait.program.graph.calls import ShellCall, describe_call
from plait.program.graph.edges import choose_edge
from plait.program.graph.node import NodeScope, NodeStep, clock_names, error_record
from plait.program.graph.spec import GraphSpec, NodeSpec, next_names
from plait.scope import Scope

if TYPE_CHECKING:
    from plait.engine.plan_log import PlanLog


def describe_node(node: NodeSpec, does: str | None = None) -> str:
    """A node as text: its action (or `does`) and its edges."""
    if does is None:
        does = node.kind if node.call is None else node.call.source_text()
        does = does if node.loop is None else f"for each {node.loop.name}: {does}"
    targets = [
        edge.to + (f" if {edge.when.source.text}" if edge.when else "") for edge in node.edges
    ]
    return does + (f" → {', '.join(targets)}" if targets else "")


def node_name(path: str) -> str:
    """The node of a path: `nodes/draft@2` is a visit of `draft`."""
    return unnumbered_name(last_name(path))


# ── the visits ───────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class GraphStep:
    """All visits of a graph as one step."""

    graph: GraphSpec
    name: str = NODES
    kind: str = "graph"
    policy: Policy = DEFAULT_POLICY

    @property
    def title(self) -> str:
        return self.graph.name

    @property
    def fingerprint(self) -> str:
        from plait.program.step_list import join_fingerprints

        return join_fingerprints([node.fingerprint for node in self.graph.nodes.values()])

    @property
    def children(self) -> Sequence[Step]:
        return tuple(self.graph.nodes.values())

    def plan(self, ctx: StepContext) -> GraphPlan:  # noqa: ARG002 - the protocol's shape
        return GraphPlan(self.kind, self.title, self.graph)

    def execute(self, plan: GraphPlan, ctx: StepContext) -> Json:  # noqa: ARG002 - the same
        ctx.run.journal.prepare(node.fingerprint for node in self.graph.nodes.values())
        return GraphRun(self.graph, ctx).run()


class GraphRun:
    """One run of a graph: the state, the number of visits, and the budget."""

    def __init__(self, graph: GraphSpec, ctx: StepContext) -> None:
        self.graph = graph
        self.ctx = ctx
        self.state: dict[str, Json] = dict(graph.state)
        self.steps = 0
        self.visits: dict[str, int] = {}
        self.errors: list[Json] = []
        self.hooks = ctx.run.hooks
        self.budget = ctx.run.budgets.at(ctx.path)
        self.limit_names = _limit_names(self.budget)
        self.outer_scope = ctx.scope
        self.base = Scope({}, sources=ctx.scope.sources)

    def run(self) -> dict[str, Json]:
        try:
            return self._visit_nodes()
        except LimitExceeded as end:
            end.failure = replace(end.failure, output={**self.partial(), "ended": "limit"})
            raise

    def _visit_nodes(self) -> dict[str, Json]:
        self._fire("graph_started", {"start": self.graph.start})
        name: str | None = self.graph.start
        while name is not None:
            self._require_steps_left()
            node = self.graph.nodes[name]
            visit = NodeStep(self, node, self._number(name))
            self._charge_step(visit)
            outcome, self.ctx = self._with_state().perform_next(visit, self.steps)
            self.steps += 1
            if isinstance(outcome, Succeeded):
                if "output" in outcome.value:
                    return self._complete(outcome.value["output"])
                name = self._apply_visit(node, outcome.value)
            elif isinstance(outcome, Failed):
                name = self._after_failure(node, outcome.failure)
            else:  # a hook skipped it
                names = NodeScope(self, {"result": {"status": "skipped"}}, self.ctx.path)
                name = choose_edge(node, names).get("next")
        return self._complete(dict(self.state))

    def _with_state(self) -> StepContext:
        """The context with the state in its scope, for hooks of steps inside the graph."""
        if self.hooks.is_empty:
            return self.ctx
        return self.ctx.with_scope(self.outer_scope.child(state=dict(self.state)))

    def _number(self, name: str) -> int:
        number = self.visits[name] = self.visits.get(name, 0) + 1
        return number

    def _apply_visit(self, node: NodeSpec, value: Mapping[str, Json]) -> str | None:
        if "assign" in value:
            self.state.update(value["assign"])
        if "error" in value:
            self._add_error(node, value["error"])
        return value.get("next")

    def _after_failure(self, node: NodeSpec, failure: Failure) -> str | None:
        error = error_record(node, failure)
        if node.on_error is None and not self.graph.continue_on_error:
            raise StepError(
                replace(failure, message=_at_node(node, failure.message), output=self.partial())
            )
        self._add_error(node, error)
        if node.on_error is not None:
            return node.on_error
        names = NodeScope(self, {"result": {"status": "error", **error}}, self.ctx.path)
        return choose_edge(node, names).get("next")

    def _add_error(self, node: NodeSpec, error: Mapping[str, Json]) -> None:
        self.state["_last_error"] = dict(error)
        self.errors.append(dict(error))
        self.ctx.run.events.note(
            self.ctx.path, f"node '{node.name}' failed, and the graph continues"
        )

    # ── limits, hooks, result ────────────────────────────────────────────

    def _require_steps_left(self) -> None:
        if self.steps >= self.graph.max_steps:
            own = LimitReached(
                "steps", self.steps, self.graph.max_steps, f"graph '{self.graph.name}'"
            )
            self.hooks.limit_reached(self.ctx, own, self.facts())
            raise StepError(own.failure({**self.partial(), "ended": "limit"}))

    def _charge_step(self, visit: NodeStep) -> None:
        """Charge a step before the visit, so that parallel graphs cannot both take the last one."""
        if not self.limit_names and self.hooks.is_empty:
            return  # no limit and no hook
        run, path = self.ctx.run, join_path(self.ctx.path, visit.name)
        limit_names = self.limit_names
        if not run.replay.is_first_run and run.journal.was_ever_started(path):
            # A replayed visit is not a new step. The limits of its call are checked there.
            limit_names = tuple(name for name in limit_names if name in ("steps", "seconds"))
        if (reached := run.budgets.take_step(path, self.budget, *limit_names)) is not None:
            raise limit_error(reached, self.ctx, self.facts())

    def partial(self) -> dict[str, Json]:
        """The result so far."""
        return {"output": None, "state": dict(self.state), "steps": self.steps, **self._errors()}

    def _complete(self, output: Json) -> dict[str, Json]:
        self._fire("graph_completed", {"result": output})
        return {"output": output, "state": dict(self.state), "steps": self.steps, **self._errors()}

    def _errors(self) -> dict[str, Json]:
        return {"errors": self.errors} if self.errors else {}

    def _fire(self, event: str, context: Mapping[str, Json]) -> None:
        decision = self.hook_decision(event, self.ctx, context)
        if decision is not None and decision.verb == "fail":
            raise StepError(replace(decision.failure(), output=self.partial()))
        if decision is not None and decision.verb == "abort":
            raise decision.abort_error()

    def hook_decision(
        self, event: str, ctx: StepContext, context: Mapping[str, Json]
    ) -> HookDecision | None:
        """The decision of hooks, if there are any."""
        if self.hooks.is_empty:
            return None
        return self.hooks.fire(event, ctx, {**self.facts(), **context})

    def has_hook(self, event: str) -> bool:
        return self.hooks.has(event)

    def facts(self) -> dict[str, Json]:
        """The variables of every hook of a graph."""
        return {
            "graph": self.graph.name,
            "state": dict(self.state),
            "inputs": deep_copy(dict(self.graph.inputs)),
            "steps": self.steps,
        }


def _limit_names(budget: Budget) -> tuple[str, ...]:
    """The limits that are set. Checking all limits would take longer than many nodes."""
    found: dict[str, None] = {}
    outer: Budget | None = budget
    while outer is not None:
        found.update(dict.fromkeys(outer.limits.record()))
        outer = outer.within
    return tuple(name for name in found if name != "depth")


# ── messages ─────────────────────────────────────────────────────────────


_AT_NODES: Final = lazy_pattern(r"(?:node '[^']*': )*")


def _at_node(node: NodeSpec, message: str) -> str:
    """Add the node to a message. Nested graphs name each node once."""
    prefix = f"node '{node.name}': "
    named = _AT_NODES.match(message)
    return message if named is not None and prefix in named[0] else prefix + message


# ── dry run ──────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class GraphPlan(Plan):
    """Shows every reachable node as it is written: only a run knows which edges are followed.

    For the first node it also shows the parameters of the call.
    """

    def show(self, ctx: StepContext, log: PlanLog) -> Json:
        _show_nodes(self.data, ctx, log)
        return {}


def _show_nodes(graph: GraphSpec, ctx: StepContext, plan: PlanLog) -> None:
    first_repeated = _first_done_again(graph, ctx)
    for node in reachable(graph):
        inner = ctx.child(node)
        known = _first_visit(node, ctx)
        if known is not None and known.number < first_repeated:
            plan.add_recorded(node, inner.path)
            continue
        does = _first_call(graph, node, ctx) if node.name == graph.start else None
        if _keeps_call(node, ctx) and known is not None and known.number == first_repeated:
            does = "its recorded call is kept"
        is_changed = known is not None and known.fingerprint != node.fingerprint
        plan.add(
            replace(inner, can_replay=inner.can_replay and is_changed),
            "shell" if node.loop is None and isinstance(node.call, ShellCall) else node.kind,
            describe_node(node, does),
        )


def _first_visit(node: NodeSpec, ctx: StepContext) -> StepRecord | None:
    """The recorded outcome of the first visit of a node, if the run may replay it."""
    can_replay = ctx.can_replay and not ctx.run.replay.is_first_run
    return ctx.run.journal.step(ctx.child(node).path) if can_replay else None


def _first_done_again(graph: GraphSpec, ctx: StepContext) -> float:
    """The number of the first outcome that no longer counts: everything after it is repeated."""
    ends = (
        (node, known) for node in reachable(graph) if (known := _first_visit(node, ctx)) is not None
    )
    return min(
        (known.number for node, known in ends if not _counts(node, known)), default=float("inf")
    )


def _counts(node: NodeSpec, known: StepRecord) -> bool:
    has_failed = isinstance(known.outcome, Failed) and not node.policy.keep_failure
    return known.fingerprint == node.fingerprint and not has_failed


def _keeps_call(node: NodeSpec, ctx: StepContext) -> bool:
    """Whether the recorded call is the same as now."""
    known = ctx.run.journal.step(join_path(ctx.child(node).path, CALL)) if node.call else None
    return (
        known is not None and node.call is not None and known.fingerprint == node.call.fingerprint
    )


def _first_call(graph: GraphSpec, node: NodeSpec, ctx: StepContext) -> str | None:
    if node.call is None:
        return None
    names = NodeScope(GraphRun(graph, ctx), clock_names() if node.clock else {}, ctx.path)
    if node.loop is None:
        return describe_call(node.call, ctx, names, strict=graph.strict)
    over = node.loop.over.render(names, strict=graph.strict)
    many = f" of {len(over)}" if isinstance(over, list) else ""
    return f"for each {node.loop.name}{many}: {node.call.source_text()}"


def reachable(graph: GraphSpec) -> Iterator[NodeSpec]:
    """Yield the reachable nodes in breadth-first order."""
    found = dict.fromkeys([graph.start])
    waiting = [graph.start]
    while waiting:
        node = graph.nodes[waiting.pop(0)]
        yield node
        for name in next_names(node):
            if name not in found:
                found[name] = None
                waiting.append(name)
