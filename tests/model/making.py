"""Random flows and random edits of them, in which each step uses only names that it knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from model.expected import expect
from model.flow import FAILS, FLAKY, LACKS, LISTS, Flow, Step, named

VARS = ("v0", "v1")
WORDS = (*VARS, "c0", "c1", "c2", "item", "last.output", "w0", "map.outputs", "map.successful")
ITEMS = ("x", "y", "z", "p", "q", "s")
TRIES = 40


def made(chance: Random) -> Flow:
    phases: dict[str, tuple[Step, ...]] = {}
    items = tuple(chance.sample(ITEMS, chance.randint(2, 4)))
    flow = Flow(phases, items, chance.random() < 0.3, {"v0": "V0", "v1": "V0"})
    for name, least, most in (("setup", 0, 3), ("map", 1, 3), ("reduce", 0, 2), ("merge", 0, 1)):
        count = chance.randint(least, most)
        for number in range(count):
            flow = _grown(flow, name, number, chance)
    return replace(flow, parallel=chance.choice((1, 1, 1, 2)))


def _grown(flow: Flow, phase: str, number: int, chance: Random) -> Flow:
    for _ in range(TRIES):
        step = made_step(f"s{number}", chance)
        grown = replace(flow, phases={**flow.phases, phase: (*flow.phases.get(phase, ()), step)})
        if is_sound(grown):
            return grown
    return flow


def made_step(name: str, chance: Random, *, depth: int = 0) -> Step:
    step = Step(
        name,
        _revision(chance),
        words=tuple(chance.sample(WORDS, chance.randint(0, 2))),
        capture=chance.choice(("", "", "c0", "c1", "c2")),
        when=_when(chance) if chance.random() < 0.2 else None,
        env=chance.choice(VARS) if chance.random() < 0.15 else "",
    )
    kind = chance.random()
    if depth == 0 and kind < 0.12:
        return replace(step, kind="use", words=step.words[:1], inner=_some(chance, 2))
    step = replace(step, id="" if chance.random() < 0.3 else name)
    if depth == 0 and kind < 0.24:
        values = tuple(str(n) for n in range(chance.randint(1, 3)))
        return replace(step, kind="foreach", words=(), inner=_some(chance, 2), values=values)
    step = replace(step, once=chance.random() < 0.2, into_file=chance.random() < 0.15)
    if depth == 0 and kind < 0.55:
        revision = chance.choice(
            (_revision(chance), _revision(chance), f"{FAILS}0", f"{FLAKY}1", f"{FLAKY}2")
        )
        return _with_more(replace(step, revision=revision), chance)
    if kind < 0.63:
        return replace(step, revision=f"{FAILS}0", goes_on=True, attempts=chance.choice((1, 2)))
    if depth == 0 and kind < 0.66:
        return replace(step, revision=f"{FAILS}0")
    return step


def _with_more(step: Step, chance: Random) -> Step:
    """A step with some fields around its action."""
    fields = ["handler", "handler", "success", "zero", "three", "check"]
    for field in sorted({chance.choice(fields) for _ in range(chance.randint(1, 3))}):
        step = _with_field(step, field, chance)
    return step


def _with_field(step: Step, field: str, chance: Random) -> Step:
    match field:
        case "check":
            often = (_revision(chance), _revision(chance), f"{FLAKY}1", f"{LACKS}1", f"{LACKS}1")
            check = chance.choice((*often, f"{FAILS}0", f"{LACKS}9"))
            return replace(step, check=check, incomplete=chance.choice((None, _some(chance, 2))))
        case "handler":
            return replace(step, handler=_some(chance, 2), tries=chance.choice((0, 0, 1, 2)))
    return _with_list(step, field, _some(chance, 2))


def _some(chance: Random, most: int) -> tuple[Step, ...]:
    return tuple(made_step(f"i{n}", chance, depth=1) for n in range(chance.randint(1, most)))


def _revision(chance: Random) -> str:
    return f"r{chance.randrange(100)}"


def _when(chance: Random) -> tuple[str, str, str]:
    return (chance.choice(VARS), chance.choice(("==", "!=")), "V0")


# ── sound ────────────────────────────────────────────────────────────────


def is_sound(flow: Flow) -> bool:
    """Whether every name is known where it is used, under all conditions, and the ids in each list differ."""
    if not _fits(flow):
        return False
    try:
        expect(flow, flow.items, lambda _: False)
        for keep in (lambda step: replace(step, when=None), _without):
            tried = replace(flow, phases={name: _kept(steps, keep) for name, steps in flow.lists})
            for way in WAYS:
                mended = replace(tried, phases={n: _going(steps, way) for n, steps in tried.lists})
                expect(mended, flow.items, lambda _: False)
    except (KeyError, AssertionError):
        return False
    return True


WAYS = ("done", "incomplete", "handled", "coded", "again")
"""The paths through a step that do not end its list."""


def _going(steps: Sequence[Step], way: str) -> tuple[Step, ...]:
    """Take this path through all steps that have it."""
    return tuple(_gone(replace(step, inner=_going(step.inner, way)), way) for step in steps)


def _gone(step: Step, way: str) -> Step:
    check = step.check and (
        f"{FLAKY}1" if way in ("incomplete", "again") and step.incomplete else "r0"
    )
    step = replace(step, revision="r0", check=check)
    match way:
        case "handled" if step.handler or step.goes_on:
            return replace(step, revision=f"{FAILS}0", three=None, tries=0)
        case "coded" if step.three or step.goes_on:
            return replace(step, revision=f"{FAILS}0", handler=None, tries=0)
        case "again" if step.tries:
            return replace(step, revision=f"{FLAKY}1", three=None)
    return step


def _without(step: Step) -> Step | None:
    return step if step.when is None else None


def _kept(steps: Sequence[Step], keep: Callable[[Step], Step | None]) -> tuple[Step, ...]:
    kept = [step for step in (keep(step) for step in steps) if step is not None]
    return tuple(_with_kept(step, keep) for step in kept)


def _with_kept(step: Step, keep: Callable[[Step], Step | None]) -> Step:
    for field, listed in _lists(step):
        step = _with_list(step, field, _kept(listed, keep))
    return step


def _with_list(step: Step, field: str, steps: tuple[Step, ...] | None) -> Step:
    changed: dict[str, Any] = {field: steps}
    return replace(step, **changed)


def _lists(step: Step) -> list[tuple[str, tuple[Step, ...]]]:
    return [(field, getattr(step, field)) for field in LISTS if getattr(step, field)]


def _fits(flow: Flow) -> bool:
    last = flow.phases.get("map", ())[-1:]
    if not last or last[0].kind != "shell" or last[0].when or last[0].goes_on:
        return False  # every item must have a text as its output
    lists = [steps for _, steps in flow.lists]
    for steps in lists:
        lists += [inner for step in steps for _, inner in _lists(step)]
    return all(_is_fit(step) for steps in lists for step in steps) and all(
        len({name for name, _ in named(steps)}) == len(steps) for steps in lists
    )


def _is_fit(step: Step) -> bool:
    inside = [one for _, steps in _lists(step) for one in steps]
    if any(
        (one.fails and not one.goes_on) or one.kind != "shell" or not one.is_plain for one in inside
    ):
        return False
    if any(name not in VARS for one in step.incomplete or () for name in one.words):
        return False
    if any(getattr(step, field) == () for field in LISTS[1:]) or (
        step.incomplete and not step.check
    ):
        return False
    if step.tries and not step.handler:
        return False
    if step.kind == "shell":
        return not step.inner
    if not step.inner or step.inner[-1].when or step.inner[-1].goes_on or step.goes_on:
        return False  # it must have an output
    if step.check or step.once or step.into_file or len(_lists(step)) > 1:
        return False
    if step.kind == "use" and not step.id:
        return False
    return not step.words and bool(step.values) if step.kind == "foreach" else len(step.words) <= 1


# ── edits ────────────────────────────────────────────────────────────────


def edited(flow: Flow, chance: Random) -> tuple[Flow, str]:
    """A valid edit of a flow, and its description."""
    for _ in range(TRIES):
        how = chance.choice(EDITS)
        other = how(flow, chance)
        if other != flow and is_sound(other):
            return other, how.__name__.lstrip("_")
    return flow, "nothing"


def _in_list(
    flow: Flow, chance: Random, change: Callable[[tuple[Step, ...]], tuple[Step, ...]]
) -> Flow:
    """The flow with one of its lists changed, at any depth."""
    name = chance.choice([name for name, _ in flow.lists])
    steps = flow.phases[name]
    deep = [at for at, step in enumerate(steps) if _lists(step)]
    if deep and chance.random() < 0.4:
        at = chance.choice(deep)
        field, listed = chance.choice(_lists(steps[at]))
        changed = _with_list(steps[at], field, change(listed))
        steps = (*steps[:at], changed, *steps[at + 1 :])
    else:
        steps = change(steps)
    if name != "map" and not steps:
        return replace(flow, phases={one: kept for one, kept in flow.lists if one != name})
    return replace(flow, phases={**flow.phases, name: steps})


def _in_step(flow: Flow, chance: Random, change: Callable[[Step], Step]) -> Flow:
    def one(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        at = chance.randrange(len(steps))
        return (*steps[:at], change(steps[at]), *steps[at + 1 :])

    return _in_list(flow, chance, one)


def _command(flow: Flow, chance: Random) -> Flow:
    return _in_step(flow, chance, lambda step: replace(step, revision=_revision(chance)))


def _break(flow: Flow, chance: Random) -> Flow:
    return _in_step(
        flow, chance, lambda step: replace(step, revision=f"{FAILS}{chance.randrange(9)}")
    )


def _mention(flow: Flow, chance: Random) -> Flow:
    words = tuple(chance.sample(WORDS, chance.randint(0, 2)))
    return _in_step(flow, chance, lambda step: replace(step, words=words))


def _condition(flow: Flow, chance: Random) -> Flow:
    return _in_step(
        flow, chance, lambda step: replace(step, when=None if step.when else _when(chance))
    )


def _capture(flow: Flow, chance: Random) -> Flow:
    return _in_step(
        flow, chance, lambda step: replace(step, capture=chance.choice(("", "c0", "c1")))
    )


def _step_env(flow: Flow, chance: Random) -> Flow:
    return _in_step(flow, chance, lambda step: replace(step, env=chance.choice(("", *VARS))))


def _around_action(flow: Flow, chance: Random) -> Flow:
    def change(step: Step) -> Step:
        field = chance.choice(("handler", "success", "zero", "three", "check"))
        if not getattr(step, field):
            return _with_field(step, field, chance)
        if field == "check":
            return replace(step, check="", incomplete=None)
        return _with_list(replace(step, tries=0) if field == "handler" else step, field, None)

    return _in_step(flow, chance, change)


def _tries(flow: Flow, chance: Random) -> Flow:
    return _in_step(flow, chance, lambda step: replace(step, tries=chance.randrange(3)))


def _check(flow: Flow, chance: Random) -> Flow:
    check = chance.choice((_revision(chance), f"{FLAKY}1", f"{LACKS}1"))
    return _in_step(flow, chance, lambda step: replace(step, check=step.check and check))


def _once(flow: Flow, chance: Random) -> Flow:
    return _in_step(flow, chance, lambda step: replace(step, once=not step.once))


def _into_file(flow: Flow, chance: Random) -> Flow:
    return _in_step(flow, chance, lambda step: replace(step, into_file=not step.into_file))


def _going_on(flow: Flow, chance: Random) -> Flow:
    return _in_step(flow, chance, lambda step: replace(step, goes_on=not step.goes_on))


def _values(flow: Flow, chance: Random) -> Flow:
    values = tuple(chance.sample("0123", chance.randint(1, 3)))
    return _in_step(
        flow, chance, lambda step: replace(step, values=values) if step.values else step
    )


def _insert(flow: Flow, chance: Random) -> Flow:
    step = made_step(f"n{chance.randrange(99)}", chance, depth=1)

    def change(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        at = chance.randint(0, len(steps))
        return (*steps[:at], step, *steps[at:])

    return _in_list(flow, chance, change)


def _remove(flow: Flow, chance: Random) -> Flow:
    def change(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        at = chance.randrange(len(steps))
        return (*steps[:at], *steps[at + 1 :])

    return _in_list(flow, chance, change)


def _rename(flow: Flow, chance: Random) -> Flow:
    """Also with another command: the same text at the same path would be the same step."""

    def change(step: Step) -> Step:
        other = replace(
            step, id=f"n{chance.randrange(99)}", revision=f"r{chance.randrange(100, 1000)}"
        )
        return other if step.kind == "shell" else step

    return _in_step(flow, chance, change)


def _swap(flow: Flow, chance: Random) -> Flow:
    def change(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(chance.sample(steps, len(steps)))

    return _in_list(flow, chance, change)


def _variable(flow: Flow, chance: Random) -> Flow:
    return replace(flow, vars={**flow.vars, chance.choice(VARS): chance.choice(("V0", "V1", "V2"))})


def _around(flow: Flow, chance: Random) -> Flow:
    return replace(flow, env=f"e{chance.randrange(5)}")


def _items(flow: Flow, chance: Random) -> Flow:
    return replace(flow, items=tuple(chance.sample(ITEMS, chance.randint(2, 4))))


EDITS = (
    *(_command, _break, _mention, _condition, _capture, _step_env, _going_on, _values),
    *(_around_action, _around_action, _tries, _check, _once, _into_file),
    *(_insert, _remove, _rename, _swap, _variable, _around, _items),
)  # fmt: skip
