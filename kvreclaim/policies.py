"""Reference eviction policies: scores or geometry x budget -> keep-mask.

Each is a selection rule over given scores, not its authors' code: how a model is run and how scores
are made is theirs. All are deterministic but `random`; scores may be any numbers, +inf for a token
that must stay as long as the budget allows; a higher score stays, and among equals the later token.
Finite ones are at most 1e300 in size. Sums and means of scores are rounded once, to the nearest
float, so that ties do not depend on the order of rows or on memory layout.

``num_kept`` is the budget of each row: 0 is legal, and so is more than there are tokens. Exactly
``min(num_kept, tokens)`` tokens of each row stay; where a policy shares its budget among rows
(`ada_kv`, `pyramid_kv`), that is the mean over these rows, exactly.

Importance has an axis of tokens, attention one of queries too, letters ``t`` and ``q``; without
``axes`` they are the last ones. Attention is per kv head: of grouped query heads, take the mean
first. All other letters are independent rows, but for those that a policy chooses together: there,
``axes`` is required for more than one row. The mask has the shape and the axis order of the scores,
less the axis of queries.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _checks, _layout, _selection
from kvreclaim.pool import PoolLike, as_pool


def num_kept_for(keep_ratio: float | Fraction, num_tokens: int, rounding: str = "floor") -> int:
    """Return how many of the tokens a ratio keeps, in exact arithmetic.

    ``floor(keep_ratio * num_tokens)``, where a float is the decimal that it is written as: 0.1 of
    100 is 10, and 0.29 of 100 is 29, not 28.

    Parameters
    ----------
    keep_ratio
        The share that stays, from 0 to 1; a float, an integer or a Fraction. Where a tool speaks of
        a compression ratio of 0.3, write 0.7, or ``1 - Fraction("0.3")``.
    num_tokens
        Tokens of a row.
    rounding
        ``"floor"``, ``"nearest"`` (a half is rounded up) or ``"ceil"``.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> num_kept_for(0.1, 100), num_kept_for(0.29, 100), int(0.29 * 100)
    (10, 29, 28)
    >>> num_kept_for(0.5, 7), num_kept_for(0.5, 7, "nearest"), num_kept_for(0.3, 7, "ceil")
    (3, 4, 3)
    """
    exact = _checks.as_exact("keep_ratio", keep_ratio) * _checks.as_count("num_tokens", num_tokens)
    rule = _checks.as_choice("rounding", rounding, ("floor", "nearest", "ceil"))
    if rule == "ceil":
        return math.ceil(exact)
    return math.floor(exact + Fraction(1, 2) if rule == "nearest" else exact)


def random(
    num_tokens: _checks.Shape, num_kept: int, *, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Return a mask that keeps tokens at random: every choice of so many is equally likely.

    Rows are independent, each over all its tokens.

    Parameters
    ----------
    num_tokens
        Tokens, or a shape that ends in them.
    num_kept
        Tokens of each row that stay.
    rng
        The source of randomness.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> random((2, 64), 16, rng=np.random.default_rng(0)).sum(axis=-1).tolist()
    [16, 16]
    """
    shape = _checks.as_shape("num_tokens", num_tokens)
    kept = _checks.as_count("num_kept", num_kept)
    row = np.arange(shape[-1]) < kept
    return _checks.as_rng(rng).permuted(np.broadcast_to(row, shape), axis=-1)


def streaming_llm(num_tokens: _checks.Shape, num_kept: int, *, sink: int = 4) -> NDArray[np.bool_]:
    """Return a mask that keeps the first tokens and the last ones: sinks and a recent window.

    ``sink`` first tokens and ``num_kept - sink`` last ones, the same in all rows; a budget that
    does not reach beyond the sinks keeps the first ``num_kept`` tokens. From arXiv 2309.17453,
    whose code has 4 sinks and a window of 512 (``streaming_llm/kv_cache.py``, ``start_size`` and
    ``recent_size``). A selection rule, not the authors' code, which also rotates keys anew by their
    place in the cache.

    Parameters
    ----------
    num_tokens
        Tokens, or a shape that ends in them.
    num_kept
        Tokens of each row that stay, sinks among them.
    sink
        First tokens that stay.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> streaming_llm(8, 5, sink=2).astype(int)
    array([1, 1, 0, 0, 0, 1, 1, 1])
    """
    shape = _checks.as_shape("num_tokens", num_tokens)
    kept = min(_checks.as_count("num_kept", num_kept), shape[-1])
    first = min(_checks.as_count("sink", sink), kept)
    keep = np.zeros(shape, np.bool_)
    keep[..., :first] = True
    keep[..., shape[-1] - (kept - first) :] = True
    return keep


