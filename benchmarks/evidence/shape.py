"""The structure of masks: runs, correlations, how far heads agree, and what closed forms expect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from benchmarks.evidence.masks import Mask
from benchmarks.evidence.settings import (
    AXES,
    BLOCK_SIZE,
    BLOCK_SIZES,
    PUBLISHED,
    SNAPKV_KERNEL,
    SNAPKV_WINDOW,
    TABLES,
)
from kvreclaim import BlockPool, Census, bounds, metrics, take_census

LAGS: Final = (1, 16)
SINK: Final = 4
RECENT_SHARE: Final = Fraction(1, 2)  # H2O's
CLUSTERS: Final[Mapping[str, int]] = {  # tokens that are chosen together: a kernel, or a chunk
    "snapkv": SNAPKV_KERNEL,
    "ada_kv": SNAPKV_KERNEL,
    "pyramid_kv": SNAPKV_KERNEL,
    "chunk_kv_16": 16,
    "chunk_kv_20": 20,
}


class Structure(NamedTuple):
    """How the evicted tokens of a mask lie; of its rows, or of what is older than its window.

    Attributes
    ----------
    evicted
        Share of tokens.
    run
        Mean length of a run of evicted tokens; nan where there is none.
    independent_run
        What it is where each token is evicted by itself: ``1 / (1 - evicted)``.
    correlations
        Of the evicted indicator with itself, at each of `LAGS`: the mean over rows that evict some
        of their tokens.
    """

    evicted: float
    run: float
    independent_run: float
    correlations: tuple[float, ...]


class Agreement(NamedTuple):
    """Mean phi, the correlation of two rows' masks: rows of one layer, and of two layers."""

    within: float
    across: float


class ClosedForms(NamedTuple):
    """What models expect, for tables of one row; each is the mean over the rows of a mask.

    Attributes
    ----------
    independent
        Each token evicted by itself.
    outside
        The same outside of what a policy always keeps: its window, and StreamingLLM's sinks.
    markov
        Runs without memory, of the row's own mean length.
    clustered
        Survivors in clusters of the policy's kernel or chunk; nan where it has none.
    """

    independent: float
    outside: float
    markov: float
    clustered: float


def rows_of(keep: Mask) -> Mask:
    """Return the rows of a mask (layer, kv head, token), (row, token)."""
    return keep.reshape(-1, keep.shape[-1])


def num_recent(policy: str, num_kept: int) -> int:
    """Return how many of its last tokens a row keeps by rule; 0 where there is none.

    Examples
    --------
    >>> num_recent("h2o", 1025), num_recent("snapkv", 1025), num_recent("knorm", 1025)
    (512, 64, 0)
    """
    if policy == "h2o":
        return math.floor(RECENT_SHARE * num_kept)
    return min(SNAPKV_WINDOW, num_kept) if policy in CLUSTERS else 0


def structure_of(rows: Mask) -> Structure:
    """Return how the evicted tokens of rows lie."""
    lengths = bounds.dead_run_lengths(rows)
    num_evicted = sum(length * count for length, count in enumerate(lengths))
    share = num_evicted / rows.size if rows.size else math.nan
    return Structure(
        evicted=share,
        run=num_evicted / sum(lengths) if num_evicted else math.nan,
        independent_run=1 / (1 - share) if share < 1 else math.inf,
        correlations=tuple(autocorrelation(rows, lag) for lag in LAGS),
    )


def older_than_window(policy: str, rows: Mask) -> Mask:
    """Return rows without the last tokens that all of them keep by rule.

    Raises
    ------
    ValueError
        Where a row evicts one of those.
    """
    recent = num_recent(policy, int(rows.sum(axis=1).min()))
    border = rows.shape[1] - recent
    if not rows[:, border:].all():
        raise ValueError(f"{policy} must keep the last {recent} tokens of every row; some are not.")
    return rows[:, :border]


def autocorrelation(rows: Mask, lag: int) -> float:
    """Return the correlation of the evicted indicator with itself, `lag` tokens on.

    ``sum of (x[t] - q) * (x[t + lag] - q) / sum of (x[t] - q) ** 2`` of a row, x = 1 where a token
    is evicted and q its mean; the mean over rows that evict some tokens and not all; nan without
    such rows. Near 0 where each token is evicted by itself.

    Examples
    --------
    >>> autocorrelation(np.array([[True, True, False, False]]), 1)
    0.25
    """
    tokens = rows.shape[1]
    evicted = ~rows
    totals = evicted.sum(axis=1)
    told = (totals > 0) & (totals < tokens)
    if not told.any() or lag >= tokens:
        return math.nan
    evicted, totals = evicted[told], totals[told]
    pairs = (evicted[:, :-lag] & evicted[:, lag:]).sum(axis=1)
    ends = evicted[:, :-lag].sum(axis=1) + evicted[:, lag:].sum(axis=1)
    # times tokens ** 2: integers, so that no cancellation costs digits
    covered = tokens * tokens * pairs - tokens * totals * ends + (tokens - lag) * totals**2
    spread = tokens * totals * (tokens - totals)
    return math.fsum((covered / spread).tolist()) / len(spread)


