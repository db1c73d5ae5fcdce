"""What an uninterrupted run of a flow does according to the documentation: each command in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from model.flow import Flow, Step, code_of, lacks, named

Value = str | list[str]
Names = dict[str, Value]


class StepFailed(Exception):
    """A step failed, so its list ends."""

    def __init__(self, printed: str, captures: Names | None = None) -> None:
        super().__init__(printed)
        self.printed, self.captures = printed, captures or {}


@dataclass
class Expected:
    """The expected result of a flow."""

    printed: dict[str, str] = field(default_factory=dict)
    """The output of each command that runs, by path."""
    ended: list[str] = field(default_factory=list)
    """The paths of all steps with an end, also skipped ones, in the order of their ends."""
    before: dict[str, list[str]] = field(default_factory=dict)
    """The ends that come before each step in every run, by path; items of a map do not wait for each other."""
    attempts: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """The content of the output file of each step, by path."""
    failed: list[str] = field(default_factory=list)
    """Keys of the items that failed."""
    successful: int = 0
    done: bool = True
    """Whether the flow reached its last step."""
    output: Value | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the run succeeded.  It failed if all items failed, even if its last step is done."""
        return self.done and not (self.failed and not self.successful)


def expect(
    flow: Flow,
    items: Sequence[str],
    is_broken: Callable[[str], bool],
    marked_done: Collection[str] = (),
) -> Expected:
    """`items`: those that the run has written down; `is_broken`: whether the command at a path fails.

    `marked_done`: commands that somebody says to have done their work; what they printed is not known.
    """
    return _Performance(flow, items, is_broken, marked_done).performed()


class _Performance:
    def __init__(
        self,
        flow: Flow,
        items: Sequence[str],
        is_broken: Callable[[str], bool],
        marked_done: Collection[str],
    ) -> None:
        self.flow, self.items, self.is_broken, self.marked_done = (
            flow,
            items,
            is_broken,
            marked_done,
        )
        self.found = Expected()
        self.past: list[str] = []
        """The ends that come before the next step."""

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
        counts = {
            "map.successful": str(self.found.successful),
            "map.failed": str(len(self.found.failed)),
        }
        return {"map.outputs": outputs, **counts}

    def listed(
        self, steps: Sequence[Step], above: str, names: Names, own: str
    ) -> tuple[Value | None, Names]:
        """The last output and the captured variables."""
        output: Value | None = None
        captures: Names = {}
        names = dict(names)
        for name, step in named(steps):
            here = f"{above}/{name}"
            if step.when is not None and not _holds(step.when, names):
                self.end(here)
                continue
            failed = False
            try:
                printed, inner = self.performed_step(step, here, names, own)
            except StepFailed as failure:
                if not step.goes_on:
                    raise
                failed, printed, inner = True, failure.printed, failure.captures
            self.end(here)
            if step.into_file and not failed and here not in self.marked_done:
                self.found.files[here] = _text(printed)
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
        if step.is_plain:
            printed, is_done = self.command(step, here, names, own)
            if not is_done:
                raise StepFailed(printed)
            return printed, {}
        return self.acted(step, here, names, own)

    def acted(self, step: Step, here: str, names: Names, own: str) -> tuple[str, Names]:
        """The action, and its handlers inside the step."""
        handled: Names = {}
        printed, is_done = self.tried(step, f"{here}/run", names, own)
        for number in range(1, step.tries + 1):
            if is_done or step.three is not None:
                break
            handled |= self.recovered(
                step.handler or (), f"{here}/on_failure@{number}", step, names, printed, own
            )
            printed, is_done = self.tried(step, f"{here}/again@{number}", names, own)
        if not is_done:
            if step.three is not None:
                return printed, handled | self.recovered(
                    step.three, f"{here}/on_exit_code:3", step, names, printed, own
                )
            if step.handler is None or step.tries:
                raise StepFailed(printed, handled)
            return printed, self.recovered(
                step.handler, f"{here}/on_failure", step, names, printed, own
            )
        handled |= self.followed(
            step, step.zero, f"{here}/on_exit_code:0", {**names, **handled}, printed, own
        )
        if step.check:
            handled |= self.validated(step, here, _seen(step, {**names, **handled}, printed), own)
        handled |= self.followed(
            step, step.success, f"{here}/on_success", {**names, **handled}, printed, own
        )
        return printed, handled

    def followed(
        self,
        step: Step,
        steps: Sequence[Step] | None,
        path: str,
        names: Names,
        printed: str,
        own: str,
    ) -> Names:
        return (
            {} if steps is None else self.listed(steps, path, _seen(step, names, printed), own)[1]
        )

    def tried(self, step: Step, path: str, names: Names, own: str) -> tuple[str, bool]:
        printed, is_done = self.command(step, path, names, own)
        self.end(path)
        return printed, is_done

    def recovered(
        self, steps: Sequence[Step], path: str, step: Step, names: Names, printed: str, own: str
    ) -> Names:
        try:
            return self.listed(steps, path, _seen(step, names, printed), own)[1]
        except StepFailed:
            raise StepFailed(printed) from None  # both failed, and the failure is that of the step

    def validated(self, step: Step, here: str, seen: Names, own: str) -> Names:
        captures: Names = {}
        if self.is_complete(step, f"{here}/check@1/0", own):
            return captures
        if step.incomplete is not None:
            captures = self.listed(step.incomplete, f"{here}/on_incomplete@1", seen, own)[1]
            if self.is_complete(step, f"{here}/check@2/0", own):
                return captures
        raise StepFailed("")

    def is_complete(self, step: Step, path: str, own: str) -> bool:
        _, is_done = self.tried(Step("", step.check), path, {}, own)
        return is_done and not lacks(step.check, path)

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

    def command(self, step: Step, path: str, names: Names, own: str) -> tuple[str, bool]:
        """The output of a command, and whether it succeeds."""
        words = [word for name in step.words for word in _words(names[name])]
        self.found.before[path] = list(self.past)
        if path in self.marked_done:
            return "", True
        printed = output_line(path, step.revision, words, {"AROUND": self.flow.env, "OWN": own})
        self.found.printed[path] = printed
        failing = code_of(step.revision, path) != 0 or self.is_broken(path)
        self.found.attempts[path] = step.attempts if failing else 1
        if failing:
            self.past.append(path)
        return printed, not failing

    def end(self, path: str) -> None:
        self.found.before[path] = list(self.past)
        self.found.ended.append(path)
        self.past.append(path)


def output_line(path: str, revision: str, words: Sequence[str], env: Mapping[str, str]) -> str:
    """The line that a command prints."""
    if lacks(revision, path):
        return '{"completion_percentage": 50}'
    return (
        f"({' '.join([path, revision, *words, env.get('AROUND', ''), env.get('OWN', '')]).strip()})"
    )


def _seen(step: Step, names: Names, printed: str) -> Names:
    """The names known after an action, inside its step."""
    return {**names, "last.output": printed, **({step.capture: printed} if step.capture else {})}


def _words(value: Value) -> list[str]:
    return [value] if isinstance(value, str) else value


def _text(value: Value | None) -> str:
    assert isinstance(value, str), "only texts stand there"
    return value


def _holds(when: tuple[str, str, str], names: Names) -> bool:
    name, compared, value = when
    return (names[name] == value) == (compared == "==")