def lowest_importance(
    importance: ArrayLike, num_kept: int, *, axes: str | None = None
) -> NDArray[np.bool_]:
    """Return a mask that evicts the least important tokens of each row, by themselves.

    The rule under most published methods once their scores are given; it loses the least importance
    that a budget can, and scatters what it evicts. kvpress's ``ScorerPress`` is this, with
    ``num_kept = max(1, int(tokens * (1 - compression_ratio)))`` in floats: 9 of 100 tokens at 0.9.

    Parameters
    ----------
    importance
        Scores, one for each token; +inf for one that must stay.
    num_kept
        Tokens of each row that stay.
    axes
        One letter for each axis, ``t`` for tokens; without it the last axis is tokens.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range; for a NaN or -inf among scores.

    Examples
    --------
    >>> lowest_importance([0.1, 0.4, 0.1, 0.3], 3).astype(int)
    array([0, 1, 1, 1])
    """
    scores = _selection.of_importance(importance, axes)
    kept = _checks.as_count("num_kept", num_kept)
    return scores.restore(_selection.highest(scores.rows, kept))


def whole_block(
    importance: ArrayLike,
    num_kept: int,
    pool: PoolLike,
    *,
    axes: str | None = None,
    offset: ArrayLike = 0,
) -> NDArray[np.bool_]:
    """Return a mask that evicts the cheapest whole blocks: what a paged server can take back.

    A block's price is the mean importance of its tokens in all rows of its table, and all rows of a
    table keep the same tokens. Blocks are evicted from the cheapest on; the first that the budget
    does not reach whole loses its cheapest tokens alone, so that exactly ``num_kept`` tokens of
    each row stay. Of full blocks, ``floor((tokens - num_kept) / block_size)`` are dead. Where the
    pool leaves a partly written last block with its sequence (``open_tail``), that block goes last.

    A reference, not a published method. Close to it: PagedEviction (arXiv 2509.04377), whose code
    averages over all heads too, and always keeps the first page and the last.

    Parameters
    ----------
    importance
        Scores, one for each token; +inf for one that must stay.
    num_kept
        Tokens of each row that stay.
    pool
        A BlockPool or a block size; its ``shared_axes`` say which rows are one table.
    axes
        As in `take_census`: required for more than one axis, unless the pool shares nothing.
    offset
        As in `take_census`: slots of a table's first block before token 0.

    Raises
    ------
    TypeError, ValueError
        As `lowest_importance`; for an offset that is no slot of a block.

    Examples
    --------
    >>> whole_block([6, 1, 2, 2, 9, 0, 3, 3], 4, 2).astype(int)
    array([1, 1, 0, 0, 1, 1, 0, 0])
    """
    array, pool = _checks.as_importance(importance), as_pool(pool)
    kept = _checks.as_count("num_kept", num_kept)
    letters = _checks.as_axes(axes, array.shape, pool.shared_axes, name="importance")
    tables = _layout.arrange(array, letters, pool, lengths=None, offset=offset, of="importance")
    scores = _selection.lay_out(array, letters, together=pool.shared_axes)
    values = scores.rows
    offsets = np.asarray(tables.offsets, np.int64).reshape(-1, 1)
    if pool.open_tail and tables.tokens > 0:
        slots = offsets + np.arange(tables.tokens)
        blocks = slots // pool.block_size
        partly = (slots[:, -1:] + 1) % pool.block_size > 0
        values = np.where((partly & (blocks == blocks[:, -1:]))[:, None], np.inf, values)
    return scores.restore(
        _selection.highest_chunks(values, pool.block_size, offsets, kept)[:, None]
    )


