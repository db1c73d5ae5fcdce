"""What may run: nothing that a project brings along, before you trusted it or its signer.

    system    bytes that the manifest of the installation lists
    user      your own files, which nobody else can write, or signed ones
    project   signed by a key you trust for that id; or you trusted the project

A signature that is there must hold: whatever else is trusted, a file whose
signature is false, revoked or older than what ran here before is refused.

What you trust stands below your user space and nowhere else, so a repository
cannot bring its own trust, and nothing here reads the environment.  A decision
is about `Item.data`, the bytes that were read once and will run.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import re
import shlex
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeVar

from plait.documents import Mapping as MappingNode
from plait.documents import Scalar, parse, parse_json
from plait.errors import DocumentError, InputError, LimitError, PlaitError, Problem, TrustError, listed
from plait.tools import manifest
from plait.tools.beneath import read_beneath
from plait.tools.items import Item
from plait.tools.signing import (
    PrivateKey,
    Signature,
    expect_sound_key,
    fingerprint_of,
    in_comment,
    read_detached,
    read_rotation,
    read_signature,
    time_text,
    verify,
)
from plait.values import UNDEFINED, Json, Secret

By = Literal["manifest", "signature", "project", "user-space"]
Now = Callable[[], float]
Result = TypeVar("Result")
_Stamp = tuple[int, int, int, int]
_ABSENT: Final = (FileNotFoundError, NotADirectoryError)

CLOCK_SKEW: Final = 300
"""Seconds by which a signer's clock may be ahead of ours."""

RESERVED: Final = ("core/", "rye/")
"""Ids of the system's own tools: a key stands for them only if it was trusted for them by name."""

