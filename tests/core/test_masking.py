"""No declared secret leaves by a masked text, whatever usual form it takes there."""

from __future__ import annotations

import base64
import itertools
import json
import shlex
import threading
from collections.abc import Callable
from html import escape
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plait.core.errors import ValueRefusedError
from plait.core.masking import PIECE_LENGTH, Masker, mask_value
from plait.core.values import Secret
from share import examples

SECRET = "s3cr/t+K€y 'q\"\\ü"


def data(secret: str) -> bytes:
    """What a program gets; half a surrogate pair is a byte that was no UTF-8, or has no better form."""
    try:
        return secret.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return secret.encode("utf-8", "surrogatepass")


def in_lines(text: str, width: int) -> str:
    return "\n".join(text[at : at + width] for at in range(0, len(text), width))


def by_numbers(secret: str, form: str) -> str:
    """The secret with a number for each character that is no letter or digit of ASCII."""
    return "".join(
        char if char.isascii() and char.isalnum() else form.format(ord(char)) for char in secret
    )


FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON, ASCII": lambda secret: json.dumps(secret)[1:-1],
    "JSON, Unicode": lambda secret: json.dumps(secret, ensure_ascii=False)[1:-1],
    "JSON in JSON": lambda secret: json.dumps(json.dumps(secret))[1:-1],
    "percent, path": lambda secret: quote(data(secret)),
    "percent, all": lambda secret: quote(data(secret), safe=""),
    "percent, form": lambda secret: quote_plus(data(secret)),
    "percent, every byte": lambda secret: "".join(f"%{byte:02x}" for byte in data(secret)),
    "hex": lambda secret: data(secret).hex(),
    "hex, upper case": lambda secret: data(secret).hex().upper(),
    "hex, with colons": lambda secret: data(secret).hex(":"),
    "hex, in lines": lambda secret: in_lines(data(secret).hex(), 6),
    "hex, in lines of bytes": lambda secret: (
        " " + in_lines(data(secret).hex(" "), 12).replace("\n", "\n ")
    ),
    "hex, in lines, JSON": lambda secret: json.dumps(in_lines(data(secret).hex(), 6))[1:-1],
    "shell word": shlex.quote,
    "shell word, double": lambda secret: "'" + secret.replace("'", "'\"'\"'") + "'",
    "escaped bytes": lambda secret: "".join(f"\\x{byte:02x}" for byte in data(secret)),
    "HTML": escape,
    "HTML, by numbers": lambda secret: by_numbers(secret, "&#{};"),
    "HTML, by hexadecimal numbers": lambda secret: by_numbers(secret, "&#x{:04X};"),
    "base64": lambda secret: base64.b64encode(data(secret)).decode(),
    "base64, at 1": lambda secret: base64.b64encode(b"a" + data(secret) + b"xyz").decode(),
    "base64, at 2": lambda secret: base64.b64encode(b"ab" + data(secret) + b"xy").decode(),
    "base64, user:secret": lambda secret: base64.b64encode(b"user:" + data(secret)).decode(),
    "base64, URL": lambda secret: base64.urlsafe_b64encode(data(secret)).decode(),
    "base64, URL, at 1": lambda secret: base64.urlsafe_b64encode(b"a" + data(secret)).decode(),
    "base64, URL, at 2": lambda secret: base64.urlsafe_b64encode(b"ab" + data(secret)).decode(),
    "base64, in lines": lambda secret: base64.encodebytes(b"12345" * 9 + data(secret)).decode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_hidden_in_every_usual_form(form: str) -> None:
    written = FORMS[form](SECRET)
    hidden = Masker([SECRET]).mask(f"before {written} after")
    assert "***" in hidden
    assert hidden.startswith("before ")
    assert hidden.endswith(" after")
    assert not visible_forms(hidden, SECRET)


def visible_forms(text: str, secret: str) -> list[str]:
    """The forms in which a text holds a secret."""
    found = [form for form, write in FORMS.items() if write(secret) in text]
    return found + [f"base64 at {at}" for at in range(3) if core(data(secret), at) in text]


