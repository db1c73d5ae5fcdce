"""One grace for everything that has to end, and one variable for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from plait.adapters.process.process import ProcessResult, call_process, run, run_shell
from plait.app.services import LocalProcesses
from plait.core.errors import InputError, ProcessError
from plait.core.grace import GRACE, grace_seconds
from plait.engine.coroutines import finish
from plait.engine.stop import StopSignal
from plait.template.shell.binding import BoundScript
from plait.tools.invocation import CallLimits, ProcessCall

SOURCE = Path(__file__).parents[2] / "src" / "plait"

WRITTEN: list[tuple[str | None, float | None]] = [
    # PLAIT_GRACE   seconds
    (None,          GRACE),
    ("",            GRACE),
    ("0",           0.0),
    ("0.5",         0.5),
    ("30",          30.0),
    ("3600",        3600.0),
    ("3601",        None),
    ("-1",          None),
    ("nan",         None),
    ("inf",         None),
    ("2s",          None),
]  # fmt: skip


@pytest.mark.parametrize(("written", "seconds"), WRITTEN)
def test_the_variable_is_a_number_of_seconds(
    monkeypatch: pytest.MonkeyPatch, written: str | None, seconds: float | None
) -> None:
    monkeypatch.delenv("PLAIT_GRACE", raising=False)
    if written is not None:
        monkeypatch.setenv("PLAIT_GRACE", written)
    if seconds is not None:
        assert grace_seconds() == seconds
        return
    with pytest.raises(InputError) as caught:
        grace_seconds()
    assert str(caught.value) == (
        "the variable PLAIT_GRACE is not a number of seconds from 0 to 3600\n"
        "fix: for example PLAIT_GRACE=10, or unset it: 2 s"
    )


def test_there_is_no_other_grace() -> None:
    found = {
        f"{file.relative_to(SOURCE)}: {name}"
        for file in SOURCE.rglob("*.py")
        for name in re.findall(
            r"^(\w*GRACE\w*)(?:: \w+)? = [\d.]+", file.read_text("utf-8"), re.MULTILINE
        )
    }
    # EOF_GRACE: how long output is read on that somebody holds open after the process has ended.
    assert found == {
        "core/grace.py: GRACE",
        "adapters/process/watch.py: EOF_GRACE",
        "adapters/mcp/transports.py: EOF_GRACE",
    }


# It says `late` if it is given half a second after it was asked to end.
SLOW = "trap 'sleep 0.5; echo late; exit 0' TERM; echo begun; while :; do sleep 0.05; done"


def by_shell(_: Path) -> str:
    with pytest.raises(ProcessError) as caught:
        run_shell(BoundScript(SLOW, {}, (), "slow"), timeout=0.5)
    return printed(caught.value)


def by_program(_: Path) -> str:
    with pytest.raises(ProcessError) as caught:
        run(["sh", "-c", SLOW], timeout=0.5)
    return printed(caught.value)


def by_tool(folder: Path) -> str:
    call = ProcessCall(
        ("sh", "-c", SLOW), str(folder), {"PATH": "/usr/bin:/bin"}, b"", CallLimits(timeout=0.5)
    )
    return str(call_process(call).data)


def by_step(folder: Path) -> str:
    fakes = LocalProcesses(str(folder))
    with pytest.raises(ProcessError) as caught:
        finish(
            fakes.shell(
                BoundScript(SLOW, {}, (), "slow"),
                shell="sh",
                cwd=str(folder),
                env={"PATH": "/usr/bin:/bin"},
                more_env={},
                stdin=b"",
                timeout=0.5,
                stop=StopSignal(),
            )
        )
    return printed(caught.value)


def printed(error: ProcessError) -> str:
    assert isinstance(error.ended, ProcessResult)
    return error.ended.stdout.decode()


@pytest.mark.parametrize("host", [by_shell, by_program, by_tool, by_step])
@pytest.mark.parametrize(("grace", "is_late"), [("0", False), ("60", True)])
def test_every_host_gives_the_same_grace(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    host: Callable[[Path], str],
    grace: str,
    is_late: bool,
) -> None:
    monkeypatch.setenv("PLAIT_GRACE", grace)
    assert ("late" in host(tmp_path)) is is_late
