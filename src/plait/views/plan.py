"""What a dry run of a flow prints: its planned steps."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from plait.core.hints import TYPE_CHECKING, Final
from plait.views.format import clean_block, json_line, one_line
from plait.views.terminal import paint_for

if TYPE_CHECKING:
    from plait.core.hints import Final
    from plait.engine.dry_run import PlannedStep


REHEARSED: Final = ("path", "kind", "shown", "remembered", "why", "fails", "skipped")


def show_plan(rehearsed: Iterable[PlannedStep], *, as_json: bool) -> int:
    """What a dry run found, step by step: what would run or fail, and what is remembered; the exit
    code.
    """
    paint = paint_for(sys.stdout)
    code = 0
    for one in rehearsed:
        code = 1 if one.fatal else code
        if as_json:
            print(json_line({name: getattr(one, name) for name in REHEARSED}))
            continue
        shown = f"{one.shown}   would fail: {one.fails}" if one.fails else one.shown
        first, *more = clean_block(shown).rstrip("\n").split("\n")
        colour = "dim" if one.remembered or one.skipped else "bold"
        about = paint(_about(one), "dim")
        print(f"{paint(one_line(one.path, None), colour)}   {one_line(one.kind)}   {first}{about}")
        for line in more:
            print(f"    {line}")
    return code


def _about(one: PlannedStep) -> str:
    if one.remembered:
        return "   (remembered)"
    if one.skipped:
        return f"   (skipped: {one_line(one.skipped)})"
    return f"   (again: {one.why})" if one.why else ""
