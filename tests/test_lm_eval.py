"""Reclaim columns of lm-evaluation-harness: pooled over documents, in runs of its own evaluator."""

from __future__ import annotations

import importlib
import json
import math
import pickle
import re
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from optional import noisy_library
from scripts import scripts_of

from kvreclaim import (
    BlockPool,
    Census,
    Report,
    merge,
    paired_differences,
    physical_reclaim,
    policies,
    report,
    take_census,
    take_censuses,
)
from kvreclaim.adapters import lm_eval as adapter
from kvreclaim.adapters.lm_eval import Answer, ReclaimMixin, document_censuses, with_reclaim

# lm-eval, and what it imports, warn of their own deprecations.
pytestmark = pytest.mark.filterwarnings("default")


lm_eval = noisy_library("lm_eval")
torch = noisy_library("torch")
transformers = noisy_library("transformers")
datasets = noisy_library("datasets")
evaluator = noisy_library("lm_eval.evaluator")
huggingface = noisy_library("lm_eval.models.huggingface")
tasks = noisy_library("lm_eval.tasks")
utils = noisy_library("lm_eval.utils")
LM: Any = noisy_library("lm_eval.api.model").LM
HFLM: Any = huggingface.HFLM

PAGE = Path(__file__).parents[1] / "docs" / "harnesses.md"
POOL = BlockPool(8, shared_axes="h")
FIGURES = {
    "logical_saving": True,
    "physical_reclaim": True,
    "compacted_reclaim": True,
    "packed_reclaim": True,
    "reclaim_efficiency": True,
    "fragmentation": False,
    "memory_waste": False,
    "moved_tokens_per_block": False,
}
Keep = NDArray[np.bool_]


# --- Tasks and models ---


def task(name: str = "tiny", prompts: Sequence[str] = (), **changes: object) -> dict[str, Any]:
    """Return a task that asks to continue each prompt; the right answer to "a b c" is "c"."""
    rows = [{"prompt": prompt, "answer": prompt.split()[-1]} for prompt in prompts]

    def documents(**_: object) -> dict[str, Any]:
        return {"test": datasets.Dataset.from_list(rows)}

    return {
        "task": name,
        "custom_dataset": documents,
        "test_split": "test",
        "doc_to_text": "prompt",
        "doc_to_target": "answer",
        "output_type": "generate_until",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 3},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        **changes,
    }


def task_manager() -> Any:  # noqa: ANN401
    """Return one without the tasks that come with lm-eval, which take seconds to list."""
    return tasks.TaskManager(include_defaults=False)


@pytest.fixture(autouse=True, scope="module")
def nothing_asked_of_the_machine() -> Iterator[None]:
    """Leave out what takes seconds, or the network: the environment, and a model's revision."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluator, "add_env_info", lambda _: None)
        patch.setattr(evaluator, "get_git_commit_hash", lambda: None)
        patch.setattr(huggingface, "HfApi", None)
        yield


def run(model: Any, *wanted: Any, **options: Any) -> Any:  # noqa: ANN401
    """Return lm-eval's results; None on any rank but the first."""
    manager = with_reclaim(task_manager())
    return lm_eval.simple_evaluate(model, tasks=[*wanted], task_manager=manager, **options)


def column(results: Mapping[str, Any], name: str, *, of: str = "tiny", by: str = "none") -> Any:  # noqa: ANN401
    return results["results"][of][f"{name},{by}"]


class Parrot(LM):  # type: ignore[misc]  # lm-eval may be absent
    """A model whose eviction keeps the tokens of a prompt that are upper case, and answers "c"."""

    def __init__(self, *, keeps: Callable[[str], Census | None] | None = None) -> None:
        super().__init__()
        self.keeps = keeps or census_of
        self.num_answered = 0

    def generate_until(self, requests: Sequence[Any], **_: object) -> list[str]:
        self.num_answered += len(requests)
        return [Answer("c", self.keeps(request.args[0])) for request in requests]

    def loglikelihood(self, requests: Sequence[Any], **_: object) -> list[tuple[float, bool]]:
        return [(-1.0, True)] * len(requests)

    def loglikelihood_rolling(self, requests: Sequence[Any], **_: object) -> list[float]:
        return [-1.0] * len(requests)


def census_of(prompt: str) -> Census:
    return take_census([letter.isupper() for letter in prompt.split()], 2)


PROMPTS = ["A b c", "a b c d E f g h", "A B c d", "A b c d", "a b C d e f c"]


# --- A real model, evicting, in batches that it sorts ---


