"""Items that are performed by another process: packed where the run is, performed there by the same steps.

    Away        at the end of the journal: what an item needs, and nothing else
    receive     at the other end: a parcel becomes a flow that is ready, once for all of its items
    perform     an errand becomes events and an outcome, by `perform` and against a journal in memory

The files of the flow are loaded there anew, from the text that was sent, and have to come to the
fingerprint that they have here.  A secret is sent if a step of the items names it.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from plait.backends import travel
from plait.backends.dask import task_watch, worker_name
from plait.engine.backend import Fanned, ItemWork
from plait.engine.events import Event, StepFinished
from plait.engine.journal import Journal, MemoryJournal, Recorded
from plait.engine.outcome import Aborted, Failed, Interrupted, Outcome, OutOfTime
from plait.engine.perform import Step, Turn, inside
from plait.engine.run import Stop
from plait.errors import InputError, LimitError, PlaitError, Problem, listed
from plait.hints import TYPE_CHECKING, Final
from plait.records import dataclass, replace
from plait.values import Json, Secret

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

    from plait.flows.loaded import Loaded
    from plait.scope import Scope
    from plait.steps.fan import Fan
    from plait.steps.hands import WorkingRun

MOST_SHIPPED: Final = 64 << 20
"""Bytes of files that go to a worker."""
MOST_PARCELS: Final = 8
"""Parcels that a worker keeps; the oldest that nobody is at goes first."""
LONGEST: Final = 1.0
"""Seconds after which a worker tells what has ended, and leaves the rest to be sent again."""
LOOK: Final = 0.1
"""Seconds between two looks whether an errand is to stop."""
LONGEST_TWIN: Final = 30.0
"""Seconds that a second errand waits for the end of one that was cancelled, for the same item."""


# ── where the run is ─────────────────────────────────────────────────────


class Away:
    """Packs the items of one run; see `travel.Office`."""

    perform = "plait.app.away:perform"

    def __init__(self, loaded: Loaded, run: WorkingRun, *, profile: str | None) -> None:
        self._loaded = loaded
        self._run = run
        self._profile = profile

    @property
    def receive(self) -> Callable[[bytes], bytes | None]:
        return receive

    @property
    def forget(self) -> Callable[[str], None]:
        return forget

    @property
    def busy(self) -> Callable[[str], int]:
        return busy

    def takes(self, fanned: Fanned) -> bool:
        fan = self._loaded.program.fan
        if fan is None or fanned.turn.path != fan.name or self._run.rehearsal is not None:
            return False
        problems = list(self._problems(fan))
        if problems:
            raise InputError.together(problems)
        return True

    def _problems(self, fan: Fan) -> Iterator[Problem]:
        """What only the process that keeps the journal can do."""
        fix = "run the flow with --backend local"
        if fan.isolation is not None:
            yield Problem("a map with isolation cannot run on a cluster", None, fix, code="not-on-cluster")
        if self._loaded.hooks or self._loaded.limits.record():
            what = "a flow with hooks or limits cannot run on a cluster: they are kept in one process"
            yield Problem(what, None, fix, code="not-on-cluster")
        if getattr(self._loaded.program, "tracks", ()):
            what = "a flow that asks what its steps change cannot run on a cluster: git is asked in one place"
            yield Problem(what, None, fix, code="not-on-cluster")
        for path, step in inside(fan):
            if step.policy.once or getattr(getattr(step, "attempts", None), "once", False):
                what = f"step '{step.title}' ({path}) may run only once, and a worker that dies is replaced"
                more = f"{fix}, or let the step run in reduce"
                yield Problem(what, None, more, code="not-on-cluster")

    def parcel(self, fanned: Fanned, *, shared: bool) -> tuple[str, bytes]:
        """What all items share; `shared`: the workers see the project where it is, whatever the flow says."""
        loaded, turn, fan = self._loaded, fanned.turn, self._loaded.program.fan
        assert fan is not None
        shared = shared or loaded.shared
        mentions = _Mentions.of(loaded)
        files = {} if shared else _files(loaded)
        if not shared:
            self._expect_tools(mentions)
        around = loaded.surroundings
        return travel.packed(
            travel.Parcel(
                path=loaded.path,
                project=loaded.project,
                folder=self._run.folder,
                directory=turn.directory,
                files=files,
                executable=frozenset(
                    name for name in files if os.access(os.path.join(loaded.project, name), os.X_OK)
                ),
                shared=shared,
                fingerprint=fan.fingerprint,
                total=fanned.total,
                settings=self._settings(),
                parameters=mentions.sendable(loaded.parameters),
                variables=mentions.sendable(around.vars),
                env=mentions.sendable(around.env),
                secrets=mentions.sendable(around.secrets),
                named=mentions.named_variables(around.environ(loaded.environ)),
                frames=[
                    (frame.label, {level: mentions.sendable(names) for level, names in frame.levels.items()})
                    for frame in reversed(turn.scope.frames)
                ],
            )
        )

    def _settings(self) -> travel.Settings:
        run = self._run
        return travel.Settings(
            run=run.id,
            strict=self._loaded.strict,
            profile=self._profile,
            timeout=self._loaded.timeout,
            accept_changes=run.accept_changes,
            repeat=frozenset(),
            retried=run.retried,
            keeps_overflow=not self._loaded.secret_texts(),
        )

    def _expect_tools(self, mentions: _Mentions) -> None:
        """Those of the system are everywhere; a file of the project that runs is not sent, it is trusted."""
        from plait.app import toolbox

        chains = toolbox(self._loaded.project).chains
        wanted = [one for one in self._loaded.uses if one in mentions.text]
        foreign = [one for one in wanted if chains.get(one).tool.space.name != "system"]
        if foreign:
            raise InputError(
                f"the tools {listed(foreign)} are not sent to workers",
                fix="write shared: true under map, and have the project where it is here on every worker",
                code="not-on-cluster",
            )

    def errands(self, digest: str, fanned: Fanned, works: Sequence[ItemWork]) -> bytes:
        return travel.packed_errands(digest, [self._errand(fanned, work) for work in works])

    def _errand(self, fanned: Fanned, work: ItemWork) -> travel.Errand:
        if self._run.fresh:
            turn = fanned.turn
            return travel.Errand(work, turn.time_left(), turn.replaying)
        step, turn = fanned.placed(work)
        known = tuple(_known_below(self._run.journal, step, turn.path))
        return travel.Errand(work, turn.time_left(), turn.replaying, known)


def _known_below(journal: Journal, step: Step | None, path: str) -> Iterator[Recorded]:
    """The finished steps inside one, also of those that were not finished themselves."""
    inner = {f"{path}/{one.name}": one for one in (step.inner if step is not None else ())}
    seen: set[str] = set()
    for known in journal.recorded_in(path):
        seen.add(known.path)
        yield known
        yield from _known_below(journal, inner.get(known.path), known.path)
    for below, one in inner.items():
        if below not in seen and one.inner:
            yield from _known_below(journal, one, below)


@dataclass(frozen=True, slots=True)
class _Mentions:
    """What the steps of the items name, by their text: what they do not name is not sent, if it is secret."""

    text: str
    words: frozenset[str]

    @classmethod
    def of(cls, loaded: Loaded) -> _Mentions:
        from plait import documents
        from plait.documents.nodes import Mapping as MappingNode
        from plait.flows.compose import compose

        flow = compose(documents.load(loaded.path), loaded.path, project=loaded.project)
        document = flow.document
        node = document.get("map") if isinstance(document, MappingNode) else None
        blocks = [step.data() for name in flow.blocks.names() for step in _steps_of(flow.blocks.get(name))]
        text = repr([None if node is None else node.data(), blocks])
        return cls(text, frozenset(re.findall(r"\w+", text)))

    def sendable(self, names: Mapping[str, Json]) -> dict[str, Json]:
        return {
            name: travel.sealed(value)
            for name, value in names.items()
            if name in self.words or not _holds_secret(value)
        }

    def named_variables(self, environ: Mapping[str, Json]) -> dict[str, Json]:
        """What `env.NAME` asks for."""
        names = set(re.findall(r"\benv\.(\w+)", self.text))
        return {name: travel.sealed(environ[name]) for name in sorted(names & environ.keys())}


def _steps_of(block: object) -> tuple[Json, ...]:
    return tuple(getattr(block, "steps", ()))


def _holds_secret(value: Json) -> bool:
    match value:
        case Secret():
            return True
        case Mapping():
            return any(map(_holds_secret, value.values()))
        case list():
            return any(map(_holds_secret, value))
    return False


def _files(loaded: Loaded) -> dict[str, bytes]:
    """The files that a flow is made of, and those that it ships, by their paths in the project."""
    from plait import documents
    from plait.beneath import read_beneath
    from plait.flows.compose import compose

    root = os.path.realpath(loaded.project)
    own = os.path.relpath(os.path.realpath(loaded.path), root)
    if own.startswith(os.pardir):
        what = "the flow is not in its project, so that its files cannot be sent"
        raise InputError(what, loaded.path, "write shared: true under map", code="not-on-cluster")
    flow = compose(documents.load(loaded.path), loaded.path, project=loaded.project)
    found: dict[str, bytes] = {}
    for name in (own, *flow.others, *_shipped(root, loaded.ships)):
        read = read_beneath(root, name)
        if read is not None:
            found[name] = read[0]
    if sum(map(len, found.values())) > MOST_SHIPPED:
        raise LimitError(
            f"the files under ship have more than {MOST_SHIPPED >> 20} MiB",
            loaded.path,
            "put the project on storage that all hosts share, and write shared: true",
            code="too-much-shipped",
        )
    return found


def _shipped(root: str, patterns: tuple[str, ...]) -> Iterator[str]:
    import glob

    for pattern in patterns:
        names = glob.glob(pattern, root_dir=root, recursive=True, include_hidden=True)
        files = [name for name in sorted(names) if os.path.isfile(os.path.join(root, name))]
        if not files:
            what = f"no file is called '{pattern}', which is to be shipped"
            raise InputError(what, root, "patterns are seen from the project: data/*.csv", code="no-file")
        yield from files


# ── where the items are performed ────────────────────────────────────────


class _Place:
    """A parcel, unpacked."""

    def __init__(self, parcel: travel.Parcel) -> None:
        self.parcel = parcel
        self.errands: dict[str, Stop] = {}
        """By the path of their items."""
        self._folder = None if parcel.shared else _unpacked_files(parcel)
        project = parcel.project if self._folder is None else self._folder.name
        self.loaded = _loaded(parcel, project)
        self.project = project
        self.folder = parcel.folder if self._folder is None else os.path.join(project, ".ai", "state")
        self.scope = self._scope()
        self.env = {**os.environ, **self.loaded.process_env()}
        inside_project = os.path.relpath(parcel.directory, parcel.project)
        self.directory = os.path.normpath(os.path.join(project, inside_project))

    def _scope(self) -> Scope:
        from plait.app import printed_by
        from plait.scope import Scope

        env = {**os.environ, **self.loaded.process_env()}
        sources = self.loaded.sources(run=lambda bound, place: printed_by(bound, place, env))
        scope = Scope({}, label="run", sources=sources)
        for label, levels in self.parcel.frames[1:]:
            scope = scope.frame(label, **travel.opened(self._moved(levels)))
        return scope

    def _moved(self, levels: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
        """`workflow.dir` is where the files are."""
        facts = levels.get("workflow", {}).get("workflow")
        if self._folder is None or not isinstance(facts, dict) or "dir" not in facts:
            return dict(levels)
        workflow = {
            **levels["workflow"],
            "workflow": {**facts, "dir": self.project, "path": self.loaded.path},
        }
        return {**levels, "workflow": workflow}

    def run(self, journal: Journal, stop: Stop) -> WorkingRun:
        from plait.app.hands import RealHands
        from plait.backends.local import LocalThreads
        from plait.masking import Masker
        from plait.steps.hands import WorkingRun

        settings = self.parcel.settings
        masker = Masker(secrets) if (secrets := self.loaded.secret_texts()) else None
        run = WorkingRun(
            settings.run,
            journal,
            stop=stop,
            mask=masker.mask if masker else str,
            accept_changes=settings.accept_changes,
            repeat=settings.repeat,
            retried=settings.retried,
            told=False,
        )
        run.masker = masker
        run.folder = self.folder
        run.backend = LocalThreads()
        run.hands = RealHands(
            self.project,
            self.folder,
            stop,
            env=self.loaded.process_env(),
            keeps_overflow=settings.keeps_overflow and self.parcel.shared,
            note=lambda message: run.note("", message),
        )
        return run

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def fan(self) -> Fan:
        fan = self.loaded.program.fan
        assert fan is not None
        return fan


_PLACES: dict[str, _Place] = {}
_RECEIVING = threading.Lock()


def receive(message: bytes) -> bytes | None:
    """Make ready what all items of a parcel need; a reply if that cannot be."""
    versions, digest, data = travel.unpacked(message)
    if versions != travel.own_versions():
        return travel.packed_reply(travel.Foreign(travel.own_versions(), worker_name()))
    import pickle

    with _RECEIVING:
        if digest in _PLACES:
            return None
        try:
            _PLACES[digest] = _Place(pickle.loads(data))
        except PlaitError as error:
            return travel.packed_reply(_refused(error, f"worker {worker_name()}: "))
        idle = [name for name, place in _PLACES.items() if not place.errands and name != digest]
        for name in idle[: max(0, len(_PLACES) - MOST_PARCELS)]:
            _PLACES.pop(name).close()
    return None


def forget(digest: str) -> None:
    with _RECEIVING:
        place = _PLACES.pop(digest, None)
    if place is not None:
        place.close()


def busy(digest: str) -> int:
    place = _PLACES.get(digest)
    return 0 if place is None else len(place.errands)


def perform(message: bytes) -> bytes:
    """Perform some items, one after the other."""
    import pickle

    versions, digest, data = travel.unpacked(message)
    if versions != travel.own_versions():
        return travel.packed_reply(travel.Foreign(travel.own_versions(), worker_name()))
    place = _PLACES.get(digest)
    if place is None:
        return travel.packed_reply(travel.Missing(worker_name()))
    return travel.packed_reply(_all_performed(place, pickle.loads(data)))


def _all_performed(place: _Place, errands: Sequence[travel.Errand]) -> travel.Several:
    """Until the last, or one that does not end as items do, or others should hear of those that ended."""
    began = time.monotonic()
    replies: list[Single] = []
    for errand in errands:
        spent = time.monotonic() - began
        if replies and (spent > LONGEST or not isinstance(replies[-1], travel.Performed)):
            break
        left = errand.seconds_left
        replies.append(_performed(place, errand, None if left is None else max(0.0, left - spent)))
    return travel.Several(tuple(replies), time.monotonic() - began)


def _performed(place: _Place, errand: travel.Errand, left: float | None) -> Single:
    from plait.steps.fan import elsewhere

    journal = MemoryJournal()
    if errand.known:
        journal.append(*map(_as_finished, errand.known))
        journal.reopened()
    known = len(errand.known)
    stop = Stop()
    path = f"{place.fan.name}/item:{errand.work.key}"
    with _at_work(place, path, stop):
        run = place.run(journal, stop)
        turn = Turn(
            run,
            place.fan.name,
            place.scope,
            deadline=None if left is None else time.monotonic() + left,
            replaying=errand.replaying,
            directory=place.directory,
            env=place.env,
        )
        try:
            reply = _tried(elsewhere(place.fan, turn, place.parcel.total), errand.work)
        finally:
            run.close()
    events = travel.worth_recording([stamped.event for stamped in journal.events(known)])
    return reply(place, events)


Single = travel.Performed | travel.Stopped | travel.Ended | travel.Refused
Answer = Callable[[_Place, tuple[Event, ...]], Single]


def _tried(fanned: Fanned, work: ItemWork) -> Answer:
    try:
        outcome = fanned.perform(work)
    except Interrupted:
        return lambda place, events: travel.Stopped()  # noqa: ARG005 - one shape for all
    except OutOfTime:
        return lambda place, events: travel.Stopped(out_of_time=True)  # noqa: ARG005 - the same
    except Aborted as aborted:
        failure, path = aborted.failure, aborted.path
        return lambda place, events: travel.Ended(failure, path, events)  # noqa: ARG005 - the same
    except PlaitError as error:
        refused = _refused(error)
        return lambda place, events: refused  # noqa: ARG005 - the same
    return lambda place, events: travel.Performed(
        _placed(outcome, place), tuple(_event_placed(event, place) for event in events)
    )


def _event_placed(event: Event, place: _Place) -> Event:
    if isinstance(event, StepFinished) and isinstance(event.outcome, Failed):
        return replace(event, outcome=_placed(event.outcome, place))
    return event


def _placed(outcome: Outcome, place: _Place) -> Outcome:
    """What a failure says of files, with the names that they have where the run is."""
    if place.project == place.parcel.project or not isinstance(outcome, Failed):
        return outcome
    message = outcome.failure.message.replace(place.project, place.parcel.project)
    return Failed(replace(outcome.failure, message=message))


def _refused(error: PlaitError, before: str = "") -> travel.Refused:
    return travel.Refused(type(error).__name__, f"{before}{error.what}", error.fix, error.code)


def _as_finished(known: Recorded) -> StepFinished:
    return StepFinished(
        known.path, "", known.title, known.fingerprint, known.outcome, known.duration, known.order
    )


def _unpacked_files(parcel: travel.Parcel) -> TemporaryDirectory[str]:
    from tempfile import TemporaryDirectory

    folder = TemporaryDirectory(prefix="plait-items-")
    for name, data in parcel.files.items():
        place = os.path.join(folder.name, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "xb") as file:
            file.write(data)
        if name in parcel.executable:
            os.chmod(place, 0o700)
    os.makedirs(os.path.join(folder.name, ".ai", "state"), mode=0o700, exist_ok=True)
    return folder


def _loaded(parcel: travel.Parcel, project: str) -> Loaded:
    from plait.flows.parameters import Surroundings
    from plait.flows.workflow import load_workflow

    path = os.path.join(project, os.path.relpath(parcel.path, parcel.project))
    if parcel.shared and not os.path.exists(path):
        raise InputError(
            "the flow is not where it is said to be shared",
            path,
            "mount the project at the same place on every worker, or take shared: true away",
            code="not-shared",
        )
    named = travel.opened(dict(parcel.named))
    hidden = frozenset(value.reveal() for value in named.values() if isinstance(value, Secret))
    around = Surroundings(
        travel.opened(dict(parcel.variables)),
        travel.opened(dict(parcel.env)),
        travel.opened(dict(parcel.secrets)),
        hidden,
    )
    revealed = {name: value.reveal() if isinstance(value, Secret) else value for name, value in named.items()}
    loaded = load_workflow(
        path,
        project=project,
        profile=parcel.settings.profile,
        strict=parcel.settings.strict,
        environ={**os.environ, **revealed},
        known=(travel.opened(dict(parcel.parameters)), around),
    )
    fan = loaded.program.fan
    if fan is None or fan.fingerprint != parcel.fingerprint:
        what = "the flow that is here is not the one that runs"
        raise InputError(what, path, "wait until storage shows the same files everywhere", code="changed")
    return loaded


# ── cancelling ───────────────────────────────────────────────────────────


@contextmanager
def _at_work(place: _Place, path: str, stop: Stop) -> Iterator[None]:
    """While an item is performed: whether it is still wanted is looked at by a thread for all."""
    _wait_for_twin(place, path)
    place.errands[path] = stop
    number = _LOOKOUT.add(task_watch(), stop)
    try:
        yield
    finally:
        _LOOKOUT.remove(number)
        place.errands.pop(path, None)


def _wait_for_twin(place: _Place, path: str) -> None:
    """The same item, cancelled and not yet ended here: two at a time would be one too many."""
    until = time.monotonic() + LONGEST_TWIN
    while (twin := place.errands.get(path)) is not None and time.monotonic() < until:
        twin.ask("cancelled")
        threading.Event().wait(LOOK)


class _Lookout:
    """Asks errands to stop that are wanted no longer: the run was stopped, or has died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, tuple[Callable[[], bool], Stop]] = {}
        self._number = 0
        self._thread: threading.Thread | None = None

    def add(self, is_unwanted: Callable[[], bool], stop: Stop) -> int:
        with self._lock:
            self._number += 1
            self._watched[self._number] = (is_unwanted, stop)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="plait-lookout", daemon=True)
                self._thread.start()
            return self._number

    def remove(self, number: int) -> None:
        with self._lock:
            self._watched.pop(number, None)

    def _look(self) -> None:
        while True:
            threading.Event().wait(LOOK)
            with self._lock:
                watched = list(self._watched.values())
            for is_unwanted, stop in watched:
                if not stop.is_set() and is_unwanted():
                    stop.ask("cancelled")


_LOOKOUT: Final = _Lookout()
