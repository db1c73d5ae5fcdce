"""`plait keys`: the keys you sign with, and the keys you trust.

plait keys                     both
plait keys new [NAME]          make a key that is trusted here
plait keys show FP|NAME        one key in full
plait keys export [NAME]       the public half, to give to others
plait keys add FILE            trust the key, or the successor of a key, that a file holds
plait keys revoke FP           refuse all that this key signed; this cannot be undone
plait keys rotate [NAME]       replace a key by a new one; both sign the statement
"""

from __future__ import annotations

import json
import os
import pwd
import sys
from getpass import getpass

from plait.cli.arguments import require_choice
from plait.cli.values import file_text, read_json
from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final
from plait.core.values import Json, Secret
from plait.views.terminal import (
    cut,
    format_table,
    is_interactive,
    paint_for,
    printable,
    width,
    write_bytes,
    write_json,
)

if TYPE_CHECKING:
    import argparse

    from plait.cli.arguments import Parser
    from plait.core.values import Secret
    from plait.tools.trust.decisions import KeyFolder, TrustDecision, TrustedKey, TrustStore
    from plait.tools.trust.signatures import PrivateKey


OWN_KEY: Final = "your own key"
"""The origin, in the trust store, of keys that were made here."""
DEFAULT_KEY: Final = "signing"
_SHORTEST_PREFIX: Final = 8


def signer_label(decision: TrustDecision, store: TrustStore) -> str:
    """Describe in a word or two who signed a file."""
    if decision.by == "manifest":
        return "plait"
    if decision.by == "signature" and decision.fingerprint is not None:
        key = store.key(decision.fingerprint)
        signer = "you" if key is not None and key.origin == OWN_KEY else decision.owner
        return f"{signer} ({decision.fingerprint[:4]}…)"
    if not decision.allowed and not decision.askable:
        return decision.code
    if decision.signature is not None:
        return f"unknown ({decision.signature.fingerprint[:4]}…)"
    return "—" if decision.allowed else "— (not trusted)"


def key_folder(store: TrustStore) -> KeyFolder:
    from plait.tools.trust.decisions import KeyFolder

    return KeyFolder(os.path.dirname(store.root))


def open_key(folder: KeyFolder, name: str) -> PrivateKey:
    """Open a key of the user; ask for its passphrase only on a terminal."""
    try:
        return folder.open(name)
    except InputError as error:
        if error.code != "passphrase" or not is_interactive():
            raise
    return folder.open(name, passphrase=ask_passphrase(f"passphrase of the key '{name}': "))


def ask_passphrase(prompt: str) -> Secret:
    return Secret(getpass(prompt, stream=sys.stderr))


def find_trusted_key(store: TrustStore, given: str) -> TrustedKey:
    """A key by its fingerprint, or by a unique beginning of it."""
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


EXAMPLES: Final = (
    "plait keys new",
    "plait keys add ada.key.json --ids 'team/*'",
)
ACTIONS: Final = ("list", "new", "show", "export", "add", "revoke", "rotate")
_NAMED: Final = ("show", "add", "revoke")
PUBLIC: Final = "plait.public-key.v1"


def configure(parser: Parser) -> None:
    parser.add_argument(
        "action", metavar="list|new|show|export|add|revoke|rotate", nargs="?", default="list"
    )
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="a key's name, its fingerprint, or a file"
    )
    parser.add_argument("--owner", metavar="WHO", help="whose key is added or exported")
    parser.add_argument(
        "--ids",
        metavar="PATTERN",
        action="append",
        help="trust an added key for these ids only: 'team/*'",
    )
    parser.add_argument(
        "--space", metavar="SPACE", action="append", help="and only in project or in user"
    )
    parser.add_argument("--reason", metavar="TEXT", default="", help="why a key is revoked")
    parser.add_argument(
        "--no-passphrase", action="store_true", help="do not ask for one for a new key"
    )
    parser.add_argument("--json", action="store_true", help="the same for programs")


