"""What the census is measured against: the line a user writes, numpy's reads, torch, a loop in C.

Each does less than the census, and each is checked against the slow definition before it is timed.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Keep: TypeAlias = NDArray[np.bool_]
Counts: TypeAlias = NDArray[np.int64]

PIECE: Final = 1 << 20  # tokens at a time, so that what lies between stays in the cache

# The block size is a constant of each build, so that the compiler unrolls and vectorises for it.
SOURCE: Final = """
#include <stddef.h>
#include <stdint.h>
#if BLOCK < 256
typedef uint8_t live_t;
#else
typedef uint32_t live_t;
#endif

void histogram(const uint8_t *keep, size_t rows, size_t tokens, int64_t *counts)
{
    for (size_t row = 0; row < rows; row++, keep += tokens) {
        size_t start = 0;
        for (; start + BLOCK <= tokens; start += BLOCK) {
            live_t live = 0;
            for (size_t i = 0; i < BLOCK; i++)
                live += keep[start + i];
            counts[live]++;
        }
        if (start < tokens) {
            live_t live = 0;
            for (; start < tokens; start++)
                live += keep[start];
            counts[live]++;
        }
    }
}
"""


def slow_counts(keep: Keep, block_size: int) -> Counts:
    """Return the blocks of each row by live tokens: the definition, and a user's two lines."""
    live = blocked(keep, block_size).sum(-1)
    return np.bincount(live.ravel(), minlength=block_size + 1).astype(np.int64)


def blocked(keep: Keep, block_size: int) -> Keep:
    """Return the tokens as (rows, blocks, block size), dead ones put behind a short last block."""
    missing = -keep.shape[-1] % block_size
    if missing:
        keep = np.pad(keep, [(0, 0)] * (keep.ndim - 1) + [(0, missing)])
    return keep.reshape(-1, keep.shape[-1] // block_size, block_size)


def naive_dead(keep: Keep, block_size: int) -> int:
    """Return the blocks without a live token: the line that a user writes, for one metric."""
    if keep.shape[-1] % block_size == 0:
        return int((~keep.reshape(-1, block_size).any(-1)).sum())
    return int((~blocked(keep, block_size).any(-1)).sum())


def numpy_counts(keep: Keep, block_size: int) -> Counts:
    """Return the blocks by live tokens as fast as numpy gives them, and nothing else.

    The mask is contiguous, and its rows of whole blocks, so that they need not be told apart.
    """
    flat, size = keep.reshape(-1), block_size
    counts = np.zeros(size + 1, np.int64)
    step = max(1, PIECE // size) * size
    for start in range(0, flat.size, step):
        part = flat[start : start + step]
        if size % 8 == 0:
            word = math.gcd(size // 8, 8)
            live: NDArray[Any] = np.bitwise_count(np.packbits(part).view(f"u{word}"))
            parts = size // 8 // word
        else:
            live, parts = (part.view(np.uint8) != 0).view(np.uint8), size
        if parts > 1:
            if size > np.iinfo(np.uint8).max:
                live = live.astype(np.uint16)
            live = np.einsum("ij->i", live.reshape(-1, parts))
        counts += np.bincount(live, minlength=size + 1)
    return counts


def union_of_words(keep: Keep) -> NDArray[np.uint64]:
    """Return the union over the first two axes, eight tokens a machine word."""
    return np.asarray(np.bitwise_or.reduce(keep.view(np.uint64), axis=(0, 1)))


def c_counts(block_size: int, folder: Path) -> Callable[[Keep], Counts] | None:
    """Return a loop in C, built for a block size into a folder; None where no compiler does it."""
    compiler = shutil.which("gcc")
    if compiler is None:
        return None
    source, library = folder / "histogram.c", folder / f"histogram{block_size}.so"
    source.write_text(SOURCE, encoding="utf-8")
    flags = ("-O3", "-march=native", "-shared", "-fPIC", f"-DBLOCK={block_size}")
    command = [compiler, *flags, str(source), "-o", str(library)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        return None
    histogram = ctypes.CDLL(str(library)).histogram
    histogram.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
    histogram.restype = None

    def counts_of(keep: Keep) -> Counts:
        counts = np.zeros(block_size + 1, np.int64)
        rows = math.prod(keep.shape[:-1])
        histogram(keep.ctypes.data, rows, keep.shape[-1], counts.ctypes.data)
        return counts

    return counts_of


def torch_dead(keep: Keep, block_size: int) -> Callable[[], int] | None:
    """Return the naive line in torch, on one thread; None where torch is not installed."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    torch.set_num_threads(1)
    tensor = torch.from_numpy(blocked(keep, block_size))
    return lambda: int((~tensor.any(-1)).sum())


def require(name: str, got: object, expected: object) -> None:
    """Refuse to time what gives a wrong answer."""
    if not np.array_equal(np.asarray(got), np.asarray(expected)):
        raise ValueError(
            f"{name} must give the answer of the slow definition; got {got!r}; mend it, since its "
            "time is worth nothing."
        )
