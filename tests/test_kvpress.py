"""What kvpress's presses keep, recovered from the cache, against what they themselves decide.

Presses and models are real; the models are small, and their weights random.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import itertools
import json
import math
import re
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray
from optional import noisy_library
from presses import record
from scripts import scripts_of

from kvreclaim import BlockPool, logical_saving, masks, merge, report, take_census, timeline
from kvreclaim.adapters import _hf_cache
from kvreclaim.adapters.kvpress import AXES, KeepMaskRecorder, reclaim_columns
from kvreclaim.lifetimes import NEVER

# kvpress 0.5.5 and what it imports warn of their own deprecations.
pytestmark = pytest.mark.filterwarnings("default")

for needed in ("torch", "transformers", "kvpress", "torch.overrides"):
    noisy_library(needed)
torch, transformers, kvpress = record.libraries()
DynamicCache = transformers.DynamicCache
FunctionMode: Any = torch.overrides.TorchFunctionMode
ScorerPress: Any = kvpress.ScorerPress

Bools: TypeAlias = NDArray[np.bool_]
Model: TypeAlias = Any
"""A model of transformers."""
Press: TypeAlias = Any
"""A press of kvpress."""
Tensor: TypeAlias = Any
"""A tensor of torch."""
Module: TypeAlias = Any
"""A layer's attention."""
Cache: TypeAlias = Any
"""A cache of transformers."""
Pipe: TypeAlias = Any
"""A pipeline of kvpress."""
Frame: TypeAlias = Any
"""A data frame of pandas."""

PAGE = Path(__file__).parents[1] / "docs" / "harnesses.md"
LAYERS, KV_HEADS, VOCABULARY = 2, 2, 96
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 2048,
    "initializer_range": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 16}),
}


@functools.cache
def model_of(name: str = "llama", attention: str = "sdpa") -> Model:
    torch.manual_seed(0)
    kind, config, more = ARCHITECTURES[name]
    said = getattr(transformers, config)(**SIZES, **more, attn_implementation=attention)
    return getattr(transformers, kind)(said).eval()


def prompt(num_tokens: int = 150, seed: int = 0, sequences: int = 1) -> Tensor:
    """Random tokens, many of them equal."""
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.integers(3, VOCABULARY, (sequences, num_tokens)))


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield
    for name in ARCHITECTURES:
        for attention in ("sdpa", "eager"):
            for layer in model_of(name, attention).model.layers:
                layer.self_attn.masked_key_indices = None  # presses leave it behind


def prefilled(model: Model, press: Press, tokens: Tensor, **said: Tensor) -> KeepMaskRecorder:
    with KeepMaskRecorder(model) as recorder, press(model):
        model(tokens, past_key_values=DynamicCache(), **said)
    return recorder


class Taken(NamedTuple):
    """What a press gathered: of how many rows, and which (sequence, kv head, row)."""

    num_rows: int
    positions: NDArray[np.int64]


