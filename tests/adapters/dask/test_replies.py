"""Whatever a worker sends back has no secret in it, of whatever kind it is."""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from adapters.dask.test_backend import Played, done
from plait import __version__
from plait.adapters.dask import protocol
from plait.adapters.dask.replies import IDENTITIES, RemoteError, mask_reply
from plait.core.errors import PlaitError
from plait.core.masking import Masker
from plait.core.records import field_names
from plait.engine.events import Event, PendingHooks, StepFinished
from plait.engine.outcome import Aborted, Failed, Failure, Outcome, Skipped, Succeeded

SECRET = "zz-very-secret-4711"
PRINTED = f"said {SECRET}"
mask = Masker([SECRET]).mask


def records(kind: Any) -> Iterator[Any]:
    """Records of this kind with the secret wherever a text may be, one for each form of each field."""
    fields = [name for name in field_names(kind) if name not in IDENTITIES]
    known = {name: "x" for name in field_names(kind) if name in IDENTITIES}
    forms = [list(values(str(kind.__annotations__[name]))) for name in fields]
    for given in itertools.zip_longest(*forms) if fields else [()]:
        filled = (form[0] if one is None else one for form, one in zip(forms, given, strict=True))
        yield kind(**known, **dict(zip(fields, filled, strict=True)))


def values(annotation: str) -> Iterator[Any]:
    """A type that is not known here is new: say what it may hold, and see that it is masked."""
    match annotation.removesuffix(" | None"):
        case "str":
            yield PRINTED
        case "Json" | "dict[str, Json]" | "Mapping[str, Json]":
            yield {SECRET: [PRINTED, {"deep": PRINTED}]}
            yield {
                "output": {SECRET: PRINTED},
                "captures": {"a": {SECRET: PRINTED}, "a:facts": {"stderr": PRINTED}},
            }
        case "int" | "float" | "bool":
            yield 1
        case "Usage":
            yield {"turns": 1.0}
        case "Mapping[str, Usage]":
            yield {PRINTED: {"turns": 1.0}}
        case "bytes":
            yield b"\1"
        case "tuple[tuple[str, int], ...]":
            yield ((PRINTED, 1),)
        case "tuple[SealedSecret, ...]":
            yield (protocol.SealedSecret(SECRET),)
        case "Failure":
            yield from records(Failure)
        case "PendingHooks":
            yield from records(PendingHooks)
        case "Versions":
            yield from records(protocol.Versions)
        case "Outcome":
            yield from every(Outcome)
        case "tuple[Event, ...]":
            yield tuple(every(Event))
        case "tuple[ItemCompleted | ItemStopped | RunLimitReached | ItemRefused, ...]":
            yield tuple(
                every(
                    protocol.ItemCompleted
                    | protocol.ItemStopped
                    | protocol.RunLimitReached
                    | protocol.ItemRefused
                )
            )
        case _:
            raise AssertionError(f"what may be in a field that is {annotation}?")


def every(union: Any) -> Iterator[Any]:
    for kind in get_args(union):
        yield from records(kind)


def shows_secret(value: object) -> bool:
    return SECRET.encode() in pickle.dumps(value)


ALL = [one for union in (protocol.Reply, Event, Outcome) for one in every(union)]


@pytest.mark.parametrize("sent", ALL, ids=lambda one: type(one).__name__)
def test_nothing_that_comes_back_shows_a_secret(sent: object) -> None:
    assert type(mask_reply(sent, mask)) is type(sent)
    assert not shows_secret(mask_reply(sent, mask))


def test_what_identifies_a_step_is_as_it_was() -> None:
    event = StepFinished("map/item:a", "item", PRINTED, "f", Succeeded(("t", 1)), 0.5, 7)
    assert mask_reply(event, mask) == StepFinished(
        "map/item:a", "item", "said ***", "f", Succeeded(("t", 1)), 0.5, 7
    )


NAMES = (
    "output",
    "captures",
    "stderr",
    "exit_code",
    "duration",
    "cut",
    "name",
    "success",
    "validation",
    "gaps",
)


