"""The tables: which names exist where, which shape a document has."""

from __future__ import annotations

import pytest

from plait.documents import parse
from plait.flows.names import (
    COMMAND_KEYS,
    LITERALLY,
    NAMES,
    PHASES,
    SHAPES,
    Each,
    Shape,
    names_in,
    profile_of,
    strings,
)

SHAPED = [
    # document                                           profile
    ("- shell: ls",                                      "workflow"),
    ("- /fix\n- claude: /do",                            "workflow"),
    ("{map: {input: x}}",                                "workflow"),
    ("{setup: []}",                                      "workflow"),
    ("{name: x, commands: []}",                          "workflow"),
    ("{steps: []}",                                      "workflow"),
    ("{start: a, nodes: {a: {}}}",                       "graph"),
    ("{tool_type: graph, config: {start: a, nodes: {a: {}}}}", "graph"),
    ("{executor_id: x}",                                 "config"),
    ("{env_config: {}}",                                 "config"),
    ("{config: {command: ls}}",                          "config"),
    ("{tasks: [{description: x}]}",                      "prompt"),
    ("{tasks: {a: {expected_output: x}}}",               "prompt"),
    ("{tasks: [{x: 1}]}",                                None),
    ("{nodes: {a: {}}}",                                 None),
    ("{a: b}",                                           None),
    ("- a\n- b",                                         None),
    ("- {env: x}",                                       None),
    ("text",                                             None),
    ("",                                                 None),
    ("[]",                                               None),
]  # fmt: skip


@pytest.mark.parametrize(("document", "profile"), SHAPED)
def test_a_document_is_recognised_by_its_shape(document: str, profile: str | None) -> None:
    assert profile_of(parse(document, "d.yaml")) == profile


PHASE_NAMES = [
    ("flow",   "step workflow last shell git env uuid"),
    ("setup",  "step workflow last shell git env uuid"),
    ("map",    "item item_index item_total item_id step workflow last shell git env uuid"),
    ("reduce", "map step workflow last shell git env uuid"),
    ("merge",  "map merge step workflow last shell git env uuid"),
    ("graph",  "state inputs result _now _timestamp env uuid"),
]  # fmt: skip


@pytest.mark.parametrize(("phase", "names"), PHASE_NAMES)
def test_each_phase_has_its_names(phase: str, names: str) -> None:
    assert list(names_in(phase)) == names.split()


def test_the_tables_refer_only_to_what_exists() -> None:
    assert {phase for name in NAMES for phase in name.phases} <= PHASES.keys()
    reads = [read for shape in SHAPES.values() for read in shape.values()]
    inner = [read.reads if isinstance(read, Each) else read for read in reads]
    assert {read.name for read in inner if isinstance(read, Shape)} <= SHAPES.keys()
    assert [key for key in COMMAND_KEYS if SHAPES["step"][key] is LITERALLY] == ["use"]  # the name of a block


def test_the_strings_of_a_tree_are_its_values_and_never_its_keys() -> None:
    tree = parse("a: x\nb: [y, 1, {c: z}]\n", "d.yaml")
    assert [scalar.value for scalar in strings(tree)] == ["x", "y", "z"]
