"""One visit of a graph node: its variables, its action and its record."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

from plait.core.errors import PlaitError
from plait.core.hints import TYPE_CHECKING
from plait.core.masking import mask_value
from plait.core.records import replace
from plait.core.values import Json, json_size
from plait.engine.events import StepRetrying
from plait.engine.hook_events import HookDecision, error_names
from plait.engine.journal import record_number
from plait.engine.outcome import LIMIT, Failed, StepError, Succeeded, require_success
from plait.engine.paths import CALL, join_path, repeated_name
from plait.engine.step import Composite, FunctionAction, LeafStep, Policy
from plait.program.graph.calls import call_for_each, call_result
from plait.program.graph.edges import choose_edge
from plait.template.compiled import require_bounded

if TYPE_CHECKING:
    from plait.core.hints import Final
    from plait.core.source import Source, Span
    from plait.engine.outcome import Failure
    from plait.engine.perform import StepContext
    from plait.engine.step import Step
    from plait.program.graph.calls import Action
    from plait.program.graph.graph_step import GraphRun
    from plait.program.graph.spec import NodeSpec
    from plait.template.compiled import Answer, Piece
    from plait.template.nodes import Path
    from plait.template.template import Template


class NodeScope:
    """The variables of a visit. An undefined variable is reported once per run."""

    __slots__ = ("_graph_run", "_path", "names")

    def __init__(self, graph_run: GraphRun, more: Mapping[str, Json], path: str) -> None:
        self.names: dict[str, Json] = {
            "state": graph_run.state,
            "inputs": graph_run.graph.inputs,
            **more,
        }
        self._graph_run = graph_run
        self._path = path

    def with_names(self, **more: Json) -> NodeScope:
        names = NodeScope.__new__(NodeScope)
        names.names, names._graph_run, names._path = (
            {**self.names, **more},
            self._graph_run,
            self._path,
        )
        return names

    def lookup(self, path: Path) -> Answer:
        from plait.core.values import UNDEFINED
        from plait.template.compiled import follow_path

        found = self.names.get(path.root, UNDEFINED)
        return self.fallback(path) if found is UNDEFINED else follow_path(found, path.keys)

    def fallback(self, path: Path) -> Answer:
        return self._graph_run.base.fallback(path)

    def compute(self, kind: str, argument: str) -> Answer:
        return self._graph_run.base.compute(kind, argument)

    def command(self, pieces: list[Piece], source: Source) -> Answer:
        return self._graph_run.base.command(pieces, source)

    def report_missing(self, where: Span, name: str, guess: str | None) -> None:
        meant = f"; did you mean '{guess}'?" if guess else ""
        self._graph_run.ctx.run.events.note_once(
            str(where),
            self._path,
            f"{where}: there is no variable '{name}', so it stays empty{meant}",
        )


class NodeStep(Composite):
    """One visit of a node, with the current state."""

    __slots__ = (
        "_graph_run",
        "attempts_inside",
        "children",
        "fingerprint",
        "is_composed",
        "kind",
        "name",
        "node",
        "policy",
        "title",
    )
    counts_itself = True
    retry_scope = "always"
    """A completed call is not repeated because of something that happens after it."""

    def __init__(self, graph_run: GraphRun, node: NodeSpec, number: int) -> None:
        self._graph_run = graph_run
        self.node = node
        self.name = self.title = repeated_name(node.name, number)
        self.is_composed = node.loop is not None or (
            node.call is not None
            and (
                graph_run.has_hook("error")
                or graph_run.has_hook("after_step")
                or _may_fail_after_call(node)
            )
        )
        """Its call or its items are recorded as their own steps."""
        self.kind = node.kind
        self.fingerprint = node.fingerprint
        self.children: Sequence[Step] = ()
        self.attempts_inside = 0
        """The number of attempts of its call as its own step."""
        # A composed node retries its inner steps, because hooks may act between two attempts.
        self.policy = _visit_policy(node) if self.is_composed else node.policy

    def value_after_failure(self, failure: Failure) -> Json:
        """The value of the visit if a hook ignores its failure; None if the next node is unknown."""
        error = error_record(self.node, failure)
        if self.node.on_error is not None:
            return {"error": error, "next": self.node.on_error}
        names = NodeScope(
            self._graph_run, {"result": {"status": "error", **error}}, self._graph_run.ctx.path
        )
        try:
            return {"error": error, **choose_edge(self.node, names)}
        except PlaitError:
            return None

    def run(self, ctx: StepContext) -> Json:
        node = self.node
        names = NodeScope(self._graph_run, clock_names() if node.clock else {}, ctx.path)
        record = self._execute_node(ctx, names)
        if not self._graph_run.hooks.is_empty:
            after = {**self._graph_run.state, **record.get("assign", {})}
            result = record["output"] if "output" in record else names.names.get("result")
            steps = self._graph_run.steps + 1  # including this visit
            context = {
                "node": node.name,
                "next": record.get("next"),
                "result": result,
                "state": after,
                "steps": steps,
            }
            decision = self._graph_run.hook_decision("after_step", ctx, context)
            if decision is not None and decision.verb == "abort":
                # If a gate hook failed, it has not decided about the visit, so the visit has no
                # outcome yet.
                outcome = Succeeded(record) if decision.is_all else None
                raise replace(decision, path=ctx.path).abort_error(outcome)
        return record

    def _execute_node(self, ctx: StepContext, names: NodeScope) -> dict[str, Json]:
        node = self.node
        if node.kind == "return":
            output = None if node.output is None else self._render(node.output, names)
            return {"output": self._recordable(output)}
        if node.call is None:
            return self._transition_record(names)
        try:
            names.names["result"] = self._execute_call(node.call, ctx, names)
        except _ContinuedError as continued:
            names.names["result"] = {"status": "error", **continued.error}
            following = (
                choose_edge(node, names) if node.on_error is None else {"next": node.on_error}
            )
            return {"error": continued.error, **following}
        return self._transition_record(names)

    def _transition_record(self, names: NodeScope) -> dict[str, Json]:
        """The record of the visit: its assignments and the next node."""
        node, record = self.node, dict[str, Json]()
        if node.assign is not None:
            assigned = record["assign"] = self._recordable(self._render(node.assign, names))
            # Two nodes can double each other's texts at every visit.
            if json_size(assigned) > _MANY:
                require_bounded({**names.names["state"], **assigned})
        if node.loop is not None and node.loop.collect is not None:
            collected = names.names["result"]["results"]
            record["assign"] = {node.loop.collect: collected, **record.get("assign", {})}
        record.update(choose_edge(node, names, record.get("assign")))
        return record

    def _execute_call(self, call: Action, ctx: StepContext, names: NodeScope) -> dict[str, Json]:
        node = self.node
        if node.loop is not None:
            return call_for_each(
                node.loop, call, node, ctx, names, strict=self._graph_run.graph.strict
            )
        if not self.is_composed:
            return call_result(call, ctx, names, strict=self._graph_run.graph.strict)
        return self._call_with_hooks(call, ctx, names)

    def _call_with_hooks(self, call: Action, ctx: StepContext, names: NodeScope) -> dict[str, Json]:
        """Perform the call as its own step; hooks decide what follows a failure."""
        attempt = 1
        # Everything that an attempt recorded inside the call counts for later attempts, as for
        # every agent.
        first = join_path(ctx.path, CALL)
        since = ctx.replay_after if ctx.can_replay else ctx.run.journal.last()
        while True:
            name = repeated_name(CALL, attempt)
            if attempt > 1:
                ctx.run.replay.continue_attempts()
            step = LeafStep(
                name,
                "tool",
                self.title,
                call.fingerprint,
                FunctionAction(partial(self._call, call, names, (first, since), attempt)),
                replace(self.node.policy, keep_failure=self._has_hook_decision(ctx, name, attempt)),
                retry_scope="inner",
            )
            outcome, ctx = ctx.perform_next(step, attempt - 1)
            self.attempts_inside = max(self.attempts_inside, attempt)
            if not isinstance(outcome, Failed):
                return dict(require_success(outcome))
            if not self._should_retry(ctx, outcome, attempt):
                raise StepError(outcome.failure)
            attempt += 1

    def _call(
        self,
        call: Action,
        names: NodeScope,
        first: tuple[str, int],
        attempt: int,
        ctx: StepContext,
    ) -> Json:
        """Call the action; the records of the first attempt count for later ones too.

        `first`: the path of the first attempt, and the event after which its records count.
        """
        self.attempts_inside += 1
        if attempt > 1:
            path, since = first
            ctx = replace(ctx, path=path, can_replay=True, replay_after=since)
        return call_result(call, ctx, names, strict=self._graph_run.graph.strict)

    def _has_hook_decision(self, ctx: StepContext, name: str, attempt: int) -> bool:
        """Whether a hook of an earlier run attempt decided about the failure, and the visit had no
        outcome.
        """
        hooks, journal = self._graph_run.hooks, ctx.run.journal
        if hooks.is_empty or ctx.run.replay.is_first_run or not ctx.can_replay:
            return False
        known = journal.step(join_path(ctx.path, name))
        if known is None or record_number(journal.last_result(ctx.path)) > known.number:
            return False
        return hooks.has_decided("error", replace(ctx, attempt=attempt), known.number)

    def _should_retry(self, ctx: StepContext, outcome: Failed, attempt: int) -> bool:
        failure = outcome.failure
        context = {"error": error_names(failure), "node": self.node.name, "attempt": attempt}
        decision = self._graph_run.hook_decision("error", ctx, context)
        match decision:
            case HookDecision("retry"):
                if attempt > (decision.max_retries or 0) or failure.kind == LIMIT:
                    return False
                ctx.run.events.emit(StepRetrying(ctx.path, attempt, failure, decision.delay))
                ctx.run.budgets.pause(ctx, decision.delay)
                return True
            case HookDecision("continue" | "skip"):
                raise _ContinuedError(error_record(self.node, failure))
            case HookDecision("fail"):
                raise StepError(replace(failure, message=f"{failure.message}\n{decision.message}"))
            case HookDecision("abort"):
                raise decision.abort_error()
        return False

    def _render(self, template: Template, names: NodeScope) -> Json:
        return template.render(names, strict=self._graph_run.graph.strict)

    def _recordable(self, value: Json) -> Json:
        if not self._graph_run.graph.has_secrets:
            return value
        kept = mask_value(value, self._graph_run.ctx.run.secrets.mask)
        if kept != value:
            self._note_masked_secrets()
        return kept

    def _note_masked_secrets(self) -> None:
        """Note that a secret is masked. A resumed run has only the recorded state, so this one uses
        it, too.
        """
        why = "its result contains a secret, which is *** from here on"
        self._graph_run.ctx.run.events.note_once(
            f"secrets of {self.node.name}",
            self._graph_run.ctx.path,
            f"node '{self.node.name}': {why}; use ${{inputs.…}} where it is needed",
        )


_MANY: Final = 1 << 16
"""If the assignments have more characters than this, the whole state is measured."""


class _ContinuedError(Exception):
    """A hook decided that the graph continues after an error."""

    def __init__(self, error: dict[str, Json]) -> None:
        super().__init__("the graph continues")
        self.error = error


def _may_fail_after_call(node: NodeSpec) -> bool:
    """Whether something after the call can fail. Then the call is its own step and is not repeated."""
    return node.assign is not None or any(edge.when is not None for edge in node.edges)


def _visit_policy(node: NodeSpec) -> Policy:
    # The timeout of a call applies to each attempt; that of a loop to all items together.
    timeout = None if node.loop is None else node.policy.timeout
    return Policy(timeout=timeout, keep_failure=node.policy.keep_failure)


def error_record(node: NodeSpec, failure: Failure) -> dict[str, Json]:
    """A failure as the state, hooks and edges see it."""
    return {"node": node.name, "error": failure.message, "kind": failure.kind}


def clock_names() -> dict[str, Json]:
    from datetime import UTC, datetime

    now = time.time()
    return {
        "_now": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
        "_timestamp": int(now * 1000),
    }
