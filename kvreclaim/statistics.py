"""Mean, spread and confidence interval of a figure over sequences or seeds.

The unit is what was drawn anew: a sequence, or a seed. Layers and heads of one sequence, and steps
of one decoding run, are not replicates: they share a prompt and move together.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _checks
from kvreclaim._ratios import comparable
from kvreclaim.census import Census, require_census

_FEW: Final = 10  # events under which a t interval covers far less often than it says
_ROUNDING: Final = 1e-12  # of the largest value: a spread below it is that of rounding
_RESAMPLES: Final = 9999
_RESAMPLED: Final = 1_000_000  # units drawn in one piece of memory
_NO_INTERVAL: Final = (math.nan, math.nan)


@attrs.frozen(kw_only=True)
class Summary:
    """What a figure comes to over samples: its mean, its spread, and an interval for the mean.

    Parameters
    ----------
    mean
        The mean; of a ratio, the ratio of sums. nan without samples.
    sd
        Sample standard deviation (n - 1) of one sample: a spread, not an interval. nan for fewer
        than two samples.
    low, high
        Ends of the confidence interval of the mean; nan where the data allow none.
    confidence
        How often, in the long run, such an interval holds the true mean.
    num_samples
        Samples that count.
    method
        How the interval was made; the function that made it says how. ``"none"``: fewer than two
        samples. ``"constant"``: samples that are all the same and say nothing of their spread.

    Examples
    --------
    >>> print(summarize([0.45, 0.47, 0.5]))
    0.473 +- 0.025 (sd), 95 % 0.411 to 0.536, n = 3, t
    """

    mean: float = attrs.field(eq=comparable)
    sd: float = attrs.field(eq=comparable)
    low: float = attrs.field(eq=comparable)
    high: float = attrs.field(eq=comparable)
    confidence: float
    num_samples: int
    method: str

    def __str__(self) -> str:
        """Return the numbers on one line, of three decimals."""
        return (
            f"{self.mean:z.3f} +- {self.sd:.3f} (sd), {100 * self.confidence:g} % {self.low:z.3f} "
            f"to {self.high:z.3f}, n = {self.num_samples}, {self.method}"
        )


def summarize(
    values: ArrayLike, confidence: float = 0.95, *, bounds: tuple[float, float] | None = None
) -> Summary:
    """Return mean, sample standard deviation and t interval of a figure, one value for each sample.

    ``mean +- t(n - 1) * sd / sqrt(n)``, method ``"t"`` (Student 1908). It needs samples drawn
    independently; at 30 sequences it covers about what it says for figures away from 0 and 1, and
    far less where most values are the same, as 0 is for rare events: `summarize_ratio` on counts of
    blocks is for those.

    Equal values have a spread of 0, and an interval of no width would claim certainty. With
    `bounds` the interval then is the one that holds for any distribution within them: a value that
    comes up with probability ``p = 1 - (1 - confidence)**(1 / n)`` or less may well not have been
    seen, so the mean lies within ``p`` of the way from the value to either bound, method ``"rule of
    three"`` (p is about 3 / n at 95 %; Hanley and Lippman-Hand 1983). Without them there is none,
    method ``"constant"``.

    Parameters
    ----------
    values
        Finite numbers, shape (n,). Leave undefined ones out, and say how many they were.
    confidence
        Between 0 and 1.
    bounds
        The least and the greatest value that can be, such as ``(0, 1)`` for a share. A t interval
        is cut off there.

    Raises
    ------
    TypeError, ValueError
        For what is no list of finite numbers, values outside the bounds, and a confidence that is
        not between 0 and 1.

    Examples
    --------
    >>> summary = summarize([1, 2, 3, 4])
    >>> summary.mean, round(summary.sd, 4), round(summary.low, 4), round(summary.high, 4)
    (2.5, 1.291, 0.4457, 4.5543)
    >>> print(summarize([0.5] * 30, bounds=(0, 1)))
    0.500 +- 0.000 (sd), 95 % 0.452 to 0.548, n = 30, rule of three
    """
    return _summarized(_checks.as_samples("values", values).tolist(), confidence, bounds, "values")


def _summarized(
    samples: list[float], confidence: float, bounds: tuple[float, float] | None, name: str
) -> Summary:
    level = _checks.as_confidence(confidence)
    limits = None if bounds is None else _checks.as_bounds("bounds", bounds, samples, of=name)
    mean, sd = _mean_and_sd(samples)
    method, ends = _interval_of_mean(mean, sd, len(samples), level, limits)
    return _summary(mean, sd, method, ends, n=len(samples), level=level)


def summarize_ratio(
    numerators: ArrayLike,
    denominators: ArrayLike,
    *,
    confidence: float = 0.95,
    binomial: bool = True,
    rng: np.random.Generator | None = None,
) -> Summary:
    """Return a ratio of sums over sequences, such as freed blocks over blocks, and its interval.

    The figure of a pool is ``R = sum(x) / sum(y)``, which weighs each sequence by what it holds; a
    mean of ratios weighs short and long ones alike, and answers another question. `sd` is that of
    the linearised ratio, ``z = (x - R * y) / mean(y)``: where all denominators are equal, that of
    the ratios. Where the denominators sum to 0, R is nan.

    The interval is, as `method` says:

    ``"linearised t"``
        ``R +- t(n - 1) * sd(z) / sqrt(n)`` (Cochran 1977, chapter 6). It is not cut off at 0 or 1.
    ``"bootstrap"``
        With an `rng`: bias-corrected and accelerated, 9,999 resamples of sequences (Efron 1987).
    ``"Clopper-Pearson"``
        For counts of events: where fewer than 10 of them, or all but fewer than 10, came up, or
        every sequence has the same ratio, neither of the two has anything to go by (over 30
        sequences that free a block in a thousand they cover about 3 times in 4). Then denominators
        are taken as independent trials, numerators as successes (Clopper and Pearson 1934).
    ``"Korn-Graubard"``
        The same where the events come in clusters: successes and trials are first divided by the
        `design_effect`, if that is above 1 (Korn and Graubard 1998, without their correction of
        its degrees of freedom).
    ``"constant"``, ``"none"``
        No interval: every sequence has the same ratio, and these are no counts; fewer than two
        sequences, or a bootstrap of so few that resamples have no ratio.

    Parameters
    ----------
    numerators, denominators
        One number for each sequence, shape (n,), the denominators at least 0. A sequence that has 0
        in both is left out. Or k numbers for each, shape (n, k): then the ratio is that of the
        products of the k sums, as reclaim efficiency is (free blocks * entries) / (blocks * evicted
        entries).
    confidence
        Between 0 and 1.
    binomial
        False: never take the numbers as counts of events. For integers that come in long runs, such
        as evicted tokens, which are no independent trials. True has no effect on floats, on
        numerators outside 0 to their denominators, and on several columns.
    rng
        Source of the bootstrap's resamples; None: no bootstrap.

    Raises
    ------
    TypeError, ValueError
        For what are no finite numbers, different numbers of sequences, a denominator below 0, and a
        confidence that is not between 0 and 1.

    Examples
    --------
    >>> print(summarize_ratio([5, 20, 33], [10, 40, 80]))
    0.446 +- 0.057 (sd), 95 % 0.305 to 0.588, n = 3, linearised t
    >>> print(summarize_ratio([0] * 30, [48] * 30))
    0.000 +- 0.000 (sd), 95 % 0.000 to 0.003, n = 30, Clopper-Pearson
    """
    tops = _checks.as_samples("numerators", numerators, columns=True)
    bottoms = _checks.as_samples("denominators", denominators, columns=True)
    _checks.refuse_unpaired("denominators", bottoms, "numerators", tops)
    _checks.refuse_negative("denominators", bottoms)
    _checks.refuse_huge("numerators", tops)
    _checks.refuse_huge("denominators", bottoms)
    level = _checks.as_confidence(confidence)
    events = _checks.as_flag("binomial", binomial)
    source = None if rng is None else _checks.as_rng(rng)
    told = tops.any(axis=1) | bottoms.any(axis=1)
    tops, bottoms = tops[told], bottoms[told]
    ratio, parts = _linearised(tops, bottoms)
    n, sd = len(tops), _mean_and_sd(parts)[1]
    method, ends = "none", _NO_INTERVAL
    counts = _as_events(tops, bottoms) if events else None
    if math.isnan(sd):
        pass
    elif counts is not None and (sd == 0 or min(counts[0], counts[1] - counts[0]) < _FEW):
        clustered = _design_effect(ratio, sd, n, counts[1])
        effect = clustered if clustered > 1 else 1.0  # it is nan where no event came up
        method = "Clopper-Pearson" if effect == 1 else "Korn-Graubard"
        ends = _clopper_pearson(counts[0] / effect, counts[1] / effect, level)
    elif sd == 0:
        method = "constant"
    elif source is None:
        method, ends = "linearised t", _t_interval(ratio, sd, n, level)
    else:
        ends = _bootstrap(tops, bottoms, level, source)
        method = "none" if math.isnan(ends[0]) else "bootstrap"
    return _summary(ratio, sd, method, ends, n=n, level=level)


def design_effect(numerators: ArrayLike, denominators: ArrayLike) -> float:
    """Return how many times the binomial variance a ratio of counts really has, over sequences.

    ``(var(z) / n) / (R * (1 - R) / sum(y))`` with R and z of `summarize_ratio`; at least 0. 1:
    blocks come free as if each were drawn by itself, and a binomial interval on blocks is right;
    under 1, as a fixed budget makes it: that is wider than it need be; 2: the blocks are worth half
    their number, and it is too narrow. nan where R is 0 or 1, without denominators, and for fewer
    than two sequences. Kish (1965).

    Parameters
    ----------
    numerators, denominators
        Integers for each sequence, 0 <= numerator <= denominator, such as freed blocks and blocks.
        A sequence that has 0 in both is left out.

    Raises
    ------
    TypeError, ValueError
        For what are no such counts.

    Examples
    --------
    >>> round(design_effect([4, 6, 5, 5], [10, 10, 10, 10]), 4)
    0.2667
    """
    tops = _checks.as_samples("numerators", numerators, columns=True)
    bottoms = _checks.as_samples("denominators", denominators, columns=True)
    _checks.refuse_unpaired("denominators", bottoms, "numerators", tops)
    if _as_events(tops, bottoms) is None:
        raise ValueError(
            "numerators must be counts among denominators, integers with 0 <= numerator <= "
            "denominator; got others; write such as freed blocks and blocks of each sequence."
        )
    told = bottoms.any(axis=1)
    ratio, parts = _linearised(tops[told], bottoms[told])
    if math.isnan(ratio):
        return math.nan
    return _design_effect(ratio, _mean_and_sd(parts)[1], len(parts), int(bottoms.sum()))


def reclaim_interval(census: Census, confidence: float = 0.95) -> Summary:
    """Return the physical reclaim of one census with an interval made of its blocks alone.

    Clopper and Pearson (1934) on free blocks of blocks, as if each block came free by itself; nan
    without blocks. `sd` is that of one block, free or not, and `num_samples` are the blocks. It
    covers at least what it says where `design_effect` is at most about 1, as for budgets fixed for
    each sequence, even where no block, or nearly none, comes free. It is too narrow where blocks
    come free in clusters, or sequences differ; that shows only over several sequences, whose
    censuses `summarize_ratio` takes apart.

    Parameters
    ----------
    census
        What `take_census` returned.
    confidence
        Between 0 and 1.

    Raises
    ------
    TypeError, ValueError
        For what is no Census, and a confidence that is not between 0 and 1.

    Examples
    --------
    >>> from kvreclaim import take_census
    >>> print(reclaim_interval(take_census([1, 0] * 720, 1)))
    0.500 +- 0.500 (sd), 95 % 0.474 to 0.526, n = 1440, Clopper-Pearson
    """
    require_census(census)
    level = _checks.as_confidence(confidence)
    free, blocks = census.num_freed_blocks, census.num_blocks
    if blocks == 0:
        return _summary(math.nan, math.nan, "none", _NO_INTERVAL, n=0, level=level)
    variance = free * (blocks - free) / (blocks * (blocks - 1)) if blocks > 1 else math.nan
    ends = _clopper_pearson(free, blocks, level)
    return _summary(
        free / blocks, math.sqrt(variance), "Clopper-Pearson", ends, n=blocks, level=level
    )


def paired_difference(
    a: ArrayLike,
    b: ArrayLike,
    confidence: float = 0.95,
    *,
    bounds: tuple[float, float] | None = None,
) -> Summary:
    """Return the mean of ``a - b`` over the same sequences, with a paired t interval.

    `summarize` of the differences, method ``"paired t"``. What a sequence gives to both, such as
    its length, drops out; so it takes fewer sequences to tell two policies apart than two
    intervals side by side do.

    Parameters
    ----------
    a, b
        Finite numbers, shape (n,): the same sequences in the same order. A sequence for which one
        of them is undefined must be left out of both.
    confidence
        Between 0 and 1.
    bounds
        The least and the greatest difference that can be, ``(-1, 1)`` for shares; as in
        `summarize`.

    Raises
    ------
    TypeError, ValueError
        As `summarize`; and for different numbers of values.

    Examples
    --------
    >>> print(paired_difference([0.5, 0.6, 0.7], [0.4, 0.51, 0.59]))
    0.100 +- 0.010 (sd), 95 % 0.075 to 0.125, n = 3, paired t
    """
    first, second = _checks.as_samples("a", a), _checks.as_samples("b", b)
    _checks.refuse_unpaired("b", second, "a", first)
    differences = [one - two for one, two in zip(first.tolist(), second.tolist(), strict=True)]
    summary = _summarized(differences, confidence, bounds, "a - b")
    return attrs.evolve(summary, method="paired t") if summary.method == "t" else summary


def _summary(
    mean: float, sd: float, method: str, ends: tuple[float, float], *, n: int, level: float
) -> Summary:
    return Summary(
        mean=mean,
        sd=sd,
        low=ends[0],
        high=ends[1],
        confidence=level,
        num_samples=n,
        method=method,
    )


def _mean_and_sd(samples: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation, 0 where the spread is of rounding."""
    n = len(samples)
    if n == 0:
        return math.nan, math.nan
    least, most = min(samples), max(samples)
    # A power of two near the largest, so that neither the sum nor the squares leave the range.
    size = math.ldexp(1.0, math.frexp(max(abs(least), abs(most)))[1] - 1)
    mean = size * (math.fsum(value / size for value in samples) / n)
    if n == 1:
        return mean, math.nan
    rounding = 0.0 if all(isinstance(value, int) for value in samples) else _ROUNDING
    if most - least <= rounding * max(abs(least), abs(most)):
        return float(least), 0.0
    squares = math.fsum(((value - mean) / size) ** 2 for value in samples)
    return mean, size * math.sqrt(squares / (n - 1))


