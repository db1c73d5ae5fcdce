"""Live updates: server-sent events with the parts of a page that have changed.

An update is sent at most a fifth of a second after its event.  The journal is asked ten times a
second for the number of its last event, which costs the run nothing; more is read only if that
has changed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping

from plait.core.errors import PlaitError
from plait.core.hints import Final
from plait.web.html import Markup

LOOK_SECONDS: Final = 0.1
SEND_SECONDS: Final = 0.2
"""Between two updates of a busy page."""
ALIVE_SECONDS: Final = 10.0
"""A comment so often, so that both sides notice a connection that is dead."""

Look = Callable[[], Mapping[str, Markup] | None]
"""The parts of a page, or None if nothing has changed."""


async def stream(look: Look) -> AsyncIterator[str]:
    """The events of one page, until its reader leaves or the run is gone."""
    yield ": hello\n\n"
    sent: dict[str, str] = {}
    heard = time.monotonic()
    while True:
        begun = time.monotonic()
        try:
            parts = await asyncio.to_thread(look)
        except PlaitError as error:
            yield event("gone", {"what": error.what, "fix": error.fix or ""})
            return
        if parts is not None:
            changed = {
                name: markup.text for name, markup in parts.items() if sent.get(name) != markup.text
            }
            sent |= changed
            if changed:
                heard = time.monotonic()
                yield event("parts", changed)
                await asyncio.sleep(max(0.0, SEND_SECONDS - (time.monotonic() - begun)))
                continue
        if time.monotonic() - heard > ALIVE_SECONDS:
            heard = time.monotonic()
            yield ": alive\n\n"
        await asyncio.sleep(LOOK_SECONDS)


def event(name: str, data: Mapping[str, object]) -> str:
    # JSON has no line break, so nothing in it can begin another event.
    return f"event: {name}\ndata: {json.dumps(dict(data), ensure_ascii=True)}\n\n"
