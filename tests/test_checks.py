"""What bad input gets: the kind of the error, and a sentence that helps.

Every message is one line: the argument's name, its rule, what came, and what to write instead.
"""

from __future__ import annotations

import datetime as dt
import decimal
import importlib
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest

from kvreclaim import (
    BlockPool,
    Census,
    Comparison,
    Report,
    SavedMasks,
    Signature,
    admission_count,
    admit,
    admit_contiguous,
    admit_sectors,
    admit_tensorrt_llm,
    admit_vllm_v0,
    apply_plan,
    block_size_from_bytes,
    block_usage,
    blocks_for_moves,
    combine,
    compaction_cost,
    compare,
    entry_bytes_for,
    entry_bytes_mla,
    evict_for_blocks,
    free_runs,
    growth_blocks,
    logical_saving,
    masks,
    merge,
    num_moves_for,
    occupancy,
    physical_reclaim,
    place,
    pool_usage,
    reclaim_curve,
    report,
    save_masks,
    step_saving,
    take_census,
    take_censuses,
)

Call = Callable[[], object]
KEEP = np.ones((2, 3, 8), bool)
BATCH = np.ones((2, 8), bool)
BY_LAYER = BlockPool(4, shared_axes="h")
ALONE = BlockPool(4, shared_axes="")


def of(function: Any, *arguments: Any, **options: Any) -> Call:  # noqa: ANN401  # whatever is wrong
    return partial(function, *arguments, **options)


def census_of(keep: Any, pool: Any = 4, **said: Any) -> Call:  # noqa: ANN401  # whatever is wrong
    return of(take_census, keep, pool, **said)


def pool_of(**fields: Any) -> Call:  # noqa: ANN401  # whatever is wrong
    return of(BlockPool, **{"block_size": 16} | fields)


def refused(call: Call, error: type[Exception], name: str, *words: str) -> None:
    """Check that a call raises exactly this error, in the form of all our messages."""
    with pytest.raises(error) as info:
        call()
    message = str(info.value)
    assert info.type is error
    assert message.startswith(f"{name} must "), message
    rule, got, hint = split(message)
    assert rule
    assert got
    assert hint
    for word in words:
        assert word in message, message


def split(message: str) -> tuple[str, str, str]:
    """Return what must be, what came and what to write; fails where one of them is missing."""
    assert "\n" not in message
    assert message.endswith(".")
    assert not message.endswith("..")
    rule, _, rest = message.partition("; got ")
    got, _, hint = rest.rpartition("; ")
    return rule, got, hint


def table(rows: Mapping[str, tuple[Any, ...]]) -> list[Any]:
    return [pytest.param(*row[:3], row[3:], id=name) for name, row in rows.items()]


NOT_A_MASK = "True and False, or integers that are all 0 and 1"
TO_LIST = "kvreclaim.masks.from_list(rows)"

