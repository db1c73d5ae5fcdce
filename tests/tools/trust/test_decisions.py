"""What may run and what may not: stories of a project, a user space, keys, and those who tamper with them."""

from __future__ import annotations

import ast
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from plait.core.digests import sha256_hex
from plait.core.errors import DocumentError, InputError, PlaitError, TrustError
from plait.core.safe_files import read_below
from plait.core.values import Secret
from plait.tools.spaces import Space, SpaceName
from plait.tools.tool_file import Header, ToolFile
from plait.tools.trust import decisions as trust
from plait.tools.trust import manifest
from plait.tools.trust import signatures as signing
from plait.tools.trust.decisions import (
    AskTrust,
    Effort,
    KeyFolder,
    Lockfile,
    Trust,
    TrustedKey,
    TrustQuestion,
    TrustStore,
)
from plait.tools.trust.keys import Rotated, rotate
from plait.tools.trust.signatures import (
    PrivateKey,
    sign_bytes,
    sign_detached,
    sign_rotation,
    time_text,
)

KEY = PrivateKey(bytes(range(32)))
OTHER = PrivateKey(bytes(range(1, 33)))
THIRD = PrivateKey(bytes(range(2, 34)))
NOW = 1_774_842_431  # 2026-03-30T03:47:11Z
PROGRAM = b"#!/bin/sh\nls\n"


@dataclass
class World:
    """A project, a user space and an installation below one folder."""

    top: Path
    clock: float = NOW

    def __post_init__(self) -> None:
        for folder in (self.project / ".ai", self.user, self.system):
            folder.mkdir(parents=True, mode=0o755)

    @property
    def project(self) -> Path:
        return self.top / "project"

    @property
    def user(self) -> Path:
        return self.top / "home" / ".ai"

    @property
    def system(self) -> Path:
        return self.top / "installed"

    @property
    def machine(self) -> Path:
        return self.top / "etc"

    @property
    def store(self) -> TrustStore:
        return TrustStore(
            str(self.user), now=self.now, machine=str(self.machine), administrator=os.getuid()
        )

    def now(self) -> float:
        return self.clock

    def trust(
        self,
        *,
        ask: AskTrust | None = None,
        allow_downgrade: tuple[str, ...] = (),
        user: Path | None = None,
    ) -> Trust:
        return Trust(
            str(user or self.user),
            str(self.project),
            ask=ask,
            now=self.now,
            allow_downgrade=allow_downgrade,
            home=str(self.user.parent),
            machine=str(self.machine),
            administrator=os.getuid(),
        )

    def write(
        self,
        space: SpaceName,
        item_id: str,
        data: bytes,
        *,
        kind: str = "tool",
        extension: str = ".sh",
    ) -> ToolFile:
        """A file of a space, as it is read to be run."""
        root = {"project": self.project / ".ai", "user": self.user, "system": self.system}[space]
        path = root / "tools" / f"{item_id}{extension}"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        path.write_bytes(data)
        path.chmod(0o644)
        return ToolFile(
            kind, item_id, Space(space, str(root)), str(path), data, sha256_hex(data), Header()
        )

    def signed(
        self,
        item_id: str = "team/report",
        *,
        data: bytes = PROGRAM,
        key: PrivateKey = KEY,
        at: float = NOW,
        space: SpaceName = "project",
        signed_as: str | None = None,
    ) -> ToolFile:
        made = sign_bytes(
            data, kind="tool", item_id=signed_as or item_id, extension=".sh", key=key, now=at
        )
        return self.write(space, item_id, made)

    def trust_key(self, key: PrivateKey = KEY, **scope: object) -> TrustedKey:
        return self.store.add(key.public, owner="Ada", origin="by hand", **scope)  # type: ignore[arg-type]


def trusted_keys(world: World) -> tuple[TrustedKey, ...]:
    return world.store.keys()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def refused(trust: Trust, *items: ToolFile) -> TrustError:
    with pytest.raises(TrustError) as caught:
        trust.require(items)
    assert caught.value.exit_code == 3
    return caught.value


# ── what a project brings ────────────────────────────────────────────────


def test_nothing_of_a_project_runs_before_it_is_trusted(world: World) -> None:
    items = [world.write("project", "team/report", PROGRAM), world.signed("team/check", key=OTHER)]
    assert str(refused(world.trust(), *items)) == (
        f"{world.project}: this project brings 2 files that nobody you trust has signed: "
        f"team/report.sh (it is not signed), "
        f"team/check.sh (it is signed by {OTHER.fingerprint[:16]}…, a key you do not trust)\n"
        f"fix: look at what it brings, then type: plait trust {world.project}"
    )


def test_a_trusted_project_runs(world: World) -> None:
    items = [world.write("project", "team/report", PROGRAM), world.signed("team/check", key=OTHER)]
    world.trust().trust_project(origin="plait trust")
    decisions = world.trust().require(items)
    assert [decision.by for decision in decisions] == ["project", "project"]
    assert all(decision.project_trusted for decision in decisions)
    assert decisions[0].record() == {
        "item_id": "team/report",
        "space": "project",
        "allowed": True,
        "by": "project",
        "fingerprint": None,
        "owner": None,
        "signed_at": None,
        "why": "you trusted this project; it is not signed",
    }


def test_trust_in_a_project_ends_with_it(world: World) -> None:
    item = world.write("project", "team/report", PROGRAM)
    world.store.trust_project(str(world.project), origin="plait trust")
    assert [(known.root, known.origin) for known in world.store.projects()] == [
        (str(world.project), "plait trust")
    ]
    assert world.store.forget_project(str(world.project))
    assert not world.store.forget_project(str(world.project))
    assert refused(world.trust(), item).code == "not-trusted"


def test_another_folder_in_the_place_of_a_trusted_one_is_not_trusted(world: World) -> None:
    world.store.trust_project(str(world.project), origin="plait trust")
    world.project.rename(world.top / "moved")
    item = world.write("project", "team/report", PROGRAM)
    assert refused(world.trust(), item).code == "not-trusted"


def test_a_project_is_known_by_its_real_path(world: World) -> None:
    (world.top / "link").symlink_to(world.project)
    world.store.trust_project(str(world.top / "link"), origin="plait trust")
    assert (
        world.trust().require([world.write("project", "team/report", PROGRAM)])[0].by == "project"
    )


@pytest.mark.parametrize("name", ["missing", "file"])
def test_only_a_folder_can_be_trusted(world: World, name: str) -> None:
    (world.top / "file").touch()
    with pytest.raises(InputError, match="is not a folder"):
        world.store.trust_project(str(world.top / name), origin="plait trust")


