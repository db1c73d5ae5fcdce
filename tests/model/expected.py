"""What an uninterrupted run of a flow does, by the documentation: each command with its words, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from model.flow import Flow, Step

Value = str | list[str]
Names = dict[str, Value]


class StepFailed(Exception):
    """A step has failed, and its list ends."""

    def __init__(self, printed: str) -> None:
        super().__init__(printed)
        self.printed = printed


@dataclass
class Expected:
    """What came of a flow."""

    printed: dict[str, str] = field(default_factory=dict)
    """By path: what each command that is done prints."""
    ended: list[str] = field(default_factory=list)
    """The paths of all steps with an end, in the order of their ends, steps that are skipped included."""
    before: dict[str, list[str]] = field(default_factory=dict)
    """By path: the ends that come before it in every run; items of one map do not wait for each other."""
    attempts: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    """Keys of the items that failed."""
    successful: int = 0
    done: bool = True
    output: Value | None = None


def expect(flow: Flow, items: Sequence[str], is_broken: Callable[[str], bool]) -> Expected:
    """`items`: those that were written down; `is_broken`: does the world let a command fail, by path?"""
    return _Performance(flow, items, is_broken).performed()


class _Performance:
    def __init__(self, flow: Flow, items: Sequence[str], is_broken: Callable[[str], bool]) -> None:
        self.flow, self.items, self.is_broken = flow, items, is_broken
        self.found = Expected()
        self.past: list[str] = []
        """The ends behind which the next step stands."""

    def performed(self) -> Expected:
        names: Names = dict(self.flow.vars)
        try:
            for phase, steps in self.flow.lists:
                if phase == "map":
                    names |= self.mapped(steps, names)
                    continue
                self.found.output, captures = self.listed(steps, phase, names, "")
                names |= captures
        except StepFailed:
            self.found.done = False
        return self.found

    def mapped(self, steps: Sequence[Step], names: Names) -> Names:
        self.end("map/items")
        before, behind, outputs = self.past, [], list[str]()
        for item in self.items:
            self.past = list(before)
            try:
                output, _ = self.listed(steps, f"map/item:{item}", {**names, "item": item}, "")
                assert isinstance(output, str)
                self.found.successful += 1
                outputs.append(output)
            except StepFailed as failed:
                self.found.failed.append(item)
                outputs.append(failed.printed)
            behind += self.past[len(before) :]
        self.past = [*before, *behind]
        counts = {"map.successful": str(self.found.successful), "map.failed": str(len(self.found.failed))}
        return {"map.outputs": outputs, **counts}

    def listed(self, steps: Sequence[Step], above: str, names: Names, own: str) -> tuple[Value | None, Names]:
        """The last output, and what was captured."""
        output: Value | None = None
        captures: Names = {}
        names = dict(names)
        for step in steps:
            here = f"{above}/{step.id}"
            if step.when is not None and not _holds(step.when, names):
                self.end(here)
                continue
            failed = False
            try:
                printed, inner = self.performed_step(step, here, names, own)
            except StepFailed as failure:
                if not step.goes_on:
                    raise
                failed, printed, inner = True, failure.printed, {}
            self.end(here)
            captures |= inner
            if step.capture:
                captures[step.capture] = printed
            names |= captures
            names["last.output"] = printed
            if not failed:
                output = printed
        return output, captures

    def performed_step(self, step: Step, here: str, names: Names, own: str) -> tuple[Value, Names]:
        own = _text(names[step.env]) if step.env else own
        match step.kind:
            case "use":
                given: Names = {f"w{n}": names[name] for n, name in enumerate(step.words)}
                output, captures = self.listed(step.inner, f"{here}/block", {**names, **given}, own)
                assert output is not None
                return output, captures
            case "foreach":
                return self.each(step, here, names, own), {}
        if step.handler is None:
            return self.command(step, here, names, own), {}
        try:
            printed = self.command(step, f"{here}/run", names, own)
            self.end(f"{here}/run")
        except StepFailed as failed:
            self.end(f"{here}/run")
            printed = failed.printed
        else:
            return printed, {}
        seen: Names = {**names, "last.output": printed, **({step.capture: printed} if step.capture else {})}
        try:
            _, captures = self.listed(step.handler, f"{here}/on_failure", seen, own)
        except StepFailed:
            raise StepFailed(printed) from None  # both have failed, and it is the step that did
        return printed, captures

    def each(self, step: Step, here: str, names: Names, own: str) -> list[str]:
        self.end(f"{here}/each/items")
        before, behind, outputs = self.past, list[str](), []
        for number, value in enumerate(step.values):
            self.past = list(before)
            inner = {**names, "item": value}
            output, _ = self.listed(step.inner, f"{here}/each/item:{number}", inner, own)
            outputs.append(_text(output))
            behind += self.past[len(before) :]
        self.past = [*before, *behind]
        return outputs

    def command(self, step: Step, path: str, names: Names, own: str) -> str:
        words = [word for name in step.words for word in _words(names[name])]
        printed = said([path, step.revision, *words], {"AROUND": self.flow.env, "OWN": own})
        self.found.printed[path] = printed
        self.found.before[path] = list(self.past)
        failing = step.fails or self.is_broken(path)
        self.found.attempts[path] = step.attempts if failing else 1
        if failing:
            self.past.append(path)
            raise StepFailed(printed)
        return printed

    def end(self, path: str) -> None:
        self.found.before[path] = list(self.past)
        self.found.ended.append(path)
        self.past.append(path)


def said(words: Sequence[str], env: Mapping[str, str]) -> str:
    """What the command of every step prints."""
    return f"[{' '.join([*words, env.get('AROUND', ''), env.get('OWN', '')]).strip()}]"


def _words(value: Value) -> list[str]:
    return [value] if isinstance(value, str) else value


def _text(value: Value | None) -> str:
    assert isinstance(value, str), "only texts stand there"
    return value


def _holds(when: tuple[str, str, str], names: Names) -> bool:
    name, compared, value = when
    return (names[name] == value) == (compared == "==")