KEEPS = {
    "floats 0 and 1": ([0.0, 1.0], TypeError, NOT_A_MASK, "float64", "keep == 1"),
    "float32": (np.array([0, 1], "f4"), TypeError, NOT_A_MASK, "float32", "keep == 1"),
    "float16": (np.array([0, 1], "f2"), TypeError, "float16", "keep == 1"),
    "all 0.0": (np.zeros(4), TypeError, "float64", "keep == 1"),
    "no floats": (np.zeros(0), TypeError, "float64"),
    "scores": (np.array([0.25, 0.75]), TypeError, "float64", "scores"),
    "bool and float": ([True, 0.5], TypeError, "float64"),
    "additive, inf": (np.array([0, -np.inf]), TypeError, "additive", "from_additive(keep)"),
    "additive, finfo": (
        np.array([0, np.finfo(np.float32).min], "f4"),
        TypeError,
        "float32",
        "additive mask",
    ),
    "one NaN": (np.array([1, 0, np.nan]), TypeError, "1 NaN", "the first at index 2"),
    "NaN in 2-D": (np.array([[1, 0], [np.nan] * 2]), TypeError, "2 NaN", "index (1, 0)"),
    "NaN and -inf": (np.array([0, -np.inf, np.nan]), TypeError, "1 NaN", "index 2"),
    "complex": (np.array([1j, 0]), TypeError, "complex128", "boolean array"),
    "objects": (np.array([True, None], object), TypeError, "object"),
    "None among booleans": ([True, None], TypeError, "object"),
    "no objects": (np.zeros(0, object), TypeError, "object", "numpy.zeros(0, bool)"),
    "ragged list": ([[1, 0], [1]], ValueError, "rows of one length", TO_LIST),
    "ragged tuple": (([True], [True, False]), ValueError, "rows of one length", TO_LIST),
    "ragged in 3-D": ([[[1, 0], [1, 0]], [[1, 0]]], ValueError, "rows of one length", TO_LIST),
    "ragged objects": (np.array([[1, 0], [1]], object), TypeError, "object", TO_LIST),
    "text": ("1100", TypeError, "str '1100'", "an array or a list"),
    "bytes": (b"\x01\x00", TypeError, "bytes", "an array or a list"),
    "bytearray": (bytearray(b"\x01"), TypeError, "bytearray", "an array or a list"),
    "list of text": (["1", "0"], TypeError, "str", "c == '1'"),
    "list of bytes": ([b"1", b"0"], TypeError, "bytes", "booleans"),
    "None": (None, TypeError, "None", "an array or a list"),
    "a mask and counts": (
        masks.from_rows([[1.0], [2.0]], [[2.0]]),
        TypeError,
        "got MatchedRows",
        "write found.keep.",
    ),
    "a mask from a file": (
        SavedMasks(np.ones((2, 3), bool), None, "ht", {}),
        TypeError,
        "got SavedMasks",
        "saved.keep, axes=saved.axes, lengths=saved.lengths, offset=saved.offset",
    ),
    "a selection": (
        evict_for_blocks([1, 2, 3, 4], 2, 2, 1),
        TypeError,
        "got Selection",
        "write found.keep.",
    ),
    "a mask and lengths": (
        masks.from_list([[1, 0], [1]]),
        TypeError,
        "a pair of a mask and lengths",
        "pair[0], lengths=pair[1]",
    ),
    "a report": (report([1, 0], 2), TypeError, "got Report, which holds a census", "its .census"),
    "dict": ({0: True}, TypeError, "dict {0: True}", "an array or a list"),
    "set": ({0, 1}, TypeError, "set", "an array or a list"),
    "masked array": (
        np.ma.MaskedArray([1, 0], mask=[False, True]),
        TypeError,
        "masked array",
        "keep.filled(False)",
        "from_padded(keep.data, ~keep.mask)",
    ),
    "masked booleans": (np.ma.MaskedArray([True, False]), TypeError, "masked array"),
    "dates": (np.array(["2026-01-01"], "M8[D]"), TypeError, "datetime64[D]", "boolean array"),
    "durations": (np.array([1], "m8[s]"), TypeError, "timedelta64[s]", "boolean array"),
    "one date": ([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)], TypeError, "object"),
    "records": (np.zeros(2, [("keep", "?")]), TypeError, "void8"),
    "2 and -1": (
        [0, 1, 2, -1],
        ValueError,
        "int64 with 2 of 4 values other than 0 and 1",
        "the first 2 at index 2",
        "keep != 0",
        "kvreclaim.masks.from_indices(...)",
        "kvreclaim.masks.from_packed(...)",
    ),
    "inverted bytes": (~np.array([0, 1], "u1"), ValueError, "uint8 with 2 of 2", "the first 255"),
    "int8 in 2-D": (np.array([[0, 1], [-1, 1]], "i1"), ValueError, "int8", "-1 at index (1, 0)"),
    "big-endian": (np.array([1, 256], ">i2"), ValueError, "the first 256 at index 1"),
    "positions": (np.arange(5), ValueError, "3 of 5 values", "the first 2 at index 2"),
    "the largest integer": (np.array([2**64 - 1], "u8"), ValueError, str(2**64 - 1)),
    "True alone": (True, ValueError, "must have a token axis", "[True, False]"),
    "1 alone": (1, ValueError, "must have a token axis"),
    "0-d": (np.array(True), ValueError, "must have a token axis"),
    "a function": (math.sqrt, TypeError, "builtin_function", "an array or a list"),
    "a generator": ((i > 2 for i in range(4)), TypeError, "generator", "an array or a list"),
}


@pytest.mark.parametrize(
    ("keep", "axes", "where"),
    [
        ([[True, False], np.ma.MaskedArray([True, False], mask=[False, True])], "ht", "keep[1]"),
        ([True, np.ma.masked], "t", "keep[1]"),
        ([[[1, 0]], (np.ma.MaskedArray([1, 0]),)], "lht", "keep[1][0]"),
    ],
)
def test_masked_arrays_in_lists_are_refused(
    keep: Any,  # noqa: ANN401
    axes: str,
    where: str,
) -> None:
    with pytest.raises(TypeError) as caught:
        report(keep, 2, axes=axes)
    message = str(caught.value)
    assert message.startswith(f"{where} must be an array of True and False")
    assert f"write {where}.filled(False) if" in message


@pytest.mark.parametrize(("keep", "error", "first", "words"), table(KEEPS))
def test_no_keep_mask(
    keep: Any,  # noqa: ANN401
    error: type[Exception],
    first: str,
    words: tuple[str, ...],
) -> None:
    dimensions = np.ndim(keep) if isinstance(keep, np.ndarray) else 1
    axes = "abct"[-dimensions:] if dimensions > 1 else None
    for call in (
        census_of(keep, axes=axes),
        of(physical_reclaim, keep, 4, axes=axes),
        of(take_censuses, keep, 4, by="", axes="t"),
    ):
        refused(call, error, "keep", first, *words)


