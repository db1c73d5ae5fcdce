"""The workflow file, written down once: its maps, their fields, what each may hold and what it means.

    FORMS        every kind of map: fields with kind, default, meaning, other spellings
    problems     a node held against its kind: everything that is wrong with it
    Said         a map that has no problems, read by its table: defaults, durations, templates
    essence      what its author said, for fingerprints: no names, descriptions or places
    json_schema  the same tables for editors

The reference page and the tables of templates (`names`) are made of these tables, too.
A field that means something elsewhere and nothing here stands here as well, with the reason:
`Refused` is an error, `NoEffect` a warning; no field is ever ignored silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from plait.documents.limits import shown
from plait.documents.nodes import Mapping, Node, Scalar, Sequence, expect_keys
from plait.errors import InputError, InternalError, Problem, listed, nearest
from plait.flows.inputs.spec import FORMATS
from plait.hints import TYPE_CHECKING, Final, TypeAlias
from plait.records import dataclass
from plait.run.retry import RETRIABLE_KINDS
from plait.source import Span
from plait.steps.fan import MOST_PARALLEL
from plait.template import nodes
from plait.template.template import Branch, Constant, Template, compile_template
from plait.template.template import Node as TemplateNode
from plait.values import Json

if TYPE_CHECKING:
    from plait.scope import Scope

MOST_ATTEMPTS: Final = 1000
WARNED: Final = frozenset({"no-effect", "deprecated-field"})
"""Codes of problems that a run can live with."""

# ── kinds ────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Word:
    """Text that is no template; `pattern` is the form that it has."""

    wanted: str = "text"
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """Text in which values are put."""

    wanted: str = "text"


@dataclass(frozen=True, slots=True)
class Shell:
    """Shell text: its values are bound."""

    wanted: str = "shell text"


@dataclass(frozen=True, slots=True)
class Slash:
    """Text that begins with a slash: a command of an agent."""

    wanted: str = "a command of an agent, which begins with '/'"


@dataclass(frozen=True, slots=True)
class OneHole:
    """Text that is one hole and nothing else: a value of any type."""

    wanted: str = "a template that is one value"


@dataclass(frozen=True, slots=True)
class Tree:
    """Any data; every string in it is a template."""

    wanted: str = "any data"


@dataclass(frozen=True, slots=True)
class Data:
    """Any data, taken as it is."""

    wanted: str = "any data"


@dataclass(frozen=True, slots=True)
class Null:
    """Nothing."""

    wanted: str = "nothing"


@dataclass(frozen=True, slots=True)
class Flag:
    wanted: str = "true or false"


@dataclass(frozen=True, slots=True)
class Condition:
    """`when`: an expression, true or false, or a map of tests."""

    wanted: str = "a condition"


@dataclass(frozen=True, slots=True)
class Whole:
    least: int = 0
    most: int | None = None

    @property
    def wanted(self) -> str:
        return f"a whole number{_range(self.least, self.most)}"


@dataclass(frozen=True, slots=True)
class Number:
    least: float = 0
    most: float | None = None

    @property
    def wanted(self) -> str:
        return f"a number{_range(self.least, self.most)}"


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds, or a number with a unit."""

    zero: bool = False

    @property
    def wanted(self) -> str:
        return "a duration" + (", also 0" if self.zero else "") + ": seconds, or 500ms, 90s, 5m, 1h30m, 2d"


@dataclass(frozen=True, slots=True)
class Choice:
    words: tuple[str, ...]

    @property
    def wanted(self) -> str:
        return "one of " + ", ".join(self.words)


@dataclass(frozen=True, slots=True)
class Map:
    """A map of one of our forms."""

    form: str

    @property
    def wanted(self) -> str:
        return f"a map: {FORMS[self.form].title}"


@dataclass(frozen=True, slots=True)
class Each:
    """A map whose keys are the author's."""

    kind: Kind
    keys: Word = Word()

    @property
    def wanted(self) -> str:
        return f"a map from names to {self.kind.wanted}"


@dataclass(frozen=True, slots=True)
class Many:
    """A list."""

    kind: Kind

    @property
    def wanted(self) -> str:
        return f"a list of {self.kind.wanted.removeprefix('a ')}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """The first that fits what stands there."""

    kinds: tuple[Kind, ...]
    said: str = ""

    @property
    def wanted(self) -> str:
        return self.said or ", or ".join(kind.wanted for kind in self.kinds)


@dataclass(frozen=True, slots=True)
class NoEffect:
    """A field of other systems that changes nothing here: a warning."""

    why: str
    wanted: str = "anything"


@dataclass(frozen=True, slots=True)
class Refused:
    """A field of other systems that cannot be meant here: an error."""

    why: str
    wanted: str = "nothing"


Kind: TypeAlias = (
    Word | Text | Shell | Slash | OneHole | Tree | Data | Null | Flag | Condition | Whole | Number | Duration
    | Choice | Map | Each | Many | OneOf | NoEffect | Refused
)  # fmt: skip


def _range(least: float, most: float | None) -> str:
    return f" from {least:g}" + ("" if most is None else f" to {most:g}") if least or most else ""


# ── fields and forms ─────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: Kind
    what: str
    default: Json = None
    required: bool = False
    also: tuple[str, ...] = ()
    """Other spellings, as good as the first."""
    old: tuple[str, ...] = ()
    """Spellings that will go away."""
    told: bool = False
    """Tells people something and changes nothing: no part of a fingerprint."""

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.also, *self.old)


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of map; `one_of` are fields of which it has exactly one, `some_of` at least one."""

    name: str
    title: str
    """What a message calls it: a step."""
    what: str
    fields: tuple[Field, ...]
    one_of: tuple[str, ...] = ()
    some_of: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    """Fields that may stand instead of those of `one_of`."""
    marks: tuple[str, ...] = ()
    """A list under one of these keys tells this form from others that could stand there."""


