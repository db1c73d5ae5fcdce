"""A cluster that is missing or stuck: all waits are limited, and a stop of the run ends them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.cluster import Cluster, ClusterScene, interrupt, is_installed
from crash.scene import Engine, wait_for
from plait.app.runs import Options, RunObservers, run_flow
from plait.cli import main
from plait.core.errors import InputError
from plait.engine.stop import StopSignal
from share import every

if not is_installed():
    pytest.skip("distributed is not installed", allow_module_level=True)

GRACE = 2.0
"""Seconds that processes get to end."""
SOON = 2.5
"""Seconds in which something ends that gets no grace."""
FLOW = """\
setup: [{shell: touch begun}]
map: {input: {items: [1, 2]}, steps: [{shell: 'echo ${item}'}]}
"""


def soon() -> float:
    """The same on this machine, with what else it has to do now."""
    return SOON * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_SPACE", str(tmp_path / "user"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))


# ── nobody who speaks as Dask does ───────────────────────────────────────


class Speaker:
    """Listens, says one thing to all who come, and hangs up or does not."""

    def __init__(self, says: bytes, *, hangs_up: bool) -> None:
        self.heard = threading.Event()
        self._says, self._hangs_up = says, hangs_up
        self._callers: list[socket.socket] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"dask://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._socket.accept()
                caller.sendall(self._says)
                self._callers.append(caller)
                if self._hangs_up:
                    caller.close()
                self.heard.set()

    def close(self) -> None:
        self._socket.close()
        for caller in self._callers:
            caller.close()


@contextlib.contextmanager
def speaking(says: bytes, *, hangs_up: bool) -> Iterator[Speaker]:
    speaker = Speaker(says, hangs_up=hangs_up)
    try:
        yield speaker
    finally:
        speaker.close()


FOREIGN = [
    # says                                hangs up
    (b"",                                 False),
    (b"",                                 True),
    (b"SSH-2.0-OpenSSH_9.2p1\r\n",        False),
    (b"\x10\0\0\0\0\0\0\0" + b"A" * 16,   False),
    (b"HTTP/1.0 400 Bad request\r\n\r\n", True),
]  # fmt: skip


@pytest.mark.parametrize(("says", "hangs_up"), FOREIGN)
def test_a_port_that_speaks_something_else_is_no_cluster_and_nothing_has_run(
    says: bytes, hangs_up: bool, tmp_path: Path
) -> None:
    (tmp_path / "flow.yaml").write_text(FLOW)
    began = time.monotonic()
    with speaking(says, hangs_up=hangs_up) as speaker, pytest.raises(InputError) as raised:
        run_flow(str(tmp_path / "flow.yaml"), Options(backend=speaker.address))
    assert time.monotonic() - began < 10
    first, fix = str(raised.value).splitlines()
    # Who hangs up early enough was never there, for Dask.
    reason = first.removeprefix(f"there is no Dask cluster at {speaker.address}: ")
    assert reason.startswith(
        ("what listens there does not answer like a scheduler of Dask", "Timed out")
    )
    assert (
        fix
        == "fix: look whether its scheduler runs, and can be reached from this host; or run elsewhere: --backend"
    )
    assert not (tmp_path / "begun").exists()
    assert not (tmp_path / ".ai/state/runs").exists()


def test_a_wrong_address_is_a_wrong_input_for_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flow.yaml").write_text(FLOW)
    with speaking(b"", hangs_up=True) as speaker:
        code = main(["run", str(tmp_path / "flow.yaml"), "--backend", speaker.address])
    assert code == 2
    assert "there is no Dask cluster at" in capsys.readouterr().err


def test_a_run_that_waits_for_who_never_answers_can_be_stopped(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(FLOW)
    stop = StopSignal()
    with speaking(b"", hangs_up=False) as speaker:

        def stop_when_heard() -> None:
            speaker.heard.wait(30)
            stop.ask()

        stopper = threading.Thread(target=stop_when_heard)
        stopper.start()
        began = time.monotonic()
        result = run_flow(
            str(tmp_path / "flow.yaml"),
            Options(backend=speaker.address),
            observers=RunObservers(stop=stop),
        )
        stopper.join()
    assert result.status == "interrupted"
    assert time.monotonic() - began < soon()
    assert not (tmp_path / "begun").exists()


REFUSED = [
    (
        "map: {input: {items: [1]}, steps: [{id: pay, shell: 'true', once: true}]}",
        "may run at most once",
    ),
    ("limits: {steps: 5}\nmap: {input: {items: [1]}, steps: [{shell: 'true'}]}", "hooks or limits"),
]


@pytest.mark.parametrize(("flow", "message"), REFUSED)
def test_what_cannot_be_done_on_a_cluster_is_reported_before_anything_runs(
    flow: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "flow.yaml").write_text("setup: [{shell: touch begun}]\n" + flow)
    with pytest.raises(InputError, match=message):
        run_flow(str(tmp_path / "flow.yaml"), Options(backend="dask"))
    assert not (tmp_path / "begun").exists()


# ── a scheduler that is stuck ────────────────────────────────────────────


@contextlib.contextmanager
def held(scene: ClusterScene, *, deaf: bool = False) -> Iterator[tuple[Cluster, Engine]]:
    """A run whose items go on until somebody ends them; `deaf`: they do not end when they are asked to."""
    (scene.project / "hold-work").touch()
    if deaf:
        script = scene.project / "ledger.sh"
        script.write_text("trap '' TERM INT\n" + script.read_text())
    with scene.cluster() as cluster, scene.engine() as engine:
        scene.expect_lines(engine, 2 + scene.parallel)  # setup begins and ends, each item begins
        yield cluster, engine


@contextlib.contextmanager
def stuck(cluster: Cluster) -> Iterator[None]:
    """The scheduler is there, and does nothing."""
    assert cluster.scheduler is not None
    cluster.scheduler.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        cluster.scheduler.send_signal(signal.SIGCONT)


def steps(scene: ClusterScene) -> list[int]:
    """The processes of items, which are the workers'."""
    return [pid for pid in scene.processes() if b"ledger.sh" in command_of(pid)]


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def test_a_run_whose_scheduler_is_stuck_ends_when_it_is_interrupted_and_so_do_its_processes(
    tmp_path: Path,
) -> None:
    scene = ClusterScene(tmp_path / "s", items=4, parallel=2)
    with held(scene) as (cluster, engine):
        with stuck(cluster):
            interrupt(engine)
            assert engine.ended(GRACE + soon()).code == 130
            assert wait_for(lambda: not steps(scene), 1)
        (scene.project / "hold-work").unlink()
        scene.note_death()
        scene.expect_code(scene.to_the_end(), 0)
        assert scene.violations((scene.project / "result.json").read_bytes()) == []


