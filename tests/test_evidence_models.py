"""The half of the evidence that runs models, on small ones with random weights.

Attention that reads a reduced cache is held against loops, and against caches that kvpress itself
has cut; a whole run is made, stopped, and gone on with.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray
from optional import noisy_library
from presses import record

from benchmarks.evidence import settings, tables
from kvreclaim import BlockPool, physical_reclaim, policies, take_census

pytestmark = pytest.mark.filterwarnings("default")  # kvpress 0.5.5 warns of its own deprecations

for needed in ("torch", "transformers", "kvpress", "tokenizers"):
    noisy_library(needed)
torch, transformers, _ = record.libraries()
attention: Any = noisy_library("benchmarks.evidence.attention")
checks: Any = noisy_library("benchmarks.evidence.checks")
keeps: Any = noisy_library("benchmarks.evidence.keeps")
models: Any = noisy_library("benchmarks.evidence.models")
prompts: Any = noisy_library("benchmarks.evidence.prompts")
quality: Any = noisy_library("benchmarks.evidence.quality")
run: Any = noisy_library("benchmarks.evidence.run")
texts: Any = noisy_library("benchmarks.evidence.texts")

Bools: TypeAlias = NDArray[np.bool_]
Model: TypeAlias = Any
"""A `models.Model`, whose module needs torch."""
Prompt: TypeAlias = Any
"""A `prompts.Prompt`."""
Tensor: TypeAlias = Any
"""A tensor of torch."""
TOKENS, FOLLOWING, LAYERS, KV_HEADS, WORDS = 200, 9, 3, 2, 96
SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": KV_HEADS,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 16,
        },
    ),
}


def encode(text: str) -> list[int]:
    return [3 + ord(letter) % (WORDS - 3) for letter in text]


@pytest.fixture(params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest) -> Model:
    return tiny(request.param)


def tiny(name: str) -> Model:
    torch.manual_seed(1)
    kind, config, more = KINDS[name]
    transformers.AttentionInterface.register(attention.NAME, attention.attend)
    said = getattr(transformers, config)(**SIZES, **more, attn_implementation=attention.NAME)
    layers = (1,) if name == "gemma3" else tuple(range(LAYERS))
    return models.Model(
        name="smollm2-135m",
        lm=getattr(transformers, kind)(said).eval(),
        encode=encode,
        first=(1,),
        layers=layers,
        kv_heads=KV_HEADS,
        sha256="0" * 64,
    )


@pytest.fixture(autouse=True)
def document(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    text = "".join(map(chr, rng.integers(33, 126, 3 * TOKENS)))
    monkeypatch.setitem(texts.TEXTS, "made", texts.Text("a test", "none", lambda: text))


def read(model: Model) -> Prompt:
    return prompts.read(model, "made", TOKENS, FOLLOWING + 1)


def everything(model: Model) -> Bools:
    return np.ones((len(model.layers), KV_HEADS, TOKENS), np.bool_)


def test_keys_are_planted_where_the_prompt_says_and_the_text_goes_on_behind_it() -> None:
    read, probes = texts.TEXTS["made"].read(), texts.probes("made")
    tokens, following = prompts.cut(tiny("llama"), read, probes, TOKENS, FOLLOWING)
    text = encode(read)
    planted = [encode(probe.planted) for probe in probes]
    assert len(tokens) == TOKENS
    assert len(following) == FOLLOWING
    left = tokens[1:]
    for words, depth in zip(planted, texts.DEPTHS, strict=True):
        places = [at for at in range(TOKENS) if left[at : at + len(words)] == words]
        assert len(places) == 1  # and then it is taken out
        room = TOKENS - 1 - sum(map(len, planted))
        assert places == [round(depth * room)]
        del left[places[0] : places[0] + len(words)]
    assert [*left, *following] == text[: len(left) + FOLLOWING]
    for probe in probes:
        assert probe.planted.startswith(probe.question + probe.answer)
    assert texts.probes("made") == texts.probes("made") != texts.probes("other")


def test_a_text_that_is_too_short_is_refused() -> None:
    text, probes = texts.TEXTS["made"].read(), texts.probes("made")
    planted = sum(len(probe.planted) for probe in probes)
    with pytest.raises(ValueError, match="text must have 610 tokens; it has 600"):
        prompts.cut(tiny("llama"), text, probes, 1 + planted + 600, 10)


def test_the_whole_cache_gives_what_the_model_itself_says(model: Model) -> None:
    prompt = read(model)
    ours = quality.ask(model, prompt, everything(model))
    model.lm.set_attn_implementation("eager")
    with torch.inference_mode():
        words = torch.tensor([[*prompt.tokens, *prompt.following]])
        told = model.lm(input_ids=words).logits.log_softmax(-1)[0, TOKENS:-1]
        for question in prompt.questions:
            asked = [*prompt.tokens, *question.asked, *question.answer]
            best = model.lm(input_ids=torch.tensor([asked])).logits[0].argmax(-1)
            assert len(best) == len(asked)
    assert (ours.log_probabilities - told).abs().max() < 1e-4  # float32, added in another order
    target = torch.tensor(prompt.following[1:])
    assert ours.loss == pytest.approx(-told.gather(-1, target[:, None]).mean().item(), abs=1e-5)


def test_probes_are_judged_as_greedy_decoding_would() -> None:
    model = tiny("llama")
    prompt = read(model)
    model.lm.set_attn_implementation("eager")
    answers, losses = [], []
    with torch.inference_mode():
        for question in prompt.questions:
            words = [*prompt.tokens, *question.asked]
            said: list[int] = []
            for _ in question.answer:  # one word after the other
                said.append(
                    int(model.lm(input_ids=torch.tensor([words + said])).logits[0, -1].argmax())
                )
            answers.append(said)
            told = model.lm(input_ids=torch.tensor([words + question.answer])).logits.log_softmax(
                -1
            )
            start = len(words) - 1
            losses += [
                -told[0, start + number, word].item() for number, word in enumerate(question.answer)
            ]
    model.lm.set_attn_implementation(attention.NAME)
    found = quality.ask(model, prompt, everything(model))
    assert found.found == 0
    assert found.probe_loss == pytest.approx(float(np.mean(losses)), abs=1e-4)
    right = [q._replace(answer=said) for q, said in zip(prompt.questions, answers, strict=True)]
    wrong = right[1]._replace(answer=[*right[1].answer[:-1], (right[1].answer[-1] + 1) % WORDS])
    asked = prompt._replace(questions=(right[0], wrong, right[2]))
    assert quality.ask(model, asked, everything(model)).found == 2


def test_attention_that_tokens_drew_is_that_of_the_model() -> None:
    model = tiny("llama")
    drawn = read(model).attention
    model.lm.set_attn_implementation("eager")
    with torch.inference_mode():
        words = torch.tensor([read(tiny("llama")).tokens])
        seen = model.lm(input_ids=words, output_attentions=True).attentions
    for layer, weights in enumerate(seen):
        of_heads = weights[0].unflatten(0, (KV_HEADS, -1)).mean(1).sum(-2)
        np.testing.assert_allclose(drawn[layer], of_heads.numpy(), atol=1e-4)


def looked_at(
    query: Tensor, rows: list[tuple[int, Tensor, Tensor]], position: int, window: int | None
) -> Tensor:
    """The attention of one query, by loops: the twin of `Reduced.seen`."""
    near = [
        row for row in rows if row[0] <= position and (window is None or position - row[0] < window)
    ]
    weights = [math.exp(float(query @ key)) for _, key, _ in near]
    total = sum(weights)
    return sum(
        value * (weight / total) for (_, _, value), weight in zip(near, weights, strict=True)
    )


@pytest.mark.parametrize("window", [None, 1, 6, 100])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_a_reduced_cache_is_read_as_loops_read_it(window: int | None, share: float) -> None:
    rng = np.random.default_rng(3)
    heads, groups, tokens, new, channels = 2, 2, 23, 4, 5

    def draw(*shape: int) -> Tensor:
        return torch.tensor(rng.standard_normal(shape), dtype=torch.float64)

    whole = attention.Whole()
    whole.keys[4], whole.values[4] = (
        draw(1, heads, tokens, channels),
        draw(1, heads, tokens, channels),
    )
    keep = rng.random((1, heads, tokens)) < share
    query, key, value = (
        draw(1, heads, groups, new, channels),
        draw(1, heads, new, channels),
        draw(1, heads, new, channels),
    )
    seen = attention.Reduced(whole, keep, (4,)).seen(4, query, key, value, window)
    for head in range(heads):
        old = [
            (int(t), whole.keys[4][0, head, t], whole.values[4][0, head, t])
            for t in np.flatnonzero(keep[0, head])
        ]
        rows = [*old, *((tokens + n, key[0, head, n], value[0, head, n]) for n in range(new))]
        for group in range(groups):
            for number in range(new):
                twin = looked_at(query[0, head, group, number], rows, tokens + number, window)
                torch.testing.assert_close(seen[0, head, group, number], twin)


def test_presses_decide_as_they_do_when_kvpress_runs_them() -> None:
    model = tiny("llama")
    told = checks.agreement(model, read(model))
    assert [*told] == [*checks.CHECKED]
    for found in told.values():
        assert found["mask_bits"] == 0
        assert found["all_bits"] == everything(model).size
        assert found["log_probability"] < 1e-3  # float32; a row too many moves it by tenths


def test_presses_are_not_checked_where_layers_are_left_out() -> None:
    model = tiny("gemma3")
    assert checks.agreement(model, read(model)) == {}


def test_every_policy_keeps_what_it_is_told(model: Model) -> None:
    choose = keeps.chooser(model, read(model))
    for policy in settings.POLICIES:
        for ratio in (0.75, 0.5):
            keep = choose(policy, ratio)
            assert keep.shape == everything(model).shape
            assert keep.dtype == np.bool_
            exact = policy not in ("chunk_kv_16", "chunk_kv_20", "pyramid_kv")
            assert keep.mean() == ratio if exact else abs(keep.mean() - ratio) < 0.3
            assert (keep == choose(policy, ratio)).all()
    for policy, shared in (("head", ""), ("layer", "h"), ("all", "lh")):
        census = take_census(
            choose(f"whole_block_{policy}", 0.5), BlockPool(16, shared_axes=shared), axes="lht"
        )
        assert physical_reclaim(census) == pytest.approx(0.5, abs=1 / 13)
    pool = BlockPool(16, shared_axes="lh")
    freed = [
        take_census(choose(f"evict_for_blocks_{share}", 0.5), pool, axes="lht").num_freed_blocks
        for share in (50, 75)
    ]
    assert freed == [3, 4]  # of 6 that the budget pays for
    assert take_census(choose("snapkv", 0.5), pool, axes="lht").num_freed_blocks < 3


def test_h2o_and_chance_choose_each_row_by_themselves() -> None:
    model = tiny("llama")
    prompt = read(model)
    choose = keeps.chooser(model, prompt)
    assert (choose("h2o", 0.5) == policies.h2o(prompt.attention[..., None, :], TOKENS // 2)).all()
    by_chance = choose("random", 0.5)
    assert not (by_chance[0] == by_chance[1]).all()
    assert (by_chance & ~choose("random", 0.75)).any()  # each share is a draw of its own
    assert (choose("snapkv_common", 0.5) == choose("snapkv_common", 0.5)[:1, :1]).all()
    with pytest.raises(ValueError, match=r"policy must be one of settings\.POLICIES; got 'lru'"):
        choose("lru", 0.5)


def test_a_run_goes_on_where_it_was_and_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []

    def load(name: str, _: Path) -> Model:
        loaded.append(name)
        return tiny("llama")

    monkeypatch.setattr(models, "load", load)
    monkeypatch.setattr(run.allocator, "real_vllm", lambda: None)
    # With random weights kvpress finds no key for Ada-KV that so many queries leave alone.
    monkeypatch.setattr(checks, "CHECKED", ("snapkv", "knorm"))
    contexts = tuple(tables.Context("smollm2-135m", "made", tokens) for tokens in (160, TOKENS))
    plan = run.Plan(contexts, ("snapkv", "whole_block_all"), (0.9, 0.5))
    told: list[tuple[str, int, int]] = []
    run.run(plan._replace(contexts=contexts[:1]), tmp_path, lambda *said: told.append(said))
    assert told == [(contexts[0].stem, done, 4) for done in range(5)]
    run.run(plan, tmp_path, lambda *said: told.append(said))
    assert {stem for stem, *_ in told[5:]} == {contexts[1].stem}
    run.run(plan, tmp_path, lambda *said: told.append(said))
    assert len(told) == 10
    assert loaded == ["smollm2-135m"] * 2
    run.collect(plan, tmp_path, tmp_path / "data")
    rows = tables.from_csv(
        tables.QualityRow, (tmp_path / "data/quality.csv").read_text("utf-8"), name="quality.csv"
    )
    assert len(rows) == 8
    for row in rows:
        assert row.retained == pytest.approx(row.ratio, abs=0.005)
        assert row.kl > 0
        assert row.loss_full != row.loss != row.loss_empty
        assert row.probes == 3
    counted = tables.from_csv(
        tables.ReclaimRow, (tmp_path / "data/reclaim.csv").read_text("utf-8"), name="reclaim.csv"
    )
    sizes = len(settings.BLOCK_SIZES)
    assert len(counted) == 2 * 2 * 3 * (sizes + 1)
    about = json.loads((tmp_path / "data/manifest.json").read_text("utf-8"))
    assert [*about["contexts"]] == [context.stem for context in contexts]
    assert {path.name for path in (tmp_path / "data/masks").iterdir()} == {
        f"{context.stem}.npz" for context in contexts
    }


def test_the_text_of_a_page_is_its_main_part() -> None:
    prose = texts._Prose()
    prose.feed(
        "<nav>no</nav><main><h1>Title</h1><p>One &amp; <code>two</code>.</p></main><p>no</p>"
    )
    assert "".join(prose.parts) == "\n\nTitle\n\nOne & two."
