"""Are the variables of env files still those with which a run began?

A run remembers their names and one salted, slow digest of all of them: enough to see
that something has changed, and too little to find out a value by trying.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from plait.errors import Problem, listed
from plait.hints import Final
from plait.values import Json, json_text

ROUNDS: Final = 50_000
"""Of the digest: some hundredths of a second, once for each life of a run that has env files."""
SALT_BYTES: Final = 16


def remembered(filed: Mapping[str, str], *, salt: bytes | None = None) -> dict[str, Json]:
    """What a run keeps of its env files."""
    if not filed:
        return {}
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    return {"names": sorted(filed), "salt": salt.hex(), "digest": _digest(filed, salt)}


def change_of(known: Json, filed: Mapping[str, str]) -> str | None:
    """What has changed, in names; None if nothing has."""
    before = known if isinstance(known, Mapping) else {}
    names = frozenset(before.get("names", ()))
    said = [
        *(f"{name} is new" for name in sorted(filed.keys() - names)),
        *(f"{name} is gone" for name in sorted(names - filed.keys())),
    ]
    if said:
        return listed(said)
    if not filed or _digest(filed, bytes.fromhex(str(before["salt"]))) == before["digest"]:
        return None
    return f"{'' if len(filed) == 1 else 'one of '}{listed(sorted(filed))} has another value"


def problem_of(change: str) -> Problem:
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
