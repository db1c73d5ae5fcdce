"""The program of a chat: a person and a model take turns; each answer is an agent session.

    agent    the prompt of the directive and its answer
    say:2    the next input of the person, with all messages before it
    say:3    …

Each is a recorded step, so a chat is a run like any other. If an answer fails or is stopped, the
chat continues: the next session knows all messages and tool calls so far. The chat ends when the
person has no more input or a limit of the run is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from plait.agents.messages import Message
from plait.agents.session import AgentStep
from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass, replace
from plait.core.values import Json
from plait.engine.events import ModelText, StepFinished
from plait.engine.outcome import Failed, Failure, Interrupted, StepError, Succeeded
from plait.engine.paths import say_name
from plait.engine.perform import StepContext
from plait.engine.step import Step

if TYPE_CHECKING:
    from plait.program.map import Map

ReadUserInput = Callable[[Failure | None], str | None]
"""Returns the next input of the user; None: no more. The argument says why the last answer failed.
"""


@dataclass(frozen=True, slots=True)
class Chat:
    first: AgentStep
    listen: ReadUserInput

    @property
    def children(self) -> Sequence[Step]:
        return (self.first,)

    @property
    def phases(self) -> tuple[tuple[str, int], ...]:
        return ((self.first.name, 0),)

    @property
    def map(self) -> Map | None:
        return None

    def run(self, ctx: StepContext) -> Json:
        value: Json = {"output": ""}
        messages: list[Message] = []
        session, number = self.first, 1
        while True:
            failure = None
            match self._perform_turn(session, ctx, messages):
                case Succeeded(answer):
                    value = answer
                case Failed(why):
                    failure = why
            # Views that buffer the text show it now.
            ctx.run.events.notify(ModelText(session.name, ""))
            line = self.listen(failure)
            if line is None:
                return _require_no_failure(value, failure)
            number += 1
            session = replace(
                self.first,
                name=say_name(number),
                prompt=line,
                before=tuple(messages),
                fingerprint="",
            )

    def _perform_turn(
        self, session: AgentStep, ctx: StepContext, messages: list[Message]
    ) -> Succeeded | Failed:
        # Set before the turn, so that it is kept even if the turn is stopped at once.
        messages.append(Message("user", ctx.run.secrets.mask(session.prompt)))
        try:
            outcome = ctx.perform(replace(session, keep_messages=partial(_replace_all, messages)))
        except Interrupted:
            if ctx.run.stop.at_once:
                raise
            ctx.run.stop.forget()
            return self._record_stop(session, ctx)
        stop = ctx.run.stop
        if stop.is_set() and stop.why == "SIGINT" and not stop.at_once:
            # the user wanted to stop this answer, not the next one
            stop.forget()
        return (
            outcome
            if isinstance(outcome, Succeeded | Failed)
            else Failed(Failure(outcome.why, "skipped"))
        )

    def _record_stop(self, session: AgentStep, ctx: StepContext) -> Failed:
        """Record an answer that the person stopped, so that resume does not repeat it."""
        path = ctx.child(session).path
        asked = {"asked": {"user": ctx.run.secrets.mask(session.prompt)}}
        outcome = Failed(Failure("stopped", "stopped", output=asked, path=path))
        step = path, session.kind, session.title, session.fingerprint
        ctx.run.events.emit(
            StepFinished(*step, outcome, 0.0, used=ctx.run.budgets.take_charges(path))
        )
        return outcome


def _require_no_failure(value: Json, failure: Failure | None) -> Json:
    """Return the last answer; raises StepError if it failed and was not stopped by the person."""
    if failure is not None and failure.kind != "stopped":
        raise StepError(failure)
    return value


def _replace_all(messages: list[Message], by: list[Message]) -> None:
    messages[:] = by
