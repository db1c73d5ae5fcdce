"""The tables: which names exist where, which shape a document has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plait import schema
from plait.core.documents import parse
from plait.lang.analysis.names import (
    COMMAND_KEYS,
    LITERALLY,
    NAMES,
    PHASES,
    Each,
    Shape,
    builtin_names,
    detect_profile,
    strings,
    template_fields,
)
from plait.lang.check import check_document

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
    assert detect_profile(parse(document, "d.yaml")) == profile


PHASE_NAMES = [
    ("flow",   "step workflow last shell git env uuid"),
    ("setup",  "step workflow last shell git env uuid"),
    ("map",    "item item_index item_total item_id index total step workflow last shell git env uuid"),
    ("reduce", "map step workflow last shell git env uuid"),
    ("merge",  "map merge step workflow last shell git env uuid"),
    ("graph",  "state inputs result _now _timestamp env uuid"),
]  # fmt: skip


@pytest.mark.parametrize(("phase", "names"), PHASE_NAMES)
def test_each_phase_has_its_names(phase: str, names: str) -> None:
    assert list(builtin_names(phase)) == names.split()


def test_the_tables_refer_only_to_what_exists() -> None:
    assert {phase for name in NAMES for phase in name.phases} <= PHASES.keys()
    shapes = {"workflow" if form.name == "flow" else form.name for form in schema.all_forms()} | {
        "config"
    }
    reads = [read for name in shapes for read in template_fields(name).values()]
    inner = [read.reads if isinstance(read, Each) else read for read in reads]
    assert {read.name for read in inner if isinstance(read, Shape)} <= shapes
    assert [key for key in COMMAND_KEYS if template_fields("step")[key] is LITERALLY] == [
        "use",
        "workflow",
    ]  # the name of a block, the path of a file


def test_the_strings_of_a_tree_are_its_values_and_never_its_keys() -> None:
    tree = parse("a: x\nb: [y, 1, {c: z}]\n", "d.yaml")
    assert [scalar.value for scalar in strings(tree)] == ["x", "y", "z"]


SPELLINGS = [
    # where     every way to ask for something that the document of workflow interpolation shows
    ("setup",  "${workflow.name} ${workflow.id} ${step.index} ${step.files:json} ${git.branch}"),
    ("setup",  "${timeout:-600} ${build_profile:-dev} ${map.successful:-0} ${undefined:-fallback}"),
    ("setup",  "${env.HOME} ${file:a.txt} ${cmd:pwd} ${json:a.b:from:workspace_root} ${date:%Y} ${uuid}"),
    ("setup",  "${last.output} ${shell.output} ${workspace_root} ${MAX}"),
    ("map",    "${item} ${item.value} ${item.path} ${item.nested.field} ${item.metadata.priority:-5}"),
    ("map",    "${ARG} ${ARGUMENT} ${FILE} ${FILE_PATH}"),
    ("map",    "${item_index} ${item_total} ${item_id} ${index} ${total}"),
    ("map",    "${workspace_root} ${workflow.name} ${step.index} ${git.branch} ${last.output} ${shell.output}"),
    ("reduce", "${map.successful} ${map.failed} ${map.total} ${map.results} ${workspace_root} ${git.branch}"),
    ("merge",  "${merge.source_branch} ${merge.target_branch} ${workspace_root} ${workflow.id} ${step.index}"),
    ("foreach", "${item} ${index} ${total} ${item_index} ${item_total} ${item_id}"),
]  # fmt: skip


@pytest.mark.parametrize(("where", "text"), SPELLINGS)
def test_every_spelling_of_the_interpolation_document_is_known_where_it_says(
    where: str, text: str
) -> None:
    step = [{"claude": text}]
    first = [{"shell": "pwd", "capture_output": "workspace_root"}]
    flow: dict[str, Any] = {"env": {"MAX": "3"}, "setup": first}
    match where:
        case "setup":
            flow["setup"] = [*first, *step]
        case "map":
            flow["map"] = {"input": "items.json", "steps": [{"shell": "ls"}, *step]}
        case "foreach":
            flow["reduce"] = [{"foreach": ["a"], "do": step}]
        case _:
            flow[where] = step
    found = check_document(parse(json.dumps(flow), "flow.yaml"), "flow.yaml")
    assert [str(one.problem) for one in found if one.severity == "error"] == []


def test_a_field_that_git_has_not_is_refused_with_the_nearest() -> None:
    flow = parse("- shell: echo ${git.brnch} ${git.nonsense:-x}\n", "flow.yaml")
    found = [one.problem for one in check_document(flow, "flow.yaml")]
    assert [(one.what, one.fix) for one in found] == [
        (
            "unknown variable 'git.brnch'",
            "did you mean 'git.branch'? git has: branch, commit, root",
        ),
        ("unknown variable 'git.nonsense'", "git has: branch, commit, root"),
    ]
