"""Step paths: the one place that writes and reads the names in them.

A path is the names of the steps around a step and its own, joined by `/`: `map/item:3f/0/run`.
`StepContext.child` joins them, too: it is called for each of a million items.

    name                        the step
    `setup` `map` `merge` …     a phase of a workflow, or a map
    `0` `1` `lint`              a step of a list: its place, or its `id`
    `items`                     the choice of the items of a map
    `item:KEY`                  an item; `item:*` stands for every item
    `each`                      the map of a `foreach` step
    `run`                       the action of a step with handlers
    `on_failure@N` `again@N`    the Nth handling of its failure, and the action after it
    `on_failure`                the handling of a failure without another attempt
    `on_success`                what follows a success
    `on_exit_code:CODE`         what follows an exit code
    `check@N`                   the Nth check of a step
    `on_incomplete@N`           what follows a check that found the step incomplete
    `hook:ID` `hook:ID@N`       a hook about the step around it, for its Nth attempt
    `beginning`                 what the repository holds when a run starts
    `ground`                    where the worktrees of a map start
    `worktree` `merge`          the worktree of an item; the merge of its work, or of a map's
    `intent`                    what a merge is about to do
    `nodes/NAME` `NAME@N`       the first and the Nth visit of a node of a graph
    `call` `call@N`             the call of a node, or a tool call at most once; its Nth attempt
    `agent` `say:N`             the session of an agent; the Nth line of a chat
    `turn:N`                    the Nth model turn of a session
    `turn:N.call:M`             the Mth tool call that this turn requests
    `tasks/task:ID`             a task of an ensemble
    `loop:ID` `round:N`         a loop of tasks, and its Nth round
    `map:ID` `reduce:L.N`       a task for many items; the Nth reduction of its level L
    `manager`                   the manager of an ensemble
    `work`                      what a worker does, below the call by which a manager delegates it
"""

from __future__ import annotations

from plait.core.hints import TYPE_CHECKING
from plait.core.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plait.core.hints import Final

# ── names ────────────────────────────────────────────────────────────────

SETUP: Final = "setup"
"""The first phase of a workflow; all others see what it captures."""
MAP: Final = "map"
"""The phase of a workflow that has items; there may be a million."""
ITEMS: Final = "items"
"""The name, and the kind, of the step that chooses the items of a map."""
EACH: Final = "each"
ITEM: Final = "item:"
"""The prefix of an item's name."""
ANY_ITEM: Final = f"{ITEM}*"
RUN: Final = "run"
ON_FAILURE: Final = "on_failure"
ON_INCOMPLETE: Final = "on_incomplete"
CHECK: Final = "check"
HOOK: Final = "hook:"
"""The prefix of a hook's name."""
NODES: Final = "nodes"
"""The phase of a graph, which contains the visits."""
CALL: Final = "call"
AGENT: Final = "agent"
TASKS: Final = "tasks"
"""The phase of an ensemble, which contains the tasks."""
MANAGER: Final = "manager"
WORK: Final = "work"
BASELINE: Final = "beginning"
"""The step that records what the repository holds before the first step."""
REPOSITORY_STATE: Final = "ground"
"""The step of a map that records the state of the repository from which worktrees start."""
WORKTREE: Final = "worktree"
MERGE: Final = "merge"
INTENT: Final = "intent"
_AGAIN: Final = "again"
_TURN: Final = "turn:"
_CALL_OF_TURN: Final = ".call:"
_TASK: Final = "task:"


def item_name(key: str | int) -> str:
    return f"{ITEM}{key}"


def exit_code_name(code: int | str) -> str:
    return f"on_exit_code:{code}"


def numbered_name(name: str, number: int) -> str:
    """Return `check@1`, `check@2`, …"""
    return f"{name}@{number}"


def repeated_name(name: str, number: int) -> str:
    """Return `draft`, `draft@2`, …: the first has no number."""
    return name if number == 1 else f"{name}@{number}"


def again_name(number: int) -> str:
    return numbered_name(_AGAIN, number)


def turn_name(number: int) -> str:
    return f"{_TURN}{number}"


def call_name(turn: int, number: int) -> str:
    """Return the name of a tool call that a turn requests."""
    return f"{_TURN}{turn}{_CALL_OF_TURN}{number}"


def say_name(number: int) -> str:
    return f"say:{number}"


def hook_name(hook: str) -> str:
    return f"{HOOK}{hook}"


def task_name(task: str) -> str:
    return f"{_TASK}{task}"


def loop_name(loop: str) -> str:
    return f"loop:{loop}"


def round_name(number: int) -> str:
    return f"round:{number}"


def task_map_name(task: str) -> str:
    return f"map:{task}"


def reduce_name(level: int, number: int) -> str:
    return f"reduce:{level}.{number}"


