"""The tables of the events that `plait run --json` and `plait events` print, one JSON object each.

They describe what programs read, so more fields and more events may come without a new version:
`EVENTS_VERSION` in `engine/events.py` counts the changes that break a reader.
"""

from __future__ import annotations

from plait.core.hints import Final
from plait.schema.field_types import (
    Boolean,
    Choice,
    Data,
    Field,
    Integer,
    Kind,
    ListOf,
    MapOf,
    Null,
    Number,
    OneOf,
    PlainText,
    Record,
    RecordType,
)

TEXT: Final = PlainText()
SECONDS: Final = Number(0)
FAILURE: Final = Record("event_failure")
FAILURE_OR_NULL: Final = OneOf((FAILURE, Null()))
COUNTS: Final = MapOf(Data(), PlainText("a name"))
USAGE: Final = MapOf(Number(0), PlainText("turns, tokens, spend, steps or estimated"))


def _always(name: str, kind: Kind, what: str) -> Field:
    return Field(name, kind, what, required=True)


_NUMBER: Final = (
    _always("number", Integer(1), "the number of the event; later events have larger ones"),
    _always("at", SECONDS, "when it was recorded: seconds since 1970, for people"),
)
_PATH: Final = _always("path", TEXT, "the step, by its path in the run")
_KIND: Final = _always("kind", TEXT, "what the step is: phase, map, item, shell, tool, …")
_TITLE: Final = _always("title", TEXT, "the step for people, with values, secrets masked")
_ORDER: Final = _always("order", Integer(0), "its index among its siblings, from 0")
_STEP_USAGE: Final = Field("usage", USAGE, "what models used for it, if one was asked")
_RUN: Final = _always("run", TEXT, "the id of the run")
_WHAT: Final = _always("what", TEXT, "what is wrong")
_WHERE: Final = _always("where", OneOf((Record("event_place"), Null())), "where, if it is known")
_FIX: Final = _always("fix", TEXT, "what to do")
_CODE: Final = _always("code", TEXT, "its code: see the page Errors")
_END: Final = Choice(("done", "failed", "interrupted"))


def _event(name: str, what: str, *fields: Field, has_number: bool = True) -> RecordType:
    return RecordType(name, f"event {name}", what, (*(_NUMBER if has_number else ()), *fields))


