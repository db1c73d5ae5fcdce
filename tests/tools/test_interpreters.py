"""Finding the program that runs a tool."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import InputError
from plait.tools.interpreters import SearchPaths, locate
from plait.tools.tool_file import Interpreter


def program(path: Path, *, mode: int = 0o755) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return str(path)


def around(top: Path, **options: Any) -> SearchPaths:
    host = {"PATH": f"{top}/bin", **options.pop("host", {})}
    return SearchPaths((str(top / "project"),), host, str(top / "home"), **options)


def local(**options: Any) -> Interpreter:
    standard: dict[str, Any] = {
        "binary": "python",
        "candidates": ("python3",),
        "search_paths": (".venv/bin", ".venv/Scripts"),
    }
    return Interpreter("local_binary", "RYE_PYTHON", **{**standard, **options})


def test_the_order_of_the_seed(tmp_path: Path) -> None:
    """The variable, then the local folders in their order, then the fallback on the PATH."""
    find = local(fallback="python3")
    fallback = program(tmp_path / "bin/python3")
    assert locate(find, around(tmp_path), where="t").path == fallback
    last = program(tmp_path / "project/.venv/Scripts/python3")
    assert locate(find, around(tmp_path), where="t").path == last
    candidate = program(tmp_path / "project/.venv/bin/python3")
    assert locate(find, around(tmp_path), where="t").path == candidate
    binary = program(tmp_path / "project/.venv/bin/python")
    assert locate(find, around(tmp_path), where="t").path == binary
    given = program(tmp_path / "own/python")
    located = locate(find, around(tmp_path, host={"RYE_PYTHON": given}), where="t")
    assert (located.path, located.how) == (given, "RYE_PYTHON of your environment")


@pytest.mark.parametrize("spoiled", ["folder", "not-executable", "dangling", "relative"])
def test_what_is_no_program_is_passed_over(tmp_path: Path, spoiled: str) -> None:
    place = tmp_path / "project/.venv/bin/python"
    place.parent.mkdir(parents=True)
    match spoiled:
        case "folder":
            place.mkdir()
        case "not-executable":
            program(place, mode=0o644)
        case "dangling":
            place.symlink_to("/no/such")
        case "relative":
            pass
    host = {"RYE_PYTHON": "python"} if spoiled == "relative" else {}
    fallback = program(tmp_path / "bin/python3")
    assert (
        locate(local(fallback="python3"), around(tmp_path, host=host), where="t").path == fallback
    )


def test_a_failure_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        locate(
            local(candidates=(), search_paths=("a", "b"), fallback="py"),
            around(tmp_path),
            where="t.yaml",
        )
    assert str(caught.value) == (
        "t.yaml: no interpreter for RYE_PYTHON was found\n"
        f"fix: looked at {tmp_path}/project/a/python, {tmp_path}/project/b/python, 'py' on PATH; "
        "install it, or set RYE_PYTHON to its full path"
    )


def test_search_roots_come_before_the_project(tmp_path: Path) -> None:
    program(tmp_path / "project/bin/python")
    first = program(tmp_path / "first/bin/python")
    find = local(search_paths=("bin",), search_roots=(str(tmp_path / "first"),))
    assert locate(find, around(tmp_path), where="t").path == first


def test_a_system_binary_is_searched_on_the_path(tmp_path: Path) -> None:
    ruby = program(tmp_path / "bin/ruby")
    find = Interpreter("system_binary", "RUBY", binary="ruby2", candidates=("ruby",))
    assert locate(find, around(tmp_path), where="t").path == ruby


def test_relative_folders_of_the_path_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "here/ruby")
    monkeypatch.chdir(tmp_path / "here")
    find = Interpreter("system_binary", "RUBY", binary="ruby", fallback="ruby")
    with pytest.raises(InputError):
        locate(find, SearchPaths((), {"PATH": f".:{os.pathsep}here"}, "/"), where="t")


MANAGED = [
    # manager  file in the project   says       where it is installed                          binary
    ("pyenv",  ".python-version",    "3.12.1",  ".pyenv/versions/3.12.1/bin/python",           "python"),
    ("nvm",    ".nvmrc",             "v20.1.0", ".nvm/versions/node/v20.1.0/bin/node",         "node"),
    ("rbenv",  ".ruby-version",      "3.3.0",   ".rbenv/versions/3.3.0/bin/ruby",              "ruby"),
    ("asdf",   ".tool-versions",     "ruby 3.3.0", ".asdf/installs/ruby/3.3.0/bin/ruby",       "ruby"),
    ("",       ".tool-versions",     "go 1.22",  ".local/share/mise/installs/go/1.22/bin/go",  "go"),
]  # fmt: skip


@pytest.mark.parametrize(("manager", "file", "says", "place", "binary"), MANAGED)
def test_a_version_manager_gives_the_version_that_the_project_wants(
    tmp_path: Path, manager: str, file: str, says: str, place: str, binary: str
) -> None:
    installed = program(tmp_path / "home" / place)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / file).write_text(says + "\n")
    find = Interpreter("version_manager", "X", binary=binary, manager=manager)
    assert locate(find, around(tmp_path), where="t").path == installed


def test_a_version_cannot_lead_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    program(tmp_path / "home/.pyenv/evil/bin/python")
    (tmp_path / "project/.python-version").write_text("*\n../evil\n")
    with pytest.raises(InputError):
        locate(
            Interpreter("version_manager", "X", binary="python", manager="pyenv"),
            around(tmp_path),
            where="t",
        )


def test_a_command_answers_with_its_first_line(tmp_path: Path) -> None:
    asked: list[Sequence[str]] = []

    def ask(command: Sequence[str]) -> str:
        asked.append(command)
        return found

    found = program(tmp_path / "x/ruby")
    find = Interpreter("command", "RUBY", resolve_cmd=("mise", "which", "ruby"))
    assert locate(find, around(tmp_path, ask=ask), where="t").path == found
    assert asked == [("mise", "which", "ruby")]


def test_a_dry_run_asks_no_command(tmp_path: Path) -> None:
    find = Interpreter("command", "RUBY", resolve_cmd=("mise", "which", "ruby"))
    located = locate(find, around(tmp_path, ask=None), where="t")
    assert (located.path, located.how) == ("what 'mise which ruby' prints", "command, not run")
