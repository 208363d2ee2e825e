"""Paired statistics against values worked out elsewhere."""

from __future__ import annotations

import math

import pytest

from prefixscope import paired


@pytest.mark.parametrize(("freedom", "value"), [(1, 12.706), (4, 2.776), (11, 2.201), (29, 2.045), (120, 1.980)])
def test_students_quantile(freedom: int, value: float) -> None:
    """The quantile is that of the tables, with few and with many degrees of freedom."""
    assert paired.t975(freedom) == pytest.approx(value, abs=0.0011)


def test_a_mean_of_pairs_has_the_t_interval() -> None:
    """Differences 1 to 5 have the mean 3 and the interval 3 ± 2.776 · 0.7071."""
    found = paired.mean([1, 2, 3, 4, 5])
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((3, 1.037, 4.963), abs=0.001)


def test_one_pair_has_no_interval_and_none_no_value() -> None:
    """One pair gives a value that nothing bounds; no pair gives None."""
    single = paired.mean([2.0])
    assert single is not None
    assert (single.value, single.low, single.sure) == (2.0, None, False)
    assert paired.mean([]) is None
    assert paired.ratio([(1.0, 0.0)]) is None


def test_ratios_are_averaged_on_the_log_scale() -> None:
    """Twice as fast once and half as fast once is no gain."""
    found = paired.ratio([(2, 1), (1, 2)])
    assert found is not None
    assert found.value == pytest.approx(1.0)
    assert found.low is not None
    assert found.high is not None
    assert math.log(found.low) == pytest.approx(-math.log(found.high))


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [(0, 0, 1.0), (5, 0, 0.0625), (6, 0, 0.03125), (8, 0, 0.0078125), (13, 0, 2**-12), (20, 12, 0.2153), (3, 3, 1.0)],
)
def test_mcnemar_is_exact(only_a: int, only_b: int, p: float) -> None:
    """The exact binomial p, the same in both directions, and 1 where nothing differs."""
    assert paired.mcnemar(only_a, only_b) == pytest.approx(p, abs=1e-4)
    assert paired.mcnemar(only_b, only_a) == paired.mcnemar(only_a, only_b)


def test_six_one_sided_pairs_are_the_fewest_that_tell() -> None:
    """Five pairs that all point one way could still be chance at 5 %."""
    assert paired.LEAST_ONE_SIDED == 6


def test_holm_steps_down() -> None:
    """The smallest p pays for all tests, the next for one fewer, and none falls below an earlier one."""
    assert paired.holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert paired.holm([]) == []
    assert paired.holm([0.6, 0.9]) == [1.0, 1.0]
