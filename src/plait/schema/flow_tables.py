"""The tables of a workflow file: the flow, its phases, its parameters, other files."""

from __future__ import annotations

from plait.core.hints import Final
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
    Number,
    OneOf,
    PlainText,
    Record,
    RecordType,
    Refused,
    TemplateTree,
)
from plait.schema.hook_tables import HOOKS_FIELD, LIMITS_FIELD
from plait.schema.shared import (
    ALLOWED,
    AT_ODDS,
    BACKEND,
    ENV,
    ENV_FIELD,
    ERROR_FIELDS,
    FILE,
    IDENTIFIER,
    NAME,
    PARALLEL,
    PARAMETER,
    PARAMETERS,
    PHASE,
    STEP,
    STEP_LIST,
    TIMEOUT_MEANING,
    TYPES,
)

_PARAMETER_FIELDS: Final = (
    Field("type", Choice(TYPES), "its type; text is converted to it", "any"),
    Field("default", Data(), "its value if none is given"),
    Field(
        "required",
        Boolean(),
        "it must be given; true by default if there is no default",
    ),
    Field("description", PlainText(), "what it is for", is_documentation=True),
    Field("choices", ListOf(Data()), "one of these", aliases=("enum",)),
    Field(
        "pattern",
        PlainText(),
        "a regular expression (RE2) that must match the whole text",
        aliases=("validation",),
    ),
)