def test_a_signature_by_a_trusted_key_is_enough(world: World) -> None:
    world.trust_key()
    (decision,) = world.trust().require([world.signed()])
    assert not decision.project_trusted
    assert decision.record() == {
        "item_id": "team/report",
        "space": "project",
        "allowed": True,
        "by": "signature",
        "fingerprint": KEY.fingerprint,
        "owner": "Ada",
        "signed_at": time_text(NOW),
        "why": "it is signed by Ada",
    }


def test_json_is_signed_beside_itself(world: World) -> None:
    world.trust_key()
    item = world.write("project", "team/data", b"{}", extension=".json")
    assert world.trust().decide(item).code == "unsigned"
    beside = sign_detached(
        item.data, kind="tool", item_id="team/data", extension=".json", key=KEY, now=NOW
    )
    Path(f"{item.path}.sig").write_bytes(beside)
    checker = world.trust()
    assert checker.decide(item).by == "signature"
    other = replace(item, data=b"[]", digest=sha256_hex(b"[]"))
    assert checker.decide(other).code == "changed"
    Path(f"{item.path}.sig").write_bytes(beside.replace(b":2026-03-30", b":2026-03-29"))
    assert checker.decide(item).code == "forged"


DEMANDS = [
    # .ai/plait.yaml             by signature alone?
    (None,                       False),
    ("",                         False),
    ("trust:\n",                 False),
    ("trust: project\n",         False),
    ("trust: signed\n",          True),
    ("# why\ntrust: 'signed'\n", True),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "signed_only"), DEMANDS)
def test_a_project_can_demand_signatures(
    world: World, settings: str | None, signed_only: bool
) -> None:
    world.trust_key()
    world.store.trust_project(str(world.project), origin="plait trust")
    if settings is not None:
        (world.project / ".ai" / "plait.yaml").write_text(settings)
    checker = world.trust(ask=lambda _: True)
    assert checker.require([world.signed("team/signed")])[0].project_trusted is not signed_only
    assert checker.decide(world.write("project", "team/plain", PROGRAM)).allowed is not signed_only
    if signed_only:
        error = refused(checker, world.write("project", "team/plain", PROGRAM))
        assert error.what == (
            "'team/plain' may not run: it is not signed, and this project demands signatures (trust: signed)"
        )


def test_a_demand_for_signatures_holds_as_soon_as_it_is_made(world: World) -> None:
    world.store.trust_project(str(world.project), origin="plait trust")
    checker = world.trust()
    plain = world.write("project", "team/plain", PROGRAM)
    assert checker.decide(plain).allowed
    (world.project / ".ai" / "plait.yaml").write_text("trust: signed\n")
    decision = checker.decide(plain)
    assert not decision.allowed
    assert f"{world.project}/.ai/plait.yaml" in checker.rests_on(decision)


def test_everything_that_a_decision_depends_on_is_named(world: World) -> None:
    item = world.signed()
    machine_key(world)
    places = world.trust().rests_on(world.trust().decide(item))
    assert set(places) == {
        item.path,
        f"{item.path}.sig",
        f"{world.project}/.ai/plait.yaml",
        f"{world.user}/trust/projects.json",
        f"{world.user}/trust/rollback.json",
        f"{world.user}/trust/{KEY.fingerprint}.json",
        f"{world.machine}/{KEY.fingerprint}.json",
    }


def test_a_project_cannot_demand_less(world: World) -> None:
    (world.project / ".ai" / "plait.yaml").write_text("trust: project\n")
    assert not world.trust().decide(world.write("project", "team/plain", PROGRAM)).allowed


def test_settings_that_are_not_understood_let_nothing_run(world: World) -> None:
    settings = world.project / ".ai" / "plait.yaml"
    world.store.trust_project(str(world.project), origin="plait trust")
    settings.write_text("turst: signed\nnoise: 1\ntrust: nothing\n")
    with pytest.raises(DocumentError) as caught:
        world.trust().decide(world.write("project", "team/plain", PROGRAM))
    assert str(caught.value) == (
        f"{settings}:1:1: 'turst' is no setting of a project\n"
        "1 | turst: signed\n  | ^^^^^\n"
        "fix: did you mean 'trust'?\n"
        f"{settings}:2:1: 'noise' is no setting of a project\n"
        "2 | noise: 1\n  | ^^^^^\n"
        "fix: known: trust, keep_runs, mcp_expose, telemetry\n"
        f"{settings}:3:8: 'trust' is 'signed' or 'project'\n"
        "3 | trust: nothing\n  |        ^^^^^^^\n"
        "fix: write trust: signed"
    )
    settings.write_text("[trust, signed]\n")
    with pytest.raises(DocumentError, match="the settings of a project are a map"):
        world.trust().decide(world.write("project", "team/plain", PROGRAM))


# ── a lock ───────────────────────────────────────────────────────────────


def test_a_lock_refuses_what_it_does_not_list_or_what_has_changed(world: World) -> None:
    world.store.trust_project(str(world.project), origin="plait trust")
    same, other = (world.write("project", f"team/{name}", PROGRAM) for name in ("same", "other"))
    lock = Lockfile.of(str(world.project))
    assert set(lock.files) == {"tools/team/same.sh", "tools/team/other.sh"}
    checker = world.trust().with_lockfile(lock)
    assert [decision.by for decision in checker.require([same, other])] == ["project", "project"]
    other = world.write("project", "team/other", b"#!/bin/sh\nrm\n")
    late = world.write("project", "team/late", PROGRAM)
    mine = world.write("user", "team/mine", PROGRAM)
    fix = "fix: look at it, then type: plait tools lock"
    assert str(refused(checker, same, other, late, mine)) == (
        f"{mine.path}: 'team/mine' may not run: plait.lock does not list it\n"
        "fix: copy it into the project, then type: plait tools lock\n"
        f"{late.path}: 'team/late' may not run: plait.lock does not list it\n{fix}\n"
        f"{other.path}: 'team/other' may not run: it has changed since plait.lock was written\n{fix}"
    )
    assert world.trust().decide(late).allowed  # who does not ask for the lock is not held to it
    assert list(lock.differences(Lockfile.of(str(world.project)))) == [
        ("tools/team/late.sh", "plait.lock does not list it"),
        ("tools/team/other.sh", "it has changed since plait.lock was written"),
    ]


def test_a_lock_lets_nothing_run(world: World) -> None:
    item = world.write("project", "team/report", PROGRAM)
    held = world.trust().with_lockfile(Lockfile.of(str(world.project)))
    assert refused(held, item).code == "not-trusted"


def test_a_lock_says_nothing_about_the_installation(world: World) -> None:
    item = world.write("system", "core/x", PROGRAM)
    manifest.write(str(world.system))
    assert world.trust().with_lockfile(Lockfile({})).decide(item).by == "manifest"


