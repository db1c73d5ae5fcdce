"""The `claude:` and `agent:` actions: pass a prompt to a command-line agent, which runs as a tool.

The tool gets `prompt`, `directory` and the options of the step. Its output is text. A slash command
is a prompt like any other.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.errors import InputError, ProcessError
from plait.core.hints import Final
from plait.core.records import dataclass
from plait.core.values import Json, text
from plait.engine.outcome import Failure, StepError
from plait.engine.perform import StepContext
from plait.engine.step import Plan
from plait.program.actions.shell import command_title
from plait.program.actions.tool import call_tool_step, fill_params
from plait.template.sinks import render_text
from plait.template.template import Template

CLAUDE: Final = "core/agents/claude"


@dataclass(frozen=True, slots=True)
class CliAgentAction:
    prompt: Template
    tool: str = CLAUDE
    options: Template | None = None
    """A map: model, permission_mode, allowed_tools and other parameters of the tool."""
    strict: bool = False
    is_title: bool = False
    """The step has no name, so its prompt becomes its title."""

    def plan(self, ctx: StepContext) -> Plan:
        prompt = render_text(self.prompt, ctx.scope, strict=self.strict)
        return Plan("agent", ctx.run.secrets.mask(prompt))

    def execute(self, plan: Plan, ctx: StepContext) -> dict[str, Json]:
        run, prompt = ctx.run, plan.shown
        if self.is_title:
            run.events.set_title(ctx.path, command_title(prompt))
        params = {**self._options(ctx), "prompt": prompt, "directory": ctx.directory}
        try:
            value = call_tool_step(ctx, self.tool, params, as_text=True)
        except ProcessError as error:
            if error.code != "no-program":
                raise
            raise StepError(
                Failure(f"{run.secrets.mask(str(error))}\n{self._advice()}", "refused")
            ) from None
        return {**value, "output": text(value["output"])}

    def _options(self, ctx: StepContext) -> dict[str, Json]:
        if self.options is None:
            return {}
        options = fill_params(ctx, self.tool, self.options, ctx.scope, strict=self.strict)
        if not isinstance(options, Mapping):
            raise InputError(
                "the options of an agent must be a map",
                fix="write agent: {prompt: …}",
                code="wrong-type",
            )
        return dict(options)

    def _advice(self) -> str:
        return (
            f"fix: correct the command of the tool '{self.tool}', "
            "or name another agent by 'agent: {tool: …}'"
        )
