"""Several sequences in one pool: a block holds one of them, so each keeps a partly filled block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from benchmarks.study.measure import exact, line, of_values, same
from benchmarks.study.results import Chart, Row
from benchmarks.study.shapes import Mask
from kvreclaim import take_census

NUMBERS: Final = (1, 4, 16, 64)


def after_compaction(title: str, keeps: Sequence[Mask], size: int) -> list[Row]:
    """Return what a full compaction leaves free where a pool holds several sequences.

    The masks are of the whole pool, and keep a random half.
    """
    tokens = keeps[0].size
    rows = []
    for number in NUMBERS:
        censuses = [take_census(keep.reshape(number, -1), size, axes="bt") for keep in keeps]
        free = [one.num_blocks - one.num_packed_blocks for one in censuses]
        law = expected_blocks(tokens, size, number)
        where = f"compaction/random/sequences={number}"
        said: dict[str, Any] = {
            "section": title,
            "setting": f"{tokens // size} blocks of {size}, {number} sequences, a random half kept",
            "x": number,
        }
        of_blocks: dict[str, Any] = said | {
            "metric": "free blocks, after compaction",
            "closed_form": law,
            "law": "hypergeometric survivors of each sequence, in whole blocks",
        }
        measured = of_blocks | {"key": f"{where}/free", "series": "random"}
        rows += [
            exact(same(free), **measured)
            if number == 1  # the survivors are always as many
            else of_values(free, bounds=(0, tokens // size), **measured),
            exact(law, key=f"{where}/closed", series="random, closed form", **of_blocks),
            of_values(
                [one.num_moved_entries for one in censuses],
                key=f"{where}/moves",
                series="random",
                metric="moves of a full compaction",
                **said,
            ),
        ]
    return rows


def expected_blocks(tokens: int, size: int, number: int) -> float:
    """Return the expected free blocks of so many sequences of one length, a random half kept.

    The survivors of a sequence are hypergeometric, and hold a whole number of blocks.
    """
    from scipy.stats import hypergeom

    length = tokens // number
    live = np.arange(length + 1)
    chances = hypergeom(tokens, tokens // 2, length).pmf(live)
    held = np.ceil(live / size)
    return tokens // size - number * float(chances @ held)


def chart(title: str, rows: Sequence[Row]) -> Chart:
    """Return the chart of free blocks over sequences in the pool."""
    return Chart(
        key="compaction-sequences",
        section=title,
        title="Blocks free after a full compaction, by sequences in the pool",
        caption=(
            "A block holds one sequence, so each sequence keeps a partly filled block: the "
            "article's 256 blocks are those of one sequence."
        ),
        x_title="sequences in the pool",
        y_title="free blocks",
        kind="scatter",
        lines=(
            line("random", [row for row in rows if row.key.endswith("/free")]),
            line(
                "random, closed form",
                [row for row in rows if row.key.endswith("/closed")],
                dashed=True,
            ),
        ),
        log_x=True,
    )
