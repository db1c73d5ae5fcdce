"""The services of a run on this machine: processes, tools, files, requests, models, results."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from plait.adapters.process.process import order_call, order_shell, run_shell
from plait.adapters.process.process_spec import ProcessResult
from plait.core.errors import InputError, LimitError, ProcessError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.values import Json
from plait.engine.stop import StopSignal

if TYPE_CHECKING:
    from plait.adapters.store.result_cache import ResultCache
    from plait.agents.messages import Provider, ToolOffer
    from plait.agents.providers.provider_files import Providers
    from plait.engine.context import Services
    from plait.program.ports import OnOutput, Subflow
    from plait.program.worktrees.ports import Worktrees
    from plait.template.shell.binding import BoundScript
    from plait.tools.call import ToolResult
    from plait.tools.code_params import CodeParams
    from plait.tools.invocation import Invocation, PrimitiveResult, RequestCall
    from plait.tools.prepare import Toolbox
    from plait.tools.trust.decisions import AskTrust

PIECE: Final = 1 << 20
MOST_KEPT: Final = 4 << 30
"""Bytes of long outputs that one run stores at most."""

WRITE_FILES: Final = ("core/file/write", "core/file/edit")
MOST_ELSEWHERE: Final = 64
"""Directories and environments for which tools are kept ready."""


def local_services(
    project: str,
    folder: str,
    stop: StopSignal,
    *,
    env: Mapping[str, str],
    ask: AskTrust | None = None,
    keeps_overflow: bool = True,
    note: Callable[[str], None] = lambda _: None,
    worktrees: Worktrees | None = None,
    is_dry: bool = False,
) -> Services:
    """Return the services of a run on this machine; a dry run gets only those that look.

    `folder`: the run's folder for outputs that are too long for the journal (if `keeps_overflow`).
    `env`: the variables of the flow.
    """
    from plait.agents.ports import Models, ToolCatalog
    from plait.engine.context import Services
    from plait.program.ports import (
        FileReader,
        Files,
        Http,
        Processes,
        Results,
        ToolChecks,
        Tools,
    )

    tools, files = LocalTools(project, folder, stop, env=env, ask=ask), LocalFiles(project, folder)
    looks: dict[type, object] = {ToolCatalog: tools, ToolChecks: tools, FileReader: files}
    if is_dry:
        return Services(looks)
    ports = {
        **looks,
        Processes: LocalProcesses(folder, keeps_overflow=keeps_overflow, note=note),
        Tools: tools,
        Files: files,
        Http: LocalHttp(),
        Models: LocalModels(project, ask=ask),
        Results: LocalResults(project),
    }
    if worktrees is not None:
        from plait.program.worktrees.ports import Worktrees

        ports[Worktrees] = worktrees
    return Services(ports)


class LocalProcesses:
    """Starts shell commands and git as processes of this machine."""

    def __init__(
        self,
        folder: str,
        *,
        keeps_overflow: bool = True,
        most_kept: int = MOST_KEPT,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._folder = folder
        self._keeps_overflow = keeps_overflow
        self._most_kept = most_kept
        self._note = note
        self._is_full = False
        self._lock = threading.Lock()

    async def shell(
        self,
        bound: BoundScript,
        *,
        shell: str,
        cwd: str,
        env: Mapping[str, str],
        more_env: Mapping[str, str],
        stdin: bytes,
        timeout: float | None,
        stop: StopSignal,
        on_output: OnOutput | None = None,
    ) -> ProcessResult:
        try:
            finished = await order_shell(
                bound,
                shell=shell,
                cwd=cwd,
                env=env,
                more_env=more_env,
                stdin=stdin,
                timeout=timeout,
                # The overflow goes to a file unmasked, so not if there are secrets to mask.
                overflow=self._keeps_overflow,
                cancel=stop,
                on_output=on_output,
            )
        except ProcessError as error:
            if isinstance(error.ended, ProcessResult) and error.ended.is_truncated:
                error.ended = self._keep_output(error.ended)
            raise
        return self._keep_output(finished) if finished.is_truncated else finished

    def _keep_output(self, finished: ProcessResult) -> ProcessResult:
        """Return the result, with long outputs as files in the folder of the run."""
        from plait.core.records import replace

        out, out_lost = self._move_output(finished.stdout_file)
        err, err_lost = self._move_output(finished.stderr_file)
        return replace(
            finished,
            stdout_file=out,
            stderr_file=err,
            stdout_lost=out_lost or finished.stdout_lost,
            stderr_lost=err_lost or finished.stderr_lost,
        )

    def _move_output(self, path: str | None) -> tuple[str | None, str]:
        """Return the path of the stored file, or why it is not stored."""
        from plait.program.ports import NO_ROOM

        if path is None:
            return None, ""
        folder = os.path.join(self._folder, "output")
        with self._lock:
            try:
                os.makedirs(folder, mode=0o700, exist_ok=True)
                if _size_below(folder) + os.path.getsize(path) <= self._most_kept:
                    return _put_below(folder, path), ""
            except OSError as error:
                from plait.adapters.process.output import not_written

                return None, not_written(error)
            finally:
                with suppress(FileNotFoundError):  # the file was moved there
                    os.unlink(path)
            self._say_full(folder)
            return None, NO_ROOM

    def _say_full(self, folder: str) -> None:
        if not self._is_full:
            self._is_full = True
            kept = f"{self._most_kept >> 20:,} MiB"
            self._note(
                f"outputs that are too long for the journal are no longer kept: {folder} has {kept}"
            )

    def lines(
        self,
        bound: BoundScript,
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout: float | None,
        stop: StopSignal,
    ) -> Iterator[bytes]:
        try:
            finished = run_shell(
                bound,
                shell="sh",
                cwd=cwd,
                env=env,
                timeout=timeout,
                overflow=True,
                cancel=stop,
            )
        except ProcessError as error:
            if isinstance(error.ended, ProcessResult):
                error.ended.remove_files()
            raise
        try:
            if finished.exit_code != 0:
                stderr = finished.stderr.decode("utf-8", "replace").strip().splitlines()[-3:]
                raise ProcessError(
                    f"the command that gives the items ended with exit code {finished.exit_code}"
                    + (": " + "\n".join(stderr) if stderr else ""),
                    fix="run it by hand and look at what it prints",
                    code="command-failed",
                )
            if finished.stdout_lost:
                raise LimitError(
                    f"not all items of the command could be kept: {finished.stdout_lost}",
                    fix="let it write a file, and name that as the input",
                    code="file-too-large",
                )
            yield from _pieces(finished)
        finally:
            finished.remove_files()

    def git(
        self, args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> bytes:
        finished = start_git(args, cwd=cwd, env=env, stdin=stdin)
        if finished.exit_code != 0:
            raise ProcessError(
                f"'git {args[0] if args else ''}' ended with exit code {finished.exit_code}",
                fix="run it by hand and look at what it says",
                code="git",
            )
        return finished.stdout


class LocalTools:
    """Calls tools of the project and the user, with the environment of the flow."""

    def __init__(
        self,
        project: str,
        folder: str,
        stop: StopSignal,
        *,
        env: Mapping[str, str],
        ask: AskTrust | None = None,
    ) -> None:
        self._project = project
        self._folder = folder
        self._stop = stop
        self._env = env
        self._ask = ask
        self._lock = threading.Lock()
        self._tools: Toolbox | None = None
        self._plain: dict[str, bool] = {}
        """By tool id: is the tool called at most once?"""
        self._code: dict[str, CodeParams] = {}
        self._directory = project
        """The folder that tools take for the project."""
        self._more_env: Mapping[str, str] = {}
        """Variables that tools get besides those of the flow."""
        self._elsewhere: dict[tuple[str, tuple[tuple[str, str], ...]], LocalTools] = {}

    def find_subflow(self, tool_id: str, params: Mapping[str, Json]) -> Subflow | None:
        if tool_id in self._plain:
            return None
        from plait.app.hooks import make_subflow
        from plait.app.subflows import load_tool

        loaded = load_tool(self._toolbox(), tool_id, params, project=self._project)
        if loaded is None:
            # A look at a tool takes as long as many calls; in a run the tool does not change.
            self._plain[tool_id] = self._toolbox().chains.get(tool_id).tool.header.once
            return None
        return make_subflow(loaded)

    def require_valid_call(self, tool_id: str, params: Mapping[str, Json]) -> None:
        from plait.agents.permissions import DIRECTIVE
        from plait.app.subflows import is_flow_tool, load_tool
        from plait.core.values import contains_unknown
        from plait.tools.config import validate_known_params

        tools = self._toolbox()
        if not tool_id.startswith(DIRECTIVE) and not is_flow_tool(tools, tool_id):
            validate_known_params(params, tools.chains.get(tool_id).tool)
        elif not contains_unknown(params):
            load_tool(tools, tool_id, params, project=self._project, running=False)

    def code(self, tool_id: str) -> CodeParams:
        known = self._code.get(tool_id)
        if known is None:
            from plait.app.subflows import find_code_params
            from plait.tools.code_params import NO_CODE

            known = find_code_params(self._toolbox(), tool_id)
            if known is None:
                return NO_CODE  # the call reports why; a tool that appears later is looked at then
            self._code[tool_id] = known
        return known

    def is_once(self, tool_id: str) -> bool:
        return self._plain.get(tool_id, False)

    def offers(self, patterns: Sequence[str], *, ask_servers: bool = True) -> tuple[ToolOffer, ...]:
        from plait.app.tool_catalog import offers

        return offers(self._toolbox(), patterns, ask_servers=ask_servers)

    def digest(self, tool_id: str) -> str | None:
        from plait.tools.prepare import digest_of_tool

        return digest_of_tool(self._toolbox(), tool_id)

    async def call(
        self,
        tool_id: str,
        params: Mapping[str, Json],
        *,
        timeout: float | None,
        on_output: OnOutput | None = None,
        trace: tuple[tuple[str, str], ...] = (),
    ) -> ToolResult:
        from plait.core.errors import TrustError
        from plait.tools.call import with_parameters, wrap_result
        from plait.tools.prepare import prepare

        if tool_id in WRITE_FILES and self._directory != self._project:
            self._require_unguarded()
        prepared = prepare(self._toolbox(), tool_id, params)
        began = time.monotonic()
        try:
            # Only the run's own secrets are masked in what a running step prints.
            live = None if prepared.secrets.has_any else on_output
            invocation = prepared.invocation
            if trace:
                from plait.tools.invocation import with_trace

                invocation = with_trace(invocation, trace)
            returned = await self._call_primitive(invocation, timeout, live)
        except TrustError as refused:
            raise with_parameters(refused, prepared) from None
        return wrap_result(tool_id, prepared, returned, time.monotonic() - began)

    def is_process(self, tool_id: str) -> bool:
        from plait.core.errors import PlaitError

        try:
            chain = self._toolbox().chains.get(tool_id)
        except PlaitError:
            return False  # the call reports why
        return chain.primitive == "core/primitives/subprocess" and not chain.tool.header.once

    def _require_unguarded(self) -> None:
        """Raise InputError in a guarded folder: tools that write files must not pass the guard."""
        from plait.core.safe_files import find_guarded_folder

        top = item_project_root(self._folder, self._project, self._directory) or self._project
        inside = os.path.relpath(os.path.realpath(self._directory), os.path.realpath(top))
        if (guarded := find_guarded_folder(inside)) is not None:
            raise InputError(
                f"'{guarded}' is not written by this tool",
                fix=f"'{guarded}' can start programs, or decides what may run: change it by hand",
                code="guarded",
            )

    def _toolbox(self) -> Toolbox:
        """Return the toolbox for the environment of the flow; all calls of a run share it."""
        from plait.app.toolbox import call_until_stopped, toolbox
        from plait.core.records import replace

        with self._lock:
            if self._tools is None:
                tools = toolbox(self._project, ask=self._ask)
                host = {**tools.host, **self._env, **self._more_env}
                if self._directory != self._project:
                    moved = replace(tools.spaces, project=self._directory)
                    tools = replace(tools, spaces=moved, own_project=self._project)
                self._tools = replace(
                    tools, host=host, perform=partial(call_until_stopped, stop=self._stop)
                )
            return self._tools

    async def _call_primitive(
        self, invocation: Invocation, timeout: float | None, on_output: OnOutput | None
    ) -> PrimitiveResult:
        from plait.core.records import replace
        from plait.tools.invocation import ProcessCall

        if timeout is not None:
            own = invocation.limits.timeout
            limit = timeout if own is None else min(own, timeout)
            invocation = replace(invocation, limits=replace(invocation.limits, timeout=limit))
        if isinstance(invocation, ProcessCall):
            result: PrimitiveResult = await order_call(
                invocation, cancel=self._stop, on_output=on_output
            )
            return result
        return self._toolbox().perform(invocation)

    def at(self, directory: str, env: Mapping[str, str]) -> LocalTools:
        host = self._toolbox().host
        own = (
            ()
            if env == host
            else tuple((name, env[name]) for name in env if host.get(name) != env[name])
        )
        if not own and directory == self._directory:
            return self
        from copy import copy

        with self._lock:
            moved = self._elsewhere.get((directory, own))
            if moved is None:
                moved = copy(self)
                moved._directory, moved._more_env = directory, dict(own)
                moved._tools, moved._lock, moved._elsewhere = None, threading.Lock(), {}
                if len(self._elsewhere) >= MOST_ELSEWHERE:
                    self._elsewhere.pop(next(iter(self._elsewhere)))
                self._elsewhere[directory, own] = moved
            return moved


class LocalFiles:
    """Reads and writes files below the project, or below the worktree of an item."""

    def __init__(self, project: str, folder: str) -> None:
        self._project = project
        self._folder = folder

    def read(self, path: str, *, directory: str) -> bytes:
        from plait.adapters.files import read_file

        return read_file(self._root(directory), path, directory=directory)

    def write(
        self, path: str, data: bytes, *, directory: str, mode: int | None, create_dirs: bool
    ) -> str:
        from plait.adapters.files import write_file

        root = self._root(directory)
        return write_file(root, path, data, directory=directory, mode=mode, create_dirs=create_dirs)

    def copy(self, source: str, path: str, *, directory: str) -> str:
        from mmap import ACCESS_READ, mmap

        from plait.adapters.files import write_file

        with open(source, "rb") as file:
            data = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
        return write_file(self._root(directory), path, data, directory=directory, create_dirs=True)

    def _root(self, directory: str) -> str:
        """Return the folder that files may not leave: the project, or the worktree of the item."""
        return item_project_root(self._folder, self._project, directory) or self._project

    def is_inside(self, directory: str) -> bool:
        top = os.path.realpath(self._project)
        return os.path.commonpath([top, os.path.realpath(directory)]) == top


class LocalHttp:
    def request(self, call: RequestCall) -> PrimitiveResult:
        from plait.adapters.http.client import send_request

        return send_request(call)


class LocalModels:
    """Finds the providers of the project, the user and the system."""

    def __init__(self, project: str, *, ask: AskTrust | None = None) -> None:
        self._project = project
        self._ask = ask
        self._lock = threading.Lock()
        self._providers: Providers | None = None

    def provider(self, name: str | None) -> Provider | None:
        from plait.adapters.http.client import stream_request
        from plait.agents.providers.provider_files import Providers
        from plait.app.toolbox import toolbox

        with self._lock:
            if self._providers is None:
                tools = toolbox(self._project, ask=self._ask)
                # Without the variables of the flow: data must not choose the host that gets a key.
                self._providers = Providers(
                    tools.spaces,
                    tools.trust,
                    stream_request,
                    environ=tools.host,
                    project=self._project,
                )
        return self._providers.get(name)


class LocalResults:
    """Stores results of tools beyond a run, in the project."""

    def __init__(self, project: str) -> None:
        self._project = project
        self._kept_results: ResultCache | None = None

    def recall(self, key: str) -> Json:
        return self._results.get(key)

    def keep(self, key: str, value: Json) -> None:
        self._results.put(key, value)

    @property
    def _results(self) -> ResultCache:
        if self._kept_results is None:
            from plait.adapters.store.result_cache import ResultCache
            from plait.app.toolbox import seals_for

            self._kept_results = ResultCache(self._project, seals=seals_for(self._project))
        return self._kept_results


def item_project_root(folder: str, project: str, directory: str) -> str | None:
    """Return the project folder inside the worktree of an item; None for any other folder."""
    top = os.path.join(os.path.realpath(folder), "worktrees")
    name = os.path.relpath(os.path.realpath(directory), top).split(os.sep)[0]
    if name in (os.pardir, os.curdir):
        return None
    place = os.path.join(top, name)
    if not os.path.isfile(os.path.join(place, ".git")):
        return place  # a folder of copies
    from plait.core.safe_files import project_in_worktree

    return project_in_worktree(place, project)


def _put_below(folder: str, path: str) -> str:
    """Move a file; if it does not fit, nothing of it stays there."""
    import shutil

    place = os.path.join(folder, os.path.basename(path))
    try:
        shutil.move(path, place)
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(place)
        raise
    return place


def _size_below(folder: str) -> int:
    with os.scandir(folder) as found:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in found)


GIT_TIMEOUT: Final = 3600.0
"""Seconds for git: it waits for no network, terminal or program, but files may be many."""
GIT_OUTPUT: Final = 256 * 1024 * 1024


def start_git(
    args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
) -> ProcessResult:
    """Run git; `env` is added to an environment without `GIT_…` variables."""
    from plait.adapters.process.process import run

    around = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    finished = run(
        ["git", *args],
        cwd=cwd,
        env={**around, **env},
        stdin=stdin,
        timeout=GIT_TIMEOUT,
        max_output=GIT_OUTPUT,
    )
    if finished.is_truncated:
        raise LimitError(
            f"'git {args[0]}' printed too much", fix="use a smaller repository", code="git-output"
        )
    return finished


def _pieces(finished: ProcessResult) -> Iterator[bytes]:
    if finished.stdout_file is None:
        yield finished.stdout
        return
    with open(finished.stdout_file, "rb") as file:
        while piece := file.read(PIECE):
            yield piece
