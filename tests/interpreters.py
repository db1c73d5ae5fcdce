"""Tests on every interpreter that pyproject.toml names: all of them on the oldest and the newest, a share between.

The oldest has the lowest versions of all dependencies that pyproject.toml allows, the others have the highest.
It starts processes by guardian.py, the others by the compiled guardian.
An interpreter that is not on this machine is named and left out; with --fetch, `uv` tries to download it first.

    python tests/interpreters.py [--fetch] [-n WORKERS] [arguments for pytest]
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = ROOT / ".venv" / "interpreters"
CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")
# What an environment is made from; when one of them changes, it is made anew.
SOURCES = (
    "pyproject.toml",
    "hatch_build.py",
    "src/plait/adapters/process/guardian.c",
    "src/plait/adapters/process/warm.c",
)
UV = (sys.executable, "-m", "uv", "--quiet")


@dataclass(frozen=True)
class TestRun:
    version: str
    resolution: str
    whole: bool

    @property
    def title(self) -> str:
        tests = "all tests" if self.whole else "a share of the tests"
        versions = "lowest versions and guardian.py" if self.is_lowest else "highest versions"
        return f"Python {self.version} with the {versions}: {tests}"

    @property
    def is_lowest(self) -> bool:
        return self.resolution == "lowest-direct"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--fetch", action="store_true", help="download interpreters that are missing"
    )
    parser.add_argument("-n", dest="workers", default="3", help="how many workers pytest has")
    options, rest = parser.parse_known_args(arguments)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = named_versions(project["classifiers"])
    found = {
        version: path
        for version in named
        if (path := find_interpreter(version, fetch=options.fetch))
    }
    missing = [version for version in named if version not in found]
    if not found:
        version = "{}.{}".format(*sys.version_info[:2])
        found = {version: sys.executable}
    for line in (
        *(run.title for run in plan(list(found))),
        *(f"Python {v}: not found" for v in missing),
    ):
        print(f"plait: {line}", flush=True)
    for run in plan(list(found)):
        print(f"plait: {run.title}", flush=True)
        try:
            python = make_environment(run, found[run.version])
        except subprocess.CalledProcessError:
            print(
                f"plait: no environment for {run.title}: see above; can the registry be reached?",
                file=sys.stderr,
            )
            return 1
        if run.is_lowest:
            untried = list(untried_bounds(lower_bounds(project), installed_versions(python)))
            if untried:
                print("\n".join(f"plait: {line}" for line in untried), file=sys.stderr)
                return 1
        code = run_tests(python, run, options.workers, rest)
        if code:
            return code
    return 0


def named_versions(classifiers: Sequence[str]) -> list[str]:
    """The versions of Python in the classifiers, oldest first."""
    named = [match[1] for one in classifiers if (match := CLASSIFIER.fullmatch(one))]
    return sorted(named, key=Version)


def plan(versions: Sequence[str]) -> list[TestRun]:
    """What is run where, oldest version first in `versions`; the newest is the last run."""
    return [
        *(TestRun(version, "highest", whole=False) for version in versions[1:-1]),
        TestRun(versions[0], "lowest-direct", whole=True),
        TestRun(versions[-1], "highest", whole=True),
    ]


def find_interpreter(version: str, *, fetch: bool) -> str | None:
    """A Python of this version: the one that is named by PYTHON, on the PATH, of pyenv, or of uv."""
    for candidate in candidates(version):
        if is_python(candidate, version):
            return candidate
    if fetch:
        subprocess.run([*UV, "python", "install", version], stderr=subprocess.DEVNULL, check=False)
    asked = subprocess.run(
        [*UV, "python", "find", "--managed-python", "--no-python-downloads", version],
        capture_output=True,
        text=True,
        check=False,
    )
    path = asked.stdout.strip()
    return path if path and is_python(path, version) else None


def candidates(version: str) -> Iterator[str]:
    yield from (os.environ[name] for name in ("PYTHON",) if os.environ.get(name))
    yield os.path.realpath(sys.executable)
    on_path = shutil.which(f"python{version}")
    if on_path:
        yield on_path
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    patches = glob.glob(f"{glob.escape(pyenv)}/versions/{version}.*/bin/python")
    yield from sorted(
        patches, key=lambda path: [int(n) for n in re.findall(r"\d+", path)], reverse=True
    )
    yield f"/usr/bin/python{version}"


def is_python(path: str, version: str) -> bool:
    """Does it start (a shim of pyenv may not), is it this version, and can it make an environment?"""
    code = "import sys, venv; print('{}.{}'.format(*sys.version_info[:2]))"
    try:
        asked = subprocess.run(
            [path, "-c", code], capture_output=True, text=True, check=False, timeout=60
        )
    except OSError:
        return False
    return asked.returncode == 0 and asked.stdout.strip() == version


def make_environment(run: TestRun, interpreter: str) -> str:
    """An environment with the project and its tools; one that is there is used again until its sources change."""
    folder = ENVIRONMENTS / f"{run.version}-{run.resolution}"
    python, stamp = str(folder / "bin" / "python"), folder / ".stamp"
    made_from = hashlib.sha256(interpreter.encode())
    for name in SOURCES:
        made_from.update((ROOT / name).read_bytes())
    if (
        stamp.exists()
        and stamp.read_text() == made_from.hexdigest()
        and is_python(python, run.version)
    ):
        return python
    project = f"{ROOT}[dev]"
    # The certificates of the machine, as pip takes them: a registry may be reached through a proxy of its own.
    os.environ.setdefault("UV_SYSTEM_CERTS", "1")
    subprocess.run([*UV, "venv", "--clear", "--python", interpreter, str(folder)], check=True)
    install = [
        "pip",
        "install",
        "--python",
        python,
        "--resolution",
        run.resolution,
        "--editable",
        project,
    ]
    subprocess.run([*UV, *install], check=True)
    stamp.write_text(made_from.hexdigest())
    return python


def lower_bounds(project: Mapping[str, Any]) -> dict[str, Version | None]:
    """The lowest version of each dependency that is installed for the tests; None without one."""
    extras = project["optional-dependencies"]
    lines = list(project["dependencies"])
    for extra in ("dev", "dask", "mcp", "otel", "web"):
        lines += extras[extra]
    bounds: dict[str, Version | None] = {}
    for requirement in map(Requirement, lines):
        lowest = [
            Version(one.version)
            for one in requirement.specifier
            if one.operator in (">=", "==", "~=")
        ]
        if requirement.name != project["name"]:
            bounds[canonicalize_name(requirement.name)] = max(lowest, default=None)
    return bounds


def installed_versions(python: str) -> dict[str, Version]:
    listed = subprocess.run(
        [*UV, "pip", "list", "--python", python, "--format", "json"],
        capture_output=True,
        check=True,
    )
    return {
        canonicalize_name(one["name"]): Version(one["version"]) for one in json.loads(listed.stdout)
    }


def untried_bounds(
    bounds: dict[str, Version | None], installed: dict[str, Version]
) -> Iterator[str]:
    """Bounds that promise a version with which no test has run."""
    for name, bound in bounds.items():
        if bound is None:
            yield f"pyproject.toml gives {name} no lower bound; write one that was tried"
        elif installed[name] != bound:
            yield f"pyproject.toml allows {name} {bound}, but {installed[name]} was tried; write that"


def run_tests(python: str, run: TestRun, workers: str, rest: Sequence[str]) -> int:
    environment = {name: value for name, value in os.environ.items() if name != "PLAIT_SMOKE"}
    if not run.whole:
        environment["PLAIT_SMOKE"] = "1"
    if run.is_lowest:
        environment["PLAIT_PYTHON_GUARDIAN"] = "1"  # the others use the compiled one
    command = [python, "-m", "pytest", "-n", workers, *rest]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
