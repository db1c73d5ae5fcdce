"""What is built for a release: tags, contents, modes, the same bytes each time, and what a compiler may do wrong.

`make release` installs the same files with their dependencies, and from the source (tests/release.py).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import plait
import release
from plait.adapters.process import guardian


def load_hatch_build() -> Any:
    spec = importlib.util.spec_from_file_location("hatch_build", release.ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GUARDIAN = f"plait/adapters/process/plait-guardian-{guardian.VERSION}"
hatch_build = load_hatch_build()
LIBRARY = "plait/adapters/process/libwarm.so"


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return release.build("build_wheel", tmp_path_factory.mktemp("pure"), release.PURE)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("there is no C compiler here")
    return release.build("build_wheel", tmp_path_factory.mktemp("compiled"))


def modes(wheel: Path) -> dict[str, str]:
    """The files of a wheel with their modes, but for the list of its files."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            one.filename: stat.filemode(one.external_attr >> 16)
            for one in archive.infolist()
            if ".dist-info/" not in one.filename
        }


def test_a_wheel_without_compiled_parts_is_for_any_machine(pure: Path) -> None:
    assert re.fullmatch(r"plait_flow-[\d.]+-py3-none-any\.whl", pure.name)
    assert not {GUARDIAN, LIBRARY} & modes(pure).keys()
    with zipfile.ZipFile(pure) as archive:
        [name] = (name for name in archive.namelist() if name.endswith("/WHEEL"))
        assert b"Root-Is-Purelib: true\n" in archive.read(name)


def test_a_wheel_with_compiled_parts_is_for_a_machine_and_has_them_executable(
    pure: Path, compiled: Path
) -> None:
    machine = r"(many)?linux_(\d+_\d+_)?" + re.escape(os.uname().machine)
    assert re.fullmatch(rf"plait_flow-[\d.]+-py3-none-{machine}\.whl", compiled.name)
    more = {name: mode for name, mode in modes(compiled).items() if name not in modes(pure)}
    assert more.pop(GUARDIAN) == "-rwxr-xr-x"
    assert {*more} <= {LIBRARY}
    with zipfile.ZipFile(compiled) as archive:
        [name] = (name for name in archive.namelist() if name.endswith("/WHEEL"))
        assert b"Root-Is-Purelib: false\n" in archive.read(name)