class Watch(FunctionMode):  # type: ignore[misc]  # torch may be absent
    """Notes which rows are gathered from tensors of keys or values."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Taken] = []

    def __torch_function__(
        self,
        func: Callable[..., object],
        _: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if func == torch.Tensor.gather and args[0].ndim == 4 and args[1] == 2:
            where = args[2].numpy()
            assert (where == where[..., :1]).all()  # whole rows
            self.taken.append(Taken(args[0].shape[2], where[..., 0]))
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def watching(press: Press) -> Iterator[dict[int, list[Taken]]]:
    """List what the hook of a press gathers last in each layer: the truth of what it keeps."""
    seen: dict[int, list[Taken]] = {}
    hook = press.forward_hook

    def noted_hook(module: Module, *others: object) -> object:
        with Watch() as watch:
            out = hook(module, *others)
        seen.setdefault(module.layer_idx, []).extend(watch.taken[-1:])
        return out

    press.forward_hook = noted_hook
    yield seen
    del press.forward_hook


def kept_by(taken: Taken) -> Bools:
    keep = np.zeros((*taken.positions.shape[:2], taken.num_rows), bool)
    np.put_along_axis(keep, taken.positions, values=True, axis=-1)
    return keep


# --- Presses that gather ---

GATHERING: dict[str, Callable[[], Press]] = {
    "streaming_llm": lambda: kvpress.StreamingLLMPress(0.6),
    "snapkv": lambda: kvpress.SnapKVPress(0.5, window_size=16),
    "knorm": lambda: kvpress.KnormPress(0.3),
    "tova": lambda: kvpress.TOVAPress(0.5),
    "expected_attention": lambda: kvpress.ExpectedAttentionPress(0.5),
    "keydiff": lambda: kvpress.KeyDiffPress(0.5),
    "lagkv": lambda: kvpress.LagKVPress(0.5, n_sink=4, lag_size=20),
    "cur": lambda: kvpress.CURPress(0.5),
    "compactor": lambda: kvpress.CompactorPress(0.5, chunk_size=50, sketch_dimension=8),
    "leverage": lambda: kvpress.LeverageScorePress(0.5, sketch_dimension=8),
    "non_causal": lambda: kvpress.NonCausalAttnPress(0.5, chunk_size=50),
    "cap": lambda: kvpress.CapPress(0.5, n_future_positions=16),
    "random": lambda: kvpress.RandomPress(0.9),
    "criticalkv": lambda: kvpress.CriticalKVPress(kvpress.KnormPress(0.5)),
    "pyramidkv": lambda: kvpress.PyramidKVPress(0.5, window_size=8, beta=4),
    "per_layer": lambda: kvpress.PerLayerCompressionPress(kvpress.KnormPress(), [0.2, 0.7]),
    "chunk": lambda: kvpress.ChunkPress(kvpress.KnormPress(0.5), chunk_length=40),
    "chunkkv": lambda: kvpress.ChunkKVPress(kvpress.KnormPress(0.5), chunk_length=7),
    "entropy_chunkkv": lambda: kvpress.EntropyGatedChunkKVPress(kvpress.KnormPress(0.5)),
    "block": lambda: kvpress.BlockPress(kvpress.KnormPress(0.5), block_size=32),
    "rerotated": lambda: kvpress.KeyRerotationPress(kvpress.KnormPress(0.5)),
    "merging": lambda: kvpress.MergingPress(kvpress.KnormPress(0.5)),
    "observed": lambda: kvpress.ObservedAttentionPress(0.5),
}


NO_HEAD_DIM = "CriticalKV asks for config.head_dim, which Qwen2 has not"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", GATHERING)
def test_a_press_that_gathers_keeps_what_it_gathers(architecture: str, name: str) -> None:
    if (architecture, name) == ("qwen2", "criticalkv"):
        pytest.skip(NO_HEAD_DIM)
    torch.manual_seed(1)
    press = GATHERING[name]()
    model = model_of(architecture, "eager" if name == "observed" else "sdpa")
    with watching(press) as seen:
        recorder = prefilled(model, press, prompt())
    truth = np.stack([kept_by(seen[layer][-1]) for layer in range(LAYERS)])
    assert 0 < truth.mean() < 1
    assert (recorder.keep == truth).all()
    assert recorder.num_ambiguous == 0
    assert recorder.lengths.tolist() == [150]
    assert recorder.cached_share == truth.mean()
    assert (recorder.evicted_at[~truth] == 1).all()
    assert not recorder.born_at.any()


def test_one_answer_in_two_layers_of_another_length() -> None:
    """PyramidKV leaves another number in each layer; a share is of all rows."""
    recorder = prefilled(model_of(), GATHERING["per_layer"](), prompt())
    assert recorder.keep.sum(axis=-1).tolist() == [[[120] * KV_HEADS], [[45] * KV_HEADS]]
    assert recorder.cached_share == 165 / 300


def test_a_press_may_be_entered_first_where_it_decides_in_its_hook() -> None:
    press = GATHERING["knorm"]()
    with watching(press) as seen, press(model_of()), KeepMaskRecorder(model_of()) as recorder:
        model_of()(prompt(), past_key_values=DynamicCache())
    assert (recorder.keep[1] == kept_by(seen[1][0])).all()


def test_slices_are_told_as_gathers_are() -> None:
    press = kvpress.SimLayerKVPress(lazy_threshold=0.0, n_recent=40, n_initial=4)
    recorder = prefilled(model_of(), press, prompt())
    expected = np.ones(150, bool)
    expected[4:111] = False
    assert (recorder.keep == expected).all()


def rows_of(cache: Cache, layer: int) -> list[list[tuple[bytes, bytes]]]:
    """Return the bytes of key and value of each row of each head; of one sequence."""
    held = cache.layers[layer]
    keys, values = held.keys[0].numpy(), held.values[0].numpy()
    return [
        [(key.tobytes(), value.tobytes()) for key, value in zip(*head, strict=True)]
        for head in zip(keys, values, strict=True)
    ]


@pytest.mark.parametrize("thin", [False, True])
def test_composed_presses_keep_what_the_last_one_leaves(thin: bool) -> None:
    """Each row left is looked for among those of a run without presses; ThinK rewrites its key."""
    first = kvpress.ThinKPress(0.5, window_size=8) if thin else kvpress.KnormPress(0.5)
    press = kvpress.ComposedPress([first, kvpress.StreamingLLMPress(0.4)])
    model, whole, left = model_of(), DynamicCache(), DynamicCache()
    model(prompt(), past_key_values=whole)
    with KeepMaskRecorder(model) as recorder, press(model):
        model(prompt(), past_key_values=left)
    for layer in (0, 1) if not thin else (1,):  # in layer 0 equal tokens have equal values
        before, after = rows_of(whole, layer), rows_of(left, layer)
        for head in range(KV_HEADS):
            kept = {value if thin else (key, value) for key, value in after[head]}
            expected = [(value if thin else (key, value)) in kept for key, value in before[head]]
            if layer == 0 or not thin:
                assert recorder.keep[layer, 0, head].tolist() == expected
    assert (recorder.keep.sum(axis=-1) == left.layers[0].keys.shape[2]).all()
    assert recorder.num_ambiguous == 0


def test_a_press_that_clears_channels_evicts_nothing() -> None:
    recorder = prefilled(model_of(), kvpress.ThinKPress(0.5, window_size=8), prompt())
    assert recorder.keep.all()
    assert reclaim_columns(recorder, 16)["reclaim_efficiency"] is None


# --- Presses that mask ---


def with_curves(press: Press) -> Press:
    press._budget_curves = np.full((99, LAYERS, KV_HEADS), 0.4)
    press._budget_curves[:, 0, 0] = 0.7
    return press


MASKING: dict[str, Callable[[], Press]] = {
    "adakv": lambda: kvpress.AdaKVPress(kvpress.KnormPress(0.5)),
    "criticaladakv": lambda: kvpress.CriticalAdaKVPress(kvpress.SnapKVPress(0.5, window_size=8)),
    "duo_attention": lambda: kvpress.DuoAttentionPress(0.5, on_the_fly_scoring=True),
    "dms": lambda: kvpress.DMSPress(kvpress.RandomPress(), threshold=0.4, sliding_window_size=20),
    "lukv": lambda: with_curves(kvpress.LUKVPress(kvpress.KnormPress(), compression_ratio=0.5)),
}


def listed(model: Model, num_tokens: int, sequences: int = 1) -> Bools:
    lists = [layer.self_attn.masked_key_indices for layer in model.model.layers]
    return masks.from_evicted(lists, (LAYERS, sequences, KV_HEADS, num_tokens))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", MASKING)
def test_a_press_that_masks_evicts_what_it_lists(architecture: str, name: str) -> None:
    if (architecture, name) == ("qwen2", "criticaladakv"):
        pytest.skip(NO_HEAD_DIM)
    model = model_of(architecture)
    if name == "duo_attention":
        press = MASKING[name]()
        press.compute_attention_patterns = None
        press.sink_size, press.recent_size = 4, 20
        press.streaming_mask = torch.tensor([[True, False], [False, True]])
        press.post_init_from_model = lambda _: None
    else:
        press = MASKING[name]()
    recorder = prefilled(model, press, prompt())
    truth = listed(model, 150)
    assert 0 < truth.mean() < 1
    assert (recorder.keep == truth).all()
    assert recorder.cached_share == 1.0
    assert (recorder.evicted_at[~truth] == 1).all()


@pytest.mark.parametrize("sequences", [1, 3])
def test_entries_of_a_batch_stay_apart(sequences: int) -> None:
    model, tokens = model_of(), prompt(sequences=sequences)
    recorder = prefilled(model, MASKING["adakv"](), tokens)
    assert (recorder.keep == listed(model, 150, sequences)).all()
    press = GATHERING["knorm"]()
    with watching(press) as seen:
        recorder = prefilled(model, press, tokens)
    assert (recorder.keep == np.stack([kept_by(seen[0][0]), kept_by(seen[1][0])])).all()


def test_a_list_that_an_earlier_press_left_is_not_read() -> None:
    """Attention that kvpress does not patch leaves it; so does a model without kvpress."""
    model = model_of(attention="eager")
    for layer in model.model.layers:
        layer.self_attn.masked_key_indices = (
            torch.tensor([0]),
            torch.tensor([1]),
            torch.tensor([2]),
        )
    recorder = prefilled(model, kvpress.StreamingLLMPress(0.5), prompt())
    assert recorder.keep[0, 0, 1, 2]
    assert recorder.keep.mean() == 0.5


# --- Pipelines, and presses that decide when they are left ---


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Pipe:
    tokenizers = importlib.import_module("tokenizers")
    words = {f"w{number}": number for number in range(VOCABULARY)}
    words = {"[bos]": 0, "[eos]": 1, "[pad]": 2} | {w: n for w, n in words.items() if n > 2}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "w3"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    marks = {f"{mark}_token": f"[{mark}]" for mark in ("bos", "eos", "pad")}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks)
    folder = tmp_path_factory.mktemp("model")
    fast.save_pretrained(folder)
    model = model_of()
    model.config.save_pretrained(folder)  # what presses ask a tokenizer of
    model.config.name_or_path = str(folder)
    model.generation_config.eos_token_id = -1  # answers are as long as asked for
    return kvpress.KVPressTextGenerationPipeline(model=model, tokenizer=fast)


def text(num_words: int, seed: int = 0) -> str:
    return " ".join(f"w{token}" for token in prompt(num_words, seed)[0].tolist())


CONTEXT = " " + text(100)


def test_the_pipeline_is_used_as_always_and_answers_are_forgotten(pipe: Pipe) -> None:
    press = GATHERING["knorm"]()
    said = {"questions": [text(9, 1), text(4, 2)], "press": press, "max_new_tokens": 5}
    with watching(press) as seen, KeepMaskRecorder(pipe.model) as recorder:
        answers = pipe(CONTEXT, **said)["answers"]
    truth = np.stack([kept_by(seen[layer][0]) for layer in range(LAYERS)])
    assert [len(answer.split()) for answer in answers] == [5, 5]
    assert answers == pipe(CONTEXT, **said)["answers"]
    assert (recorder.keep == truth).all()
    assert recorder.lengths.tolist() == [101]
    assert recorder.cached_share == truth.mean()


@pytest.mark.parametrize("questions", [1, 2])
@pytest.mark.parametrize(
    ("make", "replays"),
    [
        (lambda: kvpress.KVzipPress(0.5), 1),
        (lambda: kvpress.KVzipPress(0.5, layerwise=True, chunk_size=30), 4),
        (lambda: kvpress.KVgradPress(0.4), 0),  # what is not written is no step
        (lambda: kvpress.AdaKVPress(kvpress.KnormPress(0.5)), 0),
    ],
    ids=["kvzip", "kvzip_layerwise", "kvgrad", "adakv"],
)
def test_masks_that_a_press_makes_when_it_is_left(
    pipe: Pipe,
    make: Callable[[], Press],
    replays: int,
    questions: int,
) -> None:
    """Their replays of the context are no tokens of it, and the list is read in decoding."""
    said = [text(6, seed) for seed in range(questions)]
    with KeepMaskRecorder(pipe.model) as recorder:
        pipe(CONTEXT, questions=said, press=make(), max_new_tokens=4)
    truth = listed(pipe.model, 101)
    assert 0 < truth.mean() < 1
    assert (recorder.keep == truth).all()
    assert (recorder.evicted_at[~truth] == 1 + replays).all()
    assert not recorder.born_at.any()
    assert recorder.num_ambiguous == 0


def test_rows_that_a_press_takes_away_when_it_is_left(pipe: Pipe) -> None:
    press = kvpress.KVComposePress(compression_ratio=0.5, structured=True)
    chosen: list[Bools] = []
    compress = press.compress_cache

    def noted(model: Model) -> None:
        rows = [torch.stack(layer) for layer in press.important_mask_per_kv_head]
        chosen.append(torch.stack(rows)[:, None].numpy())
        compress(model)

    press.compress_cache = noted
    cache = DynamicCache()
    with KeepMaskRecorder(pipe.model) as recorder, press(pipe.model):
        pipe.model.model(input_ids=prompt(), past_key_values=cache)
    assert 0 < chosen[0].mean() < 1
    assert recorder.keep.shape == (LAYERS, 1, KV_HEADS, 150)
    assert (recorder.keep == chosen[0]).all()


def test_a_replay_that_a_press_leaves_in_the_cache_is_there(pipe: Pipe) -> None:
    press = kvpress.KVComposePress(compression_ratio=0.5, structured=False)
    cache = DynamicCache()
    with KeepMaskRecorder(pipe.model) as recorder, press(pipe.model):
        pipe.model.model(input_ids=prompt(), past_key_values=cache)
    assert cache.get_seq_length() == 300
    assert recorder.lengths.tolist() == [300]
    assert (recorder.keep == listed(pipe.model, 300)).all()
    assert recorder.keep[..., 150:].all()


def test_finch(pipe: Pipe) -> None:
    """It takes a token out of the prompt, and rotates the keys that stay."""
    press = kvpress.FinchPress(0.5)
    press.delimiter_token_id = 2
    model, tokens = pipe.model, prompt()
    tokens[0, 120] = 2
    with watching(press) as seen, KeepMaskRecorder(model) as recorder, press(model):
        model.model(input_ids=tokens, past_key_values=DynamicCache())
    assert recorder.lengths.tolist() == [149]
    assert (recorder.keep == np.stack([kept_by(seen[0][0]), kept_by(seen[1][0])])).all()
    assert recorder.num_ambiguous == 0


# --- Decoding ---


def decode(model: Model, cache: Cache, num_steps: int, first: int = 0) -> None:
    for token in prompt(num_steps, seed=first + 7)[0]:
        model(token.reshape(1, 1), past_key_values=cache)


DECODING: dict[str, Callable[[], Press]] = {
    "each_step": lambda: kvpress.DecodingPress(
        kvpress.KnormPress(), compression_interval=1, target_size=30
    ),
    "every_third": lambda: kvpress.DecodingPress(
        kvpress.SnapKVPress(window_size=2), compression_interval=3, target_size=38
    ),
    "ratio": lambda: kvpress.CompressionRatioDecodingPress(
        kvpress.KnormPress(), compression_interval=2, target_compression_ratio=0.4
    ),
    "merged": lambda: kvpress.CAMPress(
        kvpress.KnormPress(), compression_interval=2, target_size=30, merge_budget=4
    ),
    "prefill_too": lambda: kvpress.PrefillDecodingPress(
        kvpress.KnormPress(0.5),
        kvpress.DecodingPress(kvpress.KnormPress(), compression_interval=2, target_size=12),
    ),
}


@pytest.mark.parametrize("name", DECODING)
def test_decoding_step_by_step(name: str) -> None:
    """A slow twin moves tokens from slot to slot as the press gathers them."""
    press, model, num_tokens, num_steps = DECODING[name](), model_of(), 40, 8
    steps: list[dict[int, list[Taken]]] = []
    cache = DynamicCache()
    with KeepMaskRecorder(model) as recorder, watching(press) as seen, press(model):
        model(prompt(num_tokens), past_key_values=cache)
        for step in range(num_steps + 1):
            steps.append({layer: seen.pop(layer, []) for layer in range(LAYERS)})
            if step < num_steps:
                decode(model, cache, 1, first=step)
    evicted = np.full((LAYERS, 1, KV_HEADS, num_tokens + num_steps), NEVER)
    num_left = set()
    for layer, head in np.ndindex(LAYERS, KV_HEADS):
        slots = list(range(num_tokens))
        for step in range(num_steps + 1):
            slots += [num_tokens + step - 1] if step else []
            for taken in steps[step][layer]:
                chosen = [slots[place] for place in taken.positions[0, head]]
                evicted[layer, 0, head, sorted({*slots} - {*chosen})] = step + 1
                slots = chosen
        num_left.add(len(slots))
    assert (recorder.evicted_at == evicted).all()
    assert recorder.born_at.ravel().tolist() == [0] * num_tokens + [*range(1, num_steps + 1)]
    assert recorder.num_ambiguous == 0
    assert num_left == {cache.layers[0].keys.shape[2]}
    assert num_left < {*range(num_tokens + num_steps)}
    line = timeline(recorder.born_at, recorder.evicted_at, 16, axes=AXES)
    assert line.num_tokens.tolist() == [
        min(num_tokens + step, 48) for step in range(len(line.num_tokens))
    ]
    assert line.peak_held_blocks >= math.ceil(num_tokens / 16)


def test_a_list_that_grows_in_decoding() -> None:
    press, model, cache = MASKING["dms"](), model_of(), DynamicCache()
    press.decoding, press.sliding_window_size = True, 10
    first_listed: dict[tuple[int, ...], int] = {}
    with KeepMaskRecorder(model) as recorder, press(model):
        for step in range(9):
            if step:
                decode(model, cache, 1, first=step)
            else:
                model(prompt(40), past_key_values=cache)
            for entry in np.argwhere(~listed(model, 40 + step)).tolist():
                first_listed.setdefault(tuple(entry), step + 1)
    evicted = np.full((LAYERS, 1, KV_HEADS, 48), NEVER)
    for place, step in first_listed.items():
        evicted[place] = step
    assert len({*first_listed.values()}) > 4
    assert (recorder.evicted_at == evicted).all()


def test_decoding_in_the_pipeline_does_not_lose_what_it_cuts_at_the_end(pipe: Pipe) -> None:
    """It cuts the cache to the context's length, whatever its slots hold by then."""
    press = kvpress.DecodingPress(kvpress.KnormPress(), compression_interval=2, target_size=103)
    with KeepMaskRecorder(pipe.model) as recorder:
        pipe(CONTEXT, question=text(9), press=press, max_new_tokens=6)
    num_tokens = int(recorder.lengths[0])
    assert num_tokens > 110
    assert (recorder.keep.sum(axis=-1) >= 103).all()
    assert (recorder.keep.sum(axis=-1) < num_tokens).all()


