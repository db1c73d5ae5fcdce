"""The text of a run: the fingerprints with which the recorded outcomes of its steps count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass, field
from plait.core.values import Json
from plait.engine.paths import generic_path
from plait.engine.step import iter_program

if TYPE_CHECKING:
    from plait.engine.step import Step


@dataclass(frozen=True, slots=True)
class RunText:
    """For each step of the flow, the fingerprints with which its outcomes count, in file order.

    The first of them is that of the present text.  `plait retry` of some items by an edited file
    adds it to the others; a change that is accepted replaces them all.  Steps that the flow does
    not declare, such as turns of a model and steps of a called flow, are not in it.
    """

    steps: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By path of the flow."""
    is_accepted: bool = False
    """The user accepted the changes of this text; those of steps that it does not name, too."""

    @classmethod
    def of(cls, parts: Iterable[Step]) -> RunText:
        """Return the text of a new run of a program."""
        return cls({path: [step.fingerprint] for path, step in iter_program(parts)})

    @classmethod
    def from_fact(cls, fact: Json) -> RunText:
        return cls(fact["steps"], fact["accepted"]) if isinstance(fact, dict) else cls()

    def to_fact(self) -> Json:
        return {
            "steps": {path: list(known) for path, known in self.steps.items()},
            "accepted": self.is_accepted,
        }

    def fingerprints(self, path: str, present: str) -> Sequence[str]:
        """Return those with which an outcome at a path counts for a step that has this one now."""
        known = self.steps.get(generic_path(path), ())
        return known if known and known[0] == present else (present,)


NO_TEXT: Final = RunText()
