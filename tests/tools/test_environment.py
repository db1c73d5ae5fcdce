"""What a tool sees, what its author's `${NAME}` reads, and what stays hidden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.secret_names import is_secret, looks_secret, password_in
from plait.tools.chain import Chain
from plait.tools.environment import (
    FIXED,
    DotEnv,
    Environment,
    interpreter_names,
    read_dotenv,
    resolve_environment,
)
from plait.tools.interpreters import SearchPaths
from plait.tools.spaces import Space
from plait.tools.tool_file import EnvConfig, Header, Interpreter, ToolFile


def chain(*configs: EnvConfig | None) -> Chain:
    """A tool and its runtimes."""
    space = Space("project", "/p")
    items = [
        ToolFile(
            "tool", f"t{index}", space, f"/p/t{index}.yaml", b"", "", Header(env_config=config)
        )
        for index, config in enumerate(configs)
    ]
    return Chain(tuple(items), "core/primitives/subprocess")


def resolved(
    *configs: EnvConfig | None,
    host: Mapping[str, str] | None = None,
    dotenv: str = "",
    **context: str,
) -> Environment:
    return resolve_environment(
        chain(*configs),
        host=host or {},
        dotenv=read_dotenv(dotenv, []),
        around=SearchPaths((), host or {}, "/home"),
        context=context,
    )


PYTHON_DOTENV = [
    # line                           name  value
    ("A=1",                          "A",  "1"),
    ("export A=1",                   "A",  "1"),
    ("  A = 1  ",                    "A",  "1"),
    ("A='single $x # no comment'",   "A",  "single $x # no comment"),
    ('A="double \\n line"',          "A",  "double \n line"),
    ("A=value # comment",            "A",  "value"),
    ("A=a=b",                        "A",  "a=b"),
    ("A=",                           "A",  ""),
    ("# A=1\nA=2",                   "A",  "2"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "name", "value"), PYTHON_DOTENV)
def test_an_env_file_is_read_as_python_dotenv_does(text: str, name: str, value: str) -> None:
    assert read_dotenv(text, []).expand({}) == {name: value}


def test_lines_that_are_no_variable_are_known_by_their_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    read = read_dotenv(
        "A=1\nB=\"unclosed\nC=3\n\n# D\nD: two\nE='it''s'\nMODE\nexport F\n1A=1\n}}{{\n", []
    )
    assert (read.expand({})["A"], read.unread) == ("1", (2, 6, 7, 8, 9, 10, 11))
    assert not caplog.records


REFERENCES = [
    # lines                               host                    values
    ("A=1\nB=${A}2",                      {},                     {"A": "1", "B": "12"}),
    ("B=${A}2\nA=1",                      {},                     {"B": "2", "A": "1"}),
    ("A=1\nA=${A}:2",                     {},                     {"A": "1:2"}),
    ("A=${HOST}/x",                       {"HOST": "given"},      {"A": "given/x"}),
    ("A=1\nB=${A}",                       {"A": "given"},         {"A": "1", "B": "1"}),
    ("A=${PLAIT_OF_THIS_PROCESS}!",       {},                     {"A": "!"}),
    ("A=${PLAIT_OF_THIS_PROCESS:-x}",     {},                     {"A": "x"}),
    ("PATH=/evil\nA=${PATH}",             {"PATH": "/bin"},       {"A": "/bin"}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "host", "values"), REFERENCES)
def test_a_value_refers_to_its_file_and_to_the_given_environment_alone(
    text: str, host: dict[str, str], values: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAIT_OF_THIS_PROCESS", "leaked")
    assert read_dotenv(text, []).expand(host) == values
    passed = resolved(EnvConfig(passes=("A",)), host=host, dotenv=text).plain
    assert passed["A"] == {**values, **host}["A"]


REFUSED = [
    "PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME",
    "NODE_OPTIONS", "NODE_PATH", "BASH_ENV", "ENV", "IFS", "PERL5LIB", "RUBYOPT", "GIT_SSH_COMMAND", "PS4",
    "JAVA_TOOL_OPTIONS", "GCONV_PATH", "RYE_PYTHON", "PLAIT_CLAUDE",
]  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_env_file_cannot_set_what_runs_code(name: str) -> None:
    read = read_dotenv(f"{name}=/evil\nCITY=Bonn\n", ["RYE_PYTHON"])
    assert (read.expand({}), read.refused) == ({"CITY": "Bonn"}, (name,))


def test_what_is_allowed_by_name_may_be_set() -> None:
    read = read_dotenv(
        "PYTHONPATH=x\nRYE_PYTHON=y\n", ["RYE_PYTHON"], allowed=frozenset({"PYTHONPATH"})
    )
    assert (read.expand({}), read.refused) == ({"PYTHONPATH": "x"}, ("RYE_PYTHON",))


def test_the_interpreters_of_a_chain_are_known_by_name() -> None:
    config = EnvConfig(Interpreter("system_binary", "RUBY"))
    assert interpreter_names(chain(None, EnvConfig(env={"A": "1"}), config)) == ["RUBY"]


@given(
    st.dictionaries(
        st.sampled_from([*FIXED, "A", "B", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH"]), st.text("ab${}")
    )
)
def test_only_the_fixed_list_and_what_is_declared_reaches_a_tool(host: dict[str, str]) -> None:
    child = resolved(EnvConfig(passes=("A",), env={"MINE": "x"}), host=host).plain
    assert set(child) == {name for name in host if name in FIXED or name == "A"} | {"MINE"}
    assert all(child[name] == host[name] for name in child if name != "MINE")


def test_each_variable_says_where_it_comes_from() -> None:
    environment = resolved(
        EnvConfig(passes=("CITY", "WANTED"), env={"T": "tool"}),
        EnvConfig(env={"R": "runtime", "FROM": "${CITY}"}),
        host={"PATH": "/bin", "WANTED": "x"},
        dotenv="CITY=Bonn\n",
    )
    assert {name: value.origin for name, value in environment.child.items()} == {
        "PATH": "fixed",
        "R": "runtime",
        "FROM": ".env",
        "CITY": ".env",
        "WANTED": "your environment",
        "T": "tool",
    }


def test_context_fills_names_and_the_environment_does_not_read_itself_again() -> None:
    environment = resolved(
        EnvConfig(env={"A": "{project_path}/x", "B": "${RAW}"}),
        host={"RAW": "${HOME} {x}"},
        project_path="/p",
    )
    assert environment.plain == {"A": "/p/x", "B": "${HOME} {x}"}


SECRETS = [
    # host                 .env          declared                              secret names that an author can read
    ({"API_KEY": "k"},     "",           EnvConfig(),                          {"API_KEY"}),
    ({"CITY": "k"},        "",           EnvConfig(),                          set()),
    ({},                   "CITY=k",     EnvConfig(),                          set()),
    ({},                   "CITY_KEY=k", EnvConfig(),                          {"CITY_KEY"}),
    ({},                   "CITY=ghp_0123456789abcdefghij", EnvConfig(),       {"CITY"}),
    ({"CITY": "h"},        "CITY=k",     EnvConfig(),                          set()),
    ({"API_KEY": "k"},     "",           EnvConfig(env={"X": "<${API_KEY}>"}), {"API_KEY", "X"}),
    ({"API_KEY": "k"},     "",           EnvConfig(env={"X": "${API_KEY}", "Y": "${X}!"}), {"API_KEY", "X", "Y"}),
    ({"API_KEY": "k"},     "",           EnvConfig(env={"X": "plain"}),        {"API_KEY"}),
    ({},                   "CITY=k",     EnvConfig(passes=("CITY",)),          set()),
    ({},                   "CITY_KEY=k", EnvConfig(passes=("CITY_KEY",)),      {"CITY_KEY"}),
    ({},                   "CITY_KEY=k", EnvConfig(env={"X": "${CITY_KEY}"}),  {"CITY_KEY", "X"}),
    ({},                   "",           EnvConfig(env={"DB_PASSWORD": "x"}),  {"DB_PASSWORD"}),
]  # fmt: skip


def test_a_password_in_a_url_and_whatever_a_header_declares_are_secret() -> None:
    host = {"DATABASE_URL": "postgres://me:pa55@db/x", "HARMLESS": "s3cret", "CITY": "Bonn"}
    config = EnvConfig(passes=tuple(host), env={"COPY": "${HARMLESS}", "ALSO": "x"})
    space = Space("project", "/p")
    header = Header(env_config=config, secrets=("HARMLESS", "ALSO"))
    tool = ToolFile("tool", "t", space, "/p/t.yaml", b"", "", header)
    environment = resolve_environment(
        Chain((tool,), "core/primitives/subprocess"),
        host=host,
        dotenv=DotEnv(),
        around=SearchPaths((), host, "/home"),
        context={},
    )
    hidden = {"DATABASE_URL", "HARMLESS", "COPY", "ALSO"}
    assert environment.secrets == hidden
    assert {name for name, value in environment.child.items() if value.secret} == hidden


@pytest.mark.parametrize(("host", "dotenv", "config", "secrets"), SECRETS)
def test_what_is_secret_and_what_is_made_of_it(
    host: dict[str, str], dotenv: str, config: EnvConfig, secrets: set[str]
) -> None:
    environment = resolved(config, host=host, dotenv=dotenv)
    assert environment.secrets == secrets
    assert {name for name, value in environment.child.items() if value.secret} == secrets & set(
        environment.child
    )


FORMS = [
    ("8080", False),
    ("test", False),
    ("https://me@host/path", False),
    ("sk-learn", False),
    ("0123456789abcdef0123456789abcdef01234567", False),  # a commit
    ("postgres://me:pa55@db/x", True),
    ("sk-ant-api03-abcdefghijklmnop", True),
    ("ghp_0123456789abcdefghij", True),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIE", True),
    ("eyJhbGciOiJI.eyJzdWIiOiIx.c2ln", True),
    ("AKIAIOSFODNN7EXAMPLE", True),
    ("xoxb-1234567890-abc", True),
    ("Bearer abcdefghijklmnop", True),
]


@pytest.mark.parametrize(("value", "secret"), FORMS)
def test_the_form_of_a_value_says_that_it_is_secret(value: str, secret: bool) -> None:
    assert is_secret("SETTING", value) is secret


SETTINGS = [
    ("MAX_TOKENS", "4096", False),
    ("TOKEN_COUNT", "0", False),
    ("AUTH_ENABLED", "true", False),
    ("TOKENIZERS_PARALLELISM", "False", False),
    ("API_KEY", "", False),
    ("API_TOKEN", "12345678", True),
    ("API_TOKEN", "abc", True),
    ("DB_PASSWORD", "1234", True),
    ("CARD_PIN", "1234", True),
    ("CLIENT_SECRET", "1234", True),
]


@pytest.mark.parametrize(("name", "value", "secret"), SETTINGS)
def test_a_switch_or_a_count_is_no_secret_whatever_it_is_called(
    name: str, value: str, secret: bool
) -> None:
    assert is_secret(name, value) is secret


REACHES = [
    # host                  .env                          chain's env_config             what reaches the tool
    ({},                    "PORT=8080\nAPI_KEY=k",       EnvConfig(),                   {"PORT": "8080"}),
    ({},                    "PORT=8080\nAPI_KEY=k",       EnvConfig(passes=("API_KEY",)), {"PORT": "8080", "API_KEY": "k"}),
    ({},                    "PORT=8080",                  None,                          {}),
    ({"PORT": "9"},         "PORT=8080",                  EnvConfig(),                   {"PORT": "9"}),
    ({"OTHER": "9"},        "PORT=8080",                  EnvConfig(),                   {"PORT": "8080"}),
    ({"DSN": "x://a:b@c"},  "DSN=sqlite",                 EnvConfig(),                   {}),
    ({},                    "PATH=/evil\nPORT=1",         EnvConfig(),                   {"PORT": "1"}),
    ({},                    "PORT=1",                     EnvConfig(env={"PORT": "2"}),  {"PORT": "2"}),
]  # fmt: skip


@pytest.mark.parametrize(("host", "dotenv", "config", "reaches"), REACHES)
def test_what_of_a_dotenv_file_reaches_a_tool(
    host: dict[str, str], dotenv: str, config: EnvConfig | None, reaches: dict[str, str]
) -> None:
    assert resolved(config, host=host, dotenv=dotenv).plain == reaches


NAMES: list[tuple[str, bool]] = [
    ("API_KEY", True), ("APIKEY", True), ("DB_PASSWORD", True), ("github_token", True), ("AUTH", True),
    ("AWS_SECRET_ACCESS_KEY", True), ("PRIVATE_KEY", True), ("GIT_AUTHOR_NAME", False), ("CITY", False),
    ("KEYBOARD", False), ("OPENAI_KEY", True), ("DB_PWD", True), ("SENTRY_DSN", True), ("PWD", False),
    ("OLDPWD", False), ("MONKEY", False), ("KEY", False), ("DATABASE_URL", False),
]  # fmt: skip


URLS = [
    ("postgres://me:pa55@db.example/x", "pa55"),
    ("https://:pa55@host", "pa55"),
    ("https://me@host/a:b@c", None),
    ("https://host:80/path?a=b@c", None),
    ("me:pa55@host", None),
    ("", None),
]


@pytest.mark.parametrize(("value", "password"), URLS)
def test_the_password_of_a_url_is_found(value: str, password: str | None) -> None:
    assert password_in(value) == password


@pytest.mark.parametrize(("name", "secret"), NAMES)
def test_a_secret_is_recognized_by_its_name(name: str, secret: bool) -> None:
    assert looks_secret(name) is secret


def test_no_repr_shows_a_value() -> None:
    environment = resolved(EnvConfig(passes=("API_KEY",)), host={"API_KEY": "hunter2"})
    shown: list[Any] = [environment, environment.child, DotEnv((("A", "hunter2"),))]
    assert "hunter2" not in repr(shown)
    assert environment.child["API_KEY"].display_value == "***"
