"""A signature is valid for one id, one kind and all bytes: everything else is refused, row by row."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import InputError, TrustError
from plait.tools.spaces import FILE_TYPES
from plait.tools.trust.signatures import (
    PrivateKey,
    Signature,
    key_fingerprint,
    read_detached,
    read_rotation,
    read_signature,
    require_valid_key,
    sign_bytes,
    sign_detached,
    sign_rotation,
    time_text,
    verify,
)

KEY = PrivateKey(bytes(range(32)))
OTHER = PrivateKey(bytes(range(1, 33)))
NOW = 1_774_842_431  # 2026-03-30T03:47:11Z
PROGRAM = b"#!/usr/bin/env python3\nimport sys\n\nprint(sys.argv)\n"


def signed(data: bytes = PROGRAM, extension: str = ".py") -> bytes:
    return sign_bytes(
        data, kind="tool", item_id="team/report", extension=extension, key=KEY, now=NOW
    )


def check(
    data: bytes,
    *,
    kind: str = "tool",
    item_id: str = "team/report",
    extension: str = ".py",
    public_key: bytes = KEY.public,
) -> None:
    signature = read_signature(data)
    if signature is None:
        raise TrustError("it is not signed", code="unsigned")
    verify(data, signature, public_key, kind=kind, item_id=item_id, extension=extension)


def field(data: bytes) -> Signature:
    signature = read_signature(data)
    assert signature is not None
    return signature


# ── the line ─────────────────────────────────────────────────────────────


LINES = [
    # extension  before signing            where the line stands, and how it begins and ends
    (".py",   b"x = 1\n",                  0, b"# plait:signed:2026-03-30T03:47:11Z:", b"\n"),
    (".py",   PROGRAM,                     1, b"# plait:signed:", b"\n"),
    (".sh",   b"#!/bin/sh",                1, b"# plait:signed:", b"\n"),
    (".yaml", b"tool_type: runtime\n",     0, b"# plait:signed:", b"\n"),
    (".ts",   b"export {}\n",              0, b"// plait:signed:", b"\n"),
    (".js",   b"#!/usr/bin/env node\nx()", 1, b"// plait:signed:", b"\n"),
    (".md",   b"---\ntitle: x\n---\n",     0, b"<!-- plait:signed:", b" -->\n"),
    (".py",   b"",                         0, b"# plait:signed:", b"\n"),
]  # fmt: skip


@pytest.mark.parametrize(("extension", "data", "line", "begins", "ends"), LINES)
def test_a_signature_is_a_comment_at_the_top(
    extension: str, data: bytes, line: int, begins: bytes, ends: bytes
) -> None:
    made = signed(data, extension)
    written = made.splitlines(keepends=True)[line]
    assert written.startswith(begins)
    assert written.endswith(ends)
    check(made, extension=extension)


@pytest.mark.parametrize("extension", FILE_TYPES)
def test_every_file_that_can_be_a_tool_holds_its_signature(extension: str) -> None:
    made = signed(b"x\n", extension)
    assert made.startswith(FILE_TYPES[extension].comment.encode() + b" plait:signed:")
    check(made, extension=extension)


def test_the_line_of_seed_003_is_read_as_it_stands() -> None:
    line = (
        b"<!-- rye:signed:2026-03-30T03:47:11Z:f0ca499123e79e0c3790172b7f7ea62a34be6179639b6deeba457183ca1e6165:"
        b"Ijf3lSsyV9PMZ0pKThFrLiosA31PP6bTKkEXrWkWODs7YUmX0iSVFcWnAJrxSj8PjUtUVXPv3mNCMJPhlit5DA:6ea18199041a1ea8 -->\n"
    )
    signature = field(line + b"# Title\n")
    assert signature.content_only
    assert (signature.time, signature.fingerprint) == ("2026-03-30T03:47:11Z", "6ea18199041a1ea8")
    assert signature.hash == "f0ca499123e79e0c3790172b7f7ea62a34be6179639b6deeba457183ca1e6165"
    assert signature.line == (0, len(line))


def test_a_rye_line_may_name_an_account() -> None:
    line = field(signed()).text.replace("plait:", "rye:")[:-48] + "|github@somebody"
    assert field(f"# {line}\n".encode()).fingerprint == KEY.fingerprint[:16]


def test_signing_again_replaces_the_line() -> None:
    later = sign_bytes(
        signed(), kind="tool", item_id="team/report", extension=".py", key=OTHER, now=NOW + 60
    )
    check(later, public_key=OTHER.public)
    assert later.count(b":signed:") == 1
    assert field(later).hash == field(signed()).hash


def test_signing_replaces_a_spoilt_line_and_one_of_the_other_tag() -> None:
    spoilt = signed().replace(b"plait:signed:", b"rye:signed:").replace(b"\n", b"\r\n")
    again = signed(spoilt)
    assert again.count(b":signed:") == 1
    check(again)


def test_a_file_that_begins_with_a_byte_order_mark_is_not_signed() -> None:
    with pytest.raises(InputError) as caught:
        signed(b"\xef\xbb\xbfx = 1\n")
    assert str(caught.value) == (
        "team/report.py begins with a byte order mark, which must stay first\n"
        "fix: save it as UTF-8 without a byte order mark"
    )


def test_a_file_without_comments_is_signed_beside_itself() -> None:
    data = b'{"rows": [1, 2]}'
    with pytest.raises(InputError, match=r"a \.json file cannot hold a signature"):
        signed(data, ".json")
    beside = sign_detached(
        data, kind="tool", item_id="team/data", extension=".json", key=KEY, now=NOW
    )
    signature = read_detached(beside)
    verify(data, signature, KEY.public, kind="tool", item_id="team/data", extension=".json")
    with pytest.raises(TrustError, match="its bytes are not those that were signed"):
        verify(
            data + b" ", signature, KEY.public, kind="tool", item_id="team/data", extension=".json"
        )
    with pytest.raises(TrustError, match=r"its signature is not for the tool team/other\.json"):
        verify(data, signature, KEY.public, kind="tool", item_id="team/other", extension=".json")


@pytest.mark.parametrize(
    "spoil",
    [lambda b: b[:-1], lambda b: b + b"\n", lambda b: b + b"x", lambda b: b" " + b, lambda _: b""],
)
def test_a_signature_file_holds_the_signature_and_nothing_else(
    spoil: Callable[[bytes], bytes],
) -> None:
    beside = sign_detached(b"{}", kind="tool", item_id="a", extension=".json", key=KEY, now=NOW)
    with pytest.raises(TrustError) as caught:
        read_detached(spoil(beside))
    assert caught.value.code == "malformed-signature"


# ── tampering ────────────────────────────────────────────────────────────


def swapped(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def swap(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new, 1)

    return swap


def with_value(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Another signature value in the same line."""

    def swap(data: bytes) -> bytes:
        value = field(data).value
        raw = base64.urlsafe_b64decode(value + "==")
        return data.replace(value.encode(), base64.urlsafe_b64encode(change(raw)).rstrip(b"="))

    return swap


