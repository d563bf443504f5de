"""Synthetic importance scores, each with a geometry that is known.

A score says what it costs to evict a token. How large the scores are decides what eviction loses;
where the small ones lie decides which blocks come free. None is negative; all have the given shape:
``num_tokens``, or a shape that ends in it, whose other axes are independent rows.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks

# No draw of NumPy's normals exceeds 13.8, and no uniform number is below 2^-53.
_MOST_SIGMA: Final = 50.0  # exp(50 * 13.8) < 1e300
_LEAST_ALPHA: Final = 0.1  # 2^(53 / 0.1) < 1e160
_CUT: Final = 4.0  # standard deviations at which the filter cuts a Gaussian
_NONE: Final = 0.01  # a scale that smooths nothing: the filter is a single 1


def lognormal(
    num_tokens: _checks.Shape, sigma: float = 1.0, *, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return scores ``exp(sigma * z)`` of independent normal z: skewed, without any geometry.

    Evicting the lowest share q loses ``Phi(Phi^-1(q) - sigma)`` of the whole importance: 0.159 at
    q = 0.5 and sigma = 1, since attention mass sits in few tokens.

    Parameters
    ----------
    num_tokens
        Tokens, or a shape that ends in them.
    sigma
        Standard deviation of the logarithm, above 0 and at most 50.
    rng
        The source of randomness.

    Returns
    -------
    numpy.ndarray
        Scores above 0, as float64.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> lognormal((2, 64), rng=np.random.default_rng(0)).shape
    (2, 64)
    """
    shape = _checks.as_shape("num_tokens", num_tokens)
    width = _as_sigma(sigma)
    return np.exp(width * _checks.as_rng(rng).standard_normal(shape))