FORMS: Final = (
    RecordType(
        "flow",
        "flow",
        "The file: one list of steps, or the phases setup, map, reduce and merge.  "
        "A file that is only a list of steps is a flow, too.",
        (
            Field(
                "name",
                PlainText(),
                "the name of the flow; the file name by default",
                is_documentation=True,
            ),
            Field("description", PlainText(), "what it is for", is_documentation=True),
            Field(
                "version",
                OneOf((PlainText(), Number())),
                "its version",
                is_documentation=True,
            ),
            Field(
                "mode",
                Choice(("standard", "mapreduce")),
                "for people: the phases decide",
                is_documentation=True,
            ),
            Field("extends", FILE, "another file that this one extends and overrides"),
            Field(
                "imports",
                ListOf(OneOf((FILE, Record("import")), "a path, or a map: import")),
                "files whose blocks can be used",
            ),
            Field(
                "blocks",
                MapOf(OneOf((ListOf(STEP), Record("block")), "a list of steps"), IDENTIFIER),
                "lists of steps that a step can `use`",
            ),
            Field("parameters", PARAMETERS, "the parameters of a run"),
            Field("vars", MapOf(TemplateTree(), NAME), "variables for all templates"),
            Field("env", ENV, "environment variables for processes and templates"),
            Field(
                "env_files",
                OneOf((FILE, ListOf(FILE)), "a path, or a list of paths"),
                "files with variables (dotenv); one that ends in ? may be missing",
            ),
            Field(
                "secrets",
                MapOf(
                    OneOf((NAME, Record("secret")), "the name of a variable, or a map: secret"),
                    NAME,
                ),
                "variables that are masked everywhere",
            ),
            Field(
                "profiles",
                MapOf(ENV, IDENTIFIER),
                "variables that replace those of env, chosen by --profile",
            ),
            Field("strict", Boolean(), "an unknown variable is an error", False),
            Field(
                "steps", ListOf(STEP), "the steps of a flow without phases", aliases=("commands",)
            ),
            Field(
                "setup",
                OneOf((ListOf(STEP), Record("setup")), "a list of steps, or a map with steps"),
                "runs once, first; its captures are known everywhere",
            ),
            Field("map", Record("map"), "runs once for every item"),
            Field("reduce", PHASE, "runs once, after all items; knows `map.*`"),
            Field("merge", PHASE, "runs once, at the end; knows `merge.*`"),
            Field("max_parallel", PARALLEL, "how many items run at a time, unless map sets it"),
            Field("timeout", Duration(), "how long the whole run may take"),
            Field("error_policy", Record("error_policy"), "what happens when items fail"),
            *ERROR_FIELDS,
            Field(
                "durability",
                Choice(("normal", "full")),
                "full: every event is on the disk before the next step starts",
                "normal",
            ),
            Field("backend", BACKEND, "where items run", "local"),
            Field(
                "allow",
                ListOf(Choice(ALLOWED)),
                "outside_files: `file:` and inputs may be outside the project",
            ),
            HOOKS_FIELD,
            LIMITS_FIELD,
            Field("template", Refused("write extends, or imports and use"), ""),
            Field("workflows", Refused("one file is one flow; share steps by blocks"), ""),
            Field("defaults", Refused("give each parameter its default under parameters"), ""),
            Field("inputs", Refused("write parameters"), ""),
            Field("outputs", Refused("the value of a flow is that of its last step"), ""),
            Field("checkpoint", NoEffect("every finished step is recorded"), ""),
        ),
        apart=(("steps", "setup"), ("steps", "map"), ("steps", "reduce")),
        at_odds=AT_ODDS,
        elsewhere=(
            *((word, "parameters") for word in ("args", "params")),
            ("environment", "env"),
            ("variables", "vars"),
            ("tasks", "steps"),
            ("title", "name"),
        ),
    ),
    RecordType(
        "phase",
        "phase",
        "A phase with more than its steps.",
        (STEP_LIST, Field("timeout", Duration(), TIMEOUT_MEANING), ENV_FIELD),
    ),
    RecordType(
        "setup",
        "setup",
        "A phase whose captures may be listed in one place.",
        (
            STEP_LIST,
            Field("timeout", Duration(), TIMEOUT_MEANING),
            ENV_FIELD,
            Field(
                "capture_outputs",
                MapOf(
                    OneOf(
                        (Integer(0), Record("captured")), "the number of a step, or a map: capture"
                    ),
                    NAME,
                ),
                "names for the outputs of its steps, numbered from 0",
            ),
        ),
    ),
    RecordType(
        "captured",
        "capture",
        "A part of the output of one step of setup.",
        (
            Field("command_index", Integer(0), "the number of the step, from 0", required=True),
            Field(
                "source", Choice(("stdout", "stderr", "both", "combined")), "which stream", "stdout"
            ),
            Field(
                "pattern",
                PlainText(),
                "a regular expression (RE2): its first group, or the whole match",
            ),
            Field("json_path", PlainText(), "a path into the output, which is JSON: `a.b[0]`"),
            Field("max_size", Integer(1), "more bytes than this fail the step", 1 << 20),
            Field("default", Data(), "the value if pattern or json_path finds nothing"),
            Field(
                "multiline",
                Choice(("preserve", "join", "first_line", "last_line", "array")),
                "how several lines are captured",
                "preserve",
            ),
        ),
    ),
    RecordType(
        "import",
        "import",
        "A file whose blocks can be used.",
        (
            Field("path", FILE, "the file, as seen from this one", required=True),
            Field("alias", IDENTIFIER, "its blocks are used as `alias.name`"),
            Field("selective", ListOf(IDENTIFIER), "only these blocks"),
        ),
    ),
    RecordType(
        "block",
        "block",
        "Steps with a name.",
        (
            Field("description", PlainText(), "what they are for", is_documentation=True),
            Field("with", ListOf(NAME), "variables that a step must give to use it"),
            STEP_LIST,
        ),
    ),
    RecordType(
        "parameter",
        "parameter",
        "One parameter.",
        _PARAMETER_FIELDS,
    ),
    RecordType(
        "named_parameter",
        "parameter",
        "The same in a list.",
        (
            Field("name", NAME, "its name", required=True),
            *_PARAMETER_FIELDS,
        ),
    ),
    RecordType(
        "parameter_groups",
        "map of parameters",
        "The same in two lists.",
        (
            Field("required", ListOf(PARAMETER), "parameters that must be given"),
            Field("optional", ListOf(PARAMETER), "parameters that may be given"),
        ),
        marks=("required", "optional"),
    ),
    RecordType(
        "secret",
        "secret",
        "Where a secret comes from.",
        (
            Field("env", NAME, "a variable of the environment"),
            Field("file", FILE, "a file; newlines at its end are ignored"),
            Field(
                "provider",
                Choice(("env", "file")),
                "older files: whether key is a variable or a file",
            ),
            Field("key", PlainText(), "older files: the variable or file"),
            Field(
                "command",
                Refused(
                    "secrets are known before anything runs, also to a dry run; "
                    "let a shell give it: NAME=$(command) plait run …"
                ),
                "",
            ),
            Field("version", NoEffect("variables and files have no versions"), ""),
        ),
    ),
)
