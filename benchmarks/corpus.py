"""How fast masks larger than memory are counted: `python benchmarks/corpus.py`.

Two tables. A corpus on two worker processes of dask: one chunk of random tokens, which each worker
is sent once, stands for every chunk of a lazy array. Files: counted by one process, by two, and by
two threads. What is compared takes turns; ratios are medians over the turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvreclaim import BlockPool, Census, merge, take_census
from kvreclaim.adapters import dask as adapter
from kvreclaim.files import census_of_file

MIB: Final = 1 << 20
AXES: Final = "blht"
POOL: Final = BlockPool(16)
TABLE: Final = (32, 8, 1 << 17)  # layers, kv heads, tokens: 32 MiB
WORKERS: Final = 2
PARTS: Final = 4  # in which tables are cut
MMAP_THRESHOLD: Final = 32 * MIB  # the most that glibc takes


class Run(NamedTuple):
    """Something to be measured."""

    what: Callable[[], object]
    chunks: int = 1  # that it counts
    cpu: Callable[[], float] = time.process_time  # of the processes that do it


class Spent(NamedTuple):
    """Seconds for a chunk."""

    wall: float
    cpu: float


def random_keep(tables: int) -> NDArray[np.bool_]:
    """Return a mask of which an eighth stays."""
    rng = np.random.default_rng(0)
    size = tables * int(np.prod(TABLE))
    a, b, c = (np.frombuffer(rng.bytes(size // 8), np.uint8) for _ in range(3))
    return np.unpackbits(a & b & c).view(np.bool_).reshape(tables, *TABLE)


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had (Linux)."""
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
    )
    return int(line.split()[1]) * 1024


def spent(run: Run) -> Spent:
    """Return what a run takes for each chunk that it counts."""
    cpu_before, before = run.cpu(), time.perf_counter()
    run.what()
    after = time.perf_counter()
    return Spent((after - before) / run.chunks, (run.cpu() - cpu_before) / run.chunks)


def part_of(
    keep: NDArray[np.bool_], parts: int, block_id: tuple[int, ...] = (0,)
) -> NDArray[np.bool_]:
    """Return a chunk that is there, or a part of its tokens."""
    step = keep.shape[-1] // parts
    return keep[..., block_id[-1] * step : (block_id[-1] + 1) * step]


def count_again(keep: NDArray[np.bool_], times: int) -> None:
    """Count a mask in memory."""
    for _ in range(times):
        take_census(keep, POOL, axes=AXES)


