"""A file of a space: its bytes, its digest and a typed header.

Headers are read, never executed. An error in a header names its place; all errors of one file are
raised together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from plait.core.errors import DocumentError, Problem, closest_name
from plait.core.hints import Any, Final, Literal
from plait.core.records import dataclass, field, field_names
from plait.core.source import Span
from plait.core.values import Json
from plait.tools.code_params import schema_slips
from plait.tools.spaces import Space


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a header, with its place."""

    value: Json
    span: Span


INTERPRETER_TYPES: Final = (
    "local_binary", "system_binary", "version_manager", "command", "venv_python", "node_modules",
)  # fmt: skip
CONFIG_MODES: Final = ("deep_merge", "first_match")
ANCHOR_MODES: Final = ("auto", "always", "never")
ANCHOR_ROOTS: Final = ("tool_dir", "tool_parent", "project_path")
DEPENDENCY_SCOPES: Final = ("anchor", "tool_dir", "tool_siblings", "tool_file")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """How to find the program that runs a tool."""

    type: Literal[
        "local_binary", "system_binary", "version_manager", "command", "venv_python", "node_modules"
    ]
    var: str
    binary: str = ""
    candidates: tuple[str, ...] = ()
    search_paths: tuple[str, ...] = ()
    search_roots: tuple[str, ...] = ()
    resolve_cmd: tuple[str, ...] = ()
    manager: str = ""
    version: str = ""
    fallback: str = ""


@dataclass(frozen=True, slots=True)
class EnvConfig:
    interpreter: Interpreter | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    passes: tuple[str, ...] = ()
    """Names of variables of the host's environment that the tool gets."""


@dataclass(frozen=True, slots=True)
class ConfigResolve:
    path: str
    mode: Literal["deep_merge", "first_match"] = "deep_merge"


@dataclass(frozen=True, slots=True)
class Anchor:
    enabled: bool = True
    mode: Literal["auto", "always", "never"] = "auto"
    markers_any: tuple[str, ...] = ()
    search_up: bool = False
    """Markers are also searched in the folders above the tool's own, up to its space."""
    root: Literal["tool_dir", "tool_parent", "project_path"] = "tool_dir"
    lib: str = ""
    cwd: str = ""
    env_paths: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VerifyDeps:
    enabled: bool = True
    scope: Literal["anchor", "tool_dir", "tool_siblings", "tool_file"] = "anchor"
    recursive: bool = True
    extensions: tuple[str, ...] = (".py", ".yaml", ".yml", ".json")
    exclude_dirs: tuple[str, ...] = ("__pycache__", ".venv", "node_modules", ".git")


EVERY_CHILD: Final = "**"
"""The pattern of a constraint that names no child."""


@dataclass(frozen=True, slots=True)
class Constraint:
    min_version: str | None = None
    max_version: str | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """The header of an item."""

    executor_id: str | None = None
    version: str | None = None
    tool_type: str = ""
    category: str = ""
    description: str = ""
    env_config: EnvConfig | None = None
    config: Mapping[str, Json] = field(default_factory=dict)
    config_schema: Mapping[str, Json] | None = None
    config_resolve: tuple[ConfigResolve, ...] = ()
    anchor: Anchor | None = None
    verify_deps: VerifyDeps | None = None
    inputs: tuple[str, ...] = ()
    """The inputs that it requires."""
    outputs: tuple[str, ...] = ()
    child_constraints: Mapping[str, Constraint] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    """Names of variables and parameters with secret values."""
    once: bool = False
    """If it is unknown how a call ended, ask before calling again."""
    read_only: bool = False
    """The tool changes nothing. Other programs are told so."""


@dataclass(frozen=True, slots=True)
class ToolFile:
    """A tool, runtime or primitive file, as it was read once."""

    kind: str
    id: str
    space: Space
    path: str
    data: bytes
    digest: str
    header: Header

    @property
    def extension(self) -> str:
        return self.path[self.path.rfind(".") :]


def _is_optional(spec: Json) -> bool:
    if not isinstance(spec, dict):
        return False
    return spec.get("required") is False or spec.get("optional") is True or "default" in spec


INFORMATIONAL: Final = frozenset(
    {
        "name", "title", "author", "tags", "parameters", "input_schema", "output_schema", "requires",
        "tool_id", "created_at", "updated_at", "examples", "execution_params", "execution_owner",
        "native_async", "native_resume", "allowed_threads", "allowed_targets", "permissions", "env_requires",
        "limits",
    }
)  # fmt: skip
"""Keys that other programs write for people; they change nothing here."""


