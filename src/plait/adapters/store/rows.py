"""Events as rows of the journal, and back.

A path is stored in two columns: `parent` is everything up to the last `/`, `name` is the rest. So
the steps directly below a path have the same `parent`.

Kinds and fingerprints repeat often: their columns are ids in the table `strings`. What has no
column is JSON in `body`. If that is large, each large text in it becomes a blob, and `body` (as
bytes) says which. If no text in it is large, all of it becomes one blob, and `body` is its digest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from plait.adapters.store.shapes import (
    MISREAD,
    damage_error,
    decode_json,
    is_failure,
    is_map,
    is_phases,
    is_text,
    is_usage,
    require_shape,
    require_types,
)
from plait.core.errors import InternalError
from plait.core.hints import Any, Final, TypeAlias
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass
from plait.core.values import Json, json_text
from plait.engine.events import (
    EarlierUsage,
    Event,
    EventRecord,
    ItemsCounted,
    ItemsReplayed,
    ModelText,
    Note,
    PendingHooks,
    RunEnded,
    RunStarted,
    Status,
    StepFinished,
    StepInvalidated,
    StepOutput,
    StepRenamed,
    StepRetrying,
    StepStarted,
    Usage,
)
from plait.engine.journal import StepRecord
from plait.engine.outcome import Failed, Failure, Outcome, Skipped, Succeeded
from plait.engine.paths import ITEM, MAP

LARGE: Final = 32 * 1024
"""Characters of JSON beyond which a body, or each large text in it, becomes a blob."""
DIGEST_BYTES: Final = 32
"""The length of a body that is a blob. A body whose texts are blobs is longer."""

RUN_STARTED, STARTED, RETRYING, FINISHED, COUNTED, INVALIDATED, NOTE, RUN_ENDED = range(8)
EVENT_NAMES: Final = (
    "run_started",
    "step_started",
    "step_retrying",
    "step_finished",
    "items_counted",
    "step_invalidated",
    "note",
    "run_ended",
)
ALONE: Final = 1
"""The status of an invalidated step whose inner steps stay valid."""
DONE, FAILED, SKIPPED = range(3)
MARKED: Final = frozenset([RUN_STARTED, RETRYING, INVALIDATED, NOTE, RUN_ENDED])
IS_MARKED: Final = (
    f"(type IN {tuple(sorted(MARKED))} OR type = {FINISHED} AND status = {FAILED} OR parent = '' "
    f"OR parent = '{MAP}/' AND substr(name, 1, {len(ITEM)}) <> '{ITEM}')"
)
"""Selects the few records that readers search for: failures, phases, and steps of the map outside
items.
"""
HAS_USAGE: Final = "has usage"
"""A string in the journal if a record has usage; an index would make all records slower."""
STATUS_NAMES: Final = ("done", "failed", "skipped")

COLUMNS: Final = (
    "at, type, parent, name, kind, title, position, attempt, fingerprint, duration, status, "
    "replayed, usage, pending_hooks, body"
)
Row: TypeAlias = tuple[
    float,  # at
    int,  # type
    str | None,  # parent
    str | None,  # name
    int | None,  # kind: a string
    str | None,  # title; in a run_ended record the status
    int | None,  # position
    int | None,  # attempt
    int | None,  # fingerprint: a string
    float | None,  # duration, or delay
    int | None,  # status
    bool | None,  # replayed
    str | None,  # usage
    str | bytes | None,  # pending_hooks
    str | bytes | None,  # body
]


@dataclass(frozen=True, slots=True)
class Packing:
    """The strings and blobs of a journal, for writing a row."""

    strings: Mapping[str, int]
    """The ids that are in memory."""
    string_id: Callable[[str], int]
    """Finds or makes the id of any other string."""
    put_blob: Callable[[bytes], str]


@dataclass(frozen=True, slots=True)
class Unpacking:
    """The strings and blobs of a journal, for reading a row."""

    string: Callable[[int], str]
    get_blob: Callable[[str], bytes]
    where: str = ""
    """The file of the journal, for errors."""


_BELOW_MAP: Final = f"{MAP}/"


def is_marked(row: Row) -> bool:
    """Does `IS_MARKED` hold for a row that is not written yet?"""
    type, parent = row[1], row[2]
    if type in MARKED or (type == FINISHED and row[10] == FAILED) or parent == "":
        return True
    return parent == _BELOW_MAP and (name := row[3]) is not None and not name.startswith(ITEM)


# ── from events ──────────────────────────────────────────────────────────


def to_row(event: Event, at: float, packing: Packing) -> Row:
    match event:
        case StepFinished():
            parent, name = split(event.path)
            strings, fingerprint, outcome = packing.strings, event.fingerprint, event.outcome
            status, value = (
                (DONE, outcome.value) if isinstance(outcome, Succeeded) else _status(outcome)
            )
            return (
                at,
                FINISHED,
                parent,
                name,
                strings.get(event.kind) or packing.string_id(event.kind),
                escape_text(event.title),
                event.order,
                None,
                strings.get(fingerprint) or packing.string_id(fingerprint),
                event.duration,
                status,
                event.replayed or None,
                None if event.used is None else _pack_usage(event.used, packing),
                None
                if event.pending is None
                else _pack_value(_from_pending_hooks(event.pending), packing),
                _pack_value(value, packing),
            )
        case StepStarted():
            parent, name = split(event.path)
            kind = packing.strings.get(event.kind) or packing.string_id(event.kind)
            return (at, STARTED, parent, name, kind, escape_text(event.title), event.order, event.attempt,
                    None, None, None, None, None, None, None)  # fmt: skip
        case StepRetrying():
            parent, name = split(event.path)
            used = None if event.used is None else _pack_usage(event.used, packing)
            body = _pack_value(event.failure.record(), packing)
            return (at, RETRYING, parent, name, None, None, event.of, event.attempt,
                    None, event.delay, None, None, used, None, body)  # fmt: skip
        case ItemsCounted():
            return _plain_row(at, COUNTED, event.path, event.total, packing)
        case StepInvalidated():
            row = _plain_row(at, INVALIDATED, event.path, event.why, packing)
            return row if event.below else (*row[:10], ALONE, *row[11:])
        case Note():
            note: Json = {"warning": event.message} if event.warning else event.message
            return _plain_row(at, NOTE, event.path, note, packing)
        case RunStarted():
            started = [
                event.run,
                event.flow,
                event.file,
                event.project,
                event.resumed,
                event.phases,
            ]
            return _plain_row(at, RUN_STARTED, None, started, packing)
        case RunEnded():
            failure = None if event.failure is None else event.failure.record()
            ended = [failure, event.value, event.facts]
            return _plain_row(at, RUN_ENDED, None, ended, packing, title=event.status)
        case StepRenamed() | ModelText() | StepOutput() | ItemsReplayed() | EarlierUsage():
            raise InternalError("this event is not recorded", code="journal")


def _plain_row(
    at: float,
    type: int,
    path: str | None,
    value: Json,
    packing: Packing,
    *,
    title: str | None = None,
) -> Row:
    parent, name = (None, None) if path is None else split(path)
    body = _pack_value(value, packing)
    return (at, type, parent, name, None, title, None, None,
            None, None, None, None, None, None, body)  # fmt: skip


def _status(outcome: Failed | Skipped) -> tuple[int, Json]:
    match outcome:
        case Failed(failure):
            return FAILED, failure.record()
        case Skipped(why):
            return SKIPPED, why


def _pack_usage(used: Usage, packing: Packing) -> str:
    if HAS_USAGE not in packing.strings:
        packing.string_id(HAS_USAGE)
    return to_json(used)


def _pack_value(value: Json, packing: Packing) -> str | bytes | None:
    if value is None:
        return None
    body = to_json(value)
    if len(body) <= LARGE:
        return body
    texts: list[tuple[_Keys, str]] = []
    rest = _without_texts(value, (), texts)
    if not texts or len(to_json(rest)) > LARGE:
        return bytes.fromhex(packing.put_blob(body.encode("ascii")))
    # The output of a step is often also the output of its step list: as a blob it is stored once.
    blobs = [
        [list(keys), packing.put_blob(text.encode("utf-8", "surrogatepass"))]
        for keys, text in texts
    ]
    return to_json([rest, blobs]).encode("ascii")


_Keys: TypeAlias = tuple[str | int, ...]


def _without_texts(value: Json, keys: _Keys, texts: list[tuple[_Keys, str]]) -> Json:
    """Return the value with null for each large text; `texts` gets each text and the keys to it."""
    match value:
        case str() if len(value) > LARGE:
            texts.append((keys, value))
            return None
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _without_texts(one, (*keys, key), texts) for key, one in value.items()}
        case list():
            return [_without_texts(one, (*keys, at), texts) for at, one in enumerate(value)]
    return value


def _encoder() -> Callable[[Json], str]:
    """One encoder for all bodies: `JSONEncoder.encode` makes one per call, which is slow."""
    python = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":"))
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return python.encode
    quote = json.encoder.encode_basestring_ascii
    pieces = make(None, python.default, quote, None, ":", ",", False, False, False)
    return lambda value: "".join(pieces(value, 0))


_encode: Final = _encoder()


def to_json(value: Json) -> str:
    """Return JSON in ASCII: text that is not valid Unicode (bytes of a process) survives it."""
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError):
        return _encode(json.loads(json_text(value)))  # masks secrets, refuses other types


# ── to events ────────────────────────────────────────────────────────────


def to_event(row: Row, unpacking: Unpacking) -> Event:
    """Return the event of a row; raise one of the errors of `MISREAD` if the row is damaged."""
    _, type, parent, name, kind, title, position, attempt, fingerprint, duration, *_ = row
    replayed, usage, pending_hooks, body = row[11:]
    require_types(_TYPES, row)
    path = "" if parent is None or name is None else unescape_text(parent + name)
    title_text = unescape_text(title or "")
    if type == STARTED:
        return StepStarted(
            path, unpacking.string(kind or 0), title_text, attempt or 0, position or 0
        )
    if type == FINISHED:
        return StepFinished(
            path,
            unpacking.string(kind or 0),
            title_text,
            unpacking.string(fingerprint or 0),
            _outcome(row, unpacking),
            duration or 0.0,
            position or 0,
            bool(replayed),
            _to_usage(usage),
            _to_pending_hooks(pending_hooks, unpacking),
        )
    value = _unpack_value(body, unpacking)
    if type == RETRYING:
        failure = _to_failure(value)
        return StepRetrying(
            path, attempt or 0, failure, duration or 0.0, position or 0, _to_usage(usage)
        )
    if type == RUN_STARTED:
        run, flow, file, project, resumed, phases = value
        counts = tuple((phase, count) for phase, count in require_shape(phases, is_phases))
        for text in (run, flow, file, project):
            require_shape(text, is_text)
        return RunStarted(run, flow, file, project, bool(resumed), counts)
    if type == RUN_ENDED:
        failed, result, facts = value
        run_failure = None if failed is None else _to_failure(failed)
        return RunEnded(_to_status(title), run_failure, result, require_shape(facts, is_map))
    if type == INVALIDATED:
        return StepInvalidated(path, require_shape(value, is_text), below=row[10] != ALONE)
    if type == COUNTED:
        return ItemsCounted(path, _to_total(value))
    if type == NOTE:
        return _to_note(path, value)
    raise ValueError(f"no event has the type {type}")


_NUMBER: Final = (int, float)
_TEXT: Final = (str, None)
_WHOLE: Final = (int, None)
_BODY: Final = (str, bytes, None)
_TYPES: Final = (
    _NUMBER, (int,), _TEXT, _TEXT, _WHOLE, _TEXT, _WHOLE, _WHOLE, _WHOLE, (*_NUMBER, None), _WHOLE, _WHOLE,
    _TEXT, _BODY, _BODY,
)  # fmt: skip
"""Of each column; SQLite accepts any type in any column, so rows are checked."""
MOST_ITEMS: Final = 1 << 27
"""The limit for items of one map: a bitmap of this size fits into memory."""


def _to_total(value: Json) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("no number of items")
    return value


def _to_failure(value: Json) -> Failure:
    failure = Failure(**require_shape(value, is_failure))
    if failure.exit_code is not None and type(failure.exit_code) is not int:
        raise ValueError("no exit code")
    return failure


def _to_usage(text: str | None) -> Usage | None:
    return None if text is None else require_shape(decode_json(text), is_usage)


def to_usage(text: str | None, where: str) -> Usage | None:
    try:
        return _to_usage(text)
    except MISREAD as error:
        raise damage_error(where) from error


def _from_pending_hooks(hooks: PendingHooks) -> list[Json]:
    """The names of the hooks, then their event. A name inside a list: its decision does not
    count.
    """
    return [
        *([name] if name in hooks.unjudged else name for name in hooks.to),
        dict(hooks.variables),
    ]


def _to_pending_hooks(body: str | bytes | None, unpacking: Unpacking) -> PendingHooks | None:
    if body is None:
        return None
    *to, event = _unpack_value(body, unpacking)
    names = tuple(require_shape(one if isinstance(one, str) else one[0], is_text) for one in to)
    return PendingHooks(
        names, require_shape(event, is_map), tuple(one[0] for one in to if not isinstance(one, str))
    )


def _to_note(path: str, value: Json) -> Note:
    if isinstance(value, dict):
        return Note(path, require_shape(value["warning"], is_text), warning=True)
    return Note(path, require_shape(value, is_text))


def _to_status(title: str | None) -> Status:
    match title:
        case "running" | "done" | "failed" | "interrupted":
            return title
    raise ValueError("no status of a run")


BriefEnd: TypeAlias = "tuple[int, float, str, str, str, float]"
"""The end of a step that succeeded: number, time, path, kind, title, duration. A journal may have
very many, so it is a tuple.
"""


def to_brief_end(row: Sequence[Any], unpacking: Unpacking) -> BriefEnd:
    """Return the end of a step that succeeded, without its value; JournalError if the row is
    damaged.
    """
    number, _, at, parent, name, kind, title, duration = row
    try:
        return (
            number,
            at + 0.0,
            unescape_text(parent + name),
            unpacking.string(kind),
            unescape_text(title),
            duration + 0.0,
        )
    except MISREAD as error:
        raise damage_error(unpacking.where) from error


def to_event_record(number: int, row: Row, unpacking: Unpacking) -> EventRecord:
    """Return the event record of a row; JournalError if the row is damaged."""
    try:
        return EventRecord(number, row[0], to_event(row, unpacking))
    except MISREAD as error:
        raise damage_error(unpacking.where) from error


def to_step_record(number: int, row: Row, unpacking: Unpacking) -> StepRecord:
    """Return the record of a finished step; JournalError if the row is damaged."""
    try:
        return _make_record(number, row, unpacking)
    except MISREAD as error:
        raise damage_error(unpacking.where) from error


def _make_record(number: int, row: Row, unpacking: Unpacking) -> StepRecord:
    _, _, parent, name, _, title, position, _, fingerprint, duration, *_ = row
    usage, pending_hooks = row[12:14]
    require_types(_TYPES, row)
    return StepRecord(
        unescape_text(f"{parent}{name}"),
        unpacking.string(fingerprint or 0),
        _outcome(row, unpacking),
        position or 0,
        duration or 0.0,
        unescape_text(title or ""),
        _to_usage(usage),
        _to_pending_hooks(pending_hooks, unpacking),
        number,
    )


def _outcome(row: Row, unpacking: Unpacking) -> Outcome:
    status, value = row[10], _unpack_value(row[-1], unpacking)
    if status == DONE:
        return Succeeded(value)
    if status == FAILED:
        return Failed(_to_failure(value))
    if status == SKIPPED:
        return Skipped(require_shape(value, is_text))
    raise ValueError(f"no step has the status {status}")


def _unpack_value(body: str | bytes | None, unpacking: Unpacking) -> Json:
    if body is None:
        return None
    if isinstance(body, str):
        return decode_json(body)
    if len(body) == DIGEST_BYTES:
        return decode_json(unpacking.get_blob(body.hex()))
    whole = decode_json(body)  # in a list, because the value itself may be one of the texts
    for keys, name in whole.pop():
        text = unpacking.get_blob(require_shape(name, is_text)).decode("utf-8", "surrogatepass")
        _put(whole, [0, *keys], text)
    return whole[0]


def _put(value: Json, keys: list[Any], text: str) -> None:
    for key in keys[:-1]:
        value = value[key]
    value[keys[-1]] = text


# ── text ─────────────────────────────────────────────────────────────────


def split(path: str) -> tuple[str, str]:
    """The columns `parent` and `name` of a path."""
    stored = escape_text(path)
    cut = stored.rfind("/") + 1
    return stored[:cut], stored[cut:]


def escape_text(text: str) -> str:
    """A text that SQLite can store: NUL and lone surrogates become escapes like \\udc80."""
    if text.isascii() and "\\" not in text and "\0" not in text:
        return text
    doubled = text.replace("\\", "\\\\").replace("\0", "\\u0000")
    return doubled.encode("utf-8", "backslashreplace").decode("utf-8")


_ESCAPE: Final = lazy_pattern(r"\\(\\|u[0-9a-f]{4})")


def unescape_text(stored: str) -> str:
    if "\\" not in stored:
        return stored
    return _ESCAPE.sub(
        lambda found: "\\" if found[1] == "\\" else chr(int(found[1][1:], 16)), stored
    )
