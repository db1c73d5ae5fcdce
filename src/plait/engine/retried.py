"""Which items of a run were retried, and what that means for all else that was done."""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.hints import Final
from plait.core.records import dataclass, field
from plait.engine.paths import starred


@dataclass(frozen=True, slots=True)
class Retried:
    """Whatever is not in these items stays as it was done, also if its text was another one then."""

    items: frozenset[str] = frozenset()
    """Their paths, and that of the map; none: nothing was ever retried."""
    held: Mapping[str, str] = field(default_factory=dict)
    """By paths of the flow: the texts of its steps then, as fingerprints."""

    def stays_done(self, path: str, fingerprint: str) -> bool:
        """Is what was done at a path not done again for its text, which is this one now?"""
        if not self.items or "/".join(path.split("/", 2)[:2]) in self.items:
            return False
        return self.held.get(starred(path)) == fingerprint


NOT_RETRIED: Final = Retried()
