"""Packs a flow and its items for workers: `app.remote.worker` unpacks them there.

The files of the flow are sent as text, and all its secrets, sealed.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from plait.adapters.dask.protocol import SealedSecret
from plait.app.remote import worker
from plait.app.remote.payload import ItemTask, JobPayload, Settings, pack_items, pack_job, seal
from plait.app.toolbox import toolbox
from plait.core import documents
from plait.core.documents.nodes import Mapping as MappingNode
from plait.core.errors import InputError, LimitError, Problem, format_names
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass
from plait.core.safe_files import read_below
from plait.core.values import Json, Secret
from plait.engine.backend import MapRun, WorkItem
from plait.engine.journal import Journal, StepRecord
from plait.engine.paths import is_item, join_path
from plait.engine.step import Step, iter_steps
from plait.lang.workflow.compose import compose

if TYPE_CHECKING:
    from plait.engine.context import RunContext
    from plait.lang.loaded import LoadedFlow
    from plait.program.map import Map

MOST_SHIPPED: Final = 64 << 20
"""Bytes of files that a worker gets."""


def require_remote_capable(loaded: LoadedFlow) -> None:
    """Raise an InputError with everything that keeps the items of a flow from workers."""
    map_step = loaded.program.map
    problems = [] if map_step is None else list(_problems(loaded, map_step))
    if problems:
        raise InputError.together(problems)


def _problems(loaded: LoadedFlow, map_step: Map) -> Iterator[Problem]:
    fix = "run the flow with --backend local"
    if map_step.isolation is not None:
        yield Problem(
            "a map with isolation cannot run on a cluster", None, fix, code="not-on-cluster"
        )
    if loaded.program.hooks or loaded.program.limits.record():
        what = "a flow with hooks or limits cannot run on a cluster: they are kept in one process"
        yield Problem(what, None, fix, code="not-on-cluster")
    if loaded.program.tracks:
        what = (
            "a flow that tracks changes (such as step.files_*, git.* or commit_required) cannot "
            "run on a cluster: they are tracked in one process"
        )
        yield Problem(what, None, fix, code="not-on-cluster")
    for path, step in iter_steps(map_step):
        if step.policy.at_most_once:
            what = (
                f"step '{step.title}' ({path}) may run at most once, and a worker that dies is "
                "replaced"
            )
            more = f"{fix}, or let the step run in reduce"
            yield Problem(what, None, more, code="not-on-cluster")


class FlowPacker:
    """The JobPacker of one run."""

    perform = f"{worker.__name__}:{worker.perform_items.__name__}"
    receive = staticmethod(worker.receive_job)
    drop = staticmethod(worker.drop_job)
    stop = staticmethod(worker.stop_job)

    def __init__(self, loaded: LoadedFlow, run: RunContext, *, profile: str | None) -> None:
        self._loaded = loaded
        self._run = run
        self._profile = profile

    def takes(self, map_run: MapRun) -> bool:
        map_step = self._loaded.program.map
        if map_step is None or map_run.ctx.path != map_step.name:
            return False
        require_remote_capable(self._loaded)
        return True

    def pack_job(self, map_run: MapRun, *, shared: bool) -> tuple[str, bytes]:
        loaded, ctx, map_step = self._loaded, map_run.ctx, self._loaded.program.map
        assert map_step is not None
        shared = shared or loaded.shared
        mentions = _Mentions.of(loaded)
        files = {} if shared else _files(loaded)
        if not shared:
            self._require_system_tools(mentions)
        environment = loaded.environment
        return pack_job(
            JobPayload(
                path=loaded.path,
                project=loaded.project,
                folder=self._run.folder,
                directory=ctx.directory,
                files=files,
                executable=frozenset(
                    name for name in files if os.access(os.path.join(loaded.project, name), os.X_OK)
                ),
                shared=shared,
                fingerprint=map_step.fingerprint,
                total=map_run.total,
                settings=self._settings(),
                parameters=_sendable(loaded.parameters),
                variables=_sendable(environment.vars),
                env=_sendable(environment.env),
                secrets=_sendable(environment.secrets),
                masked=[SealedSecret(text) for text in self._run.secrets.values()],
                env_variables=mentions.env_variables(environment.environ(loaded.environ)),
                frames=[
                    (
                        frame.label,
                        {level: _sendable(names) for level, names in frame.levels.items()},
                    )
                    for frame in reversed(ctx.scope.frames)
                ],
            )
        )

    def _settings(self) -> Settings:
        run = self._run
        return Settings(
            run=run.id,
            strict=self._loaded.strict,
            keep_going=self._loaded.keep_going,
            profile=self._profile,
            timeout=self._loaded.timeout,
            text=run.replay.text,
            marked_done=run.replay.marked_done,
            retried=run.replay.retried,
            keeps_overflow=not self._loaded.secret_texts(),
        )

    def _require_system_tools(self, mentions: _Mentions) -> None:
        """Raise an InputError if an item calls a tool of the project or the user.

        Workers have the tools of the system. Others are not sent: trust in them is local.
        """
        chains = toolbox(self._loaded.project).chains
        wanted = [one for one in self._loaded.tool_uses if one in mentions.text]
        foreign = [one for one in wanted if chains.get(one).tool.space.name != "system"]
        if foreign:
            raise InputError(
                f"the tools {format_names(foreign)} are not sent to workers",
                fix="write shared: true under map, and have the project where it is here on every worker",
                code="not-on-cluster",
            )

    def add_secrets(self, secrets: Iterable[Secret]) -> None:
        self._run.secrets.add(secret.reveal() for secret in secrets)

    def pack_items(self, digest: str, map_run: MapRun, items: Sequence[WorkItem]) -> bytes:
        return pack_items(digest, [self._item_task(map_run, item) for item in items])

    def _item_task(self, map_run: MapRun, item: WorkItem) -> ItemTask:
        if self._run.replay.is_first_run:
            ctx = map_run.ctx
            return ItemTask(item, ctx.time_left(), ctx.can_replay)
        step, ctx = map_run.item_step(item)
        records = tuple(_records_below(self._run.journal, step, ctx.path, ctx.replay_after))
        usage = tuple(self._run.budgets.earlier.below(ctx.path))
        return ItemTask(item, ctx.time_left(), ctx.can_replay, records, usage)


def _records_below(
    journal: Journal, step: Step | None, path: str, after: int
) -> Iterator[StepRecord]:
    """The outcomes that count of all steps inside one, also of those that did not finish."""
    inner = {join_path(path, one.name): one for one in (step.children if step is not None else ())}
    seen: set[str] = set()
    for record in _valid_records(journal.steps_in(path), after):
        seen.add(record.path)
        yield record
        yield from _records_below(journal, inner.get(record.path), record.path, after)
    for below, one in inner.items():
        if below not in seen and one.children:
            yield from _records_below(journal, one, below, after)


def _valid_records(steps: Iterable[StepRecord], after: int) -> Iterator[StepRecord]:
    """The records that are newer than those of all steps before them; items have no order."""
    last, order = after, 0
    newest = after
    for record in steps:
        if record.order > order and not is_item(record.path):
            last, order = newest, record.order
        if record.number > last:
            newest = max(newest, record.number)
            yield record


@dataclass(frozen=True, slots=True)
class _Mentions:
    """The names in the text of the items' steps."""

    text: str

    @classmethod
    def of(cls, loaded: LoadedFlow) -> _Mentions:
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
        """Those that an `env.NAME` names, with their values."""
        names = set(re.findall(r"\benv\.(\w+)", self.text))
        return {name: seal(environ[name]) for name in sorted(names & environ.keys())}


def _block_steps(block: object) -> tuple[Json, ...]:
    return tuple(getattr(block, "steps", ()))


def _sendable(names: Mapping[str, Json]) -> dict[str, Json]:
    return {name: seal(value) for name, value in names.items()}


def _files(loaded: LoadedFlow) -> dict[str, bytes]:
    """By path in the project: the files of the flow, and those under `ship`."""
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
    for pattern in patterns:
        names = glob.glob(pattern, root_dir=root, recursive=True, include_hidden=True)
        files = [name for name in sorted(names) if os.path.isfile(os.path.join(root, name))]
        if not files:
            what = f"no file is called '{pattern}', which is to be shipped"
            raise InputError(
                what, root, "patterns are seen from the project: data/*.csv", code="no-file"
            )
        yield from files
