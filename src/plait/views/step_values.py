"""Where the values of a recorded step come from: the templates of its step in the flow file.

It is what `plait explain` says, with the values that the run has recorded: its inputs, its item and
what earlier steps have captured.  Nothing is run, no other file is read, and no value of the
environment is shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from plait.core.documents import nodes
from plait.core.errors import PlaitError
from plait.core.hints import Final
from plait.core.values import MASK, Json, Secret
from plait.engine.paths import (
    ITEM,
    NODES,
    TASKS,
    is_item,
    name_key,
    path_names,
    paths_around,
    unnumbered_name,
)
from plait.lang.analysis.explain import Explanation
from plait.lang.analysis.explain_file import (
    explain_fields,
    is_at,
    read_document,
    template_fields,
)
from plait.lang.analysis.scopes import STEP_LISTS
from plait.lang.flow_text import FlowText
from plait.lang.load import read_flow
from plait.lang.parameters import resolve_inputs, secret_names
from plait.program.items.spool import read_spool
from plait.scope import Scope

MOST: Final = 30
"""Templates of a step that are explained."""
SPOOL: Final = "items.jsonl"


def explain_step(
    file: str,
    path: str,
    inputs: Mapping[str, Json],
    item: Mapping[str, Json],
    captures: Mapping[str, Json],
) -> list[Explanation]:
    """The templates of the step at a path of a run; none if the file has no such step any more.

    `item`: the names of its item, and their values.
    """
    try:
        document = read_document(file)
        place = _place(document, path)
        if place is None:
            return []
        scope = Scope({}).frame("inputs", env=_inputs(file, document, inputs))
        scope = scope.frame("item", phase=item).frame("captured", captures=captures)
        profile, fields = template_fields(document, file, None, scope)
        found = explain_fields(fields, profile, scope, lambda field: is_at(field, place))
        return [one for one, _ in zip(found, range(MOST), strict=False)]
    except PlaitError:
        return []  # `plait check` names the problems of the file


def _inputs(file: str, document: nodes.Node, given: Mapping[str, Json]) -> dict[str, Json]:
    """The inputs of a run with their defaults; secrets are masked."""
    parameters = read_flow(FlowText.read(file)).parameters
    inputs = resolve_inputs(parameters, given, takes_more=True).values
    values = {**inputs, **{name: Secret(MASK) for name in secret_names(document)}}
    return {**values, "inputs": {name: values[name] for name in inputs}}


def item_around(path: str) -> str | None:
    """The outermost item that contains a step, or is it."""
    return next((one for one in (*paths_around(path), path) if is_item(one)), None)


def find_item(folder: str, order: int) -> Json:
    """The item of the map with this order, from the folder of a run; None if there is none."""
    try:
        before = b"\1" * order  # these are not parsed
        for _, _, item in read_spool(os.path.join(folder, SPOOL), without=before):
            return item
    except (PlaitError, OSError):
        pass
    return None


def _place(document: nodes.Node, path: str) -> str | None:
    """The place in the file of the step at a path: `map[0]`, `nodes.draft`."""
    part, *names = path_names(path)
    if not names:
        return None
    inside = [name for name in names if not name.startswith(ITEM)]
    if part in (NODES, TASKS):
        name = unnumbered_name(names[0])
        name = name_key(name) or name
        return f"config.nodes.{name}" if _child(document, "config") else f"{part}.{name}"
    if not inside:
        return None
    for index, step in enumerate(_steps(_child(document, part) or document)):
        named = _child(step, "id")
        id = named.value if isinstance(named, nodes.Scalar) else None
        if inside[0] in (str(index), id):
            return f"{part}[{index}]"
    return None


def _steps(node: nodes.Node | None) -> Iterator[nodes.Node]:
    """The steps of a phase, which is a list, or a map with one."""
    for key in STEP_LISTS:
        if (inner := _child(node, key)) is not None:
            node = inner
    if isinstance(node, nodes.Sequence):
        yield from node.items


def _child(node: nodes.Node | None, key: str) -> nodes.Node | None:
    return node.get(key) if isinstance(node, nodes.Mapping) else None
