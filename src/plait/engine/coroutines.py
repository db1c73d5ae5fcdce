"""Steps as coroutines, so that one thread can perform many of them.

A step that waits awaits an `Order`, such as a process.  Whoever runs the coroutine decides how to
wait: `finish` waits in its thread for one order after the other; the dispatcher of a map waits for
the orders of all its items at once.  So a step has one implementation for both.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator

from plait.core.hints import Any, TypeVar

T = TypeVar("T")


class Order:
    """Something that a step waits for; it starts when the step awaits it."""

    __slots__ = ()

    def wait(self) -> Any:
        """Perform the order in this thread; return its result, or raise its error."""
        raise NotImplementedError  # each kind of order has its own

    def __await__(self) -> Generator[Order, Any, Any]:
        return (yield self)


def finish(coroutine: Coroutine[Order, Any, T]) -> T:
    """Run a coroutine to its end in this thread, which waits for each order."""
    try:
        order = coroutine.send(None)
        while True:
            try:
                result = order.wait()
            except BaseException as error:
                order = coroutine.throw(error)
            else:
                order = coroutine.send(result)
    except StopIteration as end:
        value: T = end.value
        return value