def plus_group_order(value: bytes) -> bytes:
    order = 2**252 + 27742317777372353535851937790883648493
    return value[:32] + (int.from_bytes(value[32:], "little") + order).to_bytes(32, "little")


def uncanonical(data: bytes) -> bytes:
    """Another letter that decodes to the same bytes."""
    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    value = field(data).value.encode()
    last = letters[letters.index(value[-1]) + 1 :][:1]
    assert base64.urlsafe_b64decode(value + b"==") == base64.urlsafe_b64decode(
        value[:-1] + last + b"=="
    )
    return data.replace(value, value[:-1] + last)


def rehashed(data: bytes) -> bytes:
    """Another body, with the hash of it written into the line."""
    evil = PROGRAM.replace(b"print", b"exec ")
    return data.replace(field(data).hash.encode(), field(signed(evil)).hash.encode()).replace(
        b"print", b"exec "
    )


def moved_down(data: bytes) -> bytes:
    first, line, rest = data.split(b"\n", 2)
    return b"\n".join([first, b"import os", line, rest])


FP = KEY.fingerprint.encode()

TAMPERED = [
    # what was done                           how                                                        code
    ("body changed",                          swapped(b"print", b"exec "),                               "changed"),
    ("one byte added",                        lambda d: d + b"\n",                                       "changed"),
    ("one byte cut off",                      lambda d: d[:-1],                                          "changed"),
    ("cut off within the line",               lambda d: d[:120],                                         "malformed-signature"),
    ("cut off after the fingerprint",         lambda d: d[: d.index(FP) + 64],                           "malformed-signature"),
    ("shebang changed",                       swapped(b"python3", b"python2"),                           "changed"),
    ("shebang removed",                       lambda d: d.split(b"\n", 1)[1],                            "changed"),
    ("time set to 2099",                      swapped(b":2026-", b":2099-"),                             "forged"),
    ("time set back",                         swapped(b":2026-", b":2025-"),                             "forged"),
    ("a time that is none",                   swapped(b":2026-03-30", b":2026-02-30"),                   "malformed-signature"),
    ("LF to CRLF",                            lambda d: d.replace(b"\n", b"\r\n"),                       "malformed-signature"),
    ("LF to CRLF below the line",             lambda d: d[:-1] + b"\r\n",                                "changed"),
    ("LF to CR",                              lambda d: d[:-1] + b"\r",                                  "changed"),
    ("byte order mark in front",              lambda d: b"\xef\xbb\xbf" + d,                             "malformed-signature"),
    ("junk after the fingerprint",            swapped(FP, FP + b"; import os"),                          "malformed-signature"),
    ("a blank after the fingerprint",         swapped(FP, FP + b" "),                                    "malformed-signature"),
    ("an account after the fingerprint",      swapped(FP, FP + b"|github@torvalds"),                     "malformed-signature"),
    ("a short fingerprint",                   swapped(FP, FP[:16]),                                      "malformed-signature"),
    ("fingerprint in capitals",               swapped(FP, FP.upper()),                                   "malformed-signature"),
    ("fingerprint of another key",            swapped(FP, OTHER.fingerprint.encode()),                   "other-key"),
    ("padding",                               swapped(b":" + FP, b"==:" + FP),                           "malformed-signature"),
    ("another spelling of the same bytes",    uncanonical,                                               "malformed-signature"),
    ("new body with its own hash",            rehashed,                                                  "forged"),
    ("S + L",                                 with_value(plus_group_order),                              "forged"),
    ("a signature of zeros",                  with_value(lambda v: bytes(len(v))),                       "forged"),
    ("halves exchanged",                      with_value(lambda v: v[32:] + v[:32]),                     "forged"),
    ("the line twice",                        lambda d: d.replace(b"\n", b"\n" + d.split(b"\n")[1] + b"\n", 1), "malformed-signature"),
    ("a line put above it",                   moved_down,                                                "malformed-signature"),
    ("a line put above the shebang",          lambda d: b"import os\n" + d,                              "malformed-signature"),
    ("another comment sign",                  swapped(b"# plait", b"// plait"),                          "malformed-signature"),
    ("two blanks",                            swapped(b"# plait", b"#  plait"),                          "malformed-signature"),
    ("passed off as content-only",            swapped(b"plait:signed", b"rye:signed"),                   "content-only"),
    ("signature removed",                     lambda d: d.split(b"\n", 2)[0] + b"\n" + d.split(b"\n", 2)[2], "unsigned"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("how", "code"), [row[1:] for row in TAMPERED], ids=[row[0] for row in TAMPERED]
)
def test_a_tampered_file_does_not_verify(how: Callable[[bytes], bytes], code: str) -> None:
    data = signed()
    check(data)
    tampered = how(data)
    assert tampered != data
    with pytest.raises(TrustError) as caught:
        check(tampered)
    assert caught.value.code == code
    assert caught.value.exit_code == 3


ASKED_OTHERWISE = [
    ({"item_id": "team/other"},               "forged"),
    ({"item_id": "report"},                   "forged"),
    ({"item_id": "team/report.py", "extension": ""}, "malformed-signature"),
    ({"extension": ".sh"},                    "forged"),
    ({"kind": "directive"},                   "forged"),
    ({"kind": "toolteam", "item_id": "/report"}, "forged"),
    ({"public_key": OTHER.public},            "other-key"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "code"), ASKED_OTHERWISE)
def test_a_signature_is_for_one_id_and_kind_and_key(asked: dict[str, object], code: str) -> None:
    with pytest.raises(TrustError) as caught:
        check(signed(), **asked)  # type: ignore[arg-type]
    assert caught.value.code == code


def test_nothing_slides_from_one_signed_field_into_the_next() -> None:
    data = sign_bytes(PROGRAM, kind="tool", item_id="x y", extension=".py", key=KEY, now=NOW)
    check(data, item_id="x y")
    with pytest.raises(TrustError) as caught:
        check(data, kind="tool x", item_id="y")
    assert caught.value.code == "forged"


def test_front_matter_and_prose_are_signed_too() -> None:
    document = b"---\nmodel: small\n---\nText.\n<directive>do</directive>\n"
    made = signed(document, ".md")
    check(made, extension=".md")
    for old, new in ((b"small", b"large"), (b"Text", b"Evil"), (b"do<", b"no<")):
        with pytest.raises(TrustError, match="its bytes are not those that were signed"):
            check(made.replace(old, new), extension=".md")


def test_no_single_bit_can_be_changed() -> None:
    data = signed(b"#!/bin/sh\nls\n", ".sh")
    survived = []
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            check(bytes(changed), extension=".sh")
        except TrustError:
            continue
        survived.append(bit)
    assert survived == []


@given(
    body=st.binary(max_size=300), item_id=st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8})?", fullmatch=True)
)
def test_what_was_signed_verifies_and_one_more_byte_does_not(body: bytes, item_id: str) -> None:
    body = body.removeprefix(b"\xef\xbb\xbf")
    made = sign_bytes(body, kind="tool", item_id=item_id, extension=".py", key=KEY, now=NOW)
    check(made, item_id=item_id)
    with pytest.raises(TrustError):
        check(made + b" ", item_id=item_id)
    with pytest.raises(TrustError):
        check(made, item_id=item_id + "x")


