"""Prepare a call of a tool: chain, rules, trust, environment, invocation.

Nothing of a project is executed on the way: headers are read, bytes are verified, and the verified
bytes run.
"""

from __future__ import annotations

import os
import time
from _thread import allocate_lock
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from plait.core.digests import sha256_hex
from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Any, Protocol
from plait.core.records import dataclass, field, replace
from plait.core.safe_files import read_below
from plait.core.secret_names import password_in
from plait.core.values import (
    MASK,
    MOST_LEVELS,
    Json,
    Secret,
    deep_copy,
    is_deeper,
    too_deep_error,
)
from plait.tools.anchors import (
    FUNCTION,
    ActiveAnchor,
    Dependency,
    ToolFolder,
    anchor_environment,
    dependencies,
    find_anchor,
    is_opened,
    library,
    marker_places,
    may_load_beside,
    tool_folder,
)
from plait.tools.bind import Binding
from plait.tools.chain import (
    FILE,
    FLOW,
    IDENTITY,
    MAX_CACHED,
    TARGET,
    Chain,
    Chains,
    PathState,
    Place,
    is_old_enough,
    is_unchanged,
    path_state,
    watched_path,
)
from plait.tools.chain_rules import Pair, validate
from plait.tools.config import config_files, resolve_configs, validate_params, with_defaults
from plait.tools.environment import (
    DotEnv,
    Environment,
    author_template,
    interpreter_names,
    read_dotenv,
    resolve_environment,
)
from plait.tools.interpreters import Ask, SearchPaths
from plait.tools.invocation import (
    Invocation,
    PrimitiveResult,
    ProcessCall,
    Verified,
)
from plait.tools.snapshots import Snapshots
from plait.tools.spaces import Spaces, normalize_id
from plait.tools.tool_file import ToolFile, VerifyDeps
from plait.tools.trust import manifest_reader
from plait.tools.trust.decisions import Trust, TrustDecision
from plait.tools.trust.signatures import has_comment_syntax

if TYPE_CHECKING:
    from plait.core.masking import Masker


class CallPrimitive(Protocol):
    """Executes an invocation; `app` knows which primitive does it."""

    def __call__(self, invocation: Invocation) -> PrimitiveResult: ...


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Everything that a call of a tool needs; made once per project and process."""

    spaces: Spaces
    chains: Chains
    trust: Trust
    snapshots: Snapshots
    host: Mapping[str, str]
    home: str
    perform: CallPrimitive
    ask: Ask | None = None
    dotenv_allowed: frozenset[str] = frozenset()
    timeout: float | None = None
    """The caller's timeout in seconds; it overrides the author's."""
    own_project: str | None = None
    """The user's project folder, if tools use another one; its `.env` and interpreters are used."""
    clock: Callable[[], float] = time.time
    ready: ToolCache = field(
        init=False, compare=False, repr=False, default_factory=lambda: ToolCache()
    )
    """A cache of its own: tools prepared for another host or with other trust are not used here."""


@dataclass(frozen=True, slots=True)
class PreparedTool:
    """A prepared tool: everything that does not depend on the parameters."""

    chain: Chain
    pairs: tuple[Pair, ...]
    decisions: tuple[TrustDecision, ...]
    environment: Environment
    binding: Binding
    resolved: Mapping[str, Json]
    """The files of config/ that the tool names, as `resolved_config`; from the verified bytes."""
    records: tuple[Mapping[str, Json], ...]
    """The chain as the result's envelope shows it."""
    env_names: tuple[str, ...]
    secrets: frozenset[str] = field(repr=False)
    """Every secret in the tool's environment; hidden in messages, which are for people."""
    handed: frozenset[str] = field(repr=False)
    """The secrets that the tool gets. They are masked in its data too, where an unnecessary
    mask would change an answer.
    """
    rests_on: tuple[Place, ...] | None
    """All paths that were read or checked while preparing; None if they cannot be listed."""
    copied: tuple[tuple[str, str], ...] = ()
    """Folders of verified copies, each with the original folder."""
    left_out: tuple[str, ...] = ()
    """Files beside the tool that were not copied, with reasons."""


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call that is ready to be executed."""

    ready: PreparedTool
    params: Mapping[str, Json] = field(repr=False)
    """The parameters of the caller, with the defaults of the schema."""
    environment: Environment
    invocation: Invocation
    shadowed: tuple[str, ...]

    @property
    def all_params(self) -> dict[str, Json]:
        """All parameters that the binding used."""
        return {**self.params, **self.ready.resolved}

    @property
    def secrets(self) -> SecretMask:
        """Masks every secret in the tool's environment, for messages."""
        return SecretMask(self.ready.secrets, self.params)

    @property
    def passed_secrets(self) -> SecretMask:
        """Masks the secrets that the tool gets, for data that people see."""
        return SecretMask(self.ready.handed, self.params)


