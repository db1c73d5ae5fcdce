"""A lazy pattern does what the compiled one does; nothing is compiled before."""

from __future__ import annotations

import copy
import re
import subprocess
import sys

import pytest

from plait.core.patterns import import_with_lazy_patterns, lazy_pattern


def test_a_lazy_pattern_finds_what_the_compiled_one_finds() -> None:
    lazy, compiled = (
        lazy_pattern(r"(?P<name>[a-z]+)=", re.I),
        re.compile(r"(?P<name>[a-z]+)=", re.I),
    )
    text = "A=1 bc=2"
    assert [found.group("name") for found in lazy.finditer(text)] == ["A", "bc"]
    assert lazy.sub("x", text) == compiled.sub("x", text)
    assert lazy.split(text) == compiled.split(text)
    assert (lazy.pattern, lazy.flags, lazy.groupindex) == (
        compiled.pattern,
        compiled.flags,
        compiled.groupindex,
    )
    assert copy.deepcopy(lazy).match(text) is not None


def test_a_wrong_pattern_fails_when_it_is_used() -> None:
    lazy = lazy_pattern("(")
    with pytest.raises(re.error):
        lazy.match("")


LOADED = """\
import re, sys
from plait.core.patterns import import_with_lazy_patterns
eager = re.compile
import_with_lazy_patterns("yaml")
import yaml
assert re.compile is eager
assert not isinstance(yaml.reader.Reader.NON_PRINTABLE, re.Pattern)
assert yaml.load("a: [1, 2020-01-01, yes, 1.5]", yaml.SafeLoader) == yaml.load(
    "a: [1, 2020-01-01, yes, 1.5]", yaml.CSafeLoader
)
try:
    yaml.load("a: \\x01", yaml.SafeLoader)
except yaml.reader.ReaderError:
    print("refused")
import_with_lazy_patterns("yaml")
import string
assert isinstance(string.Template.pattern, re.Pattern)
"""


def test_a_package_with_lazy_patterns_works_as_before() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    assert done.stdout == "refused\n"


def test_a_package_that_is_missing_is_an_error_and_leaves_nothing() -> None:
    eager = re.compile
    with pytest.raises(ModuleNotFoundError):
        import_with_lazy_patterns("no_such_package_of_plait")
    assert re.compile is eager