LOCKS = [
    "", "[]", "{}", '{"format": "plait.lock.v1"}', '{"format": "plait.lock.v2", "files": {}}',
    '{"format": "plait.lock.v1", "files": {"tools/x.py": "short"}}',
    '{"format": "plait.lock.v1", "files": {"tools/x.py": 1}}',
]  # fmt: skip


@pytest.mark.parametrize("text", LOCKS)
def test_what_is_no_lock_is_refused(world: World, text: str) -> None:
    (world.project / "plait.lock").write_text(text)
    with pytest.raises(TrustError, match="this is no lock"):
        Lockfile.read(str(world.project))


def test_a_lock_is_read_as_it_was_written_and_leaves_out_what_cannot_run(world: World) -> None:
    tools = world.project / ".ai" / "tools"
    world.write("project", "é/report", PROGRAM)
    for place in ("node_modules/x.js", "__pycache__/x.pyc", ".hidden/x.py"):
        (tools / place).parent.mkdir(parents=True)
        (tools / place).write_text("x")
    (tools / "link.sh").symlink_to("é/report.sh")
    (world.project / ".ai" / "config").mkdir()
    (world.project / ".ai" / "config" / "site.yaml").write_text("a: 1\n")
    lock = Lockfile.of(str(world.project))
    (world.project / "plait.lock").write_text(lock.text)
    assert Lockfile.read(str(world.project)) == lock
    assert list(lock.files) == ["tools/é/report.sh", "config/site.yaml"]


# ── a signature that is there must hold ──────────────────────────────────


def tampered(world: World) -> ToolFile:
    item = world.signed()
    return world.write("project", "team/report", item.data.replace(b"ls", b"rm"))


def two_lines(world: World) -> ToolFile:
    item = world.signed()
    line = item.data.split(b"\n")[1] + b"\n"
    return world.write("project", "team/report", item.data.replace(line, line + line))


FALSE: list[tuple[Callable[[World], ToolFile], str, str]] = [
    (tampered, "changed", "its bytes are not those that were signed"),
    (two_lines, "malformed-signature", "it has two signature lines"),
    (
        lambda world: world.signed(signed_as="team/other"),
        "forged",
        "its signature is not for the tool team/report.sh of this time: it was made for another one, or forged",
    ),
    (
        lambda world: replace(world.signed(), kind="directive"),
        "forged",
        "its signature is not for the directive team/report.sh of this time: it was made for another one, or forged",
    ),
    (
        lambda world: world.signed(at=NOW + 301),
        "from-the-future",
        "it was signed at a time that has not come",
    ),
]


@pytest.mark.parametrize(("make", "code", "why"), FALSE)
@pytest.mark.parametrize("trusted", [False, True])
def test_a_false_signature_is_refused_even_in_a_trusted_project(
    world: World, make: Callable[[World], ToolFile], code: str, why: str, trusted: bool
) -> None:
    world.trust_key()
    if trusted:
        world.store.trust_project(str(world.project), origin="plait trust")
    error = refused(world.trust(ask=lambda _: True), make(world))
    assert (error.code, error.what) == (code, f"'team/report' may not run: {why}")
    assert error.where == str(world.project / ".ai/tools/team/report.sh")


def test_a_clock_that_is_a_little_ahead_is_forgiven(world: World) -> None:
    world.trust_key()
    assert world.trust().decide(world.signed(at=NOW + 300)).allowed


def test_a_content_only_signature_counts_as_none(world: World) -> None:
    world.trust_key()
    item = world.signed()
    rye = world.write("project", "team/report", item.data.replace(b"plait:signed", b"rye:signed"))
    decision = world.trust().decide(rye)
    assert (decision.allowed, decision.code) == (False, "content-only")
    assert decision.why == "its signature (rye) covers only its content, not its id"
    world.store.trust_project(str(world.project), origin="plait trust")
    assert world.trust().decide(rye).by == "project"


def test_a_signature_is_for_the_bytes_that_run_whatever_the_file_says_now(world: World) -> None:
    world.trust_key()
    good = world.signed()
    evil = world.write("project", "team/report", good.data.replace(b"ls", b"rm"))
    assert world.trust().decide(good).allowed
    world.write("project", "team/report", good.data)
    assert not world.trust().decide(evil).allowed


def test_what_was_verified_is_what_runs_while_the_file_is_swapped(world: World) -> None:
    world.trust_key()
    good = world.signed()
    evil = good.data.replace(b"ls", b"rm")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for data in (evil, good.data):
                beside = Path(f"{good.path}.new")
                beside.write_bytes(data)
                beside.rename(good.path)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        checker = world.trust()
        seen = set()
        for _ in range(1000):
            contents = read_below(good.space.root, "tools/team/report.sh")
            assert contents is not None
            item = replace(good, data=contents[0], digest=sha256_hex(contents[0]))
            assert checker.decide(item).allowed is (item.data == good.data)
            seen.add(item.data)
    finally:
        stop.set()
        swapper.join(10)
    assert seen <= {good.data, evil}


def test_bytes_of_a_known_digest_are_not_hashed_again(world: World) -> None:
    world.trust_key()
    item = world.signed()
    checker = world.trust()
    assert checker.decide(item).allowed
    # Such an item cannot be read from a file: only its digest can tell that it was verified before.
    unread = replace(item, data=item.data + b"x")
    assert checker.decide(unread).allowed
    assert not world.trust().decide(unread).allowed
    assert not checker.decide(replace(unread, id="team/other")).allowed


# ── keys ─────────────────────────────────────────────────────────────────


SCOPES = [
    # spaces               ids                    item             space      runs
    (("project", "user"),  ("*",),                "team/report",   "project", True),
    (("project",),         ("team/*",),           "team/report",   "project", True),
    (("project",),         ("team/*",),           "team/a/b",      "project", True),
    (("project",),         ("team/*",),           "teams/report",  "project", False),
    (("project",),         ("a/*", "team/rep*"),  "team/report",   "project", True),
    (("user",),            ("*",),                "team/report",   "project", False),
    (("project",),         ("*",),                "core/shell",    "project", False),   # stands in for the system's own
    (("project",),         ("*",),                "rye/bash",      "project", False),
    (("project",),         ("core/*",),           "core/shell",    "project", True),
    (("project",),         ("core/*",),           "team/report",   "project", False),
]  # fmt: skip


@pytest.mark.parametrize(("spaces", "ids", "item_id", "space", "runs"), SCOPES)
def test_a_key_is_trusted_for_some_ids_in_some_spaces(
    world: World,
    spaces: tuple[str, ...],
    ids: tuple[str, ...],
    item_id: str,
    space: SpaceName,
    runs: bool,
) -> None:
    world.trust_key(spaces=spaces, ids=ids)
    decision = world.trust().decide(world.signed(item_id, space=space))
    assert decision.allowed is runs
    assert decision.code == ("" if runs else "out-of-scope")


