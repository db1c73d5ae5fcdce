"""A step that writes a file: values stay values in JSON and YAML, and secrets are not written."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.values import Json, Secret
from plait.engine.outcome import Succeeded
from plait.program.actions.write_file import FileFormat, WriteFileAction
from program.fakes import FakeServices, failure_of, new_run, performed, step, text_of
from share import examples


def written(
    content: Json, values: dict[str, Json], format: FileFormat = "text", **fields: Any
) -> str:
    fakes = FakeServices()
    made = WriteFileAction(text_of("out.txt"), text_of(content), format, **fields)
    outcome = performed(step("a", made), new_run(fakes), values)
    assert isinstance(outcome, Succeeded), outcome
    return fakes.files["out.txt"].decode("utf-8", "surrogateescape")


CONTENTS: list[tuple[FileFormat, Json, dict[str, Json], str]] = [
    # format   content                        values                     file
    ("text",   "a ${x}\n",                    {"x": "1"},                "a 1\n"),
    ("text",   "${x}",                        {"x": {"a": 1}},           '{"a":1}'),
    ("text",   "key ${s}",                    {"s": Secret("hunter2")},  "key ***"),
    ("json",   {"a": "${x}"},                 {"x": [1, "b"]},           '{\n  "a": [\n    1,\n    "b"\n  ]\n}\n'),
    ("json",   "${x}",                        {"x": [1]},                "[\n  1\n]\n"),
    ("json",   "${x}",                        {"x": "text"},             '"text"\n'),
    ("json",   '{"n": ${x}}',                 {"x": [1]},                '{\n  "n": [\n    1\n  ]\n}\n'),
    ("json",   '{"n": "is ${x}"}',            {"x": 'a"b\\'},            '{\n  "n": "is a\\"b\\\\"\n}\n'),
    ("json",   '{"${x}": 1}',                 {"x": "k"},                '{\n  "k": 1\n}\n'),
    ("json",   {"k": "${s}"},                 {"s": Secret("hunter2")},  '{\n  "k": "***"\n}\n'),
    ("yaml",   {"b": "${x}", "a": "ü"},       {"x": [1, "no"]},          "b:\n- 1\n- 'no'\na: ü\n"),
    ("yaml",   "${x}",                        {"x": {"a": None}},        "a: null\n"),
    ("yaml",   "${x}",                        {"x": {"\x85": "\u2028"}}, '? "\\N"\n: "\\L"\n'),
    ("yaml",   {"a": "${x}", "b": "${x}"},    {"x": [1]},                "a:\n- 1\nb:\n- 1\n"),
    ("yaml",   "a: [1, 2]\nb: on\n",          {},                        "a:\n- 1\n- 2\nb: 'on'\n"),
]  # fmt: skip


@pytest.mark.parametrize(("format", "content", "values", "expected"), CONTENTS)
def test_a_content_is_written_in_its_format(
    format: FileFormat, content: Json, values: dict[str, Json], expected: str
) -> None:
    assert written(content, values, format) == expected


hostile = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("\"'\\{}[]:,#\n- &*!|>%@`"),
    max_size=30,
)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
data = st.recursive(
    st.none() | st.booleans() | numbers | hostile,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hostile, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(150))
@given(value=data, text=hostile)
def test_a_value_cannot_change_the_shape_of_a_document(value: Json, text: str) -> None:
    values = {"v": value, "t": text}
    tree = {"v": "${v}", "t": "is ${t}"}
    expected = {"v": value, "t": f"is {text}"}
    assert json.loads(written(tree, values, "json")) == expected
    assert json.loads(written('{"v": ${v}, "t": "is ${t}"}', values, "json")) == expected
    assert yaml.safe_load(written(tree, values, "yaml")) == expected


REFUSED: list[tuple[FileFormat, str, str]] = [
    # format   content             message
    ("json",   "{a: ${x}}",        "the content is not JSON; write it as a map instead of a text"),
    ("json",   '{"n": 1e400}',     "the content is not JSON; write it as a map instead of a text"),
    ("json",   "plain text",       "the content is not JSON; write it as a map instead of a text"),
    ("yaml",   "a: ${x}\n",        "text with variables in it cannot be written as YAML: a value could change what it means"),
]  # fmt: skip


@pytest.mark.parametrize(("format", "content", "message"), REFUSED)
def test_a_content_that_is_no_document_is_refused_and_not_written(
    format: FileFormat, content: str, message: str
) -> None:
    fakes = FakeServices()
    made = WriteFileAction(text_of("f"), text_of(content), format)
    failure = failure_of(performed(step("a", made), new_run(fakes), {"x": "1"}))
    assert message in failure.message
    assert failure.kind == "refused"
    assert fakes.files == {}


@pytest.mark.parametrize("format", ["text", "json"])  # YAML has an escape for it
def test_half_a_character_is_refused_and_not_written(format: FileFormat) -> None:
    fakes = FakeServices()
    failure = failure_of(
        performed(
            step("a", WriteFileAction(text_of("f"), text_of("${x}"), format)),
            new_run(fakes),
            {"x": "a\ud800"},
        )
    )
    assert failure.message == (
        "a text holds half of a character pair, which has no bytes\nfix: write both halves, or neither"
    )
    assert failure.kind == "refused"
    assert fakes.files == {}


def test_bytes_that_are_no_text_are_written_as_they_were() -> None:
    assert written("${x}", {"x": "\udcff"}) == "\udcff"


def test_the_path_is_the_output_and_options_reach_the_hand() -> None:
    fakes = FakeServices()
    made = WriteFileAction(text_of("out/${n}..b.txt"), text_of("x"), mode=0o600, create_dirs=True)
    outcome = performed(step("a", made), new_run(fakes), {"n": "a"})
    assert isinstance(outcome, Succeeded)
    assert outcome.value["output"] == "out/a..b.txt"
    assert fakes.asked == [{"write": "out/a..b.txt", "mode": 0o600, "create_dirs": True}]


@pytest.mark.parametrize("name", ["", "  ", "a\0b"])
def test_a_path_without_a_name_is_refused(name: str) -> None:
    fakes = FakeServices()
    made = WriteFileAction(text_of("${name}"), text_of("x"))
    failure = failure_of(performed(step("a", made), new_run(fakes), {"name": name}))
    assert "the path of the file" in failure.message
    assert fakes.files == {}


def test_a_secret_in_plain_text_is_masked_too() -> None:
    fakes = FakeServices()
    run = new_run(fakes, mask=lambda text: text.replace("hunter2", "***"))
    performed(step("a", WriteFileAction(text_of("f"), text_of("${v}"))), run, {"v": "a hunter2"})
    assert fakes.files == {"f": b"a ***"}


def test_bytes_that_are_no_text_are_written_back_as_they_were() -> None:
    fakes = FakeServices()
    performed(
        step("a", WriteFileAction(text_of("f"), text_of("${v}"))),
        new_run(fakes),
        {"v": "caf\udce9"},
    )
    assert fakes.files == {"f": b"caf\xe9"}


SIZES = [
    # content                     what a dry run says of it
    ("${v}",                      "f (4 bytes)"),
    ("${later.x:-none} $later",   "f (11 bytes)"),
    ("${v} ${later.x}",           "f (its size is not known yet)"),
    ({"a": ["${later}"]},         "f (its size is not known yet)"),
    ("${later || v}",             "f (4 bytes)"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "shown"), SIZES)
def test_a_dry_run_writes_nothing_and_says_what_it_would(content: Json, shown: str) -> None:
    fakes = FakeServices()
    run = new_run(fakes, dry_run=True)
    performed(step("a", WriteFileAction(text_of("f"), text_of(content))), run, {"v": "four"})
    assert [one.shown for one in (run.plan_log.steps if run.plan_log else ())] == [shown]
    assert fakes.files == {}
