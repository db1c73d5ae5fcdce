"""A dry run performs nothing: whatever knows nothing of dry runs does not act in one, wherever it stands."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plait
from plait.agents.ports import Models
from plait.core.errors import InternalError
from plait.core.records import dataclass, field, replace
from plait.core.values import Json
from plait.engine.context import RunContext
from plait.engine.hook_events import Hook, HookCall
from plait.engine.hooks import HookRunner
from plait.engine.outcome import Succeeded
from plait.engine.perform import StepContext, act
from plait.engine.step import DEFAULT_POLICY, Composite, Plan, Policy, Step
from plait.program.action_step import FailureHandler
from plait.program.actions.shell import ShellAction
from plait.program.capture import OutputPart
from plait.program.foreach import ForeachAction
from plait.program.git_changes import ChangeCheck
from plait.program.graph.calls import NodeCall
from plait.program.graph.graph_step import GraphStep
from plait.program.graph.spec import GraphSpec, NodeSpec
from plait.program.map import Map
from plait.program.ports import FileReader, Files, Http, Processes, Results, Tools
from plait.program.step_list import BlockAction, step_list
from plait.program.step_list import StepList as Steps
from plait.program.worktrees.ports import Worktrees
from program.fakes import FakeServices, new_run, performed, services_of, step, text_of, turn_of
from program.test_map import Given
from share import examples

SOURCE = Path(plait.__file__).parent


@dataclass(slots=True)
class Forgetful:
    """A kind of step, and of action, whose author has never heard of dry runs."""

    acts: list[str] = field(default_factory=list)
    name: str = "new"
    kind: str = "brand-new"
    title: str = "something new"
    fingerprint: str = "f"
    policy: Policy = DEFAULT_POLICY
    children: Sequence[Step] = ()

    def run(self, ctx: StepContext) -> dict[str, Json]:
        self.acts.append(ctx.path)
        return {"output": "done", "stderr": "", "exit_code": 0, "duration": 0.0}

    def output_variables(self, value: Json) -> dict[str, Json]:  # noqa: ARG002 - what a list asks its steps
        return {}

    def may_capture(self) -> Sequence[str]:
        return ()


def listed(name: str, steps: list[Any]) -> Steps:
    """A list of steps, whatever they are."""
    return step_list(name, steps)


def in_hook(new: Forgetful) -> Callable[[RunContext], Any]:
    def call(*_: Any) -> Any:
        return new

    def performs(run: RunContext) -> Any:
        hooks = HookRunner([Hook("h", "step_finished", (HookCall("new"),))], call=call)
        run = replace(run, hooks=hooks)
        return performed(step("s", ShellAction(text_of("true"))), run)

    return performs


def in_graph(new: Forgetful) -> Callable[[RunContext], Any]:
    node = NodeSpec("a", "tool", "f", call=NodeCall("team/new"))
    graph = GraphStep(GraphSpec("g", "a", {"a": node}))

    def performs(run: RunContext) -> Any:
        run = replace(
            run,
            services=services_of(
                FakeServices(flows={"team/new": lambda _: new}), is_dry=run.plan_log is not None
            ),
        )
        return performed(graph, run)

    return performs


def in_ensemble(new: Forgetful) -> Callable[[RunContext], Any]:
    from plait.program.tasks.model import EnsembleSpec, Task
    from plait.program.tasks.task_graph import compile_ensemble
    from plait.program.tasks.text import TaskTemplates
    from plait.program.tasks.units import FilledEnsemble

    def handler(*_: Any) -> str:
        new.acts.append("handler")
        return "done"

    tasks = (Task("do it", handler=handler), Task("and this", tool="team/new"))
    spec = EnsembleSpec("e", tasks, ids={id(task): f"t{at}" for at, task in enumerate(tasks)})
    texts = TaskTemplates(spec, {})
    program = compile_ensemble(FilledEnsemble(spec, texts, texts.fill_all({})))

    def performs(run: RunContext) -> Any:
        run = replace(
            run,
            services=services_of(
                FakeServices(flows={"team/new": lambda _: new}), is_dry=run.plan_log is not None
            ),
        )
        return act(program, turn_of(run))

    return performs


def as_step(made: Step) -> Callable[[RunContext], Any]:
    return lambda run: performed(made, run)


NESTED: dict[str, Callable[[Forgetful], Callable[[RunContext], Any]]] = {
    "itself": lambda new: as_step(new),
    "sequence": lambda new: as_step(listed("s", [new])),
    "action": lambda new: as_step(step("s", new)),
    "action with changes": lambda new: as_step(step("s", new, change_check=ChangeCheck(False, "s", {}))),
    "action with extracts": lambda new: as_step(step("s", new, output_parts=(OutputPart("p"),))),
    "handler": lambda new: as_step(
        step("s", None, on_failure=FailureHandler(listed("on_failure", [new])), on_success=listed("on_success", [new]))
    ),
    "block": lambda new: as_step(step("s", BlockAction(listed("block", [new]), None))),
    "map": lambda new: as_step(Map("map", Given(("a", "b")), listed("each", [new]), "f")),
    "map of actions": lambda new: as_step(Map("map", Given(("a",)), listed("each", [step("s", new)]), "f")),
    "graph": in_graph,
    "ensemble": in_ensemble,
    "hook": in_hook,
}  # fmt: skip


@pytest.mark.parametrize("place", NESTED)
def test_a_kind_that_knows_nothing_of_dry_runs_does_not_act_in_one(place: str) -> None:
    new = Forgetful()
    NESTED[place](new)(new_run())
    assert new.acts, "it acts in a run"
    new.acts.clear()
    run = new_run(dry_run=True)
    NESTED[place](new)(run)
    assert new.acts == []
    assert run.plan_log is not None
    assert run.plan_log.steps, "something is shown in its place"


def test_a_dry_run_has_no_services_that_act() -> None:
    services = new_run(dry_run=True).services
    services.get(FileReader)
    for port in (Processes, Files, Http, Results, Tools, Models, Worktrees):
        with pytest.raises(InternalError, match=port.__name__):
            services.get(port)


def test_it_is_shown_as_something_that_would_run() -> None:
    run = new_run(dry_run=True)
    outcome = performed(listed("s", [Forgetful()]), run)
    assert isinstance(outcome, Succeeded)
    assert [
        (one.path, one.kind, one.shown) for one in (run.plan_log.steps if run.plan_log else ())
    ] == [("s/new", "brand-new", "would run: something new")]


def test_a_class_that_is_made_of_a_composite_has_to_say_that_it_is_one() -> None:
    class Through(Composite):
        def run(self, ctx: StepContext) -> Json:
            return {"planned": ctx.run.plan_log is not None}

    class Same(Through):
        """It has no `run` of its own."""

    with pytest.raises(TypeError, match="name Composite as a base"):

        class Acting(Through):
            def run(self, ctx: StepContext) -> Json:
                return ctx.path

    ctx = turn_of(new_run(dry_run=True))
    assert act(Same(), ctx) == {"planned": True}


def test_the_execute_of_an_action_is_never_called_in_a_dry_run() -> None:
    class Planned:
        def plan(self, ctx: StepContext) -> Plan:
            return Plan("new", f"would act at {ctx.path}")

        def execute(self, plan: Plan, ctx: StepContext) -> Json:
            raise AssertionError((plan, ctx))

    run = new_run(dry_run=True)
    assert isinstance(performed(step("s", Planned()), run), Succeeded)
    assert run.plan_log is not None
    assert [one.shown for one in run.plan_log.steps] == ["would act at s"]


around = st.recursive(
    st.sampled_from(["action", "step"]),
    lambda inner: st.tuples(
        st.sampled_from(["sequence", "map", "block", "success", "watched"]), inner
    ),
    max_leaves=6,
)


def built(shape: Any, new: Forgetful) -> Step:
    match shape:
        case "action":
            return step("s", new)
        case "step":
            return new
        case ("sequence", inner):
            return step(
                "q", BlockAction(listed("block", [built(inner, new), step("t", new)]), None)
            )
        case ("map", inner):
            return step(
                "m",
                ForeachAction(Map("m", Given(("a",)), listed("each", [built(inner, new)]), "f")),
            )
        case ("block", inner):
            return step("b", BlockAction(listed("block", [built(inner, new)]), None))
        case ("success", inner):
            return step("o", None, on_success=listed("on_success", [built(inner, new)]))
        case ("watched", inner):
            return step(
                "w",
                BlockAction(listed("block", [built(inner, new)]), None),
                change_check=ChangeCheck(False, "w", {}),
            )
    raise AssertionError(shape)


@given(shape=around)
@settings(max_examples=examples(100))
def test_however_deep_it_stands_it_does_not_act(shape: Any) -> None:
    new = Forgetful()
    performed(built(shape, new), new_run())
    assert new.acts
    new.acts.clear()
    performed(built(shape, new), new_run(dry_run=True))
    assert new.acts == []


def test_nothing_but_act_calls_the_run_of_a_step_an_action_or_a_program() -> None:
    """A direct call of `x.run(ctx)` would act in a dry run."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] not in ("engine", "agents", "program", "lang", "app"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("run", "execute")
            ):
                continue
            given = [ast.unparse(one) for one in node.args]
            if any("ctx" in one or one == "own" for one in given):
                found.append(f"{path.relative_to(SOURCE)}: {ast.unparse(node)}")
    # The first six are `perform` itself; then an action that is one function.  A check is no step: what
    # it performs are steps of its own.
    allowed = [
        "engine/perform.py: action.execute(plan, ctx)",
        "engine/perform.py: action.run(ctx)",
        "engine/perform.py: step.run(own)",
        "engine/perform.py: what.action.run(ctx)",
        "engine/perform.py: what.run(ctx)",
        "engine/perform.py: what.run(ctx)",
        "engine/step.py: self.run(ctx)",
        "program/action_step.py: self.validation.run(ctx.with_scope(self._after(ctx.scope, value)))",
    ]
    assert sorted(found) == allowed