def agreement_of(keep: Mask) -> Agreement:
    """Return how far rows agree; nan where there are no two rows to compare.

    A row that keeps all its tokens, or none, correlates with nothing, and is left out.
    """
    rows = rows_of(keep)
    layers = np.repeat(np.arange(keep.shape[0]), keep.shape[1])
    told = rows.any(axis=1) & ~rows.all(axis=1)
    rows, layers = rows[told], layers[told]
    if len(rows) < 2:  # noqa: PLR2004  # two rows
        return Agreement(math.nan, math.nan)
    kept = rows.sum(axis=1)
    both = rows.astype(np.float32) @ rows.T.astype(np.float32)  # integers, exact to 2 ** 24
    spread = np.sqrt(kept * (rows.shape[1] - kept))
    phi = (rows.shape[1] * both.astype(np.float64) - np.outer(kept, kept)) / np.outer(
        spread, spread
    )
    one, other = np.triu_indices(len(rows), k=1)
    same = layers[one] == layers[other]
    values = phi[one, other]
    return Agreement(within=_mean(values[same].tolist()), across=_mean(values[~same].tolist()))


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def closed_forms(policy: str, keep: Mask, block_size: int) -> ClosedForms:
    """Return what models of a policy's rows expect at a block size, one block table for each row.

    Rows that evict equally many tokens have the expectation of their exact budget (`outside`);
    where budgets differ, it is that of long sequences, row by row.
    """
    rows = rows_of(keep)
    tokens = rows.shape[1]
    kept = rows.sum(axis=1).tolist()
    older_than_window(policy, rows)  # what is assumed holds
    expected = [
        (
            bounds.independent_reclaim(Fraction(tokens - one, tokens), block_size),
            _outside(policy, tokens, one, block_size, exact=len(set(kept)) == 1),
            _markov(tokens, tokens - one, num_runs, block_size),
            _clustered(policy, tokens, one, block_size),
        )
        for one, num_runs in zip(kept, _num_runs(rows), strict=True)
    ]
    return ClosedForms(*(_mean(list(some)) for some in zip(*expected, strict=True)))


def _num_runs(rows: Mask) -> list[int]:
    """Return how many runs of evicted tokens each row has: each begins behind a kept one."""
    begins = ~rows[:, 1:] & rows[:, :-1]
    counts: list[int] = (begins.sum(axis=1) + ~rows[:, 0]).tolist()
    return counts


@cache
def _outside(policy: str, tokens: int, kept: int, size: int, *, exact: bool) -> float:
    num_blocks = BlockPool(size).num_blocks_for(tokens)
    recent = num_recent(policy, kept)
    if policy == "streaming_llm":
        sink = min(SINK, kept)
        return bounds.window_free_blocks(tokens, sink, kept - sink, size) / num_blocks
    if exact:
        law = bounds.heavy_hitter_free_blocks(tokens, recent, kept - recent, size)
        return law.mean / num_blocks
    share = Fraction(tokens - kept, tokens)
    return bounds.clustered_reclaim(share, 1, size, Fraction(recent, tokens))


@cache
def _markov(tokens: int, evicted: int, num_runs: int, size: int) -> float:
    share = Fraction(evicted, tokens)
    if share in {0, 1}:
        return float(share)
    shortest = share / (1 - share)  # reached where each run of survivors is one token
    return bounds.markov_reclaim(share, max(Fraction(evicted, num_runs), shortest), size)


@cache
def _clustered(policy: str, tokens: int, kept: int, size: int) -> float:
    if policy not in CLUSTERS:
        return math.nan
    share, window = Fraction(tokens - kept, tokens), Fraction(num_recent(policy, kept), tokens)
    return bounds.clustered_reclaim(share, CLUSTERS[policy], size, window)


def censuses(keep: Mask, block_size: int) -> dict[str, Census]:
    """Return the census of a mask under each kind of table."""
    return {
        tables: take_census(keep, BlockPool(block_size, shared_axes=shared), axes=AXES)
        for tables, shared in TABLES.items()
    }


class Losses(NamedTuple):
    """Where evicted entries went, as shares of all entries: the three add up to the saving."""

    reclaimed: float
    granularity: float
    sharing: float


def losses_of(census: Census) -> Losses:
    """Return what came free, what block size lost, and what sharing a block lost."""
    parts = metrics.savings_breakdown(census)
    return Losses(parts.reclaimed, parts.stranded, parts.unshared)


class Lie(NamedTuple):
    """How the evicted tokens of one mask lie.

    Attributes
    ----------
    whole, older
        Of its rows, and of what is older than the window that all of them keep by rule.
    agreement
        Of its rows with each other.
    forms
        What closed forms expect, by block size; of published policies only.
    censuses
        By kind of table, at the usual block size.
    """

    whole: Structure
    older: Structure
    agreement: Agreement
    forms: Mapping[int, ClosedForms]
    censuses: Mapping[str, Census]


def lie_of(policy: str, keep: Mask) -> Lie:
    """Return how the evicted tokens of a mask (layer, kv head, token) lie."""
    rows = rows_of(keep)
    sizes = BLOCK_SIZES if policy in PUBLISHED else ()
    return Lie(
        whole=structure_of(rows),
        older=structure_of(older_than_window(policy, rows)),
        agreement=agreement_of(keep),
        forms={size: closed_forms(policy, keep, size) for size in sizes},
        censuses=censuses(keep, BLOCK_SIZE),
    )
