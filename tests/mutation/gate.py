"""Change the core in every small way that mutmut knows: a test must fail, or the list say why not.

survivors.txt lists the mutants that no test kills, under the reason why each may live. In the
modules of `GATED` a survivor that is not listed fails, and so does a listed one that is no survivor
any more; to gate another module, work through what it prints and add it. A mutant is named by its
function and by the line as it was and as it became, which mutmut's own numbers, counted anew with
every edit, would not be.

    python tests/mutation/gate.py               # every module below: two hours on two cores
    python tests/mutation/gate.py _rows metrics # some of them
    python tests/mutation/gate.py --folder DIR  # kept, and gone on with the next time

Needs mutmut beside the extra `test`. Each module meets the tests that were written for it and for
what it serves, with 20 examples of a property, so that a mutant takes about a second: what lives
may be seen by farther tests, and is worth an exact one nearby. What is decorated (properties), what
stands outside of functions, and lines that are part of a message are not mutated.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
LIST: Final = Path(__file__).with_name("survivors.txt")
COPIED: Final = ("kvreclaim", "tests", "benchmarks", "docs", "README.md", "CHANGELOG.md")

_COUNTS: Final = ("kernels", "census", "packed", "pinned")
TESTS: Final = {
    "_bits": ("kernels", "census", "packed"),
    "_chance": ("bounds",),
    "_layout": (*_COUNTS, "checks"),
    "_lives": ("lifetimes",),
    "_measure": _COUNTS,
    "_moves": ("compaction_plan", "laws"),
    "_one_table": ("kernels", "census"),
    "_open_tables": _COUNTS,
    "_positions": ("masks", "lifetimes", "checks"),
    "_ratios": ("metrics", "steps", "vectors", "compaction_plan", "replicates"),
    "_rows": ("rows",),
    "_tally": (*_COUNTS, "laws"),
    "admission": ("admission_rules", "metrics", "checks"),
    "bounds": ("bounds", "checks"),
    "census": (*_COUNTS, "steps", "metrics", "checks"),
    "compaction": ("compaction_plan", "metrics", "checks"),
    "lifetimes": ("lifetimes", "checks"),
    "masks": ("masks", "checks"),
    "metrics": ("metrics", "pinned", "steps", "vectors"),
    "occupancy": (*_COUNTS, "checks"),
    "placement": ("placement", "checks"),
    "pool": ("census", "checks", "metrics", "runtimes"),
}
"""Modules of the core, and the files of tests, tests/test_*.py, that each is held to."""

GATED: Final = (
    "_bits",
    "_chance",
    "_layout",
    "_lives",
    "_measure",
    "_moves",
    "_one_table",
    "_open_tables",
    "_positions",
    "_ratios",
    "_rows",
    "_tally",
    "admission",
    "bounds",
    "census",
    "compaction",
    "lifetimes",
    "masks",
    "metrics",
    "occupancy",
    "placement",
    "pool",
)
"""Modules whose survivors have all been looked at; those of others are told, and fail nothing."""

# They list the functions of a file, and mutants are functions too; or they are slow for what a
# mutant would learn from them.
DESELECTED: Final = (
    "bounds.py::test_independent_eviction_against_a_census",
    "bounds.py::test_phase_average_of_every_mask_is_the_mean_over_all_phases",
    "bounds.py::test_random_eviction_against_a_census",
    "bounds.py::test_the_page_names_every_function_and_only_tests_that_exist",
    "census.py::test_every_layout_counts_the_same",
    "compaction_plan.py::test_a_million_tokens",
    "laws.py::test_every_mask_of_two_small_rows_keeps_the_order_of_the_three_reclaims",
    "lifetimes.py::test_memory_of_the_order_of_the_times",
    "masks.py::test_every_converter_is_listed",
)

SETTINGS: Final = """[mutmut]
source_paths = kvreclaim
only_mutate = kvreclaim/{module}.py
also_copy =
    benchmarks
    docs
    README.md
    CHANGELOG.md
do_not_mutate_patterns =
    ^\\s+f?"[^"]*"$
    ^\\s+(hint|rule|what)(: str)? ?= ?f?"[^"]*",?$
    ^\\s+rule, hint = "
