"""The step that finds the items of a map."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice

from plait.core.digests import sha256_hex
from plait.core.errors import InputError, ProcessError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.masking import mask_value
from plait.core.records import dataclass, field, replace
from plait.core.values import NOT_KNOWN, Json, Unknown, contains_unknown
from plait.engine.backend import WorkItem
from plait.engine.outcome import Failure, StepError
from plait.engine.paths import ITEMS
from plait.engine.perform import StepContext
from plait.engine.step import DEFAULT_POLICY, Plan, Policy, Step
from plait.program.action_step import with_env
from plait.program.item_list import OnEmpty, check_not_empty
from plait.program.items import (
    CommandInput,
    FileInput,
    InputSpec,
    Selection,
    is_pattern,
    read_items,
    select,
    spec_template,
    with_keys,
)
from plait.program.items.spool import SpoolInfo, read_spool, require_spool, write_spool
from plait.program.ports import Processes
from plait.template.shell.script import bind_shell
from plait.template.template import Template

if TYPE_CHECKING:
    from plait.engine.plan_log import PlanLog

COMMAND_TIMEOUT: Final = 300.0
"""The timeout, in seconds, of a command that prints the items of a map."""
MOST_PLANNED: Final = 1000
"""The maximum number of items that a dry run shows."""


@dataclass(frozen=True, slots=True)
class ItemsPlan(Plan):
    """Returns the items that are known without running anything."""

    def show(self, ctx: StepContext, log: PlanLog) -> Json:
        finder: FindItems = self.data
        return finder.plan_items(ctx, log)


@dataclass(frozen=True, slots=True)
class FindItems:
    """Finds the items of a map and writes them to a file, before the first item runs."""

    input: InputSpec
    selection: Selection
    id: Template | None
    fingerprint: str
    allow_outside: bool = False
    strict: bool = False
    env: Mapping[str, Template] = field(default_factory=dict)
    """Environment variables of the command that prints the items."""
    on_empty: OnEmpty = "warn"
    name: str = ITEMS
    kind: str = ITEMS
    title: str = "the items"
    policy: Policy = DEFAULT_POLICY
    children: tuple[Step, ...] = ()

    def plan(self, ctx: StepContext) -> ItemsPlan:  # noqa: ARG002 - the protocol's shape
        return ItemsPlan(self.kind, data=self)

    def execute(self, plan: ItemsPlan, ctx: StepContext) -> Json:  # noqa: ARG002 - the same
        from plait.program.git_changes import scope_outside_steps

        ctx = ctx.with_scope(scope_outside_steps(ctx))
        spooled = write_spool(self._items_with_keys(ctx), self._file(ctx))
        check_not_empty(spooled.count, self.on_empty, ctx, "the map", self._why_empty())
        return {"count": spooled.count, "digest": spooled.digest}

    def _why_empty(self) -> str:
        match self.input:
            case CommandInput():
                source = "the command of the input prints"
            case FileInput():
                source = "the file of the input holds"
            case _:
                source = "the input has"
        if is_pattern(self.input):
            return "the pattern of the input matches no file that is selected"
        return f"{source} none that is selected"

    def read(self, value: Json, ctx: StepContext, *, without: bytes = b"") -> Iterator[WorkItem]:
        if not isinstance(value, dict):
            return
        if "items" in value:
            yield from (
                WorkItem(order, key, item) for order, (key, item) in enumerate(value["items"])
            )
            return
        file = self._file(ctx)
        if not ctx.run.replay.is_first_run:
            require_spool(file, SpoolInfo(int(value["count"]), str(value["digest"])))
        for order, key, item in read_spool(file, without=without):
            yield WorkItem(order, key, item)

    def _file(self, ctx: StepContext) -> str:
        owner = ctx.path.removesuffix(f"/{self.name}")
        # One file per map: a called workflow has its own map, perhaps for each of many items.
        name = "items.jsonl" if "/" not in owner else f"items-{path_digest(owner)}.jsonl"
        return os.path.join(ctx.run.folder, name)

    def _items_with_keys(self, ctx: StepContext) -> Iterator[tuple[str, Json]]:
        return with_keys(self._select_items(ctx), self.id, ctx.scope, mask=ctx.run.secrets.mask)

    def _select_items(self, ctx: StepContext) -> Iterator[Json]:
        items = read_items(
            self.input,
            directory=ctx.directory,
            run_command=lambda command: self._command_output(command, ctx),
            values=ctx.scope,
            json_path=self.selection.json_path,
            allow_outside=self.allow_outside,
        )
        chosen = select(items, replace(self.selection, json_path=None))
        mask = ctx.run.secrets.mask
        return chosen if ctx.run.secrets.is_empty else (mask_value(item, mask) for item in chosen)

    def _command_output(self, command: Template, ctx: StepContext) -> Iterator[bytes]:
        ctx = self._with_env(ctx)
        run, left = ctx.run, ctx.time_left()
        bound = bind_shell(command, ctx.scope, strict=self.strict)
        timeout = COMMAND_TIMEOUT if left is None else min(left, COMMAND_TIMEOUT)
        try:
            yield from run.services.get(Processes).lines(
                bound, cwd=ctx.directory, env=ctx.env, timeout=timeout, stop=run.stop
            )
        except ProcessError as error:
            if error.code != "command-failed":
                raise
            raise StepError(Failure(run.secrets.mask(str(error)), "exit", path=ctx.path)) from None

    def _with_env(self, ctx: StepContext) -> StepContext:
        return with_env(ctx, self.env, strict=self.strict) if self.env else ctx

    def plan_items(self, ctx: StepContext, plan: PlanLog) -> Json:
        """Return the items that are known without running anything, else NOT_KNOWN."""
        from plait.program.git_changes import scope_outside_steps

        run = ctx.run
        ctx = ctx.with_scope(scope_outside_steps(ctx))
        if isinstance(self.input, CommandInput):
            scope = self._with_env(ctx).scope
            plan.add(ctx, "items", bind_shell(self.input.command, scope, strict=self.strict).shown)
            return NOT_KNOWN
        if (why := self._why_not_known(ctx)) is not None:
            plan.add(ctx, "items", f"not known yet: {why}")
            return NOT_KNOWN
        try:
            found = [[key, item] for key, item in islice(self._items_with_keys(ctx), MOST_PLANNED)]
        except InputError as error:
            if not plan.has_planned_step():
                raise  # no planned step can still create them
            plan.add(ctx, "items", f"not known yet: {run.secrets.mask(error.what)}")
            return NOT_KNOWN
        if not found and plan.has_planned_step():
            plan.add(ctx, "items", "not known yet: there are none so far")
            return NOT_KNOWN
        check_not_empty(len(found), self.on_empty, ctx, "the map", self._why_empty())
        return {"count": len(found), "items": found}

    def _why_not_known(self, ctx: StepContext) -> str | None:
        """Why only a run knows the items: the input or the selection depends on unknown values."""
        value = spec_template(self.input).render_checked(ctx.scope)
        if isinstance(value, Unknown):
            return value.shown
        if not contains_unknown(value):
            return None
        chosen = self.selection
        selected_by = (chosen.json_path, chosen.filter, chosen.sort_by, chosen.distinct, self.id)
        return (
            "they depend on values that only a run knows"
            if any(one is not None for one in selected_by)
            else None
        )


def path_digest(path: str) -> str:
    return sha256_hex(path.encode("utf-8", "surrogatepass"))[:16]
