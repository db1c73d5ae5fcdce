"""A step that asks a language model one question; the answer's text is its output.

Where hooks hear of answers, the question is a step of its own (`…/turn:1`), as the turns of an agent are:
if the run ends behind the answer, the answer is kept, and what the step does with it is done when the
run goes on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

from plait.agents.budget import Bill
from plait.agents.messages import ASKING, FIRST, NOBODY, Ask, Message, Provider, beside_room, digest
from plait.agents.session import Conversation
from plait.agents.turns import Speaking
from plait.core.hints import Final
from plait.core.masking import masked
from plait.core.records import dataclass, field, replace
from plait.core.values import Json
from plait.engine.dry_run import NOT_KNOWN_END
from plait.engine.hands import WorkingRun, out_of_limit, working
from plait.engine.journal import Recorded
from plait.engine.limits import NO_LIMITS, Limits
from plait.engine.outcome import Done, Failed, Failure, OutOfLimit, Skip, Skipped, StepError, expect_done
from plait.engine.perform import Turn, plans
from plait.engine.step import PLAIN, Policy, Step
from plait.template.sinks import as_text
from plait.template.template import Template

ATTEMPT: Final = "attempt"
"""In the record of an answer: at which attempt it came, if it was not the first."""
MODEL: Final = "model"
"""In the record of an answer of which hooks hear: who gave it."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The action of a `prompt:` step."""

    text: Template
    system: Template | None = None
    provider: str | None = None
    model: str | None = None
    options: Mapping[str, Json] = field(default_factory=dict)
    strict: bool = False

    @plans
    def run(self, turn: Turn) -> dict[str, Json]:
        run = working(turn.run)
        text = run.mask(as_text(self.text, turn.scope, strict=self.strict))
        system = "" if self.system is None else as_text(self.system, turn.scope, strict=self.strict)
        asked = Ask((Message("user", text),), run.mask(system), self.model, options=self.options)
        if run.rehearsal is not None:
            return run.rehearse(turn, "prompt", text)
        provider = run.hands.provider(self.provider)
        if provider is None:
            raise StepError(Failure(NOBODY, "refused"))
        if run.hooks is None and not _was_asked(turn):
            return _answered(asked, provider, turn)
        return self._remembered(Question(asked, provider, turn.attempt), _after_misread(turn))

    def _remembered(self, question: Question, turn: Turn) -> dict[str, Json]:
        outcome = turn.perform(question)
        if isinstance(outcome, Skipped):
            raise Skip(outcome.why)
        answered = dict(expect_done(outcome))
        answered.pop(MODEL, None)
        return answered


@dataclass(frozen=True, slots=True)
class Question:
    """The question as a step of its own, of which hooks hear."""

    ask: Ask
    provider: Provider
    attempt: int = 1
    """Of the step that asks it."""
    name: str = FIRST
    title: str = "turn 1"
    kind: str = "turn"
    policy: Policy = PLAIN
    inner: Sequence[Step] = ()

    @property
    def fingerprint(self) -> str:
        ask, provider = self.ask, self.provider
        said = [message.text for message in ask.messages]
        return digest(
            [provider.name, provider.fingerprint, ask.model, ask.system, said, beside_room(ask.options)]
        )

    def run(self, turn: Turn) -> Json:
        hooks, context = turn.run.hooks, self._context(turn)
        if hooks is not None:
            hooks.expect("turn_started", turn, context)
        value = _answered(self.ask, self.provider, turn)
        if self.attempt > 1:
            value = {**value, ATTEMPT: self.attempt}
        value = {**value, MODEL: value["facts"]["model"]}
        if hooks is not None:
            hooks.tell_behind(
                turn, "turn_finished", {**context, MODEL: self.ask.model or value[MODEL], "result": value}
            )
        return value

    def _context(self, turn: Turn) -> dict[str, Json]:
        """What hooks know of it: the step is the one that somebody wrote."""
        name = turn.path.split("/")[-2]
        step: Json = {"name": name, "kind": "prompt", "title": name, "attempt": self.attempt}
        return {"step": step, "model": self.ask.model, "turn": 1}


def _was_asked(turn: Turn) -> bool:
    """Has an earlier life an answer, in which hooks heard of it?"""
    if turn.run.fresh or not turn.replaying:
        return False
    known = turn.run.journal.recorded(f"{turn.path}/{FIRST}")
    return known is not None and isinstance(known.outcome, Done)


