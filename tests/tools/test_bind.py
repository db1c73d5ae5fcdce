"""From a chain and parameters to what a primitive gets."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import (
    InputError,
    LimitError,
    PlaitError,
    ShellRefusedError,
    ValueRefusedError,
)
from plait.core.records import replace
from plait.core.values import Secret
from plait.tools.bind import bind
from plait.tools.bind_common import BindRequest
from plait.tools.chain import Chain
from plait.tools.environment import Environment, EnvValue
from plait.tools.invocation import (
    FunctionCall,
    HttpRetry,
    Invocation,
    McpCall,
    ProcessCall,
    RequestCall,
)
from plait.tools.spaces import Space
from plait.tools.tool_file import Header, ToolFile

HOST = {"CITY": "Bonn", "API_KEY": "hunter2", "BASE": "https://api.example/v1"}
ENVIRONMENT = Environment({"PATH": EnvValue("/bin", "fixed")}, HOST, secrets=frozenset({"API_KEY"}))


def bound(
    primitive: str,
    config: dict[str, Any],
    params: dict[str, Any] | None = None,
    path: str | None = None,
    **context: str,
) -> Invocation:
    item = ToolFile(
        "tool", "t", Space("project", "/p"), "/p/t.yaml", b"code", "digest", Header(config=config)
    )
    chain = Chain((item,), f"core/primitives/{primitive}")
    environment = ENVIRONMENT
    if path is not None:
        environment = replace(ENVIRONMENT, child={"PATH": EnvValue(path, "fixed")})
    return bind(
        BindRequest(chain, params or {}, {"project_path": "/p", **context}, environment, "/p", "/p")
    )


def process(
    config: dict[str, Any],
    params: dict[str, Any] | None = None,
    path: str | None = None,
    **context: str,
) -> ProcessCall:
    call = bound("subprocess", {"command": "cat", **config}, params, path, **context)
    assert isinstance(call, ProcessCall)
    return call


def request(config: dict[str, Any], params: dict[str, Any] | None = None) -> RequestCall:
    call = bound("http_client", {"url": "https://x.example/", **config}, params)
    assert isinstance(call, RequestCall)
    return call


def mcp(config: dict[str, Any], params: dict[str, Any] | None = None) -> McpCall:
    call = bound("mcp", {"tool_name": "add", **config}, params)
    assert isinstance(call, McpCall)
    return call


# ── a process ────────────────────────────────────────────────────────────

ARGUMENTS = [
    # command and args                                         argv
    ({"command": "echo hello 'two words'"},                    ["echo", "hello", "two words"]),
    ({"command": "echo ${CITY}"},                              ["echo", "Bonn"]),
    ({"command": "echo {x}"},                                  ["echo", "a b"]),
    ({"command": "echo ${NO:-it's a default}"},                ["echo", "it's a default"]),
    ({"command": "two words", "args": ["x"]},                  ["two words", "x"]),
    ({"command": "echo", "args": ["{l}", "-{l}"]},             ["echo", "1", "b", '-[1,"b"]']),
    ({"command": "echo", "args": [1, 2.5, True, None]},        ["echo", "1", "2.5", "true", ""]),
    ({"command": "echo", "args": ["{none}", "{unset}"]},       ["echo", ""]),
    ({"command": "echo", "args": ["a{unset}", "{k}"], "k": "{unset}"},  ["echo", "a{unset}"]),
    ({"command": "echo {unset} b"},                            ["echo", "b"]),
]  # fmt: skip


@pytest.mark.parametrize(("config", "argv"), ARGUMENTS)
def test_arguments(config: dict[str, Any], argv: list[str]) -> None:
    assert list(process(config, {"x": "a b", "l": [1, "b"], "none": None}).argv) == argv


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_a_value_is_one_argument_whatever_it_holds(value: str) -> None:
    config = {"command": "run 'a b' -- {x}", "input_data": "{params_json}"}
    call = process(config, {"x": value})
    assert list(call.argv) == ["run", "a b", "--", value]
    assert json.loads(call.stdin) == {"x": value}


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_a_value_in_a_script_travels_by_a_variable(value: str) -> None:
    try:
        call = process({"command": "sh", "args": ["-c", 'printf %s "{x}"']}, {"x": value})
    except PlaitError:
        return
    assert list(call.argv)[:2] == ["sh", "-c"]
    assert value in call.env.values()
    assert (
        process({"command": "sh", "args": ["-c", 'printf %s "{x}"']}, {"x": "other"}).argv
        == call.argv
    )


@pytest.mark.parametrize(
    ("option", "is_script"),
    [
        ("-c", True),
        ("-lc", True),
        ("-ce", True),
        ("-l", False),
        ("--l", False),
        ("-l1", False),
        ("c", False),
    ],
)
def test_after_which_option_a_script_follows(option: str, is_script: bool) -> None:
    call = process({"command": "sh", "args": [option, "echo {x}"]}, {"x": "value"})
    assert ("value" in call.env.values()) == is_script
    assert (call.argv[2] == "echo value") != is_script


SCRIPTS = [
    # command and args                                                 which of the words is a script
    ({"command": "bash", "args": ["-c", "-e", "echo {x}"]},            3),
    ({"command": "bash", "args": ["-c", "-o", "pipefail", "echo {x}"]}, 4),
    ({"command": "bash", "args": ["-euo", "pipefail", "-c", "echo {x}"]}, 4),
    ({"command": "bash", "args": ["--rcfile", "f", "-c", "echo {x}"]}, 4),
    ({"command": "bash", "args": ["-c", "+x", "echo {x}"]},            3),
    ({"command": "bash", "args": ["-c", "--", "echo {x}"]},            3),
    ({"command": "rbash", "args": ["-c", "echo {x}"]},                 2),
    ({"command": "/bin/mksh", "args": ["-c", "echo {x}"]},             2),
    ({"command": "busybox", "args": ["sh", "-c", "echo {x}"]},         3),
    ({"command": "env", "args": ["-i", "A=b", "dash", "-c", "echo {x}"]}, 5),
    ({"command": "xargs", "args": ["-n1", "sh", "-c", "echo {x}"]},    4),
    ({"command": "find", "args": [".", "-exec", "sh", "-c", "echo {x}", ";"]}, 5),
    ({"command": "{shell}", "args": ["-c", "echo {x}"]},               2),
]  # fmt: skip


@pytest.mark.parametrize(("config", "place"), SCRIPTS)
def test_every_script_of_a_shell_gets_its_values_by_variables(
    config: dict[str, Any], place: int
) -> None:
    call = process(config, {"x": "$(id)", "flag": "-c", "shell": "bash"})
    assert "$(id)" not in call.argv[place]
    assert "echo" in call.argv[place]
    assert "$(id)" in call.env.values()


def test_a_link_to_a_shell_is_that_shell(tmp_path: Path) -> None:
    (tmp_path / "quiet").symlink_to("/bin/sh")
    for command in (str(tmp_path / "quiet"), "quiet"):
        call = process(
            {"command": command, "args": ["-c", "echo {x}"]}, {"x": "$(id)"}, path=str(tmp_path)
        )
        assert "$(id)" not in call.argv[2]
        assert "$(id)" in call.env.values()


CODE = [
    {"command": "python3", "args": ["-c", 'print("{x}")']},
    {"command": "/usr/bin/python3.11", "args": ["-I", "-c", 'print("{x}")']},
    {"command": "python3", "args": ["-W", "ignore", "-Sc", 'print("{x}")']},
    {"command": "python3", "args": ["-cprint('{x}')"]},
    {"command": "python3", "args": ["{flag}", "print('{x}')"]},
    {"command": "python3", "args": ["{both}"]},
    {"command": "perl", "args": ["-e", "print '{x}'"]},
    {"command": "perl", "args": ["-I", "lib", "-ne", "print '{x}'"]},
    {"command": "node", "args": ["-e", "console.log('{x}')"]},
    {"command": "node", "args": ["--eval=console.log('{x}')"]},
    {"command": "node", "args": ["-r", "m", "-p", "'{x}'"]},
    {"command": "ruby", "args": ["-e", "puts '{x}'"]},
    {"command": "php", "args": ["-r", "echo '{x}';"]},
    {"command": "deno", "args": ["eval", "console.log('{x}')"]},
    {"command": "awk", "args": ["/{x}/ { print $1 }", "file"]},
    {"command": "gawk", "args": ["-F", ":", "-v", "a=b", "/{x}/", "file"]},
    {"command": "gawk", "args": ["--source", "/{x}/"]},
    {"command": "sed", "args": ["-n", "s/a/{x}/", "file"]},
    {"command": "sed", "args": ["--expression=s/a/{x}/", "file"]},
    {"command": "env", "args": ["-S", "bash -c {x}"]},
    {"command": "env", "args": ["python3", "-c", "'{x}'"]},
    {"command": "fish", "args": ["-c", "echo {x}"]},
    {"command": "su", "args": ["me", "-c", "echo {x}"]},
    {"command": "ssh", "args": ["-p", "22", "host", "ls {x}"]},
    {"command": "watch", "args": ["ls {x}"]},
    {"command": "python3", "args": ["-c", "{code}"], "code": "print('{x}')"},
    {"command": "python3", "args": ["-c", "print('${CITY}')"]},
    {"command": "python3", "args": ["-c", "print('{project_path}')"]},
]


@pytest.mark.parametrize("config", CODE)
@pytest.mark.parametrize("x", ["'); import os #", None])
def test_no_value_becomes_code_of_another_interpreter(
    config: dict[str, Any], x: str | None
) -> None:
    given = {} if x is None else {"x": x}
    with pytest.raises(ShellRefusedError) as caught:
        process(config, {"flag": "-c", "both": ["-c", "1"], **given})
    assert caught.value.code == "value-as-code"
    assert "import os" not in str(caught.value)
    assert str(caught.value.fix).startswith(
        "let the code read the value: from an argument of its own"
    )


NO_CODE = [
    # command and args, and the argument that is data
    {"command": "python3", "args": ["-c", "import sys", "{x}"]},
    {"command": "python3", "args": ["script.py", "-c", "{x}"]},
    {"command": "node", "args": ["-e", "1", "{x}"]},
    {"command": "awk", "args": ["-v", "a={x}", "{ print a }"]},
    {"command": "awk", "args": ["-f", "program.awk", "{x}"]},
    {"command": "sed", "args": ["s/a/b/", "{x}"]},
    {"command": "sed", "args": ["-e", "s/a/b/", "{x}"]},
    {"command": "ssh", "args": ["{x}"]},
    {"command": "grep", "args": ["-e", "{x}", "-c"]},
    {"command": "{x}", "args": ["{code}"], "fixed_params": {"code": "-c"}},
]  # fmt: skip


@pytest.mark.parametrize("config", NO_CODE)
def test_what_no_interpreter_reads_is_an_argument_like_any_other(config: dict[str, Any]) -> None:
    assert any("python3 -c" in word for word in process(config, {"x": "python3 -c"}).argv)


def test_code_of_the_author_may_stand_in_another_key() -> None:
    config = {"command": "python3", "args": ["-c", "{code}"], "code": "print(1)"}
    assert process(config, {"code": "evil"}).argv == ("python3", "-c", "print(1)")


def test_a_script_without_placeholders_is_left_alone() -> None:
    script = "awk '{print $1}' | while read -r x; do echo ${x}; done"
    assert process({"command": "bash", "args": ["-c", script]}).argv == ("bash", "-c", script)


def test_an_argument_after_the_script_is_plain() -> None:
    call = process({"command": "sh", "args": ["-c", "echo $1", "name", "{x}"]}, {"x": "$(id)"})
    assert call.argv == ("sh", "-c", "echo $1", "name", "$(id)")


SECRET_ARGUMENTS = [
    {"command": "curl ${API_KEY}"},
    {"args": ["--key=${API_KEY}"]},
    {"args": ["{key}"], "key": "k-${API_KEY}"},
    {"args": ["{token}"]},
    {"args": ["{tokens}"]},
]


@pytest.mark.parametrize("config", SECRET_ARGUMENTS)
def test_a_secret_is_no_argument(config: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        process(config, {"token": Secret("hunter2"), "tokens": [Secret("hunter2")]})
    assert caught.value.code == "secret-in-argv"
    assert "hunter2" not in str(caught.value)


def test_a_secret_reaches_standard_input_and_the_environment_in_clear() -> None:
    config = {
        "input_data": {"key": "Bearer ${API_KEY}", "given": "{token}", "made": "{made}"},
        "made": "<${API_KEY}>",
        "env": {"AUTH": "Bearer ${API_KEY}"},
    }
    call = process(config, {"token": Secret("t0k3n")})
    assert json.loads(call.stdin) == {
        "key": "Bearer hunter2",
        "given": "t0k3n",
        "made": "<hunter2>",
    }
    assert call.env == {"PATH": "/bin", "AUTH": "Bearer hunter2"}


STDIN = [
    # input_data                    standard input
    (None,                          b""),
    ("{params_json}",               b'{"x":1}'),
    ("plain {x}",                   b"plain 1"),
    ("{x}",                         b"1"),
    ("{unset}",                     b""),
    (["{x}", {"a": "{unset}"}],     b'[1,{}]'),
]  # fmt: skip


@pytest.mark.parametrize(("written", "stdin"), STDIN)
def test_standard_input(written: Any, stdin: bytes) -> None:
    assert process({"input_data": written}, {"x": 1}).stdin == stdin


FOLDERS = [
    # cwd                           where the process starts
    (None,                          "/p"),
    ("sub",                         "/p/sub"),
    ("{project_path}/sub",          "/p/sub"),
    ("/abs",                        "/abs"),
    ("{anchor_path}",               "/p"),
    ("{braces}/x",                  "/a{b}c/x"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "cwd"), FOLDERS)
def test_the_folder(written: Any, cwd: str) -> None:
    assert process({"cwd": written, "braces": "/a{b}c"}).cwd == cwd


def test_parameters_as_variables_never_replace_the_environment() -> None:
    config = {"params_env": "P_", "env": {"P_FIXED": "author"}}
    params = {
        "name": "a\nb",
        "n": 3,
        "yes": True,
        "none": None,
        "list": [1],
        "fixed": "caller",
        "no name": "x",
        "ä": "x",
    }
    call = process(config, params)
    assert call.env == {
        "PATH": "/bin",
        "P_NAME": "a\nb",
        "P_N": "3",
        "P_YES": "true",
        "P_NONE": "",
        "P_FIXED": "author",
    }


def test_two_parameters_that_would_be_one_variable_are_refused() -> None:
    with pytest.raises(
        ValueRefusedError, match="the parameters PATH and path would both be the variable P_PATH"
    ):
        process({"params_env": "P_"}, {"path": "a", "PATH": "b"})


# ── who sends a request ──────────────────────────────────────────────────

AUTH = [
    # auth                                                            header
    ({"type": "bearer", "token": "${API_KEY}"},                       ("Authorization", "Bearer hunter2")),
    ({"token": "{t}"},                                                ("Authorization", "Bearer given")),
    ({"type": "bearer", "key": "k"},                                  ("Authorization", "Bearer k")),
    ({"type": "api_key", "header": "X-Api-Key", "key": "${API_KEY}"}, ("X-Api-Key", "hunter2")),
    ({"type": "basic", "username": "me", "password": "${API_KEY}"},   ("Authorization", "Basic bWU6aHVudGVyMg==")),
    ("Token ${API_KEY}",                                              ("Authorization", "Token hunter2")),
]  # fmt: skip


@pytest.mark.parametrize(("auth", "header"), AUTH)
def test_a_request_says_who_sends_it(auth: Any, header: tuple[str, str]) -> None:
    assert request({"auth": auth}, {"t": "given"}).headers == (header,)


MISSING_AUTH = [
    # auth                                                  what                                fix
    ({"type": "bearer", "token": "${UNSET}"},               "config.auth.token is nothing",     "give a value"),
    ({"type": "bearer", "token": "{unset}"},                "config.auth.token is nothing",     "give a value"),
    ({"type": "bearer"},                                    "config.auth.token is nothing",     "give a value"),
    ({"type": "basic", "username": "me"},                   "config.auth.password is nothing",  "give a value"),
    ({"type": "basic", "username": "", "password": "x"},    "config.auth.username is nothing",  "give a value"),
    ("${UNSET}",                                            "config.auth is nothing",           "give a value"),
    ({"type": "barer", "token": "x"},                       "config.auth is text, or a map",    "did you mean type: bearer?"),
    ({"tokn": "x"},                                         "config.auth is not set by 'tokn'", "did you mean 'token'?"),
    (["x"],                                                 "config.auth is text, or a map",    "write {type: bearer"),
]  # fmt: skip


@pytest.mark.parametrize(("auth", "what", "fix"), MISSING_AUTH)
def test_a_request_that_would_say_nothing_is_not_sent(auth: Any, what: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        request({"auth": auth})
    assert caught.value.what.startswith(what)
    assert str(caught.value.fix).startswith(fix)


SLIPS = [
    # primitive       config                                  shown
    ("http_client",   {"url": "https://x/", "metod": "PUT"},  "config.metod is used by nothing"),
    ("subprocess",    {"command": "a", "imput_data": "x"},    "config.imput_data is used by nothing"),
    ("subprocess",    {"command": "a", "timeouts": 3},        "config.timeouts is used by nothing"),
    ("subprocess",    {"command": "{comand}", "comand": "a"}, None),
    ("subprocess",    {"command": "a", "colour": "red"},      None),
    ("subprocess",    {"command": "a", "url": "x"},           None),
]  # fmt: skip


@pytest.mark.parametrize(("primitive", "config", "reported"), SLIPS)
def test_a_key_that_is_almost_one_of_ours_is_named(
    primitive: str, config: dict[str, Any], reported: str | None
) -> None:
    if reported is None:
        bound(primitive, config)
        return
    with pytest.raises(InputError) as caught:
        bound(primitive, config)
    assert caught.value.what == reported
    assert "did you mean '" in str(caught.value.fix)


# ── what an author may have written wrongly ──────────────────────────────

WRONG = [
    # primitive      config                                     what
    ("subprocess",   {},                                        "the chain of 't' names no command"),
    ("subprocess",   {"command": "echo it's"},                  "config.command is words: a quote is not closed"),
    ("subprocess",   {"command": "a", "args": "b"},             "config.args is a list"),
    ("subprocess",   {"command": "a", "env": ["X"]},            "config.env is a map"),
    ("subprocess",   {"command": "a", "cwd": 3},                "config.cwd is text"),
    ("subprocess",   {"command": "a", "timeout": "soon"},       "config.timeout is a number of seconds above 0"),
    ("subprocess",   {"command": "a", "timeout": 0},            "config.timeout is a number of seconds above 0"),
    ("subprocess",   {"command": "a", "max_output": "much"},    "config.max_output is a whole number, 1 or more"),
    ("subprocess",   {"command": "a", "fixed_params": [1]},     "config.fixed_params is a map"),
    ("subprocess",   {"command": "a", "env": {"A=B": "x"}},     "the environment variable 'A=B' cannot be passed"),
    ("http_client",  {},                                        "an HTTP tool names a url"),
    ("http_client",  {"url": "https://x/", "headers": ["a"]},   "config.headers is a map"),
    ("http_client",  {"url": "https://x/", "retry": 3},         "config.retry is a map"),
    ("http_client",  {"url": "https://x/", "retry": {"attempts": "x"}}, "config.retry.attempts is a whole number, 1 or more"),
    ("http_client",  {"url": "https://x/", "retry": {"backoff": "slow"}}, "config.retry.backoff is fixed, linear or exponential"),
    ("http_client",  {"url": "https://x/", "retry": {"max_delay": "x"}}, "config.retry is given its delays in seconds"),
    ("http_client",  {"url": "https://x/", "max_redirects": "x"}, "config.max_redirects is a whole number, 0 or more"),
    ("http_client",  {"url": "https://x/", "retry": {"atempts": 3}}, "config.retry is not set by 'atempts'"),
    ("http_client",  {"url": "https://x/", "retry": {"statuses": [True]}}, "config.retry.statuses is a list of status codes"),
    ("http_client",  {"url": "https://x/", "retry": {"any_method": "yes"}}, "config.retry.any_method is true or false"),
    ("mcp",          {"tool_name": "x"},                        "'t' names no MCP server and tool"),
    ("mcp",          {"tool_name": "x", "server": {"command": "a", "args": "b"}}, "config.server.args is a list"),
    ("mcp",          {"tool_name": "x", "server": {"command": "a", "env": [1]}}, "config.server is given env and headers as maps"),
    ("nowhere",      {},                                        "there is no primitive 'core/primitives/nowhere'"),
]  # fmt: skip


@pytest.mark.parametrize(("primitive", "config", "what"), WRONG)
def test_a_wrong_config_is_reported(primitive: str, config: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError) as caught:
        bound(primitive, config)
    assert (caught.value.what, caught.value.where, caught.value.exit_code) == (what, "/p/t.yaml", 2)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=10,
)
keys = sorted(
    {
        "command",
        "args",
        "env",
        "cwd",
        "input_data",
        "timeout",
        "url",
        "headers",
        "body",
        "auth",
        "retry",
        "server",
        "tool_name",
    }
)


@given(
    st.sampled_from(["subprocess", "http_client", "function", "mcp"]),
    st.dictionaries(st.sampled_from(keys), json_values),
)
def test_whatever_stands_in_a_config_nothing_but_our_errors_come(
    primitive: str, config: dict[str, Any]
) -> None:
    try:
        bound(primitive, config, {"x": 1})
        code = 2
    except PlaitError as error:
        code = error.exit_code
    assert code == 2


OPTIONS = [
    # command and args                                              value            refused
    ({"command": "git", "args": ["grep", "-n", "{x}"]},             "--open-files-in-pager=id", True),
    ({"command": "git grep -n {x}"},                                "-Oid",          True),
    ({"command": "git", "args": ["grep", "-n", "-e", "{x}"]},       "-Oid",          False),
    ({"command": "git", "args": ["grep", "--", "{x}"]},             "-Oid",          False),
    ({"command": "grep", "args": ["{x}"]},                          ["a", "-f"],     True),
    ({"command": "mytool", "args": ["--name={x}", "{x}"]},          -5,              False),
    ({"command": "mytool", "args": ["--name={x}"]},                 "-x",            False),
    ({"command": "tar", "args": ["{x}", "a"]},                      "cf",            True),
    ({"command": "mytool", "args": ["{y}{x}"], "y": ""},            "-x",            True),
    ({"command": "mytool", "args": ["{y}"], "y": "{x}"},            "-x",            True),
    ({"command": "mytool", "args": ["{y}"], "y": "-v"},             "a",             False),
    ({"command": "mytool", "args": ["{x}"], "fixed_params": {"x": "-v"}}, "a",       False),
    ({"command": "echo", "args": ["{x}"]},                          "- one",         False),
]  # fmt: skip


@pytest.mark.parametrize(("config", "value", "refused"), OPTIONS)
def test_a_parameter_is_no_option_of_the_program(
    config: dict[str, Any], value: Any, refused: bool
) -> None:
    if not refused:
        process(config, {"x": value})
        return
    with pytest.raises(ValueRefusedError) as error:
        process(config, {"x": value})
    assert error.value.code == "option-like"


def test_a_parameter_may_be_declared_as_an_option() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "x-option": True}}}
    header = Header(config={"command": "mytool", "args": ["{x}"]}, config_schema=schema)
    item = ToolFile("tool", "t", Space("project", "/p"), "/p/t.yaml", b"code", "digest", header)
    chain = Chain((item,), "core/primitives/subprocess")
    call = bind(BindRequest(chain, {"x": "-v"}, {}, ENVIRONMENT, "/p", "/p"))
    assert isinstance(call, ProcessCall)
    assert call.argv == ("mytool", "-v")


def test_a_parameter_is_no_option_of_an_mcp_server() -> None:
    config = {"server": {"command": "serve", "args": ["--root", "{x}"]}}
    mcp(config, {"x": "a"})
    with pytest.raises(ValueRefusedError) as error:
        mcp(config, {"x": "--evil"})
    assert error.value.code == "option-like"


def test_what_a_tool_refuses_says_what_to_write() -> None:
    with pytest.raises(ValueRefusedError) as error:
        process({"command": "rm", "args": ["{x}"]}, {"x": "-rf"})
    assert str(error.value) == (
        "/p/t.yaml: the argument '{x}' could be taken for an option of rm: its value begins like one\n"
        "fix: write -- before it, or ./ or --name= in front of it, or declare the parameter with x-option: true"
    )


# ── a request ────────────────────────────────────────────────────────────


def test_a_request_is_filled_by_its_sinks() -> None:
    call = request(
        {
            "method": "post",
            "url": "https://x.example/{id}?q={q}",
            "headers": {"X-Note": "{note}", "Authorization": "Bearer ${API_KEY}"},
            "body": {"id": "{id}", "key": "${API_KEY}", "unset": "{unset}", "text": "k=${API_KEY}"},
            "retry": {
                "max_attempts": 3,
                "backoff": "linear",
                "initial_delay": 1,
                "statuses": [503],
                "any_method": True,
            },
        },
        {"id": "a/b", "q": "x&y", "note": "n"},
    )
    assert (call.method, call.url) == ("POST", "https://x.example/a%2Fb?q=x%26y")
    assert call.headers == (
        ("X-Note", "n"),
        ("Authorization", "Bearer hunter2"),
        ("content-type", "application/json"),
    )
    assert json.loads(call.body or b"") == {"id": "a/b", "key": "hunter2", "text": "k=hunter2"}
    assert call.retry == HttpRetry(3, "linear", 1, statuses=(503,), any_method=True)


BODIES: list[tuple[Any, bytes | None, str | None]] = [
    # body              bytes                content type
    (None,              None,                None),
    ("text {x}",        b"text 1",           None),
    ("{unset}",         None,                None),
    ("{x}",             b"1",                "application/json"),
    ([],                b"[]",               "application/json"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "data", "content_type"), BODIES)
def test_a_body(body: Any, data: bytes | None, content_type: str | None) -> None:
    call = request({"body": body}, {"x": 1})
    assert (call.body, dict(call.headers).get("content-type")) == (data, content_type)


HOSTS = [
    # url                          config                          from data
    ("https://x.example/{path}",   {},                             False),
    ("${BASE}/items/{path}",       {},                             False),
    ("{base}/items/{path}",        {"base": "https://in.example"}, False),
    ("{base}/items",               {"base": "{url_given}"},        True),
    ("{url_given}",                {},                             True),
    ("{url_given}/x",              {},                             True),
]  # fmt: skip


@pytest.mark.parametrize(("url", "config", "from_data"), HOSTS)
def test_whether_the_host_came_from_data_is_known(
    url: str, config: dict[str, Any], from_data: bool
) -> None:
    call = request({"url": url, **config}, {"path": "p", "url_given": "https://given.example"})
    assert call.url_from_data is from_data


@pytest.mark.parametrize("url", ["https://{host}/x", "{scheme}://x.example/", "https://a.{host}/"])
def test_a_part_of_the_host_cannot_come_from_a_value(url: str) -> None:
    with pytest.raises(InputError) as caught:
        request({"url": url}, {"host": "evil.example", "scheme": "file"})
    assert caught.value.code == "url-origin"


def test_a_header_cannot_be_split() -> None:
    with pytest.raises(InputError) as caught:
        request({"headers": {"X": "{x}"}}, {"x": "a\r\nEvil: 1"})
    assert caught.value.code == "forbidden-character"


# ── functions and MCP ────────────────────────────────────────────────────


def test_a_function_gets_a_copy_of_its_own() -> None:
    params: dict[str, Any] = {"list": [1], "token": Secret("s")}
    call = bound("function", {"fixed_params": {"mode": "ro"}}, {**params, "mode": "rw"})
    assert isinstance(call, FunctionCall)
    assert (call.function, call.code, call.params) == (
        "execute",
        b"code",
        {"list": [1], "token": "s", "mode": "ro"},
    )
    assert call.params["list"] is not params["list"]


def test_an_mcp_call() -> None:
    server = {"command": "srv", "args": ["--n", "{n}"], "env": {"KEY": "k=${API_KEY}"}}
    call = mcp({"server": server}, {"n": 3})
    assert call.server.command == ("srv", "--n", "3")
    assert call.server.env == {"PATH": "/bin", "KEY": "k=hunter2"}
    assert (call.tool, call.params, call.limits.timeout) == ("add", {"n": 3}, 60.0)


def test_an_mcp_server_at_a_url_gets_its_headers() -> None:
    call = mcp(
        {"server": {"url": "https://m.example/", "headers": {"Authorization": "Bearer ${API_KEY}"}}}
    )
    assert (call.server.url, call.server.headers) == (
        "https://m.example/",
        (("Authorization", "Bearer hunter2"),),
    )


@pytest.mark.parametrize("args", [["${API_KEY}"], ["k=${API_KEY}"]])
def test_a_secret_is_no_argument_of_an_mcp_server(args: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        mcp({"server": {"command": "srv", "args": args}})
    assert caught.value.code == "secret-in-argv"


MCP_URLS = [
    # config                                                          from data
    ({"server": {"url": "https://m.example/{x}"}},                    False),
    ({"server": {"url": "${BASE}/mcp"}},                              False),
    ({"server": {"url": "http://{x}/mcp"}},                           True),
    ({"server": {"url": "{x}"}},                                      True),
    ({"server": {"url": "https://m.example{x}"}},                     True),
    ({"server": {"url": "{base}/mcp"}, "base": "http://{x}"},         True),
    ({"server": "{x}"},                                               True),
]  # fmt: skip


@pytest.mark.parametrize(("config", "from_data"), MCP_URLS)
def test_a_url_of_an_mcp_server_knows_whether_its_host_came_from_data(
    config: dict[str, Any], from_data: bool
) -> None:
    x: Any = {"url": "http://h/"} if isinstance(config["server"], str) else "http://h"
    assert mcp(config, {"x": x}).server.url_from_data is from_data


CHOSEN = [
    # config                                                                      the parameters that say which server
    ({"server": {"command": "srv", "args": ["-v"]}},                              ()),
    ({"server": {"command": "srv", "args": ["--in", "{x}", "{y}"]}},              ("x", "y")),
    ({"server": {"command": "srv {x}"}},                                          ("x",)),
    ({"server": {"url": "https://{x}.example/{missing}"}},                        ("missing", "x")),
    ({"server": {"url": "{base}/mcp"}, "base": "http://{host}", "host": "{x}"},   ("x",)),
    ({"server": {"url": "{base}/mcp"}, "base": "http://h/"},                      ()),
    ({"server": {"command": "srv", "args": ["{x}"]}, "fixed_params": {"x": 1}},   ()),
    ({"server": {"command": "srv", "args": ["{project_path}", "${CITY}"]}},       ()),
    ({"server": {"command": "srv", "env": {"A": "{x}"}, "name": "{y}"}},          ()),
    ({"server": "{x}"},                                                           ("x",)),
]  # fmt: skip


@pytest.mark.parametrize(("config", "chosen_by"), CHOSEN)
def test_the_parameters_that_say_which_mcp_server_is_called_are_known(
    config: dict[str, Any], chosen_by: tuple[str, ...]
) -> None:
    x: Any = {"url": "http://h/"} if isinstance(config["server"], str) else "h"
    assert mcp(config, {"x": x, "y": "z"}).chosen_by == chosen_by


GONE = [
    # headers                                          given                 what is sent
    ({"X-Opt": "{u}"},                                 {},                   ()),
    ({"X-Opt": "{u}", "X-Own": "a"},                   {},                   (("X-Own", "a"),)),
    ({"X-Opt": "{u}"},                                 {"u": "given"},       (("X-Opt", "given"),)),
    ({"X-Opt": "{u}"},                                 {"u": ""},            (("X-Opt", ""),)),
    ({"X-Opt": "{u}"},                                 {"u": "{v}"},         (("X-Opt", "{v}"),)),
    ({"X-Opt": "a {u}"},                               {},                   (("X-Opt", "a {u}"),)),
    ({"X-Opt": "${NOBODY_HAS_THIS:-{u}}"},             {},                   ()),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "given", "sent"), GONE)
def test_a_header_that_was_not_given_is_left_out(headers: Any, given: Any, sent: Any) -> None:
    assert request({"headers": headers}, given).headers == sent


def test_values_that_were_not_given_are_left_out_on_every_way_into_a_process() -> None:
    call = process(
        {"command": "echo", "args": ["{u}"], "env": {"A": "{u}", "B": "b"}, "input_data": "{u}"}
    )
    assert call.argv == ("echo",)
    assert "A" not in call.env
    assert call.env["B"] == "b"
    assert call.stdin == b""


ABSENT = [
    # command                                                   what is run without the parameter; None: refused
    (["git", "commit", "-m", "{u}", "--", "a"],                 None),
    (["git", "commit", "-a", "{u}"],                            ["git", "commit", "-a"]),
    (["git", "commit", "--", "{u}"],                            ["git", "commit", "--"]),
    (["jq", "--arg", "n", "{u}", "."],                          None),
    (["jq", "--arg", "{u}", "x", "."],                          None),
    (["find", ".", "-name", "{u}", "-delete"],                  None),
    (["tar", "-C", "{u}", "-xf", "a"],                          None),
    (["echo", "-n", "{u}"],                                     ["echo", "-n"]),
    (["printf", "%s", "{u}"],                                   ["printf", "%s"]),
    (["awk", "1", "{u}"],                                       ["awk", "1"]),
    (["mytool", "--quiet", "{u}", "x"],                         ["mytool", "--quiet", "x"]),
]  # fmt: skip


@pytest.mark.parametrize(("command", "run"), ABSENT)
def test_an_option_without_a_value_does_not_swallow_the_next_argument(
    command: list[str], run: list[str] | None
) -> None:
    config = {"command": command[0], "args": command[1:]}
    if run is not None:
        assert list(process(config).argv) == run
        return
    with pytest.raises(InputError) as caught:
        process(config)
    assert caught.value.code == "missing-parameter"
    assert "the argument '{u}' is missing" in str(caught.value)


# ── sizes ────────────────────────────────────────────────────────────────


def tenfold(levels: int, name: str = "v{}") -> dict[str, str]:
    """Entries of which each holds ten times the one before."""
    rows = {name.format(0): "xxxxxxxxxx"}
    for level in range(1, levels):
        rows[name.format(level)] = f"{{{name.format(level - 1)}}}" * 10
    return rows


SIX, NINE = tenfold(6), tenfold(9)
MANY = range(40)
LARGE_CONFIGS: list[tuple[Any, dict[str, Any]]] = [
    # primitive   config that would make 40 million characters or more
    (process,     {**NINE, "args": ["{v8}"]}),
    (process,     {**NINE, "env": {"A": "{v8}"}}),
    (process,     {**NINE, "input_data": "{v8}"}),
    (process,     {**SIX, "args": ["{v5}"] * 40}),
    (process,     {**SIX, "args": [f"{n}{{v5}}" for n in MANY]}),
    (process,     {**SIX, "input_data": {str(n): "{v5}" for n in MANY}}),
    (request,     {**NINE, "headers": {"X-A": "{v8}"}}),
    (request,     {**NINE, "body": {"a": ["{v8}"]}}),
    (request,     {**NINE, "url": "https://x.example/{v8}"}),
    (request,     {**SIX, "headers": {f"X-{n}": "{v5}" for n in MANY}}),
    (request,     {**SIX, "body": {str(n): "{v5}" for n in MANY}}),
    (mcp,         {**NINE, "server": {"command": "serve", "args": ["{v8}"]}}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("made", "config"),
    LARGE_CONFIGS,
    ids=lambda it: " ".join(it)[-40:] if isinstance(it, dict) else "",
)
def test_a_small_config_does_not_become_a_large_call(made: Any, config: dict[str, Any]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(LimitError) as caught:
            made(config)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.code == "output-too-long"
    assert peak < 200 << 20


def test_a_config_that_fits_is_not_refused() -> None:
    assert len(process({**SIX, "args": ["{v5}"]}).argv[-1]) == 1_000_000