_MOST_VERIFIED: Final = 10_000
_MOST_SHOWN: Final = 10_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an item may run, on whose word, and why."""

    item: Item = field(repr=False)
    allowed: bool
    why: str
    by: By | None = None
    fingerprint: str | None = None
    owner: str | None = None
    signature: Signature | None = None
    project_trusted: bool = False
    """Did the user trust the whole project, its `.env` and its interpreters included?"""
    code: str = ""
    fix: str = ""
    askable: bool = False
    """Would the item run if the user trusted the project?"""

    def record(self) -> dict[str, Json]:
        """For people and programs to see."""
        return {
            "item_id": self.item.id,
            "space": self.item.space.label,
            "allowed": self.allowed,
            "by": self.by,
            "fingerprint": self.fingerprint,
            "owner": self.owner,
            "signed_at": self.signature.time if self.signature else None,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class Question:
    """What a person is asked: may this project run what it brings along?"""

    project: str
    items: tuple[Item, ...]
    """What is about to run."""
    brings: tuple[str, ...]
    """Every file that would be trusted, relative to the project."""

    def __str__(self) -> str:
        folders = Counter(path.split("/")[1] for path in self.brings if path.startswith(".ai/"))
        parts = [_counted(folder, count) for folder, count in sorted(folders.items(), key=_tools_first)]
        parts += [path for path in self.brings if not path.startswith(".ai/")]
        return f"this project brings {', '.join(parts)}, signed by nobody you trust: {self.project}"


Ask = Callable[[Question], bool]


class Trust:
    """The decisions for one project; `user` is the root of the user space."""

    def __init__(
        self,
        user: str,
        project: str | None,
        *,
        ask: Ask | None = None,
        now: Now = time.time,
        allow_downgrade: Collection[str] = frozenset(),
        home: str | None = None,
    ) -> None:
        self.store = TrustStore(user, now=now)
        self.project = None if project is None else os.path.realpath(project)
        self._ask = ask
        self._now = now
        self._allow_downgrade = frozenset(allow_downgrade)
        # A user space inside the project is the project's: what it says about trust is not believed.
        self._foreign = self.project is not None and _inside(user, self.project, home or _account_home())
        self._verified: set[tuple[str, ...]] = set()
        self._signatures: dict[str, Signature | None] = {}
        self._manifests: dict[str, tuple[_Stamp | None, Mapping[str, str]]] = {}
        self._demand: tuple[_Stamp | None, bool] = (None, False)
        self._question = threading.Lock()
        self._said_no = False

    def require(self, items: Sequence[Item]) -> tuple[Verdict, ...]:
        """The verdicts, if all items may run; one error about all that may not."""
        verdicts = self._judge_all(items)
        if self._ask is not None and _worth_asking(verdicts):
            verdicts = self._judge_after_asking(items, self._ask)
        refused = [verdict for verdict in verdicts if not verdict.allowed]
        if refused:
            raise self._refusal(refused)
        self._remember(verdicts)
        return verdicts

    def judge(self, item: Item) -> Verdict:
        """Whether one item may run; asks nobody and remembers nothing."""
        return self._judge_all([item])[0]

    def trust_project(self, *, origin: str) -> None:
        """Trust everything that the project brings; `origin` says how the user told us."""
        if self.project is None:
            raise InputError("there is no project to trust", fix="name its folder", code="no-project")
        if self._foreign:
            raise TrustError(
                "the user space lies inside this project, which cannot vouch for itself",
                self.store.root,
                _FOREIGN_FIX,
                code="foreign-store",
            )
        self.store.trust_project(self.project, origin=origin)

    @property
    def project_trusted(self) -> bool:
        """Did the user trust the whole project, without it demanding signatures?"""
        if self.project is None or self._foreign or not self.store.trusts(self.project):
            return False
        return not self._signed_only()

    # ── asking ───────────────────────────────────────────────────────────

    def _judge_after_asking(self, items: Sequence[Item], ask: Ask) -> tuple[Verdict, ...]:
        with self._question:  # threads that run items in parallel put the question once
            verdicts = self._judge_all(items)
            if self._said_no or not _worth_asking(verdicts) or self.project is None:
                return verdicts
            needed = tuple(verdict.item for verdict in verdicts if verdict.askable)
            if not ask(Question(self.project, needed, brought_along(self.project))):
                self._said_no = True
                return verdicts
            self.trust_project(origin="asked")
        return self._judge_all(items)

    def _refusal(self, refused: Sequence[Verdict]) -> PlaitError:
        askable = [verdict for verdict in refused if verdict.askable]
        problems = [
            Problem(
                f"'{verdict.item.id}' may not run: {verdict.why}",
                verdict.item.path,
                verdict.fix,
                code=verdict.code,
            )
            for verdict in refused
            if not verdict.askable
        ]
        if askable and self.project is not None:
            problems.append(_not_trusted(self.project, askable))
        return TrustError.together(problems)

    # ── deciding ─────────────────────────────────────────────────────────

    def _judge_all(self, items: Sequence[Item]) -> tuple[Verdict, ...]:
        trusted = self.project_trusted
        return tuple(replace(self._judge(item, trusted), project_trusted=trusted) for item in items)

    def _judge(self, item: Item, trusted: bool) -> Verdict:
        match item.space.name:
            case "system":
                return self._judge_system(item)
            case "user" if not self._foreign:
                return self._judge_own(item)
            case _:
                return self._judge_brought(item, trusted)

    def _judge_system(self, item: Item) -> Verdict:
        if self._system_digests(item.space.root).get(_relative(item)) == item.digest:
            return Verdict(item, True, "it is as it was installed", "manifest")
        return Verdict(
            item,
            False,
            "it is not the file that was installed",
            code="changed-system-file",
            fix="install Plait again; in a checkout of it: python -m plait.tools.manifest",
        )

    def _judge_own(self, item: Item) -> Verdict:
        verdict = self._judge_signature(item)
        if verdict.allowed or not verdict.askable:
            return verdict
        if (open_to_others := _changeable_by_others(item.path, item.space.root)) is not None:
            return Verdict(
                item,
                False,
                f"others can write {open_to_others}, and {verdict.why}",
                code="unsafe-user-file",
                fix=f"look at it, then type: chmod go-w {shlex.quote(open_to_others)}",
            )
        why = f"it is your own file; {verdict.why}"
        return Verdict(item, True, why, "user-space", signature=verdict.signature)

    def _judge_brought(self, item: Item, trusted: bool) -> Verdict:
        verdict = self._judge_signature(item)
        if verdict.allowed or not verdict.askable:
            return verdict
        if trusted:
            why = f"you trusted this project; {verdict.why}"
            return Verdict(item, True, why, "project", signature=verdict.signature)
        if self._foreign:
            return replace(verdict, askable=False, fix=_FOREIGN_FIX)
        if self.project is not None and self._signed_only():
            why = f"{verdict.why}, and this project demands signatures (trust: signed)"
            return replace(verdict, askable=False, why=why)
        return replace(verdict, askable=self.project is not None)

    def _judge_signature(self, item: Item) -> Verdict:
        """By its signature alone; `askable` if that neither speaks for the item nor against it."""
        try:
            signature = self._signature(item)
        except TrustError as error:
            return _false_signature(item, error)
        if signature is None:
            return _doubtful(item, None, "unsigned", "it is not signed")
        if signature.content_only:
            why = "its signature (rye) speaks for its content alone, not for its id"
            return _doubtful(item, signature, "content-only", why)
        key = None if self._foreign else self.store.key(signature.fingerprint)
        if key is None:
            why = f"it is signed by {signature.fingerprint[:16]}…, a key you do not trust"
            return _doubtful(item, signature, "unknown-key", why)
        return self._judge_signed(item, signature, key)

    def _judge_signed(self, item: Item, signature: Signature, key: TrustedKey) -> Verdict:
        if key.revoked is not None:
            why = f"it is signed by {key.owner}'s key {key.fingerprint[:16]}…, which was revoked"
            fix = "have it signed with another key, or remove its signature"
            return _refused(item, "revoked-key", why, fix)
        try:
            self._verify(item, signature, key)
        except TrustError as error:
            return _false_signature(item, error)
        if not key.covers(item.space.name, item.id):
            why = f"{key.owner}'s key is not trusted for this id in the {item.space.name} space"
            return _doubtful(item, signature, "out-of-scope", why)
        if key.not_after is not None and signature.time > key.not_after:
            why = f"it was signed after {key.owner}'s key had ended"
            return _doubtful(item, signature, "key-ended", why)
        return self._judge_age(item, signature, key)

    def _judge_age(self, item: Item, signature: Signature, key: TrustedKey) -> Verdict:
        if signature.time > time_text(self._now() + CLOCK_SKEW):
            fix = "set the clock of this machine, or have it signed again"
            return _refused(item, "from-the-future", "it was signed at a time that has not come", fix)
        newest = self.store.newest(self._place_of(item))
        if newest is not None and not newest.allows(signature) and item.id not in self._allow_downgrade:
            fix = f"restore the newer one, or accept this one: plait trust reset {item.id}"
            return _refused(item, "rolled-back", "a newer version of it ran here before", fix)
        return Verdict(
            item, True, f"it is signed by {key.owner}", "signature", key.fingerprint, key.owner, signature
        )

    def _signature(self, item: Item) -> Signature | None:
        if not in_comment(_extension(item)):
            beside = read_beneath(item.space.root, f"{_relative(item)}.sig")
            return None if beside is None else read_detached(beside[0])
        signature = self._signatures.get(item.digest, UNDEFINED)
        if signature is UNDEFINED:
            if len(self._signatures) >= _MOST_VERIFIED:
                self._signatures.clear()
            signature = self._signatures[item.digest] = read_signature(item.data)
        return signature

    def _verify(self, item: Item, signature: Signature, key: TrustedKey) -> None:
        extension = _extension(item)
        # The signature as a whole: one that stands in a file of its own is not part of the digest.
        known = (item.digest, item.kind, item.id, extension, signature.text)
        if known in self._verified:
            return
        verify(item.data, signature, key.public_key, kind=item.kind, item_id=item.id, extension=extension)
        if len(self._verified) >= _MOST_VERIFIED:
            self._verified.clear()
        self._verified.add(known)

    # ── remembering ──────────────────────────────────────────────────────

    def _remember(self, verdicts: Iterable[Verdict]) -> None:
        ran = {
            self._place_of(verdict.item): Version(verdict.signature.time, verdict.signature.hash)
            for verdict in verdicts
            if verdict.by == "signature" and verdict.signature is not None
        }
        downgraded = {self._place_of(v.item) for v in verdicts if v.item.id in self._allow_downgrade}
        self.store.remember(ran, replacing=downgraded)

    def _place_of(self, item: Item) -> str:
        """What is remembered together: the versions of one file of one project, or of yours."""
        space = f"project {self.project}" if item.space.name == "project" else item.space.label
        return f"{space}\n{item.kind}\n{item.id}\n{_extension(item)}"

    def _system_digests(self, root: str) -> Mapping[str, str]:
        stamp = _stamp(f"{root}/{manifest.NAME}")
        known = self._manifests.get(root)
        if known is None or known[0] != stamp:
            known = self._manifests[root] = (stamp, manifest.listed(root))
        return known[1]

    def _signed_only(self) -> bool:
        """Does the project demand signatures?  It can ask for more than the user, never for less."""
        root = os.path.join(self.project or "/", ".ai")
        stamp = _stamp(f"{root}/{_PROJECT_CONFIG}")
        known = self._demand
        if known[0] != stamp:
            known = self._demand = (stamp, _demands_signatures(root))
        return known[1]


# ── the parts of a decision ──────────────────────────────────────────────

_PROJECT_CONFIG: Final = "config/plait.yaml"
_FOREIGN_FIX: Final = "your user space lies inside this project: let USER_SPACE name a folder outside it"


def brought_along(project: str) -> tuple[str, ...]:
    """The files that trusting a project lets run, for a person to look at."""
    found = [".env"] if os.path.lexists(os.path.join(project, ".env")) else []
    for folder, folders, files in os.walk(os.path.join(project, ".ai"), followlinks=False):
        inside = os.path.relpath(folder, project).replace(os.sep, "/")
        folders[:] = sorted(name for name in folders if f"{inside}/{name}" != ".ai/state")
        found += [f"{inside}/{name}" for name in sorted(files)]
        if len(found) > _MOST_SHOWN:
            break
    return tuple(sorted(found))


def _counted(folder: str, count: int) -> str:
    if folder == "tools":
        return f"{count} tool{'s' * (count != 1)}"
    return f"{count} file{'s' * (count != 1)} in .ai/{folder}"


def _tools_first(entry: tuple[str, int]) -> tuple[bool, str]:
    return entry[0] != "tools", entry[0]


def _worth_asking(verdicts: Iterable[Verdict]) -> bool:
    """Is something refused, and would a yes to the project be enough?"""
    refused = [verdict for verdict in verdicts if not verdict.allowed]
    return bool(refused) and all(verdict.askable for verdict in refused)


def _not_trusted(project: str, refused: Sequence[Verdict]) -> Problem:
    names = [f"{verdict.item.id}{_extension(verdict.item)} ({verdict.why})" for verdict in refused]
    files = "a file" if len(names) == 1 else f"{len(names)} files"
    return Problem(
        f"this project brings {files} that nobody you trust has signed: {listed(names, most=50)}",
        project,
        f"look at what it brings, then type: plait trust {shlex.quote(project)}",
        code="not-trusted",
    )


def _doubtful(item: Item, signature: Signature | None, code: str, why: str) -> Verdict:
    fix = f"trust its signer with 'plait trust add', or sign it: plait sign {shlex.quote(item.path)}"
    return Verdict(item, False, why, signature=signature, code=code, fix=fix, askable=True)


def _false_signature(item: Item, error: TrustError) -> Verdict:
    fix = f"restore the file, or sign it as it is now: plait sign {shlex.quote(item.path)}"
    return _refused(item, error.code or "forged", error.what, fix)


def _refused(item: Item, code: str, why: str, fix: str) -> Verdict:
    return Verdict(item, False, why, code=code, fix=fix)


def _extension(item: Item) -> str:
    return os.path.splitext(item.path)[1]


def _relative(item: Item) -> str:
    return os.path.relpath(item.path, item.space.root).replace(os.sep, "/")


def _demands_signatures(root: str) -> bool:
    contents = read_beneath(root, _PROJECT_CONFIG)
    if contents is None:
        return False
    path = os.path.join(root, _PROJECT_CONFIG)
    node = parse(contents[0].decode("utf-8", "replace"), path)
    said = node.get("trust") if isinstance(node, MappingNode) else None
    match said:
        case None | Scalar(None) | Scalar("project"):
            return False
        case Scalar("signed"):
            return True
    raise DocumentError(
        "'trust' is 'signed' or 'project'", said.span, "write trust: signed", code="bad-trust"
    )


def _changeable_by_others(path: str, root: str) -> str | None:
    """The first of a file and its folders, up to the space, that somebody else could change."""
    while True:
        try:
            status = os.stat(path)
        except OSError:
            return path
        if _open_to_others(status):
            return path
        if path in (root, os.path.dirname(path)):
            return None
        path = os.path.dirname(path)


def _open_to_others(status: os.stat_result) -> bool:
    return status.st_uid not in (os.getuid(), 0) or bool(status.st_mode & 0o022)


def _inside(user: str, project: str, home: str | None) -> bool:
    """Does the user space lie in the project, and is the project not the user's whole home?"""

    def below(path: str) -> bool:
        return os.path.commonpath([os.path.realpath(path), project]) == project

    return below(user) and not (home is not None and below(home))