NAME: Final = Word("a name: letters, digits and _", r"[A-Za-z_][A-Za-z0-9_]*")
IDENTIFIER: Final = Word("a name: letters, digits, _ and -", r"[A-Za-z_][A-Za-z0-9_-]*")
EXIT_CODE: Final = Word("an exit code from 0 to 255", r"[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5]")
FILE: Final = Word("a path")
VALUE: Final = OneOf((Text(), Number(-1e308), Flag()), "text, a number, or true or false")
ENV: Final = Each(VALUE, NAME)
COMMANDS: Final = (
    "shell", "tool", "agent", "claude", "prompt", "http", "foreach", "write_file", "use", "test",
)  # fmt: skip
STEP: Final = OneOf((Map("step"), Slash()), "a step")
STEPS: Final = OneOf((Many(STEP), Map("step"), Slash()), "a step, or a list of steps")
HANDLED: Final = OneOf((Map("step"), Slash(), Shell()), "a step, or shell text")
PHASE: Final = OneOf((Many(STEP), Map("phase")), "a list of steps, or a map with steps")
PARALLEL: Final = Whole(1, MOST_PARALLEL)
AGENT: Final = OneOf((Text(), Map("agent")), "a prompt, or a map: agent")
MODEL: Final = OneOf((Text(), Map("prompt")), "a prompt, or a map: prompt")
TRIES: Final = OneOf((Whole(1, MOST_ATTEMPTS), Map("retry")), "a number of attempts, or a map: retry")
ON_FAILURE: Final = OneOf(
    (Map("handler"), Many(HANDLED), Flag(), Slash(), Shell()), "true, shell text, steps, or a map: handler"
)
ON_INCOMPLETE: Final = OneOf(
    (Map("incomplete"), Many(HANDLED), Slash(), Shell()), "steps, or a map: on_incomplete"
)
AFTERWARDS: Final = OneOf((Many(HANDLED), Map("step"), Slash(), Shell()), "a step, or a list of steps")
ALLOWED: Final = ("outside_files",)
TYPES: Final = ("string", "number", "integer", "boolean", "array", "object", "any")
PARAMETER: Final = OneOf((Map("named_parameter"), NAME), "a name, or a map: parameter")
PARAMETERS: Final = OneOf(
    (
        Map("parameter_groups"),
        Each(OneOf((Map("parameter"), Choice(TYPES), Null()), "a type, or a map: parameter"), NAME),
        Many(PARAMETER),
    ),
    "a map from names to parameters",
)

_STEP_LIST: Final = Field(
    "steps", Many(STEP), "the steps, one after the other", required=True, also=("commands",)
)
_ENV: Final = Field("env", ENV, "variables for its processes and templates")
_TIMEOUT: Final = "how long it may take; what still runs then is ended"

_RETRY: Final = Form(
    "retry",
    "retry",
    "How often something is tried, and how long to wait in between.",
    (
        Field(
            "attempts",
            Whole(1, MOST_ATTEMPTS),
            "how often in all, the first included",
            3,
            also=("max_attempts",),
        ),
        Field(
            "backoff",
            OneOf(
                (Choice(("fixed", "linear", "exponential", "fibonacci")), Map("backoff")),
                "one of fixed, linear, exponential, fibonacci",
            ),
            "how pauses grow",
            "exponential",
        ),
        Field("initial_delay", Duration(zero=True), "the first pause", 1),
        Field("max_delay", Duration(), "no pause is longer", 30),
        Field(
            "increment", Duration(zero=True), "what linear adds each time; the first pause if nothing is said"
        ),
        Field("base", Number(1, 100), "what exponential multiplies by", 2),
        Field(
            "jitter",
            OneOf((Flag(), Number(0, 1)), "true, false, or a share from 0 to 1"),
            "the share by which a pause may be shorter or longer; true: as jitter_factor says",
            False,
        ),
        Field("jitter_factor", Number(0, 1), "the share that jitter: true means", 0.3),
        Field(
            "retry_on",
            OneOf((Many(Word()), Word()), "a list of kinds of failure"),
            f"only these failures are tried again: {', '.join(RETRIABLE_KINDS)}, or a part of the message",
        ),
        Field("budget", Duration(), "time for all attempts together", also=("retry_budget",)),
        Field("on_failure", Refused("write continue_on_error or on_failure beside retry"), ""),
    ),
)

_BACKOFF: Final = Form(
    "backoff",
    "backoff",
    "A way to wait with its number: `{linear: {increment: 2s}}`.",
    (
        Field("fixed", OneOf((Map("no_numbers"), Null())), "always the same pause"),
        Field("linear", OneOf((Map("linear"), Null())), "a pause that grows by as much each time"),
        Field("exponential", OneOf((Map("exponential"), Null())), "a pause that is multiplied each time"),
        Field("fibonacci", OneOf((Map("no_numbers"), Null())), "the sum of the two pauses before"),
        Field("custom", Refused("choose fixed, linear, exponential or fibonacci"), ""),
    ),
    one_of=("fixed", "linear", "exponential", "fibonacci"),
)

_ERROR_FIELDS: Final = (
    Field(
        "on_item_failure",
        Choice(("dlq", "retry", "skip", "stop")),
        "dlq: go on, the item can be retried later; retry: as retry_config says; skip: count it as skipped; "
        "stop: begin no more items",
        "dlq",
    ),
    Field("continue_on_failure", Flag(), "false: the same as on_item_failure: stop", True),
    Field("max_failures", Whole(1), "stop when so many items have failed"),
    Field(
        "failure_threshold",
        Number(0, 1),
        "stop when more than this share has failed, once ten items have ended",
    ),
    Field("circuit_breaker", Map("circuit_breaker"), "pause when one failure follows another"),
    Field("error_collection", NoEffect("every failure is recorded and shown when it happens"), ""),
)

_CAPTURE_FIELDS: Final = (
    Field(
        "capture_output",
        OneOf((NAME, Flag()), "a name: letters, digits and _"),
        "the name under which later steps know the output; the last output is always `last.output`",
        also=("capture",),
    ),
    Field(
        "capture_format",
        Choice(("string", "json", "lines", "number", "boolean")),
        "how the captured output is read",
        "string",
    ),
    Field(
        "capture_streams",
        OneOf((Choice(("stdout", "stderr", "both")), Map("streams")), "one of stdout, stderr, both"),
        "what is captured",
        "stdout",
    ),
)

_NO_COMMITS: Final = "commit in a shell step: git commit"