def split_name(name: str) -> tuple[str, str]:
    """Split `task:page` into `task` and `page`; a name without `:` has an empty key."""
    word, _, key = name.partition(":")
    return word, key


def name_key(name: str) -> str:
    """Return what follows the `:` of a name: the key of an item, the id of a task."""
    return split_name(name)[1]


def unnumbered_name(name: str) -> str:
    """Return `draft` for `draft@2`."""
    return name.partition("@")[0]


def is_attempt_name(name: str) -> bool:
    """Is it the action of a step with handlers: `run` or `again@N`?"""
    return name == RUN or unnumbered_name(name) == _AGAIN


def is_handler_name(name: str) -> bool:
    """Is it a check or a handler, of any number?"""
    return unnumbered_name(name) in HANDLERS


HANDLERS: Final = (CHECK, ON_INCOMPLETE, ON_FAILURE)
"""Steps that run up to N times for one step of the flow: `check@1`, `check@2`, …"""


def is_hook_name(name: str) -> bool:
    return name.startswith(HOOK)


def is_turn_name(name: str) -> bool:
    """Is it a model turn, and not a tool call of one?"""
    return name.startswith(_TURN) and _CALL_OF_TURN not in name


def is_call_name(name: str) -> bool:
    """Is it a tool call that a turn requests?"""
    return name.startswith(_TURN) and _CALL_OF_TURN in name


def is_model_step(name: str) -> bool:
    """Is it a turn of an agent, or a call by an agent or a node?"""
    return name.startswith(_TURN) or unnumbered_name(name) == CALL


# ── paths ────────────────────────────────────────────────────────────────


def join_path(path: str, *names: str) -> str:
    """Return the path of a step inside another; an empty path is the run."""
    return "/".join((path, *names) if path else names)


def parent_path(path: str) -> str:
    """Return the path of the step around a step; empty: there is none."""
    return path.rpartition("/")[0]


def last_name(path: str) -> str:
    """Return the name of the step at a path."""
    return path.rpartition("/")[2]


def first_name(path: str) -> str:
    """Return the name of the part of the flow that a path is in."""
    return path.partition("/")[0]


def split_path(path: str) -> tuple[str, str]:
    """Split a path into that of the step around it and its own name."""
    above, _, name = path.rpartition("/")
    return above, name


def unnumbered_path(path: str) -> str:
    """Return `nodes/draft` for `nodes/draft@2`."""
    above, name = split_path(path)
    return join_path(above, unnumbered_name(name))


def path_names(path: str) -> list[str]:
    return path.split("/")


def paths_around(path: str) -> Iterator[str]:
    """Yield the paths of the steps around a step, the outermost first."""
    names = path.split("/")
    return ("/".join(names[:length]) for length in range(1, len(names)))


def split_at_item(path: str) -> tuple[str, str, str]:
    """Split a path of the flow at its first `item:*`: the map, the item, and what follows.

    The last two are empty if it has none.
    """
    return path.partition(f"/{ANY_ITEM}")


MAIN_ITEMS: Final = join_path(MAP, ITEMS)
"""The step that finds the items of a workflow."""


def is_item(path: str) -> bool:
    return last_name(path).startswith(ITEM)


def split_call(path: str) -> tuple[str, int]:
    """Split the path of a tool call into that of its turn and its number; 0: it is no tool call."""
    turn, _, number = path.rpartition(_CALL_OF_TURN)
    return turn, int(number) if turn and number.isdecimal() else 0


def belongs_to_call(path: str) -> bool:
    """Is it a tool call that a turn requests, or a step inside one?"""
    return _CALL_OF_TURN in path


def task_id(path: str) -> str | None:
    """Return the id of the task at a path of an ensemble; None: it is no task."""
    name = last_name(path)
    return name.removeprefix(_TASK) if name.startswith(_TASK) else None


def generic_path(path: str) -> str:
    """Turn a path of a run into one of the flow: `item:*` for each item, handlers without number."""
    return "/".join(
        ANY_ITEM if name.startswith(ITEM) else _HANDLED.sub(r"\1", name) for name in path.split("/")
    )


_HANDLED: Final = lazy_pattern(rf"^({'|'.join(HANDLERS)})@\d+$")


def is_below(path: str, top: str) -> bool:
    """Is this path below the other one?"""
    return path.startswith(f"{top}/")


def is_at_or_below(path: str, top: str) -> bool:
    """Is this path the other one, or below it?"""
    return path == top or path.startswith(f"{top}/")


def range_below(path: str, name_prefix: str = "") -> tuple[str, str]:
    """Return the first text and the end of the range of sorted texts with all paths below one.

    `name_prefix`: only those whose next name begins with it.
    """
    first = f"{path}/{name_prefix}"
    return first, f"{first[:-1]}{chr(ord(first[-1]) + 1)}"
