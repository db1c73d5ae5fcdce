"""Print what can follow on the command line: `plait __complete WORD …`, which shells call at each
TAB.

It must be quick, so it imports almost nothing, and it executes nothing: the ids of tools and runs
are names of files, parameters are read from the text of a flow or tool. The answer has one
candidate per line, followed by a tab and its meaning; `:files` alone means that a path follows. An
id with a character that is special in a shell is not offered: bash would insert it unquoted.

bash breaks words at `=` and `:`, and leaves their quotes in place. So it passes the line as it is,
and the part of the last word that it will replace: `plait __complete --bash LINE PART`.
"""

from __future__ import annotations

import os
import re

from plait.cli.completion_words import CHOICES, FLAGS, OPTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

FILES = ":files"
MOST_RUNS = 50
MOST_TEXT = 200_000
EXTENSIONS = (".py", ".sh", ".mjs", ".js", ".yaml", ".yml")
RUNS_FIRST = ("show", "logs", "events", "resume", "retry")
FILES_FIRST = ("run", "check", "graph", "chat", "explain", "init")
TOOLS_ANY = ("sign", "verify")
IS_ID = re.compile(r"\w[\w./-]*")


def complete(words: Sequence[str], commands: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines for these words, of which the last is being typed."""
    if words[:1] == ["--bash"] and len(words) == 3:
        typed = split_line(words[1])[1:]
        kept = typed[-1].removesuffix(words[2]) if typed else ""
        return (line.removeprefix(kept) for line in _lines(typed, commands))
    return _lines(words, commands)


def split_line(line: str) -> list[str]:
    """The words of a line of bash without their quotes; the last one is empty after a blank."""
    words, word, quote = [], "", ""
    parts = iter(re.findall(r"\\.|[^\\]|\\$", line, re.DOTALL))
    for part in parts:
        # a backslash is not special there, so a quote after it ends the text
        if quote == "'" and part[0] == "\\":
            word += part.removesuffix("'")
            quote = "" if part.endswith("'") else quote
        elif part == quote:
            quote = ""
        elif not quote and part in "'\"":
            quote = part
        elif not quote and part.isspace():
            words += [word] if word else []
            word = ""
        elif part[0] == "\\" and (not quote or part[1:] in '$`"\\'):
            word += part[1:]
        else:
            word += part
    return [*words, word]


def _lines(words: Sequence[str], commands: Mapping[str, str]) -> Iterator[str]:
    *before, current = words or [""]
    if not before:
        named = [*(f"{name}\t{what}" for name, what in commands.items()), "help\tthis and more"]
        yield from _matching(named + (["--version", "--help"] if current else []), current)
        return
    command, *rest = before
    if command == "help":
        yield from _matching(commands if not rest else (), current)
    elif command in OPTIONS:
        yield from _matching(_candidates(command, rest, current), current)


def _matching(found: Iterable[str], current: str) -> Iterator[str]:
    return (one for one in found if one == FILES or one.startswith(current))


def _candidates(command: str, before: Sequence[str], current: str) -> Iterable[str]:
    previous = before[-1] if before else ""
    if _takes_value(command, previous):
        return _values(command, previous, before, current)
    option, equals, value = current.partition("=")
    if equals and _takes_value(command, option):
        found = _values(command, option, before, value)
        return (one if one == FILES else f"{option}={one}" for one in found)
    if current.startswith("-"):
        return OPTIONS[command]
    arguments = list(_arguments(command, before))
    if command in RUNS_FIRST:
        return _runs(before) if not arguments else ()
    if command == "call":
        return _tools(before) if not arguments else ()
    if command == "tools" and arguments[:1] == ["show"] and len(arguments) == 1:
        return _tools(before)
    if command in TOOLS_ANY:
        return _tools(before)
    if command in CHOICES and not arguments:
        return CHOICES[command]
    return [FILES] if command in FILES_FIRST or (command == "new" and arguments) else ()


def _values(command: str, option: str, before: Sequence[str], current: str) -> Iterable[str]:
    if option in ("-i", "--input", "-p", "--param"):
        if current.startswith("@"):
            return [FILES]
        argument = next(_arguments(command, before), None)
        return [f"{name}=" for name in _parameters(command, argument, before)]
    if option == "--run":
        return _runs(before)
    return CHOICES.get(f"{command} {option}", CHOICES.get(option, [FILES]))


def _arguments(command: str, words: Sequence[str]) -> Iterator[str]:
    """The words that are neither options nor their values."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            yield word
        elif _takes_value(command, word):
            next(rest, None)


def _takes_value(command: str, word: str) -> bool:
    return word.startswith("-") and word in OPTIONS[command] and word not in FLAGS[command]


# ── names of files ───────────────────────────────────────────────────────


def _project(before: Sequence[str]) -> str:
    for number, word in enumerate(before, 1):
        option, equals, value = word.partition("=")
        if option == "--project" and (equals or number < len(before)):
            return os.path.expanduser(value if equals else before[number])
    from plait.core.projects import current_project

    return current_project()


def _runs(before: Sequence[str]) -> list[str]:
    """The newest runs, by the time of their folders."""
    try:
        with os.scandir(os.path.join(_project(before), ".ai", "state", "runs")) as entries:
            found = [
                (-entry.stat().st_mtime, entry.name)
                for entry in entries
                if IS_ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []
    names = [name for _, name in sorted(found)[:MOST_RUNS]]
    return [*names, "last\tthe newest run"] if names else []


def _tool_folders(before: Sequence[str]) -> list[str]:
    user = os.environ.get("USER_SPACE") or os.path.expanduser("~")
    system = os.path.join(os.path.dirname(os.path.dirname(__file__)), "system", "tools")
    spaces = (_project(before), user)
    return [*(os.path.join(space, ".ai", "tools") for space in spaces), system]


def _tools(before: Sequence[str]) -> list[str]:
    found: set[str] = set()
    for top in _tool_folders(before):
        for folder, folders, files in os.walk(top):
            folders[:] = [name for name in folders if not name.startswith((".", "_"))]
            for name in files:
                stem, extension = os.path.splitext(name)
                if extension in EXTENSIONS and not name.startswith((".", "_")):
                    found.add(os.path.relpath(os.path.join(folder, stem), top))
    inner = ("core/runtimes/", "core/primitives/")
    return sorted(one for one in found if IS_ID.fullmatch(one) and not one.startswith(inner))


# ── parameters ───────────────────────────────────────────────────────────


def _parameters(command: str, argument: str | None, before: Sequence[str]) -> list[str]:
    if argument is None or command not in ("run", "chat", "call"):
        return []
    paths = [os.path.expanduser(argument)]
    if command == "call":
        tops = _tool_folders(before)
        paths = [os.path.join(top, argument + ending) for top in tops for ending in EXTENSIONS]
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return parameters_in(file.read(MOST_TEXT), is_tool=command == "call")
        except OSError:
            continue
    return []


def parameters_in(text: str, *, is_tool: bool) -> list[str]:
    """The names below `parameters`, `inputs` or, of a tool, `properties`, as they are written."""
    heads = "inputs|properties|parameters" if is_tool else "parameters|inputs"
    lines = [re.sub(r"^(#|//) ?", "", line) for line in text.splitlines()]
    for number, line in enumerate(lines):
        head = re.match(rf"""(\s*)["']?(?:{heads})["']?:\s*(.*)$""", line)
        if head is None or (head[1] and not is_tool):
            continue
        rest = "\n".join([head[2], *lines[number + 1 :]])
        if head[2].startswith(("{", "[")):
            return _inline_names(rest)
        return _block_names(lines[number + 1 :], len(head[1]))
    return []


def _inline_names(text: str) -> list[str]:
    """The keys of the outermost braces, or the elements of a list of names."""
    names, depth, key = [], 0, ""
    for token in re.findall(r"""[{}\[\],:]|"[^"\n]*"|'[^'\n]*'|[\w-]+|[^\s\w]""", text):
        if token in "{[":
            depth += 1
        elif token in "}]":
            depth -= 1
            if depth == 0:
                break
        elif depth == 1 and token == ":" and key:
            names.append(key)
            key = ""
        elif depth == 1 and token == ",":
            key = ""
        elif depth == 1 and not key and re.fullmatch(r"""["']?[\w-]+["']?""", token):
            key = token.strip("\"'")
            if text.startswith("["):
                names.append(key)
    return names


def _block_names(lines: Sequence[str], outer: int) -> list[str]:
    names, inner = [], -1
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        found = re.match(r"""\s*(?:- (?:name:\s*)?)?["']?([\w-]+)["']?\s*(:|$)""", line)
        is_item = line.lstrip().startswith("- ")
        if indent < outer or (indent == outer and not is_item):
            break
        inner = indent if inner < 0 else inner
        if indent == inner and found is not None:
            names.append(found[1])
    return names
