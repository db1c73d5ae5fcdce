"""What may run: nothing that a project brings along, before you trusted it or its signer.

    system    bytes that the manifest of the installation lists
    user      your own files, which nobody else can write, or signed ones
    project   signed by a key you trust for that id; or you trusted the project

A signature that is there must hold: whatever else is trusted, a file whose
signature is false, revoked or older than what ran here before is refused.
Files of config/ that a tool asks for are items like the tool: they decide what it does.

A project can ask for more, never for less: signatures (`trust: signed` in its
`.ai/plait.yaml`), and, where the user says so, the very bytes of its `plait.lock`.

What you trust stands below your user space and nowhere else, so a repository
cannot bring its own trust, and nothing here reads the environment.  A decision
is about `Item.data`, the bytes that were read once and will run.

    trust_store     the keys, projects and versions that you trust
    trust_question  what a project brings along, to be asked about
    lock            the bytes that a project must have
    keys            your own private keys
    private_files   files that only you can change

Whoever deals with trust imports it from here, whichever of them keeps it.
"""

from __future__ import annotations

import os
import shlex
import time
from _thread import allocate_lock
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache

from plait.core.errors import (
    DocumentError,
    InputError,
    PlaitError,
    Problem,
    TrustError,
    closest_name,
    format_names,
)
from plait.core.hints import TYPE_CHECKING, Final, Literal
from plait.core.private_files import file_stamp, writable_by_others
from plait.core.records import dataclass, field, replace
from plait.core.safe_files import FileStamp, read_below
from plait.core.values import UNDEFINED, Json
from plait.tools.items import ToolFile
from plait.tools.trust.manifest_reader import manifest_digests
from plait.tools.trust.signatures import (
    Signature,
    has_comment_syntax,
    read_detached,
    read_signature,
    time_text,
    verify,
)
from plait.tools.trust.store import (
    CLOCK_SKEW,
    MACHINE,
    RESERVED,
    Now,
    Revoked,
    TrustedKey,
    TrustedProject,
    TrustStore,
    Version,
    version_key,
)
from plait.tools.trust.user_space import account_home, foreign_fix, foreign_place

if TYPE_CHECKING:
    from plait.core.documents import Mapping as MappingNode
    from plait.tools.trust.keys import Effort, KeyFolder
    from plait.tools.trust.lockfile import Lockfile

    pass

__all__ = [
    "CLOCK_SKEW",
    "RESERVED",
    "AskTrust",
    "Effort",
    "KeyFolder",
    "Lockfile",
    "Now",
    "Revoked",
    "Trust",
    "TrustBasis",
    "TrustDecision",
    "TrustQuestion",
    "TrustStore",
    "TrustedKey",
    "TrustedProject",
    "Version",
    "project_files",
]

_LATER: Final = {
    "AskTrust": "trust_question",
    "Effort": "keys",
    "KeyFolder": "keys",
    "Lockfile": "lockfile",
    "TrustQuestion": "trust_question",
    "project_files": "trust_question",
}
"""What a decision needs only when somebody is asked or signs."""


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'plait.tools.trust.decisions' has no attribute '{name}'")
    from importlib import import_module

    value: object = getattr(import_module(f"plait.tools.trust.{_LATER[name]}"), name)
    return value


TrustBasis = Literal["manifest", "signature", "project", "user-space"]

_MOST_VERIFIED: Final = 10_000


@dataclass(frozen=True, slots=True)
class TrustDecision:
    """Whether an item may run, on whose word, and why."""

    item: ToolFile = field(repr=False)
    allowed: bool
    why: str
    by: TrustBasis | None = None
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


