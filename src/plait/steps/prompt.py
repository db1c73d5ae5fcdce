"""A step that asks a language model one question; the answer's text is its output."""

from __future__ import annotations

import time
from collections.abc import Mapping

from plait.engine.outcome import Done, Failed, Failure, OutOfLimit, StepError
from plait.engine.perform import Turn
from plait.hints import Final
from plait.masking import masked
from plait.records import dataclass, field, replace
from plait.steps.allowance import Bill, count
from plait.steps.hands import WorkingRun, out_of_limit, working
from plait.steps.model import Ask, Message
from plait.steps.speaking import Speaking
from plait.template.sinks import as_text
from plait.template.template import Template
from plait.values import Json


@dataclass(frozen=True, slots=True)
class Prompt:
    """The action of a `prompt:` step."""

    text: Template
    system: Template | None = None
    provider: str | None = None
    model: str | None = None
    options: Mapping[str, Json] = field(default_factory=dict)
    strict: bool = False

    def run(self, turn: Turn) -> dict[str, Json]:
        run = working(turn.run)
        text = run.mask(as_text(self.text, turn.scope, strict=self.strict))
        system = "" if self.system is None else as_text(self.system, turn.scope, strict=self.strict)
        asked = Ask((Message("user", text),), run.mask(system), self.model, options=self.options)
        if run.rehearsal is not None:
            run.rehearse(turn, "prompt", text)
            return {}
        if run.hooks is None:
            return self._answered(asked, turn, run)
        name = turn.path.rpartition("/")[2]
        step: Json = {"name": name, "kind": "prompt", "title": name, "attempt": turn.attempt}
        context: dict[str, Json] = {"step": step, "model": self.model, "turn": 1}
        run.hooks.expect("turn_started", turn, context)
        value = self._answered(asked, turn, run)
        run.hooks.expect_going_on("turn_finished", turn, {**context, "result": value}, Done(value))
        return value

    def _answered(self, asked: Ask, turn: Turn, run: WorkingRun) -> dict[str, Json]:
        provider = run.hands.provider(self.provider)
        if provider is None:
            raise StepError(Failure(NOBODY, "refused"))
        spent = run.spent_around(turn.path)
        if (reached := spent.take(*ASKING, turns=1)) is not None:
            raise out_of_limit(reached, turn)
        bill = Bill(spent)
        began = time.monotonic()
        speaking = Speaking(run, turn.path)
        try:
            timeout = run.time_left(turn)
            answer = bill.ask(provider, asked, timeout=timeout, stop=run.stop, on_text=speaking.hear)
        except StepError as error:
            if not bill.is_paid:
                count(None, spent)
            output = error.failure.output if isinstance(error.failure.output, Mapping) else {}
            failure = _failure(error.failure, output, time.monotonic() - began, run)
            raise _ended(failure, bill, turn) from None
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
    return replace(failure, output={**record, "stderr": run.mask(failure.message), "exit_code": 1})


def _value(run: WorkingRun, text: str, seconds: float, model: str, usage: Json) -> dict[str, Json]:
    cost = usage.get("cost") if isinstance(usage, Mapping) else None
    return {
        "output": run.mask(text),
        "stderr": "",
        "exit_code": 0,
        "duration": round(seconds, 6),
        "facts": masked({"model": model, "usage": usage, "cost": cost}, run.mask),
    }


ASKING: Final = ("turns", "tokens", "spend", "seconds")
"""The limits that are looked at before a question."""
ENDED_EARLY: Final = {
    "length": "the model had no room left for its answer: raise max_tokens in options",
    "refused": "the model declined to answer",
}
NOBODY: Final = (
    "nobody said which provider to ask: name one (provider: openai), set PLAIT_PROVIDER to its name, "
    "or write .ai/config/providers/default.yaml; an 'agent:' step starts a command-line agent instead"
)
