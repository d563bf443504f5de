"""Our policies against kvpress's presses, on the same scores.

What the presses kept of numbers that stand in a file is compared everywhere. Where kvpress is
installed, its presses are asked again, and asked what they keep in a small model of random weights.
"""

from __future__ import annotations

import importlib.util
import itertools
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from presses import record

from kvreclaim import policies

# kvpress 0.5.5 and what it imports warn of their own deprecations.
pytestmark = pytest.mark.filterwarnings("default")

live = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "kvpress")),
    reason="kvpress is not installed",
)
RECORDED = record.load()


def group_mean(attention: record.Floats, kv_heads: int) -> NDArray[np.float64]:
    """Return attention per kv head, the mean over its query heads: axes ``lbhqt``."""
    layers, sequences, heads, *rest = attention.shape
    grouped = attention.reshape(layers, sequences, kv_heads, heads // kv_heads, *rest)
    return np.asarray(grouped.mean(axis=3, dtype=np.float64))


class Shown(NamedTuple):
    """What a press saw: its own scores, and attention where there is some."""

    scores: record.Floats  # (layer, sequence, kv head, token)
    attention: record.Floats | None  # (layer, sequence, query head, query, token)


def ours(case: record.Case, shown: Shown) -> NDArray[np.bool_]:
    """Return what our policy keeps."""
    tokens = shown.scores.shape[-1]
    kept = policies.num_kept_for(1 - Fraction(str(case.ratio)), tokens)
    if case.press in {"SnapKVPress", "TOVAPress", "ObservedAttentionPress"}:
        return by_attention(case, shown, kept)
    return by_scores(case, shown.scores, kept)


def by_scores(case: record.Case, scores: record.Floats, kept: int) -> NDArray[np.bool_]:
    options: dict[str, Any] = case.options
    if case.press == "StreamingLLMPress":
        return policies.streaming_llm(scores.shape, kept, sink=options.get("n_sink", 4))
    if case.press == "AdaKVPress":
        floor = options.get("alpha_safeguard", 0.2)
        return policies.ada_kv(scores, kept, floor=floor, axes="lbht")
    if case.press == "ChunkKVPress":
        chunk = options.get("chunk_length", 20)
        return policies.chunk_kv(scores, kept, chunk=chunk, axes="lbht")
    if case.press == "PyramidKVPress":
        window, beta = options["window_size"], options["beta"]
        return policies.pyramid_kv(scores, kept, window=window, beta=beta, axes="lbht")
    assert case.press in {"ScorerPress", "KnormPress", "RandomPress"}
    return policies.lowest_importance(scores, kept)


def by_attention(case: record.Case, shown: Shown, kept: int) -> NDArray[np.bool_]:
    assert shown.attention is not None
    options: dict[str, Any] = case.options
    attention = group_mean(shown.attention, shown.scores.shape[2])
    if case.press == "SnapKVPress":
        window, kernel = options["window_size"], options["kernel_size"]
        return policies.snapkv(attention, kept, window=window, kernel=kernel, axes="lbhqt")
    if case.press == "TOVAPress":
        attention[..., -1, -1] = np.inf  # it never evicts the last token, TOVA's own code may
        return policies.tova(attention, kept, axes="lbhqt")
    # The mean over the queries that see a token, where H2O has the sum.
    seen = np.arange(attention.shape[-1], 0, -1)
    return policies.h2o(attention / seen, kept, recent_share=0, axes="lbhqt")


def test_every_case_is_recorded_and_every_press_occurs() -> None:
    assert list(RECORDED) == list(record.CASES)
    assert {case.press for case in record.CASES.values()} == {
        "AdaKVPress",
        "ChunkKVPress",
        "ObservedAttentionPress",
        "PyramidKVPress",
        "ScorerPress",
        "SnapKVPress",
        "StreamingLLMPress",
        "TOVAPress",
    }


@pytest.mark.parametrize("name", record.CASES)
def test_we_keep_what_the_press_kept(name: str) -> None:
    case = record.CASES[name]
    given, answer = RECORDED[name]
    attention = given if case.shown == "attention" else None
    keep = ours(case, Shown(answer.scores, attention))
    assert 0 < answer.keep.mean() < 1
    assert keep.shape == answer.keep.shape
    assert (keep == answer.keep).all()


@pytest.mark.parametrize("name", ["observed", "tova"])
def test_the_cases_tell_the_press_from_the_method(name: str) -> None:
    """H2O's sum favours early tokens, a mean does not; TOVA may evict the last token."""
    case = record.CASES[name]
    given, answer = RECORDED[name]
    attention = group_mean(given, record.KV_HEADS)
    kept = policies.num_kept_for(1 - Fraction(str(case.ratio)), given.shape[-1])
    if name == "observed":
        keep = policies.h2o(attention, kept, recent_share=0, axes="lbhqt")
        half = given.shape[-1] // 2
        assert keep[..., :half].sum() > answer.keep[..., :half].sum()
    else:
        keep = policies.tova(attention, kept, axes="lbhqt")
        assert answer.keep[..., -1].all()
        assert not keep[..., -1].all()


def test_a_chunk_press_counts_chunks_and_we_count_tokens() -> None:
    """Of 7 chunks, one of 10 tokens, it keeps int(7 * 0.5) = 3: 60 of 130 tokens."""
    scores = np.zeros(130)
    scores[[5, 45, 85]] = 9.0
    keep = policies.chunk_kv(scores, 60)
    assert keep.reshape(-1, 10).all(axis=-1).tolist() == [*[True, True, False, False] * 3, False]
    half = policies.chunk_kv(scores, 65)
    assert half.sum() == 65
    assert (half | ~keep).all()


# --- Live ---


@live
@pytest.mark.parametrize("name", record.CASES)
def test_the_press_still_answers_as_recorded(name: str) -> None:
    case = record.CASES[name]
    given, answer = RECORDED[name]
    again = record.ask(case, given)
    assert (again.keep == answer.keep).all()
    np.testing.assert_allclose(again.scores, answer.scores, rtol=1e-5, atol=1e-7)


@live
@pytest.mark.parametrize("name", record.CASES)
def test_we_keep_what_the_press_keeps_of_other_numbers(name: str) -> None:
    case = record.CASES[name]
    for seed in range(100, 110):
        given = record.shown(case, seed)
        answer = record.ask(case, given)
        attention = given if case.shown == "attention" else None
        assert (ours(case, Shown(answer.scores, attention)) == answer.keep).all()


@live
def test_a_pyramid_has_the_budgets_of_the_press() -> None:
    kvpress = record.libraries()[2]
    asked = differ = lines = 0
    for tokens, layers, window, beta in itertools.product(
        (64, 256, 1_024), (2, 3, 5, 9, 17, 32), (1, 8, 64), (1, 2, 4, 8, 20)
    ):
        exact = layers != 32 and beta != 20  # in floats, which decide about halves otherwise
        for kept in range(1, tokens, max(1, tokens // 50)):
            press = kvpress.PyramidKVPress(1 - kept / tokens, window_size=window, beta=beta)
            config = SimpleNamespace(num_hidden_layers=layers)
            wanted = [
                press.get_layer_budget(SimpleNamespace(config=config, layer_idx=layer), tokens)
                for layer in range(layers)
            ]
            keep = policies.pyramid_kv(
                np.zeros((layers, tokens)), kept, window=window, beta=beta, axes="lt"
            )
            got = keep.sum(axis=-1).tolist()
            assert got == wanted if exact else abs(np.subtract(got, wanted)).max() <= 1
            differ += got != wanted
            asked += 1
            lines += wanted[0] > wanted[-1]
    assert differ < asked / 100
    assert lines > asked / 10


@live
def test_of_one_layer_the_pyramid_press_keeps_more_than_its_budget() -> None:
    kvpress = record.libraries()[2]
    press = kvpress.PyramidKVPress(0.75, window_size=1)
    module = SimpleNamespace(config=SimpleNamespace(num_hidden_layers=1), layer_idx=0)
    assert press.get_layer_budget(module, 400) == 195
    assert policies.pyramid_kv(np.zeros(400), 100, window=1).sum() == 100


@live
def test_the_presses_cut_off_a_token_where_a_ratio_has_no_exact_float() -> None:
    utils = importlib.import_module("kvpress.utils")
    assert record.libraries()
    assert utils.compute_n_kept(100, 0.9) == 9
    assert policies.num_kept_for(1 - Fraction("0.9"), 100) == 10


MODEL_CASES = {
    "eager": [
        record.Case("StreamingLLMPress", 0.5, "", (), {"n_sink": 4}),
        record.Case("SnapKVPress", 0.5, "", (), {"window_size": 16, "kernel_size": 5}),
        record.Case("ObservedAttentionPress", 0.75, "", (), {}),
        record.Case("TOVAPress", 0.5, "", (), {}),
        record.Case("KnormPress", 0.25, "", (), {}),
        record.Case("RandomPress", 0.5, "", (), {"seed": 5}),
        record.Case("PyramidKVPress", 0.75, "", (), {"window_size": 4, "beta": 8}),
    ],
    "sdpa": [
        record.Case("KnormPress", 0.5, "", (), {}),
        record.Case("PyramidKVPress", 0.5, "", (), {"window_size": 4, "beta": 20}),
        record.Case("AdaKVPress", 0.5, "", (), {"alpha_safeguard": 0.2}),
        record.Case("ChunkKVPress", 0.5, "", (), {"chunk_length": 8}),
    ],
}


def run_in_model(case: record.Case, attention: str) -> tuple[Shown, NDArray[np.bool_]]:
    """Prefill a small Llama of random weights under a press; return what it saw and kept."""
    torch, transformers, kvpress = record.libraries()
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=128,
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.1,  # so that attention is neither even nor 0
            attn_implementation=attention,
        )
    ).eval()
    if case.press in {"AdaKVPress", "ChunkKVPress"}:
        scorer = kvpress.KnormPress(compression_ratio=case.ratio)
        press = getattr(kvpress, case.press)(scorer, **case.options)
    else:
        press = scorer = getattr(kvpress, case.press)(compression_ratio=case.ratio, **case.options)
    scores: list[Any] = []
    layers: list[Any] = []
    score, compress = scorer.score, press.compress

    def noted_score(*given: Any) -> Any:  # noqa: ANN401  # tensors
        scores.append(score(*given).clone().numpy())
        return score(*given)

    def noted_compress(module: Any, hidden: Any, keys: Any, values: Any, *rest: Any) -> Any:  # noqa: ANN401
        seen, said = rest
        keep, (left, where) = record.kept_by(compress, module, hidden, keys, seen, said)
        layers.append((keep, None if seen is None else seen.numpy()))
        return left, values.gather(2, where)

    scorer.score, press.compress = noted_score, noted_compress
    tokens = torch.randperm(128)[None, :64]  # all different, since equal ones have equal key norms
    with torch.no_grad(), press(model):
        model(tokens, past_key_values=transformers.DynamicCache())
    weights = [seen for _, seen in layers if seen is not None]
    shown = Shown(np.stack(scores), np.stack(weights) if weights else None)
    return shown, np.stack([keep for keep, _ in layers])


@live
@pytest.mark.parametrize(
    ("attention", "case"),
    [
        pytest.param(attention, case, id=f"{case.press}-{attention}")
        for attention, some in MODEL_CASES.items()
        for case in some
    ],
)
def test_we_keep_what_the_press_keeps_in_a_model(attention: str, case: record.Case) -> None:
    shown, keep = run_in_model(case, attention)
    assert keep.shape == (2, 1, 2, 64)
    assert 0 < keep.mean() < 1
    if case.press != "StreamingLLMPress":  # its scores are 0 and 1, and it takes whole runs of them
        before = shown.scores[..., : 64 - int(case.options.get("window_size", 1))]
        assert (np.diff(np.sort(before), axis=-1) > 0).all()  # which of equals stays is not said
    assert (ours(case, shown) == keep).all()