def test_a_key_is_trusted_for_known_spaces_only(world: World) -> None:
    with pytest.raises(InputError, match="'project', 'user' or both"):
        world.trust_key(spaces=("system",))


def test_a_revoked_key_is_refused_whatever_else_is_trusted(world: World) -> None:
    world.trust_key()
    item = world.signed(at=NOW - 10_000)
    checker = world.trust()
    assert checker.decide(item).allowed
    world.store.revoke(KEY.fingerprint, "stolen")
    world.store.trust_project(str(world.project), origin="plait trust")
    assert refused(checker, item).what == (
        f"'team/report' may not run: it is signed by Ada's key {KEY.fingerprint[:16]}…, which was revoked"
    )
    with pytest.raises(TrustError, match="was revoked"):
        world.trust_key()
    with pytest.raises(TrustError, match="was revoked"):
        world.store.rotate(sign_rotation(KEY, OTHER, version=2, now=NOW))
    (key,) = world.store.keys()
    assert key.revoked == trust.Revoked(time_text(NOW), "stolen")


def test_a_key_that_ended_does_not_sign_any_more(world: World) -> None:
    world.trust_key(not_after=time_text(NOW - 100))
    assert world.trust().decide(world.signed("team/old", at=NOW - 100)).allowed
    assert world.trust().decide(world.signed("team/new", at=NOW - 99)).code == "key-ended"


def test_a_weak_key_is_not_added(world: World) -> None:
    with pytest.raises(InputError) as caught:
        world.store.add(bytes(32), owner="Eve", origin="by hand")
    assert caught.value.code == "weak-key"
    assert world.store.keys() == ()


def test_a_rotation_replaces_a_key(world: World) -> None:
    world.trust_key(ids=("team/*",))
    new = world.store.rotate(sign_rotation(KEY, OTHER, version=2, now=NOW))
    assert (new.owner, new.ids, new.version) == ("Ada", ("team/*",), 2)
    checker = world.trust()
    world.clock = NOW + 60
    assert checker.decide(world.signed("team/a", key=OTHER, at=NOW + 60)).allowed
    assert checker.decide(world.signed("team/b", key=KEY, at=NOW)).allowed
    assert checker.decide(world.signed("team/c", key=KEY, at=NOW + 1)).code == "key-ended"
    world.trust_key(ids=("team/*",))
    assert world.trust().decide(world.signed("team/c", key=KEY, at=NOW + 1)).code == "key-ended"


ROTATIONS = [
    # by whom        to       version  when        the message
    (KEY,   THIRD,   2,       NOW,     "the key was not replaced: the old key has ended, or was replaced already"),
    (KEY,   OTHER,   3,       NOW,     "the key was not replaced: the old key has ended, or was replaced already"),
    (OTHER, THIRD,   2,       NOW,     "the key was not replaced: its version 2 is not above 2"),
    (OTHER, KEY,     3,       NOW,     "the key was not replaced: the new key is trusted already"),
    (OTHER, THIRD,   3,       NOW+301, "the key was not replaced: it was signed at a time that has not come"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "version", "at", "message"), ROTATIONS)
def test_a_rotation_cannot_be_repeated_or_turned_back(
    world: World, old: PrivateKey, new: PrivateKey, version: int, at: float, message: str
) -> None:
    world.trust_key()
    world.store.rotate(sign_rotation(KEY, OTHER, version=2, now=NOW))
    before = world.store.keys()
    with pytest.raises(TrustError) as caught:
        world.store.rotate(sign_rotation(old, new, version=version, now=at))
    assert caught.value.what == message
    assert world.store.keys() == before


def test_an_unknown_key_cannot_be_rotated_or_revoked(world: World) -> None:
    with pytest.raises(InputError, match="is trusted here"):
        world.store.rotate(sign_rotation(KEY, OTHER, version=2, now=NOW))
    for fingerprint in (KEY.fingerprint, "../../secret"):
        with pytest.raises(InputError, match="is trusted here"):
            world.store.revoke(fingerprint, "stolen")


# ── rollback ─────────────────────────────────────────────────────────────


def test_an_older_version_is_refused_after_a_newer_one_ran(world: World) -> None:
    world.trust_key()
    old, new = world.signed(data=b"old\n", at=NOW - 60), world.signed(data=b"new\n")
    world.trust().require([old])
    world.trust().require([new])
    error = refused(world.trust(), old)
    assert str(error) == (
        f"{old.path}: 'team/report' may not run: a newer version of it ran here before\n"
        "fix: restore the newer one, or accept this one: plait trust reset team/report"
    )
    world.store.trust_project(str(world.project), origin="plait trust")
    assert refused(world.trust(), old).code == "rolled-back"


def may_run(world: World, item: ToolFile) -> bool:
    """Whether the item is allowed, by a decision of its own."""
    return [decision.item.id for decision in world.trust().require([item]) if decision.allowed] == [
        item.id
    ]


def test_deciding_alone_records_nothing(world: World) -> None:
    world.trust_key()
    world.trust().decide(world.signed(data=b"new\n"))
    assert may_run(world, world.signed(data=b"old\n", at=NOW - 60))


def test_other_bytes_of_the_same_time_are_refused(world: World) -> None:
    world.trust_key()
    world.trust().require([world.signed(data=b"one\n")])
    world.trust().require([world.signed(data=b"one\n")])
    assert refused(world.trust(), world.signed(data=b"two\n")).code == "rolled-back"


def test_versions_are_those_of_one_id_of_one_project(world: World) -> None:
    world.trust_key()
    assert may_run(world, world.signed())
    assert may_run(world, world.signed("team/other", at=NOW - 60))
    assert may_run(world, world.signed(at=NOW - 60, space="user"))
    world.project.rename(world.top / "first")
    assert may_run(world, world.signed("team/third", at=NOW - 60))


def test_a_downgrade_is_allowed_by_name_and_then_stands(world: World) -> None:
    world.trust_key()
    old, new = world.signed(data=b"old\n", at=NOW - 60), world.signed(data=b"new\n")
    world.trust().require([new])
    assert refused(world.trust(allow_downgrade=("team/other",)), old).code == "rolled-back"
    world.trust(allow_downgrade=("team/report",)).require([old])
    world.trust().require([old])


def test_versions_of_an_id_can_be_forgotten(world: World) -> None:
    world.trust_key()
    world.trust().require([world.signed(), world.signed("team/other")])
    assert world.store.forget_versions("team/report") == 1
    assert world.store.forget_versions("team/report") == 0
    world.trust().require([world.signed(at=NOW - 60)])
    assert refused(world.trust(), world.signed("team/other", at=NOW - 60)).code == "rolled-back"


