"""Builds what is released, installs each in a new environment, and runs a flow and the demo with it.

Released are the source, the wheel of this machine with the compiled guardian, and the wheel of any machine. The
source is installed with a compiler, without one, and with one that fails. Dependencies come from the registry.

    python tests/release.py [a new folder for the results; else dist, which is removed first]
    python tests/release.py --tag v1.2.3       does the tag fit the version?  It needs nothing installed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
UV = (sys.executable, "-m", "uv", "--quiet")
BUILD = "import sys, hatchling.build as backend; print(getattr(backend, sys.argv[1])(sys.argv[2]))"
PURE = {"PLAIT_PURE": "1"}
FLOW = """\
setup:
  - shell: echo start
map:
  input: [a, b, c, d, e, f]
  max_parallel: 3
  steps:
    - shell: echo ${item}
reduce:
  - shell: echo "${map.successful} of ${map.total}"
"""
RESULT = "  6 of 6\n"
# Each of these would have another guardian serve, or another Plait run.
UNSET = ("PLAIT_PURE", "PLAIT_PYTHON_GUARDIAN", "PLAIT_NO_WARM_SHELLS", "PYTHONPATH", "CC")


@dataclass(frozen=True)
class Row:
    what: str
    installer: str
    file: Path
    guardian: str
    environment: Mapping[str, str]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="of the results: dist, or a new one")
    parser.add_argument("--tag", help="only say whether this tag fits the version")
    options = parser.parse_args(arguments)
    if options.tag is not None:
        problems = find_tag_problems(options.tag)
        print("".join(f"plait: {problem}\n" for problem in problems), end="", file=sys.stderr)
        return min(len(problems), 1)
    dist = (options.folder or ROOT / "dist").absolute()
    if options.folder is None:
        shutil.rmtree(dist, ignore_errors=True)
    elif dist.exists():
        parser.error(f"'{options.folder}' exists: name a new folder")
    dist.mkdir(parents=True)
    source, *wheels = build_all(dist)
    rows = list(plan(source, wheels))
    if len(wheels) == 1:
        print("plait: no C compiler works here: the wheel of this machine is not built")
    failed = 0
    print(f"{'what':<31} {'by':<4} {'guardian':<10} {'file'}", flush=True)
    for row in rows:
        why = try_row(row)
        failed += why != ""
        print(
            f"{row.what:<31} {row.installer:<4} {row.guardian:<10} {row.file.name}  {why or '✓'}",
            flush=True,
        )
    return min(failed, 1)


def find_tag_problems(tag: str, root: Path = ROOT) -> list[str]:
    """What does not fit the tag: each place that has the version says the same."""
    texts = {
        name: (root / name).read_text("utf-8")
        for name in ("pyproject.toml", "src/plait/__init__.py", "CHANGELOG.md")
    }
    version = tomllib.loads(texts["pyproject.toml"])["project"]["version"]
    problems = []
    if tag != f"v{version}":
        problems.append(f"the tag is '{tag}', but pyproject.toml has version {version}: v{version}")
    if f'\n__version__ = "{version}"\n' not in texts["src/plait/__init__.py"]:
        problems.append(f"src/plait/__init__.py has another version than pyproject.toml: {version}")
    if not re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", texts["CHANGELOG.md"], re.MULTILINE
    ):
        problems.append(f"CHANGELOG.md has no section '## [{version}] - ' with the date")
    return problems


def build_all(dist: Path) -> list[Path]:
    """The source, the wheel of any machine and, if it can be compiled, the wheel of this machine."""
    files = [
        build("build_sdist", dist),
        build("build_wheel", dist, PURE),
        build("build_wheel", dist),
    ]
    return list(dict.fromkeys(files))


def plan(source: Path, wheels: Sequence[Path]) -> list[Row]:
    pure, *compiled = wheels
    by_both = ("pip", "uv")
    return [
        *(Row("wheel of this machine", by, one, "compiled", {}) for one in compiled for by in by_both),
        *(Row("wheel of any machine", by, pure, "in Python", {}) for by in by_both),
        *(Row("source, compiler", by, source, "compiled", {}) for _ in compiled for by in by_both),
        *(Row("source, no compiler", by, source, "in Python", {"CC": "/nowhere/cc"}) for by in by_both),
        Row("source, compiler that fails", "uv", source, "in Python", {"CC": "false"}),
        Row("source, PLAIT_PURE=1", "uv", source, "in Python", PURE),
    ]  # fmt: skip


def build(
    what: str, dist: Path, environment: Mapping[str, str] | None = None, *, root: Path = ROOT
) -> Path:
    """Build the sdist or a wheel with the backend of this environment; returns the file."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, str(dist)],
        cwd=root,
        env=clean_environment(environment),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dist / done.stdout.splitlines()[-1]


def clean_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in UNSET}
    return {**kept, **(more or {})}


def try_row(row: Row) -> str:
    """Install a file in a new environment and run the flow; returns what went wrong."""
    with tempfile.TemporaryDirectory(prefix="plait-release-") as scratch:
        folder = Path(scratch, "environment")
        try:
            install(row, folder)
        except subprocess.CalledProcessError as error:
            return f"not installed: {error.stderr.decode(errors='replace')[-2000:]}"
        plait = [str(folder / "bin" / "plait")]
        return find_fault(plait, row.guardian, folder, Path(scratch)) or demo_fault(folder)


def install(row: Row, folder: Path) -> None:
    python = str(folder / "bin" / "python")
    # uv keeps what it built of a file, whatever the compiler was; so this is another file.
    file = str(shutil.copy(row.file, folder.parent))
    if row.installer == "pip":
        make = [sys.executable, "-m", "venv", str(folder)]
        commands = [make, [python, "-m", "pip", "install", "--quiet", file]]
    else:
        commands = [
            [*UV, "venv", "--python", sys.executable, str(folder)],
            [*UV, "pip", "install", "--python", python, file],
        ]
    environment = clean_environment({"UV_SYSTEM_CERTS": "1", **row.environment})
    for command in commands:
        subprocess.run(command, env=environment, capture_output=True, check=True)


def find_fault(
    plait: Sequence[str],
    guardian: str,
    folder: Path,
    scratch: Path,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run the flow and ask for the guardian; returns what is not as it should be, or nothing."""
    project = scratch / "project"
    project.mkdir(exist_ok=True)
    (project / "flow.yaml").write_text(FLOW)
    mine = clean_environment({"USER_SPACE": str(scratch / "user"), **(environment or {})})
    for arguments in (["--version", "--verbose"], ["run", "flow.yaml"]):
        done = subprocess.run(
            [*plait, *arguments], cwd=project, env=mine, capture_output=True, text=True, check=False
        )
        printed = done.stdout + done.stderr
        if arguments[0] == "run":
            is_right = done.stdout.endswith(RESULT) and "warning" not in printed
        else:
            is_right = (
                f"\nguardian: {guardian}" in done.stdout and f"package: {folder}/" in done.stdout
            )
        if done.returncode or not is_right:
            return f"plait {' '.join(arguments)}: exit code {done.returncode}\n{printed}"
    return ""


def demo_fault(folder: Path) -> str:
    """Run the demo with an environment; returns what it printed if it failed, or nothing."""
    done = subprocess.run(
        [folder / "bin" / "python", ROOT / "examples" / "demo.py"],
        cwd=folder,
        env=clean_environment({"USER_SPACE": str(folder / "user")}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return f"the demo: exit code {done.returncode}\n{done.stdout}" if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
