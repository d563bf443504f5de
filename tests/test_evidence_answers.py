"""The tables of the evidence: matched points, shapes of masks, and a page that cannot drift."""

from __future__ import annotations

import doctest
import itertools
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
from numpy.typing import NDArray
from optional import library

from benchmarks import pages
from benchmarks.evidence import answers, answers_article, cells, found, masks, matched, shape
from benchmarks.evidence.counts import reclaim_rows
from benchmarks.evidence.settings import BLOCK_SIZES, DATA, FULL_RATIOS, POLICIES, STATES, TABLES
from benchmarks.evidence.tables import (
    AdmissionRow,
    Context,
    QualityRow,
    ReclaimRow,
    to_csv,
)

Mask = NDArray[np.bool_]

PAGE = Path(__file__).parents[1] / "docs" / "evidence.md"
WHOLE = (1.0, 0.0)


@pytest.mark.parametrize(
    "module", [cells, found, matched, shape], ids=lambda module: module.__name__
)
def test_examples(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]  # parametrize gives objects
    assert result.failed == 0
    assert result.attempted > 0


# matched points


def curve_of(*points: tuple[float, float]) -> list[matched.Figures]:
    """Return a curve of (retained, kl), which frees what it does not retain."""
    return [{"retained": r, "kl": kl, "in place all": 1 - r} for r, kl in (WHOLE, *points)]


@pytest.mark.parametrize(
    ("points", "limit", "retained", "reached"),
    [
        ([(0.75, 0.125), (0.5, 0.375)], 0.25, 0.625, True),  # between two measured shares
        ([(0.75, 0.125), (0.5, 0.25), (0.25, 1.25)], 0.25, 0.5, True),  # on a measured share
        ([(0.75, 0.125), (0.5, 0.25)], 0.25, 0.5, False),  # on the last: never above
        ([(0.75, 0.0625), (0.5, 0.125)], 0.25, 0.5, False),  # never crosses
        ([(0.75, 1.0), (0.5, 2.0)], 0.25, 0.9375, True),  # crosses at once: from the whole cache
        ([(0.75, 0.5), (0.5, 0.125), (0.25, 0.125)], 0.25, 0.875, True),  # falls again: no matter
        ([(0.75, -0.25), (0.5, 0.75)], 0.25, 0.625, True),  # gains at first
        ([(0.75, 0.25), (0.75, 0.5)], 0.25, 0.75, True),  # two masks of one share
        ([(0.5, 0.5)], 0.0, 1.0, True),  # nothing may be lost
        ([], 0.25, 1.0, False),
    ],
)
def test_a_curve_is_matched_where_it_first_crosses(
    points: list[tuple[float, float]], limit: float, retained: float, reached: bool
) -> None:
    point = matched.matched(curve_of(*points), "kl", limit)
    assert point.figures["retained"] == retained
    assert point.figures["in place all"] == 1 - retained  # on the same straight line
    assert point.reached is reached


def test_a_matched_point_needs_a_limit_that_the_whole_cache_keeps_and_numbers() -> None:
    with pytest.raises(ValueError, match=r"limit must be at least the kl of the whole cache, 0\.0"):
        matched.matched(curve_of(), "kl", -0.5)
    with pytest.raises(ValueError, match="kl must be a number at every share"):
        matched.matched(curve_of((0.5, math.nan)), "kl", 0.5)


def test_the_pooled_point_is_that_of_the_mean_curve() -> None:
    curves = {
        "a": tuple(curve_of((0.75, 0.25), (0.5, 0.5))),
        "b": tuple(curve_of((0.5, 0.0), (0.25, 0.25))),
    }
    # the mean curve: (1, 0), (0.625, 0.125), (0.375, 0.375)
    point = matched.pooled(curves, "kl", 0.25)
    assert (point.figures["retained"], point.reached) == (0.5, True)


