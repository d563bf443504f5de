"""Keep-masks of every policy: kvpress's presses where they exist, `kvreclaim.policies` elsewhere.

A press is handed what its layer has seen, and does its own `compress`. Each value that it is given
holds its token's number, so that what it returns says which it kept; a press that drops nothing
leaves `masked_key_indices`, which are the evicted. Nothing of a press is changed or guessed.
"""

from __future__ import annotations

import importlib
import warnings
import zlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.evidence.masks import Mask
from benchmarks.evidence.models import Model
from benchmarks.evidence.prompts import Prompt
from benchmarks.evidence.settings import AXES, BLOCK_SIZE, SNAPKV_KERNEL, SNAPKV_WINDOW, TABLES
from kvreclaim import BlockPool, policies
from kvreclaim.frontier import evict_for_blocks, max_free_blocks

torch: Any = importlib.import_module("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, on being imported
    kvpress: Any = importlib.import_module("kvpress")

SEED: Final = 20_261_130


def _snapkv(dropped: float) -> Any:  # noqa: ANN401  # a press
    return kvpress.SnapKVPress(dropped, window_size=SNAPKV_WINDOW, kernel_size=SNAPKV_KERNEL)


PRESSES: Final[dict[str, Callable[[float], Any]]] = {
    "streaming_llm": kvpress.StreamingLLMPress,
    "snapkv": _snapkv,
    "tova": kvpress.TOVAPress,
    "knorm": kvpress.KnormPress,
    "ada_kv": lambda dropped: kvpress.AdaKVPress(_snapkv(dropped)),
    "pyramid_kv": lambda dropped: kvpress.PyramidKVPress(
        dropped, window_size=SNAPKV_WINDOW, kernel_size=SNAPKV_KERNEL
    ),
    "chunk_kv_16": lambda dropped: kvpress.ChunkKVPress(_snapkv(dropped), chunk_length=16),
    "chunk_kv_20": lambda dropped: kvpress.ChunkKVPress(_snapkv(dropped), chunk_length=20),
}


def chooser(model: Model, prompt: Prompt) -> Callable[[str, float], Mask]:
    """Return what makes the mask of a policy that keeps a share of a prompt."""
    scores = snapkv_scores(model, prompt)

    def choose(policy: str, ratio: float) -> Mask:
        if policy in PRESSES:
            return by_press(PRESSES[policy](1 - ratio), model, prompt)
        return _by_scores(policy, ratio, prompt, scores)

    return choose


def _shown(model: Model, prompt: Prompt) -> list[tuple[Any, dict[str, Any]]]:
    return list(zip(model.attentions, prompt.shown, strict=True))


def by_press(press: Any, model: Model, prompt: Prompt) -> Mask:  # noqa: ANN401  # a press
    """Return what a press keeps of a prompt, (layer, kv head, token)."""
    press.post_init_from_model(model.lm)
    tokens = len(prompt.tokens)
    keep = np.zeros((len(model.layers), model.kv_heads, tokens), np.bool_)
    for number, (module, shown) in enumerate(_shown(model, prompt)):
        keys = prompt.rows.keys[shown["layer"]]
        numbers = torch.arange(tokens, dtype=keys.dtype)[:, None].expand(keys.shape)
        with torch.inference_mode():
            _, left = press.compress(
                module, shown["hidden_states"], keys, numbers, None, dict(shown)
            )
        kept = left[0, ..., 0].long().numpy()
        np.put_along_axis(keep[number], kept, values=True, axis=-1)
        evicted = module.__dict__.pop("masked_key_indices", None)
        if evicted is not None:
            _, heads, places = evicted
            keep[number, heads.numpy(), places.numpy()] = False
    return keep


def snapkv_scores(model: Model, prompt: Prompt) -> NDArray[np.float64]:
    """Return the scores by which kvpress's SnapKV chooses, +inf in its window."""
    press = _snapkv(0.5)
    rows = []
    for module, shown in _shown(model, prompt):
        keys = prompt.rows.keys[shown["layer"]]
        with torch.inference_mode():
            scores = press.score(module, shown["hidden_states"], keys, keys, None, dict(shown))
        rows.append(scores[0].double().numpy())
    stacked = np.stack(rows)
    stacked[..., -SNAPKV_WINDOW:] = np.inf
    return stacked


def _by_scores(policy: str, ratio: float, prompt: Prompt, scores: NDArray[np.float64]) -> Mask:
    rows, tokens = scores.shape[0] * scores.shape[1], scores.shape[-1]
    kept = policies.num_kept_for(ratio, tokens)
    if policy == "h2o":
        return policies.h2o(prompt.attention[:, :, None], kept, axes="lhqt")
    if policy == "random":
        rng = np.random.default_rng(
            [SEED, zlib.crc32(np.array(prompt.tokens, np.int64).tobytes()), round(100 * ratio)]
        )
        return policies.random(scores.shape, kept, rng=rng)
    if policy == "snapkv_common":
        keep = policies.lowest_importance(scores.mean(axis=(0, 1)), kept)
        return np.broadcast_to(keep, scores.shape)
    form, _, which = policy.rpartition("_")
    if form == "whole_block":
        return policies.whole_block(
            scores, kept, BlockPool(BLOCK_SIZE, shared_axes=TABLES[which]), axes=AXES
        )
    if form == "evict_for_blocks":
        pool = BlockPool(BLOCK_SIZE, shared_axes=TABLES["all"])
        evicted = rows * (tokens - kept)
        blocks = max_free_blocks(scores, pool, evicted, axes=AXES) * int(which) // 100
        return evict_for_blocks(scores, pool, evicted, blocks, axes=AXES).keep
    raise ValueError(f"policy must be one of settings.POLICIES; got {policy!r}.")
