"""Whether short cuts hold: presses run by kvpress itself, in a model with its own attention.

The masks come from one pass and each press's `compress`. Here a press hooks into the model as its
users have it, transformers' attention reads the cache that the press really cut, and the recorder
says what was kept.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any, Final

from benchmarks.evidence import attention, keeps, quality
from benchmarks.evidence.masks import Mask
from benchmarks.evidence.models import Model
from benchmarks.evidence.prompts import Prompt
from kvreclaim.adapters.kvpress import KeepMaskRecorder

torch: Any = importlib.import_module("torch")
transformers: Any = importlib.import_module("transformers")

# Not PyramidKV: transformers cannot feed several tokens behind layers of different lengths.
CHECKED: Final = ("snapkv", "tova", "knorm", "ada_kv", "chunk_kv_16")
RATIO: Final = 0.5
MOST_TOKENS: Final = 2048  # each press reads the prompt once more


def agreement(model: Model, prompt: Prompt) -> dict[str, dict[str, float]]:
    """Return of some presses how far the recorder's mask and kvpress's own answers are from ours.

    ``mask_bits`` of the two masks that differ, of all; ``log_probability`` the largest difference
    that the recorder's mask leaves between our reduced cache and the one that kvpress has cut.
    """
    if len(prompt.tokens) > MOST_TOKENS or len(model.layers) < model.lm.config.num_hidden_layers:
        return {}
    model.lm.set_attn_implementation("sdpa")
    try:
        found = {name: _recorded(model, prompt, keeps.PRESSES[name](1 - RATIO)) for name in CHECKED}
    finally:
        model.lm.set_attn_implementation(attention.NAME)
    told = {}
    for name, (keep, theirs) in found.items():
        chosen = keeps.by_press(keeps.PRESSES[name](1 - RATIO), model, prompt)
        ours = quality.ask(model, prompt, keep).log_probabilities
        told[name] = {
            "mask_bits": int((chosen != keep).sum()),
            "all_bits": keep.size,
            "log_probability": float((ours - theirs).abs().max()),
        }
    return told


def _recorded(model: Model, prompt: Prompt, press: Any) -> tuple[Mask, Any]:  # noqa: ANN401
    """Return the recorder's mask, and the log-probabilities of what follows."""
    start, cache = len(prompt.tokens), transformers.DynamicCache()
    modules = model.attentions
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # kvpress's own
            with KeepMaskRecorder(model.lm) as recorder, press(model.lm):
                model.lm(
                    input_ids=torch.tensor([prompt.tokens]), past_key_values=cache, logits_to_keep=1
                )
            logits = model.lm(
                input_ids=torch.tensor([prompt.following]),
                position_ids=torch.arange(start, start + len(prompt.following))[None],
                past_key_values=cache,
            ).logits
    finally:
        for module in modules:
            module.__dict__.pop("masked_key_indices", None)
    keep = recorder.keep[:, 0]  # axes l, b, h, t
    return keep, logits.log_softmax(-1)[0, :-1]