SHAPES = {
    "no axes": (census_of(KEEP), ValueError, "axes", "'hl'", "(2, 3, 8)", "axes='lht'"),
    "no axes, 2-D": (census_of(BATCH), ValueError, "axes", "(2, 8)", "2 axes"),
    "too few": (census_of(KEEP, axes="lt"), ValueError, "axes", "'lt'", "(2, 3, 8)", "3 letters"),
    "too many": (census_of(BATCH, axes="lht"), ValueError, "axes", "'lht'", "2 letters"),
    "none": (census_of([1, 0], axes=""), ValueError, "axes", "1 letter"),
    "twice": (census_of(KEEP, axes="llt"), ValueError, "axes", "'llt'", "each letter once"),
    "t twice": (census_of(KEEP, axes="tlt"), ValueError, "axes", "each letter once"),
    "no t": (census_of(KEEP, axes="blh"), ValueError, "axes", "'blh' without 't'"),
    "no t, unshared": (census_of(BATCH, ALONE, axes="ab"), ValueError, "axes", "without 't'"),
    "capital T": (census_of(KEEP, axes="LHT"), ValueError, "axes", "'LHT' without 't'"),
    "a digit": (census_of(KEEP, axes="l1t"), ValueError, "axes", "'1' is no letter"),
    "a blank": (census_of(KEEP, axes="l t"), ValueError, "axes", "' ' is no letter"),
    "an accent": (census_of(KEEP, axes="l\u00e9t"), ValueError, "axes", "'\u00e9' is no letter"),
    "a question mark": (census_of(BATCH, ALONE, axes="?t"), ValueError, "axes", "'?'"),
    "a word": (census_of(KEEP, axes="head"), ValueError, "axes", "the word 'head'", "as 'lht' for"),
    "a list": (census_of(KEEP, axes=list("lht")), TypeError, "axes", "list", "axes='lht'"),
    "a number": (census_of(KEEP, axes=3), TypeError, "axes", "int 3", "axes='lht'"),
    "no heads": (
        census_of(np.ones((2, 0, 8), bool), axes="bht"),
        ValueError,
        "keep",
        "(2, 0, 8)",
        "'bht'",
        "every axis that shares blocks",
    ),
    "no layers": (census_of(np.ones((0, 8), bool), axes="lt"), ValueError, "keep", "at least one"),
    "too long": (
        census_of(BATCH, axes="bt", lengths=[8, 9]),
        ValueError,
        "lengths",
        "from 0 to 8",
        "got 9 at index 1; write each sequence's tokens.",
    ),
    "too long in 2-D": (
        census_of(KEEP, ALONE, axes="lht", lengths=[[8, 8, 8], [8, 12, 9]]),
        ValueError,
        "lengths",
        "got 12 at index (1, 1)",
    ),
    "too long for all": (census_of([1, 1], lengths=3), ValueError, "lengths", "from 0 to 2", "3"),
    "negative": (census_of(BATCH, axes="bt", lengths=[-1, 8]), ValueError, "lengths", "-1"),
    "floats": (
        census_of(BATCH, axes="bt", lengths=[8.0, 8.0]),
        TypeError,
        "lengths",
        "integers",
        "float64",
    ),
    "NaN": (census_of([1], lengths=math.nan), TypeError, "lengths", "float64"),
    "booleans": (census_of(BATCH, axes="bt", lengths=[True, True]), TypeError, "lengths", "bool"),
    "True": (census_of([1], lengths=True), TypeError, "lengths", "bool"),
    "text": (census_of([1], lengths="1"), TypeError, "lengths", "str '1'"),
    "a mapping": (census_of([1], lengths={0: 1}), TypeError, "lengths", "dict"),
    "too many lengths": (
        census_of(BATCH, axes="bt", lengths=[8, 8, 8]),
        ValueError,
        "lengths",
        "'b' of shape (2,)",
        "got shape (3,)",
    ),
    "no lengths": (
        census_of(BATCH, axes="bt", lengths=[]),
        ValueError,
        "lengths",
        "each axis of keep that",
        "shape (0,)",
    ),
    "too many lengths of importance": (
        of(evict_for_blocks, np.ones((2, 8)), 4, 8, 1, axes="bt", lengths=[8, 8, 8]),
        ValueError,
        "lengths",
        "each axis of importance that",
        "shape (3,)",
    ),
    "lengths of a shared axis": (
        census_of(KEEP, BY_LAYER, axes="lht", lengths=np.full((2, 3), 8)),
        ValueError,
        "lengths",
        "'l' of shape (2,)",
        "got shape (2, 3)",
    ),
    "lengths of one sequence in a list": (
        census_of([1, 0], lengths=[2]),
        ValueError,
        "lengths",
        "got shape (1,)",
    ),
    "flat lengths of two outer axes": (
        census_of(KEEP, ALONE, axes="lht", lengths=[8, 8]),
        ValueError,
        "lengths",
        "'lh' of shape (2, 3)",
    ),
    "kept beyond the length": (
        census_of([1, 0, 1], lengths=2),
        ValueError,
        "keep",
        "True at token 2",
        "has 2 tokens",
    ),
    "kept beyond a length of 0": (
        census_of([0, 1], lengths=0),
        ValueError,
        "keep",
        "True at token 1",
        "has 0 tokens",
    ),
    "kept beyond one length": (
        census_of(BATCH, axes="bt", lengths=[8, 5]),
        ValueError,
        "keep",
        "True at token 5 of sequence 1",
        "has 5 tokens",
        "from_padded(keep, valid)",
    ),
    "kept beyond one of many": (
        census_of(
            KEEP[..., None] & [True, False],
            ALONE,
            axes="lhtx",
            lengths=np.array([8, 8, 8, 8, 8, 3]).reshape(2, 3, 1),
        ),
        ValueError,
        "keep",
        "True at token 3 of sequence (1, 2, 0)",
        "has 3 tokens",
    ),
    "kept beyond a length, behind an offset": (
        census_of([0, 0, 0, 0, 0, 1], lengths=4, offset=3),
        ValueError,
        "keep",
        "True at token 5",
        "has 4 tokens",
    ),
    "kept by one head only": (
        census_of([[0, 0, 0, 0], [0, 0, 0, 1]], axes="ht", lengths=2),
        ValueError,
        "keep",
        "True at token 3",
    ),
    "offset too large": (
        census_of([1], 4, offset=4),
        ValueError,
        "offset",
        "from 0 to 3",
        "got 4",
        "before token 0",
    ),
    "one offset too large": (
        census_of(BATCH, axes="bt", offset=[0, 5]),
        ValueError,
        "offset",
        "got 5 at index 1",
    ),
    "offset negative": (census_of([1], offset=-1), ValueError, "offset", "got -1"),
    "offset in a block of 1": (census_of([1], 1, offset=1), ValueError, "offset", "from 0 to 0"),
    "offset a float": (census_of([1], offset=0.0), TypeError, "offset", "float 0.0"),
    "offset True": (census_of([1], offset=True), TypeError, "offset", "bool True"),
    "offset False": (census_of([1], offset=False), TypeError, "offset", "bool False"),
    "offset None": (census_of([1], offset=None), TypeError, "offset", "None"),
    "too many offsets": (census_of(BATCH, axes="bt", offset=[0] * 3), ValueError, "offset", "(3,)"),
    "more pinned than there is": (
        census_of([1, 1], pinned=3),
        ValueError,
        "pinned",
        "from 0 to 2",
        "got 3; write each sequence's leading tokens that must stay, at most its length.",
    ),
    "by a shared letter": (
        of(take_censuses, KEEP, BY_LAYER, by="h", axes="lht"),
        ValueError,
        "by",
        "neither tokens nor shared",
        "from 'l'",
        "got 'h'",
    ),
    "by tokens": (of(take_censuses, [1], 4, by="t", axes="t"), ValueError, "by", "got 't'"),
}


