"""Eviction during decoding: the birth and death of every token -> blocks held at every step.

A mask for each step would be (steps x tokens); two numbers a token say the same.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _checks, _held, _layout, _lives
from kvreclaim.census import Census, take_census
from kvreclaim.pool import BlockPool, PoolLike, as_pool

NEVER: Final = _lives.NEVER
"""The time of what does not happen: the largest int32."""

_PIECE: Final = 1 << 18  # slots at a time: a dozen numbers are kept for each


@attrs.frozen(eq=False)
class Timeline:
    """What eviction leaves in the blocks of a pool at every step, as integers summed over tables.

    A timeline comes from `timeline`. Entry s of an array is what the census of step s says, unless
    holes are reused. The arrays are read-only, after a pickle round trip too; a timeline is equal
    to itself only.

    Parameters
    ----------
    pool
        The BlockPool it was taken under.
    num_tokens
        Tokens born by then, dead or alive.
    num_live_tokens
        Live slots: those of which at least one row's entry is alive.
    num_held_blocks
        Blocks that the runtime does not take back without a copy.
    num_freed_blocks
        Blocks that the tokens born by then fill, less those held.
    num_stranded_tokens
        Slots that were written and are dead, but sit in a held block.
    born_at, evicted_at
        The times that it was taken of, as int32.
    axes, lengths, offset, reuse_holes
        What came with them: a length and an offset for each index of the outer axes.

    Examples
    --------
    A prompt of four tokens is cut to two after its prefill; its blocks were held by then.

    >>> line = timeline([0, 0, 0, 0, 1], [NEVER, NEVER, 1, 1, NEVER], 2)
    >>> line.num_held_blocks.tolist(), line.num_freed_blocks.tolist(), line.peak_held_blocks
    ([2, 2], [0, 1], 2)
    >>> line.keep_at(1).tolist()
    [True, True, False, False, True]
    """

    pool: BlockPool
    num_tokens: NDArray[np.int64] = attrs.field(converter=_checks.as_read_only)
    num_live_tokens: NDArray[np.int64] = attrs.field(converter=_checks.as_read_only)
    num_held_blocks: NDArray[np.int64] = attrs.field(converter=_checks.as_read_only)
    num_freed_blocks: NDArray[np.int64] = attrs.field(converter=_checks.as_read_only)
    num_stranded_tokens: NDArray[np.int64] = attrs.field(converter=_checks.as_read_only)
    born_at: NDArray[np.int32] = attrs.field(converter=_checks.as_read_only, repr=False)
    evicted_at: NDArray[np.int32] = attrs.field(converter=_checks.as_read_only, repr=False)
    axes: str | None
    lengths: NDArray[np.int64] = attrs.field(converter=_checks.as_read_only, repr=False)
    offset: NDArray[np.int64] = attrs.field(converter=_checks.as_read_only, repr=False)
    reuse_holes: bool

    def __reduce__(self) -> tuple[type[Timeline], tuple[Any, ...]]:
        """Pickle and copy by building anew, which makes the arrays read-only again."""
        return Timeline, tuple(getattr(self, field.name) for field in attrs.fields(Timeline))

    @property
    def peak_held_blocks(self) -> int:
        """The most blocks held at a step: eviction after a prefill does not lower it."""
        return int(self.num_held_blocks.max())

    @property
    def mean_held_blocks(self) -> float:
        """Blocks held, averaged over the steps."""
        return int(self.num_held_blocks.sum()) / len(self.num_held_blocks)

    def keep_at(self, step: int) -> NDArray[np.bool_]:
        """Return the keep-mask of a step, in the shape that the times have together.

        A token that is not born yet is False; it lies beyond `lengths_at` that step.
        """
        at = self._as_step(step)
        return np.asarray((self.born_at <= at) & (at < self.evicted_at))

    def lengths_at(self, step: int) -> NDArray[np.int64]:
        """Return the tokens of each table born by a step: the ``lengths`` of its keep-mask."""
        at = self._as_step(step)
        births, _ = np.broadcast_arrays(self.born_at, self.evicted_at)
        letters = _checks.as_axes(self.axes, births.shape, self.pool.shared_axes)
        layout = _layout.arrange(births, letters, self.pool, lengths=None, offset=0)
        born = layout.array.min(axis=_lives.row_axes(layout)) <= at
        within = np.arange(layout.tokens) < self.lengths[..., None]
        return np.asarray(np.count_nonzero(born & within, axis=-1))

    def census_at(self, step: int) -> Census:
        """Return the census of a step's keep-mask, from which every metric follows.

        Each token sits at its own position there, even where the timeline reuses holes.

        Examples
        --------
        >>> from kvreclaim import physical_reclaim
        >>> line = timeline([0, 0, 0, 0], [NEVER, 2, 1, 1], 2)
        >>> [physical_reclaim(line.census_at(step)) for step in range(3)]
        [0.0, 0.5, 0.5]
        """
        return take_census(
            self.keep_at(step),
            self.pool,
            axes=self.axes,
            lengths=self.lengths_at(step),
            offset=self.offset,
        )

    def _as_step(self, step: int) -> int:
        return _checks.as_count("step", step, maximum=len(self.num_tokens) - 1)


def timeline(
    born_at: ArrayLike,
    evicted_at: ArrayLike,
    pool: PoolLike,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
    reuse_holes: bool = False,
) -> Timeline:
    """Count what is live, held, freed and stranded at every step of a generation.

    An entry is alive while ``born_at <= step < evicted_at``. A slot is written when the first of
    its entries is born, and live while any of them is alive. Tables grow in token order, each token
    in the slot of its position, so that every step equals the census of its keep-mask. A freed
    block comes back only when a token is born in it: it is taken anew, its dead slots stranded.
    Under ``frees="back"`` the empty blocks in front of that token come back too, since there a
    table has no gaps. An open tail is held until it is full.

    Parameters
    ----------
    born_at, evicted_at
        Integers from 0 to `NEVER`: the step at which an entry is written, and the first at which it
        is gone; `NEVER` for what does not happen. One axis for each letter of `axes`, of size 1 to
        repeat; or flat, a number for each token; or one number for all. An entry of equal times is
        evicted within the step that writes it: a dead slot from the start.
    pool
        A BlockPool, or a block size.
    axes, lengths, offset
        As in `take_census`, of both arrays together. Beyond a length nothing is alive: write zeros.
    reuse_holes
        True: at a step, first what is evicted dies and the blocks it empties are freed; then each
        new token goes into the lowest dead slot of a held block of its table, else into the next
        slot never written, else into a new block at the end. Dead slots are room for their own
        sequence to grow, not for others.

    Returns
    -------
    Timeline
        Steps run from 0 to the largest finite time; step 0 is always there.

    Raises
    ------
    TypeError, ValueError
        For times that are no integers from 0 to `NEVER`, or finite ones of 16,777,216 and more; an
        entry evicted before it, or another entry of its slot, is born; tokens of a table out of the
        order of their births; shapes, axes, lengths or offsets that do not fit.

    Examples
    --------
    One token in, one out, from step 1 on. Whatever block a survivor sits in stays.

    >>> born_at = [0, 0, 0, 0, 1, 2, 3]
    >>> evicted_at = [1, NEVER, 2, NEVER, 3, NEVER, NEVER]
    >>> line = timeline(born_at, evicted_at, 2)
    >>> line.num_live_tokens.tolist(), line.num_held_blocks.tolist()
    ([4, 4, 4, 4], [2, 3, 3, 4])
    >>> timeline(born_at, evicted_at, 2, reuse_holes=True).num_held_blocks.tolist()
    [2, 2, 2, 2]
    """
    pool = as_pool(pool)
    reuse_holes = _checks.as_flag("reuse_holes", reuse_holes)
    born, evicted, letters = _lives.aligned(
        _lives.as_times("born_at", born_at), _lives.as_times("evicted_at", evicted_at), axes, pool
    )
    births, deaths = np.broadcast_arrays(born, evicted)
    layout = _layout.arrange(deaths, letters, pool, lengths=lengths, offset=offset)
    table_lengths, offsets = _layout.of_each_table(layout)
    within = np.True_ if lengths is None else _lives.within(layout, letters, pool)
    _lives.check_lives(births, deaths, within)
    steps = 1 + max(
        _lives.latest("born_at", births, within), _lives.latest("evicted_at", deaths, within)
    )
    if lengths is not None:
        births = np.where(within, births, np.int32(NEVER))
    births = _layout.arrange(births, letters, pool, lengths=None, offset=0).array
    slots_born, slots_evicted = _lives.slot_times(births, layout)

    changes = np.zeros((5, steps + 1), np.int64)
    piece = max(1, max(_PIECE, steps) // max(layout.tokens, 1))
    for first in range(0, layout.num_tables, piece):
        some = slice(first, first + piece)
        slots = _held.written_slots(slots_born[some], slots_evicted[some], offsets[some], pool)
        changes[:3] += _held.grown(slots, steps)
        if reuse_holes:
            changes[3:] += _held.held_with_reuse(slots, offsets[some], pool, steps)
        elif pool.frees == "back":
            changes[3:] += _held.held_up_to_last(slots, offsets[some], pool, steps)
        else:
            changes[3:] += _held.held_by_block(slots, pool, steps)
    tokens, live, blocks, held, held_tokens = changes.cumsum(axis=1)[:, :steps]
    return Timeline(
        pool=pool,
        num_tokens=tokens,
        num_live_tokens=live,
        num_held_blocks=held,
        num_freed_blocks=blocks - held,
        num_stranded_tokens=held_tokens - live,
        born_at=born,
        evicted_at=evicted,
        axes=axes,
        lengths=table_lengths.reshape(layout.outer),
        offset=offsets.reshape(layout.outer),
        reuse_holes=reuse_holes,
    )