def digest_of_tool(toolbox: Toolbox, item_id: str) -> str | None:
    """The digest of all files that decide what a tool does; None for a flow, which calls other
    tools.
    """
    chain = toolbox.chains.get(item_id)
    if chain.primitive == FLOW:
        return None
    deps, beside = _loadable_files(toolbox, chain)
    files = [f"{item.path}\0{item.digest}" for item in (*deps, *beside)]
    return sha256_hex("\0".join([chain.digest, *files]).encode("utf-8", "surrogateescape"))


def find_refused_files(toolbox: Toolbox, item_id: str) -> list[TrustDecision]:
    """The files beside the tool's own that it can load and that cause its refusal."""
    deps, beside = _loadable_files(toolbox, toolbox.chains.get(item_id))
    required = (decision for item in deps if not (decision := toolbox.trust.decide(item)).allowed)
    return [*required, *toolbox.trust.find_refused(beside)]


def _loadable_files(toolbox: Toolbox, chain: Chain) -> tuple[list[ToolFile], list[ToolFile]]:
    """The files that a tool declares or that are below its anchor, and the other files of its
    folder.
    """
    anchored = find_anchor(chain, toolbox.spaces.project)
    declared = _deps_declaration(chain)
    deps = _read_all(
        [*dependencies(anchored, declared, chain.tool), *library(anchored, declared)], chain
    )
    beside, _ = _read_beside(tool_folder(chain, anchored), deps, chain)
    return deps, beside


def prepare(
    toolbox: Toolbox,
    item_id: str,
    params: Mapping[str, Json],
    *,
    masked: bool = False,
    checked: bool = True,
) -> PreparedCall:
    """Prepare and bind a call, but execute nothing; `masked` hides secrets, for people.

    Without `checked`, the parameters are not checked by the schema: the caller only wants to know
    what the tool would use.
    """
    if not isinstance(params, Mapping):
        raise InputError("parameters are a map", fix='pass {"name": value}', code="wrong-type")
    if any(isinstance(one, dict | list) and is_deeper(one, MOST_LEVELS) for one in params.values()):
        raise too_deep_error()
    item_id = normalize_id(item_id)

    def check_params(chain: Chain) -> dict[str, Json]:
        if not checked:
            return with_defaults(params, chain.tool)
        return validate_params(params, chain.tool, chain.elements)

    ready = toolbox.ready.get(item_id, dry=masked, now=toolbox.clock())
    if ready is None:
        ready = _prepare_tool(toolbox, item_id, dry=masked, before_trust=check_params)
    params = check_params(ready.chain)
    declared = {name for item in ready.chain.elements for name in item.header.secrets}
    if not declared.isdisjoint(params):
        params = {
            name: _as_secret(value) if name in declared else value for name, value in params.items()
        }
    given = {**params, **ready.resolved}
    environment = ready.environment
    invocation = ready.binding.bind(
        given
    )  # also if secrets are masked afterwards: a dry run refuses the same values
    if masked:
        environment = _mask_environment(environment)
        invocation = ready.binding.in_environment(environment).bind(deep_copy(given))
    limits = invocation.limits
    if toolbox.timeout is not None:
        limits = replace(limits, timeout=toolbox.timeout)
    if isinstance(invocation, ProcessCall) and not ready.handed and not _secrets_in(params):
        # A folder for output beyond the limit; secrets in it would not be masked.
        folder = os.path.join(os.path.dirname(toolbox.snapshots.root), "output")
        limits = replace(limits, overflow=folder)
    if limits is not invocation.limits:
        invocation = replace(invocation, limits=limits)
    # Hidden tools are shown to people only: finding the bundles of other packages takes longer than
    # a call.
    shadowed = _find_shadowed(toolbox, item_id) if masked else ()
    return PreparedCall(ready, params, environment, invocation, shadowed)


