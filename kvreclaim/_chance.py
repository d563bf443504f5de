"""How many blocks have so many live tokens, by chance: laws of counts, inverted from their means.

`Blocks` are the sizes of the blocks of one table, each with how many there are. Evicting exactly
k of N tokens is evicting each with probability k / N and conditioning on the number. The mean of
w ** count, for w on the unit circle, is then a coefficient of a product of small polynomials, read
off by a Fourier sum; a second one over w gives the law of the count. No term exceeds 1, so that
errors stay what rounding makes of 1, where those of inclusion and exclusion would grow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Blocks: TypeAlias = dict[int, int]
"""How many blocks there are of each size: the whole ones, and perhaps a first and a last."""

_Complex: TypeAlias = NDArray[np.complex128]

# What the Fourier sums leave out is less likely than exp(-46), 1e-20.
_NEGLIGIBLE: Final = 46.0
# Values of a Fourier sum that are held at a time: 16 MiB of complex numbers.
_AT_A_TIME: Final = 1 << 20
_TINIEST: Final = -1100.0  # log2 of what no float holds, with room for what it is multiplied by


def cut(num_tokens: int, block_size: int, offset: int) -> Blocks:
    """Return the sizes of the blocks of a table, in tokens."""
    first = min(num_tokens, block_size - offset)
    whole, last = divmod(num_tokens - first, block_size)
    blocks: Blocks = {}
    for size, count in ((block_size, whole), (first, 1), (last, 1)):
        if size and count:
            blocks[size] = blocks.get(size, 0) + count
    return blocks


def most_free(blocks: Blocks, num_evicted: int) -> int:
    """Return the most blocks that so many tokens can fill: the smallest first."""
    free = 0
    for size in sorted(blocks):
        some = min(blocks[size], num_evicted // size)
        free, num_evicted = free + some, num_evicted - some * size
    return free


def power(base: Fraction, exponent: int) -> Fraction:
    """Return a share to a power, or 0 where no float would hold it."""
    if base in {0, 1}:
        return base if exponent else Fraction(1)
    log = math.log2(base.numerator) - math.log2(base.denominator)
    return Fraction(0) if exponent * log < _TINIEST else base**exponent


def fixed_moments(blocks: Blocks, num_tokens: int, num_evicted: int) -> tuple[float, float]:
    """Return mean and variance of the free blocks where exactly so many tokens are evicted.

    The chance that v given tokens are evicted is a ratio of falling factorials; all are brought to
    one denominator, so that each figure is one division of integers.
    """
    single = list(blocks.items())
    double = [(2 * v, n * (n - 1)) for v, n in single]
    double += [(v + w, 2 * n * m) for i, (v, n) in enumerate(single) for w, m in single[:i]]
    widest = max((v for v, n in single + double if n), default=0)

    def ways(terms: list[tuple[int, int]]) -> int:
        return sum(
            n * math.perm(num_evicted, v) * math.perm(num_tokens - v, widest - v)
            for v, n in terms
            if n
        )

    whole = math.perm(num_tokens, widest)
    mean, pairs = ways(single), ways(double)
    return mean / whole, ((pairs + mean) * whole - mean * mean) / (whole * whole)


def independent_law(blocks: Blocks, q: Fraction) -> tuple[float, float, NDArray[np.float64]]:
    """Return mean, variance and law of the free blocks where tokens are evicted by themselves."""
    chances = {size: power(q, size) for size in blocks}
    mean = math.fsum(n * float(chances[v]) for v, n in blocks.items())
    variance = math.fsum(n * float(chances[v]) * float(1 - chances[v]) for v, n in blocks.items())
    num_blocks = sum(blocks.values())
    if variance == 0.0:
        return mean, 0.0, _certain(num_blocks, round(mean))
    window = _window(mean, variance, num_blocks)
    turn = _turns(len(window))
    logs = np.zeros(len(turn), np.complex128)
    for size, count in blocks.items():
        logs += _times(count, _log1p((turn - 1) * float(chances[size])))
    return mean, variance, _inverted(np.exp(logs), window, num_blocks)


def fixed_law(blocks: Blocks, num_tokens: int, num_evicted: int) -> NDArray[np.float64]:
    """Return the law of the free blocks where exactly so many tokens are evicted."""
    num_blocks = sum(blocks.values())
    most = most_free(blocks, num_evicted)
    least = max(0, num_blocks - (num_tokens - num_evicted))
    if most == least:
        return _certain(num_blocks, most)
    law = next(laws_by_live(blocks, num_tokens, num_evicted))
    law[:least] = law[most + 1 :] = 0.0
    return np.asarray(law / math.fsum(law))


def laws_by_live(
    blocks: Blocks, num_tokens: int, num_evicted: int
) -> Iterator[NDArray[np.float64]]:
    """Yield the law of how many blocks have at most x live tokens, for x = 0, 1, ...

    It is an array over 0, 1, ... all blocks. Neither all tokens nor none are evicted.
    """
    circle = _circle(num_tokens, num_evicted)
    num_blocks = sum(blocks.values())
    # Conditioning makes nothing likelier than by num_tokens + 1, and there are so many blocks.
    never = math.exp(-_NEGLIGIBLE) / (num_tokens + 1) / num_blocks
    lows = {size: np.zeros(len(circle.angles), np.complex128) for size in blocks}
    chances = {size: _live_chances(size, num_tokens, num_evicted) for size in blocks}
    for live in range(max(blocks) + 1):
        for size in blocks:
            if live <= size:
                rare = live if circle.live_is_rare else size - live
                lows[size] = lows[size] + chances[size][live] * circle.power(rare)
        if all(chances[size][: live + 1].sum() < never for size in blocks):
            yield _certain(num_blocks, 0)
        elif all(chances[size][live + 1 :].sum() < never for size in blocks):
            yield _certain(num_blocks, num_blocks)
        else:
            shares = {size: circle.share(size, low) for size, low in lows.items()}
            mean = math.fsum(n * shares[v] for v, n in blocks.items())
            spread = math.fsum(n * shares[v] * (1 - shares[v]) for v, n in blocks.items())
            window = _window(mean, spread, num_blocks)
            means = _conditioned(circle, blocks, lows, _turns(len(window)))
            yield _inverted(means, window, num_blocks)


def markov_law(
    num_blocks: int, share: Fraction, leave: Fraction, enter: Fraction, size: int
) -> NDArray[np.float64]:
    """Return the law of the free blocks: a recursion over blocks, by whether the last token died.

    All terms are chances, so nothing cancels.
    """
    if float(share) == 0:  # no float tells it from 0, and the ratios below need one
        return _certain(num_blocks, 0)
    stay = power(1 - leave, size - 1)
    decay = float(1 - leave - enter) ** size
    # From a dead last token, and from a live one, to the next block's: free, or dead at the end.
    free = float((1 - leave) * stay), float(enter * stay)
    ends_dead = float(share) + float(1 - share) * decay, float(share) * (1 - decay)
    not_free = [max(0.0, ends - all_dead) for ends, all_dead in zip(ends_dead, free, strict=True)]
    dead = np.zeros(num_blocks + 1)
    live = np.zeros(num_blocks + 1)
    dead[0], live[0] = float(share), float(1 - share)
    for _ in range(num_blocks):
        freed = dead * free[0] + live * free[1]
        dead, live = (
            dead * not_free[0] + live * not_free[1],
            dead * (1 - ends_dead[0]) + live * (1 - ends_dead[1]),
        )
        dead[1:] += freed[:-1]
    return np.asarray(dead + live)


class _Circle(NamedTuple):
    """Points of the unit circle at which a polynomial's coefficient is read off."""

    num_tokens: int
    target: int  # the rarer of dead and live tokens: how many they are
    live_is_rare: bool
    angles: NDArray[np.float64]
    log_one: _Complex  # log(1 + chance * (z - 1)): one token

    def power(self, exponent: int) -> _Complex:
        """Return z ** exponent."""
        points = len(self.angles)
        turns = np.arange(points) * (exponent % points) % points
        return np.asarray(np.exp(2j * np.pi / points * turns))

    def coefficient(self, logs: _Complex) -> _Complex:
        """Return the coefficient of z ** target of polynomials, given by their logarithms."""
        return np.asarray((np.exp(logs) * self.power(-self.target)).mean(axis=-1))

    def share(self, size: int, low: _Complex) -> float:
        """Return the chance of what `low` says of a block of this size, given the target."""
        others = np.exp(_times(self.num_tokens - size, self.log_one)) * self.power(-self.target)
        whole = self.coefficient(_times(self.num_tokens, self.log_one))
        return min(1.0, max(0.0, float((others * low).mean().real / whole.real)))


