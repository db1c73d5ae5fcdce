"""Check whether the user space belongs to the user, or may have come with the project.

A user space inside a project, or around it, may have arrived with the project's files.  It counts
only if it is the home of this account in the machine's list of accounts, whatever the variables
`HOME` and `USER_SPACE` contain.
"""

from __future__ import annotations

import os
import pwd

from plait.core.hints import Literal


def foreign_place(user: str, project: str, home: str | None) -> Literal["inside", "around"] | None:
    """Whether the user space is inside the project or around it, and not in the user's home."""
    around = os.path.realpath(os.path.dirname(user))
    home = None if home is None else os.path.realpath(home)
    if _is_below(os.path.realpath(user), project):
        return None if home is not None and _is_below(home, project) else "inside"
    return "around" if _is_below(project, around) and around != home else None


def foreign_fix(where: str) -> str:
    apart = "a folder outside it" if where == "inside" else "your home, or a folder apart from it"
    return f"your user space lies {where} this project: let USER_SPACE name {apart}"


def account_home() -> str | None:
    # Not $HOME: the environment must not decide whose folder this is.
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None


def _is_below(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder
