"""Find the program that runs a tool, without running anything.

The search records where it searched, for its error message.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence

from plait.core.errors import InputError
from plait.core.hints import Final
from plait.core.records import dataclass, field
from plait.tools.tool_file import Interpreter

Ask = Callable[[Sequence[str]], str | None]
"""Runs a command and returns its first line of output. It is passed in, since this layer starts
nothing.
"""

# Where version managers install programs: {home} {version} {binary}.
_MANAGERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "pyenv": ("{home}/.pyenv/versions/{version}/bin/{binary}", (".python-version",)),
    "nvm": ("{home}/.nvm/versions/node/v{version}/bin/{binary}", (".nvmrc", ".node-version")),
    "rbenv": ("{home}/.rbenv/versions/{version}/bin/{binary}", (".ruby-version",)),
    "asdf": ("{home}/.asdf/installs/*/{version}/bin/{binary}", (".tool-versions",)),
    "mise": ("{home}/.local/share/mise/installs/*/{version}/bin/{binary}", (".tool-versions",)),
}


@dataclass(frozen=True, slots=True)
class InterpreterPath:
    path: str
    how: str


@dataclass(frozen=True, slots=True)
class SearchPaths:
    """The folders and variables that a search uses."""

    roots: tuple[str, ...]
    """Folders for `search_paths`; the project's only if it is trusted."""
    host: Mapping[str, str]
    home: str
    ask: Ask | None = None
    """Runs the command of an interpreter of type `command`; None in a dry run."""
    looked: list[str | None] = field(default_factory=list, compare=False, repr=False)
    """The paths that decided the searches; None for a result that depends on no path."""

    def is_program(self, path: str) -> bool:
        self.looked.append(path)
        try:
            mode = os.stat(path).st_mode
        except (OSError, ValueError):
            return False
        return os.path.isabs(path) and stat.S_ISREG(mode) and os.access(path, os.X_OK)


def locate(interpreter: Interpreter, around: SearchPaths, *, where: str) -> InterpreterPath:
    """Find the absolute path of the interpreter, or raise an error that lists the searched
    places.
    """
    looked: list[str] = []
    given = around.host.get(interpreter.var)
    if given and around.is_program(given):
        return InterpreterPath(given, f"{interpreter.var} of your environment")
    for path, how in _candidates(interpreter, around):
        looked.append(path)
        if around.is_program(path):
            return InterpreterPath(path, how)
    if interpreter.type == "command" and around.ask is None:
        return InterpreterPath(looked[0], "command, not run")
    if interpreter.fallback:
        looked.append(f"'{interpreter.fallback}' on PATH")
        if (found := _on_path(interpreter.fallback, around)) is not None:
            return InterpreterPath(found, "fallback on PATH")
    raise InputError(
        f"no interpreter for {interpreter.var} was found",
        where,
        f"looked at {', '.join(looked) or 'nothing'}; install it, or set {interpreter.var} to its "
        "full path",
        code="no-interpreter",
    )


def _candidates(interpreter: Interpreter, around: SearchPaths) -> Iterator[tuple[str, str]]:
    names = [name for name in dict.fromkeys((interpreter.binary, *interpreter.candidates)) if name]
    match interpreter.type:
        case "local_binary":
            yield from _local(names, interpreter.search_paths, interpreter.search_roots, around)
        case "venv_python":
            paths = interpreter.search_paths or (".venv/bin", "venv/bin")
            yield from _local(
                names or ["python", "python3"], paths, interpreter.search_roots, around
            )
        case "node_modules":
            yield from _local(
                names or ["node"], ("node_modules/.bin",), interpreter.search_roots, around
            )
        case "system_binary":
            for name in names:
                yield (_on_path(name, around) or f"'{name}' on PATH", "PATH")
        case "version_manager":
            yield from _manager_paths(interpreter, names, around)
        case "command":
            around.looked.append(None)
            answer = (
                around.ask(interpreter.resolve_cmd)
                if around.ask and interpreter.resolve_cmd
                else None
            )
            yield (answer or f"what '{' '.join(interpreter.resolve_cmd)}' prints", "command")


def _local(
    names: Sequence[str], paths: Sequence[str], roots: Sequence[str], around: SearchPaths
) -> Iterator[tuple[str, str]]:
    for root in (*roots, *around.roots):
        for folder in paths:
            for name in names:
                yield os.path.join(root, folder, name), f"local, below {root}"


def _manager_paths(
    interpreter: Interpreter, names: Sequence[str], around: SearchPaths
) -> Iterator[tuple[str, str]]:
    from glob import escape, glob

    around.looked.append(None)
    managers = [interpreter.manager] if interpreter.manager else list(_MANAGERS)
    for manager in managers:
        pattern, files = _MANAGERS.get(manager, ("", ()))
        for version in (
            [interpreter.version] if interpreter.version else _read_versions(files, around)
        ):
            for name in names:
                path = pattern.format(
                    home=escape(around.home), version=escape(version), binary=escape(name)
                )
                yield from ((found, manager) for found in sorted(glob(path)) or [path])


def _read_versions(files: Sequence[str], around: SearchPaths) -> Iterator[str]:
    for root in around.roots:
        for name in files:
            try:
                with open(os.path.join(root, name), encoding="utf-8") as file:
                    words = file.read(4096).split()
            except (OSError, UnicodeDecodeError):
                continue
            yield from (word.removeprefix("v") for word in words if word.lstrip("v")[:1].isdigit())


def _on_path(name: str, around: SearchPaths) -> str | None:
    if "/" in name:
        return name if around.is_program(name) else None
    # Skip relative folders in PATH: they depend on the current folder.
    folders = around.host.get("PATH", os.defpath).split(os.pathsep)
    places = (os.path.join(folder, name) for folder in folders if os.path.isabs(folder))
    return next((path for path in places if around.is_program(path)), None)