def _interval_of_mean(
    mean: float, sd: float, n: int, confidence: float, limits: tuple[float, float] | None
) -> tuple[str, tuple[float, float]]:
    """Return how an interval can be made of samples, and the interval."""
    if math.isnan(sd):
        return "none", _NO_INTERVAL
    if sd == 0 and limits is None:
        return "constant", _NO_INTERVAL
    if limits is None:
        return "t", _t_interval(mean, sd, n, confidence)
    least, most = limits
    if sd == 0:
        unseen = -math.expm1(math.log1p(-confidence) / n)
        return "rule of three", (mean - unseen * (mean - least), mean + unseen * (most - mean))
    low, high = _t_interval(mean, sd, n, confidence)
    return "t", (max(low, least), min(high, most))


def _linearised(
    tops: NDArray[np.float64 | np.int64], bottoms: NDArray[np.float64 | np.int64]
) -> tuple[float, list[float]]:
    """Return the ratio of the products of sums, and n times what each sequence adds to it, centred.

    The derivative of the ratio to each sum, times the sequence's part of that sum.
    """
    above, below = _sums(tops), _sums(bottoms)
    whole = math.prod(below)
    if not whole:
        return math.nan, []
    ratio = math.prod(above) / whole
    n = len(tops)
    slopes = [math.prod(above[:k] + above[k + 1 :]) / whole for k in range(len(above))]
    added = [
        n * math.fsum(part * slope for part, slope in zip(row, slopes, strict=True))
        for row in tops.tolist()
    ]
    taken = [
        n * ratio * math.fsum(part / total for part, total in zip(row, below, strict=True))
        for row in bottoms.tolist()
    ]
    parts = [one - other for one, other in zip(added, taken, strict=True)]
    # Rounding is judged beside the terms, since their difference may have no size of its own.
    size = max(map(abs, added + taken))
    return ratio, [0.0] * n if max(parts) - min(parts) <= _ROUNDING * size else parts


