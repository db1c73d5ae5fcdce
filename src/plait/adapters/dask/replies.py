"""All that comes back from workers comes through here, and has no secret in it afterwards.

A worker masks all secrets before a step sees them.  What is made there by Dask, or by a part of a
worker that knows nothing of the run, is masked here; so is a secret that the run has learnt since
it sent the parcel.

What is masked is what would be where the run is: texts, and the keys of data that a program gave.
Names that Plait or the author gave stay as they are, even if a secret is written like one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from plait.adapters.dask import protocol
from plait.adapters.dask.protocol import SealedSecret
from plait.core.errors import (
    GuardianError,
    InputError,
    InternalError,
    MachineError,
    PlaitError,
    ProcessError,
    TrustError,
    format_names,
)
from plait.core.hints import Any, Final
from plait.core.masking import mask_value
from plait.core.records import dataclass, field_names, is_record, replace
from plait.core.values import Json
from plait.engine.event_bus import Mask
from plait.engine.outcome import Failure, Skipped, Succeeded
from plait.template.program import FACTS

IDENTITIES: Final = frozenset(
    {"path", "kind", "fingerprint", "code", "status", "to", "unjudged", "run", "used"}
)
"""Fields that say which step, hook or kind it is, here as there: masked, they would say another."""
OURS: Final = frozenset({
    # how a step ended, and the facts beside what it captured
    "output", "stdout", "stderr", "exit_code", "success", "duration", "truncated", "cut", "misread",
    "output_file", "stderr_file", "output_lost", "stderr_lost", "captures", "changes", "facts",
    "status", "said", "count", "items",
    # a validation
    "completion", "completion_percentage", "implemented", "missing", "missing_count", "gaps",
    "attempt", "attempt_number", "raw_output",
    # a graph, its nodes and its calls
    "state", "steps", "errors", "error", "next", "edge", "assign", "tool", "kind", "failed",
    "total", "results",
})  # fmt: skip
"""Keys of what a step gives.  Any other may be one of a tool: some steps give its data as it is."""


@dataclass(frozen=True, slots=True)
class RemoteError:
    """What a worker, or Dask in its place, raised where there should have been an answer."""

    error: type[BaseException]
    said: str
    module: str | None = None
    """The one that could not be imported, if it was that."""

    def is_a(self, *types: type[BaseException]) -> bool:
        return issubclass(self.error, types)


def mask_reply(value: Any, mask: Mask) -> Any:
    """The same without secrets; an error as what it says."""
    if isinstance(value, BaseException):
        value = RemoteError(type(value), str(value), getattr(value, "name", None))
    return value if mask is str else _mask_tree(value, mask)


def _mask_tree(value: Any, mask: Mask) -> Any:
    # By what it is made of and not by what it is: so no kind of reply, event or outcome can be
    # forgotten.
    match value:
        case Succeeded(ended):
            return Succeeded(_ending(ended, mask))
        case Failure():
            message, output = _message(value.message, mask), _ending(value.output, mask)
            return replace(value, message=message, output=output)
        case Skipped(why):
            return Skipped(_message(why, mask))
        case SealedSecret():
            return SealedSecret("***")  # whoever has to know it has learnt it by now
        case tuple():
            return tuple(_mask_tree(one, mask) for one in value)
    if is_record(value):
        others = [name for name in field_names(type(value)) if name not in IDENTITIES]
        return replace(value, **{name: _mask_tree(getattr(value, name), mask) for name in others})
    return mask_value(value, mask)


def _ending(value: Json, mask: Mask) -> Json:
    """How a step ended."""
    return _ours(value, mask, _part) if isinstance(value, Mapping) else _mask_tree(value, mask)


def _part(name: str, value: Json, mask: Mask) -> Json:
    match name, value:
        case "cut", Mapping():
            return _ours(value, mask)
        case "captures", Mapping():
            return {name: _mask_capture(name, one, mask) for name, one in value.items()}
    return mask_value(value, mask)


def _mask_capture(name: str, value: Json, mask: Mask) -> Json:
    is_ours = name == "validation" or name.endswith(FACTS)
    return _ours(value, mask) if is_ours and isinstance(value, Mapping) else mask_value(value, mask)


def _data(_: str, value: Json, mask: Mask) -> Json:
    return mask_value(value, mask)


def _ours(
    value: Mapping[str, Json], mask: Mask, part: Callable[[str, Json, Mask], Json] = _data
) -> dict[str, Json]:
    """A map whose keys we know; `part` masks what is at each."""
    return {
        (name if name in OURS else mask(name)): part(name, one, mask) for name, one in value.items()
    }


_HOW: Final = re.compile(r"(?:exit code -?\d{1,3}|ended by signal \d{1,2})(?=: |$)")


def _message(text: str, mask: Mask) -> str:
    """How a process ended is for us to say; what follows are its own words."""
    how = _HOW.match(text)
    return mask(text) if how is None else how[0] + mask(text[how.end() :])


def require_same_versions(
    pythons: Mapping[str, object], plaits: Mapping[str, object], mask: Mask
) -> None:
    """Every worker has the Plait and the Python that we have.

    Both are as workers said them, and only what is told of them is masked: a secret may be in a
    version.
    """
    mine = protocol.own_versions()
    without = [worker for worker, said in plaits.items() if _is_missing(said)]
    if without:
        raise no_plait(without)
    broken = {
        worker: mask_reply(said, mask)
        for worker, said in plaits.items()
        if isinstance(said, RemoteError) and not said.is_a(OSError)  # it is gone, or comes again
    }
    if broken:
        raise unloadable(broken)
    # One that came or went between the two questions is asked again when it has an item.
    wrong = {
        worker: _versions(mask(plait), mask(python))
        for worker, plait in plaits.items()
        if isinstance(plait, str)
        and isinstance(python := pythons.get(worker), str)
        and _versions(plait, python) != str(mine)
    }
    if wrong:
        raise mismatch(wrong)


def _versions(plait: str, python: str) -> str:
    return f"Plait {plait} with Python {protocol.python_minor(python)}"


def no_plait(workers: list[str]) -> InputError:
    named = format_names([worker for worker in workers if worker][:5])
    return InputError(
        f"Plait is not installed on {'workers: ' + named if named else 'a worker'}",
        fix=f"install Plait {protocol.own_versions().plait} there, for the Python that runs the worker",
        code="worker-without-plait",
    )


def _is_missing(said: object) -> bool:
    return (
        isinstance(said, RemoteError) and said.is_a(ImportError) and said.module in (None, "plait")
    )


def unloadable(workers: Mapping[str, object]) -> InputError:
    """Plait is there, and fails before it could say anything itself."""
    told = "; ".join(
        f"{worker}: {_format_error(said)}" for worker, said in list(workers.items())[:5]
    )
    return InputError(
        f"Plait cannot be loaded on workers: {told}",
        fix="python -c 'import plait' there, with the Python that runs the worker, says more",
        code="worker-without-plait",
    )


def _format_error(said: object) -> str:
    kind, text = (said.error, said.said) if isinstance(said, RemoteError) else (type(said), said)
    return f"{kind.__name__}: {text}"


def mismatch(workers: Mapping[str, str]) -> InputError:
    said = "; ".join(
        f"{worker or 'a worker'} has {its}" for worker, its in list(workers.items())[:5]
    )
    mine = protocol.own_versions()
    return InputError(
        f"here is {mine}, and on the cluster it is another: {said}",
        fix=f"install Plait {mine.plait} for Python {mine.python} there, or start the run with what is there",
        code="worker-version",
    )


def to_error(reply: protocol.ItemRefused) -> PlaitError:
    kinds: dict[str, type[PlaitError]] = {
        one.__name__: one
        for one in (InputError, ProcessError, GuardianError, MachineError, InternalError)
    }
    if reply.kind == TrustError.__name__:  # it may well be trusted here
        fix = f"there, as the user who runs the worker: {reply.fix}" if reply.fix else reply.fix
        return TrustError(f"on a worker: {reply.what}", fix=fix, code=reply.code)
    return kinds.get(reply.kind, ProcessError)(reply.what, fix=reply.fix, code=reply.code)


def unexpected_worker_error(raised: RemoteError) -> PlaitError:
    """A task that raised: Plait is not there, or it is our bug; no item makes it raise."""
    if raised.is_a(ImportError):
        return no_plait([""])
    return InternalError(f"items could not be performed: {raised.error.__name__}", code="cluster")
