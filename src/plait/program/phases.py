"""The phases of a workflow: setup, map, reduce and merge, or one list of steps.

Captures of setup are visible in all later phases. Captures of an item end with the item. Reduce and
merge see `map.*`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass, replace
from plait.core.values import NOT_KNOWN, Json, json_text
from plait.engine.outcome import Succeeded, require_success
from plait.engine.paths import join_path
from plait.engine.perform import StepContext
from plait.engine.step import Composite
from plait.program.map import Map, item_results
from plait.program.map_progress import has_unknown_counts
from plait.program.step_list import StepList as Steps

if TYPE_CHECKING:
    from plait.scope import Scope

MAP_LISTS = ("results", "results_json", "outputs")
MAP_FACTS = ("total", "successful", "failed", "skipped", "success_rate", *MAP_LISTS)


@dataclass(frozen=True, slots=True)
class Phases(Composite):
    steps: Steps | None = None
    """The steps of a workflow without phases."""
    setup: Steps | None = None
    map: Map | None = None
    reduce: Steps | None = None
    merge: Steps | None = None
    map_lists: frozenset[str] = frozenset(MAP_LISTS)
    """The lists of `map.*` that the flow reads. Lists may be large, so the others are not built."""

    @property
    def children(self) -> Sequence[Steps | Map]:
        parts = (self.steps, self.setup, self.map, self.reduce, self.merge)
        return [part for part in parts if part is not None]

    @property
    def phases(self) -> tuple[tuple[str, int], ...]:
        """Each phase with the number of its steps."""
        return tuple(
            (part.name, len(part.steps.steps if isinstance(part, Map) else part.steps))
            for part in self.children
        )

    def run(self, ctx: StepContext) -> Json:
        """Return the value of the last phase; raises StepError if a phase fails."""
        value: Json = None
        for order, part in enumerate(self.children):
            if part is self.merge:
                ctx = replace(ctx, scope=_with_merge(ctx))
            outcome, ctx = ctx.perform_next(part, order)
            value = require_success(outcome)
            if isinstance(part, Map):
                ctx = self._context_after_map(ctx, part, value)
            else:
                ctx = replace(ctx, scope=_with_captures(ctx.scope, part.name, value))
        if self.merge is not None and self.map is not None and self.map.isolation is not None:
            from plait.program.worktrees.gather import close_gather_worktree

            close_gather_worktree(ctx)
        return value

    def _context_after_map(self, ctx: StepContext, map_step: Map, value: Json) -> StepContext:
        ctx = replace(ctx, scope=self._with_map(ctx, map_step, value))
        if map_step.isolation is None:
            return ctx
        from plait.program.worktrees.gather import context_after_map, require_target_branch

        if self.reduce is not None:
            require_target_branch(ctx, value, self.reduce)
        return context_after_map(ctx, map_step, value)

    def _with_map(self, ctx: StepContext, map_step: Map, value: Json) -> Scope:
        facts: dict[str, Json] = dict(value) if isinstance(value, dict) else {}
        facts.pop("isolation", None)
        if has_unknown_counts(facts):
            # A dry run knows at most the number of items, not their outcomes.
            known = {"total": facts["total"]}
            return ctx.scope.frame(
                "map", phase={"map": {**dict.fromkeys(MAP_FACTS, NOT_KNOWN), **known}}
            )
        wanted = self.map_lists
        if wanted:
            results = list(self._results(ctx, map_step))
            lists: dict[str, Json] = {
                "results": [dict(one) for one in results]
                if wanted & {"results", "results_json"}
                else [],
                "outputs": [one["output"] for one in results] if "outputs" in wanted else [],
            }
            facts |= lists
            if "results_json" in wanted:
                facts["results_json"] = json_text(lists["results"])
        return ctx.scope.frame("map", phase={"map": facts})

    def _results(self, ctx: StepContext, map_step: Map) -> Iterator[dict[str, Json]]:
        inner = ctx.child(map_step)
        recorded = inner.run.journal.step(join_path(inner.path, map_step.items.name))
        if recorded is None or not isinstance(recorded.outcome, Succeeded):
            return iter(())
        return item_results(inner, map_step.items.read(recorded.outcome.value, inner))


def _with_merge(ctx: StepContext) -> Scope:
    from plait.program.git_changes import merge_names_at_start

    facts = merge_names_at_start(ctx)
    return ctx.scope.frame("merge", phase={"merge": facts}) if facts else ctx.scope


def _with_captures(scope: Scope, label: str, value: Json) -> Scope:
    captures = value.get("captures") if isinstance(value, dict) else None
    return (
        scope.frame(label, captures=captures) if isinstance(captures, dict) and captures else scope
    )
