"""Where a name gets its value: precedence, phases, parents and caches of seed 002.

The rules that need more than one template and one map of values.  Commands,
clock and uuids are fakes that count; files are real.
"""

from __future__ import annotations

import itertools
from collections import UserDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

import plait
from plait.core.errors import MissingNamesError
from plait.core.values import UNDEFINED
from plait.scope import Scope, Sources

LEVELS: Final = ("captures", "phase", "step", "workflow", "outputs", "env")
"""The six levels that hold names, highest first; computed values are the seventh."""


class World:
    """Fakes for everything that a computed value may ask, and what was asked."""

    def __init__(
        self, directory: Path, environ: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        self.ran: list[tuple[str, str]] = []
        self.environ = CountedEnvironment(environ or {"HOME": "/h"})
        self.times = itertools.count()
        self.uuids = itertools.count(1)
        self.sources = Sources(
            directory,
            environ=self.environ,
            run=self.run,
            clock=self.clock,
            new_uuid=lambda: f"uuid-{next(self.uuids)}",
            **settings,
        )
        self.scope = Scope({}, sources=self.sources)

    def run(self, command: Any, directory: str) -> str:
        self.ran.append((str(getattr(command, "script", command)), directory))
        return f"output {len(self.ran)}"

    def clock(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=next(self.times))

    def render(self, template: str, **names: object) -> Any:
        return plait.render(template, self.scope.child(**names))


class CountedEnvironment(UserDict[str, str]):
    def __init__(self, names: Mapping[str, str]) -> None:
        self.reads = 0
        super().__init__(names)

    def __getitem__(self, name: str) -> str:
        self.reads += 1
        return super().__getitem__(name)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# ── The seven levels ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("highest", range(len(LEVELS) + 1), ids=[*LEVELS, "computed"])
def test_the_highest_of_the_seven_levels_answers(world: World, highest: int) -> None:
    """`uuid` is a name of the seventh level, so all seven can compete for it."""
    levels = {level: {"uuid": level} for level in LEVELS[highest:]}
    scope = world.scope.frame("all", **levels)
    assert plait.render("${uuid}", scope) == (
        LEVELS[highest] if highest < len(LEVELS) else "uuid-1"
    )


@pytest.mark.parametrize(("higher", "lower"), list(itertools.combinations(LEVELS, 2)))
def test_each_level_beats_each_lower_one(higher: str, lower: str) -> None:
    names = {higher: {"name": higher}, lower: {"name": lower}}
    assert Scope().frame("both", **names).lookup("name") == higher


@pytest.mark.parametrize(
    ("level", "names", "path"),
    [
        ("captures", {"custom_result": "v"}, "custom_result"),
        ("phase", {"item": {"path": "v"}}, "item.path"),
        ("phase", {"map": {"successful": "v"}}, "map.successful"),
        ("phase", {"merge": {"worktree": "v"}}, "merge.worktree"),
        ("step", {"step": {"index": "v"}}, "step.index"),
        ("workflow", {"workflow": {"name": "v"}}, "workflow.name"),
        ("outputs", {"last": {"output": "v"}}, "last.output"),
        ("outputs", {"shell": {"output": "v"}}, "shell.output"),
        ("env", {"STATIC": "v"}, "STATIC"),
    ],
)
def test_the_names_of_each_level_are_found(level: str, names: dict[str, Any], path: str) -> None:
    scope = Scope().frame("here", **{level: names})
    assert scope.lookup(path) == "v"
    assert plait.render(f"<${{{path}}}>", scope) == "<v>"


@pytest.mark.parametrize("shadowed", ["item", "map", "merge", "step", "workflow", "last", "shell"])
def test_a_capture_may_shadow_a_built_in_name(shadowed: str) -> None:
    built_in = {"phase": {shadowed: {"x": "built in"}}}
    scope = Scope().frame("agent", **built_in, captures={shadowed: "custom command"})
    assert scope.lookup(shadowed) == "custom command"


def test_a_shadowed_built_in_does_not_lend_its_fields() -> None:
    scope = Scope().frame("agent", phase={"item": {"path": "p"}}, captures={"item": "text"})
    assert scope.lookup("item.path") is UNDEFINED


def test_a_custom_name_in_an_outer_frame_beats_a_computed_one(world: World) -> None:
    scope = world.scope.child(uuid="mine", env={"HOME": "mine"}).frame("inner", phase={"item": 1})
    assert plait.render("${uuid} ${env.HOME}", scope) == "mine mine"
    assert world.environ.reads == 0


# ── Three scope levels and the parent chain ──────────────────────────────────────────


def test_local_beats_phase_beats_global() -> None:
    everywhere = Scope({"a": "global", "b": "global", "c": "global"})
    phase = everywhere.frame("phase", captures={"b": "phase", "c": "phase"})
    local = phase.child(c="local")
    assert plait.render("${a} ${b} ${c}", local) == "global phase local"
    assert plait.render("${a} ${b} ${c}", phase) == "global phase phase"
    assert plait.render("${a} ${b} ${c}", everywhere) == "global global global"


def test_an_inner_frame_beats_an_outer_one_whatever_the_levels() -> None:
    outer = Scope().frame("outer", captures={"name": "captured outside"})
    assert outer.frame("inner", env={"name": "env inside"}).lookup("name") == "env inside"


def test_resolution_walks_up_to_the_grandparent() -> None:
    scope = Scope({"root": 1}).frame("parent", captures={"middle": 2}).child(leaf=3)
    assert [scope.lookup(name) for name in ("leaf", "middle", "root")] == [3, 2, 1]
    assert scope.lookup("nowhere") is UNDEFINED


def test_after_the_last_parent_come_default_error_and_kept_text() -> None:
    scope = Scope({"a": 1}).child(b=2).child(c=3)
    assert plait.render("${d:-fallback}", scope) == "fallback"
    assert plait.render("${d:-fallback}", scope, strict=True) == "fallback"
    assert plait.render("<${d}>", scope) == "<${d}>"
    with pytest.raises(MissingNamesError) as caught:
        plait.render("<${d}>", scope, strict=True)
    assert list(caught.value.names) == ["d"]
    assert all(name in str(caught.value) for name in ("a", "b", "c"))


def test_the_frame_that_knows_the_first_segment_answers_alone() -> None:
    outer = Scope().frame("outer loop", phase={"item": {"name": "outer", "path": "p"}})
    inner = outer.frame("inner loop", phase={"item": {"path": "q"}})
    assert inner.lookup("item.path") == "q"
    assert inner.lookup("item.name") is UNDEFINED
    assert plait.render("${item.name:-none}", inner) == "none"
    assert outer.lookup("item.name") == "outer"


def test_a_null_inside_hides_the_value_outside() -> None:
    scope = Scope({"name": "outer"}).child(name=None)
    assert scope.lookup("name") is None
    assert plait.render("[${name:-default}]", scope) == "[]"


def test_a_child_leaves_its_parent_unchanged() -> None:
    parent = Scope({"a": 1})
    child = parent.child(a=2, b=3)
    assert (child.lookup("a"), child.lookup("b")) == (2, 3)
    assert (parent.lookup("a"), parent.lookup("b")) == (1, UNDEFINED)
    assert dict(parent.names) == {"a": 1}
    assert dict(child.names) == {"a": 2, "b": 3}


def test_a_loop_sees_its_own_and_the_workflows_names() -> None:
    workflow = Scope().frame(
        "workflow", workflow={"workflow": {"name": "w"}}, env={"LEVEL": "info"}
    )
    lines = [
        plait.render(
            "${workflow.name}/${item}/${index}/${LEVEL}", workflow.frame("foreach", phase=names)
        )
        for names in ({"item": "a", "index": 0}, {"item": "b", "index": 1})
    ]
    assert lines == ["w/a/0/info", "w/b/1/info"]


def test_a_nested_workflow_inherits_from_its_parent() -> None:
    parent = Scope().frame(
        "parent", workflow={"workflow": {"name": "outer"}}, captures={"shared": "s"}
    )
    nested = parent.frame("nested", workflow={"workflow": {"name": "inner"}})
    assert plait.render("${workflow.name} ${shared}", nested) == "inner s"


# ── Phases: the example with setup, map and reduce ───────────────────────────────────


@pytest.fixture
def setup() -> Scope:
    flow = Scope().frame("flow", workflow={"workflow": {"name": "w"}}, step={"step": {"index": 0}})
    return flow.frame("setup", captures={"workspace_root": "/w", "base_commit": "abc"})


def agent(setup: Scope, name: str) -> Scope:
    return setup.frame("map", phase={"item": {"name": name}})


def reduce(setup: Scope) -> Scope:
    return setup.frame("reduce", phase={"map": {"successful": 2, "results": [{"output": "x"}]}})


def test_setup_captures_reach_map_and_reduce(setup: Scope) -> None:
    for scope in (agent(setup, "n"), reduce(setup)):
        assert plait.render("cd ${workspace_root}", scope, strict=True) == "cd /w"
        assert plait.render("echo 'Base: ${base_commit}'", scope, strict=True) == "echo 'Base: abc'"


def test_an_agent_sees_its_item_its_captures_and_setup(setup: Scope) -> None:
    scope = agent(setup, "n").child(item_status="ok")
    template = "${item.name} ${item_status} ${workspace_root} ${base_commit} ${workflow.name} ${step.index}"
    assert plait.render(template, scope, strict=True) == "n ok /w abc w 0"


def test_reduce_does_not_see_what_one_agent_captured(setup: Scope) -> None:
    agent(setup, "n").child(item_status="ok")
    assert reduce(setup).lookup("item_status") is UNDEFINED
    assert reduce(setup).lookup("item") is UNDEFINED
    assert plait.render("${item_status}", reduce(setup)) == "${item_status}"
    with pytest.raises(MissingNamesError):
        plait.render("${item_status}", reduce(setup), strict=True)


def test_one_agent_does_not_see_what_another_captured(setup: Scope) -> None:
    first, second = agent(setup, "first"), agent(setup, "second")
    captured = first.child(item_status="ok")
    assert captured.lookup("item_status") == "ok"
    assert second.lookup("item_status") is UNDEFINED
    assert second.lookup("item.name") == "second"


def test_reduce_sees_the_aggregate_and_its_own_earlier_captures(setup: Scope) -> None:
    later = reduce(setup).child(summary="done").child(report="r")
    assert (
        plait.render("${map.successful} ${map.results[0].output} ${summary} ${report}", later)
        == "2 x done r"
    )


def test_map_does_not_see_the_aggregate(setup: Scope) -> None:
    assert agent(setup, "n").lookup("map") is UNDEFINED


def test_merge_sees_its_own_variables_and_the_standard_ones(setup: Scope) -> None:
    merge = setup.frame("merge", phase={"merge": {"source_branch": "b"}})
    assert plait.render("${merge.source_branch} ${workflow.name} ${step.index}", merge) == "b w 0"
    assert merge.lookup("item") is UNDEFINED


def test_legacy_aliases_work_in_the_map_phase_only(setup: Scope) -> None:
    item = setup.frame("map", phase={"item": {"value": "v", "path": "p"}})
    text = "${ARG} ${ARGUMENT} ${FILE} ${FILE_PATH}"
    assert plait.render(text, item) == "v v p p"
    assert plait.render(text, setup) == text
    assert plait.render(text, reduce(setup)) == text


@pytest.mark.parametrize("level", ["captures", "env"])
def test_a_variable_named_like_an_alias_wins(setup: Scope, level: str) -> None:
    item: dict[str, dict[str, Any]] = {"phase": {"item": {"value": "v"}}, level: {"ARG": "mine"}}
    assert plait.render("${ARG}", setup.frame("map", **item)) == "mine"


# ── Computed values ──────────────────────────────────────────────────────────────────


def test_each_computed_value_has_its_form(world: World, tmp_path: Path) -> None:
    (tmp_path / "version.txt").write_text("1.2.3")
    config = {"database": {"host": "db"}}
    template = "${env.HOME}|${file:version.txt}|${cmd:date}|${json:database.host:from:config}|${date:%Y-%m-%d}|${uuid}"
    assert world.render(template, config=config) == "/h|1.2.3|output 1|db|2026-01-01|uuid-1"


def test_a_missing_environment_variable_is_undefined(world: World) -> None:
    assert world.render("<${env.NOPE}>") == "<${env.NOPE}>"
    assert world.render("<${env.NOPE:-d}>") == "<d>"
    with pytest.raises(MissingNamesError):
        plait.render("${env.NOPE}", world.scope, strict=True)


def test_a_file_called_like_a_default_is_named_by_its_directory(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "-d").write_text("the file")
    assert world.render("${file:-d}") == "d"
    assert world.render("${file:./-d}") == "the file"


def test_an_argument_may_hold_placeholders_and_braces(world: World, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A")
    assert world.render("${file:${name}.txt}", name="a") == "A"
    assert world.render("${cmd:awk '{print}' x}") == "output 1"
    assert "awk '{print}' x" in world.ran[0][0]


def test_a_command_runs_in_the_given_directory(world: World, tmp_path: Path) -> None:
    world.render("${cmd:pwd}")
    assert [directory for _, directory in world.ran] == [str(tmp_path)]


@pytest.mark.parametrize("path", ["../secret", "/etc/hostname", "a/../../secret"])
def test_a_file_outside_the_project_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "project").mkdir()
    with pytest.raises(plait.PlaitError):
        World(tmp_path / "project").render("${file:" + path + "}")


def test_what_a_source_returns_is_not_a_template(world: World, tmp_path: Path) -> None:
    (tmp_path / "t").write_text("${env.HOME} ${uuid}")
    assert world.render("${file:t}") == "${env.HOME} ${uuid}"


def test_a_value_does_not_become_a_command(world: World) -> None:
    world.render("x ${text}", text="${cmd:touch canary}")
    assert world.ran == []


def test_a_default_that_is_not_used_runs_no_command(world: World) -> None:
    assert world.render("${a:-${cmd:slow}}", a="A") == "A"
    assert world.ran == []


# ── Caches ───────────────────────────────────────────────────────────────────────────


def test_a_command_runs_once_in_a_run(world: World) -> None:
    assert [world.render("${cmd:make version}") for _ in range(3)] == ["output 1"] * 3
    assert len(world.ran) == 1
    assert (world.sources.stats.hits, world.sources.stats.misses) == (2, 1)


def test_a_command_used_twice_in_one_template_runs_once(world: World) -> None:
    assert world.render("${cmd:v} ${cmd:v}") == "output 1 output 1"
    assert len(world.ran) == 1


def test_another_command_runs_anew(world: World) -> None:
    assert (world.render("${cmd:a}"), world.render("${cmd:b}")) == ("output 1", "output 2")


def test_a_command_with_another_value_runs_anew(world: World) -> None:
    assert world.render("${cmd:echo ${x}}", x="1") == "output 1"
    assert world.render("${cmd:echo ${x}}", x="2") == "output 2"
    assert world.render("${cmd:echo ${x}}", x="1") == "output 1"


def test_a_file_is_read_once_in_a_run(world: World, tmp_path: Path) -> None:
    """The three commands of the example; the file changes behind their back."""
    message = tmp_path / ".commit-message.txt"
    message.write_text("first")
    steps = [
        "git commit -m '${file:.commit-message.txt}'",
        "echo 'Message: ${file:.commit-message.txt}'",
        "test -n '${file:.commit-message.txt}'",
    ]
    shown = []
    for step in steps:
        shown.append(world.render(step))
        message.write_text("changed")
    assert shown == ["git commit -m 'first'", "echo 'Message: first'", "test -n 'first'"]
    assert (world.sources.stats.hits, world.sources.stats.misses) == (2, 1)


def test_the_environment_is_read_once_in_a_run(world: World) -> None:
    assert [world.render("${env.HOME}") for _ in range(3)] == ["/h"] * 3
    assert world.environ.reads == 1
    assert (world.sources.stats.hits, world.sources.stats.misses) == (2, 1)


def test_the_cache_lasts_as_long_as_the_run(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("first")
    first_run = World(tmp_path)
    assert first_run.render("${file:f}") == "first"
    (tmp_path / "f").write_text("second")
    assert first_run.render("${file:f}") == "first"
    assert World(tmp_path).render("${file:f}") == "second"


def test_the_same_relative_file_in_two_directories_is_two_files(tmp_path: Path) -> None:
    worlds = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
        worlds.append(World(tmp_path / name))
    assert [world.render("${file:f}") for world in worlds] == ["one", "two"]


def test_an_environment_variable_a_file_and_a_command_of_one_name_are_three_entries(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, {"same": "from env"})
    (tmp_path / "same").write_text("from file")
    assert world.render("${env.same} ${file:same} ${cmd:same}") == "from env from file output 1"
    assert world.sources.stats.misses == 3


def test_the_least_recently_used_entry_goes_first(tmp_path: Path) -> None:
    world = World(tmp_path, capacity=2)
    a, b = world.render("${cmd:a}"), world.render("${cmd:b}")
    assert world.render("${cmd:a}") == a  # a is now younger than b
    world.render("${cmd:c}")
    assert world.sources.stats.evictions == 1
    assert world.render("${cmd:a}") == a, "the older entry was kept: first in, first out"
    assert world.render("${cmd:b}") != b
    assert len(world.ran) == 4


def test_a_hundred_entries_are_kept_and_no_more(world: World) -> None:
    for number in range(100):
        world.render(f"${{cmd:c{number}}}")
    assert (world.sources.stats.misses, world.sources.stats.evictions) == (100, 0)
    assert world.render("${cmd:c0}") == "output 1"
    world.render("${cmd:c100}")
    assert world.sources.stats.evictions == 1
    assert world.render("${cmd:c0}") == "output 1"
    assert world.render("${cmd:c1}") == "output 102"


def test_a_uuid_is_new_at_every_place(world: World) -> None:
    assert world.render("${uuid} ${uuid}") == "uuid-1 uuid-2"
    assert world.render("${uuid}") == "uuid-3"
    assert (world.sources.stats.hits, world.sources.stats.misses) == (0, 0)


def test_a_date_is_asked_anew_every_time(world: World) -> None:
    assert [world.render("${date:%d}") for _ in range(3)] == ["01", "02", "03"]
    assert (world.sources.stats.hits, world.sources.stats.misses) == (0, 0)


def test_json_is_extracted_anew_every_time(world: World) -> None:
    answers = [world.render("${json:a.b:from:doc}", doc={"a": {"b": number}}) for number in (1, 2)]
    assert answers == [1, 2]
    assert (world.sources.stats.hits, world.sources.stats.misses) == (0, 0)


def test_child_scopes_share_the_cache_of_their_run(world: World) -> None:
    first = world.scope.frame("map", phase={"item": 1})
    second = world.scope.frame("map", phase={"item": 2})
    assert [plait.render("${cmd:v}", scope) for scope in (first, second)] == [
        "output 1",
        "output 1",
    ]


def test_threads_may_share_the_cache(world: World) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: world.render(f"${{cmd:c{number % 5}}}"), range(200)))
    assert len(set(answers)) == 5
    assert len(world.ran) == 5
    assert (world.sources.stats.hits, world.sources.stats.misses) == (195, 5)


# ── The example of the cache, in real shells ─────────────────────────────────────────


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_message_file_reaches_a_shell_as_it_is(world: World, tmp_path: Path, shell: str) -> None:
    message = 'fix: it\'s "done" $(touch canary)\n\nbody; touch canary'
    (tmp_path / ".commit-message.txt").write_text(message)
    done = plait.sh(
        "printf '%s' '${file:.commit-message.txt}'", world.scope, shell=shell, cwd=tmp_path
    )
    output = done.stdout.decode() if isinstance(done.stdout, bytes) else done.stdout
    assert output == message
    assert [path.name for path in tmp_path.iterdir()] == [".commit-message.txt"]
