"""The digests of the system space, and what its files say, written when Plait is built.

`manifest.json` in the root of a system space lists every file of it.  A file
that is not listed, or has other bytes, does not run.  Of a file whose bytes are
those that are listed, it also tells the header, so that nobody has to read it.

    python -m plait.tools.trust.manifest [FOLDER]         write it
    python -m plait.tools.trust.manifest check [FOLDER]   say what has changed since

Without a folder it is that of Plait itself; the author of a bundle names the bundle's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

from plait.core.errors import PlaitError, TrustError
from plait.core.hints import Final
from plait.core.private_files import file_stamp
from plait.core.records import dataclass, field
from plait.core.safe_files import FileStamp, read_below
from plait.core.values import Json
from plait.tools.items import file_digest

NAME: Final = "manifest.json"
SYSTEM: Final = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "system"
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """By the path of a file below the root of its space."""

    files: Mapping[str, str] = field(default_factory=dict)
    """The digest of its bytes."""
    contents: Mapping[str, Json] = field(default_factory=dict)
    """What it says: the keys of its header, or all of it if it is a document of ours."""


def build(root: str = SYSTEM) -> Manifest:
    """The manifest of the files that are below `root` now."""
    files = {relative: _digest(root, relative) for relative in sorted(_files(root))}
    said = {relative: _read_header(root, relative) for relative in files}
    return Manifest(files, {relative: keys for relative, keys in said.items() if keys is not None})


def write(root: str = SYSTEM) -> None:
    import json

    built = build(root)
    text = json.dumps({"files": built.files, "contents": built.contents}, indent=1) + "\n"
    with open(os.path.join(root, NAME), "w", encoding="utf-8") as file:
        file.write(text)


def check(root: str = SYSTEM) -> list[str]:
    """What is not as the manifest says, one line for each file; empty if all is."""
    manifest, current = _manifest(root), build(root)
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


def manifest_digests(root: str) -> Mapping[str, str]:
    """The digests that the manifest of a system space holds; none if it has no manifest."""
    return _manifest(root).files


def manifest_header(root: str, relative: str, digest: str) -> Json:
    """What a file with these bytes says, if the manifest of its space tells it; None otherwise."""
    manifest = _manifest(root)
    return manifest.contents.get(relative) if manifest.files.get(relative) == digest else None


_KNOWN: dict[str, tuple[FileStamp | None, Manifest]] = {}


def _manifest(root: str) -> Manifest:
    """The manifest of a space, read again only when it has changed."""
    stamp = file_stamp(f"{root}/{NAME}")
    known = _KNOWN.get(root)
    if known is None or known[0] != stamp:
        known = _KNOWN[root] = (stamp, _read(root))
    return known[1]


def _read(root: str) -> Manifest:
    from plait.core.documents import parse_json

    contents = read_below(root, NAME)
    if contents is None:
        return Manifest()
    record = parse_json(contents[0].decode("utf-8", "replace"), os.path.join(root, NAME))
    match record:
        case {"files": dict(files)} if all(isinstance(digest, str) for digest in files.values()):
            said = record.get("contents", {})
            return Manifest(files, said if isinstance(said, dict) else {})
    raise TrustError(
        f"{NAME} does not list files and digests",
        root,
        "install Plait again",
        code="damaged-manifest",
    )


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
    return file_digest(contents[0])


def _read_header(root: str, relative: str) -> Json:
    """What a file says, or None if nobody would ask it, or it does not say it well."""
    from plait.core import documents
    from plait.tools import headers as readers

    path = os.path.join(root, relative)
    try:
        if relative.startswith("tools/"):
            return readers.header_values(path)
        return documents.load(path).data() if relative.endswith(".yaml") else None
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
