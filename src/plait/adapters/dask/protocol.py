"""The messages between the process that keeps the journal and its workers.

A message to a worker names the digest of a job and has data that only `app.remote` reads. A reply
says how each item ended, with its events, or why no item was begun.

Messages are bytes: a scheduler passes them on without Plait, and shows nothing of them. The
versions come first. A message of another version is not read.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from functools import cache
from pkgutil import resolve_name

from plait.core.hints import Any, Final, TypeAlias
from plait.core.records import dataclass, field
from plait.core.values import Secret
from plait.engine.events import Event, StepFinished, StepStarted
from plait.engine.outcome import Failure, Outcome

VERSION: Final = "plait:__version__"
"""The place where `pkgutil.resolve_name` finds a worker's version. A worker may lack all our
functions.
"""
WIRE: Final = 1
"""The version of these messages; it must be raised when they change."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions that must be the same at both ends."""

    plait: str
    python: str
    """Major and minor only: pickles differ between them."""
    wire: int = WIRE

    def __str__(self) -> str:
        return f"Plait {self.plait} with Python {self.python}"


@cache
def own_versions() -> Versions:
    # The version of the code that runs. PYTHONPATH may name other code than the installed one.
    return Versions(resolve_name(VERSION), python_minor(sys.version.split()[0]))


def python_minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


class SealedSecret:
    """A secret in a message: unlike a `Secret` it can be pickled. Its repr is `***` too."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def to_secret(self) -> Secret:
        return Secret(self._value)

    def __repr__(self) -> str:
        return "***"

    def __reduce__(self) -> tuple[type[SealedSecret], tuple[str]]:
        return SealedSecret, (self._value,)


# ── to a worker ──────────────────────────────────────────────────────────


def pack_message(digest: str, data: bytes) -> bytes:
    mine = own_versions()
    return pickle.dumps(
        ((mine.plait, mine.python, mine.wire), digest, data), pickle.HIGHEST_PROTOCOL
    )


def unpack_message(message: bytes) -> tuple[Versions, str, bytes]:
    """Return the sender's versions, the digest of the job, and data for `unpickle`."""
    (plait, python, wire), digest, data = pickle.loads(message)
    return Versions(plait, python, wire), digest, data


def unpickle(data: bytes) -> Any:
    """Unpickle a message whose versions are ours.

    This is as safe as Dask: a sender that reaches a worker can call any function there anyway.
    """
    return pickle.loads(data)


# ── from a worker ────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ItemCompleted:
    outcome: Outcome
    events: tuple[Event, ...] = field(repr=False)
    new_secrets: tuple[SealedSecret, ...] = field(default=(), repr=False)
    """Values that the item derived from secrets, which the run must mask too."""


@dataclass(frozen=True, slots=True)
class ItemStopped:
    """The item was stopped, or had no time left. Nothing is recorded."""

    out_of_time: bool = False


@dataclass(frozen=True, slots=True)
class RunLimitReached:
    """The item reached a limit of the run, so the run ends."""

    failure: Failure
    path: str
    events: tuple[Event, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ItemRefused:
    """The item has no outcome: the user must fix something first."""

    kind: str
    """The name of the error's class."""
    what: str
    fix: str | None
    code: str | None


@dataclass(frozen=True, slots=True)
class JobMissing:
    """The worker does not have the job."""

    worker: str


@dataclass(frozen=True, slots=True)
class VersionMismatch:
    """The worker has other versions."""

    versions: Versions
    worker: str


@dataclass(frozen=True, slots=True)
class BatchReply:
    """Replies for the first items of a task; the other items were not begun."""

    replies: tuple[ItemCompleted | ItemStopped | RunLimitReached | ItemRefused, ...]
    seconds: float
    """Seconds for all of them together."""


Reply: TypeAlias = (
    ItemCompleted
    | ItemStopped
    | RunLimitReached
    | ItemRefused
    | JobMissing
    | VersionMismatch
    | BatchReply
)


def pack_reply(reply: Reply) -> bytes:
    if isinstance(reply, VersionMismatch):  # every version must understand it
        mine = reply.versions
        return pickle.dumps((mine.plait, mine.python, mine.wire, reply.worker))
    return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)


def unpack_reply(data: bytes) -> Reply:
    reply = pickle.loads(data)
    if isinstance(reply, tuple):
        plait, python, wire, worker = reply
        return VersionMismatch(Versions(plait, python, wire), worker)
    assert isinstance(
        reply, ItemCompleted | ItemStopped | RunLimitReached | ItemRefused | JobMissing | BatchReply
    )
    return reply


def events_to_record(events: Sequence[Event]) -> tuple[Event, ...]:
    """Drop the starts of steps that ended in their first attempt: the end contains the same."""
    ended = {event.path for event in events if isinstance(event, StepFinished)}
    return tuple(
        event
        for event in events
        if not (isinstance(event, StepStarted) and event.attempt == 1 and event.path in ended)
    )