_STEP: Final = Form(
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
        ),
        Field("write_file", Map("write_file"), "writes a whole file"),
        Field(
            "use",
            Word("the name of a block"),
            "stands for the steps of a block, of this file or an imported one",
        ),
        Field("test", OneOf((Shell(), Map("test")), "shell text, or a map: test"), "shell text; write shell"),
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
        Field("params", Tree(), "for tool: its parameters", also=("args",)),
        Field("with", Each(Tree(), NAME), "for use: names that the block knows"),
        Field("do", Many(STEP), "for foreach: the steps"),
        Field(
            "parallel",
            OneOf((Flag(), Whole(1, MOST_PARALLEL)), "true, false or a whole number"),
            "for foreach: how many rounds at a time; true is 10",
            False,
        ),
        Field("max_items", Whole(0), "for foreach: at most so many rounds"),
        Field("interpreter", Choice(("sh", "bash", "dash")), "for shell: what runs it", "sh"),
        Field("model", Word(), "for agent, claude and prompt: which model"),
        Field("when", Condition(), "the step is skipped if this does not hold"),
        _ENV,
        Field("working_dir", Text(), "where it runs, below the project", also=("cwd",)),
        Field("timeout", Duration(), _TIMEOUT),
        Field("retry", TRIES, "how often it is tried"),
        *_CAPTURE_FIELDS,
        Field("output_file", Text(), "a file that gets the output as well"),
        Field("outputs", Each(Map("output"), NAME), "files that it produced, known as `id.name`"),
        Field("on_failure", ON_FAILURE, "what to do if it fails; true: go on"),
        Field("on_success", AFTERWARDS, "what to do after it"),
        Field(
            "on_exit_code", Each(AFTERWARDS, EXIT_CODE), "what to do for an exit code; it counts as handled"
        ),
        Field("continue_on_error", Flag(), "the flow goes on if it fails", False, also=("allow_failure",)),
        Field("once", Flag(), "rather ask than do it twice, when a run was killed while it ran", False),
        Field("strict", Flag(), "a missing name is an error; the flow's own setting if nothing is said"),
        Field("commit_required", Flag(), "it fails if it leaves no commit behind", False),
        Field(
            "metadata",
            Map("metadata"),
            "retries, timeout and the like of older files; write them in the step",
        ),
        Field("analyze", Refused("run the analyser in a shell step"), ""),
        Field(
            "analysis", NoEffect("there is no analysis to be refreshed; run the analyser in a shell step"), ""
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
)

_HANDLER: Final = Form(
    "handler",
    "handler",
    "`on_failure`: what to do when a step has failed, and what that means for the flow.",
    (
        Field("steps", Many(HANDLED), "the steps, one after the other", also=("commands",)),
        Field("shell", Shell(), "instead of steps: shell text"),
        Field("claude", Text(), "instead of steps: a prompt or slash command for the agent Claude"),
        Field("agent", AGENT, "instead of steps: a prompt"),
        Field("prompt", MODEL, "instead of steps: a call of a model"),
        Field("tool", Text(), "instead of steps: the id of a tool"),
        Field("params", Tree(), "for tool: its parameters"),
        Field("model", Word(), "for agent, claude and prompt: which model"),
        Field("name", Word(), "what people call it", told=True),
        Field("id", IDENTIFIER, "its place in paths", told=True),
        Field(
            "max_attempts",
            Whole(0, 100),
            "how often the failed step is tried again, each time after the handler",
            also=("max_retries",),
        ),
        Field(
            "retry_original",
            Flag(),
            "true: try the failed step again once, if max_attempts says nothing",
            False,
        ),
        Field(
            "fail_workflow",
            Flag(),
            "true: the step has failed whatever the handler does; false: it has not, even if it still fails",
        ),
        Field("timeout", Duration(), _TIMEOUT),
        *_CAPTURE_FIELDS,
        Field("continue_on_error", Flag(), "a step of the handler that fails does not matter", False),
        Field("handler_failure_fatal", Flag(), "false: the same as continue_on_error: true", True),
        Field("commit_required", Flag(), "it fails if it leaves no commit behind", False),
        Field("strategy", NoEffect("max_attempts and fail_workflow say what follows"), ""),
    ),
    some_of=("steps", "shell", "claude", "agent", "prompt", "tool"),
)

_VALIDATE: Final = Form(
    "validate",
    "validate",
    "Checks what a step did.  The check prints JSON, or writes it into `result_file`: "
    "`{completion_percentage, status, implemented, missing, gaps}`.",
    (
        Field("shell", Shell(), "the check as shell text", old=("command",)),
        Field("claude", Text(), "the check as a prompt or slash command for the agent Claude"),
        Field("agent", AGENT, "the check as a prompt for an agent"),
        Field("prompt", MODEL, "the check as a call of a model"),
        Field("tool", Text(), "the check as a tool"),
        Field("params", Tree(), "for tool: its parameters"),
        Field("steps", Many(HANDLED), "the check as steps; the last output counts", also=("commands",)),
        Field("result_file", Text(), "the file with the result, instead of the output"),
        Field("threshold", Number(0, 100), "complete is what reaches so many percent", 100),
        Field("expected_schema", NoEffect("a result always has the form above; anything else fails"), ""),
        Field("timeout", Duration(), "how long one check may take"),
        Field("on_incomplete", ON_INCOMPLETE, "what completes the gaps; then the check is repeated"),
        Field(
            "max_attempts",
            Whole(0, 100),
            "how often on_incomplete runs at most; on_incomplete may say it, too",
        ),
        Field("fail_workflow", Flag(), "false: what stays incomplete does not fail the step", True),
        Field("commit_required", Flag(), "the check fails if it leaves no commit behind", False),
    ),
    some_of=("shell", "claude", "agent", "prompt", "tool", "steps"),
)

_INCOMPLETE: Final = Form(
    "incomplete",
    "on_incomplete",
    "What completes the gaps that a check has found; it knows `validation.*`.",
    (
        Field("steps", Many(HANDLED), "the steps, one after the other", also=("commands",)),
        *(
            field
            for field in _HANDLER.fields
            if field.name in ("shell", "claude", "agent", "prompt", "tool", "params", "model")
        ),
        Field(
            "max_attempts", Whole(0, 100), "how often it runs at most, each time followed by another check", 2
        ),
        Field("fail_workflow", Flag(), "false: what stays incomplete does not fail the step", True),
        Field("timeout", Duration(), _TIMEOUT),
        Field("commit_required", Flag(), "it fails if it leaves no commit behind", False),
    ),
    some_of=("steps", "shell", "claude", "agent", "prompt", "tool"),
)

