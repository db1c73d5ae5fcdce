"""A value is never read as source, whatever it contains and wherever it goes.

The oracle of `fuzz/template_fuzz.py` puts templates together from pieces whose
result it knows; a share of its cases runs here.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.template_fuzz import CHECKS, PROFILES, Case, Piece, check, random_case, run
from plait.core.values import Secret
from plait.template.sinks import render_argv, render_json, render_text, render_url
from plait.template.template import Template, compile_template
from share import examples

HOSTILE = [
    "${a}",
    "{b}",
    "{{b}}",
    "{input:c}",
    "$a",
    "$${a}",
    "\\}",
    "${a:-{b}}",
    "{{input:c}}",
    "}",
    "${",
    "$",
]
hostile_texts = st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=3)), max_size=5).map(
    "".join
)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("checker", dict.fromkeys(CHECKS), ids=lambda checker: checker.__name__)
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chance=st.randoms(use_true_random=False))
def test_what_comes_out_is_known_by_construction(  # type: ignore[no-untyped-def]
    profile: str, checker, chance: random.Random
) -> None:
    assert check(random_case(chance, profile), checker) == []


def test_a_share_of_the_fuzzing_finds_nothing() -> None:
    assert run(6_000, seed=20) == []


def test_the_oracle_notices_a_value_that_is_read_as_source() -> None:
    case = Case("workflow", (Piece("x${a}", "${b}"),), {"a": "${b}", "b": "no"}, {})

    def rescanned(case: Case, template: Template) -> tuple[object, object]:
        again = compile_template(template.render(case.values), case.profile)
        return again.render(case.values), "x${b}"

    assert len(check(case, rescanned)) == 1


SECOND_READINGS = [
    # profile     template                      values                                                       expected
    ("prompt",    "{a} {b}",                    {"a": "{b}", "b": "B"},                                      "{b} B"),
    ("prompt",    "{a}{b}",                     {"a": "{", "b": "b}"},                                       "{b}"),
    ("prompt",    "{{a}} {a}",                  {"a": "{{a}}"},                                              "{a} {{a}}"),
    ("graph",     "<${state.a}>",               {"state": {"a": "{input:s}"}, "inputs": {"s": "secret"}},    "<{input:s}>"),
    ("graph",     "{input:a}",                  {"inputs": {"a": "${state.b}"}, "state": {"b": "B"}},        "${state.b}"),
    ("graph",     "{input:a}{input:b}",         {"inputs": {"a": "${", "b": "x}"}, "x": "X"},                "${x}"),
    ("workflow",  "${a}${b}",                   {"a": "$", "b": "{c}", "c": "C"},                            "${c}"),
    ("workflow",  "$a${b}",                     {"a": "$", "b": "a"},                                        "$a"),
    ("workflow",  "${x:-${a}}",                 {"a": "${b}", "b": "B"},                                     "${b}"),
    ("workflow",  "${x || a}",                  {"a": "$b", "b": "B"},                                       "$b"),
    ("workflow",  "${a | default(x)}",          {"a": "${b}", "b": "B"},                                     "${b}"),
    ("workflow",  "${a | join(',')}",           {"a": ["${b}", "$b"], "b": "B"},                             "${b},$b"),
    ("workflow",  "${a:lines}",                 {"a": ["${b}", "\\}"], "b": "B"},                            "${b}\n\\}"),
    ("workflow",  "${a:-x\\}y}",                {"a": "\\}"},                                                "\\}"),
    ("workflow",  "$${a} ${a}",                 {"a": "$${a}"},                                              "${a} $${a}"),
    ("workflow",  "${json:k:from:a}",           {"a": '{"k": "${b}"}', "b": "B"},                            "${b}"),
    ("config",    "{q} ${KEY}",                 {"q": "${KEY}", "KEY": "no"},                                "${KEY} E"),
    ("config",    "${KEY}",                     {"E": "no"},                                                 "E"),
    ("config",    "{a}{b}",                     {"a": "{b}", "b": "{a}"},                                    "{b}{a}"),
    ("directive", "{input:a} {input:b:x}",      {"inputs": {"a": "{input:b}", "b": "{input:a}"}},            "{input:b} {input:a}"),
]  # fmt: skip


@pytest.mark.parametrize(("profile", "template", "values", "expected"), SECOND_READINGS)
def test_the_known_leaks_do_not_leak(
    profile: str, template: str, values: dict[str, object], expected: str
) -> None:
    assert compile_template(template, profile).render(values, env={"KEY": "E"}) == expected


@given(value=hostile_texts)
def test_a_value_filled_by_stage_one_is_inert_in_stage_two(value: str) -> None:
    template = compile_template({"k": "<{input:v}> ${state.x}", "${k}": ["{input:v}"]}, "graph")
    names = {"a": "A", "b": "B", "state": {"x": "${a}"}, "inputs": {"c": "C", "v": value}}
    staged = template.fill({"inputs": names["inputs"]}, stage=1).fill(names, stage=2)
    assert staged.render(names) == {"k": f"<{value}> ${{a}}", "${k}": [value]}


@given(value=hostile_texts)
def test_a_value_in_an_argument_of_the_environment_is_inert(value: str) -> None:
    template = compile_template(["${A}", "{p}", "${NONE:-{p}}"], "config")
    assert template.render({"p": value}, env={"A": value}) == [value, value, value]


@given(value=hostile_texts)
def test_filling_leaves_the_other_stages_as_placeholders(value: str) -> None:
    first = compile_template("{input:v}|${a}|{input:w}", "graph").fill(
        {"inputs": {"v": value}}, stage=1
    )
    assert list(first.placeholders) == ["a", "input:w"]
    assert (
        first.fill({"a": value}, stage=2).render({"inputs": {"w": value}})
        == f"{value}|{value}|{value}"
    )


def test_a_default_of_an_earlier_stage_keeps_its_later_placeholders() -> None:
    template = compile_template("{input:a:${b}}", "graph")
    assert template.fill({"inputs": {}}, stage=1).fill({"b": [1]}, stage=2).render({}) == [1]
    assert template.fill({"inputs": {}}, stage=1).placeholders == ("b",)


def test_a_default_of_a_later_stage_takes_its_earlier_placeholders() -> None:
    template = compile_template("<${x:-{input:a}}>", "graph")
    assert (
        template.fill({"inputs": {"a": "${b}"}}, stage=1).fill({"b": "B"}, stage=2).render({})
        == "<${b}>"
    )


def test_an_empty_default_beside_a_placeholder_does_not_make_the_placeholder_a_whole_value() -> (
    None
):
    template = compile_template("${x:-}${n}", "workflow")
    assert template.fill({"n": 3}, stage=2).render({}) == template.render({"n": 3}) == "3"


@given(value=hostile_texts.filter(lambda text: "\0" not in text))
def test_sinks_put_a_value_in_place_and_do_not_read_it(value: str) -> None:
    values = {"v": value, "a": "A", "b": "B", "inputs": {"c": "C"}}
    words = [compile_template(word) for word in ("${v}", "-x=${v}", "$v")]
    assert render_argv(words, values) == [value, f"-x={value}", value]
    assert render_text(compile_template("${v}"), values) == value


@given(value=hostile_texts)
def test_json_holds_the_value_as_one_string(value: str) -> None:
    import json

    body = render_json(
        compile_template({"k": "{v}", "n": ["<{v}>"]}, "config"), {"v": value, "a": "A", "b": "B"}
    )
    assert json.loads(body) == {"k": value, "n": [f"<{value}>"]}


def test_a_url_holds_the_value_encoded_and_not_read() -> None:
    template = compile_template("https://h/{v}?q={v}", "config")
    assert (
        render_url(template, {"v": "{a}${B}", "a": "A"})
        == "https://h/%7Ba%7D%24%7BB%7D?q=%7Ba%7D%24%7BB%7D"
    )


def test_a_secret_is_not_read_either() -> None:
    values = {"s": Secret("${a}"), "a": "A"}
    assert render_argv([compile_template("-p${s}")], values) == ["-p${a}"]
    assert compile_template("-p${s}").render(values) == "-p***"
