"""The anchor of a tool: the folder from which its modules are imported.

A runtime declares when there is one (a marker file in the tool's folder or above
it, up to the space), where it lies, and which path variables get it.  With an
anchor, every file that could be loaded through it is verified before the start.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from plait.errors import InputError
from plait.records import dataclass
from plait.tools.chain import Chain
from plait.tools.environment import EnvValue, author_template
from plait.tools.items import Anchor, Item, VerifyDeps
from plait.tools.spaces import Space


@dataclass(frozen=True, slots=True)
class Anchored:
    """An active anchor."""

    anchor: Anchor
    path: str
    runtime_lib: str
    declared_by: Item

    @property
    def is_project(self) -> bool:
        """Is it the project itself?  No item lies there, so only trust in the project speaks for it."""
        return self.anchor.root == "project_path"


@dataclass(frozen=True, slots=True)
class Dependency:
    """A file that a tool can load through its anchor."""

    path: str
    space: Space
    relative: str


def find_anchor(chain: Chain, project: str | None) -> Anchored | None:
    """The first anchor that the chain declares, if it is active for this tool."""
    declared = _declared(chain)
    if declared is None:
        return None
    item, anchor = declared
    tool_dir = os.path.dirname(chain.tool.path)
    marked = _marked_folder(tool_dir, chain.tool.space.root, anchor.markers_any)
    if anchor.mode == "auto" and marked is None:
        return None
    root = {
        "tool_dir": marked or tool_dir,
        "tool_parent": os.path.dirname(tool_dir),
        "project_path": project or tool_dir,
    }[anchor.root]
    lib = os.path.join(os.path.dirname(item.path), anchor.lib) if anchor.lib else ""
    return Anchored(anchor, root, lib, item)


def marker_places(chain: Chain) -> list[str]:
    """Every path at which a file would be a marker for the tool of a chain."""
    declared = _declared(chain)
    if declared is None:
        return []
    folders = _upwards(os.path.dirname(chain.tool.path), chain.tool.space.root)
    return [os.path.join(folder, marker) for folder in folders for marker in declared[1].markers_any]


def anchor_environment(
    anchored: Anchored, env: Mapping[str, EnvValue], context: Mapping[str, str]
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


def dependencies(anchored: Anchored | None, deps: VerifyDeps | None, tool: Item) -> list[Dependency]:
    """Every file beside the tool that must be verified before it may start."""
    if deps is None or not deps.enabled:
        return []
    base = _dependency_base(anchored, deps, tool)
    return [] if base is None else _loadable(base, deps, tool)


def may_load_beside(anchored: Anchored | None, deps: VerifyDeps | None, tool: Item) -> bool:
    """Can the tool load files beside it, of which there may be others the next time?"""
    return deps is not None and deps.enabled and _dependency_base(anchored, deps, tool) is not None


def library(anchored: Anchored | None, deps: VerifyDeps | None) -> list[Dependency]:
    """Every file of the runtime's library that must be verified before a tool may start."""
    if anchored is None or not anchored.runtime_lib or deps is None or not deps.enabled:
        return []
    return _loadable(anchored.runtime_lib, deps, anchored.declared_by)


def _loadable(base: str, deps: VerifyDeps, tool: Item) -> list[Dependency]:
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


def _dependency_base(anchored: Anchored | None, deps: VerifyDeps, tool: Item) -> str | None:
    match deps.scope:
        case "anchor":
            return anchored.path if anchored and not anchored.is_project else None
        case "tool_dir":
            return os.path.dirname(tool.path)
        case "tool_siblings":
            return os.path.dirname(tool.path)
        case "tool_file":
            return None


def _declared(chain: Chain) -> tuple[Item, Anchor] | None:
    """The first anchor that the chain declares, and its item; None if it is switched off."""
    for item in chain.elements:
        if (anchor := item.header.anchor) is not None:
            return (item, anchor) if anchor.enabled and anchor.mode != "never" else None
    return None


def _marked_folder(start: str, stop: str, markers: Sequence[str]) -> str | None:
    """The nearest folder with a marker, from the tool's own upwards, not above its space."""
    for folder in _upwards(start, stop):
        if any(os.path.exists(os.path.join(folder, marker)) for marker in markers):
            return folder
    return None


def _upwards(start: str, stop: str) -> Iterator[str]:
    folder = start
    while os.path.commonpath([folder, stop]) == stop:
        yield folder
        if folder == stop:
            return
        folder = os.path.dirname(folder)


def _refuse_links(folder: str, names: Sequence[str], tool: Item) -> None:
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
    known = [template for template in compiled if all(hole in context for hole in template.placeholders)]
    return [str(template.render(context)) for template in known]