_MAP: Final = Form(
    "map",
    "map",
    "The same steps for every item, several at a time.",
    (
        Field(
            "input",
            OneOf((Text(), Many(Tree()), Map("input")), "a file, a glob, a list, or a map: input"),
            "where the items come from",
            required=True,
        ),
        Field("json_path", Word(), "which parts of the input are items: JSONPath (RFC 9535)"),
        Field("filter", Word(), "only items for which this holds: `severity == 'high' && lines > 100`"),
        Field("sort_by", Word(), "their order: `score DESC, path`; nulls last"),
        Field(
            "distinct",
            OneOf((Word(), Flag()), "a field, or true"),
            "only the first of items that agree in this field; true: that are equal",
        ),
        Field("offset", Whole(0), "leave away so many at the beginning", 0),
        Field("max_items", Whole(0), "at most so many"),
        Field("max_parallel", PARALLEL, "so many items at a time", 10),
        Field(
            "steps",
            OneOf((Many(STEP), Map("commands")), "a list of steps"),
            "what is done for each item",
            required=True,
            also=("agent_template", "commands"),
        ),
        Field(
            "id",
            Text(),
            "what an item is known by, when a run is resumed: a template; its content if nothing is said",
        ),
        Field("timeout", Duration(), "how long one item may take", also=("agent_timeout_secs",)),
        Field("timeout_config", Map("timeout_config"), "limits of older files; write timeout"),
        Field("retry", TRIES, "how often a failed item is tried, all its steps again"),
        _ENV,
        Field("error_policy", Map("error_policy"), "what happens when items fail"),
        *_ERROR_FIELDS,
        Field("workspace", Refused("all items work in the project's own directory"), ""),
        Field("backend", Word(), "where items run; the flow's own setting if nothing is said"),
    ),
)

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_HTTP: Final = Form(
    "http",
    "http",
    "One HTTP request.",
    (
        Field(
            "url", Text(), "its address; scheme and host are written, not put in by a value", required=True
        ),
        Field("method", Choice(METHODS), "GET, or POST if there is a body, unless this says something else"),
        Field("headers", Each(Text()), "its headers; secrets may stand here"),
        Field("body", Tree(), "what is sent: text as it is, anything else as JSON"),
        Field(
            "expect",
            OneOf((Whole(100, 599), Many(Whole(100, 599))), "a status, or a list of them"),
            "the answers that count as success; 2xx if nothing is said",
            also=("expect_status",),
        ),
    ),
)