def test_versions_are_forgotten_whatever_the_project_is_called(tmp_path: Path) -> None:
    world = World(tmp_path / "two\nlines")
    world.trust_key()
    world.trust().require([world.signed()])
    assert world.store.forget_versions("team/report") == 1


def test_nothing_is_recorded_of_items_that_are_refused(world: World) -> None:
    world.trust_key()
    refused(world.trust(), world.signed(), world.write("project", "team/plain", PROGRAM))
    assert may_run(world, world.signed(at=NOW - 60))


# ── asking ───────────────────────────────────────────────────────────────


class Person:
    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.asked: list[TrustQuestion] = []

    def __call__(self, question: TrustQuestion) -> bool:
        self.asked.append(question)
        return self.answer


def test_a_person_is_asked_once_and_the_answer_is_recorded(world: World) -> None:
    items = [world.write("project", f"team/{name}", PROGRAM) for name in ("a", "b", "c")]
    (world.project / ".env").write_text("KEY=value\n")
    (world.project / ".ai" / "config").mkdir()
    (world.project / ".ai" / "config" / "hooks.yaml").write_text("{}\n")
    (world.project / ".ai" / "state").mkdir()
    (world.project / ".ai" / "state" / "journal").write_text("")
    person = Person(True)
    checker = world.trust(ask=person)
    assert [decision.by for decision in checker.require(items[:2])] == ["project", "project"]
    checker.require(items)
    world.trust(ask=person).require(items)
    (question,) = person.asked
    assert str(question) == (
        f"this project brings 3 tools, 1 file in .ai/config, .env, signed by nobody you trust: {world.project}"
    )
    assert [item.id for item in question.items] == ["team/a", "team/b"]
    assert question.brings == (
        ".ai/config/hooks.yaml", ".ai/tools/team/a.sh", ".ai/tools/team/b.sh", ".ai/tools/team/c.sh", ".env",
    )  # fmt: skip
    assert [known.origin for known in world.store.projects()] == ["asked"]


def test_a_no_is_not_asked_again(world: World) -> None:
    item = world.write("project", "team/a", PROGRAM)
    person = Person(False)
    checker = world.trust(ask=person)
    for _ in range(2):
        assert refused(checker, item).code == "not-trusted"
    assert len(person.asked) == 1
    assert world.store.projects() == ()


def test_no_question_is_asked_about_items_that_are_trusted_or_cannot_be(world: World) -> None:
    world.trust_key()
    person = Person(True)
    checker = world.trust(ask=person)
    checker.require([world.signed("team/signed")])
    error = refused(checker, tampered(world), world.write("project", "team/plain", PROGRAM))
    assert sorted(problem.code or "" for problem in error.problems) == ["changed", "not-trusted"]
    assert person.asked == []


def test_parallel_items_put_one_question(world: World) -> None:
    items = [world.write("project", f"team/t{number}", PROGRAM) for number in range(8)]
    together = threading.Barrier(8)
    person = Person(True)
    checker = world.trust(ask=person)
    allowed: list[bool] = []

    def run(item: ToolFile) -> None:
        together.wait(10)
        allowed.append(checker.require([item])[0].allowed)

    threads = [threading.Thread(target=run, args=(item,)) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert allowed == [True] * 8
    assert len(person.asked) == 1


# ── a repository cannot bring its own trust ──────────────────────────────


def test_trust_files_of_a_repository_are_ignored(world: World) -> None:
    item = world.signed()
    brought = TrustStore(str(world.project / ".ai"), now=world.now)
    brought.add(KEY.public, owner="Eve", origin="repository")
    brought.trust_project(str(world.project), origin="repository")
    keys = world.project / ".ai" / "config" / "keys" / "trusted"
    keys.mkdir(parents=True)
    (keys / f"{KEY.fingerprint[:16]}.toml").write_text(f'fingerprint = "{KEY.fingerprint[:16]}"\n')
    assert world.trust().decide(item).code == "unknown-key"
    assert refused(world.trust(), item).code == "not-trusted"


def test_a_user_space_inside_the_project_is_not_believed(world: World) -> None:
    inside = world.project / "vendor" / ".ai"
    store = TrustStore(str(inside), now=world.now)
    store.add(KEY.public, owner="Eve", origin="repository")
    store.trust_project(str(world.project), origin="repository")
    own = replace(
        world.write("project", "team/own", PROGRAM), space=Space("user", str(world.project / ".ai"))
    )
    checker = world.trust(user=inside, ask=lambda _: True)
    assert not checker.project_trusted
    for item in (world.signed(), own):
        assert refused(checker, item).fix == (
            "your user space lies inside this project: let USER_SPACE name a folder outside it"
        )
    with pytest.raises(TrustError, match="cannot vouch for itself"):
        checker.trust_project(origin="plait trust")


def test_a_home_that_is_itself_a_project_is_believed(world: World) -> None:
    home = str(world.user.parent)
    checker = Trust(str(world.user), home, now=world.now, home=home)
    checker.trust_project(origin="plait trust")
    assert checker.decide(world.write("user", "team/own", PROGRAM)).by == "user-space"
    assert checker.project_trusted


def test_no_environment_variable_says_that_something_is_trusted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = "TRUST ALLOW_UNSIGNED DEV_MODE DEBUG UNSAFE INSECURE NO_VERIFY TRUST_PROJECT SIGNING_KEY_DIR"
    for name in names.split():
        for prefix in ("PLAIT_", "RYE_", ""):
            monkeypatch.setenv(prefix + name, "1")
    monkeypatch.setenv("HOME", str(world.project))
    monkeypatch.setenv("USER_SPACE", str(world.project))
    items = [world.write("project", "team/plain", PROGRAM), world.signed("team/signed")]
    assert refused(world.trust(), *items).code == "not-trusted"


@pytest.mark.parametrize("module", [trust, signing, manifest])
def test_the_environment_is_not_even_read(module: object) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))  # type: ignore[attr-defined]
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert (
        names & {"environ", "environb", "getenv", "getenvb", "expanduser", "expandvars", "Path"}
        == set()
    )


# ── your own files ───────────────────────────────────────────────────────


def test_your_own_files_run(world: World) -> None:
    decision = world.trust().decide(world.write("user", "team/own", PROGRAM))
    assert (decision.by, decision.why) == ("user-space", "it is your own file; it is not signed")


