"""How an event looks as a row of the journal, and back.

A path is kept in two parts: what comes before its last `/`, with that `/`, and
its name; so the steps directly below a path are those with one first part.
Texts that come back often (kinds, fingerprints) are numbers of words.  What has
no column of its own is JSON in `body`; if that is large, each large text of it is a
file, and `body` says in bytes which; without such texts, `body` is the digest of the file
that holds all of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from plait.adapters.store.shapes import (
    MISREAD,
    damage_error,
    decode_json,
    is_failure,
    is_map,
    is_phases,
    is_text,
    is_used,
    require_shape,
    require_types,
)
from plait.core.errors import InternalError
from plait.core.hints import Any, Final, TypeAlias
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
    StepRenamed,
    StepRetrying,
    StepStarted,
    Usage,
)
from plait.engine.journal import StepRecord
from plait.engine.outcome import Failed, Failure, Outcome, Skipped, Succeeded

LARGE: Final = 32 * 1024
"""Characters of JSON beyond which a body, or each large text in it, is a file of its own."""
DIGEST_BYTES: Final = 32
"""What stands for a body that is a file; a body whose texts are files is longer."""

RUN_STARTED, STARTED, RETRYING, FINISHED, COUNTED, FORGOTTEN, NOTED, RUN_ENDED = range(8)
EVENT_NAMES: Final = (
    "run started",
    "started",
    "retrying",
    "finished",
    "counted",
    "forgotten",
    "noted",
    "run ended",
)
ALONE: Final = 1
"""The status of what was forgotten, if what is below it was not."""
DONE, FAILED, SKIPPED = range(3)
MARKED: Final = frozenset([RUN_STARTED, RETRYING, FORGOTTEN, NOTED, RUN_ENDED])
MAP: Final = "map"
"""The part of a run that may have a million items."""
IS_MARKED: Final = (
    f"(what IN {tuple(sorted(MARKED))} OR what = {FINISHED} AND status = {FAILED} OR parent = '' "
    f"OR parent = '{MAP}/' AND substr(name, 1, 5) <> 'item:')"
)
"""Events that are looked for among all others; there are few of them: what failed, and what is not
inside parts, or in the map and yet not of an item."""
SOMETHING_USED: Final = "something used up"
"""The word that a journal has if one of its events says so: an index would cost all others too
much.
"""
STATUS_NAMES: Final = ("done", "failed", "skipped")

COLUMNS: Final = (
    "at, what, parent, name, kind, title, place, attempt, fingerprint, duration, status, replayed, "
    "used, "
    "owed, body"
)
Row: TypeAlias = tuple[
    float,  # at
    int,  # what
    str | None,  # parent
    str | None,  # name
    int | None,  # kind: a word
    str | None,  # title; of a run that ended, how
    int | None,  # place
    int | None,  # attempt
    int | None,  # fingerprint: a word
    float | None,  # duration, or delay
    int | None,  # status
    bool | None,  # replayed
    str | None,  # used
    str | bytes | None,  # owed
    str | bytes | None,  # body
]


@dataclass(frozen=True, slots=True)
class Packing:
    """What an event needs of the journal that it goes to."""

    words: Mapping[str, int]
    """The numbers of words that are known."""
    learned: Callable[[str], int]
    """The number of a word that is not."""
    keep: Callable[[bytes], str]


@dataclass(frozen=True, slots=True)
class Unpacking:
    """What a row needs of the journal that it comes from."""

    word: Callable[[int], str]
    kept: Callable[[str], bytes]
    where: str = ""
    """The file of the journal, for errors."""


_BELOW_MAP: Final = f"{MAP}/"


def is_marked(row: Row) -> bool:
    """The same as `IS_MARKED`, of a row that is to be written."""
    what, parent = row[1], row[2]
    if what in MARKED or (what == FINISHED and row[10] == FAILED) or parent == "":
        return True
    return parent == _BELOW_MAP and (name := row[3]) is not None and not name.startswith("item:")


# ── from events ──────────────────────────────────────────────────────────


def to_row(event: Event, at: float, packing: Packing) -> Row:
    match event:
        case StepFinished():
            parent, name = split(event.path)
            words, fingerprint = packing.words, event.fingerprint
            status, value = _status(event.outcome)
            return (
                at,
                FINISHED,
                parent,
                name,
                words.get(event.kind) or packing.learned(event.kind),
                escape_text(event.title),
                event.order,
                None,
                words.get(fingerprint) or packing.learned(fingerprint),
                event.duration,
                status,
                event.replayed or None,
                None if event.used is None else _pack_usage(event.used, packing),
                None if event.owed is None else _pack_value(_from_owed(event.owed), packing),
                _pack_value(value, packing),
            )
        case StepStarted():
            parent, name = split(event.path)
            kind = packing.words.get(event.kind) or packing.learned(event.kind)
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
            row = _plain_row(at, FORGOTTEN, event.path, event.why, packing)
            return row if event.below else (*row[:10], ALONE, *row[11:])
        case Note():
            said: Json = {"warning": event.message} if event.warning else event.message
            return _plain_row(at, NOTED, event.path, said, packing)
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
        case StepRenamed() | ModelText() | ItemsReplayed() | EarlierUsage():
            raise InternalError("this is told, and not recorded", code="journal")


def _plain_row(
    at: float,
    what: int,
    path: str | None,
    said: Json,
    packing: Packing,
    *,
    title: str | None = None,
) -> Row:
    parent, name = (None, None) if path is None else split(path)
    body = _pack_value(said, packing)
    return (
        at,
        what,
        parent,
        name,
        None,
        title,
        None,
        None,
        None,
        None,
        None,
        None,
        None,
        None,
        body,
    )


def _status(outcome: Outcome) -> tuple[int, Json]:
    match outcome:
        case Succeeded(value):
            return DONE, value
        case Failed(failure):
            return FAILED, failure.record()
        case Skipped(why):
            return SKIPPED, why


def _pack_usage(used: Usage, packing: Packing) -> str:
    if SOMETHING_USED not in packing.words:
        packing.learned(SOMETHING_USED)
    return to_json(used)


def _pack_value(value: Json, packing: Packing) -> str | bytes | None:
    if value is None:
        return None
    body = to_json(value)
    if len(body) <= LARGE:
        return body
    texts: list[tuple[_Place, str]] = []
    rest = _without_texts(value, (), texts)
    if not texts or len(to_json(rest)) > LARGE:
        return bytes.fromhex(packing.keep(body.encode("ascii")))
    # So the output of a step is on the disk once, though it is also that of the list which it ends.
    kept = [
        [list(place), packing.keep(text.encode("utf-8", "surrogatepass"))] for place, text in texts
    ]
    return to_json([rest, kept]).encode("ascii")


_Place: TypeAlias = tuple[str | int, ...]


def _without_texts(value: Json, place: _Place, texts: list[tuple[_Place, str]]) -> Json:
    """The value with null for each large text; `texts` gets them, and where they were."""
    match value:
        case str() if len(value) > LARGE:
            texts.append((place, value))
            return None
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _without_texts(one, (*place, key), texts) for key, one in value.items()}
        case list():
            return [_without_texts(one, (*place, at), texts) for at, one in enumerate(value)]
    return value


def _encoder() -> Callable[[Json], str]:
    """One for all bodies: `JSONEncoder.encode` makes one for each, which takes longer than a small
    body.
    """
    known = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":"))
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return known.encode
    quoted = json.encoder.encode_basestring_ascii
    pieces = make(None, known.default, quoted, None, ":", ",", False, False, False)
    return lambda value: "".join(pieces(value, 0))


_encode: Final = _encoder()


def to_json(value: Json) -> str:
    """JSON in ASCII, so that also text which is no Unicode (bytes of a process) comes back as it
    was.
    """
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError):
        return _encode(json.loads(json_text(value)))  # masks a secret, and refuses what is no JSON


# ── to events ────────────────────────────────────────────────────────────


def to_event(row: Row, unpacking: Unpacking) -> Event:
    """ValueError, or one of the others of `MISREAD`, for a row that no event looks like."""
    (
        _,
        what,
        parent,
        name,
        kind,
        title,
        place,
        attempt,
        fingerprint,
        duration,
        _,
        replayed,
        used,
        owed,
        _,
    ) = row
    require_types(_TYPES, row)
    path = "" if parent is None or name is None else unescape_text(parent + name)
    shown = unescape_text(title or "")
    if what == STARTED:
        return StepStarted(path, unpacking.word(kind or 0), shown, attempt or 0, place or 0)
    if what == FINISHED:
        known = unpacking.word(kind or 0), shown, unpacking.word(fingerprint or 0)
        ended = _outcome(row, unpacking), duration or 0.0, place or 0
        rest = bool(replayed), _to_used(used), _to_owed(owed, unpacking)
        return StepFinished(path, *known, *ended, *rest)
    said = _unpack_value(row[-1], unpacking)
    if what == RETRYING:
        failed = _failure(said), duration or 0.0, place or 0
        return StepRetrying(path, attempt or 0, *failed, _to_used(used))
    if what == RUN_STARTED:
        run, flow, file, project, resumed, phases = said
        parts = tuple((part, count) for part, count in require_shape(phases, is_phases))
        for text in (run, flow, file, project):
            require_shape(text, is_text)
        return RunStarted(run, flow, file, project, bool(resumed), parts)
    if what == RUN_ENDED:
        failure, value, facts = said
        ended_by = None if failure is None else _failure(failure)
        return RunEnded(_ending(title), ended_by, value, require_shape(facts, is_map))
    if what == FORGOTTEN:
        return StepInvalidated(path, require_shape(said, is_text), below=row[10] != ALONE)
    if what == COUNTED:
        return ItemsCounted(path, _total(said))
    if what == NOTED:
        return _to_noted(path, said)
    raise ValueError(f"no event has the number {what}")


_NUMBER: Final = (int, float)
_TEXT: Final = (str, None)
_WHOLE: Final = (int, None)
_BODY: Final = (str, bytes, None)
_TYPES: Final = (
    _NUMBER, (int,), _TEXT, _TEXT, _WHOLE, _TEXT, _WHOLE, _WHOLE, _WHOLE, (*_NUMBER, None), _WHOLE, _WHOLE,
    _TEXT, _BODY, _BODY,
)  # fmt: skip
"""Of each column, as SQLite may give it back: it takes anything in any of them."""
MOST_ITEMS: Final = 1 << 27
"""Items of one map, and so the number of the last of them: a list of so many marks still fits into
memory.
"""


def _total(said: Json) -> int:
    if type(said) is not int or said < 0:
        raise ValueError("no number of items")
    return said


def _failure(said: Json) -> Failure:
    failure = Failure(**require_shape(said, is_failure))
    if failure.exit_code is not None and type(failure.exit_code) is not int:
        raise ValueError("no exit code")
    return failure


def _to_used(used: str | None) -> Usage | None:
    return None if used is None else require_shape(decode_json(used), is_used)


def to_used(used: str | None, where: str) -> Usage | None:
    try:
        return _to_used(used)
    except MISREAD as error:
        raise damage_error(where) from error


def _from_owed(owed: PendingHooks) -> list[Json]:
    """Names, in a list of its own each that is not judged, and at the end what they are told."""
    return [*([name] if name in owed.unjudged else name for name in owed.to), dict(owed.told)]


def _to_owed(owed: str | bytes | None, unpacking: Unpacking) -> PendingHooks | None:
    if owed is None:
        return None
    *to, told = _unpack_value(owed, unpacking)
    names = tuple(require_shape(one if isinstance(one, str) else one[0], is_text) for one in to)
    return PendingHooks(
        names, require_shape(told, is_map), tuple(one[0] for one in to if not isinstance(one, str))
    )


def _to_noted(path: str, said: Json) -> Note:
    if isinstance(said, dict):
        return Note(path, require_shape(said["warning"], is_text), warning=True)
    return Note(path, require_shape(said, is_text))


def _ending(title: str | None) -> Status:
    match title:
        case "running" | "done" | "failed" | "interrupted":
            return title
    raise ValueError("no run ends so")


def to_stamped(number: int, row: Row, unpacking: Unpacking) -> EventRecord:
    """JournalError for a row that is damaged."""
    try:
        return EventRecord(number, row[0], to_event(row, unpacking))
    except MISREAD as error:
        raise damage_error(unpacking.where) from error


def to_recorded(number: int, row: Row, unpacking: Unpacking) -> StepRecord:
    """The same of the end of a step."""
    try:
        return _make_record(number, row, unpacking)
    except MISREAD as error:
        raise damage_error(unpacking.where) from error


def _make_record(number: int, row: Row, unpacking: Unpacking) -> StepRecord:
    _, _, parent, name, _, title, place, _, fingerprint, duration, _, _, used, owed, _ = row
    require_types(_TYPES, row)
    return StepRecord(
        unescape_text(f"{parent}{name}"),
        unpacking.word(fingerprint or 0),
        _outcome(row, unpacking),
        place or 0,
        duration or 0.0,
        unescape_text(title or ""),
        _to_used(used),
        _to_owed(owed, unpacking),
        number,
    )


def _outcome(row: Row, unpacking: Unpacking) -> Outcome:
    status, said = row[10], _unpack_value(row[-1], unpacking)
    if status == DONE:
        return Succeeded(said)
    if status == FAILED:
        return Failed(_failure(said))
    if status == SKIPPED:
        return Skipped(require_shape(said, is_text))
    raise ValueError(f"no step ends as {status}")


def _unpack_value(body: str | bytes | None, unpacking: Unpacking) -> Json:
    if body is None:
        return None
    if isinstance(body, str):
        return decode_json(body)
    if len(body) == DIGEST_BYTES:
        return decode_json(unpacking.kept(body.hex()))
    whole = decode_json(body)  # a list, so that the value itself can be one of the texts
    for place, name in whole.pop():
        _put(
            whole,
            [0, *place],
            unpacking.kept(require_shape(name, is_text)).decode("utf-8", "surrogatepass"),
        )
    return whole[0]


def _put(value: Json, place: list[Any], text: str) -> None:
    for step in place[:-1]:
        value = value[step]
    value[place[-1]] = text


# ── text ─────────────────────────────────────────────────────────────────


def split(path: str) -> tuple[str, str]:
    """What comes before the name, with its `/`, and the name, both as they are stored."""
    stored = escape_text(path)
    cut = stored.rfind("/") + 1
    return stored[:cut], stored[cut:]


def escape_text(text: str) -> str:
    """A text as SQLite can hold it: a backslash tells halves of characters from real ones."""
    if text.isascii() and "\\" not in text and "\0" not in text:
        return text
    doubled = text.replace("\\", "\\\\").replace("\0", "\\u0000")
    return doubled.encode("utf-8", "backslashreplace").decode("utf-8")


_ESCAPE: Final = re.compile(r"\\(\\|u[0-9a-f]{4})")


def unescape_text(stored: str) -> str:
    if "\\" not in stored:
        return stored
    return _ESCAPE.sub(
        lambda found: "\\" if found[1] == "\\" else chr(int(found[1][1:], 16)), stored
    )
