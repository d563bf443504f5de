"""A prompt: the tokens of a text with keys planted in it, one pass over it, and what follows."""

from __future__ import annotations

import hashlib
import importlib
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.evidence import texts
from benchmarks.evidence.attention import Whole
from benchmarks.evidence.models import Model
from benchmarks.evidence.texts import Probe

torch: Any = importlib.import_module("torch")


class Question(NamedTuple):
    """Tokens that ask for a planted key, and those that answer."""

    asked: list[int]
    answer: list[int]


class Prompt(NamedTuple):
    """A prompt that a model has read."""

    tokens: list[int]
    following: list[int]
    questions: tuple[Question, ...]
    rows: Whole
    shown: tuple[dict[str, Any], ...]  # to each attention that evicts: what a press may look at
    sha256: str  # of the text as it was read

    @property
    def attention(self) -> NDArray[np.float64]:
        """Attention that each token drew in all, (layer, kv head, token)."""
        return np.stack([self.rows.drawn[shown["layer"]] for shown in self.shown])


def cut(
    model: Model, text: str, probes: Sequence[Probe], tokens: int, following: int
) -> tuple[list[int], list[int]]:
    """Return as many tokens of a text with keys planted in it, and those that follow them."""
    planted = [model.encode(probe.planted) for probe in probes]
    room = tokens - len(model.first) - sum(map(len, planted))
    words = model.encode(text)[: room + following]
    if len(words) < room + following:
        raise ValueError(f"text must have {room + following} tokens; it has {len(words)}.")
    places = [0, *(round(depth * room) for depth in texts.DEPTHS), room]
    parts = [words[start:stop] for start, stop in itertools.pairwise(places)]
    mixed = [*parts[0], *itertools.chain(*map(list.__add__, planted, parts[1:]))]
    return [*model.first, *mixed], words[room:]


def read(model: Model, document: str, tokens: int, following: int) -> Prompt:
    """Let a model read a prompt in one pass, and keep all that a policy may ask for."""
    text, probes = texts.TEXTS[document].read(), texts.probes(document)
    prompt, rest = cut(model, text, probes, tokens, following)
    rows = Whole()
    shown: dict[int, dict[str, Any]] = {}

    def note(module: Any, _: object, given: dict[str, Any]) -> None:  # noqa: ANN401  # a torch module
        shown[module.layer_idx] = {
            "layer": module.layer_idx,
            "hidden_states": given["hidden_states"],
            "position_embeddings": given["position_embeddings"],
        }

    hooks = [each.register_forward_pre_hook(note, with_kwargs=True) for each in model.attentions]
    try:
        with torch.inference_mode():
            model.lm.model(input_ids=torch.tensor([prompt]), use_cache=False, rows=rows)
    finally:
        for hook in hooks:
            hook.remove()
    questions = (
        Question(model.encode(probe.question), model.encode(probe.answer)) for probe in probes
    )
    return Prompt(
        tokens=prompt,
        following=rest,
        questions=tuple(questions),
        rows=rows,
        shown=tuple(shown[layer] for layer in model.layers),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )
