"""`on_empty`: what to do if a map or a foreach has no items.

Usually this is a mistake in the input, and a flow that did nothing would look like a success. So
the default is a warning.
"""

from __future__ import annotations

from plait.core.hints import Final, Literal, TypeAlias
from plait.engine.outcome import Failure, StepError
from plait.engine.perform import StepContext

OnEmpty: TypeAlias = Literal["ok", "warn", "fail"]
EMPTY: Final = "empty"
"""The failure kind of a map that has no items but needs some."""


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
