"""The plain form of `plait call` means what argparse reads in it; anything else is left to argparse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.cli import COMMANDS, call
from plait.cli.arguments import HelpWanted, Parser
from plait.cli.fast_arguments import FastArguments
from plait.core.errors import InputError

PLAIN = [
    ["team/report"],
    ["team/report", "--params", "{}"],
    ["--params", "{}", "team/report", "--json"],
    ["team/report", "-p", "a=1", "--param", "b=2", "-p", "c=3"],
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
]


def plain(words: list[str]) -> dict[str, object] | None:
    form = FastArguments()
    call.configure(form)  # type: ignore[arg-type]
    options = form.read(words)
    return None if options is None else vars(options)


def by_argparse(words: list[str]) -> dict[str, object]:
    parser = Parser("call", COMMANDS["call"], examples=call.EXAMPLES)
    call.configure(parser)
    return {name: value for name, value in vars(parser.read(words)).items() if name != "help"}


@pytest.mark.parametrize("words", PLAIN)
def test_the_plain_form_is_read_as_argparse_reads_it(words: list[str]) -> None:
    assert plain(words) == by_argparse(words)


@pytest.mark.parametrize("words", NOT_PLAIN)
def test_anything_else_is_left_to_argparse(words: list[str]) -> None:
    assert plain(words) is None


@given(words=st.lists(st.sampled_from(WORDS), max_size=6))
def test_whatever_is_plain_argparse_reads_alike(words: list[str]) -> None:
    read = plain(words)
    if read is None:
        return
    try:
        assert read == by_argparse(words)
    except (InputError, HelpWanted) as error:
        pytest.fail(f"argparse refuses {words}: {error}")


def test_two_readings_share_nothing() -> None:
    form = FastArguments()
    call.configure(form)  # type: ignore[arg-type]
    first = form.read(["t", "-p", "a=1"])
    second = form.read(["t"])
    assert first is not None
    assert second is not None
    assert (first.param, second.param) == (["a=1"], [])
