"""What is said of workers that cannot take items: they have other versions, no Plait, or refuse."""

from __future__ import annotations

from collections.abc import Mapping

from plait.adapters.dask import protocol as travel
from plait.adapters.dask.replies import Raised, returned
from plait.core.errors import (
    GuardianError,
    InputError,
    InternalError,
    MachineError,
    PlaitError,
    ProcessError,
    TrustError,
    listed,
)
from plait.engine.event_bus import Mask


def expect_same(pythons: Mapping[str, object], plaits: Mapping[str, object], mask: Mask) -> None:
    """Every worker has the Plait and the Python that we have.

    Both are as workers said them, and only what is told of them is masked: a secret may be in a version.
    """
    mine = travel.own_versions()
    without = [worker for worker, said in plaits.items() if _is_missing(said)]
    if without:
        raise no_plait(without)
    broken = {
        worker: returned(said, mask)
        for worker, said in plaits.items()
        if isinstance(said, Raised) and not said.is_a(OSError)  # it is gone, or comes again
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
    return f"Plait {plait} with Python {travel.python_minor(python)}"


def no_plait(workers: list[str]) -> InputError:
    named = listed([worker for worker in workers if worker][:5])
    return InputError(
        f"Plait is not installed on {'workers: ' + named if named else 'a worker'}",
        fix=f"install Plait {travel.own_versions().plait} there, for the Python that runs the worker",
        code="worker-without-plait",
    )


def _is_missing(said: object) -> bool:
    return isinstance(said, Raised) and said.is_a(ImportError) and said.module in (None, "plait")


def unloadable(workers: Mapping[str, object]) -> InputError:
    """Plait is there, and fails before it could say anything itself."""
    told = "; ".join(f"{worker}: {_told(said)}" for worker, said in list(workers.items())[:5])
    return InputError(
        f"Plait cannot be loaded on workers: {told}",
        fix="python -c 'import plait' there, with the Python that runs the worker, says more",
        code="worker-without-plait",
    )


def _told(said: object) -> str:
    kind, text = (said.error, said.said) if isinstance(said, Raised) else (type(said), said)
    return f"{kind.__name__}: {text}"


def mismatch(workers: Mapping[str, str]) -> InputError:
    said = "; ".join(f"{worker or 'a worker'} has {its}" for worker, its in list(workers.items())[:5])
    mine = travel.own_versions()
    return InputError(
        f"here is {mine}, and on the cluster it is another: {said}",
        fix=f"install Plait {mine.plait} for Python {mine.python} there, or start the run with what is there",
        code="worker-version",
    )


def as_error(reply: travel.Refused) -> PlaitError:
    kinds: dict[str, type[PlaitError]] = {
        one.__name__: one for one in (InputError, ProcessError, GuardianError, MachineError, InternalError)
    }
    if reply.kind == TrustError.__name__:  # it may well be trusted here
        fix = f"there, as the user who runs the worker: {reply.fix}" if reply.fix else reply.fix
        return TrustError(f"on a worker: {reply.what}", fix=fix, code=reply.code)
    return kinds.get(reply.kind, ProcessError)(reply.what, fix=reply.fix, code=reply.code)


def unheard_of(raised: Raised) -> PlaitError:
    """A task that raised: Plait is not there, or it is our bug; no item makes it raise."""
    if raised.is_a(ImportError):
        return no_plait([""])
    return InternalError(f"items could not be performed: {raised.error.__name__}", code="cluster")