@pytest.mark.parametrize(("call", "error", "name", "words"), table(SHAPES))
def test_axes_lengths_and_offsets(
    call: Call, error: type[Exception], name: str, words: tuple[str, ...]
) -> None:
    refused(call, error, name, *words)


@pytest.mark.parametrize("piece", [1, 8, 40, 1 << 20])
@pytest.mark.parametrize(("index", "token"), [((0, 0, 0), 6), ((1, 0, 1), 7), ((1, 2, 1), 6)])
def test_a_token_beyond_its_length_is_found_in_any_piece(
    index: tuple[int, ...], token: int, piece: int
) -> None:
    keep = np.zeros((2, 3, 2, 9), bool)
    keep[*index, token] = True
    with mock.patch.object(occupancy, "PIECE", piece):
        refused(
            census_of(keep, ALONE, axes="lhbt", lengths=6, offset=3),
            ValueError,
            "keep",
            f"True at token {token} of sequence {index}, which has 6 tokens",
        )


def test_the_first_of_several_tokens_beyond_their_lengths_is_named() -> None:
    keep = np.zeros((4, 9), bool)
    keep[1, 5:] = keep[2, 3:] = True
    for piece in (1, 1 << 20):
        with mock.patch.object(occupancy, "PIECE", piece):
            refused(
                census_of(keep, axes="bt", lengths=3), ValueError, "keep", "token 5 of sequence 1"
            )


def test_functions_that_messages_name_exist() -> None:
    calls = [census_of(keep) for keep, *_ in KEEPS.values()]
    named = set()
    for call in (*calls, census_of([1, 1], lengths=1)):
        with pytest.raises((TypeError, ValueError)) as info:
            call()
        named |= set(re.findall(r"kvreclaim\.(\w+)\.(\w+)", str(info.value)))
    assert {module for module, _ in named} == {"masks"}
    masks = importlib.import_module("kvreclaim.masks")
    assert [function for _, function in sorted(named) if not hasattr(masks, function)] == []


