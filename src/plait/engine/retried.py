"""Which items of a run were retried, and what that means for all else that was done."""

from __future__ import annotations

from collections.abc import Mapping

from plait.engine.journal import is_below, starred
from plait.hints import Final
from plait.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Retried:
    """Whatever is not in these items stays as it was done, also if its text was another one then."""

    items: frozenset[str] = frozenset()
    """Their paths, and that of the map; none: nothing was ever retried."""
    renewed: frozenset[str] = frozenset()
    """Paths of the flow: the steps whose text has changed since then, which are done again in all items."""
    held: Mapping[str, str] = field(default_factory=dict)
    """By paths of the flow: the texts of its steps then, as fingerprints."""

    def stays_done(self, path: str, fingerprint: str) -> bool:
        """Is what was done at a path not done again for its text, which is this one now?"""
        if not self.items or "/".join(path.split("/", 2)[:2]) in self.items:
            return False
        here = starred(path)
        if here in self.held:
            return self.held[here] == fingerprint
        return not any(is_below(here, one) or is_below(one, here) for one in self.renewed)


NOT_RETRIED: Final = Retried()
