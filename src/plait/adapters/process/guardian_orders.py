"""An order to the guardian, as bytes: the program, its environment and its directory."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from plait.adapters.process import guardian_protocol as wire
from plait.core.errors import InputError, ProcessError
from plait.core.hints import Final

NO_VARIABLES: Final[Mapping[str, str]] = {}
MOST_CHANGES: Final = 16
"""An environment with more changed variables than this is sent completely."""
_ID, _ID_AT = struct.Struct("=I"), 4
"""The number of the job in an order."""


def encode_text(text: str) -> bytes:
    # The locale's encoding is not used: bytes that are not UTF-8 came in as surrogates, and go out
    # unchanged.
    return text.encode("utf-8", "surrogateescape")


def encode_order(
    argv: Sequence[str],
    env: Mapping[str, str],
    more_env: Mapping[str, str],
    flags: int,
    group: int,
    descriptors: int,
    directory: str = "",
) -> bytes:
    """Encode an order without its id. Without a `directory`, its first descriptor is the
    directory.
    """
    if not argv:
        raise InputError("there is no program to start", fix="name one", code="no-program")
    try:
        words = _join_words(argv)
        pairs, more = _ENVIRONMENTS.pack_env(env if type(env) is dict else dict(env), more_env)
    except UnicodeEncodeError:
        raise _unsendable(argv[0], "an argument or variable holds half a character") from None
    except ValueError:
        raise _unsendable(
            argv[0], "an argument or variable holds NUL, or a variable's name '='"
        ) from None
    place = _join_words([directory]) if directory else b""
    sizes = len(words), len(pairs), len(more), len(place)
    head = wire.HEAD.pack(wire.JOB, flags, descriptors, 0, *sizes, group)
    return b"".join((head, words, pairs, more, place))


def with_id(order: bytes, id_: int) -> bytes:
    return b"".join((order[:_ID_AT], _ID.pack(id_), order[_ID_AT + _ID.size :]))


class _Environments:
    """Encodes environments. Most differ from the last one in only a few variables."""

    def __init__(self) -> None:
        # One object, so that threads need no lock.
        self._last: tuple[dict[str, str], bytes] = ({}, b"")

    def pack_env(self, env: dict[str, str], more: Mapping[str, str]) -> tuple[bytes, bytes]:
        """Return a whole environment, often an earlier one, and the variables that differ
        from it.
        """
        if len(more) > MOST_CHANGES:
            return _pack_variables({**env, **more}), b""
        last, packed = self._last
        if env != last:
            changed = {name: value for name, value in env.items() if last.get(name) != value}
            gone = len(last) + sum(name not in last for name in changed) - len(env)
            if gone or len(changed) > MOST_CHANGES:
                packed = _pack_variables(env)
                self._last = (dict(env), packed)
            else:
                more = {**changed, **more}
        return packed, _pack_variables(more)


_ENVIRONMENTS = _Environments()


def _pack_variables(env: Mapping[str, str]) -> bytes:
    if any("=" in name or not name for name in env):
        raise ValueError("a variable without a usable name")
    return _join_words([f"{name}={value}" for name, value in env.items()])


def _join_words(words: Sequence[str]) -> bytes:
    """Join texts, each followed by NUL."""
    joined = encode_text("\0".join((*words, "")))
    if joined.count(b"\0") != len(words):
        raise ValueError("NUL within a word")
    return joined


def _unsendable(program: str, why: str) -> ProcessError:
    return ProcessError(
        f"'{program}' cannot be started: {why}",
        fix="pass such data through a file or standard input",
        code="not-started",
    )
