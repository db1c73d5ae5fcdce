"""Standard streams whose secrets are masked: the output of `plait sh --secret`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from threading import Thread

from plait.cli.values import secret_texts
from plait.core.hints import Final
from plait.core.masking import Masker
from plait.core.values import Json

PATIENCE: Final = 1.0
"""Seconds to wait for the last output of a command that has already ended."""


def make_masker(values: Mapping[str, Json]) -> Masker:
    return Masker(secret_texts(values))


class MaskedOutput:
    """Masks, line by line, everything that any process writes to our standard streams inside this
    context.

    The streams are pipes then, also at a terminal.
    """

    def __init__(self, values: Mapping[str, Json]) -> None:
        self._masker = make_masker(values)
        self._saved: list[tuple[int, int]] = []
        self._threads: list[Thread] = []

    def __enter__(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        for number in (1, 2):
            reader, writer = os.pipe()
            saved = os.dup(number)
            os.dup2(writer, number)
            os.close(writer)
            self._saved.append((number, saved))
            thread = Thread(target=self._copy, args=(reader, os.dup(saved)), daemon=True)
            thread.start()
            self._threads.append(thread)

    def __exit__(self, *_: object) -> None:
        for number, saved in self._saved:
            os.dup2(saved, number)
            os.close(saved)
        for thread in self._threads:
            thread.join(PATIENCE)  # a process that the command left behind may still write

    def _copy(self, reader: int, target: int) -> None:
        # If the reader of our output has gone, closing the pipe ends the command.
        with suppress(BrokenPipeError), open(reader, "rb") as lines, open(target, "wb") as out:
            for line in lines:
                text = line.decode("utf-8", "surrogateescape")
                out.write(self._masker.mask(text).encode("utf-8", "surrogateescape"))
                out.flush()
