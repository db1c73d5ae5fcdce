"""Folders of a project that tools for files read, and never write."""

from __future__ import annotations

from plait.core.hints import Final

GUARDED_FOLDERS: Final = (
    ".git", ".ai", ".venv", "venv", "node_modules", "site-packages", ".github", ".gitlab", ".husky",
    ".vscode", ".idea", ".devcontainer", ".claude", ".cursor",
)  # fmt: skip
"""Their files start programs without anybody asking for it."""


def guarded_folder(inside: str) -> str | None:
    """Which of them a path below the project is in, or is; some file systems know no case."""
    return next((part for part in inside.casefold().split("/") if part in GUARDED_FOLDERS), None)
