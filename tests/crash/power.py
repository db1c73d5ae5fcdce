"""What a power cut would leave each time Plait reports a finished step.

strace shows the writes to the files of a journal and the ends of their syncs.  From
that the files are rebuilt as they are on disk in the worst case: with only the writes
before a sync that has ended by now.  A step that is reported but missing in them could
still be lost.
"""

from __future__ import annotations

import json
import re
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Final

from crash.scene import finished_steps
from plait.engine.live_output import FILE as LIVE_OUTPUT

MADE_AGAIN: Final = re.compile(r"runs-\d+\.db(-journal)?|run\.json")
"""The index of the runs, and the file that a journal is compared with, if present."""
CALLS: Final = "pwrite64,ftruncate,fdatasync,fsync,write,mkdir,rename"
STRACE: Final = (
    "strace",
    "-f",
    "-qq",
    "-y",
    "-xx",
    "-s",
    "1000000",
    "-e",
    f"trace={CALLS}",
    "-e",
    "signal=none",
)

_CALL: Final = re.compile(
    r"(?P<thread>\d+) +(?:(?P<name>\w+)\((?P<arguments>.*?)|<\.\.\. (?P<resumed>\w+) resumed>(?P<rest>.*?))"
    r"(?: <unfinished \.\.\.>|\) += (?P<result>-?\d+).*)"
)
_STRING: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FILE: Final = re.compile(r"\d+<([^>]*)>")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the system; None as its result while it goes on."""

    thread: str
    name: str
    arguments: str
    result: int | None

    @property
    def file(self) -> str:
        found = _FILE.match(self.arguments)
        return _plain(found[1]) if found else ""

    @property
    def strings(self) -> list[bytes]:
        return [_bytes(found) for found in _STRING.findall(self.arguments)]

    @property
    def last_number(self) -> int:
        return int(self.arguments.rpartition(",")[2])


@dataclass(slots=True)
class Disk:
    """Files as programs see them, and as they are on disk after a power cut."""

    written: dict[str, bytearray] = field(default_factory=dict)
    safe: dict[str, bytes] = field(default_factory=dict)
    unsafe_names: set[str] = field(default_factory=set)
    """Folders and files whose parent folder was not synced since they were created."""
    _syncing: dict[str, tuple[bytes, frozenset[str]]] = field(default_factory=dict)

    def survive_kill(self, folder: Path) -> None:
        """Apply a write, also one whose end was not seen."""
        self._syncing.clear()
        for file in folder.glob("journal.db*"):
            self.written[str(file)] = bytearray(file.read_bytes())

    def see(self, call: Call) -> None:
        match call.name:
            case "fdatasync" | "fsync":
                self._sync(call)
            case "pwrite64" if call.result is not None and call.result > 0:
                self._write(call.file, call.last_number, call.strings[0][: call.result])
            case "ftruncate" if call.result == 0:
                del self.written.setdefault(call.file, bytearray())[call.last_number :]
            case "mkdir" if call.result == 0:
                self.unsafe_names.add(call.strings[0].decode())
            case "rename" if call.result == 0:
                self.unsafe_names.add(call.strings[1].decode())

    def _write(self, file: str, offset: int, data: bytes) -> None:
        if file not in self.written:
            self.unsafe_names.add(file)
        content = self.written.setdefault(file, bytearray())
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data

    def _sync(self, call: Call) -> None:
        """A finished sync makes everything safe that was written before it began."""
        file = call.file
        if call.thread not in self._syncing:
            inside = frozenset(
                name for name in self.unsafe_names if str(PurePath(name).parent) == file
            )
            self._syncing[call.thread] = bytes(self.written.get(file, b"")), inside
        if call.result is None:
            return
        content, inside = self._syncing.pop(call.thread)
        if call.result == 0:
            self.safe[file] = content
            self.unsafe_names -= inside


def unsafe_reports(
    disk: Disk, trace: Iterable[str], project: Path, output: Path
) -> tuple[int, list[str]]:
    """Count the reported steps, and list those that a power cut could have undone."""
    reports, unsafe = 0, list[str]()
    for call in calls(trace):
        if call.name == "write" and call.file == str(output):
            if call.result is not None:
                continue  # seen when it began
            for path in reported(call.strings[0]):
                reports += 1
                unsafe += [f"G16: {path} {why}" for why in _dangers(disk, project, path)]
        disk.see(call)
    return reports, unsafe


def reported(data: bytes) -> Iterator[str]:
    for line in filter(None, data.splitlines()):
        record = json.loads(line)
        if record["event"] == "step_finished":
            yield record["path"]


def _dangers(disk: Disk, project: Path, path: str) -> Iterator[str]:
    if path not in recorded_on(disk):
        yield "was reported, and a power cut could have undone it"
    for name in sorted(disk.unsafe_names):
        if _needs(path, PurePath(name), project):
            yield f"was reported before the name {PurePath(name).name} was safe"


def _needs(path: str, name: PurePath, project: Path) -> bool:
    """Whether a step would be lost with this name."""
    if not name.is_relative_to(project / ".ai") or name.name.startswith(".new-"):
        return False
    if MADE_AGAIN.fullmatch(name.name):
        return False
    if name.name == LIVE_OUTPUT:
        return False  # live output only; the journal has the output of finished steps
    return name.name != "items.jsonl" or path.startswith("map")


def recorded_on(disk: Disk) -> set[str]:
    """The steps that a journal on this disk has after a power cut."""
    with tempfile.TemporaryDirectory(prefix="plait-power-") as folder:
        for file, content in disk.safe.items():
            if PurePath(file).name in ("journal.db", "journal.db-wal"):
                Path(folder, PurePath(file).name).write_bytes(content)
        with closing(sqlite3.connect(Path(folder, "journal.db"))) as journal:
            return {step.path for step in finished_steps(journal)}


# ── what strace prints ───────────────────────────────────────────────────


def calls(trace: Iterable[str]) -> Iterator[Call]:
    """Yield each call when it begins, without a result, and when it ends, in order of time."""
    begun: dict[str, str] = {}
    for line in trace:
        found = _CALL.fullmatch(line.rstrip("\n"))
        if found is None:
            continue  # the end of a process
        thread, name = found["thread"], found["name"] or found["resumed"]
        if found["name"]:
            yield Call(thread, name, found["arguments"], None)
            begun[thread] = found["arguments"]
        if found["result"] is not None:
            arguments = begun.pop(thread) + (found["rest"] or "")
            yield Call(thread, name, arguments, int(found["result"]))


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _plain(path: str) -> str:
    return _bytes(path).decode() if path.startswith("\\x") else path
