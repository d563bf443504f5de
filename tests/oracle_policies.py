"""Slow, obvious twins of the reference policies: loops and Fractions, one group of rows a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Score: TypeAlias = Fraction | float  # a float only where it is infinite
Kept: TypeAlias = set[int]  # positions


def exact(value: object) -> Score:
    number = float(str(value))
    return number if number in (float("inf"), float("-inf")) else Fraction(number)


def once(value: Score) -> float:
    """Round a sum or a mean, to the nearest float, which is what Python makes of a Fraction."""
    return float(value)


def by_groups(
    scores: NDArray[Any],
    axes: str,
    choose: Callable[[list[Any]], Sequence[Kept]],
    *,
    together: str = "",
) -> NDArray[np.bool_]:
    """Hand the rows of each group to `choose`, one by one, and write down what it keeps.

    A row is a list of scores, or of queries that are lists of scores.
    """
    sizes = dict(zip(axes, scores.shape, strict=True))
    mask_axes = [letter for letter in axes if letter != "q"]
    keep = np.zeros([sizes[letter] for letter in mask_axes], bool)
    in_group = [letter for letter in together if letter in axes]
    outer = [letter for letter in mask_axes if letter != "t" and letter not in in_group]
    for group in _indices(sizes, outer):
        rows = [group | row for row in _indices(sizes, in_group)]
        kept = choose([_row(scores, axes, sizes, row) for row in rows])
        for row, positions in zip(rows, kept, strict=True):
            for position in positions:
                at = row | {"t": position}
                keep[tuple(at[letter] for letter in mask_axes)] = True
    return keep


def _indices(sizes: Mapping[str, int], letters: Sequence[str]) -> Iterator[dict[str, int]]:
    for index in itertools.product(*(range(sizes[letter]) for letter in letters)):
        yield dict(zip(letters, index, strict=True))


def _row(
    scores: NDArray[Any], axes: str, sizes: Mapping[str, int], at: Mapping[str, int]
) -> list[Any]:
    def score(**more: int) -> Score:
        where = {**at, **more}
        return exact(scores[tuple(where[letter] for letter in axes)])

    if "q" not in axes:
        return [score(t=t) for t in range(sizes["t"])]
    return [[score(q=q, t=t) for t in range(sizes["t"])] for q in range(sizes["q"])]


def top(scores: Sequence[Score], num_kept: int) -> Kept:
    """Evict the lowest, the earliest of equals, until few enough are left."""
    left = list(range(len(scores)))
    while len(left) > num_kept:
        lowest = min(scores[position] for position in left)
        left.remove(next(position for position in left if scores[position] == lowest))
    return set(left)


def lowest_importance(rows: list[list[Score]], num_kept: int) -> list[Kept]:
    return [top(row, num_kept) for row in rows]


def streaming_llm(num_tokens: int, num_kept: int, sink: int) -> Kept:
    """Take the first tokens up to the sinks, then the last ones, while the budget lasts."""
    kept: Kept = set()
    wanted = [*range(min(sink, num_tokens)), *reversed(range(num_tokens))]
    for position in wanted:
        if len(kept) < num_kept:
            kept.add(position)
    return kept


def recent_and_top(scores: Sequence[Score], num_kept: int, recent: int) -> Kept:
    """Take the last tokens, then the highest of the others, while the budget lasts."""
    tokens = len(scores)
    kept: Kept = set()
    for position in reversed(range(tokens)):
        if len(kept) < min(num_kept, recent):
            kept.add(position)
    others = [position for position in range(tokens) if position not in kept]
    best = top([scores[position] for position in others], num_kept - len(kept))
    return kept | {others[place] for place in best}


def h2o(rows: list[list[list[Score]]], num_kept: int, recent_share: object) -> list[Kept]:
    recent = int(Decimal(str(recent_share)) * num_kept)
    kept = []
    for row in rows:
        totals = [once(sum(column)) for column in zip(*row, strict=True)]
        kept.append(recent_and_top(totals, num_kept, recent))
    return kept


def snapkv(
    rows: list[list[list[Score]]], num_kept: int, window: int, kernel: int, pooling: str
) -> list[Kept]:
    kept = []
    for row in rows:
        voters = row[-window:]
        tokens = len(row[0]) if row else 0
        votes = [
            exact(once(sum(query[position] for query in voters)))
            for position in range(tokens - window)
        ]
        scores: list[Score] = []
        for middle in range(len(votes)):
            near = range(middle - kernel // 2, middle + kernel // 2 + 1)
            inside = [votes[position] for position in near if 0 <= position < len(votes)]
            scores.append(max(inside) if pooling == "max" else once(sum(inside)))
        scores += [float("inf")] * (tokens - len(scores))
        kept.append(recent_and_top(scores, num_kept, window))
    return kept


def tova(rows: list[list[list[Score]]], num_kept: int) -> list[Kept]:
    if not rows[0]:
        return [set() for _ in rows]
    last = [row[-1] for row in rows]
    votes = [once(sum(heads)) for heads in zip(*last, strict=True)]
    return [top(votes, num_kept) for _ in rows]


def ada_kv(rows: list[list[Score]], num_kept: int, floor: object) -> list[Kept]:
    """Evict the lowest unprotected entry of all heads until they keep the budget on average."""
    safe = int(Decimal(str(floor)) * num_kept)
    if safe == 0 and num_kept > 0 and Decimal(str(floor)) > 0:
        safe = 1
    kept = [set(range(len(row))) for row in rows]
    own = [top(row, safe) for row in rows]
    while sum(map(len, kept)) > num_kept * len(rows):
        candidates = [
            (rows[head][position], position, head)
            for head in range(len(rows))
            for position in kept[head] - own[head]
        ]
        _, position, head = min(candidates)
        kept[head].remove(position)
    return kept


def pyramid_budgets(
    num_layers: int, num_tokens: int, num_kept: int, window: int, beta: object
) -> list[int]:
    low = Fraction(num_kept) / Fraction(str(beta))
    high = num_kept + (num_kept - low)
    if high >= num_tokens - window:
        high = Fraction(num_tokens - window)
        low = num_kept - (high - num_kept)
    line = num_layers > 1 and window <= low <= high <= num_tokens
    if not line:
        return [min(num_kept, num_tokens) for _ in range(num_layers)]
    budgets = []
    for layer in range(num_layers):
        share = Fraction(layer, num_layers - 1)
        wanted = high * (1 - share) + low * share
        below = wanted.numerator // wanted.denominator
        beyond = wanted - below
        up = beyond > Fraction(1, 2) or (beyond == Fraction(1, 2) and below % 2 == 1)
        budgets.append(below + up)
    return budgets


def pyramid_kv(rows: list[list[Score]], num_kept: int, window: int, beta: object) -> list[Kept]:
    budgets = pyramid_budgets(len(rows), len(rows[0]), num_kept, window, beta)
    return [recent_and_top(row, budget, window) for row, budget in zip(rows, budgets, strict=True)]


def by_chunks(
    rows: list[list[Score]], num_kept: int, size: int, offset: int = 0, *, spare_part: bool = False
) -> list[Kept]:
    """Evict the cheapest chunk whole while that leaves enough, then the cheapest of its tokens.

    With `spare_part` a last chunk that is not full up to its border goes last.
    """
    tokens = len(rows[0])
    value = [once(sum(row[position] for row in rows)) for position in range(tokens)]
    chunks: dict[int, list[int]] = {}
    for position in range(tokens):
        chunks.setdefault((offset + position) // size, []).append(position)

    def price(number: int) -> tuple[float, int]:
        if spare_part and number == max(chunks) and (offset + tokens) % size:
            return float("inf"), number
        terms = [row[position] for row in rows for position in chunks[number]]
        return once(sum(terms) / len(terms)), number

    spared = spare_part and (offset + tokens) % size > 0
    left = set(range(tokens))
    for number in sorted(chunks, key=price):
        chunk = chunks[number]
        worth: list[Score] = [value[position] for position in chunk]
        if spared and number == max(chunks):
            worth = [float("inf")] * len(chunk)
        stay = top(worth, len(chunk) - min(len(chunk), max(0, len(left) - num_kept)))
        left -= {position for place, position in enumerate(chunk) if place not in stay}
    return [left for _ in rows]


def kv_compress(rows: list[list[Score]], num_freed_blocks: int, block_size: int) -> list[Kept]:
    """Let the cheapest group of all rows go, one at a time; the lower, then the earlier, of equals.

    Each row is sorted, and its next group is what is left over a whole number of blocks, or a
    block.
    """
    left = [sorted(range(len(row)), key=lambda position: (row[position], position)) for row in rows]
    groups = [0 for _ in rows]
    for _ in range(num_freed_blocks):
        offers = []
        for number, (row, order) in enumerate(zip(rows, left, strict=True)):
            if order:
                size = len(order) % block_size or block_size
                offers.append((row[order[size - 1]], groups[number], number, size))
        _, _, number, size = min(offers)
        left[number] = left[number][size:]
        groups[number] += 1
    return [set(order) for order in left]


def num_kept_for(keep_ratio: object, num_tokens: int, rounding: str) -> int:
    rules = {"floor": ROUND_FLOOR, "nearest": ROUND_HALF_UP, "ceil": ROUND_CEILING}
    wanted = Decimal(str(keep_ratio)) * num_tokens
    return int(wanted.to_integral_value(rounding=rules[rounding]))