class Request(NamedTuple):
    """What the model is asked."""

    tokens: tuple[int, ...]
    new: int


class Evicting(ReclaimMixin, HFLM):  # type: ignore[misc]  # lm-eval may be absent
    """Evicts rows of the real cache after prefill, other ones in each layer and head."""

    kept: dict[Request, Keep]

    def _model_generate(
        self,
        context: Any,  # noqa: ANN401  # a tensor (row, token), padded on the left
        max_length: int,
        stop: Sequence[str],
        **_: object,
    ) -> Any:  # noqa: ANN401  # a tensor
        assert stop
        new = max_length - context.shape[1]
        rows = [row[row != self.tokenizer.pad_token_id] for row in context]
        requests = [Request(tuple(row.tolist()), new) for row in rows]
        answers = [self.continued(request) for request in requests]
        keeps = [self.kept[request] for request in requests]
        padded = np.zeros((2, len(rows), 2, context.shape[1]), bool)  # (layer, row, head, token)
        for number, keep in enumerate(keeps):
            padded[:, number, :, : keep.shape[-1]] = keep
        lengths = [[len(row) for row in rows]]
        for census in take_censuses(padded, POOL, by="b", axes="lbht", lengths=lengths).values():
            self.note(census)
        return torch.cat([context, torch.tensor(answers)], dim=1)

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch may be absent
    def continued(self, request: Request) -> list[int]:
        tokens = torch.tensor(request.tokens)[None]
        length = tokens.shape[1]
        cache = transformers.DynamicCache()
        said = self.model(tokens, past_key_values=cache)
        keep = kept_of(request)
        self.kept[request] = keep
        for layer, rows in zip(cache.layers, keep, strict=True):
            where = torch.tensor(np.stack([np.flatnonzero(row) for row in rows]))
            where = where[None, :, :, None].expand(-1, -1, -1, layer.keys.shape[-1])
            layer.keys, layer.values = layer.keys.gather(2, where), layer.values.gather(2, where)
        assert cache.get_seq_length() == keep[0, 0].sum() < length
        answer: list[int] = []
        for position in range(length, length + request.new):
            answer.append(int(said.logits[0, -1].argmax()))
            said = self.model(
                torch.tensor([answer[-1:]]),
                past_key_values=cache,
                position_ids=torch.tensor([[position]]),
            )
        return answer


def kept_of(request: Request) -> Keep:
    """Keep runs of about a block, that differ a little between heads, and more of short prompts."""
    rng = np.random.default_rng([request.new, *request.tokens])
    length = len(request.tokens)
    runs = rng.random((2, 1, length)).round(1).repeat(8, axis=-1)[..., :length]
    return policies.lowest_importance(runs + 0.2 * rng.random((2, 2, length)), 8 + length // 5)


def tokenizer() -> Any:  # noqa: ANN401
    """Return one that makes a token of each word."""
    tokenizers = importlib.import_module("tokenizers")
    words = ["[PAD]", "[EOS]", "[UNK]", *(f"w{number}" for number in range(60))]
    vocabulary = {word: number for number, word in enumerate(words)}
    split = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "[UNK]"))
    split.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {f"{kind}_token": f"[{kind.upper()}]" for kind in ("pad", "eos", "unk")}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=split, **special)


def llama() -> Any:  # noqa: ANN401
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        vocab_size=63,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    return transformers.LlamaForCausalLM(config).eval()


LENGTHS = (30, 90, 61, 30, 23, 76, 48)
WORDS = [
    " ".join(f"w{number}" for number in np.random.default_rng(seed).integers(0, 60, length))
    for seed, length in enumerate(LENGTHS)
]


class Ran(NamedTuple):
    """A run of the real model, and what it kept."""

    results: dict[str, Any]
    kept: dict[Request, Keep]
    prompts: dict[str, tuple[int, ...]]

    def censuses(self, prompts: Sequence[str], new: int) -> list[Census]:
        keeps = [self.kept[Request(self.prompts[prompt], new)] for prompt in prompts]
        return [take_census(keep, POOL, axes="lht") for keep in keeps]


