"""An action whose changes matter: a commit is wanted of it, or its new files get names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase

from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass, field
from plait.core.values import NOT_KNOWN, Json
from plait.engine.dry_run import is_not_known
from plait.engine.hands import working
from plait.engine.outcome import Failure, StepError
from plait.engine.perform import act, plans

if TYPE_CHECKING:
    from plait.engine.perform import Turn
    from plait.engine.step import Step
    from plait.program.action_step import Action


@dataclass(frozen=True, slots=True)
class Watched:
    """An action of which a commit is wanted, or whose new files get names."""

    action: Action
    commit_required: bool = False
    id: str = ""
    outputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def inner(self) -> tuple[Step, ...]:
        return tuple(getattr(self.action, "inner", ()))

    @property
    def captures(self) -> tuple[str, ...]:
        """Names that it may give to those after it."""
        return (*getattr(self.action, "captures", ()), *((self.id,) if self.outputs else ()))

    @plans
    def run(self, turn: Turn) -> dict[str, Json]:
        tracker = working(turn.run).changes
        before = None if tracker is None else tracker.snapshot(turn.directory)
        value = act(self.action, turn)
        assert isinstance(value, dict), "it is how an action ended"
        if is_not_known(value) and self.outputs:
            return {**value, "captures": {**(value.get("captures") or {}), self.id: NOT_KNOWN}}
        if tracker is None or is_not_known(value):
            return value
        changed = tracker.since(before, turn.directory)
        if self.commit_required and not changed["commits"]:
            what = "the step left no commit behind, and one is required"
            raise StepError(Failure(what, "incomplete", exit_code=1, output={**value, "exit_code": 1}))
        if not self.outputs:
            return value
        inner = value.get("captures")
        return {
            **value,
            "captures": {**(inner if isinstance(inner, dict) else {}), self.id: self._files(changed)},
        }

    def _files(self, changed: Mapping[str, Json]) -> dict[str, Json]:
        """Each output: its file, or a list if there are several."""
        gone = set(changed["files_deleted"])
        files = [name for name in changed["files_changed"] if name not in gone]
        found = {
            name: [
                file
                for file in files
                if fnmatchcase(file, pattern) or fnmatchcase(os.path.basename(file), pattern)
            ]
            for name, pattern in self.outputs.items()
        }
        return {name: files[0] if len(files) == 1 else files for name, files in found.items()}
