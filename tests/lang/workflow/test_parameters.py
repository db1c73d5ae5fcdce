"""What a flow is given: types, conversions, every mistake at once, and no value in a message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.documents import parse
from plait.core.errors import InputError
from plait.core.values import Secret
from plait.lang.environment import FlowEnvironment, load_environment
from plait.lang.flow_text import FlowText
from plait.lang.load import load_flow
from plait.lang.loaded import LoadOptions
from plait.lang.parameters import flow_parameters, resolve_inputs
from plait.schema import Fields
from plait.scope import Scope


def resolved(text: str, **given_values: Any) -> dict[str, Any]:
    return resolve_inputs(flow_parameters(parse(text, "flow.yaml")), given_values).require()


def refusal(text: str, **given_values: Any) -> str:
    with pytest.raises(InputError) as caught:
        resolved(text, **given_values)
    return str(caught.value)


GIVEN = [
    # type       given          value
    ("string",   "5",           "5"),
    ("integer",  "5",           5),
    ("integer",  "-007",        None),
    ("integer",  "007",         7),
    ("integer",  5,             5),
    ("integer",  5.0,           None),
    ("integer",  "5.0",         None),
    ("integer",  True,          None),
    ("number",   "1.5",         1.5),
    ("number",   "5",           5),
    ("number",   "NaN",         None),
    ("number",   "1e400",       None),
    ("boolean",  "true",        True),
    ("boolean",  " TRUE",       True),
    ("boolean",  "False",       False),
    ("boolean",  "yes",         None),
    ("boolean",  1,             None),
    ("array",    "[1, 2]",      [1, 2]),
    ("array",    "1, 2",        None),
    ("array",    ["a"],         ["a"]),
    ("object",   '{"a": 1}',    {"a": 1}),
    ("object",   "[]",          None),
    ("object",   "{",           None),
    ("any",      "5",           "5"),
    ("any",      [1],           [1]),
    ("any",      None,          None),
    ("string",   5,             None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "expected"), GIVEN)
def test_text_becomes_what_the_type_says_and_nothing_is_guessed(
    kind: str, value: Any, expected: Any
) -> None:
    text = f"parameters: {{p: {kind}}}"
    if expected is None and kind != "any":
        assert " must be " in refusal(text, p=value)
    else:
        assert resolved(text, p=value) == {"p": expected}


FORMS = [
    "parameters: {a: , b: {default: 1}}",
    "parameters: [a, {name: b, default: 1}]",
    "parameters: {required: [a], optional: [{name: b, default: 1}]}",
]


@pytest.mark.parametrize("text", FORMS)
def test_three_ways_to_write_the_same(text: str) -> None:
    assert resolved(text, a="x") == {"a": "x", "b": 1}
    assert "parameter 'a' is missing" in refusal(text)


def test_what_need_not_be_given_and_is_not_has_no_value() -> None:
    assert resolved("parameters: {a: {required: false}}") == {}
    assert resolved("parameters: {optional: [a]}") == {}


def test_everything_that_does_not_fit_is_reported_at_once() -> None:
    text = """\
parameters:
  target: {description: what to build}
  count: integer
  mode: {choices: [fast, slow]}
  tag: {pattern: "v[0-9]+"}
