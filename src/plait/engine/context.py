"""What all steps of one attempt of a run share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from threading import Lock

from plait.core.errors import InternalError
from plait.core.hints import TYPE_CHECKING, Final, TypeAlias, TypeVar
from plait.core.records import dataclass, field
from plait.engine.backend import SERIAL, Backend
from plait.engine.budgets import Budgets
from plait.engine.event_bus import EventBus, StopSignal
from plait.engine.hook_port import NO_HOOKS, Hooks
from plait.engine.journal import Journal
from plait.engine.replay import Replay

if TYPE_CHECKING:
    from random import Random

    from plait.core.masking import Masker
    from plait.core.values import Json
    from plait.engine.dry_run import PlanLog
    from plait.engine.perform import StepContext

T = TypeVar("T")


class Secrets:
    """What a run masks; it may grow while the run goes on."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._lock = Lock()
        self._masker: Masker | None = None
        self.add(secrets)

    def mask(self, text: str) -> str:
        masker = self._masker
        return text if masker is None else masker.mask(text)

    def add(self, secrets: Iterable[str]) -> None:
        """Mask these from now on, too: those of a called flow, and what only a command knows."""
        for secret in secrets:
            with self._lock:
                if self._masker is None:
                    from plait.core.masking import Masker

                    self._masker = Masker()
            self._masker.add(secret)

    def add_derived(self, secrets: Iterable[str]) -> None:
        """Mask what a step has made of secrets, unless a part of it is masked already.

        What a run masks must not depend on which of its steps are done and which are recorded.
        """
        self.add([one for one in secrets if self.mask(one) == one])

    @property
    def is_empty(self) -> bool:
        return self._masker is None

    def values(self) -> list[str]:
        """What is masked, in a fixed order, for another process that is to mask the same."""
        return [] if self._masker is None else self._masker.secrets


class Services:
    """What steps may use of the world outside, by port: processes, tools, files, models, …"""

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

    What changes while the run goes on lives inside its parts, each with its own lock.
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
    """Where the run keeps what is too large for the journal."""
    plan: PlanLog | None = None
    """The log of a dry run: steps are shown there instead of being done."""
    call_tool: CallTool = _no_tools
    """Calls a tool as a part of a step, for steps that know no tools: agents and hooks."""
    random: Random | None = None
    """Spreads pauses; None: one of its own."""
    _shared: dict[type, object] = field(default_factory=dict, repr=False)

    def shared(self, kind: type[T]) -> T:
        """The one object of a class that all steps of this run share, made at first use."""
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
    plan: PlanLog | None = None,
    call_tool: CallTool = _no_tools,
    random: Random | None = None,
) -> RunContext:
    """A context with the plain form of every part that is not given."""
    replay = replay or Replay(id, journal)
    secrets = secrets or Secrets()
    events = events or EventBus(journal, mask=secrets.mask, plan=plan)
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
        plan,
        call_tool,
        random,
    )
