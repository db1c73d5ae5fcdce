"""What a dry run of a flow prints: its planned steps."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from plait.core.hints import TYPE_CHECKING
from plait.views.format import clean_block, json_line, one_line
from plait.views.terminal import paint_for

if TYPE_CHECKING:
    from plait.core.values import Json
    from plait.engine.plan_log import PlannedStep


def show_plan(plan: Iterable[PlannedStep], *, as_json: bool) -> int:
    """Print the planned steps; the exit code is 1 if the run would fail."""
    paint = paint_for(sys.stdout)
    code = 0
    for step in plan:
        code = 1 if step.fatal else code
        if as_json:
            print(json_line(_step_json(step)))
            continue
        shown = f"{step.shown}   would fail: {step.fails}" if step.fails else step.shown
        first, *more = clean_block(shown).rstrip("\n").split("\n")
        path = paint(one_line(step.path, None), "dim" if step.replayed or step.skipped else "bold")
        print(f"{path}   {one_line(step.kind)}   {first}{paint(_remark(step), 'dim')}")
        for line in more:
            print(f"    {line}")
    return code


def _step_json(step: PlannedStep) -> dict[str, Json]:
    return {
        "path": step.path,
        "kind": step.kind,
        "shown": step.shown,
        "replayed": step.replayed,
        "why": step.why,
        "fails": step.fails,
        "skipped": step.skipped,
    }


def _remark(step: PlannedStep) -> str:
    if step.replayed:
        return "   (replayed)"
    if step.skipped:
        return f"   (skipped: {one_line(step.skipped)})"
    return f"   (again: {step.why})" if step.why else ""
