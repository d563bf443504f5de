"""What structure gives: windows, clusters and runs beside scatter; the dead runs of one mask."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from benchmarks.study import shapes
from benchmarks.study.measure import each, exact, line, of_ratio
from benchmarks.study.results import Chart, Row
from kvreclaim import bounds, take_census

LONG: Final = 12_288  # tokens: whole blocks of every size
KEPT: Final = LONG // 2
MEAN_RUN: Final = 32
CLUSTER: Final = 8


def by_block_size(title: str, replications: int, sizes: tuple[int, ...]) -> tuple[list[Row], Chart]:
    """Return what scatter, windows, clusters and runs free at one half, over the block size."""
    models: dict[str, tuple[Callable[[np.random.Generator], shapes.Mask], str, str]] = {
        "window": (
            partial(shapes.streaming_llm, LONG, jitter=0.0),
            "window_free_blocks",
            f"half kept: {shapes.SINK} sinks and a window",
        ),
        "runs without memory": (
            partial(shapes.markov, LONG, MEAN_RUN),
            "markov_reclaim",
            f"dead and live runs of {MEAN_RUN} tokens on average, half dead",
        ),
        "clusters": (
            partial(shapes.clusters, LONG, CLUSTER),
            "clustered_reclaim",
            f"half kept on average, in clusters of {CLUSTER} tokens that may overlap",
        ),
        "heavy hitters": (
            partial(shapes.h2o, LONG),
            "heavy_hitter_free_blocks",
            "a quarter kept as recent, a quarter of the highest scores, lognormal, sigma 1",
        ),
        "scatter": (partial(shapes.scattered, LONG), "random_free_blocks", "a random half kept"),
    }

    rows: dict[str, list[Row]] = {}
    for name, (mask, law, words) in models.items():
        slug = name.replace(" ", "-")

        def freed(
            rng: np.random.Generator,
            mask: Callable[[np.random.Generator], shapes.Mask] = mask,
        ) -> list[int]:
            keep = mask(rng)
            return [take_census(keep, size).num_freed_blocks for size in sizes]

        drawn = each(freed, replications)
        measured, closed = rows.setdefault(name, []), rows.setdefault(f"{name}, closed form", [])
        for index, size in enumerate(sizes):
            said = {
                "section": title,
                "setting": f"B = {size}, {LONG:,} tokens, {words}",
                "x": size,
                "metric": "physical reclaim",
                "closed_form": _expected(name, size),
                "law": law,
            }
            where = f"laws/structure/{slug}/B={size}"
            series = f"{name}, closed form"
            closed.append(
                exact(_expected(name, size), key=f"{where}/closed", series=series, **said)
            )
            counts = [some[index] for some in drawn]
            if name == "window":  # the same in every replication
                value = counts[0] / (LONG // size)
                measured.append(exact(value, key=f"{where}/reclaim", series=name, **said))
                continue
            measured.append(
                of_ratio(
                    counts,
                    [LONG // size] * replications,
                    key=f"{where}/reclaim",
                    series=name,
                    **said,
                )
            )
    chart = Chart(
        key="laws-structure",
        section=title,
        title="What structure gives",
        caption=(
            f"Half of {LONG:,} tokens evicted. Scatter is lost at any block size, long runs and "
            "windows hold out. Points are random masks, dashed lines closed forms."
        ),
        x_title="block size B (slots)",
        y_title="physical reclaim (share of blocks)",
        kind="scatter",
        lines=tuple(line(name, some, dashed="closed" in name) for name, some in rows.items()),
        log_x=True,
        log_y=False,
    )
    return [row for some in rows.values() for row in some], chart


def by_alignment(title: str, sizes: tuple[int, ...]) -> tuple[list[Row], Chart]:
    """Return one mask at every place where a block may begin, and the identity of its dead runs."""
    keep = shapes.markov(4_096, MEAN_RUN, np.random.default_rng(0))
    keep[[0, -1]] = True  # what lies beyond the mask counts as kept
    curve = bounds.phase_averaged_curve(keep, max(sizes))
    measured, identity = [], []
    for size in sizes:
        freed = sum(take_census(keep, size, offset=place).num_freed_blocks for place in range(size))
        said = {
            "section": title,
            "setting": f"B = {size}, one mask of 4,096 tokens, runs of {MEAN_RUN}, seed 0, "
            f"mean over all {size} alignments",
            "x": size,
            "metric": "free blocks x B over tokens",
            "closed_form": curve[size - 1] * size / keep.size,
            "law": "phase_averaged_curve",
        }
        where = f"laws/alignment/B={size}"
        measured.append(
            exact(
                freed / keep.size, key=f"{where}/measured", series="every alignment counted", **said
            )
        )
        identity.append(
            exact(
                curve[size - 1] * size / keep.size,
                key=f"{where}/closed",
                series="sum over dead runs",
                **said,
            )
        )
    chart = Chart(
        key="laws-alignment",
        section=title,
        title="The dead runs of a mask say what every block size frees",
        caption=(
            "Averaged over the places where a block may begin, a dead run of l tokens frees "
            "max(0, l - B + 1) / B blocks: an identity, so points and line are one."
        ),
        x_title="block size B (slots)",
        y_title="freed slots (share of tokens)",
        kind="scatter",
        lines=(
            line("every alignment counted", measured),
            line("sum over dead runs", identity, dashed=True),
        ),
        log_x=True,
    )
    return [*measured, *identity], chart


def _expected(name: str, size: int) -> float:
    """Return what the closed form of a model says."""
    blocks = LONG // size
    if name == "window":
        return bounds.window_free_blocks(LONG, shapes.SINK, KEPT - shapes.SINK, size) / blocks
    if name == "runs without memory":
        return bounds.markov_reclaim(0.5, MEAN_RUN, size)
    if name == "clusters":
        return bounds.clustered_reclaim(0.5, CLUSTER, size)
    if name == "heavy hitters":
        quarter = LONG // 4
        return bounds.heavy_hitter_free_blocks(LONG, quarter, quarter, size).mean / blocks
    return bounds.random_free_blocks(LONG, LONG - KEPT, size).mean / blocks