def test_policies_are_compared_on_the_documents_that_both_have() -> None:
    curves = {
        "mine": {
            "a": tuple(curve_of((0.5, 0.5))),  # matched at 0.75
            "b": tuple(curve_of((0.5, 1.0))),  # at 0.875
            "c": tuple(curve_of((0.5, 0.25))),  # at 0.5, never above
        },
        "rival": {"a": tuple(curve_of((0.5, 2.0))), "b": tuple(curve_of((0.0, 1.0)))},
    }
    compared = matched.compared(curves, "kl", 0.25, "rival")
    mine = compared["mine"]
    assert mine.documents == ("a", "b", "c")
    assert mine.num_not_reached == 1
    retained = [0.75, 0.875, 0.5]
    assert mine.figures["retained"].mean == mean(retained)
    assert mine.figures["retained"].sd == pytest.approx(stdev(retained))
    assert mine.figures["retained"].high == 1.0  # a share: the t interval is cut off there
    difference = mine.differences["in place all"]  # 0.25 - 0.0625, 0.125 - 0.25
    assert (difference.mean, difference.num_samples) == (mean([0.1875, -0.125]), 2)
    assert difference.method == "paired t"
    assert (difference.low, difference.high) == (-1.0, 1.0)  # of shares: cut off, too
    assert compared["rival"].differences["retained"].mean == 0.0
    alone = matched.compared({"mine": curves["mine"]}, "kl", 0.25, "rival")["mine"]
    assert not alone.differences


def quality_row(context: Context, policy: str, ratio: float, **changes: float) -> QualityRow:
    values: dict[str, float] = {
        "retained": ratio,
        "loss_full": 2.0,
        "loss_empty": 4.0,
        "loss": 2.0 + (1 - ratio) ** 2,
        "kl": (1 - ratio) ** 2 / 2,
        "top1": 0.9,
        "probe_loss_full": 0.5,
        "probe_loss": 1.0,
    } | changes
    return QualityRow(
        model=context.model,
        document=context.document,
        tokens=context.tokens,
        policy=policy,
        ratio=ratio,
        probes=4,
        probes_right_full=3,
        probes_right=2 if ratio < 0.5 else 3,
        **values,
    )


def test_a_curve_has_each_figure_of_its_tables_and_nothing_at_the_whole_cache() -> None:
    context = Context("smollm2-135m", "a", 64)
    keep = np.random.default_rng(0).random((2, 2, 64)) < 0.5
    rows = reclaim_rows(context, "snapkv", 0.25, keep, (16, 32))
    points = matched.points_of([quality_row(context, "snapkv", 0.25, retained=0.4375)], rows)
    some = points["smollm2-135m", "snapkv"][context]
    reduced, whole = some[0.25], some[matched.WHOLE]
    assert (reduced["retained"], reduced["loss"], reduced["found"]) == (0.4375, 0.5625, 0.5)
    for row in rows:
        if row.block_size == 16:
            assert reduced[f"in place {row.tables}"] == row.physical_reclaim
            assert reduced[f"packed {row.tables}"] == row.packed_reclaim
            assert reduced[f"fewest {row.tables}"] == row.decode_steps_evacuate_rows
            assert reduced[f"in order {row.tables}"] == row.decode_steps_pack_rows
    assert whole == dict.fromkeys(reduced, 0.0) | {"retained": 1.0, "found": 0.75}
    with pytest.raises(ValueError, match="reclaim must have a row for each of quality"):
        matched.points_of([quality_row(context, "h2o", 0.5)], rows)


def test_contexts_of_one_document_are_averaged_first() -> None:
    short, long, other = (Context("m", name, n) for name, n in (("a", 1), ("a", 2), ("b", 1)))
    points: matched.Points = {
        short: {matched.WHOLE: {"retained": 1.0, "kl": 0.0}, 0.5: {"retained": 0.5, "kl": 0.25}},
        long: {matched.WHOLE: {"retained": 1.0, "kl": 0.0}, 0.5: {"retained": 0.25, "kl": 0.75}},
        other: {
            matched.WHOLE: {"retained": 1.0, "kl": 0.0},
            0.25: {"retained": 0.75, "kl": 1.0},  # a share of its own, whatever it was told
            0.5: {"retained": 0.5, "kl": 0.5},
        },
    }
    curves = matched.curves_of(points)
    assert curves["a"] == ({"retained": 1.0, "kl": 0.0}, {"retained": 0.375, "kl": 0.5})
    assert [one["retained"] for one in curves["b"]] == [1.0, 0.75, 0.5]
    del points[long][0.5]
    with pytest.raises(ValueError, match="contexts of a must be measured at the same ratios"):
        matched.curves_of(points)


