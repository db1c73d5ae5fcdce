"""Find the files that a tool can load: those of its folder, or of its anchor.

The folder of a tool is copied with it, so `import helper` and `data.txt` beside the tool work, with
bytes that were verified like the tool's own.

An anchor is the folder from which modules are imported. A runtime declares the marker file that
identifies it (in the tool's folder, and with `search_up` in the folders above, up to the space),
the anchor's place, and the path variables that contain it. With an anchor, every file that could be
loaded through it is verified before the start.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from plait.core.errors import InputError, LimitError
from plait.core.hints import Final
from plait.core.records import dataclass
from plait.tools.chain import Chain
from plait.tools.environment import EnvValue, author_template
from plait.tools.spaces import Space
from plait.tools.tool_file import Anchor, ToolFile, VerifyDeps


@dataclass(frozen=True, slots=True)
class ActiveAnchor:
    """An anchor that applies to a tool."""

    anchor: Anchor
    path: str
    runtime_lib: str
    declared_by: ToolFile

    @property
    def is_project(self) -> bool:
        """Is the anchor the project itself? It contains no item, so only trust in the
        project allows it.
        """
        return self.anchor.root == "project_path"


@dataclass(frozen=True, slots=True)
class Dependency:
    """A file that a tool can load through its anchor."""

    path: str
    space: Space
    relative: str


def find_anchor(chain: Chain, project: str | None) -> ActiveAnchor | None:
    """The first anchor that the chain declares, if it is active for this tool."""
    declared = _find_anchor(chain)
    if declared is None:
        return None
    item, anchor = declared
    tool_dir = os.path.dirname(chain.tool.path)
    marked = next(
        (
            folder
            for folder in _search_folders(chain, anchor)
            if any(os.path.exists(os.path.join(folder, name)) for name in anchor.markers_any)
        ),
        None,
    )
    if anchor.mode == "auto" and marked is None:
        return None
    root = {
        "tool_dir": marked or tool_dir,
        "tool_parent": os.path.dirname(tool_dir),
        "project_path": project or tool_dir,
    }[anchor.root]
    lib = os.path.join(os.path.dirname(item.path), anchor.lib) if anchor.lib else ""
    return ActiveAnchor(anchor, root, lib, item)


def marker_places(chain: Chain) -> list[str]:
    """Every path at which a file would be a marker for the chain's tool."""
    declared = _find_anchor(chain)
    if declared is None:
        return []
    folders = _search_folders(chain, declared[1])
    return [
        os.path.join(folder, marker) for folder in folders for marker in declared[1].markers_any
    ]


def anchor_environment(
    anchored: ActiveAnchor, env: Mapping[str, EnvValue], context: Mapping[str, str]
) -> dict[str, EnvValue]:
    """Path variables with the anchor's entries before and after what was there."""
    changed: dict[str, EnvValue] = {}
    for name, ways in anchored.anchor.env_paths.items():
        before = _paths(ways.get("prepend", ()), context)
        after = _paths(ways.get("append", ()), context)
        standing = env[name].value.split(os.pathsep) if name in env and env[name].value else []
        paths = list(dict.fromkeys(path for path in (*before, *standing, *after) if path))
        if paths:  # an empty list of paths means the current folder to some programs
            changed[name] = EnvValue(os.pathsep.join(paths), "anchor")
    return changed


def dependencies(
    anchored: ActiveAnchor | None, deps: VerifyDeps | None, tool: ToolFile
) -> list[Dependency]:
    """Every file beside the tool that must be verified before it may start."""
    if deps is None or not deps.enabled:
        return []
    base = _dependency_base(anchored, deps, tool)
    return [] if base is None else _loadable(base, deps, tool)


MOST_FILES: Final = 1000
"""The limit for files in the folder of a tool and below."""
MOST_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class ToolFolder:
    """The files that are copied with a tool, and the folders that were searched."""

    path: str
    files: tuple[Dependency, ...]
    folders: tuple[str, ...]
    odd: tuple[str, ...]
    """Links and special files; they are not copied."""


FUNCTION: Final = "core/primitives/function"


def tool_folder(chain: Chain, anchored: ActiveAnchor | None) -> ToolFolder | None:
    """Everything beside and below a tool, except hidden and installed files; None if only the
    tool is copied.

    Only the tool is copied if no program opens its file, or if it declares `verify_deps:
    {scope: tool_file}`.
    """
    tool = chain.tool
    deps = next(
        (item.header.verify_deps for item in chain.elements if item.header.verify_deps), None
    )
    if deps is not None and (not deps.enabled or deps.scope == "tool_file"):
        return None
    if chain.primitive == FUNCTION:
        return _scan_folder(anchored, deps, tool) if _imports_beside(tool) else None
    return _scan_folder(anchored, deps, tool) if anchored is not None or is_opened(chain) else None


def is_opened(chain: Chain) -> bool:
    """Can a program get the path of the tool's file?

    A function and a request get only its bytes.
    """
    written = repr([(item.header.config, item.header.env_config) for item in chain.elements])
    return "tool_path" in written or "tool_dir" in written


