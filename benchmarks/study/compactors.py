"""A full compaction by each compactor: what it moves for the same free blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.study.measure import exact, line, of_values, same
from benchmarks.study.results import Chart, Row
from benchmarks.study.shapes import Mask
from kvreclaim import BlockPool, bounds, take_census

COMPACTORS: Final = ("evacuate", "fill", "pack")


def moves(
    keeps: Sequence[Mask], size: int, said: Mapping[str, Any], *, promised: bool
) -> list[Row]:
    """Return the moves of a full compaction by each; `promised`: they are always as many."""
    laws = _after_random_eviction(keeps[0].size, size) if said["series"] == "random" else {}
    rows = []
    for compactor in COMPACTORS:
        pool = BlockPool(size, compactor=compactor)
        found = [take_census(keep, pool).num_moved_entries for keep in keeps]
        fields = {
            **said,
            **laws.get(compactor, {}),
            "x": compactor,
            "setting": f"{said['setting']}, compactor {compactor}",
            "key": f"compaction/{said['series']}/{compactor}/moves",
            "metric": "moves of a full compaction",
        }
        rows.append(exact(same(found), **fields) if promised else of_values(found, **fields))
    return rows


def _after_random_eviction(tokens: int, size: int) -> dict[str, dict[str, Any]]:
    """Return the expected moves where a random half is evicted."""
    evicted = tokens // 2
    kept = tokens - evicted
    return {
        "evacuate": {
            "closed_form": bounds.random_moves(tokens, evicted, size),
            "law": "random_moves",
        },
        "fill": {
            "closed_form": kept * evicted / tokens,
            "law": "survivors x share evicted: those at places beyond their number",
        },
        "pack": {
            "closed_form": kept - kept / (evicted + 1),
            "law": "survivors behind the first evicted token",
        },
    }


def chart(title: str, rows: Mapping[str, Sequence[Row]]) -> Chart:
    """Return the chart of moves by compactor, a series for each shape."""
    return Chart(
        key="compaction-compactors",
        section=title,
        title="Moves of a full compaction, by compactor",
        caption=(
            "Emptying the emptiest blocks moves least. Filling holes from the end, and sliding "
            "every survivor forward, free the same blocks for more."
        ),
        x_title="compactor",
        y_title="moves (slots)",
        kind="bar",
        lines=tuple(line(name, some) for name, some in rows.items()),
        log_y=False,
    )
