"""Which names exist where, and which fields of a document are templates.

Everything here is a table.  `NAMES` says for every built-in name in which phases it
exists, what its fields are and what it means; `SHAPES` says for every kind of map
in a document which of its fields are read as templates, and how.  A field that is
not in these tables is not a template, and keys of maps never are.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as Map
from functools import cache
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from plait.documents import Mapping, Node, Scalar, Sequence
from plait.records import dataclass

# ── names ────────────────────────────────────────────────────────────────

Phase: TypeAlias = Literal["flow", "setup", "map", "reduce", "merge", "graph", "hook"]
PHASES: Final[dict[str, str]] = {
    "flow": "a flow without phases",
    "setup": "setup",
    "map": "map, once for each item",
    "reduce": "reduce",
    "merge": "merge",
    "graph": "a node of a graph",
    "hook": "a hook of a graph",
}

_WORKFLOW: Final = ("flow", "setup", "map", "reduce", "merge")
_GRAPH: Final = ("graph", "hook")
_CHANGES: Final = (
    "files_added", "files_modified", "files_deleted", "files_changed",
    "commits", "commit_count", "insertions", "deletions",
)  # fmt: skip
_ENDED: Final = ("output", "stdout", "stderr", "exit_code", "success", "duration")


@dataclass(frozen=True, slots=True)
class Name:
    """A built-in name; `fields` is empty when its fields are not ours to know."""

    name: str
    phases: tuple[str, ...]
    what: str
    fields: tuple[str, ...] = ()


NAMES: Final = (
    Name("item", ("map",), "the item in hand, whatever the input holds"),
    Name("item_index", ("map",), "its place among all items, from 0"),
    Name("item_total", ("map",), "how many items there are"),
    Name(
        "map",
        ("reduce",),
        "what became of the items",
        ("successful", "failed", "total", "results", "results_json", "outputs", "success_rate", "key"),
    ),
    Name(
        "merge",
        ("merge",),
        "what is being merged into what",
        (
            "worktree", "source_branch", "target_branch", "session_id", "commits", "commit_count",
            "commit_ids", "modified_files", "file_count", "file_list",
        ),
    ),
    Name(
        "step",
        _WORKFLOW,
        "this step, and what it changed",
        ("name", "index", "id", "path", "attempt", *_CHANGES),
    ),
    Name(
        "workflow",
        _WORKFLOW,
        "this run",
        ("name", "id", "path", "dir", "iteration", "start_time", "run", *_CHANGES),
    ),
    Name("last", _WORKFLOW, "the output of the step before", _ENDED),
    Name("shell", _WORKFLOW, "the output of the last shell step", (*_ENDED, "attempt")),
    Name("git", _WORKFLOW, "the state of the repository"),
    Name("state", _GRAPH, "what the nodes have assigned so far"),
    Name("inputs", _GRAPH, "what the graph was started with"),
    Name("result", _GRAPH, "what the action of this node returned"),
    Name("_now", _GRAPH, "the time, ISO 8601"),
    Name("_timestamp", _GRAPH, "the time in milliseconds"),
    Name("event", ("hook",), "what happened"),
    Name("error", ("hook",), "what went wrong"),
    Name("env", tuple(PHASES), "the environment of Plait: env.HOME"),
    Name("uuid", tuple(PHASES), "a new identifier for every use"),
)  # fmt: skip
"""Order matters for messages: what is nearest to the phase comes first."""

HANDLER_NAMES: Final[dict[str, Name]] = {
    # field whose steps know it: the name
    "on_failure": Name(
        "error", (), "why the step failed", ("message", "exit_code", "step", "timestamp", "output")
    ),
    "on_incomplete": Name(
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
    Name("item", (), "the item of this round"),
    Name("index", (), "its place, from 0"),
    Name("total", (), "how many rounds there are"),
    Name("item_index", (), "the same as index"),
    Name("item_total", (), "the same as total"),
)
"""What the steps of a `foreach` know besides."""

CONFIG_NAMES: Final = (
    "anchor_path", "body", "params_json", "project_path", "runtime_lib", "server_config_path",
    "system_space", "tool_dir", "tool_name", "tool_parent", "tool_path", "user_space",
)  # fmt: skip
"""Parameters that every tool configuration has: `{tool_path}`."""


@cache
def names_in(phase: str) -> Map[str, Name]:
    """The built-in names of a phase, in the order in which a message lists them."""
    return MappingProxyType({name.name: name for name in NAMES if phase in name.phases})


BUILTIN_ROOTS: Final = frozenset(name.name for name in (*NAMES, *HANDLER_NAMES.values(), *LOOP_NAMES))
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
    """Every string below, at any depth."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A map of that shape, or a list of such maps."""

    name: str
    knows: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True)
