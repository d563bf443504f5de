"""Masks of other shapes, sharing, layouts and kinds, at 16 slots a block."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import Table
from benchmarks.speed import workload as work
from benchmarks.speed import yardsticks
from benchmarks.speed.clock import Call, measure
from benchmarks.speed.results import Section, cells, number
from kvreclaim import BlockPool, masks, take_census, take_census_packed

LAYERS: Final = 32
HEADS: Final = 8
PACKED_SIZES: Final = (8, 16, 64, 100, 1024)


@attrs.frozen(kw_only=True)
class Input:
    """One way to hand over tokens, and the line a user would write for it."""

    name: str
    census: Call
    naive: Call
    tokens: int


def section(scale: work.Scale) -> Section:
    """Return what each shape and each kind of input costs, and the figures of targets."""
    shared, union = _sharing(scale)
    packed, reached = _packed(scale)
    tables = (_inputs(scale), shared, _layouts(scale), packed)
    return Section(tables=tables, reached={"union": union, **reached})


def _inputs(scale: work.Scale) -> Table:
    rows = []
    for each in (*_masks(), _ragged(), *_indices(), _many_short()):
        times = measure({"census": each.census, "naive": each.naive}, rounds=scale.rounds)
        speed = times.gigabytes("census", each.tokens)
        rows.append((each.name, number(speed), number(times.ratio("naive", "census"))))
    return Table(
        title="Shapes and kinds of input",
        text="B = 16, a table for each row unless said otherwise; tokens in a nanosecond, and the "
        "naive line of the same input against `take_census`. Where rows share blocks the line "
        "unites them first, with `any`; of positions it makes a mask first.",
        header=("input", "tokens / ns", "naive / census"),
        rows=tuple(rows),
    )


def _masks() -> list[Input]:
    one, few = work.half(work.SHORT), work.half(HEADS, work.SHORT)
    big = work.half(LAYERS, HEADS, work.TOKENS)
    apart, joined, of_layer = work.apart(16), BlockPool(16), BlockPool(16, shared_axes="h")
    return [
        _input("4,096 tokens", one, apart, "t", ()),
        _input("8 x 4,096", few, apart, "ht", ()),
        _input("8 x 4,096, heads share", few, joined, "ht", (0,)),
        _input("32 x 8 x 131,072", big, apart, "lht", ()),
        _input("32 x 8 x 131,072, heads share", big, of_layer, "lht", (1,)),
        _input("32 x 8 x 131,072, layers and heads share", big, joined, "lht", (0, 1)),
    ]


def _input(
    name: str, keep: NDArray[np.bool_], pool: BlockPool, axes: str, shared: tuple[int, ...]
) -> Input:
    size = pool.block_size

    def naive() -> int:
        union = np.asarray(keep.any(shared)) if shared else keep
        return yardsticks.naive_dead(union, size)

    census = take_census(keep, pool, axes=axes)
    yardsticks.require(f"the naive line of {name}", naive(), census.counts[0])
    return Input(
        name=name,
        census=lambda: take_census(keep, pool, axes=axes),
        naive=naive,
        tokens=keep.size,
    )


def _ragged() -> Input:
    rng = np.random.default_rng(0)
    keep, pool = work.half(work.ROWS, work.TOKENS), work.apart(16)
    lengths = rng.integers(work.TOKENS // 2, work.TOKENS, work.ROWS, endpoint=True)
    for row, length in enumerate(lengths):
        keep[row, length:] = False
    return Input(
        name="256 x 131,072, lengths of their own",
        census=lambda: take_census(keep, pool, axes="bt", lengths=lengths),
        naive=lambda: yardsticks.naive_dead(keep, 16),
        tokens=keep.size,
    )


def _many_short() -> Input:
    keep, pool = work.half(8 * LAYERS * work.ROWS // 8, work.SHORT), work.apart(16)
    lengths = np.full(len(keep), work.SHORT - 7)
    keep[:, work.SHORT - 7 :] = False
    return Input(
        name="8,192 x 4,096, all of length 4,089",
        census=lambda: take_census(keep, pool, axes="bt", lengths=lengths),
        naive=lambda: yardsticks.naive_dead(keep, 16),
        tokens=keep.size,
    )


def _indices() -> list[Input]:
    rng = np.random.default_rng(0)
    pool, found = work.apart(16), []
    for num_rows, tokens in ((HEADS, work.SHORT), (work.ROWS, work.TOKENS)):
        kept = np.stack([rng.permutation(tokens)[: tokens // 2] for _ in range(num_rows)])

        def census(kept: NDArray[Any] = kept, tokens: int = tokens) -> object:
            return take_census(masks.from_indices(kept, tokens), pool)

        def naive(kept: NDArray[Any] = kept, tokens: int = tokens) -> int:
            keep = np.zeros((len(kept), tokens), np.bool_)
            np.put_along_axis(keep, kept, values=True, axis=-1)
            return yardsticks.naive_dead(keep, 16)

        name = f"{num_rows:,} x {tokens // 2:,} positions of {tokens:,}"
        found.append(Input(name=name, census=census, naive=naive, tokens=num_rows * tokens))
    return found


def _sharing(scale: work.Scale) -> tuple[Table, float]:
    keep = work.half(LAYERS, HEADS, work.TOKENS)
    sizes = tuple(size for size in (8, 16, 64, 100, 1024) if size in scale.block_sizes)
    ways = {"none": "", "heads": "h", "layers and heads": "lh"}
    calls: dict[str, Call] = {
        "read": lambda: np.count_nonzero(keep),
        "words": lambda: yardsticks.union_of_words(keep),
    }
    for name, shared in ways.items():
        for size in sizes:
            pool = BlockPool(size, shared_axes=shared)
            calls[f"{name} {size}"] = partial(take_census, keep, pool, axes="lht")
    times = measure(calls, rounds=scale.rounds)
    table = Table(
        title="Sharing",
        text="32 layers x 8 heads x 131,072 tokens, 32 MiB: the census against "
        "`np.count_nonzero(keep)`, by block size; in the last column, at B = 16, against "
        "`np.bitwise_or.reduce` of the same mask as 64-bit words over layers and heads, which "
        "finds the union and nothing else.",
        header=("share blocks", *(f"B = {size:,}" for size in sizes), "B = 16 / words"),
        rows=tuple(
            (
                name,
                *cells([times.ratio(f"{name} {size}", "read") for size in sizes]),
                number(times.ratio(f"{name} 16", "words")),
            )
            for name in ways
        ),
    )
    return table, 100 / times.ratio("layers and heads 16", "words")


def _layouts(scale: work.Scale) -> Table:
    keep = work.half(LAYERS, HEADS, work.TOKENS)
    layouts = {
        "layer, head, token": ("lht", keep),
        "layer, token, head": ("lth", np.ascontiguousarray(keep.transpose(0, 2, 1))),
        "token, layer, head": ("tlh", np.ascontiguousarray(keep.transpose(2, 0, 1))),
    }
    pools = {"none": work.apart(16), "layers and heads": BlockPool(16)}
    calls: dict[str, Call] = {}
    for name, (axes, mask) in layouts.items():
        for shared, pool in pools.items():
            calls[f"{name} {shared}"] = partial(take_census, mask, pool, axes=axes)
            same = take_census(mask, pool, axes=axes) == take_census(keep, pool, axes="lht")
            yardsticks.require(f"the layout {axes}", same, expected=True)
        calls[f"{name} copy"] = partial(mask.transpose(tuple(map(axes.index, "lht"))).copy)
    times = measure(calls, rounds=scale.rounds)
    first = next(iter(layouts))
    return Table(
        title="Layouts",
        text="The same mask of 32 MiB with its axes in another order in memory, the last one "
        "contiguous; B = 16. How many times as long as with tokens last; and what a copy with "
        "tokens last costs, in censuses of it that share nothing.",
        header=("axes", *(f"share {shared}" for shared in pools), "the copy"),
        rows=tuple(
            (
                name,
                *cells([times.ratio(f"{name} {shared}", f"{first} {shared}") for shared in pools]),
                number(times.ratio(f"{name} copy", f"{first} none")) if name != first else "",
            )
            for name in layouts
        ),
    )


def _packed(scale: work.Scale) -> tuple[Table, dict[str, float]]:
    keep = work.half(work.ROWS, work.TOKENS)
    big, little = np.packbits(keep, axis=-1), np.packbits(keep, axis=-1, bitorder="little")
    rows, reached = [], {}
    for size in PACKED_SIZES:
        pool = work.apart(size)
        calls: dict[str, Call] = {
            "bool": partial(take_census, keep, pool),
            "big": partial(take_census_packed, big, work.TOKENS, pool),
            "little": partial(take_census_packed, little, work.TOKENS, pool, bitorder="little"),
        }
        for name, call in calls.items():
            yardsticks.require(f"{name} bits", call() == calls["bool"](), expected=True)
        times = measure(calls, rounds=scale.rounds)
        reached[f"packed {size}"] = times.ratio("bool", "big")
        ratios = (times.ratio("bool", "big"), times.ratio("bool", "little"))
        rows.append((f"{size:,}", *cells(ratios)))
    table = Table(
        title="Packed bits",
        text="256 tables of 131,072 tokens: how many times faster `take_census_packed` is than "
        "`take_census` of the mask, by the order of the bits.",
        header=("B", "big", "little"),
        rows=tuple(rows),
    )
    return table, reached