def _scan_folder(
    anchored: ActiveAnchor | None, deps: VerifyDeps | None, tool: ToolFile
) -> ToolFolder:
    base = anchored.path if anchored and not anchored.is_project else os.path.dirname(tool.path)
    excluded = {"node_modules", *(deps.exclude_dirs if deps is not None else ())}
    files: list[Dependency] = []
    odd: list[str] = []
    folders: list[str] = []
    size = 0
    todo = [base]
    while todo:
        folders.append(folder := todo.pop())
        for entry in _entries(folder):
            if entry.name.startswith(".") or entry.name.endswith(".sig") or entry.path == tool.path:
                continue
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in excluded and not entry.name.startswith("__"):
                    todo.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                # it was removed meanwhile: reading it reports that
                with suppress(FileNotFoundError):
                    size += entry.stat(follow_symlinks=False).st_size
                relative = os.path.relpath(entry.path, tool.space.root)
                files.append(Dependency(entry.path, tool.space, relative))
            else:
                odd.append(entry.path)
        if len(files) > MOST_FILES or size > MOST_BYTES:
            raise LimitError(
                f"the folder of '{tool.id}' holds more than {MOST_FILES:,} files or "
                f"{MOST_BYTES >> 20} MiB, "
                "and all of it comes along with the tool",
                base,
                "put the tool into a folder of its own and large files elsewhere, "
                "or write verify_deps: {scope: tool_file} into its header",
                code="tool-folder-too-large",
            )
    return ToolFolder(base, tuple(files), tuple(folders), tuple(odd))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:  # it was removed meanwhile, or cannot be read: none of its files are copied
        return []


_REFLECTIVE: Final = (b"__file__", b"__import__", b"__builtins__")


def _imports_beside(tool: ToolFile) -> bool:
    """Can a function read files beside its own? Most cannot, and then their folder is not read."""
    if any(word in tool.data for word in _REFLECTIVE):
        return True
    names = {
        name for line in tool.data.replace(b";", b"\n").splitlines() for name in _import_roots(line)
    }
    folder = os.path.dirname(tool.path)
    return any(
        not name or os.path.lexists(f"{folder}/{name}.py") or os.path.lexists(f"{folder}/{name}")
        for name in names
    )


def _import_roots(line: bytes) -> Iterator[str]:
    """The first part of each name that a line imports; empty if it is relative to the tool."""
    before, keyword, names = line.partition(b"import")
    if keyword and (source := before.split()[-1:]) and b"from" in before:
        names = source[0]
    elif not keyword or before.strip(b" \t:") not in (b"", b"try", b"else", b"finally"):
        return
    for name in names.split(b","):
        words = name.split()
        yield (words[0] if words else b"").split(b".")[0].decode("utf-8", "replace")


def may_load_beside(anchored: ActiveAnchor | None, deps: VerifyDeps | None, tool: ToolFile) -> bool:
    """Can the tool load files beside it, so that a later call may load different ones?"""
    return deps is not None and deps.enabled and _dependency_base(anchored, deps, tool) is not None


def library(anchored: ActiveAnchor | None, deps: VerifyDeps | None) -> list[Dependency]:
    """Every file of the runtime's library that must be verified before a tool may start."""
    if anchored is None or not anchored.runtime_lib or deps is None or not deps.enabled:
        return []
    return _loadable(anchored.runtime_lib, deps, anchored.declared_by)


def _loadable(base: str, deps: VerifyDeps, tool: ToolFile) -> list[Dependency]:
    if os.path.relpath(base, tool.space.root).startswith(".."):
        raise InputError(
            f"'{tool.id}' could load files outside its space",
            base,
            "move them below the space",
            code="outside-space",
        )
    found: list[Dependency] = []
    for folder, folders, files in os.walk(base, followlinks=False):
        loadable = [name for name in folders if name not in deps.exclude_dirs]
        _refuse_links(folder, [*loadable, *files], tool)
        folders[:] = sorted(loadable) if deps.recursive else []
        for name in sorted(files):
            path = os.path.join(folder, name)
            if path != tool.path and name.endswith(deps.extensions):
                found.append(Dependency(path, tool.space, os.path.relpath(path, tool.space.root)))
    return found


def _dependency_base(anchored: ActiveAnchor | None, deps: VerifyDeps, tool: ToolFile) -> str | None:
    match deps.scope:
        case "anchor":
            return anchored.path if anchored and not anchored.is_project else None
        case "tool_dir":
            return os.path.dirname(tool.path)
        case "tool_siblings":
            return os.path.dirname(tool.path)
        case "tool_file":
            return None


def _find_anchor(chain: Chain) -> tuple[ToolFile, Anchor] | None:
    """The first anchor that the chain declares, and its item; None if it is switched off."""
    for item in chain.elements:
        if (anchor := item.header.anchor) is not None:
            return (item, anchor) if anchor.enabled and anchor.mode != "never" else None
    return None


def _search_folders(chain: Chain, anchor: Anchor) -> Iterator[str]:
    """The folders in which a marker counts: the tool's own, and those above if the anchor says
    `search_up`.
    """
    folder = os.path.dirname(chain.tool.path)
    if not anchor.search_up:
        yield folder
        return
    stop = chain.tool.space.root
    while os.path.commonpath([folder, stop]) == stop:
        yield folder
        if folder == stop:
            return
        folder = os.path.dirname(folder)


def _refuse_links(folder: str, names: Sequence[str], tool: ToolFile) -> None:
    for name in names:
        path = os.path.join(folder, name)
        if os.path.islink(path):
            raise InputError(
                f"'{tool.id}' could load {path}, which is a symbolic link",
                tool.path,
                "replace the link by the file it means",
                code="linked-dependency",
            )


def _paths(templates: Sequence[str], context: Mapping[str, str]) -> list[str]:
    compiled = [author_template(template) for template in templates]
    known = [
        template
        for template in compiled
        if all(placeholder in context for placeholder in template.placeholders)
    ]
    return [str(template.render(context)) for template in known]
