"""No name or output of a run becomes HTML."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.web.ansi import to_markup
from plait.web.html import Markup, join, tag, visible
from web.browse import Outline

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "</pre></main><iframe src=//evil>",
    "<!--",
    "]]>",
    "&lt;script&gt;",
    "javascript:alert(1)",
    "\x1b[31m<b>red</b>\x1b[0m",
    "\x1b]8;;javascript:alert(1)\x07click\x1b]8;;\x07",
    "\x1b]0;title\x07\x1b[2J\x1b[999D",
    "\u202etxt.exe\u202c",
    "\u2066a\u2069\u200f\ufeff",
    "\x00\x08\x9b31m",
    "\ud800",
)
texts = st.one_of(
    st.text(alphabet=st.characters(), max_size=40),
    st.lists(st.sampled_from(HOSTILE), min_size=1, max_size=3).map("".join),
)


@given(texts)
def test_a_text_adds_no_element_and_no_attribute(text: str) -> None:
    page = Outline(tag("p", text, title=text, data_x=text).text)
    assert page.elements == ["p"]
    assert [name for name, _ in page.attributes] == ["title", "data-x"]


@given(texts)
def test_output_becomes_only_spans_with_classes(text: str) -> None:
    page = Outline(to_markup(text).text)
    assert set(page.elements) <= {"span"}
    assert all(name == "class" for name, _ in page.attributes)
    assert all(set(value) <= set("a-bdiursfg0123456789 ") for _, value in page.attributes)
    assert "\x1b" not in page.words
    assert not set(page.words) & set("\u202e\u202a\u2066\u2067\u2068\u200f\ufeff\x00\x08\x9b")


REFUSED = [
    # element   attributes
    ("script",  {}),
    ("style",   {}),
    ("iframe",  {}),
    ("a b",     {}),
    ("p",       {"onclick": "x"}),
    ("p",       {"ONCLICK": "x"}),
    ("p",       {"style": "x"}),
    ("a",       {"href": "javascript:alert(1)"}),
    ("a",       {"href": "//evil.example"}),
    ("a",       {"href": "/\\evil.example"}),
    ("a",       {"href": "https://evil.example"}),
    ("img",     {"src": "data:text/html;base64,AAAA"}),
    ("form",    {"action": "http://evil.example"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "attributes"), REFUSED)
def test_no_element_can_do_anything_by_itself(name: str, attributes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"here|server"):
        tag(name, **attributes)


def test_a_text_is_not_markup() -> None:
    with pytest.raises(TypeError, match=r"text becomes Markup by tag\(\), join\(\) or trusted\(\)"):
        Markup("<b>")
    assert join("<b>", tag("i", "x")).text == "&lt;b&gt;<i>x</i>"


COLOURS = [
    # output                             html
    ("plain",                            "plain"),
    ("\x1b[31mred\x1b[0m.",              '<span class="a-f1">red</span>.'),
    ("\x1b[1;4;92mx",                    '<span class="a-b a-u a-f10">x</span>'),
    ("\x1b[38;5;196mx\x1b[39my",         '<span class="a-f9">x</span>y'),
    ("\x1b[48;2;0;0;255mx",              '<span class="a-g12">x</span>'),
    ("\x1b[38;5mx",                      '<span class="a-f0">x</span>'),
    ("\x1b[99999mx",                     "x"),
    (f"\x1b[{'9' * 5000}mx",             "x"),
    ("a\x1b[2Kb\x1b]0;t\x07c",           "abc"),
    ("10%\r20%\r30%\nend",               "30%\nend"),
    ("a\r\nb",                           "a\nb"),
    ("<&>",                              "&lt;&amp;&gt;"),
]  # fmt: skip


@pytest.mark.parametrize(("output", "html"), COLOURS)
def test_colours_of_a_terminal_are_classes(output: str, html: str) -> None:
    assert to_markup(output).text == html


def test_a_long_line_takes_no_longer_than_its_length() -> None:
    start = time.process_time()
    assert to_markup("a" * 100_000).text == "a" * 100_000
    assert time.process_time() - start < 2  # it was the square: half a minute


def test_invisible_characters_are_shown() -> None:
    assert visible("a\u202eb\x00c\td\ne") == "a\ufffdb\ufffdc\td\ne"
