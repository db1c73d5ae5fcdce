"""Parallel items that commit, or write one file, in a checkout that they share: check says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plait.core.documents import parse
from plait.lang.check import check_document, check_file, flow_files
from runs.stories import Place, new_place

ROOT = Path(__file__).parents[3]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


def reported(place: Place, flow: str | dict[str, object]) -> list[str]:
    place.write("flow.yaml", flow)
    found = [one for one in place.check() if one.code == "shared-checkout"]
    assert all(
        one.severity == "warning" and "isolation: worktree" in (one.problem.fix or "")
        for one in found
    )
    return [one.problem.what for one in found]


def mapped(step: object, **fields: object) -> dict[str, object]:
    return {"map": {"input": ["a", "b"], "steps": [step], **fields}}


COMMITS = "items commit, several at a time and in one checkout"


def writes(path: str) -> str:
    return f"all items write the one file '{path}', several at a time and in one checkout"


REPORTED = [
    ({"shell": "git add -A && git commit -m ${item}"}, COMMITS),
    ({"shell": "git -c user.name=x commit -qm x"}, COMMITS),
    ({"shell": "git --no-pager merge ${item}"}, COMMITS),
    ({"shell": "x=$(git cherry-pick ${item})"}, COMMITS),
    ({"claude": "/fix ${item}", "commit_required": True}, COMMITS),
    ({"shell": "true", "on_failure": {"shell": "git commit -am x"}}, COMMITS),
    ({"foreach": [1, 2], "do": [{"shell": "git commit -am x"}]}, COMMITS),
    ({"shell": "make ${item} > build.log"}, writes("build.log")),
    ({"shell": "make ${item} >| logs/build.log 2>&1"}, writes("logs/build.log")),
    ({"shell": "cd sub && make > log"}, writes("log")),
    ({"write_file": {"path": "out.json", "content": "${item}"}}, writes("out.json")),
    ({"shell": "echo ${item}", "output_file": "out.txt"}, writes("out.txt")),
    ({"tool": "core/shell", "params": {"command": "git commit -am ${item}"}}, COMMITS),
    ({"tool": "rye/bash/bash", "params": {"command": "make ${item} > log"}}, writes("log")),
    (
        {"tool": "core/file/write", "params": {"path": "o.txt", "content": "${item}"}},
        writes("o.txt"),
    ),
    (
        {"tool": "core/file/edit", "params": {"path": "o", "old": "a", "new": "${item}"}},
        writes("o"),
    ),
]


@pytest.mark.parametrize(("step", "what"), REPORTED)
def test_a_step_of_a_map_that_gets_into_the_way_of_others_is_reported(
    place: Place, step: dict[str, object], what: str
) -> None:
    assert reported(place, mapped(step)) == [what]
    assert reported(place, mapped(step, isolation="none", max_parallel=2)) == [what]
    for fields in (
        {"isolation": "worktree"},
        {"isolation": {"kind": "directory"}},
        {"max_parallel": 1},
        {"max_items": 1},
        {"input": ["a"]},
        {"max_parallel": "${N}"},
    ):
        assert (
            reported(place, {"parameters": {"N": {"default": 1}}, **mapped(step, **fields)}) == []
        )
    assert reported(place, {"steps": [step], "max_parallel": 5}) == []


NOT_REPORTED = [
    {"shell": "echo ${item} >> ledger"},
    {"shell": "echo ${item} > out-${item}.txt"},
    {"shell": "echo ${item} > out-$i.txt; ls > /dev/null; ls 2>&1"},
    {"shell": "cd ${item} && git commit -am x > log"},
    {"shell": 'cd "$(mktemp -d)" && make > log'},
    {"shell": "git -C ${item} commit -am x"},
    {"shell": "git log --grep commit; git status; echo git commit"},
    {"shell": "flock lock git commit -am x"},
    {"shell": "git commit -am x", "working_dir": "${item}"},
    {"shell": "git commit -am x", "when": "${item_index} == 0"},
    {"write_file": {"path": "out/${item}.json", "content": "x"}},
    {"tool": "core/file/write", "params": {"path": "${item}.txt", "content": "x"}},
    {"tool": "core/file/read", "params": {"path": "o.txt"}},
    {"tool": "core/shell", "params": {"command": "echo ${item} >> ledger"}},
    {"shell": "# git commit\necho 'git commit > x'"},
]


@pytest.mark.parametrize("step", NOT_REPORTED)
def test_what_is_apart_for_each_item_is_not_reported(place: Place, step: dict[str, object]) -> None:
    assert reported(place, mapped(step)) == []


def test_a_parallel_foreach_is_reported_with_what_it_can_do(place: Place) -> None:
    loop = {"foreach": ["a", "b"], "parallel": 3, "do": [{"shell": "git commit -am ${item}"}]}
    assert reported(place, {"steps": [loop]}) == [COMMITS]
    (finding,) = place.check()
    assert (finding.problem.fix or "").startswith("write parallel: false;")
    assert reported(place, mapped(loop, isolation="worktree")) == [COMMITS]
    assert reported(place, {"steps": [{**loop, "parallel": False}]}) == []


CALL = {"tool": "core/shell", "params": {"command": "git commit -am ${item}"}}


@pytest.mark.parametrize("action", [{"shell": "git commit -am ${item}"}, CALL, {"action": CALL}])
def test_a_parallel_node_of_a_graph_is_reported_too(
    place: Place, action: dict[str, object]
) -> None:
    def reported_of(**fields: object) -> list[str]:
        node = {"over": ["a", "b"], "parallel": True, **action, **fields}
        return reported(place, {"start": "each", "nodes": {"each": node}})

    assert reported_of() == reported_of(over="${inputs.files}") == [COMMITS]
    assert (
        reported_of(parallel=False)
        == reported_of(over=["a"])
        == reported_of(max_concurrency=1)
        == []
    )


def test_the_steps_of_a_block_are_reported_where_they_are_used(place: Place) -> None:
    flow = {"blocks": {"save": [{"shell": "git commit -am x"}]}, **mapped({"use": "save"})}
    assert reported(place, flow) == [COMMITS]
    (finding,) = place.check()
    assert "flow.yaml" in str(finding.problem.where)


def test_the_examples_and_the_documentation_are_free_of_it() -> None:
    found = [one for path in flow_files([str(ROOT / "examples")]) for one in check_file(path)]
    for page in sorted((ROOT / "docs").glob("*.md")):
        for text in re.findall(
            r"^```yaml\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
        ):
            found += check_document(parse(text, page.name), page.name)
    assert [str(one.problem) for one in found if one.code == "shared-checkout"] == []
