"""Find the project of a folder: a folder whose `.ai` holds more than the state of runs.

A folder with state alone is not a project, so a run in it changes nothing for flows below it. The
same holds for an empty `.ai` and for one with hidden files only. The folder of the user space
counts only if it is named.
"""

from __future__ import annotations

import os

from plait.core.hints import Final

AI: Final = ".ai"
STATE: Final = "state"


def is_project(folder: str) -> bool:
    try:
        with os.scandir(os.path.join(folder, AI)) as entries:
            return any(entry.name != STATE and not entry.name.startswith(".") for entry in entries)
    except OSError:
        return False


def nearest_project(folder: str) -> str | None:
    """Return the first project among a folder, given by its real path, and the folders above;
    None if there is none.
    """
    own = {os.path.realpath(place) for place in (os.path.expanduser("~"), user_folder())}
    while folder != os.path.dirname(folder):
        if folder not in own and is_project(folder):
            return folder
        folder = os.path.dirname(folder)
    return None


def project_of_file(path: str) -> str:
    """The project that a flow belongs to: the nearest one above it, or its own folder."""
    own = os.path.dirname(os.path.realpath(path))
    return nearest_project(own) or own


def current_project() -> str:
    """The nearest project, or the current folder."""
    start = os.getcwd()  # a path without links
    return nearest_project(start) or start


def has_runs(folder: str) -> bool:
    try:
        with os.scandir(os.path.join(folder, AI, STATE, "runs")) as entries:
            return any(not entry.name.startswith(".") for entry in entries)
    except OSError:
        return False


def nearest_runs(folder: str) -> str | None:
    """Return the first folder above this one in which runs were recorded, to name it in a
    message.
    """
    while folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
        if has_runs(folder):
            return folder
    return None


def user_folder() -> str:
    """The folder whose `.ai` is the user space."""
    return os.environ.get("USER_SPACE") or os.path.expanduser("~")
