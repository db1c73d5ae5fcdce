"""Items that are performed by another process, packed: what they need, and nothing else.

The files of the flow are sent as text; all its secrets go along, sealed.
What becomes of a parcel at the other end stands in `errands` and `workplace`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from plait.adapters.dask import protocol as travel
from plait.app.remote import worker as errands
from plait.core.errors import InputError, LimitError, Problem, format_names
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass
from plait.core.values import Json
from plait.engine.backend import MapRun, WorkItem
from plait.engine.journal import Journal, StepRecord
from plait.engine.paths import is_item
from plait.engine.step import Step, iter_steps

if TYPE_CHECKING:
    from plait.engine.context import RunContext
    from plait.lang.loaded import LoadedFlow
    from plait.program.map import Map

MOST_SHIPPED: Final = 64 << 20
"""Bytes of files that go to a worker."""


def require_remote_capable(loaded: LoadedFlow) -> None:
    """The items of a flow can be performed elsewhere; all that only the process with the journal
    can do.
    """
    fan = loaded.program.fan
    problems = [] if fan is None else list(_problems(loaded, fan))
    if problems:
        raise InputError.together(problems)


def _problems(loaded: LoadedFlow, fan: Map) -> Iterator[Problem]:
    fix = "run the flow with --backend local"
    if fan.isolation is not None:
        yield Problem(
            "a map with isolation cannot run on a cluster", None, fix, code="not-on-cluster"
        )
    if loaded.hooks or loaded.limits.record():
        what = "a flow with hooks or limits cannot run on a cluster: they are kept in one process"
        yield Problem(what, None, fix, code="not-on-cluster")
    if getattr(loaded.program, "tracks", ()):
        what = (
            "a flow that asks what its steps change cannot run on a cluster: git is asked in one "
            "place"
        )
        yield Problem(what, None, fix, code="not-on-cluster")
    for path, step in iter_steps(fan):
        if step.policy.at_most_once:
            what = (
                f"step '{step.title}' ({path}) may run only once, and a worker that dies is "
                "replaced"
            )
            more = f"{fix}, or let the step run in reduce"
            yield Problem(what, None, more, code="not-on-cluster")


class JobPacker:
    """Packs the items of one run; see `travel.Office`."""

    perform = "plait.app.remote.worker:perform_items"

    def __init__(self, loaded: LoadedFlow, run: RunContext, *, profile: str | None) -> None:
        self._loaded = loaded
        self._run = run
        self._profile = profile

    @property
    def receive(self) -> Callable[[bytes], bytes | None]:
        return errands.receive_job

    @property
    def forget(self) -> Callable[[str], None]:
        return errands.drop_job

    @property
    def halt(self) -> Callable[[str, bool], int]:
        return errands.stop_job

    def takes(self, fanned: MapRun) -> bool:
        fan = self._loaded.program.fan
        if fan is None or fanned.turn.path != fan.name:
            return False
        require_remote_capable(self._loaded)
        return True

    def parcel(self, fanned: MapRun, *, shared: bool) -> tuple[str, bytes]:
        """What all items share; `shared`: the workers see the project where it is, whatever the
        flow says.
        """
        loaded, turn, fan = self._loaded, fanned.turn, self._loaded.program.fan
        assert fan is not None
        shared = shared or loaded.shared
        mentions = _Mentions.of(loaded)
        files = {} if shared else _files(loaded)
        if not shared:
            self._require_system_tools(mentions)
        around = loaded.surroundings
        return travel.pack_job(
            travel.JobPayload(
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
                parameters=_sendable(loaded.parameters),
                variables=_sendable(around.vars),
                env=_sendable(around.env),
                secrets=_sendable(around.secrets),
                hidden=[travel.SealedSecret(text) for text in self._run.secrets.values()],
                named=mentions.env_variables(around.environ(loaded.environ)),
                frames=[
                    (
                        frame.label,
                        {level: _sendable(names) for level, names in frame.levels.items()},
                    )
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
            accept_changes=run.replay.accept_changes,
            said_done=run.replay.marked_done,
            retried=run.replay.retried,
            keeps_overflow=not self._loaded.secret_texts(),
        )

    def _require_system_tools(self, mentions: _Mentions) -> None:
        """Those of the system are everywhere; a file of the project that runs is not sent, it is
        trusted.
        """
        from plait.app.toolbox import toolbox

        chains = toolbox(self._loaded.project).chains
        wanted = [one for one in self._loaded.tool_uses if one in mentions.text]
        foreign = [one for one in wanted if chains.get(one).tool.space.name != "system"]
        if foreign:
            raise InputError(
                f"the tools {format_names(foreign)} are not sent to workers",
                fix="write shared: true under map, and have the project where it is here on every worker",
                code="not-on-cluster",
            )

    def learn(self, hidden: Iterable[travel.SealedSecret]) -> None:
        self._run.secrets.add(secret.to_secret().reveal() for secret in hidden)

    def errands(self, digest: str, fanned: MapRun, works: Sequence[WorkItem]) -> bytes:
        return travel.pack_items(digest, [self._errand(fanned, work) for work in works])

    def _errand(self, fanned: MapRun, work: WorkItem) -> travel.ItemTask:
        if self._run.replay.is_first_run:
            turn = fanned.turn
            return travel.ItemTask(work, turn.time_left(), turn.can_replay)
        step, turn = fanned.item_step(work)
        known = tuple(_records_below(self._run.journal, step, turn.path, turn.replay_after))
        used = tuple(self._run.budgets.earlier.below(turn.path))
        return travel.ItemTask(work, turn.time_left(), turn.can_replay, known, used)


def _records_below(
    journal: Journal, step: Step | None, path: str, after: int
) -> Iterator[StepRecord]:
    """The finished steps inside one, also of those that were not finished themselves; what counts
    of them.
    """
    inner = {f"{path}/{one.name}": one for one in (step.inner if step is not None else ())}
    seen: set[str] = set()
    for known in _in_force(journal.steps_in(path), after):
        seen.add(known.path)
        yield known
        yield from _records_below(journal, inner.get(known.path), known.path, after)
    for below, one in inner.items():
        if below not in seen and one.inner:
            yield from _records_below(journal, one, below, after)


def _in_force(steps: Iterable[StepRecord], after: int) -> Iterator[StepRecord]:
    """Those that were recorded after what is before them; items are all behind the same."""
    last, order = after, 0
    newest = after
    for known in steps:
        if known.order > order and not is_item(known.path):
            last, order = newest, known.order
        if known.number > last:
            newest = max(newest, known.number)
            yield known


@dataclass(frozen=True, slots=True)
class _Mentions:
    """What the steps of the items name, by their text."""

    text: str

    @classmethod
    def of(cls, loaded: LoadedFlow) -> _Mentions:
        from plait.core import documents
        from plait.core.documents.nodes import Mapping as MappingNode
        from plait.lang.workflow.compose import compose

        flow = compose(documents.load(loaded.path), loaded.path, project=loaded.project)
        document = flow.document
        node = document.get("map") if isinstance(document, MappingNode) else None
        blocks = [
            step.data()
            for name in flow.blocks.names()
            for step in _block_steps(flow.blocks.get(name))
        ]
        return cls(repr([None if node is None else node.data(), blocks]))

    def env_variables(self, environ: Mapping[str, Json]) -> dict[str, Json]:
        """What `env.NAME` asks for."""
        names = set(re.findall(r"\benv\.(\w+)", self.text))
        return {name: travel.seal(environ[name]) for name in sorted(names & environ.keys())}


def _block_steps(block: object) -> tuple[Json, ...]:
    return tuple(getattr(block, "steps", ()))


def _sendable(names: Mapping[str, Json]) -> dict[str, Json]:
    return {name: travel.seal(value) for name, value in names.items()}


def _files(loaded: LoadedFlow) -> dict[str, bytes]:
    """The files that a flow is made of, and those that it ships, by their paths in the project."""
    from plait.core import documents
    from plait.core.safe_files import read_below
    from plait.lang.workflow.compose import compose

    root = os.path.realpath(loaded.project)
    own = os.path.relpath(os.path.realpath(loaded.path), root)
    if own.startswith(os.pardir):
        what = "the flow is not in its project, so that its files cannot be sent"
        raise InputError(what, loaded.path, "write shared: true under map", code="not-on-cluster")
    flow = compose(documents.load(loaded.path), loaded.path, project=loaded.project)
    found: dict[str, bytes] = {}
    for name in (own, *flow.others, *_files_to_ship(root, loaded.shipped_files)):
        read = read_below(root, name)
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


def _files_to_ship(root: str, patterns: tuple[str, ...]) -> Iterator[str]:
    import glob

    for pattern in patterns:
        names = glob.glob(pattern, root_dir=root, recursive=True, include_hidden=True)
        files = [name for name in sorted(names) if os.path.isfile(os.path.join(root, name))]
        if not files:
            what = f"no file is called '{pattern}', which is to be shipped"
            raise InputError(
                what, root, "patterns are seen from the project: data/*.csv", code="no-file"
            )
        yield from files
