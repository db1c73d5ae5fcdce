"""The jobs that a worker has: flows that it loaded for runs on other machines.

A worker loads the flow from the files that were sent, and the map must have the same fingerprint
as in the run. A run that dies drops no job, so a job that is unused for a time is removed.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache

from plait.adapters.local import LocalBackend
from plait.app.remote.payload import JobPayload, unseal
from plait.app.services import local_services
from plait.app.toolbox import command_output
from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.values import Json, Secret
from plait.engine.context import RunContext, Secrets, new_run_context
from plait.engine.event_bus import EventBus
from plait.engine.journal import Journal
from plait.engine.replay import Replay
from plait.engine.stop import StopSignal
from plait.lang.environment import FlowEnvironment
from plait.lang.flow_text import FlowText
from plait.lang.load import load_flow
from plait.lang.loaded import LoadOptions
from plait.program.actions.tool import call_tool_step
from plait.scope import Scope

if TYPE_CHECKING:
    from plait.lang.loaded import LoadedFlow
    from plait.program.map import Map

MOST_JOBS: Final = 8
"""Jobs that a worker has at a time; the one that is unused for the longest is removed first."""
KEPT: Final = 300.0
"""Seconds that a job is kept after its last item; a later item brings the job along again."""
PREFIX: Final = "plait-items-"
LOCK: Final = "lock"


def new_folder() -> str:
    """A new folder, removed when this process ends at the latest."""
    return tempfile.mkdtemp(dir=_own_folder(os.getpid()))


@cache
def _own_folder(_process: int) -> str:
    """The folder of this process. A fork gets another one, so the process is a parameter."""
    parent = tempfile.gettempdir()
    remove_stale(parent)
    folder, _ = claim_folder(parent)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def claim_folder(parent: str) -> tuple[str, int]:
    """A folder that is locked until this process ends, and the handle of its lock."""
    while True:
        folder = tempfile.mkdtemp(prefix=_prefix(), dir=parent)
        lock = os.path.join(folder, LOCK)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if _lock(handle) and os.path.exists(lock):
            return folder, handle
        os.close(handle)  # `remove_stale` of another process was faster than our lock


def _lock(handle: int) -> bool:
    with suppress(OSError):  # on a file system without locks `remove_stale` removes nothing
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def remove_stale(parent: str) -> None:
    """Remove the folders of workers of this user that died on this host."""
    with os.scandir(parent) as found:
        ours = [one.path for one in found if one.name.startswith(_prefix()) and _is_own(one)]
    for folder in ours:
        with suppress(OSError):  # it is in use, or another process makes or removes it now
            handle = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)


def _is_own(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return (
            entry.is_dir(follow_symlinks=False)
            and entry.stat(follow_symlinks=False).st_uid == os.getuid()
        )
    return False


def _prefix() -> str:
    return f"{PREFIX}{re.sub(r'[^A-Za-z0-9.]', '_', os.uname().nodename)}-"


class WorkerJob:
    """A job, with its flow loaded."""

    def __init__(self, payload: JobPayload) -> None:
        self.payload = payload
        self.running: dict[str, StopSignal] = {}
        """By the path of an item."""
        self.is_stopped = False
        """No item starts until the run sends the job again."""
        self.noted: set[str] = set()
        """Warnings that were sent, once for all items here."""
        self._folder = None if payload.shared else _write_files(payload)
        project = payload.project if self._folder is None else self._folder
        self.project = project
        try:
            self.loaded = _load_flow(payload, project)
        except BaseException:  # raised again: only the folder goes
            self.close()
            raise
        self.secret_texts = frozenset(self.loaded.secret_texts())
        self.folder = (
            payload.folder if self._folder is None else os.path.join(project, ".ai", "state")
        )
        self.env = {**os.environ, **self.loaded.process_env()}
        self.scope = self._make_scope()
        inside_project = os.path.relpath(payload.directory, payload.project)
        self.directory = os.path.normpath(os.path.join(project, inside_project))

    @property
    def map(self) -> Map:
        found = self.loaded.program.map
        assert found is not None
        return found

    def _make_scope(self) -> Scope:
        sources = self.loaded.sources(
            run=lambda bound, place: command_output(bound, place, self.env)
        )
        scope = Scope({}, label="run", sources=sources)
        for label, levels in self.payload.frames[1:]:
            scope = scope.frame(label, **unseal(self._with_local_paths(levels)))
        return scope

    def _with_local_paths(self, levels: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
        """`workflow.dir` and `workflow.path` name the files on this machine."""
        facts = levels.get("workflow", {}).get("workflow")
        if self._folder is None or not isinstance(facts, dict) or "dir" not in facts:
            return dict(levels)
        workflow = {
            **levels["workflow"],
            "workflow": {**facts, "dir": self.project, "path": self.loaded.path},
        }
        return {**levels, "workflow": workflow}

    def run(self, journal: Journal, stop: StopSignal) -> RunContext:
        """A run context for one item."""
        settings = self.payload.settings
        secrets = Secrets(self.secret_texts)
        events = EventBus(
            journal,
            mask=secrets.mask,
            mask_title=secrets.mask_title,
            reports=False,
            noted=self.noted,
        )
        return new_run_context(
            settings.run,
            journal,
            events=events,
            secrets=secrets,
            replay=Replay(
                settings.run,
                journal,
                text=settings.text,
                marked_done=settings.marked_done,
                retried=settings.retried,
            ),
            stop=stop,
            folder=self.folder,
            backend=LocalBackend(),
            services=local_services(
                self.project,
                self.folder,
                stop,
                env=self.loaded.process_env(),
                keeps_overflow=settings.keeps_overflow and self.payload.shared,
                note=lambda message: events.note("", message),
            ),
            call_tool=call_tool_step,
        )

    def stop(self, *, at_once: bool) -> int:
        """Stop all items; return how many still run."""
        self.is_stopped = True
        stops = list(self.running.values())
        for stop in stops:
            if not stop.is_set():
                stop.ask("cancelled")
            if at_once and not stop.at_once:
                stop.ask("cancelled")
        return len(stops)

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class WorkerJobs:
    """The jobs of a worker, by digest. Safe for threads."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._jobs: dict[str, WorkerJob] = {}
        self._used: dict[str, float] = {}
        """When a job was last used; the longest unused first."""
        self._users: dict[str, int] = {}
        self._lock = threading.Lock()

    def find(self, digest: str) -> WorkerJob | None:
        return self._jobs.get(digest)

    def keep(self, digest: str, job: WorkerJob) -> None:
        with self._lock:
            self._jobs[digest] = job
            self._touch(digest)
            idle = [name for name in self._idle() if name != digest]
            dropped = [self._remove(name) for name in idle[: max(0, len(self._jobs) - MOST_JOBS)]]
        _close_all(dropped)

    def drop(self, digest: str) -> None:
        with self._lock:
            dropped = [self._remove(digest)] if digest in self._jobs else []
        _close_all(dropped)

    def drop_unused(self) -> None:
        """Drop the jobs that were not used for KEPT seconds."""
        with self._lock:
            since = self._clock() - KEPT
            dropped = [self._remove(name) for name in self._idle() if self._used[name] < since]
        _close_all(dropped)

    @contextmanager
    def use(self, digest: str) -> Iterator[WorkerJob | None]:
        """Within this, only `drop` removes the job."""
        with self._lock:
            job = self._jobs.get(digest)
            if job is not None:
                self._users[digest] = self._users.get(digest, 0) + 1
        try:
            yield job
        finally:
            if job is not None:
                with self._lock:
                    self._users[digest] -= 1
                    if not self._users[digest]:
                        del self._users[digest]
                    if digest in self._jobs:
                        self._touch(digest)

    def _idle(self) -> list[str]:
        return [name for name in self._used if name not in self._users]

    def _touch(self, digest: str) -> None:
        self._used.pop(digest, None)
        self._used[digest] = self._clock()

    def _remove(self, digest: str) -> WorkerJob:
        del self._used[digest]
        return self._jobs.pop(digest)


