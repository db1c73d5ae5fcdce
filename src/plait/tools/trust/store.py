"""What the user trusts: keys, projects and the newest versions that ran, in files of the user space.

Each change is atomic and made by one process at a time. A file that is damaged, or that others
could have written, is an error; it never counts as a file that is missing.

The administrator of a machine may trust and revoke keys for all its users in `/etc/plait/trust`,
a folder with files that only root can write. Plait never writes it. A key that either of the two
refuses is refused.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase

from plait.core.errors import InputError, TrustError
from plait.core.hints import Any, Final, TypeVar
from plait.core.private_files import (
    ABSENT,
    damaged_file_error,
    file_stamp,
    lock_folder,
    read_json_owned_by,
    read_private_json,
    require_private_folder,
    with_os_errors,
    write_atomic,
)
from plait.core.records import dataclass, replace
from plait.core.safe_files import FileStamp
from plait.core.values import Json
from plait.tools.trust.signatures import (
    Signature,
    is_key,
    key_fingerprint,
    read_rotation,
    require_valid_key,
    time_text,
)

Now = Callable[[], float]
Result = TypeVar("Result")

CLOCK_SKEW: Final = 300
"""Seconds by which a signer's clock may be ahead of ours."""

MACHINE: Final = "/etc/plait/trust"
"""Where the administrator of a machine trusts keys for all its users."""

RESERVED: Final = ("core/", "rye/")
"""Ids of system tools. A key covers them only if its patterns name them."""