class Trust:
    """The decisions for one project; `user` is the root of the user space."""

    def __init__(
        self,
        user: str,
        project: str | None,
        *,
        ask: AskTrust | None = None,
        now: Now = time.time,
        allow_downgrade: Collection[str] = frozenset(),
        home: str | None = None,
        machine: str = MACHINE,
        administrator: int = 0,
    ) -> None:
        self.store = TrustStore(user, now=now, machine=machine, administrator=administrator)
        self.project = None if project is None else os.path.realpath(project)
        self._ask = ask
        self._now = now
        self._allow_downgrade = frozenset(allow_downgrade)
        # A user space that the project brought, or came with: what it says about trust is not
        # believed.
        self._foreign = self.project and foreign_place(user, self.project, home or account_home())
        self._verified: set[tuple[str, ...]] = set()
        self._signatures: dict[str, Signature | None] = {}
        self._demand: tuple[FileStamp | None, bool] = (None, False)
        self._question = allocate_lock()
        self._said_no = False
        self._lock: Lockfile | None = None

    def with_lockfile(self, lock: Lockfile) -> Trust:
        """The same, but nothing runs that is not in the lock as it is."""
        from copy import copy

        held = copy(self)
        held._lock = lock
        return held

    def require(
        self, items: Sequence[ToolFile], *, running: bool = True
    ) -> tuple[TrustDecision, ...]:
        """The verdicts, if all items may run; one error about all that may not.

        Not `running`: they are only looked at, and do not count as versions that ran here.
        """
        verdicts = self._judge_all(items)
        if self._ask is not None and _worth_asking(verdicts):
            verdicts = self._judge_after_asking(items, self._ask)
        refused = [verdict for verdict in verdicts if not verdict.allowed]
        if refused:
            raise self._refusal(refused)
        if running:
            self._remember(verdicts)
        return verdicts

    def admit(
        self, items: Sequence[ToolFile], *, running: bool = True
    ) -> tuple[list[TrustDecision], list[TrustDecision]]:
        """The verdicts on files that lie beside a tool: those that may come along, and those that
        nobody speaks for, which stay behind.

        One error if something speaks against a file: a false signature, a newer version that ran, a
        lock.
        """
        verdicts = self._judge_all(items)
        if refused := _select_refused(verdicts):
            raise self._refusal(refused)
        allowed = [verdict for verdict in verdicts if verdict.allowed]
        if running:
            self._remember(allowed)
        return allowed, [verdict for verdict in verdicts if not verdict.allowed]

    def find_refused(self, items: Sequence[ToolFile]) -> list[TrustDecision]:
        """The verdicts on those files beside a tool that something speaks against; remembers
        nothing.
        """
        return _select_refused(self._judge_all(items))

    def decide(self, item: ToolFile) -> TrustDecision:
        """Whether one item may run; asks nobody and remembers nothing."""
        return self._judge_all([item])[0]

    def trust_project(self, *, origin: str) -> None:
        """Trust everything that the project brings; `origin` says how the user told us."""
        if self.project is None:
            raise InputError(
                "there is no project to trust", fix="name its folder", code="no-project"
            )
        if self._foreign:
            raise TrustError(
                f"the user space lies {self._foreign} this project, which cannot vouch for itself",
                self.store.root,
                foreign_fix(self._foreign),
                code="foreign-store",
            )
        self.store.trust_project(self.project, origin=origin)

    @property
    def project_trusted(self) -> bool:
        """Did the user trust the whole project, without it demanding signatures?"""
        return self.trusts_project and not self._needs_signatures()

    @property
    def trusts_project(self) -> bool:
        """Did the user trust the whole project, whatever it demands beside that?"""
        return self.project is not None and not self._foreign and self.store.trusts(self.project)

    def rests_on(self, verdict: TrustDecision) -> tuple[str, ...]:
        """The files that a verdict rests on, there or not: while none of them changes, it holds."""
        item, store = verdict.item, self.store
        files = [item.path, f"{item.path}.sig", f"{store.root}/projects.json"]
        files.append(f"{self.project}/.ai/{_SETTINGS}")
        if verdict.signature is not None:
            key = f"{verdict.signature.fingerprint}.json"
            files += [
                f"{store.root}/{key}",
                f"{store.machine}/{key}",
                f"{store.root}/rollback.json",
            ]
        return tuple(files)

    # ── asking ───────────────────────────────────────────────────────────

    def _judge_after_asking(
        self, items: Sequence[ToolFile], ask: AskTrust
    ) -> tuple[TrustDecision, ...]:
        with self._question:  # threads that run items in parallel put the question once
            verdicts = self._judge_all(items)
            if self._said_no or not _worth_asking(verdicts) or self.project is None:
                return verdicts
            pass

            needed = tuple(verdict.item for verdict in verdicts if verdict.askable)
            if not ask(TrustQuestion(self.project, needed, project_files(self.project))):
                self._said_no = True
                return verdicts
            self.trust_project(origin="asked")
        return self._judge_all(items)

    def _refusal(self, refused: Sequence[TrustDecision]) -> PlaitError:
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

    def _judge_all(self, items: Sequence[ToolFile]) -> tuple[TrustDecision, ...]:
        trusted = self.project_trusted
        verdicts = (replace(self._judge(item, trusted), project_trusted=trusted) for item in items)
        return tuple(verdicts) if self._lock is None else tuple(map(self._judge_by_lock, verdicts))

    def _judge(self, item: ToolFile, trusted: bool) -> TrustDecision:
        match item.space.name:
            case "system":
                return self._judge_system(item)
            case "user" if not self._foreign:
                return self._judge_own(item)
            case _:
                return self._judge_brought(item, trusted)

    def _judge_system(self, item: ToolFile) -> TrustDecision:
        if manifest_digests(item.space.root).get(_relative(item)) == item.digest:
            return TrustDecision(item, True, "it is as it was installed", "manifest")
        return TrustDecision(
            item,
            False,
            "it is not the file that was installed",
            code="changed-system-file",
            fix="install Plait again; in a checkout of it: python -m plait.tools.trust.manifest",
        )

    def _judge_own(self, item: ToolFile) -> TrustDecision:
        verdict = self._judge_signature(item)
        if verdict.allowed or not verdict.askable:
            return verdict
        if (open_to_others := writable_by_others(item.path, item.space.root)) is not None:
            return TrustDecision(
                item,
                False,
                f"others can write {open_to_others}, and {verdict.why}",
                code="unsafe-user-file",
                fix=f"look at it, then type: chmod go-w {shlex.quote(open_to_others)}",
            )
        why = f"it is your own file; {verdict.why}"
        return TrustDecision(item, True, why, "user-space", signature=verdict.signature)

    def _judge_brought(self, item: ToolFile, trusted: bool) -> TrustDecision:
        verdict = self._judge_signature(item)
        if verdict.allowed or not verdict.askable:
            return verdict
        if trusted:
            why = f"you trusted this project; {verdict.why}"
            return TrustDecision(item, True, why, "project", signature=verdict.signature)
        if self._foreign:
            return replace(verdict, askable=False, fix=foreign_fix(self._foreign))
        if self.project is not None and self._needs_signatures():
            why = f"{verdict.why}, and this project demands signatures (trust: signed)"
            return replace(verdict, askable=False, why=why)
        return replace(verdict, askable=self.project is not None)

    def _judge_signature(self, item: ToolFile) -> TrustDecision:
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
        known = self.store.key_of_machine if self._foreign else self.store.key
        key = known(signature.fingerprint)
        if key is None:
            why = f"it is signed by {signature.fingerprint[:16]}…, a key you do not trust"
            return _doubtful(item, signature, "unknown-key", why)
        return self._judge_signed(item, signature, key)

    def _judge_signed(self, item: ToolFile, signature: Signature, key: TrustedKey) -> TrustDecision:
        if key.revoked is not None:
            why = f"it is signed by {key.owner}'s key {key.fingerprint[:16]}…, which was revoked"
            fix = "have it signed with another key, or remove its signature"
            return _make_refusal(item, "revoked-key", why, fix)
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

    def _judge_age(self, item: ToolFile, signature: Signature, key: TrustedKey) -> TrustDecision:
        if signature.time > time_text(self._now() + CLOCK_SKEW):
            fix = "set the clock of this machine, or have it signed again"
            return _make_refusal(
                item, "from-the-future", "it was signed at a time that has not come", fix
            )
        newest = self.store.newest(self._version_key(item))
        if (
            newest is not None
            and not newest.allows(signature)
            and item.id not in self._allow_downgrade
        ):
            fix = f"restore the newer one, or accept this one: plait trust reset {item.id}"
            return _make_refusal(item, "rolled-back", "a newer version of it ran here before", fix)
        return TrustDecision(
            item,
            True,
            f"it is signed by {key.owner}",
            "signature",
            key.fingerprint,
            key.owner,
            signature,
        )

    def _judge_by_lock(self, verdict: TrustDecision) -> TrustDecision:
        """A lock only refuses; what came with Plait has the digests of the installation for it."""
        item = verdict.item
        if (
            self._lock is None
            or verdict.by == "manifest"
            or (not verdict.allowed and not verdict.askable)
        ):
            return verdict
        pinned = self._lock.files.get(_relative(item)) if item.space.name == "project" else None
        if pinned == item.digest:
            return verdict
        why = (
            "it has changed since plait.lock was written"
            if pinned
            else "plait.lock does not list it"
        )
        code = "differs-from-lock" if pinned else "not-in-lock"
        first = "look at it" if item.space.name == "project" else "copy it into the project"
        return _make_refusal(item, code, why, f"{first}, then type: plait tools lock")

    def _signature(self, item: ToolFile) -> Signature | None:
        if not has_comment_syntax(_extension(item)):
            beside = read_below(item.space.root, f"{_relative(item)}.sig")
            return None if beside is None else read_detached(beside[0])
        signature = self._signatures.get(item.digest, UNDEFINED)
        if signature is UNDEFINED:
            if len(self._signatures) >= _MOST_VERIFIED:
                self._signatures.clear()
            signature = self._signatures[item.digest] = read_signature(item.data)
        return signature

    def _verify(self, item: ToolFile, signature: Signature, key: TrustedKey) -> None:
        extension = _extension(item)
        # The signature as a whole: one that stands in a file of its own is not part of the digest.
        known = (item.digest, item.kind, item.id, extension, signature.text)
        if known in self._verified:
            return
        verify(
            item.data,
            signature,
            key.public_key,
            kind=item.kind,
            item_id=item.id,
            extension=extension,
        )
        if len(self._verified) >= _MOST_VERIFIED:
            self._verified.clear()
        self._verified.add(known)

    # ── remembering ──────────────────────────────────────────────────────

    def _remember(self, verdicts: Iterable[TrustDecision]) -> None:
        ran = {
            self._version_key(verdict.item): Version(verdict.signature.time, verdict.signature.hash)
            for verdict in verdicts
            if verdict.by == "signature" and verdict.signature is not None
        }
        downgraded = {
            self._version_key(v.item) for v in verdicts if v.item.id in self._allow_downgrade
        }
        self.store.remember(ran, replacing=downgraded)

    def _version_key(self, item: ToolFile) -> str:
        """What is remembered together: the versions of one file of one project, or of yours."""
        space = f"project {self.project}" if item.space.name == "project" else item.space.label
        return version_key(space, item.kind, item.id, _extension(item))

    def _needs_signatures(self) -> bool:
        """Does the project demand signatures?  It can ask for more than the user, never for
        less.
        """
        root = os.path.join(self.project or "/", ".ai")
        stamp = file_stamp(f"{root}/{_SETTINGS}")
        known = self._demand
        if known[0] != stamp:
            known = self._demand = (stamp, _demands_signatures(root))
        return known[1]