@pytest.mark.parametrize("place", ["tools/team/own.sh", "tools/team", "tools", "."])
@pytest.mark.parametrize("right", [0o020, 0o002])
def test_a_file_of_yours_that_others_can_write_is_refused(
    world: World, place: str, right: int
) -> None:
    item = world.write("user", "team/own", PROGRAM)
    path = Path(os.path.normpath(world.user / place))
    path.chmod(stat.S_IMODE(path.stat().st_mode) | right)
    error = refused(world.trust(ask=lambda _: True), item)
    assert error.what == f"'team/own' may not run: others can write {path}, and it is not signed"
    assert error.fix == f"look at it, then type: chmod go-w {path}"
    world.trust_key()
    assert world.trust().decide(world.signed("team/own", space="user")).by == "signature"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else_is_not_yours(world: World) -> None:
    item = world.write("user", "team/own", PROGRAM)
    os.chown(item.path, 12345, 12345)
    assert refused(world.trust(), item).code == "unsafe-user-file"


def test_a_false_signature_is_refused_in_the_user_space_too(world: World) -> None:
    world.trust_key()
    item = world.signed(space="user")
    assert world.trust().decide(item).by == "signature"
    changed = world.write("user", "team/report", item.data + b"rm\n")
    assert world.trust().decide(changed).code == "changed"


def test_without_a_project_your_own_files_run_and_others_do_not(world: World) -> None:
    checker = Trust(str(world.user), None, ask=lambda _: True, now=world.now)
    assert checker.require([world.write("user", "team/own", PROGRAM)])[0].by == "user-space"
    assert refused(checker, world.write("project", "team/plain", PROGRAM)).code == "unsigned"


# ── the installation ─────────────────────────────────────────────────────


def test_the_manifest_of_this_package_is_up_to_date() -> None:
    assert manifest.check() == []  # otherwise: python -m plait.tools.trust.manifest


def test_a_system_file_runs_as_it_was_installed_and_not_otherwise(world: World) -> None:
    item = world.write("system", "core/list", PROGRAM)
    assert world.trust().decide(item).code == "changed-system-file"
    manifest.write(str(world.system))
    checker = world.trust()
    assert checker.require([item])[0].by == "manifest"
    changed = world.write("system", "core/list", PROGRAM + b"rm\n")
    moved = replace(item, path=str(world.system / "tools" / "core" / "other.sh"))
    for wrong in (changed, moved):
        assert str(refused(checker, wrong)) == (
            f"{wrong.path}: 'core/list' may not run: it is not the file that was installed\n"
            "fix: install Plait again; in a checkout of it: python -m plait.tools.trust.manifest"
        )


def test_a_trusted_project_does_not_vouch_for_system_files(world: World) -> None:
    world.trust().trust_project(origin="plait trust")
    assert (
        refused(world.trust(), world.write("system", "core/list", PROGRAM)).code
        == "changed-system-file"
    )


def test_a_check_says_what_has_changed(world: World) -> None:
    for name in ("same", "changed", "gone"):
        world.write("system", name, PROGRAM)
    manifest.write(str(world.system))
    assert manifest.check(str(world.system)) == []
    world.write("system", "changed", b"other\n")
    world.write("system", "new", PROGRAM)
    (world.system / "tools" / "gone.sh").unlink()
    (world.system / "tools" / "__pycache__").mkdir()
    (world.system / "tools" / "__pycache__" / "x.pyc").touch()
    assert manifest.check(str(world.system)) == [
        "tools/changed.sh has changed", "tools/gone.sh is missing", "tools/new.sh is not listed",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["[]", '{"files": 1}', '{"files": {"a": 1}}'])
def test_a_damaged_manifest_lets_nothing_run(world: World, text: str) -> None:
    item = world.write("system", "core/list", PROGRAM)
    (world.system / "manifest.json").write_text(text)
    with pytest.raises(TrustError) as caught:
        world.trust().decide(item)
    assert caught.value.code == "damaged-manifest"


# ── the store ────────────────────────────────────────────────────────────


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_the_store_is_its_owner_s_alone(world: World) -> None:
    world.trust_key()
    world.trust().trust_project(origin="plait trust")
    world.trust().require([world.signed()])
    folder = world.user / "trust"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert modes(folder) == {0o600}
    assert sorted(os.listdir(folder)) == sorted(
        ["lock", "projects.json", "rollback.json", f"{KEY.fingerprint}.json"]
    )


@pytest.mark.parametrize("name", ["projects.json", "."])
@pytest.mark.parametrize("right", [0o020, 0o002])
def test_a_store_that_others_can_write_is_not_believed(world: World, name: str, right: int) -> None:
    world.trust().trust_project(origin="plait trust")
    path = Path(os.path.normpath(world.user / "trust" / name))
    path.chmod(stat.S_IMODE(path.stat().st_mode) | right)
    assert (
        refused(world.trust(), world.write("project", "team/plain", PROGRAM)).code == "unsafe-store"
    )


def test_a_link_in_the_store_is_not_followed(world: World) -> None:
    world.trust().trust_project(origin="plait trust")
    path = world.user / "trust" / "projects.json"
    path.rename(world.top / "elsewhere.json")
    path.symlink_to(world.top / "elsewhere.json")
    assert (
        refused(world.trust(), world.write("project", "team/plain", PROGRAM)).code
        == "unusable-store"
    )


def test_a_user_space_that_is_a_file_trusts_nothing_and_keeps_nothing(world: World) -> None:
    world.user.rmdir()
    world.user.write_text("")
    item = world.write("project", "team/plain", PROGRAM)
    assert refused(world.trust(), item).code == "not-trusted"
    assert world.store.keys() == ()
    assert KeyFolder(str(world.user)).names() == ()
    for act in (world.trust_key, KeyFolder(str(world.user)).create):
        with pytest.raises(TrustError) as caught:
            act()
        assert caught.value.code == "unusable-store"


DAMAGED = ["", "{", "[]", "1", '{"/x": 1}', '{"/x": {"inode": "1", "trusted": "", "origin": ""}}']


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_store_lets_nothing_run(world: World, text: str) -> None:
    world.trust().trust_project(origin="plait trust")
    path = world.user / "trust" / "projects.json"
    path.write_text(text)
    error = refused(world.trust(), world.write("project", "team/plain", PROGRAM))
    assert (error.code, error.what) == ("damaged-store", f"{path} is damaged")


@pytest.mark.parametrize(
    "change",
    [{"public_key": OTHER.public.hex()}, {"public_key": "x"}, {"ids": [1]}, {"revoked": True}],
)
def test_a_key_file_holds_the_key_of_its_name(world: World, change: dict[str, object]) -> None:
    world.trust_key()
    path = world.user / "trust" / f"{KEY.fingerprint}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert refused(world.trust(), world.signed()).code == "damaged-store"


def test_what_a_killed_process_left_behind_does_not_matter(world: World) -> None:
    world.trust_key()
    left = world.user / "trust" / f".new-{os.getpid()}-{threading.get_ident()}"
    left.write_text("half of a fi")
    world.trust().require([world.signed()])
    assert not left.exists()


