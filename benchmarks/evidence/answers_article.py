"""The article's figures beside those of real masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from benchmarks.evidence.cells import LAYOUTS, model_name, plain
from benchmarks.evidence.found import Evidence, by_document
from benchmarks.evidence.tables import Context, ReclaimRow
from benchmarks.pages import Table


class Printed(NamedTuple):
    """A figure of the article, and what it is of."""

    words: str
    article: str
    policy: str
    block_size: int
    of: Callable[[ReclaimRow], float]


def _in_place(row: ReclaimRow) -> float:
    return row.physical_reclaim


def _packed(row: ReclaimRow) -> float:
    return row.packed_reclaim


def _moved_share(row: ReclaimRow) -> float:
    """Return the share of survivors that a compaction moves: read and written, two of a step."""
    return row.decode_steps_evacuate_rows / 2


def _slots_per_move(row: ReclaimRow) -> float:
    return row.block_size / row.moved_per_block_evacuate_rows


FIGURES: Final = (
    Printed("reclaim of StreamingLLM, B = 16", "0.47 ± 0.02", "streaming_llm", 16, _in_place),
    Printed("the same, packed", "-", "streaming_llm", 16, _packed),
    Printed("the same, B = 4", "near 0.47", "streaming_llm", 4, _in_place),
    Printed("the same, B = 64", "near 0.47", "streaming_llm", 64, _in_place),
    Printed("reclaim of SnapKV, B = 16", "0.29 ± 0.04", "snapkv", 16, _in_place),
    Printed("the same, packed", "-", "snapkv", 16, _packed),
    Printed("reclaim of H2O, B = 16", "0.001 ± 0.005", "h2o", 16, _in_place),
    Printed("the same, packed", "-", "h2o", 16, _packed),
    Printed("the same, B = 4", "0.14", "h2o", 4, _in_place),
    Printed("the same, B = 64", "0.00", "h2o", 64, _in_place),
    Printed("reclaim of random eviction, B = 16", "0.000", "random", 16, _in_place),
    Printed("the same, packed", "-", "random", 16, _packed),
    Printed("reclaim of whole blocks, B = 16", "0.50", "whole_block_head", 16, _in_place),
    Printed("survivors moved, StreamingLLM", "0.6 %", "streaming_llm", 16, _moved_share),
    Printed("slots freed per move, random", "2.48", "random", 16, _slots_per_move),
    Printed("slots freed per move, SnapKV", "6.65 (*clustered*)", "snapkv", 16, _slots_per_move),
)


def article(evidence: Evidence) -> tuple[Table, ...]:
    """Return the article's figures beside ours, under the layout it assumes and under vLLM's."""
    shown = [(model, tables) for model in evidence.models for tables in ("head", "all")]
    return (
        Table(
            title="The article beside real masks",
            text=(
                "One half retained; mean over documents, and the least and the most of a document. "
                "In place, without a copy, unless a row says otherwise; moves are the fewest that "
                "pack every row. The article's figures are of synthetic scores, one row at a time: "
                "a table per head. Empty where nothing is moved, or not measured."
            ),
            header=(
                "figure",
                "article",
                *(f"{model_name(model)}, {LAYOUTS[tables]}" for model, tables in shown),
            ),
            rows=tuple(
                (
                    printed.words,
                    printed.article,
                    *(_cell(evidence, printed, model, tables) for model, tables in shown),
                )
                for printed in FIGURES
            ),
        ),
    )


def _cell(evidence: Evidence, printed: Printed, model: str, tables: str) -> str:
    values = by_document(
        {
            Context(row.model, row.document, row.tokens): printed.of(row)
            for row in evidence.halves.get((model, printed.policy, tables, printed.block_size), [])
        }
    ).values()
    if not values:
        return ""
    mean = sum(values) / len(values)
    return f"{plain(mean)} ({plain(min(values))} to {plain(max(values))})"
