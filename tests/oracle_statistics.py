"""Every interval a second time: Fractions, sums over all outcomes, and nothing of the library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 5: 2.571, 10: 2.228, 29: 2.045, 30: 2.042, 120: 1.980}
"""Student's t, two-sided 95 %, by degrees of freedom, as tables of it print them."""

Row = Sequence[Fraction]


def mean(values: Sequence[float]) -> Fraction:
    return sum(map(Fraction, values), Fraction()) / len(values)


def variance(values: Sequence[float]) -> Fraction:
    """Of a sample: over n - 1."""
    centre = mean(values)
    return sum(((Fraction(x) - centre) ** 2 for x in values), Fraction()) / (len(values) - 1)


def ratio(tops: Sequence[Row], bottoms: Sequence[Row], weights: Sequence[Fraction]) -> Fraction:
    """The products of weighted sums of the columns, one over the other."""
    found = Fraction(1)
    for column in zip(*tops, strict=True):
        found *= _weighted(column, weights)
    for column in zip(*bottoms, strict=True):
        found /= _weighted(column, weights)
    return found


def _weighted(column: Sequence[Fraction], weights: Sequence[Fraction]) -> Fraction:
    return sum((x * w for x, w in zip(column, weights, strict=True)), Fraction())


def influences(tops: Sequence[Row], bottoms: Sequence[Row]) -> list[Fraction]:
    """n times how fast the ratio changes as each sequence is given more weight: by doing so."""
    n = len(tops)
    step = Fraction(1, 10**7)
    found = []
    for i in range(n):
        more, less = (
            ratio(tops, bottoms, [1 + sign * step * (j == i) for j in range(n)]) for sign in (1, -1)
        )
        found.append(n * (more - less) / (2 * step))
    return found


def textbook_variance(numerators: Sequence[int], denominators: Sequence[int]) -> Fraction:
    """Cochran's variance of a ratio of sums: that of x - R y, over n and the squared mean of y."""
    n = len(numerators)
    whole = Fraction(sum(numerators), sum(denominators))
    residuals = [x - whole * y for x, y in zip(numerators, denominators, strict=True)]
    squares = sum((residual**2 for residual in residuals), Fraction())
    return squares / (n - 1) / n / Fraction(sum(denominators), n) ** 2


def at_least(successes: int, trials: int, share: Fraction) -> Fraction:
    """The probability of so many successes or more, outcome by outcome."""
    return sum(
        (
            math.comb(trials, k) * share**k * (1 - share) ** (trials - k)
            for k in range(successes, trials + 1)
        ),
        Fraction(),
    )