_FORMS: Final = (
    Form(
        "flow",
        "flow",
        "The file: one list of steps, or the phases setup, map, reduce and merge.  "
        "A file that is only a list of steps is a flow, too.",
        (
            Field("name", Word(), "what the flow is called; the file's name if nothing is said", told=True),
            Field("description", Word(), "what it is for", told=True),
            Field("version", OneOf((Word(), Number())), "which version this is", told=True),
            Field("mode", Choice(("standard", "mapreduce")), "says what the phases say anyway", told=True),
            Field("extends", FILE, "another file that this one completes and overrides"),
            Field(
                "imports",
                Many(OneOf((FILE, Map("import")), "a path, or a map: import")),
                "files whose blocks can be used",
            ),
            Field(
                "blocks",
                Each(OneOf((Many(STEP), Map("block")), "a list of steps"), IDENTIFIER),
                "lists of steps that a step can `use`",
            ),
            Field("parameters", PARAMETERS, "what is given at the start"),
            Field("vars", Each(Tree(), NAME), "names with values, for all templates"),
            Field("env", ENV, "variables for processes and templates"),
            Field(
                "env_files",
                OneOf((FILE, Many(FILE)), "a path, or a list of paths"),
                "files with variables (dotenv); one that ends in ? may be missing",
            ),
            Field(
                "secrets",
                Each(OneOf((NAME, Map("secret")), "the name of a variable, or a map: secret"), NAME),
                "variables that are masked everywhere",
            ),
            Field(
                "profiles", Each(ENV, IDENTIFIER), "variables that replace those of env, chosen by --profile"
            ),
            Field("strict", Flag(), "a name that nothing answers is an error", False),
            Field("steps", Many(STEP), "the steps of a flow without phases", also=("commands",)),
            Field(
                "setup",
                OneOf((Many(STEP), Map("setup")), "a list of steps, or a map with steps"),
                "runs once, at first; what it captures is known everywhere",
            ),
            Field("map", Map("map"), "runs once for every item"),
            Field("reduce", PHASE, "runs once, after all items; knows `map.*`"),
            Field("merge", PHASE, "runs once, at the end; knows `merge.*`"),
            Field("max_parallel", PARALLEL, "so many items at a time, if map does not say it"),
            Field("timeout", Duration(), "how long the whole run may take"),
            Field("error_policy", Map("error_policy"), "what happens when items fail"),
            *_ERROR_FIELDS,
            Field(
                "durability",
                Choice(("normal", "full")),
                "full: every event is on the disk before the next step begins",
                "normal",
            ),
            Field("backend", Word(), "where items run", "local"),
            Field("allow", Many(Choice(ALLOWED)), "outside_files: `file:` and inputs may leave the project"),
            Field("template", Refused("write extends, or imports and use"), ""),
            Field("workflows", Refused("one file is one flow; share steps by blocks"), ""),
            Field("defaults", Refused("give each parameter its default under parameters"), ""),
            Field("inputs", Refused("write parameters"), ""),
            Field("outputs", Refused("the value of a flow is that of its last step"), ""),
            Field("checkpoint", NoEffect("every finished step is recorded"), ""),
        ),
    ),
    Form(
        "phase",
        "phase",
        "A phase with more than its steps.",
        (_STEP_LIST, Field("timeout", Duration(), _TIMEOUT), _ENV),
    ),
    Form(
        "setup",
        "setup",
        "As a phase; its captures may stand in one place.",
        (
            _STEP_LIST,
            Field("timeout", Duration(), _TIMEOUT),
            _ENV,
            Field(
                "capture_outputs",
                Each(OneOf((Whole(0), Map("captured")), "the number of a step, or a map: capture"), NAME),
                "names for the outputs of its steps, which count from 0",
            ),
        ),
    ),
    Form(
        "captured",
        "capture",
        "A part of the output of one step of setup.",
        (
            Field("command_index", Whole(0), "the number of the step, from 0", required=True),
            Field("source", Choice(("stdout", "stderr", "both", "combined")), "which stream", "stdout"),
            Field("pattern", Word(), "a regular expression (RE2): its first group, or all that it matches"),
            Field("json_path", Word(), "a path into the output, which is JSON: `a.b[0]`"),
            Field("max_size", Whole(1), "more bytes than this fail the step", 1 << 20),
            Field("default", Data(), "the value when pattern or json_path find nothing"),
            Field(
                "multiline",
                Choice(("preserve", "join", "first_line", "last_line", "array")),
                "what becomes of several lines",
                "preserve",
            ),
        ),
    ),
    _MAP,
    Form("commands", "list of steps", "Steps one level further in, as older files have them.", (_STEP_LIST,)),
    Form(
        "input",
        "input",
        "Where items come from, said explicitly.  It has exactly one of the first four.",
        (
            Field("file", Text(), "a file below the project"),
            Field("glob", Text(), "a pattern for files: `src/**/*.py`"),
            Field("command", Shell(), "shell text that prints the items"),
            Field("items", Many(Tree()), "the items themselves"),
            Field(
                "format",
                Choice(FORMATS),
                "how the file or output is read; by its name and first character if nothing is said",
            ),
        ),
        one_of=("file", "glob", "command", "items"),
    ),
    Form(
        "timeout_config",
        "timeout_config",
        "Limits of older files.",
        (
            Field("agent_timeout_secs", Duration(), "how long one item may take"),
            Field("command_timeouts", Refused("give each step its timeout"), ""),
            Field("timeout_policy", NoEffect("an item and each of its steps keep their own limits"), ""),
            Field("cleanup_grace_period_secs", NoEffect("what runs gets five seconds to end"), ""),
            Field(
                "timeout_action", NoEffect("an item that takes too long has failed: see on_item_failure"), ""
            ),
            Field("enable_monitoring", NoEffect("a run always shows what runs"), ""),
        ),
    ),
    Form(
        "error_policy",
        "error policy",
        "What happens when items fail.",
        (
            *_ERROR_FIELDS,
            Field(
                "retry_config",
                Map("retry"),
                "for on_item_failure: retry: how often, all steps of the item again",
                also=("retry",),
            ),
        ),
    ),
    Form(
        "circuit_breaker",
        "circuit breaker",
        "Begins no new items for a while when one failure follows another.",
        (
            Field("failure_threshold", Whole(1), "so many failures in a row open it", 5),
            Field("timeout", Duration(), "how long it stays open", 30),
            Field("success_threshold", Whole(1), "so many successes in a row close it for good", 3),
            Field(
                "half_open_requests",
                NoEffect("after the pause items begin again; the first failure opens it again"),
                "",
            ),
        ),
    ),
    _STEP,
    Form(
        "metadata",
        "metadata",
        "Fields of a step, as older files have them.",
        (
            Field("retries", Whole(0, MOST_ATTEMPTS), "how often it is tried again"),
            Field("timeout", Duration(), _TIMEOUT),
            Field("continue_on_error", Flag(), "the flow goes on if it fails"),
            _ENV,
            Field("commit_required", Flag(), "it fails if it leaves no commit behind"),
            Field("analysis", NoEffect("there is no analysis to be refreshed"), ""),
        ),
    ),
    _RETRY,
    _BACKOFF,
    Form("no_numbers", "backoff", "Needs no number.", ()),
    Form(
        "linear",
        "backoff",
        "The number of `linear`.",
        (Field("increment", Duration(zero=True), "what is added each time", required=True),),
    ),
    Form(
        "exponential",
        "backoff",
        "The number of `exponential`.",
        (Field("base", Number(1, 100), "what is multiplied by", 2),),
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
                "file_pattern", Word("a glob"), "files that match this and are new or changed", required=True
            ),
        ),
    ),
    _HANDLER,
    Form(
        "test",
        "test",
        "The older form of `shell` with `on_failure`.",
        (
            Field("command", Shell(), "shell text", required=True),
            Field("on_failure", ON_FAILURE, "what to do if it fails"),
            Field("timeout", Duration(), _TIMEOUT),
        ),
    ),
    _VALIDATE,
    _INCOMPLETE,
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
        ),
    ),
    _HTTP,
    Form(
        "import",
        "import",
        "A file whose blocks can be used.",
        (
            Field("path", FILE, "the file, as seen from this one", required=True),
            Field("alias", IDENTIFIER, "its blocks are used as `alias.name`"),
            Field("selective", Many(IDENTIFIER), "only these blocks"),
        ),
    ),
    Form(
        "block",
        "block",
        "Steps with a name.",
        (
            Field("description", Word(), "what they are for", told=True),
            Field("with", Many(NAME), "names that a step which uses it has to give"),
            _STEP_LIST,
        ),
    ),
    Form(
        "parameter",
        "parameter",
        "What may be given under one name.",
        (
            _TYPE := Field("type", Choice(TYPES), "what it is; text that is given is converted", "any"),
            _DEFAULT := Field("default", Data(), "its value if none is given"),
            _REQUIRED := Field(
                "required", Flag(), "it has to be given; so it is without a default, unless this says false"
            ),
            _MEANING := Field("description", Word(), "what it is for", told=True),
            _CHOICES := Field("choices", Many(Data()), "one of these", also=("enum",)),
            _PATTERN := Field(
                "pattern",
                Word(),
                "text that this regular expression (RE2) matches whole",
                also=("validation",),
            ),
        ),
    ),
    Form(
        "named_parameter",
        "parameter",
        "The same in a list.",
        (
            Field("name", NAME, "its name", required=True),
            _TYPE,
            _DEFAULT,
            _REQUIRED,
            _MEANING,
            _CHOICES,
            _PATTERN,
        ),
    ),
    Form(
        "parameter_groups",
        "map of parameters",
        "The same in two lists.",
        (
            Field("required", Many(PARAMETER), "those that have to be given"),
            Field("optional", Many(PARAMETER), "those that need not"),
        ),
        marks=("required", "optional"),
    ),
    Form(
        "secret",
        "secret",
        "Where a secret comes from.",
        (
            Field("env", NAME, "a variable of the environment"),
            Field("file", FILE, "a file; newlines at its end do not count"),
            Field("provider", Choice(("env", "file")), "older files: whether key is a variable or a file"),
            Field("key", Word(), "older files: the variable or file"),
            Field("version", NoEffect("variables and files have no versions"), ""),
        ),
    ),
)

FORMS: Final[dict[str, Form]] = {form.name: form for form in _FORMS}
FLOW: Final = OneOf((Map("flow"), Many(STEP)), "a map: flow, or a list of steps")
"""A whole file."""


@cache
def spelt(form: str) -> dict[str, Field]:
    """The fields of a form under every spelling."""
    return {name: field for field in FORMS[form].fields for name in field.spellings}


def pick(kind: Kind, node: Node) -> Kind | None:
    """The kind that a node is held against: for a union, the part that fits; None if none does."""
    if not isinstance(kind, OneOf):
        return kind if _fits(kind, node) else None
    return next((found for one in kind.kinds if (found := pick(one, node))), None)