FORMS: Final = (
    _event(
        "run_started",
        "A run, or another attempt of it, has started. It is the first event of every attempt.",
        _always("version", Integer(1), "the version of this format"),
        _RUN,
        _always("flow", TEXT, "the name of the flow"),
        _always("file", TEXT, "its file"),
        _always("project", TEXT, "the folder of the project"),
        _always("resumed", Boolean(), "it continues an earlier attempt"),
        _always("phases", ListOf(Record("event_phase")), "the parts of the flow in order"),
    ),
    _event(
        "step_started",
        "A step has started. A quick step may have only an end.",
        _PATH,
        _KIND,
        _TITLE,
        _always("attempt", Integer(1), "the number of the attempt"),
        _ORDER,
    ),
    _event(
        "step_renamed",
        "A running step has a new title, with its values filled in.",
        _PATH,
        _TITLE,
    ),
    _event(
        "step_retrying",
        "An attempt of a step failed, and another one follows.",
        _PATH,
        _always("attempt", Integer(1), "the attempt that failed"),
        _always("of", Integer(0), "how many attempts are allowed; 0: a hook decides"),
        _always("delay", SECONDS, "seconds until the next attempt"),
        _always("failure", FAILURE, "why it failed"),
        _STEP_USAGE,
    ),
    _event(
        "step_finished",
        "A step has ended. Phases, maps and items end so, too.",
        _PATH,
        _KIND,
        _TITLE,
        _ORDER,
        _always("duration", SECONDS, "how long it took, in seconds"),
        _always("replayed", Boolean(), "an earlier attempt of the run did it"),
        _STEP_USAGE,
        _always("status", Choice(("done", "failed", "skipped")), "how it ended"),
        Field("value", Data(), "if it is done: its value"),
        Field("failure", FAILURE, "if it failed: why"),
        Field("why", TEXT, "if it was skipped: why"),
    ),
    _event(
        "model_text",
        "A piece of the answer of a model, as it arrives.",
        _PATH,
        _always("text", TEXT, "the piece"),
    ),
    _event(
        "items_counted",
        "A map has found its items.",
        _PATH,
        _always("total", Integer(0), "how many"),
    ),
    _event(
        "items_replayed",
        "Many items of a map were done in earlier attempts; they have no events of their own.",
        _PATH,
        _always("count", Integer(0), "how many"),
    ),
    _event(
        "earlier_usage",
        "What models used in earlier attempts of the run.",
        _always("parts", MapOf(USAGE, PlainText("a part of the flow")), "by part of the flow"),
    ),
    _event(
        "step_invalidated",
        "Recorded outcomes no longer count: the steps run again.",
        _PATH,
        _always("why", TEXT, "the reason"),
        _always("below", Boolean(), "the steps below that path as well"),
    ),
    _event(
        "note",
        "A message for people that is not a failure.",
        _always("level", Choice(("note", "warning")), "a warning points to a likely mistake"),
        _always("path", TEXT, "the step that it is about; empty: the run"),
        _always("message", TEXT, "the text"),
    ),
    _event(
        "run_ended",
        "The attempt of the run has ended.",
        _always("status", _END, "how"),
        _always("facts", COUNTS, "the counts of its items"),
        _always("failure", FAILURE_OR_NULL, "why it failed or was stopped"),
    ),
    _event(
        "stopping",
        "A signal asked the run to stop.",
        _always("at_once", Boolean(), "running commands are ended at once"),
        has_number=False,
    ),
    _event(
        "result",
        "The last line: how the run ended.",
        _RUN,
        _always("status", _END, "how; `interrupted` also if its process died"),
        _always("exit_code", Integer(0, 255), "the exit code of `plait run`"),
        _always("counts", COUNTS, "of the items of its map: total, successful, failed"),
        _always("failure", FAILURE_OR_NULL, "why it failed or was stopped"),
        _always("value", Data(), "the output of the flow"),
        Field("usage", Record("event_usage"), "what models used in all attempts, if one was asked"),
        has_number=False,
    ),
    _event(
        "error",
        "The run could not be started or continued: a wrong file, for example.",
        _always("error", Record("event_error"), "the problem"),
        has_number=False,
    ),
    RecordType(
        "event_phase",
        "phase",
        "A part of a flow.",
        (
            _always("name", TEXT, "its name, which is its path"),
            _always("steps", Integer(0), "how many steps it has"),
        ),
    ),
    RecordType(
        "event_failure",
        "failure",
        "Why a step failed; secrets are masked.",
        (
            _always("message", TEXT, "what went wrong"),
            _always("kind", TEXT, "its kind: exit, timeout, limit, … More kinds may come"),
            _always(
                "exit_code", OneOf((Integer(0), Null())), "of a process, or the status of a request"
            ),
            _always("output", Data(), "the partial result of the step"),
            _always("path", TEXT, "the step that failed first; empty: this one"),
        ),
    ),
    RecordType(
        "event_usage",
        "usage",
        "What models used.",
        (
            _always("turns", Integer(0), "requests"),
            _always("tokens", Integer(0), "tokens of requests and answers"),
            _always("cost", Number(0), "what they cost, in the currency of the prices"),
            Field("estimated", Integer(0), "tokens that are estimated"),
        ),
    ),
    RecordType(
        "event_error",
        "error",
        "A problem of a file, of an argument or of the machine.",
        (
            _always("type", TEXT, "the class of the error"),
            _WHAT,
            _CODE,
            _WHERE,
            _FIX,
            Field("names", ListOf(TEXT), "names without a value"),
            Field("problems", ListOf(Record("event_problem")), "all, if there are several"),
        ),
    ),
    RecordType(
        "event_problem", "problem", "One of several problems.", (_WHAT, _WHERE, _FIX, _CODE)
    ),
    RecordType(
        "event_place",
        "place",
        "A place in a file.",
        (
            _always("file", TEXT, "its name"),
            _always("line", OneOf((Integer(1), Null())), "from 1"),
            _always("column", OneOf((Integer(1), Null())), "from 1"),
        ),
    ),
)
