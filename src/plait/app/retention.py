"""How many runs a project keeps: its setting `keep_runs`, or PLAIT_KEEP_RUNS of whoever runs it.

The setting comes along with the project, and the runs are the user's: it keeps more of them than
usual, and fewer only where the user trusted the project.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from plait.core.errors import InputError, TrustError, format_names
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from plait.adapters.store import Runs

KEEP_RUNS: Final = 200
KEEP_DAYS: Final = 30.0
VARIABLE: Final = "PLAIT_KEEP_RUNS"
SETTING: Final = "keep_runs"
ALL: Final = "all"
MOST_DIGITS: Final = 15
"""Of a number of runs; a longer one keeps them all."""


def remove_old_runs(
    runs: Runs, project: str, environ: Mapping[str, str] | None = None
) -> list[str]:
    """Remove what is old, unless all is to be kept; what is to be said of that."""
    keep = runs_to_keep(project, os.environ if environ is None else environ)
    removed = () if keep is None else runs.remove_old(keep=keep, days=KEEP_DAYS)
    if not removed:
        return []
    many = "1 old run was" if len(removed) == 1 else f"{len(removed)} old runs were"
    off = f"{SETTING}: {ALL} in .ai/plait.yaml, or {VARIABLE}={ALL}, keeps every run"
    return [f"{many} removed: {format_names(removed, most=len(removed))} ({off})"]


def runs_to_keep(project: str, environ: Mapping[str, str]) -> int | None:
    """How many of the newest runs stay, whatever their age; None: all of them."""
    said = environ.get(VARIABLE)
    if said:
        return _number(said)
    kept = _setting(os.path.join(project, ".ai", "plait.yaml"))
    return KEEP_RUNS if kept is not None and kept < KEEP_RUNS and not _is_trusted(project) else kept


def _is_trusted(project: str) -> bool:
    from plait.app.toolbox import user_space
    from plait.tools.trust.decisions import Trust

    with suppress(TrustError):  # who needs that trust says what is wrong with it
        return Trust(user_space(), project).trusts_project
    return False


def _setting(path: str) -> int | None:
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError:
        return KEEP_RUNS
    if SETTING.encode() not in text:
        return KEEP_RUNS  # to load YAML takes longer than all else here
    from plait.core.documents import Mapping as MappingNode
    from plait.core.documents import Scalar, parse
    from plait.tools.trust.decisions import require_valid_settings

    node = parse(text.decode("utf-8", "replace"), path)
    if not isinstance(node, MappingNode):
        return KEEP_RUNS
    require_valid_settings(node)
    said = node.get(SETTING)
    if not isinstance(said, Scalar) or said.value is None:
        return KEEP_RUNS
    return _count(str(said.value))


def _count(said: str) -> int | None:
    return None if said == ALL or len(said) > MOST_DIGITS else int(said)


def _number(said: str) -> int | None:
    if said == ALL or (said.isascii() and said.isdecimal() and said.strip("0")):
        return _count(said)
    raise InputError(
        f"{VARIABLE} is a whole number above 0, or {ALL}",
        fix=f"{VARIABLE}={KEEP_RUNS} keeps that many of the newest runs, {VARIABLE}={ALL} keeps every run",
        code="bad-setting",
    )
