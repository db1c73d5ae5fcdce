"""Holes for a field of an item that the item does not have: a lenient run keeps them as text, and notes it.

Each is noted once in a run, however many items lack the field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from plait.engine.perform import Turn
from plait.hints import TypeAlias
from plait.source import Span
from plait.steps.hands import working
from plait.template.nodes import ContextHole, Path
from plait.template.template import Template
from plait.values import UNDEFINED

ItemHole: TypeAlias = tuple[Path, Span]


def item_holes(*holders: object) -> tuple[ItemHole, ...]:
    """The fields of an item for which these templates, or records of templates, ask without a default."""
    templates = (template for holder in holders for template in _templates(holder))
    return tuple(hole for template in templates for hole in _asked_by(template))


def note_unfilled(holes: Iterable[ItemHole], turn: Turn) -> None:
    run = working(turn.run)
    for path, span in holes:
        if turn.scope.lookup(path) is UNDEFINED and str(span) not in run.noted:
            run.noted.add(str(span))
            run.note(turn.path, f"{span}: '${{{path}}}' stays as it is written: an item has no such field")


def _templates(holder: object) -> Iterator[Template]:
    if isinstance(holder, Template):
        yield holder
    else:
        held = (getattr(holder, name, None) for name in getattr(holder, "__slots__", ()))
        yield from (one for one in held if isinstance(one, Template))


def _asked_by(template: Template) -> Iterator[ItemHole]:
    for leaf in template.leaves():
        for hole in leaf.program.parts:
            if isinstance(hole, ContextHole) and (path := _field_of_item(hole)) is not None:
                yield path, Span(leaf.source, hole.start, hole.end)


def _field_of_item(hole: ContextHole) -> Path | None:
    if hole.bare or hole.default is not None or hole.required is not None or len(hole.alternatives) != 1:
        return None
    (only,) = hole.alternatives
    path = only.origin
    # A format or filter may have an answer of its own for what is not there.
    if only.formats or hole.filters or not isinstance(path, Path):
        return None
    return path if path.root == "item" and path.keys else None