WRITER = """
import sys
from plait.tools.trust.decisions import TrustStore, Version
user, name, project = sys.argv[1:]
store = TrustStore(user)
for number in range(10):
    store.remember({f"user\\ntool\\n{name}{number}\\n.sh": Version("2026-01-01T00:00:00Z", "0" * 64)})
    store.remember({"user\\ntool\\nshared\\n.sh": Version(f"2026-01-01T00:00:{number:02}Z", "0" * 64)})
store.trust_project(project, origin=name)
"""


def test_processes_that_write_at_the_same_time_lose_nothing(world: World) -> None:
    folders = [world.top / f"project{number}" for number in range(4)]
    for folder in folders:
        folder.mkdir()
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(world.user), folder.name, str(folder)])
        for folder in folders
    ]
    assert [writer.wait(50) for writer in writers] == [0, 0, 0, 0]
    assert {known.root for known in world.store.projects()} == {str(folder) for folder in folders}
    recorded = json.loads((world.user / "trust" / "rollback.json").read_text())
    assert len(recorded) == 4 * 10 + 1
    assert recorded["user\ntool\nshared\n.sh"]["time"] == "2026-01-01T00:00:09Z"


def test_a_change_by_another_process_is_seen_at_once(world: World) -> None:
    item = world.write("project", "team/plain", PROGRAM)
    checker = world.trust()
    assert not checker.decide(item).allowed
    world.store.trust_project(str(world.project), origin="plait trust")
    assert checker.decide(item).allowed
    world.store.forget_project(str(world.project))
    assert not checker.decide(item).allowed


# ── private keys ─────────────────────────────────────────────────────────

CHEAP = Effort(operations=1, memory=8192)


def test_a_key_is_made_for_its_owner_alone(world: World) -> None:
    folder = KeyFolder(str(world.user))
    assert folder.names() == ()
    key = folder.create()
    assert stat.S_IMODE((world.user / "keys").stat().st_mode) == 0o700
    assert modes(world.user / "keys") == {0o600}
    assert folder.open() == key
    assert folder.names() == ("signing",)


def test_a_key_is_never_written_over(world: World) -> None:
    folder = KeyFolder(str(world.user))
    key = folder.create()
    with pytest.raises(InputError) as caught:
        folder.create()
    assert caught.value.what == "there is a key 'signing' already"
    assert folder.open() == key


def test_a_passphrase_closes_a_key(world: World) -> None:
    folder = KeyFolder(str(world.user))
    key = folder.create(passphrase=Secret("correct horse"), effort=CHEAP)
    assert key.seed.hex() not in (world.user / "keys" / "signing.key").read_text()
    assert folder.open(passphrase=Secret("correct horse")) == key
    for wrong, message in (
        (Secret("wrong"), "that is not the passphrase of this key"),
        (None, "this key needs its passphrase"),
    ):
        with pytest.raises(InputError) as caught:
            folder.open(passphrase=wrong)
        assert caught.value.what == message


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_key_that_others_can_read_is_refused(world: World, mode: int) -> None:
    folder = KeyFolder(str(world.user))
    folder.create()
    (world.user / "keys" / "signing.key").chmod(mode)
    with pytest.raises(TrustError) as caught:
        folder.open()
    assert caught.value.code == "unsafe-store"


def elsewhere(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to(path.with_name("other"))


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def damaged(path: Path) -> None:
    path.write_text('{"format": "plait.key.v1", "seed": "00"}')


def of_another(path: Path) -> None:
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "public": OTHER.public.hex()}))


@pytest.mark.parametrize("spoil", [elsewhere, as_pipe, damaged, of_another])
def test_what_is_not_a_plain_key_file_is_refused(
    world: World, spoil: Callable[[Path], None]
) -> None:
    folder = KeyFolder(str(world.user))
    folder.create()
    spoil(world.user / "keys" / "signing.key")
    with pytest.raises(TrustError):
        folder.open()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_key_of_somebody_else_is_refused(world: World) -> None:
    folder = KeyFolder(str(world.user))
    folder.create()
    os.chown(world.user / "keys" / "signing.key", 12345, 12345)
    with pytest.raises(TrustError) as caught:
        folder.open()
    assert caught.value.code == "unsafe-store"


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 65])
def test_a_key_has_a_plain_name(world: World, name: str) -> None:
    folder = KeyFolder(str(world.user))
    for use in (folder.create, folder.open):
        with pytest.raises(InputError) as caught:
            use(name)
        assert caught.value.code == "bad-name"


def test_a_missing_key_says_how_to_make_one(world: World) -> None:
    with pytest.raises(PlaitError) as caught:
        KeyFolder(str(world.user)).open()
    path = world.user / "keys" / "signing.key"
    assert str(caught.value) == f"{path}: there is no key 'signing'\nfix: make one: plait keys new"


# ── a key in place of another, interrupted anywhere ──────────────────────


class Killed(Exception):
    """Stands for a process that ends between two steps."""


STEPS = ["begun", "trusted", "kept", "exchanged", "ended"]


def rotated(world: World, *, until: str | None = None) -> Rotated:
    def reached(step: str) -> None:
        if step == until:
            raise Killed

    keys = KeyFolder(str(world.user))
    return rotate(
        keys,
        world.store,
        "signing",
        opened=keys.open,
        passphrase=lambda: None,
        origin="your own key",
        now=world.now,
        reached=reached,
    )


def own_key(world: World) -> PrivateKey:
    key = KeyFolder(str(world.user)).create()
    world.store.add(key.public, owner="Ada", origin="your own key")
    return key


@pytest.mark.parametrize("step", STEPS)
def test_a_rotation_that_was_interrupted_leaves_a_key_that_signs_and_is_ended_by_the_next(
    world: World, step: str
) -> None:
    keys, old = KeyFolder(str(world.user)), own_key(world)
    before = world.signed("team/before", key=old, at=NOW - 10)
    with pytest.raises(Killed):
        rotated(world, until=step)
    standing = keys.open()
    meanwhile = world.signed("team/meanwhile", key=standing, at=NOW)
    assert [world.trust().decide(item).by for item in (before, meanwhile)] == [
        "signature",
        "signature",
    ]

    world.clock += 60
    done = rotated(world)
    keys.end_rotation("signing")
    new = keys.open()
    assert (new.fingerprint, keys.open(done.kept)) == (done.fingerprint, old)
    assert {
        key.fingerprint: (key.version, key.not_after, key.origin) for key in trusted_keys(world)
    } == {
        old.fingerprint: (2, time_text(NOW), "your own key"),
        new.fingerprint: (2, None, "your own key"),
    }
    assert world.trust().decide(before).by == "signature"
    assert (
        world.trust().decide(world.signed("team/after", key=new, at=world.clock)).by == "signature"
    )
    assert (
        world.trust().decide(world.signed("team/late", key=old, at=world.clock)).code == "key-ended"
    )
    assert sorted(os.listdir(keys.root)) == sorted(["lock", "signing.key", f"{done.kept}.key"])


