"""The commit of a development build, from files: a process of git would take longer than all else."""

from __future__ import annotations

import os


def find_commit(package: str) -> str:
    """The commit that `plait --version` shows; nothing for a release.

    A wheel has it in commit.txt, an editable installation in its checkout.
    """
    checkout = os.path.dirname(os.path.dirname(package))
    try:
        if os.path.exists(f"{package}/commit.txt"):
            return _read(f"{package}/commit.txt")
        # Another repository may contain an installed package: its commit is none of ours.
        return _head(checkout)[:12] if os.path.exists(f"{checkout}/hatch_build.py") else ""
    except (OSError, ValueError):
        return ""


def _head(checkout: str) -> str:
    git = common = f"{checkout}/.git"
    if os.path.isfile(git):  # of a worktree: it names the folder with HEAD, which names the rest
        git = os.path.join(checkout, _read(git).removeprefix("gitdir: "))
        common = os.path.join(git, _read(f"{git}/commondir"))
    head = _read(f"{git}/HEAD")
    if not head.startswith("ref: "):
        return head
    branch = head[5:]
    if os.path.exists(f"{common}/{branch}"):
        return _read(f"{common}/{branch}")
    packed = (line.split(" ") for line in _read(f"{common}/packed-refs").splitlines())
    return next((line[0] for line in packed if line[1:] == [branch]), "")


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read().strip()
