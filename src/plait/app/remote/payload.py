"""The messages that a run sends to a worker.

A job holds what all items of a map share: the flow's files, variables and settings. Each worker
gets it once and keeps it under its digest. Messages with items name that digest.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence

from plait.adapters.dask.protocol import SealedSecret, pack_message
from plait.core.digests import sha256_hex
from plait.core.records import dataclass, field
from plait.core.values import Json, Secret
from plait.engine.backend import WorkItem
from plait.engine.events import Usage
from plait.engine.journal import StepRecord
from plait.engine.run_text import RunText


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a run that its items need."""

    run: str
    strict: bool
    keep_going: bool
    profile: str | None
    timeout: float | None
    text: RunText
    marked_done: Mapping[str, Json]
    retried: frozenset[str]
    keeps_overflow: bool


@dataclass(frozen=True, slots=True)
class JobPayload:
    """What all items of a map share."""

    path: str
    """The flow's file, on the machine of the run."""
    project: str
    folder: str
    """The run's folder."""
    directory: str
    """The working directory of the items."""
    files: Mapping[str, bytes] = field(repr=False)
    """By path in the project: the files of the flow, and those under `ship`."""
    executable: frozenset[str]
    """Those of them that are programs."""
    shared: bool
    """Workers see the project at the same path."""
    fingerprint: str
    """Of the map. A worker that computes another one has other files."""
    total: int
    settings: Settings
    parameters: Mapping[str, Json] = field(repr=False)
    variables: Mapping[str, Json] = field(repr=False)
    env: Mapping[str, Json] = field(repr=False)
    secrets: Mapping[str, Json] = field(repr=False)
    masked: Sequence[SealedSecret] = field(repr=False)
    """Everything that the run masks: an item has to see `***` in the same places."""
    env_variables: Mapping[str, Json] = field(repr=False)
    """Variables of the run's environment that a step of the items names."""
    frames: Sequence[tuple[str, Mapping[str, Mapping[str, Json]]]] = field(repr=False)
    """The scope of the map, the outermost frame first."""


@dataclass(frozen=True, slots=True)
class ItemTask:
    """One item."""

    work: WorkItem = field(repr=False)
    seconds_left: float | None
    can_replay: bool
    records: tuple[StepRecord, ...] = field(default=(), repr=False)
    """Its steps that an earlier run attempt has finished."""
    usage: tuple[tuple[str, Usage], ...] = ()
    """By path: what earlier run attempts used."""


class SecretBytes(bytes):
    """A message with secrets. A worker may log the arguments of a call, so its repr is `***`."""

    def __repr__(self) -> str:
        return "***"


def pack_job(payload: JobPayload) -> tuple[str, bytes]:
    """The digest of a job, and its message."""
    data = pickle.dumps(payload, pickle.HIGHEST_PROTOCOL)
    digest = sha256_hex(data)
    return digest, SecretBytes(pack_message(digest, data))


def pack_items(digest: str, tasks: Sequence[ItemTask]) -> bytes:
    return pack_message(digest, pickle.dumps(tuple(tasks), pickle.HIGHEST_PROTOCOL))


def seal(value: Json) -> Json:
    """The value, with every secret in it as a SealedSecret."""
    match value:
        case Secret():
            return SealedSecret(value.reveal())
        case Mapping():
            return {name: seal(inner) for name, inner in value.items()}
        case list():
            return [seal(inner) for inner in value]
    return value


def unseal(value: Json) -> Json:
    match value:
        case SealedSecret():
            return value.to_secret()
        case dict():
            return {name: unseal(inner) for name, inner in value.items()}
        case list():
            return [unseal(inner) for inner in value]
    return value
