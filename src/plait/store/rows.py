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

from plait.engine.events import (
    Event,
    ItemsRemembered,
    Noted,
    Owed,
    RunEnded,
    RunStarted,
    Spoken,
    Status,
    StepCounted,
    StepFinished,
    StepForgotten,
    StepRetrying,
    StepStarted,
    StepTitled,
    Used,
    UsedBefore,
)
from plait.engine.journal import Recorded, Stamped
from plait.engine.outcome import Done, Failed, Failure, Outcome, Skipped
from plait.errors import InternalError
from plait.hints import Any, Final, TypeAlias
from plait.records import dataclass
from plait.values import Json, json_text

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
"""Events that are looked for among all others; there are few of them: what failed, and what is not inside
parts, or in the map and yet not of an item."""
SOMETHING_USED: Final = "something used up"
"""The word that a journal has if one of its events says so: an index would cost all others too much."""
STATUS_NAMES: Final = ("done", "failed", "skipped")

COLUMNS: Final = (
    "at, what, parent, name, kind, title, place, attempt, fingerprint, duration, status, replayed, used, "
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
                storable(event.title),
                event.order,
                None,
                words.get(fingerprint) or packing.learned(fingerprint),
                event.duration,
                status,
                event.replayed or None,
                None if event.used is None else _packed_used(event.used, packing),
                None if event.owed is None else _packed(_from_owed(event.owed), packing),
                _packed(value, packing),
            )
        case StepStarted():
            parent, name = split(event.path)
            kind = packing.words.get(event.kind) or packing.learned(event.kind)
            return (at, STARTED, parent, name, kind, storable(event.title), event.order, event.attempt,
                    None, None, None, None, None, None, None)  # fmt: skip
        case StepRetrying():
            parent, name = split(event.path)
            used = None if event.used is None else _packed_used(event.used, packing)
            body = _packed(event.failure.record(), packing)
            return (at, RETRYING, parent, name, None, None, event.of, event.attempt,
                    None, event.delay, None, None, used, None, body)  # fmt: skip
        case StepCounted():
            return _plain_row(at, COUNTED, event.path, event.total, packing)
        case StepForgotten():
            row = _plain_row(at, FORGOTTEN, event.path, event.why, packing)
            return row if event.below else (*row[:10], ALONE, *row[11:])
        case Noted():
            return _plain_row(at, NOTED, event.path, event.message, packing)
        case RunStarted():
            said = [event.run, event.flow, event.file, event.project, event.resumed, event.phases]
            return _plain_row(at, RUN_STARTED, None, said, packing)
        case RunEnded():
            failure = None if event.failure is None else event.failure.record()
            said = [failure, event.value, event.facts]
            return _plain_row(at, RUN_ENDED, None, said, packing, title=event.status)
        case StepTitled() | Spoken() | ItemsRemembered() | UsedBefore():
            raise InternalError("this is told, and not recorded", code="journal")


def _plain_row(
    at: float, what: int, path: str | None, said: Json, packing: Packing, *, title: str | None = None
) -> Row:
    parent, name = (None, None) if path is None else split(path)
    body = _packed(said, packing)
    return (at, what, parent, name, None, title, None, None, None, None, None, None, None, None, body)


def _status(outcome: Outcome) -> tuple[int, Json]:
    match outcome:
        case Done(value):
            return DONE, value
        case Failed(failure):
            return FAILED, failure.record()
        case Skipped(why):
            return SKIPPED, why


def _packed_used(used: Used, packing: Packing) -> str:
    if SOMETHING_USED not in packing.words:
        packing.learned(SOMETHING_USED)
    return to_json(used)


def _packed(value: Json, packing: Packing) -> str | bytes | None:
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
    kept = [[list(place), packing.keep(text.encode("utf-8", "surrogatepass"))] for place, text in texts]
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
    """One for all bodies: `JSONEncoder.encode` makes one for each, which takes longer than a small body."""
    known = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":"))
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return known.encode
    quoted = json.encoder.encode_basestring_ascii
    pieces = make(None, known.default, quoted, None, ":", ",", False, False, False)
    return lambda value: "".join(pieces(value, 0))


_encode: Final = _encoder()


def to_json(value: Json) -> str:
    """JSON in ASCII, so that also text which is no Unicode (bytes of a process) comes back as it was."""
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError):
        return _encode(json.loads(json_text(value)))  # masks a secret, and refuses what is no JSON


# ── to events ────────────────────────────────────────────────────────────


