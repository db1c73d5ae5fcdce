"""`plait schema`: the JSON Schema of a file format, for editors, and of events, for programs."""

from __future__ import annotations

import json

from plait.cli.arguments import require_choice
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser

EXAMPLES: Final = (
    "plait schema workflow > workflow.schema.json",
    "plait schema provider --compact",
)
FORMATS: Final = (
    "workflow",
    "graph",
    "directive",
    "ensemble",
    "provider",
    "hooks",
    "tool",
    "events",
)


def configure(parser: Parser) -> None:
    parser.add_argument("format", metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument("--compact", action="store_true", help="on one line")


def run(options: argparse.Namespace) -> int:
    from plait.schema.json_schema import json_schema

    require_choice("format", options.format, FORMATS)
    print(
        json.dumps(
            json_schema(options.format), indent=None if options.compact else 2, ensure_ascii=False
        )
    )
    return 0