def _sums(columns: NDArray[np.float64 | np.int64]) -> list[float]:
    """Return the sum of each column, exact for integers, rounded once for floats."""
    add = math.fsum if columns.dtype.kind == "f" else sum
    return [add(column) for column in columns.T.tolist()]


def _as_events(
    tops: NDArray[np.float64 | np.int64], bottoms: NDArray[np.float64 | np.int64]
) -> tuple[int, int] | None:
    """Return successes and trials where these are counts of them; else None."""
    whole = tops.dtype.kind in "iu" and bottoms.dtype.kind in "iu"
    if not whole or tops.shape[1] > 1 or bottoms.shape[1] > 1:
        return None
    if bool((tops < 0).any()) or bool((tops > bottoms).any()):
        return None
    return sum(tops[:, 0].tolist()), sum(bottoms[:, 0].tolist())


def _design_effect(ratio: float, sd: float, n: int, trials: int) -> float:
    binomial = ratio * (1 - ratio) / trials
    return sd**2 / n / binomial if binomial else math.nan


def _t_interval(mean: float, sd: float, n: int, confidence: float) -> tuple[float, float]:
    from scipy.special import stdtrit

    margin = -float(stdtrit(n - 1, (1 - confidence) / 2)) * sd / math.sqrt(n)
    return mean - margin, mean + margin


