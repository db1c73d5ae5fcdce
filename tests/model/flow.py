"""Flows as the model knows them: the text of the file, and its documented meaning.

Nothing here uses Plait.  A flow is a small tree of steps; `text` writes it as YAML, and the places
that `walked` gives name the path of each step in a run, its text, and the steps before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["shell", "use", "foreach"]
PHASES = ("setup", "map", "reduce", "merge")
FAILS, FLAKY, LACKS = "F", "K", "J"
"""What the revision of a command begins with that always fails; that fails, or prints a result that is not
complete, as often as the digit behind it says: see `code_of` and `lacks`."""
LISTS = ("inner", "handler", "success", "zero", "three", "incomplete")
"""The fields of a step that contain steps."""


@dataclass(frozen=True)
class Step:
    id: str
    revision: str
    kind: Kind = "shell"
    words: tuple[str, ...] = ()
    """Names in its command; for a `use`, those that `with` passes to its block."""
    capture: str = ""
    when: tuple[str, str, str] | None = None
    """A name, == or !=, and a text."""
    attempts: int = 1
    goes_on: bool = False
    """`continue_on_error`"""
    env: str = ""
    """A name whose value its commands also print, as the variable OWN."""
    handler: tuple[Step, ...] | None = None
    """`on_failure`"""
    tries: int = 0
    """Its `max_attempts`."""
    success: tuple[Step, ...] | None = None
    """`on_success`"""
    zero: tuple[Step, ...] | None = None
    """`on_exit_code: {0: …}`"""
    three: tuple[Step, ...] | None = None
    """`on_exit_code: {3: …}`; every failure here is an exit code of 3."""
    check: str = ""
    """The revision of its validating command."""
    incomplete: tuple[Step, ...] | None = None
    """`on_incomplete` of that, once."""
    once: bool = False
    into_file: bool = False
    """`output_file`"""
    inner: tuple[Step, ...] = ()
    """The block of a `use`, or the steps of a `foreach`."""
    values: tuple[str, ...] = ()
    """The values of a `foreach`."""

    @property
    def fails(self) -> bool:
        return self.revision.startswith((FAILS, FLAKY))

    @property
    def is_plain(self) -> bool:
        """Whether the step consists of its action alone."""
        around = (self.handler, self.success, self.zero, self.three)
        return self.kind == "shell" and not self.check and all(one is None for one in around)

    @property
    def is_redone(self) -> bool:
        """Whether its action runs again after a failed check."""
        return bool(self.check) and self.incomplete is None and not self.once

    @property
    def is_handled(self) -> bool:
        """Whether a handler follows when its action fails."""
        return self.handler is not None or self.three is not None


def code_of(revision: str, path: str) -> int:
    """The exit code of a command that the test does not break."""
    if revision.startswith(FLAKY):
        return 3 if _earlier(path) < int(revision[1]) else 0
    return 3 if revision.startswith(FAILS) else 0


def lacks(revision: str, path: str) -> bool:
    """Whether a check reports that something is missing."""
    return revision.startswith(LACKS) and _earlier(path) < int(revision[1])


def _earlier(path: str) -> int:
    """The number of earlier attempts, from the path: `again@2` is the third attempt, `check@2` the second."""
    found = _TIME.search(path)
    return 0 if found is None else int(found[2]) - (found[1] == "check")


_TIME = re.compile(r"/(again|check)@(\d+)(/0)?$")


def named(steps: Sequence[Step]) -> Iterator[tuple[str, Step]]:
    """The steps of a list by their names in paths: ids or numbers."""
    return ((step.id or str(number), step) for number, step in enumerate(steps))


@dataclass(frozen=True)
class Flow:
    phases: Mapping[str, tuple[Step, ...]]
    items: tuple[str, ...] = ()
    from_file: bool = False
    """A map whose items are in a file of their own, which is not part of the text of the flow."""
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
    document: dict[str, object] = {
        "env": {"AROUND": flow.env},
        "vars": dict(flow.vars),
        "blocks": blocks,
    }
    for name, steps in flow.lists:
        written = [_written(step, name, blocks) for step in steps]
        given: object = {"file": ITEMS, "format": "text"} if flow.from_file else list(flow.items)
        document[name] = (
            {"input": given, "id": "${item}", "max_parallel": flow.parallel, "steps": written}
            if name == "map"
            else written
        )
    return json.dumps(document, indent=1)


ITEMS = "items.txt"


def _written(step: Step, phase: str, blocks: dict[str, object]) -> dict[str, object]:
    def listed(steps: Sequence[Step]) -> list[dict[str, object]]:
        return [_written(one, phase, blocks) for one in steps]

    fields: dict[str, object] = {"id": step.id} if step.id else {}
    if step.when is not None:
        name, compared, value = step.when
        fields["when"] = f"${{{name}}} {compared} '{value}'"
    match step.kind:
        case "shell":
            fields["shell"] = " ".join(
                ["say", step.revision, *(f"${{{name}}}" for name in step.words)]
            )
        case "use":
            block = f"b_{phase}_{step.id}"
            blocks[block] = {
                "with": [f"w{n}" for n in range(len(step.words))],
                "steps": listed(step.inner),
            }
            given = {f"w{n}": f"${{{name}}}" for n, name in enumerate(step.words)}
            fields |= {"use": block, **({"with": given} if given else {})}
        case "foreach":
            fields["foreach"] = list(step.values)
            fields["do"] = listed(step.inner)
    if step.capture:
        fields["capture"] = step.capture
    if step.attempts > 1:
        fields["retry"] = {"attempts": step.attempts, "initial_delay": 0.001}
    if step.goes_on:
        fields["continue_on_error"] = True
    if step.env:
        fields["env"] = {"OWN": f"${{{step.env}}}"}
    if step.once:
        fields["once"] = True
    if step.into_file:
        fields["output_file"] = "out/${step.path}.txt"
    if step.handler is not None:
        steps = listed(step.handler)
        fields["on_failure"] = {"steps": steps, "max_attempts": step.tries} if step.tries else steps
    if step.success is not None:
        fields["on_success"] = listed(step.success)
    codes = {
        code: listed(steps)
        for code, steps in (("0", step.zero), ("3", step.three))
        if steps is not None
    }
    if codes:
        fields["on_exit_code"] = codes
    if step.check:
        more = (
            {"on_incomplete": {"steps": listed(step.incomplete), "max_attempts": 1}}
            if step.incomplete
            else {}
        )
        fields["validate"] = {"shell": f"say {step.check}", **more}
    return fields


# ── what each step says ──────────────────────────────────────────────────


@dataclass(frozen=True)
class Place:
    """A step at its path in a run."""

    path: str
    says: tuple[object, ...]
    """The text that it is compared by: its own words, and the values from outer steps."""
    command: bool
    """Whether it runs a command itself, and not only the steps inside it."""
    goes_on: bool = False
    handled: str = ""
    """The path of its step, if it is an action with a failure handler."""
    once: bool = False
    inside: tuple[Step, ...] = ()
    """The steps inside it.  Once they have ended, they are compared by themselves."""
    of: str = ""
    """The path of its step, if it is an action."""
    redone: bool = False
    """Whether it is an action that runs again after a failed check of its step."""


def places(flow: Flow, items: Sequence[str] | None = None) -> Iterator[Place]:
    """Every path of a flow that may have a record, in the order of the file."""
    for name, steps in flow.lists:
        if name != "map":
            yield from _places(flow, steps, name, ())
            continue
        yield Place(
            "map/items", ("items", "" if flow.from_file else flow.items, flow.env), command=False
        )
        for item in flow.items if items is None else items:
            yield from _places(flow, steps, f"map/item:{item}", ())


def _places(
    flow: Flow, steps: Sequence[Step], above: str, around: tuple[object, ...]
) -> Iterator[Place]:
    for name, step in named(steps):
        here = f"{above}/{name}"
        says = (*_own(flow, step), flow.env, *around)
        reaching = (*around, *_reaching(flow, step))
        match step.kind:
            case "use":
                yield from _places(flow, step.inner, f"{here}/block", reaching)
            case "foreach":
                yield Place(f"{here}/each/items", (step.values, flow.env, *reaching), command=False)
                for number in range(len(step.values)):
                    yield from _places(flow, step.inner, f"{here}/each/item:{number}", reaching)
            case "shell" if not step.is_plain:
                handled = here if step.is_handled else ""
                acts = (*_own(flow, step, action=True), flow.env, *around)
                yield Place(
                    f"{here}/run",
                    acts,
                    command=True,
                    handled=handled,
                    once=step.once,
                    of=here,
                    redone=step.is_redone,
                )
                yield from _around_action(flow, step, here, acts, around)
        once = step.once and step.is_plain
        yield Place(
            here, says, command=step.is_plain, goes_on=step.goes_on, inside=step.inner, once=once
        )


def _around_action(
    flow: Flow, step: Step, here: str, says: tuple[object, ...], around: tuple[object, ...]
) -> Iterator[Place]:
    """The parts of a step that may follow its action."""
    handled = here if step.is_handled else ""
    for number in range(1, step.tries + 1):
        yield from _places(flow, step.handler or (), f"{here}/on_failure@{number}", around)
        yield Place(
            f"{here}/again@{number}",
            says,
            command=True,
            handled=handled,
            once=step.once,
            of=here,
            redone=step.is_redone,
        )
    if not step.tries:
        yield from _places(flow, step.handler or (), f"{here}/on_failure", around)
    for name, steps in (("on_exit_code:3", step.three), ("on_exit_code:0", step.zero)):
        yield from _places(flow, steps or (), f"{here}/{name}", around)
    checked = ("check", step.check, flow.env, *around)
    if step.check:
        yield Place(f"{here}/check@1/0", checked, command=True)
    if step.incomplete:
        yield from _places(flow, step.incomplete, f"{here}/on_incomplete@1", around)
        yield Place(f"{here}/check@2/0", checked, command=True)
    yield from _places(flow, step.success or (), f"{here}/on_success", around)


def _own(flow: Flow, step: Step, *, action: bool = False) -> tuple[object, ...]:
    """What a step says, and the variables that it mentions; of one with steps inside: without those.

    `action`: without what it says of what follows that.
    """
    names = [*step.words, step.env, *((step.when[0],) if step.when else ())]
    lists = [getattr(step, field) for field in LISTS if field != "inner"]
    inside = tuple(
        None if steps is None else tuple((one.id, *_own(flow, one)) for one in steps)
        for steps in lists
    )
    revision = step.revision if step.kind == "shell" else ""
    own = (step.kind, revision, step.words, step.capture, step.when, step.attempts, step.goes_on)
    more = (step.once, step.into_file, step.env, step.values, *_mentioned(flow, names))
    return (*own, *more) if action else (*own, *more, step.tries, step.check, inside)


def _reaching(flow: Flow, step: Step) -> tuple[object, ...]:
    given = step.words if step.kind == "use" else ()
    return (step.kind, given, step.env, *_mentioned(flow, [*given, step.env]))


def _mentioned(flow: Flow, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, flow.vars[name]) for name in names if name in flow.vars)
