"""Where the items of a map run.

A backend takes the next item only when it has room for it, and reports each outcome at once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence

from plait.core.hints import TYPE_CHECKING, Any, Final, Protocol
from plait.core.records import dataclass
from plait.core.values import Json, Secret
from plait.engine.outcome import Outcome

if TYPE_CHECKING:
    from plait.engine.coroutines import Order
    from plait.engine.perform import StepContext
    from plait.engine.step import Step
    from plait.engine.stop import StopSignal

BACKENDS: Final = {
    "local": "plait.adapters.local:LocalBackend",
    "dask": "plait.adapters.dask.backend:DaskBackend",
}
"""The names that a file and `--backend` may use, and the class of each.

An address may follow the name, as in `dask://host:8786`. The class is called with it.
"""
ADDRESS: Final = "://"
MOST_PARALLEL = 4096


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One item, with everything that has to travel to a worker."""

    order: int
    key: str
    item: Json


Perform = Callable[[WorkItem], Outcome]
Finished = Callable[[WorkItem, Outcome], None]


class MapRun(Protocol):
    """A map that runs now, for backends that perform its items in another process."""

    @property
    def ctx(self) -> StepContext: ...

    @property
    def total(self) -> int: ...

    def item_step(self, work: WorkItem) -> tuple[Step, StepContext]:
        """The step of an item, and its context."""

    def perform(self, work: WorkItem) -> Outcome: ...

    @property
    def shares_thread(self) -> bool:
        """Whether one thread can perform several items: they wait for processes only."""

    def perform_async(self, work: WorkItem) -> Coroutine[Order, Any, Outcome]:
        """The same as `perform`, for a thread that performs several items."""

    def commit(self) -> None:
        """Record the events of such items.  Until then no order of theirs may start."""


class JobPacker(Protocol):
    """Turns a map and its items into messages for workers; a remote backend only moves them.

    `receive`, `drop` and `stop` are called on workers, which import them by name.
    """

    perform: str
    """`module:function` of a worker: it performs a message of items and returns a reply."""

    def receive(self, message: bytes, /) -> bytes | None:
        """Load a job; return a reply only if that fails."""

    def drop(self, digest: str, /) -> None:
        """Remove a job."""

    def stop(self, digest: str, at_once: bool, /) -> int:
        """Stop the items of a job; return how many still run."""

    def takes(self, map_run: MapRun) -> bool:
        """Whether the items of this map are sent. InputError if they cannot be."""

    def pack_job(self, map_run: MapRun, *, shared: bool) -> tuple[str, bytes]:
        """What all items share, and its digest. `shared`: workers see the project's folder."""

    def pack_items(self, digest: str, map_run: MapRun, works: Sequence[WorkItem]) -> bytes: ...

    def add_secrets(self, secrets: Iterable[Secret]) -> None:
        """Mask these from now on, too."""


class Backend:
    """Where items run. Adapters derive from it."""

    takes_address: bool = False

    def __init__(self, address: str = "") -> None:
        self.address = address

    def run(
        self,
        items: Iterator[WorkItem],
        perform: Perform,
        finished: Finished,
        *,
        parallel: int,
        map_run: MapRun | None = None,
    ) -> None:
        """Perform every item, `parallel` at a time; `items` ends early when no more are wanted.

        One thread at a time reads `items` and calls `finished`. After an exception no more items
        are read; it is raised when all running items have ended. Without `map_run` only `perform`
        can perform an item, so all run in this process.
        """
        raise NotImplementedError  # each backend has its own


class RemoteBackend(Backend):
    """Items run in other processes, which get them as messages."""

    def check(self, stop: StopSignal) -> None:
        """Raise an InputError unless workers can be reached; called before anything runs."""
        raise NotImplementedError  # each backend has its own

    def bind(
        self, packer: JobPacker, *, stall_timeout: float | None, wait_for_workers: float | None
    ) -> None:
        """How items are packed, and how long to wait for workers; None: the backend's default."""
        raise NotImplementedError  # each backend has its own


class SerialBackend(Backend):
    """One item after the other, in the thread of the caller."""

    def run(
        self,
        items: Iterator[WorkItem],
        perform: Perform,
        finished: Finished,
        *,
        parallel: int,  # noqa: ARG002
        map_run: MapRun | None = None,  # noqa: ARG002
    ) -> None:
        for item in items:
            finished(item, perform(item))


SERIAL: Final = SerialBackend()
