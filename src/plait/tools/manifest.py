"""The digests of the system space, written when Plait is built.

`manifest.json` in the root of a system space lists every file of it.  A file
that is not listed, or has other bytes, does not run.

    python -m plait.tools.manifest         write it
    python -m plait.tools.manifest check   say what has changed since
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from plait.documents import parse_json
from plait.errors import TrustError
from plait.tools.beneath import read_beneath
from plait.tools.items import digest_of

NAME: Final = "manifest.json"
SYSTEM: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "system")


def build(root: str = SYSTEM) -> dict[str, str]:
    """The digest of every file below `root`, by its path there."""
    return {relative: _digest(root, relative) for relative in sorted(_files(root))}


def write(root: str = SYSTEM) -> None:
    text = json.dumps({"files": build(root)}, indent=1) + "\n"
    with open(os.path.join(root, NAME), "w", encoding="utf-8") as file:
        file.write(text)


def check(root: str = SYSTEM) -> list[str]:
    """What is not as the manifest says, one line for each file; empty if all is."""
    written, found = listed(root), build(root)
    changed = [f"{path} has changed" for path in written if path in found and written[path] != found[path]]
    gone = [f"{path} is missing" for path in written if path not in found]
    new = [f"{path} is not listed" for path in found if path not in written]
    return sorted([*changed, *gone, *new])


def listed(root: str) -> Mapping[str, str]:
    """The digests that the manifest of a system space holds; none if it has no manifest."""
    contents = read_beneath(root, NAME)
    if contents is None:
        return {}
    record = parse_json(contents[0].decode("utf-8", "replace"), os.path.join(root, NAME))
    match record:
        case {"files": dict(files)} if all(isinstance(digest, str) for digest in files.values()):
            return files
    raise TrustError(
        f"{NAME} does not list files and digests", root, "install Plait again", code="damaged-manifest"
    )


def _files(root: str) -> Iterator[str]:
    for folder, folders, files in os.walk(root, followlinks=False):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in files:
            relative = os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
            if relative != NAME and not name.endswith(".pyc"):
                yield relative


def _digest(root: str, relative: str) -> str:
    contents = read_beneath(root, relative)
    if contents is None:
        raise TrustError(
            f"{relative} is not a plain file", root, "replace it by one", code="damaged-manifest"
        )
    return digest_of(contents[0])


def main(arguments: list[str]) -> int:
    if arguments == ["check"]:
        wrong = check()
        print("\n".join(wrong) or f"{SYSTEM} is as its manifest says")
        return 1 if wrong else 0
    if arguments:
        print("usage: python -m plait.tools.manifest [check]", file=sys.stderr)
        return 2
    write()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
