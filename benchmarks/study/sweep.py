"""Shapes of methods over the block size, the number of blocks fixed and the tokens fixed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.study import expected, shapes
from benchmarks.study.measure import UNKNOWN, each, exact, line, of_ratio, same
from benchmarks.study.results import Chart, Line, Row
from kvreclaim import Census, take_census

BLOCKS: Final = 48  # of a sequence
FIXED_TOKENS: Final = 512

# What the article prints, by method and block size.
PRINTED_SWEEP: Final = {("H2O", 4): "0.14", ("H2O", 64): "0.00"}
NEAR: Final = ("StreamingLLM", (min(shapes.POWERS), max(shapes.POWERS)), 0.47)
NEARNESS: Final = 0.02  # the spread that the article prints at B = 16
GUESSES: Final = {
    "StreamingLLM": f"{UNKNOWN}; {BLOCKS} blocks, {shapes.SINK} sinks and a budget of 0.5 ± up to "
    f"{shapes.JITTER} are a guess",
    "SnapKV": f"{UNKNOWN}; lognormal scores and max-pool {shapes.KERNEL} are a guess that meets "
    "it, SnapKV's own default is avg-pool 5",
    "random": f"{UNKNOWN}; {BLOCKS} blocks are a guess",
    "H2O": f"{UNKNOWN}; {BLOCKS} blocks, a quarter recent and a quarter heavy are a guess",
}


def census_of(shape: shapes.Shape, num_tokens: int, size: int, rng: np.random.Generator) -> Census:
    """Return the census of one mask of a shape."""
    return take_census(shape(num_tokens, rng), size)


def freed_of(censuses: Sequence[Census]) -> tuple[list[int], list[int]]:
    """Return the freed blocks and the blocks of each."""
    return [one.num_freed_blocks for one in censuses], [one.num_blocks for one in censuses]


def by_block_size(
    title: str, replications: int, sizes: tuple[int, ...], *, fixed: str
) -> tuple[list[Row], dict[str, list[Line]]]:
    """Return each method over block sizes, and the lines of the chart, in place and packed."""
    rows: list[Row] = []
    lines: dict[str, list[Line]] = {"in place": [], "packed": []}
    for name, shape in shapes.METHODS.items():
        in_place, packed, closed = [], [], []
        for size in sizes:
            tokens = BLOCKS * size if fixed == "blocks" else FIXED_TOKENS
            censuses = each(partial(census_of, shape, tokens, size), replications)
            law_says = expected.reclaim(name, tokens, size)
            freed, blocks = freed_of(censuses)
            said: dict[str, Any] = {
                "section": title,
                "setting": f"B = {size}, {tokens // size} blocks, {tokens:,} tokens, "
                f"{fixed} fixed, {shapes.WORDS[name]}",
                "x": size,
            }
            where = f"methods/{name}/fixed-{fixed}/B={size}"
            law: dict[str, Any] = {"closed_form": law_says, "law": expected.LAWS.get(name, "")}
            of_article = _of_article(name, size, sum(freed) / sum(blocks), fixed)
            in_place.append(
                of_ratio(
                    freed,
                    blocks,
                    key=f"{where}/reclaim",
                    series=name,
                    metric="physical reclaim",
                    **law,
                    **said,
                    **of_article,
                )
            )
            freed_packed = [one.num_blocks - one.num_floor_blocks for one in censuses]
            packed_said = said | {
                "key": f"{where}/packed",
                "series": name,
                "metric": "packed reclaim",
            }
            packed.append(
                of_ratio(freed_packed, blocks, **packed_said)
                if name == "StreamingLLM"  # its budget varies; theirs promise the number
                else exact(same(freed_packed) / same(blocks), **packed_said)
            )
            if law_says is not None:
                closed.append(
                    exact(
                        law_says,
                        key=f"{where}/closed",
                        series=f"{name}, closed form",
                        metric="physical reclaim",
                        **law,
                        **said,
                    )
                )
        rows += [*in_place, *packed, *closed]
        lines["in place"].append(line(name, in_place))
        lines["packed"].append(line(name, packed))
        if closed:
            lines["in place"].append(line(f"{name}, closed form", closed, dashed=True))
    return rows, lines


def _of_article(name: str, size: int, mean: float, fixed: str) -> dict[str, Any]:
    """Return what the article prints of a point of the sweep, and what became of it."""
    if fixed == "blocks" and (name, size) in PRINTED_SWEEP:
        return {"article": PRINTED_SWEEP[name, size], "note": GUESSES[name]}
    method, ends, value = NEAR
    if name != method or size not in ends:
        return {}
    if fixed == "blocks":
        away = abs(mean - value)
        verdict = f"{away:.3f} away, where the article's own ± at 16 is {NEARNESS}"
        if away <= NEARNESS:
            verdict = f"agrees: {verdict}"
        else:
            verdict = f"differs: {verdict}; at small blocks a window loses less than one of them"
            verdict += f", as {shapes.SINK} sinks fill a block of {size}"
        return {
            "article": f"near {value}",
            "verdict": f"{verdict}; the sweep holds the number of blocks fixed, which the article "
            "does not say",
            "note": GUESSES[name],
        }
    return {"note": f"with the tokens fixed it does not stay near {value}"}


def chart(title: str, fixed: str, lines: dict[str, list[Line]]) -> Chart:
    """Return the chart of a sweep."""
    what = f"{BLOCKS} blocks" if fixed == "blocks" else f"{FIXED_TOKENS} tokens"
    in_place = {
        "blocks": (
            "As the article swept it: sequences grow with the block, so a window keeps losing "
            "nearly the same share."
        ),
        "tokens": (
            "The same sequence in larger blocks: a window loses about one block, which is more of "
            "it each time."
        ),
    }
    packed = (
        "The same masks, their survivors moved together: three give back their half at any block "
        "size, StreamingLLM what its varying budget evicts, in whole blocks."
    )
    return Chart(
        key=f"methods-fixed-{fixed}",
        section=title,
        title=f"Block size, {what} fixed",
        caption=in_place[fixed],
        captions=(in_place[fixed], packed),
        y_range=(0.0, 0.55),
        x_title="block size B (slots)",
        y_title="reclaim (share of blocks)",
        kind="line",
        lines=tuple(one for some in lines.values() for one in some),
        choices=tuple(lines),
        selector="Survivors",
        choice_of=tuple(choice for choice, some in lines.items() for _ in some),
        log_x=True,
    )