def _as_secret(value: Json) -> Json:
    match value:
        case str():
            return Secret(value)
        case list():
            return [_as_secret(item) for item in value]
        case dict():
            return {key: _as_secret(item) for key, item in value.items()}
    return value


# ── the part that does not depend on parameters ──────────────────────────────


class ToolCache:
    """Caches prepared tools until something that they depend on changes. Safe to share between
    threads.

    The first call of a tool learns what it depends on. The second records the state of all of
    that before it reads anything. Later calls find the state unchanged, or prepare the tool
    again.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, bool], _CachedCall] = {}
        self._lock = allocate_lock()

    def get(self, item_id: str, *, dry: bool, now: float) -> PreparedTool | None:
        """The prepared tool, if nothing that it depends on has changed."""
        known = self._known.get((item_id, dry))
        # If the clock was set back, a signature could be from the future.
        if known is None or not known.seen or now < known.when or not is_unchanged(known.seen):
            return None
        return known.ready

    def current_states(self, item_id: str, *, dry: bool) -> tuple[PathState, ...]:
        """The present state of everything that the prepared tool depends on."""
        known = self._known.get((item_id, dry))
        places = () if known is None else known.ready.rests_on or ()
        return tuple(path_state(kind, path) for kind, path in places)

    def keep(
        self,
        item_id: str,
        ready: PreparedTool,
        seen: tuple[PathState, ...],
        *,
        dry: bool,
        now: float,
    ) -> None:
        """Keep a tool that was prepared at this time; `seen` is the state that was read before."""
        if ready.rests_on is None:
            return
        whole = ready.rests_on == tuple((kind, path) for kind, path, _ in seen) and is_old_enough(
            seen, now
        )
        with self._lock:
            self._known.pop((item_id, dry), None)
            if len(self._known) >= MAX_CACHED:
                self._known.pop(next(iter(self._known)))
            self._known[item_id, dry] = _CachedCall(ready, seen if whole else (), now)


@dataclass(frozen=True, slots=True)
class _CachedCall:
    ready: PreparedTool
    seen: tuple[PathState, ...]
    when: float


def _prepare_tool(
    toolbox: Toolbox, item_id: str, *, dry: bool, before_trust: Callable[[Chain], object]
) -> PreparedTool:
    """Prepare a tool: chain, rules, trust, environment.

    `before_trust` may refuse before Plait asks a person.
    """
    now, seen = toolbox.clock(), toolbox.ready.current_states(item_id, dry=dry)
    chain = toolbox.chains.get(item_id)
    pairs = validate(chain)
    before_trust(chain)
    anchored = find_anchor(chain, toolbox.spaces.project)
    declared = _deps_declaration(chain)
    deps = _read_all(dependencies(anchored, declared, chain.tool), chain)
    lib = _read_all(library(anchored, declared), chain)
    asked = chain.tool.header.config_resolve
    configs = config_files(asked, toolbox.spaces, chain.tool.path) if asked else []
    decisions = toolbox.trust.require([*chain.elements, *deps, *lib, *configs], running=not dry)
    # True if the whole project is trusted, including its `.env` and its interpreters.
    trusted = any(decision.project_trusted for decision in decisions)
    folder = tool_folder(chain, anchored)
    found, odd = _read_beside(folder, deps, chain)
    admitted, unspoken = toolbox.trust.admit(found, running=not dry) if found else ([], [])
    deps += [decision.item for decision in admitted]
    opened = is_opened(chain) or (folder is not None and _knows_its_place(chain.tool, deps))
    context, copied = _context(
        toolbox, chain, anchored, deps, lib, project_trusted=trusted, opened=opened
    )
    project = toolbox.own_project or toolbox.spaces.project
    around = SearchPaths(
        roots=(project,) if project and trusted else (),
        host=toolbox.host,
        home=toolbox.home,
        ask=None if dry else toolbox.ask,
    )
    environment = _environment(toolbox, chain, anchored, context, around, project_trusted=trusted)
    # Files beside a tool are checked again each time, and so are searches that do not depend on a
    # path.
    alone = anchored is None and not may_load_beside(anchored, declared, chain.tool)
    can_cache = alone and toolbox.spaces.project is not None and None not in around.looked
    ready = PreparedTool(
        chain=chain,
        pairs=pairs,
        decisions=decisions,
        environment=environment,
        binding=Binding(
            chain,
            context,
            environment,
            toolbox.spaces.project,
            _directory(anchored, context),
            _importable(chain, deps, context) if chain.primitive == FUNCTION and deps else None,
        ),
        # Set it even if nothing was found, or a caller could set it.
        resolved={"resolved_config": resolve_configs(asked, configs)} if asked else {},
        records=_records(chain),
        env_names=tuple(sorted(environment.child)),
        secrets=_secret_values(environment, environment.secrets),
        handed=_secret_values(environment, _secret_names(chain, environment)),
        rests_on=tuple(
            dict.fromkeys(
                (
                    *_places(toolbox, chain, (*decisions, *admitted, *unspoken), context, around),
                    *((TARGET, path) for path in (folder.folders if folder else ())),
                    *((FILE, path) for path in odd),
                )
            )
        )
        if can_cache
        else None,
        copied=copied,
        left_out=(
            *(f"{decision.item.path}: {decision.why}" for decision in unspoken),
            *odd.values(),
        ),
    )
    toolbox.ready.keep(item_id, ready, seen, dry=dry, now=now)
    return ready


def _places(
    toolbox: Toolbox,
    chain: Chain,
    decisions: Sequence[TrustDecision],
    context: Mapping[str, str],
    around: SearchPaths,
) -> Iterator[Place]:
    """Yield every path that affects a tool without files beside it; if one changes, it is
    prepared again.
    """
    yield from chain.rests_on
    yield from ((TARGET, path) for path in marker_places(chain))
    for decision in decisions:
        yield from _places_of_trust(toolbox.trust, decision)
    for spec in chain.tool.header.config_resolve:  # also a missing file: it may be created
        yield from (
            watched_path(f"{space.root}/config/{spec.path}") for space in toolbox.spaces.all
        )
    if "tool_path" in context:
        yield IDENTITY, os.path.dirname(context["tool_path"])
    # Watch the path itself, even if it is missing: the folder of a project changes all the time.
    yield FILE, f"{toolbox.spaces.project}/.env"
    yield from ((TARGET, path) for path in around.looked if path is not None)


def _places_of_trust(trust: Trust, decision: TrustDecision) -> Iterator[Place]:
    """Everything that a trust decision depends on: files, the project, and write access."""
    item = decision.item
    yield IDENTITY, f"{trust.project}"
    # A file with a signature in a comment, or a file of Plait, needs no `.sig` file beside it.
    unasked = (
        f"{item.path}.sig"
        if item.space.name == "system" or has_comment_syntax(item.extension)
        else ""
    )
    yield from (watched_path(path) for path in trust.rests_on(decision) if path != unasked)
    if item.space.name == "system":
        yield FILE, f"{item.space.root}/{manifest_reader.NAME}"
    if item.space.name == "user":
        # Write access to a folder between an item and its space is write access to the item.
        folder = item.path
        while folder not in (item.space.root, os.path.dirname(folder)):
            folder = os.path.dirname(folder)
            yield TARGET, folder


# ── the steps of preparing, in order ─────────────────────────────────────────


def _deps_declaration(chain: Chain) -> VerifyDeps | None:
    """The `verify_deps` of the first element of the chain that has one."""
    return next(
        (item.header.verify_deps for item in chain.elements if item.header.verify_deps), None
    )


def _read_all(files: Sequence[Dependency], chain: Chain) -> list[ToolFile]:
    items: list[ToolFile] = []
    for dependency in files:
        contents = read_below(dependency.space.root, dependency.relative)
        if contents is None:
            raise InputError(
                f"{dependency.path} was removed just now",
                fix="run the command again",
                code="vanished",
            )
        data = contents[0]
        stem = os.path.splitext(dependency.relative)[0].removeprefix("tools/")
        items.append(
            ToolFile(
                "tool",
                stem,
                dependency.space,
                dependency.path,
                data,
                sha256_hex(data),
                chain.tool.header,
            )
        )
    return items


def _read_beside(
    folder: ToolFolder | None, deps: Sequence[ToolFile], chain: Chain
) -> tuple[list[ToolFile], dict[str, str]]:
    """The files of a tool's folder that are not in `deps`, and the unreadable files with the
    reason.
    """
    if folder is None:
        return [], {}
    odd = {path: f"{path}: it is a link, or no file" for path in folder.odd}
    known = {item.path for item in deps}
    items: list[ToolFile] = []
    for file in folder.files:
        if file.path in known:
            continue
        try:
            items += _read_all([file], chain)
        except InputError as error:
            odd[file.path] = f"{file.path}: {error.what}"
    return items, odd


def _importable(
    chain: Chain, files: Sequence[ToolFile], context: Mapping[str, str]
) -> dict[str, Verified]:
    """The Python files in the folder of a function, by their path in it."""
    tool = chain.tool
    here = os.path.dirname(tool.path)
    copy = os.path.dirname(context.get("tool_path", tool.path))
    relative = {os.path.relpath(item.path, here): item for item in (tool, *files)}
    return {
        path.replace(os.sep, "/"): Verified(item.path, os.path.join(copy, path), item.data)
        for path, item in relative.items()
        if path.endswith(".py") and not path.startswith("..")
    }


def _context(
    toolbox: Toolbox,
    chain: Chain,
    anchored: ActiveAnchor | None,
    deps: list[ToolFile],
    lib: list[ToolFile],
    *,
    project_trusted: bool,
    opened: bool,
) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """The parameters of a runtime, such as `{tool_path}`; their paths lead to the verified bytes.

    Also returns the folders of these bytes, each with the original folder.
    """
    tool = chain.tool
    system = next(space for space in toolbox.spaces.spaces if space.name == "system")
    user = next(space for space in toolbox.spaces.spaces if space.name == "user")
    context = {
        "tool_dir": os.path.dirname(tool.path),
        "tool_parent": os.path.dirname(os.path.dirname(tool.path)),
        "project_path": toolbox.spaces.project or os.getcwd(),
        "user_space": os.path.dirname(user.root),
        "system_space": system.root,
    }
    if anchored is None and not opened:
        return context, ()
    # Installed packages are not verified: those of a project are trusted only if the project is.
    installed = project_trusted or tool.space.name != "project"
    placed = toolbox.snapshots.place(tool, anchored, deps, installed=installed)
    context["tool_path"] = placed.tool_path
    context["tool_dir"] = os.path.dirname(placed.tool_path)
    copied = [(placed.anchor_path, placed.copied_from)]
    if anchored is not None and (project_trusted or not anchored.is_project):
        context["anchor_path"] = anchored.path if anchored.is_project else placed.anchor_path
    if anchored is not None and anchored.runtime_lib:
        context["runtime_lib"] = anchored.runtime_lib
        if lib:
            context["runtime_lib"] = toolbox.snapshots.place_library(anchored.runtime_lib, lib)
            copied.append((context["runtime_lib"], anchored.runtime_lib))
    return context, tuple(copied)


def _knows_its_place(tool: ToolFile, files: Sequence[ToolFile]) -> bool:
    """Can a function read files by its own path? Then it gets the path of the verified copy."""
    return any(b"__file__" in item.data for item in (tool, *files) if item.path.endswith(".py"))


def _environment(
    toolbox: Toolbox,
    chain: Chain,
    anchored: ActiveAnchor | None,
    context: Mapping[str, str],
    around: SearchPaths,
    *,
    project_trusted: bool,
) -> Environment:
    dotenv = _dotenv(toolbox, chain) if project_trusted else DotEnv()
    environment = resolve_environment(
        chain, host=toolbox.host, dotenv=dotenv, around=around, context=context
    )
    if anchored is None:
        return environment
    # From a project that is not trusted nothing may be loaded, whatever paths a runtime sets.
    paths = (
        context if project_trusted else {k: v for k, v in context.items() if k != "project_path"}
    )
    changed = anchor_environment(anchored, environment.child, paths)
    return replace(environment, child={**environment.child, **changed})


def _dotenv(toolbox: Toolbox, chain: Chain) -> DotEnv:
    project = toolbox.own_project or toolbox.spaces.project or "/"
    # First check whether the file exists: most projects have none, and opening it safely takes
    # longer than everything else here.
    contents = read_below(project, ".env") if os.path.lexists(f"{project}/.env") else None
    if contents is None:
        return DotEnv()
    text = contents[0].decode("utf-8", "surrogateescape")
    return read_dotenv(text, interpreter_names(chain), allowed=toolbox.dotenv_allowed)


def _directory(anchored: ActiveAnchor | None, context: Mapping[str, str]) -> str:
    if anchored is not None and anchored.anchor.cwd:
        template = author_template(anchored.anchor.cwd)
        if all(placeholder in context for placeholder in template.placeholders):
            return os.path.join(context["project_path"], str(template.render(context)))
    return context["project_path"]


def _find_shadowed(toolbox: Toolbox, item_id: str) -> tuple[str, ...]:
    answering = toolbox.spaces.find(item_id)
    hidden = toolbox.spaces.find_shadowed(answering) if answering is not None else ()
    return tuple(found.path for found in hidden)


def _mask_environment(environment: Environment) -> Environment:
    child = {
        name: replace(value, value=value.display_value) for name, value in environment.child.items()
    }
    lookup = {
        name: MASK if name in environment.secrets else value
        for name, value in environment.lookup.items()
    }
    return replace(environment, child=child, lookup=lookup)


# ── secrets in output ────────────────────────────────────────────────────────


def _secret_names(chain: Chain, environment: Environment) -> list[str]:
    """The secrets of the environment that the authors of a chain name, or may name."""
    headers = [item.header for item in chain.elements]
    written = repr([(header.config, header.env_config) for header in headers])
    return [name for name in environment.secrets if name in written]


def _secret_values(environment: Environment, names: Iterable[str]) -> frozenset[str]:
    """The secret variables of the tool, and the values of these names in its environment."""
    declared = {value.value for value in environment.child.values() if value.secret}
    secrets = declared | {environment.lookup[name] for name in names if name in environment.lookup}
    return frozenset(secrets.union(filter(None, map(password_in, secrets))))


class SecretMask:
    """Masks all secrets, also those among the parameters; they are found when a text must be
    masked.
    """

    def __init__(self, secrets: frozenset[str], params: Mapping[str, Json]) -> None:
        self._secrets, self._params = secrets, params

    @property
    def has_any(self) -> bool:
        return bool(self._secrets) or bool(_secrets_in(self._params))

    def mask_secrets(self, value: Any) -> Any:
        """Mask the secrets in a text or another value."""
        if value is None or isinstance(value, int | float):
            return value
        secrets = self._secrets.union(_secrets_in(self._params))
        if not secrets:
            return value
        from plait.core.masking import (
            mask_value,
        )  # slow to load, and most calls have no secrets

        return mask_value(value, _masker(secrets).mask)


@lru_cache(maxsize=64)
def _masker(secrets: frozenset[str]) -> Masker:
    """Make the masker once for all calls of a tool: compiling it takes longer than using it."""
    from plait.core.masking import Masker

    return Masker(secrets)


def _secrets_in(value: Json) -> list[str]:
    match value:
        case Secret():
            return [value.reveal()]
        case Mapping():
            return [secret for item in value.values() for secret in _secrets_in(item)]
        case list():
            return [secret for item in value for secret in _secrets_in(item)]
    return []


def _records(chain: Chain) -> tuple[Mapping[str, Json], ...]:
    elements = [
        {
            "item_id": item.id,
            "space": item.space.label,
            "tool_type": item.header.tool_type,
            "executor_id": item.header.executor_id,
            "integrity": item.digest,
        }
        for item in chain.elements
    ]
    last = {
        "item_id": chain.primitive,
        "space": "system",
        "tool_type": "primitive",
        "executor_id": None,
    }
    return (*elements, last)