def test_tokens_that_are_taken_back_were_never_there() -> None:
    model, cache = model_of(), DynamicCache()
    press = GATHERING["knorm"]()
    with watching(press) as seen, KeepMaskRecorder(model) as recorder:
        with press(model):
            model(prompt(50), past_key_values=cache)
        num_left = cache.layers[0].keys.shape[2]
        decode(model, cache, 4)
        cache.crop(num_left)
        model(prompt(5, seed=3), past_key_values=cache)  # drafts, of which two are refused
        cache.crop(num_left + 3)
        decode(model, cache, 1)
    assert recorder.lengths.tolist() == [54]
    assert recorder.born_at.ravel().tolist() == [0] * 50 + [5] * 3 + [6]
    assert recorder.keep[..., 50:].all()
    assert (recorder.keep[0, ..., :50] == kept_by(seen[0][0])).all()


def test_a_second_question_as_long_as_the_first() -> None:
    """The cache is then as long as it was, though other tokens are in it."""
    model, cache = model_of(), DynamicCache()
    with KeepMaskRecorder(model) as recorder:
        model(prompt(50), past_key_values=cache)
        for seed in (1, 2):
            cache.crop(50)
            model(prompt(6, seed), past_key_values=cache)
    assert recorder.born_at.ravel().tolist() == [0] * 50 + [2] * 6


def test_an_eviction_between_two_passes() -> None:
    """Any code that evicts from the cache is a press; here by the index of a tensor."""
    model, cache = model_of(), DynamicCache()
    left = torch.tensor([3, 1, 8, *range(20, 50)])
    with KeepMaskRecorder(model) as recorder:
        model(prompt(50), past_key_values=cache)
        for held in cache.layers:
            held.keys, held.values = held.keys[:, :, left], held.values[:, :, left]
        decode(model, cache, 2)
    expected = np.full(52, NEVER)
    expected[[0, 2, 4, 5, 6, 7, *range(9, 20)]] = 1
    assert (recorder.evicted_at == expected).all()


