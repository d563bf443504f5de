"""check_policy: a battery of laws over a policy, and what comes back over block sizes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _checks, importance, policies
from kvreclaim._render.tables import Table, as_text
from kvreclaim._version import __version__
from kvreclaim.census import take_census
from kvreclaim.metrics import packed_reclaim, physical_reclaim, reclaim_efficiency
from kvreclaim.pool import BlockPool, PoolLike, as_pool
from kvreclaim.signature import Signature, line_of
from kvreclaim.testing._breaches import find_breaches, finding_of, map_of, name_of, text_of
from kvreclaim.testing._cases import Asked, Policy, Scores
from kvreclaim.testing._laws import FIRST, LAWS, budget_finding

_TOKENS: Final = 1024  # where reclaim is measured, or more where more always stay
_ROWS: Final = 2  # of each other axis


@attrs.frozen(kw_only=True)
class ReclaimAt:
    """What comes back at one block size.

    Parameters
    ----------
    block_size
        Slots of a block.
    physical_reclaim
        Share of the blocks that comes back in place.
    packed_reclaim
        The same if survivors are packed.
    reclaim_efficiency
        How much of the logical saving comes back in place; nan where nothing is evicted.
    """

    block_size: int
    physical_reclaim: float
    packed_reclaim: float
    reclaim_efficiency: float


@attrs.frozen(kw_only=True)
class PolicyCheck:
    """What `check_policy` found: the laws that hold, and what comes back; its text is a table.

    Parameters
    ----------
    policy
        The policy's name.
    laws
        Laws that hold, each over all its cases.
    not_asked
        Laws that were skipped or do not apply.
    num_calls
        How often the policy was called.
    axes, shape, num_kept
        Of the input on which reclaim was measured.
    signature
        Under which pool, with ``B:each`` for the block size.
    reclaim
        A `ReclaimAt` for each block size.
    """

    policy: str
    laws: tuple[str, ...]
    not_asked: tuple[str, ...]
    num_calls: int
    axes: str
    shape: tuple[int, ...]
    num_kept: int
    signature: str
    reclaim: tuple[ReclaimAt, ...]

    def __str__(self) -> str:
        """Return the table for a terminal."""
        rows = [
            (
                str(at.block_size),
                *(
                    f"{figure:.3f}"
                    for figure in (at.physical_reclaim, at.packed_reclaim, at.reclaim_efficiency)
                ),
            )
            for at in self.reclaim
        ]
        tokens = self.shape[self.axes.index("t")]
        return "\n".join(
            (
                f"{self.policy}: {len(self.laws)} laws hold, in {self.num_calls} calls",
                f"not asked: {', '.join(self.not_asked) or 'none'}",
                f"reclaim, num_kept={self.num_kept} of {tokens} tokens, {self.axes} {self.shape}:",
                "",
                as_text(Table(("block size", "in place", "packed", "efficiency"), rows)),
                "",
                self.signature,
            )
        )


def check_policy(
    policy: Policy,
    *,
    axes: str = "bt",
    mean_over: str = "",
    sinks: int = 0,
    window: int = 0,
    takes_rng: bool = False,
    takes_valid: bool = False,
    skip: Collection[str] = (),
    pool: PoolLike = 16,
    block_sizes: Sequence[int] = (1, 8, 16, 32, 64, 128),
    scores: ArrayLike | None = None,
    keep_ratio: float = 0.5,
    seed: int = 0,
) -> PolicyCheck:
    """Check the laws that an eviction policy must keep, and measure what comes back.

    The policy is called as ``policy(importance, num_kept)``: float64 scores in the axes of `axes`,
    a higher one stays; it returns a keep-mask of that shape, as any library's array of booleans.
    Others are called through a lambda: without scores ``lambda s, n: mine(s.shape[-1], n)``, on
    attention ``lambda s, n: mine(s[..., None, :], n)`` (one query), of torch
    ``lambda s, n: mine(torch.from_numpy(s), n)``.

    Laws, by name: ``shape``, ``dtype``; ``budget``, exactly ``num_kept`` tokens of each row;
    ``edge_budgets``, ``min(num_kept, tokens)`` at 0, at all tokens and more, and below ``sinks +
    window``; ``ties``, the budget where scores are equal; ``sinks`` and ``window``, which stay
    wherever the budget holds both; ``deterministic``; ``input_unchanged``; ``no_revival``, eviction
    step by step: what is evicted at one budget is evicted at every smaller one; ``batch``, a
    sequence (letter ``b``) keeps the same tokens in any order of the batch and alone; ``padding``,
    asked of a policy that takes ``valid``.

    Each law is asked of inputs in order of size, and an exception breaks it. All laws that are
    broken are named, each with the smallest input tried that breaks it; but where ``shape`` or
    ``dtype`` is, those that follow cannot be asked. It takes a few thousand calls of 2 to some
    hundred scores, and needs NumPy alone.

    Parameters
    ----------
    policy
        The policy.
    axes
        One letter for each axis of the scores it takes: ``t`` tokens, ``b`` sequences, any others.
    mean_over
        Letters whose rows share a budget, such as ``"h"`` for Ada-KV: their mean is the budget.
    sinks, window
        First and last tokens that always stay.
    takes_rng
        True: it is called with ``rng=``, a numpy.random.Generator of the same seed for the same
        call. ``batch`` and ``padding`` are not asked.
    takes_valid
        True: it is called with ``valid=``, booleans of the scores' shape, False at padding. A
        sequence keeps ``min(num_kept, its true tokens)``.
    skip
        Names of laws that are not asked; ``shape`` and ``dtype`` always are.
    pool
        A BlockPool or a block size, for reclaim; its block size gives way to each of `block_sizes`.
    block_sizes
        Block sizes at which reclaim is measured.
    scores
        Scores on which reclaim is measured, your own if you have some; by default independent
        lognormal ones of 1,024 tokens (four times what always stays, where that is more), two of
        each other axis: without any geometry.
    keep_ratio
        Share of their tokens that stays.
    seed
        Of all scores.

    Returns
    -------
    PolicyCheck
        A record whose `str` is a table. Nothing is printed.

    Raises
    ------
    AssertionError
        Where a law is broken: law, smallest input, and a block map of the first.
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> from kvreclaim import policies
    >>> check = check_policy(lambda s, n: policies.streaming_llm(s.shape, n), sinks=4)
    >>> check.reclaim[2].physical_reclaim
    0.484375
    >>> check_policy(lambda s, n: s >= np.sort(s)[..., -n, None])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    AssertionError: <lambda> breaks 2 of 9 laws: edge_budgets, ties
    <BLANKLINE>
    edge_budgets: min(num_kept, tokens) stay, at 0, at all tokens and more, and below sinks and...
      kept 2 instead of 0 tokens of b=0
      smallest input found: axes='bt', shape (1, 2), num_kept=0, seed 0
    ...
    """
    __tracebackhide__ = True
    if not callable(policy):
        raise TypeError(
            f"policy must be callable as policy(importance, num_kept); got "
            f"{_checks.shown(policy)}; write a function that returns a keep-mask."
        )
    letters = _letters(axes)
    asked = Asked(
        policy,
        letters,
        _mean_over(mean_over, letters),
        _checks.as_count("sinks", sinks),
        _checks.as_count("window", window),
        _checks.as_flag("takes_rng", takes_rng),
        _checks.as_flag("takes_valid", takes_valid),
        _checks.as_count("seed", seed),
        [0],
    )
    names = _checks.as_items("skip", skip, "names of laws", "write such as ['no_revival']")
    skipped = {
        _checks.as_choice("skip", name, [name for name in LAWS if name not in FIRST])
        for name in names
    }
    pools = _pools(pool, block_sizes)
    measured = _scores(scores, asked)
    tokens = measured.shape[asked.token_axis]
    num_kept = policies.num_kept_for(keep_ratio, tokens)

    laws = [name for name, law in LAWS.items() if name not in skipped and law.is_asked(asked)]
    whole = as_pool(pool)
    breaches = find_breaches(asked, laws)
    if breaches:
        first = next((breach.error for breach in breaches if breach.error), None)
        raise AssertionError(text_of(asked, laws, breaches, whole)) from first
    reclaim, signature = _reclaim(asked, _measured(asked, measured, num_kept, laws, whole), pools)
    return PolicyCheck(
        policy=name_of(policy),
        laws=tuple(laws),
        not_asked=tuple(name for name in LAWS if name not in laws),
        num_calls=asked.calls[0],
        axes=letters,
        shape=measured.shape,
        num_kept=num_kept,
        signature=signature,
        reclaim=reclaim,
    )


def _letters(axes: object) -> str:
    """Return the letters of the scores' axes, ``t`` among them."""
    ndim = len(axes) if isinstance(axes, str) else 1
    return _checks.as_score_axes(axes, (0,) * max(ndim, 1), name="importance", last="t", of="")


