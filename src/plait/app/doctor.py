"""What `plait doctor` looks at: the installation, the programs, the project, and what works with them.

It is for a machine on which something is broken. So each part is looked at on its own, its modules are
loaded where it is looked at, and what fails there is a finding like any other.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata

from plait.core.errors import PlaitError
from plait.core.extras import install_extra
from plait.core.hints import Final
from plait.core.values import Json

DISTRIBUTION: Final = "plait-flow"
OK: Final = "ok"
NOTE: Final = "note"
PROBLEM: Final = "problem"
LITTLE_SPACE: Final = 200_000_000
EXTRAS: Final = {
    # extra: its distribution, and what needs it
    "mcp": ("mcp", "tools of MCP servers"),
    "dask": ("distributed", "--backend dask"),
    "web": ("starlette", "plait web, and plait mcp --http"),
    "otel": ("opentelemetry-sdk", "traces and metrics of runs"),
}
PROGRAMS: Final = {
    # program: what needs it
    "sh": "shell steps",
    "bash": "tools in Bash, and shell: bash",
    "git": "worktrees, and names like git.branch",
    "node": "tools in JavaScript",
}
NEEDED: Final = ("sh",)


@dataclass(frozen=True)
class Finding:
    part: str
    state: str
    what: str
    fix: str = ""

    def record(self) -> dict[str, Json]:
        return {"part": self.part, "state": self.state, "what": self.what, "fix": self.fix or None}


def examine(project: str | None) -> Iterator[Finding]:
    """Every part of this installation and project, in a fixed order."""
    parts: dict[str, Callable[[], Iterator[Finding]]] = {
        "plait": _plait,
        "python": _python,
        "packages": _packages,
        "guardian": _guardian,
        "journal": _journal,
        "extras": _extras,
        "programs": _programs,
        "project": lambda: _project(project),
        "state": lambda: _state(project),
        "trust": lambda: _trust(project),
    }
    for part, look in parts.items():
        try:
            yield from look()
        except PlaitError as error:
            yield Finding(part, PROBLEM, error.what, error.fix or "")
        except OSError as error:
            place = f": {error.filename}" if isinstance(error.filename, str) else ""
            yield Finding(part, PROBLEM, f"{error.strerror or error}{place}")
        except ImportError as error:
            yield Finding(part, PROBLEM, f"a module cannot be loaded: {error}", _reinstall())


def _reinstall() -> str:
    return f"install Plait again: pip install --force-reinstall {DISTRIBUTION}"


# ── the installation ─────────────────────────────────────────────────────


def _plait() -> Iterator[Finding]:
    import plait

    yield Finding("plait", OK, f"{plait.__version__} in {os.path.dirname(plait.__file__)}")


def _python() -> Iterator[Finding]:
    yield Finding("python", OK, f"{platform.python_version()} ({sys.executable})")


def _packages() -> Iterator[Finding]:
    try:
        required = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        what = f"{DISTRIBUTION} is not installed: Plait runs from its source"
        yield Finding("packages", NOTE, what)
        return
    names = [re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in required if "extra ==" not in one]
    missing = [name for name in names if _version(name) is None]
    if missing:
        yield Finding("packages", PROBLEM, f"missing: {', '.join(missing)}", _reinstall())
    else:
        yield Finding("packages", OK, f"all {len(names)} that Plait needs are installed")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _guardian() -> Iterator[Finding]:
    from plait.adapters.process import guardian_process

    what = guardian_process.describe()
    if what.startswith("compiled"):
        yield Finding("guardian", OK, what)
    else:
        fix = "install a wheel for this system, or a C compiler and then Plait again"
        yield Finding("guardian", NOTE, what, fix)


def _journal() -> Iterator[Finding]:
    import sqlite3

    yield Finding("journal", OK, f"SQLite {sqlite3.sqlite_version}")


def _extras() -> Iterator[Finding]:
    for extra, (distribution, use) in EXTRAS.items():
        version = _version(distribution)
        if version is None:
            what = f"not installed; needed for {use}"
            yield Finding(extra, NOTE, what, install_extra(extra))
        else:
            yield Finding(extra, OK, f"{distribution} {version}, for {use}")


def _programs() -> Iterator[Finding]:
    for program, use in PROGRAMS.items():
        path = shutil.which(program)
        if path is None:
            state = PROBLEM if program in NEEDED else NOTE
            fix = f"install {program}, or add its folder to PATH"
            yield Finding(program, state, f"not found; needed for {use}", fix)
        else:
            yield Finding(program, OK, f"{path}, for {use}")


# ── the project ──────────────────────────────────────────────────────────


def _project(project: str | None) -> Iterator[Finding]:
    from plait.app.toolbox import project_root
    from plait.core.projects import is_project

    root = project_root(project)
    if is_project(root):
        yield Finding("project", OK, root)
    else:
        what = f"{root} has no .ai folder with tools or settings; flows run here nevertheless"
        yield Finding("project", NOTE, what, "plait init makes a project")


def _state(project: str | None) -> Iterator[Finding]:
    """The folder of the runs, or the nearest folder above it: a run makes the others."""
    from plait.app.toolbox import project_root

    place = wanted = os.path.join(project_root(project), ".ai", "state", "runs")
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        yield Finding("state", PROBLEM, f"{place} is not a folder", "move it away: runs go there")
        return
    if not os.access(place, os.W_OK | os.X_OK):
        fix = f"make it writable, for example: chmod u+wx {place}"
        yield Finding("state", PROBLEM, f"{place} cannot be written, so no run can start", fix)
        return
    free = shutil.disk_usage(place).free
    if free < LITTLE_SPACE:
        what = f"only {free // 1_000_000} MB are free at {place}"
        yield Finding("state", NOTE, what, "free some space: runs keep the output of their steps")
        return
    count = len(os.listdir(wanted)) if place == wanted else 0
    runs = _count(count, "run") if count else "no runs yet"
    yield Finding("state", OK, f"{wanted}, {runs}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _trust(project: str | None) -> Iterator[Finding]:
    import shlex

    from plait.app.toolbox import toolbox
    from plait.tools.trust.decisions import project_files

    trust = toolbox(project).trust
    here = trust.project or os.getcwd()
    files = project_files(here)
    projects, keys = len(trust.store.projects()), len(trust.store.keys())
    known = f"{_count(projects, 'trusted project')}, {_count(keys, 'key')}"
    if not files:
        yield Finding("trust", OK, f"nothing here needs trust; {known}")
    elif trust.project_trusted:
        yield Finding("trust", OK, f"this project is trusted; {known}")
    elif trust.store.trusts(here):
        what = "this project is trusted, but it requires signatures (trust: signed)"
        yield Finding("trust", NOTE, what, "plait verify shows which files may run")
    else:
        what = (
            f"this project is not trusted, so its tools do not run ({_count(len(files), 'file')})"
        )
        yield Finding("trust", NOTE, what, f"read them, then: plait trust {shlex.quote(here)}")
