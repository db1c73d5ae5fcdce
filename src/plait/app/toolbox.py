"""The toolbox of a project: where tools are found, what calls them, and how they are approved."""

from __future__ import annotations

import os
from _thread import allocate_lock
from collections.abc import Callable, Mapping, Sequence
from os import PathLike

from plait.core.hints import TYPE_CHECKING

if TYPE_CHECKING:
    from plait.adapters.mcp.client import ApprovalFile, McpToolInfo
    from plait.core.hints import Any
    from plait.engine.stop import StopSignal
    from plait.scope import Sources
    from plait.template.shell.binding import BoundScript
    from plait.tools.invocation import Invocation, McpCall, PrimitiveResult
    from plait.tools.prepare import Toolbox
    from plait.tools.spaces import Space
    from plait.tools.trust.decisions import AskTrust
    from plait.tools.trust.seal import Seals


MAX_REAL_PATHS = 1000


def warm_up() -> None:
    """Start what the first process needs, while there is something else to do."""
    from plait.adapters.process.guardian_process import warm_up as start_guardian
    from plait.core.errors import MachineError, ProcessError

    try:
        start_guardian()
    except (ProcessError, MachineError):
        return  # the first process reports the error


_TOOLBOXES: dict[object, tuple[Mapping[Any, Any], Toolbox]] = {}
"""By project: the toolbox, and the environment that it was made in."""

_TOOLBOXES_LOCK = allocate_lock()


def toolbox(project: str | PathLike[str] | None = None, *, ask: AskTrust | None = None) -> Toolbox:
    """Return the toolbox of a project; it is cached until the environment changes."""
    root = project_root(project)
    key = (root, os.environ.get("USER_SPACE"), os.environ.get("HOME"), ask)
    known, environment = _TOOLBOXES.get(key), _raw_environment()
    if known is not None and known[0] == environment:
        return known[1]
    with _TOOLBOXES_LOCK:
        known, seen = _TOOLBOXES.get(key), dict(environment)
        if known is None:
            known = (seen, _new_toolbox(root, ask))
        elif known[0] != seen:
            from plait.core.records import replace

            known = (seen, replace(known[1], host=dict(os.environ)))
        _TOOLBOXES[key] = known
        return known[1]


def _raw_environment() -> Mapping[Any, Any]:
    """Return the raw data of `os.environ`: comparing it takes 1 µs, reading names takes 100."""
    raw = getattr(os.environ, "_data", os.environ)
    return raw if isinstance(raw, dict) else os.environ


def project_root(project: str | PathLike[str] | None) -> str:
    """Return the named folder, else the nearest project, else the current folder."""
    if project is not None:
        named = os.fspath(project)
        if not os.path.isdir(named):
            from plait.core.errors import InputError

            fix = "name the folder of the project"
            raise InputError(f"there is no folder '{named}'", fix=fix, code="no-directory")
        return _real_path(named if os.path.isabs(named) else os.path.join(os.getcwd(), named))
    from plait.core.projects import current_project

    return current_project()


_REAL_PATHS: dict[str, tuple[str, int, int]] = {}


def _real_path(path: str) -> str:
    """Return `os.path.realpath` of a folder, cached while the folder stays the same."""
    try:
        status = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    known = _REAL_PATHS.get(path)
    if known is None or known[1] != status.st_ino or known[2] != status.st_dev:
        if len(_REAL_PATHS) >= MAX_REAL_PATHS:
            _REAL_PATHS.clear()
        known = _REAL_PATHS[path] = (os.path.realpath(path), status.st_ino, status.st_dev)
    return known[0]


def _new_toolbox(root: str, ask: AskTrust | None) -> Toolbox:
    from plait.tools.chain import Chains
    from plait.tools.headers import ItemCache
    from plait.tools.prepare import Toolbox
    from plait.tools.snapshots import Snapshots
    from plait.tools.spaces import Space, Spaces
    from plait.tools.trust.decisions import Trust

    home = os.path.expanduser("~")
    user = user_space()
    spaces = Spaces(
        (
            Space("project", os.path.join(root, ".ai")),
            Space("user", user),
            Space("system", os.path.join(os.path.dirname(os.path.dirname(__file__)), "system")),
        ),
        root,
        _bundles,
    )
    return Toolbox(
        spaces=spaces,
        chains=Chains(spaces, ItemCache()),
        trust=Trust(user, project=root, ask=ask),
        snapshots=Snapshots(os.path.join(user, "cache", "items")),
        host=dict(os.environ),
        home=home,
        perform=_perform,
        ask=_first_line,
    )