def run(options: argparse.Namespace) -> int:
    from plait.app.toolbox import toolbox

    action = require_choice("action", options.action, ACTIONS)
    if action in _NAMED and options.name is None:
        raise InputError(
            f"plait keys {action}: NAME is missing", fix="see plait keys --help", code="arguments"
        )
    store = toolbox().trust.store
    folder = key_folder(store)
    match action:
        case "list":
            _list(store, folder, as_json=options.json)
        case "new":
            _new(store, folder, options)
        case "show":
            _show(_find_key(store, folder, options.name), as_json=options.json)
        case "export":
            _export(folder, options)
        case "add":
            add_key(store, options.name, options)
        case "revoke":
            _revoke(store, options)
        case _:
            _rotate(store, folder, options)
    return 0


# ── list and show ────────────────────────────────────────────────────────


def _list(store: TrustStore, folder: KeyFolder, *, as_json: bool) -> None:
    from plait.tools.trust.signatures import key_fingerprint

    own = {name: folder.public(name) for name in folder.names()}
    trusted = store.keys()
    if as_json:
        write_json(
            {
                "own": [
                    {"name": name, "fingerprint": key_fingerprint(key), "public_key": key.hex()}
                    for name, key in own.items()
                ],
                "trusted": [key.record() for key in trusted],
            }
        )
        return
    if not own and not trusted:
        print("no keys yet; make one: plait keys new")
        return
    names = {key_fingerprint(key): name for name, key in own.items()}
    rows = [("KEY", "OWNER", "TRUSTED FOR", "STATE")]
    rows += [(key.fingerprint, _owner(key, names), _scope(key), key_state(key)) for key in trusted]
    known = {key.fingerprint for key in trusted}
    rows += [
        (fp, f"you, key '{name}'", "nothing", "not trusted here")
        for fp, name in names.items()
        if fp not in known
    ]
    paint = paint_for(sys.stdout)
    head, *lines = format_table(rows, width(sys.stdout))
    print(paint(head, "bold"), *lines, sep="\n")


def _owner(key: TrustedKey, own: dict[str, str]) -> str:
    return f"you, key '{own[key.fingerprint]}'" if key.fingerprint in own else key.owner


def _scope(key: TrustedKey) -> str:
    return f"{', '.join(key.ids)} ({', '.join(key.spaces)})"


def key_state(key: TrustedKey) -> str:
    if key.revoked is not None:
        return f"revoked {key.revoked.time}"
    return f"until {key.not_after}" if key.not_after else "trusted"


def _find_key(store: TrustStore, folder: KeyFolder, given: str) -> TrustedKey:
    from plait.tools.trust.signatures import key_fingerprint

    wanted = key_fingerprint(folder.public(given)) if given in folder.names() else given
    return find_trusted_key(store, wanted)


def _show(key: TrustedKey, *, as_json: bool) -> None:
    if as_json:
        write_json(key.record())
        return
    for name, value in key.record().items():
        shown = ", ".join(value) if isinstance(value, list) else value
        print(f"{name.replace('_', ' '):<12} {cut(str('—' if shown is None else shown), None)}")


# ── keys of the user ─────────────────────────────────────────────────────


def _new(store: TrustStore, folder: KeyFolder, options: argparse.Namespace) -> None:
    name = options.name or DEFAULT_KEY
    passphrase = None if options.no_passphrase else _choose_passphrase()
    key = folder.create(name, passphrase=passphrase)
    store.add(key.public, owner=options.owner or _login(), origin=OWN_KEY)
    closed = (
        "closed with your passphrase"
        if passphrase
        else "without a passphrase; only you can read the file"
    )
    print(f"made the key '{name}' ({closed})")
    print(f"fingerprint  {key.fingerprint}")
    print(f"public key   {key.public.hex()}")
    print("sign your tools:  plait sign --all")
    named = "" if name == DEFAULT_KEY else f" {name}"
    print(f"give others your public key:  plait keys export{named} > my.key.json")


