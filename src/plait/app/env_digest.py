"""The variables of env files: a run stores their names, and one salted digest of their values."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from plait.core.errors import Problem, format_names
from plait.core.hints import Final
from plait.core.values import Json, json_text

ROUNDS: Final = 50_000
"""Rounds of the digest: some 10 ms, once for each attempt of a run with env files."""
SALT_BYTES: Final = 16


def env_digest(variables: Mapping[str, str], *, salt: bytes | None = None) -> dict[str, Json]:
    """Return what a run stores about its env files."""
    if not variables:
        return {}
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    return {
        "names": sorted(variables),
        "salt": salt.hex(),
        "digest": _salted_digest(variables, salt),
    }


def describe_change(known: Json, variables: Mapping[str, str]) -> str | None:
    """Return the changes by name; None: there are none."""
    before = known if isinstance(known, Mapping) else {}
    names = frozenset(before.get("names", ()))
    others = [
        *(f"{name} is new" for name in sorted(variables.keys() - names)),
        *(f"{name} is gone" for name in sorted(names - variables.keys())),
    ]
    kept = {name: variables[name] for name in names & variables.keys()}
    return "; ".join([format_names(others)] * bool(others) + [*_other_values(before, kept)]) or None


def _other_values(before: Mapping[str, Json], kept: Mapping[str, str]) -> Iterator[str]:
    """Return what is known about the variables that are still there."""
    if not kept:
        return
    named = format_names(sorted(kept))
    if len(kept) < len(before["names"]):  # the digest is of all variables, and one is gone
        have = "has another value" if len(kept) == 1 else "have other values"
        yield f"whether {named} {have} cannot be known"
    elif _salted_digest(kept, bytes.fromhex(str(before["salt"]))) != before["digest"]:
        yield (
            f"{named} has another value"
            if len(kept) == 1
            else f"at least one of {named} has another value"
        )


def env_change_problem(run: str, change: str) -> Problem:
    return Problem(
        f"the env files have changed since the run began: {change}",
        None,
        f"plait resume {run} --accept-changes accepts them, and what is done stays done; "
        "or put the files back as they were",
        code="changed",
    )


def _salted_digest(variables: Mapping[str, str], salt: bytes) -> str:
    from hashlib import pbkdf2_hmac

    text = json_text([[name, variables[name]] for name in sorted(variables)])
    return pbkdf2_hmac("sha256", text.encode("utf-8", "surrogatepass"), salt, ROUNDS).hex()
