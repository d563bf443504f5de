"""The command line: in this process, and in fresh ones where a terminal matters."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import kvreclaim
from kvreclaim import (
    BlockPool,
    SavedMasks,
    load_masks,
    mask_names,
    occupancy,
    physical_reclaim,
    runtimes,
    save_masks,
)
from kvreclaim.__main__ import main
from kvreclaim._cli import console, inputs, padding, parser
from kvreclaim._formats import opening, reading
from kvreclaim.comparison import Comparison
from kvreclaim.signature import Signature

DEMO = Path(kvreclaim.__file__).parent / "data" / "demo_masks.npz"
GOLDEN = json.loads((Path(__file__).parent / "data" / "demo_masks.json").read_text())
FORMATS = ("table", "json", "jsonl", "csv", "markdown", "latex")
COMMANDS = ("report", "compare", "map", "convert", "signature", "demo")


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


def misused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("usage: kvreclaim ")
    return err


def environment(*first: Path, **more: str) -> dict[str, str]:
    """Return an environment in which a fresh process finds the package, and `first` before it."""
    path = os.pathsep.join(map(str, [*first, Path(kvreclaim.__file__).parents[1]]))
    return os.environ | {"PYTHONPATH": path, "COLUMNS": "80"} | more


def fresh(
    *arguments: object,
    env: dict[str, str] | None = None,
    **how: Any,  # noqa: ANN401  # what subprocess.run takes
) -> subprocess.CompletedProcess[Any]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "kvreclaim", *map(str, arguments)]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | how
    return subprocess.run(command, check=False, timeout=60, env=env or environment(), **how)


@pytest.fixture
def masks(tmp_path: Path) -> Path:
    """A file of two masks of two layers, three heads and 64 tokens."""
    path = tmp_path / "masks.npz"
    scatter = np.random.default_rng(0).random((2, 3, 64)) < 0.5
    window = np.broadcast_to(np.arange(64) >= 32, (2, 3, 64))
    save_masks(
        path,
        {
            "scatter": SavedMasks(scatter, None, "lht", {}),
            "window": SavedMasks(window, None, "lht", {}),
        },
    )
    return path


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
    assert " ".join(rows["StreamingLLM"][:7]) == "0.500 0.492 0.500 0.492 0.500 0.492 0.500"
    assert " ".join(rows["SnapKV"]) == "0.500 0.000 0.500 0.086 0.500 0.242 0.500 0.4-2.0"
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
    lines = run(capsys, "report", path, "--axes", "ht", "--block-size", 4).splitlines()
    assert lines[0] == f"{path}:"
    rows = {line.split()[0]: line.split()[1:] for line in lines[4:6]}
    assert rows == {
        "first": ["0.000", "0.000", "0.000", "0.000", "0.000", "0.0-0.0"],
        "second": ["1.000", "1.000", "1.000", "1.000", "1.000", "nan-nan"],
    }


def test_an_overview_has_the_layouts_that_the_axes_tell_apart(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for axes, titles in {
        "lht": ["one table for a table for a table for", "all rows each layer each head"],
        "lt": ["one table for a table for", "all layers each layer"],
        "bht": ["one table for a table for", "all heads each head"],
        "t": ["a table for", "each row"],
    }.items():
        path = tmp_path / f"{axes}.npy"
        np.save(path, np.ones((1,) * (len(axes) - 1) + (8,), bool))
        lines = run(capsys, "report", path, path, "--axes", axes).splitlines()
        start = 1 if lines[0].endswith("/") else 0
        assert [" ".join(line[21:].split()) for line in lines[start : start + 2]] == [
            f"{titles[0]} copy, in",
            f"{titles[1]} decode",
        ]
        assert max(map(len, lines[start:])) <= 80
        assert [line for line in lines if "(2)" in line]


def test_several_masks_under_a_pool_are_rows_of_figures(
    capsys: pytest.CaptureFixture[str], masks: Path
) -> None:
    text = run(capsys, "report", masks, "--share", "none", "--blocks-per-request", 2)
    lines = text.splitlines()
    assert lines[4].split()[:7] == ["window", "0.500", "0.500", "0.500", "0.500", "0.000", "6"]
    assert "share:none" in lines[-1]
    assert max(map(len, lines[1:-1])) <= 80


POOLS = [
    ("", BlockPool(16)),
    ("--block-size 4", BlockPool(4)),
    ("--share none", BlockPool(16, shared_axes="")),
    ("--share ht --block-size 8", None),
    ("--frees back --open-tail", BlockPool(16, frees="back", open_tail=True)),
    ("--compactor pack_rows", BlockPool(16, compactor="pack_rows")),
    (
        "--total-blocks 99 --reserved-blocks 1 --watermark-blocks 2 --entry-bytes 512",
        BlockPool(16, total_blocks=99, reserved_blocks=1, watermark_blocks=2, entry_bytes=512),
    ),
]


@pytest.mark.parametrize(("options", "pool"), POOLS)
def test_every_field_of_a_pool_can_be_spelled(
    options: str, pool: BlockPool | None, capsys: pytest.CaptureFixture[str], masks: Path
) -> None:
    if pool is None:
        assert "leave out 't'" in refused(capsys, "signature", *options.split())
        return
    signature = run(capsys, "signature", *options.split(), "--rows", 6).strip()
    assert Signature.parse(signature) == Signature(pool, 6, kvreclaim.__version__)
    report = run(capsys, "report", masks, "--array", "window", *options.split())
    assert Signature.parse(report.splitlines()[-1]).pool == pool
    explained = run(capsys, "signature", signature)
    assert "|".join(line.split()[0] for line in explained.splitlines()) == signature


def test_a_row_for_each_index(capsys: pytest.CaptureFixture[str], masks: Path) -> None:
    options = ("--share", "h", "--block-size", 4, "--by", "l")
    lines = run(capsys, "report", masks, *options).splitlines()
    names = [" ".join(line.split()[:2]) for line in lines[3:7]]
    assert names == ["scatter l=0", "scatter l=1", "window l=0", "window l=1"]
    keep = load_masks(masks, array="scatter").keep
    reports = json.loads(run(capsys, "report", masks, *options, "--format", "json"))["reports"]
    pool = BlockPool(4, shared_axes="h")
    for layer in (0, 1):
        figures = kvreclaim.report(keep[layer], pool, axes="ht")
        assert reports[layer]["source"] == f"{masks}:scatter l={layer}"
        assert reports[layer]["metrics"] == figures.to_dict()["metrics"]
        assert reports[layer]["absent_axes"] == ""
    assert "by must name axes" in refused(capsys, "report", masks, "--by", "h")
    np.save(masks.with_name("bare.npy"), keep)
    message = refused(capsys, "report", masks.with_name("bare.npy"), "--by", "l")
    assert "axes must name the axes of the mask" in message


@pytest.fixture
def seeds(tmp_path: Path) -> Path:
    """A file of two masks of five seeds, two layers and 64 tokens, and one of longer sequences."""
    path = tmp_path / "seeds.npz"
    rng = np.random.default_rng(1)
    scatter = rng.random((5, 2, 64)) < 0.5
    window = np.arange(64) >= rng.integers(24, 40, (5, 1, 1)) + np.zeros((5, 2, 1), int)
    longer = np.arange(80) >= rng.integers(24, 40, (5, 2, 1))
    save_masks(
        path,
        {
            "window": SavedMasks(window, None, "slt", {}),
            "scatter": SavedMasks(scatter, None, "slt", {}),
            "longer": SavedMasks(longer, None, "slt", {}),
        },
    )
    return path


@pytest.mark.parametrize("command", ["report", "compare"])
def test_seeds_are_summarized_below_their_rows(
    command: str, capsys: pytest.CaptureFixture[str], seeds: Path
) -> None:
    text = run(capsys, command, seeds, "--by", "s", "--block-size", 4)
    lines = text.splitlines()
    assert max(map(len, lines[1:-1])) <= 80
    for title in ("window", "scatter", "longer", "scatter less window"):
        assert lines.count(title) == 1
    assert "longer less window" not in lines
    keep = load_masks(seeds, array="window").keep
    counts = [kvreclaim.take_census(each, 4, axes="lt") for each in keep]
    whole = sum(c.num_freed_blocks for c in counts) / sum(c.num_blocks for c in counts)
    row = next(line for line in lines[lines.index("window") :] if line.startswith("comes back"))
    assert row.split()[4] == f"{whole:.3f}"
    assert row.split()[-2:] == ["5", "t"]


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_has_the_summaries(
    form: str, capsys: pytest.CaptureFixture[str], seeds: Path
) -> None:
    options = ("--by", "s", "--block-size", 4, "--array", "window", "--format", form)
    text = run(capsys, "report", seeds, *options)
    plain = [
        kvreclaim.report(keep, 4, axes="lt") for keep in load_masks(seeds, array="window").keep
    ]
    mean = sum(figures.physical_reclaim for figures in plain) / 5
    if form == "json":
        (only,) = json.loads(text)["summaries"]
        assert only["source"] == f"{seeds}:window"
        assert only["reports"] == [f"{seeds}:window s={seed}" for seed in range(5)]
        assert only["metrics"]["physical_reclaim"]["each"]["mean"] == pytest.approx(mean)
    elif form == "jsonl":
        assert "summaries" not in text
        assert len(text.splitlines()) == 5
    else:
        assert f"{mean:.3f}" in text or "pooled" in text
        assert (
            len(Comparison.from_json(run(capsys, "report", seeds, *options[:-1], "json")).reports)
            == 5
        )


def test_only_sequences_or_seeds_are_summarized(
    capsys: pytest.CaptureFixture[str], seeds: Path, tmp_path: Path
) -> None:
    def groups(path: Path, by: str, *options: object) -> dict[str, list[str]]:
        asked = ("--share", "h", "--by", by, "--format", "json", *options)
        written = json.loads(run(capsys, "report", path, *asked))
        return {
            each["source"].rpartition(":")[2]: [name.partition(":")[2] for name in each["reports"]]
            for each in written.get("summaries", ())
        }

    window = ("--array", "window")
    assert groups(seeds, "l", *window) == {}
    assert groups(seeds, "sl", *window) == {
        f"window l={layer}": [f"window s={seed} l={layer}" for seed in range(5)] for layer in (0, 1)
    }
    path = tmp_path / "both.npz"
    save_masks(path, {"a": SavedMasks(np.ones((2, 3, 8), bool), None, "bst", {})})
    assert groups(path, "b") == {"a": ["a b=0", "a b=1"]}
    assert groups(path, "bs") == {}
    save_masks(path, {"a": SavedMasks(np.ones((1, 8), bool), None, "bt", {})})
    assert groups(path, "b") == {}


def test_saved_summaries_are_compared(
    capsys: pytest.CaptureFixture[str], seeds: Path, tmp_path: Path
) -> None:
    saved = [tmp_path / f"{name}.json" for name in ("window", "scatter")]
    options = ("--by", "s", "--block-size", 4)
    for path in saved:
        written = ("--array", path.stem, "--format", "json", "-o", path)
        run(capsys, "report", seeds, *options, *written)
    again = json.loads(run(capsys, "compare", *saved, "--format", "json"))["summaries"]
    straight = json.loads(run(capsys, "compare", seeds, *options, "--format", "json"))["summaries"]
    assert [each["source"] for each in again] == [f"{path}:{seeds}:{path.stem}" for path in saved]
    for one, other in zip(again, straight[:2], strict=True):
        assert one["metrics"] == other["metrics"]
        assert one["less_first"] == other["less_first"]
    twice = json.loads(run(capsys, "compare", saved[0], saved[0], "--format", "json"))["summaries"]
    assert [len(each["reports"]) for each in twice] == [5, 5]
    mixed = run(capsys, "compare", saved[0], seeds, "--array", "scatter", *options)
    assert f"\nseeds.npz:scatter less window.json:{seeds}:window\n" in mixed


def test_a_threshold_is_for_each_row_not_for_their_mean(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "seeds.npy"
    np.save(path, np.arange(64) >= np.array([[16], [48]]))
    options = ("report", str(path), "--axes", "st", "--by", "s", "--share", "none")
    assert main([*options, "--fail-under", "physical_reclaim=0.5"]) == 1
    out, err = capsys.readouterr()
    assert err == f"kvreclaim: {path} s=0: physical_reclaim is 0.25, under 0.5\n"
    assert out == run(capsys, *options)


def test_lengths_and_offsets_are_numbers_or_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "mask.npy"
    np.save(path, np.zeros((2, 3, 8), bool))
    table = tmp_path / "table.txt"
    table.write_text("\ufeff8, 7, 6\r\n\r\n5 4 3\n")
    flat = tmp_path / "flat.txt"
    flat.write_text("8\n5\n")

    def tokens(*options: object) -> int:
        written = run(capsys, "report", path, *options, "--format", "json", "--block-size", 4)
        found: int = json.loads(written)["reports"][0]["counts"]["num_tokens"]
        return found

    assert tokens("--axes", "bst", "--lengths", f"@{table}") == 33
    assert tokens("--axes", "bht", "--lengths", "8,5") == 13
    assert tokens("--axes", "bht", "--lengths", f"@{flat}") == 13
    assert tokens("--axes", "bht", "--lengths", "3", "--by", "b") == 3
    np.save(path, np.ones((2, 3, 8), bool))
    options = ("--axes", "bht", "--offset", "1,3", "--block-size", 4, "--format", "json")
    counts = json.loads(run(capsys, "report", path, *options))["reports"][0]["counts"]
    assert counts["num_blocks"] == 6
    for wrong in ("x", "", "1.5", "9" * 30, f"@{path}"):
        assert "must be whole numbers" in misused(capsys, "report", path, "--lengths", wrong)
    flat.write_text("1 2\n3\n")
    assert "must be whole numbers" in misused(capsys, "report", path, "--lengths", f"@{flat}")
    assert "No such file" in refused(capsys, "report", path, "--lengths", f"@{tmp_path}/none")


def test_labels_name_masks_in_their_order(capsys: pytest.CaptureFixture[str], masks: Path) -> None:
    options = ("--label", "ours", "--label", "ours", "--format", "json")
    written = json.loads(run(capsys, "report", masks, *options))
    assert [each["source"] for each in written["reports"]] == ["ours", "ours (2)"]
    assert "for each of the 2 masks" in refused(capsys, "report", masks, "--label", "one")


def test_a_file_can_be_named_twice(capsys: pytest.CaptureFixture[str], masks: Path) -> None:
    options = ("--array", "window", "--format", "json")
    written = json.loads(run(capsys, "report", masks, masks, *options))
    sources = [each["source"] for each in written["reports"]]
    assert sources == [f"{masks}:window", f"{masks}:window (2)"]


@pytest.mark.parametrize("command", ["report", "compare"])
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_says_the_same(
    form: str, command: str, capsys: pytest.CaptureFixture[str], masks: Path
) -> None:
    text = run(capsys, command, masks, "--share", "none", "--format", form)
    keep = load_masks(masks, array="scatter").keep
    figures = kvreclaim.report(keep, BlockPool(16, shared_axes=""), axes="lht")
    saving = figures.logical_saving
    assert f"{saving:.3f}" in text or repr(saving) in text
    if form in ("json", "jsonl"):
        assert Comparison.from_json(text).reports[0] == figures
    elif form == "csv":
        first, second = csv.DictReader(io.StringIO(text))
        assert float(first["logical_saving"]) == saving
        assert second["source"] == f"{masks}:window"
    elif form == "markdown":
        header, rule, *rows = text.splitlines()[:4]
        assert {line.count("|") for line in (header, rule, *rows)} == {10}
    elif form == "latex":
        assert text.count(r" \\") == 4
        assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    if form not in ("json", "jsonl", "csv"):
        assert "share:none" in text


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_holds_what_would_be_printed(
    form: str, capsys: pytest.CaptureFixture[str], masks: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    target.write_text("old")
    options = ("report", masks, "--format", form)
    assert run(capsys, *options, "-o", target) == ""
    assert target.read_text() == run(capsys, *options)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["masks.npz", "out"]


@pytest.mark.parametrize(
    ("thresholds", "missed"),
    [
        (["physical_reclaim=0.5"], []),
        (["physical_reclaim=0.6"], ["physical_reclaim is 0.5, under 0.6"]),
        (["logical_saving=0", "packed_reclaim=1e-3"], []),
        (["slots_per_move=0"], ["slots_per_move is undefined, and so misses 0.0"]),
        (["admission_count=0"], ["admission_count is undefined, and so misses 0.0"]),
        (
            ["capacity_gain=3", "logical_saving=0.5", "reclaimed=0.51"],
            ["capacity_gain is 2.0, under 3.0", "reclaimed is 0.5, under 0.51"],
        ),
    ],
)
@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_missed_threshold_exits_with_1_and_still_reports(
    command: str,
    thresholds: list[str],
    missed: list[str],
    capsys: pytest.CaptureFixture[str],
    masks: Path,
) -> None:
    options = [command, str(masks), "--array", "window"]
    expected = run(capsys, *options)
    flags = [part for each in thresholds for part in ("--fail-under", each)]
    assert main([*options, *flags]) == (1 if missed else 0)
    out, err = capsys.readouterr()
    assert out == expected
    assert err.splitlines() == [f"kvreclaim: {masks}:window: {line}" for line in missed]


def test_every_mask_must_reach_a_threshold(capsys: pytest.CaptureFixture[str], masks: Path) -> None:
    assert main(["report", str(masks), "--fail-under", "physical_reclaim=0.5"]) == 1
    out, err = capsys.readouterr()
    assert "one table for" in out
    assert err == f"kvreclaim: {masks}:scatter: physical_reclaim is 0.0, under 0.5\n"


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_saved_reports_are_compared(
    form: str, capsys: pytest.CaptureFixture[str], masks: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    run(capsys, "report", masks, "--format", form, "-o", saved)
    straight = json.loads(run(capsys, "compare", masks, "--format", "json"))["reports"]
    again = json.loads(run(capsys, "compare", saved, "--format", "json"))["reports"]
    assert [each.pop("source") for each in again] == [
        f"{saved}:{each.pop('source')}" for each in straight
    ]
    assert again == straight
    labels = ("--label", "a", "--label", "b", "--label", "c")
    text = run(capsys, "compare", saved, masks, "--array", "window", *labels)
    assert text.split()[:3] == ["a", "b", "c"]


def test_a_single_saved_report_has_the_name_of_its_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "one.json"
    path.write_text(kvreclaim.report([1, 0, 0, 0], 2).to_json(), encoding="utf-8-sig")
    (only,) = json.loads(run(capsys, "compare", path, "--format", "json"))["reports"]
    assert only["source"] == str(path)


def test_different_pools_are_compared_by_force_only(
    capsys: pytest.CaptureFixture[str], masks: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "saved.json"
    run(capsys, "report", masks, "--array", "window", "--format", "json", "-o", saved)
    options = ("compare", saved, masks, "--array", "window", "--block-size", 32)
    message = refused(capsys, *options)
    assert f"B:16 for '{saved}' and B:32 for '{masks}:window'" in message
    assert "|frees:any|" in run(capsys, *options, "--force")
    assert "got a folder" in refused(capsys, "compare", saved, tmp_path)


@pytest.mark.parametrize(
    "option",
    [
        ("--block-size", 32),
        ("--by", "l"),
        ("--polarity", "evict"),
        ("--offset", 3),
        ("--lengths", 3),
        ("--axes", "t"),
        ("--blocks-per-request", 1),
    ],
)
def test_options_of_masks_do_not_go_with_reports_alone(
    option: tuple[object, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved = tmp_path / "saved.json"
    saved.write_text(kvreclaim.report([1, 0, 0, 0], 2).to_json())
    assert "FILE must be a mask" in refused(capsys, "compare", saved, *option)


def test_notes_of_a_mask_may_name_a_signature(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"meta": {"signature": "B:16"}, "keep": [1, 0, 0]}))
    assert "0.667" in run(capsys, "compare", path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"signature": 1}', "report 0: fields must be"),
        ('{"signature"', "text must be JSON"),
        ('{"schema_version": 9, "reports": [{"signature": 1}]}', "schema_version must be 1"),
    ],
)
def test_damaged_reports_are_refused(
    text: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "saved.json"
    path.write_text(text)
    message = refused(capsys, "compare", path)
    assert message.startswith(f"kvreclaim: {path}: ")
    assert words in message


def test_a_map_of_each_mask(capsys: pytest.CaptureFixture[str], masks: Path) -> None:
    text = run(capsys, "map", masks, "--share", "none")
    first, second = text.split(f"\n\n{masks}:window\n")
    assert first.startswith(f"{masks}:scatter\nblock tables: 6,")
    drawn = "|".join(["·" * 16] * 2 + ["█" * 16] * 2)
    assert f"\nl=1 h=2 |{drawn}|\n" in second
    assert all(len(line) <= 80 for line in text.splitlines() if not line.startswith(str(masks)))
    short = run(capsys, "map", masks, "--share", "none", "--lines", 2)
    assert "4 more tables do not fit into 2 lines" in short


def test_a_map_in_ascii_where_nothing_else_can_be_shown(masks: Path, tmp_path: Path) -> None:
    env = environment(PYTHONIOENCODING="ascii")
    done = fresh("map", masks, "--block-size", 8, env=env, encoding="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"|{'|'.join(['.' * 8] * 4 + ['#' * 8] * 4)}|" in done.stdout
    target = tmp_path / "map.txt"
    fresh("map", masks, "-o", target, env=env)
    assert "█" in target.read_text(encoding="utf-8")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_convert_keeps_what_a_file_says(
    suffix: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")
    evicted = np.random.default_rng(0).random((5, 2, 3)) < 0.5
    np.save(tmp_path / "mask.npy", evicted)
    target = tmp_path / f"out{suffix}"
    options = ("--axes", "tbh", "--polarity", "evict", "--offset", 3)
    text = run(capsys, "convert", tmp_path / "mask.npy", target, *options)
    assert text == f"{target}: 1 mask, {target.stat().st_size} bytes\n"
    saved = load_masks(target)
    assert saved.axes == "bht"
    assert int(saved.offset) == 3
    assert np.array_equal(saved.keep, ~np.moveaxis(evicted, 0, -1))


def test_convert_does_not_write_over_what_it_reads(
    capsys: pytest.CaptureFixture[str], masks: Path
) -> None:
    before = masks.read_bytes()
    message = refused(capsys, "convert", masks, masks, "--array", "window")
    assert message.startswith("kvreclaim: OUT must be another file than those that are read; got")
    assert masks.read_bytes() == before


def test_convert_takes_some_masks_or_all(
    capsys: pytest.CaptureFixture[str], masks: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out.npz"
    assert ": 2 masks, " in run(capsys, "convert", masks, target)
    assert mask_names(target) == ("scatter", "window")
    assert ": 1 mask, " in run(capsys, "convert", masks, target, "--array", "window")
    assert mask_names(target) == ("window",)
    before = target.read_bytes()
    assert "must end in .npz or .safetensors" in refused(capsys, "convert", masks, "out.txt")
    np.save(tmp_path / "bare.npy", np.ones((2, 2), bool))
    assert "axes must name" in refused(capsys, "convert", tmp_path / "bare.npy", target)
    assert target.read_bytes() == before


def test_report_of_evictions_and_of_one_array(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "masks.npz"
    np.savez(path, first=np.ones(8, bool), second=np.zeros(8, bool))
    options = ("--array", "second", "--polarity", "evict", "--format", "json")
    (only,) = json.loads(run(capsys, "report", path, *options))["reports"]
    assert only["source"] == f"{path}:second"
    assert only["metrics"]["logical_saving"] == 0


KEPT = np.array([1, 1, 0, 0, 0, 0, 0, 1], bool)


def noted(called: object) -> str:
    return (
        f"kvreclaim: note: {called}: True was read as kept; write --polarity evict if it means "
        "evicted, --polarity keep if kept\n"
    )


def noted_of_eviction(called: object, word: str) -> str:
    return (
        f"kvreclaim: note: {called}: True was read as evicted, as --polarity says, though the file "
        f"calls it {word!r}; leave --polarity out, in a call of its own, if True means kept\n"
    )


def both(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> list[str]:
    assert main([str(argument) for argument in arguments]) == status
    return list(capsys.readouterr())


@pytest.mark.parametrize(
    "name",
    [
        *("evict", "evicted", "eviction", "evictions", "evict_mask", "EVICTED", "l0.Evicted-2"),
        *("drop", "dropped", "discard", "discarded", "delete", "deleted", "erase", "erased"),
        *("prune", "pruned", "remove", "removed", "dead", "gone", "is_dead", "3dead3", "l/dead/h"),
        *("evicted_at_prefill", "evicted_at/0"),
    ],
)
def test_a_name_that_says_eviction_gets_a_note(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "m.npz"
    arrays: dict[str, Any] = {name: KEPT}
    np.savez(path, **arrays)
    out, err = both(capsys, "report", path, "--block-size", 2)
    assert err == noted(f"{path}:{name}")
    assert out == run(capsys, "report", path, "--block-size", 2, "--polarity", "keep")
    turned = run(capsys, "report", path, "--block-size", 2, "--polarity", "evict")
    assert "logical saving                0.625 " in out
    assert "logical saving                0.375 " in turned


@pytest.mark.parametrize(
    "name",
    [
        *("keep", "mask", "kept", "live", "SnapKV", "whole blocks", "masked", "arr_0", "arr"),
        *(
            "evictable",
            "unevicted",
            "evictedness",
            "dropout",
            "deadline",
            "removable",
            "\u00e9evict",
        ),
        *("evicted_at", "times/evicted_at", "born_at", "bygone"),
    ],
)
def test_other_names_get_no_note(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "evict" / "m.npz"
    path.parent.mkdir()
    arrays: dict[str, Any] = {name: KEPT}
    np.savez(path, **arrays)
    run(capsys, "report", path)


def test_a_file_that_names_no_array_is_a_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def err_of(path: Path) -> str:
        return both(capsys, "report", path)[1]

    for file in ("evicted.npy", "my-Dropped_2.NPY"):
        with (tmp_path / file).open("wb") as opened:
            np.save(opened, KEPT)
        assert err_of(tmp_path / file) == noted(tmp_path / file)
    for file in ("dead.txt", "dead.csv"):
        (tmp_path / file).write_text("0011\n")
        assert err_of(tmp_path / file) == noted(tmp_path / file)
    np.savez(tmp_path / "evicted.npz", KEPT, KEPT)
    assert err_of(tmp_path / "evicted.npz") == "".join(
        noted(tmp_path / f"evicted.npz:arr_{number}") for number in (0, 1)
    )
    for quiet in ("mask.npy", "evicted_at.npy", "npy"):
        with (tmp_path / quiet).open("wb") as opened:
            np.save(opened, KEPT)
        assert err_of(tmp_path / quiet) == ""
    (tmp_path / "dead.json").write_text("[0, 1]")
    assert err_of(tmp_path / "dead.json") == noted(tmp_path / "dead.json")
    np.savez(tmp_path / "evict_mask.npz", mask=KEPT)
    assert err_of(tmp_path / "evict_mask.npz") == noted(tmp_path / "evict_mask.npz:mask")


def test_a_file_that_says_keep_gets_no_note_for_its_own_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "dead.npz"
    for packed in (True, False):
        save_masks(path, KEPT, axes="t", packed=packed)
        run(capsys, "report", path)
    masks: dict[str, Any] = {"kept": KEPT, "head/live": KEPT, "Survivors_1": KEPT}
    np.savez(path, **masks)
    run(capsys, "report", path)
    (tmp_path / "dead.json").write_text('{"num_tokens": 4, "kept": [1]}')
    run(capsys, "report", tmp_path / "dead.json")


@pytest.mark.parametrize(
    "command",
    [
        "report {}",
        "report {} --format json",
        "report {} --runtime vllm",
        "report {} --runtime all",
        "report {} --runtime all --format csv",
        "report {} --share none --by h",
        "report {} -o {target}",
        "compare {}",
        "map {}",
        "convert {} {target}.npz",
    ],
)
def test_every_command_notes_each_name_once(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, target = tmp_path / "m.npz", tmp_path / "out"
    masks = {name: np.stack([KEPT, KEPT]) for name in ("dropped", "kept", "evicted_1")}
    save_masks(path, {name: SavedMasks(keep, None, "ht", {}) for name, keep in masks.items()})
    arguments = command.format(path, target=target).split()
    out, err = both(capsys, *arguments)
    assert err == noted(f"{path}:dropped") + noted(f"{path}:evicted_1")
    written = [each.read_bytes() for each in tmp_path.glob("out*")]
    assert out == run(capsys, *arguments, "--polarity", "keep")
    assert written == [each.read_bytes() for each in tmp_path.glob("out*")]
    run(capsys, *arguments, "--array", "kept")
    turned, err = both(capsys, *arguments, "--polarity", "evict")
    assert written != [each.read_bytes() for each in tmp_path.glob("out*")] or turned != out
    assert err == "".join(noted_of_eviction(f"{path}:{name}", "bits") for name in masks)


@pytest.mark.parametrize(
    ("file", "word"),
    {"a.npz": "keep", "b.npz": "bits", "c.json": "keep", "d.npz": "", "e.npz": "Kept"}.items(),
)
def test_what_a_file_calls_kept_gets_a_note_where_options_say_evicted(
    file: str, word: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / file
    called = str(path)
    if file == "c.json":
        path.write_text('{"keep": [1, 0, 0]}')
    elif file == "d.npz":
        np.savez(path, mask=KEPT)
    elif file == "e.npz":
        np.savez(path, Kept=KEPT)
        called = f"{path}:Kept"
    else:
        save_masks(path, KEPT, axes="t", packed=word == "bits")
    for command in ("report", "compare", "map"):
        _, err = both(capsys, command, path, path, "--polarity", "evict")
        assert err == (noted_of_eviction(called, word) if word else "")
        run(capsys, command, path, "--polarity", "keep")


def test_many_masks_of_a_file_share_a_note(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "m.npz"
    masks: dict[str, Any] = {f"evicted/{i}": KEPT for i in range(4)}
    np.savez(path, **masks)
    _, err = both(capsys, "report", path)
    assert err == noted(f"{path}: 4 masks, such as 'evicted/0'")
    np.savez(path, **dict(list(masks.items())[:3]))
    _, err = both(capsys, "report", path)
    assert err == "".join(noted(f"{path}:evicted/{i}") for i in range(3))


def test_what_a_file_lists_as_kept_is_never_turned_round(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    mask, lists = tmp_path / "dead.npy", tmp_path / "a.json"
    np.save(mask, KEPT)
    lists.write_text('{"num_tokens": 8, "kept": [1]}')
    for command in ("report", "compare", "map"):
        message = refused(capsys, command, mask, lists, "--polarity", "evict")
        assert message == (
            f"kvreclaim: {lists}: polarity must be 'keep' for what a file lists as 'kept'; got "
            "'evict'; leave it out, in a call of its own.\n"
        )


def test_a_note_names_the_file_and_not_the_label(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "a\x1bb.npz"
    np.savez(path, evicted=KEPT)
    err = both(capsys, "report", path, path, "--label", "a", "--label", "b")[1]
    assert err == noted(f"{tmp_path}/a\\x1bb.npz:evicted")


def test_a_note_comes_before_a_missed_threshold_and_not_beside_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "evicted.npy"
    np.save(path, KEPT)
    threshold = ("--fail-under", "logical_saving=0.7")
    out, err = both(capsys, "report", path, *threshold, status=1)
    assert out == run(capsys, "report", path, "--polarity", "keep")
    missed = f"kvreclaim: {path}: logical_saving is 0.625, under 0.7\n"
    assert err == noted(path) + missed
    assert "axes must be" in refused(capsys, "report", path, "--axes", "ht")


def test_saved_reports_get_no_note(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mask, saved = tmp_path / "evicted.npy", tmp_path / "dropped.json"
    np.save(mask, KEPT)
    run(capsys, "report", mask, "--polarity", "keep", "--format", "json", "-o", saved)
    run(capsys, "compare", saved)
    assert both(capsys, "compare", saved, mask)[1] == noted(mask)


def test_a_note_on_standard_input_is_for_a_name_in_it(tmp_path: Path) -> None:
    np.save(tmp_path / "evicted.npy", KEPT)
    np.savez(tmp_path / "m.npz", evicted=KEPT)
    for file, err in (("evicted.npy", ""), ("m.npz", noted("standard input:evicted"))):
        done = fresh("report", "-", input=(tmp_path / file).read_bytes(), text=False)
        assert (done.returncode, done.stderr.decode()) == (0, err)


def padded(lengths: Sequence[int], tokens: int, rows: tuple[int, ...] = (2,)) -> NDArray[np.bool_]:
    """Return a mask, sequences first, of which each row keeps its first and its last token."""
    keep = np.zeros((len(lengths), *rows, tokens), bool)
    for sequence, length in zip(keep, lengths, strict=True):
        sequence[..., [0, length - 1]] = True
    return keep


def test_lengths_beside_a_mask_hold_whatever_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "run.npz"
    keep = padded([8, 5, 3], 12)
    beyond = np.arange(12) >= np.array([8, 5, 3])[:, None, None]
    np.savez(path, evicted=~keep, mask=keep, keep=keep, lengths=[8, 5, 3])
    shape = ("--axes", "bht", "--block-size", 2)
    for options in (("--array", "evicted", "--polarity", "evict"), ("--array", "mask"), ()):
        for by in ((), ("--by", "b")):
            arguments = (*(options or ("--array", "keep")), *shape, *by)
            counts = [each["counts"] for each in reports_of(capsys, path, *arguments)]
            # Blocks of 2: 4, 3 and 2; kept are the first of each, and the last.
            assert [each["num_tokens"] for each in counts] == ([8, 5, 3] if by else [16])
            assert [each["num_blocks"] for each in counts] == ([4, 3, 2] if by else [9])
            assert [each["num_freed_blocks"] for each in counts] == ([2, 1, 0] if by else [3])
    assert (~keep & beyond).any()
    drawn = run(capsys, "map", path, "--array", "evicted", "--polarity", "evict", *shape)
    assert "comes back in place: 3 (0.333)" in drawn
    target = tmp_path / "out.npz"
    run(capsys, "convert", path, target, "--axes", "bht", "--array", "mask")
    np.testing.assert_array_equal(load_masks(target, array="mask").lengths, [8, 5, 3])


def test_the_caller_says_what_does_not_fit_an_array(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "run.npz"
    options = ("--array", "mask", "--block-size", 2, "--lengths", "8,5,3")
    np.savez(path, mask=padded([8, 5, 3], 12), lengths=[8, 5], axes="bt")
    (report,) = reports_of(capsys, path, *options, "--axes", "bht")
    assert report["counts"]["num_tokens"] == 16
    message = refused(capsys, "report", path, *options[:4], "--axes", "bht")
    assert "lengths must fit every array that it stands beside" in message
    message = refused(capsys, "report", path, *options[:4])
    assert "write 3 letters" in message
    np.savez(path, mask=padded([8, 5, 3], 12), axes="bht")
    message = refused(capsys, "report", path, *options, "--axes", "lht")
    assert "axes must be those that the file names itself" in message


def test_an_array_that_is_no_mask_can_be_left_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "run.npz"
    keep = padded([8, 8, 8], 8)
    np.savez(path, doc_ids=[7, 8, 9], keep=keep)
    for command in (("report",), ("compare",), ("map",), ("convert", tmp_path / "out.npz")):
        arguments = (command[0], path, *command[1:], "--axes", "bht")
        message = refused(capsys, *arguments)
        assert message == (
            f"kvreclaim: {path}, array 'doc_ids': axes must be a string of one letter for each "
            "axis of keep, 't' for tokens; got 'bht' for keep of shape (3,); write 1 letter, or "
            "--array keep to leave 'doc_ids' out.\n"
        )
        run(capsys, *arguments, "--array", "keep")
        assert "leave" not in refused(capsys, *arguments, "--array", "doc_ids")
    names = ["a mask", "-b", "c", "d"]
    np.savez(path, **dict.fromkeys(names, keep), ids=[7, 8, 9], scores=np.ones((3, 2, 8)))  # type: ignore[arg-type]  # its stubs name a keyword of another type
    message = refused(capsys, "report", path, "--share", "none")
    assert message.endswith(
        ", or --array for each of the 4 masks, such as --array 'a mask' --array=-b --array c, to "
        "leave 'ids' out.\n"
    )
    run(capsys, "report", path, "--axes", "bht", "--array", "a mask", "--array=-b", "--array", "c")


def test_no_mask_is_left_out_for_what_is_wrong_with_all(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "run.npz"
    np.savez(path, a=padded([8, 8], 8), b=padded([8, 8], 8), ids=[7, 8])
    assert "leave" not in refused(capsys, "report", path)
    assert "leave" not in refused(capsys, "report", path, "--axes", "ht")
    np.savez(path, ids=[7, 8], more=[3, 4])
    assert "leave" not in refused(capsys, "report", path)


@pytest.mark.parametrize(
    "command",
    ["report {}", "report {} --by b", "report {} --runtime all", "compare {}", "map {}"],
)
def test_true_in_the_padding_may_mean_evicted(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "dropped.npz"
    np.savez(path, dropped=~padded([8, 5], 12), lengths=[8, 5])
    arguments = (*command.format(path).split(), "--axes", "bht")
    hint = "padding on the left, or --polarity evict if True means evicted.\n"
    assert refused(capsys, *arguments).endswith(hint)
    assert refused(capsys, *arguments, "--polarity", "keep").endswith(hint)
    run(capsys, *arguments, "--polarity", "evict")
    np.savez(path, kept=padded([8, 5], 12), lengths=[8, 4])
    assert refused(capsys, *arguments).endswith(hint)


def untold(called: object, ends: str, tokens: int) -> str:
    return (
        f"kvreclaim: note: {called}: no row keeps the last {ends}; write --lengths with each "
        f"sequence's tokens if that is padding, --lengths {tokens} if it was evicted\n"
    )


def test_padding_that_nobody_told_of_gets_a_note(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "m.npy"
    arguments = ("--axes", "bht", "--block-size", 4)
    for lengths, ends in {
        (20, 20, 20): "",
        (20, 17, 17): "",  # of the last block a token stays
        (20, 16, 20): "4 tokens of b=1 (1 whole block of 4)",
        (20, 20, 13): "7 tokens of b=2 (1 whole block of 4)",
        (5, 20, 12): "15 tokens of b=0 (3 whole blocks of 4), nor the end of 1 more sequence",
        (1, 1, 16): "19 tokens of b=0 (4 whole blocks of 4), nor the ends of 2 more sequences",
    }.items():
        np.save(path, padded(lengths, 20))
        for command in ("report", "compare"):
            out, err = both(capsys, command, path, *arguments)
            assert err == (untold(path, ends, 20) if ends else "")
            assert out == run(capsys, command, path, *arguments, "--lengths", 20)


@pytest.mark.parametrize(
    "options",
    [
        "--format json",
        "--by b",
        "--share none --by b",
        "--frees none",
        "--open-tail",
        "--polarity evict",
        "-o {out}",
        "--fail-under physical_reclaim=0",
    ],
)
def test_whatever_the_options_padding_gets_one_note(
    options: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "m.npz"
    keep = padded([20, 12], 20)
    masks = {"a": keep, "b": padded([20, 20], 20)}
    if "evict" in options:
        np.savez(path, a=~masks["a"], b=~masks["b"], axes="bht")
    else:
        save_masks(path, {name: SavedMasks(each, None, "bht", {}) for name, each in masks.items()})
    arguments = ("--block-size", 4, *options.format(out=tmp_path / "out").split())
    out, err = both(capsys, "report", path, path, *arguments)
    assert err == untold(f"{path}:a", "8 tokens of b=1 (2 whole blocks of 4)", 20)
    assert out == run(capsys, "report", path, path, *arguments, "--lengths", 20)


def test_ends_of_which_nothing_is_evicted_get_a_note_where_sequences_differ(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "m.npy"
    arguments = ("--axes", "bht", "--block-size", 4, "--polarity", "evict")
    for lengths, text in {
        (100, 100): "",
        (100, 68): "",  # no more than 32 tokens
        (100, 64): "36 tokens of b=1 (9 whole blocks of 4)",
        (60, 100, 40): "40 tokens of b=0 (10 whole blocks of 4), nor the end of 1 more sequence",
    }.items():
        evicted = np.zeros((len(lengths), 2, 100), bool)
        for sequence, length in zip(evicted, lengths, strict=True):
            sequence[1, 1:length] = True
        np.save(path, evicted)
        for command in ("report", "compare"):
            out, err = both(capsys, command, path, *arguments)
            expected = (
                f"kvreclaim: note: {path}: no row evicts the last {text}; write --lengths with "
                "each sequence's tokens if that is padding, --lengths 100 if it was kept\n"
            )
            assert err == (expected if text else "")
            assert out == run(capsys, command, path, *arguments, "--lengths", 100)


def test_under_every_runtime_the_smallest_block_counts_padding(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "m.npy"
    np.save(path, padded([64, 48], 64))
    sizes = [runtimes.preset(name).block_size for name in runtimes.names()]
    ends = f"16 tokens of b=1 ({16 // min(sizes)} whole block{{}} of {min(sizes)})"
    ends = ends.format("s" * (min(sizes) < 16))
    _, err = both(capsys, "report", path, "--axes", "bht", "--runtime", "all")
    assert err == untold(path, ends, 64)


def test_no_note_where_nothing_says_that_it_is_padding(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "m.npy"
    np.save(path, padded([20, 12], 20))
    for options in ("--axes lht", "--axes sht", "--share none"):
        run(capsys, "report", path, "--block-size", 4, *options.split())
    for command in ("map", "convert"):
        target = [tmp_path / "out.npz"] if command == "convert" else []
        run(capsys, command, path, *target, "--axes", "bht")
    np.save(path, padded([12], 20))
    run(capsys, "report", path, "--block-size", 4, "--axes", "bht")
    np.save(path, np.zeros((2, 2, 0), bool))
    run(capsys, "report", path, "--axes", "bht")
    own = tmp_path / "own.npz"
    save_masks(own, padded([20, 12], 20), axes="bht", lengths=[20, 12])
    run(capsys, "report", own, "--block-size", 4)
    saved = tmp_path / "saved.json"
    run(capsys, "report", own, "--format", "json", "-o", saved)
    run(capsys, "compare", saved)


def test_a_note_on_padding_comes_between_polarity_and_threshold(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "evicted.npy"
    np.save(path, padded([20, 12], 20))
    threshold = ("--fail-under", "physical_reclaim=1")
    arguments = ("report", path, "--axes", "bht", "--block-size", 4, *threshold)
    _, err = both(capsys, *arguments, status=1)
    first, second, third = err.splitlines(keepends=True)
    assert first == noted(path)
    assert second == untold(path, "8 tokens of b=1 (2 whole blocks of 4)", 20)
    assert "physical_reclaim is 0.6, under 1" in third


def test_a_note_that_cannot_be_made_takes_no_figure_away(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.npy"
    np.save(path, padded([20, 12], 20))
    arguments = ("report", path, "--axes", "bht")
    out = both(capsys, *arguments, "--block-size", 4)[0]

    def fail(*_: object, **__: object) -> None:
        raise OSError("gone")

    monkeypatch.setattr(padding, "_last_tokens", fail)
    assert both(capsys, *arguments, "--block-size", 4) == [out, ""]


@given(st.data())
def test_dead_ends_are_those_of_a_count_block_by_block(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    axes = data.draw(st.sampled_from(["bt", "tb", "bht", "hbt", "bth", "lbht"]), "axes")
    sizes = {letter: data.draw(st.integers(1, 3), letter) for letter in axes}
    sizes["t"] = data.draw(st.integers(1, 40), "tokens")
    size = data.draw(st.integers(1, 20), "block size")
    offsets = [data.draw(st.integers(0, size - 1), "offset") for _ in range(sizes["b"])]
    rng = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    keep = rng.random([sizes[letter] for letter in axes]) < data.draw(st.sampled_from([0.05, 0.5]))
    first = np.moveaxis(keep, [axes.index("b"), axes.index("t")], [0, -1])
    for sequence in first:
        sequence[..., int(rng.integers(0, 60)) :] = False
    wanted = []
    for sequence, offset in zip(first, offsets, strict=True):
        live = {t for t in range(sizes["t"]) if sequence.reshape(-1, sizes["t"])[:, t].any()}
        starts = [t for t in range(sizes["t"] - size + 1) if (t + offset) % size == 0]
        dead = sum(all(token < start for token in live) for start in starts)
        wanted.append((dead, sizes["t"] - max(live, default=-1) - 1))
    path = tmp_path_factory.mktemp("masks") / "m.npy"
    evicted = data.draw(st.booleans(), "evicted")
    stored = ~keep if evicted else keep
    np.save(path, np.asarray(stored, order=data.draw(st.sampled_from("CF"), "order")))
    options = parser.parse(["report", str(path), "--axes", axes])
    options.offset = np.array(offsets)
    options.polarity = "evict" if evicted else "keep"
    with mock.patch.object(occupancy, "PIECE", data.draw(st.sampled_from([1, 16, 1 << 20]))):
        notes = padding.notes_on_padding([inputs.SavedMask(path, "", "m")], size, options)
    ends = [(i, *end) for i, end in enumerate(wanted) if end[0]]
    if sizes["b"] == 1 or not ends:
        assert notes == []
        return
    (note,) = notes
    index, blocks, tokens = ends[0]
    numbers = [int(number) for number in re.findall(r"\d+", note)]
    others = [len(ends) - 1] if len(ends) > 1 else []
    assert numbers == [tokens, index, blocks, size, *others, sizes["t"]]


def test_the_mask_without_a_name_is_keep(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, target = tmp_path / "m.npz", tmp_path / "out.npz"
    for packed in (True, False):
        save_masks(path, [KEPT, ~KEPT], axes="ht", packed=packed)
        for command in (("report",), ("report", "--format", "json"), ("map",), ("compare",)):
            plain = run(capsys, command[0], path, *command[1:])
            assert run(capsys, command[0], path, *command[1:], "--array", "keep") == plain
            assert run(capsys, command[0], path, *command[1:], "--array", "") == plain
        run(capsys, "convert", path, target, "--array", "keep")
        assert mask_names(target) == ("",)
    np.savez(path, keep=KEPT, other=~KEPT)
    options = ("--array", "other", "--array", "keep")
    sources = [report["source"] for report in reports_of(capsys, path, *options)]
    assert sources == [f"{path}:other", str(path)]


def test_a_mask_that_is_called_keep_is_that_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "m.npz"
    own = {"keep": SavedMasks(KEPT, None, "t", {}), "": SavedMasks(~KEPT, None, "t", {})}
    save_masks(path, own)
    (report,) = reports_of(capsys, path, "--array", "keep")
    assert report["source"] == f"{path}:keep"
    assert report["metrics"]["logical_saving"] == 0.625
    np.savez(path, first=KEPT, second=KEPT)
    message = refused(capsys, "report", path, "--array", "keep")
    assert "array must name one of the 2 masks" in message
    assert "got 'keep'" in message
    assert "No such file" in refused(capsys, "report", tmp_path / "none.npz", "--array", "keep")


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
    assert "array must name one of the 1 masks" in refused(capsys, "report", rows, "--array", "b")
    two = tmp_path / "two.npy"
    np.save(two, np.ones((2, 4), bool))
    assert "axes must name the 2 axes" in refused(capsys, "report", two)
    assert "block_size must be" in refused(capsys, "report", rows, "--block-size", 0)
    assert "No such file" in refused(capsys, "report", tmp_path / "none.npy")


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in {
        ("report",): "the following arguments are required: FILE",
        ("report", "x", "--block-size", "many"): "invalid int value",
        ("report", "x", "--frees", "all"): "invalid choice",
        ("report", "x", "--fail-under", "reclaim=1"): "METRIC must be one of logical_saving, phys",
        (
            "report",
            "x",
            "--fail-under",
            "fragmentation=0",
        ): "must be a figure of which more is better",
        ("report", "x", "--fail-under", "packed_reclaim"): "VALUE must be a finite number; got ''",
        ("report", "x", "--fail-under", "packed_reclaim=nan"): "VALUE must be a finite number",
        ("report", "x", "--blocks-per-request", "0"): "must be a number from 1 up; got '0'",
        ("map", "x", "--lines", "-1"): "must be a number from 1 up",
        ("report", "x", "--bl", "3"): "unrecognized arguments: --bl 3",
        ("convert", "x"): "the following arguments are required: OUT",
        (): "the following arguments are required: COMMAND",
        ("reports",): "invalid choice",
    }.items():
        assert words in misused(capsys, *arguments), arguments


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if re.match(r"    \w+ +\w", line)]
    assert sorted(listed) == sorted(COMMANDS)
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"kvreclaim {kvreclaim.__version__}\n"


def test_a_signature_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "signature").strip()
    assert text.endswith(f"|rows:1|v:{kvreclaim.__version__}")
    assert "SIGNATURE must stand alone" in refused(capsys, "signature", text, "--rows", 3)
    assert "SIGNATURE must stand alone" in refused(capsys, "signature", text, "--share", "h")
    assert "text must be a signature" in refused(capsys, "signature", "B:16")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_and_shows_examples(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    examples = [line.strip() for line in lines[lines.index("examples:") + 1 :]]
    assert examples
    for example in examples:
        program, *arguments = shlex.split(example)
        assert program == "kvreclaim"
        assert parser.parse(arguments).command == command


def test_a_pool_too_small_names_the_mask(capsys: pytest.CaptureFixture[str], masks: Path) -> None:
    message = refused(capsys, "report", masks, "--total-blocks", 2)
    assert message.startswith(f"kvreclaim: {masks}:scatter: total_blocks must be at least")


def test_too_little_memory_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], masks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(reading, "count", exhausted)
    assert "not enough memory" in refused(capsys, "report", masks)


@pytest.mark.parametrize(
    "command", ["report {}", "report {} --by b", "compare {}", "map {}", "convert {} {target}"]
)
def test_how_often_a_file_is_opened_does_not_depend_on_its_masks(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, opened = tmp_path / "m.npz", []
    for count in (2, 9):
        masks = {f"{i}": SavedMasks(padded([20, 12], 20), None, "bht", {}) for i in range(count)}
        save_masks(path, masks)
        with mock.patch.object(opening, "_arrays_of", wraps=opening._arrays_of) as open_:
            both(capsys, *command.format(path, target=tmp_path / "out.npz").split())
        opened.append(open_.call_count)
    assert opened[0] == opened[1] <= 3  # to list its masks, for them, for what ends them


def test_names_cannot_write_to_the_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "a\x1b[1m\nb.npy"
    np.save(path, np.array([1, 0], bool))
    assert run(capsys, "report", path).splitlines()[0] == f"{tmp_path}/a\\x1b[1m\\nb.npy"
    assert r"a\x1b[1m\nc.npy" in refused(capsys, "report", tmp_path / "a\x1b[1m\nc.npy")


def test_standard_input_is_read_once(masks: Path) -> None:
    done = fresh("report", "-", "--format", "json", input=masks.read_bytes(), text=False)
    assert done.returncode == 0
    sources = [each["source"] for each in json.loads(done.stdout)["reports"]]
    assert sources == ["standard input:scatter", "standard input:window"]
    done = fresh("compare", "-", input=fresh("report", masks, "--format", "json").stdout)
    assert (done.returncode, done.stderr) == (0, "")
    done = fresh("map", "-", "--block-size", 2, input="0011\n")
    assert "|··|██|" in done.stdout
    done = fresh("report", "-", input=masks.read_bytes()[:500], text=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"kvreclaim: standard input must be a whole .npz archive")
    assert done.stderr.count(b"\n") == 1
    done = fresh("report", "-", "-", input="")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_standard_input_in_this_process(
    capsys: pytest.CaptureFixture[str], masks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def standing_in(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    standing_in(masks.read_bytes())
    text = run(capsys, "report", "-", masks, "--array", "window")
    assert "standard input:window" in text
    standing_in(b"")
    assert refused(capsys, "report", "-").startswith("kvreclaim: standard input must be a .npy")
    assert "at most once" in refused(capsys, "compare", "-", "-")
    monkeypatch.setattr(sys, "stdin", None)
    assert refused(capsys, "report", "-") == "kvreclaim: standard input: closed\n"


@pytest.mark.parametrize("broken", ["write", "flush"])
@pytest.mark.parametrize(
    ("code", "status"), [(errno.EPIPE, 0), (errno.ENOSPC, 2), (errno.EBADF, 2)]
)
def test_a_stream_that_breaks(
    broken: str, code: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys.stdout, broken, fail)
    assert main(["demo"]) == status
    assert said.getvalue() == (
        f"kvreclaim: standard output: {os.strerror(code)}\n" if status else ""
    )
    monkeypatch.setattr(sys.stderr, broken, fail)
    assert main(["report", "none"]) == 2
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["demo"]) == 2


def test_output_to_a_pipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert run(capsys, "map", DEMO, "--array", "H2O", "-o", pipe) == ""
    written = os.read(reader, 1 << 16).decode()
    os.close(reader)
    assert written == run(capsys, "map", DEMO, "--array", "H2O", "-o", "-")


LARGE = "report {demo} --share none --by lh --format json"


@pytest.mark.parametrize(
    ("command", "unbuffered", "lines"),
    [
        (LARGE, "", 1),
        (LARGE, "1", 1),
        ("report {masks} --format json", "1", 1),
        ("demo", "", 0),
        ("demo", "1", 0),
        ("map --help", "", 0),
        ("map --help", "1", 1),
    ],
)
def test_a_closed_pipe_is_no_error(command: str, unbuffered: str, lines: int, masks: Path) -> None:
    arguments = [part.format(masks=masks, demo=DEMO) for part in command.split()]
    with subprocess.Popen(
        [sys.executable, "-m", "kvreclaim", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(PYTHONUNBUFFERED=unbuffered),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read = [process.stdout.readline() for _ in range(lines)]
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0
    assert all(line.strip() for line in read)


def test_a_closed_pipe_does_not_hide_a_missed_threshold(masks: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "kvreclaim", "report", masks, "--fail-under", "packed_reclaim=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_said_in_one_line(masks: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = fresh("report", masks, stdout=full)
        assert (done.returncode, done.stderr) == (
            2,
            "kvreclaim: standard output: No space left on device\n",
        )
        assert fresh("report", "none", stderr=full).returncode == 2
    done = fresh("report", masks, "-o", "/dev/full")
    assert done.returncode == 2
    assert done.stderr == "kvreclaim: /dev/full: No space left on device\n"
    assert Path("/dev/full").is_char_device()


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(masks: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("old")

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    done = fresh("report", masks, "--format", "json", "-o", target, preexec_fn=small_files)
    assert done.returncode == 2
    assert done.stderr == f"kvreclaim: {target}: File too large\n"
    assert target.read_text() == "old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["masks.npz", "out.json"]


def test_targets_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], masks: Path, tmp_path: Path
) -> None:
    for target in (tmp_path, tmp_path / "no" / "out", masks / "out"):
        message = refused(capsys, "report", masks, "-o", target)
        assert message.startswith(f"kvreclaim: {target}: ")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    run(capsys, "report", masks, "-o", link)
    assert link.is_symlink()
    assert (tmp_path / "target").read_text() == run(capsys, "report", masks)
    run(capsys, "report", masks, "-o", os.devnull)
    assert not Path(os.devnull).is_file()


def test_a_closed_standard_stream(masks: Path) -> None:
    code = (
        "import os, sys; os.close({}); "
        "os.execv(sys.executable, [sys.executable, '-m', 'kvreclaim', *sys.argv[1:]])"
    )
    for stream, arguments, message in (
        (0, ("report", "-"), "standard input: closed"),
        (1, ("report", masks), "standard output: closed"),
    ):
        command = [sys.executable, "-c", code.format(stream), *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment()
        )
        assert (done.returncode, done.stderr) == (2, f"kvreclaim: {message}\n")


def test_an_interrupt_exits_with_130(tmp_path: Path) -> None:
    listening = (  # tests in the background of a shell inherit that interrupts are ignored
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from kvreclaim.__main__ import main; sys.exit(main(['report', '-']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", listening],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(TMPDIR=str(tmp_path)),
    ) as process:
        assert process.stdin is not None
        process.stdin.write(bytes(1 << 20))  # more than a pipe holds: by now it is being read
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")
    assert not list(tmp_path.iterdir())


class Terminal(io.StringIO):
    """A terminal that is only looked at."""

    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_and_wiped_away(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with console.Progress() as progress:
        first, second = (progress.part(number, 2, "m\x1b" + "x" * 90) for number in (0, 1))
        first(1, 2)
        assert terminal.getvalue() == ""  # too early
        now = 101.0
        first(1, 2)
        assert "[#####...............]  25% m\\x1bxxx" in terminal.getvalue()
        length = len(terminal.getvalue())
        second(1, 2)
        assert len(terminal.getvalue()) == length  # too soon after the last one
        now = 102.0
        second(0, 0)
        assert "[##########..........]  50% m" in terminal.getvalue()
    shown = terminal.getvalue().split("\r")
    assert max(map(len, shown)) <= 80
    assert shown[-2].strip() == shown[-1] == ""


def test_progress_is_not_shown_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, masks: Path
) -> None:
    monkeypatch.setattr(console, "_QUIET_SECONDS", 0)
    run(capsys, "report", masks)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["report", str(masks)]) == 0
    assert f"% {masks}"[:40] in terminal.getvalue()


def test_help_imports_no_optional_package(tmp_path: Path) -> None:
    for name in ("torch", "matplotlib", "pandas", "safetensors"):
        package = tmp_path / name
        package.mkdir()
        (package / "__init__.py").write_text(f"raise OSError('{name} is installed but broken')\n")
    env = environment(tmp_path)
    for arguments in (("--help",), ("report", "--help"), ("demo",), ("report", DEMO)):
        done = fresh(*arguments, env=env)
        assert (done.returncode, done.stderr) == (0, ""), arguments
    code = (
        "import sys, kvreclaim; from kvreclaim.__main__ import main; main(['demo']); "
        "assert not {'torch', 'matplotlib', 'pandas', 'safetensors'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_runtime_names_the_pool(capsys: pytest.CaptureFixture[str]) -> None:
    (report,) = reports_of(capsys, DEMO, "--array", "SnapKV", "--runtime", "kv_compress")
    assert report["signature"].startswith("B:16|share:none|frees:back|tail:closed|move:fill|")
    (report,) = reports_of(
        capsys, DEMO, "--array", "SnapKV", "--runtime", "sglang:page_size=64", "--total-blocks", 99
    )
    assert report["signature"].startswith("B:64|share:hl|frees:any|tail:closed|move:none|pool:99|")


def reports_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    text = run(capsys, "report", *arguments, "--format", "json")
    reports: list[dict[str, Any]] = json.loads(text)["reports"]
    return reports


@pytest.mark.parametrize("admits", [False, True])
def test_all_runtimes_in_one_table(admits: bool, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--array", "SnapKV", "--runtime", "all")
    request = ("--blocks-per-request", 8) if admits else ()
    lines = run(capsys, "report", DEMO, *options, *request).splitlines()
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line for line in lines[3:] if line}
    assert set(kvreclaim.runtimes.names()) <= set(rows)
    own = lines[0].index("own compactor")
    assert lines[0].split() == ["own", "compactor"]
    for line, left, right in zip(
        [*lines[1:3], rows["kv_compress"], rows["openvino_genai"], rows["tensorrt_llm"]],
        [
            "block share",
            f"size rows in place{' admits' * admits} packed",
            f"kv_compress 16 none 0.000{' 0' * admits} 0.500",
            f"openvino_genai 32 h 0.039{' 9' * admits} 0.500",
            f"tensorrt_llm 32 hl 0.000{' 0' * admits} 0.500",
        ],
        ["comes decode", "back steps", "0.500 1.5", "- -", "0.000 3.4"],
        strict=True,
    ):
        assert " ".join(line[:own].split()) == left
        assert " ".join(line[own:].split()) == right
    legend = " ".join(lines[-4:])
    for words in ("in place: no copy", "own compactor: what comes back once", "- where it moves"):
        assert words in legend
    found = reports_of(capsys, DEMO, *options)
    assert [report["source"] for report in found] == list(kvreclaim.runtimes.names())
    for report in found:
        name, pool = report["source"], kvreclaim.runtimes.preset(report["source"])
        assert (rows[name].split()[-2:] == ["-", "-"]) == (pool.compactor == "none")
        assert report["metrics"]["compacted_reclaim"] is not None
        assert report["metrics"]["decode_steps"] is not None


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ("vllm_v9", "NAME must be all or one of vllm"),
        ("sglang:page_size", "KEY=VALUE must name a keyword of sglang"),
        ("vllm:block_size=1,block_size=2", "must name each keyword once; got 'block_size' twice"),
    ],
)
def test_a_runtime_that_is_none(
    runtime: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["report", str(DEMO), "--runtime", runtime])
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", ["report", "compare", "map"])
def test_an_output_without_a_name(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, str(DEMO), "-o", ""])
    assert stopped.value.code == 2
    assert "must name a file; got ''; write such as figures.csv" in capsys.readouterr().err


def test_a_runtime_refuses_keywords_that_it_does_not_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    message = refused(capsys, "report", DEMO, "--runtime", "sglang:colour=2")
    assert "fields must be those of a BlockPool" in message
    assert "--runtime must be one" in refused(capsys, "map", DEMO, "--runtime", "all")
    message = refused(capsys, "report", DEMO, "--runtime", "all", "--by", "l")
    assert "--by must go with one runtime" in message


def test_what_has_no_seeds_or_is_a_table_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    empty, table = tmp_path / "empty.npy", tmp_path / "table.csv"
    np.save(empty, np.ones((0, 4, 64), bool))
    message = refused(capsys, "report", empty, "--axes", "slt", "--by", "s")
    assert "--by must name axes along which there is something" in message
    assert "empty.npy" in message
    assert main(["report", str(DEMO), "--format", "csv", "-o", str(table)]) == 0
    assert "got a table of reports" in refused(capsys, "compare", table)


def test_a_file_that_is_read_is_not_written_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "mask.npy"
    np.save(path, np.ones(8, bool))
    (tmp_path / "link.csv").symlink_to(path)
    before = path.read_bytes()
    for output in (path, tmp_path / "link.csv"):
        message = refused(capsys, "report", path, "-o", output)
        assert "-o must be another file than those that are read" in message
    assert path.read_bytes() == before
