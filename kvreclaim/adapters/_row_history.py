"""Which token sits in which slot of one layer's cache, and when each token was born and evicted."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _rows
from kvreclaim.lifetimes import NEVER

Codes = tuple[NDArray[np.int64], NDArray[np.int64]]
"""A number for each row's key, and one for its value, equal where the bits are."""

_ODD: Final = np.int64(0x5851F42D4C957F2D)


class RowHistory:
    """The tokens of one layer: columns in the order of their births, and where each one is.

    A press leaves survivors in any order, so that a slot is no position: `origin` says which token
    a slot holds. Arrays have the axes sequence, kv head, and slot or token.
    """

    def __init__(self, layer: int, num_sequences: int, num_heads: int) -> None:
        """Begin with an empty cache."""
        self.layer = layer
        self.origin = np.zeros((num_sequences, num_heads, 0), np.int64)
        self.evicted_at = np.zeros((num_sequences, num_heads, 0), np.int32)
        self.born_at = np.zeros(0, np.int32)
        self.real = np.zeros((num_sequences, 0), np.bool_)
        self.num_ambiguous = 0
        self.step = -1
        self._begins: list[int] = []  # the first token of each pass

    @property
    def num_slots(self) -> int:
        """Slots that the cache's tensors hold for each head."""
        return self.origin.shape[2]

    @property
    def num_heads(self) -> int:
        """Kv heads of the layer."""
        return self.origin.shape[1]

    @property
    def num_tokens(self) -> int:
        """Tokens written and not undone."""
        return len(self.born_at)

    def append(self, real: NDArray[np.bool_]) -> None:
        """Add the tokens of a pass behind the slots that are there."""
        self.step += 1
        self._begins.append(self.num_tokens)
        num_new = real.shape[1]
        new = np.arange(self.num_tokens, self.num_tokens + num_new)
        shape = (*self.origin.shape[:2], num_new)
        self.origin = np.concatenate([self.origin, np.broadcast_to(new, shape)], axis=2)
        self.evicted_at = np.concatenate([self.evicted_at, np.full(shape, NEVER, np.int32)], axis=2)
        self.born_at = np.concatenate([self.born_at, np.full(num_new, self.step, np.int32)])
        self.real = np.concatenate([self.real, real], axis=1)

    def mask(self, where: tuple[NDArray[np.int64], ...], step: int) -> bool:
        """Evict what sits in some slots (sequence, head, slot); say whether all are held.

        Others are of tokens that were undone, or are yet to come.
        """
        sequence, head, slot = where
        held = slot < self.num_slots
        sequence, head, slot = sequence[held], head[held], slot[held]
        token = self.origin[sequence, head, slot]
        at = self.evicted_at[sequence, head, token]
        self.evicted_at[sequence, head, token] = np.minimum(at, step)
        return bool(held.all())

    def cut(self, num_slots: int) -> bool:
        """Undo the newest tokens, if just these are behind a slot in every row; say if they are."""
        gone = self.origin[:, :, num_slots:]
        stay = self.origin[:, :, :num_slots]
        first = int(gone.min())
        if stay.size and int(stay.max()) >= first:
            return False
        self.origin = stay
        self._undo(first)
        return True

    def holds_replay(self, num_slots: int) -> bool:
        """Say whether the slots behind one hold just the tokens of the last pass, not the first.

        A press that has replayed the prompt takes the replay away again.
        """
        begin = self._begins[-1]
        new = np.arange(begin, self.num_tokens)
        gone = self.origin[:, :, num_slots:]
        return begin > 0 and gone.shape[2] == len(new) and bool((gone == new).all())

    def gather(
        self,
        before: Codes,
        after: Codes,
        *,
        step: int,
        taken: NDArray[np.int64] | None = None,
        overwritten: tuple[bool, bool] = (False, False),
        between: bool = False,
    ) -> None:
        """Evict what is not among the rows left.

        Parameters
        ----------
        before, after
            Codes of all rows held, and of those left.
        step
            The first step at which what is gone is gone.
        taken
            Slots that torch was asked to gather, which tell equal rows apart; None if unknown.
        overwritten
            Whether the keys, and the values, held were written over since: those of `before` are
            then in the places of the rows left, and tell nothing by themselves.
        between
            True: between two passes, when a whole pass that is gone was undone rather than evicted.
        """
        source, unsure = self._matched(before, after, taken, overwritten)
        moved = np.take_along_axis(self.origin, source, axis=2)
        real = np.take_along_axis(
            np.broadcast_to(self.real[:, np.newaxis], self.evicted_at.shape), moved, axis=2
        )
        self.num_ambiguous += int(np.count_nonzero(unsure & real))
        left = np.zeros(self.origin.shape, np.bool_)
        np.put_along_axis(left, source, values=True, axis=2)
        sequence, head, slot = np.nonzero(~left)
        self.mask((sequence, head, slot), step)
        self.origin = moved
        if between:
            newest = int(moved.max(initial=-1))
            undone = [begin for begin in self._begins[1:] if begin > newest]
            if undone:
                self._undo(undone[0])

    def _undo(self, first: int) -> None:
        """Forget the tokens from one on: they were taken back, as an answer is, not evicted."""
        self.evicted_at = self.evicted_at[:, :, :first]
        self.born_at, self.real = self.born_at[:first], self.real[:, :first]
        self._begins = [begin for begin in self._begins if begin < first]

    def _matched(
        self,
        before: Codes,
        after: Codes,
        taken: NDArray[np.int64] | None,
        overwritten: tuple[bool, bool],
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the slot that each row left was in, and where equal rows leave that open.

        What a press rewrites says nothing of a row, though by chance it may equal another. So one
        criterion holds for all rows: key and value; if that fails for any, the value; or the key.
        """
        if all(overwritten):
            raise ValueError(
                f"layer {self.layer} must be left with copies of rows that it had; got keys and "
                "values that were written over in place, so that what they were is gone; write "
                "the rows that stay into new tensors, such as keys[:, :, kept]."
            )
        source, unsure = _sources(_paired(before), _paired(after), taken)
        if (source >= 0).all():
            return source, unsure
        by_key, by_value = (
            None if written else _sources(was, now, taken)
            for written, was, now in zip(overwritten, before, after, strict=True)
        )
        found = [part for part in (by_value, by_key) if part and (part[0] >= 0).all()]
        if len(found) > 1:
            (source, unsure), (other, open_too) = found
            if (source != other)[~unsure & ~open_too].any():
                raise ValueError(
                    f"layer {self.layer} must be left with keys and values of the same tokens; got "
                    "keys of some beside values of others; measure the press without what moves "
                    "them apart."
                )
        if found:
            return found[0]
        lost = (by_key or by_value or (source, unsure))[0] < 0
        sequence, head, slot = np.argwhere(lost)[0].tolist()
        raise ValueError(
            f"layer {self.layer} must be left with copies of rows that it had, of their keys or of "
            f"their values; got {np.count_nonzero(lost)} of {lost.size} rows with neither, the "
            f"first in sequence {sequence}, head {head}, slot {slot}; measure the press without "
            "what rewrites both."
        )


def _paired(codes: Codes) -> NDArray[np.int64]:
    keys, values = codes
    return np.asarray(keys ^ (values * _ODD))


def _sources(
    was: NDArray[np.int64], now: NDArray[np.int64], taken: NDArray[np.int64] | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the slot of each row left by one criterion, or -1, and where that is open."""
    source = np.empty(now.shape, np.int64)
    unsure = np.empty(now.shape, np.bool_)
    for row in np.ndindex(now.shape[:2]):
        # Equal rows that are all left may still have changed places.
        if taken is not None and _fits(taken[row], was[row], now[row]):
            source[row], unsure[row] = taken[row], False
        else:
            source[row], unsure[row] = _rows.sources(was[row], now[row])
    return source, unsure


def _fits(taken: NDArray[np.int64], was: NDArray[np.int64], now: NDArray[np.int64]) -> bool:
    """Say whether rows that were asked for are those left."""
    once = len(np.unique(taken)) == len(taken)
    return once and bool((was[taken] == now).all())