FIELDS = {
    "size 0": (pool_of(block_size=0), ValueError, "block_size", "1 to 65535", "got 0"),
    "size -16": (pool_of(block_size=-16), ValueError, "block_size", "got -16", "at least 1"),
    "size 65536": (pool_of(block_size=65_536), ValueError, "block_size", "at most 65535"),
    "size 16.0": (pool_of(block_size=16.0), TypeError, "block_size", "float 16.0", "int(...)"),
    "size True": (pool_of(block_size=True), TypeError, "block_size", "boolean True"),
    "size text": (pool_of(block_size="16"), TypeError, "block_size", "str '16'"),
    "size None": (pool_of(block_size=None), TypeError, "block_size", "None"),
    "size NaN": (pool_of(block_size=math.nan), TypeError, "block_size", "float nan"),
    "share t": (pool_of(shared_axes="ht"), ValueError, "shared_axes", "'ht'", "leave out 't'"),
    "share twice": (pool_of(shared_axes="hlh"), ValueError, "shared_axes", "each letter once"),
    "share a digit": (pool_of(shared_axes="h1"), ValueError, "shared_axes", "'1' is no letter"),
    "share a comma": (pool_of(shared_axes="l,h"), ValueError, "shared_axes", "','"),
    "share a tuple": (pool_of(shared_axes=("l", "h")), TypeError, "shared_axes", "tuple"),
    "share a word": (
        pool_of(shared_axes="layer"),
        ValueError,
        "shared_axes",
        "the word 'layer'",
        "'h' for a table for each layer, 'lh' for one table for all",
    ),
    "share a word with t": (pool_of(shared_axes="Batch"), ValueError, "shared_axes", "'Batch'"),
    "share all": (pool_of(shared_axes="all"), ValueError, "shared_axes", "the word 'all'"),
    "share None": (pool_of(shared_axes=None), TypeError, "shared_axes", "None"),
    "frees head": (
        pool_of(frees="head"),
        ValueError,
        "frees",
        "'any', 'back', 'front', 'none'",
        "got 'head'",
    ),
    "frees capital": (pool_of(frees="Any"), ValueError, "frees", "got 'Any'"),
    "frees None": (pool_of(frees=None), TypeError, "frees", "None"),
    "frees True": (pool_of(frees=True), TypeError, "frees", "bool True"),
    "tail 1": (pool_of(open_tail=1), TypeError, "open_tail", "True or False", "int 1"),
    "tail text": (pool_of(open_tail="no"), TypeError, "open_tail", "str 'no'"),
    "tail None": (pool_of(open_tail=None), TypeError, "open_tail", "None"),
    "compactor lru": (pool_of(compactor="lru"), ValueError, "compactor", "'evacuate'", "'lru'"),
    "compactor None": (pool_of(compactor=None), TypeError, "compactor", "None"),
    "total -1": (pool_of(total_blocks=-1), ValueError, "total_blocks", "got -1"),
    "total 1e6": (pool_of(total_blocks=1e6), TypeError, "total_blocks", "float 1000000.0"),
    "total True": (pool_of(total_blocks=True), TypeError, "total_blocks", "boolean True"),
    "reserved -1": (pool_of(reserved_blocks=-1), ValueError, "reserved_blocks", "got -1"),
    "reserved None": (pool_of(reserved_blocks=None), TypeError, "reserved_blocks", "None"),
    "watermark share": (pool_of(watermark_blocks=0.01), TypeError, "watermark_blocks", "0.01"),
    "watermark -1": (pool_of(watermark_blocks=-1), ValueError, "watermark_blocks", "got -1"),
    "bytes 0": (pool_of(entry_bytes=0), ValueError, "entry_bytes", "at least 1", "got 0"),
    "bytes 1.5": (pool_of(entry_bytes=1.5), TypeError, "entry_bytes", "float 1.5"),
    "more reserved than there is": (
        pool_of(total_blocks=4, reserved_blocks=5),
        ValueError,
        "reserved_blocks",
        "total_blocks (4)",
        "got 5",
    ),
    "watermark above the pool": (
        pool_of(total_blocks=4, reserved_blocks=1, watermark_blocks=4),
        ValueError,
        "watermark_blocks",
        "the 3 usable blocks",
        "got 4",
    ),
    "back evacuates": (
        pool_of(frees="back", compactor="evacuate"),
        ValueError,
        "compactor",
        "'fill', 'pack', 'pack_rows', 'none'",
        "frees='back'",
        "got 'evacuate'",
    ),
    "back evacuates rows": (
        pool_of(frees="back", compactor="evacuate_rows"),
        ValueError,
        "compactor",
        "got 'evacuate_rows'",
    ),
    "front fills": (
        pool_of(frees="front", compactor="fill"),
        ValueError,
        "compactor",
        "frees='front'",
        "got 'fill'",
    ),
    "none packs": (
        pool_of(frees="none", compactor="pack"),
        ValueError,
        "compactor",
        "frees='none'",
        "got 'pack'",
    ),
    "replace an unknown field": (
        of(BlockPool(16).replace, size=3),
        TypeError,
        "replace",
        "block_size",
        "got size",
    ),
    "replaced size": (
        of(BlockPool(16).replace, block_size=0),
        ValueError,
        "block_size",
        "got 0",
    ),
    "blocks for -1 tokens": (
        of(BlockPool(16).num_blocks_for, -1),
        ValueError,
        "num_tokens",
        "got -1",
    ),
    "no pool": (census_of([1], None), TypeError, "pool", "BlockPool or a block size", "None"),
    "pool 16.0": (census_of([1], 16.0), TypeError, "pool", "float 16.0", "BlockPool(16) or 16"),
    "pool True": (census_of([1], True), TypeError, "pool", "bool True"),
    "pool text": (census_of([1], "vllm"), TypeError, "pool", "str 'vllm'"),
    "pool 0": (census_of([1], 0), ValueError, "block_size", "got 0"),
    "empty of text": (of(Census.empty, "16"), TypeError, "pool", "str '16'"),
}


@pytest.mark.parametrize(("call", "error", "name", "words"), table(FIELDS))
def test_pools(call: Call, error: type[Exception], name: str, words: tuple[str, ...]) -> None:
    refused(call, error, name, *words)