# shapes of masks, against loops


def runs_of(row: Sequence[bool]) -> list[int]:
    """Return the lengths of the runs of evicted tokens."""
    return [len(list(some)) for kept, some in itertools.groupby(row) if not kept]


def slow_autocorrelation(rows: list[list[bool]], lag: int) -> Fraction:
    values: list[Fraction] = []
    for row in rows:
        evicted = [Fraction(not kept) for kept in row]
        q = sum(evicted, Fraction(0)) / len(row)
        if q in {0, 1}:
            continue
        pairs = zip(evicted, evicted[lag:], strict=False)
        above = sum(((one - q) * (other - q) for one, other in pairs), Fraction(0))
        values.append(above / sum(((one - q) ** 2 for one in evicted), Fraction(0)))
    return sum(values, Fraction(0)) / len(values)


def slow_phi(one: list[bool], other: list[bool]) -> float:
    n = len(one)
    p, q, both = sum(one), sum(other), sum(a and b for a, b in zip(one, other, strict=True))
    return (n * both - p * q) / math.sqrt(p * (n - p) * q * (n - q))


MASKS = [
    np.random.default_rng(seed).random((2, 3, 40)) < density
    for seed, density in enumerate((0.2, 0.5, 0.9))
]


@pytest.mark.parametrize("keep", MASKS)
def test_runs_and_correlations_are_those_of_a_loop(keep: Mask) -> None:
    keep = keep.copy()
    keep[0, 0] = True  # a row without a spread
    rows = shape.rows_of(keep)
    told: list[list[bool]] = rows.tolist()
    lengths = [length for row in told for length in runs_of(row)]
    structure = shape.structure_of(rows)
    assert structure.run == sum(lengths) / len(lengths)
    assert structure.evicted == sum(lengths) / rows.size
    assert structure.independent_run == rows.size / (rows.size - sum(lengths))
    assert structure.correlations == tuple(
        pytest.approx(float(slow_autocorrelation(told, lag)), abs=1e-15) for lag in shape.LAGS
    )


def test_what_is_undefined_of_a_shape_is_nan() -> None:
    kept = shape.structure_of(np.ones((2, 4), np.bool_))
    assert (kept.evicted, kept.independent_run) == (0.0, 1.0)
    assert all(map(math.isnan, (kept.run, *kept.correlations)))
    gone = shape.structure_of(np.zeros((2, 4), np.bool_))
    assert (gone.evicted, gone.run, gone.independent_run) == (1.0, 4.0, math.inf)
    short = np.array([[True, False, True]])
    assert math.isnan(shape.autocorrelation(short, 3))
    assert math.isnan(shape.agreement_of(short[None]).within)


@pytest.mark.parametrize("keep", MASKS)
def test_agreement_is_the_mean_over_pairs_of_rows(keep: Mask) -> None:
    keep = keep.copy()
    keep[1, 2] = False  # correlates with nothing
    rows = {
        (layer, head): keep[layer, head].tolist()
        for layer, head in np.ndindex(2, 3)
        if keep[layer, head].any()
    }
    within: list[float] = []
    across: list[float] = []
    for one, other in itertools.combinations(rows, 2):
        (within if one[0] == other[0] else across).append(slow_phi(rows[one], rows[other]))
    agreement = shape.agreement_of(keep)
    assert len(within) + len(across) == 10
    assert agreement.within == pytest.approx(mean(within), abs=1e-14)
    assert agreement.across == pytest.approx(mean(across), abs=1e-14)


