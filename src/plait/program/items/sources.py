"""Read items from their source: a file below the project, the paths of a glob, a command, a list.

A file is opened first and located then, so no link and no race leads outside. In a glob the value
of a placeholder is plain text, unless the glob is a single placeholder. `**` does not follow links.
Paths are sorted by name within each folder.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from fnmatch import translate

from plait.core.documents.limits import printable_name
from plait.core.errors import DocumentError, InputError, LimitError, Problem, closest_name
from plait.core.hints import IO, Final, NoReturn, TypeAlias
from plait.core.os_errors import raise_machine_limit
from plait.core.patterns import lazy_pattern
from plait.core.source import Span
from plait.core.values import Json, text
from plait.program.items.commands import command_problem
from plait.program.items.formats import parse_items
from plait.program.items.json_path import JsonPath
from plait.program.items.spec import (
    AutoInput,
    CommandInput,
    FileInput,
    GlobInput,
    InputSpec,
    ItemsInput,
)
from plait.template.compiled import Lookup
from plait.template.nodes import Text
from plait.template.template import Template

CHUNK: Final = 1 << 18
RunCommand: TypeAlias = Callable[[Template], Iterator[bytes]]
"""Runs shell text with bound values and yields its output; raises if it fails."""


def read_items(
    spec: InputSpec,
    *,
    directory: str,
    run_command: RunCommand,
    values: Mapping[str, Json] | Lookup | None = None,
    json_path: JsonPath | None = None,
    allow_outside: bool = False,
) -> Iterator[Json]:
    """Yield the items of an input; `values` fills its placeholders."""
    names: Mapping[str, Json] | Lookup = {} if values is None else values
    match spec:
        case FileInput(path, span, form):
            found = text(path.render_checked(names, strict=True))
            yield from _of_file(found, path, span, directory, form, json_path, allow_outside)
        case CommandInput():
            yield from _of_command(spec, run_command, json_path)
        case GlobInput(pattern, span):
            yield from _apply_path(
                _of_glob(_pattern(pattern, names), span, directory, allow_outside), json_path, span
            )
        case ItemsInput(items, span):
            yield from _apply_path(iter(items.render_checked(names, strict=True)), json_path, span)
        case AutoInput():
            yield from _read_auto_input(spec, names, directory, json_path, allow_outside)


def _read_auto_input(
    spec: AutoInput,
    names: Mapping[str, Json] | Lookup,
    directory: str,
    json_path: JsonPath | None,
    allow_outside: bool,
) -> Iterator[Json]:
    """Read a list in a placeholder, an existing file, or a glob; never a command."""
    if (wrong := command_problem(spec.text, spec.span, directory)) is not None:
        raise InputError.together([wrong])
    value = spec.text.render_checked(names, strict=True)
    if isinstance(value, list):
        yield from _apply_path(iter(value), json_path, spec.span)
        return
    if not isinstance(value, str):
        what = "this is neither a list nor the name of a file"
        raise InputError(
            what, spec.span, "name a file, or a value that is a list", code="bad-input"
        )
    if _is_glob(spec.text) and not _exists(value, directory):
        paths = _of_glob(_pattern(spec.text, names), spec.span, directory, allow_outside)
        yield from _apply_path(paths, json_path, spec.span)
        return
    yield from _of_file(value, spec.text, spec.span, directory, None, json_path, allow_outside)


def is_pattern(spec: InputSpec) -> bool:
    """Whether it names files by a pattern, which may match none."""
    return isinstance(spec, GlobInput) or (isinstance(spec, AutoInput) and _is_glob(spec.text))


def _apply_path(items: Iterator[Json], path: JsonPath | None, span: Span) -> Iterator[Json]:
    if path is None:
        return items
    return (
        path.of_elements(items) if path.streams_items else path.of_document(list(items), str(span))
    )


def _name(template: Template) -> str:
    """The name in messages: the text of the author, because values may be secret."""
    return printable_name(template.leaf.source.text)


# ── commands ─────────────────────────────────────────────────────────────

OUTPUT: Final = "its output"


def _of_command(
    spec: CommandInput, run_command: RunCommand, path: JsonPath | None
) -> Iterator[Json]:
    try:
        yield from parse_items(
            run_command(spec.command), OUTPUT, form=spec.format, file="", path=path
        )
    except (DocumentError, LimitError) as error:
        raise type(error).together(
            _in_output(problem, spec) for problem in error.problems
        ) from None


def _in_output(problem: Problem, spec: CommandInput) -> Problem:
    """Point to the command in the flow, and say where in its output the problem is."""
    place = str(problem.where or "").removeprefix(OUTPUT).split(":")[1:]
    where = ", ".join(
        f"{name} {number}" for name, number in zip(("line", "column"), place, strict=False)
    )
    what = (
        f"the output of this command cannot be read{f', {where}' if where else ''}: {problem.what}"
    )
    guessed = "" if spec.format else "; or set its format"
    return Problem(
        what, spec.span, f"{problem.fix or 'run it by hand'}{guessed}", code=problem.code
    )


# ── files ────────────────────────────────────────────────────────────────


def _of_file(
    path: str,
    template: Template,
    span: Span,
    directory: str,
    form: str | None,
    json_path: JsonPath | None,
    allow_outside: bool,
) -> Iterator[Json]:
    with _open_input(path, template, span, directory, allow_outside) as file:
        chunks = iter(lambda: file.read(CHUNK), b"")
        yield from parse_items(chunks, _name(template), form=form, file=path, path=json_path)


def _open_input(
    path: str, template: Template, span: Span, directory: str, allow_outside: bool
) -> IO[bytes]:
    try:
        # Non-blocking: a pipe without a writer is refused below instead of waiting for it.
        descriptor = os.open(
            os.path.join(directory, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except (FileNotFoundError, NotADirectoryError):
        raise _no_file(path, template, span, directory) from None
    except (OSError, ValueError) as error:
        raise_machine_limit(error)
        reason = error.strerror if isinstance(error, OSError) else "its name contains NUL"
        what = f"'{_name(template)}' cannot be read: {reason}"
        raise InputError(
            what, span, "look at its name and permissions", code="unreadable"
        ) from None
    try:
        _require_regular_file(descriptor, template, span)
        if not (allow_outside or _is_inside(descriptor, directory)):
            _refuse_outside(template, span)
    except InputError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb", buffering=0)


def _require_regular_file(descriptor: int, template: Template, span: Span) -> None:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        what = f"'{_name(template)}' is a folder"
        raise InputError(
            what,
            span,
            f"for the files in it write {_name(template).rstrip('/')}/*",
            code="bad-input",
        )
    if not stat.S_ISREG(mode):
        what = f"'{_name(template)}' is a pipe or device, not a file"
        raise InputError(what, span, "write {command: cat …}, or name a file", code="bad-input")


def _is_inside(descriptor: int, directory: str) -> bool:
    return _is_below(os.path.realpath(f"/proc/self/fd/{descriptor}"), os.path.realpath(directory))


def _is_below(path: str, root: str) -> bool:
    return os.path.commonpath([root, path]) == root


def _refuse_outside(template: Template, span: Span) -> NoReturn:
    what = f"'{_name(template)}' is outside the project"
    raise InputError(
        what, span, "name a file below the project, or allow files outside", code="file-outside"
    )


def _exists(path: str, directory: str) -> bool:
    return "\0" not in path and os.path.lexists(os.path.join(directory, path))


def _no_file(path: str, template: Template, span: Span, directory: str) -> InputError:
    fixed = all(isinstance(part, Text) for part in template.leaf.compiled.parts)
    meant = _nearest_file(path, directory) if fixed else None
    fix = (
        f"did you mean '{printable_name(meant)}'? " if meant else ""
    ) + "to run a command, write input: {command: …}"
    what = f"there is no file '{_name(template)}'"
    if not fixed:
        what = f"'{_name(template)}' is text here, but not the name of a file"
        fix = "to get a list from a step, capture it with capture_format: json or lines; " + fix
    return InputError(what, span, fix, code="no-file")


def _nearest_file(path: str, directory: str) -> str | None:
    folder, name = os.path.split(path)
    try:
        siblings = os.listdir(os.path.join(directory, folder))
    except (OSError, ValueError):
        return None
    close = closest_name(name, siblings)
    return os.path.join(folder, close) if close else None


# ── globs ────────────────────────────────────────────────────────────────

_MAGIC: Final = lazy_pattern(r"[*?\[]")
NO_FOLDER: Final = "correct the path; to run a command, write input: {command: …}"


def _is_glob(template: Template) -> bool:
    """Whether the author wrote a pattern; characters in a value do not count."""
    parts = template.leaf.compiled.parts
    return any(isinstance(part, Text) and _MAGIC.search(part.text) for part in parts)


def _pattern(template: Template, names: Mapping[str, Json] | Lookup) -> str:
    pieces = template.pieces(names, strict=True)
    if len(pieces) == 1 and not isinstance(pieces[0], str):
        return text(pieces[0].value)  # a single placeholder: the value is the pattern
    return "".join(
        piece if isinstance(piece, str) else _MAGIC.sub(r"[\g<0>]", text(piece.value))
        for piece in pieces
    )


def _of_glob(pattern: str, span: Span, directory: str, allow_outside: bool) -> Iterator[Json]:
    wants_folders = pattern.endswith("/")
    segments = [segment for segment in pattern.split("/") if segment not in ("", ".")]
    root = "/" if pattern.startswith("/") else ""
    if not segments or ((root or ".." in segments) and not allow_outside):
        what = "this glob leads outside the project" if segments else "this glob is empty"
        raise InputError(what, span, "write a pattern such as src/**/*.py", code="file-outside")
    while segments and not _MAGIC.search(segments[0]) and len(segments) > 1:
        root = os.path.join(root, segments.pop(0))
    if not os.path.isdir(os.path.join(directory, root)):
        raise InputError("the folder of this glob does not exist", span, NO_FOLDER, code="no-file")
    bound = None if allow_outside else os.path.realpath(directory)
    walk = _Walk(
        [None if one == "**" else _segment(one) for one in segments], wants_folders, bound, span
    )
    if walk.leaves(os.path.join(directory, root)):
        raise InputError(
            "this glob leads outside the project", span, "name a folder in it", code="file-outside"
        )
    yield from walk.below(os.path.join(directory, root), root, walk.expand_globstars({0}))


def _segment(segment: str) -> re.Pattern[str]:
    hidden = "" if segment.startswith(".") else r"(?!\.)"
    return re.compile(hidden + translate(segment.replace("**", "*")))


class _Walk:
    """Walks folders and yields each matching path once. It tracks all pattern positions that a
    folder matches.
    """

    def __init__(
        self,
        segments: list[re.Pattern[str] | None],
        wants_folders: bool,
        bound: str | None,
        span: Span,
    ) -> None:
        self.segments = segments
        self.wants_folders = wants_folders
        self.bound = bound
        self.span = span

    def leaves(self, folder: str) -> bool:
        """Whether a folder is outside the project."""
        return self.bound is not None and not _is_below(os.path.realpath(folder), self.bound)

    def expand_globstars(self, places: set[int]) -> set[int]:
        """Add the positions after `**`, which also matches no folder at all."""
        for place in sorted(places):
            while place < len(self.segments) and self.segments[place] is None:
                place += 1
                places.add(place)
        return places

    def below(self, folder: str, path: str, places: set[int]) -> Iterator[Json]:
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            return  # an unreadable or deleted folder
        for entry in entries:
            reached = self.match_entry(entry, places)
            if not reached:
                continue
            inner = os.path.join(path, entry.name)
            if len(self.segments) in reached and entry.is_dir() == self.wants_folders:
                yield self.require_utf8_name(inner)
            goes_on = entry.is_dir() and reached != {len(self.segments)}
            if goes_on and not (entry.is_symlink() and self.leaves(entry.path)):
                yield from self.below(entry.path, inner, reached)

    def match_entry(self, entry: os.DirEntry[str], places: set[int]) -> set[int]:
        reached: set[int] = set()
        for place in places:
            if place == len(self.segments):
                continue
            segment = self.segments[place]
            if segment is not None:
                if segment.match(entry.name):
                    reached.add(place + 1)
            elif not entry.name.startswith("."):
                last = place == len(self.segments) - 1
                # `**` enters folders but does not follow links: they may form a cycle.
                if entry.is_dir(follow_symlinks=False):
                    reached.add(place)
                elif last:
                    reached.add(place + 1)
        return self.expand_globstars(reached)

    def require_utf8_name(self, path: str) -> str:
        try:
            path.encode()
        except UnicodeEncodeError:
            what, fix = (
                "a file of this glob has a name that is not UTF-8",
                "rename it, or narrow the pattern",
            )
            raise InputError(what, self.span, fix, code="not-utf-8") from None
        return path