CENSUS = take_census([1, 0, 0, 0, 1], 2)
SIZED = take_census([1, 0, 0, 0, 1], BlockPool(2, total_blocks=3, reserved_blocks=1))
PACKED = take_census([1, 0, 0, 0, 1], BlockPool(2, compactor="pack"))

FIGURES = {
    "another pool": (
        of(physical_reclaim, CENSUS, 4),
        ValueError,
        "pool",
        "block_size=2",
        "block_size=4",
        "leave it out",
    ),
    "no pool with a mask": (of(logical_saving, [1, 0]), TypeError, "pool", "such as 16"),
    "axes with a census": (
        of(logical_saving, CENSUS, axes="t"),
        ValueError,
        "axes, lengths, offset and pinned",
        "leave them out",
    ),
    "pools that differ": (
        of(merge, [CENSUS, PACKED]),
        ValueError,
        "censuses",
        "compactor='evacuate'",
        "compactor='pack'",
    ),
    "rows that differ": (
        of(merge, [CENSUS, take_census([[1], [1]], 2, axes="ht")]),
        ValueError,
        "censuses",
        "1 and 2 rows per table",
    ),
    "nothing to merge": (of(merge, []), ValueError, "censuses", "Census.empty(pool)"),
    "unknown fields": (of(Census.from_dict, {"x": 1}), ValueError, "fields", "got x"),
    "no need": (
        of(admission_count, CENSUS, blocks_per_request=0),
        ValueError,
        "blocks_per_request",
        "got 0",
    ),
    "half a need": (
        of(admission_count, CENSUS, blocks_per_request=0.5),
        TypeError,
        "blocks_per_request",
        "0.5",
    ),
    "never fitted": (
        of(admission_count, SIZED, blocks_per_request=1),
        ValueError,
        "total_blocks",
        "the 3 blocks that the masks hold and the 1 reserved",
        "got 3",
    ),
    "never fitted, usage": (of(pool_usage, SIZED), ValueError, "total_blocks", "got 3"),
    "usage without a size": (of(pool_usage, CENSUS), ValueError, "pool", "total_blocks=..."),
    "usage of no size": (of(block_usage, BlockPool(2), 1), ValueError, "pool", "total_blocks"),
    "more free than usable": (
        of(block_usage, BlockPool(2, total_blocks=3, reserved_blocks=1), 3),
        ValueError,
        "num_free_blocks",
        "2 usable blocks",
        "total_blocks 3",
        "reserved_blocks 1",
        "got 3",
    ),
    "free -1": (
        of(block_usage, BlockPool(2, total_blocks=3), -1),
        ValueError,
        "num_free_blocks",
        "-1",
    ),
    "free 1.0": (
        of(block_usage, BlockPool(2, total_blocks=3), 1.0),
        TypeError,
        "num_free_blocks",
        "1.0",
    ),
    "admit from -1": (of(admit, -1, [1]), ValueError, "free_blocks", "got -1"),
    "admit from True": (of(admit, True, [1]), TypeError, "free_blocks", "boolean True"),
    "demand 0": (of(admit, 3, [1, 0]), ValueError, "demands", "at least 1", "got 0"),
    "demand 1.5": (of(admit, 3, [1.5]), TypeError, "demands", "float 1.5"),
    "watermark -1": (
        of(admit, 3, [1], watermark_blocks=-1),
        ValueError,
        "watermark_blocks",
        "got -1",
    ),
    "order lifo": (
        of(admit, 3, [1], order="lifo"),
        ValueError,
        "order",
        "'fifo', 'skip', 'smallest'",
        "got 'lifo'",
    ),
    "order None": (of(admit, 3, [1], order=None), TypeError, "order", "None"),
    "exempt 1": (of(admit, 3, [1], exempt_first=1), TypeError, "exempt_first", "int 1"),
    "curve of pack": (
        of(reclaim_curve, PACKED),
        ValueError,
        "census",
        "'evacuate'",
        "got 'pack'",
    ),
    "budget of pack": (of(blocks_for_moves, PACKED, 1), ValueError, "census", "got 'pack'"),
    "budget -1": (of(blocks_for_moves, CENSUS, -1), ValueError, "budget", "got -1"),
    "budget 0.5": (of(blocks_for_moves, CENSUS, 0.5), TypeError, "budget", "float 0.5"),
    "moves of no census": (
        of(num_moves_for, [1, 0], num_bytes=1),
        TypeError,
        "census",
        "got list",
        "take_census(keep, pool)",
    ),
    "moves of None": (
        of(num_moves_for, None, microseconds=1, bytes_per_second=1),
        TypeError,
        "census",
        "got NoneType",
    ),
    "a report of no census": (of(Report.from_census, [1]), TypeError, "census", "got list"),
    "a report of a mask": (of(Report.from_census, KEEP), TypeError, "census", "got ndarray"),
    "no bytes": (
        of(compaction_cost, CENSUS, 1e12),
        ValueError,
        "bytes_per_second",
        "entry_bytes_for(head_dim)",
    ),
    "bandwidth 0": (
        of(compaction_cost, CENSUS, 0),
        ValueError,
        "bytes_per_second",
        "above 0",
        "got 0.0",
    ),
    "bandwidth inf": (
        of(compaction_cost, CENSUS, math.inf),
        ValueError,
        "bytes_per_second",
        "got inf",
    ),
    "bandwidth NaN": (
        of(compaction_cost, CENSUS, math.nan),
        ValueError,
        "bytes_per_second",
        "got nan",
    ),
    "bandwidth True": (
        of(compaction_cost, CENSUS, True),
        TypeError,
        "bytes_per_second",
        "True",
    ),
    "bandwidth text": (
        of(compaction_cost, CENSUS, "1e12"),
        TypeError,
        "bytes_per_second",
        "str '1e12'",
    ),
    "bandwidth 10**400": (
        of(compaction_cost, CENSUS, 10**400),
        ValueError,
        "bytes_per_second",
        "more than a float holds",
    ),
    "bandwidth decimal": (
        of(compaction_cost, CENSUS, decimal.Decimal(1)),
        TypeError,
        "bytes_per_second",
        "Decimal",
    ),
    "head_dim 0": (of(entry_bytes_for, 0), ValueError, "head_dim", "got 0"),
    "dtype_bytes 0.5": (of(entry_bytes_for, 64, 0.5), TypeError, "dtype_bytes", "float 0.5"),
    "v_head_dim 0": (of(entry_bytes_for, 64, v_head_dim=0), ValueError, "v_head_dim", "got 0"),
    "rank 0": (of(entry_bytes_mla, 0, 64), ValueError, "kv_lora_rank", "got 0"),
    "rope -1": (of(entry_bytes_mla, 512, -1), ValueError, "rope_dim", "got -1"),
    "a page of 10 bytes": (
        of(block_size_from_bytes, 10, 8, 128),
        ValueError,
        "page_bytes",
        "2048 bytes",
        "got 10",
    ),
    "no kv heads": (of(block_size_from_bytes, 4096, 0, 128), ValueError, "kv_heads", "got 0"),
}


