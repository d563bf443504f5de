"""Closed forms: what scatter, windows and clusters must give, whatever the policy that makes them.

Everything here predicts from a few numbers and never sees a census. All but `free_block_bounds`,
`max_reclaim_efficiency` and what follows from a given mask are expectations of a model: a mask may
lie on either side of them. Numbers are taken as fractions, a float as the decimal that it is
written as, and divided once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from itertools import accumulate
from numbers import Real
from typing import Final, TypeAlias

import attrs
import numpy as np
from numpy.typing import ArrayLike

from kvreclaim import _chance, _checks

Number: TypeAlias = float | Fraction
"""A float, or a fraction for which the result is computed exactly and rounded once."""

_TOKENS_AT_A_TIME: Final = 1 << 20


@attrs.frozen(kw_only=True)
class Distribution:
    """How many blocks come free by chance.

    Parameters
    ----------
    mean, variance
        Of the number of free blocks.
    pmf
        Chance of 0, 1, ... free blocks, up to all; within 1e-12 for up to 30,000 blocks, 1e-10 for
        more, and 0 where that cannot be.
    """

    mean: float
    variance: float
    pmf: tuple[float, ...]

    @property
    def sd(self) -> float:
        """Standard deviation of the number of free blocks."""
        return math.sqrt(self.variance)


def independent_reclaim(q: Number, block_size: int) -> float:
    """Return the expected physical reclaim where each token is evicted by itself with chance q.

    ``q ** block_size``, from 0 to 1. An expectation and not a lower bound: keeping every second
    token evicts half of them and frees nothing.

    Parameters
    ----------
    q
        Chance that a token is evicted: the expected logical saving.
    block_size
        Slots of a block, 1 to 65,535.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> independent_reclaim(0.5, 16)
    1.52587890625e-05
    """
    share, size = _checks.as_exact("q", q), _checks.as_block_size(block_size)
    return float(_chance.power(share, size))


def independent_efficiency(q: Number, block_size: int) -> float:
    """Return the expected reclaim over the expected saving where tokens are evicted independently.

    ``q ** (block_size - 1)``, from 0 to 1; at ``q = 0`` its limit. A ratio of expectations of a
    model, not a bound. Parameters and errors are those of `independent_reclaim`.

    Examples
    --------
    >>> independent_efficiency(0.75, 4)
    0.421875
    """
    share, size = _checks.as_exact("q", q), _checks.as_block_size(block_size)
    return float(_chance.power(share, size - 1))


def independent_fragmentation(q: Number, block_size: int) -> float:
    """Return the fragmentation of many blocks whose tokens are evicted independently.

    ``1 - (1 - q) / (1 - q ** block_size)``, from 0 to 1; nan at ``q = 1``, where nothing is held.
    The limit of `random_fragmentation` for long sequences. Parameters and errors are those of
    `independent_reclaim`.

    Examples
    --------
    >>> independent_fragmentation(0.5, 2)
    0.3333333333333333
    """
    share, size = _checks.as_exact("q", q), _checks.as_block_size(block_size)
    if share == 1:
        return math.nan
    held = 1 - _chance.power(share, size)
    return float((held - (1 - share)) / held)


def independent_moves_per_evicted_token(q: Number, block_size: int) -> float:
    """Return what a full compaction moves for each evicted token, where blocks are many.

    ``sum over x of max(0, q - F(x)) / (q * block_size)`` with F the cdf of the live tokens of a
    block, Binomial(block_size, 1 - q); from 0 to 1; nan at ``q = 0``, where nothing is evicted. For
    ``q = 1/2`` and an even block size it is ``(1 - C(B, B/2) / 2 ** B) / 2``. It is the limit of
    `random_moves`, since the emptiest blocks, a share q of all, are evacuated. The time grows with
    the square of the block size. Parameters and errors are those of `independent_reclaim`.

    Examples
    --------
    >>> independent_moves_per_evicted_token(0.5, 2)
    0.25
    """
    share, size = _checks.as_exact("q", q), _checks.as_block_size(block_size)
    if share == 0:
        return math.nan
    # All over one denominator, so that each term follows from the one before in integers.
    dead, whole = share.numerator, share.denominator
    term, rank = dead**size, dead * whole ** (size - 1)
    below, moved = 0, 0
    for live in range(size):
        below += term
        if below >= rank:
            break
        moved += rank - below
        term = term * (size - live) * (whole - dead) // ((live + 1) * dead)
    return float(moved / (rank * size))


def two_level_slots_per_move(p: Number, block_size: int) -> float:
    """Return the slots that come free per move where half of the blocks are emptier by design.

    ``(1 - p ** block_size) / (1 - p)``, from 1 to block_size: half of the blocks lose a token with
    chance p, half keep it with chance p, and compaction evacuates the first half. The limit for
    many blocks; fewer moves will do where p is so near 1/2 that the halves mix. nan at ``p = 1``,
    where nothing is left to move.

    Parameters
    ----------
    p
        Chance that a token of the emptier half is evicted, from 1/2 to 1.
    block_size
        Slots of a block, 1 to 65,535.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> two_level_slots_per_move(0.5, 2)
    1.5
    """
    share, size = _checks.as_exact("p", p), _checks.as_block_size(block_size)
    if share < Fraction(1, 2):
        raise ValueError(
            f"p must be from 1/2 to 1, the chance of the emptier half; got {_checks.shown(p)}; "
            "write 1 - p."
        )
    if share == 1:
        return math.nan
    return float((1 - _chance.power(share, size)) / (1 - share))


def independent_free_blocks(
    num_tokens: int, q: Number, block_size: int, offset: int = 0
) -> Distribution:
    """Return how many blocks come free where each token is evicted by itself with chance q.

    The sum of one coin for each block, heads with chance ``q ** (its tokens)``. Parameters are
    those of `random_free_blocks` and `independent_reclaim`.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> chance = independent_free_blocks(3, 0.5, 2)
    >>> chance.mean, chance.variance, [round(p, 12) for p in chance.pmf]
    (0.75, 0.4375, [0.375, 0.5, 0.125])
    """
    tokens, size, before = _table(num_tokens, block_size, offset)
    share = _checks.as_exact("q", q)
    with _tiny_as_zero():
        mean, variance, law = _chance.independent_law(_chance.cut(tokens, size, before), share)
    return Distribution(mean=mean, variance=variance, pmf=tuple(law.tolist()))


def random_free_blocks(
    num_tokens: int, num_evicted: int, block_size: int, offset: int = 0
) -> Distribution:
    """Return how many blocks come free where exactly so many tokens are evicted at random.

    The mean is the sum over the blocks of ``C(N - v, k - v) / C(N, k)``, v the tokens of a block.
    It is at most that of independent eviction at ``q = k / N``, and the variance at most the sum of
    ``p * (1 - p)`` over the blocks, p the chance of each: blocks compete for one budget. Both are
    exact and rounded once.

    Parameters
    ----------
    num_tokens
        Tokens of the sequence, N.
    num_evicted
        How many of them are evicted, k; each choice of so many is as likely.
    block_size
        Slots of a block, 1 to 65,535.
    offset
        Slots of the first block before token 0, less than `block_size`.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> chance = random_free_blocks(4, 2, 2)
    >>> chance.mean, round(chance.pmf[1], 12)
    (0.3333333333333333, 0.333333333333)
    """
    tokens, size, before = _table(num_tokens, block_size, offset)
    evicted = _checks.as_count("num_evicted", num_evicted, maximum=tokens)
    return _fixed(_chance.cut(tokens, size, before), tokens, evicted)


def random_fragmentation(
    num_tokens: int, num_evicted: int, block_size: int, offset: int = 0
) -> float:
    """Return the expected fragmentation where exactly so many tokens are evicted at random.

    The mean of ``1 - L / ((M - f) * block_size)`` over the chances of f free blocks, M blocks and
    L survivors; from 0 to 1; nan where no token survives, since then no block is held. Where one
    survives, f = M cannot be. Parameters and errors are those of `random_free_blocks`.

    Examples
    --------
    >>> round(random_fragmentation(4, 2, 2), 12)
    0.333333333333
    """
    tokens, size, before = _table(num_tokens, block_size, offset)
    live = tokens - _checks.as_count("num_evicted", num_evicted, maximum=tokens)
    if live == 0:
        return math.nan
    with _tiny_as_zero():
        law = _chance.fixed_law(_chance.cut(tokens, size, before), tokens, tokens - live)
        slots = np.arange(len(law) - 1, 0, -1) * size  # held, for 0, 1, ... free blocks
        return math.fsum((law[:-1] * ((slots - live) / slots)).tolist())


def random_admission(
    num_tokens: int,
    num_evicted: int,
    block_size: int,
    blocks_per_request: int,
    offset: int = 0,
) -> float:
    """Return how many requests the free blocks admit on average after random eviction.

    The mean of ``f // blocks_per_request`` over the chances of f free blocks; at least 0. Other
    parameters and errors are those of `random_free_blocks`.

    Parameters
    ----------
    blocks_per_request
        Blocks that a request needs, at least 1.

    Examples
    --------
    >>> random_admission(8, 8, 2, 3)
    1.0
    """
    tokens, size, before = _table(num_tokens, block_size, offset)
    evicted = _checks.as_count("num_evicted", num_evicted, maximum=tokens)
    need = _checks.as_count("blocks_per_request", blocks_per_request, minimum=1)
    with _tiny_as_zero():
        law = _chance.fixed_law(_chance.cut(tokens, size, before), tokens, evicted)
        requests = np.arange(len(law)) // min(need, len(law))
        return math.fsum((law * requests).tolist())


def random_moves(num_tokens: int, num_evicted: int, block_size: int, offset: int = 0) -> float:
    """Return the fewest moves of a full compaction of one table, on average, after random eviction.

    The r emptiest of M blocks are evacuated, ``r = M - ceil(survivors / block_size)``, which moves
    the sum over x of ``max(0, r - C(x))`` tokens, C(x) the blocks with at most x survivors. The law
    of each C(x) is used, so this is no approximation; within 1e-12 for each token of the table.
    Parameters and errors are those of `random_free_blocks`.

    Examples
    --------
    >>> round(random_moves(512 * 16, 512 * 8, 16), 1)
    1646.2
    """
    tokens, size, before = _table(num_tokens, block_size, offset)
    evicted = _checks.as_count("num_evicted", num_evicted, maximum=tokens)
    blocks = _chance.cut(tokens, size, before)
    to_empty = sum(blocks.values()) - -(-(tokens - evicted) // size)
    if to_empty == 0 or evicted == tokens:
        return 0.0
    if evicted == 0:  # an offset may leave room for the survivors of a first or last block
        sizes = sorted(v for v, n in blocks.items() for _ in range(n))
        return float(sum(sizes[:to_empty]))
    short = np.arange(to_empty, 0, -1)
    moves: list[float] = []
    with _tiny_as_zero():
        for live, law in enumerate(_chance.laws_by_live(blocks, tokens, evicted)):
            # The survivors cannot leave more blocks with above so many of them.
            law[: max(0, sum(blocks.values()) - (tokens - evicted) // (live + 1))] = 0.0
            moves.append(math.fsum((law[:to_empty] * short).tolist()))
            if moves[-1] == 0.0:
                break
    return math.fsum(moves)


def window_free_blocks(
    num_tokens: int, sink: int, window: int, block_size: int, offset: int = 0
) -> int:
    """Return how many blocks come free where the first and the last tokens are kept.

    ``max(0, floor((N - window + offset) / B) - ceil((sink + offset) / B))``, where the first term
    is ``ceil((N + offset) / B)`` without a window, the second 0 without a sink, and all is 0 where
    the two cover the sequence. Exact, not an expectation: StreamingLLM (arXiv:2309.17453).

    Parameters
    ----------
    num_tokens
        Tokens of the sequence, N.
    sink, window
        How many of its first and of its last tokens stay; more than there are is all.
    block_size
        Slots of a block, B, 1 to 65,535.
    offset
        Slots of the first block before token 0, less than `block_size`.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> window_free_blocks(2048, 4, 1020, 16)
    63
    """
    tokens, size, before = _table(num_tokens, block_size, offset)
    first, last = _checks.as_count("sink", sink), _checks.as_count("window", window)
    if first + last >= tokens:
        return 0
    begin = -(-(first + before) // size) if first else 0
    end = (tokens - last + before) // size if last else -(-(tokens + before) // size)
    return max(0, end - begin)


def heavy_hitter_free_blocks(
    num_tokens: int, recent: int, heavy: int, block_size: int, offset: int = 0
) -> Distribution:
    """Return how many blocks come free where the last tokens stay, and some older ones at random.

    A block can come free only where all its tokens are older than the recent ones; there it does as
    under `random_free_blocks` over the older tokens. In long sequences the expected physical
    reclaim tends to ``(1 - rho) * (q / (1 - rho)) ** block_size``, rho the recent share and q the
    evicted one. The model of H2O (arXiv:2306.14048) whose heavy hitters are scattered.

    Parameters
    ----------
    num_tokens
        Tokens of the sequence.
    recent
        How many of its last tokens stay; more than there are is all.
    heavy
        How many of the older ones stay, each choice as likely; more than there are is all.
    block_size
        Slots of a block, 1 to 65,535.
    offset
        Slots of the first block before token 0, less than `block_size`.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> heavy_hitter_free_blocks(8, 4, 2, 2).mean
    0.3333333333333333
    """
    tokens, size, before = _table(num_tokens, block_size, offset)
    older = max(0, tokens - _checks.as_count("recent", recent))
    evicted = max(0, older - _checks.as_count("heavy", heavy))
    num_blocks = sum(_chance.cut(tokens, size, before).values())
    if older < tokens:  # the block in which the recent tokens begin never comes free
        whole = (older + before) // size * size - before
        blocks = _chance.cut(max(0, whole), size, before)
    else:
        blocks = _chance.cut(tokens, size, before)
    never = num_blocks - sum(blocks.values())
    chance = _fixed(blocks, older, evicted)
    return attrs.evolve(chance, pmf=chance.pmf + (0.0,) * never)


def clustered_reclaim(q: Number, cluster: Number, block_size: int, recent: Number = 0.0) -> float:
    """Return the expected physical reclaim where survivors come in clusters at random places.

    ``(1 - recent) * (q / (1 - recent)) ** (1 + (block_size - 1) / cluster)``, from 0 to q: a block
    behaves like one of ``1 + (block_size - 1) / cluster`` independent tokens. Clusters of `cluster`
    tokens begin anywhere and may overlap; an older token is dead where none covers it. An
    expectation of that model for long sequences, not a bound. For ``cluster = 1`` it is the limit
    of `heavy_hitter_free_blocks`.

    Parameters
    ----------
    q
        Share of the tokens that is evicted.
    cluster
        Tokens of a cluster, at least 1; `math.inf` for survivors that lie together.
    block_size
        Slots of a block, 1 to 65,535.
    recent
        Share of the tokens that stay since they are the last; at most 1 - q.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> clustered_reclaim(0.5, 5, 16)
    0.0625
    """
    share, size = _checks.as_exact("q", q), _checks.as_block_size(block_size)
    older = 1 - _checks.as_exact("recent", recent)
    if share > older:
        raise ValueError(
            f"recent must be at most 1 - q, {float(1 - share)}, since those tokens stay; got "
            f"{_checks.shown(recent)}; write a smaller share."
        )
    exponent = 1 + (size - 1) * _inverse("cluster", cluster)
    if share == 0:
        return 0.0
    return min(math.pow(share / older, exponent) * float(older), float(share))


def markov_reclaim(q: Number, mean_dead_run: Number, block_size: int) -> float:
    """Return the expected physical reclaim where dead runs have a mean length and no memory.

    ``q * (1 - 1 / mean_dead_run) ** (block_size - 1)``, from 0 to q: the tokens are a Markov chain
    of two states. With r the correlation of neighbours, ``1 - 1 / mean_dead_run`` is
    ``q + r * (1 - q)``. An expectation of that model, not a bound.

    Parameters
    ----------
    q
        Share of the tokens that is evicted.
    mean_dead_run
        Mean length of a run of evicted tokens, at least 1 and at least ``q / (1 - q)``, since a run
        of survivors has a token; ``1 / (1 - q)`` is independent eviction, `math.inf` one run.
    block_size
        Slots of a block, 1 to 65,535.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> markov_reclaim(0.5, 2, 16)
    1.52587890625e-05
    >>> markov_reclaim(0.5, 16, 2)
    0.46875
    """
    share, size = _checks.as_exact("q", q), _checks.as_block_size(block_size)
    leave = _end_of_run(share, mean_dead_run)
    return float(share * _chance.power(1 - leave, size - 1))


def markov_free_blocks(
    num_blocks: int, q: Number, mean_dead_run: Number, block_size: int
) -> Distribution:
    """Return how many whole blocks come free where dead runs have a mean length and no memory.

    With p the `markov_reclaim`, M blocks, ``lambda = 1 - 1 / mean_dead_run - 1 / mean_live_run``:
    the mean is ``M * p``, the variance ``M * p * (1 - p) + 2 * sum over d < M of (M - d) * p ** 2
    * (1 - q) / q * lambda ** ((d - 1) * block_size + 1)``. Where lambda is above 0, neighbouring
    blocks come free together, and the variance exceeds the binomial one. Other parameters and
    errors are those of `markov_reclaim`.

    Parameters
    ----------
    num_blocks
        Blocks of the sequence, M, all of them full.

    Examples
    --------
    >>> markov_free_blocks(2, 0.5, 2, 1)
    Distribution(mean=1.0, variance=0.5, pmf=(0.25, 0.5, 0.25))
    """
    count = _checks.as_count("num_blocks", num_blocks, maximum=_checks.MOST_TOKENS)
    share, size = _checks.as_exact("q", q), _checks.as_block_size(block_size)
    leave = _end_of_run(share, mean_dead_run)
    enter = leave * share / (1 - share) if share < 1 else Fraction(1)
    free = float(share * _chance.power(1 - leave, size - 1))
    decay, dead = float(1 - leave - enter), float(share)
    gaps = np.arange(count - 1, dtype=np.float64)  # the blocks between two
    with _tiny_as_zero():
        joint = (count - 1 - gaps) * decay ** (gaps * size + 1)
        law = _chance.markov_law(count, share, leave, enter, size)
    pairs = math.fsum(joint.tolist()) * free**2 * (1 - dead) / dead if dead else 0.0
    variance = count * free * (1 - free) + 2 * pairs
    return Distribution(mean=count * free, variance=max(0.0, variance), pmf=tuple(law.tolist()))


def shared_markov_reclaim(
    qs: Iterable[Number], mean_dead_runs: Iterable[Number], block_size: int
) -> float:
    """Return the expected physical reclaim of a table whose rows are independent Markov chains.

    ``product of q * (product of (1 - 1 / mean_dead_run)) ** (block_size - 1)`` over the rows, from
    0 to the least q: a slot is dead only where every row evicts it. H rows that evict each token
    by itself, ``mean_dead_run = 1 / (1 - q)``, give ``q ** (block_size * H)``. An expectation of
    that model, not a bound.

    Parameters
    ----------
    qs
        Share of the tokens that each row evicts.
    mean_dead_runs
        Mean length of its runs of evicted tokens, as in `markov_reclaim`.
    block_size
        Slots of a block, 1 to 65,535.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range, or the two differ in length.

    Examples
    --------
    >>> shared_markov_reclaim([0.5, 0.5], [2, 2], 4) == 0.5 ** (4 * 2)
    True
    """
    size = _checks.as_block_size(block_size)
    rule, hint = "a list of numbers, one for each row", "write one for each row"
    shares = _checks.as_items("qs", qs, rule, hint)
    runs = _checks.as_items("mean_dead_runs", mean_dead_runs, rule, hint)
    if len(shares) != len(runs):
        raise ValueError(
            f"mean_dead_runs must have a length for each of the {len(shares)} rows of qs; got "
            f"{len(runs)}; write both for the same rows."
        )
    dead, stay = Fraction(1), Fraction(1)
    for row, (q, run) in enumerate(zip(shares, runs, strict=True)):
        share = _checks.as_exact(f"qs[{row}]", q)
        dead *= share
        stay *= 1 - _end_of_run(share, run, f"mean_dead_runs[{row}]")
    return float(dead * _chance.power(stay, size - 1))


def free_block_bounds(
    num_tokens: int, num_evicted: int, block_size: int, offset: int = 0
) -> tuple[int, int]:
    """Return the fewest and the most blocks that any choice of so many evicted tokens frees.

    ``max(0, M - survivors)`` of M blocks, where each survivor holds a block of its own; and as many
    as the budget fills, the smallest first: 0 where it does not fill a block, else, for a last
    block of t tokens and no offset, ``1 + (num_evicted - t) // block_size``. Bounds, and attained.
    Parameters and errors are those of `random_free_blocks`.

    Examples
    --------
    >>> free_block_bounds(33, 17, 16)
    (0, 2)
    """
    tokens, size, before = _table(num_tokens, block_size, offset)
    evicted = _checks.as_count("num_evicted", num_evicted, maximum=tokens)
    blocks = _chance.cut(tokens, size, before)
    fewest = max(0, sum(blocks.values()) - (tokens - evicted))
    return fewest, _chance.most_free(blocks, evicted)


def max_reclaim_efficiency(num_tokens: int, block_size: int) -> float:
    """Return the largest `reclaim_efficiency` that any mask of one sequence reaches.

    ``N / (M * t)`` for M blocks, the last of which has t tokens; from 1 to below block_size; nan
    without tokens. It is reached by evicting the last block alone: where t is less than
    block_size, its few tokens buy a whole block. An efficiency exceeds 1 where, and only where, F
    blocks come free for k evicted tokens and ``k * M < N * F``; that is, where the last block is
    free and fewer than ``(1 - F / M) * (block_size - t)`` tokens are dead outside of free blocks.

    Parameters
    ----------
    num_tokens
        Tokens of the sequence, N.
    block_size
        Slots of a block, 1 to 65,535.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> max_reclaim_efficiency(33, 16)
    11.0
    """
    tokens, size, _ = _table(num_tokens, block_size, 0)
    if tokens == 0:
        return math.nan
    num_blocks = -(-tokens // size)
    return tokens / (num_blocks * (tokens - (num_blocks - 1) * size))


def dead_run_lengths(keep: ArrayLike) -> tuple[int, ...]:
    """Return how many dead runs of 0, 1, 2, ... tokens a mask has, up to the longest.

    A dead run is evicted tokens of one row between two kept ones or the row's ends. None has 0
    tokens: that count is 0. The counts of several masks add up.

    Parameters
    ----------
    keep
        True where a token stays; the last axis is tokens, and every other index a row with a block
        table of its own.

    Raises
    ------
    TypeError, ValueError
        Where `keep` is no mask.

    Examples
    --------
    >>> dead_run_lengths([1, 0, 1, 0, 0, 0, 1, 0])
    (0, 2, 0, 1)
    """
    mask = _checks.as_keep(keep)
    rows = mask.reshape(-1, mask.shape[-1]) if mask.size else mask.reshape(0, 0)
    counts = np.zeros(1, np.int64)
    at_a_time = max(1, _TOKENS_AT_A_TIME // (rows.shape[1] + 1))
    for start in range(0, len(rows), at_a_time):
        some = np.pad(rows[start : start + at_a_time], ((0, 0), (0, 1)), constant_values=True)
        runs = np.diff(np.flatnonzero(some), prepend=-1) - 1
        found = np.bincount(runs)
        found[0] = 0
        longest = max(len(counts), len(found))
        counts = np.pad(counts, (0, longest - len(counts)))
        counts[: len(found)] += found
    return tuple(np.trim_zeros(counts, "b").tolist()) or (0,)


def phase_averaged_free_blocks(keep: ArrayLike, block_size: int) -> float:
    """Return how many blocks come free on average over all places where a block may begin.

    The sum over the dead runs of a mask of ``max(0, run - block_size + 1) / block_size``: an
    identity, rounded once. About one block a dead run is lost. The tokens before and after the mask
    count as kept.

    Parameters
    ----------
    keep
        As in `dead_run_lengths`.
    block_size
        Slots of a block, 1 to 65,535.

    Raises
    ------
    TypeError, ValueError
        Where `keep` is no mask, or the block size is out of range.

    Examples
    --------
    >>> phase_averaged_free_blocks([1, 0, 0, 0, 1, 0, 0, 1], 2)
    1.5
    """
    size = _checks.as_block_size(block_size)
    runs = dead_run_lengths(keep)
    return sum(count * (run - size + 1) for run, count in enumerate(runs) if run >= size) / size


def phase_averaged_curve(keep: ArrayLike, max_block_size: int) -> tuple[float, ...]:
    """Return `phase_averaged_free_blocks` for every block size 1, 2, ... from one pass.

    Parameters
    ----------
    keep
        As in `dead_run_lengths`.
    max_block_size
        The largest of the block sizes, 1 to 65,535.

    Raises
    ------
    TypeError, ValueError
        As `phase_averaged_free_blocks`.

    Examples
    --------
    >>> phase_averaged_curve([1, 0, 0, 0, 1, 0, 0, 1], 4)
    (5.0, 1.5, 0.3333333333333333, 0.0)
    """
    largest = _checks.as_block_size(max_block_size, "max_block_size")
    at_least = accumulate(reversed(dead_run_lengths(keep)))  # runs so long, from the longest on
    places = list(accumulate(at_least))[::-1]  # where so many dead tokens begin
    return tuple(
        (places[size] if size < len(places) else 0) / size for size in range(1, largest + 1)
    )


def _table(num_tokens: object, block_size: object, offset: object) -> tuple[int, int, int]:
    """Return the checked numbers of tokens, slots of a block, and slots before token 0."""
    tokens = _checks.as_count("num_tokens", num_tokens, maximum=_checks.MOST_TOKENS)
    size = _checks.as_block_size(block_size)
    return tokens, size, _checks.as_count("offset", offset, maximum=size - 1)


def _tiny_as_zero() -> np.errstate:
    """Let chances that no float holds become 0, whatever the caller makes of an underflow."""
    return np.errstate(under="ignore")


def _fixed(blocks: _chance.Blocks, num_tokens: int, num_evicted: int) -> Distribution:
    mean, variance = _chance.fixed_moments(blocks, num_tokens, num_evicted)
    with _tiny_as_zero():
        law = _chance.fixed_law(blocks, num_tokens, num_evicted)
    return Distribution(mean=mean, variance=variance, pmf=tuple(law.tolist()))


def _inverse(name: str, value: object) -> Fraction:
    """Return 1 over a number of at least 1, which may be infinite."""
    if isinstance(value, Real) and value == math.inf:
        return Fraction(0)
    return 1 / _checks.as_exact(name, value, minimum=1, maximum=None)


def _end_of_run(share: Fraction, mean_dead_run: object, name: str = "mean_dead_run") -> Fraction:
    """Return the chance that a dead run ends at a token, where live runs can be long enough."""
    leave = _inverse(name, mean_dead_run)
    if leave * share > (1 - share):
        shortest = "math.inf" if float(share) == 1 else str(float(share) / float(1 - share))
        raise ValueError(
            f"{name} must be at least q / (1 - q), {shortest} for q = {float(share)}, since a run "
            f"of survivors has a token; got {_checks.shown(mean_dead_run)}; write a longer run."
        )
    return leave
