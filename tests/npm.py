"""Programs from the npm registry, in pinned versions, for tests with real peers.

They are installed once into a folder below `.venv`.  Where npm or the registry is missing, the test is
skipped with a message; with PLAIT_NPM=must, as in CI, it fails.  Without that, npm asks once and does not
ask again for ten minutes: it waits a minute before it gives up, and many tests would wait for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

NODE = "node@22"
INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
# The first one that knows revision 2026-07-28; what npm calls the latest one ends at 2025-11-25.
CONFORMANCE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
YAML_SERVER = "yaml-language-server@1.19.2"
LANGUAGE_CLIENT = "vscode-languageserver-protocol@3.17.5"
LIMIT = 600.0
"""The most seconds of an installation, and the seconds for which a failure is cached."""


def npm_folder(*packages: str) -> Path:
    """A folder whose `node_modules` has these packages; the test is skipped if it cannot be made."""
    npm = shutil.which("npm")
    if npm is None:
        _give_up("npm is not here: install node and npm")
    name = hashlib.sha256(" ".join(sorted(packages)).encode()).hexdigest()[:12]
    folder = Path(sys.prefix) / "npm" / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests in several processes install once
        if not (folder / "done").exists():
            _install(str(npm), folder, packages)
            (folder / "done").touch()
    return folder


def is_required() -> bool:
    return os.environ.get("PLAIT_NPM") == "must"


def node(folder: Path) -> str:
    """The interpreter of the folder if it has one, else that of this machine."""
    own = folder / "node_modules" / ".bin" / "node"
    return str(own) if own.exists() else shutil.which("node") or "node"


def run_node(folder: Path, script: str, stdin: str) -> str:
    """What a module prints that is written beside the packages."""
    name = hashlib.sha256(script.encode()).hexdigest()[:16]
    file = folder / f"{name}-{os.getpid()}.mjs"
    file.write_text(script)
    try:
        ended = subprocess.run(
            [node(folder), str(file)],
            cwd=folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    finally:
        file.unlink()
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _install(npm: str, folder: Path, packages: Sequence[str]) -> None:
    failure = folder / "failed"
    if not is_required() and failure.exists() and time.time() - failure.stat().st_mtime < LIMIT:
        _give_up(failure.read_text("utf-8"))
    command = [
        npm,
        "install",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
        "--prefix",
        str(folder),
    ]
    if not is_required():
        command.append("--fetch-retries=0")
    try:
        ended = subprocess.run(
            [*command, *packages], capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        why = f"npm did not install {', '.join(packages)} within {LIMIT:g} seconds"
    else:
        if ended.returncode == 0:
            return
        errors = "; ".join(ended.stderr.strip().splitlines()[:3])
        why = f"npm cannot install {', '.join(packages)}: {errors}"
    failure.write_text(why, "utf-8")
    _give_up(why)


def _give_up(why: str) -> NoReturn:
    if is_required():
        pytest.fail(why)
    pytest.skip(why)
