"""Against SciPy where it is installed, and always against what SciPy 1.17.1 gave (`binomtest`, its Wilson interval)."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.statistics import Paired, binomial_tail, difference_interval, one_sided, paired, two_sided, wilson

counts = st.integers(0, 200)
few = settings(max_examples=50, deadline=None)

# (gained, lost) -> binomtest(gained, gained + lost).pvalue with alternative "greater", and two-sided
SCIPY_BINOMIAL = {
    (1, 0): (0.5, 1.0),
    (5, 0): (0.03125, 0.0625),
    (9, 1): (0.0107421875, 0.021484375),
    (25, 3): (1.372024416923523e-05, 2.744048833847046e-05),
    (3, 25): (0.9999984838068485, 2.744048833847046e-05),
    (10, 10): (0.5880985260009766, 1.0),
    (41, 0): (4.547473508864641e-13, 9.094947017729282e-13),
    (12, 15): (0.7789658308029175, 0.7011080384254456),
}
# (solved, mazes) -> binomtest(solved, mazes).proportion_ci(0.95, method="wilson")
SCIPY_WILSON = {
    (0, 64): (0.0, 0.05662405979280534),
    (19, 64): (0.19905151325539794, 0.41770201103542925),
    (28, 64): (0.3229400970440308, 0.5591379104300699),
    (51, 64): (0.6828636426898583, 0.8772658218081634),
    (64, 64): (0.9433759402071946, 1.0),
    (1, 1): (0.20654931437723745, 1.0),
}


@pytest.mark.parametrize(("gained", "lost"), SCIPY_BINOMIAL)
def test_mcnemar_is_scipys_binomial_test_on_the_discordant_pairs(gained: int, lost: int) -> None:
    greater, both = SCIPY_BINOMIAL[gained, lost]
    found = Paired(both=30, gained=gained, lost=lost, neither=4)
    assert found.better == pytest.approx(greater, rel=1e-12)
    assert found.differs == pytest.approx(both, rel=1e-12)
    assert Paired(both=0, gained=lost, lost=gained, neither=99).worse == found.better


@pytest.mark.parametrize(("solved", "mazes"), SCIPY_WILSON)
def test_wilsons_interval_is_scipys(solved: int, mazes: int) -> None:
    assert wilson(solved, mazes) == pytest.approx(SCIPY_WILSON[solved, mazes], rel=1e-12, abs=1e-12)


@few
@given(counts, counts)
def test_with_scipy_installed_all_of_it_agrees(gained: int, lost: int) -> None:
    stats = pytest.importorskip("scipy.stats", reason="SciPy is not installed: the values it gave are compared above")
    if gained + lost:
        assert one_sided(gained, lost) == pytest.approx(stats.binomtest(gained, gained + lost, alternative="greater").pvalue, rel=1e-9)
        assert two_sided(gained, lost) == pytest.approx(stats.binomtest(gained, gained + lost).pvalue, rel=1e-9)
        interval = stats.binomtest(gained, gained + lost).proportion_ci(method="wilson")
        assert wilson(gained, gained + lost) == pytest.approx((interval.low, interval.high), abs=1e-12)


@few
@given(st.integers(0, 12), st.integers(0, 12))
def test_the_tail_is_what_counting_every_outcome_gives(gained: int, lost: int) -> None:
    tries = min(12, gained + lost)
    least = min(gained, tries)
    outcomes = list(product((0, 1), repeat=tries))
    assert binomial_tail(least, tries) == sum(sum(each) >= least for each in outcomes) / len(outcomes)


def test_no_discordant_pair_proves_nothing() -> None:
    found = Paired(both=50, gained=0, lost=0, neither=14)
    assert (found.better, found.worse, found.differs, found.difference) == (1.0, 1.0, 1.0, 0.0)


def test_a_tail_of_nothing_is_refused() -> None:
    for least, tries in ((-1, 3), (4, 3)):
        with pytest.raises(ValueError):
            binomial_tail(least, tries)


def test_newcombes_interval_is_the_one_of_his_paper() -> None:
    # Statistics in Medicine 17 (1998), 2635-2650, table II: 36, 12, 2, 0 gives 0.0569 to 0.3404 by method 10.
    assert difference_interval(Paired(both=36, gained=12, lost=2, neither=0)) == pytest.approx((0.0569, 0.3404), abs=5e-5)


@few
@given(counts, counts, counts, counts)
def test_the_interval_holds_the_difference_and_turns_around_with_the_sides(both: int, gained: int, lost: int, neither: int) -> None:
    found = Paired(both, gained, lost, neither)
    low, high = difference_interval(found)
    assert -1 <= low <= found.difference + 1e-9
    assert found.difference - 1e-9 <= high <= 1
    back_low, back_high = difference_interval(Paired(both, lost, gained, neither))
    assert (back_low, back_high) == pytest.approx((-high, -low), abs=1e-9)
    if found.mazes:
        assert found.after - found.before == pytest.approx(found.difference, abs=1e-12)


def test_only_the_same_mazes_are_compared() -> None:
    assert paired({1: True, 2: False, 3: True, 4: False}, {4: False, 3: False, 2: True, 1: True}) == Paired(1, 1, 1, 1)
    with pytest.raises(ValueError, match="2 mazes were played in one evaluation only"):
        paired({1: True, 2: False}, {1: True, 3: False})