def _close_all(jobs: list[WorkerJob]) -> None:
    """Call it without the lock: removing files takes time."""
    for job in jobs:
        job.close()


def _write_files(payload: JobPayload) -> str:
    """A new folder with the files of a job."""
    folder = new_folder()
    try:
        for name, data in payload.files.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "xb") as file:
                file.write(data)
            if name in payload.executable:
                os.chmod(path, 0o700)
        os.makedirs(os.path.join(folder, ".ai", "state"), mode=0o700, exist_ok=True)
    except BaseException:  # raised again: only the folder goes
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _load_flow(payload: JobPayload, project: str) -> LoadedFlow:
    path = os.path.join(project, os.path.relpath(payload.path, payload.project))
    if payload.shared and not os.path.exists(path):
        raise InputError(
            "the flow is not at this path, although the map says shared: true",
            path,
            "mount the project at the same path on every worker, or remove shared: true",
            code="not-shared",
        )
    environment = FlowEnvironment(
        unseal(dict(payload.variables)),
        unseal(dict(payload.env)),
        unseal(dict(payload.secrets)),
        frozenset(one.to_secret().reveal() for one in payload.masked),
    )
    env_variables = {
        name: value.reveal() if isinstance(value, Secret) else value
        for name, value in unseal(dict(payload.env_variables)).items()
    }
    options = LoadOptions(
        project,
        profile=payload.settings.profile,
        strict=payload.settings.strict,
        keep_going=payload.settings.keep_going,
        environ={**os.environ, **env_variables},
        known=(unseal(dict(payload.parameters)), environment),
    )
    loaded = load_flow(FlowText.read(path), options=options)
    found = loaded.program.map
    if found is None or found.fingerprint != payload.fingerprint:
        raise InputError(
            "the files of the flow are not those of the run",
            path,
            "wait until the shared storage has the same files everywhere",
            code="changed",
        )
    return loaded
