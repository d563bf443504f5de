"""What a mask costs: the loss on what follows, and the planted keys that are still found."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.evidence.attention import Reduced
from benchmarks.evidence.models import Model
from benchmarks.evidence.prompts import Prompt

torch: Any = importlib.import_module("torch")


class Answers(NamedTuple):
    """What a model makes of what is left of a prompt."""

    log_probabilities: Any  # (following token, word), float32
    loss: float  # mean nats of the following tokens
    probe_loss: float  # mean nats of the tokens of all answers
    found: int  # answers that greedy decoding gets whole


class Quality(NamedTuple):
    """Answers against those of the full cache."""

    loss: float
    kl: float
    top1: float
    probe_loss: float
    found: int


def ask(model: Model, prompt: Prompt, keep: NDArray[np.bool_]) -> Answers:
    """Feed what follows, and each question with its answer, behind what a mask has left."""
    rows = Reduced(prompt.rows, keep, model.layers)
    with torch.inference_mode():
        # The first of them is judged by the last token of the prompt, which is fed again: its own
        # row, that the cache may have lost, is then there as it is while a server decodes.
        told = _told(model, rows, prompt, [prompt.following])
        target = torch.tensor(prompt.following[1:])
        known = told[0, :-1]
        loss = -known.gather(-1, target[:, None]).mean()
        probe_losses, found = [], 0
        asked = [question.asked + question.answer for question in prompt.questions]
        longest = max(map(len, asked))
        padded = [[*each, *[each[-1]] * (longest - len(each))] for each in asked]
        told = _told(model, rows, prompt, padded)
        for question, words in zip(prompt.questions, told, strict=True):
            first, last = len(question.asked) - 1, len(question.asked) + len(question.answer) - 1
            answer = torch.tensor(question.answer)
            probe_losses.append(-words[first:last].gather(-1, answer[:, None]))
            found += bool((words[first:last].argmax(-1) == answer).all())
    return Answers(known, loss.item(), torch.cat(probe_losses).mean().item(), found)


def _told(model: Model, rows: Reduced, prompt: Prompt, words: list[list[int]]) -> Any:  # noqa: ANN401
    start = len(prompt.tokens)
    logits = model.lm(
        input_ids=torch.tensor(words),
        position_ids=torch.arange(start, start + len(words[0]))[None],
        use_cache=False,
        rows=rows,
    ).logits
    return logits.log_softmax(-1)


def against(full: Answers, reduced: Answers) -> Quality:
    """Compare answers with those of the full cache."""
    known, now = full.log_probabilities, reduced.log_probabilities
    return Quality(
        loss=reduced.loss,
        kl=(known.exp() * (known - now)).sum(-1).mean().item(),
        top1=(known.argmax(-1) == now.argmax(-1)).double().mean().item(),
        probe_loss=reduced.probe_loss,
        found=reduced.found,
    )
