"""Kinds and fields that several tables share."""

from __future__ import annotations

from plait.core.hints import Final
from plait.engine.backend import BACKENDS, MOST_PARALLEL
from plait.schema.field_types import (
    AgentCommand,
    Boolean,
    Choice,
    Conflict,
    Field,
    Integer,
    ListOf,
    MapOf,
    NoEffect,
    Null,
    Number,
    OneOf,
    PlainText,
    Record,
    ShellText,
    TemplateText,
)

MOST_ATTEMPTS: Final = 1000

NAME: Final = PlainText("a name: letters, digits and _", r"[A-Za-z_][A-Za-z0-9_]*")
IDENTIFIER: Final = PlainText("a name: letters, digits, _ and -", r"[A-Za-z_][A-Za-z0-9_-]*")
EXIT_CODE: Final = PlainText(
    "an exit code from 0 to 255", r"[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5]"
)
FILE: Final = PlainText("a path")
VALUE: Final = OneOf(
    (TemplateText(), Number(-1e308), Boolean()), "text, a number, or true or false"
)
ENV: Final = MapOf(VALUE, NAME)
ACTION_FIELDS: Final = (
    "shell", "tool", "agent", "claude", "prompt", "http", "foreach", "write_file", "use", "workflow", "test",
)  # fmt: skip
STEP: Final = OneOf((Record("step"), AgentCommand()), "a step")
STEPS: Final = OneOf((ListOf(STEP), Record("step"), AgentCommand()), "a step, or a list of steps")
HANDLED: Final = OneOf((Record("step"), AgentCommand(), ShellText()), "a step, or shell text")
PHASE: Final = OneOf((ListOf(STEP), Record("phase")), "a list of steps, or a map with steps")
PARALLEL: Final = Integer(1, MOST_PARALLEL)
AGENT: Final = OneOf((TemplateText(), Record("agent")), "a prompt, or a map: agent")
MODEL: Final = OneOf((TemplateText(), Record("prompt")), "a prompt, or a map: prompt")
BACKEND: Final = PlainText(
    f"one of {', '.join(BACKENDS)}, or dask://HOST:PORT", rf"{'|'.join(BACKENDS)}|dask://[^\s/]+"
)
RETRY: Final = OneOf(
    (Integer(1, MOST_ATTEMPTS), Record("retry")), "a number of attempts, or a map: retry"
)
_GO_ON: Final = ("ignore", "ignored", "continue", "skip", "pass", "proceed", "none", "ok")
_END: Final = ("fail", "stop", "abort", "error", "raise")


def _decisions(go_on: str, end: str) -> ShellText:
    """Shell text, except the words that other systems use for a decision."""
    retry = (("retry", "write retry: 3 beside it, to try it again"),)
    return ShellText(
        decisions=(*((one, go_on) for one in _GO_ON), *((one, end) for one in _END), *retry)
    )


ON_FAILURE: Final = OneOf(
    (
        Record("handler"),
        ListOf(HANDLED),
        Boolean(),
        AgentCommand(),
        _decisions(
            "write on_failure: true, to go on", "remove it: a step that fails ends the flow"
        ),
    ),
    "true, shell text, steps, or a map: handler",
)
ON_INCOMPLETE: Final = OneOf(
    (
        Record("incomplete"),
        ListOf(HANDLED),
        AgentCommand(),
        _decisions(
            "write on_incomplete: {fail_workflow: false}, to go on", "remove it: it fails then"
        ),
    ),
    "steps, or a map: on_incomplete",
)
AFTERWARDS: Final = OneOf(
    (
        ListOf(HANDLED),
        Record("step"),
        AgentCommand(),
        _decisions("remove it: the flow goes on", "write a command that fails, such as 'exit 1'"),
    ),
    "a step, or a list of steps",
)
ALLOWED: Final = ("outside_files",)
TYPES: Final = ("string", "number", "integer", "boolean", "array", "object", "any")
PARAMETER: Final = OneOf((Record("named_parameter"), NAME), "a name, or a map: parameter")
PARAMETERS: Final = OneOf(
    (
        Record("parameter_groups"),
        MapOf(
            OneOf((Record("parameter"), Choice(TYPES), Null()), "a type, or a map: parameter"), NAME
        ),
        ListOf(PARAMETER),
    ),
    "a map from names to parameters",
)

STEP_LIST: Final = Field(
    "steps", ListOf(STEP), "the steps, one after the other", required=True, aliases=("commands",)
)
ENV_FIELD: Final = Field("env", ENV, "environment variables for its processes and templates")
TIMEOUT_MEANING: Final = "how long it may take; then it is stopped"
ERROR_FIELDS: Final = (
    Field(
        "on_item_failure",
        Choice(("dlq", "retry", "skip", "stop")),
        "dlq: continue, the item can be retried later; retry: retry it by retry_config; skip: count it "
        "as skipped; stop: start no more items",
        "dlq",
    ),
    Field("continue_on_failure", Boolean(), "false: the same as on_item_failure: stop", True),
    Field("max_failures", Integer(1), "stop after so many items have failed"),
    Field(
        "failure_threshold",
        Number(0, 1),
        "stop when more than this share has failed, once ten items have ended",
    ),
    Field("circuit_breaker", Record("circuit_breaker"), "pause after several failures in a row"),
    Field("error_collection", NoEffect("every failure is recorded and shown when it happens"), ""),
)
AT_ODDS: Final = (
    Conflict("on_item_failure", ("stop",), "continue_on_failure", (True,)),
    Conflict("on_item_failure", ("dlq", "skip"), "continue_on_failure", (False,)),
)
CAPTURE_FIELDS: Final = (
    Field(
        "capture_output",
        OneOf((NAME, Boolean()), "a name: letters, digits and _"),
        "the name under which later steps know the output; the last output is always `last.output`",
        aliases=("capture",),
    ),
    Field(
        "capture_format",
        Choice(("string", "json", "lines", "number", "boolean")),
        "how the captured output is read",
        "string",
        only_for=("capture_output",),
    ),
    Field(
        "capture_streams",
        OneOf(
            (Choice(("stdout", "stderr", "both")), Record("streams")), "one of stdout, stderr, both"
        ),
        "what is captured",
        "stdout",
        only_for=("capture_output",),
    ),
)

ON_EMPTY: Final = ("ok", "warn", "fail")
ON_EMPTY_FIELD: Final = Field(
    "on_empty",
    Choice(ON_EMPTY),
    "what happens if there are no items: nothing, a warning, or a failure",
    "warn",
)
