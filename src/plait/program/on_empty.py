"""What it means that a map, or anything like it, has no items.

Mostly it is a mistake in what names them, and a flow that did nothing would look like one that
succeeded.  So it is said as a warning, unless the author has decided that it is right or wrong.
"""

from __future__ import annotations

from plait.core.hints import Final, Literal, TypeAlias
from plait.engine.outcome import Failure, StepError
from plait.engine.perform import StepContext

OnEmpty: TypeAlias = Literal["ok", "warn", "fail"]
EMPTY: Final = "empty"
"""The kind of failure of a map that has no items and must have some."""


def check_not_empty(count: int, on_empty: OnEmpty, ctx: StepContext, what: str, why: str) -> None:
    """Nothing, if there are items; else a warning, or StepError, or nothing, as the author says."""
    if count or on_empty == "ok":
        return
    said = f"{what} has no items: {why}"
    if on_empty == "fail":
        raise StepError(Failure(f"{said}, and on_empty is fail", EMPTY, path=ctx.path))
    owner = ctx.path.removesuffix("/items")  # nobody knows the step that finds them
    ctx.run.events.warn(
        owner, f"{said}; write on_empty: ok if that is right, on_empty: fail if it is not"
    )
