"""What a project remembers of its runs: `<project>/.ai/state/runs/<id>/`, one journal for each run.

Read in this order: `runs` (which there are, and how one is made, opened and
removed), `journal` (events of one run, safe when `append` returns), `writer` and
`reader` (its two sides), `rows` (how an event looks in the database), `schema`
(the tables, settings and versions of the file).
"""

from __future__ import annotations

from plait.adapters.store.journal import SqliteJournal
from plait.adapters.store.runs import OpenRun, Runs, RunSummary

__all__ = ["OpenRun", "RunSummary", "Runs", "SqliteJournal"]