def test_the_source_builds_the_same_wheels(pure: Path, compiled: Path, tmp_path: Path) -> None:
    source = release.build("build_sdist", tmp_path)
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    [root] = (one for one in tmp_path.iterdir() if one.is_dir())
    before = os.umask(0o077)
    try:
        built = release.build("build_wheel", tmp_path, root=root)
        built_pure = release.build("build_wheel", tmp_path, release.PURE, root=root)
    finally:
        os.umask(before)
    assert (built.name, built.read_bytes()) == (compiled.name, compiled.read_bytes())
    assert (built_pure.name, built_pure.read_bytes()) == (pure.name, pure.read_bytes())


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "file").write_text("one\n")
    names = ("-c", "user.name=a", "-c", "user.email=a")
    for arguments in (["init", "-q"], ["add", "."], [*names, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    return folder


def test_a_development_build_has_its_commit_and_a_release_has_none(checkout: Path) -> None:
    commit = hatch_build.ask_git(checkout, "rev-parse", "HEAD")[:12]
    assert hatch_build.find_commit(checkout, "1.0") == commit
    hatch_build.ask_git(checkout, "tag", "v1.0")
    assert hatch_build.find_commit(checkout, "1.0") == ""
    assert hatch_build.find_commit(checkout, "1.1") == commit
    (checkout / "file").write_text("two\n")
    assert hatch_build.find_commit(checkout, "1.0") == f"{commit}, changed"


def test_a_folder_that_is_no_checkout_has_no_commit(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "source").mkdir()
    assert hatch_build.find_commit(checkout / "source", "1.0") == ""
    shutil.rmtree(checkout / ".git" / "refs")
    assert hatch_build.find_commit(checkout, "1.0") == ""
    assert capsys.readouterr().err.startswith("plait: the commit is not known: ")


def test_the_version_is_the_same_in_each_file_of_ours() -> None:
    found = release.find_tag_problems(f"v{plait.__version__}")
    assert [problem for problem in found if "CHANGELOG" not in problem] == []


TAGS: list[tuple[str, str, str, list[str]]] = [
    # tag     __version__  heading of the changelog   what does not fit
    ("v1.2",  "1.2",       "## [1.2] - 2026-11-18",   []),
    ("v1.20", "1.2",       "## [1.2] - 2026-11-18",   ["the tag is 'v1.20', but pyproject.toml has version 1.2: v1.2"]),
    ("1.2",   "1.2",       "## [1.2] - 2026-11-18",   ["the tag is '1.2', but pyproject.toml has version 1.2: v1.2"]),
    ("",      "1.2",       "## [1.2] - 2026-11-18",   ["the tag is '', but pyproject.toml has version 1.2: v1.2"]),
    ("v1.2",  "1.1",       "## [1.2] - 2026-11-18",   ["src/plait/__init__.py has another version than pyproject.toml: 1.2"]),
    ("v1.2",  "1.2",       "## [1.20] - 2026-11-18",  ["CHANGELOG.md has no section '## [1.2] - ' with the date"]),
    ("v1.2",  "1.2",       "## [1.2] - unreleased",   ["CHANGELOG.md has no section '## [1.2] - ' with the date"]),
]  # fmt: skip


@pytest.mark.parametrize(("tag", "version", "heading", "problems"), TAGS)
def test_a_tag_that_does_not_fit_is_no_release(
    tag: str, version: str, heading: str, problems: list[str], tmp_path: Path
) -> None:
    (tmp_path / "src" / "plait").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2"\n')
    (tmp_path / "src" / "plait" / "__init__.py").write_text(
        f'"""Doc."""\n__version__ = "{version}"\n'
    )
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n")
    assert release.find_tag_problems(tag, tmp_path) == problems


COMPILERS: dict[str, tuple[str | None, str]] = {
    # what it does: the text of a compiler ($out: where its result belongs), and what is printed
    "none": (None, "guardian.c was not compiled: [Errno 2] No such file or directory: 'cc'"),
    "fails": ("echo out of order >&2; exit 3", "guardian.c was not compiled: out of order"),
    "fails silently": ("exit 3", r"guardian.c was not compiled: '.*/cc' ended with 3"),
    "makes nothing": ("echo done", "guardian.c was not compiled: the compiler made no program"),
    "makes text": ("echo garbage >$out", "guardian.c was not compiled: the compiler made no program"),
    "makes what does not start": (
        r"printf '\177ELF for another machine' >$out; chmod +x $out",
        "guardian.c was not compiled: .*Exec format error.*",
    ),
    "makes another program": (
        f"cp {shutil.which('true')} $out",
        "guardian.c was not compiled: the compiled program ended with 0 instead of 64",
    ),
    "is killed": ("kill -9 $$", "guardian.c was not compiled: '.*/cc' ended with -9"),
}  # fmt: skip


def compiler(text: str | None, folder: Path) -> Mapping[str, str]:
    """The environment with this compiler; None: with none."""
    if text is None:
        (folder / "bin").mkdir()
        if git := shutil.which("git"):  # it names the commit of the build
            (folder / "bin" / "git").symlink_to(git)
        return {"PATH": str(folder / "bin")}
    script = folder / "cc"
    find = 'while [ "$1" != -o ]; do shift; done; out=$2'
    script.write_text(f"#!/bin/sh\n{find}\n{text}\n")
    script.chmod(0o755)
    return {"CC": str(script)}


@pytest.mark.skipif(sys.platform != "linux", reason="the guardian is compiled on Linux only")
@pytest.mark.parametrize("does", COMPILERS)
def test_a_compiler_that_does_not_work_makes_the_wheel_for_any_machine(
    does: str, pure: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text, printed = COMPILERS[does]
    built = release.build("build_wheel", tmp_path, compiler(text, tmp_path))
    assert (built.name, built.read_bytes()) == (pure.name, pure.read_bytes())
    reason, consequence = capfd.readouterr().err.splitlines()
    expected = printed if ".*" in printed else re.escape(printed)
    assert re.fullmatch(f"plait: {expected}", reason)
    assert consequence == "plait: without it the guardian in Python serves: maps are slower"


def test_a_library_that_is_not_compiled_leaves_the_guardian(tmp_path: Path, compiled: Path) -> None:
    only_guardian = 'case "$*" in *warm.c*) exit 1;; esac; exec cc "$@"'
    script = tmp_path / "cc"
    script.write_text(f"#!/bin/sh\n{only_guardian}\n")
    script.chmod(0o755)
    built = release.build("build_wheel", tmp_path, {"CC": str(script)})
    assert modes(built) == {name: mode for name, mode in modes(compiled).items() if name != LIBRARY}


@pytest.mark.parametrize("installer", ["pip", "uv"])
@pytest.mark.parametrize("which", ["compiled", "pure"])
def test_an_installed_wheel_runs_a_flow(
    which: str, installer: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if importlib.util.find_spec(installer) is None:
        pytest.skip(f"{installer} is not installed")
    wheel: Path = request.getfixturevalue(which)
    folder = tmp_path / "installed"
    arguments = {
        "pip": ["pip", "install", "--no-index"],
        "uv": ["uv", "pip", "install", "--offline", "--python", sys.executable],
    }
    subprocess.run(
        [sys.executable, "-m", *arguments[installer], "--quiet", "--no-deps", "--target", str(folder), str(wheel)],
        check=True,
    )  # fmt: skip
    serves = (
        "compiled, "
        if which == "compiled"
        else "in Python, slower for maps: this installation has no compiled one"
    )
    plait = [sys.executable, "-m", "plait"]
    assert release.find_fault(plait, serves, folder, tmp_path, {"PYTHONPATH": str(folder)}) == ""


def test_an_installation_that_lost_its_modes_runs_a_flow_and_says_so(
    compiled: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile(compiled) as archive:
        archive.extractall(folder)  # as unzip programs do that know no modes
    environment = release.clean_environment({"PYTHONPATH": str(folder)})
    asked = subprocess.run(
        [sys.executable, "-m", "plait", "--version", "--verbose"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert asked.stdout.splitlines()[-1] == (
        "guardian: in Python, slower for maps: the compiled one does not work here (Permission denied)"
    )
    done = subprocess.run(
        [sys.executable, "-m", "plait", "sh", "echo a"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "a\n"
    assert done.stderr == (
        "plait: the compiled guardian does not work here (Permission denied): the slower one in Python serves\n"
    )
