"""What a press of kvpress keeps, recovered from the cache: the keep-mask, and every token's life.

Nothing of kvpress is imported or changed. One hook of a layer sees its cache before the press, one
after it; survivors are copies, so they are known by their bits. What a press only masks, it lists
(``masked_key_indices``). The same holds for any code that evicts from a cache of transformers.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks
from kvreclaim.adapters import _hf_cache
from kvreclaim.adapters._hf_cache import Module
from kvreclaim.adapters._layer_record import LayerRecord
from kvreclaim.adapters._row_history import RowHistory
from kvreclaim.census import Census, take_census
from kvreclaim.lifetimes import NEVER
from kvreclaim.metrics import logical_saving
from kvreclaim.pool import PoolLike
from kvreclaim.reports import report

AXES: Final = "lbht"
"""The axes of a recorder's arrays: layer, sequence, kv head, token."""


class KeepMaskRecorder:
    """Records which tokens a press keeps: ``with KeepMaskRecorder(model) as recorder: ...``.

    What runs inside must prefill one cache, once: a sequence, or a batch; then it may decode from
    it. The press or the pipeline is used as always, inside the recorder, since some presses decide
    when their own context ends. Read the recorder after its own.

    Tokens stand in the order they were written, without padding (from the attention mask). Those
    that are taken back, as the pipeline takes back each answer and KVzip its replay, are forgotten,
    not evicted. Steps are forward passes; the prefill is step 0. What a press evicts in a pass was
    there during it, and is gone at the next.

    Parameters
    ----------
    model
        The model that the press is given.

    Raises
    ------
    TypeError, ValueError
        For what is no such model; within the model's own call, where the mask cannot be told:
        sliding windows, quantised, static and offloaded caches, a press that rewrites both keys and
        values or takes away sequences or heads, a second prefill, a cache that was filled before.

    Notes
    -----
    Two tokens whose keys and values have the same bits are told apart by what torch is asked to
    gather. Where a press selects in another way, the first is taken for the survivor, and counted
    (`num_ambiguous`). Rows that are overwritten, and not taken away, stay: ThinK evicts nothing.
    What evicts by writing over keys and values in place is refused, but in torch.inference_mode,
    where tensors count no writes, it cannot be seen: measure it under torch.no_grad.

    Examples
    --------
    >>> with KeepMaskRecorder(model) as recorder, press(model):  # doctest: +SKIP
    ...     model(tokens, past_key_values=DynamicCache())
    >>> recorder.keep.shape  # doctest: +SKIP
    (32, 1, 8, 4096)
    """

    def __init__(self, model: object) -> None:
        """Find the layers of a model; nothing is hooked yet."""
        self._decoder, self._layers = _hf_cache.decoder_of(model)
        self._hooks: list[Any] = []
        self._gathers: Any = None
        self._cache: Any = None
        self._mask: object = None
        self._records: dict[int, LayerRecord] = {}
        self._histories: list[RowHistory] = []

    def __enter__(self) -> Self:
        """Put hooks on every layer: on its attention before any other, on itself after them."""
        if self._gathers is not None:
            raise ValueError(
                "recorder must be entered once; got a second time; write KeepMaskRecorder(model) "
                "for each sequence or batch."
            )
        self._gathers = _hf_cache.gathers()
        hook = self._decoder.register_forward_pre_hook(self._note_mask, with_kwargs=True)
        self._hooks.append(hook)
        for layer in self._layers:
            attention = layer.self_attn
            self._hooks += [
                attention.register_forward_hook(self._before, with_kwargs=True, prepend=True),
                layer.register_forward_hook(self._after, with_kwargs=True),
            ]
        self._gathers.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the hooks away, and read what presses decided when their own contexts ended."""
        self._gathers.__exit__(kind, error, trace)
        for hook in self._hooks:
            hook.remove()
        records, cache = sorted(self._records.items()), self._cache
        self._records, self._cache, self._mask = {}, None, None  # the tensors are free to go
        if error is None:
            for layer, record in records:
                record.ended(*_hf_cache.rows_of(cache, layer))
            self._histories = [record.history for _, record in records]

    def _note_mask(self, _: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)

    def _before(self, module: Module, args: Any, kwargs: Any, _: object) -> None:  # noqa: ANN401
        """See a layer's cache as attention leaves it: the last rows are those of this pass."""
        cache = kwargs.get("past_key_values")
        if cache is None:
            return
        layer = module.layer_idx
        num_new = (kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]).shape[1]
        keys, values = _hf_cache.rows_of(cache, layer)
        self._gathers.seen.clear()
        record = self._records.get(layer)
        if record is not None and cache is self._cache and record.holds(values):
            return  # a replay that stores nothing, as KVgrad's
        emptied = record is not None and not record.history.num_slots  # by a press
        if record is None or cache is not self._cache or (keys.shape[2] == num_new and not emptied):
            self._refuse_other_cache(layer, cache, keys.shape[2] - num_new)
            self._cache = cache
            record = self._records[layer] = LayerRecord(module, keys, values)
        real = _hf_cache.real_tokens(self._mask, keys.shape[0], num_new)
        record.forwarded(keys, values, real)

    def _after(self, module: Module, *_: object) -> None:
        """See a layer's cache as the press leaves it."""
        layer = module.self_attn.layer_idx
        if layer in self._records:
            keys, values = _hf_cache.rows_of(self._cache, layer)
            self._records[layer].pressed(keys, values, self._gathers.seen)

    def _refuse_other_cache(self, layer: int, cache: object, num_old: int) -> None:
        if layer in self._records or (self._records and cache is not self._cache):
            raise ValueError(
                f"a recorder must see one prefill; got another, in layer {layer}; write "
                "KeepMaskRecorder(model) for each sequence or batch, and add their censuses."
            )
        if num_old:
            raise ValueError(
                f"a recorder must see the prefill; got {num_old} rows in layer {layer} besides the "
                "tokens of its first pass; enter it before the cache is filled."
            )

    def _seen(self) -> list[RowHistory]:
        """Return the history of every layer, all of one shape."""
        histories = self._histories
        if not histories:
            raise ValueError(
                "recorder must have seen a prefill into a cache, and have been left without an "
                "error; got none; run the model inside it, and read it after its block."
            )
        first = histories[0]
        for history in histories:
            if (history.num_tokens, history.num_heads) != (first.num_tokens, first.num_heads):
                raise ValueError(
                    "every layer must hold the same tokens and kv heads; got "
                    f"{history.num_tokens} and {history.num_heads} in layer {history.layer}, "
                    f"{first.num_tokens} and {first.num_heads} in layer {first.layer}; measure "
                    "layers that differ by themselves."
                )
        if len(histories) < len(self._layers):
            missing = {layer.self_attn.layer_idx for layer in self._layers}
            missing -= {history.layer for history in histories}
            raise ValueError(
                f"every layer must write to the cache; got none in {sorted(missing)}; measure "
                "layers that differ by themselves."
            )
        return histories

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Real tokens of each sequence."""
        return np.asarray(np.count_nonzero(self._seen()[0].real, axis=1))

    @property
    def born_at(self) -> NDArray[np.int32]:
        """The step at which each token was written, of shape (1, sequence, 1, token)."""
        first = self._seen()[0]
        born = np.broadcast_to(first.born_at, first.real.shape)
        return _real_ones(born[np.newaxis, :, np.newaxis], first.real)

    @property
    def evicted_at(self) -> NDArray[np.int32]:
        """The first step at which each entry is gone, or `NEVER`; 0 beyond the lengths."""
        histories = self._seen()
        return _real_ones(np.stack([each.evicted_at for each in histories]), histories[0].real)

    @property
    def keep(self) -> NDArray[np.bool_]:
        """True for each entry that is left at the end; its axes are `AXES`."""
        return np.asarray(self.evicted_at == NEVER)

    @property
    def num_ambiguous(self) -> int:
        """Kept entries that equal others which are gone, so that which one stayed is unknown."""
        return sum(history.num_ambiguous for history in self._seen())

    @property
    def cached_share(self) -> float:
        """Share of the rows that the cache's own tensors still hold: 1 where a press only masks."""
        histories = self._seen()
        rows = sum(history.num_tokens for history in histories)
        return sum(history.num_slots for history in histories) / rows

    def __repr__(self) -> str:
        """Return what was recorded in a line."""
        name = type(self).__name__
        if not self._histories:
            return f"<{name}: nothing recorded yet>"
        try:
            keep, census = self.keep, self.census(1)
        except ValueError as error:
            return f"<{name}: {error}>"
        layers, sequences, heads, _ = keep.shape
        return (
            f"<{name}: layers {layers}, sequences {sequences}, kv heads {heads}, tokens "
            f"{census.num_tokens}, passes {self._histories[0].step + 1}, logical saving "
            f"{logical_saving(census):.3f}>"
        )

    def census(self, pool: PoolLike) -> Census:
        """Return the census of what is left, under a pool."""
        return take_census(self.keep, pool, axes=AXES, lengths=self.lengths)