GRAPH_RUNTIME: Final = "core/runtimes/state-graph/runtime"
GRAPH_KEYS: Final = frozenset(
    {"start", "nodes", "state", "max_steps", "max_concurrency", "on_error", "hooks", "timeout"}
)
"""Keys that a graph may have beside its header, or below `config`."""
ENSEMBLE_RUNTIME: Final = "core/runtimes/ensemble/runtime"
ENSEMBLE_KEYS: Final = frozenset(
    {
        "agents", "tasks", "workflow", "process", "strategy", "manager", "loops", "map", "on_error",
        "max_parallel", "provider", "llm", "model", "hooks", "timeout", "phases", "verbose",
    }
)  # fmt: skip
FLOWS: Final = {"graph": (GRAPH_RUNTIME, GRAPH_KEYS), "ensemble": (ENSEMBLE_RUNTIME, ENSEMBLE_KEYS)}
"""The tools whose file is a flow, by `tool_type`: the runtime, and the keys beside the header."""


def parse_header(entries: Mapping[str, Entry], *, kind: str = "tool") -> Header:
    """Return a typed header, or raise an error with all problems."""
    reader = _HeaderReader(entries)
    header = reader.header()
    reader.unknown(kind)
    if reader.problems:
        raise DocumentError.together(reader.problems)
    return header


