"""The names that exist at each place, and the fields of a document that are templates.

Everything here is a table. `NAMES` has the built-in names: phases, fields, meaning.
`template_fields` has, for every map of a document, the fields that are templates. For workflows it
is derived from `schema`. A field that is not in these tables is not a template; keys of maps never
are.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as Map
from functools import cache
from types import MappingProxyType

from plait import schema
from plait.core.documents import Mapping, Node, Scalar, Sequence
from plait.core.hints import Final, TypeAlias
from plait.core.records import dataclass, field
from plait.core.values import NOT_KNOWN, Json

# ── names ────────────────────────────────────────────────────────────────

PHASES: Final[dict[str, str]] = {
    "flow": "a flow without phases",
    "head": "env, vars, profiles, and numbers and durations anywhere: they are filled before anything runs",
    "setup": "setup",
    "items": "input, id and max_parallel of a map: where its items are found, before any step of it",
    "map": "map, once for each item",
    "reduce": "reduce",
    "merge": "merge",
    "block": "a block by itself: what it knows depends on the step that uses it",
    "graph": "a node of a graph",
    "hook": "a hook of a graph",
}

_WORKFLOW: Final = ("flow", "setup", "map", "reduce", "merge")
_GRAPH: Final = ("graph", "hook")
_CHANGES: Final = (
    "files", "files_added", "files_modified", "files_deleted", "files_changed",
    "commits", "commit_count", "insertions", "deletions",
)  # fmt: skip
ENDED: Final = ("output", "stdout", "stderr", "exit_code", "success", "duration")


@dataclass(frozen=True, slots=True)
class BuiltinName:
    """A built-in name; `fields` is empty if its fields are unknown."""

    name: str
    phases: tuple[str, ...]
    what: str
    fields: tuple[str, ...] = ()
    offered: bool = True
    """True if messages that list known names list it."""
    kind: str | None = None
    """The type of its value, as conditions name it; None if it is unknown."""
    in_environment: bool = False
    """True if it is also an environment variable of processes."""
    value: Json = field(default=NOT_KNOWN, compare=False)
    """Its value, if it is written in the file."""
    values: tuple[Json, ...] = ()
    """Possible values that are written in the file and begin like an option."""


OF_ITEM: Final = frozenset({"item", "item_index", "item_total", "item_id", "step"})
"""Names of items and their steps.  A value that uses one is not for the command of the input.
"""
SHORT_OF_ITEM: Final = frozenset({"index", "total"})
"""More such names, unless the author declares them."""

NAMES: Final = (
    BuiltinName("item", ("map",), "the current item, whatever the input holds"),
    BuiltinName("item_index", ("map",), "its place among all items, from 0"),
    BuiltinName("item_total", ("map",), "how many items there are"),
    BuiltinName("item_id", ("map",), "what it is called in the paths of a run", offered=False),
    BuiltinName("index", ("map",), "the same as item_index", offered=False),
    BuiltinName("total", ("map",), "the same as item_total", offered=False),
    BuiltinName(
        "map",
        ("reduce", "merge"),
        "what became of the items",
        ("successful", "failed", "total", "results", "results_json", "outputs", "success_rate", "skipped"),
    ),
    BuiltinName(
        "merge",
        ("merge",),
        "what is being merged into what; no branches outside of a git repository",
        (
            "worktree", "source_branch", "target_branch", "session_id", "commits", "commit_count",
            "commit_ids", "modified_files", "file_count", "file_list",
        ),
    ),
    BuiltinName(
        "step",
        _WORKFLOW,
        "this step; and what the step before it changed, or, in its own handlers and behind it, "
        "this one",
        ("name", "index", "id", "path", "attempt", *_CHANGES),
    ),
    BuiltinName(
        "workflow",
        (*_WORKFLOW, "items"),
        "this run",
        ("name", "id", "path", "dir", "iteration", "start_time", "run", *_CHANGES),
    ),
    BuiltinName("last", _WORKFLOW, "the output of the step before it in its list", ENDED),
    BuiltinName(
        "shell", _WORKFLOW, "the output of the last shell step before it in its list", (*ENDED, "attempt")
    ),
    BuiltinName("git", (*_WORKFLOW, "items"), "the state of the repository", ("branch", "commit", "root")),
    BuiltinName("state", _GRAPH, "what the nodes have assigned so far"),
    BuiltinName("inputs", _GRAPH, "what the graph was started with"),
    BuiltinName("result", _GRAPH, "what the action of this node returned"),
    BuiltinName("_now", _GRAPH, "the time, ISO 8601"),
    BuiltinName("_timestamp", _GRAPH, "the time in milliseconds"),
    BuiltinName("event", ("hook",), "what happened"),
    BuiltinName("error", ("hook",), "what went wrong"),
    BuiltinName("env", tuple(PHASES), "the environment of Plait: env.HOME"),
    BuiltinName("uuid", tuple(PHASES), "a new identifier for every use"),
)  # fmt: skip
"""Messages list names in this order: the most specific first."""

_ERROR: Final = BuiltinName(
    "error", (), "why the step failed", ("message", "kind", "exit_code", "step", "output", "stderr")
)
HANDLER_NAMES: Final[dict[str, BuiltinName]] = {
    # field: the name that its steps know
    "on_failure": _ERROR,
    "on_exit_code": _ERROR,
    "on_incomplete": BuiltinName(
        "validation",
        (),
        "what the check of the step found",
        (
            "completion", "completion_percentage", "status", "implemented", "missing", "missing_count",
            "gaps", "attempt", "attempt_number", "raw_output",
        ),
    ),
}  # fmt: skip

LOOP_NAMES: Final = (
    BuiltinName("item", (), "the item of this round"),
    BuiltinName("index", (), "its place, from 0"),
    BuiltinName("total", (), "how many rounds there are"),
    BuiltinName("item_index", (), "the same as index"),
    BuiltinName("item_total", (), "the same as total"),
    BuiltinName("item_id", (), "what the round is called in the paths of a run", offered=False),
)
"""The additional names of the steps of a `foreach`."""

KNOWN_INSIDE: Final[dict[str, tuple[BuiltinName, ...]]] = {
    **{field: (name,) for field, name in HANDLER_NAMES.items()},
    "do": LOOP_NAMES,
}
"""The additional names of the steps under a field."""

CONFIG_NAMES: Final = (
    "anchor_path", "body", "params_json", "project_path", "runtime_lib", "server_config_path",
    "system_space", "tool_dir", "tool_name", "tool_parent", "tool_path", "user_space",
)  # fmt: skip
"""Parameters that every tool configuration has: `{tool_path}`."""


@cache
def builtin_names(phase: str) -> Map[str, BuiltinName]:
    """The built-in names of a phase, in the order in which a message lists them."""
    return MappingProxyType({name.name: name for name in NAMES if phase in name.phases})


@cache
def names_everywhere_in(phase: str) -> Map[str, BuiltinName]:
    """The built-in names of a phase that exist before its first step."""
    return MappingProxyType(
        {name: one for name, one in builtin_names(phase).items() if name not in BEHIND_STEPS}
    )


BEHIND_STEPS: Final = {name.name: name for name in NAMES if name.name in ("last", "shell")}
"""Names that exist after a step of a list, captured or not."""


BUILTIN_ROOTS: Final = frozenset(
    name.name for name in (*NAMES, *HANDLER_NAMES.values(), *LOOP_NAMES)
)
"""Every built-in name of any phase."""


# ── templates in documents ───────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Text:
    """One string, or a list of them."""


@dataclass(frozen=True, slots=True)
class Shell:
    """Shell text: its values are bound."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Every string at any depth."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A map of that shape, or a list of such maps."""

    name: str


@dataclass(frozen=True, slots=True)
class Each:
    """A map whose values are all read in the same way; the author chooses the keys."""

    reads: TemplateKind


@dataclass(frozen=True, slots=True)
class Listed:
    """A list whose parts are all read in the same way."""

    reads: TemplateKind


@dataclass(frozen=True, slots=True)
class Either:
    """One of several kinds; the node decides."""

    kinds: schema.OneOf

    def read_as(self, node: Node) -> TemplateKind:
        picked = schema.select_kind(self.kinds, node)
        return LITERALLY if picked is None else template_kind(picked)


@dataclass(frozen=True, slots=True)
class When:
    """A condition: an expression with placeholders, or data."""


@dataclass(frozen=True, slots=True)
class NotTemplate:
    """A field that is not a template."""


@dataclass(frozen=True, slots=True)
class AtStart:
    """A number or a duration. It is filled before a run, so it knows only names of the head."""


TemplateKind: TypeAlias = (
    Text | Shell | Tree | Shape | Each | Listed | Either | When | NotTemplate | AtStart
)

TEXT, SHELL, TREE, WHEN, LITERALLY, AT_START = (
    Text(),
    Shell(),
    Tree(),
    When(),
    NotTemplate(),
    AtStart(),
)


def template_kind(kind: schema.Kind) -> TemplateKind:
    """How a kind of the schema is read for templates."""
    match kind:
        case schema.TemplateText() | schema.AgentCommand() | schema.SingleValue():
            return TEXT
        case schema.Integer() | schema.Duration():
            return AT_START
        case schema.ShellText():
            return SHELL
        case schema.TemplateTree():
            return TREE
        case schema.Condition():
            return WHEN
        case schema.Record("hook"):
            return LITERALLY  # the known names depend on the event: see `hooks`
        case schema.Record(form):
            return Shape("workflow" if form == "flow" else form)
        case schema.MapOf(inner):
            return Each(template_kind(inner))
        case schema.ListOf(inner):
            return Listed(template_kind(inner))
        case schema.OneOf():
            return Either(kind)
        case _:
            return LITERALLY


_CONFIG: Final[dict[str, TemplateKind]] = {
    "config": TREE,
    "env_config": TREE,
    "anchor": TREE,
    "env": TREE,
    "headers": TREE,
    "body": TREE,
    "url": TEXT,
}


@cache
def template_fields(name: str) -> dict[str, TemplateKind]:
    """The template fields of a map, under every spelling."""
    if name == "config":
        return _CONFIG
    fields = schema.fields_by_spelling("flow" if name == "workflow" else name)
    reads = {spelling: template_kind(field.kind) for spelling, field in fields.items()}
    reads |= dict.fromkeys(reads.keys() & {"max_parallel"}, TEXT)  # filled when the map starts
    return {**reads, "body": TEXT} if name == "directive" else reads


DOCUMENT_SHAPES: Final = {"prompt": "ensemble"}
"""The table of a document, if its name is not that of the profile."""

COMMAND_KEYS: Final = tuple(
    spelling
    for field in schema.record_type("step").fields
    if field.name in (*schema.ACTION_FIELDS, "validate")
    for spelling in field.spellings
)
"""A step has one of these keys; a list of such maps is a workflow."""


def detect_profile(document: Node) -> str | None:
    """Return the profile of a document by its shape; None if Plait does not know the shape."""
    if isinstance(document, Sequence):
        steps = [_is_step(item) for item in document.items]
        return "workflow" if steps and all(steps) else None
    if not isinstance(document, Mapping):
        return None
    if any(_is_graph(place, document) for place in (document, document.get("config"))):
        return "graph"
    if any(_is_task(task) for task in _items(document.get("tasks"))):
        return "prompt"
    if _has(
        document, ("setup", "map", "reduce", "merge", "commands", "steps", "blocks", "extends")
    ):
        return "workflow"
    if _has(document, ("executor_id", "tool_type", "env_config", "config")):
        return "config"
    return None


def _has(node: Node | None, keys: tuple[str, ...]) -> bool:
    return any(isinstance(node, Mapping) and node.get(key) is not None for key in keys)


def _is_graph(node: Node | None, document: Mapping) -> bool:
    """Is it a graph? `nodes` alone is not enough: files of other programs have it, too."""
    if not isinstance(node, Mapping) or not isinstance(node.get("nodes"), Mapping):
        return False
    tool_type = document.get("tool_type")
    return node.get("start") is not None or (
        isinstance(tool_type, Scalar) and tool_type.value == "graph"
    )


def _is_step(node: Node) -> bool:
    return _has(node, COMMAND_KEYS) or (
        isinstance(node, Scalar) and str(node.value).startswith("/")
    )


def _is_task(node: Node) -> bool:
    return isinstance(node, Mapping) and (
        node.get("description") is not None or node.get("expected_output") is not None
    )


def _items(node: Node | None) -> Iterator[Node]:
    match node:
        case Sequence(items):
            yield from items
        case Mapping(entries):
            yield from (value for _, value in entries)


def strings(node: Node) -> Iterator[Scalar]:
    """Every string below a node, without keys."""
    match node:
        case Scalar(str()):
            yield node
        case Sequence() | Mapping():
            for item in _items(node):
                yield from strings(item)