@pytest.mark.parametrize(
    "secret", [*NAMES, "turns", "name:facts", "a gate", "exit", "code", "signal", "127"]
)
def test_names_that_plait_or_an_author_gave_are_as_they_were(secret: str) -> None:
    facts = {"stderr": "", "exit_code": 127, "success": False, "duration": 0.5}
    captures = {"name": [7], "name:facts": facts, "validation": {"status": 1, "gaps": {}}}
    value = {"output": 7, "stderr": "", "exit_code": 127, "duration": 0.5, "captures": captures}
    value["cut"] = {"output": 3, "stderr": 3}
    owed = PendingHooks(("a gate",), {}, ("a gate",))
    hidden = Masker([secret]).mask
    for outcome in (
        Succeeded(value),
        Failed(Failure("exit code 127: x", "exit", 127, value)),
        Failed(Failure("ended by signal 9", "signal", 9, value)),
        Skipped("exit code 127"),
    ):
        event = StepFinished("p", "shell", "", "f", outcome, 0.5, used={"turns": 1.0}, pending=owed)
        assert mask_reply(event, hidden) == event


def test_names_in_data_are_masked_as_they_are_where_the_run_is() -> None:
    value = {
        "output": {SECRET: 1, "output": 2},
        "captures": {"a": {SECRET: [{SECRET: 1}]}},
        SECRET: 3,
    }
    assert mask_reply(Succeeded(value), mask) == Succeeded(
        {"output": {"***": 1, "output": 2}, "captures": {"a": {"***": [{"***": 1}]}}, "***": 3}
    )


def test_what_a_program_says_after_how_it_ended_is_masked() -> None:
    reply = Failed(Failure(f"exit code 1: {PRINTED}\n{PRINTED}"))
    assert mask_reply(reply, mask) == Failed(Failure("exit code 1: said ***\nsaid ***"))


@pytest.mark.parametrize(
    "error",
    [
        OSError(2, PRINTED, PRINTED),
        ImportError(PRINTED, name=PRINTED),
        RuntimeError(PRINTED),
        KeyError(PRINTED),
    ],
)
def test_an_error_is_what_it_says_without_secrets(error: Exception) -> None:
    raised = mask_reply(error, mask)
    assert isinstance(raised, RemoteError)
    assert raised.is_a(type(error))
    assert "***" in raised.message
    assert not shows_secret(raised)


REPLIES = list(
    every(
        protocol.ItemCompleted
        | protocol.RunLimitReached
        | protocol.ItemRefused
        | protocol.VersionMismatch
    )
)


@pytest.mark.parametrize("reply", REPLIES, ids=lambda one: type(one).__name__)
def test_no_journal_no_result_and_no_error_gets_a_secret_from_a_worker(reply: object) -> None:
    played = Played(lambda key, _: reply if key == "3" else done(key))
    played.hide(mask)
    raised: list[str] = []
    try:
        played.go()
    except PlaitError as error:
        raised = [str(error)]
    except Aborted as aborted:
        raised = [str(aborted), repr(aborted.failure), repr(aborted.failure.output)]
    assert not shows_secret([one.event for one in played.journal.events()])
    assert not shows_secret(played.ended)
    assert not shows_secret(raised)
    assert raised or "3" in dict(played.ended)


@pytest.mark.parametrize("error", [RuntimeError(PRINTED), ImportError(PRINTED, name="attrs")])
def test_a_worker_that_raises_when_it_is_greeted_is_reported_without_secrets(
    error: Exception,
) -> None:
    played = Played(lambda key, _: done(key))
    played.hide(mask)
    played.scheduler.run = lambda *_, workers, **__: dict.fromkeys(workers or ["w"], error)  # type: ignore[method-assign]
    with pytest.raises(PlaitError, match=r"said \*\*\*"):
        played.go()


@pytest.mark.parametrize(
    "secret", ["0", "1", "3", ".", sys.version.split()[0], "plait", __version__, "None"]
)
def test_a_secret_in_a_version_stops_no_run(secret: str) -> None:
    played = Played(lambda key, _: done(key))
    played.hide(Masker([secret]).mask)
    played.go()
    assert len(played.ended) == 20


def test_another_version_is_reported_without_secrets() -> None:
    played = Played(lambda key, _: done(key))
    played.hide(Masker(["very.secret.4711"]).mask)
    played.scheduler.run = lambda *_, workers, **__: dict.fromkeys(  # type: ignore[method-assign]
        workers or ["w"], "very.secret.4711"
    )
    with pytest.raises(PlaitError, match=r"has Plait \*\*\* with Python \*\*\*\n"):
        played.go()
