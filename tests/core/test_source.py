"""A place draws itself: file, line, column, the line, and carets under the exact characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.source import MAX_DRAWN_COLUMNS, Excerpt, Source, Span, draw

DRAWN = [
    # text              start, end    position  drawing
    ("abc",             1, 2,         (1, 2),   "1 | abc\n  |  ^"),
    ("abc",             0, 3,         (1, 1),   "1 | abc\n  | ^^^"),
    ("abc",             3, 3,         (1, 4),   "1 | abc\n  |    ^"),
    ("abc",             1, 1,         (1, 2),   "1 | abc\n  |  ^"),
    ("",                0, 0,         (1, 1),   "1 | \n  | ^"),
    ("a\nbc\n",         2, 4,         (2, 1),   "2 | bc\n  | ^^"),
    ("a\nbc\n",         3, 5,         (2, 2),   "2 | bc\n  |  ^"),
    ("a\r\nbc",         3, 4,         (2, 1),   "2 | bc\n  | ^"),
    ("ab\ncd",          1, 5,         (1, 2),   "1 | ab\n  |  ^"),
    ("a\tb",            1, 2,         (1, 2),   "1 | a\tb\n  |  ^"),
    ("\tx",             1, 2,         (1, 2),   "1 | \tx\n  | \t^"),
    ("é😀x",            2, 3,         (1, 3),   "1 | é😀x\n  |   ^"),
    ("a\x1b[31mb",      6, 7,         (1, 7),   "1 | a�[31mb\n  |       ^"),
    ("a" + "\n" * 11 + "b", 12, 13,   (12, 1),  "12 | b\n   | ^"),
    ("abc",             90, 99,       (1, 4),   "1 | abc\n  |    ^"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "start", "end", "position", "drawing"), DRAWN)
def test_a_span_draws_its_line(
    text: str, start: int, end: int, position: tuple[int, int], drawing: str
) -> None:
    span = Span(Source("f", text), start, end)
    assert span.position == position
    assert str(span) == f"f:{position[0]}:{position[1]}"
    assert span.draw() == drawing


def test_spans_of_one_line_are_drawn_together_and_others_apart() -> None:
    source = Source("f", "ab cd\nef")
    assert draw([Span(source, 0, 2), Span(source, 3, 5), Span(source, 6, 8)]) == (
        "1 | ab cd\n  | ^^ ^^\n2 | ef\n  | ^^"
    )


def test_a_very_long_line_is_cut_around_its_first_caret() -> None:
    line = "x" * 1000 + "HERE" + "y" * 1000
    drawing = Span(Source("f", line), 1000, 1004).draw()
    shown, carets = drawing.split("\n")
    assert shown == "1 | …" + "x" * 40 + "HERE" + "y" * (MAX_DRAWN_COLUMNS - 44) + "…"
    assert carets == "  |  " + " " * 40 + "^^^^"
    assert shown.index("HERE") == carets.index("^")


@given(text=st.text(max_size=60), data=st.data())
def test_the_first_caret_stands_under_the_first_character(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    source = Source("f", text)
    line, column = source.position(start)
    shown, carets = Span(source, start, start + 1).draw().split("\n")
    assert carets.index("^") == len(f"{line} | ") + column - 1
    assert len(shown) == len(f"{line} | {source.line(line)}")


@given(text=st.text(alphabet="ab\n\r", max_size=30))
def test_positions_count_lines_from_one(text: str) -> None:
    source = Source("f", text)
    for offset in range(len(text) + 1):
        before = text[:offset]
        assert source.position(offset) == (
            before.count("\n") + 1,
            offset - (before.rfind("\n") + 1) + 1,
        )


# ── excerpts ─────────────────────────────────────────────────────────────


def test_an_excerpt_places_itself_in_the_outer_file() -> None:
    outer = Source("flow.yaml", "a: |\n  x ${y}\n  z\n")
    # The scalar lost two columns of indentation on each of its lines.
    excerpt = Excerpt(
        "flow.yaml", "x ${y}\nz\n", outer=outer, origin=lambda at: at + 7 if at < 7 else at + 9
    )
    span = Span(excerpt, 2, 6)
    assert str(span) == "flow.yaml:2:5"
    assert span.draw() == "2 |   x ${y}\n  |     ^^^^"
    assert span.place == Span(outer, 9, 13)


def test_an_excerpt_of_an_excerpt_reaches_the_file() -> None:
    outer = Source("f", "0123456789")
    middle = Excerpt("m", "23456", outer=outer, origin=lambda at: at + 2)
    inner = Excerpt("i", "45", outer=middle, origin=lambda at: at + 2)
    assert Span(inner, 0, 2).place == Span(outer, 4, 6)
    assert Span(inner, 1, 1).place == Span(outer, 5, 5)
