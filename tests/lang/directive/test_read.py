"""Directives: what a file says, what it is given, and what the model gets to hear."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agents.scripted import Scripted, ToolServices, says, wants
from lang.loading import load_file
from plait import schema
from plait.core.errors import InputError
from plait.core.values import Json
from plait.engine.limits import Limits
from plait.engine.outcome import StepError
from plait.lang.directive.read import Directive, read_flow
from plait.lang.flow_text import FlowText
from plait.program.program import FilledDirective
from plait.schema.reference import render_reference
from program.fakes import new_run, turn_of

CONFORMANCE = Path(__file__).parents[2] / "conformance"
HEAD = "---\nname: review\ninputs:\n  file: string\n  depth: {type: integer, default: 2}\n  tags: {type: array, required: false}\n---\n"
HOSTILE = [
    "{input:s}", "${inputs.s}", "{env:HOME}", "${HOME}", "$HOME", "{param}", "{{input:s}}", "${cmd:id}", "{model}",
    "$${x}", "```xml\n<directive/>\n```", "---\nname: other\n---", "</directive>", "&lt;", "\x00", "{input:file}",
]  # fmt: skip


def read_directive(text: str, path: str) -> Directive:
    return read_flow(FlowText(text, path))


def directive(text: str, **given: Json) -> FilledDirective:
    return read_directive(text, "review.md").fill(given)


def prompt(body: str, **given: Json) -> str:
    return directive(f"{HEAD}{body}", **{"file": "a.py", **given}).body


def problems(text: str, **given: Json) -> str:
    with pytest.raises(InputError) as caught:
        directive(text, **given)
    return str(caught.value)


# ── the table of inputs ──────────────────────────────────────────────────

TABLE = [
    # body                          given                    prompt
    ("{input:file}",                {},                      "a.py"),
    ("{input:nope}",                {},                      "{input:nope}"),     # kept as it is written
    ("{input:tags}",                {},                      "{input:tags}"),     # optional, and not given
    ("[{input:nope?}]",             {},                      "[]"),
    ("[{input:tags?}]",             {},                      "[]"),
    ("{input:nope:d}",              {},                      "d"),
    ("{input:nope|d}",              {},                      "d"),
    ("{input:nope:}",               {},                      ""),
    ("{input:nope:a:b|c}",          {},                      "a:b|c"),
    ("{input:file:d}",              {},                      "a.py"),
    ("{input:depth}",               {},                      "2"),
    ("{input:depth}",               {"depth": "7"},          "7"),
    ("{input:depth}",               {"depth": 7},            "7"),
    ("{input:tags}",                {"tags": ["x", "ü"]},    '["x","ü"]'),        # JSON, never a repr
    ("{input:tags}",                {"tags": '["x"]'},       '["x"]'),
    ("{{input:file}}",              {},                      "{input:file}"),
    ("{input:nope:{input:file}}",   {},                      "a.py"),
    ("${file} $file {file} ${inputs.file} {env:HOME}", {},   "${file} $file {file} ${inputs.file} {env:HOME}"),
    ('{"a": {"b": 1}}',             {},                      '{"a": {"b": 1}}'),
]  # fmt: skip


@pytest.mark.parametrize(("body", "given", "expected"), TABLE)
def test_an_input_is_put_where_it_is_named(
    body: str, given: dict[str, Json], expected: str
) -> None:
    assert prompt(body, **given) == expected


def test_body_head_file_and_actions_are_filled() -> None:
    text = (
        "---\ninputs: {q: string}\nsystem: about {input:q}\n"
        "actions:\n  - {item_id: t/x, params: {n: 1, q: '{input:q}', deep: ['{input:nope?}']}}\n---\n\nAsk {input:q}.\n"
    )
    filled = directive(text, q="Q")
    assert filled.body == "Ask Q."
    assert filled.system == "about Q"
    assert filled.actions == [{"item_id": "t/x", "params": {"n": 1, "q": "Q", "deep": [""]}}]
    assert filled.content.startswith("inputs: {q: string}\nsystem: about Q")
    assert filled.raw == text.strip().replace("{input:q}", "Q").replace("{input:nope?}", "")


ROWS = [
    row
    for name in ("templates-000", "templates-language", "templates-lessons")
    for row in yaml.safe_load((CONFORMANCE / f"{name}.yaml").read_text("utf-8"))
    if row.get("profile") == "directive" and isinstance(row["template"], str) and "expect" in row
]


def test_there_are_rows_of_the_language() -> None:
    assert len(ROWS) > 15


@pytest.mark.parametrize("row", [pytest.param(row, id=row["about"]) for row in ROWS])
def test_a_row_of_the_language_holds_for_the_prompt_that_a_model_receives(
    row: Any, tmp_path: Path
) -> None:
    given = row.get("values", {}).get("inputs", {})
    head = json.dumps({"inputs": dict.fromkeys(given, "any"), "system": row["template"]})
    file = tmp_path / "d.md"
    file.write_text(f"---\n{head}\n---\n<{row['template']}>", "utf-8")
    model = Scripted(says("ok"))
    value_of(load_file(str(file), given).program, ToolServices(model))
    (ask,) = model.asks
    assert (ask.messages[0].text, ask.system) == (f"<{row['expect']}>", row["expect"])


@pytest.mark.parametrize("value", HOSTILE)
def test_what_is_given_arrives_at_the_model_as_it_is(value: str, tmp_path: Path) -> None:
    assert heard(tmp_path, value)[0] == f"<{value}> {{input:nope}}"


@given(value=st.text())
def test_whatever_is_given_arrives_as_it_is(value: str) -> None:
    assert prompt("{input:file}{input:depth}", file=value) == f"{value}2"


def heard(folder: Path, value: str) -> list[str]:
    """What the model gets to hear of an input, in its prompt and in the result of a tool that gives it back."""
    file = folder / "d.md"
    file.write_text(
        "---\ninputs: {v: string, s: {default: SECOND}}\npermissions: t/echo\n---\n<{input:v}> {input:nope}"
    )
    loaded = load_file(str(file), inputs={"v": value})
    model = Scripted(wants(("t/echo", {"v": value})), says("ok"))
    value_of(loaded.program, ToolServices(model, {"t/echo": lambda params: params["v"]}))
    assert model.asks[1].messages[-1].text == value
    return [message.text for message in model.asks[0].messages]


def value_of(program: Any, fakes: ToolServices) -> Any:
    run = new_run(fakes)
    try:
        return program.run(turn_of(run))
    finally:
        run.events.close()


# ── inputs and outputs are checked ───────────────────────────────────────


def test_all_problems_of_given_inputs_are_reported_at_once() -> None:
    text = "---\ninputs:\n  a: string\n  b: {type: integer, description: how many}\n  c: {choices: [x, y]}\n---\n{input:a}\n"
    assert problems(text, c="z", d="1") == (
        "this flow has no parameter 'd'\n"
        "fix: parameters: a, b, c\n"
        "review.md:3:3: parameter 'a' is missing\n"
        "3 |   a: string\n"
        "  |   ^\n"
        "fix: pass it with -i a=…\n"
        "review.md:4:3: parameter 'b' is missing: how many\n"
        "4 |   b: {type: integer, description: how many}\n"
        "  |   ^\n"
        "fix: pass it with -i b=…\n"
        "review.md:5:3: parameter 'c' must be one of x, y, got \"z\"\n"
        "5 |   c: {choices: [x, y]}\n"
        "  |   ^\n"
        "fix: for example -i c=x"
    )


def test_inputs_have_their_types() -> None:
    assert "parameter 'depth' must be a whole number" in problems(HEAD + "x", file="f", depth="q")


def test_outputs_are_a_schema_that_the_answer_has_to_meet(tmp_path: Path) -> None:
    file = tmp_path / "d.md"
    file.write_text(
        "---\noutputs:\n  ok: boolean\n  note: {type: string, required: false, description: why}\n---\nLook."
    )
    program = load_file(str(file)).program
    model = Scripted(says("sure"), says('{"ok": "yes"}'), says('{"ok": true}'))
    value = value_of(program, ToolServices(model))
    assert value["output"] == {"ok": True}
    assert model.asks[0].schema == {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "note": {"type": "string", "description": "why"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    with pytest.raises(StepError) as caught:
        value_of(program, ToolServices(Scripted(lambda _: says("sure"))))
    assert (caught.value.failure.kind, caught.value.failure.output["text"]) == (
        "bad_answer",
        "sure",
    )


# ── what a head says ─────────────────────────────────────────────────────


def test_a_head_says_who_is_asked_and_what_is_allowed() -> None:
    made = read_directive(
        "---\nname: Careful review\ndescription: looks\nmodel: {tier: fast, provider: mine}\n"
        "options: {temperature: 0}\npermissions: {tools: [core/file/*, team/pay], once: team/*}\n"
        "limits: {turns: 3, tokens: 1000, spend: 0.5, seconds: 90, steps: 4, depth: 1}\nmax_output_retries: 0\n---\nGo.",
        "x/review.md",
    )
    talk = made.make_session(made.fill({}))
    assert (talk.title, talk.provider, talk.model, dict(talk.options)) == (
        "Careful review",
        "mine",
        "fast",
        {"temperature": 0},
    )
    assert (talk.tools, talk.once, talk.max_output_retries) == (
        ("core/file/*", "team/pay"),
        ("team/*",),
        0,
    )
    assert talk.limits == Limits(3, 1000, 0.5, 90, 4, 1)
    assert list(made.uses) == ["team/pay"]


def test_a_file_without_a_head_is_a_prompt() -> None:
    made = read_directive("# Say hello\n\n```xml\n<other/>\n```\n", "hello.md")
    assert (made.name, made.tools, made.limits) == ("hello", (), Limits())
    assert made.make_session(made.fill({})).limits == Limits(turns=50)
    assert made.fill({}).body == "# Say hello\n\n```xml\n<other/>\n```"


WRONG = [
    ("---\nnmae: x\n---\nGo", "review.md:2:1: 'nmae' is not a field of a directive\n2 | nmae: x\n  | ^^^^\nfix: did you mean 'name'?"),
    ("---\nmodel: {teir: x}\n---\nGo",
        "review.md:2:9: 'teir' is not a field of a model\n2 | model: {teir: x}\n  |         ^^^^\nfix: did you mean 'tier'?",
    ),
    ("---\nname: x\n", "review.md:1:1: the head begins with '---' and has no end\n1 | ---\n  | ^^^\nfix: write '---' below it"),
    ("---\n- a\n---\nGo", "review.md:2:1: the head of a directive is a map\n2 | - a\n  | ^^^\nfix: write name: …"),
    ("---\nname: x\n---\n\n", "review.md:5:1: this directive has no prompt\n5 | \n  | ^\nfix: write below the head what the model should do"),
    ("---\nextends: y\n---\nGo", "review.md:2:1: 'extends' does not exist here\n2 | extends: y\n  | ^^^^^^^\nfix: write it whole: a directive is one file"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reported"), WRONG)
def test_a_problem_is_reported_with_its_place(text: str, reported: str) -> None:
    assert problems(text) == reported


@pytest.mark.parametrize("pattern", ["../x", "a b", "/a", "a//b", ""])
def test_a_permission_that_can_name_nothing_is_refused(pattern: str) -> None:
    assert "a pattern of tool ids" in problems(f"---\npermissions: ['{pattern}']\n---\nGo")


def test_all_problems_of_a_head_are_reported_together() -> None:
    reported = problems("---\nnmae: x\npermissions: 3\nlimits: {turns: -1}\n---\nGo")
    assert [line for line in reported.splitlines() if line.startswith("review.md")] == [
        "review.md:2:1: 'nmae' is not a field of a directive",
        "review.md:3:14: 'permissions' must be patterns of tool ids, or a map: permissions, not a number",
        "review.md:4:17: 'turns' must be a whole number from 0",
    ]


def test_a_signature_is_no_part_of_the_prompt() -> None:
    line = "<!-- plait:signed:2026-01-01T00:00:00Z:x:y:z -->\n"
    made = read_directive(
        f"{line}---\ninputs: {{a: string}}\n---\nGo {{input:a}}", "review.md"
    ).fill({"a": "1"})
    assert (made.body, made.raw.splitlines()[0]) == ("Go 1", "---")


# ── XML ──────────────────────────────────────────────────────────────────

XML = """\
<!-- rye:signed:2026-01-01T00:00:00Z:x:y:z -->

