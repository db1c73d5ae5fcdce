"""Filters and drivers that a repository, an include or an item brings: none runs when Plait calls git."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.git.places import Place
from plait.engine.outcome import Outcome, Succeeded
from program.fake_git import git

EVIL = ("clean", "smudge", "process")
LINES = "".join(f"{number}\n" for number in range(1, 10))


class Trap:
    """A program that says if it was run."""

    def __init__(self, folder: Path) -> None:
        self.canary = folder / "canary"
        self.program = folder / "evil.sh"
        self.program.write_text(f'#!/bin/sh\necho "$0 $*" >> {self.canary}\ncat\n')
        self.program.chmod(0o755)

    @property
    def configuration(self) -> str:
        filters = "".join(f"\t{key} = {self.program}\n" for key in EVIL)
        driver = f'[merge "evil"]\n\tdriver = {self.program}\n'
        return f'[filter "evil"]\n{filters}{driver}[core]\n\tfsmonitor = {self.program}\n'

    def expect_unsprung(self) -> None:
        assert not self.canary.exists(), self.canary.read_text()


Arrange = Callable[[Place, Trap], None]
Acts = Callable[[Path, Trap], object]


def included_by(condition: str) -> Arrange:
    def arrange(place: Place, trap: Trap) -> None:
        (place.folder / "evil.conf").write_text(trap.configuration)
        git(
            place.repository,
            "config",
            f"includeIf.{condition}.path",
            str(place.folder / "evil.conf"),
        )

    return arrange


def includes_a_file(place: Place, _: Trap) -> None:
    (place.folder / "evil.conf").write_text("")
    git(place.repository, "config", "include.path", str(place.folder / "evil.conf"))


def fills_the_included_file(folder: Path, trap: Trap) -> None:
    (trap.program.parent / "evil.conf").write_text(trap.configuration)
    writes(folder, trap)


def has_settings_by_worktree(place: Place, _: Trap) -> None:
    git(place.repository, "config", "extensions.worktreeConfig", "true")


def configures_its_worktree(folder: Path, trap: Trap) -> None:
    for key in EVIL:
        git(folder, "config", "--worktree", f"filter.evil.{key}", str(trap.program))
    writes(folder, trap)


def renormalizes(place: Place, trap: Trap) -> None:
    git(place.repository, "config", "merge.renormalize", "true")
    included_by("onbranch:**")(place, trap)


def nothing(_: Place, __: Trap) -> None: ...


def writes(folder: Path, _: Trap) -> None:
    lines = (folder / "base").read_text().splitlines()
    lines[0 if folder.name.startswith("0") else 8] = "work"
    (folder / "base").write_text("\n".join(lines) + "\n")


def brings_a_repository_of_its_own_in_files(folder: Path, trap: Trap) -> None:
    """Only by writing files below its place."""
    evil = folder / "evil"
    common = Path((folder / ".git").read_text().removeprefix("gitdir: ").strip()).parent.parent
    (evil / "objects" / "info").mkdir(parents=True)
    (evil / "refs").mkdir()
    (evil / "objects" / "info" / "alternates").write_text(f"{common / 'objects'}\n")
    (evil / "config").write_text(trap.configuration)
    (evil / "HEAD").write_text(git(folder, "rev-parse", "HEAD") + "\n")
    (folder / ".git").write_text("gitdir: evil\n")
    writes(folder, trap)


def is_reported_of_a_submodule(place: Place, _: Trap) -> None:
    tip = git(place.repository, "rev-parse", "HEAD")
    git(place.repository, "update-index", "--add", "--cacheinfo", f"160000,{tip},sub")
    git(place.repository, "commit", "-q", "-m", "a submodule")


def fills_the_submodule(folder: Path, trap: Trap) -> None:
    """The folder of a submodule becomes a repository whose configuration names programs."""
    git(folder / "sub", "init", "-q")
    (folder / "sub" / "f").write_text("x\n")
    (folder / "sub" / ".gitattributes").write_text("* filter=evil\n")
    git(folder / "sub", "add", "-A")
    git(folder / "sub", "commit", "-q", "-m", "x")
    (folder / "sub" / ".git" / "config").write_text("[core]\n\tbare = false\n" + trap.configuration)
    (folder / "sub" / "f").write_text("y\n")
    writes(folder, trap)


ROADS: list[tuple[Arrange, Acts]] = [
    (included_by("onbranch:plait/**"),          writes),
    (included_by("gitdir:**/worktrees/**"),     writes),
    (included_by("gitdir:**"),                  writes),
    (includes_a_file,                           fills_the_included_file),
    (has_settings_by_worktree,                  configures_its_worktree),
    (renormalizes,                              writes),
    (nothing,                                   brings_a_repository_of_its_own_in_files),
    (is_reported_of_a_submodule,                    fills_the_submodule),
]  # fmt: skip


def run_with_trap(tmp_path: Path, arrange: Arrange, acts: Acts) -> tuple[Place, Outcome]:
    trap = Trap(tmp_path)
    place = Place(
        tmp_path,
        items=("a", "b"),
        first={"base": LINES, ".gitattributes": "* filter=evil merge=evil\n"},
    )
    arrange(place, trap)
    trap.canary.unlink(missing_ok=True)
    place.does = lambda folder, _: acted(acts, folder, trap)
    outcome = place.run_attempt()
    trap.expect_unsprung()
    return place, outcome


def acted(acts: Acts, folder: Path, trap: Trap) -> None:
    acts(folder, trap)
    trap.canary.unlink(missing_ok=True)  # what an item runs is its own affair


@pytest.mark.parametrize(("arrange", "acts"), ROADS)
def test_no_filter_runs_wherever_it_comes_from(
    tmp_path: Path, arrange: Arrange, acts: Acts
) -> None:
    place, _ = run_with_trap(tmp_path, arrange, acts)
    shown = git(
        place.repository, "show", "plait/r1/merged:base" if has_merged(place) else "main:base"
    )
    assert shown.startswith("work\n"), "the item did its work, and that is merged"


def has_merged(place: Place) -> bool:
    return "plait/r1/merged" in place.branches()


def test_settings_that_name_no_program_hold_in_places(tmp_path: Path) -> None:
    def does(folder: Path, _: str) -> None:
        (folder / "new").write_bytes(b"one\r\ntwo\r\n")
        (folder / "base").chmod(0o755)

    place = Place(tmp_path, items=("a",), does=does)
    for name, value in (
        ("core.autocrlf", "input"),
        ("core.fileMode", "false"),
        ("user.email", "q@x"),
        ("user.name", 'q " \\ ü'),
    ):
        git(place.repository, "config", name, value)
    assert isinstance(place.run_attempt(), Succeeded)
    assert git(place.repository, "show", "main:new") == "one\ntwo"
    assert git(place.repository, "ls-tree", "main", "base").startswith("100644 ")
    shown = git(place.repository, "log", "-1", "--no-merges", "--format=%an", "--", "new")
    assert shown == 'q " \\ ü'


def test_filters_of_the_user_run_and_keep_what_they_keep_in_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    keeps = 'd=$(git rev-parse --git-common-dir)/lfs; tee "$d/kept" | tr a-z A-Z'
    (home / ".gitconfig").write_text(
        f'[filter "lfs"]\n\tclean = "{keeps.replace(chr(34), chr(92) + chr(34))}"\n\tsmudge = cat\n'
        "[user]\n\tname = t\n\temail = t@example.org\n"
    )
    place = Place(
        tmp_path,
        items=("a",),
        does=lambda folder, _: (folder / "new.big").write_text("work\n"),
        first={"base": "base\n", ".gitattributes": "*.big filter=lfs\n"},
    )
    assert isinstance(place.run_attempt(), Succeeded)
    assert git(place.repository, "show", "main:new.big") == "WORK"
    assert (place.repository / ".git" / "lfs" / "kept").read_text() == "work\n"