@dataclass(frozen=True, slots=True)
class Revoked:
    time: str
    reason: str


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key, and the spaces and ids for which it is trusted."""

    fingerprint: str
    owner: str
    public_key: bytes
    spaces: tuple[str, ...]
    ids: tuple[str, ...]
    """Patterns of ids; `*` matches anything, also `/`."""
    added: str
    origin: str
    version: int = 1
    not_after: str | None = None
    revoked: Revoked | None = None

    def covers(self, space: str, item_id: str) -> bool:
        if space not in self.spaces:
            return False
        # A pattern covers ids below a reserved prefix only if it names the prefix itself.
        reserved = next((prefix for prefix in RESERVED if item_id.startswith(prefix)), "")
        return any(
            pattern.startswith(reserved) and fnmatchcase(item_id, pattern) for pattern in self.ids
        )

    def record(self) -> dict[str, Json]:
        return {
            "fingerprint": self.fingerprint,
            "owner": self.owner,
            "public_key": self.public_key.hex(),
            "spaces": list(self.spaces),
            "ids": list(self.ids),
            "added": self.added,
            "origin": self.origin,
            "version": self.version,
            "not_after": self.not_after,
            "revoked": self.revoked and {"time": self.revoked.time, "reason": self.revoked.reason},
        }


@dataclass(frozen=True, slots=True)
class Version:
    """The newest version of a file that ran here."""

    time: str
    hash: str

    def allows(self, signature: Signature) -> bool:
        return signature.time > self.time or (signature.time, signature.hash) == (
            self.time,
            self.hash,
        )


@dataclass(frozen=True, slots=True)
class TrustedProject:
    root: str
    trusted: str
    origin: str


def version_key(space: str, kind: str, item_id: str, extension: str) -> str:
    """The key under which the versions of one file are recorded."""
    return "\n".join((space, kind, item_id, extension))


class TrustStore:
    """Keys, projects and versions in `<user space>/trust`. Each change is atomic."""

    def __init__(
        self, user: str, *, now: Now = time.time, machine: str = MACHINE, administrator: int = 0
    ) -> None:
        self.root = os.path.join(user, "trust")
        self.machine = machine
        self._administrator = administrator
        self._now = now
        self._read: dict[str, tuple[FileStamp, Any]] = {}

    # ── keys ─────────────────────────────────────────────────────────────

    def key(self, fingerprint: str) -> TrustedKey | None:
        """A key that the user or the machine trusts, with the restrictions of both."""
        if not is_key(fingerprint):
            return None
        own = self._load(f"{fingerprint}.json", _parse_key)
        given = self.key_of_machine(fingerprint)
        if own is None or given is None:
            return own or given
        ended = _earlier(own.not_after, given.not_after)
        return replace(own, revoked=own.revoked or given.revoked, not_after=ended)

    def key_of_machine(self, fingerprint: str) -> TrustedKey | None:
        """A key that the administrator of this machine trusts for all its users."""
        if not is_key(fingerprint):
            return None
        path = f"{self.machine}/{fingerprint}.json"
        stamp = file_stamp(path)
        if stamp is None:
            return None
        known = self._read.get(path)
        if known is None or known[0] != stamp:
            # This also checks the folder: a person who can write it can replace the file.
            record = read_json_owned_by(self._administrator, self.machine, f"{fingerprint}.json")
            known = self._read[path] = (stamp, _parse_key(record, path))
        key: TrustedKey = known[1]
        return key

    def keys(self) -> tuple[TrustedKey, ...]:
        names = {name for root in (self.root, self.machine) for name in _names_in(root)}
        stems = sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))
        return tuple(key for stem in stems if (key := self.key(stem)) is not None)

    def require_key(self, fingerprint: str) -> TrustedKey:
        key = self.key(fingerprint)
        if key is None:
            raise InputError(
                f"no key {fingerprint[:16]}… is trusted here",
                fix="'plait trust' lists the keys",
                code="unknown-key",
            )
        return key

    def add(
        self,
        public_key: bytes,
        *,
        owner: str,
        origin: str,
        spaces: Collection[str] = ("project", "user"),
        ids: Collection[str] = ("*",),
        not_after: str | None = None,
    ) -> TrustedKey:
        """Trust a key, or change what it is trusted for."""
        if not spaces or not set(spaces) <= {"project", "user"}:
            raise InputError(
                "a key is trusted for 'project', 'user' or both", fix="name one", code="bad-space"
            )
        key = TrustedKey(
            fingerprint=key_fingerprint(require_valid_key(public_key)),
            owner=owner,
            public_key=public_key,
            spaces=tuple(spaces),
            ids=tuple(ids),
            added=time_text(self._now()),
            origin=origin,
            not_after=not_after,
        )
        with lock_folder(self.root):
            standing = self.key(key.fingerprint)
            if standing is not None:
                _require_not_revoked(standing)
                # A key that was replaced by rotation stays replaced.
                ended = _earlier(standing.not_after, not_after)
                key = replace(key, version=standing.version, not_after=ended)
            self._write_key(key)
        return key

    def revoke(self, fingerprint: str, reason: str) -> TrustedKey:
        """Refuse everything that this key signed or will sign. This cannot be undone."""
        with lock_folder(self.root):
            key = self.require_key(fingerprint)
            if key.revoked is None:
                key = replace(key, revoked=Revoked(time_text(self._now()), reason))
                self._write_key(key)
        return key

    def rotate(
        self,
        statement: bytes,
        *,
        origin: str | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> TrustedKey:
        """Replace an old key by a new one; both have signed the statement.

        `meanwhile` is called while both keys are valid. The same statement completes a rotation
        that was interrupted.
        """
        rotation = read_rotation(statement)
        now = time_text(self._now())
        with lock_folder(self.root):
            old = self.require_key(key_fingerprint(rotation.old))
            new = _successor(old, rotation.new, rotation.version, now, origin)
            if rotation.time > time_text(self._now() + CLOCK_SKEW):
                raise _no_rotation("it was signed at a time that has not come")
            standing = self.key(new.fingerprint)
            if standing is not None:
                _require_not_revoked(standing)
                # An interrupted attempt of this rotation may have written the new key.
                if replace(new, added=standing.added) != standing:
                    raise _no_rotation("the new key is trusted already")
            # The new key first: a crash in between leaves both valid, not neither.
            if standing is None:
                self._write_key(new)
            if meanwhile is not None:
                meanwhile()
            ended = _earlier(old.not_after, min(rotation.time, now))
            self._write_key(replace(old, version=rotation.version, not_after=ended))
        return standing or new

    # ── projects ─────────────────────────────────────────────────────────

    def trusts(self, project: str) -> bool:
        """Does the user trust the project in this folder, given by its real path?"""
        record = self._table("projects.json").get(project)
        try:
            # Another folder at the same path has another inode.
            return record is not None and record["inode"] == os.stat(project).st_ino
        except OSError:
            return False

    def projects(self) -> tuple[TrustedProject, ...]:
        table = self._table("projects.json")
        return tuple(
            TrustedProject(root, entry["trusted"], entry["origin"]) for root, entry in table.items()
        )

    def trust_project(self, project: str, *, origin: str) -> None:
        root = os.path.realpath(project)
        if not os.path.isdir(root):
            raise InputError(
                f"{root} is not a folder", fix="name the folder of a project", code="no-project"
            )
        inode = os.stat(root).st_ino
        entry = {"inode": inode, "trusted": time_text(self._now()), "origin": origin}
        with lock_folder(self.root):
            self._write("projects.json", {**self._table("projects.json"), root: entry})

    def forget_project(self, project: str) -> bool:
        """Stop trusting a project. False if it was not trusted."""
        root = os.path.realpath(project)
        with lock_folder(self.root):
            table = dict(self._table("projects.json"))
            known = table.pop(root, None) is not None
            self._write("projects.json", table)
        return known

    # ── versions ─────────────────────────────────────────────────────────

    def newest(self, place: str) -> Version | None:
        """The newest version that ran of the file with this `version_key`."""
        entry = self._table("rollback.json").get(place)
        return None if entry is None else Version(entry["time"], entry["hash"])

    def remember(
        self, ran: Mapping[str, Version], *, replacing: Collection[str] = frozenset()
    ) -> None:
        """Record the newest version of each file. Those in `replacing` may become older."""
        if all(self.newest(place) == version for place, version in ran.items()):
            return
        with lock_folder(self.root):
            table = dict(self._table("rollback.json"))
            for place, version in ran.items():
                standing = self.newest(place)
                if standing is None or version.time > standing.time or place in replacing:
                    table[place] = {"time": version.time, "hash": version.hash}
            self._write("rollback.json", table)

    def forget_versions(self, item_id: str) -> int:
        """Let any version of an id run again. Returns how many were recorded."""
        with lock_folder(self.root):
            table = self._table("rollback.json")
            # The id is the last line but one; a project's path, before it, may have line breaks.
            kept = {
                place: entry
                for place, entry in table.items()
                if place.rpartition("\n")[0].rpartition("\n")[2] != item_id
            }
            self._write("rollback.json", kept)
        return len(table) - len(kept)

    # ── files ────────────────────────────────────────────────────────────

    def _table(self, name: str) -> dict[str, dict[str, Json]]:
        return self._load(name, _parse_table) or {}

    def _load(self, name: str, parse: Callable[[Json, str], Result]) -> Result | None:
        """The parsed file, or None. Read again only after it has changed."""
        path = f"{self.root}/{name}"
        stamp = file_stamp(path)
        if stamp is None:
            return None
        known = self._read.get(name)
        if known is None or known[0] != stamp:
            require_private_folder(self.root)
            known = self._read[name] = (stamp, parse(read_private_json(path), path))
        value: Result = known[1]
        return value

    def _write_key(self, key: TrustedKey) -> None:
        self._write(f"{key.fingerprint}.json", key.record())

    def _write(self, name: str, record: Json) -> None:
        write_atomic(
            self.root, name, json.dumps(record, indent=1, ensure_ascii=False).encode() + b"\n"
        )


_FIELDS: Final[Mapping[str, Mapping[str, type]]] = {
    "projects.json": {"inode": int, "trusted": str, "origin": str},
    "rollback.json": {"time": str, "hash": str},
}


def _parse_table(record: Json, path: str) -> dict[str, dict[str, Json]]:
    fields = _FIELDS[os.path.basename(path)]
    match record:
        case dict(table) if all(
            isinstance(entry, dict)
            and all(isinstance(entry.get(name), kind) for name, kind in fields.items())
            for entry in table.values()
        ):
            return table
    raise damaged_file_error(path)


def _parse_key(record: Json, path: str) -> TrustedKey:
    match record:
        case {
            "owner": str(owner),
            "public_key": str(public_key),
            "spaces": [*spaces],
            "ids": [*ids],
            "added": str(added),
            "origin": str(origin),
            "version": int(version),
            "not_after": None | str() as not_after,
            "revoked": None | {"time": str(), "reason": str()} as revoked,
        } if is_key(public_key) and all(isinstance(word, str) for word in (*spaces, *ids)):
            key = TrustedKey(
                fingerprint=key_fingerprint(bytes.fromhex(public_key)),
                owner=owner,
                public_key=bytes.fromhex(public_key),
                spaces=tuple(spaces),
                ids=tuple(ids),
                added=added,
                origin=origin,
                version=version,
                not_after=not_after,
                revoked=None if revoked is None else Revoked(revoked["time"], revoked["reason"]),
            )
            # The file must contain the key that its name promises.
            if os.path.basename(path) == f"{key.fingerprint}.json":
                return key
    raise damaged_file_error(path)


def _successor(
    old: TrustedKey, public_key: bytes, version: int, now: str, origin: str | None
) -> TrustedKey:
    _require_not_revoked(old)
    if old.not_after is not None and old.not_after <= now:
        raise _no_rotation("the old key has ended, or was replaced already")
    if version <= old.version:
        raise _no_rotation(f"its version {version} is not above {old.version}")
    return TrustedKey(
        fingerprint=key_fingerprint(public_key),
        owner=old.owner,
        public_key=public_key,
        spaces=old.spaces,
        ids=old.ids,
        added=now,
        origin=origin or f"rotation of {old.fingerprint}",
        version=version,
    )


def _names_in(root: str) -> list[str]:
    try:
        return with_os_errors(lambda: os.listdir(root), root, passing=ABSENT)
    except ABSENT:
        return []


def _earlier(one: str | None, other: str | None) -> str | None:
    return min((moment for moment in (one, other) if moment is not None), default=None)


def _require_not_revoked(key: TrustedKey) -> None:
    if key.revoked is not None:
        raise TrustError(
            f"{key.owner}'s key {key.fingerprint[:16]}… was revoked",
            fix="ask its owner for a new key",
            code="revoked-key",
        )


def _no_rotation(why: str) -> TrustError:
    return TrustError(f"the key was not replaced: {why}", fix="ask its owner", code="bad-rotation")