def corpus(num_tokens: int, tables: int, rounds: int, *, threshold: int | None) -> None:
    """Count a corpus on two workers, and its chunk in this process, in turns."""
    import dask
    import dask.array as da
    from distributed import Client, LocalCluster

    keep = random_keep(tables)
    expected = take_census(keep, POOL, axes=AXES)
    in_round = -(-num_tokens // keep.size)
    each = -(-in_round // WORKERS)
    with (
        dask.config.set({"distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": threshold}),
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(WORKERS)
        # Sent to each worker once: the tasks carry its name.
        there = client.scatter(keep, broadcast=True, hash=False)
        whole, cut = (
            da.map_blocks(
                part_of,
                keep=there,
                parts=parts,
                chunks=((tables,) * in_round, *TABLE[:-1], (TABLE[-1] // parts,) * parts),
                dtype=bool,
                meta=np.empty((0,) * keep.ndim, bool),
            )
            for parts in (1, PARTS)
        )

        def cpu_of_workers() -> float:
            return float(sum(client.run(time.process_time).values()))

        def count(some: Any) -> None:  # noqa: ANN401  # an array of dask
            if adapter.take_census(some, POOL, axes=AXES) != merge([expected] * in_round):
                raise AssertionError("the corpus has another census than its chunks")

        def in_memory() -> None:
            count_again(keep, each)

        def at_once() -> None:
            client.gather(
                [
                    client.submit(count_again, there, each, workers=[worker], pure=False)
                    for worker in client.scheduler_info()["workers"]
                ]
            )

        runs = {
            "in memory, this process": Run(in_memory, each),
            "in memory, both workers at once": Run(at_once, each * WORKERS, cpu_of_workers),
            "chunks of whole tables": Run(partial(count, whole), in_round, cpu_of_workers),
            f"tables cut in {PARTS}": Run(partial(count, cut), in_round, cpu_of_workers),
        }
        for run in runs.values():
            run.what()
        turns = [{name: spent(run) for name, run in runs.items()} for _ in range(rounds)]
        peaks = sorted(client.run(peak_memory).values())
    print(
        f"{in_round * keep.size:.3g} tokens in chunks of {keep.size / MIB:.0f} MiB, "
        f"{WORKERS} workers, "
        + (f"MALLOC_MMAP_THRESHOLD_={threshold}" if threshold else "as dask starts them")
    )
    print(f"{'':34} {'tokens/s':>9} {'of both at once':>16} {'CPU s/Gtoken':>13}")
    both = "in memory, both workers at once"
    for name in runs:
        speed = median(keep.size / turn[name].wall for turn in turns)
        share = median(turn[both].wall / turn[name].wall for turn in turns)
        cpu = median(turn[name].cpu / keep.size * 1e9 for turn in turns)
        print(f"{name:34} {speed:9.2e} {share:15.2f}x {cpu:13.2f}")
    print("peak memory of the workers:", *(f"{peak / MIB:.0f} MiB" for peak in peaks), "\n")


def files(num_files: int, tables: int, rounds: int) -> None:
    """Count files in one process, in two, and in two threads, in turns."""
    count = partial(census_of_file, pool=POOL, axes=AXES)
    with tempfile.TemporaryDirectory() as folder:
        keep = random_keep(tables)
        paths = [f"{folder}/{number}.npy" for number in range(num_files)]
        for path in paths:
            np.save(path, keep)
        expected = merge([take_census(keep, POOL, axes=AXES)] * num_files)

        def run(
            mapped: Callable[[Callable[[str], Census], Iterable[str]], Iterable[Census]],
        ) -> None:
            if merge(mapped(count, paths)) != expected:
                raise AssertionError("the files have another census than their mask")

        with (
            ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as processes,
            ThreadPoolExecutor(WORKERS) as threads,
        ):
            ways: dict[str, Callable[[], None]] = {
                "one process": partial(run, map),
                "two processes": partial(run, processes.map),
                "two threads": partial(run, threads.map),
            }
            starting = spent(Run(ways["two processes"])).wall
            for way in ways.values():
                way()
            turns = [
                {name: spent(Run(way)).wall for name, way in ways.items()} for _ in range(rounds)
            ]
    print(f"{num_files} files of {keep.size / MIB:.0f} MiB")
    print(f"{'':34} {'seconds':>9} {'tokens/s':>9} {'faster than one':>16}")
    for name in ways:
        seconds = median(turn[name] for turn in turns)
        faster = median(turn["one process"] / turn[name] for turn in turns)
        print(f"{name:34} {seconds:9.3f} {num_files * keep.size / seconds:9.2e} {faster:15.2f}x")
    print(f"{'two processes, their start included':34} {starting:8.3f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=float, default=1e10, help="counted in a turn (1e10)")
    parser.add_argument("--tables", type=int, default=8, help="in a chunk, 32 MiB each (8)")
    parser.add_argument("--files", type=int, default=8, help="number of files (8)")
    parser.add_argument("--rounds", type=int, default=7, help="turns (7)")
    options = parser.parse_args()
    # In this order: what one cluster writes into the environment, the next one keeps.
    for threshold in (None, MMAP_THRESHOLD):
        corpus(int(options.tokens), options.tables, options.rounds, threshold=threshold)
    files(options.files, 4, options.rounds)


if __name__ == "__main__":
    main()