@pytest.mark.parametrize(("call", "error", "name", "words"), table(FIGURES))
def test_figures(call: Call, error: type[Exception], name: str, words: tuple[str, ...]) -> None:
    refused(call, error, name, *words)


@pytest.mark.parametrize("value", [np.True_, 4, 4.0, "4", None, [4], 10**30])
def test_long_values_are_not_printed_whole(value: Any) -> None:  # noqa: ANN401
    """And short ones are, with their kind."""
    long = [value] * 50
    with pytest.raises(TypeError) as info:
        BlockPool(long)
    assert str(info.value).count(str(value)) <= 2
    assert "list" in str(info.value)
    assert len(str(info.value)) < 200


def test_a_large_wrong_array_is_not_printed() -> None:
    for keep in (np.full((2_000, 2_000), 2, np.int8), np.ones((2_000, 2_000))):
        with pytest.raises((TypeError, ValueError)) as info:
            take_census(keep, 16, axes="bt")
        assert len(str(info.value)) < 400
    with pytest.raises(TypeError) as info:
        take_census([1], 16, lengths=np.ones((100, 100)))
    assert len(str(info.value)) < 200
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    "keep",
    [
        [],
        [True, False],
        [1, 0],
        (1, 0),
        range(2),
        np.array([1, 0], "u8"),
        np.array([1, 0], ">i8"),
        np.array([np.True_, np.False_]),
        memoryview(b"\x01\x00"),
        np.zeros(0, int),
    ],
)
def test_what_is_a_keep_mask(keep: Any) -> None:  # noqa: ANN401
    assert take_census(keep, 2).num_tokens == len(keep)


def test_anything_that_makes_an_array() -> None:
    class Tensor:
        """As other libraries' arrays: it says how to become one of NumPy's."""

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray[Any, Any]:
            return np.array([[True, False], [False, False]])

    assert take_census(Tensor(), 2, axes="bt").num_live_entries == 1


def test_what_cannot_be_read_is_named_and_the_cause_kept() -> None:
    class Broken:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray[Any, Any]:
            raise ValueError("the tensor is on another device")

    refused(census_of(Broken(), 2), TypeError, "keep", "a Broken", "a plain array")
    with pytest.raises(TypeError) as info:
        take_census(Broken(), 2)
    assert "another device" in str(info.value.__cause__)


