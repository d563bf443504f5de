"""Files that were met in public and read wrongly: `data/cases_of_files.json`, a test for each."""

from __future__ import annotations

import copy
import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import library
from test_cases import check
from test_files import UNSHARED

from kvreclaim import BlockPool, load_masks, masks, save_masks, take_census
from kvreclaim.files import census_of_file

DATA = Path(__file__).parent / "data"
CASES = {
    case["id"]: case
    for case in json.loads((DATA / "cases_of_files.json").read_text(encoding="utf-8"))
}


def case_of(name: str) -> tuple[list[Path], dict[str, Any], int]:
    """Return the files of a case, what is expected of them, and the block size."""
    given = CASES[name]["input"]
    files = given.get("files", [given.get("file")])
    expected = copy.deepcopy(CASES[name]["expected"])
    return [DATA / file for file in files], expected, given.get("pool", {}).get("block_size", 4)


def refusal(path: Path, *words: str) -> str:
    """Return what a file is refused with, whichever way it is read."""
    messages = []
    for call in (load_masks, lambda path: census_of_file(path, UNSHARED)):
        with pytest.raises((TypeError, ValueError)) as refused:
            call(path)
        messages.append(str(refused.value))
        assert str(path) in messages[-1]
        for word in words:
            assert word in messages[-1]
    return messages[0]


def test_h11_e02_an_additive_mask_is_no_keep_mask() -> None:
    for name in ("H11", "E02"):
        (path,), expected, size = case_of(name)
        refusal(path, "float", "additive", "-inf")
        must = expected.get("value_if_declared_additive", {})
        check(take_census(masks.from_additive(np.load(path)), size), must)
        assert len(must) >= 2


def test_h12_integers_other_than_0_and_1() -> None:
    (path,), expected, _ = case_of("H12")
    assert refusal(path, *expected["message_should_name"])


def test_h13_nan_is_neither_kept_nor_evicted() -> None:
    (path,), expected, _ = case_of("H13")
    assert expected["message_should_name"] == ["NaN", "2 (how many)", "index of the first"]
    refusal(path, "2 NaN, the first at index 2")


def test_h22_memory_order_changes_nothing(tmp_path: Path) -> None:
    (c_order, fortran_order, scrambled), expected, size = case_of("H22")
    per_layer, two = BlockPool(size, shared_axes="h"), expected["must"]
    must = two["both .npy files and every in-memory view"]
    keep = load_masks(c_order, axes="lt").keep
    for path in (c_order, fortran_order):
        check(census_of_file(path, per_layer, axes="lt"), must)
        np.testing.assert_array_equal(load_masks(path).keep, keep)
    doubled = np.repeat(keep, 2, axis=0)
    for view in (np.ascontiguousarray(keep.T).T, keep[:, ::-1].copy()[:, ::-1], doubled[::2]):
        check(take_census(view, per_layer, axes="lt"), must)
        save_masks(tmp_path / "own.npz", view, axes="lt")
        check(census_of_file(tmp_path / "own.npz", per_layer), must)
    library("safetensors")
    must = two["scrambled.safetensors (what such a faulty save leaves)"]
    check(census_of_file(scrambled, per_layer, axes="lt"), must)
    save_masks(tmp_path / "own.safetensors", np.asfortranarray(keep), axes="lt", packed=False)
    np.testing.assert_array_equal(load_masks(tmp_path / "own.safetensors").keep, keep)


def test_h23_packed_bits_need_their_length(tmp_path: Path) -> None:
    """The files have another writer's names: read as such, and renamed to ours."""
    files, expected, size = case_of("H23")
    value, error = expected["cases"]
    ours = {"mask_packed.npy": "bits.npy", "n_tokens.npy": "num_tokens.npy"}
    for path in files:
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / path.name, "w") as new:
            for name in old.namelist():
                new.writestr(ours.get(name, name), old.read(name))
        with pytest.raises(ValueError, match=r"'mask_packed' must be True and False.*from_packed"):
            load_masks(path, array="mask_packed")
    check(census_of_file(tmp_path / files[0].name, size), value["must"])
    assert error["message_should_name"] == ["n_tokens", "packed"]
    refusal(tmp_path / files[1].name, "num_tokens", "packed")


def test_h24_rows_of_different_lengths_need_no_pickle() -> None:
    (objects, flat), expected, size = case_of("H24")
    error, value, _ = expected["cases"]
    assert "padded mask + lengths or flat mask + offsets" in error["message_should_name"]
    for word in ("object array", "pickle", "padded mask and its lengths", "flat mask and its off"):
        refusal(objects, word)
    with np.load(flat) as members:
        keep, lengths = masks.from_ragged(load_masks(flat, array="mask").keep, members["offsets"])
    must = value["must"]
    assert lengths.tolist() == must.pop("lengths")
    check(take_census(keep, size, axes="bt", lengths=lengths), must)


def test_e11_pickles_are_not_loaded() -> None:
    files, expected, _ = case_of("E11")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for path in files:
            refusal(path, *expected["message_should_name"])
    assert not caught


def test_e12_safetensors_that_are_damaged() -> None:
    files, expected, _ = case_of("E12")
    library("safetensors")
    assert expected["message_should_name"] == ["path", "not a complete safetensors file"]
    messages = {refusal(path, "must be a complete safetensors file") for path in files}
    assert len(messages) == len(files)


def test_e13_names_in_an_archive() -> None:
    (twice, empty, slash, positional), expected, _ = case_of("E13")
    for path, error in zip((twice, empty), expected["cases"], strict=False):
        refusal(path, *error["message_should_name"])
    for path, names in ((slash, ("/layer0/mask", "layer0/mask")), (positional, ("arr_0",))):
        keep = load_masks(path).keep
        assert keep.tolist() == [True] * 4 + [False] * 4
        for name in names:
            np.testing.assert_array_equal(load_masks(path, array=name).keep, keep)
            assert census_of_file(path, 4, array=name).num_freed_blocks == 1


def test_e15_a_header_of_numpy_integers() -> None:
    (path,), expected, _ = case_of("E15")
    assert expected["message_should_name"] == ["path", "header"]
    refusal(path, "header")


def test_e16_big_endian_integers() -> None:
    (mask, kept), expected, size = case_of("E16")
    lengths = CASES["E16"]["input"]["lengths"]
    first, second = expected["must"]["first"], expected["must"]["second"]
    assert load_masks(mask).keep.size == lengths[0]
    check(census_of_file(mask, size), first)
    refusal(kept, "from_indices")
    check(take_census(masks.from_indices(np.load(kept), lengths[1]), size), second)


def test_each_case_has_a_test() -> None:
    words = {word for name in globals() if name.startswith("test_") for word in name.split("_")}
    assert {name.lower() for name in CASES} <= words
