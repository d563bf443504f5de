"""What a message shows of a mask: its tables one by one, and small pictures of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _checks, _layout
from kvreclaim._render.block_map import ASCII_MARKS, block_map
from kvreclaim.pool import BlockPool

LEGEND: Final = "# kept, x evicted in a held block, . in a free block, - no token"

_LINES: Final = 6  # of a picture
_TOKENS: Final = 64  # of a line that shows tokens


class Table(NamedTuple):
    """One block table of a mask, as a mask of its own."""

    name: str  # its index, such as "b=0 l=1"; empty where there is no other
    keep: NDArray[np.bool_]  # (row, token)
    length: int
    offset: int
    pool: BlockPool

    @property
    def alone(self) -> NDArray[np.bool_]:
        """The mask in as many axes as `axes` names."""
        return self.keep if self.pool.shared_axes else self.keep[0]

    @property
    def axes(self) -> str:
        """The letters of `alone`: all its rows share blocks."""
        return self.pool.shared_axes[:1] + "t"

    def block_map(self) -> str:
        """Return the picture of its blocks, with its legend."""
        return block_map(
            self.alone,
            self.pool,
            axes=self.axes,
            lengths=self.length,
            offset=self.offset,
            most_lines=_LINES,
            marks=ASCII_MARKS,
        )


def tables_of(
    keep: ArrayLike, pool: BlockPool, axes: str | None, lengths: ArrayLike | None, offset: ArrayLike
) -> Iterator[Table]:
    """Yield the tables of a mask that was checked, in row-major order of the outer axes."""
    layout = _layout.lay_out(keep, pool, axes=axes, lengths=lengths, offset=offset)
    letters = _checks.as_axes(axes, np.shape(layout.array), pool.shared_axes)
    outer = [letter for letter in letters if letter != "t" and letter not in pool.shared_axes]
    lengths_of, offsets = (numbers.tolist() for numbers in _layout.of_each_table(layout))
    for index, length, before in zip(np.ndindex(layout.outer), lengths_of, offsets, strict=True):
        rows = layout.array[index].reshape(layout.rows, layout.tokens)
        yield Table(index_name("".join(outer), index), rows, length, before, pool)


def index_name(letters: str, index: Sequence[int]) -> str:
    """Return an index as "b=0 l=1", or as "(0, 1)" where axes have no letters."""
    if "?" in letters:
        return f"({', '.join(map(str, index))})"
    return " ".join(f"{letter}={i}" for letter, i in zip(letters, index, strict=True))


def blocks_of_rows(keep: NDArray[np.bool_], axes: str, pool: BlockPool) -> str:
    """Return the blocks of the first rows of a mask, a line or a few each, without a legend."""
    alone = pool.replace(shared_axes="")
    text = block_map(keep, alone, axes=axes, most_lines=_LINES, marks=ASCII_MARKS)
    _, picture, legend = text.split("\n\n")
    # Of many tokens a character is whole blocks, and the legend says how many.
    scale = legend.partition("\n")[0] if legend.startswith("A character") else ""
    return f"{scale}\n{picture}" if scale else picture


def tokens_of_rows(rows: NDArray[np.str_], start: int = 0) -> str:
    """Return a character for each token of a few rows, from a token near `start` on."""
    shown = rows[:_LINES]
    lines = _LINES // len(shown)
    first = max(0, start // _TOKENS - lines + 1) * _TOKENS
    width = len(str(rows.shape[1]))
    text = [
        f"{at:>{width}} {''.join(row[at : at + _TOKENS])}"
        for row in shown
        for at in range(first, min(first + lines * _TOKENS, max(rows.shape[1], 1)), _TOKENS)
    ]
    left = rows.shape[1] - first - lines * _TOKENS
    if left > 0:
        text.append(f"and {left} more tokens")
    if len(rows) > len(shown):
        text.append(f"and {len(rows) - len(shown)} more rows")
    return "\n".join(text)
