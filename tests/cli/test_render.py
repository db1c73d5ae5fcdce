"""`plait render`: one template, and streams of cases."""

from __future__ import annotations

import io
import json
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.cli import main
from share import examples

Capsys = pytest.CaptureFixture[str]

ONE = [
    # arguments                                                             printed
    (["Hello ${n}", "--values", '{"n": "world"}'],                          "Hello world\n"),
    (["${n}", "--values", '{"n": [1, "é", null]}'],                         '[1,"é",null]\n'),
    (["${n}", "--values", '{"n": "line\\n"}'],                              "line\n\n"),
    (["${n}", "--values", '{"n": 7}', "--json"],                            '{"value":7}\n'),
    (["${n}", "--values", '{"n": "${m}", "m": "no"}'],                      "${m}\n"),
    (["${n} $HOME ${HOME}", "--lenient"],                                                "${n} $HOME ${HOME}\n"),
    (["{n}", "--profile", "prompt", "--values", '{"n": true}'],             "true\n"),
    (["{input:k?}|{input:j:d}", "--profile", "directive"],                  "|d\n"),
    (["${A}-{b}", "--profile", "config", "--env", '{"A": "a"}', "--values", '{"b": 1}'], "a-1\n"),
    (["${env.A}", "--env", '{"A": "a"}'],                                   "a\n"),
    (['["${n}", {"${n}": "${n}"}]', "--tree", "--values", '{"n": 1}'],      '[1,{"${n}":1}]\n'),
    (["u/${n}", "--sink", "text", "--values", '{"n": [1]}'],                "u/[1]\n"),
    (["/a/${n}", "--sink", "url", "--values", '{"n": "b c/d"}'],            "/a/b%20c%2Fd\n"),
    (["echo ${n}", "--sink", "shell", "--values", '{"n": "a b"}'],          "echo 'a b'\n"),
    (["--lenient", "--", "-${n}"],                                                       "-${n}\n"),
    (["${t} ${t:json}", "--values", '{"t": "hush"}', "--secret", "t"],      "*** ***\n"),
    (["${t}", "--values", '{"t": {"a": ["hush"]}}', "--secret", "t"],       '{"a":["***"]}\n'),
    (["ls ${t}", "--values", '{"t": "hush"}', "--secret", "t", "--sink", "argv"], '["ls ***"]\n'),
    (["ls ${t}", "--values", '{"t": "hush"}', "--secret", "t", "--sink", "shell"], "ls '***'\n"),
    (["${t}", "--values", '{"t": ["hush"]}', "--secret", "t", "--sink", "json"], '["***"]\n'),
    (["http://h/${t}", "--values", '{"t": "hu sh"}', "--secret", "t", "--sink", "url"], "http://h/***\n"),
    (["a ${t}", "--values", '{"t": "hush"}', "--secret", "t", "--sink", "header"], "a ***\n"),
    (["a ${t}", "--values", '{"t": {"a": "hush"}}', "--secret", "t", "--sink", "env"], 'a {"a":"***"}\n'),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "printed"), ONE)
def test_a_template_is_filled_and_printed(
    arguments: list[str], printed: str, capsys: Capsys
) -> None:
    assert main(["render", *arguments]) == 0
    assert capsys.readouterr() == (printed, "")


def test_values_come_from_a_file_and_from_the_command_line_which_wins(
    tmp_path: Path, capsys: Capsys
) -> None:
    file = tmp_path / "values.json"
    file.write_text('{"a": "file", "b": "file"}')
    assert (
        main(["render", "${a} ${b}", "--values-file", str(file), "--values", '{"b": "line"}']) == 0
    )
    assert capsys.readouterr().out == "file line\n"


def test_a_single_text_sees_the_environment_files_and_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    (tmp_path / "note.txt").write_text("from a file")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLAIT_TEST_NAME", "from the environment")
    template = "${env.PLAIT_TEST_NAME}, ${file:note.txt}, ${cmd:echo from ${x}}"
    assert main(["render", template, "--values", '{"x": "a; command"}']) == 0
    assert capsys.readouterr().out == "from the environment, from a file, from a; command\n"
    assert main(["render", "${PLAIT_TEST_NAME}", "--profile", "config"]) == 0
    assert capsys.readouterr().out == "from the environment\n"


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("é ${n}".encode())))
    assert main(["render", "-", "--values", '{"n": 1}']) == 0
    assert capsys.readouterr().out == "é 1\n"