@pytest.fixture(scope="module")
def ran() -> Ran:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        words = tokenizer()
        model = Evicting(pretrained=llama(), tokenizer=words, batch_size=3)
        model.kept = {}
        several = [  # the same prompts, with other options; and two filters
            task(prompts=[*WORDS, WORDS[1]]),
            task(
                "longer",
                prompts=WORDS[:4],
                generation_kwargs={"until": ["\n"], "max_gen_toks": 5},
                filter_list=[
                    {"name": "all", "filter": [{"function": "take_first"}]},
                    {
                        "name": "digits",
                        "filter": [
                            {"function": "regex", "regex_pattern": "w(\\d+)"},
                            {"function": "take_first"},
                        ],
                    },
                ],
            ),
        ]
        results = run(model, *several)
    return Ran(results, model.kept, {text: tuple(words.encode(text)) for text in WORDS})


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_that_of_all_documents_together(ran: Ran, name: str) -> None:
    censuses = ran.censuses([*WORDS, WORDS[1]], 3)
    assert column(ran.results, name) == getattr(report(merge(censuses)), name)
    each = [getattr(report(census), name) for census in censuses]
    assert not math.isclose(column(ran.results, name), float(np.mean(each)), rel_tol=1e-3)


def test_each_document_has_its_own_census_whatever_the_model_sorts(ran: Ran) -> None:
    """Prompts of one length, the same prompt twice, and in two tasks with other options."""
    tiny = document_censuses(ran.results["samples"]["tiny"])
    assert tiny == ran.censuses([*WORDS, WORDS[1]], 3)
    assert document_censuses(ran.results["samples"]["longer"]) == ran.censuses(WORDS[:4], 5)
    assert len({*tiny}) == len({census for census in tiny if census}) > 4
    assert column(ran.results, "num_measured_documents") == len(WORDS) + 1
    assert column(ran.results, "num_unmeasured_documents") == 0


def test_accuracy_stands_beside_and_is_that_of_the_text(ran: Ran) -> None:
    said = [sample["resps"][0][0] for sample in ran.results["samples"]["tiny"]]
    assert all(len(text.split()) == 3 for text in said)
    assert column(ran.results, "exact_match") == 0


def test_columns_are_the_same_under_each_filter(ran: Ran) -> None:
    filtered = {sample["filter"]: sample for sample in ran.results["samples"]["longer"]}
    assert re.fullmatch(r"\d+", filtered["digits"]["filtered_resps"][0])
    censuses = ran.censuses(WORDS[:4], 5)
    for by in ("all", "digits"):
        got = column(ran.results, "physical_reclaim", of="longer", by=by)
        assert got == physical_reclaim(merge(censuses))
        assert column(ran.results, "num_measured_documents", of="longer", by=by) == 4


def test_a_task_carries_the_signature_and_the_config_the_report(ran: Ran) -> None:
    tiny, longer = ran.censuses([*WORDS, WORDS[1]], 3), ran.censuses(WORDS[:4], 5)
    assert column(ran.results, "reclaim") == report(merge(tiny)).signature
    told = ran.results["config"]["reclaim"]
    assert Report.from_dict(told["report"]) == report(merge([*tiny, *longer]))
    assert (told["num_measured_answers"], told["num_unmeasured_answers"]) == (12, 0)
    assert ran.results["config"]["model_num_parameters"] > 0


def error_of_ratio(tops: Sequence[int], bottoms: Sequence[int]) -> float:
    """Return the linearised standard error of a ratio of sums."""
    n, ratio = len(tops), sum(tops) / sum(bottoms)
    squares = sum((x - ratio * y) ** 2 for x, y in zip(tops, bottoms, strict=True))
    return math.sqrt(squares / (n - 1) / n) / (sum(bottoms) / n)


def test_the_standard_error_is_that_of_the_ratio_of_sums(ran: Ran) -> None:
    censuses = ran.censuses([*WORDS, WORDS[1]], 3)
    freed = [census.num_freed_blocks for census in censuses]
    blocks = [census.num_blocks for census in censuses]
    assert 10 <= sum(freed) <= sum(blocks) - 10
    got = column(ran.results, "physical_reclaim_stderr")
    assert math.isclose(got, error_of_ratio(freed, blocks), rel_tol=1e-9)
    shares = [x / y for x, y in zip(freed, blocks, strict=True)]
    assert not math.isclose(got, float(np.std(shares, ddof=1)) / math.sqrt(8), rel_tol=1e-2)
    evicted = [census.num_evicted_entries for census in censuses]
    entries = [census.num_entries for census in censuses]
    got = column(ran.results, "logical_saving_stderr")
    assert math.isclose(got, error_of_ratio(evicted, entries), rel_tol=1e-9)


