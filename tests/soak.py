"""Reports without end: no disagreement with the oracle, and no growth of memory.

    python tests/soak.py threads --minutes 20 --threads 4
    python tests/soak.py processes --minutes 20 --processes 8

`threads`: one process computes reports of random masks under random pools, and each figure is
compared with the oracle's. `processes`: readers count two shared files, .npz and .npy, while one
process writes them whole, again and again; each census must be that of a mask that was written.

Memory may grow by `MAX_GROWTH` from the first quarter of the time, the warm-up, to the last: the
workspaces of the threads come and go between the samples, a piece of 1 MiB with its temporaries
each. What leaks 1 KiB a report passes that in 20 minutes at 40 reports a second, and several
hundred are made. Exit code 1 tells of a failure.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from fractions import Fraction
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import oracle
from numpy.typing import NDArray

from kvreclaim import BlockPool, Report, census_of_file, load_masks, report, save_masks

MAX_GROWTH: Final = 32 << 20
FIGURES: Final = (
    "logical_saving",
    "physical_reclaim",
    "compacted_reclaim",
    "packed_reclaim",
    "reclaim_efficiency",
    "fragmentation",
    "memory_waste",
    "capacity_gain",
    "moved_tokens_per_block",
    "slots_per_move",
    "decode_steps",
    "effective_tokens_per_block",
    "effective_rows",
)
COPIES: Final = 5_000  # of one small mask: a large one whose counts are known


def main() -> int:
    """Soak, and return 1 for a failure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kind", choices=["threads", "processes"])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    said = parser.parse_args()
    seconds = 60 * said.minutes
    say(f"{said.kind}: seed {said.seed}, {said.minutes:g} minutes")
    if said.kind == "threads":
        failures = soak_threads(said.threads, seconds, said.seed)
    else:
        failures = soak_processes(said.processes, seconds, said.seed)
    for failure in failures:
        say(f"FAILED: {failure}")
    return 1 if failures else 0


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)  # noqa: T201  # what a script finds


# --- Memory ---


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Memory:
    """The most that was resident in each quarter of the time."""

    def __init__(self, seconds: float) -> None:
        self._began, self._seconds = time.monotonic(), seconds
        self.most = [0, 0, 0, 0]

    def sample(self) -> bool:
        """Look once, and return whether time is left."""
        share = (time.monotonic() - self._began) / self._seconds
        quarter = min(int(4 * share), 3)
        self.most[quarter] = max(self.most[quarter], resident())
        return share < 1

    def told(self) -> str:
        """Return the four figures."""
        return "resident, quarter by quarter: " + ", ".join(
            f"{most / 2**20:.1f} MiB" for most in self.most
        )

    def failures(self) -> list[str]:
        """Return what is wrong with them."""
        growth = self.most[3] - self.most[0]
        return [f"memory grew by {growth / 2**20:.1f} MiB"] if growth > MAX_GROWTH else []


# --- Random masks under random pools ---


class Case(NamedTuple):
    """A mask, its pool, and what the oracle counts."""

    keep: NDArray[np.bool_]
    pool: BlockPool
    said: dict[str, Any]  # axes, lengths, offset
    twin: oracle.Census


def random_case(rng: np.random.Generator) -> Case:
    """Return a small mask of four axes in any order, ragged, behind offsets, under any pool."""
    pool = random_pool(rng)
    letters = "".join(rng.permutation(list("blht")))
    sizes = {"b": 2, "l": int(rng.integers(1, 3)), "h": int(rng.integers(1, 4))}
    sizes["t"] = int(rng.integers(1, 70))
    outer = [letter for letter in letters if letter != "t" and letter not in pool.shared_axes]
    shape = tuple(sizes[letter] for letter in outer)
    lengths = rng.integers(0, sizes["t"] + 1, shape)
    offset = rng.integers(0, pool.block_size, shape)
    share = rng.choice([0.02, 0.2, 0.5, 0.9])
    keep = rng.random([sizes[letter] for letter in letters]) < share
    across = [sizes[letter] if letter in outer else 1 for letter in letters]
    along = [-1 if letter == "t" else 1 for letter in letters]
    keep &= np.arange(sizes["t"]).reshape(along) < lengths.reshape(across)
    said = {"axes": letters, "lengths": lengths, "offset": offset}
    twin = oracle.census(
        keep.tolist(), pool, axes=letters, lengths=lengths.tolist(), offset=offset.tolist()
    )
    return Case(keep, pool, said, twin)


