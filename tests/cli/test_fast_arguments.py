"""The plain form of a command line means what argparse reads in it; anything else is left to argparse."""

from __future__ import annotations

from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.cli import COMMANDS, FAST_ARGUMENT_COMMANDS, call
from plait.cli.arguments import HelpWanted, Parser
from plait.cli.fast_arguments import FastArguments
from plait.core.errors import InputError

PLAIN = [
    ["team/report"],
    ["team/report", "--params", "{}"],
    ["--params", "{}", "team/report", "--json"],
    ["team/report", "-p", "a=1", "--param", "b=2", "-p", "c=3"],
    ["team/report", "-i", "a=1", "-p", "b=2", "--input", "@f", "-n", "--color", "never"],
    ["team/report", "--project", "/tmp", "--timeout", "5", "--dry-run", "--trust"],
    ["team/report", "--params", "1", "--params", "2"],
    ["", "--params", ""],
]
NOT_PLAIN = [
    [],
    ["one", "two"],
    ["team/report", "--help"],
    ["team/report", "--params={}"],
    ["team/report", "--params"],
    ["team/report", "--params", "-1"],
    ["team/report", "--params", "--json"],
    ["team/report", "--params-file", "-"],
    ["team/report", "--unknown", "1"],
    ["--", "team/report"],
    ["team/report", "-pa=1"],
    ["-"],
]
WORDS = [
    "team/report",
    "--params",
    "{}",
    "-p",
    "a=1",
    "--json",
    "--dry-run",
    "--",
    "-",
    "--params={}",
    "--nothing",
    "-1",
    "--limit",
    "-i",
]


OF_COMMANDS = [
    ("run", ["flow.yaml", "-i", "a=1", "--input", "b=2", "--dry-run"]),
    ("run", ["flow.yaml", "-n", "-j", "3", "-k", "-q"]),
    ("resume", []),
    ("resume", ["7f3a", "--accept-changes"]),
    ("show", ["--json"]),
    ("show", ["--json", "last"]),
    ("runs", ["--limit", "5"]),
    ("render", ["--cases", "cases.jsonl"]),
]


def plain(words: list[str], command: str = "call") -> dict[str, object] | None:
    form = FastArguments()
    import_module(f"plait.cli.{command}").configure(form)
    options = form.read(words)
    return None if options is None else vars(options)


def by_argparse(words: list[str], command: str = "call") -> dict[str, object]:
    parser = Parser(command, COMMANDS[command], examples=())
    import_module(f"plait.cli.{command}").configure(parser)
    return {name: value for name, value in vars(parser.read(words)).items() if name != "help"}


@pytest.mark.parametrize("words", PLAIN)
def test_the_plain_form_is_read_as_argparse_reads_it(words: list[str]) -> None:
    assert plain(words) == by_argparse(words)


@pytest.mark.parametrize("words", NOT_PLAIN)
def test_anything_else_is_left_to_argparse(words: list[str]) -> None:
    assert plain(words) is None


@pytest.mark.parametrize(("command", "words"), OF_COMMANDS)
def test_each_command_that_starts_often_has_a_plain_form(command: str, words: list[str]) -> None:
    read = plain(words, command)
    assert read is not None
    assert read == by_argparse(words, command)


@given(
    command=st.sampled_from(FAST_ARGUMENT_COMMANDS),
    words=st.lists(st.sampled_from(WORDS), max_size=6),
)
def test_whatever_is_plain_argparse_reads_alike(command: str, words: list[str]) -> None:
    read = plain(words, command)
    if read is None:
        return
    try:
        assert read == by_argparse(words, command)
    except (InputError, HelpWanted) as error:
        pytest.fail(f"argparse refuses {words}: {error}")


def test_two_readings_share_nothing() -> None:
    form = FastArguments()
    call.configure(form)  # type: ignore[arg-type]
    first = form.read(["t", "-p", "a=1"])
    second = form.read(["t"])
    assert first is not None
    assert second is not None
    assert (first.input, second.input) == (["a=1"], [])
