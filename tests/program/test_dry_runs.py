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
from plait.core.records import dataclass, field
from plait.core.values import Json
from plait.engine.hooks import Hook, HookCall, HookRunner
from plait.engine.outcome import Succeeded
from plait.engine.perform import StepContext, act, plans
from plait.engine.step import DEFAULT_POLICY, Policy, Step
from plait.engine.working_run import WorkingRun
from plait.program.action_step import FailureHandler
from plait.program.actions.shell import ShellAction
from plait.program.block import BlockAction
from plait.program.capture import ExtractingAction
from plait.program.changes import ChangeCheckedAction
from plait.program.graph.calls import NodeCall
from plait.program.graph.walk import GraphProgram, NodeSpec
from plait.program.map import ForeachAction, Map
from plait.program.step_list import StepList as Steps
from plait.program.step_list import step_list
from program.fakes import FakeHands, new_run, performed, step, text_of, turn_of
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
    inner: Sequence[Step] = ()

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


def in_hook(new: Forgetful) -> Callable[[WorkingRun], Any]:
    def call(ctx: StepContext, *_: Any) -> dict[str, Json]:
        return new.run(ctx)

    def performs(run: WorkingRun) -> Any:
        run.hooks = HookRunner([Hook("h", "step_finished", (HookCall("new"),))], call=call)
        return performed(step("s", ShellAction(text_of("true"))), run)

    return performs


def in_graph(new: Forgetful) -> Callable[[WorkingRun], Any]:
    node = NodeSpec("a", "tool", "f", call=NodeCall("team/new"))
    graph = GraphProgram("g", "a", {"a": node})

    def performs(run: WorkingRun) -> Any:
        run.hands = FakeHands(flows={"team/new": lambda _: new})
        return act(graph, turn_of(run))

    return performs


def in_ensemble(new: Forgetful) -> Callable[[WorkingRun], Any]:
    from plait.program.tasks.model import EnsembleSpec, Task
    from plait.program.tasks.task_graph import compile_ensemble
    from plait.program.tasks.text import TaskTemplates

    def handler(*_: Any) -> str:
        new.acts.append("handler")
        return "done"

    tasks = (Task("do it", handler=handler), Task("and this", tool="team/new"))
    cast = EnsembleSpec("e", tasks, ids={id(task): f"t{at}" for at, task in enumerate(tasks)})
    program = compile_ensemble(cast, TaskTemplates(cast, {}), {})

    def performs(run: WorkingRun) -> Any:
        run.hands = FakeHands(flows={"team/new": lambda _: new})
        return act(program, turn_of(run))

    return performs


def as_step(made: Step) -> Callable[[WorkingRun], Any]:
    return lambda run: performed(made, run)


NESTED: dict[str, Callable[[Forgetful], Callable[[WorkingRun], Any]]] = {
    "itself": lambda new: as_step(new),
    "sequence": lambda new: as_step(listed("s", [new])),
    "action": lambda new: as_step(step("s", new)),
    "action with changes": lambda new: as_step(step("s", ChangeCheckedAction(new, False, "s", {}))),
    "action with extracts": lambda new: as_step(step("s", ExtractingAction(new, ()))),
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
    run = new_run(rehearsing=True)
    NESTED[place](new)(run)
    assert new.acts == []
    assert run.rehearsal, "something is shown in its place"


def test_it_is_shown_as_something_that_would_run() -> None:
    run = new_run(rehearsing=True)
    outcome = performed(listed("s", [Forgetful()]), run)
    assert isinstance(outcome, Succeeded)
    assert [(one.path, one.kind, one.shown) for one in run.rehearsal or ()] == [
        ("s/new", "brand-new", "would run: something new")
    ]


def test_a_kind_that_is_made_of_another_plans_only_what_it_says_itself() -> None:
    @dataclass(slots=True)
    class Planning(Forgetful):
        @plans
        def run(self, ctx: StepContext) -> dict[str, Json]:
            return {"planned": ctx.run.is_dry}

    @dataclass(slots=True)
    class Derived(Planning):
        def run(self, ctx: StepContext) -> dict[str, Json]:
            self.acts.append(ctx.path)
            return {}

    new = Derived()
    performed(new, new_run(rehearsing=True))
    assert new.acts == []
    assert performed(Planning(), new_run(rehearsing=True)) == Succeeded({"planned": True})


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
                ChangeCheckedAction(
                    BlockAction(listed("block", [built(inner, new)]), None), False, "w", {}
                ),
            )
    raise AssertionError(shape)


@given(shape=around)
@settings(max_examples=examples(100))
def test_however_deep_it_stands_it_does_not_act(shape: Any) -> None:
    new = Forgetful()
    performed(built(shape, new), new_run())
    assert new.acts
    new.acts.clear()
    performed(built(shape, new), new_run(rehearsing=True))
    assert new.acts == []


def test_nothing_but_act_calls_the_run_of_a_step_an_action_or_a_program() -> None:
    """Whoever calls `x.run(ctx)` himself would let it act in a dry run."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] not in ("engine", "agents", "program", "lang", "app"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "run"
            ):
                continue
            first = ast.unparse(node.args[0]) if node.args else ""
            if "ctx" in first:
                found.append(f"{path.relative_to(SOURCE)}: {ast.unparse(node)}")
    # A check is no step: what it performs are steps of its own.
    allowed = [
        "program/action_step.py: self.validation.run(ctx.with_scope(self._after(ctx.scope, value)))"
    ]
    assert found == allowed
