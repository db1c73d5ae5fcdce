"""The tables of a step: what it does, and everything around it but its failures."""

from __future__ import annotations

from plait.core.hints import Final
from plait.core.records import replace
from plait.schema.directive_tables import AGENT_FIELDS, PATTERNS
from plait.schema.kinds import (
    Choice,
    Condition,
    Data,
    Duration,
    Each,
    Field,
    Flag,
    Form,
    Many,
    Map,
    NoEffect,
    OneHole,
    OneOf,
    Refused,
    Shell,
    Text,
    Tree,
    Whole,
    Word,
)
from plait.schema.shared import (
    AFTERWARDS,
    AGENT,
    CAPTURE_FIELDS,
    COMMANDS,
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
    STEP,
    TIMEOUT_MEANING,
    TRIES,
)

_HOST: Final = Word(
    "a host: api.example.org, *.example.org, http://localhost:8000, or *",
    r"\*|(?:https?://)?(?:\*\.)?[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?::[0-9]{1,5})?",
)
HOSTS: Final = OneOf(
    (Many(_HOST, 1), _HOST),
    "a host, or a list of them: api.example.org, *.example.org, http://localhost:8000, *",
)
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_NO_COMMITS: Final = "commit in a shell step: git commit"

FORMS: Final = (
    Form(
        "step",
        "step",
        "One thing to do, and everything around it.  It has exactly one of the first fields; "
        "`validate` may also stand alone.",
        (
            Field("shell", Shell(), "shell text; values are bound, never pasted"),
            Field("tool", Text(), "the id of a tool", also=("call",)),
            Field("agent", AGENT, "a prompt for a command-line agent"),
            Field("claude", Text(), "a prompt or slash command for the agent Claude", old=("command",)),
            Field("prompt", MODEL, "a call of a language model"),
            Field("http", OneOf((Text(), Map("http")), "an address, or a map: http"), "an HTTP request"),
            Field(
                "foreach",
                OneOf(
                    (Many(Tree()), OneHole(), Shell(), Map("loop")),
                    "a list, shell text that prints one item a line, or a map: loop",
                ),
                "does the steps of `do` for each item",
                needs=("do", "the steps for each item"),
            ),
            Field("write_file", Map("write_file"), "writes a whole file"),
            Field(
                "use",
                Word("the name of a block"),
                "stands for the steps of a block, of this file or an imported one",
            ),
            Field(
                "workflow",
                FILE,
                "another workflow file: its phases run below this step, and know its names",
            ),
            Field(
                "test", OneOf((Shell(), Map("test")), "shell text, or a map: test"), "shell text; write shell"
            ),
            Field(
                "validate",
                OneOf((Map("validate"), Many(HANDLED), Shell()), "a map: validate"),
                "checks what was done, and has the gaps completed",
            ),
            Field("name", Word(), "what people call it", told=True),
            Field(
                "id",
                IDENTIFIER,
                "its place in paths, for resume and logs; one of its kind in its list",
                told=True,
            ),
            Field("description", Word(), "what it is for", told=True),
            Field(
                "params",
                Tree(),
                "for tool and workflow: its parameters",
                also=("args",),
                of=("tool", "workflow"),
            ),
            Field("with", Each(Tree(), NAME), "for use: names that the block knows", of=("use",)),
            Field("do", Many(STEP), "for foreach: the steps", of=("foreach",)),
            Field(
                "parallel",
                OneOf((Flag(), PARALLEL), "true, false or a whole number"),
                "for foreach: how many rounds at a time; true is 10",
                False,
                of=("foreach",),
            ),
            Field("max_items", Whole(0), "for foreach: at most so many rounds", of=("foreach",)),
            replace(ON_EMPTY_FIELD, what=f"for foreach: {ON_EMPTY_FIELD.what}", of=("foreach",)),
            Field(
                "interpreter",
                Choice(("sh", "bash", "dash")),
                "for shell: what runs it",
                "sh",
                of=("shell",),
            ),
            Field(
                "model",
                Word(),
                "for agent, claude and prompt: which model",
                of=("agent", "claude", "prompt"),
            ),
            Field("when", Condition(), "the step is skipped if this does not hold"),
            ENV_FIELD,
            Field(
                "working_dir",
                Text(),
                "where it runs, below the project; a tool takes that for the project",
                also=("cwd",),
            ),
            Field("timeout", Duration(), TIMEOUT_MEANING),
            Field("retry", TRIES, "how often it is tried"),
            *CAPTURE_FIELDS,
            Field("output_file", Text(), "a file that gets the output as well, also of an action that fails"),
            Field(
                "outputs",
                Each(Map("output"), NAME),
                "files that it produced, known as `id.name`",
                needs=("id", "its files are known as id.name"),
            ),
            Field("on_failure", ON_FAILURE, "what to do if its action fails; true: go on"),
            Field("on_success", AFTERWARDS, "what to do after it, and after validate has found it complete"),
            Field(
                "on_exit_code",
                Each(AFTERWARDS, EXIT_CODE),
                "what to do for an exit code; it counts as handled",
            ),
            Field(
                "continue_on_error", Flag(), "the flow goes on if it fails", False, also=("allow_failure",)
            ),
            Field(
                "once",
                Flag(),
                "rather ask than do it twice, when it was begun and its end is not known",
                False,
            ),
            Field("strict", Flag(), "a missing name is an error; the flow's own setting if nothing is said"),
            Field("commit_required", Flag(), "it fails if it leaves no commit behind", False),
            Field(
                "metadata",
                Map("metadata"),
                "retries, timeout and the like of older files; write them in the step",
            ),
            Field("analyze", Refused("run the analyser in a shell step"), ""),
            Field(
                "analysis",
                NoEffect("there is no analysis to be refreshed; run the analyser in a shell step"),
                "",
            ),
            Field("handler", Refused("write the command itself: shell, tool or agent"), ""),
            Field("options", Refused("say what is meant in the command itself"), ""),
            Field("auto_commit", Refused(_NO_COMMITS), ""),
            Field("commit_config", Refused(_NO_COMMITS), ""),
            Field("step_validate", Refused("write validate"), ""),
            Field("skip_validation", Refused("leave validate away"), ""),
            Field("validation_timeout", Refused("write timeout inside validate"), ""),
            Field("ignore_validation_failure", Refused("write fail_workflow: false inside validate"), ""),
        ),
        one_of=COMMANDS,
        alone=("validate",),
    ),
    Form(
        "metadata",
        "metadata",
        "Fields of a step, as older files have them.",
        (
            Field("retries", Whole(0, MOST_ATTEMPTS), "how often it is tried again"),
            Field("timeout", Duration(), TIMEOUT_MEANING),
            Field("continue_on_error", Flag(), "the flow goes on if it fails"),
            ENV_FIELD,
            Field("commit_required", Flag(), "it fails if it leaves no commit behind"),
            Field("analysis", NoEffect("there is no analysis to be refreshed"), ""),
        ),
    ),
    Form(
        "streams",
        "capture_streams",
        "What is captured, one by one.",
        (
            Field("stdout", Flag(), "the output is part of the value", True),
            Field("stderr", Flag(), "what it said on stderr is part of the value", False),
            Field("exit_code", Flag(), "`name.exit_code` is known", True),
            Field("success", Flag(), "`name.success` is known", True),
            Field("duration", Flag(), "`name.duration` is known", True),
        ),
    ),
    Form(
        "output",
        "output",
        "Files that a step produced.",
        (
            Field(
                "file_pattern",
                Word("a glob"),
                "files that match this and that git calls new or changed",
                required=True,
            ),
        ),
    ),
    Form(
        "write_file",
        "file to write",
        "A file that is put in place whole, or not at all.",
        (
            Field("path", Text(), "which file, below the project", required=True),
            Field("content", Tree(), "what is in it: text, or data for json and yaml", required=True),
            Field("format", Choice(("text", "json", "yaml")), "how data is written", "text"),
            Field(
                "mode",
                OneOf((Word('permissions: "0644"', r"0?[0-7]{3}"), Whole(0, 0o777)), 'permissions: "0644"'),
                "who may read and write it",
            ),
            Field("create_dirs", Flag(), "make the directories that are missing", False),
        ),
    ),
    Form(
        "loop",
        "loop",
        "What `foreach` goes through, said explicitly.",
        (
            Field(
                "items",
                OneOf((Many(Tree()), OneHole()), "a list, or a template that gives one"),
                "the items themselves",
                also=("list",),
            ),
            Field("command", Shell(), "shell text that prints one item a line"),
        ),
        one_of=("items", "command"),
    ),
    Form(
        "agent",
        "agent",
        "A command-line agent, started through a tool.",
        (
            Field("prompt", Text(), "what it is to do", required=True),
            Field("tool", Word(), "the tool that starts it", "core/agents/claude"),
            Field("model", Word(), "which model"),
            Field("options", Each(Tree()), "further parameters of the tool", also=("params",)),
        ),
    ),
    Form(
        "prompt",
        "prompt",
        "A call of a language model.",
        (
            Field("prompt", Text(), "what is asked", required=True, also=("text",)),
            Field("system", Text(), "what comes before it"),
            Field("model", Word(), "which model"),
            Field("provider", Word(), "whose model"),
            Field("options", Each(Data()), "what else the provider takes: temperature, max_tokens"),
            Field("tools", PATTERNS, "the tools that the model may call; none, if nothing is said"),
            Field("once", PATTERNS, "those that are rather asked about than called twice, after a kill"),
            Field("schema", Each(Data()), "JSON Schema of the answer, which is then data"),
            *AGENT_FIELDS,
        ),
    ),
    Form(
        "http",
        "http",
        "One HTTP request.",
        (
            Field(
                "url",
                Text(),
                "its address; scheme and host are written, or stand under env or parameters, unless "
                "`allow_hosts` says more",
                required=True,
            ),
            Field(
                "allow_hosts",
                HOSTS,
                "the hosts among which a value may choose, by https unless one says http; with `*` it may be "
                "any that is public, and no secrets are sent",
            ),
            Field(
                "method", Choice(METHODS), "GET, or POST if there is a body, unless this says something else"
            ),
            Field("headers", Each(Text()), "its headers; secrets may stand here"),
            Field("body", Tree(), "what is sent: text as it is, anything else as JSON"),
            Field(
                "expect",
                OneOf((Whole(100, 599), Many(Whole(100, 599))), "a status, or a list of them"),
                "the answers that count as success; 2xx if nothing is said",
                also=("expect_status",),
            ),
        ),
    ),
    Form(
        "test",
        "test",
        "The older form of `shell` with `on_failure`.",
        (
            Field("command", Shell(), "shell text", required=True),
            Field("on_failure", ON_FAILURE, "what to do if it fails"),
            Field("timeout", Duration(), TIMEOUT_MEANING),
        ),
    ),
)