def keep_of(policy: str, tokens: int, kept: int, rng: np.random.Generator) -> Mask:
    """Return a mask (2 layers, 2 kv heads) that has the policy's window; the rest is random."""
    recent = {"snapkv": 64, "ada_kv": 64, "h2o": kept // 2}.get(policy, 0)
    keep = np.zeros((2, 2, tokens), np.bool_)
    keep[..., tokens - recent :] = True
    for place, (layer, head) in enumerate(np.ndindex(2, 2)):
        more = kept - recent + (8 * (-1) ** place if policy == "ada_kv" else 0)
        keep[layer, head, rng.permutation(tokens - recent)[:more]] = True
    return keep


def slow_fixed(older: int, evicted: int, size: int) -> Fraction:
    """Return the chance that a block of older tokens has none that stays."""
    chance = Fraction(1)
    for taken in range(size):
        chance *= Fraction(max(0, evicted - taken), older - taken)
    return chance


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize("policy", ["h2o", "snapkv", "ada_kv", "knorm", "chunk_kv_16"])
def test_closed_forms_are_the_means_of_their_formulas_over_rows(policy: str, size: int) -> None:
    tokens, kept = 256, 128
    keep = keep_of(
        "snapkv" if policy == "chunk_kv_16" else policy, tokens, kept, np.random.default_rng(1)
    )
    recent = {"h2o": 64, "knorm": 0}.get(policy, 64)
    cluster = {"snapkv": 5, "ada_kv": 5, "chunk_kv_16": 16}.get(policy)
    expected: list[tuple[float, float, float, float]] = []
    for row in shape.rows_of(keep).tolist():
        dead = row.count(False)
        q, older = dead / tokens, 1 - recent / tokens
        fixed = slow_fixed(tokens - recent, dead, size) * ((tokens - recent) // size)
        expected.append(
            (
                q**size,
                older * (q / older) ** size
                if policy == "ada_kv"
                else float(fixed / (tokens // size)),
                q * (1 - len(runs_of(row)) / dead) ** (size - 1),
                math.nan if cluster is None else older * (q / older) ** (1 + (size - 1) / cluster),
            )
        )
    forms = shape.closed_forms(policy, keep, size)
    for value, some in zip(forms, zip(*expected, strict=True), strict=True):
        assert value == pytest.approx(mean(some), rel=1e-12, nan_ok=True)


def test_the_closed_form_of_a_window_is_its_mask() -> None:
    keep = np.zeros((1, 2, 100), np.bool_)
    keep[..., :4] = keep[..., 60:] = True  # blocks of 16: of seven, 16 to 31 and 32 to 47 are dead
    forms = shape.closed_forms("streaming_llm", keep, 16)
    assert forms.outside == 2 / 7
    whole = shape.closed_forms("random", np.ones((1, 1, 32), np.bool_), 16)
    assert whole[:3] == (0.0, 0.0, 0.0)


def test_rows_without_their_window_are_refused() -> None:
    keep = np.ones((1, 1, 128), np.bool_)
    keep[..., 100] = False
    with pytest.raises(ValueError, match="snapkv must keep the last 64 tokens of every row"):
        shape.older_than_window("snapkv", shape.rows_of(keep))
    assert shape.older_than_window("knorm", shape.rows_of(keep)).shape == (1, 128)
    assert shape.older_than_window("snapkv", shape.rows_of(keep[..., :100])).shape == (1, 36)


@pytest.mark.parametrize("tables", TABLES)
def test_losses_add_up_to_what_was_evicted(tables: str) -> None:
    keep = np.random.default_rng(2).random((2, 2, 64)) < 0.3
    keep[..., 16:40] = False
    outer = {"head": (2, 2), "layer": (2,), "all": ()}[tables]
    reclaimed = granularity = sharing = 0
    for table in np.ndindex(outer):
        some = keep[table].reshape(-1, 64)
        for block in range(4):
            part = some[:, 16 * block : 16 * block + 16]
            for slot in range(16):
                if part[:, slot].any():
                    sharing += int((~part[:, slot]).sum())
                elif part.any():
                    granularity += len(some)
                else:
                    reclaimed += len(some)
    losses = shape.losses_of(shape.censuses(keep, 16)[tables])
    assert losses == (reclaimed / 256, granularity / 256, sharing / 256)
    assert sum(losses) == pytest.approx(1 - keep.mean())


# tables of a small folder of data

CONTEXTS = (
    Context("smollm2-135m", "a", 256),
    Context("smollm2-135m", "a", 320),
    Context("smollm2-135m", "b", 256),
    Context("gemma3-270m", "a", 256),
)
MEASURED = ("streaming_llm", "snapkv", "h2o", "whole_block_all")


def small_mask(policy: str, ratio: float, context: Context) -> Mask:
    tokens, kept = context.tokens, int(ratio * context.tokens)
    if policy == "streaming_llm":
        keep = np.zeros((2, 2, tokens), np.bool_)
        keep[..., :4] = keep[..., tokens - kept + 4 :] = True
        return keep
    if policy == "whole_block_all":
        keep = np.zeros((2, 2, tokens), np.bool_)
        keep[..., tokens - kept :] = True
        return keep
    return keep_of(policy, tokens, kept, np.random.default_rng(tokens))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("data")
    quality: list[QualityRow] = []
    reclaim: list[ReclaimRow] = []
    for context in CONTEXTS:
        keeps = {
            (policy, ratio): small_mask(policy, ratio, context)
            for policy in MEASURED
            for ratio in FULL_RATIOS
        }
        for (policy, ratio), keep in keeps.items():
            loss = 2.0 + (0.25 if policy == "h2o" else 0.125) * (1 - ratio)
            quality.append(
                quality_row(
                    context, policy, ratio, retained=float(keep.mean()), loss=loss, kl=loss - 2
                )
            )
            reclaim += reclaim_rows(context, policy, ratio, keep, BLOCK_SIZES)
        masks.save(data / "masks" / f"{context.stem}.npz", keeps, [0, 1])
    admission = [
        AdmissionRow(
            model=model,
            policy=policy,
            ratio=0.5,
            tables=tables,
            block_size=16,
            state=state,
            pool_blocks=1234,
            free_blocks=100,
            free_blocks_vllm=100 if policy != "h2o" or state == "packed" else 99,
            admission_count=3,
            admitted_vllm=3,
        )
        for model in ("smollm2-135m", "gemma3-270m")
        for policy in MEASURED
        for tables in TABLES
        for state in STATES
    ]
    (data / "quality.csv").write_text(to_csv(quality), "utf-8")
    (data / "reclaim.csv").write_text(to_csv(reclaim), "utf-8")
    (data / "admission.csv").write_text(to_csv(admission), "utf-8")
    return data


def table_of(text: str, title: str) -> list[list[str]]:
    """Return the cells of one table, the header first."""
    lines = text.partition(f"### {title}\n")[2].partition("\n### ")[0].splitlines()
    return [line[2:-2].split(" | ") for line in lines if line.startswith("|")]


def column(table: list[list[str]], name: str) -> list[str]:
    place = table[0].index(name)
    return [row[place] for row in table[2:]]


@pytest.fixture(scope="module")
def texts(folder: Path) -> dict[str, str]:
    return answers.texts(folder)


def names_of_tables() -> list[str]:
    return [f"{answers.COMMAND}, {section}" for section in answers.SECTIONS]


def text_of(texts: dict[str, str], section: str) -> str:
    return texts[f"{answers.COMMAND}, {section}"]


def test_the_headline_has_means_over_documents(texts: dict[str, str]) -> None:
    table = table_of(text_of(texts, "headline"), "One half retained, SmolLM2-135M")
    assert column(table, "policy") == [
        "whole cache",
        *(cells.NAMES[policy] for policy in MEASURED),
    ]
    assert column(table, "loss")[1:] == ["+0.062", "+0.062", "+0.125", "+0.062"]  # no spread
    assert column(table, "keys") == ["9 of 12"] * 5
    # tokens 4 to 131 of 256 are dead, blocks 1 to 7 of 16; of 320, blocks 1 to 9 of 20
    freed = mean([mean([7 / 16, 9 / 20]), 7 / 16])
    assert column(table, "one for all")[1] == f"{freed:.3f} / 0.500"
    assert column(table, "one for all")[4] == "0.500 / 0.500"
    assert column(table, "copy, fewest")[4] == "0.000"


def test_the_matched_table_interpolates_and_counts_what_is_not_reached(
    texts: dict[str, str],
) -> None:
    text = text_of(texts, "matched quality")
    table = table_of(text, "At loss +0.05 nats, SmolLM2-135M")
    assert column(table, "retained") == ["0.600", "0.600", "0.800", "0.600"]  # 1 - 0.05 / slope
    assert column(table, "not reached") == ["0 of 2"] * 4
    assert column(table, "keys") == ["0.750"] * 4
    distance = table_of(
        text, "Distance from whole blocks, in common, at loss +0.05 nats, SmolLM2-135M"
    )
    assert column(distance, "policy") == ["StreamingLLM", "SnapKV", "H2O"]
    assert column(distance, "retained")[2] == "+0.200"
    pooled = table_of(text, "At +0.05 nats of the mean curve, Gemma 3 270M")
    assert column(pooled, "retained, KL") == ["0.600", "0.600", "0.800", "0.600"]
    assert column(pooled, "reclaim, KL")[3] == "0.400 / 0.400"


def test_every_block_size_layout_and_context_has_its_cell(texts: dict[str, str]) -> None:
    sizes = table_of(text_of(texts, "block sizes"), "Block sizes, per head, SmolLM2-135M")
    assert sizes[0] == ["policy", *(f"B = {size}" for size in BLOCK_SIZES)]
    freed = mean([mean([7 / 16, 9 / 20]), 7 / 16])
    assert column(sizes, "B = 16")[0] == f"{freed:.3f} / 0.500"
    sharing = table_of(text_of(texts, "sharing"), "Where the savings went, SmolLM2-135M")
    for row in sharing[2:]:
        evicted = float(row[1])
        for start, num in ((2, 2), (4, 3), (7, 3)):
            parts = [float(cell.partition(" / ")[0]) for cell in row[start : start + num]]
            assert sum(parts) == pytest.approx(evicted, abs=0.002)  # each is rounded
    by_context = table_of(text_of(texts, "documents"), "Loss, context by context, SmolLM2-135M")
    assert by_context[0] == ["policy", "a, 256", "a, 320", "b, 256"]
    assert by_context[4][1:] == ["+0.125"] * 3


def test_shapes_are_shown_of_what_is_stored(texts: dict[str, str]) -> None:
    text = text_of(texts, "shape")
    table = table_of(text, "Runs, correlations and agreement, SmolLM2-135M")
    # half of 256 or of 320 tokens in one run; documents weigh alike
    assert column(table, "run")[3] == f"{mean([mean([128, 160]), 128]):.1f}"
    assert column(table, "phi, layers")[0] == "1.000"
    forms = table_of(text, "Closed forms, Gemma 3 270M")
    words = [row[:2] for row in forms[2:]]
    assert words[:4] == [["StreamingLLM", "measured"], *(["", each] for each in FORMS[:3])]
    assert ["", FORMS[3]] in words[4:9]  # SnapKV's
    assert forms[2][2:] == forms[4][2:]  # a window is its own closed form


FORMS = (
    "each token by itself, q^B",
    "scatter outside of the window",
    "runs of the same mean length",
    "clusters of kernel or chunk",
)


def test_differences_from_the_real_allocator_are_counted_and_shown(texts: dict[str, str]) -> None:
    text = text_of(texts, "allocator")
    assert "In 6 of all 48 rows of admission.csv" in text  # two models, three layouts, in place
    table = table_of(text, "vLLM's pool, SmolLM2-135M")
    assert column(table, "one for all, in place: free") == ["100 / 100"] * 2 + ["100 / 99"] + [
        "100 / 100"
    ]
    assert "1,234 blocks where one table is for all" in text


def test_the_article_stands_beside_the_least_and_the_most_of_a_document(
    texts: dict[str, str],
) -> None:
    table = table_of(text_of(texts, "article"), "The article beside real masks")
    first = table[2]
    assert first[:2] == ["reclaim of StreamingLLM, B = 16", "0.47 ± 0.02"]
    # of 16 and of 20 blocks, 7 and 9 are free: document a is the mean of two contexts
    a, b = mean([7 / 16, 9 / 20]), 7 / 16
    assert first[2] == f"{mean([a, b]):.3f} ({min(a, b):.3f} to {max(a, b):.3f})"
    assert column(table, "Gemma 3 270M, per head")[10:12] == ["", ""]  # random was not measured
    moved = next(row for row in table if row[0] == "survivors moved, StreamingLLM")
    assert moved[2] == "0.030 (0.028 to 0.031)"  # 4 of 128, in one context 4 of 160


def test_slots_per_move_are_those_of_the_blocks_that_moves_free() -> None:
    context = CONTEXTS[0]  # 4 sinks move, into the 4 holes of the block that the window begins in
    (row,) = reclaim_rows(
        context, "streaming_llm", 0.5, small_mask("streaming_llm", 0.5, context)[:1, :1], [16]
    )[:1]
    of = {printed.words: printed.of for printed in answers_article.FIGURES}
    assert of["slots freed per move, random"](row) == 16 / 4
    assert of["survivors moved, StreamingLLM"](row) == 4 / 128


def test_data_that_lack_a_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"quality\.csv"):
        answers.texts(tmp_path)


def test_a_page_gets_all_tables_between_its_marks(
    folder: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    names = names_of_tables()
    page.write_text("".join(f"{pages.begin(name)}{pages.END}\n" for name in names), "utf-8")
    answers.write_into(page, folder)
    assert {name: pages.between(page, name) for name in names} == texts
    page.write_text(pages.begin(names[0]) + pages.END, "utf-8")
    with pytest.raises(ValueError, match="must hold the lines"):
        answers.write_into(page, folder)


def test_figures_draw_what_the_tables_say(folder: Path, tmp_path: Path) -> None:
    library("matplotlib")
    from benchmarks.evidence import figures

    first = figures.draw(folder, tmp_path / "one")
    again = figures.draw(folder, tmp_path / "two")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert all(found.digest(folder) in path.read_text("utf-8") for path in first)
    evidence = found.read(folder)
    lines = {
        line.get_label(): line.get_xydata().tolist()  # type: ignore[union-attr]  # an array of points
        for line in figures.quality_and_reclaim(evidence).axes[0].get_lines()
    }
    assert set(lines) == set(MEASURED)
    assert lines["whole_block_all"] == [
        [pytest.approx(0.125 * (1 - ratio)), pytest.approx(1 - ratio)] for ratio in FULL_RATIOS
    ]
    sizes = figures.over_block_sizes(evidence).axes[1].get_lines()[0]
    assert list(sizes.get_xdata()) == list(BLOCK_SIZES)  # type: ignore[arg-type]  # numbers
    packed = figures.over_block_sizes(evidence).axes[2].get_lines()[0]
    assert list(packed.get_ydata())[2] == 0.5  # type: ignore[arg-type]  # numbers
    bars = figures.where_savings_went(evidence).axes[0].patches
    assert len(bars) == 3 * len(MEASURED)
    assert bars[3].get_width() == pytest.approx(0.5)  # type: ignore[attr-defined]  # a Rectangle


def test_looks_tell_policies_apart_in_grey() -> None:
    library("matplotlib")
    from benchmarks.evidence import figures

    looks = [(look.marker, look.dashes) for look in figures.LOOKS.values()]
    assert len(set(looks)) == len(POLICIES)


def test_every_policy_and_layout_has_a_name() -> None:
    assert tuple(cells.NAMES) == POLICIES
    assert tuple(cells.LAYOUTS) == tuple(TABLES)


# the page


def test_the_page_has_the_marks_of_every_table() -> None:
    for name in names_of_tables():
        pages.between(PAGE, name)


def test_the_tables_of_the_page_are_those_of_the_data() -> None:
    assert {name: pages.between(PAGE, name) for name in names_of_tables()} == answers.texts(DATA)


def test_the_figures_of_the_page_are_those_of_the_data() -> None:
    linked = re.findall(r"\]\((evidence/[\w-]+\.svg)\)", PAGE.read_text("utf-8"))
    assert len(linked) == 3
    for name in linked:
        assert found.digest(DATA) in (PAGE.parent / name).read_text("utf-8"), name