def _real_ones(array: NDArray[np.int32], real: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return (layer, sequence, head, token) without padding: each sequence from its first token."""
    lengths = np.count_nonzero(real, axis=1)
    out = np.zeros((*array.shape[:3], int(lengths.max(initial=0))), np.int32)
    for sequence, length in enumerate(lengths):
        out[:, sequence, :, :length] = array[:, sequence][..., real[sequence]]
    return out


def reclaim_columns(
    recorder: KeepMaskRecorder, pool: PoolLike
) -> dict[str, float | int | str | None]:
    """Return what a press gives back under a pool, as columns for a table of results.

    Parameters
    ----------
    recorder
        A KeepMaskRecorder whose block has ended.
    pool
        A BlockPool, or a block size.

    Returns
    -------
    dict
        Every figure of `report` by its name, built-in numbers, None where one is undefined or
        infinite, or where the pool asks for none; `cached_share` and `num_ambiguous` of the
        recorder; and the `signature`. Tokens generated since are kept, and counted.

    Raises
    ------
    TypeError, ValueError
        For what is no recorder, or has recorded nothing; as `report` does.

    Examples
    --------
    >>> columns = reclaim_columns(recorder, kvreclaim.runtimes.vllm())  # doctest: +SKIP
    >>> columns["logical_saving"], columns["physical_reclaim"]  # doctest: +SKIP
    (0.5, 0.0)
    """
    if not isinstance(recorder, KeepMaskRecorder):
        raise TypeError(
            f"recorder must be a KeepMaskRecorder; got {_checks.shown(recorder)}; write "
            "kvreclaim.report(keep, pool, axes=...) for a keep-mask."
        )
    said = report(recorder.census(pool)).to_dict()
    return {
        "signature": said["signature"],
        **said["metrics"],
        "cached_share": recorder.cached_share,
        "num_ambiguous": recorder.num_ambiguous,
    }
