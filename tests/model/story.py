"""One random story of a run: started, killed, edited, resumed, retried, and checked after each run attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from model.checks import DEAD, Memory, Situation, broken_rules
from model.flow import places
from model.making import edited, made
from model.project import Death, Project, Record, RunAttempt
from plait.engine.plan_log import PlannedStep

MOVES = 4
LATEST = 60
"""A death comes after at most this many records."""
COMMANDS = 14
"""A death comes in at most this command."""


@dataclass
class Story:
    """The log of a story, and the violations that were found."""

    lines: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    run_attempts: int = 0


def run_story(root: Path, seed: int, *, watch: Callable[[str], None] = lambda _: None) -> Story:
    """Run the story of a seed in a new folder."""
    return _Player(Project(root), Random(seed), watch).play()


def is_inside(path: str, item: str) -> bool:
    return path.startswith(f"{item}/")


class _Player:
    def __init__(self, project: Project, chance: Random, watch: Callable[[str], None]) -> None:
        self.project, self.chance, self.watch = project, chance, watch
        self.story, self.memory = Story(), Memory()
        self.flow = made(chance)
        self.is_edited = False
        self.repeated: list[str] = []
        """The steps to repeat in the last run attempt; its dry run did not know them."""

    def play(self) -> Story:
        self.write("begun")
        if self.chance.random() < 0.4:
            paths = [
                one.path for one in places(self.flow) if one.command and one.path.startswith(DEAD)
            ]
            self.project.broken = set(
                self.chance.sample(paths, min(len(paths), self.chance.randint(1, 2)))
            )
            self.log(f"broken: {sorted(self.project.broken)}")
        self.perform("run", self.project.run, dies=self.chance.random() < 0.6)
        for _ in range(self.chance.randint(1, MOVES)):
            if self.story.found or not self.project.run_id:
                return self.story
            self.move()
        if not self.story.found and self.project.run_id:
            self.finish()
        return self.story

    def move(self) -> None:
        if self.chance.random() < 0.65:
            self.flow, how = edited(self.flow, self.chance)
            self.is_edited = True
            self.write(f"edit: {how}")
        accept, dies = self.chance.random() < 0.6, self.chance.random() < 0.6
        what = self.chance.random()
        if what < 0.25:
            if self.chance.random() < 0.7:
                self.project.broken.clear()
                self.log("mended")
            self.retry(dies=dies)
        else:
            self.resume(accept=accept, dies=dies, answers=self.chance.random() < 0.7)

    def retry(self, *, dies: bool) -> RunAttempt:
        failed = self.failed(self.project.records())
        from_start = self.chance.random() < 0.3
        items = (
            [self.chance.choice(sorted(failed))] if failed and self.chance.random() < 0.4 else []
        )
        names = [path.partition(":")[2] for path in items]
        reported = " ".join(
            ["retry", *(names or ["--failed"]), *(["--from-start"] if from_start else [])]
        )
        return self.perform(
            reported,
            lambda death: self.project.retry(death, items=names, from_start=from_start),
            dies=dies,
            retried=frozenset(items or failed),
            from_start=from_start,
        )

    def failed(self, records: Mapping[str, Record]) -> set[str]:
        """The paths of the failed items among the current ones."""
        chosen = records["map/items"].number if "map/items" in records else 0
        return {
            path
            for path, one in records.items()
            if path.startswith(DEAD)
            and path.count("/") == 1
            and one.status == "failed"
            and one.number > chosen
        }

    def resume(self, *, accept: bool, dies: bool, answers: bool = True) -> RunAttempt:
        before = self.project.records()
        accepted = accept or self.memory.has_accepted(self.flow)
        asked = (
            Situation(self.flow, self.memory, before, self.project, accept=accepted).questions()
            if answers
            else []
        )
        repeat = [path for path in asked if self.chance.random() < 0.5]
        done = [path for path in asked if path not in repeat]
        self.repeated = repeat
        reported = [*(f"--repeat {path}" for path in repeat), *(f"--done {path}" for path in done)]
        return self.perform(
            " ".join(["resume --accept-changes" if accept else "resume", *reported]),
            lambda death: self.project.resume(death, accept=accept, repeat=repeat, done=done),
            dies=dies,
            accept=accepted,
            repeat=repeat,
            done=done,
        )

    def finish(self) -> None:
        """Resume to the end, and once more, which must do nothing."""
        shown = self.project.dry_run()
        run_attempt = self.resume(accept=True, dies=False)
        if self.story.found:
            return
        if not isinstance(shown, str):
            self.compare(shown, run_attempt)
        again = self.resume(accept=False, dies=False)
        if run_attempt.result is not None and run_attempt.result.status == "done" and again.lines:
            self.found(f"a run that was done did {[line.path for line in again.lines]}")

    def compare(self, shown: list[PlannedStep], run_attempt: RunAttempt) -> None:
        """Compare a dry run with what was then done."""
        replayed = {one.path for one in shown if one.replayed} - {*self.repeated}
        for line in run_attempt.lines:
            if any(line.path == one or line.path.startswith(f"{one}/") for one in replayed):
                self.found(f"the dry run showed {line.path} as replayed, and it was done")
        ran = {line.path for line in run_attempt.lines}
        if (
            run_attempt.result is None
            or run_attempt.result.status != "done"
            or run_attempt.result.counts.get("failed")
        ):
            return
        for one in shown:
            if {one.path, f"{one.path}/run"} & self.project.marked_done:
                continue
            if any(part.startswith(("on_", "check@", "again@")) for part in one.path.split("/")):
                continue  # the path through a step is not known before
            is_command = (
                one.kind == "shell"
                and not (one.replayed or one.skipped)
                and not one.shown.startswith("if ")
            )
            if is_command and not one.fails and not {one.path, f"{one.path}/run"} & ran:
                self.found(f"the dry run showed {one.path}, and it was not done ({one.why})")

    def perform(
        self,
        name: str,
        work: Callable[[Death], RunAttempt],
        *,
        dies: bool,
        accept: bool = False,
        retried: frozenset[str] | None = None,
        from_start: bool = False,
        repeat: Sequence[str] = (),
        done: Sequence[str] = (),
    ) -> RunAttempt:
        death = self.death() if dies else Death()
        reported = death.reported
        before = self.project.records()
        if from_start:
            before = {
                path: one
                for path, one in before.items()
                if not any(is_inside(path, item) for item in retried or ())
            }
        moment = Situation(
            self.flow,
            self.memory,
            before,
            self.project,
            accept=accept,
            retried=retried,
            repeat=repeat,
            done=done,
        )
        run_attempt = work(death)
        after = self.project.records()
        self.story.run_attempts += 1
        self.log(
            f"{name} ({reported}): {run_attempt.how}; did {[line.path for line in run_attempt.lines]}"
        )
        if retried is not None and run_attempt.refused_code == "nothing-to-retry":
            return run_attempt
        ran = {line.path for line in run_attempt.lines}
        if run_attempt.refused_code != "changed":
            self.take_answers(done, repeat, ran, after)
        if retried is not None and self.is_edited:
            self.memory.retried_by_another_text = True
            self.memory.retried |= retried
        for rule in broken_rules(moment, run_attempt, after):
            self.found(rule)
        self.memory.learn(self.flow, before, after)
        if run_attempt.refused_code != "changed":
            self.memory.continue_with(self.flow, accepted=accept)
        if retried is not None:
            self.memory.accept(self.flow, after)
        return run_attempt

    def take_answers(
        self, done: Sequence[str], repeat: Sequence[str], ran: set[str], after: Mapping[str, Record]
    ) -> None:
        """A step marked done must not run, in this run attempt or in a later one that reaches it."""
        waiting = {*self.project.waiting, *done} - {*repeat}
        for path in sorted(waiting & ran):
            self.found(f"{path} was said to be done, and was done")
        taken = {path for path in waiting if path in after}
        self.project.marked_done |= taken
        self.project.waiting = waiting - taken

    def death(self) -> Death:
        if self.chance.random() < 0.4:
            return Death(commands=self.chance.randint(1, COMMANDS))
        return Death(records=self.chance.randint(2, LATEST))

    def write(self, why: str) -> None:
        self.project.write(self.flow)
        self.log(why)

    def log(self, what: str) -> None:
        self.story.lines.append(what)
        self.watch(what)

    def found(self, what: str) -> None:
        self.story.found.append(what)
