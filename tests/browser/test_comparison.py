"""The comparison's page in a real Chromium with the network blocked."""

from __future__ import annotations

from pathlib import Path

import pytest
from cdp import Chromium
from data.make_pair import Row, edited, unchanged
from data.make_run import make_run
from pages import DRAWN, fits, is_quiet, opened

from prefixscope import comparison

pytestmark = pytest.mark.browser

CHARTS = 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 380])
def test_a_comparison_draws_offline_and_fits(chromium: Chromium, compared: Path, width: int, scheme: str) -> None:
    """At both widths and in both schemes every chart draws, nothing is requested, logged, cut off or run."""
    page = opened(chromium.page(width=width, scheme=scheme), compared)
    assert page.value("Number(document.documentElement.dataset.drawn)") == page.value(DRAWN) == CHARTS
    assert "goes from 0 to 6,336 cached tokens" in page.value("document.querySelector('h1').textContent")
    assert page.value("window.pwned ?? null") is None
    sections = page.value("[...document.querySelectorAll('main section')].map((section) => section.id)")
    assert sections == ["runs", "settings", "hits", "sweep", "rates", "equality", "doubts", "data"]
    is_quiet(page, compared)
    fits(page, width)


@pytest.mark.parametrize("width", [1440, 380])
def test_three_runs_with_long_names_are_drawn_whole(chromium: Chromium, tmp_path: Path, width: int) -> None:
    """The name of a panel that is too long for a line goes on in the next one, and what is said names its runs."""

    def less(row: Row) -> Row:
        known = row["kind"] == "send" and row["setting"]["lora"] and row["cached_tokens"]
        return {**row, "cached_tokens": row["cached_tokens"] - 64} if known else row

    runs = [make_run(tmp_path / "0", stages=("baseline",))]
    runs += [edited(make_run(tmp_path / n, stages=("baseline",)), less, run_id=n) for n in ("1", "2")]
    file = comparison.render_comparison(comparison.compare([str(run) for run in runs]), tmp_path / "page.html")
    page = opened(chromium.page(width=width), file)
    words = page.value("[...document.querySelectorAll('.live svg text')].map((text) => text.textContent)")
    assert any("gemma4-tiny-lora" in text for text in words)
    assert not [text for text in words if "…" in text]
    first = "(({scrollWidth, clientWidth}) => scrollWidth - clientWidth)(document.querySelector('.chart'))"
    assert page.value(first) == 0, "the first figure fits a phone"
    blamed = page.value("[...document.querySelectorAll('.first .quiet')].map((text) => text.textContent)")
    assert [text for text in blamed if text.startswith("Of what A and B tell of their settings, only this differs")]
    assert [text for text in blamed if text.startswith("Of what A and C tell of their settings, only this differs")]
    is_quiet(page, file)
    fits(page, width)


def test_runs_with_nothing_in_common_have_a_page(chromium: Chromium, tmp_path: Path) -> None:
    """Where nothing can be compared the page says why and draws nothing."""
    before = make_run(tmp_path / "before", stages=("baseline",))
    after = edited(make_run(tmp_path / "after", stages=()), unchanged)
    file = comparison.render_comparison(comparison.compare([str(before), str(after)]), tmp_path / "page.html")
    page = opened(chromium.page(width=380), file)
    assert "can't be compared: run B holds no measured request" in page.value(
        "document.querySelector('h1').textContent"
    )
    is_quiet(page, file)
    fits(page, 380)
