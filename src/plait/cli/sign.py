"""`plait sign`: sign tools, and the config files that they read, so they run where your key is
trusted.

A signature covers the id and every byte of a file; a changed file must be signed again. The files
beside a tool are signed too; a file that cannot hold a comment gets a file `NAME.sig`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain

from plait.agents.permissions import DIRECTIVE
from plait.cli.keys import DEFAULT_KEY, key_folder, open_key
from plait.cli.project import add_project, load_toolbox
from plait.core.errors import InputError, TrustError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.records import dataclass
from plait.core.safe_files import read_below
from plait.tools.spaces import DIRECTIVES, EXTENSIONS, Space, Spaces
from plait.tools.trust.signatures import (
    has_comment_syntax,
    read_signature,
    sign_bytes,
    sign_detached,
    time_text,
)

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser
    from plait.tools.trust.signatures import PrivateKey

EXAMPLES: Final = (
    "plait sign team/report",
    "plait sign --all",
)


def configure(parser: Parser) -> None:
    parser.add_argument(
        "items",
        metavar="ITEM",
        nargs="*",
        help="ids of tools, or files below .ai/tools or .ai/config",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="every file below the project's .ai/tools, .ai/config and .ai/directives",
    )
    parser.add_argument(
        "--key",
        metavar="NAME",
        default=DEFAULT_KEY,
        help="which of your keys; default: signing",
    )
    add_project(parser, lockable=False)


def run(options: argparse.Namespace) -> int:
    if options.all == bool(options.items):
        raise InputError(
            "name what to sign, or give --all", fix="see plait sign --help", code="arguments"
        )
    tools = load_toolbox(options)
    places = (
        list(_all_places(tools.spaces))
        if options.all
        else [find_location(tools.spaces, it) for it in options.items]
    )
    if not places:
        raise InputError(
            "there is nothing to sign",
            tools.spaces.project,
            "make a tool: plait tools new NAME",
            code="nothing-to-sign",
        )
    key = open_key(key_folder(tools.trust.store), options.key)
    for place in places:
        _sign(place, key)
        print(f"signed {place.path}")
    if tools.trust.store.key(key.fingerprint) is None:
        print("note: this key is not trusted here; see plait keys export and plait keys add")
    return 0


KINDS: Final = {"tools": "tool", "config": "config", DIRECTIVES: "directive"}
"""The folders of a space whose files are signed, and the kind of their files."""


@dataclass(frozen=True, slots=True)
class SignableFile:
    """A file in the tools, config or directives of a space."""

    space: Space
    relative: str

    @property
    def path(self) -> str:
        return os.path.join(self.space.root, self.relative)

    @property
    def extension(self) -> str:
        return os.path.splitext(self.relative)[1]

    @property
    def id(self) -> str:
        return (
            os.path.splitext(self.relative)[0].removeprefix("tools/").removeprefix(f"{DIRECTIVES}/")
        )

    @property
    def kind(self) -> str:
        return KINDS[self.relative.partition("/")[0]]


def find_location(spaces: Spaces, given: str) -> SignableFile:
    """Find a file by its id, by `directive:` and its id, or by its path in the project's or user's
    space.
    """
    if os.path.isfile(given):
        return _place_of_file(spaces, given)
    folder = DIRECTIVES if given.startswith(DIRECTIVE) else "tools"
    found = spaces.find(given.removeprefix(DIRECTIVE), folder=folder)
    if found is None:
        raise spaces.missing_error(given.removeprefix(DIRECTIVE), folder=folder)
    return SignableFile(found.space, found.relative)


def _place_of_file(spaces: Spaces, path: str) -> SignableFile:
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    for space in spaces.all:
        relative = os.path.relpath(real, os.path.realpath(space.root)).replace(os.sep, "/")
        if relative.partition("/")[0] in KINDS:
            return SignableFile(space, relative)
    places = " or ".join(
        os.path.join(space.root, "tools") for space in spaces.spaces if space.name != "system"
    )
    raise InputError(
        "this file has no id: it is outside the spaces",
        path,
        f"put it below {places}",
        code="outside-space",
    )


def _all_places(spaces: Spaces) -> Iterator[SignableFile]:
    space = next(space for space in spaces.spaces if space.name == "project")
    walks = [os.walk(os.path.join(space.root, top), followlinks=False) for top in KINDS]
    for folder, folders, files in chain(*walks):
        folders[:] = sorted(
            name for name in folders if not name.startswith((".", "__")) and name != "node_modules"
        )
        for name in sorted(files):
            place = SignableFile(
                space, os.path.relpath(os.path.join(folder, name), space.root).replace(os.sep, "/")
            )
            if not name.startswith(".") and _should_sign(place):
                yield place


def _should_sign(place: SignableFile) -> bool:
    """Is it a tool, a file that a tool needs, or a directive?"""
    match place.kind:
        case "tool":
            return place.extension != ".sig"
        case "directive":
            return place.extension == ".md"
    return place.extension in (*EXTENSIONS, ".json")


def _sign(place: SignableFile, key: PrivateKey) -> None:
    if place.space.name == "system":
        what = f"'{place.id}' belongs to the installation, which is checked by its manifest"
        raise InputError(
            what, place.path, "copy it into your project to change it", code="system-file"
        )
    contents = read_below(place.space.root, place.relative)
    if contents is None:
        raise InputError(
            "this is not a plain file", place.path, "replace it by one", code="not-a-file"
        )
    data = contents[0]
    if has_comment_syntax(place.extension):
        now = _signing_time(data)
        signed = sign_bytes(
            data, kind=place.kind, item_id=place.id, extension=place.extension, key=key, now=now
        )
        replace_file(place.path, signed)
    else:
        detached = sign_detached(
            data,
            kind=place.kind,
            item_id=place.id,
            extension=place.extension,
            key=key,
            now=time.time(),
        )
        replace_file(f"{place.path}.sig", detached)


def _signing_time(data: bytes) -> float:
    """Return the present time, or one second after the signature in the file: the new one must be
    newer.
    """
    now = time.time()
    try:
        standing = read_signature(data)
    except TrustError:
        return now  # the signature is about to be replaced
    if standing is None or not time_text(now) <= standing.time <= time_text(now + 60):
        return now
    last = datetime.strptime(standing.time, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    return (last + timedelta(seconds=1)).timestamp()


def replace_file(path: str, data: bytes) -> None:
    """Write a file atomically, with its old mode."""
    mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o644
    try:
        handle, made = tempfile.mkstemp(prefix=".sign-", dir=os.path.dirname(path))
        try:
            with open(handle, "wb") as file:
                file.write(data)
                os.fchmod(handle, mode)
            os.rename(made, path)
        except OSError:
            os.unlink(made)
            raise
    except OSError as error:
        what = f"this file cannot be written: {error.strerror}"
        raise InputError(what, path, "look at its permissions", code="not-written") from None
