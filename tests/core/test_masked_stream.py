"""A text that comes in pieces is masked like the whole text."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from plait.core.masking import MaskedStream, Masker

SECRET, LONG = "s3cr3t/To ken'42", "abcdefgh" * 30
MASKER = Masker([SECRET, LONG])
PIECES = (
    SECRET,
    LONG,
    base64.b64encode(SECRET.encode()).decode(),
    base64.encodebytes(b"a" + LONG.encode()).decode(),
    SECRET.encode().hex(),
    quote(SECRET),
    json.dumps(SECRET),
    SECRET[:5],
    " word ",
    "\n",
)


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.lists(st.integers(1, 40), min_size=1))
def test_a_stream_is_masked_like_the_whole_text(parts: list[str], sizes: list[int]) -> None:
    whole, stream, shown, at = "".join(parts), MaskedStream(MASKER.mask, MASKER.safe_length), "", 0
    for number in range(len(whole)):
        size = sizes[number % len(sizes)]
        shown += stream.write(whole[at : at + size])
        at += size
    assert shown + stream.finish() == MASKER.mask(whole)


ROWS = [
    # text          how much may be shown now
    ("hello\n", 6),
    ("hello s3c", 6),
    ("hello %7", 6),
    ("hello", 5),
]


def test_only_what_could_begin_a_secret_waits() -> None:
    assert [(text, MASKER.safe_length(text)) for text, _ in ROWS] == ROWS
