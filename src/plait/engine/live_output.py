"""What running steps print, while they run.

A step opens a `StepStream`, and whoever serves its process writes to it.  The thread that reports
events takes what has come, masks it, appends it to a file in the folder of the run and reports it
to watchers.  It appends the words of models, too.  Readers in other processes read the file.

Only output that has waited for one look is taken: a short process ends before that, and its
output is recorded with its end.  The record of a step makes its lines in the file useless, so the
file is written anew without them when it has grown.  It survives a kill: then it shows what the
steps printed that were cut short.

    {"path": "setup/build", "attempt": 1, "stream": "stdout", "at": 0, "text": "…"}

`at` counts the characters of the stream before this text, so a reader that has seen a part knows
where to go on.
"""

from __future__ import annotations

import json
import os
import threading
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from plait.core.hints import TYPE_CHECKING, Any
from plait.engine.events import EventRecord, ModelText, StepFinished, StepOutput, StepRetrying

if TYPE_CHECKING:
    from plait.core.hints import Final
    from plait.engine.context import Secrets

FILE: Final = "live.jsonl"
"""In the folder of a run."""
MODEL: Final = "model"
"""The stream with the words of a model."""
MOST_WAITING: Final = 4 << 20
"""Bytes of a step between two looks.  One that prints more is not shown until it ends."""
MOST_IN_FILE: Final = 1 << 20
"""Characters of a stream in the file; the rest is recorded when the step ends."""
REWRITE: Final = 32 << 20
"""Bytes of the file from which it is written anew."""

_Decoder = getincrementaldecoder("utf-8")


class StepStream:
    """The output of one attempt of a step."""

    __slots__ = ("_live", "_streams", "attempt", "is_closed", "path", "size", "waiting", "was_seen")

    def __init__(self, live: LiveOutput, path: str, attempt: int) -> None:
        self._live = live
        self.path = path
        self.attempt = attempt
        self.waiting: list[tuple[str, bytes]] = []
        self.size = 0
        self.was_seen = False
        """It was waiting at the last look."""
        self.is_closed = False
        self._streams: dict[str, _Stream] = {}

    def write(self, stream: str, data: bytes) -> None:
        with self._live.lock:
            if self.is_closed:
                return
            self.size += len(data)
            if self.size > MOST_WAITING:
                self.is_closed, self.waiting = True, []
                return
            self.waiting.append((stream, data))
            is_first = len(self.waiting) == 1
        if is_first:
            self._live.add_waiting(self)

    def close(self) -> None:
        """The step has ended; its record has all that it printed."""
        with self._live.lock:
            self.is_closed, self.waiting = True, []

    def take(self, secrets: Secrets) -> Iterator[tuple[StepOutput, int]]:
        """The masked text of each stream that has come, and how many characters came before it."""
        with self._live.lock:
            waiting, self.waiting, self.size, self.was_seen = self.waiting, [], 0, False
        data: dict[str, list[bytes]] = {}
        for name, piece in waiting:
            data.setdefault(name, []).append(piece)
        for name, pieces in data.items():
            if name not in self._streams:
                self._streams[name] = _Stream(secrets)
            stream = self._streams[name]
            text, at = stream.write(b"".join(pieces)), stream.length
            if text:
                stream.length += len(text)
                yield StepOutput(self.path, name, text, self.attempt), at


class _Stream:
    """Decodes and masks a stream that comes in pieces."""

    __slots__ = ("_decoder", "_masked", "length")

    def __init__(self, secrets: Secrets) -> None:
        self._decoder = _Decoder("surrogateescape")
        self._masked = secrets.stream()
        self.length = 0

    def write(self, data: bytes) -> str:
        return self._masked.write(self._decoder.decode(data))


