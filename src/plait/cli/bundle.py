"""One file with the bytecode of the modules that a command loads.

Python finds, reads and decodes each module by itself, a fifth of the computing time of a short
command. The modules of a command have most of their names in common, which one file holds once.

The file is where Python caches the bytecode of `plait`, by the same rules: it is not written with
PYTHONDONTWRITEBYTECODE, nor where the user has no write permission. It is used only while each
source has the same size and time of change; otherwise Python loads the modules as usual, and a
command that succeeds writes the file again.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib_external import (
    MAGIC_NUMBER,
    SourceFileLoader,
    cache_from_source,
    spec_from_file_location,
)
from marshal import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType

    Stamp = tuple[str, str, int, int]
    """A module: its name, its file, the time of the file's last change in ns, its size."""

FOLDER = os.path.dirname(os.path.dirname(__file__))
HEAD = MAGIC_NUMBER + os.fsencode(FOLDER) + b"\0"
"""Identifies the bytecode of this Python, compiled in this folder."""
SIZE = 4
"""The size, in bytes, of the number that gives the length of the stamps."""


def use_bundle(command: str) -> None:
    """Load the modules of this command from its bundle, if there is one that is up to date."""
    code = _read(_file(command))
    if code:
        sys.meta_path.insert(0, _Finder(code))


def keep_bundle(command: str) -> None:
    """Write the bundle of this command with the modules that are loaded now, unless it uses one."""
    if sys.dont_write_bytecode or any(isinstance(each, _Finder) for each in sys.meta_path):
        return
    try:
        stamps, code = _loaded()
    except (ImportError, OSError, SyntaxError, ValueError):  # the sources are being changed now
        return
    head = dumps(stamps)
    data = HEAD + len(head).to_bytes(SIZE, "little") + head + dumps(code)
    file = _file(command)
    # completely or not at all, as Python caches do
    SourceFileLoader("plait", file).set_data(file, data)


class _Finder:
    def __init__(self, code: dict[str, tuple[str, CodeType]]) -> None:
        self.code = code

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        # Each module is loaded once from the bundle; if it is loaded again, its source is read.
        file, code = self.code.pop(name, ("", None))
        if code is None:
            return None
        loader = _Loader(name, file)
        loader.code = code
        return spec_from_file_location(name, file, loader=loader)


class _Loader(SourceFileLoader):
    """Python's loader with bytecode that is already there."""

    code: CodeType | None = None

    def get_code(self, fullname: str) -> CodeType | None:
        code, self.code = self.code, None
        return code or super().get_code(fullname)


def _file(command: str) -> str:
    return cache_from_source(os.path.join(FOLDER, f"bundle-{command}.py"))


def _read(file: str) -> dict[str, tuple[str, CodeType]]:
    try:
        with open(file, "rb", buffering=0) as opened:
            data = opened.read()
        if not data.startswith(HEAD):
            return {}
        start = len(HEAD) + SIZE
        end = start + int.from_bytes(data[start - SIZE : start], "little")
        stamps: tuple[Stamp, ...] = loads(data[start:end])
        if any(_stamp(name, file) != (name, file, *rest) for name, file, *rest in stamps):
            return {}
        code: tuple[CodeType, ...] = loads(memoryview(data)[end:])
        return {name: (file, each) for (name, file, *_), each in zip(stamps, code, strict=True)}
    except (OSError, EOFError, ValueError, TypeError):
        return {}


def _loaded() -> tuple[tuple[Stamp, ...], tuple[CodeType, ...]]:
    stamps, codes = [], []
    for name, module in list(sys.modules.items()):
        loader = getattr(module, "__loader__", None)
        if name.startswith("plait.") and type(loader) is SourceFileLoader:
            # The stamp comes first: a change between the two makes the bundle outdated.
            stamps.append(_stamp(name, loader.path))
            code = loader.get_code(name)
            assert code is not None, "a source has code"
            codes.append(code)
    return tuple(stamps), tuple(codes)


def _stamp(name: str, file: str) -> Stamp:
    status = os.stat(file)
    return name, file, status.st_mtime_ns, status.st_size