"""
    assert refusal(text, count="hunter2", mode="hunter2", tag="xv1x", cuont=1) == (
        "this flow has no parameter 'cuont'\n"
        "fix: did you mean 'count'?\n"
        "flow.yaml:2:3: parameter 'target' is missing: what to build\n"
        "2 |   target: {description: what to build}\n"
        "  |   ^^^^^^\n"
        "fix: pass it with -i target=…\n"
        "flow.yaml:3:3: parameter 'count' must be a whole number\n"
        "3 |   count: integer\n"
        "  |   ^^^^^\n"
        "fix: for example -i count=2\n"
        "flow.yaml:4:3: parameter 'mode' must be one of fast, slow\n"
        "4 |   mode: {choices: [fast, slow]}\n"
        "  |   ^^^^\n"
        "fix: for example -i mode=fast\n"
        "flow.yaml:5:3: parameter 'tag' must be text that matches 'v[0-9]+'\n"
        '5 |   tag: {pattern: "v[0-9]+"}\n'
        "  |   ^^^\n"
        "fix: pass it with -i tag=…"
    )


DECLARED = [
    ("{a: {type: integer, default: x}}",               "the default of parameter 'a' does not fit it"),
    ("{a: {choices: [1, 2], default: 3}}",             "the default of parameter 'a' does not fit it"),
    ("{a: {choices: [1], default: true}}",             "the default of parameter 'a' does not fit it"),
    ("{a: {pattern: '('}}",                            "the pattern of parameter 'a' is"),
    ("[a, {name: a}]",                                 "parameter 'a' is declared twice"),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "message"), DECLARED)
def test_a_declaration_that_contradicts_itself_is_refused(declared: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        flow_parameters(parse(f"parameters: {declared}", "flow.yaml"))
    assert caught.value.what.startswith(message)


def test_a_flow_without_parameters_takes_none() -> None:
    assert (
        refusal("steps: []", a=1)
        == "this flow has no parameter 'a'\nfix: declare it under parameters"
    )


@given(
    st.text(max_size=30),
    st.sampled_from(["string", "number", "integer", "boolean", "array", "object", "any"]),
)
def test_any_text_is_taken_or_refused_without_being_shown(value: str, kind: str) -> None:
    text = f"parameters: {{p: {kind}}}"
    marked = f"{value}\x00hunter2"
    try:
        resolved(text, p=marked)
    except InputError as error:
        message = str(error)
    else:
        message = ""
    assert "hunter2" not in message


# ── environment ──────────────────────────────────────────────────────────


def read(folder: Path, text: str, *, profile: str | None = None, **environ: str) -> FlowEnvironment:
    node = parse(text, str(folder / "flow.yaml"))
    return load_environment(
        Fields("flow", node, Scope()),  # type: ignore[arg-type]
        {"p": "given"},
        profile=profile,
        environ=environ,
    )


def test_values_may_hold_parameters_what_stands_above_them_and_the_environment(
    tmp_path: Path,
) -> None:
    text = "vars: {list: [1, '${p}']}\nenv: {A: '${p}', B: '${A}-${env.HOST}', N: 3, L: '${list[1]}'}\n"
    around = read(tmp_path, text, HOST="h")
    assert around.vars == {"list": [1, "given"]}
    assert around.env == {"A": "given", "B": "given-h", "N": 3, "L": "given"}
    assert around.process_env() == {"A": "given", "B": "given-h", "N": "3", "L": "given"}


def test_layers_of_variables_and_secrets_last(tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("A=file\nB=file\nTOKEN=from-file\nLD_PRELOAD=x\n")
    text = "env_files: a.env\nenv: {B: block, S: block}\nprofiles: {x: {B: profile, description: d}}\nsecrets: {S: TOKEN}\n"
    around = read(tmp_path, text, profile="x")
    assert around.process_env() == {
        "A": "file",
        "B": "profile",
        "TOKEN": "from-file",
        "S": "from-file",
    }
    assert around.names()["S"] == Secret("from-file")
    assert around.refused == ("LD_PRELOAD",)


def test_a_secret_comes_from_a_variable_or_a_file_and_never_shows(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hunter2\n")
    text = "secrets: {A: X, B: {env: X}, C: {file: key}, D: {provider: env, key: X}}"
    around = read(tmp_path, text, X="hunter3")
    assert {name: secret.reveal() for name, secret in around.secrets.items()} == {
        "A": "hunter3", "B": "hunter3", "C": "hunter2", "D": "hunter3",
    }  # fmt: skip
    assert "hunter" not in repr(around.secrets)


MISSING = [
    ("secrets: {A: NOPE}",                  "the secret 'A' comes from the variable NOPE, which is not set"),
    ("secrets: {A: {}}",                    "the secret 'A' has no source"),
    ("env_files: [gone.env]",               "there is no such file"),
    ("env: {A: '${nothing}'}",              "unknown variable 'nothing'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), MISSING)
def test_what_cannot_be_had_is_an_error_with_a_place(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert caught.value.what.startswith(message)
    assert str(caught.value.where).endswith(":1:" + str(caught.value.where).rpartition(":")[2])


def test_a_profile_that_does_not_exist_is_an_error_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no profile 'prd'") as caught:
        read(tmp_path, "profiles: {prod: {A: b}}", profile="prd")
    assert caught.value.fix == "did you mean 'prod'?"


SHOWN: list[tuple[object, frozenset[str] | None, str]] = [
    # given                secrets              the message
    ("46a",                frozenset(),         'parameter \'n\' must be a whole number, got "46a"'),
    ("9" * 60 + "a",       frozenset(),         f'parameter \'n\' must be a whole number, got "{"9" * 39}…"'),
    (1.5,                  frozenset(),         "parameter 'n' must be a whole number, got 1.5"),
    (["x"],                frozenset(),         "parameter 'n' must be a whole number, got a list"),
    (Secret("46a"),        frozenset(),         "parameter 'n' must be a whole number"),
    ("46a",                frozenset({"n"}),    "parameter 'n' must be a whole number"),
    ("46a",                None,                "parameter 'n' must be a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "secrets", "what"), SHOWN)
def test_a_message_shows_the_given_value_but_no_secret(
    value: object, secrets: frozenset[str] | None, what: str
) -> None:
    parameters = flow_parameters(parse("parameters: {n: integer}\n", "flow.yaml"))
    problem = resolve_inputs(parameters, {"n": value}, secrets=secrets).problems["n"]
    assert problem.what == what


def test_a_wrong_choice_suggests_the_nearest() -> None:
    parameters = flow_parameters(parse("parameters: {m: {choices: [fast, slow]}}\n", "flow.yaml"))
    problem = resolve_inputs(parameters, {"m": "fsat"}, secrets=frozenset()).problems["m"]
    assert problem.what == "parameter 'm' must be one of fast, slow, got \"fsat\""
    assert problem.fix == "did you mean 'fast'?"


def test_a_message_does_not_quote_an_input_with_a_declared_secret() -> None:
    """The value of a variable below `secrets`, given for a parameter as well."""
    text = "secrets: {TOKEN: T}\nparameters: {n: integer, m: integer}\nsteps: [{shell: echo}]\n"
    options = LoadOptions("/project", environ={"T": "op3n-sesame-secret"})
    with pytest.raises(InputError) as error:
        load_flow(FlowText(text, "a.yaml"), {"n": "is op3n-sesame-secret", "m": "46a"}, options)
    assert [one.what for one in error.value.problems] == [
        "parameter 'n' must be a whole number",
        "parameter 'm' must be a whole number, got \"46a\"",
    ]
