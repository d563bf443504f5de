"""Attention that shows what it reads, and that reads a cache of which rows are gone.

transformers hands every layer's queries, keys and values to `attend`, and with them the object that
the model was called with as ``rows``: a `Whole` prompt, or what is left of one.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

torch: Any = importlib.import_module("torch")

NAME: Final = "kvreclaim_evidence"
QUERIES: Final = 256  # at once: what is in memory is queries x tokens, in each head


def attend(  # transformers calls it so
    module: Any,  # noqa: ANN401
    query: Any,  # noqa: ANN401
    key: Any,  # noqa: ANN401
    value: Any,  # noqa: ANN401
    attention_mask: object,
    *,
    rows: Whole | Reduced,
    scaling: float,
    sliding_window: int | None = None,
    **_: object,
) -> tuple[Any, None]:
    """Return the attention of a layer, (sequence, query, head, channel), as transformers asks."""
    del attention_mask  # of tokens in their order, which `rows` knows
    groups = query.shape[1] // key.shape[1]
    grouped = query.unflatten(1, (key.shape[1], groups)) * scaling
    seen = rows.seen(module.layer_idx, grouped, key, value, sliding_window)
    return seen.flatten(1, 2).transpose(1, 2), None


def _visible(query_positions: Any, positions: Any, window: int | None) -> Any:  # noqa: ANN401
    """Which positions a query sees: none after its own, and none that its window has left."""
    ahead = query_positions[:, None] - positions
    return (ahead >= 0) if window is None else (ahead >= 0) & (ahead < window)


class Whole:
    """A prompt in one pass: keeps its keys and values, and the attention that each token drew."""

    def __init__(self) -> None:
        self.keys: dict[int, Any] = {}  # by layer; (1, kv head, token, channel)
        self.values: dict[int, Any] = {}
        self.windows: dict[int, int | None] = {}
        self.drawn: dict[int, NDArray[np.float64]] = {}  # (kv head, token), mean over query heads

    def seen(self, layer: int, query: Any, key: Any, value: Any, window: int | None) -> Any:  # noqa: ANN401
        """Return the attention of all queries to what comes before them."""
        tokens = key.shape[2]
        positions = torch.arange(tokens)
        drawn = torch.zeros(key.shape[1], tokens, dtype=torch.float64)
        seen = torch.empty_like(query)
        for start in range(0, tokens, QUERIES):
            stop = min(start + QUERIES, tokens)
            weights = query[..., start:stop, :] @ key[:, :, None, :stop].transpose(-1, -2)
            hidden = ~_visible(positions[start:stop], positions[:stop], window)
            weights = weights.masked_fill_(hidden, -math.inf).softmax(-1)
            seen[..., start:stop, :] = weights @ value[:, :, None, :stop]
            drawn[:, :stop] += weights[0].mean(1).sum(-2, dtype=torch.float64)
        self.keys[layer], self.values[layer], self.windows[layer] = key, value, window
        self.drawn[layer] = drawn.numpy()
        return seen


class Reduced:
    """What is left of a prompt: of each layer and kv head only the rows that were kept.

    Evicted rows are not there; heads that keep fewer than the longest of their layer are filled up
    with rows that nothing sees. Tokens keep their positions.
    """

    def __init__(self, prompt: Whole, keep: NDArray[np.bool_], layers: tuple[int, ...]) -> None:
        self._prompt = prompt
        self._keep = dict(zip(layers, keep, strict=True))

    def _left(self, layer: int) -> tuple[Any, Any, Any]:
        """Return keys, values and positions, of a filled up row -1."""
        keys, values = self._prompt.keys[layer][0], self._prompt.values[layer][0]
        heads, tokens = keys.shape[:2]
        if layer not in self._keep:
            return keys, values, torch.arange(tokens).expand(heads, -1)
        kept = [np.flatnonzero(row) for row in self._keep[layer]]
        longest = max(row.size for row in kept)
        positions = torch.full((heads, longest), -1)
        for head, row in enumerate(kept):
            positions[head, : row.size] = torch.from_numpy(row)
        index = positions.clamp(min=0)[..., None].expand(-1, -1, keys.shape[-1])
        return keys.gather(1, index), values.gather(1, index), positions

    def seen(self, layer: int, query: Any, key: Any, value: Any, window: int | None) -> Any:  # noqa: ANN401
        """Return the attention of queries behind the prompt, to what is left and to themselves."""
        keys, values, positions = self._left(layer)
        tokens = self._prompt.keys[layer].shape[2]
        new = tokens + torch.arange(key.shape[2])
        old_weights = query @ keys[:, None].transpose(-1, -2)
        seen_old = (positions >= 0)[:, None, None] & torch.stack(
            [_visible(new, row, window) for row in positions]
        )[:, None]
        new_weights = query @ key[:, :, None].transpose(-1, -2)
        old_weights.masked_fill_(~seen_old, -math.inf)
        new_weights.masked_fill_(~_visible(new, new, window), -math.inf)
        weights = torch.cat([old_weights, new_weights], -1).softmax(-1)
        old = keys.shape[1]
        return weights[..., :old] @ values[:, None] + weights[..., old:] @ value[:, :, None]
