"""`plait run -v`: the lines of a plain run, and all that its steps and agents print between them."""

from __future__ import annotations

from plait.core.hints import TextIO
from plait.engine.events import EventRecord
from plait.views.format import write_lines
from plait.views.output_stream import OutputStream
from plait.views.text import PlainView


class VerboseView(PlainView):
    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._output = OutputStream()

    def watch(self, record: EventRecord) -> None:
        with self._lock:
            write_lines(self._output.lines(record.event), self._stream)
            self._stream.flush()
        super().watch(record)
