"""Text of a run is text in Markdown."""

from __future__ import annotations

import pytest

from plait.views.markdown import escape

TEXTS = [
    # text                   Markdown in which GitHub finds no link and no mention
    ("plain, 1.5 s",         "plain, 1.5 s"),
    ("<b> [x](y)",           "&#60;b&#62; &#91;x&#93;(y)"),
    ("see www.evil.example", "see www&#46;evil.example"),
    ("WWW.evil.example",     "WWW&#46;evil.example"),
    ("http://evil.example",  "http&#58;//evil.example"),
    ("me@evil.example",      "me&#64;<!-- -->evil.example"),
    ("@everybody",           "&#64;<!-- -->everybody"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "markdown"), TEXTS)
def test_text_is_escaped(text: str, markdown: str) -> None:
    assert escape(text) == markdown
