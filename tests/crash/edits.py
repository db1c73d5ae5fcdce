"""Kills at random moments of a flow with handlers, a check and a step that may run once, edited between run attempts.

Every command writes to a ledger that the engine never opens, with its revision in the file.
Then these rules must hold:

    A    a step that was recorded when an engine died, and has the same text, is not started again,
         unless a step before it was
    B    in the end each command was last done with its current text, after all commands before it
    C    a step that may run once is not started again while its outcome is unknown, unless the user
         said so; and Plait asks only about a recorded start without an end
    D    if a finished step has another text that the user has not accepted, nothing runs; after the
         user has accepted it, Plait does not ask again
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Final

from crash.scene import LEDGER, Ended, Failed, Scene, read_aside

FLOW: Final = """\
steps:
  - id: first
    shell: sh ledger.sh "first R-first"
  - id: tried
    shell: sh ledger.sh "tried R-tried"; exit 3
    on_failure:
      - {id: mend, shell: sh ledger.sh "mend R-mend"}
  - id: sent
    shell: sleep 0.05; sh ledger.sh "sent R-sent"; sleep 0.05
    once: true
  - id: checked
    shell: rm -f filled; sh ledger.sh "checked R-checked"
    on_success:
      - {id: well, shell: sh ledger.sh "well R-well"}
    validate:
      shell: sh ledger.sh "look R-look"; test -e filled
      on_incomplete:
        - {id: fill, shell: sh ledger.sh "fill R-fill"; touch filled}
  - id: last
    shell: sh ledger.sh "last R-last"