def test_bytes_that_are_no_utf8_pass_unchanged() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "plait", "render", b"\xff ${n}", "--values", '{"n": 1}'],
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == b"\xff 1\n"


def test_half_of_a_character_pair_is_refused_as_text_and_escaped_as_json(capsys: Capsys) -> None:
    arguments = ["render", "${n}", "--values", '{"n": "\\ud800"}']
    assert main(arguments) == 2
    assert capsys.readouterr().err == (
        "the result holds half of a character pair, which cannot be printed\n"
        "fix: print it escaped, with --json\n"
    )
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"value": "\ud800"}


def test_an_error_for_programs_names_type_place_and_all_names(capsys: Capsys) -> None:
    assert (
        main(["render", "a\n ${x.y} ${z}", "--strict", "--json", "--values", '{"x": {"yy": 1}}'])
        == 2
    )
    assert json.loads(capsys.readouterr().out) == {
        "error": {
            "type": "MissingNamesError",
            "what": "unknown variables 'x.y', 'z'",
            "where": {"file": "<template>", "line": 2, "column": 2},
            "fix": "did you mean 'x.yy'? known here: x.yy, env, uuid",
            "code": "unknown-name",
            "names": ["x.y", "z"],
        }
    }


def test_several_problems_of_one_template_are_all_in_the_json(capsys: Capsys) -> None:
    assert main(["render", "${x:jsn} ${y | uper}", "--json"]) == 2
    problems = json.loads(capsys.readouterr().out)["error"]["problems"]
    assert [problem["code"] for problem in problems] == ["unknown-format", "unknown-filter"]


# ── cases ────────────────────────────────────────────────────────────────


def answers(lines: list[str], tmp_path: Path, capsys: Capsys) -> tuple[int, list[Any]]:
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    status = main(["render", "--cases", str(file)])
    return status, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


CASES = [
    ({"template": "${a}", "values": {"a": {"x": [1]}}},                          {"x": [1]}),
    ({"template": "x"},                                                          "x"),
    ({"template": ["${a}", {"k": "-${a}"}, 3, None], "values": {"a": 1}},        [1, {"k": "-1"}, 3, None]),
    ({"template": "${A}{b}", "profile": "config", "env": {"A": "e"}, "values": {"b": 2}}, "e2"),
    ({"template": "${env.A}", "env": {"A": "e"}},                                "e"),
    ({"template": "${env.HOME}"},                                                "${env.HOME}"),
    ({"template": "${cmd:echo no}${file:/etc/passwd}"},                          "${cmd:echo no}${file:/etc/passwd}"),
    ({"template": "${json:a.0:from:j}", "values": {"j": '{"a": [5]}'}},          5),
    ({"template": ["a b", "${f...}"], "sink": "argv", "values": {"f": ["x", "y z"]}}, ["a b", "x", "y z"]),
    ({"template": {"k": "{v}", "l": "{w}"}, "profile": "config", "sink": "json", "values": {"v": 1}}, '{"k":1}'),
    ({"template": "${gone}", "profile": "graph"},                                ""),
    ({"template": "é${a}", "values": None, "id": "a note"},                      "é${a}"),
]  # fmt: skip


def test_every_case_is_answered_in_its_line(tmp_path: Path, capsys: Capsys) -> None:
    status, found = answers([json.dumps(case) for case, _ in CASES], tmp_path, capsys)
    assert (status, found) == (0, [{"value": value} for _, value in CASES])