def _mean_over(mean_over: object, axes: str) -> str:
    letters = _checks.as_shared_axes("mean_over", mean_over)
    if not set(letters) <= set(axes):
        raise ValueError(
            f"mean_over must name letters of axes; got {mean_over!r} for axes {axes!r}; write such "
            "as axes='bht', mean_over='h'."
        )
    return letters


def _pools(pool: PoolLike, block_sizes: object) -> list[BlockPool]:
    """Return the pool at each block size."""
    whole = as_pool(pool)
    hint = "write such as [16, 64]"
    sizes = _checks.as_items("block_sizes", block_sizes, "block sizes", hint)
    if not sizes:
        raise ValueError(f"block_sizes must be at least one block size; got none; {hint}.")
    return [whole.replace(block_size=_checks.as_block_size(size, "block_sizes")) for size in sizes]


def _scores(scores: ArrayLike | None, asked: Asked) -> Scores:
    """Return what reclaim is measured on."""
    if scores is None:
        tokens = max(_TOKENS, 4 * asked.reserved)
        shape = [tokens if letter == "t" else _ROWS for letter in asked.axes]
        return importance.lognormal(shape, rng=np.random.default_rng(asked.seed))
    array = _checks.as_importance(scores, "scores")
    _checks.as_score_axes(asked.axes, array.shape, name="scores", last="t", of="")
    return array