def _clopper_pearson(successes: float, trials: float, confidence: float) -> tuple[float, float]:
    """Return the probabilities under which so many successes, or more, or fewer, are too rare."""
    from scipy.special import betaincinv

    failures, tail = trials - successes, (1 - confidence) / 2
    low = float(betaincinv(successes, failures + 1, tail)) if successes > 0 else 0.0
    high = 1 - float(betaincinv(failures, successes + 1, tail)) if failures > 0 else 1.0
    return low, high


def _bootstrap(
    tops: NDArray[np.float64 | np.int64],
    bottoms: NDArray[np.float64 | np.int64],
    confidence: float,
    rng: np.random.Generator,
) -> tuple[float, float]:
    from scipy.stats import bootstrap

    above, below = tops.astype(np.float64), bottoms.astype(np.float64)

    def ratio(drawn: NDArray[np.int64], axis: int) -> NDArray[np.float64]:
        sums = [
            math.prod(column[drawn].sum(axis=axis) for column in columns.T)
            for columns in (above, below)
        ]
        return np.asarray(sums[0] / sums[1])

    n = len(tops)
    with (
        np.errstate(divide="ignore", invalid="ignore"),  # resamples of nothing in the denominator
        warnings.catch_warnings(action="ignore"),  # of which SciPy warns as well as saying nan
    ):
        found = bootstrap(
            (np.arange(n),),
            ratio,
            n_resamples=_RESAMPLES,
            batch=max(1, _RESAMPLED // n),
            vectorized=True,
            confidence_level=confidence,
            method="BCa",
            random_state=rng,  # its name in every SciPy since 1.13
        ).confidence_interval
    return float(found.low), float(found.high)