def _after_misread(turn: Turn) -> Turn:
    """An answer that could not be captured is of no use: a run that goes on asks for another one."""
    journal = turn.run.journal
    if turn.run.fresh or (answer := journal.recorded(f"{turn.path}/{FIRST}")) is None:
        return turn
    match journal.last_end(turn.path):
        case Recorded(outcome=Failed(Failure(kind="capture")), number=number) if number > answer.number:
            return replace(turn, replaying=False)
    return turn


def _answered(asked: Ask, provider: Provider, turn: Turn) -> dict[str, Json]:
    run = working(turn.run)
    spent = run.spent_around(turn.path)
    if (reached := spent.take(*ASKING, turns=1)) is not None:
        raise out_of_limit(reached, turn)
    bill = Bill(spent, partial(run.charge, turn.path))
    began = time.monotonic()
    speaking = Speaking(run, turn.path)
    try:
        timeout = run.time_left(turn)
        answer = bill.ask(provider, asked, timeout=timeout, stop=run.stop, on_text=speaking.hear)
    except StepError as error:
        output = error.failure.output if isinstance(error.failure.output, Mapping) else {}
        failure = _failure(error.failure, output, time.monotonic() - began, run)
        raise _ended(failure, bill, turn) from None
    finally:
        bill.give_back()
    speaking.finish()
    if (why := ENDED_EARLY.get(answer.ending)) is not None:
        output = {"text": answer.text, "model": answer.model, "usage": answer.usage.record()}
        failure = _failure(Failure(why, answer.ending), output, time.monotonic() - began, run)
        raise _ended(failure, bill, turn)
    return _value(run, answer.text, time.monotonic() - began, answer.model, answer.usage.record())


def _ended(failure: Failure, bill: Bill, turn: Turn) -> StepError | OutOfLimit:
    """How a question without an answer ends: by itself, or by a limit, and then what was paid is kept."""
    over = bill.over(failure, turn)
    if over is None:
        return StepError(failure)
    end = out_of_limit(over, turn, partial=failure.output)
    end.outcome = Failed(end.failure)
    return end


def _failure(failure: Failure, output: Mapping[str, Json], seconds: float, run: WorkingRun) -> Failure:
    """With what came until then in the form of an answer."""
    text = output.get("text", output.get("said", ""))
    record = _value(run, text, seconds, output.get("model", ""), output.get("usage"))
    why = run.mask(failure.message)
    return replace(failure, message=why, output={**record, "stderr": why, "exit_code": 1})


def _value(run: WorkingRun, text: str, seconds: float, model: str, usage: Json) -> dict[str, Json]:
    cost = usage.get("cost") if isinstance(usage, Mapping) else None
    return {
        "output": run.mask(text),
        "stderr": "",
        "exit_code": 0,
        "duration": round(seconds, 6),
        "facts": masked({"model": model, "usage": usage, "cost": cost}, run.mask),
    }


ENDED_EARLY: Final = {
    "length": "the model had no room left for its answer: raise max_tokens in options",
    "refused": "the model declined to answer",
    "tools": "the model called a tool instead of answering, and a prompt has none: let an agent ask",
}


STEP: Final = "agent"
"""Its place below the step."""


@dataclass(frozen=True, slots=True)
class Converse:
    """The action of such a step."""

    title: str
    text: Template
    system: Template | None = None
    provider: str | None = None
    model: str | None = None
    options: Mapping[str, Json] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    schema: Mapping[str, Json] | None = None
    limits: Limits = NO_LIMITS
    max_output_retries: int = 2
    strict: bool = False
    goes_on = "inner"

    @plans
    def run(self, turn: Turn) -> dict[str, Json]:
        began = time.monotonic()
        value = expect_done(turn.perform(self._conversation(turn)))
        if not isinstance(value, dict) or not value:
            return dict(NOT_KNOWN_END)  # a dry run
        return {
            "output": value["output"],
            "stderr": "",
            "exit_code": 0,
            "duration": round(time.monotonic() - began, 6),
            "facts": {name: value[name] for name in ("model", "usage", "turns")},
        }

    def _conversation(self, turn: Turn) -> Conversation:
        system = "" if self.system is None else as_text(self.system, turn.scope, strict=self.strict)
        return Conversation(
            STEP,
            self.title,
            as_text(self.text, turn.scope, strict=self.strict),
            system,
            self.provider,
            self.model,
            self.tools,
            self.schema,
            self.limits,
            self.options,
            once=self.once,
            max_output_retries=self.max_output_retries,
        )
