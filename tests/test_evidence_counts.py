"""The evidence's tables of counts: their files, each column a second time, and the committed ones.

What is committed in benchmarks/evidence/data is recomputed from the masks that lie beside it.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import oracle
import pytest
from allocators import loaders
from hypothesis import given
from hypothesis import strategies as st
from optional import IN_CI

from benchmarks.evidence import allocator, counts, masks, tables, texts
from benchmarks.evidence.masks import Keeps, Mask
from benchmarks.evidence.settings import (
    BLOCK_SIZE,
    BLOCK_SIZES,
    COMPACTORS,
    DATA,
    FULL_RATIOS,
    OURS,
    POLICIES,
    PUBLISHED,
    RATIOS,
    STATES,
    TABLES,
)
from benchmarks.evidence.tables import (
    AdmissionRow,
    Context,
    QualityRow,
    ReclaimRow,
    columns,
    from_csv,
    to_csv,
)

CONTEXT = Context("model", "document", 100)

# --- Settings and files ---


def test_policies_are_those_published_and_ours() -> None:
    assert POLICIES == PUBLISHED + OURS
    assert len({*POLICIES}) == 16
    assert (POLICIES[0], POLICIES[-1]) == ("streaming_llm", "evict_for_blocks_75")
    assert {*FULL_RATIOS} < {*RATIOS}
    assert BLOCK_SIZE in BLOCK_SIZES


def test_columns_are_those_agreed() -> None:
    assert ",".join(columns(QualityRow)) == (
        "model,document,tokens,policy,ratio,retained,loss_full,loss_empty,loss,kl,top1,"
        "probe_loss_full,probe_loss,probes,probes_right_full,probes_right"
    )
    assert ",".join(columns(ReclaimRow)) == (
        "model,document,tokens,policy,ratio,tables,block_size,blocks,logical_saving,"
        "dead_in_all_rows,physical_reclaim,packed_reclaim,fragmentation,memory_waste,reclaim_min,"
        "reclaim_max,"
        + ",".join(f"moved_per_block_{name},decode_steps_{name}" for name in COMPACTORS)
    )
    assert ",".join(columns(AdmissionRow)) == (
        "model,policy,ratio,tables,block_size,state,pool_blocks,free_blocks,free_blocks_vllm,"
        "admission_count,admitted_vllm"
    )


def quality(**changes: Any) -> QualityRow:  # noqa: ANN401  # any field's value may come
    fields: dict[str, Any] = {
        "model": "model",
        "document": "document",
        "tokens": 100,
        "policy": "h2o",
        "ratio": 0.5,
        "retained": 0.5,
        "loss_full": 2.5,
        "loss_empty": 4.0,
        "loss": 2.75,
        "kl": 0.0123456789,
        "top1": 1.0,
        "probe_loss_full": math.nan,
        "probe_loss": math.nan,
        "probes": 0,
        "probes_right_full": 0,
        "probes_right": 0,
    }
    return QualityRow(**(fields | changes))


LINE = "model,document,100,h2o,0.5,0.5,2.5,4,2.75,0.0123457,1,,,0,0,0"


def test_a_row_is_written_with_six_digits_and_undefined_as_nothing() -> None:
    assert to_csv([quality()]).splitlines() == [",".join(columns(QualityRow)), LINE]


def test_a_file_comes_back_as_it_was_written() -> None:
    keep = np.random.default_rng(0).random((3, 2, 100)) < 0.1
    rows = counts.reclaim_rows(CONTEXT, "h2o", 0.5, keep, BLOCK_SIZES)
    assert any(math.isnan(row.moved_per_block_evacuate) for row in rows)
    text = to_csv(rows)
    back = from_csv(ReclaimRow, text, name="reclaim.csv")
    assert to_csv(back) == text
    for row, read in zip(rows, back, strict=True):
        for name, value in attrs.asdict(row).items():
            got = getattr(read, name)
            assert type(got) is type(value)
            if isinstance(value, float):
                assert got == pytest.approx(value, rel=5e-6, abs=0, nan_ok=True)
            else:
                assert got == value


def test_rows_are_sorted_as_the_settings_are() -> None:
    rows = [
        quality(model=model, document=document, tokens=tokens, policy=policy, ratio=ratio)
        for model in ("a", "b")
        for document in ("a", "b")
        for tokens in (900, 1000)
        for policy in (*POLICIES[:4], "another")
        for ratio in RATIOS
    ]
    expected = to_csv(rows)
    read = from_csv(QualityRow, expected, name="")
    assert [row.KEY for row in read] == [row.KEY for row in rows]
    assert [tables._key(row) for row in read] == [tables._key(row) for row in rows]
    np.random.default_rng(0).shuffle(rows)
    assert to_csv(rows) == expected


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([], "rows must hold at least one row; got none"),
        (
            [quality(), quality(loss=1.0)],
            r"rows must differ in model, .*, ratio; got \('model', .* twi",
        ),
        ([quality(kl=math.inf)], "rows must hold finite numbers, or nan; got inf"),
    ],
)
def test_what_is_no_table_is_not_written(rows: list[QualityRow], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        to_csv(rows)


HEADER = ",".join(columns(QualityRow))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "q.csv, line 1, column 1: must be 'model'; got none"),
        (HEADER.replace("kl", "KL"), "q.csv, line 1, column 10: must be 'kl'; got 'KL'"),
        (f"{HEADER},more", "q.csv, line 1, column 17: must be none; got 'more'"),
        (
            HEADER.removesuffix(",probes_right"),
            "line 1, column 16: must be 'probes_right'; got none",
        ),
        (f"{HEADER}\n{LINE},1", "q.csv, line 2: must have 16 cells; got 17"),
        (f"{HEADER}\n{LINE}\n\n", "q.csv, line 3: must have 16 cells; got 0"),
        (
            f"{HEADER}\n{LINE}\n{LINE.replace('2.75', '3')}",
            "q.csv, line 3: must differ in model, .*, policy, ratio; got those of line 2",
        ),
    ],
)
def test_a_wrong_line_is_named(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        from_csv(QualityRow, text, name="q.csv")


@pytest.mark.parametrize(
    ("right", "wrong", "column", "rule"),
    [
        ("100", "1e2", "tokens", "an integer"),
        ("100", "", "tokens", "an integer"),
        ("100", " 100", "tokens", "an integer"),
        ("100", "1_00", "tokens", "an integer"),
        ("0.0123457", "nan", "kl", "a number of at most 6 significant digits, or empty"),
        ("0.0123457", "inf", "kl", "a number of at most 6 significant digits, or empty"),
        ("0.0123457", "0.01234567", "kl", "a number of at most 6 significant digits, or empty"),
        ("0.0123457", "small", "kl", "a number of at most 6 significant digits, or empty"),
        ("h2o", "", "policy", "a word"),
    ],
)
def test_a_wrong_cell_is_named(right: str, wrong: str, column: str, rule: str) -> None:
    text = f"{HEADER}\n{LINE}\n{LINE.replace(right, wrong)}\n"
    error = f"^q.csv, line 3, column '{column}': must be {rule}; got '{wrong}'.$"
    with pytest.raises(ValueError, match=error):
        from_csv(QualityRow, text, name="q.csv")


@pytest.mark.parametrize("stem", ["a__b", "a__b__c", "a__b__1__2", "__b__1", "a__b__-1"])
def test_other_names_of_files_are_refused(stem: str) -> None:
    with pytest.raises(ValueError, match="stem must be MODEL__DOCUMENT__TOKENS; got "):
        Context.of_stem(stem)


def test_a_context_is_its_file_name() -> None:
    assert Context("smollm2-135m", "the_book", 2048).stem == "smollm2-135m__the_book__2048"
    assert Context.of_stem("smollm2-135m__the_book__2048") == Context(
        "smollm2-135m", "the_book", 2048
    )


# --- Files of masks ---


def some_masks(tokens: int = 21) -> dict[tuple[str, float], Mask]:
    rng = np.random.default_rng(tokens)
    return {
        (policy, ratio): rng.random((3, 2, tokens)) < ratio
        for policy in ("tova", "h2o")
        for ratio in FULL_RATIOS
    }


@pytest.mark.parametrize("tokens", [8, 21])
def test_masks_come_back(tmp_path: Path, tokens: int) -> None:
    path = tmp_path / "new" / "a__b__1.npz"
    keeps = some_masks(tokens)
    masks.save(path, keeps, (5, 11, 17))
    back = masks.load(path)
    assert {*back} == {*keeps}
    for key, keep in keeps.items():
        assert back[key].dtype == np.bool_
        assert np.array_equal(back[key], keep)
    assert masks.load_layers(path) == (5, 11, 17)
    with np.load(path) as saved:
        bits = saved["tova|0.25"]
        assert saved["shape"].tolist() == [3, 2, tokens]
    assert np.array_equal(np.unpackbits(bits, axis=-1)[..., :tokens], keeps["tova", 0.25])


def test_the_same_masks_make_the_same_bytes(tmp_path: Path) -> None:
    keeps = some_masks()
    masks.save(tmp_path / "a.npz", keeps, (0, 1, 2))
    masks.save(tmp_path / "b.npz", dict(reversed(keeps.items())), (0, 1, 2))
    data = (tmp_path / "a.npz").read_bytes()
    assert (tmp_path / "b.npz").read_bytes() == data
    assert data[10:14] == b"\x00\x00\x21\x00"  # midnight, the first day of 1980


@pytest.mark.parametrize(
    ("keeps", "layers", "error"),
    [
        ({}, (0,), "keeps must be masks of one shape; got none"),
        (
            {("a", 0.5): np.ones((1, 1, 8), bool), ("b", 0.5): np.ones((1, 1, 9), bool)},
            (0,),
            "one shape",
        ),
        ({("a", 0.5): np.ones((2, 1, 8), bool)}, (0,), "of 1 layers; got shape"),
        ({("a", 0.5): np.ones((2, 8), bool)}, (0, 1), "of 2 layers; got shape"),
    ],
)
def test_what_are_no_masks_of_a_context_is_not_written(
    tmp_path: Path, keeps: dict[tuple[str, float], Mask], layers: tuple[int, ...], error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        masks.save(tmp_path / "a.npz", keeps, layers)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"shape": None}, "must hold 'shape', of int64; got "),
        ({"layers": np.zeros(3, np.int32)}, "must hold 'layers', of int64; got "),
        ({"h2o": np.zeros((3, 2, 3), np.uint8)}, "'h2o': must be POLICY|RATIO"),
        (
            {"h2o|0.5": np.zeros((3, 2, 4), np.uint8)},
            r"of uint8 and shape \(3, 2, 3\); got uint8 and",
        ),
        (
            {"h2o|0.5": np.zeros((3, 2, 3), np.bool_)},
            r"of uint8 and shape \(3, 2, 3\); got bool and",
        ),
        (
            {"h2o|0.5": np.ones((3, 2, 3), np.uint8)},
            "'h2o|0.5': must be zeros behind the 21 tokens",
        ),
    ],
)
def test_a_file_that_was_not_written_here_is_refused(
    tmp_path: Path, change: dict[str, Any], error: str
) -> None:
    path = tmp_path / "a__b__21.npz"
    masks.save(path, some_masks(), (0, 1, 2))
    with np.load(path) as saved:
        arrays = {**saved} | change
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(ValueError, match=error.replace("|", r"\|")) as caught:
        masks.load(path)
    assert str(path) in str(caught.value)


def test_contexts_of_a_model_come_in_the_order_of_their_files(tmp_path: Path) -> None:
    for stem, tokens in (("m__b__8", 8), ("m__a__21", 21), ("n__a__9", 9)):
        masks.save(tmp_path / f"{stem}.npz", some_masks(tokens), (0, 1, 2))
    models = masks.load_models(tmp_path)
    assert {*models} == {"m", "n"}
    assert [keep.shape[-1] for keep in models["m"]["h2o", 0.5]] == [21, 8]
    assert np.array_equal(models["m"]["tova", 0.25][1], some_masks(8)["tova", 0.25])
    fewer = dict(itertools.islice(some_masks(7).items(), 5))
    masks.save(tmp_path / "m__c__7.npz", fewer, (0, 1, 2))
    with pytest.raises(
        ValueError, match=r"m__c__7\.npz: must have .* differ in \[\('h2o', 0\.25\)\]"
    ):
        masks.load_models(tmp_path)


# --- Every column of reclaim.csv a second time ---


@st.composite
def some_keeps(draw: st.DrawFn, tokens: st.SearchStrategy[int]) -> Mask:
    """Scattered tokens, or runs of them; rows alike or not; all, or none."""
    shape = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(tokens)
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    run = draw(st.sampled_from([1, 3, 8, 20]))
    density = draw(st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.9, 1.0]))
    alike = draw(st.booleans())
    drawn = rng.random((*((1, 1) if alike else shape[:2]), -(-shape[2] // run))) < density
    runs = np.repeat(drawn, run, axis=-1)[..., : shape[2]]
    keep: Mask = np.broadcast_to(runs, shape) ^ (
        rng.random(shape) < draw(st.sampled_from([0, 0.03]))
    )
    return keep


def number(ratio: Fraction | None) -> float:
    return math.nan if ratio is None else float(ratio)


def rows_of_tables(keep: Mask, name: str) -> list[list[list[bool]]]:
    """Return each table: its rows, each a list of its tokens."""
    layers: list[list[list[bool]]] = keep.tolist()
    if name == "all":
        return [[row for layer in layers for row in layer]]
    if name == "layer":
        return layers
    return [[row] for layer in layers for row in layer]


def slow_row(keep: Mask, name: str, size: int) -> dict[str, Any]:
    """Return what the row must hold, by loops."""
    nested = keep.tolist()
    found = {
        compactor: oracle.census(
            nested, oracle.Pool(size, shared_axes=TABLES[name], compactor=compactor), "lht"
        )
        for compactor in COMPACTORS
    }
    first = found["evacuate"]
    dead = slots = 0
    each = []
    for rows in rows_of_tables(keep, name):
        lives = [any(row[token] for row in rows) for token in range(len(rows[0]))]
        slots += len(lives)
        dead += lives.count(False)
        blocks = [lives[start : start + size] for start in range(0, len(lives), size)]
        each.append(Fraction(sum(not any(block) for block in blocks), len(blocks)))
    row = {
        "tables": name,
        "block_size": size,
        "blocks": sum(first["counts"]),
        "logical_saving": number(oracle.logical_saving(first)),
        "dead_in_all_rows": dead / slots,
        "physical_reclaim": number(oracle.physical_reclaim(first)),
        "packed_reclaim": number(oracle.packed_reclaim(first)),
        "fragmentation": number(oracle.fragmentation(first)),
        "memory_waste": number(oracle.memory_waste(first)),
        "reclaim_min": float(min(each)),
        "reclaim_max": float(max(each)),
    }
    for compactor, census in found.items():
        row[f"moved_per_block_{compactor}"] = number(oracle.moved_tokens_per_block(census))
        row[f"decode_steps_{compactor}"] = number(oracle.decode_steps(census))
    return row


@given(
    some_keeps(st.integers(1, 50)),
    st.lists(st.sampled_from([2, 4, 5, 8, 16]), min_size=1, max_size=2),
)
def test_each_column_is_what_loops_count(keep: Mask, sizes: list[int]) -> None:
    sizes = sorted({*sizes})
    rows = counts.reclaim_rows(CONTEXT, "h2o", 0.5, keep, sizes)
    named = {**CONTEXT._asdict(), "policy": "h2o", "ratio": 0.5}
    expected = [named | slow_row(keep, name, size) for name in TABLES for size in sizes]
    for row, slow in zip(rows, expected, strict=True):
        # As text, in which nan is nan.
        assert {name: repr(value) for name, value in attrs.asdict(row).items()} == {
            name: repr(slow[name]) for name in columns(ReclaimRow)
        }


def test_two_heads_that_disagree_lose_all_by_sharing() -> None:
    """The even blocks of one head are dead, and the odd ones of the other."""
    keep = np.zeros((1, 2, 64), np.bool_)
    keep[0, 0, :32] = keep[0, 1, 32:] = True
    head, layer, _ = counts.reclaim_rows(CONTEXT, "h2o", 0.5, keep, [16])
    assert (head.physical_reclaim, head.packed_reclaim, head.dead_in_all_rows) == (0.5, 0.5, 0.5)
    assert (layer.physical_reclaim, layer.packed_reclaim, layer.dead_in_all_rows) == (0, 0.5, 0)
    assert (layer.fragmentation, layer.memory_waste) == (0, 0.5)
    assert (layer.blocks, layer.moved_per_block_pack_rows, layer.decode_steps_pack_rows) == (
        4,
        8,
        1,
    )
    assert math.isnan(layer.moved_per_block_pack)  # whole slots: there is no block to gain
    assert layer.decode_steps_pack == 0


# --- The allocator ---


class ToyPool:
    """The part of vLLM's block pool that is asked: a stack of free numbers; 0 is never given."""

    def __init__(self, num_gpu_blocks: int, enable_caching: bool, hash_block_size: int) -> None:
        assert not enable_caching
        assert hash_block_size > 0
        self.free = [*range(1, num_gpu_blocks)]

    def get_num_free_blocks(self) -> int:
        return len(self.free)

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        if num_blocks > len(self.free):
            raise ValueError("no")
        return [self.free.pop() for _ in range(num_blocks)]

    def free_blocks(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            assert block not in self.free
            self.free.append(block)


TOY: Any = type("Toy", (), {"BlockPool": ToyPool})


@functools.cache
def real_vllm() -> loaders.Vllm | None:
    vllm = allocator.real_vllm()
    assert vllm or not IN_CI, f"no wheel of {loaders.VLLM} in KVRECLAIM_WHEELS: CI needs it"
    return vllm


needs_vllm = pytest.mark.skipif(
    loaders.wheel_of(loaders.VLLM) is None and not IN_CI, reason=f"no wheel of {loaders.VLLM}"
)


def vllm() -> loaders.Vllm:
    server = real_vllm()
    assert server is not None
    return server


@st.composite
def some_models(draw: st.DrawFn) -> Keeps:
    """Two policies on the same contexts of a model, of up to three tables of a few requests."""
    layers, heads = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    lengths = draw(st.lists(st.integers(1, 1500), min_size=1, max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    keeps = {}
    for policy in ("h2o", "tova"):
        share, run = rng.choice([0.0, 0.1, 0.5]), rng.choice([1, 64, 300])
        drawn = [rng.random((layers, heads, -(-length // run))) < share for length in lengths]
        keeps[policy, 0.5] = [
            np.repeat(keep, run, axis=-1)[..., :length]
            for keep, length in zip(drawn, lengths, strict=True)
        ]
    return keeps


def slow_counts(keeps: Keeps, name: str, size: int) -> allocator.AllCounts:
    """Return what is free, and how many requests fit, by loops over blocks."""
    found = {}
    for (policy, ratio), some in keeps.items():
        blocks = in_place = packed = 0
        for keep in some:
            of_tables = rows_of_tables(keep, name)
            for rows in of_tables:
                starts = range(0, len(rows[0]), size)
                blocks += len(starts)
                in_place += sum(
                    not any(True in row[start : start + size] for row in rows) for start in starts
                )
                packed += len(starts) - max(-(-row.count(True) // size) for row in rows)
        need = len(of_tables) * -(-512 // size)
        found[policy, ratio, "in place"] = allocator.Counts(blocks, in_place, in_place // need)
        found[policy, ratio, "packed"] = allocator.Counts(blocks, packed, packed // need)
    return found


@given(some_models(), st.sampled_from([*TABLES]), st.sampled_from([16, 64, 100, 128]))
def test_free_blocks_and_admitted_requests_are_what_loops_count(
    keeps: Keeps, name: str, size: int
) -> None:
    expected = slow_counts(keeps, name, size)
    assert allocator.our_counts(keeps, name, size) == expected
    assert allocator.vllm_counts(TOY, keeps, name, size) == expected


@needs_vllm
@given(some_models(), st.sampled_from([*TABLES]), st.sampled_from([16, 64, 100, 128]))
def test_vllm_frees_and_admits_what_loops_count(keeps: Keeps, name: str, size: int) -> None:
    expected = slow_counts(keeps, name, size)
    assert allocator.vllm_counts(vllm(), keeps, name, size) == expected
    if name == "all":
        assert allocator.vllm_manager_counts(vllm(), keeps, size) == expected


def test_a_pool_is_full_again_for_the_next_mask() -> None:
    """A mask that frees much, one that frees nothing, and the first again."""
    much, nothing = np.zeros((1, 1, 2048), np.bool_), np.ones((1, 1, 2048), np.bool_)
    keeps = {("h2o", 0.5): [much], ("tova", 0.5): [nothing], ("knorm", 0.5): [much]}
    found = allocator.vllm_counts(TOY, keeps, "all", 16)
    assert [found[policy, 0.5, "in place"] for policy, _ in keeps] == [
        (128, 128, 4),
        (128, 0, 0),
        (128, 128, 4),
    ]


class LeakyPool(ToyPool):
    """A pool that loses a block each time that some are given back."""

    def free_blocks(self, blocks: Iterable[int]) -> None:
        super().free_blocks([*blocks][1:])


def test_rows_of_admission_hold_both_answers_where_they_differ() -> None:
    keeps: Keeps = {("h2o", 0.5): [np.zeros((2, 1, 2048), np.bool_)]}
    rows = allocator.admission_rows("model", keeps, [16], TOY)
    assert [(row.tables, row.state) for row in rows] == [*itertools.product(TABLES, STATES)]
    assert tables._key(rows[2]) == ("model", "h2o", 0.5, "layer", 16, "in place")
    leaky: Any = type("Leaky", (), {"BlockPool": LeakyPool})
    (row, *_) = allocator.admission_rows("model", keeps, [16], leaky)
    assert attrs.astuple(rows[0])[6:] == (256, 256, 256, 4, 4)
    assert attrs.astuple(row)[6:] == (256, 256, 255, 4, 3)


# --- What is committed ---

STEMS = sorted(path.stem for path in (DATA / "masks").glob("*.npz"))


@functools.cache
def text_of(name: str) -> str:
    return (DATA / name).read_text("utf-8")


@functools.cache
def quality_rows() -> list[QualityRow]:
    return from_csv(QualityRow, text_of("quality.csv"), name="quality.csv")


@functools.cache
def reclaim_rows() -> list[ReclaimRow]:
    return from_csv(ReclaimRow, text_of("reclaim.csv"), name="reclaim.csv")


@functools.cache
def admission_rows() -> list[AdmissionRow]:
    return from_csv(AdmissionRow, text_of("admission.csv"), name="admission.csv")


@functools.cache
def models() -> dict[str, Keeps]:
    return masks.load_models(DATA / "masks")


def context_of(row: QualityRow | ReclaimRow) -> Context:
    return Context(row.model, row.document, row.tokens)


def test_the_committed_tables_speak_of_the_committed_masks() -> None:
    """Of every context; a folder that is missing or empty fails here."""
    assert STEMS, f"no masks in {DATA / 'masks'}: run python -m benchmarks.evidence"
    contexts = [Context.of_stem(stem) for stem in STEMS]
    for rows in (quality_rows(), reclaim_rows()):
        assert sorted({context_of(row) for row in rows}) == sorted(contexts)
    assert {row.model for row in admission_rows()} == {context.model for context in contexts}


def test_the_committed_tables_are_complete_and_sorted() -> None:
    """Each policy at each ratio, at each block size that is due; nothing twice, nothing else."""
    quality = [tables._key(row) for row in quality_rows()]
    assert {key[3:] for key in quality} == {*itertools.product(POLICIES, RATIOS)}
    assert len(quality) == len(STEMS) * len(POLICIES) * len(RATIOS)
    assert {tables._key(row) for row in reclaim_rows()} == {
        (*key, name, size)
        for key in quality
        for name in TABLES
        for size in (BLOCK_SIZES if key[-1] in FULL_RATIOS else (BLOCK_SIZE,))
    }
    assert {tables._key(row) for row in admission_rows()} == {
        *itertools.product(models(), POLICIES, FULL_RATIOS, TABLES, BLOCK_SIZES, STATES)
    }
    assert to_csv(quality_rows()) == text_of("quality.csv")
    assert to_csv(reclaim_rows()) == text_of("reclaim.csv")
    assert to_csv(admission_rows()) == text_of("admission.csv")


@pytest.mark.parametrize("stem", STEMS)
def test_each_committed_row_is_counted_from_its_mask_again(stem: str) -> None:
    context = Context.of_stem(stem)
    keeps = masks.load(DATA / "masks" / f"{stem}.npz")
    assert {*keeps} == {*itertools.product(POLICIES, FULL_RATIOS)}
    again: list[ReclaimRow] = []
    for (policy, ratio), keep in keeps.items():
        assert keep.shape[-1] == context.tokens
        again += counts.reclaim_rows(context, policy, ratio, keep, BLOCK_SIZES)
    committed = [
        row for row in reclaim_rows() if context_of(row) == context and row.ratio in FULL_RATIOS
    ]
    assert to_csv(committed).splitlines() == to_csv(again).splitlines()
    for row in quality_rows():
        if context_of(row) == context and row.ratio in FULL_RATIOS:
            keep = keeps[row.policy, row.ratio]
            assert tables._cell(row.retained) == tables._cell(float(keep.mean()))


def test_saving_and_retained_share_are_of_the_same_mask_where_it_is_not_stored() -> None:
    retained = {tables._key(row): row.retained for row in quality_rows()}
    for row in reclaim_rows():
        key = tables._key(row)[: len(QualityRow.KEY)]
        assert row.logical_saving == pytest.approx(1 - retained[key], abs=2e-6)
        assert row.physical_reclaim <= row.packed_reclaim


Answers = dict[tuple[Any, ...], tuple[int, int, int]]


def counted_again(
    size: int,
    count: Callable[[Keeps, str, int], allocator.AllCounts],
    names: Iterable[str] = TABLES,
) -> Answers:
    return {
        (model, policy, ratio, name, size, state): found
        for model, keeps in models().items()
        for name in names
        for (policy, ratio, state), found in count(keeps, name, size).items()
    }


@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_our_committed_counts_of_the_allocator_are_counted_again(size: int) -> None:
    committed: Answers = {
        tables._key(row): (row.pool_blocks, row.free_blocks, row.admission_count)
        for row in admission_rows()
        if row.block_size == size
    }
    assert committed == counted_again(size, allocator.our_counts)


@needs_vllm
@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_vllm_answers_again_what_is_committed(size: int) -> None:
    """Its block pool; and for one table its whole manager, whose admission says the same."""
    committed: Answers = {
        tables._key(row): (row.pool_blocks, row.free_blocks_vllm, row.admitted_vllm)
        for row in admission_rows()
        if row.block_size == size
    }
    assert committed == counted_again(size, functools.partial(allocator.vllm_counts, vllm()))
    assert {key: found for key, found in committed.items() if key[3] == "all"} == counted_again(
        size, lambda keeps, _, size: allocator.vllm_manager_counts(vllm(), keeps, size), ["all"]
    )


def test_vllm_frees_and_admits_what_we_said_in_every_committed_row() -> None:
    for row in admission_rows():
        ours, theirs = (
            (row.free_blocks, row.admission_count),
            (row.free_blocks_vllm, row.admitted_vllm),
        )
        assert ours == theirs, row


def test_kvpress_itself_kept_what_its_compress_was_said_to_keep() -> None:
    """As the manifest has it: near ties of a few entries, and rounding of float32."""
    manifest = json.loads((DATA / "manifest.json").read_text("utf-8"))
    assert {*manifest["contexts"]} == {*STEMS}
    checked = {
        (stem, press): found
        for stem, about in manifest["contexts"].items()
        for press, found in about["checks"].items()
    }
    assert len(checked) == 35
    differ = {key: found["mask_bits"] for key, found in checked.items() if found["mask_bits"]}
    assert differ == {("smollm2-135m__python-reference__2048", "tova"): 6}
    assert max(found["log_probability"] for found in checked.values()) < 1e-4
    assert {about["probes_found_in_nothing"] for about in manifest["contexts"].values()} == {0}


def test_our_own_text_is_the_one_that_the_models_read() -> None:
    manifest = json.loads((DATA / "manifest.json").read_text("utf-8"))
    own = texts.TEXTS["kvreclaim"]
    read = [
        about["text"]["sha256"]
        for about in manifest["contexts"].values()
        if about["text"]["source"] == own.source
    ]
    assert read == [hashlib.sha256(own.read().encode()).hexdigest()] * 2
