"""The executor chain of seed 003 and the config rows of seed 004, through our chain.

Rows are in `chain-003.yaml`; what takes more than a row (the dry run's record,
the caches) is a test below.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from plait.core.errors import InputError, PlaitError
from plait.tools.anchors import ActiveAnchor, anchor_environment, find_anchor
from plait.tools.bind import bind
from plait.tools.bind_common import BindRequest
from plait.tools.chain import MAX_CHAIN_DEPTH, Chain, Chains
from plait.tools.chain_rules import check_pairs, validate
from plait.tools.config import config_files, resolve_configs
from plait.tools.environment import (
    FIXED,
    DotEnv,
    Environment,
    EnvValue,
    read_dotenv,
    resolve_environment,
)
from plait.tools.headers import ItemCache
from plait.tools.interpreters import SearchPaths
from plait.tools.invocation import ProcessCall
from plait.tools.spaces import PRECEDENCE, Space, SpaceName, Spaces
from tools.projects import new_project, python_tool

ROWS: dict[str, list[dict[str, Any]]] = yaml.safe_load(
    (Path(__file__).parent / "chain-003.yaml").read_text("utf-8")
)
SYSTEM = str(Path(sys.modules["plait"].__file__ or "").parent / "system")
NAMES: tuple[SpaceName, ...] = ("project", "user", "system")


def rows(section: str) -> list[Any]:
    """The rows of a section, each with a name that a test report can show."""
    return [
        pytest.param(row, id=str(row.get("about") or row.get("id") or json.dumps(row)))
        for row in ROWS[section]
    ]


@dataclass(frozen=True)
class World:
    """Three spaces below one folder."""

    top: Path

    @property
    def spaces(self) -> Spaces:
        return Spaces(tuple(Space(name, str(self.top / name)) for name in NAMES), str(self.top))

    def write(self, space: str, place: str, contents: str) -> Path:
        path = self.top / space / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contents, "utf-8")
        return path

    def item(self, space: str, item_id: str, **keys: Any) -> Path:
        header = {"version": "1.0.0", "executor_id": "core/primitives/subprocess", **keys}
        return self.write(space, f"tools/{item_id}.yaml", json.dumps(header))

    def chain(self, item_id: str = "tool") -> Chain:
        return Chains(self.spaces, ItemCache()).get(item_id)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# ── layers ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("row", rows("primitives"))
def test_a_primitive_needs_no_file(world: World, row: Mapping[str, str]) -> None:
    world.item("project", "tool", executor_id=row["id"])
    assert world.chain().ids == ("tool", row["ours"])


@pytest.mark.parametrize("row", rows("runtimes"))
def test_a_runtime_of_the_table_is_there(row: Mapping[str, str]) -> None:
    chain = Chains(Spaces((Space("system", SYSTEM),)), ItemCache()).get(row["id"])
    assert chain.primitive == row["primitive"]
    assert chain.tool.header.config.get("command") == row.get("command")


def test_the_concrete_example_resolves_in_three_steps() -> None:
    data = str(Path(__file__).parent.parent / "data" / "rye")
    spaces = Spaces((Space("project", data), Space("system", SYSTEM)))
    chain = Chains(spaces, ItemCache()).get("rye/bash/bash")
    assert chain.ids == (
        "rye/bash/bash",
        "core/runtimes/python/script",
        "core/primitives/subprocess",
    )
    assert [os.path.basename(item.path) for item in chain.elements] == ["bash.py", "script.yaml"]
    assert [item.space.name for item in chain.elements] == ["project", "system"]


# ── guards ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("row", rows("guards"))
def test_a_guard(world: World, row: Mapping[str, Any]) -> None:
    for item_id, executor in row["executors"].items():
        world.item("project", item_id, executor_id=executor)
    if "chain" in row:
        assert list(world.chain("t0").ids) == row["chain"]
        return
    with pytest.raises(PlaitError) as caught:
        world.chain(row.get("tool", "t0"))
    assert (caught.value.code, caught.value.what, caught.value.exit_code) == (
        row["error"],
        row["says"],
        2,
    )


def test_the_longest_chain_has_ten_elements() -> None:
    assert MAX_CHAIN_DEPTH == 10


# ── validation ───────────────────────────────────────────────────────────


def test_the_precedence_is_that_of_the_seed() -> None:
    assert PRECEDENCE == {"project": 3, "user": 2, "system": 1}


@pytest.mark.parametrize("row", rows("spaces"))
def test_a_child_depends_on_its_own_space_and_those_below(
    world: World, row: Mapping[str, Any]
) -> None:
    world.item(row["child"], "tool", executor_id="runtime")
    world.item(row["parent"], "runtime")
    if row["allowed"]:
        assert all(pair.space_ok for pair in validate(world.chain()))
        return
    with pytest.raises(InputError) as caught:
        world.chain()
    assert caught.value.code == "missing-executor"


@pytest.mark.parametrize("row", rows("spaces"))
def test_the_rule_itself_says_the_same(world: World, row: Mapping[str, Any]) -> None:
    # Also for a chain that the search, which never looks into higher spaces, would not build.
    world.item("project", "tool", executor_id="runtime")
    world.item("project", "runtime")
    child, parent = world.chain().elements
    spaces = {name: Space(name, "/x") for name in NAMES}
    moved = [
        replace(child, space=spaces[row["child"]]),
        replace(parent, space=spaces[row["parent"]]),
    ]
    pairs = check_pairs(Chain(tuple(moved), "core/primitives/subprocess"))
    assert pairs[0].space_ok is row["allowed"]
    assert [problem.code for problem in pairs[0].problems] == (
        [] if row["allowed"] else ["space-order"]
    )


@pytest.mark.parametrize("row", rows("io"))
def test_inputs_are_a_subset_of_outputs(world: World, row: Mapping[str, Any]) -> None:
    world.item("project", "tool", executor_id="runtime", outputs=row["outputs"])
    world.item("project", "runtime", inputs=row["inputs"])
    pair = check_pairs(world.chain())[0]
    assert (pair.io_ok, pair.space_ok, pair.version_ok) == (row["ok"], True, True)


@pytest.mark.parametrize("row", rows("versions"))
def test_a_version_is_in_its_range(world: World, row: Mapping[str, Any]) -> None:
    bounds = {f"{key}_version": row[key] for key in ("min", "max") if key in row}
    world.item("project", "tool", executor_id="runtime", version=row["version"])
    world.item("project", "runtime", child_constraints={"tool": bounds})
    assert check_pairs(world.chain())[0].version_ok is row["ok"]


def test_a_missing_version_is_a_warning(world: World) -> None:
    world.item("project", "tool", executor_id="runtime", version=None)
    world.item("project", "runtime", child_constraints={"tool": {"min_version": "1.0"}})
    pair = validate(world.chain())[0]
    assert pair.warnings == ("'runtime' demands a version of 'tool', which names none",)


def test_the_dry_run_prints_the_record_of_the_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = new_project(tmp_path, monkeypatch).trust()
    here.write(".ai/tools/rye/file-system/write.py", python_tool())
    shown = here.dry("rye/file-system/write")
    expected = {
        "status": "validation_passed",
        "chain": [
            "rye/file-system/write",
            "core/runtimes/python/script",
            "core/primitives/subprocess",
        ],
        "validated_pairs": [
            {
                "child": "rye/file-system/write",
                "parent": "python/script",
                "space_ok": True,
                "io_ok": True,
            },
            {"child": "python/script", "parent": "subprocess", "space_ok": True, "io_ok": True},
        ],
    }
    assert {key: shown[key] for key in expected} == expected
    assert shown["argv"][0] == sys.executable
    assert shown["cwd"] == str(here.root)
    assert json.loads(shown["stdin"]) == {}
    assert shown["env"]["RYE_PYTHON"].startswith("runtime")
    assert shown["limits"]["timeout"] == 300


# ── environment ──────────────────────────────────────────────────────────


def environment_of(chain: Chain, host: Mapping[str, str], dotenv: DotEnv = DotEnv()) -> Environment:  # noqa: B008
    around = SearchPaths((), host, "/nonexistent")
    return resolve_environment(chain, host=host, dotenv=dotenv, around=around, context={})


@pytest.mark.parametrize("row", rows("environment"))
def test_the_environment_is_resolved_along_the_chain(world: World, row: Mapping[str, Any]) -> None:
    world.item("project", "tool", executor_id="runtime", env_config=row.get("tool"))
    world.item("project", "runtime", env_config=row.get("runtime"))
    dotenv = read_dotenv(row.get("dotenv", ""), [])
    assert environment_of(world.chain(), row.get("host", {}), dotenv).plain == row["child"]


def test_a_tool_without_declarations_gets_the_fixed_list_only(world: World) -> None:
    world.item("project", "tool")
    host = dict.fromkeys(
        (*FIXED, "AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "LD_PRELOAD", "EDITOR"), "x"
    )
    assert set(environment_of(world.chain(), host).plain) == set(FIXED)


# ── anchors ──────────────────────────────────────────────────────────────


def anchored(world: World, anchor: Mapping[str, Any], files: list[str]) -> ActiveAnchor | None:
    (world.top / "outside-marker").touch()
    world.write("project", "tools/pkg/sub/tool.py", '__executor_id__ = "my/runtime"\n')
    world.item("project", "my/runtime", anchor=dict(anchor))
    for file in files:
        world.write("project", f"tools/{file}", "")
    return find_anchor(world.chain("pkg/sub/tool"), str(world.top))


@pytest.mark.parametrize("row", rows("anchors"))
def test_an_anchor_is_where_the_table_says(world: World, row: Mapping[str, Any]) -> None:
    found = anchored(world, row["anchor"], row["files"])
    expected = None if row["root"] is None else str(world.top / "project/tools" / row["root"])
    assert (found.path if found else None) == expected


def test_an_anchor_may_be_the_project(world: World) -> None:
    found = anchored(world, {"mode": "always", "root": "project_path"}, [])
    assert found is not None
    assert found.path == str(world.top)


def test_a_library_lies_beside_the_runtime_that_declares_it(world: World) -> None:
    found = anchored(world, {"mode": "always", "lib": "lib/python"}, [])
    assert found is not None
    assert found.runtime_lib == str(world.top / "project/tools/my/lib/python")


def test_path_variables_get_the_anchor_before_and_after(world: World) -> None:
    paths = {
        "PYTHONPATH": {"prepend": ["{anchor_path}", "{runtime_lib}"], "append": ["/last"]},
        "NEW": {"append": ["{anchor_path}/bin", "{missing}/x"]},
        "EMPTY": {"append": ["{missing}"]},
    }
    found = anchored(world, {"mode": "always", "env_paths": paths}, [])
    assert found is not None
    standing = {"PYTHONPATH": EnvValue("/own:/a", "tool")}
    context = {"anchor_path": "/a", "runtime_lib": "/lib {x}"}
    changed = anchor_environment(found, standing, context)
    assert {name: value.value for name, value in changed.items()} == {
        "PYTHONPATH": "/a:/lib {x}:/own:/last",
        "NEW": "/a/bin",
    }


# ── config ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("row", rows("configs"))
def test_a_config_becomes_an_invocation(world: World, row: Mapping[str, Any]) -> None:
    schema = {"config_schema": row["schema"]} if "schema" in row else {}
    world.item("project", "tool", executor_id="runtime", config=row["tool"], **schema)
    world.item("project", "runtime", config=row.get("runtime"))
    chain = world.chain()
    host = {"HOME": "/home/me", **row.get("env", {})}
    call = BindRequest(
        chain, row.get("params", {}), {}, environment_of(chain, host), None, "/project"
    )
    invocation = bind(call)
    assert isinstance(invocation, ProcessCall)
    if "argv" in row:
        assert list(invocation.argv) == row["argv"]
    if "stdin" in row:
        assert json.loads(invocation.stdin) == row["stdin"]
    assert invocation.cwd == "/project"


@pytest.mark.parametrize("row", rows("resolves"))
def test_a_config_is_resolved_across_the_spaces(world: World, row: Mapping[str, Any]) -> None:
    for name in NAMES:
        if name in row:
            world.write(name, "config/t.yaml", json.dumps(row[name]))
    world.item("project", "tool", config_resolve=row["resolve"])
    specs = world.chain().tool.header.config_resolve
    assert resolve_configs(specs, config_files(specs, world.spaces, "tool")) == row["result"]


def test_the_context_of_the_table_reaches_the_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = new_project(tmp_path, monkeypatch).trust()
    names = ("tool_path", "tool_dir", "tool_parent", "project_path", "user_space", "system_space")
    here.config("a/b/tool", config={"command": "echo", "args": [f"{{{name}}}" for name in names]})
    _, tool_path, tool_dir, *rest = here.dry("a/b/tool")["argv"]
    tools = str(here.space / "tools")
    assert rest == [f"{tools}/a", str(here.root), str(here.top / "home"), SYSTEM]
    # The paths lead to the verified bytes, not to files that may change.
    assert tool_dir == str(Path(tool_path).parent)
    assert Path(tool_path).read_bytes() == (here.space / "tools/a/b/tool.yaml").read_bytes()
    assert Path(tool_path).is_relative_to(here.user)


def test_the_resolved_config_is_a_parameter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = new_project(tmp_path, monkeypatch).trust()
    here.write(".ai/config/team/t.yaml", "lines: 3\n")
    here.write_own("config/team/t.yaml", "lines: 1\nfont: serif\n")
    resolve = {"path": "team/t.yaml"}
    here.config(
        "t", config={"command": "cat", "input_data": "{params_json}"}, config_resolve=resolve
    )
    assert here.data("t", week=1) == {"week": 1, "resolved_config": {"lines": 3, "font": "serif"}}


# ── caching ──────────────────────────────────────────────────────────────


def remembering(world: World) -> Chains:
    """With a clock on which everything written before counts as settled."""
    return Chains(world.spaces, ItemCache(clock=lambda: 4 * 10**18), clock=lambda: 4e9)


def test_an_unchanged_chain_comes_from_the_cache(world: World) -> None:
    world.item("project", "tool", executor_id="runtime")
    world.item("user", "runtime")
    chains = remembering(world)
    first = chains.get("tool")
    assert chains.get("tool") is first
    assert chains.get("tool:tool") is first
    assert (chains.counts.hits, chains.counts.misses) == (2, 1)


@pytest.mark.parametrize("space", ["project", "user"])
def test_a_changed_file_is_read_again(world: World, space: str) -> None:
    files = {
        "project": world.item("project", "tool", executor_id="runtime"),
        "user": world.item("user", "runtime"),
    }
    chains = remembering(world)
    first = chains.get("tool")
    files[space].write_text(files[space].read_text() + " ")
    second = chains.get("tool")
    assert second.digest != first.digest
    assert chains.get("tool") is second


def test_a_file_of_the_same_size_and_time_is_still_noticed(world: World) -> None:
    path = world.item("project", "tool", version="1.0.0")
    chains = remembering(world)
    chains.get("tool")
    status = path.stat()
    path.write_text(path.read_text().replace("1.0.0", "2.0.0"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert chains.get("tool").tool.header.version == "2.0.0"


@pytest.mark.parametrize("place", ["deep/er/tool", "tool"])
@pytest.mark.parametrize("hidden", ["user", "system"])
def test_a_file_that_newly_shadows_is_noticed(world: World, place: str, hidden: str) -> None:
    world.item(hidden, place)
    chains = remembering(world)
    assert chains.get(place).tool.space.name == hidden
    world.item("project", place)
    assert chains.get(place).tool.space.name == "project"
    (world.top / "project" / f"tools/{place}.yaml").unlink()
    assert chains.get(place).tool.space.name == hidden


def test_a_runtime_that_newly_shadows_is_noticed(world: World) -> None:
    world.item("project", "tool", executor_id="rye/core/runtimes/x")
    world.item("system", "core/runtimes/x")
    chains = remembering(world)
    assert chains.get("tool").elements[1].space.name == "system"
    world.item("user", "core/runtimes/x")
    assert chains.get("tool").elements[1].space.name == "user"
    world.item("project", "rye/core/runtimes/x")
    assert chains.get("tool").elements[1].id == "rye/core/runtimes/x"


def test_a_second_file_with_the_id_is_noticed(world: World) -> None:
    world.item("project", "tool")
    chains = remembering(world)
    chains.get("tool")
    world.write("project", "tools/tool.sh", "# executor_id: core/runtimes/bash/bash\n")
    with pytest.raises(InputError, match="names 2 files"):
        chains.get("tool")


def test_a_file_that_has_gone_is_noticed(world: World) -> None:
    path = world.item("project", "tool")
    chains = remembering(world)
    chains.get("tool")
    path.unlink()
    with pytest.raises(InputError, match="there is no tool"):
        chains.get("tool")


def test_what_has_just_changed_is_not_cached(world: World) -> None:
    path = world.item("project", "tool")
    now = path.stat().st_ctime_ns / 1e9
    chains = Chains(world.spaces, ItemCache(), clock=lambda: now + 0.01)
    assert chains.get("tool") is not chains.get("tool")
    assert chains.counts.hits == 0
