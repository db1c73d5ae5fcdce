"""Holes for a field of an item that the item does not have.

A lenient run keeps them as text, and notes it: each once in a run, however many
items lack the field.  A strict one fails by them, and so does a dry run of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass
from plait.core.source import Source, Span
from plait.core.values import UNDEFINED
from plait.engine.hands import working
from plait.engine.perform import Turn
from plait.template.nodes import ContextHole, Path
from plait.template.program import missing_names
from plait.template.template import Template

if TYPE_CHECKING:
    from plait.scope import Scope


@dataclass(frozen=True, slots=True)
class ItemHole:
    path: Path
    hole: ContextHole
    source: Source

    @property
    def span(self) -> Span:
        return Span(self.source, self.hole.start, self.hole.end)


def item_holes(*holders: object) -> tuple[ItemHole, ...]:
    """The fields of an item for which these templates, or records of templates, ask without a default."""
    templates = (template for holder in holders for template in _templates(holder))
    return tuple(hole for template in templates for hole in _asked_by(template))


def note_unfilled(holes: Iterable[ItemHole], turn: Turn) -> None:
    run = working(turn.run)
    for hole in holes:
        if turn.scope.lookup(hole.path) is UNDEFINED and (place := str(hole.span)) not in run.noted:
            run.noted.add(place)
            stays = f"'${{{hole.path}}}' stays as it is written: an item has no such field"
            run.note(turn.path, f"{place}: {stays}")


def expect_filled(holes: Iterable[ItemHole], scope: Scope) -> None:
    """What a strict run will not find in the item, said before it; raises MissingNamesError."""
    missing = [(hole.source, hole.hole) for hole in holes if _is_surely_missing(hole.path, scope)]
    if missing:
        raise missing_names(missing, scope.names, {})


def _is_surely_missing(path: Path, scope: Scope) -> bool:
    """Is there a map without the key?  What is no map may be something that only the run will know."""
    if scope.lookup(path) is not UNDEFINED:
        return False
    above = scope.lookup(Path(path.root))
    for key in path.keys:
        if not isinstance(above, Mapping):
            return False
        if key not in above:
            return True
        above = above[key]
    return False


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
                yield ItemHole(path, hole, leaf.source)


def _field_of_item(hole: ContextHole) -> Path | None:
    if hole.bare or hole.default is not None or hole.required is not None or len(hole.alternatives) != 1:
        return None
    (only,) = hole.alternatives
    path = only.origin
    # A format or filter may have an answer of its own for what is not there.
    if only.formats or hole.filters or not isinstance(path, Path):
        return None
    return path if path.root == "item" and path.keys else None
