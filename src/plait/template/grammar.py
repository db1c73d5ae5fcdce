"""The one place that reads template text: a linear scanner for all five profiles.

    template := (text | escape | placeholder)*
    escape   := '$${' … '}'  |  '{{' WORD '}}'  |  '{{input:…}}'
    dollar   := '${' expr '}'          expr := alt ('||' alt)* ('|' FILTER)* [':-' template | ':?'
    text]
    input    := '{input:' WORD ['?' | (':' | '|') template] '}'
    brace    := '{' WORD '}'
    bare     := '$' NAME

Braces balance, quotes do not matter, `\\}` and `\\{` are literal inside a placeholder.
What is not a placeholder of ours stays text, byte for byte; what looks like one and is
none is also noted as a flaw, for strict mode and for `check`.

Every character is looked at a bounded number of times: brace pairs come from one
pass, an attempt at a placeholder fails at the first character that cannot continue it,
and placeholders nest at most `MAX_DEPTH` deep.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache

from plait.core.errors import InputError, LimitError, closest_name
from plait.core.hints import Any, Final
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass, replace
from plait.core.source import Source, Span
from plait.core.values import Json
from plait.template.filters import FILTERS, FORMATS
from plait.template.nodes import (
    Alternative,
    Computed,
    ContextPlaceholder,
    EnvPlaceholder,
    Extract,
    Filter,
    Format,
    InputPlaceholder,
    Literal,
    MalformedPlaceholder,
    ParamPlaceholder,
    Parsed,
    Part,
    Parts,
    Path,
    PromptPlaceholder,
    Text,
)
from plait.template.profiles import Profile, profile_named

MAX_TEXT: Final = 1 << 20
MAX_DEPTH: Final = 64
SMALL_TEXT: Final = 1 << 14
MAX_FLAWS: Final = 100

# All quantifiers are possessive, so none can backtrack. (On groups they are wrong before CPython
# 3.11.5.)
_BRACES = lazy_pattern(r"\\[{}]|[{}]")
_ESCAPED_BRACE = lazy_pattern(r"\\([{}])")
_WORD = lazy_pattern(r"[A-Za-z0-9_]++")
_BRACE_PLACEHOLDER = lazy_pattern(r"\{([A-Za-z0-9_]++)\}")
_BRACE_ESCAPE = lazy_pattern(r"\{\{([A-Za-z0-9_]++)\}\}")
_NAME = lazy_pattern(r"[^\W\d]\w*+")
_BARE_NAME = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*+")
_ENV_NAME = lazy_pattern(r"[A-Z_][A-Z0-9_]*+")
_KEY = lazy_pattern(r"[\w-]++")
_INTEGER = lazy_pattern(r"-?[0-9]++")
_INDEX = lazy_pattern(r"-?(?:0|[1-9][0-9]{0,17}+)")
_NUMBER = lazy_pattern(r"-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_FORMAT = lazy_pattern(r"[A-Za-z_*./\[][^\s:|{}$\"'`<>;&()\\]*+")
_BLANKS = lazy_pattern(r"[ \t\r\n]*+")
_PLAIN_PLACEHOLDER = lazy_pattern(r"\$\{([^\W\d]\w*+(?:\.[^\W\d]\w*+)*)(?::-([^{}$\\]*+))?\}")
# `${test-step.exit_code}` is a name with hyphens or the shell's `${test-default}`; the scope
# decides.
_HYPHENATED = lazy_pattern(r"\$\{[^\W\d]\w*+(?:-\w++)++(?=[.}\[:| ])")
_HYPHENATED_NAME = lazy_pattern(r"[^\W\d]\w*+(?:-\w++)*+")
# Forms that only a shell has, recognised by their first characters: ${#x} ${x%.c} ${x/a/b} ${x-d}
_SHELL_EXPANSION = lazy_pattern(
    r"\$\{(?:[#!@*?$0-9-]|(?!(?:true|false|null)\b)[^\W\d]\w*+[-%#/^,@=+?~])"
)
_FILTER_WORD = lazy_pattern(r"[^\s()'\"|{}$]++")
# The characters that may begin a placeholder or an escape; other '$' and '{' are text.
_DOLLAR, _BARE_DOLLAR = r"\$(?=[${])", r"\$(?=[${A-Za-z_])"
_INPUT, _WORD_BRACE = r"\{(?=\{?input:)", r"\{(?=\{?[A-Za-z0-9_])"

_BLANK = frozenset(" \t\r\n")
_COMPUTED_KINDS = ("file", "cmd", "date")
_KEYWORDS: dict[str, Json] = {"true": True, "false": False, "null": None}
# After a plain name these continue a parameter expansion of the shell: ${x%.c} ${x/a/b} ${x:0:3}
# ${x[@]}
_SHELL_OPERATORS = frozenset("%#/^,@=+-?~[")
_SHELL_SPECIALS = frozenset("#!@*?-$0123456789")


def parse(text: str, profile: str | Profile) -> Parsed:
    """The parts of a template; the same text and profile is parsed once."""
    name = profile if isinstance(profile, str) else profile.name
    return _parse_small(text, name) if len(text) <= SMALL_TEXT else _parse_large(text, name)


def parse_path(text: str) -> Path:
    """Parse a path written on its own: `item.path`, `files[0]`."""
    expression = _Expression(_Scanner(text, profile_named("workflow")), 0, len(text), 0)
    root = expression._match(_HYPHENATED_NAME)
    try:
        path = Path(root, expression._keys()) if root else None
    except (_Malformed, _NotOurs):
        path = None
    if path is None or expression.at != len(text):
        raise InputError(
            f"'{text}' is not a path", fix="write name.key or name[0]", code="bad-path"
        )
    return path


def parse_cache_counts() -> dict[str, int]:
    """Hits, misses and entries of the parse cache."""
    small, large = _parse_small.cache_info(), _parse_large.cache_info()
    return {
        "hits": small.hits + large.hits,
        "misses": small.misses + large.misses,
        "entries": small.currsize + large.currsize,
        "capacity": (small.maxsize or 0) + (large.maxsize or 0),
    }


def _parse(text: str, profile: str) -> Parsed:
    if len(text) > MAX_TEXT:
        raise LimitError(
            f"a template of {len(text):,} characters; the limit is {MAX_TEXT:,}",
            fix="put the long text into a file or a value and name it in the template",
            code="template-too-long",
        )
    scanner = _Scanner(text, profile_named(profile))
    parts = scanner.template(0, len(text), 0)
    return Parsed(text, profile, parts, tuple(scanner.flaws))


# Two bounded caches, so that a few huge templates cannot hold a gigabyte.
_parse_small = lru_cache(maxsize=1024)(_parse)
_parse_large = lru_cache(maxsize=16)(_parse)


@lru_cache
def _opener(profile_name: str) -> re.Pattern[str]:
    profile = profile_named(profile_name)
    dollar = _BARE_DOLLAR if profile.bare else _DOLLAR if profile.context or profile.env else ""
    brace = _INPUT if profile.inputs else _WORD_BRACE if profile.braces else ""
    return re.compile("|".join(filter(None, (dollar, brace))))


class _NotOurs(Exception):
    """Raised if the text in `${…}` belongs to the shell: it stays text."""


class _Malformed(Exception):
    """Raised if the text in `${…}` belongs neither to Plait nor to the shell."""

    def __init__(self, what: str) -> None:
        self.what = what


class _Unknown(Exception):
    """A format or filter that does not exist: an error in every mode."""

    def __init__(self, what: str, name: str, known: dict[str, Any], fix: str, code: str) -> None:
        self.what, self.name, self.known, self.fix, self.code = what, name, known, fix, code


class _Scanner:
    def __init__(self, text: str, profile: Profile) -> None:
        self.text = text
        self.profile = profile
        self.flaws: list[MalformedPlaceholder] = []
        self.opener = _opener(profile.name)
        self.dollar = self._context_placeholder if profile.context else self._env_placeholder
        self._closers: dict[int, int] | None = None
        self._last_brace = text.rfind("}")
        self._plain_paths: dict[str, tuple[Alternative, ...]] = {}
        self._fatal = 0

    # ── text, escapes and openers ────────────────────────────────────────

    def template(self, start: int, end: int, depth: int) -> Parts:
        """The parts of `start..end`; inside a placeholder `\\}` stands for `}`."""
        if depth > MAX_DEPTH:
            raise LimitError(
                f"placeholders nested more than {MAX_DEPTH} deep",
                Span(Source("<template>", self.text), start, start + 1),
                fix="give inner values names of their own",
                code="nested-too-deep",
            )
        parts: list[Part] = []
        kept: list[str] = []
        text, search, at = self.text, self.opener.search, start

        while (found := search(text, at, end)) is not None:
            opener = found.start()
            if depth and text[opener] == "{" and opener > at and text[opener - 1] == "\\":
                kept.append(self._plain(at, opener + 1, depth))
                at = opener + 1
                continue
            if opener > at:
                kept.append(self._plain(at, opener, depth))
            read = self._at_dollar if text[opener] == "$" else self._at_brace
            part, at = read(opener, end, depth)
            if isinstance(part, str):
                kept.append(part)
                continue
            if kept:
                parts.append(Text("".join(kept)))
                kept.clear()
            parts.append(part)
        if at < end:
            kept.append(self._plain(at, end, depth))
        if kept:
            parts.append(Text("".join(kept)))
        return tuple(parts)

    def _plain(self, start: int, end: int, depth: int) -> str:
        piece = self.text[start:end]
        return _ESCAPED_BRACE.sub(r"\1", piece) if depth and "\\" in piece else piece

    def _at_dollar(self, at: int, end: int, depth: int) -> tuple[Part | str, int]:
        text = self.text
        if text.startswith("${", at):
            return self._at_dollar_brace(at, end, depth)
        if text.startswith("$${", at):
            close = self._close(at + 2, end)
            return ("${", at + 3) if close is None else (text[at + 1 : close + 1], close + 1)
        if text.startswith("$$", at):
            return "$$", at + 2
        if self.profile.bare and (name := _BARE_NAME.match(text, at + 1, end)):
            end = name.end()
            return ContextPlaceholder(at, end, self._plain_path(name.group()), bare=True), end
        return "$", at + 1

    def _at_dollar_brace(self, at: int, end: int, depth: int) -> tuple[Part | str, int]:
        if at > self._last_brace:
            return self._never_closed(at, end)
        # Most placeholders are `${a.b}` or `${a.b:-text}`: they need neither brace pairs nor an
        # expression.
        if self.profile.context and (plain := _PLAIN_PLACEHOLDER.match(self.text, at, end)):
            name, default = plain.groups()
            if name not in _KEYWORDS and (self.profile.bare or not _ENV_NAME.fullmatch(name)):
                parts = None
                if default is not None:
                    parts = self.template(*plain.span(2), depth + 1)
                path, after = self._plain_path(name), plain.end()
                return ContextPlaceholder(at, after, path, default=parts), after
        close = self._close(at + 1, end)
        if close is None:
            return self._never_closed(at, end)
        if self.profile.context:
            if close == at + 2:
                self._add_malformed(at, close + 1, "a name is missing here")
                return "${}", close + 1
            if _HYPHENATED.match(self.text, at, end) and self.profile.bare:
                return self._parse_hyphenated(at, close, depth)
            if _SHELL_EXPANSION.match(self.text, at, close):
                return "${", at + 2
        try:
            return self.dollar(at, close, depth)
        except _NotOurs:
            pass
        except _Malformed as bad:
            self._add_malformed(at, close + 1, bad.what)
        except _Unknown as bad:
            self._unknown(at, close + 1, bad)
        return "${", at + 2

    def _parse_hyphenated(self, at: int, close: int, depth: int) -> tuple[Part | str, int]:
        """A placeholder if its name is known, like `$NAME`; otherwise all of it belongs to the
        shell.
        """
        expression = _Expression(self, at + 2, close, depth, name=_HYPHENATED_NAME)
        with suppress(_NotOurs, _Malformed, _Unknown):
            placeholder = expression.placeholder(at)
            if len(placeholder.alternatives) == 1 and all(
                isinstance(part, Text) for part in placeholder.default or ()
            ):
                return replace(placeholder, bare=True), close + 1
        return "${", at + 2

    def _never_closed(self, at: int, end: int) -> tuple[str, int]:
        if self.profile.context:
            self._add_malformed(at, min(end, at + 2), "'${' is never closed")
        return "${", at + 2

    def _at_brace(self, at: int, end: int, depth: int) -> tuple[Part | str, int]:
        text = self.text
        if self.profile.inputs:
            if text.startswith("{{input:", at):
                close = self._close(at + 1, end)
                if close is not None and close + 1 < end and text[close + 1] == "}":
                    return text[at + 1 : close + 1], close + 2
            elif text.startswith("{input:", at) and (
                found := self._input_placeholder(at, end, depth)
            ):
                return found, found.end
            return "{", at + 1
        if escaped := _BRACE_ESCAPE.match(text, at, end):
            return text[at + 1 : escaped.end() - 1], escaped.end()
        if word := _BRACE_PLACEHOLDER.match(text, at, end):
            kind = PromptPlaceholder if self.profile.braces == "prompt" else ParamPlaceholder
            return kind(at, word.end(), word.group(1)), word.end()
        return "{", at + 1

    # ── placeholders ────────────────────────────────────────────────────────────

    def _input_placeholder(self, at: int, end: int, depth: int) -> InputPlaceholder | None:
        close = self._close(at, end)
        key = _WORD.match(self.text, at + 7, end)
        if close is None or key is None:
            return None
        after = key.end()
        if after == close:
            return InputPlaceholder(at, close + 1, key.group())
        if self.text[after] == "?" and after + 1 == close:
            return InputPlaceholder(at, close + 1, key.group(), optional=True)
        if self.text[after] in ":|":
            default = self.template(after + 1, close, depth + 1)
            return InputPlaceholder(at, close + 1, key.group(), default=default)
        return None

    def _env_placeholder(self, at: int, close: int, depth: int) -> tuple[Part | str, int]:
        """`${NAME}` of the config profile; any other `${…}` stays text as a whole, also
        `{name}` inside it.
        """
        start = self._blank(at + 2, close)
        name = _ENV_NAME.match(self.text, start, close)
        if name is None:
            return self.text[at : close + 1], close + 1
        after = self._blank(name.end(), close)
        if after == close:
            return EnvPlaceholder(at, close + 1, name.group()), close + 1
        if self.text.startswith(":-", after):
            default = self.template(after + 2, close, depth + 1)
            return EnvPlaceholder(at, close + 1, name.group(), default=default), close + 1
        if self.text.startswith(":?", after):
            message = self._plain(after + 2, close, 1).strip()
            return EnvPlaceholder(at, close + 1, name.group(), required=message), close + 1
        return self.text[at : close + 1], close + 1

    def _context_placeholder(self, at: int, close: int, depth: int) -> tuple[Part | str, int]:
        if not self.profile.bare and self._is_env_form(at + 2, close):
            return self.text[at : close + 1], close + 1  # a graph leaves ${NAME} to stage 3, whole
        expression = _Expression(self, at + 2, close, depth)
        return expression.placeholder(at), close + 1

    def _is_env_form(self, start: int, close: int) -> bool:
        name = _ENV_NAME.match(self.text, self._blank(start, close), close)
        after = self._blank(name.end(), close) if name else close
        return name is not None and (after == close or self.text.startswith((":-", ":?"), after))

    # ── helpers ──────────────────────────────────────────────────────────────────

    def _plain_path(self, dotted: str) -> tuple[Alternative, ...]:
        """The single alternative of `a.b`; all placeholders of that name share it."""
        found = self._plain_paths.get(dotted)
        if found is None:
            root, *keys = dotted.split(".")
            found = self._plain_paths[dotted] = (Alternative(Path(root, tuple(keys))),)
        return found

    def _close(self, opener: int, end: int) -> int | None:
        """The position where the brace at `opener` closes, if that is before `end`."""
        if self._closers is None:
            self._closers = _brace_pairs(self.text)
        close = self._closers.get(opener)
        return close if close is not None and close < end else None

    def _blank(self, at: int, end: int) -> int:
        found = _BLANKS.match(self.text, at, end)
        return found.end() if found else at

    def _add_malformed(self, start: int, end: int, what: str) -> None:
        # A megabyte of openers is one mistake, not half a million mistakes.
        if len(self.flaws) < MAX_FLAWS:
            fix = "write '${name.key}', or '$${' for a literal '${'"
            self.flaws.append(
                MalformedPlaceholder(
                    start, end, f"malformed placeholder: {what}", fix, "malformed-placeholder"
                )
            )

    def _unknown(self, start: int, end: int, bad: _Unknown) -> None:
        self._fatal += 1
        if self._fatal > MAX_FLAWS:
            return
        guess = closest_name(bad.name.lstrip(":"), bad.known)
        mark = ":" if bad.code == "unknown-format" else ""
        meant = f"did you mean '{mark}{guess}'? " if guess else ""
        self.flaws.append(
            MalformedPlaceholder(start, end, bad.what, meant + bad.fix, bad.code, fatal=True)
        )


@dataclass(frozen=True, slots=True)
class _Unread:
    """A computed value; its argument is read once its placeholder is known to be one."""

    kind: str
    start: int
    stop: int


class _Expression:
    """Read the text between `${` and `}` in a profile with context placeholders."""

    def __init__(
        self,
        scanner: _Scanner,
        start: int,
        close: int,
        depth: int,
        *,
        name: re.Pattern[str] = _NAME,
    ) -> None:
        self.name = name
        self.scanner = scanner
        self.text = scanner.text
        self.at = start
        self.close = close
        self.depth = depth

    def placeholder(self, start: int) -> ContextPlaceholder:
        alternatives = [self._alternative(first=True)]
        spread = self._accept("...")
        self._skip_blanks()
        while self._accept("||"):
            alternatives.append(self._alternative(first=False))
            self._skip_blanks()
        filters = self._filters()
        ending = ":-" if self._accept(":-") else ":?" if self._accept(":?") else ""
        if not ending and self.at != self.close:
            self._refuse(alternatives)
        # Templates inside are read only now. A malformed placeholder is read again as text; reading
        # its inside both times would double the work at every level.
        read = tuple(self._read(alternative) for alternative in alternatives)
        default = (
            self.scanner.template(self.at, self.close, self.depth + 1) if ending == ":-" else None
        )
        required = self.scanner._plain(self.at, self.close, 1).strip() if ending == ":?" else None
        return ContextPlaceholder(
            start, self.close + 1, read, tuple(filters), default, required, spread=spread
        )

    # ── alternatives ─────────────────────────────────────────────────────

    def _alternative(self, *, first: bool) -> Alternative | _Unread:
        self._skip_blanks()
        char = self._char()
        if char in ("'", '"'):
            return Alternative(Literal(self._parse_quoted(char)))
        if first and char in _SHELL_SPECIALS and char:
            raise _NotOurs
        if not first and (number := self._match(_NUMBER)):
            return Alternative(Literal(_number(number)))
        name = self._match(self.name)
        if name is None:
            raise _Malformed(
                "a name is missing here" if self.at == self.close else "this is not a name"
            )
        if name in _COMPUTED_KINDS and self._char() == ":" and self._peek(1) not in ("-", "?"):
            return self._parse_computed(name)
        if name == "json" and self._char() == ":" and self._peek(1) not in ("-", "?"):
            return self._extract()
        if name in _KEYWORDS and self._char() not in (".", "[", ":"):
            return Alternative(Literal(_KEYWORDS[name]))
        path = Path(name, self._keys())
        return Alternative(path, self._formats(plain_name=not path.keys))

    def _keys(self) -> tuple[str | int, ...]:
        keys: list[str | int] = []
        while True:
            char = self._char()
            if char == "." and not self.text.startswith("...", self.at):
                self.at += 1
                keys.append(self._parse_dot_key())
            elif char == "[":
                keys.append(self._parse_bracket_key(shell_array=not keys))
            else:
                return tuple(keys)

    def _parse_dot_key(self) -> str | int:
        key = self._match(_KEY)
        if key is None:
            raise _Malformed("a key is missing after '.'")
        return int(key) if _INDEX.fullmatch(key) else key  # 007 is the key of a map

    def _parse_bracket_key(self, *, shell_array: bool) -> str | int:
        opened = self.at
        self.at += 1
        char = self._char()
        key: str | int | None = None
        if char in ("'", '"') and char:
            key = self._parse_quoted(char)
        elif (index := self._match(_INTEGER)) and len(index) < 19:
            key = int(index)
        if key is None or not self._accept("]"):
            if shell_array:
                raise _NotOurs
            self.at = opened
            raise _Malformed("an index is a number or a quoted key")
        return key

    def _formats(self, *, plain_name: bool) -> tuple[Format, ...]:
        formats: list[Format] = []
        while self._char() == ":" and self._peek(1) not in ("-", "?"):
            found = _FORMAT.match(self.text, self.at + 1, self.close)
            if found is None:
                if plain_name and not formats:
                    raise _NotOurs  # ${x:0:3} ${x:=y} ${x:+y}
                raise _Malformed("a format is missing after ':'")
            formats.append(self._format(found.group()))
            self.at = found.end()
        return tuple(formats)

    def _format(self, name: str) -> Format:
        if name in FORMATS:
            return Format(name)
        if any(char in name for char in "*?[/."):
            return Format("glob", name)
        known = ", ".join(f":{known}" for known in FORMATS)
        fix = f"formats: {known}, or a glob such as :*.py"
        raise _Unknown(f"unknown format ':{name}'", name, FORMATS, fix, "unknown-format")

    def _parse_computed(self, kind: str) -> _Unread:
        self.at += 1
        start = self.at
        stops = {"file": (":-", ":?", "|"), "cmd": (":-",), "date": (":-", "|")}[kind]
        end = self._argument_end(start, stops)
        stop = end
        if kind != "cmd":
            while stop > start and self.text[stop - 1] in " \t\r\n":
                stop -= 1
        if stop == start:
            raise _Malformed(f"'{kind}:' needs an argument")
        self.at = end
        return _Unread(kind, start, stop)

    def _read(self, alternative: Alternative | _Unread) -> Alternative:
        if isinstance(alternative, Alternative):
            return alternative
        kind, start, stop = alternative.kind, alternative.start, alternative.stop
        variable = self._as_formats(kind, start, stop)
        argument = self.scanner.template(start, stop, self.depth + 1)
        return Alternative(Computed(kind, argument, variable))

    def _as_formats(self, name: str, start: int, stop: int) -> Alternative | None:
        names = self.text[start:stop].split(":")
        if all(known in FORMATS for known in names):
            return Alternative(Path(name), tuple(Format(known) for known in names))
        return None

    def _argument_end(self, start: int, stops: tuple[str, ...]) -> int:
        """The first stop outside nested braces, or the end of the placeholder."""
        at = start
        while at < self.close:
            char = self.text[at]
            if char == "\\":
                at += 2
                continue
            if char == "{":
                inner = self.scanner._close(at, self.close)
                at = at + 1 if inner is None else inner + 1
                continue
            if char in ":|" and self.text.startswith(stops, at):
                return at
            at += 1
        return self.close

    def _extract(self) -> Alternative:
        self.at += 1
        root = self._match(_KEY)
        if root is None:
            raise self._json_form()
        path = Path(root, self._keys())
        if not self._accept(":from:"):
            raise self._json_form()
        name = self._match(_NAME)
        if name is None:
            raise self._json_form()
        origin = Path(name, self._keys())
        return Alternative(Extract(path, origin), self._formats(plain_name=False))

    # ── filters ──────────────────────────────────────────────────────────

    def _filters(self) -> list[Filter]:
        filters: list[Filter] = []
        while self._char() == "|":
            self.at += 1
            self._skip_blanks()
            name = self._match(_NAME)
            if name is None:
                raise _Malformed("a filter is missing after '|'")
            filters.append(self._filter(name))
            self._skip_blanks()
        return filters

    def _filter(self, name: str) -> Filter:
        if name not in FILTERS:
            fix = f"filters: {', '.join(FILTERS)}"
            raise _Unknown(f"unknown filter '{name}'", name, FILTERS, fix, "unknown-filter")
        arguments = self._arguments() if self._char() == "(" else ()
        wanted = FILTERS[name][0]
        if len(arguments) != wanted:
            what = (
                f"filter '{name}' takes {wanted} argument{'s' if wanted != 1 else ''}, not "
                f"{len(arguments)}"
            )
            fix = f"write '| {name}(x)'" if wanted else f"write '| {name}'"
            raise _Unknown(what, "", {}, fix, "filter-arguments")
        return Filter(name, arguments)

    def _arguments(self) -> tuple[Json, ...]:
        self.at += 1
        self._skip_blanks()
        char = self._char()
        if char in ("'", '"') and char:
            value: Json = self._parse_quoted(char)
        elif word := self._match(_FILTER_WORD):
            number = _NUMBER.fullmatch(word)
            value = _KEYWORDS[word] if word in _KEYWORDS else _number(word) if number else word
        else:
            raise _Malformed("an argument is missing in '( )'")
        self._skip_blanks()
        if not self._accept(")"):
            raise _Malformed("')' is missing")
        return (value,)

    # ── helpers ──────────────────────────────────────────────────────────────────

    def _refuse(self, alternatives: list[Alternative | _Unread]) -> None:
        """Raise the error for an unreadable rest: an expansion of the shell, or a mistake."""
        [first, *others] = alternatives
        match first:
            case Alternative(Path(keys=()), formats=()):
                plain = not others
            case _:
                plain = False
        if plain and self._char() in _SHELL_OPERATORS and self.text[self.at - 1] not in " \t\r\n":
            raise _NotOurs
        raise _Malformed("this cannot follow")

    def _json_form(self) -> _Malformed:
        return _Malformed("'json:' is written json:PATH:from:NAME")

    def _parse_quoted(self, quote: str) -> str:
        end = self.text.find(quote, self.at + 1, self.close)
        if end < 0:
            raise _Malformed(f"the quote {quote} is never closed")
        value = self.scanner._plain(self.at + 1, end, 1)
        self.at = end + 1
        return value

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self.text, self.at, self.close)
        if found is None:
            return None
        self.at = found.end()
        return found.group()

    def _accept(self, mark: str) -> bool:
        if self.text.startswith(mark, self.at) and self.at + len(mark) <= self.close:
            self.at += len(mark)
            return True
        return False

    def _char(self) -> str:
        return self.text[self.at] if self.at < self.close else ""

    def _peek(self, ahead: int) -> str:
        at = self.at + ahead
        return self.text[at] if at < self.close else ""

    def _skip_blanks(self) -> None:
        if self._char() in _BLANK:
            self.at = self.scanner._blank(self.at, self.close)


def _brace_pairs(text: str) -> dict[int, int]:
    """Where each `{` closes; `\\{` and `\\}` do not count."""
    pairs: dict[int, int] = {}
    open_at: list[int] = []
    for found in _BRACES.finditer(text):
        brace = found.group()
        if brace == "{":
            open_at.append(found.start())
        elif brace == "}" and open_at:
            pairs[open_at.pop()] = found.start()
    return pairs


def _number(text: str) -> int | float:
    return int(text) if _INTEGER.fullmatch(text) and len(text) < 4000 else float(text)


# ── expansions that only a shell has ─────────────────────────────────────

_EXPANSION: Final = lazy_pattern(
    r"(?<![$\\])\$\{(?:[#!](?P<all>[A-Za-z_]\w*)[}\[]|(?P<part>[A-Za-z_]\w*)(?:[-%#/^,@+?=]|:[+=?\d ]))"
)


def expansions(text: str) -> Iterator[tuple[str, int, int]]:
    """The names in `${name%.c}`, `${#name}` and similar forms outside single quotes, each with
    its place.
    """
    for found in _EXPANSION.finditer(text):
        group = "all" if found["all"] else "part"
        if not _in_single_quotes(text, found.start()):
            yield found[group], found.start(), found.start(group)


def _in_single_quotes(text: str, at: int) -> bool:
    quote = ""
    place = 0
    while place < at:
        char = text[place]
        if char == "\\" and quote != "'":
            place += 1
        elif char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        place += 1
    return quote == "'"


BEGUN: Final = lazy_pattern(r"(?<!\$)\$\{([^}]*)\Z")
"""Matches a placeholder that begins in a text and does not end in it."""
