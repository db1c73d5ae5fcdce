"""A session with an editor: requests come in order, and each gets one answer.

Diagnostics are computed when no message waits, so typing never queues behind a check.  A request
that fails inside answers with an error; the session goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from plait import __version__
from plait.core.documents.files import with_unsaved
from plait.core.errors import PlaitError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.values import Json
from plait.lsp.documents import OpenText
from plait.lsp.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    NOT_INITIALIZED,
    PARSE_ERROR,
    UNKNOWN_METHOD,
    BadFrame,
    Input,
    read_messages,
    write_message,
)
from plait.lsp.positions import apply_change

if TYPE_CHECKING:
    from typing import BinaryIO

CAPABILITIES: Final[dict[str, Json]] = {
    "positionEncoding": "utf-16",
    "textDocumentSync": {"openClose": True, "change": 2, "save": True},
    "completionProvider": {"triggerCharacters": ["{", ".", ":", " ", "/"]},
    "hoverProvider": True,
    "definitionProvider": True,
    "documentSymbolProvider": True,
}


class Server:
    def __init__(self, reads: Input, writes: BinaryIO) -> None:
        self.reads, self.writes = reads, writes
        self.texts: dict[str, OpenText] = {}
        self.unchecked: dict[str, None] = {}
        self.is_initialized = self.is_shut_down = False

    def serve(self) -> int:
        """Answer until `exit` or the end of the stream; returns the exit code."""
        messages = read_messages(self.reads)
        while True:
            while self.unchecked and not self.reads.is_waiting():
                self._publish()
            message = next(messages, None)
            is_exit = isinstance(message, dict) and message.get("method") == "exit"
            if message is None or is_exit:
                return 0 if self.is_shut_down else 1
            self._take(message)

    def _take(self, message: dict[str, Json] | BadFrame) -> None:
        if isinstance(message, BadFrame):
            self._fail(None, PARSE_ERROR, "this frame is not a JSON object")
            return
        number, method = message.get("id"), message.get("method")
        if not isinstance(method, str):
            if "result" not in message and "error" not in message:
                self._fail(number, INVALID_REQUEST, "a message needs a method")
            return
        params = message.get("params")
        fields = params if isinstance(params, dict) else {}
        if "id" not in message:
            self._notice(method, fields)
        elif self.is_shut_down:
            self._fail(number, INVALID_REQUEST, "the server is shut down")
        elif not self.is_initialized and method != "initialize":
            self._fail(number, NOT_INITIALIZED, "send 'initialize' first")
        else:
            self._answer(number, method, fields)

    def _answer(self, number: Json, method: str, params: dict[str, Json]) -> None:
        answers: dict[str, Callable[[dict[str, Json]], Json]] = {
            "initialize": self._initialize,
            "shutdown": self._shut_down,
            "textDocument/completion": self._completion,
            "textDocument/hover": self._hover,
            "textDocument/definition": self._definition,
            "textDocument/documentSymbol": self._symbols,
        }
        if method not in answers:
            self._fail(number, UNKNOWN_METHOD, f"there is no method '{method[:80]}'")
            return
        try:
            with with_unsaved(self._open_texts()):
                result = answers[method](params)
        except (PlaitError, OSError) as error:
            self._fail(number, INTERNAL_ERROR, str(getattr(error, "what", error)))
        except Exception as error:
            # Our bug: the editor keeps its session, and shows the name of the error.
            self._fail(number, INTERNAL_ERROR, f"a bug of Plait: {type(error).__name__}")
        else:
            write_message(self.writes, {"id": number, "result": result})

    def _fail(self, number: Json, code: int, what: str) -> None:
        write_message(self.writes, {"id": number, "error": {"code": code, "message": what}})

    # ── the lifecycle of a session ────────────────────────────────────────────

    def _initialize(self, _: dict[str, Json]) -> Json:
        self.is_initialized = True
        return {
            "capabilities": CAPABILITIES,
            "serverInfo": {"name": "plait", "version": __version__},
        }

    def _shut_down(self, _: dict[str, Json]) -> Json:
        self.is_shut_down = True
        self.unchecked.clear()
        return None

    # ── texts ────────────────────────────────────────────────────────────

    def _notice(self, method: str, params: dict[str, Json]) -> None:
        document = params.get("textDocument")
        uri = document.get("uri") if isinstance(document, dict) else None
        if not self.is_initialized or self.is_shut_down or not isinstance(document, dict):
            return
        if not isinstance(uri, str):
            return
        match method:
            case "textDocument/didOpen":
                text = document.get("text")
                self.texts[uri] = OpenText(uri, text if isinstance(text, str) else "")
            case "textDocument/didChange" if uri in self.texts:
                changes = params.get("contentChanges")
                shown = self.texts[uri].text
                for change in changes if isinstance(changes, list) else ():
                    shown = apply_change(shown, change)
                self.texts[uri] = OpenText(uri, shown)
            case "textDocument/didClose":
                if self.texts.pop(uri, None) is not None:
                    self.unchecked.pop(uri, None)
                    self._notify(uri, [])
                return
            case "textDocument/didSave":
                pass
            case _:
                return
        # Another open file may extend this one.
        self.unchecked |= dict.fromkeys([uri, *self.texts] if uri in self.texts else self.texts)

    def _open_texts(self) -> dict[str, str]:
        return {os.path.realpath(one.path): one.text for one in self.texts.values()}

    def _publish(self) -> None:
        """Check one text, and say what was found."""
        uri = next(iter(self.unchecked))
        del self.unchecked[uri]
        from plait.lsp.diagnostics import diagnostics

        try:
            with with_unsaved(self._open_texts()):
                text = OpenText(uri, self.texts[uri].text)
                found = diagnostics(text)
        except (PlaitError, OSError) as error:
            found = [_at_start(str(getattr(error, "what", error)))]
        except Exception as error:
            found = [_at_start(f"a bug of Plait: {type(error).__name__}; try plait check")]
        self._notify(uri, found)

    def _notify(self, uri: str, found: list[Json]) -> None:
        params: Json = {"uri": uri, "diagnostics": found}
        write_message(self.writes, {"method": "textDocument/publishDiagnostics", "params": params})

    # ── answers ──────────────────────────────────────────────────────────

    def _place(self, params: dict[str, Json]) -> tuple[OpenText, int] | None:
        document = params.get("textDocument")
        uri = document.get("uri") if isinstance(document, dict) else None
        text = self.texts.get(uri) if isinstance(uri, str) else None
        if text is None:
            return None
        # Other files may have changed since: nothing but the text is kept.
        text = OpenText(text.uri, text.text)
        return text, text.lines.offset(params.get("position"))

    def _completion(self, params: dict[str, Json]) -> Json:
        from plait.lsp.completion import complete

        place = self._place(params)
        return complete(*place) if place else []

    def _hover(self, params: dict[str, Json]) -> Json:
        from plait.lsp.hover import hover

        place = self._place(params)
        return hover(*place) if place else None

    def _definition(self, params: dict[str, Json]) -> Json:
        from plait.lsp.definition import definition

        place = self._place(params)
        return definition(*place) if place else None

    def _symbols(self, params: dict[str, Json]) -> Json:
        from plait.lsp.symbols import symbols

        place = self._place(params)
        return symbols(place[0]) if place else []


def _at_start(what: str) -> Json:
    begin: Json = {"line": 0, "character": 0}
    return {
        "range": {"start": begin, "end": begin},
        "severity": 1,
        "source": "plait",
        "message": what,
    }
