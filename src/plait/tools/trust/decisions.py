"""Decide which files may run. A file of a project runs only if you trust the project or the signer.

    system    files with the bytes that the manifest of the installation lists
    user      your own files that only you can write, or signed ones
    project   signed by a key that you trust for the id; or you trust the project

An existing signature must be valid. A file whose signature is false, revoked, or older than a
version that ran here is refused, whatever else you trust. The config files of a tool need trust
like the tool itself, because they decide what it does.

A project can demand more, never less: signatures (`trust: signed` in its `.ai/plait.yaml`). The
user can demand the exact bytes of its `plait.lock`.

What you trust is recorded only in your user space, so a repository cannot bring its own trust.
Nothing here reads the environment. A decision is about `ToolFile.data`: the bytes that were read
once and will run.

    store      the keys, projects and versions that you trust
    lockfile   the bytes that a project must have
    keys       your own private keys

Other packages import their names from here.
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
from plait.tools.tool_file import ToolFile
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
    "Effort": "keys",
    "KeyFolder": "keys",
    "Lockfile": "lockfile",
}
"""Names that only signing and lockfiles need, by module: they load on first use."""


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
    """Whether an item may run, on what basis, and why."""

    item: ToolFile = field(repr=False)
    allowed: bool
    why: str
    by: TrustBasis | None = None
    fingerprint: str | None = None
    owner: str | None = None
    signature: Signature | None = None
    project_trusted: bool = False
    """Does the user trust the whole project, including its `.env` and its interpreters?"""
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
        # A user space that may have come with the project is not believed.
        self._foreign = self.project and foreign_place(user, self.project, home or account_home())
        self._verified: set[tuple[str, ...]] = set()
        self._signatures: dict[str, Signature | None] = {}
        self._demand: tuple[FileStamp | None, bool] = (None, False)
        self._question = allocate_lock()
        self._was_refused = False
        self._lock: Lockfile | None = None

    def with_lockfile(self, lock: Lockfile) -> Trust:
        """The same, but a file runs only if the lockfile lists its exact bytes."""
        from copy import copy

        held = copy(self)
        held._lock = lock
        return held

    def require(
        self, items: Sequence[ToolFile], *, running: bool = True
    ) -> tuple[TrustDecision, ...]:
        """The decisions, if all items may run. Raises one TrustError about all that may not.

        Without `running` the items do not count as versions that ran here.
        """
        decisions = self._decide_all(items)
        if self._ask is not None and _worth_asking(decisions):
            decisions = self._decide_after_asking(items, self._ask)
        refused = [decision for decision in decisions if not decision.allowed]
        if refused:
            raise self._refusal(refused)
        if running:
            self._remember(decisions)
        return decisions

    def admit(
        self, items: Sequence[ToolFile], *, running: bool = True
    ) -> tuple[list[TrustDecision], list[TrustDecision]]:
        """The decisions about files beside a tool: those that it may use, and those without trust,
        which it does not get.

        Raises TrustError if a file must not run: a false signature, an older version, the lockfile.
        """
        decisions = self._decide_all(items)
        if refused := _select_refused(decisions):
            raise self._refusal(refused)
        allowed = [decision for decision in decisions if decision.allowed]
        if running:
            self._remember(allowed)
        return allowed, [decision for decision in decisions if not decision.allowed]

    def find_refused(self, items: Sequence[ToolFile]) -> list[TrustDecision]:
        """The decisions about files beside a tool that must not run. Records nothing."""
        return _select_refused(self._decide_all(items))

    def decide(self, item: ToolFile) -> TrustDecision:
        """Decide about one item. Does not ask the user, and records nothing."""
        return self._decide_all([item])[0]

    def trust_project(self, *, origin: str) -> None:
        """Trust all files of the project. `origin` says how the user decided."""
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
        """Does the user trust the whole project, and the project demands no signatures?"""
        return self.trusts_project and not self._needs_signatures()

    @property
    def trusts_project(self) -> bool:
        """Does the user trust the whole project, even if it demands signatures?"""
        return self.project is not None and not self._foreign and self.store.trusts(self.project)

    def rests_on(self, decision: TrustDecision) -> tuple[str, ...]:
        """The files that a decision depends on, missing ones too. It holds until one changes."""
        item, store = decision.item, self.store
        files = [item.path, f"{item.path}.sig", f"{store.root}/projects.json"]
        files.append(f"{self.project}/.ai/{_SETTINGS}")
        if decision.signature is not None:
            key = f"{decision.signature.fingerprint}.json"
            files += [
                f"{store.root}/{key}",
                f"{store.machine}/{key}",
                f"{store.root}/rollback.json",
            ]
        return tuple(files)

    # ── asking ───────────────────────────────────────────────────────────

    def _decide_after_asking(
        self, items: Sequence[ToolFile], ask: AskTrust
    ) -> tuple[TrustDecision, ...]:
        with self._question:  # threads that run items in parallel ask once
            decisions = self._decide_all(items)
            if self._was_refused or not _worth_asking(decisions) or self.project is None:
                return decisions
            needed = tuple(decision.item for decision in decisions if decision.askable)
            if not ask(TrustQuestion(self.project, needed, project_files(self.project))):
                self._was_refused = True
                return decisions
            self.trust_project(origin="asked")
        return self._decide_all(items)

    def _refusal(self, refused: Sequence[TrustDecision]) -> PlaitError:
        askable = [decision for decision in refused if decision.askable]
        problems = [
            Problem(
                f"'{decision.item.id}' may not run: {decision.why}",
                decision.item.path,
                decision.fix,
                code=decision.code,
            )
            for decision in refused
            if not decision.askable
        ]
        if askable and self.project is not None:
            problems.append(_not_trusted(self.project, askable))
        return TrustError.together(problems)

    # ── deciding ─────────────────────────────────────────────────────────

    def _decide_all(self, items: Sequence[ToolFile]) -> tuple[TrustDecision, ...]:
        trusted = self.project_trusted
        decisions = (
            replace(self._decide(item, trusted), project_trusted=trusted) for item in items
        )
        return (
            tuple(decisions) if self._lock is None else tuple(map(self._decide_by_lock, decisions))
        )

    def _decide(self, item: ToolFile, trusted: bool) -> TrustDecision:
        match item.space.name:
            case "system":
                return self._decide_system(item)
            case "user" if not self._foreign:
                return self._decide_own(item)
            case _:
                return self._decide_project_file(item, trusted)

    def _decide_system(self, item: ToolFile) -> TrustDecision:
        if manifest_digests(item.space.root).get(_relative(item)) == item.digest:
            return TrustDecision(item, True, "it is as it was installed", "manifest")
        return TrustDecision(
            item,
            False,
            "it is not the file that was installed",
            code="changed-system-file",
            fix="install Plait again; in a checkout of it: python -m plait.tools.trust.manifest",
        )

    def _decide_own(self, item: ToolFile) -> TrustDecision:
        decision = self._decide_signature(item)
        if decision.allowed or not decision.askable:
            return decision
        if (open_to_others := writable_by_others(item.path, item.space.root)) is not None:
            return TrustDecision(
                item,
                False,
                f"others can write {open_to_others}, and {decision.why}",
                code="unsafe-user-file",
                fix=f"look at it, then type: chmod go-w {shlex.quote(open_to_others)}",
            )
        why = f"it is your own file; {decision.why}"
        return TrustDecision(item, True, why, "user-space", signature=decision.signature)

    def _decide_project_file(self, item: ToolFile, trusted: bool) -> TrustDecision:
        decision = self._decide_signature(item)
        if decision.allowed or not decision.askable:
            return decision
        if trusted:
            why = f"you trusted this project; {decision.why}"
            return TrustDecision(item, True, why, "project", signature=decision.signature)
        if self._foreign:
            return replace(decision, askable=False, fix=foreign_fix(self._foreign))
        if self.project is not None and self._needs_signatures():
            why = f"{decision.why}, and this project demands signatures (trust: signed)"
            return replace(decision, askable=False, why=why)
        return replace(decision, askable=self.project is not None)

    def _decide_signature(self, item: ToolFile) -> TrustDecision:
        """Decide by the signature alone. `askable` if it neither allows nor forbids the item."""
        try:
            signature = self._signature(item)
        except TrustError as error:
            return _false_signature(item, error)
        if signature is None:
            return _doubtful(item, None, "unsigned", "it is not signed")
        if signature.content_only:
            why = "its signature (rye) covers only its content, not its id"
            return _doubtful(item, signature, "content-only", why)
        known = self.store.key_of_machine if self._foreign else self.store.key
        key = known(signature.fingerprint)
        if key is None:
            why = f"it is signed by {signature.fingerprint[:16]}…, a key you do not trust"
            return _doubtful(item, signature, "unknown-key", why)
        return self._decide_signed(item, signature, key)

    def _decide_signed(
        self, item: ToolFile, signature: Signature, key: TrustedKey
    ) -> TrustDecision:
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
        return self._decide_age(item, signature, key)

    def _decide_age(self, item: ToolFile, signature: Signature, key: TrustedKey) -> TrustDecision:
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

    def _decide_by_lock(self, decision: TrustDecision) -> TrustDecision:
        """A lockfile only refuses. It does not list system files, which the manifest covers."""
        item = decision.item
        if (
            self._lock is None
            or decision.by == "manifest"
            or (not decision.allowed and not decision.askable)
        ):
            return decision
        locked_digest = (
            self._lock.files.get(_relative(item)) if item.space.name == "project" else None
        )
        if locked_digest == item.digest:
            return decision
        why = (
            "it has changed since plait.lock was written"
            if locked_digest
            else "plait.lock does not list it"
        )
        code = "differs-from-lock" if locked_digest else "not-in-lock"
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
        # With the whole signature: one in a `.sig` file is not part of the digest.
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

    # ── versions that ran ────────────────────────────────────────────────

    def _remember(self, decisions: Iterable[TrustDecision]) -> None:
        ran = {
            self._version_key(decision.item): Version(
                decision.signature.time, decision.signature.hash
            )
            for decision in decisions
            if decision.by == "signature" and decision.signature is not None
        }
        downgraded = {
            self._version_key(v.item) for v in decisions if v.item.id in self._allow_downgrade
        }
        self.store.remember(ran, replacing=downgraded)

    def _version_key(self, item: ToolFile) -> str:
        """The key for the versions of one file, of one project or of the user."""
        space = f"project {self.project}" if item.space.name == "project" else item.space.label
        return version_key(space, item.kind, item.id, _extension(item))

    def _needs_signatures(self) -> bool:
        """Does the project demand signatures? It can demand more than the user, never less."""
        root = os.path.join(self.project or "/", ".ai")
        stamp = file_stamp(f"{root}/{_SETTINGS}")
        known = self._demand
        if known[0] != stamp:
            known = self._demand = (stamp, _demands_signatures(root))
        return known[1]


# ── the parts of a decision ──────────────────────────────────────────────

_SETTINGS: Final = "plait.yaml"
_KNOWN_SETTINGS: Final = ("trust", "keep_runs", "mcp_expose", "telemetry")


def _select_refused(decisions: Sequence[TrustDecision]) -> list[TrustDecision]:
    return [
        decision for decision in decisions if not decision.allowed and not _lacks_trust(decision)
    ]


def _lacks_trust(decision: TrustDecision) -> bool:
    """Does an item only lack trust, so that nothing forbids it?"""
    if decision.code == "changed-system-file":
        return _relative(decision.item) not in manifest_digests(decision.item.space.root)
    return decision.askable or decision.code in _LACKING_TRUST


_LACKING_TRUST: Final = (
    "unsigned", "content-only", "unknown-key", "out-of-scope", "key-ended", "unsafe-user-file"
)  # fmt: skip


def _worth_asking(decisions: Iterable[TrustDecision]) -> bool:
    """Is something refused that would be allowed if the user trusted the project?"""
    refused = [decision for decision in decisions if not decision.allowed]
    return bool(refused) and all(decision.askable for decision in refused)


def _not_trusted(project: str, refused: Sequence[TrustDecision]) -> Problem:
    names = [
        f"{decision.item.id}{_extension(decision.item)} ({decision.why})" for decision in refused
    ]
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
        # As `plait init` writes it. Loading YAML takes longer than a call.
        return plain == [b"trust: signed"]
    from plait.core.documents import Mapping as MappingNode
    from plait.core.documents import Scalar, parse

    path = os.path.join(root, _SETTINGS)
    node = parse(contents[0].decode("utf-8", "replace"), path)
    match node:
        case Scalar(None):
            return False
        case MappingNode():
            require_valid_settings(node)
            value = node.get("trust")
            return isinstance(value, Scalar) and value.value == "signed"
    raise DocumentError(
        "the settings of a project are a map", node.span, "write trust: signed", code="not-a-map"
    )


def require_valid_settings(node: MappingNode) -> None:
    """Raise DocumentError for every wrong setting: a typo must not mean less safety."""
    from plait.core.documents import Scalar, Sequence

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
        case value:
            fix = "write trust: signed"
            problems.append(
                Problem("'trust' is 'signed' or 'project'", value.span, fix, code="bad-trust")
            )
    match node.get("keep_runs"):
        case None | Scalar(None) | Scalar("all"):
            pass
        case Scalar(int(number)) if number > 0 and not isinstance(number, bool):
            pass
        case value:
            what, fix = "'keep_runs' is a whole number above 0, or all", "write keep_runs: all"
            problems.append(Problem(what, value.span, fix, code="bad-setting"))
    match node.get("mcp_expose"):
        case None | Scalar(None):
            pass
        case Sequence(items) if all(
            isinstance(one, Scalar) and isinstance(one.value, str) for one in items
        ):
            pass
        case value:
            what = "'mcp_expose' is a list of patterns for what plait mcp offers"
            fix = 'write mcp_expose: [core/file/*, "flow:*"]'
            problems.append(Problem(what, value.span, fix, code="bad-setting"))
    if (telemetry := node.get("telemetry")) is not None and not _is_telemetry(telemetry.data()):
        what = "'telemetry' is a map with 'endpoint', an http:// or https:// URL, and 'content'"
        fix = "write telemetry: {endpoint: http://localhost:4318}"
        problems.append(Problem(what, telemetry.span, fix, code="bad-setting"))
    if problems:
        raise DocumentError.together(problems)


def _is_telemetry(value: Json) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict) or value.keys() - {"endpoint", "content"}:
        return False
    endpoint = value.get("endpoint", "http://")
    is_url = isinstance(endpoint, str) and endpoint.startswith(("http://", "https://"))
    return is_url and isinstance(value.get("content", False), bool)


_MOST_SHOWN: Final = 10_000


@dataclass(frozen=True, slots=True)
class TrustQuestion:
    """The question to the user: may this project run its files?"""

    project: str
    items: tuple[ToolFile, ...]
    """The files that are about to run."""
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
    """The files that could run if the user trusted the project, for people to inspect."""
    found = [".env"] if os.path.lexists(os.path.join(project, ".env")) else []
    for folder, folders, files in os.walk(os.path.join(project, ".ai"), followlinks=False):
        inside = os.path.relpath(folder, project).replace(os.sep, "/")
        folders[:] = sorted(name for name in folders if f"{inside}/{name}" != ".ai/state")
        found += [f"{inside}/{name}" for name in sorted(files)]
        if len(found) > _MOST_SHOWN:
            break
    return tuple(sorted(found))
