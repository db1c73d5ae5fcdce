"""Builds what is released, installs each in a new environment, and runs a flow with it.

Released are the source, the wheel of this machine with the compiled guardian, and the wheel of any machine. The
source is installed with a compiler, without one, and with one that fails. Dependencies come from the registry.

    python tests/wheels.py [folder of the results, dist]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
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
    dist = Path(arguments[0] if arguments else ROOT / "dist").absolute()
    shutil.rmtree(dist, ignore_errors=True)
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
    with tempfile.TemporaryDirectory(prefix="plait-wheels-") as scratch:
        folder = Path(scratch, "environment")
        try:
            install(row, folder)
        except subprocess.CalledProcessError as error:
            return f"not installed: {error.stderr.decode(errors='replace')[-2000:]}"
        return find_fault([str(folder / "bin" / "plait")], row.guardian, folder, Path(scratch))


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
