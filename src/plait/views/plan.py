"""TODO: say what this is."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from plait.core.hints import TYPE_CHECKING
from plait.views.format import clean, clean_block, json_line
from plait.views.terminal import paint_for

if TYPE_CHECKING:
    from plait.core.hints import Final
    from plait.engine.hands import Rehearsed


REHEARSED: Final = ("path", "kind", "shown", "remembered", "why", "fails", "skipped")


def show_rehearsal(rehearsed: Iterable[Rehearsed], *, as_json: bool) -> int:
    """What a dry run found, step by step: what would run or fail, and what is remembered; the exit code."""
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
        print(f"{paint(clean(one.path, None), colour)}   {clean(one.kind)}   {first}{about}")
        for line in more:
            print(f"    {line}")
    return code


def _about(one: Rehearsed) -> str:
    if one.remembered:
        return "   (remembered)"
    if one.skipped:
        return f"   (skipped: {clean(one.skipped)})"
    return f"   (again: {one.why})" if one.why else ""