def uniform(num_tokens: _checks.Shape, *, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return scores spread evenly over 0 to 1, independent: the mildest skew, without geometry.

    Evicting the lowest share q loses ``q^2`` of the whole importance. Parameters and errors are
    those of `lognormal`.

    Examples
    --------
    >>> bool(uniform(64, rng=np.random.default_rng(0)).max() <= 1)
    True
    """
    shape = _checks.as_shape("num_tokens", num_tokens)
    return 1.0 - _checks.as_rng(rng).random(shape)


def exponential(num_tokens: _checks.Shape, *, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return independent exponential scores of mean 1: a light tail, without geometry.

    Evicting the lowest share q loses ``q + (1 - q) ln(1 - q)`` of the whole importance. Parameters
    and errors are those of `lognormal`.

    Examples
    --------
    >>> exponential(64, rng=np.random.default_rng(0)).shape
    (64,)
    """
    shape = _checks.as_shape("num_tokens", num_tokens)
    return _checks.as_rng(rng).standard_exponential(shape)


def pareto(
    num_tokens: _checks.Shape, alpha: float = 1.5, *, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return independent scores with a power-law tail, ``P(score > x) = x^-alpha`` from 1 up.

    The heaviest tail here: its mean exists for alpha above 1, its variance above 2. Evicting the
    lowest share q loses ``1 - (1 - q)^(1 - 1 / alpha)`` of the whole importance in expectation.
    Parameters are those of `lognormal`, and `alpha`, at least 0.1.

    Examples
    --------
    >>> bool(pareto(64, rng=np.random.default_rng(0)).min() >= 1)
    True
    """
    shape = _checks.as_shape("num_tokens", num_tokens)
    power = _checks.as_positive("alpha", alpha)
    if power < _LEAST_ALPHA:
        raise ValueError(
            f"alpha must be at least {_LEAST_ALPHA}, so that scores stay within the range of a "
            f"float; got {power}; write more."
        )
    return (1.0 - _checks.as_rng(rng).random(shape)) ** (-1.0 / power)


def two_level(
    num_tokens: _checks.Shape, run: int = 16, share: float = 0.9, *, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return scores of cold and hot runs with strays: clusters as long as a block, not clean.

    The tokens are cut into runs of `run`; half of them (rounded down), chosen at random, are cold.
    A token of a cold run is low with probability `share`, of a hot run with ``1 - share``; low ones
    score between 0 and 1, high ones between 1 and 2. Evicting the low ones from aligned blocks
    leaves the cold blocks nearly empty: compaction then gains
    ``(1 - share^run) / (1 - share)`` slots for each slot that it moves.

    Parameters
    ----------
    num_tokens
        Tokens, or a shape that ends in them.
    run
        Tokens of a run; a last one may be shorter. One of all tokens is hot.
    share
        Share of a cold run that is low, from 0 to 1: 0.5 is no geometry, 1 clean runs.
    rng
        The source of randomness.

    Returns
    -------
    numpy.ndarray
        Scores above 0 and at most 2, as float64.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> scores = two_level(8, run=4, share=1.0, rng=np.random.default_rng(0))
    >>> (scores <= 1).tolist()
    [True, True, True, True, False, False, False, False]
    """
    shape = _checks.as_shape("num_tokens", num_tokens)
    length = min(_checks.as_count("run", run, minimum=1), max(1, shape[-1]))
    cold_share = _checks.as_share("share", share)
    source = _checks.as_rng(rng)
    runs = -(-shape[-1] // length)
    cold = source.permuted(
        np.broadcast_to(np.arange(runs) < runs // 2, (*shape[:-1], runs)), axis=-1
    )
    low_share = np.where(cold, cold_share, 1.0 - cold_share).repeat(length, axis=-1)
    low = source.random(shape) < low_share[..., : shape[-1]]
    return np.where(low, 1.0, 2.0) - source.random(shape)


def smooth_field(
    num_tokens: _checks.Shape,
    rho: float,
    *,
    scale: float = 48.0,
    sigma: float = 1.0,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Return lognormal scores whose low ones cluster as much as rho says.

    ``exp(sigma * z)``, where z is ``(1 - rho) * noise + rho * field`` brought back to variance 1;
    `noise` is independent and normal, `field` the same smoothed by a Gaussian of standard deviation
    `scale` tokens around a ring. At rho = 0 the scores are those of `lognormal`, at any rho each
    single score is distributed alike. At rho = 1 the evicted half lies in runs of
    ``pi * sqrt(2) * scale`` tokens on average (Rice's formula): 213 at the default, a run for each
    27 blocks of 16.

    Parameters
    ----------
    num_tokens
        Tokens, or a shape that ends in them.
    rho
        Spatial correlation, from 0 (none) to 1 (a smooth field).
    scale
        Standard deviation of the smoothing in tokens, above 0. Far below 1 it smooths nothing, far
        above the tokens all of a row have one value.
    sigma
        Standard deviation of the logarithm of a score, above 0 and at most 50.
    rng
        The source of randomness.

    Returns
    -------
    numpy.ndarray
        Scores above 0, as float64.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> smooth_field((2, 64), 0.5, rng=np.random.default_rng(0)).shape
    (2, 64)
    """
    shape = _checks.as_shape("num_tokens", num_tokens)
    weight = _checks.as_share("rho", rho)
    smoothing = _checks.as_positive("scale", scale)
    width = _as_sigma(sigma)
    source = _checks.as_rng(rng)
    if 0 in shape:
        return np.zeros(shape)
    noise, rough = source.standard_normal((2, *shape))
    field = _smoothed(rough, smoothing)
    blend: NDArray[np.float64] = ((1.0 - weight) * noise + weight * field) / math.hypot(
        1.0 - weight, weight
    )
    return np.exp(width * blend)


def _smoothed(rough: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """Return noise of variance 1, smoothed around a ring by a Gaussian, of variance 1 again."""
    tokens = rough.shape[-1]
    if _CUT * scale < tokens:
        from scipy import ndimage

        near = max(scale, _NONE)
        impulse = np.zeros(tokens)
        impulse[0] = 1.0
        kernel: NDArray[np.float64] = ndimage.gaussian_filter1d(impulse, near, mode="wrap")
        field: NDArray[np.float64] = ndimage.gaussian_filter1d(rough, near, axis=-1, mode="wrap")
        field /= math.sqrt(np.square(kernel).sum())
        return field
    # Wound around the ring, a Gaussian is one of frequencies; at whole tokens k / tokens is also
    # k / tokens + 1, which counts where the scale is about 1.
    turns = np.arange(-2, 3)[:, None] + np.arange(tokens // 2 + 1) / tokens
    passed = np.exp(-2.0 * np.square(math.pi * turns * min(scale, _CUT * tokens))).sum(axis=0)
    twice = np.where((np.arange(len(passed)) * 2) % tokens == 0, 1.0, 2.0)  # k and tokens - k
    energy = float((twice * np.square(passed)).sum()) / tokens
    spectrum = np.fft.rfft(rough, axis=-1) * (passed / math.sqrt(energy))
    around: NDArray[np.float64] = np.fft.irfft(spectrum, n=tokens, axis=-1)
    return around


def _as_sigma(sigma: object) -> float:
    """Return a standard deviation with which scores stay within 1e300."""
    width = _checks.as_positive("sigma", sigma)
    if width > _MOST_SIGMA:
        raise ValueError(
            f"sigma must be at most {_MOST_SIGMA}, so that scores stay within the range of a "
            f"float; got {width}; write less."
        )
    return width
