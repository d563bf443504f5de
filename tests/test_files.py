"""Masks on disk: every format, round trips, counting in a stream, and files that lie.

What a file may hold stands in tables: `FORMS`, the same mask in each format, and `REFUSED`, what is
no mask. Files of the optional packages are tested where these are installed; in CI they must be.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import io
import json
import os
import stat
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from optional import library
from strategies import Case, cases

from kvreclaim import (
    BlockPool,
    SavedMasks,
    load_masks,
    mask_names,
    occupancy,
    open_masks,
    save_masks,
    take_census,
)
from kvreclaim.files import census_of_file

Tmp = pytest.TempPathFactory
UNSHARED = BlockPool(4, shared_axes="")


def npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array)
    return buffer.getvalue()


def header(text: str, body: bytes = b"") -> bytes:
    line = text.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + body


def npz(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


# --- Counting in a stream ---


@given(cases(), st.data())
def test_a_file_is_counted_as_its_mask(
    tmp_path_factory: Tmp, case: Case, data: st.DataObject
) -> None:
    evicted = data.draw(st.booleans(), "evicted")
    keep = case.keep
    if evicted:
        keep = ~keep | (beyond(case) & np.random.default_rng(0).integers(0, 2, keep.shape, "?"))
    dtype = data.draw(st.sampled_from(["?", "u1", "i1", "<i2", ">i4", "<u8"]), "dtype")
    order = data.draw(st.sampled_from("CF"), "order")
    stored = np.asarray(keep.astype(dtype), order=order)  # type: ignore[call-overload]
    folder = tmp_path_factory.mktemp("masks")
    if data.draw(st.booleans(), "npz"):
        path = folder / "masks.npz"
        save = data.draw(st.sampled_from([np.savez, np.savez_compressed]), "compressed")
        save(path, other=~keep, mask=stored)
    else:
        path = folder / "mask.npy"
        np.save(path, stored)
    polarity: Literal["keep", "evict"] = "evict" if evicted else "keep"
    name = "mask" if path.suffix == ".npz" else None
    seen: list[tuple[int, int]] = []
    with mock.patch.object(occupancy, "PIECE", data.draw(st.sampled_from([1, 64, 500, 1 << 20]))):
        census = census_of_file(
            path,
            case.pool,
            array=name,
            polarity=polarity,
            progress=lambda *done: seen.append(done),
            **case.said,
        )
        expected = take_census(case.keep, case.pool, **case.said)
        assert census == expected
        if case.keep.size:
            assert seen == sorted(seen)
            assert seen[-1] == (case.keep.size, case.keep.size)
        if not evicted:
            loaded = load_masks(path, array=name, axes=case.said["axes"])
            assert take_census(loaded.keep, case.pool, **case.said) == expected


@given(cases(), st.data())
def test_a_file_of_our_own_is_counted_as_its_mask(
    tmp_path_factory: Tmp, case: Case, data: st.DataObject
) -> None:
    saved = saved_of(case)
    evicted, axis = data.draw(st.booleans(), "evicted"), case.said["axes"].index("t")
    if evicted:
        saved = saved._replace(keep=~saved.keep & ~np.moveaxis(beyond(case), axis, -1))
    path = tmp_path_factory.mktemp("masks") / data.draw(st.sampled_from(suffixes()))
    save_masks(path, {"one": saved, "some/two": saved}, packed=data.draw(st.booleans(), "packed"))
    polarity: Literal["keep", "evict"] = "evict" if evicted else "keep"
    with mock.patch.object(occupancy, "PIECE", data.draw(st.sampled_from([1, 64, 500, 1 << 20]))):
        census = census_of_file(path, case.pool, array="some/two", polarity=polarity)
        assert census == take_census(case.keep, case.pool, **case.said)
        with contextlib.suppress(ValueError):  # lengths need the pool where it decides their axes
            loaded = load_masks(path, array="some/two", polarity=polarity)
            again = take_census(
                loaded.keep,
                case.pool,
                axes=loaded.axes,
                lengths=loaded.lengths,
                offset=loaded.offset,
            )
            assert again == census


def beyond(case: Case) -> NDArray[np.bool_]:
    """Return which places of a mask are beyond the lengths."""
    if "lengths" not in case.said:
        return np.zeros_like(case.keep)
    axes, shape = case.said["axes"], case.keep.shape
    sizes = [
        1 if c == "t" or c in case.pool.shared_axes else n for c, n in zip(axes, shape, strict=True)
    ]
    positions = np.arange(shape[axes.index("t")]).reshape([-1 if c == "t" else 1 for c in axes])
    lengths = np.reshape(case.said["lengths"], sizes)
    return np.broadcast_to(positions >= lengths, shape)


def saved_of(case: Case) -> SavedMasks:
    """Return a mask as a file of our own holds it, tokens last."""
    axes = case.said["axes"]
    return SavedMasks(
        keep=np.moveaxis(case.keep, axes.index("t"), -1),
        lengths=case.said.get("lengths"),
        axes=axes.replace("t", "") + "t",
        meta={},
        offset=case.said.get("offset", 0),
    )


def suffixes() -> list[str]:
    """Return the names that `save_masks` takes, as far as their packages are here."""
    return ["masks.npz"] + ["masks.safetensors"] * (
        importlib.util.find_spec("safetensors") is not None
    )


# --- One mask in every format ---

KEEP = np.array([[1, 1, 0, 0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 0, 0, 0, 0, 0, 1]], bool)
KEPT = [[0, 1, 7, 8], [3, 9]]
RUNS = [[[0, 2], [7, 9]], [[3, 4], [9, 10]]]
AXES = npy(np.array("ht"))
TEN = npy(np.array(10))
PACKED = {"num_tokens.npy": TEN, "axes.npy": AXES}


class Form(NamedTuple):
    """A file, and what it says of its mask beside `KEEP`."""

    file: str
    make: bytes | Callable[[Path], object]
    axes: str | None = None
    array: str | None = None


def of_json(**document: object) -> bytes:
    return json.dumps(document).encode()


def pt(make: Callable[[Any], object]) -> Callable[[Path], None]:
    """Return a function that writes what `make` makes of a tensor of `KEEP`."""

    def write(path: Path) -> None:
        torch = library("torch")
        torch.save(make(torch.tensor(KEEP)), path)

    return write


def parquet(columns: Mapping[str, object], **notes: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        pyarrow, tables = library("pyarrow"), library("pyarrow.parquet")
        table = pyarrow.table(columns).replace_schema_metadata(notes)
        tables.write_table(table, path)

    return write


def parquet_of_empty_lists(path: Path) -> None:
    arrow = library("pyarrow")
    parquet({"keep": arrow.array([[], []], arrow.list_(arrow.bool_()))})(path)


def parquet_of_a_name_twice(path: Path) -> None:
    column = library("pyarrow").array([[True]])
    table = library("pyarrow").table([column, column], names=["mask", "mask"])
    library("pyarrow.parquet").write_table(table, path)


def zarr(
    arrays: Mapping[str, NDArray[Any]], version: int = 3, **attributes: object
) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        root = library("zarr").open_group(path, mode="w", zarr_format=version)
        for name, array in arrays.items():
            made = root.create_array(name, shape=array.shape, dtype=array.dtype)
            made[...] = array
            made.attrs.update(attributes)

    return write


def zarr_array(path: Path) -> None:
    array = library("zarr").create_array(path, data=KEEP.astype("<i4"), chunks=(1, 4))
    array.attrs["axes"] = "ht"


def safetensors(
    tensors: Mapping[str, NDArray[Any]], notes: Mapping[str, str] | None = None
) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        path.write_bytes(library("safetensors.numpy").save(dict(tensors), notes))

    return write


LITTLE = np.packbits(KEEP, axis=-1, bitorder="little")
FORMS = {
    "npy": Form("a.npy", npy(KEEP)),
    "npy of another version": Form(
        "a.npy", npy(KEEP).replace(b"\x01\x00v\x00", b"\x02\x00v\x00\x00\x00")
    ),
    "npy in Fortran order": Form("a.npy", npy(np.asfortranarray(KEEP))),
    "npy of uint8": Form("a.npy", npy(KEEP.astype("u1"))),
    "npy of big-endian integers": Form("a.npy", npy(KEEP.astype(">i8"))),
    "npz": Form("a.npz", npz({"mask.npy": npy(KEEP)})),
    "npz, deflated": Form("a.npz", npz({"mask.npy": npy(KEEP)}, zipfile.ZIP_DEFLATED)),
    "npz with more in it": Form(
        "a.npz", npz({"readme.txt": b"0", "folder/": b"", "mask.npy": npy(KEEP)})
    ),
    "npz of several": Form(
        "a.npz", npz({"/l/mask.npy": npy(KEEP), "o.npy": npy(~KEEP)}), array="l/mask"
    ),
    "own, booleans": Form("a.npz", npz({"keep.npy": npy(KEEP), "axes.npy": AXES}), "ht"),
    "own, bits": Form("a.npz", npz({"bits.npy": npy(np.packbits(KEEP, axis=-1))} | PACKED), "ht"),
    "own, little bits in Fortran order": Form(
        "a.npz",
        npz(
            {"bits.npy": npy(np.asfortranarray(LITTLE)), "bitorder.npy": npy(np.array("little"))}
            | PACKED
        ),
        "ht",
    ),
    "own, of a name": Form(
        "a.npz", npz({"m/keep.npy": npy(KEEP), "m/axes.npy": AXES, "k.npy": TEN}), "ht", "m"
    ),
    "text": Form("a.txt", b"1100000110\n0001000001\n"),
    "csv": Form("a.csv", b"1,1,0,0,0,0,0,1,1,0\n0,0,0,1,0,0,0,0,0,1"),
    "csv of a spreadsheet": Form(
        "a.csv", b"\xef\xbb\xbf1;1;0;0;0;0;0;1;1;0\r\n0;0;0;1;0;0;0;0;0;1\r\n"
    ),
    "savetxt": Form("a.txt", b"1 1 0 0 0 0 0 1 1 0\n0 0 0 1 0 0 0 0 0 1\n"),
    "json of 0 and 1": Form("a.json", json.dumps(KEEP.astype(int).tolist()).encode()),
    "json of booleans": Form("a.json", b"\xef\xbb\xbf \r\n" + json.dumps(KEEP.tolist()).encode()),
    "json of positions": Form("a.json", of_json(axes="ht", num_tokens=10, kept=KEPT), "ht"),
    "json of runs": Form("a.json", of_json(axes="ht", num_tokens=10, runs=RUNS), "ht"),
    "json of a mask": Form("a.json", of_json(axes="ht", keep=KEEP.tolist(), meta={}), "ht"),
    "json of a name": Form("a.json", of_json(m={"keep": KEEP.tolist()}, o=[0, 1]), array="m"),
    "json lines": Form("a.jsonl", b"[1,1,0,0,0,0,0,1,1,0]\r\n\r\n[0,0,0,1,0,0,0,0,0,1]\r\n"),
    "json lines of positions": Form(
        "a", b"".join(of_json(num_tokens=10, kept=row) + b"\n" for row in KEPT)
    ),
    "json lines of runs": Form(
        "a", b"".join(of_json(axes="t", num_tokens=10, runs=row) + b"\n" for row in RUNS), "bt"
    ),
    "safetensors": Form("a", safetensors({"mask": KEEP})),
    "safetensors of integers": Form("a.safetensors", safetensors({"mask": KEEP.astype("i8")})),
    "safetensors, own names": Form("a", safetensors({"keep": KEEP}, {"axes": "ht"}), "ht"),
    "safetensors, own bits": Form(
        "a",
        safetensors(
            {"m/bits": LITTLE},
            {"m/axes": "ht", "m/num_tokens": "10", "m/bitorder": "little", "axes": "lt"},
        ),
        "ht",
    ),
    "pt": Form("a.pt", pt(lambda keep: keep)),
    "pt of integers": Form("a.pt", pt(lambda keep: {"mask": keep.int()})),
    "pt, transposed": Form("a.pt", pt(lambda keep: keep.T.contiguous().T)),
    "pt, sparse": Form("a.pt", pt(lambda keep: keep.to_sparse())),
    "pt of a list": Form("a.pt", pt(lambda keep: {"l": [~keep, keep], "n": 1}), array="l/1"),
    "pt of own names": Form(
        "a.pt", pt(lambda keep: {"keep": keep, "axes": "ht", "meta": {}}), "ht"
    ),
    "parquet": Form("a.parquet", parquet({"mask": KEEP.tolist(), "text": ["a", "b"]})),
    "parquet of integers": Form(
        "a.parquet", parquet({"keep": KEEP.astype(int).tolist()}, axes="ht"), "ht"
    ),
    "parquet of bits": Form(
        "a.parquet",
        parquet(
            {"bits": [row.tobytes() for row in LITTLE], "num_tokens": [10, 10]},
            axes="ht",
            bitorder="little",
        ),
        "ht",
    ),
    "zarr": Form("a.zarr", zarr({"mask": KEEP})),
    "zarr of version 2": Form("a.zarr", zarr({"mask": KEEP}, 2, axes="ht"), "ht"),
    "zarr of an array": Form("a.zarr", zarr_array, "ht"),
    "zarr of several": Form("a.zarr", zarr({"a/b/m": KEEP, "o": ~KEEP}), array="a/b/m"),
    "zarr of bits": Form(
        "a.zarr", zarr({"m": LITTLE}, num_tokens=10, bitorder="little", axes="ht"), "ht"
    ),
}


def written(folder: Path, form: Form) -> Path:
    path = folder / form.file
    if isinstance(form.make, bytes):
        path.write_bytes(form.make)
    else:
        form.make(path)
    return path


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_format_gives_the_same_mask(tmp_path: Path, form: Form) -> None:
    path = written(tmp_path, form)
    saved = load_masks(path, array=form.array)
    np.testing.assert_array_equal(saved.keep, KEEP)
    assert saved.keep.dtype == np.bool_
    assert (saved.axes, saved.lengths, saved.offset, saved.meta) == (form.axes, None, 0, {})
    assert form.array in (None, *(name.removeprefix("/") for name in mask_names(path)))

    axes = form.axes or "ht"
    assert load_masks(path, array=form.array, axes=axes).axes == axes
    for pool in (BlockPool(2), BlockPool(3, shared_axes="")):
        census = census_of_file(path, pool, array=form.array, axes=axes)
        assert census == take_census(KEEP, pool, axes=axes)
    if isinstance(form.make, bytes) and any(word in form.make for word in (b'"kept"', b'"runs"')):
        for read in (load_masks, functools.partial(census_of_file, pool=2, axes=axes)):
            with pytest.raises(
                ValueError, match="polarity must be 'keep' for what a file lists as"
            ):
                read(path, polarity="evict")
    else:
        turned = load_masks(path, array=form.array, polarity="evict").keep
        np.testing.assert_array_equal(turned, ~KEEP)
        for pool in (BlockPool(2), BlockPool(3, shared_axes="")):
            census = census_of_file(path, pool, array=form.array, axes=axes, polarity="evict")
            assert census == take_census(~KEEP, pool, axes=axes)
    with pytest.raises(ValueError, match=r"max_bytes=19"):
        load_masks(path, array=form.array, max_bytes=19)


@pytest.mark.parametrize("form", [form for form in FORMS.values() if form.file != "a.zarr"])
def test_files_that_are_open_and_standard_input(
    tmp_path: Path, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, form)
    content = path.read_bytes()
    with path.open("rb") as file:
        file.read(3)
        np.testing.assert_array_equal(load_masks(file, array=form.array).keep, KEEP)
        assert not file.closed
        assert mask_names(file) == mask_names(path)
    monkeypatch.setattr(sys, "stdin", mock.Mock(buffer=io.BytesIO(content)))
    axes = form.axes or "ht"
    census = census_of_file("-", 4, array=form.array, axes=axes)
    assert census == take_census(KEEP, 4, axes=axes)
    monkeypatch.setattr(sys, "stdin", mock.Mock(buffer=io.BytesIO(content)))
    with pytest.raises(ValueError, match=r"standard input must be at most max_bytes=9 bytes long"):
        load_masks("-", max_bytes=9)


def test_rows_of_different_lengths(tmp_path: Path) -> None:
    keep = np.array([[1, 0, 1, 0], [1, 1, 0, 0]], bool)
    files: dict[str, bytes | Callable[[Path], object]] = {
        "a.jsonl": b'{"num_tokens": 4, "kept": [2, 0]}\n{"num_tokens": 3, "runs": [[0, 2]]}',
        "b.jsonl": b"[1, 0, 1, 0]\n[1, 1, 0]",
        "c.json": of_json(axes="bt", num_tokens=4, lengths=[4, 3], kept=[[0, 2], [1, 0]]),
    }
    with contextlib.suppress(pytest.skip.Exception):
        library("pyarrow")
        files |= {
            "d.parquet": parquet({"keep": [[True, False, True, False], [True, True, False]]}),
            "e.parquet": parquet({"bits": [b"\xa0", b"\xc0"], "num_tokens": [4, 3]}),
        }
    for name, make in files.items():
        path = written(tmp_path, Form(name, make))
        saved = load_masks(path, axes="bt")
        np.testing.assert_array_equal(saved.keep, keep)
        np.testing.assert_array_equal(saved.lengths, [4, 3])
        assert census_of_file(path, 2, axes="bt").num_tokens == 7
        if name not in ("a.jsonl", "c.json"):  # lists of what is kept
            turned = load_masks(path, axes="bt", polarity="evict").keep
            np.testing.assert_array_equal(turned, [[0, 1, 0, 1], [0, 0, 1, 0]])


@pytest.mark.parametrize("form", ["kept", "runs"])
@pytest.mark.parametrize("rows", [(), (2,), (3, 2)])
def test_lists_in_lists_are_rows_whose_letters_the_caller_names(
    tmp_path: Path, rows: tuple[int, ...], form: str
) -> None:
    keep = np.random.default_rng(3).random((*rows, 12)) < 0.5
    keep[(0,) * len(rows)] = False  # an empty list tells nothing of what may lie in it

    def listed(part: NDArray[np.bool_]) -> list[Any]:
        if part.ndim > 1:
            return [listed(each) for each in part]
        kept: list[int] = np.flatnonzero(part).tolist()
        return kept if form == "kept" else [[i, i + 1] for i in kept]

    path = tmp_path / "a.json"
    path.write_bytes(of_json(num_tokens=12, **{form: listed(keep)}))
    axes = "lht"[-keep.ndim :]
    np.testing.assert_array_equal(load_masks(path, axes=axes).keep, keep)
    assert census_of_file(path, 4, axes=axes) == take_census(keep, 4, axes=axes)


def test_lines_keep_their_notes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"[1, 0]\n" + of_json(keep=[1], meta={"name": "second"}))
    assert load_masks(path).meta == {"lines": [{}, {"name": "second"}]}


def test_what_json_says_of_its_mask(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(
        of_json(
            axes="bt",
            num_tokens=2,
            kept=[[0], []],
            lengths=[2, 1],
            offset=[1, 0],
            born_at=[0, 0],
            evicted_at=[[9, 1], [2, 0]],
            meta={"n": [1]},
        )
    )
    saved = load_masks(path)
    assert saved.meta == {"n": [1]}
    assert np.asarray(saved.offset).tolist() == [1, 0]
    assert np.asarray(saved.born_at).tolist() == [0, 0]
    assert np.asarray(saved.evicted_at).tolist() == [[9, 1], [2, 0]]
    path.write_bytes(b'{"num_tokens": 3, "kept": [], "offset": 2}\n[1]')
    assert np.asarray(load_masks(path).offset).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (npy(np.zeros((3, 0), bool)), (3, 0)),
        (npy(np.zeros((0, 3), ">i2")), (0, 3)),
        (b"[]", (0,)),
        (b"[[], []]", (2, 0)),
        (of_json(num_tokens=0, kept=[]), (0,)),
        (of_json(axes="ht", num_tokens=3, runs=[]), (0, 3)),
        (b'{"num_tokens": 0, "kept": []}\n' * 2, (2, 0)),
        (safetensors({"mask": np.zeros((2, 0), bool)}), (2, 0)),
        (pt(lambda keep: keep[:, :0]), (2, 0)),
        (parquet_of_empty_lists, (2, 0)),
    ],
)
def test_masks_of_nothing(
    tmp_path: Path, make: bytes | Callable[[Path], object], shape: tuple[int, ...]
) -> None:
    path = written(tmp_path, Form("a", make))
    name = mask_names(path)[0]
    assert load_masks(path, array=name).keep.shape == shape
    census = census_of_file(path, UNSHARED, array=name)
    assert census == take_census(np.zeros(shape, bool), UNSHARED)


def test_what_a_dict_of_torch_says_of_its_mask(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    pt(lambda keep: {"m": {"keep": keep, "axes": "bt", "lengths": [9, 10], "meta": {"a": 1}}})(path)
    saved = load_masks(path, array="m")
    assert saved.meta == {"a": 1}
    np.testing.assert_array_equal(saved.lengths, [9, 10])


# --- Several masks of one file ---


def test_a_file_that_is_open_gives_each_of_its_masks(tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    masks: dict[str, Any] = {f"{i}": np.arange(64) % (i + 2) == 0 for i in range(5)}
    np.savez(path, **masks)
    with open_masks(path) as held:
        assert repr(held) == f"<open {str(path)!r}: 5 masks>"
        assert mask_names(held) == tuple(masks)
        for name, keep in [*masks.items(), *masks.items()]:
            np.testing.assert_array_equal(load_masks(held, array=name).keep, keep)
            assert census_of_file(held, 4, array=name) == take_census(keep, 4)
        with open_masks(held) as again:
            assert again is held
        assert mask_names(held) == tuple(masks)
    assert repr(held) == f"<closed {str(path)!r}: 5 masks>"
    for call in (mask_names, load_masks, functools.partial(census_of_file, pool=4)):
        with pytest.raises(ValueError, match=r"path must be a file that is open; got .*masks\.npz"):
            call(held)


def test_a_file_that_is_open_is_opened_once(tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    np.savez(path, a=KEEP, b=KEEP)
    with (
        mock.patch.object(zipfile, "ZipFile", wraps=zipfile.ZipFile) as opened,
        open_masks(path) as held,
    ):
        for name in mask_names(held):
            census_of_file(held, 4, axes="ht", array=name)
            load_masks(held, array=name)
    assert opened.call_count == 1


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_file_that_is_open_gives_its_mask_as_often_as_asked(tmp_path: Path, form: Form) -> None:
    path, axes = written(tmp_path, form), form.axes or "ht"
    with open_masks(path) as held:
        for _ in range(2):
            census = census_of_file(held, 4, array=form.array, axes=axes)
            assert census == take_census(KEEP, 4, axes=axes)
            np.testing.assert_array_equal(load_masks(held, array=form.array).keep, KEEP)


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_readers_of_one_open_file_do_not_disturb_each_other(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"mask.{suffix}"
    keep = np.random.default_rng(0).random((40, 64)) < 0.5
    if suffix == "npy":
        np.save(path, keep)
    else:
        np.savez(path, keep)
    census = take_census(keep, UNSHARED, axes="bt")

    def meanwhile(*_: int) -> None:
        np.testing.assert_array_equal(load_masks(held).keep, keep)

    with mock.patch.object(occupancy, "PIECE", 64), open_masks(path) as held:
        assert census_of_file(held, UNSHARED, axes="bt", progress=meanwhile) == census
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda _: census_of_file(held, UNSHARED, axes="bt"), range(8))
            assert list(found) == [census] * 8


@pytest.mark.parametrize("package", ["safetensors", "zarr"])
def test_masks_come_in_the_same_order_each_time(tmp_path: Path, package: str) -> None:
    names = [f"m{number:02}" for number in range(20)]
    if package == "zarr":
        path, zarr = tmp_path / "a.zarr", library("zarr")
        root = zarr.open_group(path, mode="w")
        for name in reversed(names):
            root[name] = KEEP
    else:
        library("safetensors")
        path = tmp_path / "a.safetensors"
        save_masks(path, {name: SavedMasks(KEEP, None, "ht", {}) for name in reversed(names)})
    for _ in range(5):
        assert mask_names(path) == tuple(names)


def test_damage_names_the_mask_that_has_it_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    with path.open("wb") as file:
        np.savez(file, a=KEEP, b=KEEP)
    content = bytearray(path.read_bytes())
    content[content.rindex(KEEP.tobytes())] ^= 1
    path.write_bytes(content)
    with open_masks(path) as held:
        np.testing.assert_array_equal(load_masks(held, array="a").keep, KEEP)
        with pytest.raises(ValueError, match="array 'b' must be whole; got one that is damaged"):
            load_masks(held, array="b")
    with open_masks(path) as held, pytest.raises(ValueError, match="array 'b' must be whole"):
        census_of_file(held, 4, axes="ht", array="b")


def test_a_file_that_changes_while_it_is_open_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    np.savez(path, a=KEEP, b=KEEP)
    with contextlib.ExitStack() as stack:
        stack.enter_context(open_masks(path))
        path.write_bytes(path.read_bytes() + b" ")
        with pytest.raises(ValueError, match="must stay as it is while it is read"):
            stack.close()


# --- Round trips ---

NAMES = st.one_of(st.just(""), st.text("ab/.é ", min_size=1, max_size=6)).filter(
    lambda name: name.strip("/") == name
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
JSON = (
    SCALARS
    | st.lists(SCALARS, max_size=3)
    | st.dictionaries(st.text(), st.lists(SCALARS, max_size=3), max_size=3)
)


@st.composite
def saved_masks(draw: st.DrawFn) -> SavedMasks:
    shape = (*draw(st.lists(st.integers(0, 4), max_size=3)), draw(st.integers(0, 20)))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    keep = rng.random(shape) < 0.5
    if draw(st.booleans()):
        keep = np.asfortranarray(keep)[..., ::-1]
    lengths = rng.integers(0, shape[-1] + 1, shape[:-1]) if draw(st.booleans()) else None
    if lengths is not None:
        keep &= np.arange(shape[-1]) < lengths[..., None]
    offset = rng.integers(0, 5, shape[:-1]) if draw(st.booleans()) else 0
    times: tuple[NDArray[Any] | None, ...] = (None, None)
    if draw(st.booleans()):
        dtype = draw(st.sampled_from(["i4", "i8"]))
        times = (np.zeros(shape[-1], dtype), rng.integers(0, 9, shape).astype(dtype))
    meta = draw(st.dictionaries(st.text(), JSON, max_size=3))
    return SavedMasks(keep, lengths, "lhbt"[-len(shape) :], meta, offset, *times)


@given(st.dictionaries(NAMES, saved_masks(), min_size=1, max_size=3), st.booleans(), st.data())
def test_round_trips_are_exact(
    tmp_path_factory: Tmp, masks: dict[str, SavedMasks], packed: bool, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("masks") / data.draw(st.sampled_from(suffixes()))
    save_masks(path, masks, packed=packed)
    assert sorted(mask_names(path)) == sorted(masks)
    for name, mask in masks.items():
        assert_same(load_masks(path, array=name), mask)
    mask = next(iter(masks.values()))
    save_masks(path, mask, packed=packed)
    assert_same(load_masks(path), mask)
    before = path.read_bytes()
    save_masks(path, load_masks(path), packed=packed)
    assert path.read_bytes() == before


def assert_same(saved: SavedMasks, mask: SavedMasks) -> None:
    assert (saved.axes, saved.meta) == (mask.axes, mask.meta)
    np.testing.assert_array_equal(saved.keep, mask.keep)
    assert saved.keep.dtype == np.bool_
    np.testing.assert_array_equal(saved.offset, mask.offset)
    for got, wanted in (
        (saved.lengths, mask.lengths),
        (saved.born_at, mask.born_at),
        (saved.evicted_at, mask.evicted_at),
    ):
        assert (got is None) == (wanted is None)
        if got is not None and wanted is not None:
            np.testing.assert_array_equal(got, wanted)
            if got.size:
                assert got.dtype == wanted.dtype


def test_a_mask_is_saved_with_what_is_said_of_it(tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    save_masks(path, [[1, 0, 1]], axes="bt", lengths=[3], meta={"policy": "mine"})
    saved = load_masks(path)
    assert (saved.axes, np.asarray(saved.lengths).tolist()) == ("bt", [3])
    assert saved.meta == {"policy": "mine"}
    with np.load(path) as plain:
        assert set(plain) == {"bits", "num_tokens", "bitorder", "axes", "lengths", "meta"}


def test_names_are_listed_where_there_are_several(tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    path.write_bytes(npz({f"{i}.npy": npy(KEEP) for i in range(30)}))
    assert len(mask_names(path)) == 30
    with pytest.raises(
        ValueError, match=r"one of the 30 masks .*'0', '1', .* and 10 more\); got none"
    ):
        load_masks(path)
    with pytest.raises(ValueError, match=r"array must name .*; got 'x'; write such as array='0'"):
        load_masks(path, array="x")


def test_arguments_of_other_kinds_are_named(tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    save_masks(path, KEEP, axes="ht")
    calls: list[Callable[..., object]] = [load_masks, functools.partial(census_of_file, pool=2)]
    for call in calls:
        for said, words in {
            "array": "array must be the name of a mask; got a ndarray; write such as 'keep'",
            "progress": "progress must be a function of two numbers, or None; got ",
        }.items():
            with pytest.raises(TypeError, match=words):
                call(path, **{said: KEEP})
    with pytest.raises(TypeError, match="meta must be a dict; got a ndarray; write one"):
        save_masks(path, KEEP, axes="ht", meta=KEEP)  # type: ignore[arg-type]  # refused
    with pytest.raises(ValueError, match="of at most 10000 characters"):
        save_masks(path, {"a" * 10_001: SavedMasks(KEEP, None, "ht", {})})
    longest = "\U0001f600" * 10_000
    save_masks(path, {longest: SavedMasks(KEEP, None, "ht", {})})
    assert mask_names(path) == (longest,)


def test_a_file_that_is_closed_or_cannot_seek_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    save_masks(path, KEEP, axes="ht")
    closed = path.open("rb")
    closed.close()
    out, into = os.pipe()
    with os.fdopen(out, "rb") as pipe, os.fdopen(into, "wb"):
        for name in ("", "a\0b.npy"):
            with pytest.raises(ValueError, match="path must name a file; got '"):
                load_masks(name)
        with pytest.raises(TypeError, match="got open_masks itself; write with open_masks"):
            mask_names(open_masks(path))  # type: ignore[arg-type]  # refused
        for source in (closed, pipe, KEEP, io.StringIO("01"), 3, None):
            with pytest.raises(TypeError, match=r"path must be .* file that is open and can seek"):
                load_masks(source)  # type: ignore[arg-type]  # refused


@pytest.mark.parametrize("packed", [True, False])
def test_the_mask_without_a_name_is_keep_too(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "masks.npz"
    save_masks(path, KEEP, axes="ht", packed=packed)
    census = take_census(KEEP, 4, axes="ht")
    for array in (None, "", "keep"):
        np.testing.assert_array_equal(load_masks(path, array=array).keep, KEEP)
        assert census_of_file(path, 4, array=array) == census
    with pytest.raises(ValueError, match=r"one of the 1 masks .* \(''\); got 'kee';"):
        load_masks(path, array="kee")
    for name in ("keep", "/keep"):
        path.write_bytes(npz({f"{name}.npy": npy(KEEP), "other.npy": npy(~KEEP)}))
        np.testing.assert_array_equal(load_masks(path, array="keep").keep, KEEP)
        np.testing.assert_array_equal(load_masks(path, array="other").keep, ~KEEP)
    np.save(tmp_path / "mask.npy", KEEP)
    np.testing.assert_array_equal(load_masks(tmp_path / "mask.npy", array="keep").keep, KEEP)


@pytest.mark.parametrize("name", ["keep", "/keep"])
def test_a_mask_whose_name_is_keep_comes_before_one_without(tmp_path: Path, name: str) -> None:
    path = tmp_path / "masks.npz"
    path.write_bytes(npz({"keep.npy": npy(~KEEP), f"{name}/keep.npy": npy(KEEP)}))
    assert mask_names(path) == ("", name)
    np.testing.assert_array_equal(load_masks(path, array="keep").keep, KEEP)
    np.testing.assert_array_equal(load_masks(path, array="").keep, ~KEEP)
    path.write_bytes(npz({"other.npy": npy(KEEP), "more.npy": npy(KEEP)}))
    with pytest.raises(ValueError, match=r"one of the 2 masks .*; got 'keep';"):
        load_masks(path, array="keep")


def test_a_file_and_its_caller_do_not_contradict_each_other(tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    mask = SavedMasks(KEEP[:, :3], np.array([3, 3]), "bt", {}, np.array([1, 0]))
    save_masks(path, mask)
    assert load_masks(path, axes="bt", lengths=[3, 3]).axes == "bt"
    census_of_file(path, 2, axes="bt", lengths=[3, 3], offset=[1, 0])
    for said in ({"axes": "ht"}, {"lengths": [3, 2]}, {"offset": [0, 1]}):
        with pytest.raises(
            ValueError, match=f"{next(iter(said))} must be those that the file names"
        ):
            census_of_file(path, 2, **said)


def test_lengths_that_could_belong_to_several_axes(tmp_path: Path) -> None:
    path = tmp_path / "mask.npy"
    np.save(path, np.ones((2, 2, 3), bool))
    assert not census_of_file(
        path, BlockPool(2, shared_axes="h"), axes="lht", lengths=[3, 2], polarity="evict"
    ).num_live_entries
    with pytest.raises(ValueError, match="lengths must have one axis for each"):
        load_masks(path, axes="lht", lengths=[3, 2], polarity="evict")


# --- What stands beside plain arrays ---

# Of two sequences, of 4 and 3 tokens; what is evicted is True in the padding too.
PADDED = np.array([[1, 0, 1, 0], [1, 1, 0, 0]], bool)
FOUR_AND_THREE = np.array([4, 3])


def of_names(**arrays: object) -> bytes:
    return npz({f"{name}.npy": npy(np.asarray(array)) for name, array in arrays.items()})


def pt_beside(beside: Callable[[Any], Mapping[str, object]]) -> Callable[[Path], None]:
    """Return a function that writes what is evicted, and what `beside` makes of torch."""

    def write(path: Path) -> None:
        torch = library("torch")
        torch.save({"evicted": torch.tensor(~PADDED), **beside(torch)}, path)

    return write


def zarr_beside(
    arrays: Mapping[str, NDArray[Any]], of_group: Mapping[str, object], **of_mask: object
) -> Callable[[Path], None]:
    """Return a function that writes arrays, and attributes of their group and of one of them."""

    def write(path: Path) -> None:
        zarr(arrays)(path)
        root = library("zarr").open_group(path, mode="r+")
        root.attrs.update(of_group)
        root["evicted"].attrs.update(of_mask)

    return write


ROWS = (~PADDED).tolist()
BESIDE: dict[str, tuple[str, bytes | Callable[[Path], object]]] = {
    "npz": ("a.npz", of_names(evicted=~PADDED, lengths=[4, 3], axes="bt")),
    "npz of a folder": (
        "a.npz",
        of_names(**{"l/evicted": ~PADDED, "l/lengths": [4, 3], "l/axes": "bt"}),
    ),
    "npz of folders within": (
        "a.npz",
        of_names(**{"/l/m/evicted": ~PADDED, "axes": "bt", "/l/lengths": [4, 3], "lengths": 0}),
    ),
    "npz of its own": (
        "a.npz",
        of_names(**{"evicted/lengths": [4, 3], "evicted": ~PADDED, "axes": "bt", "lengths": 0}),
    ),
    "json": ("a.json", of_json(lengths=[4, 3], evicted=ROWS, axes="bt", offset=None)),
    "json of an object": (
        "a.json",
        of_json(evicted={"keep": ROWS, "axes": None}, axes="bt", lengths=[4, 3]),
    ),
    "json of its own": (
        "a.json",
        of_json(evicted={"keep": ROWS, "lengths": [4, 3]}, axes="bt", lengths=0),
    ),
    "json of folders": (
        "a.json",
        of_json(**{"l/evicted": ROWS, "l/lengths": [4, 3], "axes": "bt"}),
    ),
    "safetensors": (
        "a",
        safetensors({"evicted": ~PADDED, "lengths": FOUR_AND_THREE}, {"axes": "bt"}),
    ),
    "safetensors of notes": (
        "a",
        safetensors({"evicted": ~PADDED}, {"axes": "bt", "lengths": "[4, 3]", "born_at": "9"}),
    ),
    "safetensors of its own": (
        "a",
        safetensors(
            {"evicted": ~PADDED}, {"axes": "bt", "evicted/lengths": "[4, 3]", "lengths": "0"}
        ),
    ),
    "pt": ("a.pt", pt_beside(lambda torch: {"axes": "bt", "lengths": torch.tensor([4, 3])})),
    "pt of a list": (
        "a.pt",
        pt_beside(lambda _: {"axes": "bt", "lengths": [4, 3], "offset": None}),
    ),
    "pt of a list of tensors": (
        "a.pt",
        pt_beside(lambda torch: {"axes": "bt", "lengths": [torch.tensor(4), torch.tensor(3)]}),
    ),
    "parquet": ("a.parquet", parquet({"evicted": ROWS, "lengths": [4, 3]}, axes="bt")),
    "parquet of notes": ("a.parquet", parquet({"evicted": ROWS}, axes="bt", lengths="[4, 3]")),
    "parquet of rows of these lengths": (
        "a.parquet",
        parquet({"evicted": [ROWS[0], ROWS[1][:3]], "lengths": [4, 3]}, axes="bt"),
    ),
    "zarr": (
        "a.zarr",
        zarr_beside({"evicted": ~PADDED, "lengths": FOUR_AND_THREE}, {"offset": None}, axes="bt"),
    ),
    "zarr of a group": (
        "a.zarr",
        zarr_beside({"evicted": ~PADDED}, {"axes": "bt", "lengths": [4, 3]}),
    ),
    "zarr of its own": (
        "a.zarr",
        zarr_beside(
            {"evicted": ~PADDED, "lengths": np.array([1, 1])},
            {"axes": "tb", "lengths": 0},
            axes="bt",
            lengths=[4, 3],
        ),
    ),
    "zarr of bits": (
        "a.zarr",
        zarr_beside(
            {"evicted": np.packbits(~PADDED, axis=-1), "lengths": FOUR_AND_THREE},
            {"axes": "bt"},
            num_tokens=4,
        ),
    ),
}


@pytest.mark.parametrize(("file", "make"), BESIDE.values(), ids=BESIDE)
def test_what_stands_beside_a_plain_array_holds_for_it(
    tmp_path: Path, file: str, make: bytes | Callable[[Path], object]
) -> None:
    path = written(tmp_path, Form(file, make))
    (name,) = mask_names(path)
    assert name.endswith("evicted")
    for array in (None, name):
        saved = load_masks(path, array=array, polarity="evict")
        np.testing.assert_array_equal(saved.keep, PADDED)
        assert saved.axes == "bt"
        np.testing.assert_array_equal(saved.lengths, FOUR_AND_THREE)
        census = census_of_file(path, 2, array=array, polarity="evict")
        assert census == take_census(PADDED, 2, axes="bt", lengths=FOUR_AND_THREE)
        assert (census.num_tokens, census.num_live_entries) == (7, 4)
    load_masks(path, axes="bt", lengths=[4, 3])
    for said in ({"axes": "ht"}, {"lengths": [4, 2]}):
        with pytest.raises(ValueError, match=f"{next(iter(said))} must be those that the file"):
            load_masks(path, **said)


def test_positions_take_what_stands_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    rows = {"num_tokens": 4, "kept": [[0, 2], [0, 1]], "axes": None}
    path.write_bytes(of_json(m=rows, axes="bt", lengths=[4, 3]))
    assert census_of_file(path, 2) == take_census(PADDED, 2, axes="bt", lengths=[4, 3])


def test_every_plain_array_takes_what_stands_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    masks = dict.fromkeys(("keep", "mask", "m/kept"), PADDED)
    path.write_bytes(of_names(**masks, lengths=[4, 3], axes="bt", offset=[1, 0]))
    assert mask_names(path) == ("", "mask", "m/kept")
    for array in masks:
        saved = load_masks(path, array=array)
        assert saved.axes == "bt"
        np.testing.assert_array_equal(saved.lengths, [4, 3])
        np.testing.assert_array_equal(saved.offset, [1, 0])
        expected = take_census(PADDED, 2, axes="bt", lengths=[4, 3], offset=[1, 0])
        assert census_of_file(path, 2, array=array) == expected
        assert expected.num_blocks == 5  # (1 + 4) / 2 and 3 / 2, rounded up


def test_saved_masks_take_nothing_from_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    bare = SavedMasks(PADDED, FOUR_AND_THREE, "bt", {}, offset=np.array([1, 0]))
    for packed in (True, False):
        save_masks(path, {"": bare, "m": SavedMasks(PADDED, None, "bt", {})}, packed=packed)
        assert mask_names(path) == ("", "m")
        saved = load_masks(path, array="m")
        assert (saved.lengths, saved.offset) == (None, 0)
        assert census_of_file(path, 2, array="m").num_tokens == 8
    path.write_bytes(of_names(**{"m/keep": PADDED, "lengths": [1, 0], "axes": "bt"}))
    assert mask_names(path) == ("m", "lengths", "axes")
    assert load_masks(path, array="m").lengths is None


def test_parts_beside_no_array_are_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(of_names(lengths=[1, 0, 1], axes=[1, 1]))
    assert mask_names(path) == ("lengths", "axes")
    assert load_masks(path, array="lengths").keep.tolist() == [True, False, True]
    path.write_bytes(of_names(**{"m/mask": PADDED, "n/lengths": [1, 0, 1]}))
    assert mask_names(path) == ("m/mask", "n/lengths")
    assert load_masks(path, array="m/mask").lengths is None
    path.write_bytes(of_names(**{"": PADDED, "/lengths": [1, 0, 1]}))
    assert mask_names(path) == ("", "/lengths")
    assert load_masks(path, array="").lengths is None
    json_path = tmp_path / "a.json"
    json_path.write_bytes(of_json(lengths=[1, 0], m={"keep": [1, 0]}, offset={"keep": [0]}))
    assert mask_names(json_path) == ("m", "offset")


def test_times_beside_a_plain_array_are_its_own_where_both_are_there(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    times = np.arange(8).reshape(2, 4)
    path.write_bytes(of_names(mask=PADDED, born_at=times, evicted_at=times + 1))
    assert mask_names(path) == ("mask",)
    saved = load_masks(path)
    np.testing.assert_array_equal(saved.born_at, times)
    np.testing.assert_array_equal(saved.evicted_at, times + 1)
    path.write_bytes(of_names(mask=PADDED, evicted_at=times))
    assert mask_names(path) == ("mask", "evicted_at")
    assert load_masks(path, array="mask").evicted_at is None
    path.write_bytes(of_names(mask=PADDED, born_at=times[:, :3], evicted_at=times))
    with pytest.raises(ValueError, match=r"array 'mask': born_at must have the shape \(2, 4\)"):
        load_masks(path)


UNFIT: dict[str, tuple[dict[str, object], str, dict[str, Any]]] = {
    "axes of others": ({"axes": "bht"}, r"axes must be .* write 2 letters", {"axes": "bt"}),
    "axes of numbers": ({"axes": 1}, "'axes' must be one string", {"axes": "bt"}),
    "lengths of more sequences": (
        {"lengths": [4, 3, 2]},
        r"lengths must fit every array .* here of shape \(2,\); got shape \(3,\)",
        {"lengths": [4, 3]},
    ),
    "lengths of tokens": (
        {"lengths": [4, 4, 4, 4], "axes": "bt"},
        r"lengths must fit .* \(2,\); got shape \(4,\)",
        {"lengths": [4, 3]},
    ),
    "lengths of more axes": (
        {"lengths": [[4, 3]]},
        r"lengths must fit .* got shape \(1, 2\)",
        {"lengths": [4, 3]},
    ),
    "lengths of longer sequences": (
        {"lengths": [9, 3]},
        "lengths must be from 0 to 4; got 3 to 9",
        {"lengths": [4, 3]},
    ),
    "lengths of heads": (
        {"lengths": [4, 3, 2], "axes": "bht", "mask": np.stack([PADDED] * 3, axis=1)},
        r"lengths must fit .* \(2,\); got shape \(3,\)",
        {"axes": "bht", "lengths": [4, 3]},
    ),
    "lengths of floats": (
        {"lengths": [4.0, 3.0]},
        "'lengths' must be integers; got float64",
        {"lengths": [4, 3]},
    ),
    "offsets of more sequences": (
        {"offset": [1, 0, 0]},
        r"offset must fit .* got shape \(3,\)",
        {"offset": [1, 0]},
    ),
}


@pytest.mark.parametrize(("beside", "words", "said"), UNFIT.values(), ids=UNFIT)
def test_a_part_that_does_not_fit_is_refused_unless_the_caller_says_it(
    tmp_path: Path, beside: dict[str, object], words: str, said: dict[str, Any]
) -> None:
    path = tmp_path / "a.npz"
    mask = np.asarray(beside.get("mask", PADDED))
    path.write_bytes(of_names(**{"mask": mask, **beside}))
    pool = BlockPool(2, shared_axes="")
    for call in (load_masks, lambda path: census_of_file(path, pool)):
        with pytest.raises((TypeError, ValueError), match=words) as raised:
            call(path)
        assert str(raised.value).startswith(f"{path}, array 'mask': ")
        assert_clean(raised, path)
    said = {"axes": "bt"} | said
    assert census_of_file(path, pool, **said) == take_census(mask, pool, **said)


def test_what_a_mask_says_itself_does_not_give_way(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(of_names(keep=PADDED, lengths=[4.0, 3.0]))
    with pytest.raises(TypeError, match="'lengths' must be integers; got float64"):
        load_masks(path, axes="bt", lengths=[4, 3])


def test_lengths_of_each_row_and_of_one_for_all(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    keep = np.zeros((2, 3, 8), bool)
    pool = BlockPool(2, shared_axes="")
    for lengths, num_tokens in (([[8, 7, 6], [5, 4, 3]], 33), ([[8], [5]], 39), (5, 30)):
        path.write_bytes(of_names(mask=keep, lengths=lengths, axes="bst"))
        assert census_of_file(path, pool).num_tokens == num_tokens
    path.write_bytes(of_names(mask=np.moveaxis(keep, -1, 0), lengths=[[8, 7, 6], [5, 4, 3]]))
    assert census_of_file(path, pool, axes="tbs").num_tokens == 33
    with pytest.raises(ValueError, match=r"here of shape \(8, 2\); got shape \(2, 3\)"):
        census_of_file(path, pool)


def test_a_mask_whose_name_is_empty_has_none(tmp_path: Path) -> None:
    files: dict[str, bytes | Callable[[Path], object]] = {
        "a.json": of_json(**{"": {"keep": ROWS}, "m": ROWS}),
        "a.parquet": parquet({"": ROWS, "m": ROWS}),
    }
    for file, make in files.items():
        if file != "a.parquet" or importlib.util.find_spec("pyarrow"):
            path = written(tmp_path, Form(file, make))
            assert mask_names(path) == ("", "m")
            np.testing.assert_array_equal(load_masks(path, array="").keep, ~PADDED)


def test_no_damage_of_a_parquet_file_ends_the_process(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet({"a": [[True, False], [True]], "b": [[False], [True]]})(path)
    code = (
        "import io, sys; from kvreclaim import load_masks\n"
        "whole = open(sys.argv[1], 'rb').read()\n"
        "for bit in range(8 * (len(whole) // 2), 8 * len(whole), 5):\n"
        "    damaged = bytearray(whole); damaged[bit // 8] ^= 1 << bit % 8\n"
        "    try: load_masks(io.BytesIO(damaged), array='a')\n"
        "    except (TypeError, ValueError): pass\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def test_lengths_of_parquet_that_are_not_those_of_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet({"m": [ROWS[0], ROWS[1][:3]], "lengths": [4, 2]})(path)
    with pytest.raises(ValueError, match="column 'lengths' must be the lengths of the rows"):
        load_masks(path)


def test_a_hint_names_an_array_that_may_be_a_mask(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(of_names(doc_ids=[4, 0], scores=[[0.5]], keep=PADDED, other=PADDED))
    names = r"one of the 4 masks in .* \('doc_ids', 'scores', '', 'other'\)"
    with pytest.raises(ValueError, match=names + "; got none; write such as array='keep'"):
        load_masks(path)
    with pytest.raises(ValueError, match=names + "; got 'kee'; write such as array='keep'"):
        census_of_file(path, 2, array="kee")
    path.write_bytes(of_names(ids=[4, 0], mask=PADDED.astype("i8"), kept=PADDED))
    with pytest.raises(ValueError, match="write such as array='mask'"):
        load_masks(path)
    path.write_bytes(of_names(ids=[4, 0], more=[-1, 0]))
    with pytest.raises(ValueError, match="write such as array='ids'"):
        load_masks(path)


def test_true_beyond_the_lengths_of_a_file_may_mean_evicted(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(of_names(evicted=~PADDED, lengths=[4, 3], axes="bt"))
    hint = r"got True at token 3 of sequence 1, .*, or polarity='evict' if True means evicted\.$"
    with pytest.raises(ValueError, match=hint) as raised:
        census_of_file(path, 2)
    assert_clean(raised, path)
    assert census_of_file(path, 2, polarity="evict").num_tokens == 7
    with pytest.raises(ValueError, match="padding on the left") as of_array:
        take_census(~PADDED, 2, axes="bt", lengths=[4, 3])
    assert "polarity" not in str(of_array.value)


# --- What is no mask ---

ROW = npy(np.ones(8, bool))
BITS = npy(np.array([0b10100000], np.uint8))


def npy_of(
    shape: object, descr: object = "|b1", *, fortran: object = False, body: bytes = b""
) -> bytes:
    return header(repr({"descr": descr, "fortran_order": fortran, "shape": shape}) + "\n", body)


def edited(archive: bytes, old: bytes, new: bytes) -> bytes:
    assert archive.count(old)
    return archive.replace(old, new)


def lying(size: int) -> bytes:
    """Return an archive whose directory says that its member is this large."""
    content = npz({"m.npy": npy_of((size - 81,))[:81]}, zipfile.ZIP_DEFLATED)
    at = content.rindex(b"PK\x01\x02")
    return content[: at + 24] + struct.pack("<I", size) + content[at + 28 :]


def repeated() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("mask.npy", ROW)
        archive.writestr("mask.npy", ROW)
    return buffer.getvalue()


PICKLE = b"\x80\x02]q\x00K\x01a."
NO_ADVICE = ("allow_pickle", "weights_only", "unsafe", "pickle.load")

REFUSED: dict[str, tuple[str, bytes, str]] = {
    "nothing": ("a.npy", b"", "got an empty one"),
    "another format": ("a.npy", b"\x89HDF\r\n\x1a\n123", r"got one that begins with b'\\x89HDF"),
    "a pickle": ("a.npy", PICKLE, "got a pickle, which is never loaded"),
    # .npy
    "a magic alone": ("a.npy", b"\x93NUMPY", "must be a .npy array"),
    "a version to come": ("a.npy", b"\x93NUMPY\x09" + ROW[7:], "must be a .npy array"),
    "cut in the header": ("a.npy", ROW[:40], "header that numpy.save writes"),
    "cut": ("a.npy", ROW[:-1], "must hold the 8 bytes that its header declares.*got 7"),
    "too long": ("a.npy", ROW + b"x", "must hold the 8 bytes that its header declares.*got 9"),
    "a negative size": ("a.npy", npy_of((-5,)), r"shape of sizes from 0 up.*got \(-5,\)"),
    "a boolean size": ("a.npy", npy_of((True,), body=b"1"), r"got \(True,\)"),
    "a size of text": ("a.npy", npy_of(("8",)), r"got \('8',\)"),
    "no tuple": ("a.npy", npy_of(8), "got 8 and False"),
    "an immense size": ("a.npy", npy_of((10**23,)), r"sizes from 0 up.*got \(1000"),
    "a size that is not there": ("a.npy", npy_of((2**40,)), f"must hold the {2**40} bytes"),
    "a size that is computed": ("a.npy", header("{'shape': (10**9,)}"), "got the header"),
    "rows of nothing": ("a.npy", npy_of((2**40, 0)), f"at most max_bytes={4 << 30} tokens"),
    "too many axes": ("a.npy", npy_of((1,) * 65, body=b"\1"), "sizes from 0 up"),
    "an order of text": ("a.npy", npy_of((1,), fortran="no", body=b"\1"), "and 'no'"),
    "objects": ("a.npy", npy_of((1,), "|O", body=PICKLE), "object array, which is a pickle"),
    "fields": ("a.npy", npy_of((1,), [("a", "|b1")], body=b"\1"), "got one of type"),
    "fields in text": ("a.npy", npy_of((1,), "?,?", body=b"\1\1"), "got one of type"),
    "no type": ("a.npy", npy_of((1,), "<b3", body=b"\1"), "got the header"),
    "no type at all": ("a.npy", npy_of((1,), None, body=b"\1"), "got one of type None"),
    "no header": ("a.npy", header("{'descr': '|b1', 'shape': (1,), }"), "got the header"),
    "brackets": ("a.npy", header("[" * 9000), "got the header"),
    "a long header": ("a.npy", header(" " * 20_000), "got the header b''"),
    "text of no size": ("a.npy", npy_of((10**9,), "<U0"), "keep must be True and False.*str"),
    "bytes of no size": ("a.npy", npy_of((10**9,), "|V0"), "keep must be True and False.*void"),
    "texts": ("a.npy", npy(np.array(["1", "0"])), "keep must be True and False"),
    "floats": ("a.npy", npy(np.array([0.0, 1.0])), "keep must be True and False.*float64"),
    "complex": ("a.npy", npy(np.array([1j])), "keep must be True and False.*complex128"),
    "dates": ("a.npy", npy(np.array(["2026-01-01"], "M8[D]")), "keep must be True and False"),
    "one value": ("a.npy", npy(np.array(True)), "keep must have a token axis"),
    "a byte that is no boolean": ("a.npy", ROW[:-1] + b"\2", "got bool 2 at index 7"),
    "integers": (
        "a.npy",
        npy(np.array([[0, 1], [0, -3]], ">i2")),
        r"all 0 and 1; got (>i2|int16) -3 at index \(1, 1\)",
    ),
    "integers in Fortran order": (
        "a.npy",
        npy(np.asfortranarray([[0, 9], [0, 8]])),
        r"got int64 9 at index \(0, 1\)",
    ),
    # .npz
    "no archive": ("a.npz", b"PK\x03\x04nothing", "must be a whole .npz archive, or .pt"),
    "an archive that is cut": (
        "a.npz",
        npz({"m.npy": ROW})[:-30],
        "must be a whole .npz archive, or .pt",
    ),
    "an empty archive": ("a.npz", npz({}), "an archive that is empty, or has no arrays"),
    "an archive of other things": ("a.npz", npz({"a.txt": ROW}), "has no arrays"),
    "a name that stands twice": ("a.npz", repeated(), "each name once; got the duplicate 'mask'"),
    "names that meet": (
        "a.npz",
        npz({"a.npy": ROW, "a/keep.npy": ROW}),
        "the only mask of its name",
    ),
    "a wrong checksum": (
        "a.npz",
        edited(npz({"m.npy": ROW}), b"\1" * 8, b"\1" * 7 + b"\0"),
        "that is damaged .*CRC",
    ),
    "a damaged stream": (
        "a.npz",
        edited(npz({"m.npy": ROW}, zipfile.ZIP_DEFLATED), b"NUMPY"[:0] + b"\x9b", b"\xff"),
        "that is damaged",
    ),
    "another compression": (
        "a.npz",
        npz({"m.npy": ROW}, zipfile.ZIP_BZIP2),
        "array 'm' must be stored or deflated",
    ),
    "an encrypted member": (
        "a.npz",
        edited(
            npz({"m.npy": ROW}),
            b"PK\x01\x02\x14\x03\x14\x00\x00",
            b"PK\x01\x02\x14\x03\x14\x00\x01",
        ),
        "must be stored or deflated",
    ),
    "a bomb": ("a.npz", lying(1 << 31), f"size that its archive declares; got {1 << 31} bytes"),
    "a size that lies": ("a.npz", lying(1000), "that is damaged|must hold the"),
    "a member that is no array": ("a.npz", npz({"m.npy": b"0101"}), "array 'm' must be a .npy"),
    # our own members
    "no num_tokens": (
        "a.npz",
        npz({"bits.npy": BITS}),
        "array 'bits' must stand beside num_tokens",
    ),
    "too many tokens": (
        "a.npz",
        npz({"bits.npy": BITS, "num_tokens.npy": npy(np.array(9))}),
        "for 9 tokens",
    ),
    "tokens below 0": (
        "a.npz",
        npz({"bits.npy": BITS, "num_tokens.npy": npy(np.array(-1))}),
        "num_tokens from 0 up.*got -1",
    ),
    "tokens of no whole number": (
        "a.npz",
        npz({"bits.npy": BITS, "num_tokens.npy": npy(np.array(3.0))}),
        "'num_tokens' must be integers; got float64",
    ),
    "many numbers of tokens": (
        "a.npz",
        npz({"bits.npy": BITS, "num_tokens.npy": npy(np.array([8]))}),
        r"one num_tokens .*got \[8\]",
    ),
    "bits beyond the tokens": (
        "a.npz",
        npz({"bits.npy": BITS, "num_tokens.npy": npy(np.array(2))}),
        "array 'bits': bits must be 0 beyond num_tokens=2",
    ),
    "bits that are no bytes": (
        "a.npz",
        npz({"bits.npy": npy(np.ones(1, "i4")), "num_tokens.npy": npy(np.array(2))}),
        "must be uint8 .*got int32",
    ),
    "another bit order": (
        "a.npz",
        npz(
            {
                "bits.npy": BITS,
                "num_tokens.npy": npy(np.array(8)),
                "bitorder.npy": npy(np.array("middle")),
            }
        ),
        "'middle'",
    ),
    "bits beside booleans": (
        "a.npz",
        npz({"bits.npy": BITS, "keep.npy": ROW}),
        "must stand without bits",
    ),
    "axes of numbers": (
        "a.npz",
        npz({"keep.npy": ROW, "axes.npy": npy(np.array(1))}),
        "'axes' must be one string",
    ),
    "axes that do not fit": (
        "a.npz",
        npz({"keep.npy": ROW, "axes.npy": AXES}),
        "write 1 letter[.]",
    ),
    "axes of no text": (
        "a.npz",
        npz({"keep.npy": ROW, "axes.npy": npy_of((), "<U1", body=b"\xff\xff\xff\x7f")}),
        "array 'axes'",
    ),
    "axes of nothing": (
        "a.npz",
        npz({"keep.npy": ROW, "axes.npy": npy_of((), "<U0")}),
        "axes must be a string of one letter",
    ),
    "lengths of floats": (
        "a.npz",
        npz({"keep.npy": ROW, "lengths.npy": npy(np.array(3.0))}),
        "'lengths' must be integers; got float64",
    ),
    "lengths out of range": (
        "a.npz",
        npz({"keep.npy": ROW, "lengths.npy": npy(np.array(9))}),
        "lengths must be from 0 to 8; got 9 to 9",
    ),
    "lengths that are too many": (
        "a.npz",
        npz({"keep.npy": ROW, "lengths.npy": npy_of((2**40, 0), "<i8")}),
        "'lengths' must be at most",
    ),
    "notes of no JSON": (
        "a.npz",
        npz({"keep.npy": ROW, "meta.npy": npy(np.array("[1"))}),
        "'meta' must be a JSON object",
    ),
    "notes of a list": (
        "a.npz",
        npz({"keep.npy": ROW, "meta.npy": npy(np.array("[1]"))}),
        "'meta' must be a JSON object",
    ),
    "a birth without a death": (
        "a.npz",
        npz({"keep.npy": ROW, "born_at.npy": npy(np.arange(8))}),
        "evicted_at must stand beside the other",
    ),
    "times of another shape": (
        "a.npz",
        npz(
            {"keep.npy": ROW, "born_at.npy": npy(np.arange(8)), "evicted_at.npy": npy(np.arange(7))}
        ),
        r"evicted_at must have the shape \(8,\) of keep",
    ),
    # text
    "a word": ("a.txt", b"0101\n01x1\n", "line 2 must be 0s and 1s.*got 'x' at column 3"),
    "another digit": ("a.csv", b"0,1\n0,2\n", "line 2 must.*got '2' at column 3"),
    "two separators": ("a.csv", b"0,1;1\n", "line 1 must.*got ';' at column 4"),
    "an empty cell": ("a.csv", b"0,,1\n", "line 1 must.*got ',' at column 3"),
    "a comma at the end": ("a.csv", b"0,1,\n", "line 1 must.*got ',' at column 4"),
    "a space at the start": ("a.csv", b" 0,1\n", "line 1 must.*got ' ' at column 1"),
    "an empty line": ("a.csv", b"0,1\n\n0,1\n", "line 2 must.*got '' at column 1"),
    "a short line": ("a.csv", b"0,1\n0\n", "line 2 must have 2 tokens.*got 1; .*JSON lines"),
    "old line ends": ("a.csv", b"0,1\r0,1\r", r"line 1 must.*got '\\r' at column 4"),
    "latin1": ("a.csv", b"0,1\xe9\n", "got 'é' at column 4"),
    # JSON
    "JSON that is cut": ("a.json", b'{"kept": [1, 2', "must be a JSON document; got"),
    "JSON with more behind": ("a.json", b"[1, 0] x", "must be a JSON document; got Extra data"),
    "JSON of no UTF-8": ("a.json", b'{"\xff": [1]}', "text in UTF-8; got byte 0xff at 2"),
    "JSON nested too deeply": ("a.json", b"[" * 100_000, "nested too deeply"),
    "JSON of many axes": ("a.json", b"[" * 70 + b"1" + b"]" * 70, "array of equal rows"),
    "JSON of rows of different lengths": ("a.json", b"[[1, 0], [1]]", "array of equal rows"),
    "JSON of infinity": ("a.json", b'{"keep": [Infinity]}', "Infinity, which is no JSON"),
    "JSON of a name twice": ("a.json", b'{"keep": [1], "keep": [0]}', "a name that stands twice"),
    "JSON of long numbers": ("a.json", b"[" + b"9" * 5000 + b"]", "must be a JSON document"),
    "JSON of large numbers": ("a.json", b"[" + b"9" * 50 + b"]", "keep must be True and False"),
    "JSON of nothing": ("a.json", b"{}", "must hold a mask; got none"),
    "JSON of something else": ("a.json", b'{"a": 1}', "mask 'a' must be a list of 0 and 1"),
    "JSON of texts": ("a.json", b'["1", "0"]', "keep must be True and False"),
    "JSON of floats": ("a.json", b"[1.0, 0.5]", "keep must be True and False"),
    "JSON of nulls": ("a.json", b"[1, null]", "keep must be True and False.*astype"),
    "positions and runs": (
        "a.json",
        of_json(num_tokens=2, kept=[0], runs=[[0, 1]]),
        r"one of 'kept', 'runs' and 'keep'; got .*'kept', 'num_tokens', 'runs'",
    ),
    "positions kept, and positions evicted": (
        "a.json",
        of_json(num_tokens=2, kept=[0], evicted=[1]),
        "no other keys than num_tokens, kept, axes, .*, meta; got 'evicted'; write the tokens",
    ),
    "a mask, and how many tokens": (
        "a.json",
        of_json(num_tokens=2, keep=[0]),
        "no other keys than keep, axes, .*; got 'num_tokens'",
    ),
    "a key that is misspelt": (
        "a.json",
        of_json(keep=[0], lenghts=1),
        "got 'lenghts'; write 'lengths' if that is meant, or put it into 'meta' if only you",
    ),
    "a key that is like none": (
        "a.json",
        of_json(keep=[0], policy="mine"),
        "got 'policy'; put what only you read into 'meta', and leave out the rest",
    ),
    "positions of a name that is misspelt": (
        "a.json",
        of_json(axes="t", num_tokens=9, keept=[0]),
        r"one of 'kept', 'runs' and 'keep'; got \['axes', 'keept', 'num_tokens'\]",
    ),
    "what True means": (
        "a.json",
        of_json(m={"keep": [0], "polarity": "evict"}),
        "mask 'm' must have no other keys .*; got 'polarity'",
    ),
    "what True means for all": (
        "a.json",
        of_json(m={"keep": [0]}, polarity="evict"),
        "mask 'polarity' must be a list",
    ),
    "lines whose tokens are not last": (
        "a.jsonl",
        of_json(axes="th", keep=[[1, 0]]) + b"\n" + of_json(axes="th", keep=[[1, 0]]),
        "line 1 must have axes that end in 't', since lines differ in their tokens; got 'th'",
    ),
    "lines of births": (
        "a.jsonl",
        b"[1]\n" + of_json(keep=[1], born_at=[0], evicted_at=[1]),
        "line 2 must have no births and evictions",
    ),
    "lines of other keys": (
        "a.jsonl",
        of_json(num_tokens=2, kept=[0]) + b"\n" + of_json(num_tokens=2, kept=[0], offsets=1),
        "line 2 must have no other keys .*; got 'offsets'",
    ),
    "positions without num_tokens": ("a.json", of_json(kept=[0]), "num_tokens beside 'kept'"),
    "num_tokens of text": ("a.json", of_json(num_tokens="9", kept=[0]), "num_tokens must be"),
    "num_tokens of a boolean": ("a.json", of_json(num_tokens=True, kept=[0]), "num_tokens must be"),
    "num_tokens beyond any number": (
        "a.jsonl",
        of_json(num_tokens=10**30, kept=[0]),
        "line 1: num_tokens must be an integer from 0 to",
    ),
    "immense num_tokens": ("a.json", of_json(num_tokens=10**15, kept=[0]), "at most max_bytes="),
    "positions out of range": (
        "a.json",
        of_json(axes="ht", num_tokens=4, kept=[[0], [4]]),
        "row 1 of 'kept'.*indices.*4",
    ),
    "positions below 0": ("a.json", of_json(num_tokens=4, kept=[-1]), "row 0 of 'kept'.*-1"),
    "positions of no whole number": (
        "a.json",
        of_json(num_tokens=4, kept=[0.5]),
        "row 0 of 'kept'",
    ),
    "positions in lists and not": (
        "a.json",
        of_json(num_tokens=4, kept=[[0], 1]),
        "row 1 of 'kept'",
    ),
    "positions in lists beyond any array": (
        "a.json",
        b'{"num_tokens": 4, "kept": ' + b"[" * 900 + b"0" + b"]" * 900 + b"}",
        "must be a JSON document; got lists nested too deeply",
    ),
    "positions in too few lists": (
        "a.json",
        of_json(axes="lht", num_tokens=4, kept=[[0]]),
        "row 0 of 'kept'",
    ),
    "positions in lists of different lengths": (
        "a.json",
        of_json(axes="lht", num_tokens=4, kept=[[[0], [1]], [[0]]]),
        "lists of one length for axis 'h'",
    ),
    "positions that are no list": (
        "a.json",
        of_json(axes="ht", num_tokens=4, kept=0),
        "lists of one length for axis 'h'",
    ),
    "positions of other axes": ("a.json", of_json(axes="th", num_tokens=4, kept=[0]), "end in 't'"),
    "runs that are no pairs": (
        "a.json",
        of_json(num_tokens=4, runs=[[0, 1, 2]]),
        "row 0 of 'runs'",
    ),
    "runs out of range": ("a.json", of_json(num_tokens=4, runs=[[0, 5]]), "row 0 of 'runs'.*runs"),
    "JSON axes of numbers": ("a.json", of_json(axes=1, keep=[1]), "'axes' must be one string"),
    "JSON lengths of text": (
        "a.json",
        of_json(lengths="a", keep=[1]),
        "'lengths' must be integers",
    ),
    "JSON notes of text": ("a.json", of_json(meta="a", keep=[1]), "'meta' must be a JSON object"),
    "no line": ("a.jsonl", b" \n[", "must be a JSON document"),
    "lines of other rows": ("a.jsonl", b"[[1]]\n[1]", r"line 2 must have the rows"),
    "lines of other axes": (
        "a.jsonl",
        b'{"axes": "t", "keep": [1]}\n[1]',
        "line 2 must have the rows and the axes",
    ),
    "a line of lengths": (
        "a.jsonl",
        b'{"keep": [1], "lengths": 1}',
        "line 1 must be one sequence.*got lengths",
    ),
    "a line of sequences": ("a.jsonl", b'{"axes": "bt", "keep": [[1]]}', "line 1 must be one seq"),
    "a line of integers": ("a.jsonl", b"[1]\n[2]", "line 2 must be True and False.*got int64 2"),
}


# What a census does not read.
LOADED_ONLY = (  # ids of REFUSED
    "notes of no JSON",
    "notes of a list",
    "JSON notes of text",
    "a birth without a death",
    "times of another shape",
)


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_mask_is_refused_in_one_sentence(tmp_path: Path, case: str) -> None:
    name, content, words = REFUSED[case]
    path = tmp_path / name
    path.write_bytes(content)
    calls: list[Callable[[Path], object]] = [load_masks]
    if case not in LOADED_ONLY:
        calls.append(lambda path: census_of_file(path, UNSHARED))
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=words) as raised:
            call(path)
        assert_clean(raised, path)


def assert_clean(raised: pytest.ExceptionInfo[Exception], path: Path) -> None:
    """Check that an error is ours, names the file, and advises nothing that is unsafe."""
    message = str(raised.value)
    assert raised.type in (TypeError, ValueError)
    assert str(path) in message
    assert "; got " in message
    assert "\n" not in message
    for advice in NO_ADVICE:
        assert advice not in message


def zarr_that_is_cut(path: Path) -> None:
    zarr_array(path)
    (path / "zarr.json").write_text("{")


LIBRARIES: dict[str, tuple[str, bytes | Callable[[Path], object], str]] = {
    "safetensors that are cut": ("a.safetensors", b"\x10\x00\x00", "a complete safetensors file"),
    "safetensors with more behind": (
        "a.safetensors",
        struct.pack("<Q", 2) + b"{}\0",
        "a complete safetensors file",
    ),
    "safetensors of floats": (
        "a.safetensors",
        safetensors({"m": np.ones(8, "f2")}),
        "array 'm': keep must be True and False.*float16",
    ),
    "safetensors of another type": (
        "a.safetensors",
        b"\x39" + bytes(7) + b'{"m":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}  \0\0',
        "array 'm' must be booleans or integers; got BF16",
    ),
    "safetensors with wrong notes": (
        "a.safetensors",
        safetensors({"bits": LITTLE}, {"num_tokens": "ten"}),
        "'num_tokens' must be numbers as JSON",
    ),
    "a pickle in a .pt": ("a.pt", PICKLE, "got a pickle, which is never loaded"),
    "objects in a .pt": ("a.pt", pt(lambda _: {"mask": Path()}), "pickles and never loaded"),
    "a .pt that is cut": (
        "a.pt",
        lambda path: (pt(lambda keep: keep)(path), path.write_bytes(path.read_bytes()[:-100])),
        "must be a whole .npz archive, or .pt",
    ),
    "a .pt that is compressed": (
        "a.pt",
        npz({"a/data.pkl": bytes(1000)}, zipfile.ZIP_DEFLATED),
        "as torch.save writes it",
    ),
    "a .pt of texts": ("a.pt", pt(lambda _: ["a"]), "must hold a tensor"),
    "a .pt of floats": ("a.pt", pt(lambda keep: keep.float()), "keep must be True and False"),
    "a .pt of 16 bits": ("a.pt", pt(lambda keep: keep.bfloat16()), "keep must be True and False"),
    "a .pt of no values": ("a.pt", pt(lambda keep: keep.to("meta")), "the meta device"),
    "a .pt of a large view": (
        "a.pt",
        pt(lambda keep: keep[0, 0].expand(1 << 40)),
        f"at most max_bytes={4 << 30} tokens; got {1 << 40}",
    ),
    "a .pt of a large sparse tensor": (
        "a.pt",
        pt(
            lambda keep: importlib.import_module("torch").sparse_coo_tensor(
                [[5]], keep[0, :1], (1 << 40,)
            )
        ),
        f"at most max_bytes={4 << 30} tokens; got {1 << 40}",
    ),
    "parquet that is cut": (
        "a.parquet",
        lambda path: (parquet({"m": [[True]]})(path), path.write_bytes(path.read_bytes()[:-9])),
        "a complete parquet file",
    ),
    "parquet of a name twice": ("a.parquet", parquet_of_a_name_twice, "a complete parquet file"),
    "parquet of other columns": (
        "a.parquet",
        parquet({"text": ["a"], "ids": [[1, 2]]}),
        "must have a column of lists of booleans",
    ),
    "torch of a name twice": (
        "a.pt",
        lambda path: library("torch").save(
            {1: library("torch").ones(2, dtype=bool), "1": library("torch").zeros(2)}, path
        ),
        "must hold each name once; got several tensors that are called '1'",
    ),
    "parquet of nulls": (
        "a.parquet",
        parquet({"m": [[True], None]}),
        "column 'm' .* none of them null",
    ),
    "parquet of nulls in lists": ("a.parquet", parquet({"m": [[True, None]]}), "none of them null"),
    "parquet of wrong bits": (
        "a.parquet",
        parquet({"bits": [b"ab"], "num_tokens": [8]}),
        "column 'bits' must be ceil.*got 2 for 8 tokens in row 0",
    ),
    "parquet of texts": (
        "a.parquet",
        parquet({"bits": ["a"], "num_tokens": [8]}),
        "column 'bits' must be binary",
    ),
    "zarr of floats": ("a.zarr", zarr({"m": np.ones(8)}), "keep must be True and False.*float64"),
    "zarr of nothing": ("a.zarr", zarr({}), "must hold an array"),
    "zarr of other shape": ("a.zarr", zarr({"m": LITTLE}, num_tokens=99), "for 99 tokens"),
    "zarr that is cut": (
        "a.zarr",
        zarr_that_is_cut,
        "a complete zarr folder",
    ),
}


@pytest.mark.parametrize(("name", "make", "words"), LIBRARIES.values(), ids=LIBRARIES)
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_what_a_library_refuses_is_said_in_our_words(
    tmp_path: Path, name: str, make: bytes | Callable[[Path], object], words: str
) -> None:
    library({"zarr": "zarr", "pt": "torch", "parquet": "pyarrow"}.get(name[2:], "safetensors"))
    path = written(tmp_path, Form(name, make))
    for call in (load_masks, lambda path: census_of_file(path, UNSHARED)):
        with pytest.raises((TypeError, ValueError), match=words) as raised:
            call(path)
        assert_clean(raised, path)


@pytest.mark.parametrize(
    ("form", "package", "extra"),
    [
        ("safetensors", "safetensors", "safetensors"),
        ("pt", "torch", "torch"),
        ("parquet", "pyarrow.parquet", "parquet"),
        ("zarr", "zarr", "zarr"),
    ],
)
def test_a_package_that_is_missing_or_broken_is_named(
    tmp_path: Path, form: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content: dict[str, bytes] = {
        "safetensors": struct.pack("<Q", 2) + b"{}",
        "torch": npz({"a/data.pkl": b""}),
        "parquet": b"PAR1",
    }
    path = tmp_path / f"a.{form}"
    if extra == "zarr":
        path.mkdir()
        (path / "zarr.json").write_text("{}")
    else:
        path.write_bytes(content[extra])
    monkeypatch.setitem(sys.modules, package, None)
    words = rf"{package.split('.', maxsplit=1)[0]}; got .* pip install 'kvreclaim\[{extra}\]'\.$"
    with pytest.raises(ValueError, match=words) as raised:
        load_masks(path)
    assert_clean(raised, path)


def test_no_optional_package_is_imported_for_files_that_need_none(tmp_path: Path) -> None:
    code = (
        "import sys, kvreclaim; from kvreclaim.files import *;"
        "[load_masks(path) for path in sys.argv[1:]];"
        "print({'torch', 'safetensors', 'pyarrow', 'zarr', 'scipy'} & {*sys.modules})"
    )
    forms = [form for form in FORMS.values() if isinstance(form.make, bytes) and not form.array]
    paths = []
    for i, form in enumerate(forms):
        (tmp_path / str(i)).mkdir()
        paths.append(str(written(tmp_path / str(i), form)))
    done = subprocess.run(
        [sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_many_floats_are_not_all_read(tmp_path: Path) -> None:
    path = tmp_path / "scores.npy"
    np.save(path, np.ones((2, 3 << 19), "f2"))
    with pytest.raises(TypeError, match="its first 1048576 values: keep must be True and False"):
        load_masks(path)


def test_pickles_of_zarr_are_not_decoded(tmp_path: Path) -> None:
    library("zarr")
    for filters, compressor in (([{"id": "pickle"}], None), (None, {"id": "pickle"})):
        array = {
            "zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "|u1", "fill_value": 0,
            "order": "C", "filters": filters, "compressor": compressor,
        }  # fmt: skip
        (tmp_path / ".zarray").write_text(json.dumps(array))
        (tmp_path / "0").write_bytes(b"cwarnings\nwarn\n(S'unpickled'\ntR.")
        with pytest.raises(ValueError, match="must be") as raised:
            load_masks(tmp_path)
        assert_clean(raised, tmp_path)


# --- What a path may name ---


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.npy"):
        load_masks(tmp_path / "none.npy")
    loop = tmp_path / "loop.npy"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match=r"loop\.npy"):
        load_masks(loop)
    with pytest.raises(ValueError, match="got a folder") as raised:
        load_masks(tmp_path)
    assert_clean(raised, tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(ValueError, match="must be a file; got a pipe or a device") as raised:
            load_masks(path)
        assert_clean(raised, path)
    with mock.patch.object(sys, "stdin", None), pytest.raises(ValueError, match="no standard in"):
        load_masks("-")
    with pytest.raises(TypeError, match="got a StringIO"):
        load_masks(io.StringIO("0101"))  # type: ignore[arg-type]
    link = tmp_path / "link.npy"
    link.symlink_to(tmp_path / "mask.npy")
    np.save(tmp_path / "mask.npy", KEEP)
    assert load_masks(str(link)).keep.shape == KEEP.shape


@pytest.mark.skipif(not hasattr(os, "geteuid") or not os.geteuid(), reason="root reads everything")
def test_a_file_that_must_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "mask.npy"
    np.save(path, KEEP)
    path.chmod(0)
    with pytest.raises(PermissionError, match=r"mask.npy"):
        load_masks(path)


@pytest.mark.parametrize("packed", [True, False])
def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path, packed: bool) -> None:
    keep = np.random.default_rng(0).random((64, 100_000)) < 0.5
    path = tmp_path / ("mask.npz" if packed else "mask.npy")
    for cut in (0, 100):

        def shorten(*_: int, cut: int = cut) -> None:
            os.truncate(path, cut)

        for call in (load_masks, lambda path, **said: census_of_file(path, 4, **said)):
            if packed:
                save_masks(path, keep, axes="ht")
            else:
                np.save(path, keep)
            with pytest.raises(ValueError, match=r"damaged|cut while being read"):
                call(path, axes="ht", progress=shorten)


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mask.npy"
    np.save(path, KEEP)
    with pytest.raises(ValueError, match="must stay as it is while it is read"):
        load_masks(path, progress=lambda *_: os.utime(path, ns=(0, 0)))
    with pytest.raises(ValueError, match="must stay as it is while it is read"):
        load_masks(path, progress=lambda *_: path.write_bytes(b""))
    np.save(path, KEEP)
    np.save(tmp_path / "new.npy", ~KEEP)
    keep = load_masks(path, progress=lambda *_: (tmp_path / "new.npy").replace(path)).keep
    np.testing.assert_array_equal(keep, KEEP)


# --- Writing ---


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    save_masks(path, [1, 0], axes="t")
    before = path.read_bytes()
    failures: list[tuple[str, BaseException]] = [
        ("os.fsync", OSError(errno.ENOSPC, "No space left on device")),
        ("zipfile.ZipFile.open", KeyboardInterrupt()),
        ("pathlib.Path.replace", OSError(errno.EIO, "Input/output error")),
    ]
    for name, error in failures:
        with mock.patch(name, side_effect=error), pytest.raises(type(error)):
            save_masks(path, [0, 0], axes="t")
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, suffix: str) -> None:
    if suffix == "safetensors":
        library("safetensors")
    path = tmp_path / f"masks.{suffix}"
    save_masks(path, [1, 0], axes="t")
    before = path.read_bytes()
    code = (
        "import resource, sys, numpy; from kvreclaim import save_masks;"
        "keep = numpy.random.default_rng(0).random(1 << 20) < 0.5;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14));"
        "save_masks(sys.argv[1], keep, axes='t')"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "OSError: [Errno 27] File too large" in done.stderr
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        ({"keep": [[1, 0]], "axes": "th"}, ValueError, "axes must end in 't'"),
        ({"axes": "ht"}, ValueError, "write 1 letter[.]"),
        ({"keep": [[1, 0]]}, ValueError, "axes must name the 2 axes"),
        ({"keep": [0.5]}, TypeError, "keep must be True and False"),
        ({"lengths": [1.5]}, TypeError, "lengths must be integers"),
        ({"lengths": 3}, ValueError, "lengths must be from 0 to 2"),
        ({"lengths": [2, 2]}, ValueError, r"lengths must have axes .* of shape \(\); got .*\(2,\)"),
        (
            {"keep": [[1, 0], [0, 1]], "axes": "bt", "lengths": [1, 1]},
            ValueError,
            "False beyond the lengths; got True at token 1 of sequence 1, which has 1 token",
        ),
        (
            {"keep": np.ones((2, 3, 4), bool), "axes": "bht", "lengths": [4, 3]},
            ValueError,
            r"got True at token 3 of sequence \(1, 0\)",
        ),
        (
            {"keep": {"m": SavedMasks(KEEP, np.array([10, 9]), "ht", {})}},
            ValueError,
            "mask 'm': keep must be False beyond .*; got True at token 9 of sequence 1",
        ),
        (
            {"keep": SavedMasks(KEEP, None, "ht", {}, np.array([0, 1, 2]))},
            ValueError,
            r"offset must have axes other than tokens, here of shape \(2,\); got shape \(3,\)",
        ),
        (
            {"keep": SavedMasks(KEEP, None, "ht", {}, -1)},
            ValueError,
            "offset must be at least 0; got -1; write the slots",
        ),
        ({"meta": {"a": object()}}, TypeError, "meta must be what JSON can hold; got .*object"),
        ({"meta": {"a": float("nan")}}, ValueError, "meta must be what JSON can hold"),
        ({"meta": {"a": (1, 2)}}, ValueError, "meta must be what JSON gives back unchanged"),
        ({"meta": {1: 2}}, ValueError, "meta must be what JSON gives back unchanged"),
        ({"meta": "mine"}, TypeError, "meta must be a dict; got str 'mine'"),
        ({"path": "none/masks.npz"}, FileNotFoundError, r"No such file .*none/masks\.npz"),
        ({"packed": "yes"}, TypeError, "packed must be True or False"),
        ({"path": "masks.npy"}, ValueError, r"path must end in .npz or .safetensors; got '.*npy'"),
        ({"path": "folder.npz"}, ValueError, "path must be a file"),
        ({"keep": {}}, ValueError, "keep must hold a mask; got none"),
        ({"keep": {"a/": SavedMasks(KEEP, None, "ht", {})}}, ValueError, "printable names.*'a/'"),
        ({"keep": {"a\n": SavedMasks(KEEP, None, "ht", {})}}, ValueError, "printable names"),
        ({"keep": SavedMasks(KEEP, None, "ht", {}), "axes": "ht"}, TypeError, "stand in the Saved"),
        (
            {"keep": SavedMasks(KEEP, None, "ht", {}, 0, np.zeros(10, int))},
            ValueError,
            "evicted_at must stand beside",
        ),
        (
            {"keep": SavedMasks(KEEP, None, "ht", {}, 0, np.zeros(9, int), np.zeros(10, int))},
            ValueError,
            r"born_at must have the shape \(2, 10\)",
        ),
    ],
)
def test_what_cannot_be_saved(
    tmp_path: Path, said: dict[str, Any], error: type[Exception], words: str
) -> None:
    (tmp_path / "folder.npz").mkdir()
    arguments = {"keep": [1, 0], **said}
    path = tmp_path / arguments.pop("path", "masks.npz")
    with pytest.raises(error, match=words):
        save_masks(path, arguments.pop("keep"), **arguments)
    assert [inner.name for inner in tmp_path.iterdir()] == ["folder.npz"]


def test_a_saved_file_is_like_any_other(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    target, link = tmp_path / "masks.npz", tmp_path / "link.npz"
    link.symlink_to(target)
    save_masks(link, KEEP, axes="ht")
    assert link.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    pipe = tmp_path / "pipe.npz"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="path must be a file"):
        save_masks(pipe, KEEP, axes="ht")


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_the_same_masks_give_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    if suffix == "safetensors":
        library("safetensors")
    code = (
        "import sys; from kvreclaim import save_masks;"
        "save_masks(sys.argv[1], [[1, 0, 1]], axes='bt', lengths=[3], meta={'b': 1, 'a': 2})"
    )
    paths = [tmp_path / f"{i}.{suffix}" for i in range(2)]
    for path in paths:
        subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert paths[0].read_bytes() == paths[1].read_bytes()


# --- Memory ---

MIB = 1 << 20


def peak_of(call: Callable[[], object]) -> float:
    """Return the most MiB that Python and NumPy held at once during a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("shape", "axes", "open_bits"),  # open_bits: tokens of the tables that are open at once
    [
        ((64 * MIB,), "t", 64),
        ((1, 64 * MIB), "ht", 64),
        ((64, MIB), "bt", 1),
        ((8, 8, MIB), "lbt", 8),
        ((MIB, 64), "bt", 0),
    ],
)
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_memory_stays_small_whatever_the_mask(
    tmp_path: Path, shape: tuple[int, ...], axes: str, open_bits: int, suffix: str
) -> None:
    path = tmp_path / f"mask.{suffix}"
    (np.save if suffix == "npy" else np.savez_compressed)(path, np.zeros(shape, bool))
    pool = BlockPool(16, shared_axes="lh")
    assert peak_of(lambda: census_of_file(path, pool, axes=axes)) < open_bits / 8 + 14
    assert peak_of(lambda: load_masks(path)) < 64 + 8