def _circle(num_tokens: int, num_evicted: int) -> _Circle:
    """Return so many points that other coefficients weigh nothing (Hoeffding's inequality).

    The target is the most likely number, hence has a chance of at least 1 / (num_tokens + 1).
    """
    target = min(num_evicted, num_tokens - num_evicted)
    room = _NEGLIGIBLE + math.log(2 * (num_tokens + 1))
    points = min(num_tokens + 1, math.ceil(math.sqrt(num_tokens * room / 2)) + 1)
    angles = np.linspace(0.0, 2 * np.pi, points, endpoint=False, dtype=np.float64)
    angles[angles > np.pi] -= 2 * np.pi
    step = 2j * np.sin(angles / 2) * np.exp(0.5j * angles)  # z - 1, exact near 1
    log_one = _log1p(target / num_tokens * step)
    return _Circle(num_tokens, target, target != num_evicted, angles, log_one)


def _conditioned(
    circle: _Circle, blocks: Blocks, lows: dict[int, _Complex], turn: _Complex
) -> _Complex:
    """Return the means of turn ** count, given the number of evicted tokens."""
    outside = circle.num_tokens - sum(v * n for v, n in blocks.items())
    less_one = {size: _expm1(_times(size, circle.log_one)) for size in blocks}
    rows = max(1, _AT_A_TIME // len(circle.angles))
    means: list[_Complex] = []
    for start in range(0, len(turn), rows):
        some = turn[start : start + rows, None]
        logs = _times(outside, circle.log_one)
        for size, count in blocks.items():
            logs = logs + _times(count, _log1p(less_one[size] + (some - 1) * lows[size]))
        means.append(circle.coefficient(logs))
    mean = np.concatenate(means)
    return np.asarray(mean / mean[0])


def _inverted(means: _Complex, window: range, num_blocks: int) -> NDArray[np.float64]:
    """Return the law whose means of w ** count these are, and which is 0 outside of the window."""
    chances = np.roll(np.fft.irfft(means.conj(), len(window)), -window.start)
    chances = np.maximum(chances, 0.0)  # which rounding may leave a little below
    law = np.zeros(num_blocks + 1)
    law[window.start : window.stop] = chances / math.fsum(chances)
    return law


def _turns(points: int) -> _Complex:
    """Return the upper half of the roots of unity, since the lower half mirrors it."""
    return np.asarray(np.exp(2j * np.pi / points * np.arange(points // 2 + 1)))


def _window(mean: float, spread: float, num_blocks: int) -> range:
    """Return the counts outside which nothing happens (Bernstein's inequality).

    `spread` is the sum of the variances of the blocks. Blocks under a fixed budget are negatively
    associated, for which the inequality holds as for independent ones (Joag-Dev and Proschan,
    Annals of Statistics 11, 1983).
    """
    reach = _NEGLIGIBLE / 3 + math.sqrt((_NEGLIGIBLE / 3) ** 2 + 2 * _NEGLIGIBLE * spread) + 1
    return range(max(0, math.floor(mean - reach)), min(num_blocks, math.ceil(mean + reach)) + 1)


def _live_chances(size: int, num_tokens: int, num_evicted: int) -> NDArray[np.float64]:
    """Return the binomial chances of 0, 1, ... size live tokens, from the likeliest outwards."""
    num_live = num_tokens - num_evicted
    live = np.arange(1, size + 1)
    ratio = (size - live + 1) / live * (num_live / num_evicted)
    top = min(size, (size + 1) * num_live // num_tokens)
    upward = np.cumprod(ratio[top:])
    downward = np.cumprod(1 / ratio[:top][::-1])[::-1]
    chances = np.concatenate((downward, [1.0], upward))
    return np.asarray(chances / math.fsum(chances))


def _certain(num_blocks: int, count: int) -> NDArray[np.float64]:
    law = np.zeros(num_blocks + 1)
    law[count] = 1.0
    return law


def _times(count: int, logs: _Complex) -> _Complex:
    """Return a multiple of logarithms, of which that of 0 would make nan of a complex product."""
    return np.asarray(count * logs.real + 1j * (count * logs.imag))


def _log1p(values: _Complex) -> _Complex:
    from scipy.special import log1p

    return np.asarray(log1p(values), np.complex128)


def _expm1(values: _Complex) -> _Complex:
    from scipy.special import expm1

    return np.asarray(expm1(values), np.complex128)
