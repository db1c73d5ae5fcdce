"""Approvals of MCP tools: a digest of what somebody looked at and said yes to.

What a server declares of a tool is text that a language model obeys, so a yes counts for
exactly what was shown: `Offered.lines` shows how the server is reached and everything it
declares, `Offered.digest` covers the same, and Plait uses nothing else of a declaration.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote

from plait.core.errors import TrustError
from plait.core.hints import Final, Protocol
from plait.core.private_files import sync_folder
from plait.core.records import dataclass, field
from plait.core.values import Json


@dataclass(frozen=True, slots=True)
class McpToolInfo:
    """A tool as its server declares it now."""

    server: str
    tool: str
    declared: Mapping[str, Json] = field(repr=False)
    """All that Plait reads of the declaration, by the names of the protocol."""
    reached_by: tuple[str, ...] = field(default=(), repr=False)
    """The command line of the server, or its url."""

    @property
    def description(self) -> str:
        return str(self.declared.get("description", ""))

    @property
    def input_schema(self) -> Json:
        return self.declared.get("inputSchema")

    @property
    def key(self) -> str:
        # Names may hold a slash; quoted, no two pairs of names have one key.  And two projects may
        # give one name to two servers: the approval of one must not undo that of the other.
        names = f"{quote(self.server, safe='')}/{quote(self.tool, safe='')}"
        return f"{names}@{_digest([_COVERS, *self.reached_by])[:16]}"

    @property
    def digest(self) -> str:
        """SHA-256 of how the server is reached and of all that `lines` shows, in its order."""
        return _digest([list(self.reached_by), dict(self.declared)])

    def lines(self, address: str) -> Iterator[str]:
        """Everything that an approval covers, for a person; nothing in it is invisible.

        `address` is how the server is reached, with its secrets masked.  What the server wrote is
        indented by four, so no text of it can look like a line of ours.
        """
        yield f"{visible(self.server)} / {visible(self.tool)}"
        yield f"  server: {visible(address)}"
        for name, value in self.declared.items():
            yield f"  {name}:"
            shown = visible(value) if isinstance(value, str) else visible_json(value)
            yield from (f"    {line}" for line in shown.split("\n"))


_COVERS: Final = "all that is declared"
"""Part of every key: an approval that covered less is none."""


def _digest(said: Json) -> str:
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


# ── text that hides nothing ──────────────────────────────────────────────

# Characters that Unicode lets a screen leave out, or that are blank, though Python calls them
# printable.
_BLANK: Final = (
    "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U00016fe4\U0001d159\U000e0100-\U000e01ef"
)
_IS_BLANK: Final = re.compile(f"[{_BLANK}]")


def visible(text: str) -> str:
    """Text whose line breaks are kept, and in which every other unseen character is spelt out.

    A backslash is doubled, so that no two texts look the same.
    """
    return "".join(
        letter if letter == "\n" else "\\\\" if letter == "\\" else _spelt(letter)
        for letter in text
    )


def visible_json(value: Json) -> str:
    """JSON over several lines, with every unseen character as an escape of JSON."""
    written = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join(letter if letter == "\n" else _spelt(letter) for letter in written)


def _spelt(letter: str) -> str:
    if letter.isprintable() and not _IS_BLANK.match(letter):
        return letter
    return json.dumps(letter)[1:-1]


Approve = Callable[[McpToolInfo], bool]
"""Asks somebody who may say yes; called in the thread of the caller, once per tool."""


def not_approved(offered: McpToolInfo, *, changed: bool) -> TrustError:
    """The refusal, with the command to type."""
    server, tool = printable(offered.server), printable(offered.tool)
    if changed:
        what = f"the tool '{tool}' of the MCP server '{server}' is not the one that was approved: "
        what += "what its server declares of it has changed"
    else:
        what = f"the tool '{tool}' of the MCP server '{server}' has not been approved"
    command = f"plait trust mcp {shlex.quote(server)} {shlex.quote(tool)}"
    return TrustError(
        what,
        fix=f"look at it and approve it: {command}",
        code="mcp-changed" if changed else "mcp-unapproved",
    )


def printable(text: str) -> str:
    """A server's own words, for a message: nothing that a terminal would obey, and not too many."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text[:200])
    return plain + "…" if len(text) > 200 else plain


class Approvals(Protocol):
    """Which digest was approved under the key of a tool."""

    def get(self, key: str) -> str | None: ...

    def put(self, key: str, digest: str) -> None: ...


class ApprovalFile:
    """Approvals in a file of the user: written whole, by one process at a time."""

    def __init__(self, path: str) -> None:
        self.path = path

    def get(self, key: str) -> str | None:
        return self._read().get(key)

    def put(self, key: str, digest: str) -> None:
        with self._file_lock():
            self._write({**self._read(), key: digest})

    def remove(self, key: str) -> bool:
        """Take an approval back; False if there was none."""
        with self._file_lock():
            pins = self._read()
            known = pins.pop(key, None) is not None
            self._write(pins)
        return known

    def _read(self) -> dict[str, str]:
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._unusable(f"cannot be read: {error.strerror}") from None
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            if (
                not stat.S_ISREG(status.st_mode)
                or status.st_uid != os.getuid()
                or status.st_mode & 0o022
            ):
                raise self._unusable("can be written by others")
            try:
                pins = json.load(file)
            except ValueError:
                raise self._unusable("is damaged") from None
        if not isinstance(pins, dict) or not all(
            isinstance(digest, str) for digest in pins.values()
        ):
            raise self._unusable("is damaged")
        return pins

    def _write(self, pins: dict[str, str]) -> None:
        folder = os.path.dirname(self.path)
        handle, temporary = tempfile.mkstemp(prefix=".mcp-", dir=folder)
        try:
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(dict(sorted(pins.items())), file, indent=1)
                file.flush()
                os.fsync(handle)
            os.rename(temporary, self.path)
        except OSError:
            os.unlink(temporary)
            raise
        sync_folder(folder)

    @contextmanager
    def _file_lock(self) -> Iterator[None]:
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        # The lock is never removed: two processes could otherwise hold two locks of one name.
        handle = os.open(
            self.path + ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _unusable(self, why: str) -> TrustError:
        return TrustError(
            f"the approvals of MCP tools cannot be used: the file {why}",
            self.path,
            "repair it or its permissions (chmod 600), or remove it and approve again",
            code="bad-pins",
        )
