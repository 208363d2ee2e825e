"""Outcomes of somebody else's tests, in pairs; the diary's regression as far as its published numbers allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixscope import outcomes
from prefixscope.errors import RunError


def written(folder: Path, lines: list[str], header: str = "item,category,run 6,run 7") -> Path:
    file = folder / "outcomes.csv"
    file.write_text("\n".join([header, *lines]) + "\n")
    return file


def items(category: str, both: int = 0, only_a: int = 0, only_b: int = 0, neither: int = 0) -> list[str]:
    kinds = [("pass,pass", both), ("pass,fail", only_a), ("fail,pass", only_b), ("fail,fail", neither)]
    values = [value for value, many in kinds for _ in range(many)]
    return [f"{category}-{n},{category},{value}" for n, value in enumerate(values)]


def test_only_items_that_changed_tell(tmp_path: Path) -> None:
    """The test sees how many passed on one arm alone, whatever passed on both."""
    table = outcomes.read_outcomes(written(tmp_path, items("a", both=90, only_a=8, only_b=0, neither=2)))
    assert table.attrs["arms"] == ("run 6", "run 7")
    row = outcomes.paired_test(table).iloc[0]
    assert (row["items"], row["pass_a"], row["pass_b"], row["only_a"], row["only_b"]) == (100, 98, 90, 8, 0)
    assert row["p"] == pytest.approx(2 / 2**8)


def test_a_picked_category_pays_for_the_others(tmp_path: Path) -> None:
    """A category with p = 0.03 among five does not stand; named beforehand it does."""
    lines = items("cryptography", both=1, only_a=6) + [line for c in "abcd" for line in items(c, both=20, only_b=1)]
    table = outcomes.read_outcomes(written(tmp_path, lines))
    tested = outcomes.paired_test(table)
    worst = tested.iloc[1]
    assert (worst["category"], worst["p"], worst["p_holm"]) == ("cryptography", 0.03125, pytest.approx(0.15625))
    assert "does not stand" in outcomes.warnings(tested)[0]
    named = outcomes.paired_test(table, planned=["cryptography"])
    assert named.iloc[1]["p_holm"] == 0.03125
    assert outcomes.warnings(named) == []


def test_items_without_a_partner_are_counted_and_left_out(tmp_path: Path) -> None:
    """A blank outcome takes its item out of the test, and the row says how many."""
    row = outcomes.paired_test(outcomes.read_outcomes(written(tmp_path, ["x,c,1,", "y,c,1,0"]))).iloc[0]
    assert (row["items"], row["unpaired"]) == (1, 1)


@pytest.mark.parametrize(
    ("header", "line", "said"),
    [
        ("item,category,a", "1,c,1", "item, category, a"),
        ("name,a,b", "1,1,1", "name, a, b"),
        ("item,a,b", "1,maybe,1", "'maybe' is neither"),
        ("item,a,b", "1,1,1\n1,0,0", "more than once"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, header: str, line: str, said: str) -> None:
    """Other columns, another value, an item twice: refused with what was found."""
    with pytest.raises(RunError, match=said):
        outcomes.read_outcomes(written(tmp_path, [line], header))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A path that is not there is an error with the form that the file takes."""
    with pytest.raises(RunError, match="item,category,A,B"):
        outcomes.read_outcomes(tmp_path / "none.csv")


def test_no_outcomes_have_the_same_columns(tmp_path: Path) -> None:
    """Without a file the table is empty, with the columns that one would have."""
    tested = outcomes.paired_test(outcomes.read_outcomes(written(tmp_path, ["x,c,1,0"])))
    assert list(outcomes.none().columns) == list(tested.columns)


# --- the diary: 153 remediated before, 145 after; cryptography 83 % → 29 % ------------------------------------------


def test_the_totals_alone_decide_nothing() -> None:
    """153 against 145 of the same items: anything from p = 0.008 to far beyond 0.05, depending on who changed."""
    found = outcomes.bounds(153, 145, 180)
    assert (found.fewest_changed, found.most_changed) == (8, 62)
    assert found.lowest == pytest.approx(0.0078, abs=1e-4)
    assert found.highest > 0.3


def test_the_picked_category_stands_among_six_and_may_fall_among_seven() -> None:
    """20 against 7 of 24 is p ≤ 0.0072 by itself; picked as the worst of seven or more it need not be news."""
    # 24 items are the fewest of which 83 % and 29 % can both pass.
    found = outcomes.bounds(20, 7, 24)
    assert found.highest == pytest.approx(0.0072, abs=1e-4)
    assert 6 * found.highest < 0.05 < 7 * found.highest


def test_totals_of_different_items_are_refused() -> None:
    """More passed than there are items: the two totals are not of the same set."""
    with pytest.raises(RunError, match="of 150 items"):
        outcomes.bounds(153, 145, 150)
