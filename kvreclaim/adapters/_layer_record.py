"""One layer of a cache, before and after each thing that happens to it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks
from kvreclaim.adapters import _hf_cache
from kvreclaim.adapters._hf_cache import Gathered, Module, Tensor
from kvreclaim.adapters._row_history import RowHistory


class LayerRecord:
    """What becomes of the tokens of one layer, told from its rows before and after.

    Rows are held as tensors, no copies, and are only looked at where there are fewer than before.
    """

    def __init__(self, module: Module, keys: Tensor, values: Tensor) -> None:
        """Begin with the attention module of the layer, and the rows that its prefill wrote."""
        self._module = module
        self._note(keys, values)
        # Attention that kvpress has not patched (eager) leaves the list of an earlier press.
        self._settled: object = getattr(module, "masked_key_indices", None)
        self.history = RowHistory(module.layer_idx, *keys.shape[:2])

    def _note(self, keys: Tensor, values: Tensor) -> None:
        """Hold the rows, and how often they had been written over by then."""
        self._keys, self._values = keys, values
        self._writes = _hf_cache.num_writes(keys), _hf_cache.num_writes(values)

    @property
    def _overwritten(self) -> tuple[bool, bool]:
        """Say whether the keys, and the values, held are no longer those that were noted."""
        keys, values = self._writes
        return (
            _hf_cache.num_writes(self._keys) != keys,
            _hf_cache.num_writes(self._values) != values,
        )

    def holds(self, values: Tensor) -> bool:
        """Say whether these are the rows that were there, and none more."""
        same = self._values.shape == values.shape
        return same and _hf_cache.shares_memory(self._values, values)

    def forwarded(self, keys: Tensor, values: Tensor, real: NDArray[np.bool_]) -> None:
        """Note that a pass has written its tokens behind the rows that were there."""
        if self.history.num_tokens:
            num_old = keys.shape[2] - real.shape[1]
            self._changed(keys[:, :, :num_old], values[:, :, :num_old])
        self.history.append(real)
        self._note(keys, values)
        self._read_list(self.history.step)

    def pressed(self, keys: Tensor, values: Tensor, gathered: list[Gathered]) -> None:
        """Note what a press left of the layer, within a pass."""
        history, num_left = self.history, keys.shape[2]
        same = self._keys.shape == keys.shape and _hf_cache.shares_memory(self._keys, keys)
        if not (same and self.holds(values)):
            self._refuse_others(keys)
            undone = not self._overwritten[1] and history.holds_replay(num_left)
            if undone and _hf_cache.shares_memory(self._values, values):
                history.cut(num_left)
            else:
                history.gather(
                    (_hf_cache.fingerprints(self._keys), _hf_cache.fingerprints(self._values)),
                    (_hf_cache.fingerprints(keys), _hf_cache.fingerprints(values)),
                    step=history.step + 1,
                    taken=_hf_cache.taken_of(gathered, self._keys.shape, num_left),
                    overwritten=self._overwritten,
                )
        self._note(keys, values)

    def ended(self, keys: Tensor, values: Tensor) -> None:
        """Note what was done since the last pass, when there will be no other."""
        if keys.shape[2]:  # else the cache was thrown away
            self._changed(keys, values, last=True)
        self._read_list(self.history.step + 1)

    def _changed(self, keys: Tensor, values: Tensor, *, last: bool = False) -> None:
        """Account for what is gone since the last pass, in which no press took part."""
        history, num_left = self.history, keys.shape[2]
        self._refuse_others(keys)
        overwritten = self._overwritten
        if num_left == history.num_slots:
            ends = [0, num_left - 1] if num_left else []
            same = _hf_cache.same_bits(self._values[:, :, ends], values[:, :, ends])
            if overwritten[1] or not same:
                got = "others there, as beam search leaves them"
                if overwritten[1]:
                    got = "values that were written over, as Cache.reset() does"
                raise ValueError(
                    f"layer {history.layer} must keep its rows in their places between two passes; "
                    f"got {got}; decode each sequence by itself."
                )
        elif not overwritten[1] and _hf_cache.same_bits(self._values[:, :, :num_left], values):
            if not history.cut(num_left) and not last:
                raise ValueError(
                    f"layer {history.layer} must lose its newest tokens, or chosen ones, between "
                    f"two passes; got {num_left} of {history.num_slots} slots, and in those cut "
                    "off older tokens than in some left; cut a cache before a press has reordered "
                    "it, or start anew."
                )
        else:
            history.gather(
                (_hf_cache.fingerprints(self._keys), _hf_cache.fingerprints(self._values)),
                (_hf_cache.fingerprints(keys), _hf_cache.fingerprints(values)),
                step=history.step + 1,
                overwritten=overwritten,
                between=True,
            )

    def _refuse_others(self, keys: Tensor) -> None:
        """Refuse rows of other sequences or heads, and more rows than there were."""
        were, are = self.history.origin.shape[:2], tuple(keys.shape[:2])
        if are != were:
            raise ValueError(
                f"layer {self.history.layer} must keep its sequences and kv heads, and evict their "
                f"tokens; got {are[0]} sequences and {are[1]} heads where {were[0]} and {were[1]} "
                "were; give each batch a recorder and a cache of its own."
            )
        num_rows = keys.shape[2]
        if num_rows > self.history.num_slots:
            raise ValueError(
                f"layer {self.history.layer} must grow by the tokens of each pass alone; got "
                f"{num_rows} rows where {self.history.num_slots} were; give each pass the cache "
                "as the last one left it."
            )

    def _read_list(self, step: int) -> None:
        """Evict what a press lists as masked; a list is read anew while it names slots to come."""
        listed: Any = getattr(self._module, "masked_key_indices", None)
        if listed is None or listed is self._settled:
            return
        if self.history.mask(self._places(listed), step):
            self._settled = listed

    def _places(self, listed: Any) -> tuple[NDArray[np.int64], ...]:  # noqa: ANN401  # of a press
        """Return sequence, head and slot of each entry of a list."""
        name = f"masked_key_indices of layer {self.history.layer}"
        rule = "a tuple of three arrays of one length: sequences, kv heads and slots"
        hint = "write what torch.nonzero(masked, as_tuple=True) returns"
        parts = listed if isinstance(listed, tuple | list) else ()
        where = tuple(_checks.as_integers(name, part).reshape(-1) for part in parts)
        sizes = [len(part) for part in where]
        if len(where) != 3 or len(set(sizes)) > 1:  # noqa: PLR2004  # sequence, head, slot
            got = f"arrays of {sizes}" if where else _checks.shown(listed)
            raise ValueError(f"{name} must be {rule}; got {got}; {hint}.")
        # A slot may be yet to come.
        beyond = (*self.history.origin.shape[:2], np.iinfo(np.int64).max)
        for part, limit in zip(where, beyond, strict=True):
            wrong = (part < 0) | (part >= limit)
            if wrong.any():
                raise ValueError(
                    f"{name} must name {beyond[0]} sequences, {beyond[1]} kv heads and slots, from "
                    f"0 on; got {part[wrong][0]} among {part.size}; {hint}."
                )
        return where
