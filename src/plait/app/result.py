"""The result of a run, and who watches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass, field
from plait.engine.event_bus import StopSignal

if TYPE_CHECKING:
    from plait.core.hints import Final
    from plait.core.values import Json
    from plait.engine.event_bus import Watch
    from plait.engine.events import Status
    from plait.engine.outcome import Failure
    from plait.tools.trust.decisions import AskTrust


INPUT: Final = "map/items"
"""The step that reads the input of a map."""

STOPPED_BY: Final = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
"""The exit code of a run that a signal has stopped: 128 and its number."""


@dataclass(frozen=True, slots=True)
class FlowResult:
    """What became of a run."""

    run: str
    status: Status
    failure: Failure | None = None
    value: Json = None
    counts: Mapping[str, Json] = field(default_factory=dict)
    """`total`, `successful`, `failed` of its items."""
    trust_refused: bool = False
    has_seal: bool = True
    """Is it known to be this user's, so that it can be resumed?"""

    @property
    def exit_code(self) -> int:
        if self.status == "interrupted":
            return STOPPED_BY.get(self.failure.message if self.failure else "", 130)
        if self.trust_refused:
            return 3
        if (
            self.failure is not None
            and self.failure.kind == "refused"
            and self.failure.path == INPUT
        ):
            return 2  # as for any other file of the user's that is missing or cannot be read
        return 1 if self.status == "failed" or self.counts.get("failed") else 0


@dataclass(frozen=True, slots=True)
class RunObservers:
    """Who is there while a run is worked on: those who watch, who may stop it, who answers about
    trust.
    """

    watchers: Sequence[Watch] = ()
    stop: StopSignal = field(default_factory=StopSignal)
    ask: AskTrust | None = None


class TemporaryRun:
    """A run of which nothing is left when it is over."""

    def __init__(self) -> None:
        from tempfile import TemporaryDirectory

        from plait.engine.journal import MemoryJournal

        self.id = "unkept"
        self.journal = MemoryJournal()
        self.facts: dict[str, Json] = {}
        self.why_unsealed = ""
        self._temporary = TemporaryDirectory(prefix="plait-run-")
        self.folder = self._temporary.name

    def update_facts(self, **facts: Json) -> None:
        self.facts |= facts

    def __enter__(self) -> TemporaryRun:
        return self

    def __exit__(self, *_: object) -> None:
        self._temporary.cleanup()
