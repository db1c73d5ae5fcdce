"""A list of items: what to do if it is empty, and one step for each item."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plait.core.errors import shorten
from plait.core.hints import TYPE_CHECKING, Final, Literal, TypeAlias
from plait.core.values import Json, text
from plait.engine.events import ItemsCounted
from plait.engine.outcome import Failed, Failure, Outcome, StepError
from plait.engine.parallel import perform_many
from plait.engine.perform import StepContext

if TYPE_CHECKING:
    from plait.engine.step import Step
    from plait.scope import Scope

OnEmpty: TypeAlias = Literal["ok", "warn", "fail"]
"""No items are usually a mistake in the input, and a flow that did nothing would look like a
success. So the default is a warning.
"""
EMPTY: Final = "empty"
"""The failure kind of a map that has no items but needs some."""
TITLE_FIELDS: Final = ("id", "name", "path", "title", "file", "key")
TITLE_LENGTH: Final = 60


def perform_items(
    ctx: StepContext,
    steps: Sequence[Step],
    *,
    parallel: int,
    keeps_going: bool,
    on_empty: OnEmpty,
    what: str,
    why: str,
    scope: Callable[[int], Scope | None] = lambda _: None,
) -> tuple[list[Outcome], StepContext]:
    """Perform the step of each item of a list that is in memory; see `perform_many`.

    Unless it `keeps_going`, no item starts after a failure, so there may be fewer outcomes than
    steps.  `what` has no items if there are none, and `why`; see `check_not_empty`.
    """
    if not ctx.run.is_dry_run:  # in a dry run one step may stand for unknown items
        ctx.run.events.emit(ItemsCounted(ctx.path, len(steps)))
        check_not_empty(len(steps), on_empty, ctx, what, why)
    return perform_many(
        ctx,
        steps,
        parallel=parallel,
        scope=scope,
        stops=lambda outcome: not keeps_going and isinstance(outcome, Failed),
    )


def check_not_empty(count: int, on_empty: OnEmpty, ctx: StepContext, what: str, why: str) -> None:
    """Warn or raise StepError if there are no items, as `on_empty` says."""
    if count or on_empty == "ok":
        return
    message = f"{what} has no items: {why}"
    if on_empty == "fail":
        raise StepError(Failure(f"{message}, and on_empty is fail", EMPTY, path=ctx.path))
    owner = ctx.path.removesuffix("/items")  # the step that finds the items is not visible to users
    ctx.run.events.warn(
        owner, f"{message}; write on_empty: ok if that is right, on_empty: fail if it is not"
    )


def item_title(item: Json) -> str:
    """A short text by which a person recognises an item."""
    if isinstance(item, dict):
        item = next(
            (item[name] for name in TITLE_FIELDS if isinstance(item.get(name), (str, int))), item
        )
    return shorten(" ".join(text(item).split()), TITLE_LENGTH)
