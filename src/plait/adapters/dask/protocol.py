"""What crosses the wire between the process that keeps the journal and those that perform items.

    parcel   what all items of a fan share: the text of the flow's files, names, settings;
             sent once to each worker, which keeps it under its digest
    errands  a few items: the digest of their parcel, and what is their own
    reply    how each ended, and its events; or why they could not be begun

A message is bytes, so that nobody on the way (a scheduler needs no Plait) has to understand it
or shows what is in it.  The versions stand in front of it: what another version has written
is not looked at.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pkgutil import resolve_name

from plait.core.digests import sha256_hex
from plait.core.hints import Any, Final, Protocol, TypeAlias
from plait.core.records import dataclass, field
from plait.core.values import Json, Secret
from plait.engine.backend import MapRun, WorkItem
from plait.engine.events import Event, StepFinished, StepStarted, Usage
from plait.engine.journal import StepRecord
from plait.engine.outcome import Failure, Outcome
from plait.engine.replay import RetriedItems

VERSION: Final = "plait:__version__"
"""Where a worker finds its version, by `pkgutil.resolve_name`: it may have no function of ours to
call.
"""
WIRE: Final = 2
"""Of these messages; to be raised when they change."""


@dataclass(frozen=True, slots=True)
class Versions:
    """What has to be the same at both ends."""

    plait: str
    python: str
    """Its first two numbers: a pickle of one may mean nothing to another."""
    wire: int = WIRE

    def __str__(self) -> str:
        return f"Plait {self.plait} with Python {self.python}"


@cache
def own_versions() -> Versions:
    # That of the code that runs: a path may lead to another one than was installed.
    return Versions(resolve_name(VERSION), python_minor(sys.version.split()[0]))


def python_minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def unpickle(data: bytes) -> Any:
    """What is in a message whose versions are ours.  Whoever can send one to a worker can have Dask
    call any function there; so this opens no door that is not open, and messages come from
    nowhere else."""
    return pickle.loads(data)


class SealedSecret:
    """A secret on its way: unlike a `Secret` it can be pickled, and like one it is not shown."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def to_secret(self) -> Secret:
        return Secret(self._value)

    def __repr__(self) -> str:
        return "***"

    def __reduce__(self) -> tuple[type[SealedSecret], tuple[str]]:
        return SealedSecret, (self._value,)


def seal(value: Json) -> Json:
    """A value in which every secret can travel."""
    match value:
        case Secret():
            return SealedSecret(value.reveal())
        case Mapping():
            return {name: seal(inner) for name, inner in value.items()}
        case list():
            return [seal(inner) for inner in value]
    return value


def unseal(value: Json) -> Json:
    """The value at the end of its way."""
    match value:
        case SealedSecret():
            return value.to_secret()
        case dict():
            return {name: unseal(inner) for name, inner in value.items()}
        case list():
            return [unseal(inner) for inner in value]
    return value


# ── what is sent ─────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run was begun, as far as its items have to know."""

    run: str
    strict: bool
    profile: str | None
    timeout: float | None
    accept_changes: bool
    said_done: Mapping[str, Json]
    retried: RetriedItems
    keeps_overflow: bool


@dataclass(frozen=True, slots=True)
class JobPayload:
    """What all items of a fan share."""

    path: str
    """Of the flow's file, where the run was begun."""
    project: str
    folder: str
    """Of the run."""
    directory: str
    """In which the items work."""
    files: Mapping[str, bytes] = field(repr=False)
    """By their paths in the project: those that the flow is made of, and those that it ships."""
    executable: frozenset[str]
    """Those of them that are programs."""
    shared: bool
    """The project is at the same place everywhere."""
    fingerprint: str
    """Of the fan: that of the same flow, or somebody has changed a file."""
    total: int
    settings: Settings
    parameters: Mapping[str, Json] = field(repr=False)
    variables: Mapping[str, Json] = field(repr=False)
    env: Mapping[str, Json] = field(repr=False)
    secrets: Mapping[str, Json] = field(repr=False)
    hidden: Sequence[SealedSecret] = field(repr=False)
    """All that is masked where the run is: an item has to see `***` in the same places."""
    named: Mapping[str, Json] = field(repr=False)
    """Variables of the environment that a step of the items names."""
    frames: Sequence[tuple[str, Mapping[str, Mapping[str, Json]]]] = field(repr=False)
    """The names around the fan, the outermost first."""


