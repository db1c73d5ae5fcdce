"""The tables of a step and of its actions."""

from __future__ import annotations

from plait.core.hints import Final
from plait.core.records import replace
from plait.schema.directive_tables import AGENT_FIELDS, PATTERNS
from plait.schema.field_types import (
    Boolean,
    Choice,
    Condition,
    Data,
    Duration,
    Field,
    Integer,
    ListOf,
    MapOf,
    NoEffect,
    OneOf,
    PlainText,
    Record,
    RecordType,
    Refused,
    ShellText,
    SingleValue,
    TemplateText,
    TemplateTree,
)
from plait.schema.shared import (
    ACTION_FIELDS,
    AFTERWARDS,
    AGENT,
    CAPTURE_FIELDS,
    ENV_FIELD,
    EXIT_CODE,
    FILE,
    HANDLED,
    IDENTIFIER,
    MODEL,
    MOST_ATTEMPTS,
    NAME,
    ON_EMPTY_FIELD,
    ON_FAILURE,
    PARALLEL,
    RETRY,
    STEP,
    TIMEOUT_MEANING,
)

_HOST: Final = PlainText(
    "a host: api.example.org, *.example.org, http://localhost:8000, or *",
    r"\*|(?:https?://)?(?:\*\.)?[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?::[0-9]{1,5})?",
)
HOSTS: Final = OneOf(
    (ListOf(_HOST, 1), _HOST),
    "a host, or a list of them: api.example.org, *.example.org, http://localhost:8000, *",
)
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_NO_COMMITS: Final = "commit in a shell step: git commit"

