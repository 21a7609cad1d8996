"""The tests behind a verdict: exact, for paired mazes, and written out, since the product needs no SciPy for three sums.

Baseline and candidate play the same mazes, so what counts is where they differ: McNemar's test, exact, which is a binomial test
on the discordant pairs (McNemar, Psychometrika 12, 1947). Checked against scipy.stats in tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from training.solve_rate import NORMAL_95, wilson

__all__ = ["Paired", "binomial_tail", "difference_interval", "one_sided", "paired", "two_sided", "wilson"]


@dataclass(frozen=True)
class Paired:
    """Two evaluations of the same mazes. `gained`: only the second solved it; `lost`: only the first did."""

    both: int
    gained: int
    lost: int
    neither: int

    @property
    def mazes(self) -> int:
        """How many mazes were compared."""
        return self.both + self.gained + self.lost + self.neither

    @property
    def before(self) -> float:
        """Solve rate of the first, over the mazes compared."""
        return (self.both + self.lost) / self.mazes if self.mazes else 0.0

    @property
    def after(self) -> float:
        """Solve rate of the second, over the mazes compared."""
        return (self.both + self.gained) / self.mazes if self.mazes else 0.0

    @property
    def difference(self) -> float:
        """Second minus first."""
        return (self.gained - self.lost) / self.mazes if self.mazes else 0.0

    @property
    def better(self) -> float:
        """Chance of so many gains or more, did both solve equally well: small says that the second is better."""
        return one_sided(self.gained, self.lost)

    @property
    def worse(self) -> float:
        """Chance of so many losses or more, did both solve equally well: small says that the second is worse."""
        return one_sided(self.lost, self.gained)

    @property
    def differs(self) -> float:
        """McNemar's exact test, two-sided."""
        return two_sided(self.gained, self.lost)


def paired(first: Mapping[int, bool], second: Mapping[int, bool]) -> Paired:
    """Compare by seed. Raises ValueError unless both tell of the same mazes: others would not be paired."""
    if first.keys() != second.keys():
        raise ValueError(f"{len(first.keys() ^ second.keys())} mazes were played in one evaluation only")
    counts = {(a, b): 0 for a in (True, False) for b in (True, False)}
    for seed in first:
        counts[first[seed], second[seed]] += 1
    return Paired(both=counts[True, True], gained=counts[False, True], lost=counts[True, False], neither=counts[False, False])


def one_sided(successes: int, failures: int) -> float:
    """Chance of at least so many successes among all, each as likely as a failure; 1 without any."""
    return binomial_tail(successes, successes + failures)


def two_sided(one: int, other: int) -> float:
    """Exact two-sided binomial test of a fair coin: twice the smaller tail, at most 1."""
    return min(1.0, 2 * binomial_tail(max(one, other), one + other))


def binomial_tail(least: int, tries: int) -> float:
    """Chance that a fair coin thrown `tries` times shows heads `least` times or more. Exact: whole numbers, one division."""
    if not 0 <= least <= tries:
        raise ValueError(f"{least} of {tries}")
    return sum(math.comb(tries, heads) for heads in range(least, tries + 1)) / (1 << tries)


def difference_interval(found: Paired, z: float = NORMAL_95) -> tuple[float, float]:
    """95 % interval of the difference of paired solve rates: Newcombe's hybrid score interval for pairs.

    Newcombe, Statistics in Medicine 17 (1998), 2635-2650, method 10. (-1, 1) without mazes.
    """
    n = found.mazes
    if n == 0:
        return -1.0, 1.0
    a, b, c, d = found.both, found.lost, found.gained, found.neither
    first, second = (a + b) / n, (a + c) / n
    low1, high1 = wilson(a + b, n, z)
    low2, high2 = wilson(a + c, n, z)
    product = (a + b) * (c + d) * (a + c) * (b + d)
    if product == 0:
        phi = 0.0
    else:
        lead: float = a * d - b * c
        # Newcombe's continuity correction keeps the correlation from being taken for too high.
        lead = max(lead - n / 2, 0) if lead > 0 else lead
        phi = lead / math.sqrt(product)
    difference = second - first
    down = (second - low2) ** 2 - 2 * phi * (second - low2) * (high1 - first) + (high1 - first) ** 2
    up = (high2 - second) ** 2 - 2 * phi * (high2 - second) * (first - low1) + (first - low1) ** 2
    return max(-1.0, difference - math.sqrt(max(0.0, down))), min(1.0, difference + math.sqrt(max(0.0, up)))