# ── the parts of a decision ──────────────────────────────────────────────

_SETTINGS: Final = "plait.yaml"
_KNOWN_SETTINGS: Final = ("trust", "keep_runs")


def _select_refused(verdicts: Sequence[TrustDecision]) -> list[TrustDecision]:
    return [verdict for verdict in verdicts if not verdict.allowed and not _unspoken(verdict)]


def _unspoken(verdict: TrustDecision) -> bool:
    """Does nobody speak for an item, and nothing against it?"""
    if verdict.code == "changed-system-file":
        return _relative(verdict.item) not in manifest_digests(verdict.item.space.root)
    return verdict.askable or verdict.code in _UNSPOKEN


_UNSPOKEN: Final = (
    "unsigned", "content-only", "unknown-key", "out-of-scope", "key-ended", "unsafe-user-file"
)  # fmt: skip


def _worth_asking(verdicts: Iterable[TrustDecision]) -> bool:
    """Is something refused, and would a yes to the project be enough?"""
    refused = [verdict for verdict in verdicts if not verdict.allowed]
    return bool(refused) and all(verdict.askable for verdict in refused)


def _not_trusted(project: str, refused: Sequence[TrustDecision]) -> Problem:
    names = [f"{verdict.item.id}{_extension(verdict.item)} ({verdict.why})" for verdict in refused]
    files = "a file" if len(names) == 1 else f"{len(names)} files"
    return Problem(
        f"this project brings {files} that nobody you trust has signed: "
        f"{format_names(names, most=50)}",
        project,
        f"look at what it brings, then type: plait trust {shlex.quote(project)}",
        code="not-trusted",
    )


