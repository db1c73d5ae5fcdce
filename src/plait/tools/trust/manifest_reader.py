"""The manifest of a system space: the digest of each file, and the headers of its tools.

`manifest.json` in the root of the space lists every file.  A file that is not listed, or has other
bytes, does not run.  The header of a file that is as listed is taken from the manifest, so the file
itself is not parsed.  The module `manifest` writes it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from plait.core.documents import parse_json
from plait.core.errors import TrustError
from plait.core.hints import Final
from plait.core.private_files import file_stamp
from plait.core.records import dataclass, field
from plait.core.safe_files import FileStamp, read_below
from plait.core.values import Json

NAME: Final = "manifest.json"
SYSTEM: Final = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "system"
)
"""The space that comes with Plait."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a manifest, by the path of each file below the root of its space."""

    files: Mapping[str, str] = field(default_factory=dict)
    """The digest of its bytes."""
    contents: Mapping[str, Json] = field(default_factory=dict)
    """The keys of its header, if it is a tool."""


def manifest_digests(root: str) -> Mapping[str, str]:
    """The digests in the manifest of a system space; empty if it has no manifest."""
    return read_manifest(root).files


def manifest_header(root: str, relative: str, digest: str) -> Json:
    """The header of a tool, if the manifest lists it with this digest; None otherwise."""
    manifest = read_manifest(root)
    return manifest.contents.get(relative) if manifest.files.get(relative) == digest else None


_KNOWN: dict[str, tuple[FileStamp | None, Manifest]] = {}


def read_manifest(root: str) -> Manifest:
    """The manifest of a space, read again only when it has changed."""
    stamp = file_stamp(f"{root}/{NAME}")
    known = _KNOWN.get(root)
    if known is None or known[0] != stamp:
        known = _KNOWN[root] = (stamp, _read(root))
    return known[1]


def _read(root: str) -> Manifest:
    contents = read_below(root, NAME)
    if contents is None:
        return Manifest()
    record = parse_json(contents[0].decode("utf-8", "replace"), os.path.join(root, NAME))
    match record:
        case {"files": dict(files)} if all(isinstance(digest, str) for digest in files.values()):
            headers = record.get("contents", {})
            return Manifest(files, headers if isinstance(headers, dict) else {})
    raise TrustError(
        f"{NAME} does not list files and digests",
        root,
        "install Plait again",
        code="damaged-manifest",
    )