def h2o(
    attention: ArrayLike,
    num_kept: int,
    *,
    recent_share: float | Fraction = 0.5,
    axes: str | None = None,
) -> NDArray[np.bool_]:
    """Return a mask that keeps recent tokens and those that attracted most attention in all.

    ``recent = floor(recent_share * num_kept)`` last tokens, and of the others those of the largest
    sum of attention over all queries. From arXiv 2306.14048, whose code has equal shares, 0.1 of
    the prompt each (``h2o_hf/run_text_generation.py``, ``heavy_ratio`` and ``recent_ratio``), in
    each layer and head; where it really drops tokens it has 4 heavy and 512 recent ones, or 1,024
    of each. A selection rule over given attention, at once, not the authors' code, which also
    evicts step by step while it generates.

    A sum over queries favours early tokens, which more queries see. kvpress's
    ``ObservedAttentionPress`` takes the mean over the queries that see a token, and no recent ones:
    ``h2o(attention / seen, num_kept, recent_share=0)`` with ``seen[t] = tokens - t``.

    Parameters
    ----------
    attention
        Attention weights of each query to each token, 0 where a query does not see it.
    num_kept
        Tokens of each row that stay.
    recent_share
        Share of the budget that is for the last tokens, from 0 to 1; read as in `num_kept_for`.
    axes
        One letter for each axis, ``q`` for queries and ``t`` for tokens; without it these are the
        last two.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range; for a NaN or -inf among attention.

    Examples
    --------
    >>> attention = [[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.6, 0.1, 0.3, 0], [0.1, 0.1, 0.6, 0.2]]
    >>> h2o(attention, 2).astype(int)
    array([1, 0, 0, 1])
    """
    scores = _selection.of_attention(attention, axes)
    kept = _checks.as_count("num_kept", num_kept)
    recent = math.floor(_checks.as_exact("recent_share", recent_share) * kept)
    totals = _selection.totals(scores.rows[:, 0])  # each row chooses by itself
    return scores.restore(_selection.recent_and_highest(totals, kept, recent)[:, None])


def snapkv_importance(
    attention: ArrayLike,
    *,
    window: int = 64,
    kernel: int = 5,
    pooling: str = "avg",
    axes: str | None = None,
) -> NDArray[np.float64]:
    """Return the importance by which SnapKV chooses: what `ada_kv` and others are given, too.

    The attention of the last ``window`` queries to each token, summed, then pooled over ``kernel``
    neighbours before the window; +inf in the window, which stays. Ada-KV and PyramidKV choose by
    these scores in their papers. Parameters and errors are those of `snapkv`.

    Returns
    -------
    numpy.ndarray
        In the shape of the attention, less the axis of queries.

    Examples
    --------
    >>> attention = [[0.5, 0.25, 0.0, 0.0, 0.125, 0.125]]
    >>> snapkv_importance(attention, window=1, kernel=3).tolist()
    [0.75, 0.75, 0.25, 0.125, 0.125, inf]
    """
    scores, votes = _snapkv_scores(attention, window, kernel, pooling, axes)
    return scores.restore(votes[:, None])


def _snapkv_scores(
    attention: ArrayLike, window: int, kernel: int, pooling: str, axes: str | None
) -> tuple[_selection.Scores, NDArray[np.float64]]:
    """Return the attention and what SnapKV chooses by, (row, token)."""
    last = _checks.as_count("window", window, minimum=1)
    width = _checks.as_count("kernel", kernel, minimum=1)
    if width % 2 == 0:
        raise ValueError(
            f"kernel must be an odd number, so that a token is the middle of its neighbours; got "
            f"{width}; write {width + 1}."
        )
    how = _checks.as_choice("pooling", pooling, ("avg", "max"))
    scores = _selection.of_attention(attention, axes, num_queries=last)
    votes = _selection.totals(scores.rows[:, 0])  # each row chooses by itself
    before = max(0, votes.shape[-1] - last)
    votes[:, :before] = _selection.pooled(votes[:, :before], width, how)
    votes[:, before:] = np.inf
    return scores, votes


def snapkv(
    attention: ArrayLike,
    num_kept: int,
    *,
    window: int = 64,
    kernel: int = 5,
    pooling: str = "avg",
    axes: str | None = None,
) -> NDArray[np.bool_]:
    """Return a mask that keeps the last window, and what it attends to, smoothed over neighbours.

    A token's score is the attention of the last ``window`` queries to it, summed, then pooled over
    ``kernel`` neighbours before the window; the ends are padded with zeros that count in a mean.
    The window stays, and the ``num_kept - window`` highest before it; a budget that does not reach
    beyond the window keeps the last ``num_kept`` tokens.

    From arXiv 2404.14469. The defaults are those of the authors' class and of kvpress
    (``snapkv/monkeypatch/snapkv_utils.py``); its models start with a window of 32, and its runs on
    LongBench with 32, a kernel of 7 and maximum pooling. A selection rule over given attention, not
    the authors' code, which chooses for each query head.
    kvpress's ``SnapKVPress`` is this with mean pooling, a kv head's attention being the mean over
    its query heads, where the budget reaches beyond the window.

    Parameters
    ----------
    attention
        Attention weights of each query to each token; the last query is that of the last token, and
        only the last ``window`` of them are read.
    num_kept
        Tokens of each row that stay, the window among them.
    window
        Last tokens that stay, and whose queries vote; at least 1.
    kernel
        Neighbours that a score is pooled over, an odd number.
    pooling
        ``"avg"`` or ``"max"``.
    axes
        One letter for each axis, ``q`` for queries and ``t`` for tokens; without it these are the
        last two.

    Raises
    ------
    TypeError, ValueError
        As `h2o`; for an even kernel.

    Examples
    --------
    >>> attention = [[0.4, 0.1, 0.0, 0.0, 0.3, 0.2]]
    >>> snapkv(attention, 3, window=1, kernel=3).astype(int)
    array([1, 1, 0, 0, 0, 1])
    >>> snapkv(attention, 3, window=1, kernel=1).astype(int)
    array([1, 0, 0, 0, 1, 1])
    """
    scores, votes = _snapkv_scores(attention, window, kernel, pooling, axes)
    kept = _checks.as_count("num_kept", num_kept)
    return scores.restore(_selection.highest(votes, kept)[:, None])


