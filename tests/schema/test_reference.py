"""The one table of the workflow file: durations, what fits where, the JSON Schema, the reference page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lang.workflow.test_workflow import BAD, FINE, JOBS
from plait.core.documents import parse
from plait.lang.findings import RULES
from plait.schema import (
    ACTION_FIELDS,
    FILES,
    WARNED,
    Fields,
    Kind,
    ListOf,
    MapOf,
    NoEffect,
    OneOf,
    Record,
    Refused,
    all_forms,
    fields_by_spelling,
    record_type,
    seconds,
    validate,
)
from plait.schema.json_schema import SCHEMA_DIALECT, json_schema
from plait.schema.reference import render_reference
from plait.scope import Scope

PAGE = Path(__file__).parent.parent.parent / "docs" / "workflow.md"


def found(text: str) -> list[str]:
    """`line code`, and the first quoted name."""
    rows = []
    for problem in validate(parse(text, "f.yaml")):
        name = problem.what.partition("'")[2].partition("'")[0]
        rows.append(f"{problem.place[1]} {problem.code} {name}".rstrip())
    return rows


# ── durations ────────────────────────────────────────────────────────────

DURATIONS = [
    (90, 90.0), (1.5, 1.5), ("90", 90.0), ("90s", 90.0), ("500ms", 0.5), ("5m", 300.0), ("1h30m", 5400.0),
    ("2d", 172800.0), (" 5m ", 300.0), ("1.5h", 5400.0),
    (0, None), (-1, None), ("", None), ("m", None), ("5 m", None), ("5x", None), (True, None), (None, None),
    ("1e9", None), (float("nan"), None), (float("inf"), None), ("-5m", None), (10**12, None), ([5], None),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), DURATIONS)
def test_a_duration_is_seconds_or_numbers_with_units(value: Any, expected: float | None) -> None:
    assert seconds(value) == expected


def test_nothing_is_a_duration_only_where_a_pause_is_meant() -> None:
    assert seconds(0, zero=True) == 0.0
    assert seconds("0s", zero=True) == 0.0
    assert seconds("0s") is None


@given(st.integers(1, 10**6), st.sampled_from(["ms", "s", "m"]))
def test_a_duration_grows_with_its_number(number: int, unit: str) -> None:
    one, more = seconds(f"{number}{unit}"), seconds(f"{number + 1}{unit}")
    assert one is None or more is None or one < more


# ── what fits where ──────────────────────────────────────────────────────

FITS = [
    # flow                                                                problems
    ("- shell: ls",                                                       []),
    ("- /fix",                                                            []),
    ("- fix",                                                             ["1 wrong-type"]),
    ("- {shell: [ls]}",                                                   ["1 wrong-type shell"]),
    ("- {shell: ls, once: 1}",                                            ["1 wrong-type once"]),
    ("- {shell: ls, once: yes}",                                          ["1 wrong-type once"]),            # YAML 1.2: text
    ("- {shell: ls, id: a b}",                                            ["1 wrong-type id"]),
    ("- {shell: ls, env: {A: 1, B: true, C: text}}",                      []),
    ("- {shell: ls, env: {A: [1]}}",                                      ["1 wrong-type A"]),
    ("- {shell: ls, env: {a-b: 1}}",                                      ["1 wrong-type a-b"]),
    ("- {shell: ls, on_exit_code: {'256': ls}}",                          ["1 wrong-type 256"]),
    ("- {shell: ls, on_exit_code: {1: ls, 2: [/x, {shell: b}]}}",         []),
    ("- {shell: ls, timeout: '${T}'}",                                      []),                               # put in by a value
    ("- {shell: ls, retry: {attempts: $N}}",                            []),
    ("- {shell: ls, retry: 0}",                                           ["1 wrong-type retry"]),
    ("- {shell: ls, capture: a, capture_output: b}",                      ["1 duplicate-field capture_output"]),
    ("- {validate: {shell: ls}}",                                         []),
    ("- {shell: ls, validate: {threshold: 101, shell: a}}",               ["1 wrong-type threshold"]),
    ("- {shell: ls, validate: {threshold: 50}}",                          ["1 missing-field"]),
    ("- {shell: ls, on_failure: {max_attempts: 2}}",                      ["1 missing-field"]),
    ("- {name: only}",                                                    ["1 missing-field"]),
    ("- {command: /fix}",                                                 ["1 deprecated-field command"]),
    ("- {shell: ls, handler: {name: git}}",                               ["1 refused-field handler"]),
    ("- {write_file: {path: a, content: {b: [1]}, mode: '0644'}}",        []),
    ("- {write_file: {path: a, content: b, mode: '0944'}}",               ["1 wrong-type mode"]),
    ("- {write_file: {path: a}}",                                         ["1 missing-field content"]),
    ("- {http: {url: 'https://x', method: get}}",                         ["1 wrong-type method"]),
    ("- {http: https://x.org/}",                                          []),
    ("map: {input: {glob: a, file: b}, steps: [/a]}",                       ["1 several-commands"]),
    ("map: {input: {format: csv}, steps: [/a]}",                            ["1 missing-field"]),
    ("map: {input: x, agent_template: {commands: [{shell: ls}]}}",        []),
    ("map: {input: x, steps: [/a], workspace: worktree}",                   ["1 refused-field workspace"]),
    ("map: {input: x, steps: [/a], max_parallel: many}",                    ["1 wrong-type max_parallel"]),
    ("map: {input: x, steps: [/a], max_parallel: $MANY}",                   []),                               # read when it runs
    ("{steps: [], checkpoint: {}}",                                       ["1 no-effect checkpoint"]),
    ("{steps: [], parameters: [a, {name: b, type: integer}]}",            []),
    ("{steps: [], parameters: {a: integer, b: , c: {choices: [1]}}}",     []),
    ("{steps: [], parameters: {a: int}}",                                 ["1 wrong-type a"]),
    ("{steps: [], parameters: {required: [a], optional: [{name: b}]}}",   []),
    ("{steps: [], secrets: {A: B, C: {file: x}}}",                        []),
    ("{steps: [], secrets: {A: '${env:B}'}}",                             ["1 wrong-type A"]),
    ("{steps: [], secrets: {A: {command: pass show a}}}",                 ["1 refused-field command"]),      # loading starts nothing
    ("- {shell: ls, validate: {shell: a, expected_schema: {type: object}}}", []),
    ("- {shell: ls, validate: {shell: a, expected_schema: object}}",      ["1 wrong-type expected_schema"]),
    ("{steps: [], seps: []}",                                             ["1 unknown-field seps"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), FITS)
def test_each_field_says_what_it_may_hold(text: str, expected: list[str]) -> None:
    assert found(text) == expected


def test_a_misspelt_command_is_not_also_missing() -> None:
    [unknown] = validate(parse("- {shel: ls}", "f.yaml"))
    assert unknown.fix == "did you mean 'shell'?"
    (longer,) = validate(
        parse("map: {input: [1], retry_config: {}, steps: [{shell: ls}]}", "f.yaml")
    )
    assert longer.fix == "did you mean 'retry'?"


MAP = "input: [1], steps: [{shell: ls}]"
FURTHER_IN = [
    # a field one level too far out                       what to write instead
    (f"map: {{{MAP}, uncommitted: keep}}",                "write it further in: isolation: {kind: …, uncommitted: …}"),
    (f"map: {{{MAP}, inputs: [lib]}}",                    "write it further in: isolation: {kind: …, inputs: …}"),
    ("map: {inputs: [lib], steps: [{shell: ls}]}",        "did you mean 'input'?"),                       # it has none yet
    ("- {shell: ls, initial_delay: 3}",                   "write it further in: retry: {initial_delay: …}"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "fix"), FURTHER_IN)
def test_a_field_that_belongs_further_in_is_reported_where(text: str, fix: str) -> None:
    assert validate(parse(text, "f.yaml"))[0].fix == fix


def test_what_would_not_fit_further_in_is_not_sent_there() -> None:
    (problem,) = validate(parse(f"map: {{{MAP}, merge: [{{shell: ls}}]}}", "f.yaml"))
    assert problem.fix is not None
    assert problem.fix.startswith("a map has: ")


def test_a_command_written_as_a_name_is_reported_how_to_write_it() -> None:
    [problem] = validate(parse("- {name: fix, args: [a]}", "f.yaml"))
    assert problem.fix == "write what it does; a command of an agent is written claude: /name …"


def test_fields_are_read_with_the_defaults_of_the_table() -> None:
    node = parse("{attempts: '${n}', max_delay: 1m, retry_on: timeout}", "f.yaml")
    fields = Fields("retry", node, Scope({"n": 4}))  # type: ignore[arg-type]
    assert (
        fields.integer("attempts"),
        fields.seconds("max_delay"),
        fields.seconds("initial_delay"),
    ) == (
        4,
        60.0,
        1.0,
    )
    assert (fields.text("backoff"), fields.strings("retry_on"), fields.optional_flag("jitter")) == (
        "exponential",
        ("timeout",),
        False,
    )


# ── the tables themselves ────────────────────────────────────────────────


def kinds_in(kind: Kind) -> list[Kind]:
    match kind:
        case OneOf(inner):
            return [kind, *(one for each in inner for one in kinds_in(each))]
        case MapOf(inner) | ListOf(inner):
            return [kind, *kinds_in(inner)]
    return [kind]


def test_the_tables_refer_only_to_what_exists_and_every_form_is_used() -> None:
    used = {
        kind.form
        for root in [
            *FILES.values(),
            *(field.kind for form in all_forms() for field in form.fields),
        ]
        for kind in kinds_in(root)
        if isinstance(kind, Record)
    }
    assert used == {form.name for form in all_forms()}


def test_no_two_fields_of_a_form_share_a_spelling() -> None:
    for form in all_forms():
        assert len(fields_by_spelling(form.name)) == sum(
            len(field.spellings) for field in form.fields
        ), form.name


def test_commands_and_required_names_are_fields_of_their_forms() -> None:
    for form in all_forms():
        names = {field.name for field in form.fields}
        assert {*form.one_of, *form.some_of, *form.alone, *form.marks} <= names, form.name
    assert set(ACTION_FIELDS) == set(record_type("step").one_of)


def test_every_field_says_what_it_means() -> None:
    for form in all_forms():
        for field in form.fields:
            meaning = field.kind.why if isinstance(field.kind, NoEffect | Refused) else field.what
            assert meaning, f"{form.name}.{field.name}"


def test_every_code_has_a_rule() -> None:
    codes = {row.split()[1] for _, rows in FITS for row in rows}
    assert {*codes, *WARNED} <= RULES.keys()


# ── JSON Schema ──────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def schema() -> Any:
    return jsonschema_rs.validator_for(json_schema())


def test_the_schema_is_one_of_its_dialect() -> None:
    made = json_schema()
    assert made["$schema"] == SCHEMA_DIALECT
    assert jsonschema_rs.meta.is_valid(made)
    assert json.loads(json.dumps(made)) == made


GOOD = [*JOBS.values(), *(f"- {step}\n" for step in FINE)]


@pytest.mark.parametrize("text", GOOD)
def test_the_schema_accepts_what_loads(schema: Any, text: str) -> None:
    errors = [error.message for error in schema.iter_errors(parse(text, "f.yaml").data())]
    assert errors == []


@pytest.mark.parametrize(("text", "expected"), FITS)
def test_the_schema_agrees_with_the_reader(schema: Any, text: str, expected: list[str]) -> None:
    fatal = [row for row in expected if row.split()[1] not in WARNED]
    assert schema.is_valid(parse(text, "f.yaml").data()) == (not fatal)


def test_the_schema_refuses_bad_files(schema: Any) -> None:
    refused = [text for text, _ in BAD if validate(parse(text, "f.yaml"))]
    assert len(refused) > 8
    assert [text for text in refused if schema.is_valid(parse(text, "f.yaml").data())] == []


def test_editors_are_reported_what_a_field_means_and_its_default() -> None:
    timeout = json_schema()["$defs"]["step"]["properties"]["timeout"]
    attempts = json_schema()["$defs"]["retry"]["properties"]["attempts"]
    assert timeout["description"] == "how long it may take; then it is stopped"
    assert attempts["default"] == 3


# ── the page ─────────────────────────────────────────────────────────────


def test_the_page_names_the_actions_in_their_order() -> None:
    *words, last = (f"`{name}`" for name in ACTION_FIELDS)
    assert f"A step has exactly one of {', '.join(words)} and {last}." in PAGE.read_text("utf-8")


def test_the_reference_page_has_the_tables_of_the_format() -> None:
    _, _, tables = PAGE.read_text("utf-8").partition("## All maps and their fields\n\n")
    assert tables.rstrip() == render_reference()
