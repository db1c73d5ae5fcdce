"""The examples that come with Plait, each a folder that runs wherever it is copied.

An installed package has them in `plait/examples`, a checkout beside `src`.  Their list is the table
in their README, sorted from simple to rich.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator

from plait.core.errors import InputError, closest_name
from plait.core.hints import Final
from plait.core.records import dataclass

_PACKAGE: Final = os.path.dirname(os.path.dirname(__file__))
_ROW: Final = r"^\| *\d+ \| \[([a-z-]+)\]\(\1/README\.md\) \| (.+) \|$"
LEFT_BY_RUNS: Final = ("state", "__pycache__")
"""Folders that a run makes in a checkout; they are no part of an example."""


@dataclass(frozen=True, slots=True)
class Example:
    name: str
    what: str
    folder: str

    @property
    def flow(self) -> str:
        """The file that is run."""
        names = sorted(os.listdir(self.folder))
        flows = [name for name in names if name.endswith((".yaml", ".md")) and name != "README.md"]
        with open(os.path.join(self.folder, "README.md"), encoding="utf-8") as file:
            readme = file.read()
        # The one that its page runs: others are recorded answers and the like.
        return min(flows, key=lambda name: (readme.find(f"plait run {name}") < 0, name))

    def files(self) -> Iterator[str]:
        """Its files, relative to its folder."""
        for folder, folders, names in os.walk(self.folder):
            folders[:] = sorted(name for name in folders if name not in LEFT_BY_RUNS)
            for name in sorted(names):
                yield os.path.relpath(os.path.join(folder, name), self.folder)


def all_examples() -> list[Example]:
    """The examples, from simple to rich."""
    root = examples_folder()
    with open(os.path.join(root, "README.md"), encoding="utf-8") as file:
        rows = re.findall(_ROW, file.read(), re.MULTILINE)
    return [Example(name, what, os.path.join(root, name)) for name, what in rows]


def examples_folder() -> str:
    for folder in (_PACKAGE, os.path.dirname(os.path.dirname(_PACKAGE))):
        found = os.path.join(folder, "examples")
        if os.path.isfile(os.path.join(found, "README.md")):
            return found
    raise InputError(
        "this installation of Plait has no examples", fix="install Plait again", code="no-example"
    )


def find_example(name: str) -> Example:
    known = {example.name: example for example in all_examples()}
    if name in known:
        return known[name]
    guess = closest_name(name, known)
    raise InputError(
        f"there is no example '{name[:60]}'",
        fix=(f"did you mean '{guess}'? " if guess else "") + f"examples: {', '.join(known)}",
        code="no-example",
    )


def copy_example(example: Example, folder: str) -> list[str]:
    """Copy an example into a new or empty folder; returns its files, relative to the folder."""
    try:
        os.makedirs(folder, exist_ok=True)
        if os.listdir(folder):
            what = "this folder is not empty"
            raise InputError(what, folder, "name a new folder", code="exists")
        files = list(example.files())
        for file in files:
            target = os.path.join(folder, file)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy(os.path.join(example.folder, file), target)
    except OSError as error:
        what = f"the example cannot be copied: {error.strerror}"
        raise InputError(what, folder, "name another folder", code="not-written") from None
    return files
