"""Take over a run that came from elsewhere: a copy or a backup.

The facts of a run decide what a resume runs.  So the user sees them first, and the flow must be in
the project, where the user can read it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from plait.app.flow_source import place_now
from plait.core.errors import InputError, TrustError
from plait.core.hints import TYPE_CHECKING
from plait.core.records import dataclass

if TYPE_CHECKING:
    from plait.adapters.store import OpenRun


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """What a resume of a foreign run would use."""

    id: str
    project: str
    flow: str
    file: str
    """Empty for a run of a Python program."""
    began_in: str
    backend: str
    """Empty if the flow names the backend."""


def look_at(run: str, project: str | None) -> ForeignRun:
    """Return a run that may be taken over; TrustError if its flow is outside of the project."""
    from plait.app.runs import find_run

    runs, name = find_run(run, project)
    with runs.open(name, write=False) as opened:
        if opened.is_own:
            fix = f"plait resume {name} continues it"
            raise InputError(f"run {name} is your own already", fix=fix, code="own-run")
        return _foreign_run(opened)


def take_over(run: ForeignRun) -> None:
    """Seal a run as this user's, while it stays in this folder; TrustError without a key."""
    from plait.app.runs import flow_store

    with flow_store(run.project).open(run.id, write=True) as opened:
        if _foreign_run(opened) != run:
            raise TrustError(
                f"run {run.id} has changed meanwhile", fix="look at it again", code="changed"
            )
        opened.update_facts()
        if opened.why_unsealed:
            raise TrustError(
                f"run {run.id} gets no seal: {opened.why_unsealed}", code="foreign-store"
            )


def _foreign_run(opened: OpenRun) -> ForeignRun:
    facts, here = opened.facts, os.path.realpath(opened.project)
    began_in = str(facts.get("project", ""))
    options = facts.get("options")
    backend = options.get("backend") if isinstance(options, Mapping) else None
    file = ""
    if not facts.get("python"):
        then = began_in if os.path.isabs(began_in) else here
        file, _ = place_now(os.path.join(here, str(facts.get("file", ""))), then, here)
        file = os.path.realpath(file)
        if os.path.commonpath([file, here]) != here:
            raise TrustError(
                f"run {opened.id} cannot be taken over: its flow lies outside of the project",
                file,
                "begin a new run: plait run FILE",
                code="foreign-run",
            )
    return ForeignRun(
        opened.id, here, str(facts.get("flow", "")), file, began_in, str(backend or "")
    )
