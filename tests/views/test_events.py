"""Each line of `plait run --json` and `plait events` is as `plait schema events` says."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.cases import CASES, case_names, commands_of
from model.story import run_story
from plait.app.result import FlowResult
from plait.cli import main
from plait.engine import events as engine_events
from plait.engine.events import EVENTS_VERSION, Event, EventRecord, StepOutput
from plait.engine.outcome import Failed, Failure, Skipped, Succeeded
from plait.schema import record_type
from plait.schema.forms import EVENTS
from plait.schema.json_schema import json_schema
from plait.views.json_view import JsonView

Capsys = pytest.CaptureFixture[str]


def closed_schema() -> dict[str, Any]:
    """The schema without the fields that may come later: what is printed today, and no more."""
    schema: dict[str, Any] = json_schema("events")
    for form in schema["$defs"].values():
        form["additionalProperties"] = False
    return schema


CLOSED = jsonschema_rs.validator_for(closed_schema())
OPEN = jsonschema_rs.validator_for(json_schema("events"))


def problems(line: str) -> list[str]:
    found = json.loads(line)
    return [f"{one.message}: {line}" for one in CLOSED.iter_errors(found)]


# ── all events ───────────────────────────────────────────────────────────

TEXT = st.text(max_size=5)
NUMBER = st.floats(0, 1e9, allow_nan=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
USAGE = st.dictionaries(st.sampled_from(("turns", "tokens", "spend", "steps")), NUMBER)
FAILURE = st.builds(Failure, TEXT, TEXT, st.none() | st.integers(0, 600), output=JSON, path=TEXT)
OUTCOME = st.builds(Succeeded, JSON) | st.builds(Failed, FAILURE) | st.builds(Skipped, TEXT)
END = st.sampled_from(("done", "failed", "interrupted"))
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "phases": st.lists(st.tuples(TEXT, st.integers(0, 9))).map(tuple),
    "attempt": st.integers(1, 9),
    "order": st.integers(0, 9),
    "of": st.integers(0, 9),
    "total": st.integers(0, 9),
    "delay": NUMBER,
    "duration": NUMBER,
    "resumed": st.booleans(),
    "replayed": st.booleans(),
    "below": st.booleans(),
    "warning": st.booleans(),
    "used": st.none() | USAGE,
    "parts": st.dictionaries(TEXT, USAGE, max_size=2),
    "failure": FAILURE,
    "outcome": OUTCOME,
    "done": st.binary(max_size=3),
    "status": END,
    "value": JSON,
    "facts": st.dictionaries(TEXT, JSON, max_size=2),
    "pending": st.none(),
}
KINDS = [kind for kind in get_args(Event) if kind is not StepOutput]


def any_event(kind: type[Event]) -> st.SearchStrategy[Event]:
    fields = {name: FIELDS.get(name, TEXT) for name in kind.__dataclass_fields__}
    return st.builds(kind, **fields)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data(), at=NUMBER)
def test_every_event_is_printed_as_the_schema_says(
    kind: type[Event], data: st.DataObject, at: float
) -> None:
    stream = io.StringIO()
    JsonView(stream).watch(EventRecord(1, at, data.draw(any_event(kind))))
    assert problems(stream.getvalue()) == []


@given(
    result=st.builds(
        FlowResult,
        TEXT,
        END,
        st.none() | FAILURE,
        JSON,
        st.dictionaries(TEXT, st.integers(0), max_size=2),
    ),
    used=USAGE,
    at_once=st.booleans(),
)
def test_the_other_lines_are_printed_as_the_schema_says(
    result: FlowResult, used: dict[str, float], at_once: bool
) -> None:
    stream = io.StringIO()
    view = JsonView(stream)
    view._usage.add(used)
    view.stopping(at_once=at_once)
    view.finish(result)
    assert [found for line in stream.getvalue().splitlines() for found in problems(line)] == []


def test_the_schema_has_exactly_the_events_that_are_printed() -> None:
    named = [kind.form for kind in EVENTS.kinds]  # type: ignore[union-attr]
    printed = [
        "".join(f"_{char.lower()}" if char.isupper() else char for char in kind.__name__)[1:]
        for kind in KINDS
    ]
    assert sorted(named) == sorted([*printed, "stopping", "result", "error"])
    assert all(hasattr(engine_events, kind.__name__) for kind in KINDS)


def test_the_version_is_in_the_first_event_and_in_the_name_of_the_schema() -> None:
    assert json_schema("events")["$id"] == f"urn:plait:schema:events:{EVENTS_VERSION}"
    assert "version" in {field.name for field in record_type("run_started").fields}


WRONG = [
    {"event": "nothing"},
    {"event": "note", "level": "note", "path": "", "message": "x"},  # without number and time
    {"number": 1, "at": 1.0, "event": "items_counted", "path": "map", "total": "3"},
    {"number": 1, "at": 1.0, "event": "items_counted", "path": "map"},
    {"event": "result"},
    [],
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_the_schema_refuses_what_is_no_event(wrong: object) -> None:
    assert not OPEN.is_valid(wrong)


def test_a_field_that_comes_later_is_no_error() -> None:
    assert OPEN.is_valid({"event": "stopping", "at_once": False, "later": 1})
    assert not CLOSED.is_valid({"event": "stopping", "at_once": False, "later": 1})


# ── runs ─────────────────────────────────────────────────────────────────


def recorded_streams() -> Iterator[tuple[str, list[str]]]:
    """What each run of the golden corpus printed as events; sorted if several threads printed it."""
    for case in case_names():
        for command in commands_of(case):
            words = command.arguments
            is_events = words[:1] == ["events"] or (
                words[:1] in (["run"], ["resume"], ["retry"])
                and "--json" in words
                and not {"--dry-run", "--prompt-only"} & {*words}
                and (words[0] != "run" or not words[1].startswith("-"))
            )
            file = CASES / case / f"{command.name}.out"
            if is_events and file.exists():
                text = file.read_text("utf-8")
                for gone in ('"<time>"', '"<duration>"'):
                    text = text.replace(gone, "1.5")
                lines = text.splitlines()
                if command.any_order:  # held without their numbers
                    lines = [line.replace('{"at"', '{"number":1,"at"') for line in lines]
                yield f"{case} {command.name}", lines


def test_the_golden_corpus_has_only_events_of_the_schema() -> None:
    streams = dict(recorded_streams())
    assert [found for lines in streams.values() for line in lines for found in problems(line)] == []
    assert len(streams) > 10
    for lines in streams.values():
        events = [json.loads(line) for line in lines]
        with_version = [one["event"] for one in events if one.get("version") == EVENTS_VERSION]
        assert with_version == [one["event"] for one in events if one["event"] == "run_started"]


@pytest.mark.parametrize("seed", range(2000, 2004))
def test_runs_that_were_killed_edited_and_resumed_have_only_events_of_the_schema(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    for name in ("HOME", "USER_SPACE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    project = tmp_path / "project"
    run_story(project, seed)
    capsys.readouterr()
    assert main(["events", "--project", str(project)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [found for line in lines for found in problems(line)] == []
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert (first["event"], first["version"], last["event"]) == (
        "run_started",
        EVENTS_VERSION,
        "result",
    )
    assert [json.loads(line)["number"] for line in lines[:-1]] == list(range(1, len(lines)))