def test_what_a_file_declares_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "mask"
    contents = [
        npy_of((1 << 30,)),
        npy_of((1 << 60,)),
        npy_of((1 << 30,), "<U0"),
        npy_of((1 << 31, 1, 0)),
        lying(1 << 31),
        of_json(num_tokens=1 << 31, kept=[]),
        of_json(axes="ht", num_tokens=1 << 24, runs=[[]] * 128),
        b'{"num_tokens": 1, "kept": []}\n' * 1000 + of_json(num_tokens=1 << 22, kept=[]),
    ]
    for content in contents:
        path.write_bytes(content)

        def both() -> None:
            for call in (load_masks, lambda path, **said: census_of_file(path, 16, **said)):
                with pytest.raises((TypeError, ValueError)):
                    call(path, max_bytes=1 << 30)

        assert peak_of(both) < 4


def test_a_table_whose_bits_do_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mask.npy"
    np.save(path, np.zeros((2, 8, 800), bool))
    pool = BlockPool(16, shared_axes="l")
    assert census_of_file(path, pool, axes="lbt", max_bytes=800).num_tables == 8
    with pytest.raises(ValueError, match="bits fit into max_bytes=799; got 800 bytes"):
        census_of_file(path, pool, axes="lbt", max_bytes=799)


def test_bare_masks_by_name_are_told_apart_from_saved_ones(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="keep must be SavedMasks by name; got ndarray for 'a'"):
        save_masks(tmp_path / "a.npz", {"a": np.ones(3, bool)})  # type: ignore[dict-item]
    assert not list(tmp_path.iterdir())


def test_what_was_loaded_is_no_mask_itself(tmp_path: Path) -> None:
    save_masks(tmp_path / "a.npz", [[1, 0]], axes="ht")
    with pytest.raises(TypeError, match=r"got SavedMasks, .* write saved.keep, axes=saved.axes"):
        take_census(load_masks(tmp_path / "a.npz"), 2)  # type: ignore[arg-type]
