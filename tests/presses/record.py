r"""Write down which tokens kvpress's presses keep: run in tests/, `python -m presses.record`.

Each press is handed numbers made here, layer by layer, and no model runs, so that its answers are
the same on any machine:

    python3.11 -m venv venv
    venv/bin/pip install torch==2.13.0
    venv/bin/pip install kvpress==0.5.5 'transformers<5.3' scipy attrs
    cd tests && ../venv/bin/python -m presses.record
"""

from __future__ import annotations

import base64
import functools
import importlib
import importlib.metadata
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

RELEASE: Final = "0.5.5"
FIXTURE: Final = Path(__file__).parent / "fixture.json"
QUERY_HEADS: Final = 4
KV_HEADS: Final = 2

Floats = NDArray[np.float32]


class Case(NamedTuple):
    """A press, what it is made with, and what it is shown."""

    press: str
    ratio: float
    shown: str  # "attention" (layer, sequence, query head, query, token), "scores", or "nothing"
    shape: tuple[int, ...]
    options: dict[str, float]


class Answer(NamedTuple):
    """What a press made of it, in every layer, sequence and kv head."""

    scores: Floats
    keep: NDArray[np.bool_]


HALF: Final = 0.5
CASES: Final = {
    "scorer": Case("ScorerPress", 0.3, "scores", (2, 2, KV_HEADS, 60), {}),
    "streaming_llm": Case("StreamingLLMPress", 0.6, "nothing", (1, 1, KV_HEADS, 50), {}),
    "streaming_llm_sinks": Case(
        "StreamingLLMPress", 0.75, "nothing", (1, 1, KV_HEADS, 40), {"n_sink": 7}
    ),
    "snapkv": Case(
        "SnapKVPress",
        HALF,
        "attention",
        (1, 2, QUERY_HEADS, 8, 60),
        {"window_size": 8, "kernel_size": 5},
    ),
    "snapkv_wide": Case(
        "SnapKVPress",
        0.75,
        "attention",
        (2, 1, QUERY_HEADS, 5, 48),
        {"window_size": 4, "kernel_size": 9},
    ),
    "observed": Case("ObservedAttentionPress", HALF, "attention", (1, 1, QUERY_HEADS, 32, 32), {}),
    "tova": Case("TOVAPress", 0.7, "attention", (2, 2, QUERY_HEADS, 2, 50), {}),
    "ada_kv": Case("AdaKVPress", HALF, "scores", (2, 2, 3, 60), {}),
    "ada_kv_half": Case("AdaKVPress", 0.75, "scores", (1, 1, 4, 48), {"alpha_safeguard": 0.5}),
    "ada_kv_free": Case("AdaKVPress", 0.875, "scores", (1, 1, 3, 48), {"alpha_safeguard": 0.0}),
    "ada_kv_one": Case("AdaKVPress", 0.9375, "scores", (1, 1, 3, 48), {"alpha_safeguard": 0.1}),
    "pyramid_kv": Case(
        "PyramidKVPress",
        0.75,
        "attention",
        (5, 1, QUERY_HEADS, 2, 96),
        {"window_size": 2, "beta": 4},
    ),
    "pyramid_kv_full": Case(
        "PyramidKVPress",
        HALF,
        "attention",
        (4, 1, QUERY_HEADS, 2, 64),
        {"window_size": 2, "beta": 20},
    ),
    "pyramid_kv_flat": Case(
        "PyramidKVPress",
        0.75,
        "attention",
        (3, 1, QUERY_HEADS, 4, 32),
        {"window_size": 4, "beta": 20},
    ),
    "chunk_kv": Case("ChunkKVPress", HALF, "scores", (3, 1, KV_HEADS, 80), {}),
    "chunk_kv_8": Case("ChunkKVPress", 0.7, "scores", (2, 1, KV_HEADS, 80), {"chunk_length": 8}),
}


def shown(case: Case, seed: int) -> Floats:
    """Make what a press is shown: random scores, or causal attention whose rows add up to 1."""
    rng = np.random.default_rng(seed)
    if case.shown == "nothing":
        return np.zeros(case.shape, np.float32)
    if case.shown == "scores":
        return rng.standard_normal(case.shape).astype(np.float32)
    queries, tokens = case.shape[-2:]
    seen = np.arange(tokens) <= np.arange(tokens - queries, tokens)[:, None]
    weights = rng.random(case.shape) * seen
    return np.array(weights / weights.sum(axis=-1, keepdims=True), np.float32)


