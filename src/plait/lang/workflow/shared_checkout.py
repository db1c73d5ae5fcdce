"""Warn about parallel items that interfere because they share one checkout.

Two simultaneous commits lock each other out, or commit the changes of the other item. If two items
write to one file, one write is lost. These are warnings: only a run knows what values and tools do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from plait.core.documents import Mapping, Node, Scalar, Sequence
from plait.core.documents.nodes import text_field, text_value
from plait.core.errors import PlaitError, Problem
from plait.core.hints import Final
from plait.core.records import dataclass, replace
from plait.core.source import Span
from plait.lang.analysis.scopes import SHELL_TOOL, tool_id_to_call
from plait.lang.findings import Finding
from plait.lang.workflow.compose import Blocks
from plait.template.nodes import Text
from plait.template.shell.lexer import ValueSlot, analyse
from plait.template.template import Leaf, compile_template

OF_MAP: Final = (
    "write isolation: worktree in the map, for a separate checkout for each item; or "
    "max_parallel: 1"
)
OF_FOREACH: Final = (
    "write parallel: false; in a map isolation: worktree would give each item a separate checkout"
)
_INSIDE: Final = (
    "on_failure",
    "on_success",
    "on_exit_code",
    "on_incomplete",
    "validate",
    "steps",
    "commands",
)
"""Fields of a step that may contain steps."""
_WRITERS: Final = ("core/file/write", "core/file/edit")
"""Tools that write the file of their parameter `path`."""
_OF_ITEM: Final = ("item", "index")
"""Names in a condition that may limit a step to some items."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of steps: their blocks, and the fix for parallel items."""

    blocks: Blocks
    repair: str | None = None
    depth: int = 0


def check_shared_checkout(document: Node, blocks: Blocks) -> Iterator[Finding]:
    """Every step of parallel items that commits, or writes to one file, in a shared checkout."""
    if isinstance(document, Sequence):
        yield from _steps(document, _Place(blocks))
    if not isinstance(document, Mapping):
        return
    for key in ("steps", "commands", "setup", "reduce", "merge"):
        yield from _steps(document.get(key), _Place(blocks))
    own = document.get("map")
    if isinstance(own, Mapping):
        place = _Place(blocks, OF_MAP if _is_crowded(own, document) else None)
        for key in ("steps", "agent_template", "commands"):
            yield from _steps(own.get(key), place)


def shared_by_items(node: Mapping) -> Iterator[Finding]:
    """Find such steps in a node of a graph with parallel items."""
    parallel, items = node.get("parallel"), node.get("over")
    few = isinstance(items, Sequence) and len(items.items) < 2
    many = items is not None and isinstance(parallel, Scalar) and parallel.value is True
    if many and not few and not _is_one(node.get("max_concurrency")):
        action = node.get("action")
        for call in (node, action):
            if isinstance(call, Mapping):
                yield from _own(call, OF_FOREACH)


def _is_crowded(own: Mapping, document: Mapping) -> bool:
    """Do several items use one checkout at the same time, as far as the file shows?"""
    isolation = own.get("isolation")
    kind = isolation.get("kind") if isinstance(isolation, Mapping) else isolation
    if kind is not None and text_value(kind) != "none":
        return False
    input = own.get("input")
    few = isinstance(input, Sequence) and len(input.items) < 2
    parallel = own.get("max_parallel") or document.get("max_parallel")
    return not (
        few or _is_one(own.get("max_items")) or (parallel is not None and not _is_many(parallel))
    )


def _is_one(node: Node | None) -> bool:
    return isinstance(node, Scalar) and node.value in (0, 1)


def _is_many(node: Node) -> bool:
    """Is it a number greater than 1?  One with a placeholder is unknown."""
    return isinstance(node, Scalar) and isinstance(node.value, int) and node.value > 1


MOST_DEPTH: Final = 32


def _steps(node: Node | None, place: _Place) -> Iterator[Finding]:
    if place.depth > MOST_DEPTH:
        return
    place = replace(place, depth=place.depth + 1)
    match node:
        case Sequence(items):
            for item in items:
                yield from _steps(item, place)
        case Mapping():
            yield from _step(node, place)
        case Scalar(str()) if place.repair is not None:
            yield from _script(node, place.repair)


