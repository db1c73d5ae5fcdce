"""Import files beside a function's file, from verified bytes and for one call.

`import helper` in a function means the file beside it, as in a script. The module belongs to the
call: its name is below the tool's module, so two tools may have helpers of the same name, and it is
removed when the call ends. Only the tool and its own modules import from there; an installed module
does not.

As in a script, a file or package beside the tool is found before an installed one of the same name,
and a folder without `__init__.py` after it.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

from plait.core.hints import Any, Final
from plait.tools.invocation import FunctionCall, Verified

MAX_COMPILED: Final = 256


@lru_cache(MAX_COMPILED)
def compile_code(path: str, code: bytes) -> CodeType:
    # The bytes are the cache key: a wrong digest could name other code.
    return compile(code, path, "exec", dont_inherit=True)


@contextmanager
def sibling_imports(call: FunctionCall, module: ModuleType) -> Iterator[None]:
    """Inside this context, a module imports the files beside it. Afterwards these modules are
    removed.
    """
    root = module.__name__  # the tool may change it
    if call.files_beside:
        _CALLS[root] = beside = _Beside(root, call.files_beside)
        module.__dict__.update(__path__=[], __package__=root, __builtins__=beside.builtins)
        if _FINDER not in sys.meta_path:
            sys.meta_path.append(_FINDER)
    try:
        yield
    finally:
        sys.modules.pop(root, None)
        if _CALLS.pop(root, None) is not None:
            # A copy, because other threads may import meanwhile.
            for name in list(sys.modules):
                if name.startswith(f"{root}."):
                    sys.modules.pop(name, None)


class _Beside:
    """The files beside one tool, for one call."""

    def __init__(self, root: str, files: Mapping[str, Verified]) -> None:
        self.root = root
        self.files = files
        self.builtins = {**vars(builtins), "__import__": self._import}

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level == 0 and (f"{top}.py" in self.files or f"{top}/__init__.py" in self.files):
            return self._own(name, globals, locals, fromlist)
        try:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        except ModuleNotFoundError as error:
            if level or error.name != top or not self.has_folder(top):
                raise
        return self._own(name, globals, locals, fromlist)

    def _own(
        self, name: str, globals: Any, locals: Any, fromlist: Sequence[str] | None
    ) -> ModuleType:
        # Without a fromlist, `__import__` returns the first part of the name: the tool.
        found = builtins.__import__(
            f"{self.root}.{name}", globals, locals, fromlist or ("__name__",), 0
        )
        return found if fromlist else sys.modules[f"{self.root}.{name.partition('.')[0]}"]

    def has_folder(self, relative: str) -> bool:
        return any(path.startswith(f"{relative}/") for path in self.files)

    def spec(self, fullname: str) -> ModuleSpec | None:
        inside = fullname.removeprefix(f"{self.root}.").replace(".", "/")
        for path in (f"{inside}/__init__.py", f"{inside}.py"):
            if (file := self.files.get(path)) is not None:
                loader = _Loader(file, self.builtins)
                return ModuleSpec(
                    fullname, loader, origin=file.path, is_package=path != f"{inside}.py"
                )
        return ModuleSpec(fullname, None, is_package=True) if self.has_folder(inside) else None


_CALLS: dict[str, _Beside] = {}


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        beside = _CALLS.get(fullname.partition(".")[0])
        return None if beside is None else beside.spec(fullname)


_FINDER: Final = _Finder()


class _Loader(Loader):
    def __init__(self, file: Verified, names: Mapping[str, Callable[..., Any]]) -> None:
        self._file = file
        self._names = names

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(__file__=self._file.file, __builtins__=self._names)
        exec(compile_code(self._file.path, self._file.code), module.__dict__)
