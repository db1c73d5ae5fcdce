"""Who signed what, and with which key we sign: what `sign`, `verify`, `keys` and `tools` share."""

from __future__ import annotations

import os
import sys

from plait.cli.trust_prompt import at_a_terminal
from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from plait.core.values import Secret
    from plait.tools.trust.decisions import KeyFolder, TrustedKey, TrustStore, Verdict
    from plait.tools.trust.signatures import PrivateKey

OWN_KEY: Final = "your own key"
"""The origin, in the trust store, of keys that were made here."""
DEFAULT_KEY: Final = "signing"
_SHORTEST_PREFIX: Final = 8


def signed_by(verdict: Verdict, store: TrustStore) -> str:
    """Whose word stands for a file, in a word or two."""
    if verdict.by == "manifest":
        return "plait"
    if verdict.by == "signature" and verdict.fingerprint is not None:
        key = store.key(verdict.fingerprint)
        who = "you" if key is not None and key.origin == OWN_KEY else verdict.owner
        return f"{who} ({verdict.fingerprint[:4]}…)"
    if not verdict.allowed and not verdict.askable:
        return verdict.code
    if verdict.signature is not None:
        return f"unknown ({verdict.signature.fingerprint[:4]}…)"
    return "—" if verdict.allowed else "— (not trusted)"


def key_folder(store: TrustStore) -> KeyFolder:
    from plait.tools.trust.decisions import KeyFolder

    return KeyFolder(os.path.dirname(store.root))


def opened_key(folder: KeyFolder, name: str) -> PrivateKey:
    """A key of ours; its passphrase is asked for on a terminal only."""
    try:
        return folder.open(name)
    except InputError as error:
        if error.code != "passphrase" or not at_a_terminal():
            raise
    return folder.open(name, passphrase=asked_passphrase(f"passphrase of the key '{name}': "))


def asked_passphrase(prompt: str) -> Secret:
    from getpass import getpass

    from plait.core.values import Secret

    return Secret(getpass(prompt, stream=sys.stderr))


def trusted_key(store: TrustStore, given: str) -> TrustedKey:
    """A key by its fingerprint, or by enough of its beginning to mean one."""
    wanted = given.lower().rstrip("…")
    trusted = store.keys()
    found = [key for key in trusted if key.fingerprint.startswith(wanted)]
    if len(found) == 1 and len(wanted) >= _SHORTEST_PREFIX:
        return found[0]
    if len(wanted) < _SHORTEST_PREFIX:
        what = f"a fingerprint has 64 digits; give at least its first {_SHORTEST_PREFIX}"
    else:
        what = f"{len(found) or 'no'} trusted keys begin with '{given[:64]}'"
    raise InputError(what, fix="'plait keys' lists them", code="unknown-key")
