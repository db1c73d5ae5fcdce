"""The tables of retries, failure handlers and checks."""

from __future__ import annotations

from plait.core.hints import Final
from plait.engine.step import RETRIABLE_KINDS
from plait.schema.field_types import (
    Boolean,
    Choice,
    Data,
    Duration,
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
    RecordType,
    Refused,
    ShellText,
    TemplateText,
    TemplateTree,
)
from plait.schema.shared import (
    AGENT,
    CAPTURE_FIELDS,
    HANDLED,
    IDENTIFIER,
    MODEL,
    MOST_ATTEMPTS,
    ON_INCOMPLETE,
    TIMEOUT_MEANING,
)

_INSTEAD_OF_STEPS: Final = (
    Field("shell", ShellText(), "instead of steps: shell text"),
    Field(
        "claude", TemplateText(), "instead of steps: a prompt or slash command for the agent Claude"
    ),
    Field("agent", AGENT, "instead of steps: a prompt"),
    Field("prompt", MODEL, "instead of steps: a model request"),
    Field("tool", TemplateText(), "instead of steps: the id of a tool"),
    Field("params", TemplateTree(), "for tool: its parameters"),
    Field("model", PlainText(), "for agent, claude and prompt: which model"),
)

FORMS: Final = (
    RecordType(
        "retry",
        "retry",
        "How many attempts something has, and the pauses between them.",
        (
            Field(
                "attempts",
                Integer(1, MOST_ATTEMPTS),
                "how many attempts, the first included",
                3,
                aliases=("max_attempts",),
            ),
            Field(
                "backoff",
                OneOf(
                    (Choice(("fixed", "linear", "exponential", "fibonacci")), Record("backoff")),
                    "one of fixed, linear, exponential, fibonacci",
                ),
                "how pauses grow",
                "exponential",
            ),
            Field("initial_delay", Duration(zero=True), "the first pause", 1),
            Field("max_delay", Duration(), "the longest pause", 30),
            Field(
                "increment",
                Duration(zero=True),
                "what linear adds each time; the first pause by default",
            ),
            Field("base", Number(1, 100), "the factor of exponential", 2),
            Field(
                "jitter",
                OneOf((Boolean(), Number(0, 1)), "true, false, or a share from 0 to 1"),
                "the share by which a pause may be shorter or longer; true: jitter_factor",
                False,
            ),
            Field("jitter_factor", Number(0, 1), "the share that jitter: true means", 0.3),
            Field(
                "retry_on",
                OneOf((ListOf(PlainText()), PlainText()), "a list of kinds of failure"),
                f"only these failures are retried: {', '.join(RETRIABLE_KINDS)}, "
                "or a part of the message",
            ),
            Field(
                "budget",
                Duration(),
                "the time after which nothing is retried",
                aliases=("retry_budget",),
            ),
            Field("on_failure", Refused("write continue_on_error or on_failure beside retry"), ""),
        ),
    ),
    RecordType(
        "backoff",
        "backoff",
        "A backoff with its number: `{linear: {increment: 2s}}`.",
        (
            Field("fixed", OneOf((Record("no_numbers"), Null())), "always the same pause"),
            Field(
                "linear",
                OneOf((Record("linear"), Null())),
                "a pause that grows by the same amount each time",
            ),
            Field(
                "exponential",
                OneOf((Record("exponential"), Null())),
                "a pause that is multiplied each time",
            ),
            Field(
                "fibonacci",
                OneOf((Record("no_numbers"), Null())),
                "the sum of the two pauses before",
            ),
            Field("custom", Refused("choose fixed, linear, exponential or fibonacci"), ""),
        ),
        one_of=("fixed", "linear", "exponential", "fibonacci"),
    ),
    RecordType("no_numbers", "backoff", "Needs no number.", ()),
    RecordType(
        "linear",
        "backoff",
        "The number of `linear`.",
        (Field("increment", Duration(zero=True), "what is added each time", required=True),),
    ),
    RecordType(
        "exponential",
        "backoff",
        "The number of `exponential`.",
        (Field("base", Number(1, 100), "the factor", 2),),
    ),
    RecordType(
        "handler",
        "handler",
        "`on_failure`: what to do after a step has failed, and whether the flow continues.",
        (
            Field(
                "steps", ListOf(HANDLED), "the steps, one after the other", aliases=("commands",)
            ),
            *_INSTEAD_OF_STEPS,
            Field("name", PlainText(), "its name for people", is_documentation=True),
            Field("id", IDENTIFIER, "its place in paths", is_documentation=True),
            Field(
                "max_attempts",
                Integer(0, 100),
                "how often the failed step is retried, each time after the handler; "
                "default: 3 if the handler is an agent, else 0",
                aliases=("max_retries",),
            ),
            Field(
                "retry_original",
                Boolean(),
                "without max_attempts: true: retry once, false: do not retry",
            ),
            Field(
                "fail_workflow",
                Boolean(),
                "true: the step fails even if the handler succeeds; "
                "false: the flow continues even if the step still fails",
            ),
            Field("timeout", Duration(), TIMEOUT_MEANING),
            *CAPTURE_FIELDS,
            Field(
                "continue_on_error",
                Boolean(),
                "a failed step of the handler is ignored",
                False,
            ),
            Field(
                "handler_failure_fatal",
                Boolean(),
                "false: the same as continue_on_error: true",
                True,
            ),
            Field("commit_required", Boolean(), "it fails if it makes no commit", False),
            Field("strategy", NoEffect("max_attempts and fail_workflow decide what follows"), ""),
        ),
        some_of=("steps", "shell", "claude", "agent", "prompt", "tool"),
    ),
    RecordType(
        "validate",
        "validate",
        "Checks what a step did.  The check prints JSON, or writes it into `result_file`: "
        "`{completion_percentage, status, implemented, missing, gaps}`.",
        (
            Field("shell", ShellText(), "the check as shell text", deprecated=("command",)),
            Field(
                "claude",
                TemplateText(),
                "the check as a prompt or slash command for the agent Claude",
            ),
            Field("agent", AGENT, "the check as a prompt for an agent"),
            Field("prompt", MODEL, "the check as a model request"),
            Field("tool", TemplateText(), "the check as a tool"),
            Field("params", TemplateTree(), "for tool: its parameters"),
            Field(
                "steps",
                ListOf(HANDLED),
                "the check as steps; the last output counts",
                aliases=("commands",),
            ),
            Field("result_file", TemplateText(), "the file with the result, instead of the output"),
            Field(
                "threshold",
                Number(0, 100),
                "the percentage from which the step counts as complete",
                100,
            ),
            Field(
                "expected_schema",
                OneOf((MapOf(Data()),), "a map: JSON Schema"),
                "a JSON Schema that every result must match besides the form above, or the step fails",
            ),
            Field("timeout", Duration(), "how long one check may take"),
            Field(
                "on_incomplete",
                ON_INCOMPLETE,
                "steps that complete the gaps; then the check is repeated",
            ),
            Field(
                "max_attempts",
                Integer(0, 100),
                "how often on_incomplete runs at most; may also be set in on_incomplete",
            ),
            Field(
                "fail_workflow",
                Boolean(),
                "false: an incomplete result does not fail the step",
                True,
            ),
            Field("commit_required", Boolean(), "the check fails if it makes no commit", False),
        ),
        some_of=("shell", "claude", "agent", "prompt", "tool", "steps"),
    ),
    RecordType(
        "incomplete",
        "on_incomplete",
        "Steps that complete the gaps that a check has found; they know `validation.*`.",
        (
            Field(
                "steps", ListOf(HANDLED), "the steps, one after the other", aliases=("commands",)
            ),
            *_INSTEAD_OF_STEPS,
            Field(
                "max_attempts",
                Integer(0, 100),
                "how often it runs at most, each time followed by another check",
                2,
            ),
            Field(
                "fail_workflow",
                Boolean(),
                "false: an incomplete result does not fail the step",
                True,
            ),
            Field("timeout", Duration(), TIMEOUT_MEANING),
            Field("commit_required", Boolean(), "it fails if it makes no commit", False),
        ),
        some_of=("steps", "shell", "claude", "agent", "prompt", "tool"),
    ),
)