pytest_add_cli_args =
    -p
    no:cacheprovider
{deselected}
pytest_add_cli_args_test_selection =
{tests}
timeout_constant = 5
use_git_change_detection = false
"""


def main() -> int:
    """Run the mutants of some modules, and return 1 where the list does not tell the survivors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("modules", nargs="*", metavar="module", help=", ".join(TESTS))
    parser.add_argument("--children", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, help="where to work, kept; else a temporary one")
    said = parser.parse_args()
    unknown = sorted(set(said.modules) - set(TESTS))
    if unknown:
        parser.error(
            f"no tests are told for {', '.join(unknown)}; write some of {', '.join(TESTS)}"
        )
    listed = read_list(LIST.read_text("utf-8"))
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        for module in said.modules or TESTS:
            folder = (said.folder or Path(temporary)) / module
            survivors, tried = survivors_of(module, folder, said.children)
            expected = {name for name in listed if name.startswith(f"{module}.")}
            new, gone = sorted(survivors - expected), sorted(expected - survivors)
            print(  # noqa: T201  # what a script finds
                f"{module}: {tried} mutants, {len(survivors)} survivors, {len(new)} not listed, "
                f"{len(gone)} listed that are none",
                *(f"  NEW  {name}" for name in new),
                *(f"  GONE {name}" for name in gone),
                sep="\n",
                flush=True,
            )
            if module in GATED:
                wrong += len(new) + len(gone)
    return 1 if wrong else 0


def read_list(text: str) -> dict[str, str]:
    """Return each listed mutant with its reason: the `#` lines above it, to the next empty line."""
    listed: dict[str, str] = {}
    for block in text.split("\n\n"):
        lines = block.strip().splitlines()
        reason = " ".join(line.removeprefix("#").strip() for line in lines if line[:1] == "#")
        for line in lines:
            if line[0] == "#":
                continue
            if not reason or line in listed:
                raise ValueError(f"a mutant must be listed once, with a reason; got {line!r}.")
            listed[line] = reason
    return listed


def survivors_of(module: str, folder: Path, children: int) -> tuple[set[str], int]:
    """Return the names of the mutants of a module that live, and how many were made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.rmtree(folder / name, ignore_errors=True)
            shutil.copytree(ROOT / name, folder / name, ignore=_ignored)
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    # mutmut copies what is not there yet, and no later edit of it.
    for copied in ("tests", "benchmarks", "docs"):
        shutil.rmtree(folder / "mutants" / copied, ignore_errors=True)
    (folder / "setup.cfg").write_text(
        SETTINGS.format(
            module=module,
            deselected="\n".join(f"    --deselect=tests/test_{test}" for test in DESELECTED),
            tests="\n".join(f"    tests/test_{test}.py" for test in TESTS[module]),
        ),
        "utf-8",
    )
    _forget_survivors(folder, module)
    # mutmut draws on the terminal as it goes; that is worth reading only where it fails.
    done = _mutmut(folder, "run", "--max-children", str(children))
    codes = _codes(folder, module)
    if done.returncode or not codes or None in codes.values():
        raise SystemExit(f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}\nmutmut failed on {module}")
    alive = [name for name, code in codes.items() if code in (0, _NO_TESTS)]
    return {_told(module, name, _mutmut(folder, "show", name).stdout) for name in alive}, len(codes)


_NO_TESTS: Final = 33  # mutmut's code for a function that no test calls


def _mutmut(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mutmut", *arguments],
        cwd=folder,
        env={**os.environ, "HYPOTHESIS_PROFILE": "few"},
        capture_output=True,
        text=True,
        check=False,
    )


def _meta(folder: Path, module: str) -> Path:
    return folder / "mutants" / "kvreclaim" / f"{module}.py.meta"


def _codes(folder: Path, module: str) -> dict[str, int | None]:
    if not _meta(folder, module).exists():
        return {}
    codes: dict[str, int | None] = json.loads(_meta(folder, module).read_text())["exit_code_by_key"]
    return codes


def _forget_survivors(folder: Path, module: str) -> None:
    """Have survivors of an earlier run tried again: a new test may kill them."""
    codes = _codes(folder, module)
    if codes:
        known = json.loads(_meta(folder, module).read_text())
        known["exit_code_by_key"] = {
            name: None if code in (0, _NO_TESTS) else code for name, code in codes.items()
        }
        _meta(folder, module).write_text(json.dumps(known))
        # Which test calls which function is found anew, for new tests.
        (folder / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)


def _told(module: str, name: str, diff: str) -> str:
    """Return `module.function: line as it was => line as it became`."""
    function = name.rpartition(".")[2].rpartition("__mutmut_")[0]
    function = function.removeprefix("x_").removeprefix("xǁ").replace("ǁ", ".")
    lines = diff.splitlines()
    was, became = (
        " ".join(
            line[1:].strip()
            for line in lines
            if line.startswith(sign) and not line.startswith(sign * 3)
        )
        for sign in "-+"
    )
    return f"{module}.{function}: {was} => {became}"


def _ignored(_: str, names: list[str]) -> set[str]:
    return {name for name in names if name in ("__pycache__", "mutants") or name.endswith(".pyc")}


if __name__ == "__main__":
    sys.exit(main())
