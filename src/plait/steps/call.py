"""Call a tool: chain, rules, trust, environment, invocation, primitive, envelope.

A dry run is the same road, stopped before the primitive.  Nothing of a project
is executed on the way: headers are read, bytes are verified, and what was
verified is what runs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence

from plait.errors import InputError
from plait.hints import Protocol
from plait.records import dataclass, replace
from plait.tools.anchors import (
    Anchored,
    Dependency,
    anchor_environment,
    dependencies,
    find_anchor,
    library,
)
from plait.tools.beneath import read_beneath
from plait.tools.bind import Call, bind
from plait.tools.chain import Chain, Chains
from plait.tools.config import checked_params, resolved_configs
from plait.tools.environment import (
    DotEnv,
    Environment,
    author_template,
    interpreter_names,
    read_dotenv,
    resolve_environment,
)
from plait.tools.interpreters import Ask, Surroundings
from plait.tools.invocation import FunctionCall, Invocation, McpCall, ProcessCall, RequestCall, Returned
from plait.tools.items import Item, digest_of
from plait.tools.rules import Pair, validate
from plait.tools.snapshots import Snapshots
from plait.tools.spaces import Spaces
from plait.tools.trust import Trust, Verdict
from plait.values import MASK, Json, json_text


class Perform(Protocol):
    """Carries an invocation out; `app` knows which primitive does."""

    def __call__(self, invocation: Invocation) -> Returned: ...


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What calling a tool takes, made once per project and process."""

    spaces: Spaces
    chains: Chains
    trust: Trust
    snapshots: Snapshots
    host: Mapping[str, str]
    home: str
    perform: Perform
    ask: Ask | None = None
    dotenv_allowed: frozenset[str] = frozenset()
    timeout: float | None = None
    """Seconds that the caller gives a tool, whatever its author wrote."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call that only has to be carried out."""

    chain: Chain
    pairs: tuple[Pair, ...]
    verdicts: tuple[Verdict, ...]
    environment: Environment
    invocation: Invocation
    shadowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The envelope: status, item id, data, chain, metadata."""

    item_id: str
    success: bool
    data: Json
    error: str | None
    chain: tuple[Mapping[str, Json], ...]
    metadata: Mapping[str, Json]

    def record(self) -> dict[str, Json]:
        record: dict[str, Json] = {
            "status": "success" if self.success else "error",
            "type": "tool",
            "item_id": self.item_id,
            "data": self.data,
            "chain": [dict(element) for element in self.chain],
            "metadata": dict(self.metadata),
        }
        return record if self.success else {**record, "error": self.error}


def call_tool(toolbox: Toolbox, item_id: str, params: Mapping[str, Json]) -> ToolResult:
    """Run a tool and wrap what it gave."""
    prepared = prepare(toolbox, item_id, params)
    began = time.monotonic()
    returned = toolbox.perform(prepared.invocation)
    duration = time.monotonic() - began
    metadata: dict[str, Json] = {
        "duration_ms": round(duration * 1000, 3),
        "resolved_env_keys": sorted(prepared.environment.child),
        **returned.metadata,
    }
    if returned.exit_code is not None:
        metadata["exit_code"] = returned.exit_code
    if returned.signal is not None:
        metadata["signal"] = returned.signal
    if returned.overflow is not None:
        metadata["overflow"] = returned.overflow
    return ToolResult(item_id, returned.success, returned.data, returned.error, _records(prepared), metadata)


def dry_run(toolbox: Toolbox, item_id: str, params: Mapping[str, Json]) -> dict[str, Json]:
    """What a call would do: the seed's record, and everything that the primitive would get."""
    prepared = prepare(toolbox, item_id, params, masked=True)
    return {
        "status": "validation_passed",
        "item_id": item_id,
        "chain": list(prepared.chain.ids),
        "validated_pairs": [pair.record() for pair in prepared.pairs],
        "shadows": list(prepared.shadowed),
        "trust": [verdict.record() for verdict in prepared.verdicts],
        **_shown(prepared),
    }


