"""Errors say what, where, and what to do, all at once."""

from __future__ import annotations

import inspect

import pytest

from plait.core import errors
from plait.core.errors import (
    InputError,
    PlaitError,
    Problem,
    PromptTemplateError,
    closest_name,
    format_names,
)
from plait.core.source import Source, Span

SOURCE = Source("flow.yaml", "a: 1\nb: ${itme.path} ${prioritty}\n")
FIRST, SECOND = Span(SOURCE, 8, 20), Span(SOURCE, 21, 33)

SHOWN = [
    (PlaitError("bad"), "bad"),
    (PlaitError("bad", fix="mend it"), "bad\nfix: mend it"),
    (PlaitError("bad", "flow.yaml"), "flow.yaml: bad"),
    (
        PlaitError("bad", FIRST),
        "flow.yaml:2:4: bad\n2 | b: ${itme.path} ${prioritty}\n  |    ^^^^^^^^^^^^",
    ),
    (
        PlaitError("two", FIRST, "mend", also=[SECOND]),
        "flow.yaml:2:4: two\n2 | b: ${itme.path} ${prioritty}\n  |    ^^^^^^^^^^^^ ^^^^^^^^^^^^\nfix: mend",
    ),
]


@pytest.mark.parametrize(("error", "expected"), SHOWN)
def test_an_error_prints_what_where_and_what_to_do(error: PlaitError, expected: str) -> None:
    assert str(error) == expected


def test_an_error_has_its_parts() -> None:
    error = InputError("bad", FIRST, "mend", code="it-is-bad")
    assert (error.what, error.where, error.fix, error.code) == ("bad", FIRST, "mend", "it-is-bad")
    assert error.problems == (Problem("bad", FIRST, "mend", (), "it-is-bad"),)


def test_several_problems_are_one_error_in_the_order_of_their_places() -> None:
    error = InputError.together(
        [Problem("second", SECOND), Problem("nowhere"), Problem("first", FIRST, code="c")]
    )
    assert [problem.what for problem in error.problems] == ["nowhere", "first", "second"]
    assert isinstance(error, InputError)
    assert error.what == "nowhere"
    assert str(error).count("flow.yaml:2:") == 2


TREE = {
    "PlaitError": ("Exception", 1),
    "InputError": ("PlaitError", 2),
    "TemplateError": ("InputError", 2),
    "TemplateSyntaxError": ("TemplateError", 2),
    "MissingNamesError": ("TemplateError", 2),
    "PromptTemplateError": ("TemplateError", 2),
    "ShellRefusedError": ("InputError", 2),
    "ValueRefusedError": ("InputError", 2),
    "DocumentError": ("InputError", 2),
    "ConditionError": ("InputError", 2),
    "LimitError": ("PlaitError", 2),
    "ProcessError": ("PlaitError", 1),
    "GuardianError": ("PlaitError", 1),
    "MachineError": ("PlaitError", 1),
    "InternalError": ("PlaitError", 4),
}


@pytest.mark.parametrize("name", TREE)
def test_the_tree_of_errors_and_their_exit_codes(name: str) -> None:
    kind = getattr(errors, name)
    assert (kind.__base__.__name__, kind.exit_code) == TREE[name]


def test_the_tree_in_the_docstring_names_every_error() -> None:
    classes = [
        name
        for name, it in inspect.getmembers(errors, inspect.isclass)
        if issubclass(it, PlaitError)
    ]
    assert [name for name in classes if name not in (errors.__doc__ or "")] == []


def test_a_prompt_error_carries_what_is_missing() -> None:
    error = PromptTemplateError("say", ["a", "b"], "{a} {b}")
    assert (error.missing_variables, error.template, error.code) == (
        ["a", "b"],
        "{a} {b}",
        "missing-variables",
    )


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("itme", ["name", "item"], "item"),
        ("item", ["item"], "item"),
        ("zzz", ["item"], None),
        ("x", [], None),
        ("uper", ["lower", "upper"], "upper"),
    ],
)
def test_the_nearest_name_is_the_one_that_was_meant(
    name: str, known: list[str], expected: str | None
) -> None:
    assert closest_name(name, known) == expected


def test_a_long_list_of_names_is_cut_with_a_count() -> None:
    assert format_names(["b", "a"]) == "b, a"
    assert format_names([]) == ""
    assert format_names((str(n) for n in range(15)), most=3) == "0, 1, 2 and 12 more"
    assert format_names("abc", most=3) == "a, b, c"
