"""The same map on a Dask cluster whose parts are killed: the engine, workers, the scheduler.

The cluster is made of real processes on this host, so the project is shared.  An item is recorded as
a whole, so a death may repeat all steps of the items in progress.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from crash.checks import Death, Story, violations
from crash.cluster_parts import Nursery, Part
from crash.scene import GRACE, LIMIT, SOURCE, Engine, Failed, Scene, read_aside, wait_for

STEPS: Final = 2
"""The steps of an item."""
WORKERS: Final = 2
START_LIMIT: Final = 30.0
QUIET: Final = 0.5
"""Seconds without a process of the run after which no new one can start."""
ENGINE: Final = ("engine",)
WORKER: Final = ("worker", "stopped worker")
SCHEDULER: Final = ("scheduler",)
VICTIMS: Final = (*ENGINE, *WORKER, *SCHEDULER)
STALL: Final = "10s"
"""The timeout in the flow: below the limit after which a wait is a failure."""
NURSERY: Final = Nursery(SOURCE)


def is_installed() -> bool:
    from importlib.util import find_spec

    return find_spec("distributed") is not None


@dataclass(slots=True)
class Cluster:
    """A scheduler and its workers, each a process of its own."""

    folder: Path
    env: dict[str, str]
    port: int
    scheduler: Part | None = None
    workers: list[Part] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        arguments = ["--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard"]
        self.scheduler = self._started("dask_scheduler", *arguments)
        wait_for(self._answers, START_LIMIT + patience())
        for _ in range(WORKERS):
            self.add_worker()

    def add_worker(self) -> None:
        arguments = ["--no-dashboard", "--no-nanny", "--nthreads", "2", "--death-timeout", "60"]
        self.workers.append(self._started("dask_worker", f"tcp://{self.address}", *arguments))

    def kill_worker(self, chance: Random, *, stopped: float = 0.0) -> None:
        """Kill one worker after a stop of some seconds, and start another one later."""
        victim = self.workers.pop(chance.randrange(len(self.workers)))
        if stopped:
            victim.send_signal(signal.SIGSTOP)
            time.sleep(stopped)
        victim.kill()
        victim.wait()
        self.add_worker()

    def restart(self) -> None:
        """Kill the scheduler with its workers, and start new ones at the same address."""
        assert self.scheduler is not None
        self.scheduler.kill()
        self.scheduler.wait()
        self._end_workers()
        self.start()

    def stop(self) -> None:
        if self.scheduler is not None:
            self.scheduler.kill()
            self.scheduler.wait()
        self._end_workers()

    def _end_workers(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
        self.workers.clear()

    def _started(self, program: str, *arguments: str) -> Part:
        return NURSERY.start(program, [*arguments], self.env, self.folder)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
            return True
        return False


@dataclass(slots=True)
class ClusterScene(Scene):
    """A run on a cluster."""

    port: int = 0

    def __post_init__(self) -> None:
        Scene.__post_init__(self)
        flow = self.project / "flow.yaml"
        flow.write_text(
            flow.read_text().replace(
                "  input: items.json",
                f"  shared: true\n  stall_timeout: {STALL}\n  input: items.json",
            )
        )
        self.port = self.port or _free_port()

    def command(self, *engine_options: str) -> list[str]:
        command = Scene.command(self, *engine_options)
        where = ["--backend", f"dask://127.0.0.1:{self.port}"] if "run" in command else []
        return [*command, *where]

    @contextlib.contextmanager
    def cluster(self) -> Iterator[Cluster]:
        cluster = Cluster(self.folder, dict(self.env), self.port)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()

    def processes(self) -> list[int]:
        """The processes of the run, without those of the cluster."""
        return [pid for pid in Scene.processes(self) if _is_of_the_run(pid)]

    def require_no_process(self) -> None:
        """Require that no process is left, a moment later: until then workers may start another step."""
        seen = [time.monotonic()]

        def is_quiet() -> bool:
            if self.processes():
                seen[0] = time.monotonic()
            return time.monotonic() - seen[0] > QUIET

        wait_for(is_quiet, GRACE + 1)
        Scene.require_no_process(self)

    def notes(self) -> list[str]:
        """The messages of the run about its cluster."""
        found: list[str] = []
        for run in self.run_folders():
            with read_aside(run) as journal:
                query = "SELECT json FROM events WHERE event = 'note' ORDER BY number"
                found += [str(row[0]) for row in journal.execute(query)]
        return found

    def note_kill(self) -> None:
        """Record the death of a cluster part: steps recorded by now must not start again."""
        recorded = frozenset(step.path for step in self.journal())
        self.deaths.append(Death(len(self.ledger()), recorded))

    def violations(self, expected: bytes) -> list[str]:
        self.require_no_process()
        result = self.project / "result.json"
        return violations(
            Story(
                self.names,
                self.parallel * STEPS,
                self.ledger(),
                self.deaths,
                self.journal(),
                result.read_bytes() if result.exists() else None,
                expected,
                self.faults,
            )
        )


def play(
    scene: ClusterScene, chance: Random, kills: int, *, victims: Sequence[str] = VICTIMS
) -> None:
    """Kill random victims until there were enough kills, then finish the run."""
    with scene.cluster() as cluster:
        while len(scene.deaths) < kills:
            with scene.engine() as engine:
                if not _killed_with(scene, cluster, engine, chance, kills, victims):
                    scene.expect_code(engine.ended(patience()), 0)
                    return
            scene.note_death()
        with scene.engine() as engine:
            scene.expect_code(engine.ended(patience()), 0)


def _killed_with(
    scene: ClusterScene,
    cluster: Cluster,
    engine: Engine,
    chance: Random,
    kills: int,
    victims: Sequence[str],
) -> bool:
    """Whether the engine was the victim.  If not, it continues."""
    while len(scene.deaths) < kills and _has_lines(scene, engine, chance.randrange(1, 24)):
        match chance.choice(victims):
            case "engine":
                engine.kill()
                return True
            case "worker":
                cluster.kill_worker(chance)
            case "stopped worker":
                cluster.kill_worker(chance, stopped=chance.uniform(0.1, 1.0))
            case "scheduler":
                cluster.restart()
        scene.note_kill()
    return False


def _has_lines(scene: ClusterScene, engine: Engine, more: int) -> bool:
    """As `Scene.engine`, but a hanging run is found here and its output is reported."""
    wanted, limit = len(scene.ledger()) + more, patience()
    if not wait_for(lambda: not engine.is_running or len(scene.ledger()) >= wanted, limit):
        raise Failed(
            f"nothing happened on a cluster for {limit:.0f} s; the run: {scene.notes()[-5:]}"
        )
    return engine.is_running


def patience() -> float:
    """Seconds until a wait is a failure, on this machine under its current load."""
    return LIMIT * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_of_the_run(pid: int) -> bool:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"ledger.sh" in words or b"engine.py" in words
    return False


def interrupt(engine: Engine) -> None:
    """What Ctrl-C does."""
    os.kill(engine.process.pid, signal.SIGINT)