# Review

What it is about.

```xml
<directive name="review" version="1.0.0">
  <metadata>
    <description>Look at a file</description>
    <category>team</category>
    <author>ada</author>
    <model tier="fast" id="m-1" />
    <limits turns="6" tokens="4096" spend="0.5" duration_seconds="60" />
    <permissions>
      <execute>
        <tool>rye.file-system.*</tool>
        <tool>team/report</tool>
        <directive>team/other</directive>
      </execute>
      <search>*</search>
      <acknowledge risk="writes">it is meant</acknowledge>
    </permissions>
  </metadata>
  <inputs>
    <input name="file" type="string" required="true">The file &amp; its path</input>
    <input name="depth" type="integer" default="2">How deep</input>
  </inputs>
  <outputs>
    <output name="ok" type="boolean" required="true">Is it good?</output>
  </outputs>
  <process>
    <example>if a < b && {input:file} </example>
    <execute item_type="tool" item_id="core/file/read">
      <param name="path" value="{input:file}" />
      <param name="note">about {input:file:x}</param>
    </execute>
  </process>
</directive>
```

Read {input:file}, {input:depth} deep.
"""


def test_the_head_may_be_xml() -> None:
    made = read_directive(XML, "review.md")
    filled = made.fill({"file": "${HOME}"})
    talk = made.make_session(filled)
    assert filled.body == "Read ${HOME}, 2 deep."
    assert filled.actions == [
        {
            "primary": "execute",
            "item_type": "tool",
            "item_id": "core/file/read",
            "params": {"path": "${HOME}", "note": "about ${HOME}"},
        }
    ]
    assert "<example>if a < b && ${HOME} </example>" in filled.content
    assert filled.raw.startswith("# Review")
    assert (made.name, made.description, talk.model) == ("review", "Look at a file", "m-1")
    assert talk.tools == ("core/file/*", "team/report", "directive:team/other")
    assert talk.limits == Limits(turns=6, tokens=4096, spend=0.5, seconds=60)
    assert (made.parameters["file"].description, made.parameters["depth"].required) == (
        "The file & its path",
        False,
    )
    assert made.parameters["depth"].default == "2"
    assert talk.schema is not None
    assert talk.schema["required"] == ["ok"]


def test_types_are_checked_there_too() -> None:
    assert "parameter 'depth' must be a whole number" in problems(XML, file="a", depth="deep")
    assert "parameter 'file' is missing: The file & its path" in problems(XML)


PROLOGS = [
    '<?xml version="1.0"?>\n',
    '<?xml version="1.0" encoding="ISO-8859-1"?>',
    "<!-- a note -->\n",
    "<?x?><!-- <other/> -->\n ",
]


@pytest.mark.parametrize("prolog", PROLOGS)
def test_a_head_in_xml_may_stand_behind_a_declaration_and_comments(prolog: str) -> None:
    made = read_directive(f'```xml\n{prolog}<directive name="größe"/>\n```\nGo\n', "review.md")
    assert (made.name, made.fill({}).body) == ("größe", "Go")


def test_a_document_type_before_a_head_is_refused_at_its_place() -> None:
    for written in ("<!DOCTYPE directive>", '<!DOCTYPE d [<!ENTITY a "<directive/>">]>'):
        reported = problems(
            f'```xml\n<?xml version="1.0"?>\n{written}\n<directive name="x"/>\n```\nGo\n'
        )
        assert reported.splitlines()[0] == "review.md:3:1: a document type is not allowed here"


def test_a_head_in_a_comment_is_none_and_a_comment_without_end_is_reported() -> None:
    text = "```xml\n<!-- <directive/> -->\n<other/>\n```\nGo"
    assert directive(text).body == text
    assert (
        problems("```xml\n<!-- <directive/>\n```\nGo")
        .splitlines()[0]
        .startswith("review.md:2:1: this is not XML")
    )


def xml(inside: str) -> str:
    return f'```xml\n<directive name="x">\n{inside}\n</directive>\n```\nGo\n'


BAD_XML = [
    ("<metadata><description>a</metadata>", "review.md:3:27: this is not XML: mismatched tag"),
    ("<inputs><input name='a'>b & c</input></inputs>", "review.md:3:28: this is not XML: not well-formed (invalid token)"),
    ("&lol;", "review.md:3:1: this is not XML: undefined entity"),
    ("<metadata><desciption>a</desciption></metadata>", "review.md:3:11: <desciption> is not known here"),
    ("<metadata><permissions><exec>*</exec></permissions></metadata>", "review.md:3:24: <exec> is not known here"),
    ("<inputs><output name='a'/></inputs>", "review.md:3:9: <output> is not known here"),
    ("<inputs><input name='a' tpye='x'/></inputs>", "review.md:3:9: <input> has no attribute 'tpye'"),
    ("<inputs><input name='a' required='yes'/></inputs>", "review.md:3:9: 'required' must be true or false"),
    ("<inputs><input type='string'/></inputs>", "review.md:3:9: a parameter needs 'name'"),
    ("<metadata><limits max_turns='3'/></metadata>", "review.md:3:11: 'max_turns' does not exist here"),
    ("<metadata><context><system>k</system></context></metadata>", "review.md:3:11: 'context' does not exist here"),
    ("<description>a</description><metadata><description>b</description></metadata>", "review.md:3:39: 'description' is set twice"),
]  # fmt: skip


@pytest.mark.parametrize(("inside", "reported"), BAD_XML)
def test_a_problem_in_xml_is_reported_with_its_place(inside: str, reported: str) -> None:
    assert problems(xml(inside)).splitlines()[0].startswith(reported)


def test_a_document_type_is_refused_so_that_nothing_grows_or_is_fetched() -> None:
    bomb = '<!DOCTYPE d [<!ENTITY a "aaaa"><!ENTITY b SYSTEM "file:///etc/passwd">]>'
    text = f'```xml\n<directive name="x"/>\n{bomb}\n```\nGo'
    assert "this is not XML" in problems(text)
    from plait.core.source import Source
    from plait.lang.directive.xml_head import parse_xml

    written = f"{bomb}<directive>&b;</directive>"
    with pytest.raises(InputError, match="a document type is not allowed here"):
        parse_xml(Source("x", written), 0, len(written))


@pytest.mark.parametrize(
    "inside",
    ["<a>" * 40 + "</a>" * 40, "<a/>" * 6000, "<!--" * 50_000, "<raw>" * 40_000, "x" * 300_000],
)
def test_xml_has_bounds(inside: str) -> None:
    assert problems(xml(inside)).startswith("review.md:")


@given(st.text(alphabet="<>/!-[]&;xml`\n directive raw='\"", max_size=200))
def test_whatever_the_xml_is_it_is_read_or_refused(inside: str) -> None:
    refused: list[str] = []
    try:
        read_directive(xml(inside), "review.md")
    except InputError as error:
        refused = [str(problem) for problem in error.problems]
    assert all(problem.startswith("review.md:") for problem in refused)


# ── as a program ─────────────────────────────────────────────────────────


def test_a_directive_is_one_session(tmp_path: Path) -> None:
    file = tmp_path / "d.md"
    file.write_text("Say hello.")
    loaded = load_file(str(file))
    assert loaded.program.directive is not None
    assert (
        loaded.program.kind,
        loaded.program.phases,
        [step.name for step in loaded.program.children],
    ) == (
        "directive",
        (("agent", 0),),
        ["agent"],
    )
    assert value_of(loaded.program, ToolServices(Scripted(says("hello"))))["output"] == "hello"


def test_the_page_has_the_tables_of_the_format() -> None:
    page = Path(__file__).parents[3] / "docs" / "directives.md"
    _, _, tables = page.read_text("utf-8").partition("## All maps and their fields\n\n")
    assert tables.rstrip() == render_reference(schema.DIRECTIVE)