BAD_LINES = [
    ("nope",                                          "not-json"),
    ("[1]",                                           "wrong-type"),
    ("{}",                                            "wrong-type"),
    ('{"template": "x", "values": [1]}',              "wrong-type"),
    ('{"template": "x", "strict": 1}',                "wrong-type"),
    ('{"template": "x", "profile": [1]}',             "wrong-type"),
    ('{"template": "x", "sink": {}}',                 "wrong-type"),
    ('{"template": "x", "env": {"A": 1}}',            "wrong-type"),
    ('{"template": "x", "profile": "nope"}',          "unknown-profile"),
    ('{"template": "x", "sink": "nope"}',             "unknown-sink"),
    ('{"template": "${x}", "strict": true}',          "unknown-name"),
    ('{"template": "{x}", "profile": "prompt"}',      "missing-variables"),
    ('{"template": "${x:nope}"}',                     "unknown-format"),
    ('{"template": "eval ${x}", "values": {"x": 1}, "sink": "shell"}', "value-as-code"),
    ('{"template": "${x}", "values": {"x": NaN}}',    "not-json"),
    ('{"template": "${x}", "values": {"x": 1e400}}',  "not-json"),
    ("[" * 100_000,                                   "not-json"),
]  # fmt: skip


def test_a_bad_line_gives_an_error_line_and_the_rest_goes_on(
    tmp_path: Path, capsys: Capsys
) -> None:
    good = '{"template": "x"}'
    lines = [line for bad, _ in BAD_LINES for line in (bad, "", good)]
    status, found = answers(lines, tmp_path, capsys)
    assert status == 2
    assert [answer["error"]["code"] for answer in found[::2]] == [code for _, code in BAD_LINES]
    assert found[1::2] == [{"value": "x"}] * len(BAD_LINES)


def test_a_bad_line_is_placed_by_its_number(tmp_path: Path, capsys: Capsys) -> None:
    _, found = answers(['{"template": "x"}', "", '{"template": nope}'], tmp_path, capsys)
    assert found[1]["error"]["where"] == {
        "file": str(tmp_path / "cases.jsonl"),
        "line": 3,
        "column": 14,
    }


def test_a_line_that_is_no_utf8_is_a_bad_line_too(tmp_path: Path, capsys: Capsys) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_bytes(b'\xff\n{"template": "x"}\n')
    assert main(["render", "--cases", str(file)]) == 2
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["error"]["code"], second) == ("not-utf-8", {"value": "x"})


def test_each_answer_leaves_before_the_next_line_is_read() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "plait", "render", "--cases", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin
    assert process.stdout
    for number in range(3):
        process.stdin.write(
            json.dumps({"template": "${n}", "values": {"n": number}}).encode() + b"\n"
        )
        process.stdin.flush()
        assert select.select([process.stdout], [], [], 30)[0], "no answer within 30 s"
        assert json.loads(process.stdout.readline()) == {"value": number}
    process.stdin.close()
    assert process.wait(timeout=60) == 0
    process.stdout.close()


def test_cases_do_not_warn_about_every_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text('{"template": "${gone}", "profile": "graph"}\n' * 3)
    assert main(["render", "--cases", str(file)]) == 0
    assert caplog.records == []
    assert main(["render", "${gone}", "--profile", "graph", "--lenient"]) == 0
    assert len(caplog.records) == 1


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(50), deadline=None)
@given(value=json_values)
def test_a_whole_value_comes_back_as_it_was_given(value: Any) -> None:
    out, stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), sys.stdout
    sys.stdout = out
    try:
        status = main(["render", "${v}", "--json", "--values", json.dumps({"v": value})])
    finally:
        sys.stdout = stdout
    assert status == 0
    assert json.loads(out.buffer.getvalue()) == {"value": value}


@pytest.mark.parametrize(
    "arguments",
    [
        ["render", "Hello ${name}"],
        ["render", "${name}", "--profile", "graph"],
        ["render", "{name}", "--profile", "config"],
        ["render", '{"a": ["${name}"]}', "--tree"],
        ["sh", "echo ${name}"],
        ["sh", "echo ${name}", "--show"],
        ["sh", "echo ${name}", "--json"],
    ],
)
def test_a_missing_name_is_an_error_unless_it_is_to_be_kept(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    reported = capsys.readouterr()
    assert "name" in reported.err + reported.out
    if arguments[0] == "render":
        assert main([*arguments, "--lenient"]) == 0