@pytest.mark.share
@pytest.mark.parametrize("is_stuck", [True, False][:: every(2)])
def test_a_second_interrupt_ends_processes_at_once(is_stuck: bool, tmp_path: Path) -> None:
    scene = ClusterScene(tmp_path / "s", items=4, parallel=2)
    with (
        held(scene, deaf=True) as (cluster, engine),
        stuck(cluster) if is_stuck else contextlib.nullcontext(),
    ):
        interrupt(engine)
        assert wait_for(lambda: "stopping" in engine.read_output(), 10)
        interrupt(engine)
        assert engine.ended(soon()).code == 130
        assert wait_for(lambda: not steps(scene), 1)


def test_a_worker_that_is_stuck_does_not_block_the_items(tmp_path: Path) -> None:
    scene = ClusterScene(tmp_path / "s", items=6, parallel=2)
    with scene.cluster() as cluster:
        assert wait_for(lambda: registered(cluster) == 2, 30)
        cluster.workers[0].send_signal(signal.SIGSTOP)
        try:
            scene.expect_code(scene.to_the_end(), 0)
        finally:
            cluster.workers[0].send_signal(signal.SIGCONT)
        assert scene.faults == []


def registered(cluster: Cluster) -> int:
    log = (cluster.folder / "cluster.log").read_text("utf-8", "replace")
    return log.count("Registered to:")


def test_a_worker_removes_what_one_left_that_was_killed(tmp_path: Path) -> None:
    scene = ClusterScene(tmp_path / "s", items=2, parallel=2)
    flow = scene.project / "flow.yaml"
    flow.write_text(
        flow.read_text().replace("  shared: true\n", "  ship: [ledger.sh, hold-work]\n")
    )
    (scene.project / "hold-work").touch()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    cluster = Cluster(scene.folder, {**scene.env, "TMPDIR": str(temporary)}, scene.port)
    try:
        cluster.start()
        with scene.engine():
            assert wait_for(lambda: len(left(temporary)) == 2, 30)
            dead = left(temporary)
            cluster.restart()
            assert wait_for(lambda: len(left(temporary) - dead) == 2, 60)
            assert not left(temporary) & dead
    finally:
        cluster.stop()


def left(temporary: Path) -> set[str]:
    return {one.name for one in temporary.glob("plait-items-*")}