class _HeaderReader:
    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self.entries = entries
        self.problems: list[Problem] = []

    def header(self) -> Header:
        runtime, _ = self._flow()
        return Header(
            executor_id=self._text("executor_id", runtime),
            version=self._text("version", None),
            tool_type=self._text("tool_type", "") or "",
            category=self._text("category", "") or "",
            description=self._text("description", "") or "",
            env_config=self._read_nested("env_config", self._env_config),
            config=self._map("config") or {},
            config_schema=self._schema(),
            config_resolve=self._config_resolve(),
            anchor=self._read_nested("anchor", self._anchor),
            verify_deps=self._read_nested("verify_deps", self._verify_deps),
            inputs=self._read_required_inputs(),
            outputs=self._names("outputs"),
            child_constraints=self._constraints(),
            secrets=self._names("secrets"),
            once=self._flag("once"),
            read_only=self._flag("read_only"),
        )

    def _flow(self) -> tuple[str | None, frozenset[str]]:
        """The default executor of a flow, and its further keys."""
        named = self.entries.get("tool_type")
        return (
            FLOWS.get(str(named.value), (None, frozenset()))
            if named is not None
            else (None, frozenset())
        )

    def unknown(self, kind: str) -> None:
        known = set(field_names(Header)) | self._flow()[1]
        for key, entry in self.entries.items():
            if key not in known and key not in INFORMATIONAL:
                self._wrong(entry, f"'{key}' is not a key of a {kind}", _suggest_key(key, known))

    # ── single keys ──────────────────────────────────────────────────────

    def _text(self, key: str, default: str | None) -> str | None:
        entry = self.entries.get(key)
        if entry is None or entry.value is None:
            return default
        if isinstance(entry.value, str):
            return entry.value
        if key == "version" and isinstance(entry.value, int) and not isinstance(entry.value, bool):
            # but not a float: 1.10 would become 1.1, which is another version
            return str(entry.value)
        self._wrong(entry, f"'{key}' is text", f'write {key}: "…"')
        return default

    def _flag(self, key: str) -> bool:
        entry = self.entries.get(key)
        if entry is None or entry.value is None:
            return False
        if not isinstance(entry.value, bool):
            self._wrong(entry, f"'{key}' is true or false", f"write {key}: true")
        return entry.value is True

    def _map(self, key: str) -> dict[str, Json] | None:
        entry = self.entries.get(key)
        if entry is None or entry.value is None:
            return None
        if isinstance(entry.value, dict):
            return entry.value
        self._wrong(entry, f"'{key}' is a map", f"write '{key}:' and its keys below")
        return None

    def _schema(self) -> dict[str, Json] | None:
        schema = self._map("config_schema")
        if schema is not None and "code" in str(schema).lower():
            for what, fix in schema_slips(schema):
                self._wrong(self.entries["config_schema"], what, fix)
        return schema

    def _names(self, key: str) -> tuple[str, ...]:
        entry = self.entries.get(key)
        if entry is None or entry.value is None:
            return ()
        names = list(entry.value) if isinstance(entry.value, list | dict) else None
        named = [name.get("name") if isinstance(name, dict) else name for name in names or ()]
        if names is None or not all(isinstance(name, str) for name in named):
            self._wrong(entry, f"'{key}' is a list of names", f"write {key}: [text, files]")
            return ()
        return tuple(str(name) for name in named)

    def _read_required_inputs(self) -> tuple[str, ...]:
        """Return all inputs except those that are not required or have a default."""
        names, entry = self._names("inputs"), self.entries.get("inputs")
        value = entry.value if entry is not None else None
        listed = (
            list(value.values())
            if isinstance(value, dict)
            else value
            if isinstance(value, list)
            else []
        )
        return tuple(
            name for name, spec in zip(names, listed, strict=False) if not _is_optional(spec)
        )

    def _read_nested(self, key: str, read: Callable[[Entry, dict[str, Json]], Any]) -> Any:
        value = self._map(key)
        return None if value is None else read(self.entries[key], value)

    # ── nested maps ──────────────────────────────────────────────────────

    def _env_config(self, entry: Entry, value: dict[str, Json]) -> EnvConfig:
        self._only(entry, value, ("interpreter", "env", "passes"), "env_config")
        interpreter = value.get("interpreter")
        env = value.get("env") or {}
        if not isinstance(env, dict):
            self._wrong(entry, "'env_config.env' is a map", "write NAME: value below it")
            env = {}
        return EnvConfig(
            interpreter=self._interpreter(entry, interpreter) if interpreter else None,
            env={name: _env_text(item) for name, item in env.items()},
            passes=self._strings(entry, value.get("passes"), "env_config.passes"),
        )

    def _interpreter(self, entry: Entry, value: Json) -> Interpreter | None:
        if not isinstance(value, dict):
            self._wrong(entry, "'interpreter' is a map", "write type, var and binary below it")
            return None
        self._only(entry, value, field_names(Interpreter), "interpreter")
        kind = self._choice(entry, value.get("type"), INTERPRETER_TYPES, "interpreter.type", None)
        if kind is None or not isinstance(value.get("var"), str):
            self._wrong(
                entry,
                "an interpreter has a 'type' and a 'var'",
                "for example type: system_binary, var: RUBY",
            )
            return None
        lists = {
            key: self._strings(entry, value.get(key), f"interpreter.{key}")
            for key in ("candidates", "search_paths", "search_roots", "resolve_cmd")
        }
        texts = {
            key: self._nested_text(entry, value, key, "interpreter")
            for key in ("binary", "manager", "version", "fallback")
        }
        return Interpreter(
            type=kind,
            var=value["var"],
            binary=texts["binary"],
            manager=texts["manager"],
            version=texts["version"],
            fallback=texts["fallback"],
            **lists,
        )

    def _anchor(self, entry: Entry, value: dict[str, Json]) -> Anchor:
        self._only(entry, value, field_names(Anchor), "anchor")
        return Anchor(
            enabled=self._nested_flag(entry, value, "enabled", "anchor", True),
            mode=self._choice(
                entry, value.get("mode", "auto"), ANCHOR_MODES, "anchor.mode", "auto"
            ),
            markers_any=self._strings(entry, value.get("markers_any"), "anchor.markers_any"),
            search_up=self._nested_flag(entry, value, "search_up", "anchor", False),
            root=self._choice(
                entry,
                value.get("root", "tool_dir"),
                ANCHOR_ROOTS,
                "anchor.root",
                "tool_dir",
            ),
            lib=self._nested_text(entry, value, "lib", "anchor"),
            cwd=self._nested_text(entry, value, "cwd", "anchor"),
            env_paths=self._env_paths(entry, value.get("env_paths") or {}),
        )

    def _env_paths(self, entry: Entry, value: Json) -> dict[str, dict[str, tuple[str, ...]]]:
        if not isinstance(value, dict) or not all(
            isinstance(item, dict) for item in value.values()
        ):
            self._wrong(
                entry,
                "'anchor.env_paths' maps a variable to prepend and append",
                "PYTHONPATH: {prepend: [...]}",
            )
            return {}
        for name, item in value.items():
            self._only(entry, item, ("prepend", "append"), f"anchor.env_paths.{name}")
        return {
            name: {
                way: self._strings(entry, paths, f"anchor.env_paths.{name}")
                for way, paths in item.items()
            }
            for name, item in value.items()
        }

    def _verify_deps(self, entry: Entry, value: dict[str, Json]) -> VerifyDeps:
        self._only(entry, value, field_names(VerifyDeps), "verify_deps")
        standard = VerifyDeps()
        extensions = self._strings(entry, value.get("extensions"), "verify_deps.extensions")
        excluded = self._strings(entry, value.get("exclude_dirs"), "verify_deps.exclude_dirs")
        return VerifyDeps(
            enabled=self._nested_flag(entry, value, "enabled", "verify_deps", True),
            scope=self._choice(
                entry,
                value.get("scope", "anchor"),
                DEPENDENCY_SCOPES,
                "verify_deps.scope",
                "anchor",
            ),
            recursive=self._nested_flag(entry, value, "recursive", "verify_deps", True),
            extensions=extensions or standard.extensions,
            exclude_dirs=excluded or standard.exclude_dirs,
        )

    def _config_resolve(self) -> tuple[ConfigResolve, ...]:
        entry = self.entries.get("config_resolve")
        if entry is None or entry.value is None:
            return ()
        specs = entry.value if isinstance(entry.value, list) else [entry.value]
        resolved: list[ConfigResolve] = []
        for spec in specs:
            spec = {"path": spec} if isinstance(spec, str) else spec
            if not isinstance(spec, dict) or not isinstance(spec.get("path"), str):
                self._wrong(
                    entry,
                    "'config_resolve' names a 'path' below config/",
                    "write {path: team/report.yaml}",
                )
                continue
            self._only(entry, spec, ("path", "mode"), "config_resolve")
            mode = self._choice(
                entry,
                spec.get("mode", "deep_merge"),
                CONFIG_MODES,
                "config_resolve.mode",
                "deep_merge",
            )
            resolved.append(ConfigResolve(spec["path"], mode))
        return tuple(resolved)

    def _constraints(self) -> dict[str, Constraint]:
        value = self._map("child_constraints") or {}
        entry = self.entries.get("child_constraints")
        constraints: dict[str, Constraint] = {}
        bounds = ("min_version", "max_version")
        direct = {key: value[key] for key in bounds if key in value}
        for_all = {EVERY_CHILD: direct} if direct else {}
        for child, limits in {
            **for_all,
            **{one: value[one] for one in value if one not in direct},
        }.items():
            assert entry is not None
            place = "child_constraints" if limits is direct else f"child_constraints.{child}"
            if not isinstance(limits, dict):
                self._wrong(entry, f"'{place}' is a map", "write {min_version: 1.0.0}")
                continue
            self._only(entry, limits, bounds, place)
            given = {key: limits[key] for key in bounds if limits.get(key) is not None}
            for key, bound in given.items():
                if not isinstance(bound, str | int) or isinstance(bound, bool):
                    self._wrong(entry, f"'{place}.{key}' is text", f'write {key}: "1.10"')
            constraints[child] = Constraint(**{key: str(bound) for key, bound in given.items()})
        return constraints

    # ── helpers ──────────────────────────────────────────────────────────

    def _only(
        self, entry: Entry, value: Mapping[str, Json], known: Iterable[str], place: str
    ) -> None:
        for key in value:
            if key not in known:
                self._wrong(entry, f"'{key}' is not a key of {place}", _suggest_key(key, known))

    def _choice(
        self, entry: Entry, value: Json, choices: tuple[str, ...], place: str, default: Any
    ) -> Any:
        if value in choices:
            return value
        self._wrong(
            entry,
            f"'{place}' is one of {', '.join(choices)}, not '{value}'",
            _suggest_key(str(value), choices),
        )
        return default

    def _nested_flag(
        self, entry: Entry, value: Mapping[str, Json], key: str, place: str, default: bool
    ) -> bool:
        given = value.get(key)
        if given is None:
            return default
        if not isinstance(given, bool):
            self._wrong(entry, f"'{place}.{key}' is true or false", f"write {key}: true")
        return given is True

    def _nested_text(self, entry: Entry, value: Mapping[str, Json], key: str, place: str) -> str:
        given = value.get(key)
        if given is not None and not isinstance(given, str):
            self._wrong(entry, f"'{place}.{key}' is text", f'write {key}: "…"')
        return given if isinstance(given, str) else ""

    def _strings(self, entry: Entry, value: Json, place: str) -> tuple[str, ...]:
        if value is None:
            return ()
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        self._wrong(entry, f"'{place}' is a list of text", "write it as [a, b]")
        return ()

    def _wrong(self, entry: Entry, what: str, fix: str | None) -> None:
        self.problems.append(Problem(what, entry.span, fix, code="bad-header"))


def _suggest_key(key: str, known: Iterable[str]) -> str:
    guess = closest_name(key, known)
    return f"did you mean '{guess}'?" if guess else f"known: {', '.join(sorted(known))}"


def _env_text(value: Json) -> str:
    if value is True or value is False:
        return "true" if value else "false"
    return "" if value is None else str(value)
