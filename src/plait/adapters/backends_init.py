"""Where the items of a fan run: threads of this process, or what else `engine.backend` lists."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from plait.core.errors import InputError, listed, nearest
from plait.engine.backend import ADDRESS, BACKENDS, Backend


def backend(name: str, *, known: Mapping[str, str] = BACKENDS) -> Backend:
    """The backend of that name, at the address behind it; what it needs is loaded only then."""
    kind, at, address = name.partition(ADDRESS)
    if kind not in known:
        close = nearest(kind, known)
        fix = f"did you mean '{close}'?" if close else f"there are: {listed(known)}"
        raise InputError(f"there is no backend '{name}'", fix=fix, code="unknown-backend")
    module, _, attribute = known[kind].partition(":")
    make = getattr(import_module(module), attribute)
    if at and not (address and getattr(make, "takes_address", False)):
        fix = f"write --backend {kind}" if address else f"write {kind}{ADDRESS}HOST:PORT, or {kind} alone"
        raise InputError(f"the backend '{name}' has no such address", fix=fix, code="unknown-backend")
    made: Backend = make(address) if at else make()
    return made
