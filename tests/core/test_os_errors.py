"""Limits of the machine are errors that say what to do; none of them is the outcome of a step, or a bug."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from plait.adapters.local import LocalBackend
from plait.adapters.process import guardian_client, guardian_process
from plait.app.runs import Options, resume_flow, run_flow
from plait.cli import main, run_to_exit_code
from plait.core.errors import InputError, MachineError
from plait.core.os_errors import machine_error, map_machine_errors, raise_machine_limit, start_error
from plait.engine.backend import WorkItem
from plait.engine.outcome import Succeeded
from runs.stories import Place
from runs.test_guardian_lost import FLOW as FLOW_OF_ITEMS
from runs.test_guardian_lost import STEPS_IN_PROGRESS, place, prepare_step
from share import WHOLE


def refused(number: int, file: str | None = None) -> OSError:
    return (
        OSError(number, os.strerror(number), file) if file else OSError(number, os.strerror(number))
    )


__all__ = ["place"]  # a fixture

NO_THREAD = RuntimeError("can't start new thread")
NO_LIBRARY = ImportError("libx.so: failed to map segment from shared object")
NO_TEMPORARY = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

LIMITS = [
    # what is raised                                   code
    (refused(errno.EMFILE, "/a"),                  "open-files"),
    (refused(errno.ENFILE),                        "open-files"),
    (refused(errno.ENOMEM),                        "memory"),
    (MemoryError(),                                    "memory"),
    (NO_LIBRARY,                                       "memory"),
    (ImportError("x: cannot open: Too many open files"), "open-files"),
    (NO_THREAD,                                        "processes"),
    (refused(errno.ENOSPC),                        "disk-full"),
    (refused(errno.EDQUOT),                        "disk-full"),
    (refused(errno.EFBIG),                         "file-size"),
    (refused(errno.EROFS, "/a"),                   "read-only"),
    (refused(errno.EACCES, "/a"),                  "permission"),
    (refused(errno.EPERM),                         "permission"),
    (refused(errno.ENAMETOOLONG, "/a"),            "name-too-long"),
    (refused(errno.ELOOP, "/a"),                   "links"),
    (refused(errno.EIO),                           "input-output"),
    (NO_TEMPORARY,                                     "no-temporary-folder"),
]  # fmt: skip
OURS = [
    refused(errno.ENOENT, "/a"),
    refused(errno.EBADF),
    refused(errno.EAGAIN),
    RuntimeError("dictionary changed size during iteration"),
    ImportError("no such module"),
    KeyError("x"),
]


@pytest.mark.parametrize(("raised", "code"), LIMITS)
def test_a_limit_of_the_machine_is_an_error_with_what_to_do_and_a_command_ends_with_1(
    raised: Exception, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise raised

    limit = machine_error(raised, run="abc")
    assert limit is not None
    assert (limit.code, limit.exit_code) == (code, 1)
    assert str(limit.fix).endswith("; then: plait resume abc")
    assert run_to_exit_code(fail) == 1
    printed = capsys.readouterr().err
    assert limit.what in printed or os.strerror(getattr(raised, "errno", 0)) in printed
    assert "bug" not in printed


@pytest.mark.parametrize("raised", OURS)
def test_what_is_none_stays_what_it_is(raised: Exception) -> None:
    assert machine_error(raised) is None
    with pytest.raises(type(raised)), map_machine_errors():
        raise raised


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EAGAIN, "processes"),
        (errno.EMFILE, "open-files"),
        (errno.ENOMEM, "memory"),
        (errno.EACCES, None),
        (errno.ENOENT, None),
        (errno.ELOOP, None),
    ],
)
def test_a_process_that_cannot_be_started_for_want_of_something_is_no_fault_of_its_program(
    number: int, code: str | None
) -> None:
    from plait.adapters.mcp.transports import _not_started

    limit = start_error("sh", number)
    assert (limit and limit.code) == code
    cause = _not_started("server", number).error
    assert (cause and cause.code) == code


def test_no_file_is_blamed_for_what_the_machine_is_short_of() -> None:
    with pytest.raises(MachineError):
        raise_machine_limit(refused(errno.EMFILE, "/a"))
    raise_machine_limit(refused(errno.EACCES, "/a"))


# ── runs ─────────────────────────────────────────────────────────────────

FLOW = """\
name: limits
map:
  input: {items: [1, 2, 3, 4, 5, 6]}
  id: ${item}
  max_parallel: 6
  steps:
    - shell: "echo ${item} >> did"