def _doubtful(item: ToolFile, signature: Signature | None, code: str, why: str) -> TrustDecision:
    fix = (
        f"trust its signer with 'plait trust add', or sign it: plait sign {shlex.quote(item.path)}"
    )
    return TrustDecision(item, False, why, signature=signature, code=code, fix=fix, askable=True)


def _false_signature(item: ToolFile, error: TrustError) -> TrustDecision:
    fix = f"restore the file, or sign it as it is now: plait sign {shlex.quote(item.path)}"
    return _make_refusal(item, error.code or "forged", error.what, fix)


def _make_refusal(item: ToolFile, code: str, why: str, fix: str) -> TrustDecision:
    return TrustDecision(item, False, why, code=code, fix=fix)


def _extension(item: ToolFile) -> str:
    return os.path.splitext(item.path)[1]


def _relative(item: ToolFile) -> str:
    return _below(item.path, item.space.root)


@lru_cache(maxsize=4096)
def _below(path: str, root: str) -> str:
    return os.path.relpath(path, root).replace(os.sep, "/")


def _demands_signatures(root: str) -> bool:
    contents = read_below(root, _SETTINGS)
    if contents is None:
        return False
    plain = [
        line for line in contents[0].splitlines() if line.strip() and not line.startswith(b"#")
    ]
    if plain in ([], [b"trust: project"], [b"trust: signed"]):
        return plain == [
            b"trust: signed"
        ]  # as `plait init` writes it; to load YAML takes longer than a call
    from plait.core.documents import Mapping as MappingNode
    from plait.core.documents import Scalar, parse

    path = os.path.join(root, _SETTINGS)
    node = parse(contents[0].decode("utf-8", "replace"), path)
    match node:
        case Scalar(None):
            return False
        case MappingNode():
            require_valid_settings(node)
            said = node.get("trust")
            return isinstance(said, Scalar) and said.value == "signed"
    raise DocumentError(
        "the settings of a project are a map", node.span, "write trust: signed", code="not-a-map"
    )


