"""Detect text that looks like a command where a file or pattern is expected.

A plain input never runs anything, so such text would be a pattern without matches. It is refused,
with the form that runs it. If a file of that name exists, or the folder of a pattern, the text is
accepted.
"""

from __future__ import annotations

import os

from plait.core.errors import Problem
from plait.core.hints import Final
from plait.core.patterns import lazy_pattern
from plait.core.source import Span
from plait.core.values import json_text
from plait.template.nodes import Text
from plait.template.template import Template

PROGRAMS: Final = frozenset(
    """
    awk aws base64 bash bun bzcat cargo cat column comm curl cut dash deno df diff docker du echo egrep env
    exec fd fgrep find gawk gh git go grep gunzip gzip head helm hg java join jot jq jsonnet kubectl ls locate
    make mysql node npm npx nl od paste perl php pip plait pnpm printf ps psql python python3 rg ruby sed
    seq sh shuf sort sqlite3 stat strings sudo svn tac tail tar time tr tree uniq unzip uv uvx wc wget xargs
    xmllint xsltproc xzcat yarn yes yq zcat zsh
    """.split()  # noqa: SIM905 - a list of a hundred quoted words is harder to read
)
"""Programs that list, print or filter. A known name followed by a blank is taken for a command."""

_OPERATOR: Final = lazy_pattern(r"[|;<>`\n]|&&|\$\(")
_ARGUMENT: Final = lazy_pattern(r"""\s(?:--?[A-Za-z]|["'])""")
_ASSIGNED: Final = lazy_pattern(r"(?:[A-Za-z_]\w*=\S*\s+)*")
_SCRIPT: Final = lazy_pattern(r".+\.(?:sh|bash|py|rb|pl|js|ts|mjs|php)\Z")
_MAGIC: Final = lazy_pattern(r"[*?\[]")


def command_problem(template: Template, span: Span, directory: str | None) -> Problem | None:
    """Return the problem of a plain input that looks like a command and names no file."""
    written = template.leaf.source.text.strip()
    if not _is_like_command(_literal_text(template).strip()):
        return None
    if directory is not None and not template.placeholders and _names_something(written, directory):
        return None
    what = "this looks like a command, but a plain input never runs one"
    return Problem(
        what, span, f"write input: {{command: {json_text(written)}}}", code="command-input"
    )


def _literal_text(template: Template) -> str:
    """The text of the author; a placeholder counts as some word."""
    return "".join(
        part.text if isinstance(part, Text) else "x" for part in template.leaf.compiled.parts
    )


def _is_like_command(text: str) -> bool:
    if _OPERATOR.search(text):
        return True
    assigned = _ASSIGNED.match(text)
    words = text[assigned.end() if assigned else 0 :].split(maxsplit=1)
    if len(words) < 2:
        return False
    program = os.path.basename(words[0])
    return program in PROGRAMS or bool(_SCRIPT.match(program) or _ARGUMENT.search(text))


def _names_something(text: str, directory: str) -> bool:
    """Whether a file of that name exists, or the folder of a pattern."""
    fixed = _MAGIC.split(text, maxsplit=1)[0]
    if "\0" in text:
        return False
    folder = os.path.dirname(fixed)
    if fixed != text and folder:
        return os.path.isdir(os.path.join(directory, folder))
    return os.path.lexists(os.path.join(directory, text))
