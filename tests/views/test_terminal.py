"""Text for a terminal: its columns."""

from __future__ import annotations

from plait.views.terminal import format_table


def test_columns_of_a_table_stay_in_line_beside_wide_characters() -> None:
    table = [("FLOW", "FILE"), ("日本", "a"), ("e\u0301t", "b")]
    assert list(format_table(table, None)) == ["FLOW   FILE", "日本   a", "e\u0301t     b"]