def to_event(row: Row, unpacking: Unpacking) -> Event:
    _, what, parent, name, kind, title, place, attempt, fingerprint, duration, _, replayed, used, owed, _ = (
        row
    )
    path = "" if parent is None or name is None else original(parent + name)
    shown = original(title or "")
    if what == STARTED:
        return StepStarted(path, unpacking.word(kind or 0), shown, attempt or 0, place or 0)
    if what == FINISHED:
        known = unpacking.word(kind or 0), shown, unpacking.word(fingerprint or 0)
        ended = _outcome(row, unpacking), duration or 0.0, place or 0
        rest = bool(replayed), to_used(used), _to_owed(owed, unpacking)
        return StepFinished(path, *known, *ended, *rest)
    said = _unpacked(row[-1], unpacking)
    if what == RETRYING:
        failed = Failure(**said), duration or 0.0, place or 0
        return StepRetrying(path, attempt or 0, *failed, to_used(used))
    if what == RUN_STARTED:
        run, flow, file, project, resumed, phases = said
        parts = tuple((part, count) for part, count in phases)
        return RunStarted(run, flow, file, project, resumed, parts)
    if what == RUN_ENDED:
        failure, value, facts = said
        return RunEnded(_ending(title), None if failure is None else Failure(**failure), value, facts)
    if what == FORGOTTEN:
        return StepForgotten(path, said, below=row[10] != ALONE)
    if what in _PLAIN:
        return _PLAIN[what](path, said)
    raise InternalError(f"no event has the number {what}", code="journal")


def to_used(used: str | None) -> Used | None:
    return None if used is None else json.loads(used)


def _from_owed(owed: Owed) -> list[Json]:
    """Names, in a list of its own each that is not judged, and at the end what they are told."""
    return [*([name] if name in owed.unjudged else name for name in owed.to), dict(owed.told)]


def _to_owed(owed: str | bytes | None, unpacking: Unpacking) -> Owed | None:
    if owed is None:
        return None
    *to, told = _unpacked(owed, unpacking)
    names = tuple(one if isinstance(one, str) else one[0] for one in to)
    return Owed(names, told, tuple(one[0] for one in to if not isinstance(one, str)))


_PLAIN: Final[dict[int, Callable[[str, Json], Event]]] = {
    COUNTED: StepCounted,
    NOTED: Noted,
}


def _ending(title: str | None) -> Status:
    match title:
        case "running" | "done" | "failed" | "interrupted":
            return title
    raise InternalError("no run ends so", code="journal")


def to_stamped(number: int, row: Row, unpacking: Unpacking) -> Stamped:
    return Stamped(number, row[0], to_event(row, unpacking))


def to_recorded(number: int, row: Row, unpacking: Unpacking) -> Recorded:
    _, _, parent, name, _, title, place, _, fingerprint, duration, _, _, used, owed, _ = row
    return Recorded(
        original(f"{parent}{name}"),
        unpacking.word(fingerprint or 0),
        _outcome(row, unpacking),
        place or 0,
        duration or 0.0,
        original(title or ""),
        to_used(used),
        _to_owed(owed, unpacking),
        number,
    )


def _outcome(row: Row, unpacking: Unpacking) -> Outcome:
    status, said = row[10], _unpacked(row[-1], unpacking)
    if status == DONE:
        return Done(said)
    return Failed(Failure(**said)) if status == FAILED else Skipped(said)


def _unpacked(body: str | bytes | None, unpacking: Unpacking) -> Json:
    if body is None:
        return None
    if isinstance(body, str):
        return json.loads(body)
    if len(body) == DIGEST_BYTES:
        return json.loads(unpacking.kept(body.hex()))
    whole = json.loads(body)  # a list, so that the value itself can be one of the texts
    for place, name in whole.pop():
        _put(whole, [0, *place], unpacking.kept(name).decode("utf-8", "surrogatepass"))
    return whole[0]


def _put(value: Json, place: list[Any], text: str) -> None:
    for step in place[:-1]:
        value = value[step]
    value[place[-1]] = text


# ── text ─────────────────────────────────────────────────────────────────


def split(path: str) -> tuple[str, str]:
    """What comes before the name, with its `/`, and the name, both as they are stored."""
    stored = storable(path)
    cut = stored.rfind("/") + 1
    return stored[:cut], stored[cut:]


def storable(text: str) -> str:
    """A text as SQLite can hold it: a backslash tells halves of characters from real ones."""
    if text.isascii() and "\\" not in text and "\0" not in text:
        return text
    doubled = text.replace("\\", "\\\\").replace("\0", "\\u0000")
    return doubled.encode("utf-8", "backslashreplace").decode("utf-8")


_ESCAPE: Final = re.compile(r"\\(\\|u[0-9a-f]{4})")


def original(stored: str) -> str:
    if "\\" not in stored:
        return stored
    return _ESCAPE.sub(lambda found: "\\" if found[1] == "\\" else chr(int(found[1][1:], 16)), stored)
