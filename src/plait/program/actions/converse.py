"""A `prompt:` step that has tools, limits or a form for its answer: a conversation inside the step."""

from __future__ import annotations

import time
from collections.abc import Mapping

from plait.agents.session import Conversation
from plait.core.hints import Final
from plait.core.records import dataclass, field
from plait.core.values import Json
from plait.engine.dry_run import NOT_KNOWN_END
from plait.engine.limits import NO_LIMITS, Limits
from plait.engine.outcome import expect_done
from plait.engine.perform import Turn, plans
from plait.template.sinks import as_text
from plait.template.template import Template

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
