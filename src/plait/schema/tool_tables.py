"""The tables of a tool's header.

The names, their order, defaults and choices are those of the records that `plait.tools.tool_file` parses a
header into.  Here is only what a person wants to know about them.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.hints import Any, Final
from plait.core.records import field_names
from plait.core.values import Json
from plait.schema.field_types import (
    Boolean,
    Choice,
    Data,
    Field,
    Integer,
    Kind,
    ListOf,
    MapOf,
    NoEffect,
    Number,
    OneOf,
    PlainText,
    Record,
    RecordType,
    TemplateText,
)
from plait.tools.tool_file import (
    ANCHOR_MODES,
    ANCHOR_ROOTS,
    CONFIG_MODES,
    DEPENDENCY_SCOPES,
    INFORMATIONAL,
    INTERPRETER_TYPES,
    Anchor,
    ConfigResolve,
    Constraint,
    EnvConfig,
    Header,
    Interpreter,
    VerifyDeps,
)

TEXT: Final = PlainText()
TEXTS: Final = ListOf(TEXT)
VERSION: Final = OneOf((PlainText("a version, as text"), Integer()), 'a version, such as "1.4.2"')
NAMES: Final = OneOf(
    (ListOf(OneOf((TEXT, MapOf(Data())))), MapOf(Data())), "a list of names, or a map by name"
)
VARIABLES: Final = MapOf(OneOf((TemplateText(), Integer(), Number(), Boolean()), "text"))


def _fields(
    record: Any, meanings: Mapping[str, tuple[Kind, str]], *required: str
) -> tuple[Field, ...]:
    """The fields of a record in its order, with its defaults."""
    known = field_names(record)
    if set(known) != set(meanings):
        raise KeyError(f"fields of {record}: {sorted(set(known) ^ set(meanings))}")
    plain = record(**dict.fromkeys(required, ""))
    return tuple(
        Field(name, *meanings[name], _default(getattr(plain, name)), name in required)
        for name in known
    )


def _default(value: Any) -> Json:
    """A default that is worth showing: not an empty text, list or map."""
    shown: Json = list(value) if isinstance(value, tuple) else value
    return shown if shown or shown is False else None


FORMS: Final = (
    RecordType(
        "tool",
        "tool",
        "The header of a tool.  A YAML file is its header; a script has it at the top. "
        "A tool that is a graph or an ensemble has the fields of those files instead.",
        (
            *_fields(
                Header,
                {
                    "executor_id": (
                        TEXT,
                        "the runtime or primitive that runs it; only a primitive needs none",
                    ),
                    "version": (VERSION, "its version"),
                    "tool_type": (
                        TEXT,
                        "what it is; runtime, primitive, graph and ensemble have a meaning",
                    ),
                    "category": (TEXT, "for people"),
                    "description": (
                        TEXT,
                        "what it does; models read it when the tool is offered to them",
                    ),
                    "env_config": (
                        Record("tool_env_config"),
                        "its interpreter and its environment",
                    ),
                    "config": (
                        MapOf(Data()),
                        "what its executor needs: command, args, url, timeout and the like",
                    ),
                    "config_schema": (MapOf(Data()), "the JSON Schema of its parameters"),
                    "config_resolve": (
                        OneOf(
                            (
                                TEXT,
                                Record("tool_config_resolve"),
                                ListOf(OneOf((TEXT, Record("tool_config_resolve")))),
                            ),
                            "a path, a map: config_resolve, or a list of them",
                        ),
                        "files below config/ that are merged into its config",
                    ),
                    "anchor": (
                        Record("tool_anchor"),
                        "the folder that it belongs to, and paths in it",
                    ),
                    "verify_deps": (
                        Record("tool_verify_deps"),
                        "the files that are verified with it",
                    ),
                    "inputs": (
                        NAMES,
                        "what this runtime needs from a tool; not those with required: false or a default",
                    ),
                    "outputs": (NAMES, "what this tool gives to its runtime"),
                    "child_constraints": (
                        MapOf(OneOf((Record("tool_constraint"), VERSION))),
                        "the versions of tools that this runtime runs: for all, or by a pattern of ids",
                    ),
                    "secrets": (NAMES, "variables and parameters whose values are masked"),
                    "once": (Boolean(), "if a run died during a call, ask before calling it again"),
                    "read_only": (Boolean(), "it changes nothing; MCP clients are told so"),
                },
            ),
            *(
                Field(name, NoEffect("they are for people and other programs"), "")
                for name in sorted(INFORMATIONAL)
            ),
        ),
        some_of=("executor_id", "tool_type"),
    ),
    RecordType(
        "tool_env_config",
        "env_config",
        "The interpreter of a tool, and what its process sees of the environment.",
        _fields(
            EnvConfig,
            {
                "interpreter": (
                    Record("tool_interpreter"),
                    "how to find the program that runs the tool",
                ),
                "env": (
                    VARIABLES,
                    "variables that it gets; `${NAME}` is a variable of yours or of .env",
                ),
                "passes": (TEXTS, "variables of yours that it sees, secrets among them"),
            },
        ),
    ),
    RecordType(
        "tool_interpreter",
        "interpreter",
        "How to find a program.  A variable of your environment with the name `var` wins over the search.",
        _fields(
            Interpreter,
            {
                "type": (
                    Choice(INTERPRETER_TYPES),
                    "where to look: below the project, on the PATH, in a version manager, by a command, "
                    "in .venv, in node_modules",
                ),
                "var": (TEXT, "the name by which config uses it: `${RUBY}`"),
                "binary": (TEXT, "the name of the program"),
                "candidates": (TEXTS, "further names, tried in order"),
                "search_paths": (
                    TEXTS,
                    "folders for local_binary and venv_python, below each root",
                ),
                "search_roots": (TEXTS, "folders that are searched before the project"),
                "resolve_cmd": (TEXTS, "for command: it prints the path of the program"),
                "manager": (
                    TEXT,
                    "for version_manager: pyenv, nvm, rbenv, asdf or mise; all by default",
                ),
                "version": (
                    TEXT,
                    "for version_manager; by default, the version file of the project says it",
                ),
                "fallback": (TEXT, "a program on the PATH, if nothing else is found"),
            },
            "type",
            "var",
        ),
    ),
    RecordType(
        "tool_config_resolve",
        "config_resolve",
        "A file of settings in the spaces.",
        _fields(
            ConfigResolve,
            {
                "path": (TEXT, "the file, below config/ of a space"),
                "mode": (
                    Choice(CONFIG_MODES),
                    "deep_merge: the files of all spaces, the project wins; first_match: only the first file",
                ),
            },
            "path",
        ),
    ),
    RecordType(
        "tool_anchor",
        "anchor",
        "The folder that a tool belongs to, such as a package with a marker file.",
        _fields(
            Anchor,
            {
                "enabled": (Boolean(), "false: there is no anchor"),
                "mode": (Choice(ANCHOR_MODES), "auto: if a marker is found"),
                "markers_any": (TEXTS, "files of which one marks the folder"),
                "search_up": (
                    Boolean(),
                    "look for markers in the folders above as well, up to the space",
                ),
                "root": (
                    Choice(ANCHOR_ROOTS),
                    "the anchor: the marked folder or the tool's own, the folder above, or the project",
                ),
                "lib": (
                    TEXT,
                    "the library of the runtime, below the folder of its file: `{runtime_lib}`",
                ),
                "cwd": (TEXT, "the working directory; `{anchor_path}` is the anchor"),
                "env_paths": (
                    MapOf(Record("tool_env_path")),
                    "path variables, such as PYTHONPATH, that get further folders",
                ),
            },
        ),
    ),
    RecordType(
        "tool_env_path",
        "env_path",
        "Folders that are added to a path variable.",
        (
            Field("prepend", TEXTS, "before what is there"),
            Field("append", TEXTS, "after what is there"),
        ),
    ),
    RecordType(
        "tool_verify_deps",
        "verify_deps",
        "The files that a tool can load, which are verified before it starts.",
        _fields(
            VerifyDeps,
            {
                "enabled": (Boolean(), "false: only the tool itself is verified"),
                "scope": (
                    Choice(DEPENDENCY_SCOPES),
                    "where they are: below the anchor; in the folder of the tool, for tool_dir and "
                    "tool_siblings; nowhere, for tool_file: the tool runs alone",
                ),
                "recursive": (Boolean(), "the folders below as well"),
                "extensions": (TEXTS, "which files"),
                "exclude_dirs": (TEXTS, "folders that are left out"),
            },
        ),
    ),
    RecordType(
        "tool_constraint",
        "constraint",
        "A range of versions, both ends included.",
        _fields(
            Constraint,
            {
                "min_version": (VERSION, "the oldest version that is accepted"),
                "max_version": (VERSION, "the newest version that is accepted"),
            },
        ),
    ),
)
