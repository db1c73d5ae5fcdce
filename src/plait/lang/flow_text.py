"""The text of a flow and its origin: a file, or the verified bytes of a tool."""

from __future__ import annotations

import os

from plait.core import documents
from plait.core.documents.files import read_text
from plait.core.hints import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from plait.core.documents import Node
    from plait.core.hints import Final, TypeAlias
    from plait.tools.tool_file import ToolFile

MARKDOWN: Final = (".md", ".markdown")
"""The file name endings of directives."""

Kind: TypeAlias = Literal["workflow", "graph", "directive", "ensemble"]


class FlowText:
    """The text of a flow and the path of its file. Its document is parsed once.

    `kind`: the kind that a tool declares for its file; None: the shape of the file decides.
    """

    __slots__ = ("_document", "kind", "path", "text")

    def __init__(
        self, text: str, path: str, *, kind: Kind | None = None, document: Node | None = None
    ) -> None:
        self.text = text
        self.path = path
        self.kind = kind
        self._document = document

    @classmethod
    def read(cls, path: str) -> FlowText:
        """The text of a file."""
        return cls(read_text(path, documents.MAX_TEXT), path)

    @classmethod
    def of_tool(cls, tool: ToolFile) -> FlowText:
        """The bytes, accepted by trust, of a tool, or of a directive that is called as a tool."""
        kind: Kind = "graph"
        if tool.kind == "directive":
            kind = "directive"
        elif tool.header.tool_type == "ensemble":
            kind = "ensemble"
        return cls(documents.decode_text(tool.data, tool.path), tool.path, kind=kind)

    @property
    def document(self) -> Node:
        if self._document is None:
            self._document = documents.parse(self.text, self.path)
        return self._document

    @property
    def stem(self) -> str:
        """The name of a flow whose file contains no name."""
        return file_stem(self.path)

    @property
    def folder(self) -> str:
        return os.path.dirname(os.path.realpath(self.path))


def file_stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]