@dataclass(frozen=True, slots=True)
class ItemTask:
    """One item."""

    work: WorkItem = field(repr=False)
    seconds_left: float | None
    replaying: bool
    known: tuple[StepRecord, ...] = field(default=(), repr=False)
    """Steps of it that an earlier life of the run has finished."""
    used: tuple[tuple[str, Usage], ...] = ()
    """By path: what earlier lives have used up in it."""


class SecretBytes(bytes):
    """A message that holds secrets: where a worker writes down what it was called with, it says
    nothing.
    """

    def __repr__(self) -> str:
        return "***"


def pack_job(content: JobPayload) -> tuple[str, bytes]:
    """A parcel as a message, and its digest."""
    data = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    digest = sha256_hex(data)
    return digest, SecretBytes(_message(digest, data))


def pack_items(digest: str, errands: Sequence[ItemTask]) -> bytes:
    return _message(digest, pickle.dumps(tuple(errands), pickle.HIGHEST_PROTOCOL))


def _message(digest: str, data: bytes) -> bytes:
    mine = own_versions()
    return pickle.dumps(
        ((mine.plait, mine.python, mine.wire), digest, data), pickle.HIGHEST_PROTOCOL
    )


def unpack_message(message: bytes) -> tuple[Versions, str, bytes]:
    """Whose it is, the digest of the parcel, and what only the same version may look at."""
    (plait, python, wire), digest, data = pickle.loads(message)
    return Versions(plait, python, wire), digest, data


# ── what comes back ──────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ItemCompleted:
    """The item has ended."""

    outcome: Outcome
    events: tuple[Event, ...] = field(repr=False)
    hidden: tuple[SealedSecret, ...] = field(default=(), repr=False)
    """What the item has made of secrets, and nobody could know before."""


@dataclass(frozen=True, slots=True)
class ItemStopped:
    """It was to stop, or had no time left: nothing is to be recorded."""

    out_of_time: bool = False


@dataclass(frozen=True, slots=True)
class RunLimitReached:
    """The run ends here: a limit of it is reached."""

    failure: Failure
    path: str
    events: tuple[Event, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ItemRefused:
    """No outcome: something has to be put right first."""

    kind: str
    """The class of the error."""
    what: str
    fix: str | None
    code: str | None


@dataclass(frozen=True, slots=True)
class JobMissing:
    """The worker has not got the parcel."""

    worker: str


@dataclass(frozen=True, slots=True)
class VersionMismatch:
    """The worker has other versions."""

    versions: Versions
    worker: str


@dataclass(frozen=True, slots=True)
class BatchReply:
    """What became of the first of several items; the others were not begun."""

    replies: tuple[ItemCompleted | ItemStopped | RunLimitReached | ItemRefused, ...]
    seconds: float
    """That they took together."""


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
    if isinstance(reply, VersionMismatch):  # has to be understood by any version
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


def worth_recording(events: Sequence[Event]) -> tuple[Event, ...]:
    """Without starts of steps that ended: an end says all that the start of a first attempt
    would.
    """
    ended = {event.path for event in events if isinstance(event, StepFinished)}
    return tuple(
        event
        for event in events
        if not (isinstance(event, StepStarted) and event.attempt == 1 and event.path in ended)
    )


# ── who packs, and who does it ───────────────────────────────────────────


class JobPacker(Protocol):
    """Knows a run and its flow, at the end where the journal is."""

    perform: str
    """`module:function` of a worker: a message of errands becomes one of a reply."""
    receive: Callable[[bytes], bytes | None]
    """Of a worker: it takes a parcel, or replies why it cannot."""
    forget: Callable[[str], None]
    """Of a worker: it needs the parcel with this digest no longer."""
    halt: Callable[[str, bool], int]
    """Of a worker: it ends the errands of a parcel, at once or with grace; how many it is still at.
    """

    def takes(self, fanned: MapRun) -> bool:
        """Is this the fan whose items may travel?  An InputError if they cannot."""

    def parcel(self, fanned: MapRun, *, shared: bool) -> tuple[str, bytes]: ...

    def errands(self, digest: str, fanned: MapRun, works: Sequence[WorkItem]) -> bytes: ...

    def learn(self, hidden: Iterable[SealedSecret]) -> None:
        """Mask these from now on, too."""