def _account_home() -> str | None:
    # Not $HOME: whoever sets the environment does not decide whose folder this is.
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None


# ── what is trusted: files below the user space ──────────────────────────


@dataclass(frozen=True, slots=True)
class Revoked:
    time: str
    reason: str


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key, and for what it is trusted."""

    fingerprint: str
    owner: str
    public_key: bytes
    spaces: tuple[str, ...]
    ids: tuple[str, ...]
    """Patterns of ids; `*` stands for anything, `/` included."""
    added: str
    origin: str
    version: int = 1
    not_after: str | None = None
    revoked: Revoked | None = None

    def covers(self, space: str, item_id: str) -> bool:
        return space in self.spaces and any(_matches(item_id, pattern) for pattern in self.ids)

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
        return signature.time > self.time or (signature.time, signature.hash) == (self.time, self.hash)


@dataclass(frozen=True, slots=True)
class TrustedProject:
    root: str
    trusted: str
    origin: str


class TrustStore:
    """Keys, projects and versions in `<user space>/trust`, each change whole or not at all."""

    def __init__(self, user: str, *, now: Now = time.time) -> None:
        self.root = os.path.join(user, "trust")
        self._now = now
        self._read: dict[str, tuple[_Stamp, Any]] = {}

    # ── keys ─────────────────────────────────────────────────────────────

    def key(self, fingerprint: str) -> TrustedKey | None:
        if not _KEY.fullmatch(fingerprint):
            return None
        return self._load(f"{fingerprint}.json", _key_of)

    def keys(self) -> tuple[TrustedKey, ...]:
        try:
            names = sorted(os.listdir(self.root))
        except _ABSENT:
            return ()
        stems = [name.removesuffix(".json") for name in names if name.endswith(".json")]
        return tuple(key for stem in stems if (key := self.key(stem)) is not None)

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
        """Trust a key, or trust it for something else than before."""
        _expect_spaces(spaces)
        key = TrustedKey(
            fingerprint=fingerprint_of(expect_sound_key(public_key)),
            owner=owner,
            public_key=public_key,
            spaces=tuple(spaces),
            ids=tuple(ids),
            added=time_text(self._now()),
            origin=origin,
            not_after=not_after,
        )
        with self._locked():
            standing = self.key(key.fingerprint)
            if standing is not None:
                _expect_not_revoked(standing)
                # A key that was replaced by rotation stays replaced.
                ended = _earlier(standing.not_after, not_after)
                key = replace(key, version=standing.version, not_after=ended)
            self._write_key(key)
        return key

    def revoke(self, fingerprint: str, reason: str) -> TrustedKey:
        """Refuse whatever this key ever signed or will sign; there is no way back."""
        with self._locked():
            key = self.key(fingerprint)
            if key is None:
                raise _unknown_key(fingerprint)
            if key.revoked is None:
                key = replace(key, revoked=Revoked(time_text(self._now()), reason))
                self._write_key(key)
        return key

    def rotate(self, statement: bytes) -> TrustedKey:
        """Trust a new key in place of an old one, on the word of both."""
        rotation = read_rotation(statement)
        now = time_text(self._now())
        with self._locked():
            old = self.key(fingerprint_of(rotation.old))
            if old is None:
                raise _unknown_key(fingerprint_of(rotation.old))
            new = _successor(old, rotation.new, rotation.version, now)
            if rotation.time > time_text(self._now() + CLOCK_SKEW):
                raise _no_rotation("it was signed at a time that has not come")
            if (standing := self.key(new.fingerprint)) is not None:
                _expect_not_revoked(standing)
                raise _no_rotation("the new key is trusted already")
            # The new key first: a crash in between leaves both valid, not neither.
            self._write_key(new)
            ended = _earlier(old.not_after, min(rotation.time, now))
            self._write_key(replace(old, version=rotation.version, not_after=ended))
        return new

    # ── projects ─────────────────────────────────────────────────────────

    def trusts(self, project: str) -> bool:
        """Did the user trust the project in this folder, given by its real path?"""
        record = self._table("projects.json").get(project)
        try:
            # Another folder that took the place of the trusted one has its own number.
            return record is not None and record["inode"] == os.stat(project).st_ino
        except OSError:
            return False

    def projects(self) -> tuple[TrustedProject, ...]:
        table = self._table("projects.json")
        return tuple(TrustedProject(root, said["trusted"], said["origin"]) for root, said in table.items())

    def trust_project(self, project: str, *, origin: str) -> None:
        root = os.path.realpath(project)
        said = {"inode": _inode(root), "trusted": time_text(self._now()), "origin": origin}
        with self._locked():
            self._write("projects.json", {**self._table("projects.json"), root: said})

    def forget_project(self, project: str) -> bool:
        """No longer trust a project; False if it was not."""
        root = os.path.realpath(project)
        with self._locked():
            table = dict(self._table("projects.json"))
            known = table.pop(root, None) is not None
            self._write("projects.json", table)
        return known

    # ── versions ─────────────────────────────────────────────────────────

    def newest(self, place: str) -> Version | None:
        said = self._table("rollback.json").get(place)
        return None if said is None else Version(said["time"], said["hash"])

    def remember(self, ran: Mapping[str, Version], *, replacing: Collection[str] = frozenset()) -> None:
        """Keep the newest version of each place; of those in `replacing`, this one."""
        if all(self.newest(place) == version for place, version in ran.items()):
            return
        with self._locked():
            table = dict(self._table("rollback.json"))
            for place, version in ran.items():
                standing = self.newest(place)
                if standing is None or version.time > standing.time or place in replacing:
                    table[place] = {"time": version.time, "hash": version.hash}
            self._write("rollback.json", table)

    def forget_versions(self, item_id: str) -> int:
        """Let any version of an id run again; how many were remembered."""
        with self._locked():
            table = self._table("rollback.json")
            kept = {place: said for place, said in table.items() if place.split("\n")[2] != item_id}
            self._write("rollback.json", kept)
        return len(table) - len(kept)

    # ── files ────────────────────────────────────────────────────────────

    def _table(self, name: str) -> dict[str, dict[str, Json]]:
        return self._load(name, _table_of) or {}

    def _load(self, name: str, understand: Callable[[Json, str], Result]) -> Result | None:
        """What a file says, None if there is none; read again only when it has changed."""
        path = f"{self.root}/{name}"
        stamp = _stamp(path)
        if stamp is None:
            return None
        known = self._read.get(name)
        if known is None or known[0] != stamp:
            _expect_own_folder(self.root)
            record = _json_of(_read_own(path, forbidden=0o022), path)
            known = self._read[name] = (stamp, understand(record, path))
        said: Result = known[1]
        return said

    def _write_key(self, key: TrustedKey) -> None:
        self._write(f"{key.fingerprint}.json", key.record())

    def _write(self, name: str, record: Json) -> None:
        _write_whole(self.root, name, json.dumps(record, indent=1, ensure_ascii=False).encode() + b"\n")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among all processes of this user; the file stays, so that all lock the same one."""
        _make_own_folder(self.root)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = _attempt(lambda: os.open(os.path.join(self.root, "lock"), flags, 0o600), self.root)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