class Changing:
    """A press of our own: a hook that does as it likes with a layer of the cache."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        self.change = change

    def __call__(self, model: Model) -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        for layer in model.model.layers:
            hook = layer.self_attn.register_forward_hook(self.hook, with_kwargs=True)
            stack.callback(hook.remove)
        return stack

    def hook(self, module: Module, _: object, said: dict[str, Any], __: object) -> None:
        self.change(said["past_key_values"].layers[module.layer_idx])


def hooked(change: Callable[[Tensor], Tensor], *, keys: bool = True) -> Changing:
    """Return a press that changes values, and keys too unless they are left alone."""

    def change_rows(held: Cache) -> None:
        held.values = change(held.values)
        if keys:
            held.keys = change(held.keys)

    return Changing(change_rows)


def test_a_slice_of_the_prompt_is_an_eviction() -> None:
    """It shares memory with the cache, as what takes a replay back does."""
    model, cache = model_of(), DynamicCache()
    with KeepMaskRecorder(model) as recorder:
        with hooked(lambda rows: rows[:, :, :30])(model):
            model(prompt(50), past_key_values=cache)
        decode(model, cache, 2)
    assert recorder.lengths.tolist() == [52]
    assert recorder.keep.all(axis=(0, 1, 2)).tolist() == [True] * 30 + [False] * 20 + [True] * 2


@pytest.mark.parametrize("num_new", [49, 50])
def test_every_other_row_of_a_second_pass_is_an_eviction(num_new: int) -> None:
    """Where it is as long as the first, so many rows are left as there were before it."""
    model, cache = model_of(), DynamicCache()
    with KeepMaskRecorder(model) as recorder:
        model(prompt(50), past_key_values=cache)
        with hooked(lambda rows: rows[:, :, ::2])(model):
            model(prompt(num_new, seed=1), past_key_values=cache)
        decode(model, cache, 1)
    length = 50 + num_new
    assert recorder.lengths.tolist() == [length + 1]
    expected = [place % 2 == 0 for place in range(length)] + [True]
    assert (recorder.keep == expected).all()
    assert (recorder.evicted_at[..., 1] == 2).all()


def test_values_that_are_rewritten_are_those_of_the_next_pass() -> None:
    model, cache = model_of(), DynamicCache()
    with KeepMaskRecorder(model) as recorder:
        with hooked(lambda rows: rows * 2, keys=False)(model):
            model(prompt(50), past_key_values=cache)
        decode(model, cache, 2)
    assert recorder.keep.shape[-1] == 52
    assert recorder.keep.all()
    assert recorder.num_ambiguous == 0


def test_a_cache_that_is_emptied_at_the_end_is_as_it_was() -> None:
    cache = DynamicCache()
    with KeepMaskRecorder(model_of()) as recorder, GATHERING["knorm"]()(model_of()):
        model_of()(prompt(), past_key_values=cache)
        cache.crop(0)
    assert recorder.lengths.tolist() == [150]
    assert recorder.keep.mean() == 0.7


def test_gathers_are_forgotten_with_their_layer() -> None:
    press = kvpress.BlockPress(kvpress.KnormPress(0.5), block_size=8)
    with KeepMaskRecorder(model_of()) as recorder, press(model_of()):
        model_of()(prompt(), past_key_values=DynamicCache())
        of_one_layer = len(recorder._gathers.seen)
    with KeepMaskRecorder(model_of()) as recorder, press(model_of()):
        model_of().model.layers[1].forward = lambda hidden, **_: hidden
        try:
            model_of()(prompt(), past_key_values=DynamicCache())
        finally:
            del model_of().model.layers[1].forward
        assert len(recorder._gathers.seen) == of_one_layer > 2


# --- Batches with padding ---


def padded(lengths: list[int], side: str) -> tuple[Tensor, Tensor]:
    """Return prompts of some lengths in one batch, and its attention mask."""
    width = max(lengths)
    tokens = torch.full((len(lengths), width), 2)
    mask = torch.zeros((len(lengths), width), dtype=torch.int64)
    for row, length in enumerate(lengths):
        where = slice(width - length, None) if side == "left" else slice(length)
        tokens[row, where] = prompt(length, seed=row)[0]
        mask[row, where] = 1
    return tokens, mask


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["knorm", "streaming_llm", "chunkkv"])
def test_padding_is_no_token(name: str, side: str) -> None:
    """kvpress counts padding in; a runtime with pages does not store it."""
    lengths = [30, 150, 97]
    tokens, mask = padded(lengths, side)
    press = GATHERING[name]()
    with watching(press) as seen:
        recorder = prefilled(model_of(), press, tokens, attention_mask=mask)
    assert recorder.lengths.tolist() == lengths
    assert recorder.keep.shape == (LAYERS, 3, KV_HEADS, 150)
    for layer in range(LAYERS):
        truth = kept_by(seen[layer][0])
        for row, length in enumerate(lengths):
            real = truth[row][:, mask[row].numpy() == 1]
            assert (recorder.keep[layer, row, :, :length] == real).all()
            assert not recorder.keep[layer, row, :, length:].any()
            assert not recorder.evicted_at[layer, row, :, length:].any()
    figures = reclaim_columns(recorder, 16)
    evicted = sum((~recorder.keep[:, row, :, :length]).sum() for row, length in enumerate(lengths))
    assert figures["logical_saving"] == evicted / (sum(lengths) * LAYERS * KV_HEADS)
    assert recorder.num_ambiguous == 0


def test_a_mask_may_be_given_by_its_place() -> None:
    tokens, mask = padded([20, 40], "left")
    with KeepMaskRecorder(model_of()) as recorder:
        model_of().model(tokens, mask, past_key_values=DynamicCache())
    assert recorder.lengths.tolist() == [20, 40]


def test_padding_that_is_like_other_padding_is_not_ambiguous() -> None:
    """At layer 0 all padding has one value; which of it stayed is of no concern."""
    tokens, mask = padded([20, 40], "left")
    distinct = torch.arange(3, 43)
    tokens[0, 20:], tokens[1] = distinct[:20], distinct
    recorder = prefilled(model_of(), Indexing(), tokens, attention_mask=mask)
    assert recorder.num_ambiguous == 0
    assert recorder.keep[0, 0, 0].tolist() == [place % 3 == 1 for place in range(20)] + [False] * 20


def test_a_batch_is_decoded_behind_its_padding() -> None:
    tokens, mask = padded([20, 40], "left")
    model, cache = model_of(), DynamicCache()
    with KeepMaskRecorder(model) as recorder, GATHERING["streaming_llm"]()(model):
        model(tokens, attention_mask=mask, past_key_values=cache)
        for _ in range(3):
            model(torch.full((2, 1), 5), past_key_values=cache)
    assert recorder.lengths.tolist() == [23, 43]
    assert recorder.born_at[0, 0, 0].tolist() == [0] * 20 + [1, 2, 3] + [0] * 20
    assert recorder.keep[:, 0, :, 20:23].all()
    line = timeline(recorder.born_at, recorder.evicted_at, 16, axes=AXES, lengths=recorder.lengths)
    assert line.num_tokens.tolist() == [60, 62, 64, 66]


def test_generate_is_used_as_always() -> None:
    """It hands the attention mask over, and decodes each sequence of a batch."""
    tokens, mask = padded([20, 40], "left")
    model, press = model_of(), kvpress.KnormPress(0.5)
    with watching(press) as seen, KeepMaskRecorder(model) as recorder, press(model):
        model.generate(tokens, attention_mask=mask, max_new_tokens=4, min_new_tokens=4)
    assert recorder.lengths.tolist() == [23, 43]  # the last token of all is never written
    truth = kept_by(seen[0][0])
    assert (recorder.keep[0, 0, :, :20] == truth[0, :, 20:]).all()
    assert recorder.keep[:, 0, :, 20:23].all()


def test_what_is_generated_counts_and_can_be_cut_off() -> None:
    model, tokens = model_of(), prompt(100)
    with KeepMaskRecorder(model) as recorder, kvpress.KnormPress(0.5)(model):
        model.generate(tokens, max_new_tokens=8, min_new_tokens=8, pad_token_id=0)
    assert logical_saving(recorder.census(16)) == 50 / 107
    assert report(recorder.keep[..., :100], 16, axes="lbht").logical_saving == 0.5


def test_a_recorder_is_shown_in_a_line() -> None:
    recorder = KeepMaskRecorder(model_of())
    assert repr(recorder) == "<KeepMaskRecorder: nothing recorded yet>"
    recorder = prefilled(model_of(), kvpress.KnormPress(0.5), prompt())
    assert repr(recorder) == (
        f"<KeepMaskRecorder: layers {LAYERS}, sequences 1, kv heads {KV_HEADS}, tokens 150, "
        "passes 1, logical saving 0.500>"
    )


def test_a_recorder_that_cannot_be_read_is_shown_with_why() -> None:
    recorder = prefilled(model_of(), GATHERING["knorm"](), prompt())
    recorder._histories.pop()
    assert repr(recorder).startswith("<KeepMaskRecorder: every layer must write to the cache; got")


# --- What cannot be told ---


class Indexing(ScorerPress):  # type: ignore[misc]  # kvpress may be absent
    """Keeps every third row, by an index, and rewrites the keys."""

    def compress(
        self, module: Module, hidden: Tensor, keys: Tensor, values: Tensor, *_: object
    ) -> tuple[Tensor, Tensor]:
        del module, hidden
        left = torch.arange(0, keys.shape[2], 3)
        return keys[:, :, left] * 2, values[:, :, left]


def test_equal_rows_are_counted_where_nothing_tells_them_apart() -> None:
    """In layer 0 equal tokens have equal values; in layer 1 no two do."""
    tokens = prompt()
    recorder = prefilled(model_of(), Indexing(), tokens)
    before, after = Counter(tokens[0].tolist()), Counter(tokens[0, ::3].tolist())
    unsure = {token for token, number in after.items() if number < before[token]}
    assert recorder.num_ambiguous == KV_HEADS * sum(after[token] for token in unsure)
    assert reclaim_columns(recorder, 16)["num_ambiguous"] == recorder.num_ambiguous > 0
    assert recorder.keep[1, 0, 0].tolist() == [place % 3 == 0 for place in range(150)]
    for head in range(KV_HEADS):
        kept = Counter(tokens[0][recorder.keep[0, 0, head]].tolist())
        assert kept == after  # the right tokens, though perhaps at another place
    sure = [token for token in after if token not in unsure]
    places = np.isin(tokens[0].numpy(), sure)
    assert (recorder.keep[0, 0, 0][places]).all()


def test_without_its_gathers_a_rotated_key_is_told_by_its_value_alone() -> None:
    press = GATHERING["rerotated"]()
    with watching(press) as seen, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_hf_cache, "taken_of", lambda *_: None)
        recorder = prefilled(model_of(), press, prompt())
    tokens, truth = prompt()[0].tolist(), kept_by(seen[0][0])[0]
    expected = 0
    for head in range(KV_HEADS):
        kept = Counter(token for token, left in zip(tokens, truth[head], strict=True) if left)
        expected += sum(n for token, n in kept.items() if n < Counter(tokens)[token])
    assert recorder.num_ambiguous == expected > 0
    assert (recorder.keep[1] == kept_by(seen[1][0])).all()


class Rewriting(ScorerPress):  # type: ignore[misc]  # kvpress may be absent
    """Keeps the second half, and rewrites keys and values in the second layer."""

    def compress(
        self, module: Module, hidden: Tensor, keys: Tensor, values: Tensor, *_: object
    ) -> tuple[Tensor, Tensor]:
        del hidden
        factor = 1 + module.layer_idx
        return keys[:, :, 75:] * factor, values[:, :, 75:] * factor


class Growing(ScorerPress):  # type: ignore[misc]  # kvpress may be absent
    def compress(
        self, module: Module, hidden: Tensor, keys: Tensor, values: Tensor, *_: object
    ) -> tuple[Tensor, Tensor]:
        del module, hidden
        return torch.cat([keys, keys], dim=2), torch.cat([values, values], dim=2)


@functools.cache
def sliding_model() -> Model:
    config = transformers.MistralConfig(**SIZES, sliding_window=64, attn_implementation="sdpa")
    return transformers.MistralForCausalLM(config).eval()


def quantised_cache() -> Cache:
    stored = {
        "_quantize": lambda _, rows, **__: rows,
        "_dequantize": lambda _, rows: rows,
    }
    kind = type("HalvesLayer", (transformers.cache_utils.QuantizedLayer,), stored)
    return transformers.Cache(layers=[kind() for _ in range(LAYERS)])


def fill(model: Model, cache: Cache, press: Press | None = None) -> None:
    with KeepMaskRecorder(model), press(model) if press else contextlib.nullcontext():
        model(prompt(), past_key_values=cache)


def fill_before() -> None:
    cache = DynamicCache()
    model_of()(prompt(), past_key_values=cache)
    with KeepMaskRecorder(model_of()):
        decode(model_of(), cache, 1)


def fill_twice(*, anew: bool) -> None:
    cache = DynamicCache()
    with KeepMaskRecorder(model_of()):
        model_of()(prompt(), past_key_values=cache)
        cache = DynamicCache() if anew else cache
        cache.crop(0)
        model_of()(prompt(60), past_key_values=cache)


def between_passes(change: Callable[[Any], None], press: Press | None = None) -> None:
    model, cache = model_of(), DynamicCache()
    with KeepMaskRecorder(model):
        with press(model) if press else contextlib.nullcontext():
            model(prompt(sequences=2), past_key_values=cache)
        decode_two(model, cache)
        change(cache)
        decode_two(model, cache)


def decode_two(model: Model, cache: Cache) -> None:
    for number in range(3):
        model(torch.tensor([[7 + number], [8]]), past_key_values=cache)


def append_a_row(cache: Cache) -> None:
    for held in cache.layers:
        held.keys = torch.cat([held.keys, held.keys[:, :, :1]], dim=2)
        held.values = torch.cat([held.values, held.values[:, :, :1]], dim=2)


def grow_at_the_end() -> None:
    cache = DynamicCache()
    with KeepMaskRecorder(model_of()):
        model_of()(prompt(), past_key_values=cache)
        append_a_row(cache)


def mask_of_four_axes() -> None:
    tokens = prompt(20, sequences=2)
    with KeepMaskRecorder(model_of()):
        model_of()(
            tokens,
            attention_mask=torch.ones(2, 1, 20, 20, dtype=bool),
            past_key_values=DynamicCache(),
        )


def enter_twice() -> None:
    recorder = KeepMaskRecorder(model_of())
    with recorder, recorder:
        pass


def swap_last_rows(cache: Cache) -> None:
    for held in cache.layers:
        held.values = held.values.clone()
        held.values[:, :, -1] = held.values[:, :, -1].flip(0)


def skip_a_layer() -> None:
    layer = model_of().model.layers[1]
    layer.forward = lambda hidden, **_: hidden
    with contextlib.closing(SimpleNamespace(close=lambda: delattr(layer, "forward"))):
        _ = prefilled(model_of(), GATHERING["knorm"](), prompt()).keep


def cut_one_layer() -> None:
    model, cache = model_of(), DynamicCache()
    with KeepMaskRecorder(model) as recorder:
        model(prompt(), past_key_values=cache)
        decode(model, cache, 2)
        cache.layers[1].crop(150)
    _ = recorder.keep


def evict_in_place(held: Any, *, keys: bool = True, values: bool = True) -> None:  # noqa: ANN401
    """Move every third row of a layer to the front of its own memory, and cut off the rest."""
    left = torch.arange(2, held.keys.shape[2], 3)
    for name, in_place in (("keys", keys), ("values", values)):
        rows = getattr(held, name)
        stay = rows[:, :, left]
        if in_place:
            rows[:, :, : len(left)] = stay
            stay = rows[:, :, : len(left)]
        setattr(held, name, stay)


def evict_everywhere_in_place(cache: Cache) -> None:
    for held in cache.layers:
        evict_in_place(held)


@pytest.mark.parametrize("part", ["keys", "values"])
def test_what_is_written_over_in_place_is_told_by_the_other_part(part: str) -> None:
    change = functools.partial(evict_in_place, **{part: False})
    recorder = prefilled(model_of(), Changing(change), torch.arange(3, 53)[None])
    assert (recorder.keep == [place % 3 == 2 for place in range(50)]).all()
    assert recorder.num_ambiguous == 0


def evict_a_second_pass_in_place() -> None:
    """As many rows are left as there were before it, which a replay would leave too."""
    model, cache = model_of(), DynamicCache()
    with KeepMaskRecorder(model):
        model(prompt(20), past_key_values=cache)
        with Changing(evict_in_place)(model):
            model(prompt(40, seed=1), past_key_values=cache)


def take_all(held: Any) -> None:  # noqa: ANN401
    held.keys, held.values = held.keys[:, :, :0], held.values[:, :, :0]


def test_a_press_may_evict_everything() -> None:
    model, cache = model_of(), DynamicCache()
    with KeepMaskRecorder(model) as recorder:
        with Changing(take_all)(model):
            model(prompt(20), past_key_values=cache)
        decode(model, cache, 2)
    assert recorder.lengths.tolist() == [22]
    assert (recorder.keep == [False] * 20 + [True] * 2).all()
    assert recorder.cached_share == 2 / 22
    assert reclaim_columns(recorder, 4)["physical_reclaim"] == 5 / 6


def take_a_head(held: Any) -> None:  # noqa: ANN401
    held.keys, held.values = held.keys[:, :1], held.values[:, :1]


def take_a_sequence() -> None:
    cache = DynamicCache()
    with KeepMaskRecorder(model_of()):
        model_of()(prompt(sequences=2), past_key_values=cache)
        cache.crop(20)
        cache.batch_select_indices(torch.tensor([0]))


def part_values_from_keys(held: Any) -> None:  # noqa: ANN401
    held.keys, held.values = held.keys[:, :, 1:75].clone(), held.values[:, :, :74].clone()


def list_as_masked(*listed: object) -> None:
    model = model_of()
    with KeepMaskRecorder(model):
        model(prompt(), past_key_values=DynamicCache())
        model.model.layers[0].self_attn.masked_key_indices = listed


def drop_the_layers() -> None:
    cache = DynamicCache()
    with KeepMaskRecorder(model_of()):
        model_of()(prompt(), past_key_values=cache)
        cache.layers.pop()


REFUSALS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "rewrites both": (
        lambda: fill(model_of(), DynamicCache(), Rewriting()),
        ValueError,
        (
            "layer 1 must be left with copies of rows that it had, of their keys or of their "
            "values; got 150 of 150 rows with neither, the first in sequence 0, head 0, slot 0"
        ),
    ),
    "grows": (
        lambda: fill(model_of(), DynamicCache(), Growing()),
        ValueError,
        "layer 0 must grow by the tokens of each pass alone; got 300 rows where 150 were",
    ),
    "grows between": (
        lambda: between_passes(append_a_row),
        ValueError,
        "layer 0 must grow by the tokens of each pass alone; got 154 rows where 153 were",
    ),
    "sliding": (
        lambda: fill(sliding_model(), DynamicCache(config=sliding_model().config)),
        ValueError,
        (
            "every layer must hold the same tokens; got a sliding window "
            "(DynamicSlidingWindowLayer) in layer 0; write past_key_values=DynamicCache(), which "
            "holds every row as it was written, and does so in every layer, then keep[sliding, "
            "..., : 1 - window] = False in the mask, for the layers that slide."
        ),
    ),
    "static": (
        lambda: fill(
            model_of(), transformers.StaticCache(config=model_of().config, max_cache_len=200)
        ),
        TypeError,
        (
            "the cache must hold rows as they were written; got StaticLayer in layer 0: its rows "
            "are written in place"
        ),
    ),
    "quantised": (
        lambda: fill(model_of(), quantised_cache()),
        TypeError,
        "got HalvesLayer in layer 0: quantised rows have no bits to be known by",
    ),
    "offloaded": (
        lambda: _hf_cache.rows_of(SimpleNamespace(offloading=True, layers=[]), 0),
        TypeError,
        "the cache must have its layers at hand; got an offloaded cache",
    ),
    "filled before": (fill_before, ValueError, "must see the prefill; got 150 rows in layer 0"),
    "another cache": (
        lambda: fill_twice(anew=True),
        ValueError,
        "a recorder must see one prefill; got another, in layer 0; write KeepMaskRecorder(model)",
    ),
    "filled again": (lambda: fill_twice(anew=False), ValueError, "must see one prefill"),
    "reordered": (
        lambda: between_passes(lambda cache: cache.reorder_cache(torch.tensor([1, 0]))),
        ValueError,
        "layer 0 must keep its rows in their places between two passes; got others there, as beam",
    ),
    "rewritten at the end": (
        lambda: between_passes(swap_last_rows),
        ValueError,
        "layer 0 must keep its rows in their places between two passes",
    ),
    "grows at the end": (
        grow_at_the_end,
        ValueError,
        "layer 0 must grow by the tokens of each pass alone; got 151 rows where 150 were",
    ),
    "a layer is skipped": (
        skip_a_layer,
        ValueError,
        "every layer must write to the cache; got none in [1]; measure layers that differ",
    ),
    "in place": (
        lambda: fill(model_of(), DynamicCache(), Changing(evict_in_place)),
        ValueError,
        (
            "layer 0 must be left with copies of rows that it had; got keys and values that were "
            "written over in place"
        ),
    ),
    "in place as a replay": (
        evict_a_second_pass_in_place,
        ValueError,
        "layer 0 must be left with copies of rows that it had; got keys and values that were writ",
    ),
    "in place between": (
        lambda: between_passes(evict_everywhere_in_place),
        ValueError,
        "layer 0 must be left with copies of rows that it had; got keys and values that were writ",
    ),
    "reset": (
        lambda: between_passes(lambda cache: cache.reset()),
        ValueError,
        (
            "layer 0 must keep its rows in their places between two passes; got values that were "
            "written over, as Cache.reset() does"
        ),
    ),
    "a head is gone": (
        lambda: fill(model_of(), DynamicCache(), Changing(take_a_head)),
        ValueError,
        (
            "layer 0 must keep its sequences and kv heads, and evict their tokens; got 1 sequences "
            "and 1 heads where 1 and 2 were"
        ),
    ),
    "a sequence is gone": (
        take_a_sequence,
        ValueError,
        "and evict their tokens; got 1 sequences and 2 heads where 2 and 2 were",
    ),
    "keys and values of different tokens": (
        lambda: fill(model_of(), DynamicCache(), Changing(part_values_from_keys)),
        ValueError,
        (
            "layer 0 must be left with keys and values of the same tokens; got keys of some beside "
            "values of others"
        ),
    ),
    "a list of two": (
        lambda: list_as_masked([0], [1]),
        ValueError,
        (
            "masked_key_indices of layer 0 must be a tuple of three arrays of one length: "
            "sequences, kv heads and slots; got arrays of [1, 1]"
        ),
    ),
    "a list of two lengths": (
        lambda: list_as_masked([0], [1], [2, 3]),
        ValueError,
        "sequences, kv heads and slots; got arrays of [1, 1, 2]",
    ),
    "an empty list": (list_as_masked, ValueError, "kv heads and slots; got tuple ()"),
    "a list of other heads": (
        lambda: list_as_masked([0, 0], [1, KV_HEADS], [2, 3]),
        ValueError,
        (
            "masked_key_indices of layer 0 must name 1 sequences, 2 kv heads and slots, from 0 on; "
            "got 2 among 2"
        ),
    ),
    "a list of slots from the end": (
        lambda: list_as_masked([0], [1], [-1]),
        ValueError,
        "2 kv heads and slots, from 0 on; got -1 among 1",
    ),
    "a cache of fewer layers": (
        drop_the_layers,
        ValueError,
        "the cache must hold every layer of the model; got 1 layers and none of number 1",
    ),
    "cut in any order": (
        lambda: between_passes(lambda cache: cache.crop(20), kvpress.KnormPress(0.5)),
        ValueError,
        (
            "layer 0 must lose its newest tokens, or chosen ones, between two passes; got 20 of 78 "
            "slots"
        ),
    ),
    "mask of four axes": (
        mask_of_four_axes,
        ValueError,
        (
            "attention_mask must have the shape (sequence, token), so that padding is known; got "
            "(2, 1, 20, 20) for 2 sequences and 20 tokens"
        ),
    ),
    "entered twice": (enter_twice, ValueError, "recorder must be entered once"),
    "layers differ": (
        cut_one_layer,
        ValueError,
        (
            "every layer must hold the same tokens and kv heads; got 150 and 2 in layer 1, 152 "
            "and 2 in layer 0"
        ),
    ),
    "no model": (
        lambda: KeepMaskRecorder("llama"),
        TypeError,
        "model must be a Hugging Face model",
    ),
    "no attention": (
        lambda: KeepMaskRecorder(
            torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(8, 2, 8), 1)
        ),
        TypeError,
        "got a TransformerDecoderLayer without a self_attn that knows its layer_idx in layer 0",
    ),
    "nothing seen": (lambda: KeepMaskRecorder(model_of()).keep, ValueError, "got none; run the"),
    "no recorder": (
        lambda: reclaim_columns(np.ones(3), 16),  # type: ignore[arg-type]  # on purpose
        TypeError,
        "recorder must be a KeepMaskRecorder",
    ),
    "a cache of another kind": (
        lambda: _hf_cache.rows_of([], 0),
        TypeError,
        "the cache must have its layers at hand; got",
    ),
    "values of another length": (
        lambda: _hf_cache.rows_of(
            SimpleNamespace(
                layers=[SimpleNamespace(keys=torch.ones(1, 2, 3, 4), values=torch.ones(1, 2, 2, 4))]
            ),
            0,
        ),
        TypeError,
        "got SimpleNamespace with (1, 2, 3, 4) and (1, 2, 2, 4) in layer 0",
    ),
    "rows of another shape": (
        lambda: _hf_cache.rows_of(
            SimpleNamespace(layers=[SimpleNamespace(keys=torch.ones(1, 2, 3, 4), values=None)]), 0
        ),
        TypeError,
        "got SimpleNamespace with (1, 2, 3, 4) and () in layer 0",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_refused(name: str) -> None:
    run, kind, wording = REFUSALS[name]
    with pytest.raises(kind, match=re.escape(wording)):
        run()
    for layer in model_of().model.layers:
        assert not layer._forward_hooks
        assert not layer.self_attn._forward_hooks


def test_what_a_window_has_passed_by_can_be_left_out() -> None:
    model, window, sliding = sliding_model(), 64, [1]
    with KeepMaskRecorder(model) as recorder:
        model(prompt(), past_key_values=DynamicCache())
    keep = recorder.keep
    assert keep.all()
    keep[sliding, ..., : 1 - window] = False
    cache = DynamicCache(config=model.config)  # what transformers itself would hold
    model(prompt(), past_key_values=cache)
    assert keep[1].sum(axis=-1).tolist() == [[cache.layers[1].keys.shape[2]] * KV_HEADS]
    assert keep[0].all()
    assert recorder.keep.all()


def test_a_model_without_a_cache_is_let_be() -> None:
    with KeepMaskRecorder(model_of()) as recorder:
        model_of()(prompt(), use_cache=False)
    with pytest.raises(ValueError, match="must have seen a prefill into a cache"):
        _ = recorder.lengths


def test_an_error_inside_leaves_no_half_record() -> None:
    recorder = KeepMaskRecorder(model_of())
    with contextlib.suppress(KeyError), recorder:
        model_of()(prompt(), past_key_values=DynamicCache())
        raise KeyError
    with pytest.raises(ValueError, match="left without an error; got none"):
        _ = recorder.keep


def test_the_cache_is_not_held_longer_than_the_block() -> None:
    cache = DynamicCache()
    with KeepMaskRecorder(model_of()) as recorder:
        model_of()(prompt(), past_key_values=cache)
    held = weakref.ref(cache.layers[0].keys)
    del cache
    gc.collect()
    assert held() is None
    assert recorder.keep.all()


def test_torch_is_imported_by_what_needs_it() -> None:
    script = (
        "import sys, kvreclaim.adapters.kvpress; "
        "print({'torch', 'transformers', 'kvpress'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


# --- Rows as numbers ---


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64", "int8"])
def test_fingerprints_are_equal_where_all_bits_are(kind: str) -> None:
    """Among others: elements that change places or signs, and a single bit."""
    row = torch.tensor([1, 2, 3, 4], dtype=getattr(torch, kind))
    rows = [row, row[[1, 0, 2, 3]], row * 0, -row, row.clone(), row[[3, 1, 2, 0]]]
    for flipped in [(0,), (1,), (0, 1), (2, 3), (0, 1, 2, 3)]:
        sign = torch.ones(4, dtype=row.dtype)
        sign[list(flipped)] = -1
        rows.append(row * sign)
    rows += [torch.zeros_like(row) * -1] if row.is_floating_point() else []
    stacked = torch.stack(rows)
    codes = _hf_cache.fingerprints(stacked[None, None]).ravel().tolist()
    size = row.element_size() * 4
    held = stacked.view(torch.uint8).numpy().tobytes()
    bits = [held[place : place + size] for place in range(0, len(held), size)]
    for (one, this), (other, that) in itertools.combinations(zip(codes, bits, strict=True), 2):
        assert (one == other) == (this == that)
    assert len({*codes}) == len({*bits}) < len(codes)


def test_fingerprints_do_not_hang_on_pieces_or_memory() -> None:
    rows = torch.randn(2, 3, 5, 8)
    codes = _hf_cache.fingerprints(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_hf_cache, "_AT_ONCE", 20)
        assert (_hf_cache.fingerprints(rows) == codes).all()
    assert (_hf_cache.fingerprints(rows.transpose(0, 2)) == codes.transpose(2, 1, 0)).all()
    assert _hf_cache.fingerprints(rows[:, :, :0]).shape == (2, 3, 0)
    assert _hf_cache.fingerprints(rows.clone()).tolist() == codes.tolist()
    assert len(np.unique(codes)) == 30


def test_which_gathers_are_noted_and_which_one_counts() -> None:
    rows, flat = torch.randn(1, 2, 6, 4), torch.randn(2, 6)
    one, two = (
        torch.tensor(places).reshape(1, 1, 3, 1).expand(1, 2, 3, 4)
        for places in ([1, 2, 3], [5, 4, 0])
    )
    with _hf_cache.gathers() as tap:
        rows.gather(2, one)
        torch.gather(rows, -2, index=two)
        torch.gather(input=rows, dim=2, index=one)
        rows.gather(3, one)
        flat.gather(1, one[0, ..., 0])
        rows[:, :, :5].gather(2, one)
    assert [(number, where[0, 0].tolist()) for number, where in tap.seen] == [
        (6, [1, 2, 3]),
        (6, [5, 4, 0]),
        (6, [1, 2, 3]),
        (5, [1, 2, 3]),
    ]
    taken = _hf_cache.taken_of(tap.seen[:2], (1, 2, 6, 4), 3)
    assert taken is not None
    assert taken.tolist() == [[[5, 4, 0]] * 2]
    for shape, number in [((1, 2, 7, 4), 3), ((1, 2, 6, 4), 2), ((1, 1, 6, 4), 3)]:
        assert _hf_cache.taken_of(tap.seen, shape, number) is None


# --- Columns ---


def test_columns_are_those_of_the_report() -> None:
    recorder = prefilled(model_of(), GATHERING["snapkv"](), prompt())
    pool = BlockPool(16, total_blocks=100, entry_bytes=128)
    columns = reclaim_columns(recorder, pool)
    figures = report(recorder.keep, pool, axes="lbht")
    assert columns.pop("signature") == figures.signature
    assert columns.pop("cached_share") == 0.5
    assert columns.pop("num_ambiguous") == 0
    expected = {
        name: value if value is None or math.isfinite(value) else None
        for name, value in figures.figures().items()
    }
    assert columns == expected
    assert {"physical_reclaim", "compacted_reclaim", "packed_reclaim", "logical_saving"} < {
        *columns
    }
    assert {type(value) for value in columns.values()} == {int, float, type(None)}
    assert json.loads(json.dumps(columns)) == columns
    assert recorder.census(pool) == take_census(recorder.keep, pool, axes="lbht")


# --- The page ---


def run(name: str) -> dict[str, Any]:
    """Run a script of the page here, since a fresh interpreter takes seconds to import torch."""
    said: dict[str, Any] = {"__name__": name}
    exec(compile(scripts_of(PAGE)[name], name, "exec"), said)  # noqa: S102  # our own page
    return said


def test_the_scripts_of_the_page_have_tests_here() -> None:
    ours = {"ten_presses.py", "evaluate_with_reclaim.py", "update_kv.py", "own_eviction.py"}
    assert ours <= {*scripts_of(PAGE)}


def test_ten_presses_under_three_pools(capsys: pytest.CaptureFixture[str]) -> None:
    run("ten_presses.py")
    lines = capsys.readouterr().out.splitlines()
    figures = {line.split()[0]: re.findall(r"\d\.\d\d", line) for line in lines}
    assert len(lines) == len(figures) == 10
    assert figures["StreamingLLMPress"] == ["0.48", "0.49"] * 3 + ["0.50", "0.50"]
    assert figures["AdaKVPress"][-2:] == ["0.50", "0.00"]
    for row in figures.values():
        one_table, per_layer, per_head = (float(share) for share in row[:6:2])
        assert one_table <= per_layer <= per_head <= 0.51
        assert 0 <= one_table <= float(row[1]) <= float(row[3]) <= float(row[5])


def test_an_eviction_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    run("own_eviction.py")
    assert capsys.readouterr().out == f"[1001] {4 * 501} {30 / 63}\n"


class StandIn:
    """What the script of the page uses of EvaluationRunner in kvpress 0.5.5's evaluate.py."""

    def __init__(self, pipeline: Pipe, press: Press, frame: Frame) -> None:
        self.pipeline, self.press, self.df = pipeline, press, frame

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch may be absent
    def _run_inference(self) -> None:
        self.df["predicted_answer"] = None
        said = {"answer_prefix": "", "press": self.press, "max_new_tokens": 4}
        if isinstance(self.press, kvpress.DecodingPress):
            for index, row in self.df.iterrows():
                output = self.pipeline(
                    row["context"], question=row["question"], max_context_length=None, **said
                )
                self.df.loc[index, "predicted_answer"] = output["answer"]
            return
        for context, group in self.df.groupby("context"):
            output = self.pipeline(
                context, questions=group["question"].to_list(), max_context_length=None, **said
            )
            self.df.loc[group.index, "predicted_answer"] = output["answers"]

    def _calculate_and_save_metrics(self, path: Path) -> None:
        path.write_text("{}", "utf-8")