def _bundles() -> tuple[Space, ...]:
    from plait.app.bundles import find_bundles

    return find_bundles()


_PRIMITIVES: dict[type, Callable[[Any], PrimitiveResult]] = {}


def _perform(invocation: Invocation) -> PrimitiveResult:
    carry_out = _PRIMITIVES.get(type(invocation))
    if carry_out is None:
        carry_out = _PRIMITIVES[type(invocation)] = _primitive_for(invocation)
    return carry_out(invocation)


def call_until_stopped(invocation: Invocation, stop: StopSignal) -> PrimitiveResult:
    """Do the same for a run that may be stopped: processes of its tools end with it."""
    from plait.tools.invocation import FunctionCall, ProcessCall

    if isinstance(invocation, ProcessCall):
        from plait.adapters.process.process import call_process

        return call_process(invocation, cancel=stop)
    if isinstance(invocation, FunctionCall):
        from plait.adapters.function import call_function

        return call_function(invocation, cancel=stop)
    return _perform(invocation)


def _primitive_for(invocation: Invocation) -> Callable[[Any], PrimitiveResult]:
    """Return the adapter for a kind of invocation; import it at first use."""
    from plait.tools.invocation import FunctionCall, McpCall, ProcessCall, RequestCall

    match invocation:
        case ProcessCall():
            from plait.adapters.process.process import call_process

            return call_process
        case RequestCall():
            from plait.adapters.http.client import send_request

            return send_request
        case FunctionCall():
            from plait.adapters.function import call_function

            return call_function
        case McpCall():
            from plait.adapters.mcp.client import call_mcp

            return call_mcp


def inspect_mcp_tool(call: McpCall) -> McpToolInfo:
    """Return a tool as its MCP server describes it now, for the user to approve."""
    from plait.adapters.mcp.client import McpClients

    with McpClients(mcp_approvals()) as clients:
        return clients.tool_info(call)


def approve_mcp(offered: McpToolInfo) -> None:
    """Approve a tool of an MCP server, as long as its description stays the same."""
    mcp_approvals().put(offered.key, offered.digest)


def mcp_approvals() -> ApprovalFile:
    """What this user has approved of MCP servers."""
    from plait.adapters.mcp.client import ApprovalFile

    return ApprovalFile(os.path.join(user_space(), "trust", "mcp.json"))


def user_space() -> str:
    """Return the folder of the user's tools, keys and trust."""
    from plait.core.projects import user_folder

    return os.path.join(user_folder(), ".ai")


def is_trusted(project: str) -> bool:
    """Does the user trust the project?  The command that needs this trust reports its problems."""
    from plait.core.errors import TrustError
    from plait.tools.trust.decisions import Trust

    try:
        return Trust(user_space(), project).trusts_project
    except TrustError:
        return False


def seals_for(project: str) -> Seals:
    """The seals by which this user's own runs and results in a project are recognised."""
    from plait.tools.trust.seal import Seals

    return Seals(user_space(), project)


def _first_line(command: Sequence[str]) -> str | None:
    """Return the first line that a command prints, for interpreters that a command finds."""
    from plait.adapters.process.process import run
    from plait.core.errors import ProcessError

    try:
        finished = run(command, env=dict(os.environ), timeout=5.0)
    except ProcessError:
        return None
    lines = finished.stdout.decode("utf-8", "surrogateescape").splitlines()
    return lines[0].strip() if finished.exit_code == 0 and lines else None


def sources(directory: str | PathLike[str], *, commands: bool = True) -> Sources:
    """Return the computed values of this machine: environment, files, clock."""
    from plait.scope import Sources

    # A dry run starts no command, so its output is unknown.
    may_change = None if commands else lambda: False
    return Sources(
        directory,
        environ=os.environ,
        run=command_output if commands else None,
        may_change=may_change,
    )


COMMAND_TIMEOUT = 60.0


def command_output(bound: BoundScript, directory: str, env: Mapping[str, str] | None = None) -> str:
    """Return the output of the command of `${cmd:…}`."""
    from plait.adapters.process.process import run_shell
    from plait.core.errors import ProcessError

    finished = run_shell(
        bound,
        shell="sh",
        cwd=directory,
        env=dict(os.environ) if env is None else env,
        timeout=COMMAND_TIMEOUT,
    )
    if finished.exit_code != 0:
        # Without its output: a value, and so a secret, may be in it.
        raise ProcessError(
            f"the command of '${{cmd:…}}' ended with exit code {finished.exit_code}",
            fix="run it by hand and look at what it prints",
            code="command-failed",
        )
    return finished.stdout.decode("utf-8", "surrogateescape")
