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


def test_a_comparisons_columns_are_called_by_what_is_compared() -> None:
    """With the arms' labels no heading says A or B; other columns keep theirs."""
    frame = pd.DataFrame({"metric": ["x"], "a": [1.0], "a_p10": [1.0], "b": [2.0], "b_p90": [2.0], "times": [0.5]})
    html = table(frame, arms=("MTP", "no MTP"))._repr_html_()
    heads = [one.split(">")[-1] for one in html.replace("\u00a0", " ").split("</th>")[:-1]]
    assert heads == ["what", "MTP", "MTP, 10 %", "no MTP", "no MTP, 90 %", "MTP ÷ no MTP"]


def test_numbers_stand_right_and_a_long_table_says_what_it_leaves_out() -> None:
    """Numeric columns align right, text left; beyond the limit the rest is counted."""
    frame = pd.DataFrame({"n": pd.array([1234, None], dtype="Int64"), "t": ["x", "y"]})
    html = table(frame, limit=1)._repr_html_()
    assert '<td style="text-align:right;padding:3px 12px;white-space:nowrap">1,234</td>' in html
    assert '<td style="text-align:left;padding:3px 12px;white-space:nowrap">x</td>' in html
    assert "and 1 more rows" in html


def test_an_empty_table_says_so() -> None:
    """No rows is a sentence, not an empty grid; a table can have its own."""
    assert "Nothing measured" in table(pd.DataFrame({"n": []}))._repr_html_()
    html = table(pd.DataFrame({"n": []}), missing="No answer <differs>.")._repr_html_()
    assert html == "<p>No answer &lt;differs&gt;.</p>"


@pytest.mark.parametrize(
    ("name", "value", "head", "shown"),
    [
        ("bytes", 3 * 2**20, "kept, MiB", "3.0"),
        ("bytes_per_block", 16_384, "block, KiB", "16.0"),
        ("acceptance", 0.714, "accepted, median", "71\u00a0%"),
        ("first_2_ms", 2345.6, "send 2, first token, ms", "2,346"),
        ("tokens_per_s", 98.13, "tokens/s, median", "98.1"),
        ("short_2", 110, "send 2, tokens short of full", "110"),
        ("bytes", None, "kept, MiB", "—"),
        ("my_own", 1234, "my own", "1,234"),
    ],
)
def test_a_heading_names_the_unit_of_its_column(name: str, value: object, head: str, shown: str) -> None:
    """Bytes are told in MiB, shares in per cent, times in ms, and the heading says which."""
    html = table(pd.DataFrame({name: [value]}))._repr_html_()
    assert f">{head}</th>" in html
    assert f">{shown}</td>" in html
