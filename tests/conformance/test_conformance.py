"""The documents that Plait grew from, row by row.

A row is data: a sentence, a table line or an example of a document, with what
must come out.  Results are compared with their types: true is not 1, 3 is not
3.0 and "3" is not 3.  Which document: `seed`; the decisions of the language
itself are marked `language`, faults of earlier systems `lessons`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
import yaml

import plait
import plait.core.errors
from plait.template.grammar import parse_cache_counts
from plait.template.sinks import render_json_value

HERE: Final = Path(__file__).parent
NOTHING: Final = object()
DOCUMENTS: Final = {"000", "001", "002", "003", "004", "language", "lessons"}
OFTEN: Final = 250
"""More often than it takes until a template is compiled for speed."""
PROFILES: Final = {"prompt", "directive", "graph", "workflow", "config"}


@dataclass(frozen=True)
class Refusal:
    """The error that a row expects."""

    type: str
    names: list[str] | None = None
    contains: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Row:
    seed: str
    about: str
    values: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    error: Refusal | None = None

    @property
    def id(self) -> str:
        return f"{self.seed}-{re.sub(r'[^a-z0-9]+', '-', self.about.lower()).strip('-')}"


@dataclass(frozen=True, kw_only=True)
class TemplateRow(Row):
    template: Any
    profile: str = "config"
    body: bool = False
    strict: bool = False
    secrets: dict[str, Any] = field(default_factory=dict)
    expect: Any = NOTHING
    hides: list[str] = field(default_factory=list)
    warns: list[str] | None = None
    placeholders: list[str] | None = None

    @property
    def names(self) -> dict[str, Any]:
        return self.values | {name: _secret(value) for name, value in self.secrets.items()}


@dataclass(frozen=True, kw_only=True)
class PromptRow(Row):
    seed: str = "001"
    template: str | None
    inputs: dict[str, Any] | None
    expect: Any = NOTHING
    missing: list[str] | None = None
    message: str | None = None
    logs: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class EscapeRow(Row):
    value: str
    expect: str


@dataclass(frozen=True, kw_only=True)
class ShellRow(Row):
    template: str
    strict: bool = False
    stdout: str | None = None
    exit_code: int = 0


SomeRow = TypeVar("SomeRow", bound=Row)


def read(kind: type[SomeRow], pattern: str) -> list[SomeRow]:
    """Every row of the files; a key that a row of this kind does not have is refused."""
    return [_row(kind, raw) for path in sorted(HERE.glob(pattern)) for raw in _load(path)]


def _load(path: Path) -> list[dict[str, Any]]:
    rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(rows, list), path.name
    return rows


def _row(kind: type[SomeRow], raw: Mapping[str, Any]) -> SomeRow:
    error = Refusal(**raw["error"]) if "error" in raw else None
    return kind(**{**raw, "error": error})


TEMPLATES: Final = read(TemplateRow, "templates-*.yaml")
PROMPTS: Final = read(PromptRow, "prompts-*.yaml")
ESCAPES: Final = read(EscapeRow, "escapes-*.yaml")
SHELLS: Final = read(ShellRow, "shell-*.yaml")


def each(rows: list[SomeRow]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in rows])


@each(TEMPLATES)
def test_a_template_gives_what_the_row_says(
    row: TemplateRow, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        if row.error is not None:
            refused(row, row.error)
            return
        result = rendered(row)
    if row.expect is not NOTHING:
        assert typed(result) == typed(row.expect)
    shown = f"{result} {result!r} {caplog.text}"
    assert [text for text in row.hides if text in shown] == []
    if row.warns is not None:
        assert_warned(caplog.messages, row.warns)


@each([row for row in TEMPLATES if row.placeholders is not None])
def test_a_compiled_template_names_its_placeholders(row: TemplateRow) -> None:
    template = plait.compile(row.template, profile=row.profile)
    assert list(template.placeholders) == row.placeholders


@each(
    [row for row in TEMPLATES if row.error is None and row.expect is not NOTHING and not row.body]
)
def test_a_template_that_is_used_often_gives_the_same_every_time(row: TemplateRow) -> None:
    template = plait.compile(row.template, profile=row.profile)
    results = [template.render(row.names, strict=row.strict, env=row.env) for _ in range(OFTEN)]
    assert [result for result in results if typed(result) != typed(row.expect)] == []


@each([row for row in TEMPLATES if row.error is not None])
def test_a_template_that_is_used_often_is_refused_every_time(row: TemplateRow) -> None:
    assert row.error is not None
    template = plait.compile(row.template, profile=row.profile)
    messages = set()
    for _ in range(OFTEN):
        with pytest.raises(getattr(plait.core.errors, row.error.type)) as caught:
            template.render(row.names, strict=row.strict, env=row.env)
        messages.add(str(caught.value))
    assert len(messages) == 1


@each(PROMPTS)
def test_a_prompt_gives_what_the_row_says(row: PromptRow, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="plait.template")
    if row.missing is not None:
        with pytest.raises(plait.core.errors.PromptTemplateError) as caught:
            plait.resolve_prompt(row.template, row.inputs)
        assert list(caught.value.missing_variables) == row.missing
        assert caught.value.template == row.template
        assert str(caught.value) == row.message
        return
    assert typed(plait.resolve_prompt(row.template, row.inputs)) == typed(row.expect)
    if row.logs is not None:
        lines = [(r.name, r.levelname, r.getMessage()) for r in caplog.records]
        assert lines == [("plait.template", "DEBUG", line) for line in row.logs]


@each([row for row in PROMPTS if row.template is not None])
def test_the_prompt_profile_agrees_with_the_prompt_resolver(row: PromptRow) -> None:
    if row.missing is not None:
        with pytest.raises(plait.core.errors.PromptTemplateError) as caught:
            plait.render(row.template, row.inputs or {}, profile="prompt")
        assert list(caught.value.missing_variables) == row.missing
    else:
        assert typed(plait.render(row.template, row.inputs or {}, profile="prompt")) == typed(
            row.expect
        )


@each(ESCAPES)
def test_a_value_is_shown_quoted(row: EscapeRow) -> None:
    assert plait.escape_shell_value(row.value) == row.expect


@pytest.mark.parametrize("shell", ["dash", "bash"])
@each(SHELLS)
def test_a_shell_prints_what_the_row_says(row: ShellRow, shell: str, tmp_path: Path) -> None:
    def run() -> Any:
        env = {"PATH": os.environ["PATH"], **row.env}
        return plait.sh(
            row.template,
            row.values,
            shell=shell,
            cwd=tmp_path,
            env=env,
            timeout=20,
            strict=row.strict,
        )

    if row.error is not None:
        with pytest.raises(getattr(plait.core.errors, row.error.type)) as caught:
            run()
        assert [text for text in own_values(row) if text in str(caught.value)] == [], (
            "an error shows a value"
        )
    else:
        done = run()
        assert (as_text(done.stdout), done.exit_code) == (row.stdout, row.exit_code)
    assert list(tmp_path.iterdir()) == [], "a value was run as a command"


# ── What one row cannot say ──────────────────────────────────────────────────────────

HOSTILE: Final = [
    "{input:secret}",
    "${state.secret}",
    "${SECRET}",
    "$SECRET",
    "{secret}",
    "{{secret}}",
    "$${SECRET}",
    "${cmd:touch canary}",
    "${SECRET:-${SECRET}}",
]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_crosses_every_stage_unread(value: str) -> None:
    """Directive, graph, dispatch, config: what came in as a value comes out as that value."""
    names = {"secret": "leaked", "SECRET": "leaked", "state": {"secret": "leaked"}}
    inputs = {"secret": "leaked", "given": value}
    body = plait.render("{input:given}", {**names, "inputs": inputs}, profile="directive")
    state = {"secret": "leaked", "body": body}
    params = plait.render(
        {"q": "${state.body}", "text": "<${state.body}>"},
        {**names, "inputs": inputs, "state": state},
        profile="graph",
    )
    config = plait.render(
        {"whole": "{q}", "mixed": "-{text}-", "all": "{params}"},
        {**names, **params, "params": params},
        profile="config",
        env={"SECRET": "leaked"},
    )
    assert config == {
        "whole": value,
        "mixed": f"-<{value}>-",
        "all": {"q": value, "text": f"<{value}>"},
    }


def test_a_prompt_leaves_the_callers_inputs_and_template_as_they_were() -> None:
    task = {"description": "On {topic}", "expected_output": "A report on {topic}"}
    inputs = {"topic": "AI"}
    resolved = plait.render(task, inputs, profile="prompt")
    assert resolved == {"description": "On AI", "expected_output": "A report on AI"}
    assert task == {"description": "On {topic}", "expected_output": "A report on {topic}"}
    assert inputs == {"topic": "AI"}


def test_a_long_chain_of_doubling_values_stays_small() -> None:
    """26 variables, each the next one twice: rescanning would give 67 million characters."""
    names = [f"v{number}" for number in range(26)]
    values = {
        name: f"{{{after}}}{{{after}}}"
        for name, after in zip(names, [*names[1:], "end"], strict=True)
    }
    template = "".join(f"{{{name}}}" for name in names)
    result = plait.resolve_prompt(template, values)
    assert result == "".join(values[name] for name in names)


def test_an_equal_template_is_parsed_once() -> None:
    """A thousand items, one template: the cache is keyed by the exact text."""
    text = "process ${item.path} --priority ${item.metadata.priority:-5} # parsed once"
    before = parse_cache_counts()["misses"]
    results = {
        plait.render("".join(list(text)), {"item": {"path": str(number)}}, profile="workflow")
        for number in range(1_000)
    }
    assert len(results) == 1_000
    assert parse_cache_counts()["misses"] == before + 1


def test_the_profile_belongs_to_the_key_of_a_parsed_template() -> None:
    text = "${A} {a} {input:a}"
    values = {"a": 1, "A": 2, "inputs": {"a": 3}}
    results = [
        plait.render(text, values, profile=profile, env={"A": "4"})
        for profile in ("workflow", "config")
    ]
    assert results == ["2 {a} {input:a}", "4 1 {input:a}"]


def test_defaults_may_nest_to_the_stated_depth_and_not_without_end() -> None:
    def nested(depth: int) -> str:
        return "${a:-" * depth + "x" + "}" * depth

    assert plait.render(nested(64), {}) == "x"
    with pytest.raises(plait.PlaitError, match="64"):
        plait.render(nested(1_000), {})


def test_a_template_may_have_a_mebibyte_and_not_more() -> None:
    assert plait.render("a" * 2**20, {}) == "a" * 2**20
    with pytest.raises(plait.PlaitError):
        plait.render("a" * (2**20 + 1), {})


# ── The rows themselves ──────────────────────────────────────────────────────────────


def test_every_row_has_its_own_name() -> None:
    for rows in (TEMPLATES, PROMPTS, ESCAPES, SHELLS):
        names = [row.id for row in rows]
        assert sorted({name for name in names if names.count(name) > 1}) == []


def test_every_row_names_its_document_and_says_what_must_come_out() -> None:
    for row in [*TEMPLATES, *PROMPTS, *ESCAPES, *SHELLS]:
        assert row.seed in DOCUMENTS, row.id
    for row in TEMPLATES:
        assert row.profile in PROFILES, row.id
        expectations = [row.expect is not NOTHING, row.error is not None]
        assert sum(expectations) == 1 or (sum(expectations) == 0 and row.hides), row.id
    for prompt in PROMPTS:
        assert (prompt.expect is NOTHING) == (prompt.missing is not None), prompt.id
    for shell in SHELLS:
        assert (shell.stdout is None) == (shell.error is not None), shell.id


@pytest.mark.parametrize(
    ("one", "other"), [(True, 1), (3, 3.0), ("3", 3), (None, ""), ([], {}), ({"a": 1}, {"a": True})]
)
def test_the_comparison_distinguishes_types(one: object, other: object) -> None:
    assert typed(one) != typed(other)
    assert typed(one) == typed(one)


# ── Helpers ──────────────────────────────────────────────────────────────────────────


def rendered(row: TemplateRow) -> Any:
    if row.body:
        return render_json_value(
            plait.compile(row.template, profile="config"), row.names, env=row.env
        )
    return plait.render(
        row.template, row.names, profile=row.profile, strict=row.strict, env=row.env
    )


def refused(row: TemplateRow, expected: Refusal) -> None:
    with pytest.raises(getattr(plait.core.errors, expected.type)) as caught:
        rendered(row)
    error, message = caught.value, str(caught.value)
    assert [text for text in expected.contains if text not in message] == [], message
    assert [text for text in row.hides if text in message] == [], message
    assert [text for text in own_values(row) if text in message] == [], "an error shows a value"
    if expected.names is not None:
        names = getattr(error, "missing_variables", None) or getattr(error, "names", None)
        assert list(names or ()) == expected.names


def assert_warned(messages: list[str], expected: list[str]) -> None:
    """One warning that holds all the expected texts; none if none is expected."""
    assert len(messages) == (1 if expected else 0), messages
    assert [text for text in expected if text not in messages[0]] == [], messages


def typed(value: object) -> object:
    """A form in which values are equal only if their types, and the order of keys, are."""
    match value:
        case dict():
            return ("dict", [(key, typed(item)) for key, item in value.items()])
        case list() | tuple():
            return (type(value).__name__, [typed(item) for item in value])
        case _:
            return (type(value).__name__, value)


def own_values(row: TemplateRow | ShellRow) -> list[str]:
    """Texts that stand in the row's values and nowhere among its names or in its template."""
    known = f"{row.template} {row.error} {sorted(_keys(row.values))}"
    return [text for text in _texts(row.values) if len(text) > 2 and text not in known]


def as_text(output: str | bytes) -> str:
    return output.decode() if isinstance(output, bytes) else output


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts(item)
        case dict():
            for item in value.values():
                yield from _texts(item)


def _keys(value: object) -> Iterator[str]:
    match value:
        case list():
            for item in value:
                yield from _keys(item)
        case dict():
            for key, item in value.items():
                yield str(key)
                yield from _keys(item)


def _secret(value: Any) -> Any:
    match value:
        case str():
            return plait.Secret(value)
        case dict():
            return {key: _secret(item) for key, item in value.items()}
        case _:
            return value
