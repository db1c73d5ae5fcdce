"""Limits of the machine are errors that say what to do; none of them is the outcome of a step, or a bug."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from plait.app.flows import Options, resume_flow, run_flow
from plait.backends.local import LocalThreads
from plait.cli import guarded
from plait.engine.backend import ItemWork
from plait.engine.outcome import Done
from plait.errors import InputError, MachineError
from plait.machine import expect_room, explained, machine_error, start_error


def refused(number: int, file: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), file) if file else OSError(number, os.strerror(number))


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
    assert guarded(fail) == 1
    printed = capsys.readouterr().err
    assert limit.what in printed or os.strerror(getattr(raised, "errno", 0)) in printed
    assert "bug" not in printed


@pytest.mark.parametrize("raised", OURS)
def test_what_is_none_stays_what_it_is(raised: Exception) -> None:
    assert machine_error(raised) is None
    with pytest.raises(type(raised)), explained():
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
    limit = start_error("sh", number)
    assert (limit and limit.code) == code


def test_no_file_is_blamed_for_what_the_machine_is_short_of() -> None:
    with pytest.raises(MachineError):
        expect_room(refused(errno.EMFILE, "/a"))
    expect_room(refused(errno.EACCES, "/a"))


# ── runs ─────────────────────────────────────────────────────────────────

FLOW = """\
name: limits
map:
  input: {items: [1, 2, 3, 4, 5, 6]}
  max_parallel: 6
  steps:
    - shell: "echo ${item} >> did; sleep 0.05"
reduce: [{shell: "sort did | tr -d '\\\\n' > result"}]
"""
LIMITED = """\
import resource, sys
resource.setrlimit(getattr(resource, sys.argv[1]), (int(sys.argv[2]),) * 2)
sys.argv[1:] = sys.argv[3:]
from plait.cli import enter
enter()
"""
CHILDREN = [
    # limit            so much    says
    ("RLIMIT_NOFILE",  16,        "too many files are open"),
    ("RLIMIT_NOFILE",  8,         "too many files are open"),
    ("RLIMIT_FSIZE",   2_000,     "a file may not grow further"),
    ("RLIMIT_AS",      24 << 20,  "memory"),  # for Plait itself, or for its first thread
]  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "user"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "flow.yaml").write_text(FLOW)
    return folder


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="the system has no such limits")
@pytest.mark.parametrize(("limit", "most", "says"), CHILDREN)
def test_plait_below_a_limit_says_which_and_ends_with_1(
    limit: str, most: int, says: str, project: Path
) -> None:
    command = [sys.executable, "-c", LIMITED, limit, str(most), "run", "flow.yaml", "--quiet"]
    ended = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, says in ended.stderr, "bug" in ended.stderr) == (1, True, False), ended.stderr


REFUSED = [refused(errno.EMFILE, "/a"), MemoryError(), NO_THREAD, refused(errno.ENOSPC)]


@pytest.mark.parametrize("raised", REFUSED)
def test_a_run_that_meets_a_limit_fails_no_item_and_is_resumed(
    raised: Exception, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plait.app.hands import RealHands

    really, calls = RealHands.shell, []

    def shell(self: RealHands, *args: object, **how: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise raised
        return really(self, *args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(RealHands, "shell", shell)
    result = run_flow(str(project / "flow.yaml"), Options(max_parallel=1))
    assert (result.status, result.counts.get("failed", 0)) == ("failed", 0)
    assert result.failure is not None
    assert machine_error(raised).what in result.failure.message  # type: ignore[union-attr]
    assert (project / "did").read_text() == "1\n2\n"
    assert resume_flow(result.run, project=str(project)).status == "done"
    assert (project / "result").read_text() == "123456"


@pytest.mark.parametrize("room", [0, 1, 3])
def test_fewer_threads_than_asked_for_do_all_items_and_it_is_said(
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
        path = "map"

        def __init__(self) -> None:
            self.notes: list[str] = []

        @property
        def turn(self) -> Noting:
            return self

        run = turn

        def note(self, path: str, message: str) -> None:
            self.notes.append(f"{path}: {message}")

    fanned, done = Noting(), []
    monkeypatch.setattr(threading.Thread, "start", start)
    LocalThreads().run_items(
        iter([ItemWork(n, str(n), n) for n in range(9)]),
        lambda work: Done(work.key),
        lambda work, _: done.append(work.order),
        parallel=5,
        fanned=fanned,  # type: ignore[arg-type]
    )
    assert sorted(done) == list(range(9))
    assert fanned.notes == [
        f"map: the machine has room for {room} threads: so many items are done at a time, not 5"
    ]


def test_input_that_cannot_be_opened_for_want_of_descriptors_is_not_called_unreadable(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plait.documents.files import read_text

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "flow.yaml")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(MachineError):
        read_text(str(project / "flow.yaml"), 1000)
    assert not issubclass(MachineError, InputError)