def _step(step: Mapping, place: _Place) -> Iterator[Finding]:
    if place.repair is not None and not _is_apart(step):
        yield from _own(step, place.repair)
    inner = place
    if _is_apart(step):
        inner = replace(place, repair=None)
    yield from _steps(step.get("do"), _in_loop(step, inner))
    for key in _INSIDE:
        field = step.get(key)
        if key == "on_exit_code" and isinstance(field, Mapping):
            field = Sequence(tuple(value for _, value in field.entries), field.span)
        if isinstance(field, Mapping | Sequence):
            yield from _steps(field, inner)
    block = place.blocks.get(text_field(step, "use") or "")
    if block is not None:
        home = replace(inner, blocks=block.home)
        yield from (one for part in block.steps for one in _steps(part, home))


def _in_loop(step: Mapping, place: _Place) -> _Place:
    parallel = step.get("parallel")
    many = isinstance(parallel, Scalar) and (parallel.value is True or _is_many(parallel))
    items = step.get("foreach")
    few = isinstance(items, Sequence) and len(items.items) < 2
    return replace(place, repair=OF_FOREACH) if many and not few else place


def _is_apart(step: Mapping) -> bool:
    """Does it use a separate folder, or run only for some items?"""
    folder = text_value(step.get("working_dir") or step.get("cwd")) or ""
    when = text_field(step, "when") or ""
    return "$" in folder or any(word in when for word in _OF_ITEM)


def _own(step: Mapping, repair: str) -> Iterator[Finding]:
    for key in ("shell", "test"):
        field = step.get(key)
        field = field.get("command") if isinstance(field, Mapping) else field
        if isinstance(field, Scalar) and isinstance(field.value, str):
            yield from _script(field, repair)
    params, tool = step.get("params"), tool_id_to_call(step)
    if isinstance(params, Mapping) and tool == SHELL_TOOL:
        command = params.get("command")
        if isinstance(command, Scalar) and isinstance(command.value, str):
            yield from _script(command, repair)
    written = params if tool in _WRITERS else step.get("write_file")
    for node in (
        written.get("path") if isinstance(written, Mapping) else None,
        step.get("output_file"),
    ):
        if isinstance(node, Scalar) and "$" not in str(node.value):
            yield _same_file(str(node.value), node.span, repair)
    older = step.get("metadata")
    for place in (step, older):
        field = place.get("commit_required") if isinstance(place, Mapping) else None
        if isinstance(field, Scalar) and field.value is True:
            yield _commits(field.span, repair)


def _script(node: Scalar, repair: str) -> Iterator[Finding]:
    try:
        leaf = compile_template(str(node.value), "workflow", source=node.source()).leaf
        lexed = analyse(list(_pieces(leaf)), "bash")
    except PlaitError:
        return  # the check of the template reports it
    for what, name, start in lexed.effects:
        span = Span(leaf.source, start, min(start + max(1, len(name)), len(leaf.source.text)))
        if what == "writes" and _is_in_checkout(name):
            yield _same_file(name, span, repair)
        elif what == "commits":
            yield _commits(span, repair)


def _pieces(leaf: Leaf) -> Iterator[str | ValueSlot]:
    for index, part in enumerate(leaf.compiled.parts):
        yield part.text if isinstance(part, Text) else ValueSlot(index, part.start, part.end)


def _is_in_checkout(path: str) -> bool:
    return bool(path) and not os.path.isabs(path)


def _same_file(path: str, span: Span, repair: str) -> Finding:
    what = f"all items write the one file '{path}', several at a time and in one checkout"
    fix = f"use a name that differs, such as ${{item_index}}; or {repair}"
    return Finding(Problem(what, span, fix, code="shared-checkout"), "warning")


def _commits(span: Span, repair: str) -> Finding:
    what = "items commit, several at a time and in one checkout"
    return Finding(Problem(what, span, repair, code="shared-checkout"), "warning")
