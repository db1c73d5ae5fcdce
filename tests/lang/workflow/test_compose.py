"""Flows made of several files: what wins, which blocks are known, and circles."""

from __future__ import annotations

from pathlib import Path

import pytest

from lang.loading import load_file
from plait.core import documents
from plait.core.errors import InputError
from plait.lang.check import check_file
from plait.lang.workflow import compose as module
from plait.lang.workflow.compose import ComposedWorkflow, compose
from plait.program.phases import Phases


def put(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        place = folder / f"{name.replace('__', '/')}.yaml"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder / "flow.yaml"


def composed(file: Path) -> ComposedWorkflow:
    return compose(documents.load(str(file)), str(file), project=str(file.parent))


def messages_of(file: Path) -> list[str]:
    return [problem.what for problem in composed(file).problems]


def test_maps_are_merged_and_lists_and_values_replaced(tmp_path: Path) -> None:
    file = put(
        tmp_path,
        flow="extends: base.yaml\nenv: {B: mine}\nsetup: [{shell: mine}]\n",
        base="extends: deeper.yaml\nenv: {A: base, B: base}\nsetup: [{shell: base}, {shell: more}]\n",
        deeper="name: deep\nenv: {A: deep, C: deep}\nreduce: [{shell: deep}]\n",
    )
    assert composed(file).document.data() == {
        "name": "deep",
        "env": {"A": "base", "C": "deep", "B": "mine"},
        "reduce": [{"shell": "deep"}],
        "extends": "base.yaml",
        "setup": [{"shell": "mine"}],
    }


def test_a_mistake_is_placed_in_the_file_that_it_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(
        tmp_path,
        flow="extends: base.yaml\nname: x\n",
        base="\nsteps:\n  - {shell: ls, tmeout: 3}\n",
    )
    monkeypatch.chdir(tmp_path)
    [finding] = check_file("flow.yaml")
    assert str(finding.problem) == (
        "base.yaml:3:17: 'tmeout' is not a field of a step\n"
        "3 |   - {shell: ls, tmeout: 3}\n"
        "  |                 ^^^^^^\n"
        "fix: did you mean 'timeout'?"
    )


def test_blocks_are_imported_by_name_or_alias_and_know_their_own_file(tmp_path: Path) -> None:
    file = put(
        tmp_path,
        flow="imports: [{path: lib/a.yaml, alias: lib}, b.yaml]\nsteps: [{use: lib.outer}, {use: test}]\n",
        lib__a="imports: [../b.yaml]\nblocks: {outer: [{use: inner}, {use: test}], inner: [{shell: a}]}\n",
        b="blocks: {test: [{shell: b}]}\n",
    )
    flow = composed(file)
    assert flow.problems == ()
    assert flow.blocks.names() == ["lib.outer", "lib.inner", "test"]
    phases = load_file(str(file), project=str(tmp_path)).program.body
    assert isinstance(phases, Phases)
    assert phases.steps is not None
    assert len(phases.steps.steps) == 2


def test_a_changed_block_changes_the_step_that_uses_it(tmp_path: Path) -> None:
    def fingerprint(command: str) -> str:
        file = put(tmp_path, flow=f"blocks: {{a: [{{shell: {command}}}]}}\nsteps: [{{use: a}}]\n")
        phases = load_file(str(file)).program.body
        assert isinstance(phases, Phases)
        assert phases.steps is not None
        return phases.steps.steps[0].fingerprint

    assert fingerprint("ls") == fingerprint("ls")
    assert fingerprint("ls") != fingerprint("pwd")


WRONG = [
    # files                                                                     the message
    ({"flow": "extends: flow.yaml"},                                            ["these files lead back to themselves: flow.yaml → flow.yaml"]),
    ({"flow": "extends: a.yaml", "a": "extends: b.yaml", "b": "extends: a.yaml"}, ["these files lead back to themselves: a.yaml → b.yaml → a.yaml"]),
    ({"flow": "imports: [a.yaml]", "a": "imports: [flow.yaml]\nblocks: {x: []}"}, ["these files lead back to themselves: flow.yaml → a.yaml → flow.yaml"]),
    ({"flow": "extends: ../up.yaml"},                                           ["this file is outside the project"]),
    ({"flow": "extends: /etc/passwd"},                                          ["this file is outside the project"]),
    ({"flow": "extends: a.yaml", "a": "[{shell: ls}]"},                         ["only a map can be extended, but this file is a list"]),
    ({"flow": "imports: [a.yaml]", "a": "steps: []"},                           ["this file has no blocks to import"]),
    ({"flow": "imports: [a.yaml]\nblocks: {x: []}", "a": "blocks: {x: []}"},    ["there are two blocks 'x'"]),
    ({"flow": "imports: [{path: a.yaml, selective: [y]}]", "a": "blocks: {x: []}"}, ["there is no block 'y'"]),
    ({"flow": "steps: [{use: tset}]\nblocks: {test: []}"},                      ["there is no block 'tset'"]),
    ({"flow": "blocks: {a: [{use: b}], b: [{use: a}]}"},                        ["these blocks lead back to themselves: a → b → a"]),
    ({"flow": "steps: [{use: a}]\nblocks: {a: {with: [x], steps: []}}"},        ["the block 'a' needs x"]),
    ({"flow": "steps: [{use: a, with: {x: 1, y: 2}}]\nblocks: {a: {with: [x], steps: []}}"}, ["the block 'a' has no 'y'"]),
    ({"flow": "imports: [a.yaml]", "a": "blocks: {x: [{shell: ''}]}"},           ["'shell' is empty"]),
    ({"flow": "imports: [a.yaml]", "a": "blocks: {x: [{shel: ls}]}"},           ["'shel' is not a field of a step"]),
]  # fmt: skip


@pytest.mark.parametrize(("files", "messages"), WRONG)
def test_files_that_do_not_fit_together_are_refused(
    tmp_path: Path, files: dict[str, str], messages: list[str]
) -> None:
    assert messages_of(put(tmp_path, **files)) == messages


def test_a_missing_file_is_reported_where_it_is_named_with_the_nearest(tmp_path: Path) -> None:
    [problem] = composed(
        put(tmp_path, flow="name: x\nextends: bsae.yaml\n", base="steps: []")
    ).problems
    assert problem.what.startswith("there is no file '")
    assert problem.place[1:] == (2, 10)
    assert problem.fix == "did you mean 'base.yaml'?"


def test_a_link_that_leads_outside_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "secret.yaml"
    outside.write_text("blocks: {a: []}")
    project = tmp_path / "project"
    file = put(project, flow="imports: [link.yaml]")
    (project / "link.yaml").symlink_to(outside)
    assert messages_of(file) == ["'link.yaml' is a link, or lies behind one"]


def test_blocks_that_multiply_end_in_an_error_and_not_in_a_long_wait(tmp_path: Path) -> None:
    doubling = "".join(f"  b{n}: [{{use: b{n + 1}}}, {{use: b{n + 1}}}]\n" for n in range(25))
    file = put(tmp_path, flow=f"steps: [{{use: b0}}]\nblocks:\n{doubling}  b25: [{{shell: ls}}]\n")
    assert messages_of(file) == [
        f"this flow has more than {module.MAX_STEPS:,} steps when all blocks are expanded"
    ]
    with pytest.raises(InputError, match="more than 10,000 steps"):
        load_file(str(file))


def test_blocks_that_go_too_deep_end_in_an_error(tmp_path: Path) -> None:
    chain = "".join(f"  b{n}: [{{use: b{n + 1}}}]\n" for n in range(2000))
    file = put(tmp_path, flow=f"steps: [{{use: b0}}]\nblocks:\n{chain}  b2000: [{{shell: ls}}]\n")
    assert f"blocks use blocks more than {module.MAX_DEPTH} levels deep" in messages_of(file)
    with pytest.raises(InputError):
        load_file(str(file))


def test_a_block_by_itself_is_checked_but_for_the_names_that_its_user_gives(tmp_path: Path) -> None:
    file = put(
        tmp_path, flow="blocks: {a: [{shell: 'eval ${anything}'}, {shell: 'ls ${given:jsn}'}]}\n"
    )
    assert [finding.code for finding in check_file(str(file))] == [
        "value-as-code",
        "unknown-format",
    ]


def test_the_names_of_a_block_are_those_of_the_place_where_it_is_used(tmp_path: Path) -> None:
    flow = "blocks: {a: [{shell: 'ls ${item.x}'}]}\nreduce: [{use: a}]\nmap: {input: [1], steps: [{use: a}]}\n"
    [finding] = check_file(str(put(tmp_path, flow=flow)))
    assert finding.problem.what == "unknown variable 'item.x'"
    assert (finding.problem.fix or "").startswith("'item' exists in map; known in reduce")


DROPPED = [
    # what the imported file says   key             what to do instead
    ("env: {X: a}",                 "env",          "give the steps of its blocks an env, or write it in the file that imports it"),
    ("env_files: .env",             "env_files",    "write it in the file that imports it"),
    ("secrets: {X: X}",             "secrets",      "write it in the file that imports it"),
    ("profiles: {p: {X: a}}",       "profiles",     "write it in the file that imports it"),
    ("vars: {v: a}",                "vars",         "pass it where the block is used: with: {v: …}"),
    ("parameters: {q: {default: a}}", "parameters", "pass it where the block is used: with: {q: …}"),
    ("limits: {steps: 3}",          "limits",       "write it in the file that imports it"),
    ("strict: true",                "strict",       "write it in the file that imports it"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "key", "fix"), DROPPED)
@pytest.mark.parametrize("through", ["lib", "extended"])
def test_what_an_imported_file_says_besides_its_blocks_is_not_dropped_silently(
    tmp_path: Path, line: str, key: str, fix: str, through: str
) -> None:
    file = put(
        tmp_path,
        flow="imports: [lib.yaml]\nsteps: [{use: lint}]\n",
        lib="extends: extended.yaml\nblocks: {lint: [{shell: 'true'}]}\n",
        extended="name: below\n",
    )
    with open(tmp_path / f"{through}.yaml", "a") as other:
        other.write(line + "\n")
    [problem] = composed(file).problems
    assert problem.what == f"only the blocks of an imported file are used, not its {key}"
    assert str(problem.where).endswith(f"{through}.yaml:{3 if through == 'lib' else 2}:1")
    assert problem.fix == fix


def test_an_imported_file_may_be_a_flow_of_its_own(tmp_path: Path) -> None:
    file = put(
        tmp_path,
        flow="imports: [lib.yaml]\nsteps: [{use: lint}]\n",
        lib="name: lib\ntimeout: 3s\nblocks: {lint: [{shell: 'true', env: {X: a}}]}\nsteps: [{use: lint}]\n",
    )
    assert messages_of(file) == []
