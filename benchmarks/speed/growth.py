"""How cost grows: with tokens, with the number of metrics; and how memory does not."""

from __future__ import annotations

import math
import tracemalloc
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import Table
from benchmarks.speed import workload as work
from benchmarks.speed.clock import Call, measure
from benchmarks.speed.results import Section, cells, number
from kvreclaim import BlockPool, take_census, take_census_packed

ROUNDS: Final = 15  # of two calls that differ by less than one part in twenty
HEADS: Final = 8


def section(scale: work.Scale) -> Section:
    """Return the exponents, the price of metrics, and peaks of memory."""
    growth, rows, one = _growth(scale)
    peaks = _peaks(scale)
    reached = {
        "exponent": rows,
        "exponent of one": one,
        "metrics": _price_of_metrics(),
        "memory": max(peak for row in peaks.values() for peak in row),
    }
    table = Table(
        title="Memory",
        text="The peak of what is allocated beside the mask while its census is taken, in MiB "
        "(tracemalloc; rows of 131,072 tokens, B = 16 unless said otherwise), by size of the mask.",
        header=("pool", *(f"{mib:,} MiB" for mib in scale.memory)),
        rows=tuple((name, *map(number, row)) for name, row in peaks.items()),
    )
    return Section(tables=(growth, table), reached=reached)


def _growth(scale: work.Scale) -> tuple[Table, float, float]:
    """Return times by tokens, and their exponents: for rows of one length, for one row of all."""
    keep, pool = work.half(scale.growth[-1]), work.apart(work.BLOCK)
    calls: dict[str, Call] = {}
    for tokens in scale.growth:
        part = keep[:tokens]
        calls[f"rows {tokens}"] = partial(take_census, part.reshape(-1, work.TOKENS), pool)
        calls[f"one {tokens}"] = partial(take_census, part, pool)
    times = measure(calls, rounds=scale.rounds)
    kinds = ("rows", "one")
    exponents = [
        np.polyfit(
            np.log(scale.growth),
            [math.log(times.median(f"{kind} {tokens}")) for tokens in scale.growth],
            deg=1,
        )[0]
        for kind in kinds
    ]
    first = scale.growth[0]
    table = Table(
        title="Growth",
        text=f"Time of a token, B = 16, against that of a mask of {first // work.MIB} MiB.",
        header=("MiB", "rows of 131,072 tokens", "one row of all"),
        rows=tuple(
            (
                f"{tokens // work.MIB:,}",
                *cells(
                    [
                        times.ratio(f"{kind} {tokens}", f"{kind} {first}") * first / tokens
                        for kind in kinds
                    ]
                ),
            )
            for tokens in scale.growth
        ),
    )
    return table, float(exponents[0]), float(exponents[1])


def _price_of_metrics() -> float:
    keep, pool = work.half(32, work.TOKENS), work.apart(work.BLOCK)
    calls: dict[str, Call] = {
        "census": lambda: take_census(keep, pool),
        "figures": lambda: work.six(take_census(keep, pool)),
    }
    return measure(calls, rounds=ROUNDS).ratio("figures", "census")


def _peaks(scale: work.Scale) -> dict[str, list[float]]:
    keep = work.half(scale.memory[-1] * work.MIB)
    found: dict[str, list[float]] = {}
    for mib in scale.memory:
        part = keep[: mib * work.MIB].reshape(-1, HEADS, work.TOKENS)
        for name, call in memory_calls(part).items():
            found.setdefault(name, []).append(peak(call) / work.MIB)
    return found


def memory_calls(keep: NDArray[np.bool_]) -> dict[str, Call]:
    """Return censuses of a mask of (sequence, head, token) under pools that go different ways."""
    sequences, _, tokens = keep.shape
    flat = keep.reshape(-1)
    short = keep.reshape(-1, work.SHORT)
    bits = np.packbits(keep, axis=-1)
    ragged = keep.copy() if keep.size <= 1 << 26 else keep  # lengths of a mask too large to copy
    lengths = np.full(sequences, tokens)
    if ragged is not keep:
        lengths -= np.arange(sequences) % 100
        ragged[:, :, -100:] = False

    def counting(mask: NDArray[Any], axes: str, pool: BlockPool, **said: Any) -> Call:  # noqa: ANN401  # options of take_census
        return lambda: take_census(mask, pool, axes=axes, **said)

    apart, heads_share = work.apart(16), BlockPool(16, shared_axes="h")
    return {
        "a table for each row": counting(keep, "bht", apart),
        "a table for each row, B = 1": counting(keep, "bht", work.apart(1)),
        "a table for each row, B = 100": counting(keep, "bht", work.apart(100)),
        "a table for each row, B = 1,024": counting(keep, "bht", work.apart(1024)),
        "tables of 4,096 tokens": counting(short, "bt", apart),
        "tables of 4,096 tokens, frees back, fill": counting(
            short, "bt", work.apart(16, frees="back")
        ),
        "one table of one row": counting(flat, "t", apart),
        "one table of one row, fill": counting(flat, "t", work.apart(16, compactor="fill")),
        "heads share": counting(keep, "bht", heads_share),
        "heads share, evacuate_rows": counting(
            keep, "bht", heads_share.replace(compactor="evacuate_rows")
        ),
        "heads share, pack_rows": counting(keep, "bht", heads_share.replace(compactor="pack_rows")),
        "heads share, lengths of their own": counting(ragged, "bht", heads_share, lengths=lengths),
        "all rows share": counting(keep, "lht", BlockPool(16)),
        "packed bits": lambda: take_census_packed(bits, tokens, apart, axes="bht"),
    }


def peak(call: Call) -> int:
    """Return the most bytes that a call had allocated at once; nothing before it counts."""
    call()  # what is cached for good is no cost of a call
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
