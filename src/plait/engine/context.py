"""The run context: what all steps of one attempt of a run share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from threading import Lock

from plait.core.errors import InternalError
from plait.core.hints import TYPE_CHECKING, Final, TypeAlias, TypeVar
from plait.core.records import dataclass, field
from plait.engine.backend import SERIAL, Backend
from plait.engine.budgets import Budgets
from plait.engine.event_bus import EventBus
from plait.engine.hook_port import NO_HOOKS, Hooks
from plait.engine.journal import Journal
from plait.engine.replay import Replay
from plait.engine.stop import StopSignal

if TYPE_CHECKING:
    from random import Random

    from plait.core.masking import MaskedStream, Masker
    from plait.core.values import Json
    from plait.engine.perform import StepContext
    from plait.engine.plan_log import PlanLog
    from plait.engine.trace import RunTrace

T = TypeVar("T")


class Secrets:
    """The secrets that a run masks.  Steps may add to them while the run goes on."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._lock = Lock()
        self._masker: Masker | None = None
        self.add(secrets)

    def mask(self, text: str) -> str:
        masker = self._masker
        return text if masker is None else masker.mask(text)

    def mask_title(self, title: str) -> str:
        """Mask a title, also the beginning of a secret where the title was shortened."""
        masker = self._masker
        return title if masker is None else masker.mask_title(title)

    def add(self, secrets: Iterable[str]) -> None:
        """Mask these, too, from now on: secrets of a subflow, or ones that a command printed."""
        for secret in secrets:
            with self._lock:
                if self._masker is None:
                    from plait.core.masking import Masker

                    self._masker = Masker()
            self._masker.add(secret)

    def add_derived(self, secrets: Iterable[str]) -> None:
        """Mask what a step derived from secrets, unless a part of it is masked already.

        So a resumed run masks the same text, whichever steps it replays.
        """
        self.add([secret for secret in secrets if self.mask(secret) == secret])

    def safe_length(self, text: str) -> int:
        """How much of a text that goes on may be shown now: a secret could begin after that."""
        masker = self._masker
        return len(text) if masker is None else masker.safe_length(text)

    def stream(self) -> MaskedStream:
        """Return a mask for a text that comes in pieces."""
        from plait.core.masking import MaskedStream

        return MaskedStream(self.mask, self.safe_length)

    @property
    def is_empty(self) -> bool:
        return self._masker is None

    def values(self) -> list[str]:
        """Return the secrets in a fixed order, for another process that masks the same."""
        return [] if self._masker is None else self._masker.secrets


class Services:
    """The services of a run by port: processes, tools, files, models, …"""

    def __init__(self, ports: Mapping[type, object]) -> None:
        self._ports = ports

    def get(self, port: type[T]) -> T:
        found = self._ports.get(port)
        if found is None:
            raise InternalError(f"this run has no {port.__name__}")
        return found  # type: ignore[return-value]  # the key says which type the value has


NO_SERVICES: Final = Services({})


CallTool: TypeAlias = "Callable[[StepContext, str, Mapping[str, Json]], dict[str, Json]]"


def _no_tools(ctx: StepContext, tool_id: str, params: Mapping[str, Json]) -> dict[str, Json]:
    raise InternalError(f"this run calls no tools: {ctx.path} {tool_id} {len(params)}")


@dataclass(frozen=True, slots=True)
class RunContext:
    """What all steps of one attempt of a run share; built once, before the first step.

    State that changes during the run is inside its parts, each with a lock.
    """

    id: str
    journal: Journal
    events: EventBus
    replay: Replay
    budgets: Budgets
    hooks: Hooks = NO_HOOKS
    secrets: Secrets = field(default_factory=Secrets)
    services: Services = NO_SERVICES
    backend: Backend = SERIAL
    stop: StopSignal = field(default_factory=StopSignal)
    folder: str = ""
    """The folder for what is too large for the journal."""
    plan_log: PlanLog | None = None
    """The log of a dry run: actions are planned and added to it, not executed."""
    call_tool: CallTool = _no_tools
    """Calls a tool as a part of a step, for agents, which cannot import the tool action."""
    random: Random | None = None
    """Spreads pauses between attempts; None: `Retry.delays` makes one."""
    trace: RunTrace | None = None
    """The trace that processes and requests belong to; None: the run is not traced."""
    _shared: dict[type, object] = field(default_factory=dict, repr=False)

    @property
    def is_dry_run(self) -> bool:
        """Whether actions are only planned."""
        return self.plan_log is not None

    def shared(self, kind: type[T]) -> T:
        """Return the one object of a class that all steps of this run share; make it at first use."""
        found = self._shared.get(kind)
        if found is None:
            found = self._shared.setdefault(kind, kind())
        return found  # type: ignore[return-value]  # the key says which type the value has


def new_run_context(
    id: str,
    journal: Journal,
    *,
    replay: Replay | None = None,
    secrets: Secrets | None = None,
    events: EventBus | None = None,
    budgets: Budgets | None = None,
    hooks: Hooks = NO_HOOKS,
    services: Services | Callable[[EventBus], Services] = NO_SERVICES,
    backend: Backend = SERIAL,
    stop: StopSignal | None = None,
    folder: str = "",
    plan_log: PlanLog | None = None,
    call_tool: CallTool = _no_tools,
    random: Random | None = None,
) -> RunContext:
    """Return a context with a default for every part that is not given: for workers and tests."""
    replay = replay or Replay(id, journal)
    secrets = secrets or Secrets()
    events = events or EventBus(
        journal, mask=secrets.mask, mask_title=secrets.mask_title, plan_log=plan_log
    )
    budgets = budgets or Budgets(
        journal, hooks.budget, first_event=replay.first_event, has_hooks=not hooks.is_empty
    )
    return RunContext(
        id,
        journal,
        events,
        replay,
        budgets,
        hooks,
        secrets,
        services if isinstance(services, Services) else services(events),
        backend,
        stop or StopSignal(),
        folder,
        plan_log,
        call_tool,
        random,
    )
