"""Items: every source and format, what is chosen and in which order, keys, and what is refused."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.documents import Mapping, parse
from plait.core.errors import DocumentError, InputError, LimitError, MissingNamesError, PlaitError
from plait.core.records import replace
from plait.core.values import Json
from plait.program.items import (
    Selection,
    compile_json_path,
    compile_order,
    formats,
    item_facts,
    item_key,
    read_input,
    read_items,
    read_selection,
    select,
    sorting,
    with_keys,
)
from plait.program.items.json_stream import stream_elements
from plait.program.items.keys import CompactIntSet
from plait.scope import Scope
from plait.scope.expressions import compile_filter
from plait.template.compiled import FACTS
from plait.template.template import Template, compile_template
from share import examples


def no_command(command: Template) -> Iterator[bytes]:
    raise AssertionError(f"{command!r} was run")


def printing(*chunks: bytes) -> Any:
    return lambda _: iter(chunks)


def items(
    text: str, directory: Path, *, run: Any = no_command, values: dict[str, Json] | None = None
) -> list[Json]:
    """The items of a map, written as in a file."""
    node = parse(text, "flow.yaml")
    assert isinstance(node, Mapping)
    selection = read_selection(node)
    input_node = node.get("input")
    assert input_node is not None
    found = read_items(
        read_input(input_node),
        directory=str(directory),
        run_command=run,
        values=values,
        json_path=selection.json_path,
    )
    return list(select(found, replace(selection, json_path=None)))


def wrong(
    text: str, directory: Path, *, run: Any = no_command, values: dict[str, Json] | None = None
) -> PlaitError:
    with pytest.raises(PlaitError) as caught:
        items(text, directory, run=run, values=values)
    return caught.value


FILES = [
    # file          content                              said beside the input        items
    ("a.json",      '[1, {"a": 2}]',                     "",                          [1, {"a": 2}]),
    ("a.json",      '[]',                                "",                          []),
    ("a.json",      ' \n[ 1 , 2 ]\n',                    "",                          [1, 2]),
    ("a.json",      '\ufeff[1]',                         "",                          [1]),
    ("a.json",      '[12345678901234567890123, 0.1]',    "",                          [12345678901234567890123, 0.1]),
    ("a.json",      '{"items": [1, 2]}',                 "json_path: $.items[*]",     [1, 2]),
    ("a.json",      '{"items": [1, 2]}',                 "json_path: $.items",        [1, 2]),     # the list it names
    ("a.json",      '{"x": {"items": [[1]]}, "y": 2}',   "json_path: $.x.items[*]",   [[1]]),
    ("a.json",      '{"item": 5}',                       "json_path: $[*]",           [5]),        # values of a map, RFC 9535
    ("a.json",      '{"items": null}',                   "json_path: $.items[*]",     []),
    ("a.json",      '{"items": [{"a": 1}, {}]}',         "json_path: $.items[*].a",   [1]),
    ("a.json",      '{"a.b": {"item": [1]}}',            "json_path: \"$['a.b'].item[*]\"", [1]),
    ("a.json",      '{"i": [{"s": 5}, {"s": 1}]}',       "json_path: '$.i[?@.s > 2]'", [{"s": 5}]),
    ("a.json",      '{"i": [{"s": 5}, {"s": 1}], "m": 2}', "json_path: '$.i[?@.s > $.m].s'", [5]), # looks at the root
    ("a.json",      '{"a": {"x": 1}, "b": [{"x": 2}]}',  "json_path: $..x",           [1, 2]),
    ("a.json",      '[1, 2, 3, 4]',                      "json_path: '$[1:3]'",       [2, 3]),
    ("a.json",      '{"i": ["ab", "b"]}',                "json_path: \"$.i[?match(@, 'a.')]\"", ["ab"]),
    ("a.json",      '{"i": ["ab", "b"]}',                "json_path: \"$.i[?search(@, '(')]\"", []),
    ("a.json",      '{"n": 1}\n{"n": 2}\n',              "",                          [{"n": 1}, {"n": 2}]),  # recognized by its lines
    ("a.jsonl",     '{"n": 1}\n\n[2]\n"x"\n3\n',         "",                          [{"n": 1}, [2], "x", 3]),
    ("a.ndjson",    '{"n": 1}',                          "",                          [{"n": 1}]),
    ("a.jsonl",     '{"n": 1}\n{"n": 2}\n',              "json_path: $[*].n",         [1, 2]),
    ("a.jsonl",     '{"n": 1}\n{"n": 2}\n',              "json_path: $[1]['n','n']",  [2, 2]),
    ("a.csv",       'a,b\n1,"x, ""y"""\n\n2,\n',         "",                          [{"a": "1", "b": 'x, "y"'}, {"a": "2", "b": ""}]),
    ("a.csv",       '\ufeffa,b\r\n1,"2\n3"\r\n',         "",                          [{"a": "1", "b": "2\n3"}]),
    ("a.csv",       '',                                  "",                          []),
    ("a.txt",       'one\n\n  two \r\n3',                "",                          ["one", "  two ", "3"]),
    ("list",        'a b\n$(touch x)\n',                 "",                          ["a b", "$(touch x)"]),
    ("list",        '1\n2\n',                            "",                          ["1", "2"]),  # never guessed
    ("list",        '[1,\n2]',                           "",                          [1, 2]),
    ("list",        '[1]\n[2]\n',                        "",                          [[1], [2]]),
    ("a[1].txt",    'x',                                 "",                          ["x"]),       # a file that exists is no glob
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "beside", "expected"), FILES)
def test_a_file_is_read_by_its_name_and_its_first_character(
    tmp_path: Path, name: str, content: str, beside: str, expected: list[Json]
) -> None:
    (tmp_path / name).write_text(content, "utf-8", newline="")
    found = items(f"input: '{name}'\n{beside}", tmp_path)
    assert found == expected
    assert [type(item) for item in found] == [type(item) for item in expected]