reduce: [{shell: "sort -u did | tr -d '\\\\n' > result"}]
"""
LIMITED = """\
import resource, sys
resource.setrlimit(getattr(resource, sys.argv[1]), (int(sys.argv[2]),) * 2)
sys.argv[1:] = sys.argv[3:]
from plait.cli import enter
enter()
"""
CHILDREN = [
    # limit            says, unless it works      so much
    ("RLIMIT_NOFILE",  "too many files are open",     (8, 16, 24, 32, 64, 5, 6, 7, 10, 12, 14, 20)),
    ("RLIMIT_NPROC",   "no room for another process", (6, 12, 4, 24, 1, 2, 3, 5, 8, 10, 14, 16, 20)),
    ("RLIMIT_FSIZE",   "a file may not grow further", (2_000, 100_000, 0, 500_000, 2 << 20)),
    # With 24 MiB, Python 3.13.0 itself hangs or crashes while it imports.
    ("RLIMIT_AS",      "",                            (28 << 20, 32 << 20, 36 << 20, 40 << 20, 48 << 20)),
]  # fmt: skip
MEMORY = ("not enough memory", "no room for another process or thread")
IN_MAKE_TEST = {"RLIMIT_NOFILE": 5, "RLIMIT_NPROC": 3}
"""So many of the values; of others two."""
ROWS = [
    (limit, most, says)
    for limit, says, values in CHILDREN
    for most in (values if WHOLE else values[: IN_MAKE_TEST.get(limit, 2)])
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "user"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "flow.yaml").write_text(FLOW)
    return folder


@cache
def as_unused_user() -> tuple[int, list[str]]:
    """A user of whom no other process is, since all of them count, and what starts a program as that one.

    It may read what we may: the interpreter may be in our home.
    """
    uid = 60_000 + os.getpid() % 5_000
    may = "+dac_override"
    ids = ["--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
    before = ["setpriv", *ids, "--inh-caps", may, "--ambient-caps", may]
    if shutil.which("setpriv") is None:
        pytest.skip(
            "ulimit -u does not bind root, and setpriv of util-linux, to be somebody else, is missing"
        )
    tried = subprocess.run(
        [*before, sys.executable, "-c", ""], capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        pytest.skip(
            f"ulimit -u does not bind root, and nobody else can start Python: {tried.stderr}"
        )
    return uid, before


def who_is_bound(limit: str, project: Path) -> list[str]:
    """What stands before a command that is to feel a limit; its files are its own."""
    if limit != "RLIMIT_NPROC" or os.getuid() != 0:
        return []
    uid, before = as_unused_user()
    for path in (project.parent, *project.parent.rglob("*")):
        os.chown(path, uid, uid)
    return before


@pytest.mark.share
@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="the system has no such limits")
@pytest.mark.parametrize(("limit", "most", "says"), ROWS)
def test_plait_below_a_limit_works_or_says_which_and_is_resumed_without_it(
    limit: str,
    most: int,
    says: str,
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (project.parent / "user").mkdir()
    monkeypatch.chdir(project)
    before = who_is_bound(limit, project)

    def started(*command: str) -> subprocess.CompletedProcess[str]:
        call = [*before, sys.executable, *command]
        return subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)

    def unbound(*command: str) -> tuple[int, str]:
        if before:
            done = started("-m", "plait", *command)
            return done.returncode, done.stderr
        return main([*command]), capsys.readouterr().err

    ended = started("-c", LIMITED, limit, str(most), "run", "flow.yaml", "--json")
    output = ended.stdout + ended.stderr
    assert "bug" not in output
    assert "Traceback" not in output
    if ended.returncode != 0:
        assert ended.returncode == 1, output
        assert any(one in output for one in ([says] if says else MEMORY)), output
    ends = [one for one in map(json.loads, ended.stdout.splitlines()) if is_end_of_item(one)]
    assert [one for one in ends if one["status"] != "done"] == []
    recorded = [one["path"][-1] for one in ends]
    code, reported = unbound("resume", "last", "--quiet")
    if "there is no run yet" in reported:
        assert (ended.returncode, (project / "did").exists()) == (1, False)
        code, reported = unbound("run", "flow.yaml", "--quiet")
    assert code == 0, reported
    assert (project / "result").read_text() == "123456"
    did = (project / "did").read_text().split()
    assert [one for one in recorded if did.count(one) != 1] == []


def is_end_of_item(event: dict[str, Any]) -> bool:
    return bool(event["event"] == "step_finished" and event["kind"] == "item")


REFUSED = [refused(errno.EMFILE, "/a"), MemoryError(), NO_THREAD, refused(errno.ENOSPC)]


@pytest.mark.parametrize("raised", REFUSED)
def test_a_run_that_meets_a_limit_fails_no_item_and_is_resumed(
    raised: Exception, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plait.app.services import LocalProcesses

    really, calls = LocalProcesses.shell, []

    async def shell(self: LocalProcesses, *args: object, **how: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise raised
        return await really(self, *args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalProcesses, "shell", shell)
    result = run_flow(str(project / "flow.yaml"), Options(max_parallel=1))
    assert (result.status, result.counts.get("failed", 0)) == ("failed", 0)
    assert result.failure is not None
    assert machine_error(raised).what in result.failure.message  # type: ignore[union-attr]
    assert (project / "did").read_text() == "1\n2\n"
    assert resume_flow(result.run, project=str(project)).status == "done"
    assert (project / "result").read_text() == "123456"


# ── starts of processes ──────────────────────────────────────────────────


def start_in_vain(*_: object, **__: object) -> guardian_client.Job:
    raise guardian_process.no_room("sh", refused(errno.EAGAIN))


def pipe_in_vain(*_: object) -> tuple[int, int]:
    raise refused(errno.EMFILE)


SHELL_TOOL = "{tool: core/shell, params: {command: 'sh work.sh STOP ${item}'}}"
IN_VAIN = [
    # step                                   what is replaced
    *[
        (step, guardian_client, "start", start_in_vain)
        for step in (*STEPS_IN_PROGRESS.values(), SHELL_TOOL)
    ],
    (STEPS_IN_PROGRESS["a server"], os, "pipe2", pipe_in_vain),
    (STEPS_IN_PROGRESS["a server that a model calls"], os, "pipe2", pipe_in_vain),
]


@pytest.mark.parametrize(("step", "owner", "name", "replacement"), IN_VAIN)
def test_a_step_without_room_for_a_process_waits_and_does_not_fail(
    step: str,
    owner: object,
    name: str,
    replacement: object,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place.write("struck", "")  # no process is blocked
    flow = FLOW_OF_ITEMS.format(step)
    prepare_step(place, step, "STOP")
    with monkeypatch.context() as short:
        short.setattr(owner, name, replacement)
        ran = place.run(flow)
    assert (ran.result.status, ran.result.exit_code, ran.failed) == ("failed", 1, [])
    assert "no room for another process" in ran.message or "too many files are open" in ran.message
    assert place.resume(ran.result.run).result.status == "done"
    assert sorted(place.text("begun").split()) == ["a", "b", "c"]
    capsys.readouterr()


@pytest.mark.parametrize("room", [0, 1, 3])
def test_fewer_threads_than_asked_for_do_all_items_and_a_note_says_so(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    really: Callable[[threading.Thread], None] = threading.Thread.start
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        if len(started) == room:
            raise NO_THREAD
        started.append(thread)
        really(thread)

    class Noting:
        shares_thread = False
        path = "map"

        def __init__(self) -> None:
            self.notes: list[str] = []

        @property
        def ctx(self) -> Noting:
            return self

        run = events = ctx

        def note(self, path: str, message: str) -> None:
            self.notes.append(f"{path}: {message}")

    map_run, done = Noting(), []
    monkeypatch.setattr(threading.Thread, "start", start)
    LocalBackend().run(
        iter([WorkItem(n, str(n), n) for n in range(9)]),
        lambda work: Succeeded(work.key),
        lambda work, _: done.append(work.order),
        parallel=5,
        map_run=map_run,  # type: ignore[arg-type]
    )
    assert sorted(done) == list(range(9))
    assert map_run.notes == [
        f"map: the machine has room for {room} threads: so many items are done at a time, not 5"
    ]


def test_input_that_cannot_be_opened_for_want_of_descriptors_is_not_called_unreadable(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plait.core.documents.files import read_text

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "flow.yaml")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(MachineError):
        read_text(str(project / "flow.yaml"), 1000)
    assert not issubclass(MachineError, InputError)
