"""Turn YAML text into events, or raise an error in plain words.

The events are PyYAML's, from libyaml or from its parser in Python. Misleading characters and
directives are refused before the parser sees them. Its errors are translated into terms of the
author's text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from plait.core.documents.limits import MAX_PROBLEMS
from plait.core.errors import DocumentError, Problem
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.patterns import import_with_lazy_patterns, lazy_pattern
from plait.core.records import dataclass
from plait.core.source import Source, Span

if TYPE_CHECKING:
    import yaml


def read_events(source: Source, *, pure: bool) -> Iterator[yaml.Event]:
    """The events of a text; `pure` takes the parser in Python, as does a PyYAML without libyaml."""
    _require_readable_text(source)
    # This is also a limit: libyaml compares each %TAG with all before it.
    found = _PROLOGUE.match(source.text)
    if found and found[1] != "%YAML":
        what = "directives other than %YAML are not read"
        raise DocumentError(what, Span(source, *found.span(1)), "remove this line", code="syntax")
    import_with_lazy_patterns("yaml")
    return _parse_events(source, pure=pure)


def _parse_events(source: Source, *, pure: bool) -> Iterator[yaml.Event]:
    import yaml

    fast = yaml.__with_libyaml__ and not pure
    parser = yaml.CBaseLoader(source.text) if fast else yaml.BaseLoader(source.text)
    try:
        while (event := parser.get_event()) is not None:
            yield event
    except yaml.MarkedYAMLError as error:
        raise DocumentError.together([_syntax_problem(source, error)]) from None
    except (ValueError, OverflowError):
        # The parser in Python does not check the digits of an escape and of %YAML.
        at = parser.get_mark().index if isinstance(parser, yaml.BaseLoader) else 0
        what, fix = "a number here is out of range", "correct the escape or the %YAML line"
        raise DocumentError(what, Span(source, at, at), fix, code="syntax") from None
    finally:
        parser.dispose()


# The characters that YAML allows, without the line breaks that only some readers recognise: after
# one of them, text that looks to a person like part of a comment or string would be a key to the
# parser.
_ODD_IN_ASCII = lazy_pattern("[^\\t\\r\\n\\x20-\\x7e]|\\r(?!\\n)")


@cache
def _odd_in_any_text() -> re.Pattern[str]:
    """A pattern only for texts that are not ASCII: Python takes longer to compile it than to
    load a module.
    """
    return re.compile(
        "[^\\t\\r\\n\\x20-\\x7e\\xa0-\\u2027\\u202a-\\ud7ff"
        "\\ue000-\\ufefe\\uff00-\\ufffd\\U00010000-\\U0010ffff]"
        "|\\r(?!\\n)"
    )


def _require_readable_text(source: Source) -> None:
    problems = []
    odd = _ODD_IN_ASCII if source.text.isascii() else _odd_in_any_text()
    for found in odd.finditer(source.text):
        problems.append(_odd_character(found[0], Span(source, *found.span())))
        if len(problems) == MAX_PROBLEMS:
            break
    if problems:
        raise DocumentError.together(problems)


def _odd_character(character: str, where: Span) -> Problem:
    code = ord(character)
    if character == "\r":
        what, fix = "a carriage return stands here without a line feed", "end lines with LF or CRLF"
    elif code == 0 or 0xD800 <= code <= 0xDFFF:
        what, fix = f"the character U+{code:04X} cannot stand in a document", "remove it"
    else:
        what = f"the character U+{code:04X} cannot be written as it is"
        fix = f'remove it, or write "\\u{code:04x}" in double quotes'
    return Problem(what, where, fix, code="character")


_PROLOGUE = lazy_pattern(r"(?:[ \t]*+(?:#[^\n]*+)?\r?\n|%YAML[^\n]*+\n)*(%[A-Za-z]*+)")


@dataclass(frozen=True, slots=True)
class _Words:
    """The message for an error whose context and problem contain these fragments.

    `opening` puts the caret where the parser began (an unclosed quote), not where it stopped.
    """

    context: str
    problem: str
    what: str
    fix: str
    opening: bool = False


_CLOSE_QUOTE = "close it, or write long text as a block after '|'"
_SYNTAX_WORDS: Final = (
    _Words("quoted scalar", "end of stream", "this quote is never closed", _CLOSE_QUOTE, True),
    _Words("quoted scalar", "document", "this quote is never closed", _CLOSE_QUOTE, True),
    _Words(
        "quoted scalar",
        "unknown escape",
        "there is no such escape in double quotes",
        "write '\\\\' for a backslash, or use single quotes, where nothing is escaped",
    ),
    _Words(
        "quoted scalar", "", "this escape is not a character", "write \\xNN, \\uNNNN or \\UNNNNNNNN"
    ),
    _Words(
        "",
        "mapping values",
        "a ':' stands where no key can be",
        "quote a text that holds ': ', and indent a map under its key",
    ),
    _Words(
        "",
        "sequence entries",
        "a list cannot begin here",
        "start a new line for '- ', under its key",
    ),
    _Words(
        "simple key",
        "",
        "this line has no ':' and belongs to nothing above",
        "write 'key: value', or indent it",
        True,
    ),
    _Words(
        "block scalar",
        "",
        "a block text begins with '|' or '>', then '+', '-' or a digit, and nothing else",
        "start its text on the next line",
    ),
    _Words(
        "alias", "", "'*' begins the name of an alias", "put a text that starts with '*' in quotes"
    ),
    _Words(
        "anchor",
        "",
        "'&' begins the name of an anchor",
        "put a text that starts with '&' in quotes",
    ),
    _Words("tag", "", "'!' begins a tag", "put a text that starts with '!' in quotes"),
    _Words(
        "flow sequence",
        "",
        "this '[' is not closed, or a ',' is missing",
        "close it with ']'",
        True,
    ),
    _Words(
        "flow mapping", "", "this '{' is not closed, or a ',' is missing", "close it with '}'", True
    ),
    _Words(
        "block mapping",
        "",
        "this does not go on with the map that begins at line {line}",
        "indent it like the keys of that map, and quote a value that holds quotes or ': '",
    ),
    _Words(
        "block collection",
        "",
        "this does not go on with the list that begins at line {line}",
        "begin each of its lines with '- ', at the same column",
    ),
    _Words("", "node content", "a value cannot begin like this", "put it in quotes"),
    _Words("", "cannot start", "a value cannot begin with this character", "put it in quotes"),
    _Words("directive", "", "this %YAML line cannot be read", "remove it"),
    _Words("", "incompatible", "this is not YAML 1", "remove the %YAML line"),
)
_OTHER_WORDS: Final = _Words("", "", "this cannot be read as YAML", "check indentation and quotes")


def _syntax_problem(source: Source, error: yaml.MarkedYAMLError) -> Problem:
    context, problem = error.context or "", error.problem or ""
    at = error.problem_mark.index if error.problem_mark else 0
    began = error.context_mark.index if error.context_mark else at
    indented = _INDENTATION.match(source.text, source.text.rfind("\n", 0, at) + 1)
    if indented:
        # Include the first letter of the line: a caret under a tab alone cannot be seen.
        tab = Span(source, indented.end(1), indented.end() + 1)
        return Problem("a tab indents this line", tab, "indent with spaces", code="syntax")
    found = (
        words for words in _SYNTAX_WORDS if words.context in context and words.problem in problem
    )
    words = next(found, _OTHER_WORDS)
    what = (
        words.what.format(line=source.position(began)[0]) if "{line}" in words.what else words.what
    )
    place = began if words.opening else at
    return Problem(what, Span(source, place, place + 1), words.fix, code="syntax")


_INDENTATION = lazy_pattern(r"( *+)\t[ \t]*+")
