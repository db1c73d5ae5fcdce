"""What is built for a release: tags, contents, modes, the same bytes each time, and what a compiler may do wrong.

`make wheels` installs the same files with their dependencies, and from the source (tests/wheels.py).
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

import pytest

import wheels
from plait.adapters.process import guardian

GUARDIAN = f"plait/adapters/process/plait-guardian-{guardian.VERSION}"
LIBRARY = "plait/adapters/process/libwarm.so"


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.build("build_wheel", tmp_path_factory.mktemp("pure"), wheels.PURE)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("there is no C compiler here")
    return wheels.build("build_wheel", tmp_path_factory.mktemp("compiled"))


def modes(wheel: Path) -> dict[str, str]:
    """The files of a wheel with their modes, but for the list of its files."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            one.filename: stat.filemode(one.external_attr >> 16)
            for one in archive.infolist()
            if ".dist-info/" not in one.filename
        }


def test_a_wheel_without_compiled_parts_is_for_any_machine(pure: Path) -> None:
    assert re.fullmatch(r"plait-[\d.]+-py3-none-any\.whl", pure.name)
    assert not {GUARDIAN, LIBRARY} & modes(pure).keys()
    with zipfile.ZipFile(pure) as archive:
        [name] = (name for name in archive.namelist() if name.endswith("/WHEEL"))
        assert b"Root-Is-Purelib: true\n" in archive.read(name)


def test_a_wheel_with_compiled_parts_is_for_a_machine_and_has_them_executable(
    pure: Path, compiled: Path
) -> None:
    machine = r"(many)?linux_(\d+_\d+_)?" + re.escape(os.uname().machine)
    assert re.fullmatch(rf"plait-[\d.]+-py3-none-{machine}\.whl", compiled.name)
    more = {name: mode for name, mode in modes(compiled).items() if name not in modes(pure)}
    assert more.pop(GUARDIAN) == "-rwxr-xr-x"
    assert {*more} <= {LIBRARY}
    with zipfile.ZipFile(compiled) as archive:
        [name] = (name for name in archive.namelist() if name.endswith("/WHEEL"))
        assert b"Root-Is-Purelib: false\n" in archive.read(name)


def test_the_source_builds_the_same_wheels(pure: Path, compiled: Path, tmp_path: Path) -> None:
    source = wheels.build("build_sdist", tmp_path)
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    [root] = (one for one in tmp_path.iterdir() if one.is_dir())
    before = os.umask(0o077)
    try:
        built = wheels.build("build_wheel", tmp_path, root=root)
        built_pure = wheels.build("build_wheel", tmp_path, wheels.PURE, root=root)
    finally:
        os.umask(before)
    assert (built.name, built.read_bytes()) == (compiled.name, compiled.read_bytes())
    assert (built_pure.name, built_pure.read_bytes()) == (pure.name, pure.read_bytes())


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
    built = wheels.build("build_wheel", tmp_path, compiler(text, tmp_path))
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
    built = wheels.build("build_wheel", tmp_path, {"CC": str(script)})
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
    assert wheels.find_fault(plait, serves, folder, tmp_path, {"PYTHONPATH": str(folder)}) == ""


def test_an_installation_that_lost_its_modes_runs_a_flow_and_says_so(
    compiled: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile(compiled) as archive:
        archive.extractall(folder)  # as unzip programs do that know no modes
    environment = wheels.clean_environment({"PYTHONPATH": str(folder)})
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
