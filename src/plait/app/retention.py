"""How many runs a project keeps: its setting `keep_runs`, or the variable PLAIT_KEEP_RUNS.

The setting belongs to the project, but the runs belong to the user.  So it can keep more runs than
the default, and fewer only if the user trusts the project.

"""

from __future__ import annotations

import os
from collections.abc import Mapping

from plait.core.errors import InputError, format_names
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from plait.adapters.store import Runs

KEEP_RUNS: Final = 200
KEEP_DAYS: Final = 30.0
VARIABLE: Final = "PLAIT_KEEP_RUNS"
SETTING: Final = "keep_runs"
ALL: Final = "all"
MOST_DIGITS: Final = 15
"""The most digits of a number of runs; a longer number keeps all."""


def remove_old_runs(
    runs: Runs, project: str, environ: Mapping[str, str] | None = None
) -> list[str]:
    """Remove old runs, unless all are kept; return a note about that."""
    keep = runs_to_keep(project, os.environ if environ is None else environ)
    removed = () if keep is None else runs.remove_old(keep=keep, days=KEEP_DAYS)
    if not removed:
        return []
    many = "1 old run was" if len(removed) == 1 else f"{len(removed)} old runs were"
    off = f"{SETTING}: {ALL} in .ai/plait.yaml, or {VARIABLE}={ALL}, keeps every run"
    return [f"{many} removed: {format_names(removed, most=len(removed))} ({off})"]


def runs_to_keep(project: str, environ: Mapping[str, str]) -> int | None:
    """Return how many of the newest runs stay; None: all."""
    value = environ.get(VARIABLE)
    if value:
        return _number(value)
    kept = _setting(os.path.join(project, ".ai", "plait.yaml"))
    from plait.app.toolbox import is_trusted

    return KEEP_RUNS if kept is not None and kept < KEEP_RUNS and not is_trusted(project) else kept


def _setting(path: str) -> int | None:
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError:
        return KEEP_RUNS
    if SETTING.encode() not in text:
        return KEEP_RUNS  # loading YAML would take longer than everything else here
    from plait.core.documents import Mapping as MappingNode
    from plait.core.documents import Scalar, parse
    from plait.tools.trust.decisions import require_valid_settings

    node = parse(text.decode("utf-8", "replace"), path)
    if not isinstance(node, MappingNode):
        return KEEP_RUNS
    require_valid_settings(node)
    value = node.get(SETTING)
    if not isinstance(value, Scalar) or value.value is None:
        return KEEP_RUNS
    return _count(str(value.value))


def _count(value: str) -> int | None:
    return None if value == ALL or len(value) > MOST_DIGITS else int(value)


def _number(value: str) -> int | None:
    if value == ALL or (value.isascii() and value.isdecimal() and value.strip("0")):
        return _count(value)
    raise InputError(
        f"{VARIABLE} is a whole number above 0, or {ALL}",
        fix=f"{VARIABLE}={KEEP_RUNS} keeps that many of the newest runs, {VARIABLE}={ALL} keeps every run",
        code="bad-setting",
    )