NOT_ITERABLE = {
    "demands 5": (of(admit, 3, 5), TypeError, "demands", "int 5", "[8, 8]"),
    "demands None": (of(admit, 3, None), TypeError, "demands", "NoneType"),
    "demands text": (of(admit, 3, "58"), TypeError, "demands", "str '58'"),
    "demands in an array of one": (of(admit, 3, np.array(5)), TypeError, "demands", "a", "[8, 8]"),
    "requests in an array of one": (of(growth_blocks, np.array(3), 16), TypeError, "running"),
    "censuses in an array of one": (of(merge, np.array(CENSUS)), TypeError, "censuses"),
    "requests of sectors": (
        of(admit_sectors, 3, 3, {"full": 1}),
        TypeError,
        "requests",
        "be requests, or the blocks of each; got int 3",
        "[{'full': 7}]",
    ),
    "blocks of sectors": (
        of(admit_sectors, 3, [], {"full": 1}, free_blocks=np.array([1, 2])),
        TypeError,
        "free_blocks",
        "a mapping from names",
        "{'full': 3, 'sliding': 1}",
    ),
    "no blocks of sectors": (
        of(admit_sectors, 3, [], {"full": 1}, free_blocks=0),
        TypeError,
        "free_blocks",
        "int 0",
    ),
    "windows in an array": (
        of(admit_tensorrt_llm, 3, [], 16, windows=np.array([1, 2])),
        TypeError,
        "windows",
        "a mapping from names",
    ),
    "windows False": (
        of(admit_tensorrt_llm, 3, [], 16, windows=False),
        TypeError,
        "windows",
        "bool False",
    ),
    "force in an array": (
        of(compare, {"a": report([1], 2)}, force=np.ones(2)),
        TypeError,
        "force",
        "True or False",
    ),
    "force 1": (of(compare, {"a": report([1], 2)}, force=1), TypeError, "force", "int 1"),
    "contiguous demands": (of(admit_contiguous, [1], 3), TypeError, "demands", "int 3"),
    "requests 3": (
        of(admit_vllm_v0, 3, 3, 16),
        TypeError,
        "requests",
        "must be Requests",
        "int 3",
        "[Request(",
    ),
    "running 3": (of(growth_blocks, 3, 16), TypeError, "running", "int 3"),
    "by 3": (of(take_censuses, [[1, 0]], 2, axes="bt", by=3), TypeError, "by", "int 3", "'l'"),
    "by None": (of(take_censuses, [[1]], 2, axes="bt", by=None), TypeError, "by", "take_census"),
    "fields None": (of(Census.from_dict, None), TypeError, "fields", "Census.to_dict"),
    "fields in a list": (of(Census.from_dict, [1]), TypeError, "fields", "list [1]"),
    "one census": (of(merge, CENSUS), TypeError, "censuses", "merge([a, b])"),
    "merge of 3": (of(merge, 3), TypeError, "censuses", "int 3"),
    "merge of [3]": (of(merge, [3]), TypeError, "census", "got int"),
    "groups 3": (of(combine, 3), TypeError, "groups", "int 3", "[(census, 4096)]"),
    "groups [3]": (of(combine, [3]), TypeError, "groups", "int 3 among them"),
    "groups of masks": (of(combine, [([1, 0], 4096)]), TypeError, "census", "got list"),
    "keeps 3": (
        of(place, 3, [[0]], BlockPool(2, total_blocks=4)),
        TypeError,
        "keeps",
        "must be a keep-mask for each sequence; got int 3; write a list of them.",
    ),
    "tables 3": (
        of(place, [[1]], 3, BlockPool(2, total_blocks=4)),
        TypeError,
        "tables",
        "must be block ids for each sequence; got int 3; write a list of them.",
    ),
    "signature 3": (of(Signature.parse, 3), TypeError, "text", "int 3"),
    "plan 3": (of(apply_plan, [1, 0], 3), TypeError, "plan", "compaction_plan(keep, pool)"),
    "JSON 3": (of(Report.from_json, 3), TypeError, "text", "int 3", "to_json"),
    "JSON None": (of(Comparison.from_json, None), TypeError, "text", "None", "to_json"),
    "JSON in bytes": (of(Comparison.from_json, b"{}"), TypeError, "text", "bytes b'{}'"),
    "an array is no report": (
        of(Report.from_dict, np.array([1])),
        ValueError,
        "fields",
        "Report.to_dict",
    ),
    "positions 3": (
        of(masks.from_indices, 3, 8),
        ValueError,
        "indices",
        "must be rows of positions; got shape (); write a list of positions.",
    ),
    "one flat run": (
        of(masks.from_runs, [0, 4], 8),
        ValueError,
        "runs",
        "rows of pairs (start, stop); got shape (2,); write a list of pairs (start, stop).",
    ),
    "a path 3": (of(save_masks, 3, [1, 0]), TypeError, "path", "int 3", "'masks.npz'"),
    "free 3": (of(free_runs, 3), ValueError, "free", "a single value"),
    "before 1": (of(step_saving, 1, [1], 2), ValueError, "before", "a single value"),
    "keep 3": (of(take_census, 3, 2), ValueError, "keep", "a single value"),
    "a huge length": (
        of(take_census, [1, 0], 2, lengths=2**70),
        ValueError,
        "lengths",
        "64 bits",
        "of 71",
    ),
    "huge lengths": (of(take_census, [1, 0], 2, lengths=[2**70]), ValueError, "lengths", "64 bits"),
    "a huge offset": (of(take_census, [1, 0], 2, offset=-(2**70)), ValueError, "offset", "64 bits"),
    "objects": (
        of(take_census, np.array([True, None], object), 2),
        TypeError,
        "keep",
        "keep.astype(bool)",
    ),
    "a length of 1": (
        of(take_census, [1, 1], 2, lengths=1),
        ValueError,
        "keep",
        "token 1, which has 1 token;",
    ),
}


@pytest.mark.parametrize(("call", "error", "name", "words"), table(NOT_ITERABLE))
def test_what_cannot_be_gone_through(
    call: Call, error: type[Exception], name: str, words: tuple[str, ...]
) -> None:
    refused(call, error, name, *words)