_KEY = re.compile("[0-9a-f]{64}")
_FIELDS: Final[Mapping[str, Mapping[str, type]]] = {
    "projects.json": {"inode": int, "trusted": str, "origin": str},
    "rollback.json": {"time": str, "hash": str},
}


def _has(record: Mapping[str, Json], fields: Mapping[str, type]) -> bool:
    return all(isinstance(record.get(name), kind) for name, kind in fields.items())


def _matches(item_id: str, pattern: str) -> bool:
    reserved = next((prefix for prefix in RESERVED if item_id.startswith(prefix)), "")
    return pattern.startswith(reserved) and fnmatchcase(item_id, pattern)


def _table_of(record: Json, path: str) -> dict[str, dict[str, Json]]:
    fields = _FIELDS[os.path.basename(path)]
    match record:
        case dict(table) if all(isinstance(said, dict) and _has(said, fields) for said in table.values()):
            return table
    raise _damaged(path)


def _key_of(record: Json, path: str) -> TrustedKey:
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
        } if _KEY.fullmatch(public_key) and all(isinstance(word, str) for word in (*spaces, *ids)):
            key = TrustedKey(
                fingerprint=fingerprint_of(bytes.fromhex(public_key)),
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
            # The name of the file is what was asked for: the key in it has to be that key.
            if os.path.basename(path) == f"{key.fingerprint}.json":
                return key
    raise _damaged(path)


def _expect_spaces(spaces: Collection[str]) -> None:
    if not spaces or not set(spaces) <= {"project", "user"}:
        raise InputError("a key is trusted for 'project', 'user' or both", fix="name one", code="bad-space")


def _successor(old: TrustedKey, public_key: bytes, version: int, now: str) -> TrustedKey:
    _expect_not_revoked(old)
    if old.not_after is not None and old.not_after <= now:
        raise _no_rotation("the old key has ended, or was replaced already")
    if version <= old.version:
        raise _no_rotation(f"its version {version} is not above {old.version}")
    return TrustedKey(
        fingerprint=fingerprint_of(public_key),
        owner=old.owner,
        public_key=public_key,
        spaces=old.spaces,
        ids=old.ids,
        added=now,
        origin=f"rotation of {old.fingerprint}",
        version=version,
    )


def _earlier(one: str | None, other: str | None) -> str | None:
    return min((moment for moment in (one, other) if moment is not None), default=None)


def _expect_not_revoked(key: TrustedKey) -> None:
    if key.revoked is not None:
        raise TrustError(
            f"{key.owner}'s key {key.fingerprint[:16]}… was revoked",
            fix="ask its owner for a new key",
            code="revoked-key",
        )


def _unknown_key(fingerprint: str) -> InputError:
    return InputError(
        f"no key {fingerprint[:16]}… is trusted here", fix="'plait trust' lists the keys", code="unknown-key"
    )


def _no_rotation(why: str) -> TrustError:
    return TrustError(f"the key was not replaced: {why}", fix="ask its owner", code="bad-rotation")


def _inode(root: str) -> int:
    if not os.path.isdir(root):
        raise InputError(f"{root} is not a folder", fix="name the folder of a project", code="no-project")
    return os.stat(root).st_ino


# ── the user's own keys ──────────────────────────────────────────────────

_KEY_FORMAT: Final = "plait.key.v1"
_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Effort:
    """What it costs to try one passphrase; the default takes about a second and 256 MiB."""

    operations: int = 3
    memory: int = 256 << 20


class KeyFolder:
    """Private keys in `<user space>/keys`, for the user's eyes only."""

    def __init__(self, user: str) -> None:
        self.root = os.path.join(user, "keys")

    def names(self) -> tuple[str, ...]:
        try:
            files = sorted(os.listdir(self.root))
        except _ABSENT:
            return ()
        return tuple(name.removesuffix(".key") for name in files if name.endswith(".key"))

    def create(
        self, name: str = "signing", *, passphrase: Secret | None = None, effort: Effort | None = None
    ) -> PrivateKey:
        """A new key, closed with the passphrase if there is one; never over an old one."""
        key = PrivateKey.generate()
        closed = _closed(key, passphrase, effort or Effort())
        record = {"format": _KEY_FORMAT, "public": key.public.hex(), **closed}
        path = self._path(name)
        _make_own_folder(self.root)
        try:
            _write_new(path, json.dumps(record, indent=1).encode() + b"\n")
        except FileExistsError:
            raise InputError(
                f"there is a key '{name}' already", path, "give the new one another name", code="key-exists"
            ) from None
        _sync_folder(self.root)
        return key

    def open(self, name: str = "signing", *, passphrase: Secret | None = None) -> PrivateKey:
        path = self._path(name)
        try:
            data = _read_own(path, forbidden=0o077)
        except _ABSENT:
            fix = "make one: plait keys new"
            raise InputError(f"there is no key '{name}'", path, fix, code="no-key") from None
        record = _json_of(data, path)
        key = _opened(record, passphrase, path)
        if key.public.hex() != record.get("public"):
            raise _damaged(path)
        return key

    def _path(self, name: str) -> str:
        if not _KEY_NAME.fullmatch(name):
            what = "a key's name is letters, digits, '_' and '-'"
            raise InputError(what, fix="for example signing", code="bad-name")
        return os.path.join(self.root, f"{name}.key")


def _closed(key: PrivateKey, passphrase: Secret | None, effort: Effort) -> dict[str, Json]:
    if passphrase is None:
        return {"seed": key.seed.hex()}
    from nacl.pwhash import argon2id
    from nacl.secret import SecretBox
    from nacl.utils import random

    salt = random(argon2id.SALTBYTES)
    box = SecretBox(_stretched(passphrase, salt, effort)).encrypt(key.seed)
    return {
        "salt": salt.hex(),
        "operations": effort.operations,
        "memory": effort.memory,
        "box": bytes(box).hex(),
    }


def _opened(record: Json, passphrase: Secret | None, path: str) -> PrivateKey:
    try:
        match record:
            case {"format": "plait.key.v1", "seed": str(seed)} if len(seed) == 64:
                return PrivateKey(bytes.fromhex(seed))
            case {
                "format": "plait.key.v1",
                "salt": str(salt),
                "operations": int(operations),
                "memory": int(memory),
                "box": str(box),
            }:
                return _unboxed(
                    bytes.fromhex(box), bytes.fromhex(salt), Effort(operations, memory), passphrase, path
                )
    except ValueError:
        raise _damaged(path) from None
    raise _damaged(path)


def _unboxed(box: bytes, salt: bytes, effort: Effort, passphrase: Secret | None, path: str) -> PrivateKey:
    from nacl.exceptions import CryptoError
    from nacl.secret import SecretBox

    if passphrase is None:
        raise InputError("this key needs its passphrase", path, "type it when asked", code="passphrase")
    try:
        return PrivateKey(SecretBox(_stretched(passphrase, salt, effort)).decrypt(box))
    except CryptoError:
        what = "that is not the passphrase of this key"
        raise InputError(what, path, "try again", code="passphrase") from None


def _stretched(passphrase: Secret, salt: bytes, effort: Effort) -> bytes:
    from nacl.pwhash import argon2id

    return argon2id.kdf(32, passphrase.reveal().encode(), salt, effort.operations, effort.memory)


# ── files that only their owner can change ───────────────────────────────


def _stamp(path: str) -> _Stamp | None:
    """What tells an unchanged file without reading it, or None if there is no file."""
    try:
        status = _attempt(lambda: os.stat(path, follow_symlinks=False), path, passing=_ABSENT)
    except _ABSENT:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read_own(path: str, *, forbidden: int) -> bytes:
    """The bytes of a regular file of this user; `forbidden` are the rights that others may not have."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = _attempt(lambda: os.open(path, flags), path, passing=_ABSENT)
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        owned = status.st_uid == os.getuid() or (status.st_uid == 0 and forbidden == 0o022)
        if not stat.S_ISREG(status.st_mode) or not owned or status.st_mode & forbidden:
            raise _unsafe(path, "600")
        return file.read()


def _json_of(data: bytes, path: str) -> Json:
    try:
        return parse_json(data.decode("utf-8", "replace"), path)
    except (DocumentError, LimitError):
        raise _damaged(path) from None


def _make_own_folder(folder: str) -> None:
    _attempt(lambda: os.makedirs(folder, mode=0o700, exist_ok=True), folder)
    _expect_own_folder(folder)


def _expect_own_folder(folder: str) -> None:
    status = os.stat(folder, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) or _open_to_others(status):
        raise _unsafe(folder, "700")


def _write_whole(folder: str, name: str, data: bytes) -> None:
    """Either the old contents or the new, whatever happens meanwhile."""
    made = os.path.join(folder, f".new-{os.getpid()}-{threading.get_ident()}")
    with suppress(FileNotFoundError):
        os.unlink(made)  # left by a process of the same number that was killed
    _write_new(made, data)
    _attempt(lambda: os.rename(made, os.path.join(folder, name)), folder)
    _sync_folder(folder)


def _write_new(path: str, data: bytes) -> None:
    """A file that was not there before, whole, and readable to its owner alone."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = _attempt(lambda: os.open(path, flags, 0o600), path, passing=(FileExistsError,))
    try:
        _attempt(lambda: _fill(handle, data), path)
    except TrustError:
        os.unlink(path)
        raise


def _fill(handle: int, data: bytes) -> None:
    with open(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(handle)


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _attempt(act: Callable[[], Result], where: str, *, passing: tuple[type[OSError], ...] = ()) -> Result:
    """What `act` gives; an error of the system that is not in `passing` becomes one for the user."""
    try:
        return act()
    except passing:
        raise
    except OSError as error:
        raise TrustError(
            f"{where} cannot be used: {error.strerror}", fix="look at its permissions", code="unusable-store"
        ) from None


def _unsafe(path: str, mode: str) -> TrustError:
    return TrustError(
        f"{path} could be read or changed by others, or is no plain file or folder of yours",
        fix=f"look at it, then type: chmod {mode} {shlex.quote(path)}",
        code="unsafe-store",
    )


def _damaged(path: str) -> TrustError:
    return TrustError(
        f"{path} is damaged",
        fix="restore it from a backup, or remove it and say again what you trust",
        code="damaged-store",
    )
