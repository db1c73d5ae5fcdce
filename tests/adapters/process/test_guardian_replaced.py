"""A kernel without some calls, and a compiled guardian that does not work: the next simpler way is used, and reported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from adapters.process import denied_calls
from plait.adapters.process import guardian_process

DENY = str(Path(denied_calls.__file__))
PLAIT = [sys.executable, "-m", "plait"]
FLOW = """\
map:
  input: [a, b, c, d, e, f]
  max_parallel: 3
  steps:
    - shell: echo ${item}
reduce:
  - shell: echo "${map.successful} of ${map.total}"
"""
RESULT = "  6 of 6\n"
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != guardian_process.NO_COMPILED
}
needs_compiled = pytest.mark.skipif(
    not os.path.exists(guardian_process.COMPILED),
    reason="the compiled guardian is not there: it needs a C compiler at installation",
)


def replaced(why: str) -> str:
    return f"the compiled guardian does not work here ({why}): the slower one in Python serves"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "flow.yaml").write_text(FLOW)
    return folder


def run(
    command: Sequence[str], folder: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    mine = {**ENVIRONMENT, "USER_SPACE": str(folder.parent / "user"), **(environment or {})}
    return subprocess.run(
        command, cwd=folder, env=mine, capture_output=True, text=True, timeout=120, check=False
    )


def require_warning(done: subprocess.CompletedProcess[str], warning: str) -> None:
    """The run is complete, and the warning comes once: below its result, or before it began."""
    printed = done.stdout + done.stderr
    assert done.stdout.endswith(RESULT), printed
    is_below = done.stdout.endswith(f"  warning: {warning}\n{RESULT}") and done.stderr == ""
    assert is_below or (done.stderr == f"plait: {warning}\n" and "warning" not in done.stdout), (
        printed
    )


def deny(how: str, calls: str, *arguments: str) -> list[str]:
    if not denied_calls.NUMBERS:
        pytest.skip("the numbers of system calls are not known for this machine")
    return [sys.executable, DENY, how, calls, *PLAIT, *arguments]


WITHOUT = [
    ("ENOSYS", "signalfd4"),
    ("ENOSYS", "clone3"),
    ("ENOSYS", "pidfd_open,pidfd_send_signal"),
    ("ENOSYS", "close_range"),
    ("EPERM", "clone:CLONE_PARENT"),  # of prestarted shells
    ("ENOSYS", "signalfd4,clone3,pidfd_open,pidfd_send_signal,close_range,clone:CLONE_PARENT"),
]


@pytest.mark.parametrize("guardian", ["compiled", "Python"])
@pytest.mark.parametrize(("how", "calls"), WITHOUT)
def test_a_kernel_without_a_call_is_no_obstacle(
    how: str, calls: str, guardian: str, project: Path
) -> None:
    environment = {guardian_process.NO_COMPILED: "1"} if guardian == "Python" else {}
    done = run(deny(how, calls, "run", "flow.yaml"), project, environment)
    assert done.stdout.endswith(RESULT), done.stdout + done.stderr
    assert "warning" not in done.stdout + done.stderr


@pytest.mark.parametrize("guardian", ["compiled", "Python"])
def test_without_pidfds_a_timeout_ends_all_processes(guardian: str, project: Path) -> None:
    environment = {guardian_process.NO_COMPILED: "1"} if guardian == "Python" else {}
    script = "trap '' TERM; setsid sleep 600 & echo $! $$ >pids; exec sleep 600"
    (project / "flow.yaml").write_text(f'steps:\n  - {{shell: "{script}", timeout: 0.5}}\n')
    command = deny("ENOSYS", "pidfd_open,pidfd_send_signal", "run", "flow.yaml")
    done = run(command, project, {**environment, "PLAIT_GRACE": "0.1"})
    assert done.returncode == 1
    pids = (project / "pids").read_text().split()
    assert len(pids) == 2
    assert [pid for pid in pids if os.path.exists(f"/proc/{pid}")] == []


FATAL = [
    ("ENOSYS", "epoll_create1", "it ended with exit code 70"),
    ("KILL", "epoll_create1", "it was ended by: Bad system call"),
    ("KILL", "signalfd4", "it was ended by: Bad system call"),
]


@needs_compiled
@pytest.mark.parametrize(("how", "calls", "why"), FATAL)
def test_a_kernel_on_which_the_compiled_guardian_ends_has_the_other_one(
    how: str, calls: str, why: str, project: Path
) -> None:
    done = run(deny(how, calls, "run", "flow.yaml"), project)
    require_warning(done, replaced(why))
    done = run(deny(how, calls, "sh", "echo a"), project)
    assert (done.stdout, done.stderr) == ("a\n", f"plait: {replaced(why)}\n")
    done = run(deny(how, calls, "--version", "--verbose"), project)
    expected = f"guardian: in Python, slower for maps: the compiled one does not work here ({why})"
    assert done.stdout.splitlines()[-1] == expected
    assert done.stderr == ""


WITH_GUARDIAN = """
import sys
from plait.adapters.process import guardian_process
guardian_process.COMPILED = sys.argv[1]
guardian_process._START_PATIENCE = 0.0
from plait.cli import main
sys.exit(main(sys.argv[2:]))
"""

BROKEN = {
    # what it is: its text, its mode, the reason that is given
    "another version": ("#!/bin/sh\nexit 64\n", 0o755, "it ended with exit code 64"),
    "another program": ("#!/bin/sh\n", 0o755, "it ended with exit code 0"),
    "a fault": ("#!/bin/sh\nkill -SEGV $$\n", 0o755, "it was ended by: Segmentation fault"),
    "silent": ("#!/bin/sh\nexec sleep 600\n", 0o755, "it does not answer"),
    "for another machine": ("\x7fELF", 0o755, "Exec format error"),
    "without its loader": ("#!/nowhere\n", 0o755, "No such file or directory"),
    "not executable": ("#!/bin/sh\n", 0o644, "Permission denied"),
    "without a mode": ("#!/bin/sh\n", 0, "Permission denied"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_compiled_guardian_that_does_not_work_is_replaced(what: str, project: Path) -> None:
    text, mode, why = BROKEN[what]
    broken = project / "guardian"
    broken.write_text(text)
    broken.chmod(mode)
    command = [sys.executable, "-c", WITH_GUARDIAN, str(broken)]
    done = run([*command, "run", "flow.yaml"], project)
    require_warning(done, replaced(why))
    done = run([*command, "--version", "--verbose"], project)
    expected = f"guardian: in Python, slower for maps: the compiled one does not work here ({why})"
    assert done.stdout.splitlines()[-1] == expected


@needs_compiled
def test_a_guardian_that_is_stopped_at_its_start_is_continued(project: Path) -> None:
    stopped = project / "guardian"
    stopped.write_text(f'#!/bin/sh\nkill -STOP $$\nexec {guardian_process.COMPILED} "$@"\n')
    stopped.chmod(0o755)
    patient = WITH_GUARDIAN.replace("0.0", "60.0")
    done = run([sys.executable, "-c", patient, str(stopped), "run", "flow.yaml"], project)
    require_warning(done, guardian_process.WAS_STOPPED)


@needs_compiled
@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")
def test_a_folder_that_executes_nothing_has_the_other_guardian(project: Path) -> None:
    (project / "mount").mkdir()
    mount = f"mount -t tmpfs -o noexec tmpfs mount && cp {guardian_process.COMPILED} mount/guardian"
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if run([*unshare, mount], project).returncode != 0:
        pytest.skip("no folder can be mounted here")
    script = f'{mount} && exec "$@"'
    command = [*unshare, script, "sh", sys.executable, "-c", WITH_GUARDIAN, "mount/guardian"]
    done = run([*command, "run", "flow.yaml"], project)
    require_warning(done, replaced("Permission denied"))


@pytest.mark.parametrize("guardian", ["compiled", "Python"])
@pytest.mark.parametrize("limit", [8, 12, 16, 20, 24, 32, 40])
def test_few_descriptors_make_a_run_slower_or_give_a_clear_error(
    limit: int, guardian: str, project: Path
) -> None:
    environment = {guardian_process.NO_COMPILED: "1"} if guardian == "Python" else {}
    limited = ["sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh"]
    done = run([*limited, *PLAIT, "run", "flow.yaml"], project, environment)
    printed = done.stdout + done.stderr
    assert "Traceback" not in printed
    assert done.stdout.endswith(RESULT) or "ulimit -n" in printed, printed
