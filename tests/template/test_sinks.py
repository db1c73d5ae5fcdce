"""Where a value becomes bytes: each destination has one rule, and values keep to it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import InputError, LimitError, PlaitError, ValueRefusedError
from plait.core.values import Secret
from plait.template.sinks import (
    NAMES,
    render_argv,
    render_env,
    render_header,
    render_json,
    render_json_value,
    render_text,
    render_url,
    render_words,
    sink_named,
)
from plait.template.template import compile_template

SECRET = Secret("s3cr3t")


def words(template: str, **values: Any) -> list[str]:
    return render_words(compile_template(template), values)


def config(template: Any) -> Any:
    return compile_template(template, "config")


def refusal(template: str, sink: Any, profile: str = "workflow", **values: Any) -> str:
    with pytest.raises(ValueRefusedError) as caught:
        sink(compile_template(template, profile), values)
    return str(caught.value)


# ── argv ─────────────────────────────────────────────────────────────────

ARGV = [
    # template        values                      words
    ("${a}",          {"a": "x y"},               ["x y"]),
    ("${a}",          {"a": ""},                  [""]),
    ("${a}",          {"a": "'\"$(id) `x` \\"},   ["'\"$(id) `x` \\"]),
    ("--n=${a}",      {"a": "a\nb"},              ["--n=a\nb"]),
    ("${a}${b}",      {"a": 1, "b": 2},           ["12"]),
    ("${a}",          {"a": None},                [""]),
    ("${a}",          {"a": True},                ["true"]),
    ("${a}",          {"a": ["x", "y"]},          ['["x","y"]']),
    ("${a...}",       {"a": ["x", "y z"]},        ["x", "y z"]),
    ("${a...}",       {"a": []},                  []),
    ("${a...}",       {"a": [1, None, [2]]},      ["1", "", "[2]"]),
    ("${a...}",       {"a": "xy"},                ["xy"]),
    ("-${a...}",      {"a": ["x"]},               ['-["x"]']),
    ("${a.b...}",     {"a": {"b": ["x"]}},        ["x"]),
    ("${a}",          {},                         ["${a}"]),
    ("${a}",          {"a": SECRET},              ["s3cr3t"]),
    ("-p${a}",        {"a": SECRET},              ["-ps3cr3t"]),
    ("${a...}",       {"a": [SECRET]},            ["s3cr3t"]),
]  # fmt: skip


@pytest.mark.parametrize(("template", "values", "expected"), ARGV)
def test_one_value_is_one_argument(
    template: str, values: dict[str, Any], expected: list[str]
) -> None:
    assert words(template, **values) == expected


def test_a_list_spreads_also_when_an_earlier_stage_filled_it() -> None:
    template = compile_template("${files...}").fill({"files": ["a", "b c"]}, stage=2)
    assert render_words(template, {}) == ["a", "b c"]


def test_an_argument_refuses_nul_and_says_which_placeholder() -> None:
    expected = (
        "<template>:1:3: an argument cannot hold NUL\n1 | x ${a}\n  |   ^^^^\n"
        "fix: remove it from the value, or pass the value through a file or stdin"
    )
    assert refusal("x ${a}", render_words, a="secret\0text") == expected
    assert refusal("${a...}", render_words, a=["ok", "\0"]).startswith(
        "<template>:1:1: an argument cannot hold NUL"
    )


def test_nul_in_the_text_of_the_author_is_refused_too() -> None:
    assert "an argument cannot hold NUL" in refusal("x\0y", render_words)


def test_a_thousand_times_ten_random_byte_strings_reach_a_process_unchanged() -> None:
    chance = random.Random(4)
    values = [bytes(chance.choices(range(1, 256), k=chance.randrange(24))) for _ in range(10_000)]
    show = "import os, sys; print(*[os.fsencode(a).hex() or '-' for a in sys.argv[1:]])"
    plain, part = compile_template("${v}"), compile_template("--x=${v}")
    for start in range(0, len(values), 2_500):
        batch = [os.fsdecode(value) for value in values[start : start + 2_500]]
        argv = [word for text in batch for word in render_argv([plain, part], {"v": text})]
        printed = subprocess.run(
            [sys.executable, "-I", "-c", show, *argv], capture_output=True, check=True, timeout=60
        )
        got = [
            b"" if word == b"-" else bytes.fromhex(word.decode()) for word in printed.stdout.split()
        ]
        assert got == [
            it for value in values[start : start + 2_500] for it in (value, b"--x=" + value)
        ]


# ── url ──────────────────────────────────────────────────────────────────

URLS = [
    # template                         values                  url
    ("https://h/a/{x}",                {"x": "b c"},           "https://h/a/b%20c"),
    ("https://h/{x}/c",                {"x": "a/b"},           "https://h/a%2Fb/c"),
    ("https://h/{x}",                  {"x": "../../etc"},     "https://h/..%2F..%2Fetc"),
    ("https://h/{x}",                  {"x": "%2e%2e"},        "https://h/%252e%252e"),
    ("https://h/{x}",                  {"x": "?q#f"},          "https://h/%3Fq%23f"),
    ("https://h/?q={x}&r=1",           {"x": "a&b=c d+e"},     "https://h/?q=a%26b%3Dc%20d%2Be&r=1"),
    ("https://h?q={x}",                {"x": ""},              "https://h?q="),
    ("https://h/p#{x}",                {"x": "a b"},           "https://h/p#a%20b"),
    ("https://h/?a={x}#{x}",           {"x": ".."},            "https://h/?a=..#.."),
    ("https://h/v{x}.{y}/z",           {"x": 1, "y": 2},       "https://h/v1.2/z"),
    ("https://h/{x}",                  {"x": "é"},             "https://h/%C3%A9"),
    ("https://h/{x}",                  {"x": "a\r\nb\0"},      "https://h/a%0D%0Ab%00"),
    ("/path/{x}",                      {"x": "a/b"},           "/path/a%2Fb"),
    ("/{x}",                           {"x": "/evil.com"},     "/%2Fevil.com"),
    ("https://h/{nope}",               {},                     "https://h/{nope}"),
    ("//h/{x}",                        {"x": "a"},             "//h/a"),
    ("https://h/?t={x}",               {"x": SECRET},          "https://h/?t=s3cr3t"),
]  # fmt: skip


@pytest.mark.parametrize(("template", "values", "expected"), URLS)
def test_a_value_is_encoded_for_its_part_of_the_url(
    template: str, values: dict[str, Any], expected: str
) -> None:
    assert render_url(config(template), values) == expected


ORIGINS = ["{x}", "{x}/path", "https://{x}/", "https://{x}", "https://h{x}/", "https://u:{x}@h/", "{x}://h/", "https:{x}",
           "https:/{x}", "https://h:{x}/", "//{x}/p", "/\\{x}/p", "//h{x}/p", "//{x}", "mailto:{x}", "h/{x}"]  # fmt: skip


@pytest.mark.parametrize("template", ORIGINS)
def test_scheme_and_host_do_not_come_from_a_value(template: str) -> None:
    message = refusal(template, render_url, "config", x="evil.com")
    assert "the scheme and host of a URL may not come from a value" in message
    assert "evil" not in message


@pytest.mark.parametrize(
    "template", ["https://h/{x}", "https://h/{x}/a", "https://h/a/{x}?q", "/a/{x}"]
)
@pytest.mark.parametrize("value", ["", ".", ".."])
def test_a_segment_that_would_move_is_refused(template: str, value: str) -> None:
    assert "a path segment of a URL may not be empty, '.' or '..'" in refusal(
        template, render_url, "config", x=value
    )


def test_bytes_that_are_no_text_are_refused_in_a_url() -> None:
    assert "a URL holds text, not bytes" in refusal(
        "https://h/{x}", render_url, "config", x="\udc80"
    )


DECLARED = [
    ("https://api.test",       "https://api.test/v1/a%2Fb"),
    ("http://h:8080/base",     "http://h:8080/base/v1/a%2Fb"),
]  # fmt: skip


@pytest.mark.parametrize(("base", "expected"), DECLARED)
def test_a_declared_url_may_be_given(base: str, expected: str) -> None:
    template = config("{base}/v1/{x}")
    assert render_url(template, {"base": base, "x": "a/b"}, host_from_value=True) == expected


@pytest.mark.parametrize(
    "base", ["ftp://h", "javascript:x", "h", "https://", "https://u@h", "https://u:p@h/", "https://h\n", "https:///p", "https://h h", "//h", "file:///etc"]
)  # fmt: skip
def test_a_declared_url_is_still_a_url(base: str) -> None:
    with pytest.raises(ValueRefusedError, match="not an http or https URL without user name"):
        render_url(config("{base}/x"), {"base": base}, host_from_value=True)


def test_only_the_first_value_may_be_the_declared_url() -> None:
    with pytest.raises(ValueRefusedError, match="may not come from a value"):
        render_url(
            config("{base}{x}/"), {"base": "https://h", "x": ".evil.com"}, host_from_value=True
        )


@given(value=st.text(min_size=1).filter(lambda text: text not in (".", "..")))
def test_a_value_stays_inside_its_segment(value: str) -> None:
    from urllib.parse import unquote, urlsplit

    try:
        url = render_url(config("https://h/a/{x}/b?q={x}"), {"x": value})
    except ValueRefusedError:
        value.encode("utf-8", "surrogateescape")
        assert not value.isascii()
        return
    split = urlsplit(url)
    assert (split.scheme, split.netloc) == ("https", "h")
    assert [unquote(part) for part in split.path.split("/")] == ["", "a", value, "b"]
    assert unquote(split.query) == f"q={value}"


# ── header, env, text ────────────────────────────────────────────────────


@pytest.mark.parametrize(("char", "name"), [("\r", "CR"), ("\n", "LF"), ("\0", "NUL")])
def test_a_header_refuses_what_would_end_it(char: str, name: str) -> None:
    message = refusal("Bearer ${t}", render_header, t=f"token{char}X-Evil: 1")
    assert message == (
        f"<template>:1:8: a header cannot hold {name}\n1 | Bearer ${{t}}\n  |        ^^^^\n"
        "fix: remove it from the value, or pass the value through a file or stdin"
    )


def test_a_header_and_a_variable_reveal_the_secret_they_need() -> None:
    template = compile_template("Bearer ${t}")
    assert (
        render_header(template, {"t": SECRET})
        == render_env(template, {"t": SECRET})
        == "Bearer s3cr3t"
    )


def test_a_variable_of_the_environment_refuses_nul_alone() -> None:
    assert render_env(compile_template("${a}"), {"a": "x\r\ny"}) == "x\r\ny"
    assert "an environment variable cannot hold NUL" in refusal("${a}", render_env, a="\0")


@pytest.mark.parametrize(
    "template",
    ["${s}", "x ${s}", "${l}", "${m.k}", "${s | upper}", "${l:json}", "${l | join(',')}"],
)
def test_text_never_reveals_a_secret(template: str) -> None:
    values = {"s": SECRET, "l": [SECRET], "m": {"k": SECRET}}
    shown = render_text(compile_template(template), values) + repr(
        compile_template(template).render(values)
    )
    assert "s3cr3t" not in shown.lower()
    assert "***" in shown


@pytest.mark.parametrize(
    "template", ["${s | upper}", "${s:json}", "${l | join(',')}", "${s | trim}", "${s:path}"]
)
def test_what_is_made_of_a_secret_is_a_secret_that_argv_reveals(template: str) -> None:
    [word] = words(template, s=SECRET, l=[SECRET])
    assert "s3cr3t" in word.lower()


# ── json ─────────────────────────────────────────────────────────────────

BODIES: list[tuple[Any, dict[str, Any], Any]] = [
    # template                                      values            body
    ({"a": "{x}"},                                  {},               {}),
    ({"a": "{x}"},                                  {"x": None},      {"a": None}),
    ({"a": "{x}"},                                  {"x": [1]},       {"a": [1]}),
    ({"a": "{x} "},                                 {},               {"a": "{x} "}),
    ({"a": {"b": {"c": "{x}", "d": 1}}},            {},               {"a": {"b": {"d": 1}}}),
    ({"a": {"b": "{x}"}},                           {},               {"a": {}}),
    ({"a": [{"b": "{x}"}, "{x}", "{y}"]},           {"y": 2},         {"a": [{}, 2]}),
    ({"a": "{{x}}"},                                {},               {"a": "{x}"}),
    ({"a": "{x}"},                                  {"x": "{x}"},     {"a": "{x}"}),
    ({"a": "{x}"},                                  {"x": "{y}"},     {"a": "{y}"}),
    ("{x}",                                         {},               None),
    ({"{x}": "{x}"},                                {"x": "k"},       {"{x}": "k"}),
    ({"a": 1.5, "b": None, "c": True},              {},               {"a": 1.5, "b": None, "c": True}),
]  # fmt: skip


@pytest.mark.parametrize(("template", "values", "expected"), BODIES)
def test_an_entry_that_is_one_unresolved_parameter_is_gone(
    template: Any, values: dict[str, Any], expected: Any
) -> None:
    assert render_json_value(config(template), values) == expected
    assert json.loads(render_json(config(template), values)) == expected


def test_json_is_written_once_and_reveals() -> None:
    template = config({"q": 'say "{x}"', "s": "{s}", "é": "{n}"})
    assert render_json(template, {"x": '"}', "s": SECRET, "n": 10**20}) == (
        '{"q":"say \\"\\"}\\"","s":"s3cr3t","é":100000000000000000000}'
    )


def test_other_profiles_keep_what_is_missing_in_json() -> None:
    assert render_json(compile_template({"a": "${x}"}), {}) == '{"a":"${x}"}'


# ── all of them ──────────────────────────────────────────────────────────


def test_the_names_of_the_sinks() -> None:
    assert [sink_named(name) for name in NAMES] == list(NAMES)
    with pytest.raises(InputError) as caught:
        sink_named("headr")
    assert str(caught.value) == (
        "there is no sink 'headr'\nfix: did you mean 'header'? sinks: value, text, argv, shell, json, url, header, env"
    )


@pytest.mark.parametrize("sink", [render_words, render_header, render_env, render_url])
def test_a_sink_for_one_text_refuses_a_tree(sink: Any) -> None:
    with pytest.raises(InputError, match="a single text is needed here"):
        sink(compile_template(["${a}"]), {})


@pytest.mark.parametrize(
    "sink", [render_words, render_header, render_env, render_text, render_json]
)
def test_strict_holds_in_every_sink(sink: Any) -> None:
    with pytest.raises(PlaitError, match="unknown variable 'a'"):
        sink(compile_template("x ${a}"), {}, strict=True)


@pytest.mark.parametrize(
    "sink", [render_words, render_header, render_env, render_text, render_json]
)
def test_many_placeholders_for_one_large_value_meet_a_limit_in_every_sink(sink: Any) -> None:
    for value in ("x" * (1 << 20), ["x" * (1 << 20)]):
        with pytest.raises(LimitError, match="longer than 16,777,216 characters"):
            sink(compile_template("${a} " * 1_000), {"a": value})


def test_a_tree_that_names_one_large_value_often_is_not_written_out() -> None:
    tree = compile_template(["${a}"] * 1_000)
    with pytest.raises(LimitError, match="longer than 16,777,216 characters"):
        render_json(tree, {"a": "x" * (1 << 20)})
    with pytest.raises(LimitError):
        render_json(tree, {"a": [1] * 100_000})


def test_a_url_of_very_many_values_is_built_in_one_pass() -> None:
    url = render_url(config("https://h/" + "/{x}" * 30_000), {"x": "a"})
    assert len(url) == len("https://h/") + 60_000
