"""Masks on disk: round trips, and files that are not what they say."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvreclaim import SavedMasks, load_masks, mask_names, save_masks


@given(st.data())
def test_round_trip_is_exact(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=3))) + (
        data.draw(st.integers(0, 20)),
    )
    keep = np.random.default_rng(data.draw(st.integers(0, 9))).random(shape) < 0.5
    axes = "lhbt"[-len(shape) :]
    lengths = data.draw(st.sampled_from([None, np.arange(3)]))
    meta = data.draw(st.sampled_from([{}, {"policy": "mine", "budget": 0.5}]))
    path = tmp_path_factory.mktemp("masks") / "masks.npz"
    save_masks(path, keep, axes=axes, lengths=lengths, meta=meta, packed=data.draw(st.booleans()))
    saved = load_masks(path)
    np.testing.assert_array_equal(saved.keep, keep)
    assert saved.keep.dtype == np.bool_
    assert (saved.axes, saved.meta, saved.offset) == (axes, meta, 0)
    assert (saved.lengths is None) == (lengths is None)
    if lengths is not None:
        np.testing.assert_array_equal(saved.lengths, lengths)


def test_several_masks_in_one_file(tmp_path: Path) -> None:
    masks = {
        "first": SavedMasks(np.ones((2, 3), bool), None, "ht", {}, np.array([1, 0])),
        "some/second": SavedMasks(np.zeros(9, bool), np.array(4), "t", {"n": 1}),
    }
    path = tmp_path / "masks.npz"
    save_masks(path, masks)
    assert mask_names(path) == ("first", "some/second")
    for name, mask in masks.items():
        saved = load_masks(path, array=name)
        np.testing.assert_array_equal(saved.keep, mask.keep)
        np.testing.assert_array_equal(saved.offset, mask.offset)
        assert saved.meta == mask.meta
    with pytest.raises(ValueError, match=r"array must name one of the 2 masks .*'first', 'some/s"):
        load_masks(path)


def test_the_same_masks_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        save_masks(tmp_path / name, [[1, 0, 1]], axes="ht", meta={"b": 1, "a": 2})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    save_masks(path, [1, 0], axes="t")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="axes must end in 't'"):
        save_masks(path, [[1, 0]], axes="th")
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_masks(path, [1, 0], axes="t", meta={"a": object()})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["?", "u1", "<i8", ">i4"])
def test_plain_arrays(tmp_path: Path, dtype: str, order: Any) -> None:
    keep = np.random.default_rng(0).random((3, 5, 7)) < 0.5
    path = tmp_path / "mask.npy"
    np.save(path, np.asarray(keep.astype(dtype), order=order))
    np.testing.assert_array_equal(load_masks(path, axes="lht").keep, keep)
    np.testing.assert_array_equal(load_masks(path, polarity="evict").keep, ~keep)
    np.savez_compressed(tmp_path / "masks.npz", one=keep, two=~keep)
    np.testing.assert_array_equal(load_masks(tmp_path / "masks.npz", array="two").keep, ~keep)


def npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array)
    return buffer.getvalue()


def header(text: str, body: bytes = b"") -> bytes:
    line = text.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + body


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "must be a .npy or .npz file"),
        (b"1,0,1\n", "must be a .npy or .npz file"),
        (b"\x93NUMPY", "must be a .npy array"),
        (npy(np.ones(8, bool))[:-1], "must hold the 8 bytes that its header declares.*got 7"),
        (npy(np.ones(8, bool)) + b"x", "must hold the 8 bytes that its header declares.*got 9"),
        (header("{'descr': '|b1', 'fortran_order': False, 'shape': (-5,), }"), r"got \(-5,\)"),
        (header("{'descr': '|b1', 'fortran_order': False, 'shape': (True,), }"), r"got \(True,\)"),
        (header("{'descr': '|b1', 'fortran_order': False, 'shape': (10**23,), }"), "header that"),
        (
            header(f"{{'descr': '|b1', 'fortran_order': False, 'shape': ({10**23},), }}"),
            f"at most max_bytes={4 << 30} tokens; got {10**23}",
        ),
        (header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"), "never loaded"),
        (header("{'descr': '|b1', 'shape': (1,), }"), "header that numpy.save writes"),
        (header("[" * 9000), "header that numpy.save writes"),
        (npy(np.array([0.0, 1.0])), "keep must be True and False"),
        (npy(np.array(True)), "keep must have a token axis"),
        (b"PK\x03\x04nothing", "must be a whole .npz archive"),
    ],
)
def test_damaged_files_are_refused_in_one_sentence(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "mask.npy"
    path.write_bytes(content)
    with pytest.raises((TypeError, ValueError), match=words) as raised:
        load_masks(path)
    message = str(raised.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    for advice in ("allow_pickle", "weights_only", "unsafe"):
        assert advice not in message


def archive(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)


BITS = npy(np.array([0b10100000], np.uint8))


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({}, "an archive of no arrays"),
        ({"bits.npy": BITS}, "must stand beside num_tokens"),
        ({"bits.npy": BITS, "num_tokens.npy": npy(np.array(9))}, "for 9 tokens"),
        ({"bits.npy": BITS, "num_tokens.npy": npy(np.array(-1))}, "for -1 tokens"),
        ({"bits.npy": BITS, "num_tokens.npy": npy(np.array(3.0))}, "integer num_tokens"),
        ({"bits.npy": BITS, "keep.npy": npy(np.ones(3, bool))}, "must stand without bits"),
        ({"keep.npy": npy(np.ones(3, bool)), "axes.npy": npy(np.array(1))}, "must be one string"),
        ({"keep.npy": npy(np.ones(3, bool))[:-1]}, "must hold the 3 bytes"),
    ],
)
def test_damaged_archives_are_refused(
    tmp_path: Path, members: dict[str, bytes], words: str
) -> None:
    path = tmp_path / "masks.npz"
    archive(path, members)
    with pytest.raises(ValueError, match=words):
        load_masks(path)


def test_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    with zipfile.ZipFile(path, "w") as file, pytest.warns(UserWarning, match="Duplicate name"):
        file.writestr("keep.npy", npy(np.ones(3, bool)))
        file.writestr("keep.npy", npy(np.zeros(3, bool)))
    with pytest.raises(ValueError, match="must hold each name once"):
        load_masks(path)


def test_max_bytes_counts_unpacked_tokens(tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    save_masks(path, np.ones(100, bool), axes="t")
    assert load_masks(path, max_bytes=100).keep.size == 100
    with pytest.raises(ValueError, match="at most max_bytes=99 tokens; got 100"):
        load_masks(path, max_bytes=99)


def test_axes_of_the_file_are_not_overruled(tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    save_masks(path, [[1, 0]], axes="ht")
    with pytest.raises(ValueError, match="axes must be those that .* names itself"):
        load_masks(path, axes="lt")
    assert load_masks(path, axes="ht").axes == "ht"


def test_lengths_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "mask.npy"
    np.save(path, np.array([[1, 0], [1, 1]], bool))
    lengths = load_masks(path, axes="bt", lengths=[1, 2]).lengths
    assert json.dumps(np.asarray(lengths).tolist()) == "[1, 2]"
