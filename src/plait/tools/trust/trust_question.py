"""What a project brings along, shown to a person who is asked whether it may run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

from plait.core.hints import Final
from plait.core.records import dataclass
from plait.tools.items import Item

_MOST_SHOWN: Final = 10_000


@dataclass(frozen=True, slots=True)
class Question:
    """What a person is asked: may this project run what it brings along?"""

    project: str
    items: tuple[Item, ...]
    """What is about to run."""
    brings: tuple[str, ...]
    """Every file that would be trusted, relative to the project."""

    def __str__(self) -> str:
        inside = [path for path in self.brings if path.count("/") > 1]
        folders = Counter(path.split("/")[1] for path in inside)
        parts = [_counted(folder, count) for folder, count in sorted(folders.items(), key=_tools_first)]
        parts += [path for path in self.brings if path not in inside]
        return f"this project brings {', '.join(parts)}, signed by nobody you trust: {self.project}"


Ask = Callable[[Question], bool]


def _counted(folder: str, count: int) -> str:
    if folder == "tools":
        return f"{count} tool{'s' * (count != 1)}"
    return f"{count} file{'s' * (count != 1)} in .ai/{folder}"


def _tools_first(entry: tuple[str, int]) -> tuple[bool, str]:
    return entry[0] != "tools", entry[0]


def brought_along(project: str) -> tuple[str, ...]:
    """The files that trusting a project lets run, for a person to look at."""
    found = [".env"] if os.path.lexists(os.path.join(project, ".env")) else []
    for folder, folders, files in os.walk(os.path.join(project, ".ai"), followlinks=False):
        inside = os.path.relpath(folder, project).replace(os.sep, "/")
        folders[:] = sorted(name for name in folders if f"{inside}/{name}" != ".ai/state")
        found += [f"{inside}/{name}" for name in sorted(files)]
        if len(found) > _MOST_SHOWN:
            break
    return tuple(sorted(found))
