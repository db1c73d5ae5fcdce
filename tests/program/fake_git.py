"""Real git for tests, with the interface of the run services."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from plait.core.errors import ProcessError
from plait.core.records import dataclass
from program.fakes import FakeServices


@dataclass(slots=True)
class GitServices(FakeServices):
    def git(
        self, args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b""
    ) -> bytes:
        base = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        done = subprocess.run(
            ["git", *args],
            cwd=cwd,
            env={**base, **env},
            input=stdin,
            capture_output=True,
            timeout=60,
        )
        if done.returncode != 0:
            raise ProcessError(
                f"git {args[0]} failed: {done.stderr.decode('utf-8', 'replace')}", code="git"
            )
        return done.stdout


def git(folder: Path, *args: str) -> str:
    """What a person does in a repository."""
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *who, *args], cwd=folder, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode("utf-8", "surrogateescape").strip()


def new_repository(folder: Path, **files: str) -> Path:
    """A repository with one commit of these files; without files it has no commit."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    for name, text in files.items():
        (folder / name).write_text(text)
    if files:
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "first")
    return folder