@pytest.mark.parametrize("step", STEPS)
def test_the_statement_of_an_interrupted_rotation_is_not_lost(
    world: World, tmp_path: Path, step: str
) -> None:
    old = own_key(world)
    other = TrustStore(str(tmp_path / "bob"), now=world.now)
    other.add(old.public, owner="Ada", origin="by hand")
    with pytest.raises(Killed):
        rotated(world, until=step)
    statement = rotated(world).statement
    assert rotated(world).statement == statement  # until it was handed out
    assert other.rotate(statement).fingerprint == KeyFolder(str(world.user)).open().fingerprint
    KeyFolder(str(world.user)).end_rotation("signing")
    assert rotated(world).statement != statement  # the next one


def test_a_statement_whose_reading_was_interrupted_is_read_again(world: World) -> None:
    world.trust_key()
    statement = sign_rotation(KEY, OTHER, version=2, now=NOW)

    def killed() -> None:
        raise Killed

    with pytest.raises(Killed):
        world.store.rotate(statement, meanwhile=killed)
    assert [key.not_after for key in trusted_keys(world)] == [None, None]
    assert world.store.rotate(statement).fingerprint == OTHER.fingerprint
    ended = world.store.key(KEY.fingerprint)
    assert ended is not None
    assert (ended.version, ended.not_after) == (2, time_text(NOW))


def test_a_successor_that_was_tampered_with_is_refused(world: World) -> None:
    own_key(world)
    with pytest.raises(Killed):
        rotated(world, until="begun")
    waiting = world.user / "keys" / "signing.next"
    waiting.write_text(waiting.read_text().replace('"rotation"', '"notation"'))
    with pytest.raises(TrustError) as caught:
        rotated(world)
    assert caught.value.code == "damaged-store"


# ── keys of the machine ──────────────────────────────────────────────────


def machine_key(world: World, key: PrivateKey = KEY, **fields: object) -> Path:
    """A key that the administrator trusts for all; the record is the one that 'plait keys show' prints."""
    shown = TrustStore(str(world.top / "administrator"), now=world.now).add(
        key.public, owner="IT", origin="by hand"
    )
    path = world.machine / f"{key.fingerprint}.json"
    path.parent.mkdir(exist_ok=True, mode=0o755)
    path.write_text(json.dumps({**shown.record(), **fields}))
    path.chmod(0o644)
    return path


def test_a_key_of_the_machine_is_trusted_and_never_written(world: World) -> None:
    path = machine_key(world)
    before = path.read_bytes()
    decision = world.trust().decide(world.signed())
    assert (decision.by, decision.owner) == ("signature", "IT")
    assert [key.fingerprint for key in trusted_keys(world)] == [KEY.fingerprint]
    world.store.revoke(KEY.fingerprint, "lost")
    assert world.trust().decide(world.signed()).code == "revoked-key"
    assert path.read_bytes() == before


def test_a_key_revoked_by_the_machine_is_not_trusted(world: World) -> None:
    world.trust_key()
    assert world.trust().decide(world.signed()).by == "signature"
    machine_key(world, revoked={"time": time_text(NOW), "reason": "lost"})
    assert world.trust().decide(world.signed()).code == "revoked-key"


def test_what_the_machine_ends_has_ended(world: World) -> None:
    world.trust_key()
    machine_key(world, not_after=time_text(NOW - 1))
    assert world.trust().decide(world.signed()).code == "key-ended"


def test_a_user_space_around_the_project_is_believed_only_if_it_is_the_home_of_the_account(
    world: World,
) -> None:
    around = world.top / ".ai"
    TrustStore(str(around), now=world.now).trust_project(str(world.project), origin="brought along")
    item = world.write("project", "team/report", PROGRAM)
    checker = world.trust(user=around, ask=lambda _: True)
    assert not checker.project_trusted
    error = refused(checker, item)
    assert error.fix == (
        "your user space lies around this project: let USER_SPACE name your home, or a folder apart from it"
    )
    with pytest.raises(TrustError, match="lies around this project, which cannot vouch for itself"):
        checker.trust_project(origin="test")
    at_home = Trust(
        str(around), str(world.project), now=world.now, home=str(world.top), machine="/nowhere"
    )
    assert at_home.project_trusted


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_store_that_others_can_even_enter_was_not_made_by_us(world: World, mode: int) -> None:
    world.trust().trust_project(origin="test")
    (world.user / "trust").chmod(mode)
    with pytest.raises(TrustError) as caught:
        _ = world.trust().project_trusted
    assert caught.value.code == "unsafe-store"
    (world.user / "trust").chmod(0o700)
    assert world.trust().project_trusted


def test_what_is_only_looked_at_has_not_run_here(world: World) -> None:
    world.trust_key()
    newer, older = world.signed(at=NOW), world.signed(at=NOW - 3600, data=PROGRAM + b"#\n")
    world.trust().require([newer], running=False)
    world.trust().require([older])
    world.trust().require([newer])
    assert refused(world.trust(), older).code == "rolled-back"


def test_a_user_space_inside_the_project_does_not_take_the_keys_of_the_machine_away(
    world: World,
) -> None:
    machine_key(world)
    inside = world.project / "home" / ".ai"
    inside.mkdir(parents=True)
    assert world.trust(user=inside).decide(world.signed()).by == "signature"


UNSAFE: list[Callable[[Path], object]] = [
    lambda path: path.chmod(0o664),
    lambda path: path.chmod(0o646),
    lambda path: path.parent.chmod(0o775),
    lambda path: path.parent.chmod(0o757),
]


@pytest.mark.parametrize("spoil", UNSAFE)
def test_a_store_of_the_machine_that_others_can_write_is_refused(
    world: World, spoil: Callable[[Path], object]
) -> None:
    path = machine_key(world)
    spoil(path)
    with pytest.raises(
        TrustError, match="could be changed by others than the administrator"
    ) as caught:
        world.trust().decide(world.signed())
    assert caught.value.code == "unsafe-store"


def test_a_store_of_the_machine_belongs_to_its_administrator(world: World) -> None:
    machine_key(world)
    store = TrustStore(str(world.user), machine=str(world.machine), administrator=os.getuid() + 1)
    with pytest.raises(TrustError, match="could be changed by others than the administrator"):
        store.key(KEY.fingerprint)


def test_a_link_in_the_store_of_the_machine_is_not_followed(world: World) -> None:
    path = machine_key(world)
    path.rename(world.top / "elsewhere.json")
    path.symlink_to(world.top / "elsewhere.json")
    with pytest.raises(TrustError):
        world.trust().decide(world.signed())
