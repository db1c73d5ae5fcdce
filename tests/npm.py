"""Packages from npm for tests that need the real thing; a machine without npm skips them and says so."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parents[1] / "build" / "npm"
SECONDS = 300


def npm_packages(*packages: str) -> Path:
    """The folder in which packages such as `mermaid@11.17.2` are installed, without their scripts.

    They are installed once and kept.  The test is skipped if node or npm is missing, or if the
    registry cannot be reached.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt install nodejs npm")
    folder = CACHE / hashlib.sha256("\n".join(packages).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes test at a time
        if not (folder / "whole").exists():
            _install(folder, packages)
            (folder / "whole").touch()
    return folder


def _install(folder: Path, packages: tuple[str, ...]) -> None:
    (folder / "package.json").write_text('{"private": true}')
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages]
    try:
        ended = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install {' '.join(packages)} within {SECONDS} s")
    if ended.returncode:
        why = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        pytest.skip(f"npm cannot install {' '.join(packages)}: {why}")


def run_node(folder: Path, script: str, stdin: str) -> str:
    """What a module prints that is written beside the packages."""
    name = hashlib.sha256(script.encode()).hexdigest()[:16]
    file = folder / f"{name}-{os.getpid()}.mjs"
    file.write_text(script)
    try:
        ended = subprocess.run(
            ["node", str(file)],
            cwd=folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    finally:
        file.unlink()
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
