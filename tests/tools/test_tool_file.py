"""Headers: typed, complete, and with every problem reported at its place."""

from __future__ import annotations

from typing import Any

import pytest

from plait.core.errors import DocumentError
from plait.core.source import Source, Span
from plait.tools.tool_file import (
    INFORMATIONAL,
    Anchor,
    ConfigResolve,
    Constraint,
    Entry,
    EnvConfig,
    Header,
    Interpreter,
    VerifyDeps,
    parse_header,
)

SOURCE = Source("t.yaml", "key: value\n")
HERE = Span(SOURCE, 0, 3)


def header(**keys: Any) -> Header:
    return parse_header({key: Entry(value, HERE) for key, value in keys.items()})


READ = [
    # key                  value                                          what it becomes
    ("executor_id",        "a/b",                                         "a/b"),
    ("version",            "1.10",                                        "1.10"),
    ("version",            2,                                             "2"),
    ("config",             {"a": [1]},                                    {"a": [1]}),
    ("config_schema",      {"type": "object"},                            {"type": "object"}),
    ("inputs",             ["a", "b"],                                    ("a", "b")),
    ("inputs",             {"a": {"type": "string"}},                     ("a",)),
    ("outputs",            [{"name": "text"}, "files"],                   ("text", "files")),
    ("config_resolve",     "a/b.yaml",                                    (ConfigResolve("a/b.yaml"),)),
    ("config_resolve",     {"path": "a", "mode": "first_match"},          (ConfigResolve("a", "first_match"),)),
    ("config_resolve",     [{"path": "a"}, "b"],                          (ConfigResolve("a"), ConfigResolve("b"))),
    ("child_constraints",  {"a": {"min_version": "1.0"}},                 {"a": Constraint("1.0")}),
    ("child_constraints",  {"a": {"min_version": None, "max_version": 2}}, {"a": Constraint(None, "2")}),
    ("anchor",             {"mode": "always", "lib": "lib"},              Anchor(mode="always", lib="lib")),
    ("anchor",             {"enabled": False},                            Anchor(enabled=False)),
    ("verify_deps",        {"scope": "tool_dir", "recursive": False},     VerifyDeps(scope="tool_dir", recursive=False)),
    ("env_config",         {"env": {"A": 1, "B": True, "C": None}},       EnvConfig(env={"A": "1", "B": "true", "C": ""})),
    ("env_config",         {"passes": ["HOME"]},                          EnvConfig(passes=("HOME",))),
    ("env_config",         {"interpreter": {"type": "system_binary", "var": "RUBY", "binary": "ruby"}},
                           EnvConfig(Interpreter("system_binary", "RUBY", binary="ruby"))),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "expected"), READ)
def test_a_key_is_read_with_its_type(key: str, value: Any, expected: Any) -> None:
    assert getattr(header(**{key: value}), key) == expected


@pytest.mark.parametrize("key", sorted(Header.__dataclass_fields__))
def test_null_is_as_if_the_key_were_not_there(key: str) -> None:
    assert header(**{key: None}) == Header()


@pytest.mark.parametrize("key", sorted(INFORMATIONAL))
def test_what_others_write_for_people_changes_nothing(key: str) -> None:
    assert header(**{key: {"any": ["thing"]}}) == Header()


WRONG = [
    # keys                                              what                                                 fix
    ({"executor": "a"},                                 "'executor' is not a key of a tool",                 "did you mean 'executor_id'?"),
    ({"executor_id": 3},                                "'executor_id' is text",                             'write executor_id: "…"'),
    ({"version": 1.1},                                  "'version' is text",                                 'write version: "…"'),
    ({"version": True},                                 "'version' is text",                                 'write version: "…"'),
    ({"config": []},                                    "'config' is a map",                                 "write 'config:' and its keys below"),
    ({"inputs": "text"},                                "'inputs' is a list of names",                       "write inputs: [text, files]"),
    ({"anchor": {"mode": "sometimes"}},                 "'anchor.mode' is one of auto, always, never, not 'sometimes'", "known: always, auto, never"),
    ({"anchor": {"marker_any": []}},                    "'marker_any' is not a key of anchor",               "did you mean 'markers_any'?"),
    ({"anchor": {"env_paths": {"P": {"prefix": []}}}},  "'prefix' is not a key of anchor.env_paths.P",       "known: append, prepend"),
    ({"verify_deps": {"extensions": ".py"}},            "'verify_deps.extensions' is a list of text",        "write it as [a, b]"),
    ({"config_resolve": {"path": "a", "mode": "merge"}}, "'config_resolve.mode' is one of deep_merge, first_match, not 'merge'", "did you mean 'deep_merge'?"),
    ({"config_resolve": 3},                             "'config_resolve' names a 'path' below config/",     "write {path: team/report.yaml}"),
    ({"child_constraints": {"a": "1.0"}},               "'child_constraints.a' is a map",                    "write {min_version: 1.0.0}"),
    ({"child_constraints": {"a": {"min_version": 1.10}}}, "'child_constraints.a.min_version' is text",       'write min_version: "1.10"'),
    ({"anchor": {"enabled": "yes"}},                    "'anchor.enabled' is true or false",                 "write enabled: true"),
    ({"anchor": {"search_up": 1}},                      "'anchor.search_up' is true or false",               "write search_up: true"),
    ({"anchor": {"lib": 3}},                            "'anchor.lib' is text",                              'write lib: "…"'),
    ({"verify_deps": {"enabled": "true"}},              "'verify_deps.enabled' is true or false",            "write enabled: true"),
    ({"verify_deps": {"recursive": 0}},                 "'verify_deps.recursive' is true or false",          "write recursive: true"),
    ({"env_config": {"interpreter": {"type": "command", "var": "X", "version": 3.1}}},
     "'interpreter.version' is text",                   'write version: "…"'),
    ({"env_config": {"pases": []}},                     "'pases' is not a key of env_config",                "did you mean 'passes'?"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "what", "fix"), WRONG)
def test_what_is_wrong_is_reported_with_its_fix(keys: dict[str, Any], what: str, fix: str) -> None:
    with pytest.raises(DocumentError) as caught:
        header(**keys)
    assert str(caught.value) == f"t.yaml:1:1: {what}\n1 | key: value\n  | ^^^\nfix: {fix}"


def test_all_wrong_things_of_a_header_come_together() -> None:
    with pytest.raises(DocumentError) as caught:
        header(
            executor="a",
            config=[],
            anchor={"mode": "x", "y": 1},
            env_config={"interpreter": {"type": "magic", "var": "X"}},
        )
    whats = [problem.what for problem in caught.value.problems]
    assert len(whats) == 6
    assert any("is one of local_binary, system_binary" in what for what in whats)
    assert {problem.code for problem in caught.value.problems} == {"bad-header"}
