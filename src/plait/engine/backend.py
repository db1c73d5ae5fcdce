"""Where the items of a fan run.

A backend takes items as it has room for them, so that what waits is never more
than what runs; each outcome is handed back as soon as it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from plait.core.hints import TYPE_CHECKING, Final, Protocol
from plait.core.records import dataclass
from plait.core.values import Json
from plait.engine.outcome import Outcome

if TYPE_CHECKING:
    from plait.engine.perform import StepContext
    from plait.engine.step import Step

BACKENDS: Final = {
    "local": "plait.adapters.local:LocalBackend",
    "dask": "plait.adapters.dask.backend:DaskBackend",
}
"""What a file and `--backend` may name, and the class that does it: a new one is its module and a
row.

Behind a name may stand an address, `dask://host:8786`: the class is made with it.
"""
ADDRESS: Final = "://"


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One item: all that has to travel to where it runs."""

    order: int
    key: str
    item: Json


Perform = Callable[[WorkItem], Outcome]
Finished = Callable[[WorkItem, Outcome], None]


class MapRun(Protocol):
    """A fan at work: what a backend has to know that performs its items in another process."""

    @property
    def turn(self) -> StepContext: ...

    @property
    def total(self) -> int: ...

    def item_step(self, work: WorkItem) -> tuple[Step, StepContext]:
        """The step that an item is, and its turn."""

    def perform(self, work: WorkItem) -> Outcome: ...


class Backend(Protocol):
    def run(
        self,
        items: Iterator[WorkItem],
        perform: Perform,
        finished: Finished,
        *,
        parallel: int,
        fanned: MapRun | None = None,
    ) -> None:
        """Perform every item, `parallel` at a time; `items` ends early when no more are wanted.

        `items` is asked and `finished` is called by one thread at a time.  The first
        exception ends the asking; it is raised when everything that runs has ended.
        Without `fanned` nothing but `perform` can do it, so it is done in this process.
        """


MOST_PARALLEL = 4096


class SerialBackend:
    """One item after the other, in the thread that asks."""

    def run(
        self,
        items: Iterator[WorkItem],
        perform: Perform,
        finished: Finished,
        *,
        parallel: int,  # noqa: ARG002
        fanned: MapRun | None = None,  # noqa: ARG002
    ) -> None:
        for item in items:
            finished(item, perform(item))


SERIAL: Final = SerialBackend()
