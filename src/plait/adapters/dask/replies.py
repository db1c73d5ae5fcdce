"""Mask everything that comes from workers, and turn their errors into ours.

A worker masks all secrets before a step sees them. Here we mask data that Dask or other parts of a
worker produce, and secrets that the run has learnt since it sent the job.

Texts are masked, and the keys of programs' data. Names of Plait and of the author stay, even if a
secret is spelt like one.
"""

from __future__ import annotations

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
from plait.core.patterns import lazy_pattern
from plait.core.records import dataclass, field_names, is_record, replace
from plait.core.values import Json
from plait.engine.event_bus import Mask
from plait.engine.outcome import Failure, Skipped, Succeeded
from plait.template.compiled import FACTS

IDENTITIES: Final = frozenset(
    {"path", "kind", "fingerprint", "code", "status", "to", "unjudged", "run", "used"}
)
"""Fields that identify a step, hook or kind. They must not be masked."""
OURS: Final = frozenset({
    # an outcome, and the facts beside captures
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
"""Keys in the results of steps. Any other key may come from a tool."""


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An exception of a worker or of Dask, in place of a result."""

    error: type[BaseException]
    message: str
    module: str | None = None
    """The module that could not be imported, if that caused the error."""

    def is_a(self, *types: type[BaseException]) -> bool:
        return issubclass(self.error, types)


def mask_reply(value: Any, mask: Mask) -> Any:
    """Return a reply without secrets; an exception becomes a RemoteError."""
    if isinstance(value, BaseException):
        value = RemoteError(type(value), str(value), getattr(value, "name", None))
    return value if mask is str else _mask_tree(value, mask)


def _mask_tree(value: Any, mask: Mask) -> Any:
    # By structure, not by class, so that no kind of reply, event or outcome can be missed.
    match value:
        case Succeeded(result):
            return Succeeded(_mask_result(result, mask))
        case Failure():
            message, output = _message(value.message, mask), _mask_result(value.output, mask)
            return replace(value, message=message, output=output)
        case Skipped(why):
            return Skipped(_message(why, mask))
        case SealedSecret():
            return SealedSecret("***")  # the run already knows the secret
        case tuple():
            return tuple(_mask_tree(one, mask) for one in value)
    if is_record(value):
        others = [name for name in field_names(type(value)) if name not in IDENTITIES]
        return replace(value, **{name: _mask_tree(getattr(value, name), mask) for name in others})
    return mask_value(value, mask)


def _mask_result(value: Json, mask: Mask) -> Json:
    return (
        _mask_known(value, mask, _mask_part)
        if isinstance(value, Mapping)
        else _mask_tree(value, mask)
    )


def _mask_part(name: str, value: Json, mask: Mask) -> Json:
    match name, value:
        case "cut", Mapping():
            return _mask_known(value, mask)
        case "captures", Mapping():
            return {name: _mask_capture(name, one, mask) for name, one in value.items()}
    return mask_value(value, mask)


def _mask_capture(name: str, value: Json, mask: Mask) -> Json:
    is_ours = name == "validation" or name.endswith(FACTS)
    return (
        _mask_known(value, mask)
        if is_ours and isinstance(value, Mapping)
        else mask_value(value, mask)
    )


def _mask_data(_: str, value: Json, mask: Mask) -> Json:
    return mask_value(value, mask)


def _mask_known(
    value: Mapping[str, Json], mask: Mask, part: Callable[[str, Json, Mask], Json] = _mask_data
) -> dict[str, Json]:
    """Mask a map whose keys are in `OURS`; `part` masks the values."""
    return {
        (name if name in OURS else mask(name)): part(name, one, mask) for name, one in value.items()
    }


_EXIT: Final = lazy_pattern(r"(?:exit code -?\d{1,3}|ended by signal \d{1,2})(?=: |$)")


def _message(text: str, mask: Mask) -> str:
    """Mask a message: Plait writes how a process ended; only the text after it comes from the
    process.
    """
    found = _EXIT.match(text)
    return mask(text) if found is None else found[0] + mask(text[found.end() :])


def require_same_versions(
    pythons: Mapping[str, object], plaits: Mapping[str, object], mask: Mask
) -> None:
    """Raise InputError unless every worker has our versions of Plait and Python.

    The arguments are unmasked, because a version may contain a secret; only messages are
    masked.
    """
    mine = protocol.own_versions()
    without = [worker for worker, plait in plaits.items() if _is_missing(plait)]
    if without:
        raise no_plait(without)
    broken = {
        worker: mask_reply(plait, mask)
        for worker, plait in plaits.items()
        if isinstance(plait, RemoteError) and not plait.is_a(OSError)  # OSError: the worker is gone
    }
    if broken:
        raise unloadable(broken)
    # A worker that came or went between the two calls is checked again with its first item.
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


def _is_missing(plait: object) -> bool:
    return (
        isinstance(plait, RemoteError)
        and plait.is_a(ImportError)
        and plait.module in (None, "plait")
    )


def unloadable(workers: Mapping[str, object]) -> InputError:
    """Return the error if Plait is installed but its import fails."""
    errors = "; ".join(
        f"{worker}: {_format_error(error)}" for worker, error in list(workers.items())[:5]
    )
    return InputError(
        f"Plait cannot be loaded on workers: {errors}",
        fix="python -c 'import plait' there, with the Python that runs the worker, says more",
        code="worker-without-plait",
    )


def _format_error(error: object) -> str:
    if isinstance(error, RemoteError):
        return f"{error.error.__name__}: {error.message}"
    return f"{type(error).__name__}: {error}"


def mismatch(workers: Mapping[str, str]) -> InputError:
    versions = "; ".join(
        f"{worker or 'a worker'} has {its}" for worker, its in list(workers.items())[:5]
    )
    mine = protocol.own_versions()
    return InputError(
        f"here is {mine}, and on the cluster it is another: {versions}",
        fix=f"install Plait {mine.plait} for Python {mine.python} there, or start the run with what is there",
        code="worker-version",
    )


def to_error(reply: protocol.ItemRefused) -> PlaitError:
    kinds: dict[str, type[PlaitError]] = {
        one.__name__: one
        for one in (InputError, ProcessError, GuardianError, MachineError, InternalError)
    }
    if reply.kind == TrustError.__name__:  # it may be trusted on this machine
        fix = f"there, as the user who runs the worker: {reply.fix}" if reply.fix else reply.fix
        return TrustError(f"on a worker: {reply.what}", fix=fix, code=reply.code)
    return kinds.get(reply.kind, ProcessError)(reply.what, fix=reply.fix, code=reply.code)


def unexpected_worker_error(raised: RemoteError) -> PlaitError:
    """Return the error for a task that raised: Plait is missing there, or it is a bug of Plait."""
    if raised.is_a(ImportError):
        return no_plait([""])
    return InternalError(f"items could not be performed: {raised.error.__name__}", code="cluster")