def _measured(
    asked: Asked, scores: Scores, num_kept: int, laws: Sequence[str], pool: BlockPool
) -> NDArray[np.bool_]:
    """Return the mask of which reclaim is measured; its budget is checked too."""
    error: BaseException | None = None
    try:
        keep = asked.keep(scores.copy(), num_kept, asked.seed)
    except Exception as raised:  # noqa: BLE001  # of the policy, or of what it returned
        finding, error = finding_of(raised)
    else:
        wrong = budget_finding(asked, keep, num_kept) if "budget" in laws else None
        if wrong is None:
            return keep
        finding = wrong
    raise AssertionError(
        f"{name_of(asked.policy)} fails where reclaim is measured: {finding.what}\n"
        f"  axes={asked.axes!r}, shape {scores.shape}, num_kept={num_kept}"
        f"{map_of(asked, finding, pool)}"
    ) from error


def _reclaim(
    asked: Asked, keep: NDArray[np.bool_], pools: Sequence[BlockPool]
) -> tuple[tuple[ReclaimAt, ...], str]:
    """Return what comes back at each block size, and under which pool."""
    axes = asked.axes.replace("t", "") + "t"
    censuses = [take_census(keep, pool, axes=axes) for pool in pools]
    fields = Signature(pools[0], censuses[0].rows_per_table, __version__).fields()
    return tuple(
        ReclaimAt(
            block_size=census.pool.block_size,
            physical_reclaim=physical_reclaim(census),
            packed_reclaim=packed_reclaim(census),
            reclaim_efficiency=reclaim_efficiency(census),
        )
        for census in censuses
    ), line_of(fields | {"B": "each"})
