"""Write the manifest of a system space, when Plait or a bundle is built.

    python -m plait.tools.trust.manifest [FOLDER]         write it
    python -m plait.tools.trust.manifest check [FOLDER]   list what has changed since

FOLDER is that of Plait itself, unless the author of a bundle names another one.
`manifest_reader` reads what this module writes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

from plait.core.digests import sha256_hex
from plait.core.errors import PlaitError, TrustError
from plait.core.safe_files import read_below
from plait.core.values import Json
from plait.tools.headers import header_values
from plait.tools.trust.manifest_reader import NAME, SYSTEM, Manifest, read_manifest


def build(root: str = SYSTEM) -> Manifest:
    """The manifest of the files that are below `root` now."""
    files = {relative: _digest(root, relative) for relative in sorted(_files(root))}
    contents = {relative: _contents(root, relative) for relative in files}
    return Manifest(files, {path: keys for path, keys in contents.items() if keys is not None})


def write(root: str = SYSTEM) -> None:
    built = build(root)
    text = json.dumps({"files": built.files, "contents": built.contents}, indent=1) + "\n"
    with open(os.path.join(root, NAME), "w", encoding="utf-8") as file:
        file.write(text)


def check(root: str = SYSTEM) -> list[str]:
    """One line for each file that differs from the manifest."""
    manifest, current = read_manifest(root), build(root)
    written, found = manifest.files, current.files
    changed = [
        f"{path} has changed" for path in written if path in found and written[path] != found[path]
    ]
    gone = [f"{path} is missing" for path in written if path not in found]
    new = [f"{path} is not listed" for path in found if path not in written]
    misread = [
        f"{path} says something else"
        for path in written
        if written[path] == found.get(path)
        and manifest.contents.get(path) != current.contents.get(path)
    ]
    return sorted([*changed, *gone, *new, *misread])


def _files(root: str) -> Iterator[str]:
    for folder, folders, files in os.walk(root, followlinks=False):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in files:
            relative = os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
            if relative != NAME and not name.endswith(".pyc"):
                yield relative


def _digest(root: str, relative: str) -> str:
    contents = read_below(root, relative)
    if contents is None:
        raise TrustError(
            f"{relative} is not a plain file", root, "replace it by one", code="damaged-manifest"
        )
    return sha256_hex(contents[0])


def _contents(root: str, relative: str) -> Json:
    """The header of a tool; None for other files and for wrong ones."""
    if not relative.startswith("tools/"):
        return None
    try:
        return header_values(os.path.join(root, relative))
    except PlaitError:
        return None


def main(arguments: list[str]) -> int:
    checking = arguments[:1] == ["check"]
    folders = arguments[1:] if checking else arguments
    root = folders[0] if folders else SYSTEM
    if len(folders) > 1 or not os.path.isdir(root):
        print("usage: python -m plait.tools.trust.manifest [check] [FOLDER]", file=sys.stderr)
        return 2
    if checking:
        wrong = check(root)
        print("\n".join(wrong) or f"{root} is as its manifest says")
        return 1 if wrong else 0
    write(root)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