@pytest.mark.parametrize(
    "make",
    [
        GATHERING["knorm"],
        lambda: kvpress.DecodingPress(kvpress.KnormPress(), compression_interval=2, target_size=70),
    ],
)
def test_columns_beside_the_metrics_of_kvpress(
    pipe: Pipe,
    make: Callable[[], Press],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pandas = importlib.import_module("pandas")
    module = ModuleType("evaluate")
    vars(module).update(EvaluationRunner=StandIn, Fire=None, CliEntryPoint=None)
    monkeypatch.setitem(sys.modules, "evaluate", module)
    script = run("evaluate_with_reclaim.py")
    assert module.EvaluationRunner is script["Runner"]
    contexts = [" " + text(120), " " + text(80, 1)]
    frame = pandas.DataFrame(
        [
            {"context": context, "question": text(5 + 9 * number, 9 + number)}
            for context in contexts
            for number in range(2)
        ]
    )
    runner = script["Runner"](pipe, make(), frame)
    runner._run_inference()
    runner._calculate_and_save_metrics(tmp_path / "metrics.json")
    decoding = isinstance(runner.press, kvpress.DecodingPress)
    assert len(runner.censuses) == (4 if decoding else 2)
    order = runner.censuses if decoding else [runner.censuses[i] for i in (1, 1, 0, 0)]
    if not decoding and contexts[0] < contexts[1]:  # groups come in the order of their names
        order = [runner.censuses[i] for i in (0, 0, 1, 1)]
    assert frame["kv_logical_saving"].tolist() == [logical_saving(census) for census in order]
    counts = frame["kv_num_ambiguous"].tolist()
    assert counts == [0] * 4
    assert {type(count) for count in counts} == {int}
    frame.to_csv(tmp_path / "predictions.csv")
    written_csv = pandas.read_csv(tmp_path / "predictions.csv", float_precision="round_trip")
    assert written_csv["kv_num_ambiguous"].dtype.kind == "i"
    assert written_csv["kv_logical_saving"].tolist() == frame["kv_logical_saving"].tolist()
    assert written_csv["kv_held_bytes"].isna().all()
    assert frame["predicted_answer"].map(lambda answer: len(answer.split())).tolist() == [4] * 4
    pooled = report(merge(runner.censuses))
    written = json.loads((tmp_path / "reclaim.json").read_text("utf-8"))
    assert written == pooled.to_dict()
    assert (tmp_path / "metrics.json").exists()


QUERY_HEADS, GROUP = 4, 2


def selected(scores: Tensor, number: int, window: int) -> Tensor:
    """Return the positions of the highest scores, then of a window, of each head."""
    length = scores.shape[-1]
    top = scores[..., :-window].topk(number, dim=-1).indices
    last = torch.arange(length - window, length).expand(*scores.shape[:-1], window)
    return torch.cat([top, last], dim=-1)


class OneLength:
    """The shapes of SnapKV, PyramidKV, H2O, CAM and StreamingLLM there: (1, heads, left, d)."""

    def update_kv(
        self, keys: Tensor, queries: Tensor, values: Tensor, *_: object
    ) -> tuple[Tensor, Tensor]:
        where = selected(queries.norm(dim=-1), 12, 4)[..., None].expand(-1, -1, -1, keys.shape[-1])
        values += 1  # CAM adds to values in place
        return keys.gather(2, where), values.gather(2, where)


class ManyLengths:
    """The shapes of AdaKV and HeadKV: heads end to end, (rows of all heads, d)."""

    head_lens: Tensor

    def update_kv(self, keys: Tensor, queries: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        del queries
        rows = [torch.arange(3 * head, 30) for head in range(keys.shape[1])]
        self.head_lens = torch.tensor([len(row) for row in rows], dtype=torch.int32)
        heads = list(enumerate(rows))
        return (
            torch.cat([keys[0, head, row] for head, row in heads]),
            torch.cat([values[0, head, row] for head, row in heads]),
        )


def test_what_update_kv_keeps_of_stored_heads() -> None:
    record_update = run("update_kv.py")["record"]
    rng = torch.Generator().manual_seed(0)
    stored = [torch.randn(1, KV_HEADS, 30, 8, generator=rng) for _ in range(2)]
    keys, values = (rows.repeat_interleave(GROUP, dim=1) for rows in stored)
    queries = torch.randn(1, QUERY_HEADS, 30, 8, generator=rng)
    kept: list[list[Bools]] = []
    cluster = OneLength()
    record_update(cluster, kept)
    for _ in range(LAYERS):
        left, _ = cluster.update_kv(keys, queries, values.clone(), None, GROUP)
        assert left.shape == (1, QUERY_HEADS, 16, 8)
    truth = np.zeros((QUERY_HEADS, 30), bool)
    where = selected(queries.norm(dim=-1), 12, 4)[0].numpy()
    np.put_along_axis(truth, where, values=True, axis=1)
    assert (np.array(kept) == truth).all()
    # A copy for each query head: so many times the bytes of a cache with a row for each kv head.
    pool = BlockPool(4, entry_bytes=64)
    as_stored = report(np.array(kept), pool, axes="lht")
    as_needed = report(masks.to_kv_heads(kept, KV_HEADS), pool, axes="lht")
    assert as_stored.census.num_entries == GROUP * as_needed.census.num_entries
    bytes_of = [each.held_bytes + each.reclaimed_bytes for each in (as_stored, as_needed)]  # type: ignore[operator]  # the pool has entry_bytes
    assert bytes_of[0] == GROUP * bytes_of[1]
    assert as_needed.logical_saving < as_stored.logical_saving == 14 / 30


def test_what_update_kv_keeps_of_heads_end_to_end() -> None:
    record_update = run("update_kv.py")["record"]
    keys = torch.randn(1, QUERY_HEADS, 30, 8, generator=torch.Generator().manual_seed(0))
    kept: list[list[Bools]] = []
    cluster = ManyLengths()
    record_update(cluster, kept)
    cluster.update_kv(keys, keys, keys)
    expected = [[token >= 3 * head for token in range(30)] for head in range(QUERY_HEADS)]
    assert np.array(kept[0]).tolist() == expected


def test_a_merge_of_keys_is_refused() -> None:
    record_update = run("update_kv.py")["record"]
    cluster = SimpleNamespace(update_kv=lambda keys, *_: (keys[:, :, 5:] + 1, keys))
    record_update(cluster, [])
    with pytest.raises(ValueError, match="got a row at slot 0 that is not there"):
        cluster.update_kv(torch.ones(1, 2, 10, 4), None, None)
