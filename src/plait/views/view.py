"""What a view of a run has to do while it runs.  `view_for` in `cli/run.py` chooses one.

What is printed of a recorded run is no view: see `log.py` and `report.py`.
"""

from __future__ import annotations

from plait.core.hints import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from plait.engine.events import EventRecord
    from plait.views.summary import Result


class View(Protocol):
    """Shows a run.  One thread at a time calls `watch`; any thread calls `stopping`."""

    def __enter__(self) -> View: ...

    def __exit__(self, *_: object) -> None: ...

    def watch(self, record: EventRecord) -> None: ...

    def stopping(self, *, at_once: bool) -> None:
        """The user has asked the run to stop."""

    def pause(self) -> AbstractContextManager[object]:
        """Leave the terminal to a question inside this context."""

    def finish(self, result: Result) -> None:
        """The run is over."""
