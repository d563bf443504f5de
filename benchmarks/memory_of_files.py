"""How much memory it takes to count a mask in a file: `python benchmarks/memory_of_files.py`.

Each file is written, and counted, in a process of its own; the peak of resident memory of the
second is printed beside the size of the mask, a byte a token. ``baseline`` counts eight tokens.
"""

from __future__ import annotations

import argparse
import math
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

MIB: Final = 1 << 20


class Mask(NamedTuple):
    """A mask to count."""

    shape: tuple[int, ...]
    axes: str
    suffix: str = "npy"
    shared_axes: str = "lh"


def masks(size: int) -> dict[str, Mask]:
    """Return masks of `size` tokens each, but for the first and the last, by name."""
    return {
        "baseline": Mask((8,), "t"),
        "one sequence": Mask((size,), "t"),
        "one sequence, one head": Mask((1, size), "ht"),
        "rows that share nothing": Mask((size >> 17, 1 << 17), "bt"),
        "32 layers x 8 heads, one table": Mask((32, 8, size >> 8), "lht"),
        "32 layers x 8 heads, tables of a layer": Mask((32, 8, size >> 8), "lht", "npy", "h"),
        "sequences of 64 tokens": Mask((size >> 6, 64), "bt"),
        "heads before sequences": Mask((8, size >> 13, 1 << 10), "hbt"),
        "packed bits": Mask((32, 8, size >> 8), "lht", "packed"),
        "deflated, 2 GB in 2 MB": Mask((32, 8, 2 * size >> 8), "lht", "npz"),
    }


def write(path: Path, mask: Mask) -> None:
    """Write a mask of which every other 100 tokens stay, or none in an archive that is deflated."""
    import numpy as np

    pattern = np.arange(1 << 23) // 100 % 2 == 0
    total = math.prod(mask.shape)
    if mask.suffix == "packed":
        shape, pattern = (*mask.shape[:-1], mask.shape[-1] // 8), np.packbits(pattern)
        total //= 8
    else:
        shape = mask.shape
    header = {"descr": pattern.dtype.str, "fortran_order": False, "shape": shape}
    if mask.suffix == "npy":
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, total, len(pattern)):
                file.write(pattern[: total - start].data)
        return
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        name = "bits.npy" if mask.suffix == "packed" else "keep.npy"
        with archive.open(name, "w", force_zip64=True) as file:
            np.lib.format.write_array_header_1_0(file, header)
            empty = np.zeros_like(pattern)  # what compresses best
            for start in range(0, total, len(pattern)):
                file.write((pattern if mask.suffix == "packed" else empty)[: total - start].data)
        if mask.suffix == "packed":
            with archive.open("num_tokens.npy", "w") as file:
                np.lib.format.write_array(file, np.array(mask.shape[-1]))


def count(path: Path, mask: Mask) -> None:
    """Count the mask in a file and print the peak of resident memory in bytes, and seconds."""
    from kvreclaim import BlockPool
    from kvreclaim.files import census_of_file

    start = time.perf_counter()
    census_of_file(path, BlockPool(16, shared_axes=mask.shared_axes), axes=mask.axes)
    seconds = time.perf_counter() - start
    unit = 1 if sys.platform == "darwin" else 1024
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, seconds)


def main() -> None:
    """Write, count and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="size of a mask (1024)")
    parser.add_argument("--step", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    every = masks(options.mib * MIB)
    if options.step:
        step, name, path = options.step
        {"write": write, "count": count}[step](Path(path), every[name])
        return
    print(f"{'':40} {'mask':>10} {'file':>9} {'peak':>7}  peak/mask  seconds")
    for name, mask in every.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "mask.npy" if mask.suffix == "npy" else "mask.npz")
            command = [sys.executable, __file__, "--mib", str(options.mib), "--step"]
            # This process imports nothing large: a child begins with the peak of its parent.
            subprocess.run([*command, "write", name, str(path)], check=True)
            done = subprocess.run(
                [*command, "count", name, str(path)], check=True, capture_output=True, text=True
            )
            size, file_size = math.prod(mask.shape), path.stat().st_size
        peak, seconds = map(float, done.stdout.split())
        print(
            f"{name:40} {size / 1e6:7.0f} MB {file_size / 1e6:6.1f} MB {peak / 1e6:4.0f} MB "
            f"{peak / size:10.3f} {seconds:8.2f}"
        )


if __name__ == "__main__":
    main()