def _fits(kind: Kind, node: Node) -> bool:
    """Is the node of the kind, seen from outside?"""
    match kind:
        case Word() | Text() | Shell() | Choice():
            return isinstance(node, Scalar) and isinstance(node.value, str)
        case Slash():
            return isinstance(node, Scalar) and isinstance(node.value, str) and node.value.startswith("/")
        case OneHole():
            return isinstance(node, Scalar) and _is_one_hole(node.value)
        case Null():
            return isinstance(node, Scalar) and node.value is None
        case Flag():
            return isinstance(node, Scalar) and isinstance(node.value, bool)
        case Whole():
            return isinstance(node, Scalar) and (_is_whole(node.value) or has_holes(node))
        case Number():
            return isinstance(node, Scalar) and _is_number(node.value)
        case Duration():
            return isinstance(node, Scalar) and (_is_number(node.value) or isinstance(node.value, str))
        case Condition():
            return isinstance(node, Mapping) or (
                isinstance(node, Scalar) and isinstance(node.value, str | bool)
            )
        case Map(form):
            marks = FORMS[form].marks
            return isinstance(node, Mapping) and (
                not marks or any(isinstance(node.get(mark), Sequence) for mark in marks)
            )
        case Each():
            return isinstance(node, Mapping)
        case Many():
            return isinstance(node, Sequence)
        case OneOf(kinds):
            return any(_fits(one, node) for one in kinds)
        case Tree() | Data() | NoEffect() | Refused():
            return True


def _is_one_hole(value: Json) -> bool:
    if not isinstance(value, str) or not value.startswith("$"):
        return False
    parts = compile_template(value).leaf.program.parts
    return len(parts) == 1 and not isinstance(parts[0], nodes.Text)


