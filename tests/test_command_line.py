"""The command line, in this process and once in a fresh one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kvreclaim
from kvreclaim import BlockPool, load_masks, mask_names, physical_reclaim, save_masks
from kvreclaim.__main__ import main

DEMO = Path(kvreclaim.__file__).parent / "data" / "demo_masks.npz"
GOLDEN = json.loads((Path(__file__).parent / "data" / "demo_masks.json").read_text())


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 0
    out, err = capsys.readouterr()
    assert not err
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("kvreclaim: ")
    assert err.count("\n") == 1
    return err


def test_demo_masks_are_the_real_ones() -> None:
    assert mask_names(DEMO) == tuple(GOLDEN)
    assert DEMO.stat().st_size < 150_000
    for name, expected in GOLDEN.items():
        keep = load_masks(DEMO, array=name).keep
        assert keep.shape == (30, 3, 2048)
        assert keep.mean() == expected["retained"]
        for size, layouts in expected["reclaim"].items():
            for layout, share in (("head", ""), ("layer", "h"), ("all", "lh")):
                reclaim = physical_reclaim(
                    keep, BlockPool(int(size), shared_axes=share), axes="lht"
                )
                assert round(reclaim, 6) == layouts[layout], (name, size, layout)


def test_demo_makes_its_point_on_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "demo").splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    rows = {line[:14].strip(): line[14:].split() for line in lines}
    # logical; one table: in place, packed; a table a layer; a table a head; copy
    assert rows["StreamingLLM"][:7] == "0.500 0.492 0.500 0.492 0.500 0.492 0.500".split()
    assert rows["SnapKV"] == "0.500 0.000 0.500 0.086 0.500 0.242 0.500 0.4-2.0".split()
    assert rows["PyramidKV"][1:3] == ["0.000", "0.031"]
    assert rows["whole blocks"][:3] == ["0.500", "0.500", "0.500"]
    assert rows.keys() >= GOLDEN.keys()
    legend = " ".join(lines[-2:])
    for words in ("in place", "packed", "Neither is a verdict"):
        assert words in legend


def test_demo_runs_in_a_fresh_process_without_optional_packages() -> None:
    code = (
        "import sys; from kvreclaim.__main__ import main; assert main(['demo']) == 0; "
        "assert not {'scipy', 'torch', 'pandas', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "StreamingLLM" in done.stdout
    assert not done.stderr


def test_report_of_one_mask_shows_every_figure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "mask.npy"
    np.save(path, np.array([1, 1, 0, 0, 0, 0, 0, 1], np.uint8))
    text = run(capsys, "report", path, "--block-size", 2, "--blocks-per-request", 2)
    assert text.startswith(f"{path}\n")
    for figure in ("0.625  of 8 entries", "0.500  2 blocks, no copy", "1  of 2 blocks each"):
        assert figure in text


def test_report_of_several_masks_is_a_row_each(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "masks.npz"
    np.savez(path, first=np.ones((2, 8), bool), second=np.zeros((2, 8), bool))
    rows = {
        line.split()[0]: line.split()[1:]
        for line in run(capsys, "report", path, "--axes", "ht", "--block-size", 4).splitlines()
        if line.startswith(str(path))
    }
    assert rows == {
        f"{path}:first": ["0.000", "0.000", "0.000", "0.000", "0.000", "0.0-0.0"],
        f"{path}:second": ["1.000", "1.000", "1.000", "1.000", "1.000", "nan-nan"],
    }
    detailed = run(capsys, "report", path, "--axes", "ht", "--share", "none")
    assert detailed.count("share:none") == 2


def test_report_of_evictions_and_of_one_array(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "masks.npz"
    np.savez(path, first=np.ones(8, bool), second=np.zeros(8, bool))
    options = ("--array", "second", "--polarity", "evict", "--format", "json")
    (only,) = json.loads(run(capsys, "report", path, *options))["reports"]
    assert only["source"] == f"{path}:second"
    assert only["metrics"]["logical_saving"] == 0


def test_json_says_what_made_it(capsys: pytest.CaptureFixture[str]) -> None:
    written = json.loads(run(capsys, "report", DEMO, "--format", "json"))
    assert written["schema_version"] == 1
    assert written["environment"]["kvreclaim"] == kvreclaim.__version__
    assert [each["source"] for each in written["reports"]] == [f"{DEMO}:{name}" for name in GOLDEN]
    snapkv = written["reports"][1]
    assert snapkv["signature"].startswith("B:16|share:hl|")
    assert snapkv["metrics"]["effective_tokens_per_block"] is None
    assert snapkv["metrics"]["packed_reclaim"] == 0.5


def test_refusals_name_file_rule_and_remedy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scores = tmp_path / "scores.npy"
    np.save(scores, np.linspace(0, 1, 8))
    assert f"{scores}: keep must be" in refused(capsys, "report", scores)
    rows = tmp_path / "rows.npz"
    save_masks(rows, {"a": kvreclaim.SavedMasks(np.ones((2, 4), bool), None, "ht", {})})
    assert "array must name a mask" in refused(capsys, "report", rows, "--array", "b")
    two = tmp_path / "two.npy"
    np.save(two, np.ones((2, 4), bool))
    assert "axes must name the 2 axes" in refused(capsys, "report", two)
    assert "block_size must be" in refused(capsys, "report", rows, "--block-size", 0)
    assert "No such file" in refused(capsys, "report", tmp_path / "none.npy")


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["report"])
    assert stopped.value.code == 2
    assert "usage: kvreclaim report" in capsys.readouterr().err