def prepare(
    toolbox: Toolbox,
    item_id: str,
    params: Mapping[str, Json],
    *,
    masked: bool = False,
    checked: bool = True,
) -> Prepared:
    """Everything but the primitive; `masked` hides secrets, for people to see.

    Not `checked`: the schema is not asked, for those who only want to know what a tool would reach.
    """
    if not isinstance(params, Mapping):
        raise InputError("parameters are a map", fix='pass {"name": value}', code="wrong-type")
    chain = toolbox.chains.get(item_id)
    pairs = validate(chain)
    params = checked_params(params, chain.tool) if checked else dict(params)
    anchored = find_anchor(chain, toolbox.spaces.project)
    declared = next((item.header.verify_deps for item in chain.elements if item.header.verify_deps), None)
    deps = _read_all(dependencies(anchored, declared, chain.tool), chain)
    lib = _read_all(library(anchored, declared), chain)
    verdicts = toolbox.trust.require([*chain.elements, *deps, *lib])
    trusted = _by_project(verdicts)
    context = _context(toolbox, chain, anchored, deps, lib, project_trusted=trusted)
    environment = _environment(toolbox, chain, anchored, context, project_trusted=trusted, dry=masked)
    if chain.tool.header.config_resolve:
        # Also if nothing was found: a caller could otherwise give it.
        resolved = resolved_configs(chain.tool.header.config_resolve, toolbox.spaces, chain.tool.path)
        params = {**params, "resolved_config": resolved}
    call = Call(
        chain=chain,
        params=params,
        context=context,
        environment=environment,
        project=toolbox.spaces.project,
        cwd=_directory(anchored, context),
    )
    invocation = bind(call)  # also before it is masked: what it refuses, a dry run refuses
    if masked:
        environment = _masked(environment)
        invocation = bind(replace(call, params=json.loads(json_text(params)), environment=environment))
    invocation = _limited(invocation, toolbox.timeout)
    # What a tool hides is for people only: finding the bundles of other packages takes longer than a call.
    shadowed = _shadowed(toolbox, item_id) if masked else ()
    return Prepared(chain, pairs, verdicts, environment, invocation, shadowed)


# ── the parts of `prepare`, in order ─────────────────────────────────────


def _read_all(files: Sequence[Dependency], chain: Chain) -> list[Item]:
    items: list[Item] = []
    for dependency in files:
        contents = read_beneath(dependency.space.root, dependency.relative)
        if contents is None:
            raise InputError(f"{dependency.path} has just gone", fix="run the command again", code="vanished")
        data = contents[0]
        stem = os.path.splitext(dependency.relative)[0].removeprefix("tools/")
        items.append(
            Item("tool", stem, dependency.space, dependency.path, data, digest_of(data), chain.tool.header)
        )
    return items


def _context(
    toolbox: Toolbox,
    chain: Chain,
    anchored: Anchored | None,
    deps: list[Item],
    lib: list[Item],
    *,
    project_trusted: bool,
) -> dict[str, str]:
    """The `{name}` parameters of seed 000's table; paths lead to the verified bytes."""
    tool = chain.tool
    # Installed packages are not verified: those that a project brings count as little as the project.
    installed = project_trusted or tool.space.name != "project"
    placed = toolbox.snapshots.place(tool, anchored, deps, installed=installed)
    system = next(space for space in toolbox.spaces.spaces if space.name == "system")
    user = next(space for space in toolbox.spaces.spaces if space.name == "user")
    context = {
        "tool_path": placed.tool_path,
        "tool_dir": os.path.dirname(tool.path),
        "tool_parent": os.path.dirname(os.path.dirname(tool.path)),
        "project_path": toolbox.spaces.project or os.getcwd(),
        "user_space": os.path.dirname(user.root),
        "system_space": system.root,
    }
    if anchored is not None and (project_trusted or not anchored.is_project):
        context["anchor_path"] = anchored.path if anchored.is_project else placed.anchor_path
    if anchored is not None and anchored.runtime_lib:
        copied = toolbox.snapshots.place_library(anchored.runtime_lib, lib) if lib else anchored.runtime_lib
        context["runtime_lib"] = copied
    return context