def random_pool(rng: np.random.Generator) -> BlockPool:
    """Return a pool under any rule of freeing, with any compactor that goes with it."""
    frees = str(rng.choice(list(oracle.LEGAL_COMPACTORS)))
    return BlockPool(
        int(rng.choice([1, 3, 4, 8, 12, 16, 32])),
        shared_axes=str(rng.choice(["", "h", "l", "lh"])),
        frees=frees,
        open_tail=bool(rng.integers(2)),
        compactor=str(rng.choice(oracle.LEGAL_COMPACTORS[frees])),
        entry_bytes=512,
    )


def repeated(case: Case, copies: int) -> Case:
    """Return the mask many times over along its sequences, and its counts as many times."""
    letters = case.said["axes"]
    outer = [letter for letter in letters if letter != "t" and letter not in case.pool.shared_axes]
    said = {"axes": letters}
    for name in ("lengths", "offset"):
        said[name] = np.concatenate([case.said[name]] * copies, axis=outer.index("b"))
    keep = np.concatenate([case.keep] * copies, axis=letters.index("b"))
    twin: oracle.Census = {}
    for name, value in case.twin.items():
        if name in ("rows_per_table", "pool"):
            twin[name] = value
        elif isinstance(value, tuple | list):
            twin[name] = type(value)(copies * number for number in value)
        elif isinstance(value, int):
            twin[name] = copies * value
        else:
            twin[name] = value
    return Case(keep, case.pool, said, twin)


def disagreements(case: Case) -> Iterator[str]:
    """Yield each field of the census and each figure of the report that the oracle tells apart."""
    found = report(case.keep, case.pool, **case.said)
    census = found.census
    for name, expected in case.twin.items():
        if name != "pool" and getattr(census, name) != expected:
            yield f"{name} is {getattr(census, name)}, the oracle's {expected}"
    for name in FIGURES:
        quotient: Fraction | float | None = getattr(oracle, name)(case.twin)
        figure = getattr(found, name)
        if math.isnan(figure) if quotient is None else figure == float(quotient):
            continue
        yield f"{name} is {figure}, the oracle's {quotient}"
    if Report.from_dict(found.to_dict()) != found or not str(found):
        yield "a report is not what its dict says"


# --- One process ---


def soak_threads(threads: int, seconds: float, seed: int) -> list[str]:
    """Compute reports in some threads at once, and return what went wrong."""
    stop = threading.Event()
    failures: list[str] = []
    numbers = [0] * threads

    def work(thread: int) -> None:
        rng = np.random.default_rng([seed, thread])
        try:
            while not stop.is_set():
                case = random_case(rng)
                if numbers[thread] % 200 == thread:
                    case = repeated(case, COPIES)
                found = list(disagreements(case))
                if found:
                    failures.append(f"{'; '.join(found)}; {case.pool}, {case.said}")
                    stop.set()
                numbers[thread] += 1
        except Exception:  # noqa: BLE001  # whatever it is, it ends the soak and is told
            failures.append(traceback.format_exc())
            stop.set()

    memory = Memory(seconds)
    running = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for thread in running:
        thread.start()
    began = told = time.monotonic()
    while memory.sample() and not stop.wait(0.05):
        now = time.monotonic()
        if now - told >= 60:
            told = now
            say(f"{now - began:5.0f} s: {sum(numbers)} reports; {memory.told()}")
    stop.set()
    for thread in running:
        thread.join()
    say(f"{sum(numbers)} reports; {memory.told()}")
    return failures or memory.failures()


