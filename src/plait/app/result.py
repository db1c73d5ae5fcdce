"""The result of a run, which decides the exit code of `plait run`, and its observers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass, field
from plait.engine.paths import MAIN_ITEMS
from plait.engine.stop import StopSignal

if TYPE_CHECKING:
    from plait.core.hints import Final
    from plait.core.values import Json
    from plait.engine.event_bus import Watch
    from plait.engine.events import Status
    from plait.engine.outcome import Failure
    from plait.tools.trust.decisions import AskTrust


STOPPED_BY: Final = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
"""The exit code of a run that a signal stopped: 128 plus its number."""


@dataclass(frozen=True, slots=True)
class FlowResult:
    """How a run ended."""

    run: str
    status: Status
    failure: Failure | None = None
    value: Json = None
    counts: Mapping[str, Json] = field(default_factory=dict)
    """`total`, `successful` and `failed` items."""
    trust_refused: bool = False
    has_seal: bool = True
    """The run has a seal of this user, so it can be resumed."""

    @property
    def exit_code(self) -> int:
        if self.status == "interrupted":
            return STOPPED_BY.get(self.failure.message if self.failure else "", 130)
        if self.trust_refused:
            return 3
        if (
            self.failure is not None
            and self.failure.kind == "refused"
            and self.failure.path == MAIN_ITEMS
        ):
            return 2  # the same exit code as for any other missing file
        return 1 if self.status == "failed" or self.counts.get("failed") else 0


@dataclass(frozen=True, slots=True)
class RunObservers:
    """Who takes part in a run: watchers, the stop signal, and a function that asks about trust."""

    watchers: Sequence[Watch] = ()
    stop: StopSignal = field(default_factory=StopSignal)
    ask: AskTrust | None = None