def _is_whole(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def has_holes(node: Node) -> bool:
    """Is it text into which a value is put?"""
    if not (isinstance(node, Scalar) and isinstance(node.value, str)) or "$" not in node.value:
        return False
    return bool(compile_template(node.value).placeholders)


# ── what is wrong ────────────────────────────────────────────────────────


def problems(node: Node, kind: Kind = FLOW, *, called: str = "this file") -> list[Problem]:
    """Everything about a node that is not as its kind says; those of `WARNED` can be lived with."""
    return list(_problems(node, kind, called))


def _problems(node: Node, kind: Kind, called: str) -> Iterator[Problem]:
    picked = pick(kind, node)
    if picked is None:
        yield _wrong_type(node, kind, called)
        return
    match picked:
        case Map(form):
            assert isinstance(node, Mapping)
            yield from _of_map(node, FORMS[form])
        case Each(inner, keys):
            assert isinstance(node, Mapping)
            for key, value in node.entries:
                if keys.pattern and not re.fullmatch(keys.pattern, str(key.value)):
                    yield _wrong_key(key, keys, called)
                yield from _problems(value, inner, f"'{shown(str(key.value))}'")
        case Many(inner):
            assert isinstance(node, Sequence)
            for item in node.items:
                yield from _problems(item, inner, f"a part of {called}")
        case _:
            if isinstance(node, Scalar) and not _is_allowed(node, picked):
                yield _wrong_type(node, picked if isinstance(picked, Choice) else kind, called)


def _is_allowed(node: Scalar, kind: Kind) -> bool:
    """Is the value of a scalar one of those that its kind allows?"""
    match kind, node.value:
        case Word(_, pattern), str(text):
            return not pattern or re.fullmatch(pattern, text) is not None
        case Choice(words), word:
            return word in words
        case ((Whole(least, most) | Number(least, most)), (int() | float()) as number):
            return least <= number and (most is None or number <= most)
        case Duration(), _:
            return has_holes(node) or seconds(node.value, zero=kind.zero) is not None
    return True


def _of_map(node: Mapping, form: Form) -> Iterator[Problem]:
    table = spelt(form.name)
    yield from expect_keys(node, table, kind=form.title)
    seen: dict[str, str] = {}
    for key, value in node.entries:
        name = str(key.value)
        field = table.get(name)
        if field is None:
            continue
        if field.name in seen:
            yield Problem(
                f"'{name}' and '{seen[field.name]}' are two spellings of one field",
                key.span,
                "keep one of them",
                code="duplicate-field",
            )
        seen[field.name] = name
        yield from _of_field(key, value, field)
    yield from _missing(node, form, seen)


def _of_field(key: Scalar, value: Node, field: Field) -> Iterator[Problem]:
    name = str(key.value)
    match field.kind:
        case Refused(why):
            yield Problem(f"'{name}' does not exist here", key.span, why, code="refused-field")
        case NoEffect(why):
            yield Problem(f"'{name}' has no effect here: {why}", key.span, "leave it away", code="no-effect")
        case kind:
            if name in field.old:
                yield Problem(
                    f"'{name}' is an older name of '{field.name}'", key.span, f"write {field.name}",
                    code="deprecated-field",
                )  # fmt: skip
            yield from _problems(value, kind, f"'{name}'")


def _missing(node: Mapping, form: Form, seen: dict[str, str]) -> Iterator[Problem]:
    thing = _a(form.title)
    for field in form.fields:
        if field.required and field.name not in seen:
            yield Problem(
                f"{thing} needs '{field.name}': {field.what}", _head(node), f"add {field.name}: …",
                code="missing-field",
            )  # fmt: skip
    if form.one_of:
        found = [name for name in form.one_of if name in seen]
        if len(found) > 1:
            yield Problem(
                f"{thing} has exactly one of {listed(form.one_of, most=20)}; this one has {_and(found)}",
                node.key_span(seen[found[1]]),
                "split it, or remove all but one",
                code="several-commands",
            )
        elif not found and not any(name in seen for name in form.alone):
            yield _nothing_to_do(node, form, thing)
    if form.some_of and not any(name in seen for name in form.some_of):
        what = f"{thing} needs one of {listed(form.some_of, most=20)}"
        yield Problem(what, _head(node), "say what it does", code="missing-field")


def _nothing_to_do(node: Mapping, form: Form, thing: str) -> Problem:
    what = f"{thing} needs one of {listed(form.one_of, most=20)}"
    slip = next((close for key, _ in node.entries if (close := _misspelt(str(key.value), form))), None)
    name = node.get("name")
    fix = f"did you mean '{slip}'?" if slip else "say what it does: shell: …"
    if (
        not slip
        and form.name == "step"
        and isinstance(name, Scalar)
        and set(node.data()) <= {"name", "params", "args"}
    ):
        fix = "say what it does; a command of an agent is written claude: /name …"
    return Problem(what, _head(node), fix, code="missing-field")


def _misspelt(key: str, form: Form) -> str | None:
    return None if key in spelt(form.name) else nearest(key, form.one_of)


def _head(node: Mapping) -> Span:
    """Where a map begins: drawn is its first key, not all of it."""
    return node.entries[0][0].span if node.entries else node.span


def _wrong_type(node: Node, kind: Kind, called: str) -> Problem:
    what = f"{called} is {kind.wanted}, not {type_word(node)}"
    fix = None
    if isinstance(kind, Choice) and isinstance(node, Scalar):
        what = f"{called} is {kind.wanted}"
        close = nearest(str(node.value), kind.words)
        fix = f"did you mean '{close}'?" if close else None
    elif isinstance(node, Scalar) and _fits(kind, node):
        what = f"{called} is {kind.wanted}"
    elif kind is STEP or (
        isinstance(kind, OneOf) and kind.said.startswith("a step") and isinstance(node, Scalar)
    ):
        fix = "shell text is written shell: …; a command of an agent begins with '/'"
    return Problem(what, node.span if isinstance(node, Scalar) else _start(node), fix, code="wrong-type")


def _start(node: Node) -> Span:
    match node:
        case Mapping():
            return _head(node)
        case Sequence(items) if items:
            return _start(items[0])
    return node.span


def _wrong_key(key: Scalar, keys: Word, called: str) -> Problem:
    return Problem(
        f"'{shown(str(key.value))}' cannot be a key of {called}: a key is {keys.wanted}", key.span,
        code="wrong-type",
    )  # fmt: skip


def type_word(node: Node) -> str:
    match node:
        case Mapping():
            return "a map"
        case Sequence():
            return "a list"
        case Scalar(bool()):
            return "true or false"
        case Scalar(None):
            return "nothing"
        case Scalar(str()):
            return "text"
    return "a number"


def _a(title: str) -> str:
    return f"{'an' if title[:1] in 'aeiou' else 'a'} {title}"


def _and(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(?:[0-9]{1,12}(?:\.[0-9]{1,6})?(?:ms|s|m|h|d))+")
_PART: Final = re.compile(r"([0-9.]+)(ms|s|m|h|d)")
LONGEST: Final = 366 * 86400.0


def seconds(value: Json, *, zero: bool = False) -> float | None:
    """A duration in seconds; None if it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", text):
            value = float(text)
        elif _DURATION.fullmatch(text):
            value = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
        else:
            return None
    if not isinstance(value, int | float):
        return None
    return float(value) if (0 < value <= LONGEST or (zero and value == 0)) else None


# ── reading what has no problems ─────────────────────────────────────────


def template_of(node: Node) -> Template:
    """A node as a template: a string, or every string of a tree; errors point into the file."""
    return Template(_template_node(node), compile_template("").profile)


def _template_node(node: Node) -> TemplateNode:
    match node:
        case Scalar(str(text)):
            return compile_template(text, source=node.source()).leaf
        case Scalar(value):
            return Constant(value)
        case Sequence(items):
            return Branch(tuple(_template_node(item) for item in items))
        case Mapping(entries):
            keys = tuple(str(key.value) for key, _ in entries)
            return Branch(tuple(_template_node(value) for _, value in entries), keys)


@dataclass(frozen=True, slots=True)
class Said:
    """A map without problems, read by its table; `scope` answers the holes of numbers and durations."""

    form: str
    node: Mapping
    scope: Scope

    def has(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> Node | None:
        field = self._field(name)
        return next(
            (found for spelling in field.spellings if (found := self.node.get(spelling)) is not None), None
        )

    def span(self, name: str) -> Span:
        spelling = next((s for s in self._field(name).spellings if self.node.get(s) is not None), name)
        return self.node.key_span(spelling)

    def text(self, name: str) -> str | None:
        value = self._value(name)
        return value if isinstance(value, str) else None

    def flag(self, name: str) -> bool:
        return self._value(name) is True

    def maybe(self, name: str) -> bool | None:
        """A flag that may be left open."""
        value = self._value(name)
        return value if isinstance(value, bool) else None

    def number(self, name: str) -> float | None:
        value = self._value(name)
        return value if _is_number(value) else None

    def whole(self, name: str) -> int | None:
        node = self.get(name)
        if node is not None and has_holes(node):
            return self._filled_whole(name, node)
        value = self._value(name)
        return value if _is_whole(value) else None

    def seconds(self, name: str) -> float | None:
        node = self.get(name)
        kind = self._field(name).kind
        zero = isinstance(kind, Duration) and kind.zero
        if node is not None and has_holes(node):
            found = seconds(template_of(node).render(self.scope), zero=zero)
            if found is None:
                raise _not_filled(node, name, kind)
            return found
        return seconds(self._value(name), zero=zero)

    def words(self, name: str) -> tuple[str, ...]:
        """One word, or a list of them."""
        node = self.get(name)
        nodes = node.items if isinstance(node, Sequence) else (node,)
        return tuple(one.value for one in nodes if isinstance(one, Scalar) and isinstance(one.value, str))

    def template(self, name: str) -> Template | None:
        node = self.get(name)
        return None if node is None else template_of(node)

    def inner(self, name: str) -> Said | None:
        """The map under a name, if a map stands there."""
        node = self.get(name)
        picked = None if node is None else pick(self._field(name).kind, node)
        if not isinstance(picked, Map):
            return None
        assert isinstance(node, Mapping)
        return Said(picked.form, node, self.scope)

    def entries(self, name: str) -> list[tuple[str, Node]]:
        """What stands under a name whose keys are the author's."""
        node = self.get(name)
        return [(str(key.value), value) for key, value in node.entries] if isinstance(node, Mapping) else []

    def items(self, name: str) -> tuple[Node, ...]:
        node = self.get(name)
        return node.items if isinstance(node, Sequence) else ()

    def _value(self, name: str) -> Json:
        node = self.get(name)
        return self._field(name).default if node is None else node.data()

    def _filled_whole(self, name: str, node: Node) -> int:
        from plait.values import text

        kind = self._field(name).kind
        filled = text(template_of(node).render(self.scope)).strip()
        number = int(filled) if re.fullmatch("[0-9]{1,12}", filled) else None
        if number is None or (isinstance(kind, Whole) and not _is_in(number, kind)):
            raise _not_filled(node, name, kind)
        return number

    def _field(self, name: str) -> Field:
        field = spelt(self.form).get(name)
        if field is None:
            raise InternalError(f"a {self.form} has no field '{name}'")
        return field


def _is_in(number: int, kind: Whole) -> bool:
    return kind.least <= number and (kind.most is None or number <= kind.most)


def _not_filled(node: Node, name: str, kind: Kind) -> InputError:
    return InputError(
        f"what is put into '{name}' makes it no longer {kind.wanted}",
        node.span,
        "here env, vars and parameters are known; look at what they hold",
        code="wrong-type",
    )


# ── fingerprints ─────────────────────────────────────────────────────────


def essence(node: Node, kind: Kind) -> Json:
    """What an author said, whatever the spelling: without what only tells people something."""
    picked = pick(kind, node)
    match picked, node:
        case Map(form), Mapping(entries):
            table = spelt(form)
            found = [(table.get(str(key.value)), str(key.value), value) for key, value in entries]
            return {
                field.name if field else name: essence(value, field.kind if field else Data())
                for field, name, value in found
                if field is None or not field.told
            }
        case Each(inner), Mapping(entries):
            return {str(key.value): essence(value, inner) for key, value in entries}
        case Many(inner), Sequence(items):
            return [essence(item, inner) for item in items]
    return node.data()


# ── the same tables for editors ──────────────────────────────────────────

SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Json]:
    """The format as JSON Schema."""
    return {
        "$schema": SCHEMA_DIALECT,
        "title": "Plait workflow",
        **_schema(FLOW),
        "$defs": {form.name: _form_schema(form) for form in _FORMS},
    }


def _form_schema(form: Form) -> dict[str, Json]:
    properties: dict[str, Json] = {}
    for field in form.fields:
        for name in field.spellings:
            properties[name] = _field_schema(field, old=name in field.old)
    schema: dict[str, Json] = {
        "description": form.what,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    rules: list[Json] = [_any_spelling(field) for field in form.fields if field.required]
    rules += [_at_most_one(list(field.spellings)) for field in form.fields if len(field.spellings) > 1]
    table = {field.name: field for field in form.fields}
    one_of = [name for key in form.one_of for name in table[key].spellings]
    if one_of:
        rules.append(_at_most_one(one_of))
        rules.append({"anyOf": [{"required": [name]} for name in (*one_of, *form.alone)]})
    if form.some_of:
        names = [name for key in form.some_of for name in table[key].spellings]
        rules.append({"anyOf": [{"required": [name]} for name in names]})
    if rules:
        schema["allOf"] = rules
    return schema


def _any_spelling(field: Field) -> Json:
    return {"anyOf": [{"required": [name]} for name in field.spellings]}


def _at_most_one(names: list[str]) -> Json:
    """No two of them."""
    pairs = [[one, other] for at, one in enumerate(names) for other in names[at + 1 :]]
    return {"not": {"anyOf": [{"required": pair} for pair in pairs]}}


def _field_schema(field: Field, *, old: bool) -> Json:
    if isinstance(field.kind, Refused):
        return {"not": {}, "description": field.kind.why}
    if isinstance(field.kind, NoEffect):
        return {"deprecated": True, "description": f"no effect: {field.kind.why}"}
    schema = {**_schema(field.kind), "description": field.what}
    if field.default is not None:
        schema["default"] = field.default
    if old:
        schema["deprecated"] = True
    return schema


_HOLE: Final = {"type": "string", "pattern": "[$]"}


def _schema(kind: Kind) -> dict[str, Json]:
    match kind:
        case Word(_, pattern):
            return {"type": "string", "pattern": f"^(?:{pattern})$"} if pattern else {"type": "string"}
        case Text() | Shell() | OneHole():
            return {"type": "string"}
        case Slash():
            return {"type": "string", "pattern": "^/"}
        case Null():
            return {"type": "null"}
        case Flag():
            return {"type": "boolean"}
        case Condition():
            return {"type": ["string", "boolean", "object"]}
        case Whole(least, most):
            return {"anyOf": [_bounded("integer", least, most), _HOLE]}
        case Number(least, most):
            return _bounded("number", least, most)
        case Duration():
            bound: dict[str, Json] = {"minimum": 0} if kind.zero else {"exclusiveMinimum": 0}
            text = r"^\s*([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+\s*$|^\s*[0-9]+(\.[0-9]+)?\s*$|[$]"
            return {
                "anyOf": [
                    {"type": "number", **bound, "maximum": LONGEST},
                    {"type": "string", "pattern": text},
                ]
            }
        case Choice(words):
            return {"enum": list(words)}
        case Map(form):
            return {"$ref": f"#/$defs/{form}"}
        case Each(inner, keys):
            each: dict[str, Json] = {"type": "object", "additionalProperties": _schema(inner)}
            return {**each, "propertyNames": {"pattern": f"^(?:{keys.pattern})$"}} if keys.pattern else each
        case Many(inner):
            return {"type": "array", "items": _schema(inner)}
        case OneOf(kinds):
            return {"anyOf": [_schema(one) for one in kinds]}
        case Tree() | Data() | NoEffect() | Refused():
            return {}


def _bounded(name: str, least: float, most: float | None) -> dict[str, Json]:
    bounds: dict[str, Json] = {"type": name, "minimum": least}
    return bounds if most is None else {**bounds, "maximum": most}


# ── the same tables for people ───────────────────────────────────────────


def reference() -> str:
    """The tables of the reference page."""
    return "\n\n".join(_reference(form) for form in _FORMS if form.fields)


def _reference(form: Form) -> str:
    rows = [_row(field) for field in form.fields if not isinstance(field.kind, Refused | NoEffect)]
    unlike = [field for field in form.fields if isinstance(field.kind, Refused | NoEffect)]
    lines = [f"### {form.name}", "", form.what, "", "| field | holds | meaning |", "|---|---|---|", *rows]
    for field in unlike:
        assert isinstance(field.kind, Refused | NoEffect)
        word = "refused" if isinstance(field.kind, Refused) else "no effect"
        lines.append(f"| `{field.name}` | {word} | {field.kind.why} |")
    return "\n".join(lines)


def _row(field: Field) -> str:
    names = [
        f"`{field.name}`",
        *(f"`{name}`" for name in field.also),
        *(f"`{name}` (older)" for name in field.old),
    ]
    meaning = field.what
    if field.required:
        meaning += " (required)"
    elif field.default is not None:
        meaning += f" (`{_shown(field.default)}`)"
    return f"| {' '.join(names)} | {_cell(field.kind.wanted)} | {_cell(meaning)} |"


def _shown(default: Json) -> str:
    from plait.values import json_text

    return default if isinstance(default, str) else json_text(default)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
