"""The runs of a project on disk: `<project>/.ai/state/runs/<id>/`, with one journal per run.

Read in this order: `runs` (create, open, list and remove runs), `journal` (events of one run, safe
when `append` returns), `writer` and `reader` (its two sides), `rows` (an event in the database),
`schema` (tables, settings and version of the file).
"""

from __future__ import annotations

from plait.adapters.store.journal import SqliteJournal
from plait.adapters.store.open_run import OpenRun, RunSummary
from plait.adapters.store.runs import Runs

__all__ = ["OpenRun", "RunSummary", "Runs", "SqliteJournal"]