@given(
    data=st.binary(max_size=400)
    | st.binary(max_size=40).map(lambda tail: b"# plait:signed:" + tail)
)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        signature = read_signature(data)
    except TrustError as error:
        code = error.code
    else:
        code = (
            None
            if signature is None or signature.text.encode() in data
            else "read what is not there"
        )
    assert code in (None, "malformed-signature")


# ── keys ─────────────────────────────────────────────────────────────────


SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
]


@pytest.mark.parametrize("encoded", SMALL_ORDER)
def test_a_key_for_which_anybody_can_sign_is_refused(encoded: str) -> None:
    weak = bytes.fromhex(encoded)
    with pytest.raises(InputError) as caught:
        require_valid_key(weak)
    assert caught.value.code == "weak-key"
    for point in SMALL_ORDER:  # R of small order and S = 0: what careless libraries accept
        value = base64.urlsafe_b64encode(bytes.fromhex(point) + bytes(32)).rstrip(b"=").decode()
        forged = (
            signed()
            .replace(field(signed()).value.encode(), value.encode())
            .replace(FP, key_fingerprint(weak).encode())
        )
        with pytest.raises(TrustError) as refused:
            check(forged, public_key=weak)
        assert refused.value.code == "forged"


def test_all_fourteen_encodings_are_different() -> None:
    assert len(set(SMALL_ORDER)) == 14


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_key_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(InputError, match=f"an Ed25519 public key has 32 bytes, this has {size}"):
        require_valid_key(bytes(size))