def tova(attention: ArrayLike, num_kept: int, *, axes: str | None = None) -> NDArray[np.bool_]:
    """Return a mask that keeps what the last query attends to, the same in all heads of a layer.

    A token's score is the attention of the last query to it, averaged over heads (letter ``h``);
    the highest stay, in every head the same. From arXiv 2401.06104 (``src/tova_cache.py``; the
    budget is the caller's). A selection rule over given attention, at once, not the authors' code,
    which evicts step by step while it generates. It may evict the last token itself; kvpress's
    ``TOVAPress`` never does, which is this with +inf for the last query's attention to itself.

    Parameters
    ----------
    attention
        Attention weights of each query to each token; only the last query is read.
    num_kept
        Tokens of each row that stay.
    axes
        One letter for each axis, ``q`` for queries, ``t`` for tokens and ``h`` for heads, which
        choose together; without it the array is the one row of queries by tokens.

    Raises
    ------
    TypeError, ValueError
        As `h2o`; for more than two axes without ``axes``.

    Examples
    --------
    >>> attention = [[[0.5, 0.2, 0.1, 0.2]], [[0.1, 0.3, 0.2, 0.4]]]
    >>> tova(attention, 2, axes="hqt").astype(int)
    array([[1, 0, 0, 1],
           [1, 0, 0, 1]])
    """
    scores = _selection.of_attention(attention, axes, together="h", num_queries=1)
    kept = _checks.as_count("num_kept", num_kept)
    last = _selection.totals(scores.rows[:, :, -1]) if scores.rows.shape[2] else np.zeros((1, 0))
    return scores.restore(_selection.highest(last, kept)[:, None])


def ada_kv(
    importance: ArrayLike,
    num_kept: int,
    *,
    floor: float | Fraction = 0.2,
    axes: str | None = None,
) -> NDArray[np.bool_]:
    """Return a mask that shares a layer's budget among its heads by importance.

    Each head (letter ``h``) first keeps its own highest ``floor(floor * num_kept)`` tokens, at
    least one where ``floor`` and the budget are above 0. The rest of the ``heads * num_kept``
    tokens are the highest of all heads together; among equals the later token stays, and of one
    position the later head. So heads differ in length, and their mean is ``num_kept`` exactly.

    From arXiv 2407.11550. Its code has ``floor_alpha=0.5`` by default and 0.2 in its benchmarks
    (``adaptive_snapkv/monkeypatch/monkeypatch.py``, ``experiments/LongBench/pred.py``), and rounds
    a mix of the two budgets for each head; the floor on tokens, and 0.2, are those of kvpress's
    ``AdaKVPress``, with which this agrees. A selection rule over given scores, not the authors'
    code.

    Parameters
    ----------
    importance
        Scores, one for each token; +inf for one that must stay.
    num_kept
        Tokens of each head that stay, on average over the heads of a layer.
    floor
        Share of the budget that each head has for itself, from 0 to 1; read as in `num_kept_for`.
    axes
        One letter for each axis, ``t`` for tokens and ``h`` for heads, which choose together;
        required for more than one axis.

    Raises
    ------
    TypeError, ValueError
        As `lowest_importance`; for more than one axis without ``axes``.

    Examples
    --------
    >>> ada_kv([[9, 8, 7, 1], [2, 3, 2, 1]], 2, axes="ht").astype(int)
    array([[1, 1, 1, 0],
           [0, 1, 0, 0]])
    """
    scores = _selection.of_importance(importance, axes, together="h")
    kept = _checks.as_count("num_kept", num_kept)
    share = _checks.as_exact("floor", floor)
    safe = max(math.floor(share * kept), 1 if share > 0 and kept > 0 else 0)
    groups, heads, tokens = scores.rows.shape
    keep = _selection.highest(scores.rows, safe)
    # By position, then head: the order in which equals are evicted.
    others = np.where(keep, -np.inf, scores.rows).swapaxes(1, 2).reshape(groups, tokens * heads)
    more = _selection.highest(others, heads * max(0, kept - safe))
    return scores.restore(keep | more.reshape(groups, tokens, heads).swapaxes(1, 2))