def test_lm_evals_own_table_shows_figure_error_and_signature(ran: Ran) -> None:
    table = utils.make_table(ran.results)
    figure, error = (column(ran.results, f"physical_reclaim{end}") for end in ("", "_stderr"))
    assert re.search(rf"\|physical_reclaim *\|↑ *\| *{figure:.4f}\|± *\|{error:.4f}\|", table)
    assert "_stderr" not in table
    assert column(ran.results, "reclaim") in table.replace("\\|", "|")
    assert ran.results["higher_is_better"]["tiny"] == {"exact_match": True, **FIGURES}


def test_what_lm_eval_saves_is_strict_json_with_the_censuses(ran: Ran, tmp_path: Path) -> None:
    loggers = importlib.import_module("lm_eval.loggers")
    tracker = loggers.EvaluationTracker(output_path=str(tmp_path))
    samples = {name: [dict(sample) for sample in some] for name, some in samples_of(ran).items()}
    without = {name: part for name, part in ran.results.items() if name != "samples"}
    tracker.save_results_aggregated(results=without, samples=samples)
    for name, some in samples.items():
        tracker.save_results_samples(task_name=name, samples=some)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    (path,) = tmp_path.rglob("samples_longer_*.jsonl")
    lines = path.read_text("utf-8").splitlines()
    read = [json.loads(line, parse_constant=refuse) for line in lines]
    assert document_censuses(read) == ran.censuses(WORDS[:4], 5)
    assert read[0]["physical_reclaim"] == physical_reclaim(ran.censuses(WORDS[:1], 5)[0])
    (path,) = tmp_path.rglob("results_*.json")
    saved = json.loads(path.read_text("utf-8"))
    assert column(saved, "physical_reclaim") == column(ran.results, "physical_reclaim")
    told = ran.results["config"]["reclaim"]["report"]
    assert Report.from_dict(saved["config"]["reclaim"]["report"]) == Report.from_dict(told)


def samples_of(ran: Ran) -> dict[str, list[dict[str, Any]]]:
    samples: dict[str, list[dict[str, Any]]] = ran.results["samples"]
    return samples


# --- What a task may be ---


def expected(prompts: Sequence[str] = PROMPTS, times: int = 1) -> Report:
    return report(merge(census_of(prompt) for prompt in prompts for _ in range(times)))


def figures_of(results: Mapping[str, Any], **where: str) -> dict[str, float]:
    return {name: column(results, name, **where) for name in FIGURES}


def same(got: Mapping[str, float], wanted: Report) -> bool:
    pairs = [(value, getattr(wanted, name)) for name, value in got.items()]
    return all(one == two or (math.isnan(one) and math.isnan(two)) for one, two in pairs)


def of_words(_: object, results: Sequence[str]) -> dict[str, float]:
    assert isinstance(results[0], str)
    return {"words": float(len(results[0].split()))}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"doc_to_target": "{{[answer, 'x']}}"},  # several right answers
        {"process_results": of_words, "metric_list": [{"metric": "words", "aggregation": "mean"}]},
        {"filter_list": [{"name": "none", "filter": [{"function": "remove_whitespace"}]}]},
        {"generation_kwargs": {"until": ["\n"], "do_sample": True, "temperature": 1.0}},
    ],
    ids=["plain", "targets", "process_results", "filter", "sampling"],
)
def test_any_task_of_generation_has_the_columns(changes: dict[str, Any]) -> None:
    if "process_results" in changes:
        changes["metric_list"][0]["higher_is_better"] = True
    results = run(Parrot(), task(prompts=PROMPTS, **changes))
    assert same(figures_of(results), expected())
    own = "words" if "process_results" in changes else "exact_match"
    assert column(results, own) == {"words": 1.0}.get(own, 2 / 5)


def test_every_answer_to_a_document_counts() -> None:
    results = run(Parrot(), task(prompts=PROMPTS, repeats=3))
    assert same(figures_of(results), expected(times=3))
    assert column(results, "num_measured_documents") == len(PROMPTS)
    (first, *_) = document_censuses(results["samples"]["tiny"])
    assert first is not None
    assert first.num_tables == 3


def test_a_document_is_measured_if_all_its_answers_are() -> None:
    asked: dict[str, int] = {}

    def keeps(prompt: str) -> Census | None:
        asked[prompt] = asked.get(prompt, 0) + 1
        return None if prompt == PROMPTS[1] and asked[prompt] == 2 else census_of(prompt)

    results = run(Parrot(keeps=keeps), task(prompts=PROMPTS, repeats=3))
    assert document_censuses(results["samples"]["tiny"])[1] is None
    assert column(results, "num_unmeasured_documents") == 1
    assert same(figures_of(results), expected([PROMPTS[0], *PROMPTS[2:]], times=3))


