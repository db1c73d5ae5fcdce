"""Are the variables of env files still those with which a run began?

A run remembers their names and one salted, slow digest of all of them: enough to see
that something has changed, and too little to find out a value by trying.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from plait.core.errors import Problem, format_names
from plait.core.hints import Final
from plait.core.values import Json, json_text

ROUNDS: Final = 50_000
"""Of the digest: some hundredths of a second, once for each life of a run that has env files."""
SALT_BYTES: Final = 16


def env_digest(filed: Mapping[str, str], *, salt: bytes | None = None) -> dict[str, Json]:
    """What a run keeps of its env files."""
    if not filed:
        return {}
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    return {"names": sorted(filed), "salt": salt.hex(), "digest": _digest(filed, salt)}


def describe_change(known: Json, filed: Mapping[str, str]) -> str | None:
    """What has changed, in names; None if nothing has."""
    before = known if isinstance(known, Mapping) else {}
    names = frozenset(before.get("names", ()))
    others = [
        *(f"{name} is new" for name in sorted(filed.keys() - names)),
        *(f"{name} is gone" for name in sorted(names - filed.keys())),
    ]
    kept = {name: filed[name] for name in names & filed.keys()}
    return "; ".join([format_names(others)] * bool(others) + [*_other_values(before, kept)]) or None


def _other_values(before: Mapping[str, Json], kept: Mapping[str, str]) -> Iterator[str]:
    """What is known of the variables that are still there."""
    if not kept:
        return
    named = format_names(sorted(kept))
    if len(kept) < len(before["names"]):  # the digest is of all of them, and one is gone
        have = "has another value" if len(kept) == 1 else "have other values"
        yield f"whether {named} {have} cannot be known"
    elif _digest(kept, bytes.fromhex(str(before["salt"]))) != before["digest"]:
        yield (
            f"{named} has another value"
            if len(kept) == 1
            else f"at least one of {named} has another value"
        )


def env_change_problem(change: str) -> Problem:
    return Problem(
        f"the env files have changed since the run began: {change}",
        None,
        "plait resume --accept-changes goes on with them, and what is done stays done; "
        "or put the files back as they were",
        code="changed",
    )


def _digest(filed: Mapping[str, str], salt: bytes) -> str:
    from hashlib import pbkdf2_hmac

    said = json_text([[name, filed[name]] for name in sorted(filed)])
    return pbkdf2_hmac("sha256", said.encode("utf-8", "surrogatepass"), salt, ROUNDS).hex()