def _environment(
    toolbox: Toolbox,
    chain: Chain,
    anchored: Anchored | None,
    context: Mapping[str, str],
    *,
    project_trusted: bool,
    dry: bool,
) -> Environment:
    project = toolbox.spaces.project
    around = Surroundings(
        roots=(project,) if project and project_trusted else (),
        host=toolbox.host,
        home=toolbox.home,
        ask=None if dry else toolbox.ask,
    )
    dotenv = _dotenv(toolbox, chain) if project_trusted else DotEnv()
    environment = resolve_environment(chain, host=toolbox.host, dotenv=dotenv, around=around, context=context)
    if anchored is None:
        return environment
    # From a project that is not trusted nothing may be loaded, whatever a runtime puts on its paths.
    paths = context if project_trusted else {k: v for k, v in context.items() if k != "project_path"}
    changed = anchor_environment(anchored, environment.child, paths)
    return replace(environment, child={**environment.child, **changed})


def _dotenv(toolbox: Toolbox, chain: Chain) -> DotEnv:
    project = toolbox.spaces.project or "/"
    # A look first: most projects have none, and to open a file safely takes longer than all else here.
    contents = read_beneath(project, ".env") if os.path.lexists(f"{project}/.env") else None
    if contents is None:
        return DotEnv()
    text = contents[0].decode("utf-8", "surrogateescape")
    return read_dotenv(text, interpreter_names(chain), allowed=toolbox.dotenv_allowed)


def _by_project(verdicts: tuple[Verdict, ...]) -> bool:
    """Did the user trust the whole project, its `.env` and its interpreters included?"""
    return any(verdict.project_trusted for verdict in verdicts)


def _directory(anchored: Anchored | None, context: Mapping[str, str]) -> str:
    if anchored is not None and anchored.anchor.cwd:
        template = author_template(anchored.anchor.cwd)
        if all(hole in context for hole in template.placeholders):
            return os.path.join(context["project_path"], str(template.render(context)))
    return context["project_path"]


def _limited(invocation: Invocation, timeout: float | None) -> Invocation:
    if timeout is None:
        return invocation
    return replace(invocation, limits=replace(invocation.limits, timeout=timeout))


def _shadowed(toolbox: Toolbox, item_id: str) -> tuple[str, ...]:
    answering = toolbox.spaces.find(item_id)
    hidden = toolbox.spaces.shadowed(answering) if answering is not None else ()
    return tuple(found.path for found in hidden)


def _masked(environment: Environment) -> Environment:
    child = {name: replace(value, value=value.shown) for name, value in environment.child.items()}
    lookup = {
        name: MASK if name in environment.secrets else value for name, value in environment.lookup.items()
    }
    return replace(environment, child=child, lookup=lookup)


# ── what people and programs see ─────────────────────────────────────────


def _records(prepared: Prepared) -> tuple[Mapping[str, Json], ...]:
    elements = [
        {
            "item_id": item.id,
            "space": item.space.label,
            "tool_type": item.header.tool_type,
            "executor_id": item.header.executor_id,
            "integrity": item.digest,
        }
        for item in prepared.chain.elements
    ]
    last = {
        "item_id": prepared.chain.primitive,
        "space": "system",
        "tool_type": "primitive",
        "executor_id": None,
    }
    return (*elements, last)


def _shown(prepared: Prepared) -> dict[str, Json]:
    env = {name: value.origin for name, value in sorted(prepared.environment.child.items())}
    match prepared.invocation:
        case ProcessCall() as call:
            return {
                "argv": list(call.argv),
                "cwd": call.cwd,
                "env": {**env, **{name: "config" for name in call.env if name not in env}},
                "stdin": call.stdin.decode("utf-8", "replace"),
                "limits": {"timeout": call.limits.timeout, "max_output": call.limits.max_output},
            }
        case RequestCall() as call:
            return {
                "request": {
                    "method": call.method,
                    "url": call.url,
                    "headers": {name: _shown_header(name, value) for name, value in call.headers},
                    "body": None if call.body is None else call.body.decode("utf-8", "replace"),
                },
                "limits": {"timeout": call.limits.timeout, "attempts": call.retry.attempts},
            }
        case FunctionCall() as call:
            return {"function": call.function, "file": call.path, "params": dict(call.params)}
        case McpCall() as call:
            server = list(call.server.command) or call.server.url
            return {"server": server, "tool": call.tool, "params": dict(call.params), "env": env}


def _shown_header(name: str, value: str) -> str:
    hidden = {"authorization", "cookie", "proxy-authorization", "x-api-key", "api-key"}
    return MASK if name.lower() in hidden else value