@functools.cache
def libraries() -> tuple[Any, Any, Any]:
    """Import torch, transformers and kvpress, which must not reach for the network."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch, transformers, kvpress = map(
        importlib.import_module, ("torch", "transformers", "kvpress")
    )
    torch.set_num_threads(1)  # its tensors are tiny
    return torch, transformers, kvpress


def make(case: Case) -> tuple[Any, Any]:
    """Return the press of a case, and the one in it that scores."""
    kvpress = libraries()[2]
    if case.press in {"AdaKVPress", "ChunkKVPress"}:
        scorer = kvpress.ScorerPress(compression_ratio=case.ratio)
        return getattr(kvpress, case.press)(scorer, **case.options), scorer
    press = getattr(kvpress, case.press)(compression_ratio=case.ratio, **case.options)
    return press, press


def ask(case: Case, given: Floats) -> Answer:
    """Hand a press its layers one by one, and read which tokens it kept."""
    torch = libraries()[0]
    layers, sequences, heads, tokens = *given.shape[:3], given.shape[-1]
    if case.shown == "attention":
        heads = KV_HEADS
    press, scorer = make(case)
    answers = []
    for layer in range(layers):
        numbers = torch.tensor(given[layer])
        attention = numbers if case.shown == "attention" else None
        if case.shown == "scores":
            scorer.score = lambda *_, numbers=numbers: numbers.clone()
        module = SimpleNamespace(
            config=SimpleNamespace(
                num_attention_heads=QUERY_HEADS,
                num_key_value_heads=heads,
                num_hidden_layers=layers,
                _attn_implementation="sdpa",
            ),
            head_dim=1,
            layer_idx=layer,
            masked_key_indices=None,
        )
        hidden = torch.zeros(sequences, tokens, 1)
        keys = torch.zeros(sequences, heads, tokens, 1)
        scores = scorer.score(module, hidden, keys, keys, attention, {})
        keep, _ = kept_by(press.compress, module, hidden, keys, attention, {})
        answers.append((scores.numpy(), keep))
    return Answer(*map(np.stack, zip(*answers, strict=True)))


def kept_by(  # noqa: PLR0917  # a press's own arguments, in its own order
    compress: Any,  # noqa: ANN401  # of any press
    module: Any,  # noqa: ANN401  # a layer's attention, or what stands for it
    hidden: Any,  # noqa: ANN401  # tensors, here and below
    keys: Any,  # noqa: ANN401
    attention: Any,  # noqa: ANN401
    said: dict[str, Any],
) -> tuple[NDArray[np.bool_], Any]:
    """Return which tokens a press keeps, and the keys that it hands back.

    No press scores values, so that positions can travel in their place.
    """
    torch = libraries()[0]
    positions = torch.arange(keys.shape[2]).reshape(1, 1, -1, 1).expand(*keys.shape).contiguous()
    left, where = compress(module, hidden, keys, positions, attention, said)
    keep = np.zeros(keys.shape[:3], bool)
    np.put_along_axis(keep, where[..., 0].numpy(), values=True, axis=-1)
    if getattr(module, "masked_key_indices", None) is not None:
        keep[tuple(part.numpy() for part in module.masked_key_indices)] = False
    return keep, (left, where)


def packed(array: Floats) -> dict[str, Any]:
    little = array.astype("<f4").tobytes()
    return {"shape": array.shape, "float32": base64.b64encode(little).decode()}


def unpacked(saved: dict[str, Any]) -> Floats:
    flat = np.frombuffer(base64.b64decode(saved["float32"]), "<f4")
    return np.array(flat.reshape(saved["shape"]), np.float32)


def load() -> dict[str, tuple[Floats, Answer]]:
    """Read what was shown in each case, and what was answered."""
    saved = json.loads(FIXTURE.read_text(encoding="utf-8"))
    if saved["release"] != RELEASE:
        raise ValueError(f"{FIXTURE.name} must be of kvpress {RELEASE}; record it anew.")
    cases = {}
    for name, case in saved["cases"].items():
        scores = unpacked(case["scores"])
        rows = [[letter == "1" for letter in row] for row in case["keep"]]
        keep = np.array(rows).reshape(scores.shape)
        cases[name] = (unpacked(case["shown"]), Answer(scores, keep))
    return cases


def main() -> None:
    """Ask each press, and write one case a line, so that a change shows where it is."""
    found = importlib.metadata.version("kvpress")
    if found != RELEASE:
        raise SystemExit(f"kvpress {RELEASE} is wanted; {found} is installed")
    lines = []
    for seed, (name, case) in enumerate(CASES.items()):
        given = shown(case, seed)
        answer = ask(case, given)
        rows = answer.keep.reshape(-1, answer.keep.shape[-1]).astype(int)
        entry = {
            "shown": packed(given),
            "scores": packed(answer.scores),
            "keep": ["".join(map(str, row)) for row in rows.tolist()],
        }
        lines.append(f"{json.dumps(name)}: {json.dumps(entry, separators=(',', ':'))}")
    text = f'{{"release": "{RELEASE}", "cases": {{\n' + ",\n".join(lines) + "\n}}\n"
    FIXTURE.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{FIXTURE}: {len(text)} bytes\n")


if __name__ == "__main__":
    main()
