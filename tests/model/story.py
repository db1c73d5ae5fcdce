"""One random story of a run: begun, killed, edited, resumed, retried, and looked at after each life."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from model.flow import places
from model.making import edited, made
from model.verdict import DEAD, Memory, Moment, broken_rules
from model.world import Life, World
from plait.steps.hands import Rehearsed

MOVES = 4
LATEST = 60
"""No death is later than behind so many records."""


@dataclass
class Story:
    """What was done, in words, and what was found wrong."""

    told: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    lives: int = 0


def lived(root: Path, seed: int, *, watch: Callable[[str], None] = lambda _: None) -> Story:
    """The story of a seed, in a folder that is not there yet."""
    return _Teller(World(root), Random(seed), watch).told()


class _Teller:
    def __init__(self, world: World, chance: Random, watch: Callable[[str], None]) -> None:
        self.world, self.chance, self.watch = world, chance, watch
        self.story, self.memory = Story(), Memory()
        self.flow = made(chance)
        self.is_edited = False

    def told(self) -> Story:
        self.write("begun")
        if self.chance.random() < 0.4:
            paths = [one.path for one in places(self.flow) if one.command and one.path.startswith(DEAD)]
            self.world.broken = set(self.chance.sample(paths, min(len(paths), self.chance.randint(1, 2))))
            self.tell(f"broken: {sorted(self.world.broken)}")
        self.live("run", lambda at: self.world.run(dies_at=at), dies=self.chance.random() < 0.6)
        for _ in range(self.chance.randint(1, MOVES)):
            if self.story.found or not self.world.run_id:
                return self.story
            self.move()
        if not self.story.found and self.world.run_id:
            self.finish()
        return self.story

    def move(self) -> None:
        if self.chance.random() < 0.65:
            self.flow, how = edited(self.flow, self.chance)
            self.is_edited = True
            self.write(f"edit: {how}")
        accept, dies = self.chance.random() < 0.6, self.chance.random() < 0.6
        what = self.chance.random()
        if what < 0.2:
            if self.chance.random() < 0.7:
                self.world.broken.clear()
                self.tell("mended")
            self.live("retry", lambda at: self.world.retry(dies_at=at), dies=dies, retry=True)
        else:
            self.resume(accept=accept, dies=dies)

    def resume(self, *, accept: bool, dies: bool) -> Life:
        name = "resume --accept-changes" if accept else "resume"
        return self.live(
            name, lambda at: self.world.resume(accept=accept, dies_at=at), dies=dies, accept=accept
        )

    def finish(self) -> None:
        """To the end, and once more, which does nothing."""
        shown = self.world.rehearse()
        life = self.resume(accept=True, dies=False)
        if self.story.found:
            return
        if not isinstance(shown, str):
            self.compare(shown, life)
        again = self.resume(accept=False, dies=False)
        if life.result is not None and life.result.status == "done" and again.lines:
            self.found(f"a run that was done did {[line.path for line in again.lines]}")

    def compare(self, shown: list[Rehearsed], life: Life) -> None:
        """What a dry run says, and what was then done."""
        remembered = {one.path for one in shown if one.remembered}
        for line in life.lines:
            if any(line.path == one or line.path.startswith(f"{one}/") for one in remembered):
                self.found(f"the dry run called {line.path} remembered, and it was done")
        ran = {line.path for line in life.lines}
        if life.result is None or life.result.status != "done" or life.result.counts.get("failed"):
            return
        for one in shown:
            is_command = one.kind == "shell" and not one.remembered and not one.shown.startswith("if ")
            if is_command and not one.fails and not {one.path, f"{one.path}/run"} & ran:
                self.found(f"the dry run showed {one.path}, and it was not done ({one.why})")

    def live(
        self,
        name: str,
        work: Callable[[int | None], Life],
        *,
        dies: bool,
        accept: bool = False,
        retry: bool = False,
    ) -> Life:
        dies_at = self.chance.randint(2, LATEST) if dies else None
        before = self.world.records()
        moment = Moment(self.flow, self.memory, before, self.world, accept=accept, retry=retry)
        life = work(dies_at)
        after = self.world.records()
        self.story.lives += 1
        self.tell(f"{name} (dies at {dies_at}): {life.how}; did {[line.path for line in life.lines]}")
        if retry and life.refused_code == "nothing-to-retry":
            return life
        if retry and self.is_edited:
            self.memory.retried_by_another_text = True
            self.memory.retried |= {
                path
                for path, one in before.items()
                if path.startswith(DEAD) and path.count("/") == 1 and one.status == "failed"
            }
        for rule in broken_rules(moment, life, after):
            self.found(rule)
        self.memory.learn(self.flow, before, after)
        if retry:
            self.memory.accept(self.flow, after)
        return life

    def write(self, why: str) -> None:
        self.world.write(self.flow)
        self.tell(why)

    def tell(self, what: str) -> None:
        self.story.told.append(what)
        self.watch(what)

    def found(self, what: str) -> None:
        self.story.found.append(what)