def core(secret: bytes, at: int) -> str:
    """The digits of a base64 text that a secret alone decides."""
    coded = base64.b64encode(bytes(at) + secret).decode()
    return coded[-(-at * 8 // 6) : (at + len(secret)) * 8 // 6]


characters = st.characters() | st.sampled_from("*+/%\\'\" \n\tab\udc80€😀")
secrets = st.text(characters, min_size=4, max_size=40).filter(lambda text: len(text.strip()) >= 4)


@settings(max_examples=examples(150), deadline=None)
@given(
    declared=st.lists(secrets, min_size=1, max_size=3),
    pieces=st.lists(
        st.tuples(st.text(characters, max_size=12), st.sampled_from(sorted(FORMS))), max_size=4
    ),
    joint=st.text(characters, max_size=3),
)
@example(declared=["a***b", "secret"], pieces=[("a", "as it is")], joint="")
@example(declared=["000\udd00"], pieces=[("", "percent, all"), ("", "base64, at 1")], joint="")
@example(declared=["\\\\\\\\"], pieces=[("", "JSON in JSON")], joint="\\")
def test_no_declared_secret_is_left_in_any_form(
    declared: list[str], pieces: list[tuple[str, str]], joint: str
) -> None:
    text = joint.join(
        f"{before}{FORMS[form](declared[at % len(declared)])}"
        for at, (before, form) in enumerate(pieces)
    )
    hidden = Masker(declared).mask(text)
    assert [found for secret in declared for found in visible_forms(hidden, secret)] == []


def test_masking_one_secret_does_not_put_another_together() -> None:
    assert Masker(["a***b", "secret"]).mask("a" + "secret" + "b") == "***"


@given(text=st.text(characters))
def test_without_secrets_a_text_is_returned_as_it_is(text: str) -> None:
    assert Masker().mask(text) is text


@given(text=st.text(characters))
def test_a_text_without_a_secret_is_left_alone(text: str) -> None:
    assert Masker(["correct horse battery staple"]).mask(text) == text


ROWS = [
    # secrets                      text                                   masked
    (["hunter22"],                 "hunter22 hunter22x xhunter22",        "*** ***x x***"),
    (["abc"],                      "abc abcd xabc (abc) a=abc",           "*** abcd xabc (***) a=***"),
    (["7"],                        "7 17 7% 2027",                        "*** 17 ***% 2027"),
    (["", "   ", "\n"],            "a   b\n",                             "a   b\n"),
    (["token", "token-long"],      "token-long token",                    "*** ***"),
    (["line one\nline two"],       "> line two",                          "> ***"),
    (["line one\nline two"],       "line one\r\nline two",                "***"),
    (["{\n  \"k\": \"v1234\"\n}"], "{ \"k\": \"v1234\" }",                "{ *** }"),
    (["a b c d"],                  "a+b%20c d",                           "***"),
    (["pass'word"],                r"'pass'\''word'",                     "'***'"),
    (["caf\u00e9!"],               "caf\\u00E9!",                         "***"),
    (["caf\udcff!"],               "caf\udcff!",                          "***"),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "text", "expected"), ROWS)
def test_what_is_hidden_and_what_is_not(declared: list[str], text: str, expected: str) -> None:
    assert Masker(declared).mask(text) == expected


def test_a_long_secret_is_hidden_whole_and_in_base64() -> None:
    key = "".join(f"{number:07x}" for number in range(3 * PIECE_LENGTH // 7 + 1))
    masker = Masker([key])
    assert set(masker.mask(f"<{key}>")) == set("<>*")
    coded = base64.encodebytes(data(key)).decode()
    left = masker.mask(coded)
    assert max(map(len, left.split("***"))) < 4


def test_many_long_secrets_are_hidden_like_one() -> None:
    words = ["".join(word) for word in itertools.product("😀😁😂🤣", repeat=6)]
    size = PIECE_LENGTH // 6
    secrets = ["".join(words[at : at + size]) for at in range(0, 6 * size, size)]
    inside = secrets[2][90:110]
    masker = Masker([*secrets, inside])
    assert masker.mask("\n".join([*secrets, inside, "end"])) == "***\n" * 7 + "end"
    assert masker.mask(data(secrets[-1]).hex()) == "***"


def test_secrets_can_be_added_while_others_are_masking() -> None:
    masker = Masker()
    names = [f"secret-number-{number}" for number in range(40)]
    failures: list[str] = []

    def add_and_use(name: str) -> None:
        masker.add(name)
        if masker.mask(f"a {name} b") != "a *** b":
            failures.append(name)

    threads = [threading.Thread(target=add_and_use, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert failures == []
    assert masker.mask(" ".join(names)) == " ".join(["***"] * len(names))


def test_a_masker_does_not_show_what_it_hides() -> None:
    masker = Masker(["hunter22"])
    masker.mask("x")
    assert "hunter22" not in repr(masker)


def test_a_value_is_masked_at_any_depth_keys_included() -> None:
    mask = Masker(["hunter22"]).mask
    value = {"a": ["hunter22", 1, None, {"hunter22": True}], "b": Secret("other")}
    assert mask_value(value, mask) == {"a": ["***", 1, None, {"***": True}], "b": "***"}


def nested(depth: int) -> Any:
    value: Any = "hunter22"
    for _ in range(depth):
        value = [value]
    return value


def test_a_value_that_is_nested_deeply_is_masked_all_the_way_down() -> None:
    inner = mask_value(nested(100), Masker(["hunter22"]).mask)
    for _ in range(100):
        (inner,) = inner
    assert inner == "***"


def containing_itself() -> Any:
    endless: list[Any] = []
    endless += [endless, {"again": endless}]
    return endless


@pytest.mark.parametrize("value", [nested(5000), containing_itself()], ids=["deep", "endless"])
def test_a_value_that_is_nested_too_deeply_is_refused(value: Any) -> None:
    with pytest.raises(ValueRefusedError) as caught:
        mask_value(value, str)
    assert caught.value.what == "a value is nested too deeply, or contains itself"