FORMS: Final = (
    RecordType(
        "step",
        "step",
        "One action and its settings.  It has exactly one of the first fields; "
        "`validate` may also be alone.",
        (
            Field("shell", ShellText(), "shell text; values are bound, never pasted"),
            Field("tool", TemplateText(), "the id of a tool", aliases=("call",)),
            Field("agent", AGENT, "a prompt for a command-line agent"),
            Field(
                "claude",
                TemplateText(),
                "a prompt or slash command for the agent Claude",
                deprecated=("command",),
            ),
            Field("prompt", MODEL, "a model request"),
            Field(
                "http",
                OneOf((TemplateText(), Record("http")), "an address, or a map: http"),
                "an HTTP request",
            ),
            Field(
                "foreach",
                OneOf(
                    (ListOf(TemplateTree()), SingleValue(), ShellText(), Record("loop")),
                    "a list, shell text that prints one item a line, or a map: loop",
                ),
                "does the steps of `do` for each item",
                needs=("do", "the steps for each item"),
            ),
            Field("write_file", Record("write_file"), "writes a whole file"),
            Field(
                "use",
                PlainText("the name of a block"),
                "runs the steps of a block of this file or an imported one",
            ),
            Field(
                "workflow",
                FILE,
                "another workflow file: its phases run below this step, and know its variables",
            ),
            Field(
                "test",
                OneOf((ShellText(), Record("test")), "shell text, or a map: test"),
                "shell text; write shell",
            ),
            Field(
                "validate",
                OneOf((Record("validate"), ListOf(HANDLED), ShellText()), "a map: validate"),
                "checks the result, and completes the gaps",
            ),
            Field("name", PlainText(), "its name for people", is_documentation=True),
            Field(
                "id",
                IDENTIFIER,
                "its name in paths, for resume and logs; unique in its list",
                is_documentation=True,
            ),
            Field("description", PlainText(), "what it is for", is_documentation=True),
            Field(
                "params",
                TemplateTree(),
                "for tool and workflow: its parameters",
                aliases=("args",),
                only_for=("tool", "workflow"),
            ),
            Field(
                "with",
                MapOf(TemplateTree(), NAME),
                "for use: variables for the block",
                only_for=("use",),
            ),
            Field("do", ListOf(STEP), "for foreach: the steps", only_for=("foreach",)),
            Field(
                "parallel",
                OneOf((Boolean(), PARALLEL), "true, false or a whole number"),
                "for foreach: how many rounds at a time; true is 10",
                False,
                only_for=("foreach",),
            ),
            Field(
                "max_items",
                Integer(0),
                "for foreach: the maximum of rounds",
                only_for=("foreach",),
            ),
            replace(
                ON_EMPTY_FIELD, what=f"for foreach: {ON_EMPTY_FIELD.what}", only_for=("foreach",)
            ),
            Field(
                "interpreter",
                Choice(("sh", "bash", "dash")),
                "for shell: what runs it",
                "sh",
                only_for=("shell",),
            ),
            Field(
                "model",
                PlainText(),
                "for agent, claude and prompt: which model",
                only_for=("agent", "claude", "prompt"),
            ),
            Field("when", Condition(), "the step is skipped if this does not hold"),
            ENV_FIELD,
            Field(
                "working_dir",
                TemplateText(),
                "where it runs, below the project; for a tool this is the project",
                aliases=("cwd",),
            ),
            Field("timeout", Duration(), TIMEOUT_MEANING),
            Field("retry", RETRY, "its attempts"),
            *CAPTURE_FIELDS,
            Field(
                "output_file",
                TemplateText(),
                "a file that also gets the output, even if the action fails",
            ),
            Field(
                "outputs",
                MapOf(Record("output"), NAME),
                "files that it produced, known as `id.name`",
                needs=("id", "its files are known as id.name"),
            ),
            Field("on_failure", ON_FAILURE, "what to do if its action fails; true: continue"),
            Field(
                "on_success",
                AFTERWARDS,
                "what to do if it succeeds, after validate",
            ),
            Field(
                "on_exit_code",
                MapOf(AFTERWARDS, EXIT_CODE),
                "what to do for an exit code; the step then counts as handled",
            ),
            Field(
                "continue_on_error",
                Boolean(),
                "the flow continues if it fails",
                False,
                aliases=("allow_failure",),
            ),
            Field(
                "once",
                Boolean(),
                "ask before it runs again, if it was started and its outcome is unknown",
                False,
            ),
            Field(
                "strict",
                Boolean(),
                "an unknown variable is an error; the flow's setting by default",
            ),
            Field("commit_required", Boolean(), "it fails if it makes no commit", False),
            Field(
                "metadata",
                Record("metadata"),
                "retries, timeout and the like of older files; write them in the step",
            ),
            Field("analyze", Refused("run the analyser in a shell step"), ""),
            Field(
                "analysis",
                NoEffect("there is no analysis to be refreshed; run the analyser in a shell step"),
                "",
            ),
            Field("handler", Refused("write the command itself: shell, tool or agent"), ""),
            Field("options", Refused("write the options in the command itself"), ""),
            Field("auto_commit", Refused(_NO_COMMITS), ""),
            Field("commit_config", Refused(_NO_COMMITS), ""),
            Field("step_validate", Refused("write validate"), ""),
            Field("skip_validation", Refused("leave validate away"), ""),
            Field("validation_timeout", Refused("write timeout inside validate"), ""),
            Field(
                "ignore_validation_failure",
                Refused("write fail_workflow: false inside validate"),
                "",
            ),
        ),
        one_of=ACTION_FIELDS,
        alone=("validate",),
        elsewhere=(
            *((word, "shell") for word in ("run", "script", "cmd", "sh", "bash", "exec")),
            *((word, "foreach") for word in ("loop", "with_items")),
            ("uses", "tool"),
            ("action", "tool"),
            ("if", "when"),
            ("register", "capture_output"),
            ("ignore_errors", "continue_on_error"),
        ),
    ),
    RecordType(
        "metadata",
        "metadata",
        "Fields of a step, as older files have them.",
        (
            Field("retries", Integer(0, MOST_ATTEMPTS), "how often it is retried"),
            Field("timeout", Duration(), TIMEOUT_MEANING),
            Field("continue_on_error", Boolean(), "the flow continues if it fails"),
            ENV_FIELD,
            Field("commit_required", Boolean(), "it fails if it makes no commit"),
            Field("analysis", NoEffect("there is no analysis to be refreshed"), ""),
        ),
    ),
    RecordType(
        "streams",
        "capture_streams",
        "What is captured.",
        (
            Field("stdout", Boolean(), "the output is part of the value", True),
            Field("stderr", Boolean(), "its stderr is part of the value", False),
            Field("exit_code", Boolean(), "`name.exit_code` is known", True),
            Field("success", Boolean(), "`name.success` is known", True),
            Field("duration", Boolean(), "`name.duration` is known", True),
        ),
    ),
    RecordType(
        "output",
        "output",
        "Files that a step produced.",
        (
            Field(
                "file_pattern",
                PlainText("a glob"),
                "files that match this and that git calls new or changed",
                required=True,
            ),
        ),
    ),
    RecordType(
        "write_file",
        "file to write",
        "A file that is written completely, or not at all.",
        (
            Field("path", TemplateText(), "which file, below the project", required=True),
            Field(
                "content",
                TemplateTree(),
                "its content: text, or data for json and yaml",
                required=True,
            ),
            Field("format", Choice(("text", "json", "yaml")), "how data is written", "text"),
            Field(
                "mode",
                OneOf(
                    (PlainText('permissions: "0644"', r"0?[0-7]{3}"), Integer(0, 0o777)),
                    'permissions: "0644"',
                ),
                "permissions to read and write it",
            ),
            Field("create_dirs", Boolean(), "make the directories that are missing", False),
        ),
    ),
    RecordType(
        "loop",
        "loop",
        "The explicit form of the items of `foreach`.",
        (
            Field(
                "items",
                OneOf(
                    (ListOf(TemplateTree()), SingleValue()), "a list, or a template that gives one"
                ),
                "the items themselves",
                aliases=("list",),
            ),
            Field("command", ShellText(), "shell text that prints one item a line"),
        ),
        one_of=("items", "command"),
    ),
    RecordType(
        "agent",
        "agent",
        "A command-line agent, started through a tool.",
        (
            Field("prompt", TemplateText(), "what it should do", required=True),
            Field("tool", PlainText(), "the tool that starts it", "core/agents/claude"),
            Field("model", PlainText(), "which model"),
            Field(
                "options",
                MapOf(TemplateTree()),
                "further parameters of the tool",
                aliases=("params",),
            ),
        ),
    ),
    RecordType(
        "prompt",
        "prompt",
        "A request to a language model.",
        (
            Field("prompt", TemplateText(), "the prompt", required=True, aliases=("text",)),
            Field("system", TemplateText(), "the system prompt"),
            Field("model", PlainText(), "which model"),
            Field("provider", PlainText(), "whose model"),
            Field(
                "options", MapOf(Data()), "further options of the provider: temperature, max_tokens"
            ),
            Field("tools", PATTERNS, "the tools that the model may call; none by default"),
            Field(
                "once",
                PATTERNS,
                "those for which Plait asks before it calls them a second time after a crash",
            ),
            Field("schema", MapOf(Data()), "the JSON Schema of the response, which is then data"),
            *AGENT_FIELDS,
        ),
    ),
    RecordType(
        "http",
        "http",
        "One HTTP request.",
        (
            Field(
                "url",
                TemplateText(),
                "its address; scheme and host are written here, or come from env or parameters, "
                "unless `allow_hosts` allows more",
                required=True,
            ),
            Field(
                "allow_hosts",
                HOSTS,
                "the hosts among which a value may choose, by https unless one says http; `*` "
                "allows every public host, and then no secrets are sent",
            ),
            Field(
                "method",
                Choice(METHODS),
                "its method; by default GET, or POST if there is a body",
            ),
            Field("headers", MapOf(TemplateText()), "its headers; they may contain secrets"),
            Field(
                "body", TemplateTree(), "its body: text is sent unchanged, anything else as JSON"
            ),
            Field(
                "expect",
                OneOf(
                    (Integer(100, 599), ListOf(Integer(100, 599))), "a status, or a list of them"
                ),
                "the statuses that count as success; 2xx by default",
                aliases=("expect_status",),
            ),
        ),
    ),
    RecordType(
        "test",
        "test",
        "The older form of `shell` with `on_failure`.",
        (
            Field("command", ShellText(), "shell text", required=True),
            Field("on_failure", ON_FAILURE, "what to do if it fails"),
            Field("timeout", Duration(), TIMEOUT_MEANING),
        ),
    ),
)