def test_documents_pair_two_runs() -> None:
    other = Parrot(keeps=lambda prompt: take_census([1] * len(prompt.split()), 2))
    ours, theirs = (
        [report(census) for census in document_censuses(found["samples"]["tiny"]) if census]
        for found in (run(Parrot(), task(prompts=PROMPTS)), run(other, task(prompts=PROMPTS)))
    )
    found = paired_differences(ours, theirs)["physical_reclaim"].pooled
    assert found is not None
    assert found.mean == expected().physical_reclaim > 0


def test_limits_and_chosen_samples_are_those_of_lm_eval() -> None:
    results = run(Parrot(), task(prompts=PROMPTS), limit=2)
    assert same(figures_of(results), expected(PROMPTS[:2]))
    results = run(Parrot(), task(prompts=PROMPTS), samples={"tiny": [1, 4]})
    assert same(figures_of(results), expected([PROMPTS[1], PROMPTS[4]]))


def test_likelihoods_are_read_before_anything_is_evicted_so_they_are_not_measured() -> None:
    choices = task(
        prompts=PROMPTS,
        output_type="multiple_choice",
        doc_to_choice=["c", "d", "h"],
        metric_list=[{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    )
    del choices["generation_kwargs"]
    results = run(Parrot(), choices)
    assert column(results, "acc") == 2 / 5
    assert column(results, "num_unmeasured_documents") == len(PROMPTS)
    assert all(map(math.isnan, figures_of(results).values()))


def test_a_group_has_no_mean_of_ratios_and_its_documents_add_up() -> None:
    pooled = noisy_library("lm_eval.config.group").AggMetricConfig(metric="exact_match")
    group = noisy_library("lm_eval.api.group").Group("both", aggregate_metric_list=[pooled])
    for name, prompts in (("one", PROMPTS[:2]), ("two", PROMPTS[2:])):
        group.add(task_manager().load([task(name, prompts)])["tasks"][name])
    results = run(Parrot(), group)
    assert column(results, "exact_match", of="both") == 2 / 5
    assert not {*FIGURES, "reclaim"} & {key.partition(",")[0] for key in results["groups"]["both"]}
    censuses = [
        census
        for name in ("one", "two")
        for census in document_censuses(results["samples"][name])
        if census
    ]
    assert report(merge(censuses)) == expected()


def test_without_the_manager_nothing_changes() -> None:
    results = lm_eval.simple_evaluate(
        Parrot(), tasks=[task(prompts=PROMPTS)], task_manager=task_manager()
    )
    assert column(results, "exact_match") == 2 / 5
    assert "physical_reclaim,none" not in results["results"]["tiny"]
    assert "reclaim" not in results["config"]


def test_the_manager_and_a_task_that_is_handed_over_stay_as_they_were() -> None:
    plain = task_manager()
    handed = plain.load([task(prompts=PROMPTS)])["tasks"]["tiny"]
    for _ in range(2):
        results = run(Parrot(), handed)
        assert same(figures_of(results), expected())
    assert "reclaim" not in handed.aggregation()
    assert "reclaim" in with_reclaim(plain).load([handed])["tasks"]["tiny"].aggregation()
    assert plain.load([handed])["tasks"]["tiny"] is handed


def test_the_own_aggregation_of_a_task_stays_what_it_is() -> None:
    scored = {"metric": "exact_match", "aggregation": max, "higher_is_better": True}
    results = run(Parrot(), task(prompts=PROMPTS, metric_list=[scored]))
    assert column(results, "exact_match") == 1


def test_the_own_standard_error_of_lm_eval_stays_what_it_is() -> None:
    results = run(Parrot(), task(prompts=PROMPTS))
    assert column(results, "exact_match_stderr") == pytest.approx(math.sqrt(0.3 / 5))


# --- Documents without a mask, and figures without an error ---


def test_documents_without_a_mask_are_counted_and_left_out() -> None:
    without = Parrot(keeps=lambda prompt: None if prompt[:3] == "A b" else census_of(prompt))
    results = run(without, task(prompts=PROMPTS))
    assert column(results, "num_measured_documents") == 3
    assert column(results, "num_unmeasured_documents") == 2
    assert same(figures_of(results), expected([PROMPTS[1], PROMPTS[2], PROMPTS[4]]))
    assert column(results, "exact_match") == 2 / 5
    sample = results["samples"]["tiny"][0]
    assert [sample[name] for name in ("reclaim", *FIGURES)] == [None] * 9


def test_a_task_without_any_mask_has_no_figures_and_says_so() -> None:
    results = run(Parrot(keeps=lambda _: None), task(prompts=PROMPTS))
    assert all(map(math.isnan, figures_of(results).values()))
    assert column(results, "reclaim") == "no document has a keep-mask"
    assert column(results, "physical_reclaim_stderr") == "N/A"
    assert column(results, "num_unmeasured_documents") == len(PROMPTS)
    assert "no document has a keep-mask" in utils.make_table(results)


def test_a_second_run_of_the_same_task_forgets_the_first() -> None:
    manager = with_reclaim(task_manager())
    columned = manager.load([task(prompts=PROMPTS)])["tasks"]["tiny"]
    for keeps, measured in ((census_of, 5), (lambda _: None, 0)):
        results = lm_eval.simple_evaluate(
            Parrot(keeps=keeps), tasks=[columned], task_manager=task_manager()
        )
        assert column(results, "num_measured_documents") == measured
        assert math.isnan(column(results, "physical_reclaim")) == (measured == 0)


@pytest.mark.parametrize(
    ("prompts", "why"),
    [(PROMPTS[:1], "one document"), (["a b C"] * 5, "the same of all"), (PROMPTS, "few blocks")],
)
def test_where_there_is_no_t_interval_there_is_no_standard_error(
    prompts: Sequence[str], why: str
) -> None:
    assert why
    results = run(Parrot(), task(prompts=prompts))
    assert column(results, "physical_reclaim_stderr") == "N/A"


def test_censuses_of_two_pools_do_not_add_up() -> None:
    def keeps(prompt: str) -> Census:
        return take_census([1, 0, 0], 2 if prompt[0] == "A" else 3)

    with pytest.raises(ValueError, match="censuses must be of one pool to be added"):
        run(Parrot(keeps=keeps), task(prompts=PROMPTS))


# --- Ranks and caches ---


class Ranked(Parrot):
    """One of two ranks, that run one after the other; what they gather goes through pickles."""

    def __init__(self, rank: int, sent: list[bytes]) -> None:
        super().__init__()
        self._rank, self._world_size, self._sent = rank, 2, sent

    def all_gather(self, _: object) -> Any:  # noqa: ANN401  # a tensor
        return torch.tensor([3, 2])  # five documents

    def gather_object(self, obj: object, dst: int = 0) -> list[Any] | None:
        assert dst == 0
        if self._rank:
            self._sent.append(pickle.dumps(obj))
            return None
        return [obj, pickle.loads(self._sent.pop(0))]  # noqa: S301  # written two lines above


@pytest.mark.parametrize("log_samples", [True, False])
def test_ranks_are_pooled_and_what_pads_them_counts_once(*, log_samples: bool) -> None:
    sent: list[bytes] = []
    ranks = [Ranked(1, sent), Ranked(0, sent)]
    others, results = (run(rank, task(prompts=PROMPTS), log_samples=log_samples) for rank in ranks)
    assert others is None
    assert [rank.num_answered for rank in ranks] == [3, 3]  # one of the two is answered twice
    assert same(figures_of(results), expected())
    assert column(results, "num_measured_documents") == len(PROMPTS)


def test_answers_from_lm_evals_cache_have_their_censuses(tmp_path: Path) -> None:
    models = [Parrot(), Parrot()]
    first, second = (
        run(model, task(prompts=PROMPTS), use_cache=str(tmp_path / "answers")) for model in models
    )
    assert [model.num_answered for model in models] == [len(PROMPTS), 0]
    assert figures_of(first).keys() == FIGURES.keys()
    assert same(figures_of(second), expected())
    assert same(figures_of(first), expected())


# --- Answer, note ---


def test_an_answer_is_a_text_with_a_census() -> None:
    answer = Answer("c", [[1, 0, 0, 0], [0, 1, 0, 0]], 2, axes="ht")
    assert answer == "c"
    assert answer.census == take_census([[1, 0, 0, 0], [0, 1, 0, 0]], 2, axes="ht")
    again = pickle.loads(pickle.dumps(answer))  # noqa: S301  # written here
    assert (type(again), again, again.census) == (Answer, "c", answer.census)
    assert Answer("c", answer.census).census is answer.census
    assert type(answer)("gold").census is None  # lm-eval makes targets of an answer's kind
    assert json.dumps(answer) == '"c"'
    assert type(str(answer)) is str


@pytest.mark.parametrize("text", [None, b"c", 3])
def test_an_answer_is_no_other_thing_than_a_text(text: object) -> None:
    with pytest.raises(TypeError, match=r"^text must be a string; got .*; write what the"):
        Answer(text, [1, 0], 2)


def test_an_answer_refuses_what_a_census_refuses() -> None:
    with pytest.raises(TypeError, match="pool must be given with a keep-mask"):
        Answer("c", [1, 0])
    with pytest.raises(ValueError, match="keep must be"):
        Answer("c", [0, 2], 2)
    with pytest.raises(ValueError, match="must go with a keep-mask; got them with a Census"):
        Answer("c", take_census([1, 0], 2), axes="t")


class Batched(Parrot):
    """Answers in batches, the longest prompts first, and tells its hook, as lm-eval's models do."""

    tells = True

    def told(self, arguments: tuple[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
        return arguments

    def generate_until(self, requests: Sequence[Any], **_: object) -> list[str]:
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i].args[0]))
        for batch in filter(None, (order[:2], order[2:4], order[4:])):
            self.batch([requests[i].args[0] for i in batch])
            for i in batch if self.tells else ():
                self.cache_hook.add_partial("generate_until", self.told(requests[i].args), "c")
        return ["c"] * len(requests)

    def batch(self, prompts: Sequence[str]) -> None:
        raise NotImplementedError


class Noting(ReclaimMixin, Batched):
    def batch(self, prompts: Sequence[str]) -> None:
        for prompt in prompts:
            self.note([letter.isupper() for letter in prompt.split()], 2)


def test_notes_go_to_the_rows_of_their_batch() -> None:
    model = Noting()
    results = run(model, task(prompts=PROMPTS))
    assert document_censuses(results["samples"]["tiny"]) == [*map(census_of, PROMPTS)]
    assert {type(each["arguments"][0][0]) for each in results["samples"]["tiny"]} == {str}
    assert Report.from_dict(results["config"]["reclaim"]["report"]) == expected()
    run(model, task(prompts=PROMPTS))
    told = model.get_model_info()["reclaim"]  # of all that it answered; its base tells nothing
    assert told["num_measured_answers"] == 2 * len(PROMPTS)
    assert Report.from_dict(told["report"]) == expected(times=2)


def test_the_hook_is_told_and_stands_again_after_a_run() -> None:
    told: list[str] = []

    class Hook:
        def add_partial(self, kind: str, arguments: Sequence[Any], text: str) -> None:
            assert (kind, text) == ("generate_until", "c")
            told.append(arguments[0])

    model = Noting()
    hook = model.cache_hook = Hook()
    run(model, task(prompts=PROMPTS))
    assert sorted(told) == sorted(PROMPTS)
    assert model.cache_hook is hook


def test_rows_noted_as_none_and_batches_without_notes_are_not_measured() -> None:
    class Some(Noting):
        def batch(self, prompts: Sequence[str]) -> None:
            if len(prompts) > 1 and prompts[0] == PROMPTS[1]:
                self.note(None)
                self.note(census_of(prompts[1]))

    model = Some()
    assert model.get_model_info()["reclaim"]["report"] is None
    results = run(model, task(prompts=PROMPTS[:2]))
    assert document_censuses(results["samples"]["tiny"]) == [census_of(PROMPTS[0]), None]
    told = model.get_model_info()["reclaim"]
    assert (told["num_measured_answers"], told["num_unmeasured_answers"]) == (1, 1)


def test_a_batch_without_notes_before_one_with_takes_none_of_its_notes() -> None:
    class Late(Noting):
        def batch(self, prompts: Sequence[str]) -> None:
            if PROMPTS[1] not in prompts:  # which is in the first batch
                super().batch(prompts)

    results = run(Late(), task(prompts=PROMPTS))
    short = sorted(PROMPTS, key=len)[:3]
    assert document_censuses(results["samples"]["tiny"]) == [
        census_of(prompt) if prompt in short else None for prompt in PROMPTS
    ]


@pytest.mark.parametrize("number", [1, 3])
def test_notes_that_are_not_as_many_as_rows_are_refused(number: int) -> None:
    class Odd(Noting):
        def batch(self, prompts: Sequence[str]) -> None:
            assert prompts
            for _ in range(number):
                self.note([1, 0], 2)

    with pytest.raises(
        ValueError,
        match=rf"^note must be called once for each row of a batch; got {number} notes and 2 rows "
        r"that Odd told its cache_hook; write note\(None\)",
    ):
        run(Odd(), task(prompts=PROMPTS[:2]))


def test_notes_of_a_model_that_tells_its_hook_nothing_are_refused() -> None:
    class Silent(Noting):
        tells = False

    class Other(Noting):
        def told(self, arguments: tuple[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
            return " ".join(arguments[0].split()), arguments[1]  # which is not what it was given

    with pytest.raises(ValueError, match=r"got 5 notes and 0 rows .* return Answer"):
        run(Silent(), task(prompts=PROMPTS))
    with pytest.raises(ValueError, match=r"got 2 notes and 0 rows .* return Answer"):
        run(Other(), task(prompts=PROMPTS[:2]))


def test_notes_of_two_pools_are_refused_when_they_are_made() -> None:
    class Mixed(Noting):
        def batch(self, prompts: Sequence[str]) -> None:
            for prompt in prompts:
                self.note([1, 0], len(prompt))

    with pytest.raises(ValueError, match="censuses must be of one pool"):
        run(Mixed(), task(prompts=PROMPTS))


def test_a_note_at_another_time_is_refused() -> None:
    with pytest.raises(ValueError, match=r"note must be called while .* the mixin first"):
        Noting().note([1, 0], 2)

    class Failing(Noting):
        def batch(self, prompts: Sequence[str]) -> None:
            raise KeyError(prompts)

    model = Failing()
    hook = model.cache_hook
    with pytest.raises(KeyError):
        run(model, task(prompts=PROMPTS))
    assert model.cache_hook is hook
    with pytest.raises(ValueError, match="note must be called while"):
        model.note([1, 0], 2)


# --- The page ---


def pressed_saving() -> float:
    """Return what half of each prompt is of all that is written: the last answer is not."""
    evicted = sum(length - length // 2 for length in LENGTHS)
    return evicted / sum(length + 2 for length in LENGTHS)


def test_the_script_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy_library("kvpress")
    rows = [{"prompt": prompt, "answer": "w1"} for prompt in WORDS]
    (tmp_path / "documents.json").write_text(json.dumps(rows), "utf-8")
    tiny = task() | {
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"test": str(tmp_path / "documents.json")},
            "cache_dir": str(tmp_path / "cache"),
        },
    }
    del tiny["custom_dataset"]
    (tmp_path / "tiny.yaml").write_text(json.dumps(tiny), "utf-8")  # which is YAML too
    llama().save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    name = "accuracy_and_reclaim.py"
    script = tmp_path / name
    script.write_text(scripts_of(PAGE)[name], "utf-8")
    assert len([*filter(None, script.read_text("utf-8").splitlines())]) <= 25
    arguments = [name, str(tmp_path / "model"), str(tmp_path), "tiny"]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(script), run_name="__main__")
    table = capsys.readouterr().out
    assert re.search(rf"\|logical_saving *\|↑ *\| *{pressed_saving():.4f}\|", table)
    assert re.search(rf"\|num_measured_documents *\| *\| *{len(WORDS)}\|", table)
    assert re.search(r"\|exact_match ", table)
    assert re.search(r"\|B:16[^ ]*rows:4", table.replace("\\|", "|"))  # layers and kv heads


# --- The rest ---


def test_a_manager_must_be_one() -> None:
    with pytest.raises(
        TypeError,
        match=r"^manager must be a lm_eval.tasks.TaskManager; got str 'gsm8k'; write with_reclaim",
    ):
        with_reclaim("gsm8k")


def test_without_lm_eval_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    with pytest.raises(
        ValueError, match=r"the package lm_eval; .* pip install 'kvreclaim\[lm-eval\]'"
    ):
        with_reclaim(None)


@pytest.mark.parametrize(
    ("samples", "kind", "words"),
    [
        ("tiny", TypeError, "samples must be samples of a task; got str 'tiny'; write results"),
        ([1], TypeError, "samples must be samples of a task; got int 1; write results"),
        ([{"doc_id": 0}], ValueError, "must have the column 'reclaim'; got doc_id; evaluate with"),
    ],
)
def test_what_are_no_samples_is_refused(samples: Any, kind: type[Exception], words: str) -> None:  # noqa: ANN401
    with pytest.raises(kind, match=words):
        document_censuses(samples)


def test_no_samples_have_no_censuses() -> None:
    assert document_censuses([]) == []


def test_lm_eval_is_imported_when_a_manager_is_asked_for() -> None:
    code = f"import sys, {adapter.__name__}; print([*map(sys.modules.get, ['lm_eval', 'torch'])])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[None, None]\n"
