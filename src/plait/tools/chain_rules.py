"""Check whether a chain is allowed: each pair of neighbours, with all problems.

space    a child may depend on its own space and those of lower precedence
i/o      a child must declare the output that its parent needs
version  a parent may require a range of versions of a child
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from plait.core.errors import InputError, Problem
from plait.core.records import dataclass, field
from plait.core.values import Json
from plait.tools.chain import Chain
from plait.tools.tool_file import Constraint, ToolFile


@dataclass(frozen=True, slots=True)
class Pair:
    """The decision about one child and the element that executes it."""

    child: str
    parent: str
    space_ok: bool = True
    io_ok: bool = True
    version_ok: bool = True
    problems: tuple[Problem, ...] = field(default=(), compare=False)
    warnings: tuple[str, ...] = ()

    def record(self) -> dict[str, Json]:
        record: dict[str, Json] = {
            "child": short_id(self.child),
            "parent": short_id(self.parent),
            "space_ok": self.space_ok,
            "io_ok": self.io_ok,
        }
        return record if self.version_ok else {**record, "version_ok": False}


def validate(chain: Chain) -> tuple[Pair, ...]:
    """The decision about every pair. Raises with all problems if one is not allowed."""
    pairs = check_pairs(chain)
    problems = [problem for pair in pairs for problem in pair.problems]
    if problems:
        raise InputError.together(problems)
    return pairs


def check_pairs(chain: Chain) -> tuple[Pair, ...]:
    items: Sequence[ToolFile | None] = [*chain.elements, None]
    pairs = zip(chain.elements, items[1:], strict=True)
    return tuple(_check_pair(child, parent, chain.primitive) for child, parent in pairs)


def short_id(item_id: str) -> str:
    """The name that people use for a runtime or primitive."""
    for prefix in ("core/runtimes/", "core/primitives/"):
        item_id = item_id.removeprefix(prefix)
    return item_id


def _check_pair(child: ToolFile, parent: ToolFile | None, primitive: str) -> Pair:
    if parent is None:
        return Pair(child.id, primitive)
    space = _space_problem(child, parent)
    io = _io_problem(child, parent)
    versions, warning = _version_problems(child, parent)
    problems = tuple(problem for problem in (space, io, *versions) if problem is not None)
    warnings = (warning,) if warning else ()
    return Pair(child.id, parent.id, space is None, io is None, not versions, problems, warnings)


def _space_problem(child: ToolFile, parent: ToolFile) -> Problem | None:
    if parent.space.precedence <= child.space.precedence:
        return None
    return Problem(
        f"'{child.id}' of the {child.space} space depends on '{parent.id}' of the {parent.space} "
        "space",
        child.path,
        "an item may depend on its own space and those below it: project > user > system",
        code="space-order",
    )


def _io_problem(child: ToolFile, parent: ToolFile) -> Problem | None:
    needed, given = set(parent.header.inputs), set(child.header.outputs)
    if not needed or not given or needed <= given:
        return None
    lacking = ", ".join(sorted(needed - given))
    return Problem(
        f"'{parent.id}' needs {lacking}, which '{child.id}' does not give",
        child.path,
        f"add it to the outputs of '{child.id}', or choose another executor_id",
        code="io-mismatch",
    )


def _version_problems(child: ToolFile, parent: ToolFile) -> tuple[list[Problem], str | None]:
    """Check every constraint for this child: for all children, for its id, for a pattern of ids."""
    constraints = [
        constraint
        for pattern, constraint in parent.header.child_constraints.items()
        if pattern == child.id or fnmatchcase(child.id, pattern)
    ]
    if not constraints:
        return [], None
    if child.header.version is None:
        return [], f"'{parent.id}' demands a version of '{child.id}', which names none"
    version = child.header.version
    found = (_out_of_range(child, parent, constraint, version) for constraint in constraints)
    return list(dict.fromkeys(problem for problem in found if problem is not None)), None


def _out_of_range(
    child: ToolFile, parent: ToolFile, constraint: Constraint, version: str
) -> Problem | None:
    from packaging.version import InvalidVersion, Version  # slow to import, and seldom needed

    wanted = " ".join(
        f"{sign} {limit}"
        for sign, limit in (("≥", constraint.min_version), ("≤", constraint.max_version))
        if limit is not None
    )
    try:
        has = Version(version)
        low = Version(constraint.min_version) if constraint.min_version else has
        high = Version(constraint.max_version) if constraint.max_version else has
    except InvalidVersion as error:
        return Problem(
            f"'{child.id}' and '{parent.id}' cannot be compared: {error}",
            child.path,
            "versions look like 1.4.2",
            code="bad-version",
        )
    if low <= has <= high:
        return None
    return Problem(
        f"'{parent.id}' wants '{child.id}' {wanted}, and it is {version}",
        child.path,
        f"install a version of '{child.id}' in that range",
        code="version-mismatch",
    )