"""
PATHS: Final = {
    "first": "steps/first",
    "tried": "steps/tried/run",
    "mend": "steps/tried/on_failure/mend",
    "sent": "steps/sent",
    "checked": "steps/checked/run",
    "look": "steps/checked/check@1/0",
    "fill": "steps/checked/on_incomplete@1/fill",
    "well": "steps/checked/on_success/well",
    "last": "steps/last",
}
"""The path of each command by its name, in the order of the flow."""
NAMES: Final = tuple(PATHS)
CHANGED: Final = "the file has changed since these steps were done"
ASKS: Final = "may run at most once; it started, and its outcome is unknown"


@dataclass(frozen=True, slots=True)
class Known:
    """The records while no engine works on the run."""

    ended: dict[str, int]
    """The record numbers of finished steps, by path."""
    open: frozenset[str]
    """Paths of the steps that were started and have no end since."""

    def counts(self, path: str) -> bool:
        """Whether the step has an end that is newer than those of all steps before it."""
        if path not in self.ended:
            return False
        before = list(takewhile(lambda one: one != path and _step(one) != path, PATHS.values()))
        above = {_step(one) for one in before} - {_step(path)}
        ends = [self.ended.get(one, 0) for one in (*before, *above)]
        return self.ended[path] > max(ends, default=0)


@dataclass(slots=True)
class Edited(Scene):
    """One run of the flow, through deaths and edits."""

    chance: random.Random = field(default_factory=random.Random)
    revisions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 0))
    texts: dict[str, list[int]] = field(default_factory=dict)
    """The revisions of each step at its last start, by path."""
    marked_done: bool = False
    """The user marked the step that may run once as done, with any text."""
    accepted: dict[str, int] | None = None
    """The revisions that were accepted by a run attempt that went on to run steps."""
    perhaps: dict[str, int] | None = None
    """The same, if it is unknown whether the run attempt recorded it."""
    taken: list[dict[str, list[int]]] = field(default_factory=list)
    """The texts of steps at each acceptance, also by run attempts that may not have recorded it."""
    is_through: bool = False
    edits: int = 0
    questions: int = 0

    def __post_init__(self) -> None:
        self.project.mkdir(parents=True)
        (self.folder / "home").mkdir()
        (self.project / "ledger.sh").write_text(LEDGER)
        self.ledger_file.touch()
        self.write()

    def write(self) -> None:
        text = FLOW
        for name, revision in self.revisions.items():
            text = text.replace(f"R-{name}", f"r{revision}")
        (self.project / "flow.yaml").write_text(text)

    # ── run attempts ─────────────────────────────────────────────────────

    def run_attempt(self, lines: int | None, seconds: float = 0.0) -> None:
        """Run one attempt and kill it after some lines and seconds, unless it has finished; None: never."""
        if self.is_through or (self.run is not None and self.chance.random() < 0.5):
            self.edit()  # so there is something to do
        while True:
            before, began = self.known(), len(self.ledger())
            stale = self.stale(before)
            asks = PATHS["sent"] in before.open
            self.flags = (
                () if self.chance.random() < 0.3 and lines is not None else ("--accept-changes",)
            )
            is_accepted = bool(self.flags) or self.accepted == self.revisions
            is_repeated = asks and self.chance.random() < 0.7 and self.answer()
            ended = self.end_of_attempt(lines, seconds)
            self.judge(before, began, is_repeated=is_repeated)
            self.remember_acceptance(is_accepted=is_accepted, has_worked=len(self.ledger()) > began)
            self.is_through = ended is not None and ended.code == 0
            if ended is None:
                return
            if self.is_through:
                if not is_accepted and self.perhaps != self.revisions:
                    self.expect_asked(stale)
                return
            if not self.is_question(ended, before, began, stale, is_accepted=is_accepted):
                self.faults.append(f"exit code {ended.code}: {ended.output[-300:]}")
                return

    def remember_acceptance(self, *, is_accepted: bool, has_worked: bool) -> None:
        now = {_step(path): self.text_of(_step(path)) for path in PATHS.values()}
        if is_accepted:
            self.perhaps = dict(self.revisions)
            self.taken.append(now)
        if has_worked:
            self.accepted = dict(self.revisions) if is_accepted else None
            same = {step for one in self.taken for step in one if one[step] == now[step]}
            self.taken = [now if is_accepted else {step: now[step] for step in same}]

    def end_of_attempt(self, lines: int | None, seconds: float) -> Ended | None:
        """How the engine ended; None if it was killed."""
        if lines is None:
            return self.to_the_end()
        with self.engine() as engine:
            self.has_lines(engine, lines)
            try:
                return engine.ended(seconds)
            except Failed:
                engine.kill()
                self.note_death()
                return None

    def edit(self) -> None:
        """Give one command another revision."""
        name = self.chance.choice(NAMES)
        self.revisions[name] += 1
        self.edits += 1
        self.write()

    def answer(self) -> bool:
        """Answer for the step that may run once, from the ledger; return whether to repeat it."""
        lines = [line.what for line in self.ledger() if line.path.startswith("sent ")]
        self.marked_done = lines[-1:] == ["END"]
        self.flags = [*self.flags, "--done" if self.marked_done else "--repeat", PATHS["sent"]]
        return not self.marked_done

    # ── what must hold ───────────────────────────────────────────────────

    def known(self) -> Known:
        ended: dict[str, int] = {}
        begun: set[str] = set()
        for run in self.run_folders():
            with read_aside(run) as journal:
                if not journal.execute(
                    "SELECT 1 FROM sqlite_schema WHERE name = 'events'"
                ).fetchall():
                    continue
                for number, event, path, status in journal.execute(
                    "SELECT number, event, path, status FROM events WHERE event IN ('step_started', 'step_finished') ORDER BY number"
                ):
                    if event == "step_started":
                        begun.add(path)
                        ended.pop(path, None)
                    else:
                        begun.discard(path)
                        # An action that failed and is handled has an end, too.
                        if status == "done" or path == PATHS["tried"]:
                            ended[path] = number
        return Known(ended, frozenset(begun))

    def stale(self, known: Known) -> set[str]:
        """The recorded steps whose text has changed without acceptance."""
        return {
            step
            for step in self.texts
            if known.counts(step) and self.texts[step] != self.text_of(step)
            if not any(taken.get(step) == self.text_of(step) for taken in self.taken)
        }

    def says_else(self, name: str) -> bool:
        """Whether the step of a command has another text now.  Once accepted, all later steps run again."""
        step = _step(PATHS[name])
        return step in self.texts and self.texts[step] != self.text_of(step)

    def text_of(self, step: str) -> list[int]:
        """The revisions of a step, with those of its handlers."""
        return [self.revisions[name] for name in NAMES if _step(PATHS[name]) == step]

    def judge(self, before: Known, began: int, *, is_repeated: bool) -> None:
        """Check the commands that were started in a run attempt."""
        names = [line.path.split(" ")[0] for line in self.ledger()[began:] if line.what == "START"]
        for at, name in enumerate(names):
            path, step = PATHS[name], _step(PATHS[name])
            has_changed = self.texts.get(step) != self.text_of(step)
            is_recorded = before.counts(path) or before.counts(step)
            earlier = NAMES[: NAMES.index(name)]
            is_first = not any(
                one in names[:at] or PATHS[one] in before.open or self.says_else(one)
                for one in earlier
            )
            if is_recorded and is_first and not has_changed:
                self.faults.append(f"A: {name} was recorded and begun again")
            # A step marked done runs again after an accepted change.
            is_answered = is_repeated or ("--done" in self.flags and not is_first)
            if name == "sent" and path in before.open and not is_answered:
                self.faults.append("C: what may run once was begun again, and nobody was asked")
            if name == "sent":
                self.marked_done = False
        ended, steps = self.known().ended, {_step(path) for path in PATHS.values()}
        anew = {step for step in steps if ended.get(step, 0) > before.ended.get(step, 0)}
        self.texts |= {
            step: self.text_of(step) for step in {*anew, *(_step(PATHS[name]) for name in names)}
        }
        if names.count("sent") > 1:
            self.faults.append("C: what may run once was begun twice in one run attempt")

    def expect_asked(self, stale: set[str]) -> None:
        if stale and not self.marked_done:
            self.faults.append(f"D: nobody was asked about {sorted(stale)}")

    def is_question(
        self, ended: Ended, before: Known, began: int, stale: set[str], *, is_accepted: bool
    ) -> bool:
        """Whether Plait asked a question, and had a reason to."""
        self.questions += 1
        if CHANGED in ended.output:
            if len(self.ledger()) > began:
                self.faults.append("D: the file has changed, and something ran")
            return not is_accepted and bool(stale or self.edits)
        return ASKS in ended.output and PATHS["sent"] in before.open

    def end(self) -> list[str]:
        """All violations of the rules by a finished run."""
        self.require_no_process()
        last = {
            line.path.split(" ")[0]: (at, line.path)
            for at, line in enumerate(self.ledger())
            if line.what == "END"
        }
        names = [name for name in NAMES if name in last and name != "fill"]
        if missing := {*NAMES} - {*names, "fill"}:
            self.faults.append(f"B: {sorted(missing)} were not done")
        for name in names:
            in_file = f"{name} r{self.revisions[name]}"
            if last[name][1] != in_file and not (name == "sent" and self.marked_done):
                self.faults.append(f"B: last done was {last[name][1]}, and the file says {in_file}")
        if self.marked_done:
            names.remove("sent")  # even if it was done again since
        order = sorted(names, key=lambda name: last[name][0])
        if order != names:
            self.faults.append(f"B: last done in the order {order}")
        return self.faults


def _step(path: str) -> str:
    return "/".join(path.split("/")[:2])


def moment(chance: random.Random) -> tuple[int, float]:
    if chance.random() < 0.2:
        return 0, chance.uniform(0, 0.6)
    return chance.randrange(1, 14), chance.uniform(0, 0.06)


def edited(folder: Path, chance: random.Random, attempts: int, *engine_options: str) -> Edited:
    """Run some attempts that may be killed, and a last one that finishes the run."""
    scene = Edited(folder, chance=chance, engine_options=engine_options)
    for _ in range(attempts):
        scene.run_attempt(*moment(chance))
    scene.run_attempt(None)
    return scene