def pyramid_kv(
    importance: ArrayLike,
    num_kept: int,
    *,
    window: int = 64,
    beta: float | Fraction = 20,
    axes: str | None = None,
) -> NDArray[np.bool_]:
    """Return a mask that keeps many tokens of the first layers and few of the last ones.

    Budgets fall on a straight line from the first layer (letter ``l``, in order) to the last, from
    ``2 * num_kept - num_kept / beta`` to ``num_kept / beta``; where the first would exceed
    ``tokens - window``, from that to as much less. Halves are rounded to even, and the mean is
    ``num_kept`` exactly. Where the last layer would keep less than the window, or there is one
    layer, each keeps ``num_kept``. In each row the last ``window`` tokens stay, and the highest
    scores before them; a budget below the window keeps the last tokens.

    From the last budget of equal layers to the next one, the last layers lose tokens: what they
    evict at the larger budget they keep at the smaller. This breaks the law ``no_revival`` of
    `kvreclaim.testing.check_policy`.

    From arXiv 2406.02069, whose code has window 64 and beta 20 in its class, and a window of 8 with
    maximum pooling in its benchmark; it counts the window beside the line, and whole steps. The
    line here is that of kvpress's ``PyramidKVPress``, with which this agrees for a whole budget and
    more than one layer (of one layer, kvpress keeps about twice the budget). A selection rule over
    given scores, those of `snapkv` in the paper, not the authors' code.

    Parameters
    ----------
    importance
        Scores, one for each token; those of the window are not read.
    num_kept
        Tokens of each row that stay, on average over the layers.
    window
        Last tokens that stay in every row.
    beta
        How steep the line is, at least 1; read as in `num_kept_for`.
    axes
        One letter for each axis, ``t`` for tokens and ``l`` for layers, which share the budget;
        required for more than one axis.

    Raises
    ------
    TypeError, ValueError
        As `ada_kv`.

    Examples
    --------
    >>> scores = np.zeros((3, 40))
    >>> pyramid_kv(scores, 8, window=2, beta=4, axes="lt").sum(axis=-1).tolist()
    [14, 8, 2]
    """
    scores = _selection.of_importance(importance, axes, together="l")
    kept = _checks.as_count("num_kept", num_kept)
    last = _checks.as_count("window", window)
    steepness = _checks.as_exact("beta", beta, minimum=1, maximum=None)
    layers, tokens = scores.rows.shape[1:]
    keep = np.empty(scores.rows.shape, np.bool_)
    budgets = _selection.pyramid_budgets(layers, tokens, kept, last, steepness)
    for layer, budget in enumerate(budgets):
        keep[:, layer] = _selection.recent_and_highest(scores.rows[:, layer], budget, last)
    return scores.restore(keep)


def chunk_kv(
    importance: ArrayLike, num_kept: int, *, chunk: int = 20, axes: str | None = None
) -> NDArray[np.bool_]:
    """Return a mask that keeps whole chunks of tokens, the same in all heads of a layer.

    Chunks are cut from token 0; a chunk's score is the mean importance of its tokens in all heads
    (letter ``h``). The highest chunks stay; the first that the budget does not pay for whole keeps
    the tokens of highest sum over heads, so that exactly ``num_kept`` tokens of each row stay.
    Layers choose for themselves, so where a block holds all layers their chunks seldom die
    together.

    From arXiv 2502.00299; 20 tokens are kvpress's default. With kvpress's ``ChunkKVPress`` this
    agrees where that keeps as many tokens; it counts chunks,
    ``max(1, int(chunks * (1 - compression_ratio)))``, the short last one as a whole one, and
    applies the choice of a batch's first sequence to all. A selection rule over given scores, not
    the authors' code.

    Parameters
    ----------
    importance
        Scores, one for each token; +inf for one that must stay.
    num_kept
        Tokens of each row that stay.
    chunk
        Tokens of a chunk, at least 1.
    axes
        One letter for each axis, ``t`` for tokens and ``h`` for heads, which choose together;
        required for more than one axis.

    Raises
    ------
    TypeError, ValueError
        As `ada_kv`.

    Examples
    --------
    >>> chunk_kv([4, 1, 3, 3, 9, 0, 1, 0], 5, chunk=2).astype(int)
    array([1, 0, 1, 1, 1, 1, 0, 0])
    """
    scores = _selection.of_importance(importance, axes, together="h")
    kept = _checks.as_count("num_kept", num_kept)
    length = min(_checks.as_count("chunk", chunk, minimum=1), max(1, scores.rows.shape[-1]))
    keep = _selection.highest_chunks(scores.rows, length, np.zeros((1, 1), np.int64), kept)
    return scores.restore(keep[:, None])


