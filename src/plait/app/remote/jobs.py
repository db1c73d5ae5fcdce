"""What a worker keeps of the runs whose items it performs: parcels, unpacked, as long as they are
needed.

The files of the flow are loaded anew, from the text that was sent, and have to come to the
fingerprint that they have where the run is.  A run that dies says no goodbye: a parcel that nobody
used for a time goes.
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

from plait.adapters.dask import protocol as travel
from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.values import Json, Secret
from plait.engine.event_bus import StopSignal
from plait.engine.journal import Journal

if TYPE_CHECKING:
    from plait.engine.context import RunContext
    from plait.lang.loaded import LoadedFlow
    from plait.program.map import Map
    from plait.scope import Scope


PREFIX: Final = "plait-items-"
LOCK: Final = "lock"


def new_folder() -> str:
    """A new folder, which is gone with this process at the latest."""
    return tempfile.mkdtemp(dir=_own_folder(os.getpid()))


@cache
def _own_folder(_process: int) -> str:
    """Where this process has its folders; nothing is shared with the one that it was forked
    from.
    """
    place = tempfile.gettempdir()
    remove_stale(place)
    folder, _ = claim_folder(place)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def claim_folder(place: str) -> tuple[str, int]:
    """A folder that is ours until we die, and the handle of its lock."""
    while True:
        folder = tempfile.mkdtemp(prefix=_prefix(), dir=place)
        lock = os.path.join(folder, LOCK)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if _is_locked(handle) and os.path.exists(lock):
            return folder, handle
        os.close(handle)  # somebody took it for one that was left, before it was locked


def _is_locked(handle: int) -> bool:
    with suppress(
        OSError
    ):  # a file system without locks: nothing there is taken for one that was left
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def remove_stale(place: str) -> None:
    """Remove the folders of those that died on this host; nobody else's."""
    with os.scandir(place) as found:
        ours = [one.path for one in found if one.name.startswith(_prefix()) and _is_own(one)]
    for folder in ours:
        with suppress(OSError):  # it is being made or removed just now, or is in use
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


MOST_PARCELS: Final = 8
"""Parcels that a worker keeps; the oldest that nobody is at goes first."""
KEPT: Final = 300.0
"""Seconds that a parcel is kept after its last item; an item that comes later brings it along
again.
"""