class Each:
    """A map whose values all are read like this; its keys are the author's names."""

    reads: Reads


@dataclass(frozen=True, slots=True)
class Literally:
    """A field that Plait knows and that is no template."""


Reads: TypeAlias = Text | Shell | Tree | Shape | Each | Literally

TEXT, SHELL, TREE, LITERALLY = Text(), Shell(), Tree(), Literally()
_ON_FAILURE = Shape("handler", (HANDLER_NAMES["on_failure"],))
_ON_INCOMPLETE = Shape("handler", (HANDLER_NAMES["on_incomplete"],))


def _literally(names: str) -> dict[str, Reads]:
    return dict.fromkeys(names.split(), LITERALLY)


SHAPES: Final[dict[str, dict[str, Reads]]] = {
    "workflow": {
        "env": TREE,
        "setup": Shape("phase"),
        "map": Shape("map"),
        "reduce": Shape("phase"),
        "merge": Shape("phase"),
        "commands": Shape("step"),
        "steps": Shape("step"),
        **_literally(
            "name mode description version parameters vars inputs secrets env_files profiles "
            "error_policy strict max_parallel timeout on_item_failure continue_on_failure "
            "max_failures failure_threshold outputs error_collection imports extends template "
            "defaults workflows durability backend allow"
        ),
    },
    "phase": {
        "commands": Shape("step"),
        "steps": Shape("step"),
        **_literally("timeout capture_outputs env"),
    },
    "map": {
        "input": TEXT,
        "agent_template": Shape("step"),
        "commands": Shape("step"),
        "steps": Shape("step"),
        "max_parallel": TEXT,
        **_literally(
            "json_path filter sort_by max_items offset distinct id timeout agent_timeout_secs "
            "timeout_config backend workspace retry error_policy"
        ),
    },
    "step": {
        "shell": SHELL,
        "claude": TEXT,
        "agent": TREE,
        "prompt": TEXT,
        "command": TEXT,
        "call": TEXT,
        "params": TREE,
        "args": TREE,
        "input": TEXT,
        "write_file": Shape("write_file"),
        "foreach": TEXT,
        "do": Shape("step", LOOP_NAMES),
        "test": Shape("test"),
        "validate": Shape("validate"),
        "step_validate": Shape("validate"),
        "when": TEXT,
        "env": TREE,
        "working_dir": TEXT,
        "cwd": TEXT,
        "output_file": TEXT,
        "on_failure": _ON_FAILURE,
        "on_success": Shape("step"),
        "on_exit_code": Each(Shape("step")),
        "commit_config": Shape("commit"),
        "handler": Shape("attributes"),
        **_literally(
            "name id description timeout retry capture capture_output capture_format "
            "capture_streams outputs once commit_required auto_commit analyze analysis parallel "
            "max_parallel max_items continue_on_error model provider tools options metadata "
            "skip_validation validation_timeout ignore_validation_failure strict allow_failure "
            "system max_turns budget schema"
        ),
    },
    "handler": {
        "shell": SHELL,
        "claude": TEXT,
        "prompt": TEXT,
        "commands": _ON_FAILURE,
        "steps": _ON_FAILURE,
        **_literally(
            "max_attempts max_retries fail_workflow commit_required retry_original strategy "
            "timeout capture handler_failure_fatal continue_on_error name id capture_output "
            "capture_format model"
        ),
    },
    "validate": {
        "shell": SHELL,
        "claude": TEXT,
        "prompt": TEXT,
        "command": SHELL,
        "commands": Shape("step"),
        "result_file": TEXT,
        "on_incomplete": _ON_INCOMPLETE,
        **_literally("expected_schema threshold timeout max_attempts commit_required fail_workflow"),
    },
    "test": {"command": SHELL, "on_failure": _ON_FAILURE, **_literally("timeout")},
    "write_file": {"path": TEXT, "content": TREE, **_literally("format mode create_dirs")},
    "commit": {
        "message_template": TEXT,
        **_literally("message_pattern sign author include_files exclude_files squash"),
    },
    "attributes": {"attributes": TREE, **_literally("name")},
    "graph": {
        "nodes": Each(Shape("node")),
        "hooks": Shape("hook"),
        "config": Shape("graph"),
        **_literally(
            "start state max_steps max_concurrency on_error version tool_type executor_id category "
            "permissions env_requires limits config_schema name description"
        ),
    },
    "node": {
        "action": Shape("action"),
        "assign": TREE,
        "over": TEXT,
        "output": TREE,
        "params": TREE,
        **_literally(
            "type next on_error as collect parallel max_concurrency env_requires cache_result "
            "remote comment description"
        ),
    },
    "action": {"item_id": TEXT, "params": TREE, **_literally("primary item_type")},
    "hook": {
        "action": Shape("action"),
        "actions": Shape("action"),
        **_literally("id event layer condition position wrap description"),
    },
    "config": {
        "config": TREE,
        "env_config": TREE,
        "anchor": TREE,
        "env": TREE,
        "headers": TREE,
        "body": TREE,
        "url": TEXT,
    },
    "prompt": {
        "tasks": Shape("task"),
        "agents": Shape("agent"),
    },
    "task": {"description": TEXT, "expected_output": TEXT, "agent": Shape("agent")},
    "agent": {"role": TEXT, "goal": TEXT, "backstory": TEXT, "background": TEXT},
    "directive": {"body": TEXT, "content": TEXT, "raw": TEXT, "actions": TREE},
}