def kv_compress(
    importance: ArrayLike, num_freed_blocks: int, pool: PoolLike, *, axes: str | None = None
) -> NDArray[np.bool_]:
    """Return a mask that, once each row is packed, frees exactly so many blocks of each sequence.

    Each layer and head (letters ``l`` and ``h``) has a block table of its own. Its tokens are
    sorted by importance and cut into groups: the cheapest group has as many as hang over in its
    last block, every further one fills a block; a group costs what its dearest token does. The
    ``num_freed_blocks`` cheapest groups of a sequence's rows are evicted, of equal ones the lower
    group first, then the earlier row. So every row that loses tokens is left with whole blocks;
    rows lose different numbers of them, some perhaps all.

    From KV-Compress (arXiv 2410.00161; ``vllm/kvcompress/metrics.py``), which protects the last 64
    or 100 tokens (write +inf) and moves survivors as `BlockPool`'s compactor ``"fill"`` does. A
    selection rule over given scores, not the authors' code.

    Parameters
    ----------
    importance
        Scores, one for each token; +inf for one that must stay.
    num_freed_blocks
        Blocks that each sequence gives back, at most those that its rows own.
    pool
        A BlockPool or a block size; under it no two rows may share a block.
    axes
        One letter for each axis, ``t`` for tokens, ``l`` and ``h`` for layers and heads, which
        choose together; required for more than one axis.

    Raises
    ------
    TypeError, ValueError
        As `ada_kv`; for rows that share blocks, and for more blocks than there are.

    Examples
    --------
    >>> from kvreclaim import runtimes
    >>> pool = runtimes.kv_compress(block_size=2)
    >>> kv_compress([[1, 5, 2, 6, 7], [8, 3, 4, 9, 9]], 3, pool, axes="ht").astype(int)
    array([[0, 0, 0, 1, 1],
           [1, 0, 1, 1, 1]])
    """
    pool = as_pool(pool)
    scores = _selection.of_importance(importance, axes, together="lh")
    wanted = _checks.as_count("num_freed_blocks", num_freed_blocks)
    groups, rows, tokens = scores.rows.shape
    letters = zip(axes or "t", (scores.sizes[place] for place in scores.back), strict=True)
    if any(letter in pool.shared_axes and size > 1 for letter, size in letters):
        raise ValueError(
            f"pool must give each row of importance a block table of its own; got "
            f"shared_axes={pool.shared_axes!r} for axes {axes!r}; write "
            "kvreclaim.runtimes.kv_compress(), or pool.replace(shared_axes='')."
        )
    blocks = pool.num_blocks_for(tokens)
    if wanted > rows * blocks:
        raise ValueError(
            f"num_freed_blocks must be at most the {rows * blocks} blocks of a sequence's rows; "
            f"got {wanted}; write what shall come back."
        )
    order = scores.rows.argsort(axis=-1, kind="stable")
    hanging = tokens - (blocks - 1) * pool.block_size  # tokens of the last block
    dearest = order[..., hanging - 1 :: pool.block_size] if tokens else order
    prices = np.take_along_axis(scores.rows, dearest, axis=-1).swapaxes(1, 2)
    stay = _selection.highest(prices.reshape(groups, blocks * rows), blocks * rows - wanted)
    freed = blocks - np.count_nonzero(stay.reshape(groups, blocks, rows), axis=1)
    evicted = hanging + (freed - 1) * pool.block_size  # of no block, at most 0
    keep = np.empty(scores.rows.shape, np.bool_)
    np.put_along_axis(keep, order, np.arange(tokens) >= evicted[..., None], axis=-1)
    return scores.restore(keep)
