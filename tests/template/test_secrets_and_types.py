"""Secrets reach the sinks that need them and nothing else; wrong types are our errors; a script's names are its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import plait
from plait.app import api as app
from plait.app.toolbox import sources
from plait.core.values import Json

TOKEN = plait.Secret("TOPSECRET")


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        ('for f in 1 2; do echo "$f"; done', "1\n2\n"),
        ("i=0; i=$((i+1)); echo $i", "1\n"),
        ('echo x | while read -r line; do echo "$line"; done', "x\n"),
    ],
)
def test_a_variable_that_the_script_sets_is_the_scripts_own(script: str, printed: str) -> None:
    assert plait.sh(script, {"f": "V", "i": 9, "line": "L"}).stdout == printed


@pytest.mark.parametrize(
    ("sink", "template", "profile", "expected"),
    [
        ("json", {"a": "Bearer {s}"}, "config", '{"a":"Bearer TOPSECRET"}'),
        ("header", "${q:-Bearer ${s}}", "workflow", "Bearer TOPSECRET"),
        ("argv", ["${q:-x ${s}}"], "workflow", ["x TOPSECRET"]),
        ("text", "${q:-x ${s}} ${s}", "workflow", "*** ***"),
    ],
)
def test_a_secret_in_mixed_text_reaches_the_sink_that_needs_it(
    sink: str, template: Json, profile: str, expected: Json
) -> None:
    assert app.render_to(sink, template, {"s": TOKEN}, profile=profile) == expected


def test_a_failed_command_shows_nothing_that_it_printed(tmp_path: Path) -> None:
    scope = plait.Scope({"s": TOKEN}, sources=sources(tmp_path))
    with pytest.raises(plait.PlaitError) as caught:
        plait.render("${cmd:echo ${s} >&2; exit 1}", scope)
    assert "TOPSECRET" not in str(caught.value)


def test_what_a_command_makes_of_a_secret_is_a_secret(tmp_path: Path) -> None:
    scope = plait.Scope({"s": TOKEN}, sources=sources(tmp_path))
    assert plait.render("x ${cmd:echo ${s}}", scope) == "x ***"


@pytest.mark.parametrize("template", ["${ A }", "${A:?set A}", "${A}", "${A:-x}"])
def test_a_graph_leaves_every_form_of_an_environment_variable(template: str) -> None:
    assert plait.render(template, {"A": 1}, profile="graph") == template


@pytest.mark.parametrize(
    "call",
    [
        lambda: plait.sh("true", timeout="x"),  # type: ignore[arg-type]
        lambda: plait.sh("true", env={"a": 5}),  # type: ignore[dict-item]
        lambda: plait.sh("true", cwd=5),  # type: ignore[arg-type]
        lambda: plait.resolve_prompt("{a}", 5),  # type: ignore[arg-type]
        lambda: plait.render("${A}", {}, env=5, profile="config"),  # type: ignore[arg-type]
        lambda: plait.Secret(5),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_type_is_an_error_of_ours(call: Callable[[], object]) -> None:
    with pytest.raises(plait.PlaitError):
        call()


@pytest.mark.parametrize(
    ("template", "profile", "names", "meant"),
    [
        ("${HOEM}", "config", {}, "did you mean 'HOME'? known here: HOME"),
        (
            "{input:tpoic}",
            "directive",
            {"inputs": {"topic": 1}},
            "did you mean 'input:topic'? known here: input:topic",
        ),
    ],
)
def test_a_missing_name_is_looked_for_where_its_kind_belongs(
    template: str, profile: str, names: dict[str, Json], meant: str
) -> None:
    with pytest.raises(plait.PlaitError) as caught:
        plait.render(template, names, profile=profile, env={"HOME": "/"}, strict=True)
    assert caught.value.fix == meant


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"k": "${NOPE:-{q}}"}, {}),
        ({"k": {"a": ["{q}", "{n}"]}}, {"k": {"a": [3]}}),
    ],
)
def test_values_that_were_not_given_are_left_out_on_every_way(tree: Json, expected: Json) -> None:
    from plait.template.sinks import render_json_value

    assert render_json_value(plait.compile(tree, profile="config"), {"n": 3}) == expected