# --- Several processes ---


class Version(NamedTuple):
    """A mask that is written, and what its census must be."""

    keep: NDArray[np.bool_]
    twin: oracle.Census


POOL: Final = BlockPool(16, shared_axes="h")


def versions(seed: int) -> list[Version]:
    """Return masks of different sizes; each is small, many times over."""
    found = []
    for number in range(6):
        rng = np.random.default_rng([seed, number])
        keep = rng.random((2, 3, 20 + 9 * number)) < 0.1
        copies = 100 * 4**number % 1023
        case = Case(
            keep,
            POOL,
            {"axes": "bht", "lengths": np.full(2, keep.shape[2]), "offset": np.zeros(2, int)},
            oracle.census(keep.tolist(), POOL, axes="bht"),
        )
        many = repeated(case, copies)
        found.append(Version(many.keep, many.twin))
    return found


def soak_processes(processes: int, seconds: float, seed: int) -> list[str]:
    """Read shared files in some processes while they are written, and return what went wrong."""
    written = versions(seed)
    context = multiprocessing.get_context("spawn")
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, written[0])
        ends, readers = [], []
        for _ in range(processes):
            here, there = context.Pipe(duplex=False)
            reader = context.Process(target=read, args=(there, folder, seed, seconds))
            reader.start()
            there.close()
            ends.append(here)
            readers.append(reader)
        began = told = time.monotonic()
        writes = 0
        rng = np.random.default_rng(seed)
        while any(reader.is_alive() for reader in readers):
            write(folder, written[int(rng.integers(len(written)))])
            writes += 1
            now = time.monotonic()
            if now - told >= 60:
                told = now
                say(f"{now - began:5.0f} s: written {writes} times")
            if wait(ends, timeout=0.01) and not failures:
                for end in ends:
                    failures += _received(end)
        for end, reader in zip(ends, readers, strict=True):
            reader.join()
            failures += _received(end)
            if reader.exitcode:
                failures.append(f"a reader ended with {reader.exitcode}")
    say(f"written {writes} times")
    return failures


def _received(end: Connection) -> list[str]:
    """Return what a reader has found wrong so far, and print what else it tells."""
    wrong = []
    try:
        while end.poll():
            what, text = end.recv()
            if what == "wrong":
                wrong.append(text)
            else:
                say(text)
    except EOFError:
        pass
    return wrong


def write(folder: Path, version: Version) -> None:
    """Write both files, each whole."""
    save_masks(folder / "shared.npz", version.keep, axes="bht")
    new = folder / "new.npy"
    np.save(new, version.keep)
    new.replace(folder / "shared.npy")


def read(end: Connection, folder: Path, seed: int, seconds: float) -> None:
    """Count the files until time is up; each time they hold some version, whole."""
    expected = [version.twin for version in versions(seed)]
    memory = Memory(seconds)
    number = 0
    try:
        while memory.sample():
            path = folder / ("shared.npz" if number % 2 else "shared.npy")
            if number % 3:
                census = census_of_file(path, POOL, axes="bht")
            else:
                saved = load_masks(path, axes="bht")
                census = report(saved.keep, POOL, axes="bht").census
            if not any(
                all(
                    getattr(census, name) == value for name, value in twin.items() if name != "pool"
                )
                for twin in expected
            ):
                end.send(("wrong", f"{path.name} gave {census}, which was never written"))
                return
            number += 1
        end.send(("told", f"{number} reads; {memory.told()}"))
        for failure in memory.failures():
            end.send(("wrong", failure))
    except Exception:  # noqa: BLE001  # whatever it is, it ends the soak and is told
        end.send(("wrong", traceback.format_exc()))


if __name__ == "__main__":
    sys.exit(main())