COMMANDS = [
    # output                          said beside                  items
    (b'[1, 2]',                       "",                          [1, 2]),
    (b'{"n": 1}\n{"n": 2}\n',         "",                          [{"n": 1}, {"n": 2}]),
    (b'{"n": 1}\n',                   "",                          [{"n": 1}]),             # one line is one item
    (b'{"n": [1, 2]}\n',              "json_path: $.n[*]",         [1, 2]),                 # a document
    (b'{"n": 1}\n',                   "json_path: $[*].n",         [1]),                    # lines
    (b'{\n"n": [1]}\n',               "json_path: $.n[*]",         [1]),
    (b'a.py\nb.py\n',                 "",                          ["a.py", "b.py"]),
    (b'',                             "",                          []),
]  # fmt: skip


@pytest.mark.parametrize(("output", "beside", "expected"), COMMANDS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_command_prints_items_in_pieces_of_any_size(
    tmp_path: Path, output: bytes, beside: str, expected: list[Json], size: int
) -> None:
    pieces = [output[at : at + size] for at in range(0, len(output), size)]
    assert (
        items(f"input: {{command: make list}}\n{beside}", tmp_path, run=printing(*pieces))
        == expected
    )


def test_a_command_is_handed_on_as_a_template_so_that_its_values_are_bound(tmp_path: Path) -> None:
    seen: list[str] = []

    def run(command: Template) -> Iterator[bytes]:
        seen.extend(command.placeholders)
        return iter([b"x\n"])

    assert items(
        "input: {command: 'ls ${dir}', format: text}", tmp_path, run=run, values={"dir": "; rm"}
    ) == ["x"]
    assert seen == ["dir"]


def test_a_declared_format_wins(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("a,b\n1,2\n")
    assert items("input: {file: a.json, format: csv}", tmp_path) == [{"a": "1", "b": "2"}]
    assert items("input: {file: a.json, format: text}", tmp_path) == ["a,b", "1,2"]


def test_items_may_stand_in_the_file(tmp_path: Path) -> None:
    assert items("input: [a, {b: '${x}'}, 3]", tmp_path, values={"x": [1]}) == ["a", {"b": [1]}, 3]
    assert items("input: {items: [1, 2]}", tmp_path) == [1, 2]
    assert items("input: {items: [{n: 1}]}\njson_path: $[*].n", tmp_path) == [1]


def test_a_placeholder_may_hold_the_list_or_the_name(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[7]")
    assert items("input: ${found}", tmp_path, values={"found": [1, 2]}) == [1, 2]
    assert items("input: ${found}", tmp_path, values={"found": "a.json"}) == [7]
    with pytest.raises(MissingNamesError):
        items("input: ${fuond}", tmp_path, values={"found": "a.json"})
    assert wrong("input: ${found}", tmp_path, values={"found": 3}).code == "bad-input"


# Globs.


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "a.py",
        "b.txt",
        "src/c.py",
        "src/sub/d.py",
        "src/sub/sub/e.py",
        ".hidden/f.py",
        "src/.g.py",
        "x[1]/h.py",
        "x1/h.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "src" / "loop").symlink_to(tmp_path / "src")
    (tmp_path / "out").symlink_to("/etc")
    return tmp_path


GLOBS = [
    ("*.py",             ["a.py"]),
    ("./*.py",           ["a.py"]),
    ("**/*.py",          ["a.py", "src/c.py", "src/sub/d.py", "src/sub/sub/e.py", "x1/h.py", "x[1]/h.py"]),
    ("src/**",           ["src/c.py", "src/sub/d.py", "src/sub/sub/e.py"]),
    ("src/**/sub/**/*.py", ["src/sub/d.py", "src/sub/sub/e.py"]),       # each once
    ("src/.*.py",        ["src/.g.py"]),
    ("*/h.py",           ["x1/h.py", "x[1]/h.py"]),
    ("?.???",            ["b.txt"]),
    ("[ab].*",           ["a.py", "b.txt"]),
    ("[!a].*",           ["b.txt"]),
    ("src/*/",           ["src/loop", "src/sub"]),
    ("*.rs",             []),
    ("*/passwd",         []),                                           # a link to the outside is not followed
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "expected"), GLOBS)
def test_a_glob_gives_sorted_paths_as_text(tree: Path, pattern: str, expected: list[str]) -> None:
    assert items(f"input: '{pattern}'", tree) == expected
    assert items(f"input: {{glob: '{pattern}'}}", tree) == expected


def test_a_value_in_a_glob_is_no_pattern(tree: Path) -> None:
    assert items("input: '${dir}/*.py'", tree, values={"dir": "x[1]"}) == ["x[1]/h.py"]
    assert items("input: {glob: '${p}'}", tree, values={"p": "x[1]/*.py"}) == [
        "x1/h.py"
    ]  # said to be one
    assert (
        wrong("input: ${p}", tree, values={"p": "*.py"}).what
        == "'${p}' is text here, but not the name of a file"
    )


@pytest.mark.parametrize("pattern", ["../*", "/etc/*", "src/../../*", "out/*"])
def test_a_glob_stays_in_the_project(tree: Path, pattern: str) -> None:
    assert wrong(f"input: {{glob: '{pattern}'}}", tree).code == "file-outside"
    spec = read_input(parse(f"{{glob: '{tree}/*.py'}}", "flow.yaml"))
    allowed = read_items(spec, directory="/", run_command=no_command, allow_outside=True)
    assert list(allowed) == [f"{tree}/a.py"]


def test_a_glob_in_a_folder_that_is_not_there_is_an_error(tree: Path) -> None:
    assert wrong("input: scr/*.py", tree).what == "the folder of this glob does not exist"


# What is refused.


def test_a_misspelt_file_is_an_error_and_never_run(tmp_path: Path) -> None:
    (tmp_path / "items.json").write_text("[]")
    assert str(wrong("input: itmes.json", tmp_path)) == (
        "flow.yaml:1:8: there is no file 'itmes.json'\n"
        "1 | input: itmes.json\n"
        "  |        ^^^^^^^^^^\n"
        "fix: did you mean 'items.json'? to run a command, write input: {command: …}"
    )
    assert wrong("input: find . -name x", tmp_path).code == "command-input"
    assert wrong("input: 'ls; touch pwned'", tmp_path).code == "command-input"


def test_a_file_outside_the_project_is_refused_however_it_is_named(tmp_path: Path) -> None:
    outside, project = tmp_path / "data.json", tmp_path / "project"
    outside.write_text("[1]")
    project.mkdir()
    (project / "link.json").symlink_to(outside)
    for name in ("../data.json", str(outside), "link.json"):
        assert wrong(f"input: {name}", project).code == "file-outside"
        spec = read_input(parse(name, "flow.yaml"))
        assert list(
            read_items(spec, directory=str(project), run_command=no_command, allow_outside=True)
        ) == [1]


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    assert wrong("input: pipe", tmp_path).what == "'pipe' is a pipe or device, not a file"
    assert wrong("input: folder", tmp_path).fix == "for the files in it write folder/*"


CONTENTS = [
    # file        content                      beside                     place: what
    ("a.json",    '{"rows": [1], "n": 2}',     "",                        "a.json: a list of items was expected in it, but there is a map"),
    ("a.json",    '{"rows": [1]}',             "json_path: $.items[*]",   "a.json: there is nothing at '$.items[*]'"),
    ("a.json",    '{"rows": [1]}',             "json_path: $.rows.x[*]",  "a.json: there is nothing at '$.rows.x[*]'"),
    ("a.json",    '{"rows": {"a": 1}}',        "json_path: $.rows",       "a.json: a list of items was expected at '$.rows', but there is a map"),
    ("a.json",    '{"rows": [[1], 2]}',        "json_path: '$.rows[1]'",  "a.json: a list of items was expected at '$.rows[1]', but there is a number"),
    ("a.json",    '{"rows": 3}',               "json_path: $.rows[*]",    "a.json: a list of items was expected at '$.rows[*]', but there is a number"),
    ("a.json",    '"text"',                    "",                        "a.json: a list of items was expected in it, but there is a string"),
    ("a.json",    '',                          "",                        "a.json:1:1: a value is missing here"),
    ("a.json",    '[1, 2',                     "",                        "a.json:1:6: a ',' or a closing bracket is missing here"),
    ("a.json",    '[1,\n  {"a": tru}]',        "",                        "a.json:2:9: a value is missing here"),
    ("a.json",    '[1 2]',                     "",                        "a.json:1:4: a ',' or a closing bracket is missing here"),
    ("a.json",    '[1,]',                      "",                        "a.json:1:4: a value is missing here"),
    ("a.json",    '[1] x',                     "",                        "a.json:1:5: this stands after the end of the data"),
    ("a.json",    '[\n{"a": 1, "a": 2}]',      "",                        "a.json:2:2: the key 'a' stands twice in one object, again at line 2"),
    ("a.json",    '[1e999]',                   "",                        "a.json:1:2: this number is too large"),
    ("a.json",    f'[{"1" * 5000}, 2]',         "",                        "a.json:1:2: this value contains a number with too many digits"),
    ("a.json",    '[NaN]',                     "",                        "a.json:1:2: infinity and NaN are not JSON data"),
    ("a.json",    '["\\ud800"]',               "",                        "a.json:1:2: this string holds half of a character pair"),
    ("a.json",    '{"i": [1], "i": [2]}',      "json_path: $.i[*]",       "a.json:1:16: a key stands twice in one object"),
    ("a.json",    '{"i": [1], x}',             "json_path: $.i[*]",       "a.json:1:12: a key in double quotes is missing"),
    ("a.json",    '{"i" [1]}',                 "json_path: $.i[*]",       "a.json:1:6: a ':' is missing after the key"),
    ("a.json",    '[' * 70 + ']' * 70,         "",                        "a.json:1:66: this is nested deeper than 64 levels"),
    ("a.jsonl",   '{"a": 1}\n{"a": \n',        "",                        "a.jsonl:2:7: a value is missing here"),
    ("a.jsonl",   '1\n2 3\n',                  "",                        "a.jsonl:2:3: this stands after the end of the data"),
    ("a.csv",     'a,b\n1,2\n1,2,3\n',         "",                        "a.csv:3: this row has 3 fields, and the header has 2"),
    ("a.csv",     'a,a\n1,2\n',                "",                        "a.csv:1: the first row does not give every column a unique name"),
    ("a.csv",     'a,b\n1,"2\n',               "",                        "a.csv:2: the quotes of this row cannot be read"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "beside", "expected"), CONTENTS)
def test_a_file_that_cannot_be_read_is_an_error_with_its_place(
    tmp_path: Path, name: str, content: str, beside: str, expected: str
) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    error = wrong(f"input: {name}\n{beside}", tmp_path)
    assert f"{error.where}: {error.what}" == expected
    assert error.fix


UNREADABLE = [
    # printed            said beside      where in the output, and what
    (b"[1,\n 2 3]",     "",              ", line 2, column 4: a ',' or a closing bracket is missing here"),
    (b'{"n": 1}\n{"n"', ", format: jsonl", ", line 2, column 5: "),
    (b"a,b\n1\n",      ", format: csv", ", line 2: this row has 1 fields, and the header has 2"),
    (b"ok\n\xff\n",   ", format: text", ", line 2: this line is not UTF-8"),
    (b'["\xff"]',       "",              ": byte 2 of this file is not UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("printed", "beside", "expected"), UNREADABLE)
def test_output_that_cannot_be_read_is_an_error_with_the_place_of_the_command_and_its_own(
    tmp_path: Path, printed: bytes, beside: str, expected: str
) -> None:
    with pytest.raises(PlaitError) as raised:
        items(f"input: {{command: make list{beside}}}", tmp_path, run=printing(printed))
    error = raised.value
    assert str(error.where) == "flow.yaml:1:18"
    assert error.what.startswith(f"the output of this command cannot be read{expected}")
    assert error.fix


def test_output_that_cannot_be_read_is_drawn_where_the_command_stands(tmp_path: Path) -> None:
    with pytest.raises(PlaitError) as raised:
        items("input: {command: make list}", tmp_path, run=printing(b"[1 2]"))
    assert str(raised.value) == (
        "flow.yaml:1:18: the output of this command cannot be read, line 1, column 4: "
        "a ',' or a closing bracket is missing here\n"
        "1 | input: {command: make list}\n"
        "  |                  ^^^^^^^^^\n"
        "fix: separate the values by ','; or set its format"
    )


def test_the_fix_names_the_list_that_may_be_meant(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 2, "rows": [1]}')
    assert (
        wrong("input: a.json", tmp_path).fix
        == "say where the list is, for example json_path: $.rows[*]"
    )


def test_bytes_that_are_no_text_are_an_error_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"ok\n\xff\n")
    error = wrong("input: a.txt", tmp_path)
    assert f"{error.where}: {error.what}" == "a.txt:2: this line is not UTF-8"
    (tmp_path / "a.json").write_bytes(b'["\xff"]')
    assert wrong("input: a.json", tmp_path).what == "byte 2 of this file is not UTF-8"


def test_a_name_with_a_value_in_it_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "hidden.json").write_text("[1 2]")
    for name in ("hidden", "hiddem"):
        assert "hidde" not in str(wrong("input: ${a}.json", tmp_path, values={"a": name}))


BAD_INPUTS = [
    # input                             what
    ("3",                               ["an input is text, a list or a map"]),
    ("{fiel: a}",                       ["this input names no source", "'fiel' is not a field of a map input"]),
    ("{file: a, glob: b}",              ["'file' and 'glob' cannot be combined in one input"]),
    ("{file: a, format: jsn}",          ["there is no such format"]),
    ("{glob: a, format: json}",         ["only a file or a command has a format"]),
    ("{file: [a]}",                     ["'file' is text"]),
    ("{command: ''}",                   ["'command' is text"]),
    ("{items: a}",                      ["'items' is a list"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "whats"), BAD_INPUTS)
def test_an_input_that_means_nothing_is_refused_with_everything_that_is_wrong(
    text: str, whats: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        read_input(parse(text, "flow.yaml"))
    assert sorted(problem.what for problem in caught.value.problems) == sorted(whats)


def test_all_problems_of_a_selection_are_reported_at_once() -> None:
    node = parse(
        "json_path: $.items[\nfilter: score >\nsort_by: a DSC, b\ndistinct: 'a b'\noffset: -1\nmax_items: true\n",
        "flow.yaml",
    )
    assert isinstance(node, Mapping)
    with pytest.raises(InputError) as caught:
        read_selection(node)
    assert [problem.place[1] for problem in caught.value.problems] == [1, 2, 3, 4, 5, 6]
    assert str(caught.value.problems[2]) == (
        "flow.yaml:3:12: this order cannot be read\n"
        "3 | sort_by: a DSC, b\n"
        "  |            ^^^\n"
        "fix: did you mean DESC? write field [ASC|DESC] [NULLS FIRST|LAST], with a comma before the next"
    )


@pytest.mark.parametrize(
    "path", ["items", "$.", "$[", "$.a[?@.b >]", "$[?nope(@)]", "$" + "[0]" * 400, ""]
)
def test_a_json_path_that_is_none_is_refused_when_the_file_is_loaded(path: str) -> None:
    with pytest.raises((InputError, LimitError)) as caught:
        compile_json_path(path)
    assert "json_path:1:" in str(caught.value)


# Streams.


@settings(max_examples=examples(150))
@given(
    st.lists(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
            max_leaves=5,
        ),
        max_size=5,
    ),
    st.integers(1, 7),
    st.booleans(),
    st.sampled_from([None, 2]),
)
def test_a_list_is_streamed_as_it_would_be_loaded(
    found: list[Json], size: int, ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(
        {"before": [1, {"a": found}], "a": {"b": found}, "after": "x"},
        ensure_ascii=ascii_only,
        indent=indent,
    )
    pieces = iter([text[at : at + size] for at in range(0, len(text), size)])
    assert list(stream_elements(pieces, compile_json_path("$.a.b[*]"), "x")) == found


def test_an_early_mistake_is_found_without_reading_on() -> None:
    def texts() -> Iterator[str]:
        yield '[{"a": 1}, {"a" 2}' + ", 3" * 100
        raise AssertionError("read on")

    with pytest.raises(DocumentError, match="a ':' is missing after the key"):
        list(stream_elements(texts(), None, "x"))


def test_items_come_before_the_input_has_ended(tmp_path: Path) -> None:
    def run(_: Template) -> Iterator[bytes]:
        yield b"a\nb\n" * 3
        raise AssertionError("read on")

    spec = read_input(parse("{command: x, format: text}", "flow.yaml"))
    found = read_items(spec, directory=str(tmp_path), run_command=run)
    assert [next(found) for _ in range(5)] == ["a", "b", "a", "b", "a"]


def test_limits_hold() -> None:
    lines = iter([b"x" * (1 << 20)] * (formats.MAX_LINE // (1 << 20) + 1))
    with pytest.raises(LimitError, match="a line is longer than 16,777,216 bytes"):
        list(formats.parse_items(lines, "x", form="text", file="", path=None))
    whole, path = iter([b"[" + b"1," * 10]), compile_json_path("$..a")
    with pytest.raises(LimitError, match="needs the whole input, which is larger than 20 bytes"):
        list(formats.parse_items(whole, "x", form="json", file="", path=path, most=20))
    texts = iter(['["', *["x" * 8] * 5, '"]'])
    with pytest.raises(LimitError, match="one value of this file is larger than 20 characters"):
        list(stream_elements(texts, None, "x", most=20))


# Choosing.

ROWS: list[Json] = [
    {"n": 3, "k": "a"},
    {"n": None, "k": "b"},
    {"n": 1, "k": "a"},
    {"k": "c"},
    {"n": 2, "k": "b"},
    {"n": 1, "k": "d"},
]

CHOICES = [
    # selection                                                  n, k of what is chosen
    ("filter: n >= 2",                                           "3a 2b"),
    ("sort_by: n",                                               "1a 1d 2b 3a -b -c"),
    ("sort_by: n DESC",                                          "3a 2b 1a 1d -b -c"),      # null is last here, too
    ("sort_by: n desc nulls first",                              "-b -c 3a 2b 1a 1d"),
    ("sort_by: n NULLS FIRST",                                   "-b -c 1a 1d 2b 3a"),
    ("sort_by: item.n NULLS LAST, k DESC",                       "1d 1a 2b 3a -c -b"),
    ("sort_by: k DESC, n",                                       "1d -c 2b -b 1a 3a"),
    ("distinct: k",                                              "3a -b -c 1d"),
    ("distinct: n",                                              "3a -b 1a 2b"),            # missing is null
    ("offset: 4",                                                "2b 1d"),
    ("max_items: 2",                                             "3a -b"),
    ("offset: 1\nmax_items: 2",                                  "-b 1a"),
    ("max_items: 0",                                             ""),
    ("filter: n > 0\nsort_by: n\ndistinct: n\noffset: 1\nmax_items: 1", "2b"),              # in this order
    ("sort_by: n\nmax_items: 3",                                 "1a 1d 2b"),
    ("json_path: '$[?@.n == 1]'\nsort_by: k DESC",               "1d 1a"),
    ("json_path: '$[-1:]'",                                      "1d"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), CHOICES)
def test_items_are_chosen_in_the_documented_order(text: str, expected: str) -> None:
    node = parse(text, "flow.yaml")
    assert isinstance(node, Mapping)
    chosen = select(iter(ROWS), read_selection(node))
    assert (
        " ".join(f"{'-' if row.get('n') is None else row['n']}{row['k']}" for row in chosen)
        == expected
    )


def test_distinct_may_look_at_the_whole_item() -> None:
    found: list[Json] = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1.5}, "x", "x"]
    assert list(select(found, Selection(distinct=()))) == [{"a": 1, "b": 2}, {"a": 1.5}, "x"]


def test_kinds_have_an_order() -> None:
    found: list[Json] = [{"a": 1}, [1, 2], [0], "b", "a", 2, 1.5, True, False, None]
    assert list(compile_order("item").sort_items(found)) == [
        False,
        True,
        1.5,
        2,
        "a",
        "b",
        [0],
        [1, 2],
        {"a": 1},
        None,
    ]


def test_text_that_spells_a_number_is_sorted_as_one() -> None:
    csv: list[Json] = [
        {"n": "10"},
        {"n": "9"},
        {"n": "b"},
        {"n": "-1.5"},
        {"n": ""},
        {"n": "1_0"},
        {"n": 9.5},
    ]
    assert [item["n"] for item in compile_order("n").sort_items(csv)] == [
        "-1.5",
        "9",
        9.5,
        "10",
        "1_0",
        "b",
        "",
    ]
    assert [item["n"] for item in compile_order("n DESC").sort_items(csv)][:2] == ["b", "1_0"]
    assert [item["n"] for item in compile_order("n DESC").sort_items(csv)][-1] == ""
    assert next(item["n"] for item in compile_order("n NULLS FIRST").sort_items(csv)) == ""


rows = st.lists(
    st.fixed_dictionaries(
        {"i": st.integers(0, 3)},
        optional={"s": st.none() | st.text(max_size=2) | st.integers(0, 2)},
    ),
    max_size=30,
)


@settings(max_examples=examples(60), deadline=None)
@given(
    rows,
    st.sampled_from(["s", "s DESC", "i DESC, s NULLS FIRST", "s DESC NULLS FIRST, i"]),
    st.integers(0, 40),
)
def test_sorting_in_runs_is_sorting(found: list[Json], text: str, first: int) -> None:
    order = compile_order(text)
    tagged = [{**row, "at": at} for at, row in enumerate(found)]
    expected = sorted(tagged, key=order.key)  # stable, as Python's is
    assert list(sorting._merge_sort(iter(tagged), order.key, 3)) == expected
    assert list(order.sort_items(iter(tagged))) == expected
    assert list(order.sort_items(iter(tagged), first=first)) == expected[:first]


def test_a_filter_compares_the_numbers_of_a_csv_as_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("path,score\na,9\nb,10\nc,\nd,5\ne,many\n")
    chosen = items("input: a.csv\nfilter: score > 5 && score != 9.5", tmp_path)
    assert [row["path"] for row in chosen] == ["a", "b"]


def test_a_filter_is_one_of_the_language_of_expressions() -> None:
    assert list(
        select(["a.rs", "b.py"], Selection(filter=compile_filter("path matches '[.]rs$'")))
    ) == ["a.rs"]


# Facts and keys.


def test_a_line_prints_itself_and_has_facts() -> None:
    scope = Scope({"item": "src/a.py", "item" + FACTS: item_facts("src/a.py")})
    template = compile_template("${item} ${item.value} ${item.path} ${item.name}")
    assert template.render(scope, strict=True) == "src/a.py src/a.py src/a.py a.py"


IDS = [
    # item                      id                       key
    ({"a": "x/y z"},            "${item.a}",             "x%2Fy%20z"),
    ({"a": 1, "b": "é"},        "${item.a}-${item.b}",   "1-é"),
    ("src/a.py",                "${item.name}",          "a.py"),
    ({"a": ".."},               "${item.a}",             "%2E%2E"),
    ({"a": "."},                "${item.a}",             "%2E"),
    ({"a": "a#2~@%\n"},         "${item.a}",             "a%232%7E%40%25%0A"),
    ({"a": "x" * 65},           "${item.a}",             "x" * 51 + "~9537c5fdf120"),
]  # fmt: skip


@pytest.mark.parametrize(("item", "template", "key"), IDS)
def test_an_id_is_one_safe_segment_of_a_path(item: Json, template: str, key: str) -> None:
    assert item_key(item, compile_template(template)) == key


def test_without_an_id_equal_data_has_an_equal_key() -> None:
    assert item_key({"a": 1, "b": [2]}) == item_key({"b": [2], "a": 1})
    assert item_key("1") != item_key(1)
    assert len(item_key(None)) == 12


def test_equal_keys_are_numbered() -> None:
    assert [key for key, _ in with_keys(["a", "b", "a", "a"], compile_template("${item}"))] == [
        "a",
        "b",
        "a#2",
        "a#3",
    ]
    assert [key[12:] for key, _ in with_keys([1, 1, 2, 1])] == ["", "#2", "", "#3"]


@given(st.lists(st.integers(0, (1 << 64) - 1) | st.integers(0, 9)))
def test_numbers_are_a_set(added: list[int]) -> None:
    numbers, seen = CompactIntSet(), set[int]()
    for number in added:
        assert numbers.add(number) is (number not in seen)
        seen.add(number)


def test_the_keys_of_many_items_take_little_memory() -> None:
    numbers, chance = CompactIntSet(), Random(1)
    tracemalloc.start()
    try:
        for _ in range(50_000):
            numbers.add(chance.getrandbits(48))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 50_000 * 40  # a set of them takes a hundred bytes each


def test_an_id_that_an_item_does_not_have_is_an_error() -> None:
    with pytest.raises(MissingNamesError):
        item_key({"b": 1}, compile_template("${item.a}"))
    with pytest.raises(InputError, match="the id of an item is empty"):
        item_key({"a": ""}, compile_template("${item.a}"))


@given(st.lists(st.text(min_size=1, max_size=80)))
def test_keys_are_safe_and_differ(ids: list[str]) -> None:
    keys = [key for key, _ in with_keys(ids, compile_template("${item}"))]
    assert len(set(keys)) == len(ids)
    assert all(
        key and "/" not in key and key not in (".", "..") and len(key) < 80 and key.isprintable()
        for key in keys
    )
