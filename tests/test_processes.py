"""The recipes of docs/scale.md: scripts that count files and ranges of them in processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scripts import output_of, scripts_of

from kvreclaim import BlockPool, physical_reclaim, save_masks, take_census

SCRIPTS = scripts_of(Path(__file__).parents[1] / "docs" / "scale.md")


@pytest.fixture(scope="module")
def keep() -> NDArray[np.bool_]:
    """Sequences of three lengths of 64 and a few; layers, heads and tokens."""
    return np.random.default_rng(0).random((150, 2, 3, 101)) < 0.01


def expected(keep: NDArray[np.bool_]) -> str:
    census = take_census(keep, BlockPool(16), axes="blht")
    assert 0 < census.num_freed_blocks < census.num_blocks
    return f"{len(keep)} {physical_reclaim(census)}\n"


def test_every_script_is_run_by_a_test() -> None:
    assert {*SCRIPTS} == {"count_files.py", "count_rows.py", "count_with_dask.py"}  # test_dask.py


def test_files_in_processes(tmp_path: Path, keep: NDArray[np.bool_]) -> None:
    paths = [str(tmp_path / f"{number}.{'npy' if number else 'npz'}") for number in range(5)]
    save_masks(paths[0], keep[0], axes="lht")
    for path, sequence in zip(paths[1:], keep[1:], strict=False):
        np.save(path, sequence)
    script = SCRIPTS["count_files.py"]
    assert output_of(script, tmp_path / "count_files.py", *paths) == expected(keep[:5])


def test_ranges_of_a_file_in_processes(tmp_path: Path, keep: NDArray[np.bool_]) -> None:
    path = tmp_path / "keep.npy"
    np.save(path, keep)
    script = SCRIPTS["count_rows.py"]
    assert output_of(script, tmp_path / "count_rows.py", str(path)) == expected(keep)
