"""What would be needed to reach each missed bar.

Every row with a bar is named here: with a text, or among those that were never missed.  A missed bar
without a text keeps bench/run.py from writing the page.
"""

from __future__ import annotations

from collections.abc import Sequence

REACHED_BY = {
    # part of the name of a missed row: what is needed to reach its bar
    "plait Template.render": (
        "The generated code checks the class of each value (3 to 13 ns a value), so that a value of "
        "another class is not taken for text. Checks in C would bring it to the f-string."
    ),
    "plait, each step written down": (
        "A step of a graph is one transaction (17 µs), two records and the choice of the edge. "
        "Several steps in one transaction would reach it, and would repeat them after a kill."
    ),
    "nothing compiled": (
        "The guardian in Python takes 0.3 ms an item and executes each shell (0.4 ms more than one "
        "that waits). A compiler, or a wheel for this machine, is the way."
    ),
    "a whole call of a function": (
        "A third of the call goes to looking at the files it rests on, a third to the thread that "
        "the function runs in. A watch on those files (inotify) instead of a dozen `stat`, and "
        "waking the thread by an eventfd, would bring it below the bar."
    ),
    "plait call": (
        "Two thirds of what is above the bare script is importing Plait's own modules. One module "
        "that is frozen at build for this command, or a server that stays alive, would reach it."
    ),
    "a record": (
        "Half of it is SQLite's, for a transaction of its own: locks, a page, checksums. Writing "
        "several "
        "items in one would reach it and let a kill repeat more of them; appending to a plain file "
        "between "
        "two syncs took 19 to 37 µs, and would need a recovery of its own."
    ),
    "plait run FILE": (
        "The guardian alone, asked for the same shells by 2 or 8 threads that record nothing, takes "
        "about 0.6 of the computing and of the time of xargs: the bar of 0.7 leaves 0.06 ms an item. "
        "Plait takes 0.17 ms of computing, spread over some hundred small functions that bind, check "
        "and record, and Python executes one of them at a time: two cores are used to two thirds. "
        "An item of 10,000 with captured output has to be 0.11 ms faster at 8 at a time, and 0.2 ms "
        "at 2 at a time. There every shell that ends waits for Plait before the next one starts. A "
        "faster function here and there does not reach that. A plan for plain items in C, which "
        "starts the next shell before it records the last one, might; it was not tried. Of 1,000 "
        "items, 40 to 110 ms are missing, and the start of the command takes 73 ms. A little "
        "more than half of it would reach the bar at 8 at a time. None at all would at 2 at a time "
        "without output, and with captured output not even that."
    ),
    "a function through plait mcp": (
        "The function takes 0.1 ms. Two messages through two pipes take 0.02 ms by themselves, and "
        "an echo with the same `plait.call` after it, which is the least that any server needs, is "
        "above the bar already: both processes fall asleep between two messages. Another transport "
        "(shared memory and a busy wait), or several calls in one message, would reach it."
    ),
    "Parsing long texts": (
        "The parser is linear; with a million parts, Python's garbage collector looks at all of "
        "them again and again. Without it the last column is 1.1 to 1.4. Freezing them while one "
        "text is parsed would reach the bar, and cost short texts time."
    ),
    "traced: traced": (
        "A span costs 9 µs: reading the journal, making and encoding it; a step 4 µs for the "
        "variable that its process gets. Loading protobuf takes 50 ms once. A thread of its own "
        "does the rest beside the map, but shares Python's lock with it: a process of its own, or "
        "encoding in C, would reach the bar."
    ),
    "a page is open": (
        "The run itself does nothing for a page. What it pays should be that the server reads the same "
        "journal and computes beside it, with the same caches; these were not measured apart. Looking "
        "at a busy run less often than five times a second may reach the bar, and shows updates later."
    ),
    "plait run above": (
        "Nearly all of it is loading some 220 modules; a seventh is PyYAML, of which libyaml's "
        "part alone "
        "would do. One frozen module for this command would save half."
    ),
}
"""Keys are parts of row names (`TITLE: ROW`); the first matching one counts."""

NEVER_MISSED = (
    "ahead of every peer",
    "First rendering",
    "plait.Ensemble.resolve",
    "a step of an item",
    "the same, with its records",
    "÷ the fastest of those",
    "1,000,000 items",
    "A graph of 1,000 trivial steps: LangGraph",
    "Earlier runs",
    "Importing",
    "Completion",
    "The command: plait --version",
    "The MCP server: ready",
    "What a call costs besides its process",
    "Calling a tool from a long-running process",
    "a script through plait mcp",
    "on a Dask cluster",
    "worktrees of 200 files",
    "printing items",
    "The first page of a run",
    "First paint in Chromium",
    "From an event to the page",
)
"""Parts of row names whose bars are met.  If one is missed, move it above and say what is needed."""


def texts_about(missed: Sequence[str]) -> dict[str, str]:
    """The explanations of the missed rows, each once."""
    wanted = {_key(name) for name in missed}
    return {part: text for part, text in REACHED_BY.items() if part in wanted}


def without_text(missed: Sequence[str]) -> list[str]:
    return [name for name in missed if _key(name) is None]


def is_known(name: str) -> bool:
    """Whether a row with a bar is named here."""
    return _key(name) is not None or any(part in name for part in NEVER_MISSED)


def _key(name: str) -> str | None:
    return next((part for part in REACHED_BY if part in name), None)
