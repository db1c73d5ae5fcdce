"""`plait lsp`: a language server for editors, on standard input and output."""

from __future__ import annotations

import os
import sys

from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait lsp",
    "plait lsp --stdio",
)


def configure(parser: Parser) -> None:
    parser.add_argument(
        "--stdio", action="store_true", help="the default; some editors add this option"
    )


def run(options: argparse.Namespace) -> int:  # noqa: ARG001 - it has only one way to talk
    from plait.core.errors import InputError
    from plait.lsp.messages import Input
    from plait.lsp.server import Server

    if sys.stdin is None or sys.stdin.isatty():  # None: `plait lsp <&-`
        what, fix = (
            "plait lsp talks with an editor, not with a person",
            "see docs/guides/editors.md",
        )
        raise InputError(what, fix=fix, code="not-an-editor")
    with open(os.dup(sys.stdout.fileno()), "wb") as writes:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else may write to the editor
        return Server(Input(sys.stdin.fileno()), writes).serve()
