"""Rendering is linear in input and output, and bounded: bombs are refused or do not go off."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from string import ascii_lowercase
from typing import Any

import pytest

from plait.core.errors import InputError, LimitError, MissingNamesError
from plait.template.compiled import FEW_PLACEHOLDERS, MAX_OUTPUT
from plait.template.grammar import MAX_TEXT
from plait.template.template import MAX_TREE_DEPTH, compile_template
from share import every

TOO_LONG = "the rendered text is longer than 16,777,216 characters"
MEBIBYTE = 1 << 20


def peak(work: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("profile", "placeholder"), [("workflow", "${%s}"), ("prompt", "{%s}"), ("config", "{%s}")]
)
def test_names_that_name_each_other_do_not_multiply(profile: str, placeholder: str) -> None:
    values = {
        name: (placeholder % after) * 2
        for name, after in zip(ascii_lowercase, ascii_lowercase[1:] + "a", strict=True)
    }
    assert compile_template(placeholder % "a", profile).render(values) == (placeholder % "b") * 2


def test_defaults_in_defaults_do_not_multiply() -> None:
    template = "x"
    for name in ascii_lowercase[:20]:
        template = f"${{{name}:-{template}}}"
    assert compile_template(template).render({}) == "x"


BOMBS: list[tuple[str, str, Any]] = [
    # profile      placeholder         value
    ("config",     "{a}",       "x" * MEBIBYTE),
    ("prompt",     "{a}",       "x" * MEBIBYTE),
    ("workflow",   "${a}",      "x" * MEBIBYTE),
    ("workflow",   "$a ",       "x" * MEBIBYTE),
    ("workflow",   "${a}",      ["x" * 1000] * 1000),
    ("workflow",   "${a:json}", {"k": "x" * MEBIBYTE}),
    ("workflow",   "${n:-${a}}", "x" * MEBIBYTE),
]  # fmt: skip


@pytest.mark.parametrize(
    ("profile", "placeholder", "value"),
    BOMBS,
    ids=lambda it: it if isinstance(it, str) and len(it) < 20 else "value",
)
def test_many_placeholders_for_one_large_value_are_refused_before_memory_is_gone(
    profile: str, placeholder: str, value: Any
) -> None:
    template = compile_template(placeholder * 1_000, profile)

    def bomb() -> None:
        with pytest.raises(LimitError) as caught:
            template.render({"a": value})
        assert caught.value.what == TOO_LONG
        assert caught.value.code == "output-too-long"

    assert peak(bomb) < 100 * MEBIBYTE


def test_the_whole_of_the_greatest_template_is_refused_too() -> None:
    template = compile_template("{a}" * 300_000, "config")
    with pytest.raises(LimitError, match=TOO_LONG):
        template.render({"a": "x" * 100_000})
    assert len(template.render({"a": "x"})) == 300_000


def test_a_tree_is_counted_as_one() -> None:
    template = compile_template([["x${a}"] * 50] * 50)
    with pytest.raises(LimitError, match=TOO_LONG):
        template.render({"a": "x" * MEBIBYTE})


def test_few_placeholders_may_carry_large_values() -> None:
    value = "x" * (MAX_OUTPUT + 1)
    assert compile_template("<${a}>").render({"a": value}) == f"<{value}>"
    assert compile_template("${a}").render({"a": value}) is value


def test_so_many_placeholders_are_counted() -> None:
    distinct = [f"${{a{number}}}" for number in range(FEW_PLACEHOLDERS + 1)]
    assert not compile_template("".join(distinct[:FEW_PLACEHOLDERS])).counted
    assert compile_template("".join(distinct)).counted
    assert compile_template("${a}${a}").counted
    assert not compile_template("${a.b}${a.c}").counted
    assert compile_template("${a.b}${a}").counted
    assert compile_template(["${a} ", " ${a}"]).counted
    assert compile_template(["${a}", "${a}"]).counted
    assert not compile_template(["${a}", "${b}"]).counted


def test_a_tree_nests_so_deep_and_no_deeper() -> None:
    tree: Any = "${a}"
    for _ in range(MAX_TREE_DEPTH + 1):
        tree = [tree]
    compile_template(tree)
    with pytest.raises(LimitError, match="this value is nested more than 100 levels deep"):
        compile_template([tree])
    for _ in range(100_000):
        tree = [tree]
    with pytest.raises(LimitError):
        compile_template(tree)


OPENERS = ["${", "{", "{{", "$${", "${a:-", "{input:", "${file:", "${'", "$", "\\{"]


@pytest.mark.share
@pytest.mark.parametrize(
    ("profile", "opener"),
    [(profile, opener) for profile in ("workflow", "graph", "config") for opener in OPENERS][
        :: every(3)
    ],
)
def test_a_mebibyte_of_openers_is_text(profile: str, opener: str) -> None:
    text = (opener * MEBIBYTE)[: MEBIBYTE // len(opener) * len(opener)]
    assert len(text) <= MAX_TEXT
    rendered = compile_template(text, profile).render({})
    assert rendered == (
        text.replace("$${", "${") if opener == "$${" and profile != "directive" else text
    )


def test_very_many_missing_names_are_reported_without_guessing_at_each() -> None:
    template = compile_template(" ".join(f"${{missing_{n}}}" for n in range(20_000)))
    with pytest.raises(MissingNamesError) as caught:
        template.render({f"missing-{n}": n for n in range(2_000)}, strict=True)
    assert len(caught.value.names) == 20_000


def test_names_that_are_no_strings_are_no_names() -> None:
    values: Any = {1: 2, None: 3, "b": {4: 5}}
    with pytest.raises(MissingNamesError) as caught:
        compile_template("${a}").render(values, strict=True)
    assert caught.value.fix == "known here: b, env, uuid"


@pytest.mark.parametrize("values", [None, 1, "x", ["a"], {1}])
def test_values_that_are_no_map_are_refused(values: Any) -> None:
    with pytest.raises(InputError, match="values are a map of names"):
        compile_template("${a}").render(values)


def test_a_required_name_is_required_in_every_stage() -> None:
    for profile in ("workflow", "graph"):
        template = compile_template("${a:?say who}", profile)
        for use in (template.render, lambda values, it=template: it.fill(values, stage=2)):
            with pytest.raises(MissingNamesError) as caught:
                use({})
            assert caught.value.what == "'a' is required: say who"