def test_a_private_key_does_not_show_itself() -> None:
    assert repr(KEY) == "PrivateKey()"
    assert require_valid_key(KEY.public) == KEY.public
    assert PrivateKey.generate() != PrivateKey.generate()


def test_the_public_key_is_that_of_rfc_8032() -> None:
    key = PrivateKey(
        bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    )
    assert key.public.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert (
        key.sign(b"")
        .hex()
        .startswith("e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155")
    )


# ── rotation ─────────────────────────────────────────────────────────────


def test_a_rotation_says_which_key_follows_which() -> None:
    rotation = read_rotation(sign_rotation(KEY, OTHER, version=2, now=NOW))
    assert (rotation.old, rotation.new) == (KEY.public, OTHER.public)
    assert (rotation.version, rotation.time) == (2, time_text(NOW))


THIRD = PrivateKey(bytes(32))

ROTATIONS = [
    # what is written instead                                the message
    ({"version": 3},                                         "the rotation statement is not signed by its old key"),
    ({"time": "2099-01-01T00:00:00Z"},                       "the rotation statement is not signed by its old key"),
    ({"old": THIRD.public.hex()},                            "the rotation statement is not signed by its old key"),
    ({"new": THIRD.public.hex()},                            "the rotation statement is not signed by its old key"),
    ({"new": SMALL_ORDER[0]},                                "this is not an Ed25519 public key that can be trusted: anybody could sign for it"),
    ({"new": KEY.public.hex()},                              "the rotation statement lacks one of format, old, new, version, time and two signatures"),
    ({"version": 0},                                         "the rotation statement lacks one of format, old, new, version, time and two signatures"),
    ({"signatures": []},                                     "the rotation statement lacks one of format, old, new, version, time and two signatures"),
    ({"format": "plait.item.v2"},                            "the rotation statement lacks one of format, old, new, version, time and two signatures"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), ROTATIONS)
def test_a_changed_rotation_is_refused(change: dict[str, object], message: str) -> None:
    record = json.loads(sign_rotation(KEY, OTHER, version=2, now=NOW))
    with pytest.raises((TrustError, InputError)) as caught:
        read_rotation(json.dumps({**record, **change}).encode())
    assert caught.value.what == message


def test_a_rotation_needs_the_word_of_the_new_key_too() -> None:
    record = json.loads(sign_rotation(KEY, OTHER, version=2, now=NOW))
    record["signatures"][1] = record["signatures"][0]
    with pytest.raises(TrustError, match="is not signed by its new key"):
        read_rotation(json.dumps(record).encode())


@pytest.mark.parametrize("data", [b"", b"\xff", b"[" * 100_000, b"[]", b"null"])
def test_what_is_no_rotation_is_refused(data: bytes) -> None:
    with pytest.raises(TrustError) as caught:
        read_rotation(data)
    assert caught.value.code == "bad-rotation"
