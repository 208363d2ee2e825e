"""Frames as notebooks show them."""

from __future__ import annotations

import pandas as pd
import pytest

from prefixscope import table
from prefixscope.tables import text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (6446, "6,446"),
        (0, "0"),
        (None, "—"),
        (pd.NA, "—"),
        (float("nan"), "—"),
        (True, "yes"),
        (0.25, "0.25"),
        ("a", "a"),
    ],
)
def test_a_cell_says_what_is_known(value: object, shown: str) -> None:
    """Numbers get thousands separators, unknown is a dash, and zero is zero."""
    assert text(value) == shown


def test_text_of_a_server_is_inert() -> None:
    """Markup in a cell or a heading is escaped."""
    html = table(pd.DataFrame({"<b>": ["<script>alert(1)</script>"]}))._repr_html_()
    assert "<script>" not in html
    assert "<b>" not in html


def test_numbers_stand_right_and_a_long_table_says_what_it_leaves_out() -> None:
    """Numeric columns align right, text left; beyond the limit the rest is counted."""
    frame = pd.DataFrame({"n": pd.array([1234, None], dtype="Int64"), "t": ["x", "y"]})
    html = table(frame, limit=1)._repr_html_()
    assert '<td style="text-align:right;padding:3px 12px">1,234</td>' in html
    assert '<td style="text-align:left;padding:3px 12px">x</td>' in html
    assert "and 1 more rows" in html


def test_an_empty_table_says_so() -> None:
    """No rows is a sentence, not an empty grid."""
    assert "Nothing measured" in table(pd.DataFrame({"n": []}))._repr_html_()