class WorkerJob:
    """A parcel, unpacked."""

    def __init__(self, parcel: travel.JobPayload) -> None:
        self.parcel = parcel
        self.errands: dict[str, StopSignal] = {}
        """By the path of their items."""
        self.is_halted = False
        """Nothing is begun any more, until its run asks again."""
        self.noted: set[str] = set()
        """What was said about names without a value, once for all items here."""
        self._folder = None if parcel.shared else _unpack_files(parcel)
        project = parcel.project if self._folder is None else self._folder
        self.project = project
        try:
            self.loaded = _load_flow(parcel, project)
        except BaseException:  # nothing is hidden: only the folder goes
            self.close()
            raise
        self.hidden = frozenset(self.loaded.secret_texts())
        self.folder = (
            parcel.folder if self._folder is None else os.path.join(project, ".ai", "state")
        )
        self.scope = self._scope()
        self.env = {**os.environ, **self.loaded.process_env()}
        inside_project = os.path.relpath(parcel.directory, parcel.project)
        self.directory = os.path.normpath(os.path.join(project, inside_project))

    def _scope(self) -> Scope:
        from plait.app.toolbox import command_output
        from plait.scope import Scope

        env = {**os.environ, **self.loaded.process_env()}
        sources = self.loaded.sources(run=lambda bound, place: command_output(bound, place, env))
        scope = Scope({}, label="run", sources=sources)
        for label, levels in self.parcel.frames[1:]:
            scope = scope.frame(label, **travel.unseal(self._with_local_paths(levels)))
        return scope

    def _with_local_paths(self, levels: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
        """`workflow.dir` is where the files are."""
        facts = levels.get("workflow", {}).get("workflow")
        if self._folder is None or not isinstance(facts, dict) or "dir" not in facts:
            return dict(levels)
        workflow = {
            **levels["workflow"],
            "workflow": {**facts, "dir": self.project, "path": self.loaded.path},
        }
        return {**levels, "workflow": workflow}

    def run(self, journal: Journal, stop: StopSignal) -> RunContext:
        from plait.adapters.local import LocalBackend
        from plait.app.services import local_services
        from plait.engine.context import Secrets, new_run_context
        from plait.engine.event_bus import EventBus
        from plait.engine.replay import Replay
        from plait.program.actions.tool import call_tool_step

        settings = self.parcel.settings
        secrets = Secrets(self.hidden)
        events = EventBus(journal, mask=secrets.mask, reports=False, noted=self.noted)
        return new_run_context(
            settings.run,
            journal,
            events=events,
            secrets=secrets,
            replay=Replay(
                settings.run,
                journal,
                accept_changes=settings.accept_changes,
                marked_done=settings.said_done,
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
                keeps_overflow=settings.keeps_overflow and self.parcel.shared,
                note=lambda message: events.note("", message),
            ),
            call_tool=call_tool_step,
        )

    def halt(self, *, at_once: bool) -> int:
        """Have all errands end; how many have not?"""
        self.is_halted = True
        stops = list(self.errands.values())
        for stop in stops:
            if not stop.is_set():
                stop.ask("cancelled")
            if at_once and not stop.at_once:
                stop.ask("cancelled")
        return len(stops)

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def fan(self) -> Map:
        fan = self.loaded.program.fan
        assert fan is not None
        return fan


class WorkerJobs:
    """The parcels of a worker, by their digests; any thread may ask."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._places: dict[str, WorkerJob] = {}
        self._used: dict[str, float] = {}
        """When somebody was last at them; the longest unused first."""
        self._users: dict[str, int] = {}
        self._lock = threading.Lock()

    def find(self, digest: str) -> WorkerJob | None:
        return self._places.get(digest)

    def keep(self, digest: str, place: WorkerJob) -> None:
        with self._lock:
            self._places[digest] = place
            self._touch(digest)
            idle = [name for name in self._idle() if name != digest]
            dropped = [
                self._drop(name) for name in idle[: max(0, len(self._places) - MOST_PARCELS)]
            ]
        _close_all(dropped)

    def forget(self, digest: str) -> None:
        with self._lock:
            dropped = [self._drop(digest)] if digest in self._places else []
        _close_all(dropped)

    def drop_unused(self) -> None:
        """Drop what nobody was at for a time."""
        with self._lock:
            since = self._clock() - KEPT
            dropped = [self._drop(name) for name in self._idle() if self._used[name] < since]
        _close_all(dropped)

    @contextmanager
    def used(self, digest: str) -> Iterator[WorkerJob | None]:
        """While this lasts, the place stays, unless its own run says that it may go."""
        with self._lock:
            place = self._places.get(digest)
            if place is not None:
                self._users[digest] = self._users.get(digest, 0) + 1
        try:
            yield place
        finally:
            if place is not None:
                with self._lock:
                    self._users[digest] -= 1
                    if not self._users[digest]:
                        del self._users[digest]
                    if digest in self._places:
                        self._touch(digest)

    def _idle(self) -> list[str]:
        return [name for name in self._used if name not in self._users]

    def _touch(self, digest: str) -> None:
        self._used.pop(digest, None)
        self._used[digest] = self._clock()

    def _drop(self, digest: str) -> WorkerJob:
        del self._used[digest]
        return self._places.pop(digest)


def _close_all(places: list[WorkerJob]) -> None:
    """Without the lock, since removing files takes time."""
    for place in places:
        place.close()


def _unpack_files(parcel: travel.JobPayload) -> str:
    folder = new_folder()
    try:
        _write_files(parcel, folder)
    except BaseException:  # as above
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _write_files(parcel: travel.JobPayload, folder: str) -> None:
    for name, data in parcel.files.items():
        place = os.path.join(folder, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "xb") as file:
            file.write(data)
        if name in parcel.executable:
            os.chmod(place, 0o700)
    os.makedirs(os.path.join(folder, ".ai", "state"), mode=0o700, exist_ok=True)


def _load_flow(parcel: travel.JobPayload, project: str) -> LoadedFlow:
    from plait.lang.environment import FlowEnvironment
    from plait.lang.workflow.read import load_workflow

    path = os.path.join(project, os.path.relpath(parcel.path, parcel.project))
    if parcel.shared and not os.path.exists(path):
        raise InputError(
            "the flow is not where it is said to be shared",
            path,
            "mount the project at the same place on every worker, or take shared: true away",
            code="not-shared",
        )
    named = travel.unseal(dict(parcel.named))
    around = FlowEnvironment(
        travel.unseal(dict(parcel.variables)),
        travel.unseal(dict(parcel.env)),
        travel.unseal(dict(parcel.secrets)),
        frozenset(one.to_secret().reveal() for one in parcel.hidden),
    )
    revealed = {
        name: value.reveal() if isinstance(value, Secret) else value
        for name, value in named.items()
    }
    loaded = load_workflow(
        path,
        project=project,
        profile=parcel.settings.profile,
        strict=parcel.settings.strict,
        environ={**os.environ, **revealed},
        known=(travel.unseal(dict(parcel.parameters)), around),
    )
    fan = loaded.program.fan
    if fan is None or fan.fingerprint != parcel.fingerprint:
        what = "the flow that is here is not the one that runs"
        raise InputError(
            what, path, "wait until storage shows the same files everywhere", code="changed"
        )
    return loaded