def _choose_passphrase() -> Secret | None:
    """Ask twice for a passphrase; None without a terminal, or if it is empty."""
    if not is_interactive():
        return None
    first = ask_passphrase("a passphrase for the key (empty: none): ")
    if not first.reveal():
        return None
    if ask_passphrase("the same again: ").reveal() != first.reveal():
        raise InputError("the two passphrases differ", fix="try again", code="passphrase")
    return first


def _login() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _export(folder: KeyFolder, options: argparse.Namespace) -> None:
    from plait.tools.trust.signatures import key_fingerprint

    public = folder.public(options.name or DEFAULT_KEY)
    record = {
        "format": PUBLIC,
        "owner": options.owner or _login(),
        "public_key": public.hex(),
        "fingerprint": key_fingerprint(public),
    }
    write_bytes(json.dumps(record, indent=1, ensure_ascii=False).encode() + b"\n")


def _rotate(store: TrustStore, folder: KeyFolder, options: argparse.Namespace) -> None:
    """Print the statement to standard output: everybody who trusts the old key needs it."""
    from plait.tools.trust.keys import rotate

    name = options.name or DEFAULT_KEY
    was_interrupted = folder.rotation(name) is not None
    rotated = rotate(
        folder,
        store,
        name,
        opened=lambda it: open_key(folder, it),
        passphrase=lambda: None if options.no_passphrase else _choose_passphrase(),
        origin=OWN_KEY,
    )
    write_bytes(rotated.statement)
    folder.end_rotation(name)
    if was_interrupted:
        print("this completes a rotation that was interrupted", file=sys.stderr)
    for line in (
        f"'{name}' is now {rotated.fingerprint}; the old key is kept as '{rotated.kept}'",
        "give what was printed to all who trust the old key; they type:  plait keys add FILE",
        "what the old key signed stays valid; sign anew what you change:  plait sign --all",
    ):
        print(line, file=sys.stderr)


# ── keys of others ───────────────────────────────────────────────────────


def add_key(store: TrustStore, path: str, options: argparse.Namespace) -> None:
    """Trust the key in a file: a public key, or the statement of a rotation."""
    from plait.tools.trust.signatures import ROTATION

    text = file_text(path)
    record = read_json(text, path)
    if isinstance(record, dict) and record.get("format") == ROTATION:
        key = store.rotate(text.encode())
        print(f"{printable(key.owner)} has a new key {key.fingerprint}; the old one signs no more")
        return
    owner, public = _parse_public_key(record, path, options.owner)
    key = store.add(
        public,
        owner=owner,
        origin=f"file {os.path.abspath(path)}",
        spaces=tuple(options.space or ("project", "user")),
        ids=tuple(options.ids or ("*",)),
    )
    print(f"trusted: {printable(key.owner)}'s key {key.fingerprint}")
    print(f"for the ids {', '.join(key.ids)} in the space {' and '.join(key.spaces)}")
    print(
        "compare the fingerprint with its owner's; to take it back:  plait keys revoke "
        + key.fingerprint[:16]
    )


def _parse_public_key(record: Json, path: str, owner: str | None) -> tuple[str, bytes]:
    match record:
        case {"format": "plait.public-key.v1", "owner": str(named), "public_key": str(key)} if (
            _is_hex(key)
        ):
            return owner or named, bytes.fromhex(key)
    raise InputError(
        "this file holds neither a public key nor a rotation",
        path,
        "it is what 'plait keys export' or 'plait keys rotate' printed",
        code="bad-key",
    )


def _is_hex(text: str) -> bool:
    return len(text) % 2 == 0 and all(digit in "0123456789abcdef" for digit in text)


def _revoke(store: TrustStore, options: argparse.Namespace) -> None:
    key = store.revoke(find_trusted_key(store, options.name).fingerprint, options.reason)
    print(
        f"revoked: {printable(key.owner)}'s key {key.fingerprint}; whatever it signed is refused "
        "here"
    )