def require_valid_settings(node: MappingNode) -> None:
    """Also of what does not ask for signatures: a slip of the pen must not mean less."""
    from plait.core.documents import Scalar

    problems = [
        Problem(
            f"'{key}' is no setting of a project",
            node.key_span(key),
            f"did you mean '{guess}'?"
            if (guess := closest_name(key, _KNOWN_SETTINGS))
            else f"known: {format_names(_KNOWN_SETTINGS)}",
            code="unknown-field",
        )
        for key in node.data()
        if key not in _KNOWN_SETTINGS
    ]
    match node.get("trust"):
        case None | Scalar(None) | Scalar("project") | Scalar("signed"):
            pass
        case said:
            fix = "write trust: signed"
            problems.append(
                Problem("'trust' is 'signed' or 'project'", said.span, fix, code="bad-trust")
            )
    match node.get("keep_runs"):
        case None | Scalar(None) | Scalar("all"):
            pass
        case Scalar(int(number)) if number > 0 and not isinstance(number, bool):
            pass
        case said:
            what, fix = "'keep_runs' is a whole number above 0, or all", "write keep_runs: all"
            problems.append(Problem(what, said.span, fix, code="bad-setting"))
    if problems:
        raise DocumentError.together(problems)


_MOST_SHOWN: Final = 10_000


@dataclass(frozen=True, slots=True)
class TrustQuestion:
    """What a person is asked: may this project run what it brings along?"""

    project: str
    items: tuple[ToolFile, ...]
    """What is about to run."""
    brings: tuple[str, ...]
    """Every file that would be trusted, relative to the project."""

    def __str__(self) -> str:
        inside = [path for path in self.brings if path.count("/") > 1]
        folders = Counter(path.split("/")[1] for path in inside)
        parts = [
            _count_text(folder, count)
            for folder, count in sorted(folders.items(), key=_tools_first)
        ]
        parts += [path for path in self.brings if path not in inside]
        return f"this project brings {', '.join(parts)}, signed by nobody you trust: {self.project}"


AskTrust = Callable[[TrustQuestion], bool]


def _count_text(folder: str, count: int) -> str:
    if folder == "tools":
        return f"{count} tool{'s' * (count != 1)}"
    return f"{count} file{'s' * (count != 1)} in .ai/{folder}"


def _tools_first(entry: tuple[str, int]) -> tuple[bool, str]:
    return entry[0] != "tools", entry[0]


def project_files(project: str) -> tuple[str, ...]:
    """The files that trusting a project lets run, for a person to look at."""
    found = [".env"] if os.path.lexists(os.path.join(project, ".env")) else []
    for folder, folders, files in os.walk(os.path.join(project, ".ai"), followlinks=False):
        inside = os.path.relpath(folder, project).replace(os.sep, "/")
        folders[:] = sorted(name for name in folders if f"{inside}/{name}" != ".ai/state")
        found += [f"{inside}/{name}" for name in sorted(files)]
        if len(found) > _MOST_SHOWN:
            break
    return tuple(sorted(found))