class LiveOutput:
    """The output of all running steps of a run."""

    def __init__(self, secrets: Secrets, folder: str) -> None:
        """`folder`: of the run."""
        self._secrets = secrets
        self._path = os.path.join(folder, FILE)
        self._wake: Callable[[], object] = bool
        self.lock = threading.Lock()
        """Held while what waits changes: others write, one thread takes."""
        self._waiting: list[StepStream] = []
        self._written: set[str] = set()
        """The paths of steps with lines in the file that have no end yet."""
        self._model_lengths: dict[str, int] = {}
        """By path: how many characters a model has written."""
        self._file: int | None = None
        self._size = 0
        self._is_broken = False

    def open(self, path: str, attempt: int) -> StepStream:
        return StepStream(self, path, attempt)

    def add_waiting(self, stream: StepStream) -> None:
        with self.lock:
            self._waiting.append(stream)
        self._wake()

    def take(self) -> tuple[list[StepOutput], bool]:
        """What has waited since the last look, written to the file; and whether more waits."""
        with self.lock:
            waiting, self._waiting = self._waiting, []
            ready = [one for one in waiting if one.was_seen and not one.is_closed]
            later = [one for one in waiting if not (one.was_seen or one.is_closed)]
            self._waiting += later
        for one in later:
            one.was_seen = True
        found: list[StepOutput] = []
        lines: list[str] = []
        for one in ready:
            for output, at in one.take(self._secrets):
                found.append(output)
                if at < MOST_IN_FILE:
                    lines.append(_line(output, at))
                    self._written.add(one.path)
        if lines:
            self._append("".join(lines).encode())
        return found, bool(later)

    def add_reported(self, records: Iterable[EventRecord]) -> None:
        """Write the words of models to the file, and forget the steps and attempts that have ended."""
        lines: dict[str, list[str]] = {}
        had_lines = bool(self._written)
        for record in records:
            event = record.event
            if isinstance(event, ModelText):
                at = self._model_lengths.get(event.path, 0)
                self._model_lengths[event.path] = at + len(event.text)
                if event.text and at < MOST_IN_FILE:
                    piece = StepOutput(event.path, MODEL, event.text)
                    lines.setdefault(event.path, []).append(_line(piece, at))
            elif isinstance(event, StepFinished | StepRetrying):
                self._written.discard(event.path)
                self._model_lengths.pop(event.path, None)
                lines.pop(event.path, None)
        if had_lines and not self._written:
            self._rewrite()
        if lines:
            self._written.update(lines)
            self._append("".join(line for own in lines.values() for line in own).encode())

    def start(self, wake: Callable[[], object]) -> None:
        """A run attempt starts; `wake` asks for a look.  What earlier attempts left is obsolete."""
        self._wake = wake
        with suppress(OSError):
            os.unlink(self._path)

    def close(self) -> None:
        """The run attempt has ended.  The output of steps that were cut short stays."""
        self._close_file()
        if not self._written:
            with suppress(OSError):
                os.unlink(self._path)

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, data: bytes) -> None:
        if self._is_broken:
            return
        try:
            if self._file is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                self._file = os.open(self._path, flags, 0o600)
            os.write(self._file, data)
        except OSError:  # the disk is full: watchers see the output, and the journal gets it
            self._is_broken = True
            return
        self._size += len(data)
        if self._size > REWRITE:
            self._rewrite()

    def _rewrite(self) -> None:
        """Write the file anew, with the steps that have not ended."""
        kept = b""
        if self._written:
            kept = "".join(
                f"{json.dumps(line)}\n"
                for line in read_lines(self._path)
                if line["path"] in self._written
            ).encode()
        try:
            temporary = f"{self._path}.new"
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            new = os.open(temporary, flags | os.O_APPEND, 0o600)
            os.write(new, kept)
            os.replace(temporary, self._path)
        except OSError:
            self._is_broken = True
            return
        self._close_file()
        self._file, self._size = new, len(kept)


def _line(output: StepOutput, at: int) -> str:
    record = {
        "path": output.path,
        "attempt": output.attempt,
        "stream": output.stream,
        "at": at,
        "text": output.text,
    }
    return json.dumps(record) + "\n"


class OutputFile:
    """The file of a run, for another process: each call returns what has come since the last one."""

    def __init__(self, folder: str) -> None:
        """`folder`: of the run."""
        self._path = os.path.join(folder, FILE)
        self._inode = 0
        self._offset = 0

    def new_pieces(self) -> Iterator[tuple[StepOutput, int]]:
        """Pieces, and how many characters of the stream came before each.

        After the file was written anew it begins again.
        """
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset = status.st_ino, 0
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return
        self._offset += len(whole) + len(newline)
        for line in _records(whole):
            output = StepOutput(line["path"], line["stream"], line["text"], line["attempt"])
            if output.stream in ("stdout", "stderr", MODEL):
                yield output, line["at"]


def read_lines(path: str) -> Iterator[dict[str, Any]]:
    """The whole lines of the file of a run; nothing if there is none."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return
    yield from _records(data)


def _records(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.split(b"\n"):
        try:
            record = json.loads(line)
        except ValueError:
            continue  # a kill has cut it in two
        if isinstance(record, dict) and _has_shape(record):
            yield record


def _has_shape(record: dict[str, Any]) -> bool:
    texts = all(isinstance(record.get(name), str) for name in ("path", "stream", "text"))
    return texts and all(type(record.get(name)) is int for name in ("attempt", "at"))
