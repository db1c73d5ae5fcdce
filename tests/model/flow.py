"""Flows as the model knows them: what stands in the file, and what the documentation makes of it.

Nothing here asks Plait.  A flow is a small tree of steps; `text` writes it as YAML, and the places
that `walked` gives say where each step is in a run, what it says, and what stands before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["shell", "use", "foreach"]
PHASES = ("setup", "map", "reduce", "merge")
FAILS = "F"
"""A command whose revision begins with it always fails."""


@dataclass(frozen=True)
class Step:
    id: str
    revision: str
    kind: Kind = "shell"
    words: tuple[str, ...] = ()
    """Names that its command mentions; of a `use`, those that `with` gives to its block."""
    capture: str = ""
    when: tuple[str, str, str] | None = None
    """A name, == or !=, and a text."""
    attempts: int = 1
    goes_on: bool = False
    """`continue_on_error`"""
    env: str = ""
    """A name whose value its commands print, too, as the variable OWN."""
    handler: tuple[Step, ...] | None = None
    inner: tuple[Step, ...] = ()
    """Of a `use`, its block; of a `foreach`, what it does."""
    values: tuple[str, ...] = ()
    """Of a `foreach`."""

    @property
    def fails(self) -> bool:
        return self.revision.startswith(FAILS)


@dataclass(frozen=True)
class Flow:
    phases: Mapping[str, tuple[Step, ...]]
    items: tuple[str, ...] = ()
    vars: Mapping[str, str] = field(default_factory=dict)
    env: str = "e0"
    """The value of the variable AROUND, which reaches every step."""
    parallel: int = 1

    @property
    def lists(self) -> Iterator[tuple[str, tuple[Step, ...]]]:
        return ((name, self.phases[name]) for name in PHASES if name in self.phases)


# ── as a file ────────────────────────────────────────────────────────────


def text(flow: Flow) -> str:
    blocks: dict[str, object] = {}
    document: dict[str, object] = {"env": {"AROUND": flow.env}, "vars": dict(flow.vars), "blocks": blocks}
    for name, steps in flow.lists:
        written = [_written(step, _key(name), blocks) for step in steps]
        document[name] = (
            {"input": list(flow.items), "id": "${item}", "max_parallel": flow.parallel, "steps": written}
            if name == "map"
            else written
        )
    return json.dumps(document, indent=1)


def _key(phase: str) -> str:
    """How a command tells the ledger where it is: the item is what it is given."""
    return "map/item:${item}" if phase == "map" else phase


def _written(step: Step, above: str, blocks: dict[str, object]) -> dict[str, object]:
    here = f"{above}/{step.id}"
    said: dict[str, object] = {"id": step.id}
    if step.when is not None:
        name, compared, value = step.when
        said["when"] = f"${{{name}}} {compared} '{value}'"
    match step.kind:
        case "shell":
            key = f"{here}/run" if step.handler is not None else here
            said["shell"] = " ".join(["say", key, step.revision, *(f"${{{name}}}" for name in step.words)])
        case "use":
            block = f"b_{here.replace('/', '_').replace(':', '').replace('${item}', '')}"
            blocks[block] = {
                "with": ["at", *(f"w{n}" for n in range(len(step.words)))],
                "steps": [_written(one, "${at}", blocks) for one in step.inner],
            }
            given = {f"w{n}": f"${{{name}}}" for n, name in enumerate(step.words)}
            said |= {"use": block, "with": {"at": f"{here}/block", **given}}
        case "foreach":
            said["foreach"] = list(step.values)
            said["env"] = {"AT": f"{here}/each"}
            said["do"] = [_written(one, "${AT}/item:${index}", blocks) for one in step.inner]
    if step.capture:
        said["capture"] = step.capture
    if step.attempts > 1:
        said["retry"] = {"attempts": step.attempts, "initial_delay": 0.001}
    if step.goes_on:
        said["continue_on_error"] = True
    if step.env:
        said["env"] = {**_map(said.get("env")), "OWN": f"${{{step.env}}}"}
    if step.handler is not None:
        said["on_failure"] = [_written(one, f"{here}/on_failure", blocks) for one in step.handler]
    return said


def _map(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


# ── what each step says ──────────────────────────────────────────────────


@dataclass(frozen=True)
class Place:
    """A step at its place in a run."""

    path: str
    says: tuple[object, ...]
    """What it is compared by: its own words, and what reaches it from around."""
    command: bool
    """Does it do something itself, or only what is inside it?"""
    goes_on: bool = False
    inside: tuple[Step, ...] = ()
    """The steps that it performs: they are compared by themselves once they have ended."""


def places(flow: Flow, items: Sequence[str] | None = None) -> Iterator[Place]:
    """Every place of a flow that may have a record, in the order of the file."""
    for name, steps in flow.lists:
        if name != "map":
            yield from _places(flow, steps, name, ())
            continue
        yield Place("map/items", ("items", flow.items, flow.env), command=False)
        for item in flow.items if items is None else items:
            yield from _places(flow, steps, f"map/item:{item}", ())


def _places(flow: Flow, steps: Sequence[Step], above: str, around: tuple[object, ...]) -> Iterator[Place]:
    for step in steps:
        here = f"{above}/{step.id}"
        says = (*_own(flow, step), flow.env, *around)
        reaching = (*around, *_reaching(flow, step))
        match step.kind:
            case "use":
                yield from _places(flow, step.inner, f"{here}/block", reaching)
            case "foreach":
                yield Place(f"{here}/each/items", (step.values, flow.env, *reaching), command=False)
                for number in range(len(step.values)):
                    yield from _places(flow, step.inner, f"{here}/each/item:{number}", reaching)
            case "shell" if step.handler is not None:
                yield Place(f"{here}/run", says, command=True)
                yield from _places(flow, step.handler, f"{here}/on_failure", around)
        simple = step.kind == "shell" and step.handler is None
        yield Place(here, says, command=simple, goes_on=step.goes_on, inside=step.inner)


def _own(flow: Flow, step: Step) -> tuple[object, ...]:
    """What a step says, and the variables that it mentions; of one with steps inside: without those."""
    names = [*step.words, step.env, *((step.when[0],) if step.when else ())]
    handler = None if step.handler is None else tuple((one.id, *_own(flow, one)) for one in step.handler)
    revision = step.revision if step.kind == "shell" else ""
    own = (step.kind, revision, step.words, step.capture, step.when, step.attempts, step.goes_on)
    return (*own, step.env, step.values, handler, *_mentioned(flow, names))


def _reaching(flow: Flow, step: Step) -> tuple[object, ...]:
    given = step.words if step.kind == "use" else ()
    return (step.kind, given, step.env, *_mentioned(flow, [*given, step.env]))


def _mentioned(flow: Flow, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, flow.vars[name]) for name in names if name in flow.vars)
