"""Mistakes that were met in public with packages and records; named after their cases."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvreclaim import BlockPool, Census, report, take_census

FAKES = Path(__file__).parent / "data" / "cases_files" / "h25_fake_site"
OPTIONAL = ("torch", "matplotlib", "pandas", "safetensors")
POOL = BlockPool(4, shared_axes="")


def census_of_twelve(pool: BlockPool) -> Census:
    """Return a census that another process can take as well."""
    return take_census(np.arange(12) % 5 == 0, pool)


@pytest.mark.parametrize(
    "code",
    [
        "import kvreclaim",
        "import kvreclaim; kvreclaim.report([1, 0, 1], 2)",
        "from kvreclaim.__main__ import main\ntry: main(['--help'])\nexcept SystemExit: pass",
    ],
)
def test_h25_optional_packages_are_not_imported(code: str) -> None:
    check = f"{code}\nimport sys\nassert not set({OPTIONAL!r}) & set(sys.modules)"
    path = os.pathsep.join([str(FAKES), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", check],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_e01_a_square_mask_needs_its_axes_named() -> None:
    keep = np.broadcast_to(np.arange(16) < 4, (16, 16))
    with pytest.raises(ValueError, match="axes must name the 2 axes"):
        take_census(keep, 4)
    assert take_census(keep, 4, axes="ht") == take_census(keep.T, 4, axes="th")
    assert take_census(keep, 4, axes="ht") != take_census(keep, 4, axes="th")


def test_e05_records_survive_pickles_copies_and_processes() -> None:
    for record in (POOL, census_of_twelve(POOL), report([1, 0, 0, 1], 2)):
        assert pickle.loads(pickle.dumps(record)) == record  # noqa: S301  # our own bytes
        assert copy.deepcopy(record) == record
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        assert workers.map(census_of_twelve, [POOL]) == [census_of_twelve(POOL)]


def test_e06_records_compare_and_hash() -> None:
    census, other = census_of_twelve(POOL), take_census([1, 0], POOL)
    assert (census == census_of_twelve(POOL)) is True
    assert (census == other) is False
    assert {POOL: 1}[BlockPool(4, shared_axes="")] == 1
    assert hash(census) == hash(census_of_twelve(POOL))
    figures = report(census)
    assert figures in [report(other), report(census)]


@pytest.mark.parametrize("keep", [[0, 0], [1] * 16])
def test_e08_undefined_is_null_in_json(keep: list[int]) -> None:
    figures = report(keep, BlockPool(4 if len(keep) > 2 else 16))
    written = json.loads(json.dumps(figures.to_dict(), allow_nan=False))
    assert written["metrics"]["moved_tokens_per_block"] is None


def test_e09_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    np.save(tmp_path / "mask.npy", np.ones((400, 64), bool))
    command = (
        f"{sys.executable} -m kvreclaim report {tmp_path}/mask.npy --axes bt --share none --by b "
        "| head -1"
    )
    done = subprocess.run(  # noqa: S602  # a pipe of the shell is what the case is about
        command,
        shell=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("\n") == 1
    assert not done.stderr
