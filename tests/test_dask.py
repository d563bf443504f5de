"""A census of a dask array is that of the array in memory, whatever its chunks and scheduler."""

from __future__ import annotations

import doctest
import functools
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from optional import library
from scripts import output_of, scripts_of
from strategies import Case, cases

import kvreclaim
from kvreclaim import BlockPool, merge
from kvreclaim.adapters import _table_parts
from kvreclaim.adapters import dask as adapter
from kvreclaim.adapters._table_parts import num_bytes
from kvreclaim.adapters.dask import DaskArray, from_npy, take_census
from kvreclaim.pool import PoolLike

Client: TypeAlias = Any
"""A dask.distributed.Client; dask may be absent."""


dask = library("dask")
da = library("dask.array")
distributed = library("distributed")

UNSHARED = BlockPool(4, shared_axes="")
SMALL = np.random.default_rng(0).random((3, 2, 2, 53)) < 0.2


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


@st.composite
def chunkings(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Chunks of any sizes, 0 among them."""
    return tuple(
        tuple(np.diff([0, *sorted(cuts), size]).tolist())
        for size in shape
        for cuts in [draw(st.lists(st.integers(0, size), max_size=4))]
    )


@st.composite
def chunked_cases(draw: st.DrawFn) -> tuple[Case, tuple[tuple[int, ...], ...]]:
    case = draw(cases())
    return case, draw(chunkings(case.keep.shape))


OF_TWO = Case(np.eye(2, 9, 4, dtype=bool), BlockPool(2, shared_axes=""), {"axes": "bt"})


@given(
    chunked_cases(),
    st.sampled_from(["?", "u1", "<i8", ">i4"]),
    st.sampled_from([1, 20, 1 << 20]),
)
@example((OF_TWO, ((0, 2, 0), (0, 3, 0, 6, 0))), "?", 1)
@example((OF_TWO, ((1, 0, 1), (9,))), "?", 1)
def test_any_chunks_give_the_census_in_memory(
    chunked: tuple[Case, tuple[tuple[int, ...], ...]], dtype: str, meeting: int
) -> None:
    (keep, pool, said), chunks = chunked
    array = da.from_array(keep.astype(dtype), chunks=chunks)
    with mock.patch.object(adapter, "_MEETING", meeting):
        assert take_census(array, pool, **said) == kvreclaim.take_census(keep, pool, **said)


def numbers_of_arguments(
    name: str, of: Callable[[Any], int], count: Callable[[], object]
) -> list[int]:
    """Return what `of` says of the first argument of each call to a function of chunks."""
    numbers = []
    function = getattr(_table_parts, name)

    def noted(first: object, *others: object, **more: object) -> object:
        numbers.append(of(first))
        return function(first, *others, **more)

    with mock.patch.object(_table_parts, name, noted):
        count()
    return numbers


@pytest.mark.parametrize(
    ("meeting", "tables"), [(1, [1] * 30), (55, [1] * 30), (56, [2, 2, 1] * 6), (10_000, [30])]
)
def test_few_tables_meet_at_once(meeting: int, tables: list[int]) -> None:
    keep = np.zeros((6, 5, 4, 53), bool)
    array = da.from_array(keep, chunks=(6, 5, 2, 53))  # 7 bytes of bits for a row, 4 rows a table
    pool = BlockPool(4, shared_axes="h")
    with mock.patch.object(adapter, "_MEETING", meeting):
        met = numbers_of_arguments(
            "census_of_bits",
            lambda blocks: int(np.prod(blocks[0][0].shape[:2])),
            lambda: take_census(array, pool, axes="blht"),
        )
    assert sorted(met) == sorted(tables)


@pytest.mark.parametrize(
    ("shape", "chunks", "most"),
    [((100, 8), (1, 8), 16), ((10, 10, 8), (1, 1, 8), 16), ((6, 6, 6, 8), (1, 1, 1, 8), 8)],
)
def test_few_censuses_are_added_at_once(
    shape: tuple[int, ...], chunks: tuple[int, ...], most: int
) -> None:
    array = da.zeros(shape, chunks=chunks, dtype=bool)
    added = numbers_of_arguments(
        "merged", lambda some: int(np.size(some)), lambda: take_census(array, UNSHARED)
    )
    assert max(added) == most


def test_a_chunk_of_whole_tables_is_read_and_counted_in_one_task() -> None:
    array = da.zeros((5, 3, 64), chunks=(1, 3, 64), dtype=bool)
    results: list[Any] = []
    with dask.callbacks.Callback(posttask=lambda _, result, *__: results.append(result)):
        census = take_census(array, UNSHARED)
    assert census in results
    assert {np.size(result) for result in results} == {1}  # no chunk among them


@pytest.mark.parametrize("chunks", [-1, (1, 2, 2, 53), (2, 1, 1, 10)])
def test_unnamed_axes_where_nothing_is_shared(chunks: object) -> None:
    array = da.from_array(SMALL, chunks=chunks)
    assert take_census(array, UNSHARED) == kvreclaim.take_census(SMALL, UNSHARED)


@pytest.mark.parametrize("chunks", [53, 1, 7, 8])
def test_one_sequence(chunks: int) -> None:
    keep = SMALL[0, 0, 0]
    array = da.from_array(keep, chunks=chunks)
    assert take_census(array, 4) == kvreclaim.take_census(keep, 4)
    assert take_census(array, 4, lengths=53, offset=3) == kvreclaim.take_census(keep, 4, offset=3)


def test_chunks_of_another_array_class() -> None:
    array = da.from_array(SMALL, chunks=(1, 1, 2, 20)).map_blocks(Deviceless, dtype=bool)
    assert take_census(array, 4, axes="blht") == kvreclaim.take_census(SMALL, 4, axes="blht")


class Deviceless:
    """An array of which NumPy knows nothing, as those on other devices are."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.ndim = array.ndim

    def __array__(self, dtype: object = None, copy: object = None) -> NDArray[Any]:
        return self.array


def test_dasks_array_of_expressions() -> None:
    script = (
        "import dask, dask.array as da, numpy as np, kvreclaim\n"
        "from kvreclaim.adapters.dask import from_npy, take_census\n"
        "keep = np.random.default_rng(0).random((3, 4, 50)) < 0.3\n"
        "for chunks in [(1, 4, 50), (2, 3, 9)]:\n"
        "    array = da.from_array(keep, chunks=chunks)\n"
        "    assert 'expr' in type(array).__module__\n"
        "    census = kvreclaim.take_census(keep, 4, axes='bht')\n"
        "    assert take_census(array, 4, axes='bht') == census\n"
    )
    env = os.environ | {"DASK_ARRAY__QUERY_PLANNING": "True", "DASK_SCHEDULER": "synchronous"}
    assert ran(script, env) == ""


def ran(script: str, env: dict[str, str] | None = None) -> str:
    """Run a script in a fresh interpreter and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=env,
        cwd=Path(kvreclaim.__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_adapter_loads_no_dask() -> None:
    script = "import sys, kvreclaim.adapters.dask; print('dask' in sys.modules)"
    assert ran(script) == "False\n"


def test_examples_run() -> None:
    runner = doctest.DocTestRunner()
    for found in doctest.DocTestFinder().find(adapter):
        for step in found.examples:  # skipped elsewhere, where dask may be absent
            assert step.options.pop(doctest.SKIP)
        runner.run(found)
    assert runner.summarize() == (0, 7)


def exploding(shape: tuple[int, ...], dtype: str = "?", **how: object) -> DaskArray:
    """Return an array that cannot be computed."""

    def explode() -> None:
        raise AssertionError("computed")

    chunks = tuple((size,) for size in shape)
    return da.map_blocks(explode, chunks=chunks, dtype=dtype, **how)


def message(kind: type[Exception], call: Callable[[], object]) -> str:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert type(caught.value) is kind
    return str(caught.value)


UNFIT: list[tuple[type[Exception], tuple[int, ...], str, object, dict[str, Any]]] = [
    (ValueError, (2, 8), "?", 4, {}),
    (ValueError, (2, 8), "?", 4, {"axes": "bht"}),
    (ValueError, (2, 8), "?", 4, {"axes": "bh"}),
    (TypeError, (2, 8), "?", 4, {"axes": 5}),
    (ValueError, (2, 8), "?", 4, {"axes": "bt", "lengths": [1, 2, 3]}),
    (ValueError, (2, 8), "?", 4, {"axes": "bt", "lengths": [1, 9]}),
    (TypeError, (2, 8), "?", 4, {"axes": "bt", "lengths": [1.0, 2.0]}),
    (ValueError, (2, 8), "?", 4, {"axes": "bt", "offset": 4}),
    (ValueError, (2, 0, 8), "?", 4, {"axes": "bht"}),
    (ValueError, (), "?", 4, {}),
    (ValueError, (8,), "?", 0, {}),
    (TypeError, (8,), "?", "16", {}),
    (TypeError, (2, 8), "f8", 4, {"axes": "bt"}),
    (TypeError, (2, 8), "f2", 4, {"axes": "bt"}),
    (TypeError, (2, 8), "c16", 4, {"axes": "bt"}),
    (TypeError, (2, 8), "O", 4, {"axes": "bt"}),
    (TypeError, (2, 8), "U1", 4, {"axes": "bt"}),
]


@pytest.mark.parametrize(("kind", "shape", "dtype", "pool", "said"), UNFIT)
def test_what_does_not_fit_is_refused_unread_as_in_memory(
    kind: type[Exception], shape: tuple[int, ...], dtype: str, pool: PoolLike, said: dict[str, Any]
) -> None:
    lazy = exploding(shape, dtype)
    in_memory = np.ones(shape, dtype)
    assert message(kind, lambda: take_census(lazy, pool, **said)) == message(
        kind, lambda: kvreclaim.take_census(in_memory, pool, **said)
    )


def test_masked_arrays_are_refused_unread() -> None:
    lazy = exploding((8,), meta=np.ma.zeros(0, bool))
    with pytest.raises(TypeError, match=r"got a numpy\.ma masked array"):
        take_census(lazy, 4)


def test_chunks_of_unknown_sizes_are_refused_unread() -> None:
    array = da.from_array(SMALL[0, 0], chunks=1)
    unknown = array[array.any(axis=1)]
    text = r"chunks of known sizes; got shape \(nan, 53\); call array.compute_chunk_sizes\(\)"
    with pytest.raises(ValueError, match=text):
        take_census(unknown, 4, axes="ht")
    expected = kvreclaim.take_census(SMALL[0, 0], 4, axes="ht")
    assert take_census(unknown.compute_chunk_sizes(), 4, axes="ht") == expected


@pytest.mark.parametrize("other", [SMALL, [1, 0], None, "keep.npy", dask.delayed(SMALL)])
def test_what_is_no_dask_array(other: object) -> None:
    text = r"array must be a dask array; got .*; write kvreclaim.take_census\(array, pool\) for"
    with pytest.raises(TypeError, match=text):
        take_census(other, 4, axes="blht")


@pytest.mark.parametrize("call", [lambda: take_census(None, 4), lambda: from_npy("keep.npy")])
def test_without_dask(call: Callable[[], object]) -> None:
    text = r"handled by the package dask; got ModuleNotFoundError .*'kvreclaim\[dask\]'"
    with (
        mock.patch.dict(sys.modules, {"dask.array": None}),
        pytest.raises(ValueError, match=text),
    ):
        call()


WRONG = [
    ((1, 2, 2, 53), r"array, from b=2 on: keep must be .* the first 2 at index \(0, 1, 0, 50\);"),
    (-1, r"array: keep must be True .* the first 2 at index \(2, 1, 0, 50\); write keep != 0 if"),
    ((2, 1, 2, 20), r"array, from b=2, l=1, t=40 on: .* the first 2 at index \(0, 0, 0, 10\);"),
]


@pytest.mark.parametrize(("chunks", "text"), WRONG)
def test_a_wrong_value_is_named_with_its_chunk(chunks: object, text: str) -> None:
    numbers = SMALL.astype(int)
    numbers[2, 1, 0, 50] = 2
    with pytest.raises(ValueError, match=text):
        take_census(da.from_array(numbers, chunks=chunks), 4, axes="blht")


@pytest.mark.parametrize(
    ("chunks", "where"),
    [
        ((1, 2, 2, 53), "array, from axis 0=2 on"),
        ((1, 2, 2, 20), "array, from axis 0=2, t=40 on"),
    ],
)
def test_a_wrong_value_of_unnamed_axes(chunks: object, where: str) -> None:
    numbers = SMALL.astype(int)
    numbers[2, 1, 0, 50] = 2
    with pytest.raises(ValueError, match=f"^{where}: keep must be"):
        take_census(da.from_array(numbers, chunks=chunks), UNSHARED)


@pytest.mark.parametrize("chunks", [(1, 2, 2, 53), (1, 1, 2, 20)])
def test_a_true_beyond_a_length_is_named_with_its_tables(chunks: object) -> None:
    keep = SMALL.copy()
    keep[2, 0, 0, 50] = True
    text = "array, from b=2 on: keep must be False beyond the lengths; got True at token 50 of"
    with pytest.raises(ValueError, match=text):
        take_census(da.from_array(keep, chunks=chunks), 4, axes="blht", lengths=[53, 53, 50])


def test_chunks_that_are_not_what_the_array_says() -> None:
    array = da.from_array(SMALL[0, 0], chunks=1).map_blocks(np.float64, dtype=bool)
    with pytest.raises(TypeError, match="got an array of float64"):
        take_census(array, 4, axes="ht")


@pytest.mark.parametrize(
    ("chunks", "change", "words"),
    [
        ((2, 8), lambda part: part[:1], r"from b=2 on: .* declares, \(2, 8\); got \(1, 8\);"),
        ((2, 8), lambda part: part[:, :5], r"from b=2 on: .* declares, \(2, 8\); got \(2, 5\);"),
        ((4, 4), lambda part: part[:1], r"from t=4 on: .* declares, \(4, 4\); got \(1, 4\);"),
        ((4, 4), lambda part: part[:, :3], r"from t=4 on: .* declares, \(4, 4\); got \(4, 3\);"),
    ],
)
def test_chunks_that_are_not_of_the_shape_that_the_array_says(
    chunks: tuple[int, int], change: Callable[[Any], Any], words: str
) -> None:
    keep = da.ones((4, 8), chunks=chunks, dtype=bool)

    def later(part: Any, block_id: tuple[int, int]) -> Any:  # noqa: ANN401  # an array
        return change(part) if any(block_id) else part

    with pytest.raises(ValueError, match=rf"array, {words} write map_blocks"):
        take_census(keep.map_blocks(later, dtype=bool), 2, axes="bt")


@pytest.mark.parametrize(
    ("start", "tokens", "expected"), [(0, 0, 0), (9, 0, 0), (0, 8, 1), (7, 1, 1), (7, 2, 2)]
)
def test_bytes_that_a_few_tokens_touch(start: int, tokens: int, expected: int) -> None:
    assert num_bytes(start, tokens) == expected
    assert len({token // 8 for token in range(start, start + tokens)}) == expected


@st.composite
def saved_arrays(draw: st.DrawFn) -> NDArray[Any]:
    shape = tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=4)))
    dtype = draw(st.sampled_from(["?", "u1", "<i8", ">i2"]))
    order: Literal["C", "F"] = draw(st.sampled_from(["C", "F"]))
    random = np.random.default_rng(draw(st.integers(0, 99))).random(shape)
    return np.array(random < 0.5).astype(dtype, order=order)


@given(saved_arrays(), st.integers(1, 300))
def test_files_are_arrays_in_chunks(
    tmp_path_factory: pytest.TempPathFactory, array: NDArray[Any], chunk_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("files") / "keep.npy"
    np.save(path, array)
    lazy = from_npy(path, chunk_bytes=chunk_bytes)
    assert lazy.dtype == array.dtype
    assert lazy.shape == array.shape
    assert np.array_equal(lazy.compute(), array)
    largest = np.prod([max(sizes) for sizes in lazy.chunks]) * array.itemsize
    assert largest <= max(chunk_bytes, array.itemsize)
    two = from_npy([path, str(path)], chunk_bytes=chunk_bytes)
    assert two.chunks[0] == (1, 1)
    assert np.array_equal(two.compute(), np.stack([array, array]))
    assert np.array_equal(two[1, ..., ::2].compute(), array[..., ::2])


def sparse_file(path: Path, shape: tuple[int, ...]) -> Path:
    """Write a file of no Trues that takes no room on most disks."""
    header = {"descr": "|b1", "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + int(np.prod(shape)))
    return path


def test_chunks_are_of_64_mib_along_the_first_axis_unless_told(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "keep.npy", (40, 4, 1 << 20))
    assert from_npy(path).chunks == ((16, 16, 8), (4,), (1 << 20,))
    long = sparse_file(tmp_path / "long.npy", (2, 80 << 20))
    assert from_npy(long).chunks == ((1, 1), (64 << 20, 16 << 20))


def test_paths_and_ranges_are_sent_but_no_values(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "keep.npy", (32, 1 << 20))
    lazy = from_npy(path, chunk_bytes=1 << 20)
    graph = lazy.__dask_optimize__(lazy.__dask_graph__(), lazy.__dask_keys__())
    assert len(pickle.dumps(dict(graph))) < 32 * 2_000


def test_a_file_may_be_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "keep.npy", SMALL)
    monkeypatch.chdir(tmp_path)
    lazy = from_npy("keep.npy")
    monkeypatch.chdir("/")  # where a worker may run
    assert np.array_equal(lazy.compute(), SMALL)


def saved(path: Path, array: object) -> Path:
    np.save(path, np.asarray(array))
    return path


REFUSED: list[tuple[type[Exception], Callable[[Path], object], str]] = [
    (ValueError, lambda _: [], r"paths must name at least one \.npy file; got none; write such as"),
    (TypeError, lambda _: 5, r"paths must be paths of \.npy files; got int 5; write such as"),
    (TypeError, lambda _: [5], r"paths must be paths of \.npy files; got int 5; write such as"),
    (ValueError, lambda folder: folder, r"must be a \.npy file; got a folder, a pipe or a device"),
    (ValueError, lambda folder: saved(folder / "a.npy", True), "keep must have a token axis"),
    (TypeError, lambda folder: saved(folder / "a.npy", [0.5]), "a.npy: .* an array of float64"),
    (
        ValueError,
        lambda folder: [saved(folder / "a.npy", [True]), saved(folder / "b.npy", [1])],
        r"one shape, type and order; got bool of shape \(1,\) in .*a.npy and int64 of shape \(1,\)",
    ),
    (
        ValueError,
        lambda folder: [
            saved(folder / "a.npy", np.ones((2, 2), bool)),
            saved(folder / "b.npy", np.ones((2, 2), bool, order="F")),
        ],
        r"and bool of shape \(2, 2\) in Fortran order in .*b.npy; make an array of each kind",
    ),
]


@pytest.mark.parametrize(("kind", "paths", "text"), REFUSED)
def test_files_that_make_no_array(
    kind: type[Exception], paths: Callable[[Path], Any], text: str, tmp_path: Path
) -> None:
    given_paths = paths(tmp_path)
    assert re.search(text, message(kind, lambda: from_npy(given_paths)))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.npy"):
        from_npy(tmp_path / "absent.npy")


@pytest.mark.parametrize("value", [0, True, 1.5])
def test_bytes_of_a_chunk(value: int, tmp_path: Path) -> None:
    path = saved(tmp_path / "keep.npy", SMALL)
    with pytest.raises((TypeError, ValueError), match="chunk_bytes must be an integer of at least"):
        from_npy(path, chunk_bytes=value)


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    path = saved(tmp_path / "keep.npy", SMALL)
    lazy = from_npy(path, chunk_bytes=100)
    os.truncate(path, 300)
    text = f"keep.npy must hold the {SMALL.size} bytes that its header declares"
    with pytest.raises(ValueError, match=text):
        take_census(lazy, 4, axes="blht")
    with pytest.raises(ValueError, match=text):
        from_npy(path)


def test_a_file_that_is_another_by_then(tmp_path: Path) -> None:
    path = saved(tmp_path / "keep.npy", SMALL)
    lazy = from_npy(path)
    saved(path, SMALL[0])
    text = r"keep.npy must stay as it was .* bool of shape \(3, 2, 2, 53\); got bool of shape \(2,"
    with pytest.raises(ValueError, match=text):
        take_census(lazy, 4, axes="blht")


def test_a_byte_that_is_no_boolean(tmp_path: Path) -> None:
    path = saved(tmp_path / "keep.npy", SMALL)
    data = bytearray(path.read_bytes())
    data[-2] = 7
    path.write_bytes(data)
    text = r"keep.npy, from value 583 on: keep must be .* the first 7 at index 51; write keep != 0"
    with pytest.raises(ValueError, match=text):
        take_census(from_npy(path, chunk_bytes=100), 4, axes="blht")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Client]:
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as both,
        distributed.Client(both, set_as_default=False) as client,
    ):
        client.wait_for_workers(2)
        yield client


@pytest.fixture
def workers(cluster: Client) -> Iterator[Client]:
    """Two processes, on which everything runs that is computed."""
    with cluster.as_current(), dask.config.set(scheduler="distributed"):
        yield cluster


def test_the_workers_are_two_processes(workers: Client) -> None:
    pids = {*workers.run(os.getpid).values()}
    assert len(pids - {os.getpid()}) == 2


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("chunk_bytes", [1 << 13, 1000])
def test_files_on_two_workers(tmp_path: Path, chunk_bytes: int) -> None:
    rng = np.random.default_rng(1)
    keeps = [rng.random((6, 2, 3, 500)) < 0.05 for _ in range(3)]
    pool, lengths = BlockPool(16), rng.integers(400, 500, (3, 6))
    for some, ends in zip(keeps, lengths, strict=True):
        for keep, end in zip(some, ends, strict=True):
            keep[..., end:] = False
    paths = [saved(tmp_path / f"{i}.npy", keep) for i, keep in enumerate(keeps)]
    census = take_census(
        from_npy(paths, chunk_bytes=chunk_bytes), pool, axes="sblht", lengths=lengths
    )
    assert census == merge(
        kvreclaim.take_census(keep, pool, axes="blht", lengths=ends)
        for keep, ends in zip(keeps, lengths, strict=True)
    )
    assert census.num_freed_blocks > 0


def test_the_script_of_the_page(tmp_path: Path) -> None:
    keep = np.random.default_rng(0).random((3, 2, 3, 101)) < 0.01
    paths = [str(saved(tmp_path / f"{i}.npy", sequence)) for i, sequence in enumerate(keep)]
    name = "count_with_dask.py"
    script = scripts_of(Path(__file__).parents[1] / "docs" / "scale.md")[name]
    census = kvreclaim.take_census(keep, BlockPool(16), axes="blht")
    assert 0 < census.num_freed_blocks < census.num_blocks
    expected = f"3 {kvreclaim.physical_reclaim(census)}\n"
    assert output_of(script, tmp_path / name, *paths) == expected


@pytest.mark.usefixtures("workers")
def test_the_words_of_an_error_come_back() -> None:
    numbers = SMALL.astype(int)
    numbers[2, 1, 0, 50] = 2
    with pytest.raises(ValueError, match=r"array, from b=2 on: keep must be .* the first 2 at"):
        take_census(da.from_array(numbers, chunks=(1, 2, 2, 53)), 4, axes="blht")


@pytest.mark.usefixtures("workers")
def test_zarr_on_two_workers(tmp_path: Path) -> None:
    zarr = library("zarr")
    zarr.create_array(tmp_path / "keep.zarr", data=SMALL, chunks=(1, 1, 2, 20))
    array = da.from_zarr(tmp_path / "keep.zarr")
    assert array.chunks == ((1, 1, 1), (1, 1), (2,), (20, 20, 13))
    assert take_census(array, 4, axes="blht") == kvreclaim.take_census(SMALL, 4, axes="blht")


ROWS, PARTS, STEP = 16, 4, 2_000


def row(number: int) -> NDArray[np.bool_]:
    return np.random.default_rng(number).random(PARTS * STEP) < 0.05


def patient_part(folder: Path, block_id: tuple[int, int] = (0, 0)) -> NDArray[np.bool_]:
    """Return a part of a row; once half of all are made, not before somebody was killed."""
    number, part = block_id
    if len([*folder.glob("made *")]) >= ROWS * PARTS // 2:
        (folder / f"waits {number},{part} {os.getpid()}").touch()
        wait_until((folder / "killed").exists)
    (folder / f"made {number},{part} {os.getpid()}").touch()
    return row(number)[None, part * STEP : (part + 1) * STEP]


def wait_until(happened: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def chunks_by_process(folder: Path, what: str) -> dict[int, set[str]]:
    chunks: dict[int, set[str]] = {}
    for path in folder.glob(f"{what} *"):
        _, chunk, pid = path.name.split()
        chunks.setdefault(int(pid), set()).add(chunk)
    return chunks


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_that_is_killed_in_mid_run(workers: Client, tmp_path: Path) -> None:
    pool = BlockPool(16, shared_axes="")
    array = da.map_blocks(
        functools.partial(patient_part, tmp_path),
        chunks=((1,) * ROWS, (STEP,) * PARTS),
        dtype=bool,
        meta=np.empty((0, 0), bool),
    )
    found = []

    def count() -> None:
        with workers.as_current():
            found.append(take_census(array, pool))

    run = threading.Thread(target=count)
    run.start()
    wait_until(lambda: len(chunks_by_process(tmp_path, "waits")) == 2)
    made, waits = (chunks_by_process(tmp_path, what) for what in ("made", "waits"))
    victim = max(made, key=lambda pid: len(made[pid]))
    assert victim != os.getpid()
    assert len(made[victim]) >= ROWS * PARTS // 4  # lost with it
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not is_there(victim))
    assert run.is_alive()
    assert found == []
    (tmp_path / "killed").touch()
    run.join(60)
    keep = np.stack([row(number) for number in range(ROWS)])
    assert found == [kvreclaim.take_census(keep, pool)]
    after = chunks_by_process(tmp_path, "made")
    assert after.pop(victim) == made[victim]
    assert waits[victim] <= set().union(*after.values())
    workers.wait_for_workers(2)
