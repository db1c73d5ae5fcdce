"""The tables of a map: its input, the steps of each item, failures of items."""

from __future__ import annotations

from plait.core.hints import Final
from plait.core.records import replace
from plait.schema.field_types import (
    Boolean,
    Choice,
    Duration,
    Field,
    Integer,
    ListOf,
    NoEffect,
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
    AT_ODDS,
    BACKEND,
    ENV_FIELD,
    ERROR_FIELDS,
    FILE,
    ON_EMPTY_FIELD,
    PARALLEL,
    RETRY,
    STEP,
    STEP_LIST,
)

FORMATS: Final = ("json", "jsonl", "csv", "text")
"""Formats of a file or of the output of a command that holds items."""
ISOLATIONS: Final = ("none", "directory", "worktree")
REVISION: Final = PlainText(
    "a commit: a branch, a tag, or an id", r"[A-Za-z0-9_@][A-Za-z0-9_@./^~{}-]*"
)

FORMS: Final = (
    RecordType(
        "map",
        "map",
        "The same steps for every item, several at a time.",
        (
            Field(
                "input",
                OneOf(
                    (TemplateText(), ListOf(TemplateTree()), Record("input")),
                    "a file, a glob, a list, or a map: input",
                ),
                "where the items come from",
                required=True,
            ),
            Field(
                "json_path", PlainText(), "which parts of the input are items: JSONPath (RFC 9535)"
            ),
            Field(
                "filter",
                PlainText(),
                "only items for which this holds: `severity == 'high' && lines > 100`",
            ),
            Field("sort_by", PlainText(), "their order: `score DESC, path`; nulls last"),
            Field(
                "distinct",
                OneOf((PlainText(), Boolean()), "a field, or true"),
                "only the first of several items that have the same value here; true: that are equal",
            ),
            Field("offset", Integer(0), "skip so many items at the beginning", 0),
            Field("max_items", Integer(0), "the maximum of items"),
            ON_EMPTY_FIELD,
            Field("max_parallel", PARALLEL, "how many items run at a time", 10),
            Field(
                "steps",
                OneOf((ListOf(STEP, least=1), Record("commands")), "a list of steps"),
                "the steps for each item",
                required=True,
                aliases=("agent_template", "commands"),
            ),
            Field(
                "id",
                TemplateText(),
                "the key of an item, by which a resumed run finds it: a template; its content by default",
            ),
            Field(
                "timeout", Duration(), "how long one item may take", aliases=("agent_timeout_secs",)
            ),
            Field(
                "timeout_config", Record("timeout_config"), "limits of older files; write timeout"
            ),
            Field("retry", RETRY, "the attempts of a failed item; each runs all its steps again"),
            ENV_FIELD,
            Field("error_policy", Record("error_policy"), "what happens when items fail"),
            *ERROR_FIELDS,
            Field(
                "isolation",
                OneOf(
                    (Choice(ISOLATIONS), Record("isolation")),
                    "none, directory, worktree, or a map: isolation",
                ),
                "where each item works: in its own git worktree or folder, or in the project itself",
                "none",
            ),
            Field("workspace", Refused("write isolation: worktree, or isolation: directory"), ""),
            Field(
                "backend",
                BACKEND,
                "where items run; the flow's setting by default",
            ),
            Field(
                "shared",
                Boolean(),
                "on a cluster: the project is at the same place on every host",
                False,
            ),
            Field(
                "ship",
                ListOf(FILE),
                "on a cluster: files of the project that items need, where it is not shared; "
                "patterns such as `data/*.csv`",
            ),
            Field(
                "stall_timeout",
                Duration(),
                "on a cluster: how long its scheduler or a worker may be silent",
                60,
            ),
            Field(
                "wait_for_workers",
                Duration(),
                "on a cluster: how long to wait for a worker before the run stops; it can be resumed",
                600,
            ),
        ),
        at_odds=AT_ODDS,
        elsewhere=tuple(
            (word, "input")
            for word in ("items", "over", "in", "for", "each", "files", "glob", "list")
        ),
    ),
    RecordType(
        "isolation",
        "isolation",
        "Where each item works.",
        (
            Field("kind", Choice(ISOLATIONS), "which kind of isolation", required=True),
            Field("base", REVISION, "worktree: the commit from which items start", "HEAD"),
            Field(
                "uncommitted",
                Choice(("commit", "keep", "fail")),
                "worktree: what happens to changes that an item has not committed: they are "
                "committed, they stay in its folder, or the item fails",
                "commit",
            ),
            Field(
                "merge",
                Choice(("in_order", "none")),
                "worktree: the commits of items are merged into the branch that is checked out, "
                "in the order of the items; or stay on their branches",
                "in_order",
            ),
            Field(
                "inputs",
                ListOf(TemplateText()),
                "directory: the files that are copied for each item, as paths or globs below the "
                "project",
            ),
        ),
    ),
    RecordType(
        "commands",
        "list of steps",
        "Steps one level deeper, as older files have them.",
        (replace(STEP_LIST, kind=ListOf(STEP, least=1)),),
    ),
    RecordType(
        "input",
        "input",
        "The explicit form of an input, with exactly one of the first four fields.",
        (
            Field("file", TemplateText(), "a file below the project"),
            Field("glob", TemplateText(), "a pattern for files: `src/**/*.py`"),
            Field("command", ShellText(), "shell text that prints the items"),
            Field("items", ListOf(TemplateTree()), "the items themselves"),
            Field(
                "format",
                Choice(FORMATS),
                "how the file or output is read; by default its name and first character decide",
            ),
        ),
        one_of=("file", "glob", "command", "items"),
    ),
    RecordType(
        "timeout_config",
        "timeout_config",
        "Limits of older files.",
        (
            Field("agent_timeout_secs", Duration(), "how long one item may take"),
            Field("command_timeouts", Refused("give each step its timeout"), ""),
            Field(
                "timeout_policy",
                NoEffect("an item and each of its steps keep their own limits"),
                "",
            ),
            Field(
                "cleanup_grace_period_secs",
                NoEffect("PLAIT_GRACE says how long what runs gets to end"),
                "",
            ),
            Field(
                "timeout_action",
                NoEffect("an item that takes too long has failed: see on_item_failure"),
                "",
            ),
            Field("enable_monitoring", NoEffect("a run always shows what runs"), ""),
        ),
    ),
    RecordType(
        "error_policy",
        "error policy",
        "What happens when items fail.",
        (
            *ERROR_FIELDS,
            Field(
                "retry_config",
                Record("retry"),
                "the attempts of a failed item; each runs all its steps again; "
                "three if there is only on_item_failure: retry",
                aliases=("retry",),
            ),
        ),
        at_odds=AT_ODDS,
    ),
    RecordType(
        "circuit_breaker",
        "circuit breaker",
        "Starts no new items for a while after several failures in a row.",
        (
            Field("failure_threshold", Integer(1), "how many failures in a row open it", 5),
            Field("timeout", Duration(), "how long it stays open", 30),
            Field(
                "success_threshold", Integer(1), "how many successes in a row close it for good", 3
            ),
            Field(
                "half_open_requests",
                NoEffect("after the pause items begin again; the first failure opens it again"),
                "",
            ),
        ),
    ),
)
