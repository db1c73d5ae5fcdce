"""The container: built from this checkout and run as a user runs it, where containers work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

import plait
import release

TEXT = (release.ROOT / "Containerfile").read_text("utf-8")
COMMIT = "0123456789ab"
LONGEST = 900


def find_program() -> str:
    """A program that makes containers here; skips with the reason if there is none."""
    reasons = []
    for name in ("docker", "podman"):
        if shutil.which(name) is None:
            reasons.append(f"{name} is not installed")
            continue
        asked = subprocess.run([name, "info"], capture_output=True, text=True, check=False)
        # docker's client prints its own facts, and then that it reaches no server
        if asked.returncode == 0 and "ERROR" not in asked.stderr:
            return name
        printed = (asked.stderr or asked.stdout).strip().splitlines()
        reasons.append(f"{name} does not work: {printed[-1] if printed else asked.returncode}")
    pytest.skip("; ".join(reasons))


@pytest.fixture(scope="module")
def image() -> Iterator[tuple[str, str]]:
    """The program, and the image that it has built."""
    program = find_program()
    base = re.findall(r"^ARG PYTHON=(\S+)$", TEXT, re.MULTILINE)[0]
    here = subprocess.run([program, "image", "inspect", base], capture_output=True, check=False)
    if here.returncode != 0:
        pulled = subprocess.run([program, "pull", base], capture_output=True, text=True, check=False)  # fmt: skip
        if pulled.returncode != 0:
            pytest.skip(f"{base} is not here and cannot be pulled: {pulled.stderr.strip()[-300:]}")
    name = f"plait-test-{os.getpid()}"
    built = subprocess.run(
        [program, "build", "-f", "Containerfile", "-t", name, "--build-arg", f"COMMIT={COMMIT}", "."],
        cwd=release.ROOT, capture_output=True, text=True, timeout=LONGEST, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    yield program, name
    subprocess.run([program, "rmi", "--force", name], capture_output=True, check=False)


def test_a_container_shows_its_version(image: tuple[str, str]) -> None:
    program, name = image
    done = subprocess.run(
        [program, "run", "--rm", name, "--version", "--verbose"],
        capture_output=True, text=True, timeout=LONGEST, check=True,
    )  # fmt: skip
    first, *_, last = done.stdout.splitlines()
    assert first == f"plait {plait.__version__} ({COMMIT})"
    assert last.startswith("guardian: compiled, prestarts shells (/opt/plait/")


def test_a_container_runs_a_flow_for_the_owner_of_the_files(
    image: tuple[str, str], tmp_path: Path
) -> None:
    program, name = image
    (tmp_path / "flow.yaml").write_text(release.FLOW)
    user = f"{os.getuid()}:{os.getgid()}"
    done = subprocess.run(
        [program, "run", "--rm", "--init", "--user", user, "-v", f"{tmp_path}:/work", name, "run", "flow.yaml"],
        capture_output=True, text=True, timeout=LONGEST, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.endswith(release.RESULT)) == (0, True), done.stdout
    assert (tmp_path / ".ai" / "state").stat().st_uid == os.getuid()


def copied_files() -> list[str]:
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", TEXT, re.MULTILINE)
    return [path for line in lines for path in line.split()]


def test_what_the_container_file_copies_is_all_that_a_wheel_is_built_from(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for path in copied_files():
        copy = shutil.copytree if (release.ROOT / path).is_dir() else shutil.copy
        copy(release.ROOT / path, tmp_path / "source" / path)
    wheel = release.build("build_wheel", tmp_path, release.PURE, root=tmp_path / "source")
    with ZipFile(wheel) as packed:
        assert {"plait/cli/__init__.py", "plait/examples/README.md"} <= {*packed.namelist()}


def test_everything_that_the_container_file_copies_is_sent_to_the_builder() -> None:
    copied = copied_files()
    lines = (release.ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert copied == [line[1:] for line in lines if line.startswith("!")]
    assert [path for path in copied if not (release.ROOT / path).exists()] == []
