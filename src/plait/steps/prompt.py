"""A step that asks a language model one question; the answer's text is its output."""

from __future__ import annotations

import time
from collections.abc import Mapping

from plait.engine.outcome import Failure, StepError
from plait.engine.perform import Turn
from plait.masking import masked
from plait.records import dataclass, field
from plait.steps.hands import ModelCall, Rehearsed, working
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
        system = "" if self.system is None else as_text(self.system, turn.scope, strict=self.strict)
        asked = ModelCall(
            prompt=run.mask(as_text(self.text, turn.scope, strict=self.strict)),
            system=run.mask(system),
            model=self.model,
            options=self.options,
        )
        if run.rehearsal is not None:
            run.rehearsal.append(Rehearsed(turn.path, "prompt", asked.prompt))
            return {}
        provider = run.hands.provider(self.provider)
        if provider is None:
            raise StepError(Failure(_nobody(self.provider), "refused"))
        began = time.monotonic()
        answer = provider.answer(asked, timeout=turn.time_left(), stop=run.stop)
        return {
            "output": run.mask(answer.text),
            "stderr": "",
            "exit_code": 0,
            "duration": round(time.monotonic() - began, 6),
            "facts": masked(dict(answer.facts), run.mask),
        }


def _nobody(name: str | None) -> str:
    what = "no provider configured" if name is None else f"no provider configured under the name '{name}'"
    return (
        f"{what}: put one below 'providers' in .ai/config/plait.yaml, "
        "or use an 'agent:' step, which starts a command-line agent"
    )
