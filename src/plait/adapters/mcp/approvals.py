"""Approvals of MCP tools: digests of what a user saw and approved.

A language model obeys the text that a server declares for a tool. So an approval covers exactly
what was shown: `McpToolInfo.lines` shows how the server is reached and everything that it declares,
`McpToolInfo.digest` covers the same, and Plait uses nothing else of a declaration.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote

from plait.core.errors import TrustError
from plait.core.hints import Final, Protocol
from plait.core.patterns import lazy_pattern
from plait.core.private_files import sync_folder
from plait.core.records import dataclass, field
from plait.core.values import Json


@dataclass(frozen=True, slots=True)
class McpToolInfo:
    """A tool as its server declares it now."""

    server: str
    tool: str
    declared: Mapping[str, Json] = field(repr=False)
    """Everything that Plait reads of the declaration, by the names of the protocol."""
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
        # Quoted, because names may contain a slash. With the address, because two projects may use
        # one name for two servers.
        names = f"{quote(self.server, safe='')}/{quote(self.tool, safe='')}"
        return f"{names}@{_digest([_COVERS, *self.reached_by])[:16]}"

    @property
    def digest(self) -> str:
        """SHA-256 of how the server is reached and of everything that `lines` shows."""
        return _digest([list(self.reached_by), dict(self.declared)])

    def lines(self, address: str) -> Iterator[str]:
        """Everything that an approval covers, as text without invisible characters.

        `address` is how the server is reached, with secrets masked. The server's text is indented
        by four, so that it cannot imitate our lines.
        """
        yield f"{visible(self.server)} / {visible(self.tool)}"
        yield f"  server: {visible(address)}"
        for name, value in self.declared.items():
            yield f"  {name}:"
            shown = visible(value) if isinstance(value, str) else visible_json(value)
            yield from (f"    {line}" for line in shown.split("\n"))


_COVERS: Final = "all that is declared"
"""Part of every key: what an approval covers."""


def _digest(value: Json) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


# ── visible text ─────────────────────────────────────────────────────────

# Characters that are blank or may be left out on a screen, though `isprintable` is true for them.
_BLANK: Final = (
    "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U00016fe4\U0001d159\U000e0100-\U000e01ef"
)
_IS_BLANK: Final = lazy_pattern(f"[{_BLANK}]")


def visible(text: str) -> str:
    """Text in which every invisible character except line breaks is an escape.

    Backslashes are doubled, so that no two texts look the same.
    """
    return "".join(
        letter if letter == "\n" else "\\\\" if letter == "\\" else _escape(letter)
        for letter in text
    )


def visible_json(value: Json) -> str:
    """Indented JSON in which every invisible character is an escape."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join(letter if letter == "\n" else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    if letter.isprintable() and not _IS_BLANK.match(letter):
        return letter
    return json.dumps(letter)[1:-1]


Approve = Callable[[McpToolInfo], bool]
"""Asks the user; called in the thread of the caller, once per tool."""


def not_approved(offered: McpToolInfo, *, changed: bool) -> TrustError:
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
    """Text of a server for a message: without control characters, and not too long."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text[:200])
    return plain + "…" if len(text) > 200 else plain


class Approvals(Protocol):
    """The approved digests by the keys of tools."""

    def get(self, key: str) -> str | None: ...

    def put(self, key: str, digest: str) -> None: ...


class ApprovalFile:
    """Approvals in a file of the user; one process at a time writes it."""

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
            approvals = self._read()
            was_approved = approvals.pop(key, None) is not None
            self._write(approvals)
        return was_approved

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
                approvals = json.load(file)
            except ValueError:
                raise self._unusable("is damaged") from None
        if not isinstance(approvals, dict) or not all(
            isinstance(digest, str) for digest in approvals.values()
        ):
            raise self._unusable("is damaged")
        return approvals

    def _write(self, approvals: dict[str, str]) -> None:
        folder = os.path.dirname(self.path)
        handle, temporary = tempfile.mkstemp(prefix=".mcp-", dir=folder)
        try:
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(dict(sorted(approvals.items())), file, indent=1)
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
        # The lock file is never removed: otherwise two processes could lock two files.
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
            code="bad-approvals",
        )
