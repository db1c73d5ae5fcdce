"""Random flows, and random edits of them: whatever stands in a step, only names that are known there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from model.expected import expect
from model.flow import FAILS, Flow, Step

VARS = ("v0", "v1")
WORDS = (*VARS, "c0", "c1", "c2", "item", "last.output", "w0", "map.outputs", "map.successful")
ITEMS = ("x", "y", "z", "p", "q", "s")
TRIES = 40


def made(chance: Random) -> Flow:
    phases: dict[str, tuple[Step, ...]] = {}
    flow = Flow(phases, tuple(chance.sample(ITEMS, chance.randint(2, 4))), {"v0": "V0", "v1": "V0"})
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
    if depth == 0 and kind < 0.15:
        return replace(step, kind="use", words=step.words[:1], inner=_some(chance, 2))
    if depth == 0 and kind < 0.3:
        values = tuple(str(n) for n in range(chance.randint(1, 3)))
        return replace(step, kind="foreach", words=(), inner=_some(chance, 2), values=values)
    if depth == 0 and kind < 0.45:
        return replace(
            step, handler=_some(chance, 1), revision=chance.choice(("r0", f"{FAILS}0", f"{FAILS}0"))
        )
    if kind < 0.55:
        return replace(step, revision=f"{FAILS}0", goes_on=True, attempts=chance.choice((1, 2)))
    if depth == 0 and kind < 0.6:
        return replace(step, revision=f"{FAILS}0")
    return step


def _some(chance: Random, most: int) -> tuple[Step, ...]:
    return tuple(made_step(f"i{n}", chance, depth=1) for n in range(chance.randint(1, most)))


def _revision(chance: Random) -> str:
    return f"r{chance.randrange(100)}"


def _when(chance: Random) -> tuple[str, str, str]:
    return (chance.choice(VARS), chance.choice(("==", "!=")), "V0")


# ── sound ────────────────────────────────────────────────────────────────


def is_sound(flow: Flow) -> bool:
    """Is every name known where it stands, whichever conditions hold?  And has every list its own ids?"""
    if not _fits(flow):
        return False
    try:
        expect(flow, flow.items, lambda _: False)
        for keep in (lambda step: replace(step, when=None), _without):
            tried = replace(flow, phases={name: _kept(steps, keep) for name, steps in flow.lists})
            for fails in (False, True):
                mended = replace(tried, phases={n: _failing(steps, fails) for n, steps in tried.lists})
                expect(mended, flow.items, lambda _: False)
    except (KeyError, AssertionError):
        return False
    return True


def _failing(steps: Sequence[Step], fails: bool) -> tuple[Step, ...]:
    """Every action with a handler fails, or does not; what ends a list does not."""
    return tuple(
        replace(step, revision=f"{FAILS}0" if fails and (step.handler or step.goes_on) else "r0", inner=_failing(step.inner, fails))
        for step in steps
    )  # fmt: skip


def _without(step: Step) -> Step | None:
    return step if step.when is None else None


def _kept(steps: Sequence[Step], keep: Callable[[Step], Step | None]) -> tuple[Step, ...]:
    kept = (keep(step) for step in steps)
    return tuple(
        replace(step, inner=_kept(step.inner, keep), handler=step.handler and _kept(step.handler, keep))
        for step in kept
        if step is not None
    )


def _fits(flow: Flow) -> bool:
    last = flow.phases.get("map", ())[-1:]
    if not last or last[0].kind != "shell" or last[0].when or last[0].goes_on:
        return False  # so that every item has an output that is a text
    lists = [steps for _, steps in flow.lists]
    for steps in lists:
        lists += [inner for step in steps for inner in (step.inner, step.handler or ()) if inner]
    return all(_is_fit(step) for steps in lists for step in steps) and all(
        len({step.id for step in steps}) == len(steps) for steps in lists
    )


def _is_fit(step: Step) -> bool:
    inside = (*step.inner, *(step.handler or ()))
    if any((one.fails and not one.goes_on) or one.handler or one.inner for one in inside):
        return False
    if step.kind == "shell":
        return not step.inner and step.handler != ()
    if not step.inner or step.inner[-1].when or step.inner[-1].goes_on or step.goes_on or step.handler:
        return False  # so that it has an output
    return not step.words and bool(step.values) if step.kind == "foreach" else len(step.words) <= 1


# ── edits ────────────────────────────────────────────────────────────────


def edited(flow: Flow, chance: Random) -> tuple[Flow, str]:
    """Another flow that is sound, and what was done to it."""
    for _ in range(TRIES):
        how = chance.choice(EDITS)
        other = how(flow, chance)
        if other != flow and is_sound(other):
            return other, how.__name__.lstrip("_")
    return flow, "nothing"


def _in_list(flow: Flow, chance: Random, change: Callable[[tuple[Step, ...]], tuple[Step, ...]]) -> Flow:
    """With one of its lists changed, at any depth."""
    name = chance.choice([name for name, _ in flow.lists])
    steps = flow.phases[name]
    deep = [at for at, step in enumerate(steps) if step.inner or step.handler]
    if deep and chance.random() < 0.4:
        at = chance.choice(deep)
        step = steps[at]
        if step.handler and not step.inner:
            changed = replace(step, handler=change(step.handler))
        else:
            changed = replace(step, inner=change(step.inner))
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
    return _in_step(flow, chance, lambda step: replace(step, revision=f"{FAILS}{chance.randrange(9)}"))


def _mention(flow: Flow, chance: Random) -> Flow:
    words = tuple(chance.sample(WORDS, chance.randint(0, 2)))
    return _in_step(flow, chance, lambda step: replace(step, words=words))


def _condition(flow: Flow, chance: Random) -> Flow:
    return _in_step(flow, chance, lambda step: replace(step, when=None if step.when else _when(chance)))


def _capture(flow: Flow, chance: Random) -> Flow:
    return _in_step(flow, chance, lambda step: replace(step, capture=chance.choice(("", "c0", "c1"))))


def _step_env(flow: Flow, chance: Random) -> Flow:
    return _in_step(flow, chance, lambda step: replace(step, env=chance.choice(("", *VARS))))


def _handler(flow: Flow, chance: Random) -> Flow:
    def change(step: Step) -> Step:
        return replace(step, handler=None if step.handler else _some(chance, 1))

    return _in_step(flow, chance, change)


def _going_on(flow: Flow, chance: Random) -> Flow:
    return _in_step(flow, chance, lambda step: replace(step, goes_on=not step.goes_on))


def _values(flow: Flow, chance: Random) -> Flow:
    values = tuple(chance.sample("0123", chance.randint(1, 3)))
    return _in_step(flow, chance, lambda step: replace(step, values=values) if step.values else step)


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
    return _in_step(flow, chance, lambda step: replace(step, id=f"n{chance.randrange(99)}"))


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
    *(_command, _break, _mention, _condition, _capture, _step_env, _handler, _going_on, _values),
    *(_insert, _remove, _rename, _swap, _variable, _around, _items),
)  # fmt: skip