COMMAND_KEYS: Final = (
    "shell", "claude", "agent", "prompt", "call", "command", "foreach", "write_file", "test", "validate",
    "handler",
)  # fmt: skip
"""A step has one of these; a list of such maps is a workflow."""

CLOSED_SHAPES: Final = {"step": "step", "map": "map", "write_file": "file to write"}
"""Shapes in which an unknown field is a mistake, and what a message calls them."""


def profile_of(document: Node) -> str | None:
    """The profile that a document was written for, seen by its shape; None when it has none of ours."""
    if isinstance(document, Sequence):
        steps = [_is_step(item) for item in document.items]
        return "workflow" if steps and all(steps) else None
    if not isinstance(document, Mapping):
        return None
    if any(_has(place, ("nodes", "start"), every=True) for place in (document, document.get("config"))):
        return "graph"
    if _has(document, ("setup", "map", "reduce", "merge", "commands", "steps")):
        return "workflow"
    if _has(document, ("executor_id", "tool_type", "env_config", "config")):
        return "config"
    return "prompt" if any(_is_task(task) for task in _items(document.get("tasks"))) else None


def _has(node: Node | None, keys: tuple[str, ...], *, every: bool = False) -> bool:
    found = [isinstance(node, Mapping) and node.get(key) is not None for key in keys]
    return all(found) if every else any(found)


def _is_step(node: Node) -> bool:
    return _has(node, COMMAND_KEYS) or (isinstance(node, Scalar) and str(node.value).startswith("/"))


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
    """Every string below a node, keys left out."""
    match node:
        case Scalar(str()):
            yield node
        case Sequence() | Mapping():
            for item in _items(node):
                yield from strings(item)
