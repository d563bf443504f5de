"""Small calls, which harnesses make by the hundred thousand, and the import."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import numpy as np

import kvreclaim
from benchmarks.pages import Table
from benchmarks.speed import workload as work
from benchmarks.speed import yardsticks
from benchmarks.speed.clock import Call, measure
from benchmarks.speed.results import Section, number
from kvreclaim import BlockPool, Census, merge, report, take_census

ROUNDS: Final = 15
STACK: Final = 256
NEEDED: Final = "import numpy, attrs"
IMPORTS: Final = (
    "import kvreclaim",
    "from kvreclaim import take_census",
    "from kvreclaim import take_census, report",
    "from kvreclaim import *",
)


def calls() -> dict[str, Call]:
    """Return the small calls on one mask of 4,096 tokens, by name, and the naive line on it."""
    keep, pool = work.half(work.SHORT), BlockPool(work.BLOCK)
    packing = pool.replace(compactor="pack")
    odd, stack = keep[:-7], work.half(STACK, work.SHORT)
    many, rows = work.apart(work.BLOCK), [work.half(work.SHORT, seed=seed) for seed in range(STACK)]
    census = take_census(keep, pool)
    parts = [census] * STACK
    saved = census.to_dict()
    yardsticks.require(
        "the naive line", yardsticks.naive_dead(keep, work.BLOCK), census.num_freed_blocks
    )
    return {
        "naive": lambda: int((~keep.reshape(-1, 16).any(-1)).sum()),
        "take_census": lambda: take_census(keep, pool),
        "take_census, 4,089 tokens": lambda: take_census(odd, pool),
        "take_census, a pool that packs": lambda: take_census(keep, packing),
        "take_census, its pool made anew": lambda: take_census(keep, work.BLOCK),
        "six metrics of a census": lambda: work.six(census),
        "Census + Census": lambda: census + census,
        "report of a census": lambda: report(census),
        "report of a mask": lambda: report(keep, pool),
        "Census.from_dict": lambda: Census.from_dict(saved),
        "merge of 256 censuses": lambda: merge(parts),
        "256 calls": lambda: [take_census(row, many) for row in rows],
        "one call of 256 rows": lambda: take_census(stack, many),
    }


def section(scale: work.Scale) -> Section:
    """Return small calls in units of the naive line, and the import against what it needs."""
    every = calls()
    times = measure(every, rounds=ROUNDS)
    ratios = {name: times.ratio(name, "naive") for name in every if name != "naive"}
    table = Table(
        title="Small calls",
        text="One mask of 4,096 tokens, B = 16, its BlockPool made once: in units of "
        "`(~keep.reshape(-1, 16).any(-1)).sum()` on it.",
        header=("call", "naive lines"),
        rows=tuple((name, number(ratio)) for name, ratio in ratios.items()),
    )
    imported = import_ratios(scale.processes)
    reached = {
        "small census": ratios["take_census"],
        "small six": ratios["six metrics of a census"],
        "small add": ratios["Census + Census"],
        "small report": ratios["report of a mask"],
        "stack": times.ratio("256 calls", "one call of 256 rows"),
        "import": imported["import kvreclaim"],
        "import names": imported["from kvreclaim import take_census, report"],
    }
    imports = Table(
        title="Imports",
        text=f"CPU time in fresh processes, against `{NEEDED}`; the start of the interpreter is "
        "left out, and bytecode is there.",
        header=("statement", "x"),
        rows=tuple((f"`{code}`", number(ratio)) for code, ratio in imported.items()),
    )
    return Section(tables=(table, imports), reached=reached)


def import_ratios(processes: int) -> dict[str, float]:
    """Return the CPU time of imports over that of what the package needs, in fresh processes."""
    root = str(Path(kvreclaim.__file__).parents[1])
    every = (NEEDED, *IMPORTS)
    found: dict[str, list[int]] = {code: [] for code in every}
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, PYTHONPYCACHEPREFIX=folder, PYTHONPATH=root)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(processes + 1):  # the first of each writes the bytecode
            for i in rng.permutation(len(every)):
                line = (
                    "import time; start = time.process_time_ns()\n"
                    f"{every[i]}\n"
                    "print(time.process_time_ns() - start)"
                )
                done = subprocess.run(
                    [sys.executable, "-c", line],
                    check=True,
                    capture_output=True,
                    env=environment,
                    cwd=root,
                )
                found[every[i]].append(int(done.stdout))
    medians = {code: statistics.median(times[1:]) for code, times in found.items()}
    return {code: medians[code] / medians[NEEDED] for code in IMPORTS}
