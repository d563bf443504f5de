"""Tables of what comes back: by block size, by layout, beside closed forms, and to a server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.evidence.cells import (
    LAYOUTS,
    NAMES,
    model_name,
    pair,
    plain,
    rounded,
    small,
)
from benchmarks.evidence.found import HALF, Evidence, over_documents
from benchmarks.evidence.settings import BLOCK_SIZE, BLOCK_SIZES, RATIOS, REQUEST_TOKENS, STATES
from benchmarks.evidence.shape import LAGS, Lie, losses_of
from benchmarks.evidence.tables import AdmissionRow, Context
from benchmarks.pages import Table
from kvreclaim import effective_rows, effective_tokens_per_block, merge

FORMS: Final = {
    "independent": "each token by itself, q^B",
    "outside": "scatter outside of the window",
    "markov": "runs of the same mean length",
    "clustered": "clusters of kernel or chunk",
}
"""What closed forms are called, by the fields of `shape.ClosedForms`."""


def block_sizes(evidence: Evidence) -> tuple[Table, ...]:
    """Return reclaim over the block size, for one table and for one per head."""
    return tuple(
        Table(
            title=f"Block sizes, {LAYOUTS[tables]}, {model_name(model)}",
            text="Reclaim in place / packed, one half retained; means over documents.",
            header=("policy", *(f"B = {size}" for size in BLOCK_SIZES)),
            rows=tuple(
                (
                    NAMES[policy],
                    *(pair(*freed(evidence, model, policy, tables, size)) for size in BLOCK_SIZES),
                )
                for policy in evidence.policies(model)
            ),
        )
        for model in evidence.models
        for tables in ("all", "head")
    )


def deeper(evidence: Evidence) -> tuple[Table, ...]:
    """Return reclaim at every share, for one table."""
    return tuple(
        Table(
            title=f"Every share, one for all, {model_name(model)}",
            text=f"Reclaim in place / packed at B = {BLOCK_SIZE}, by the share that a policy is "
            "told to retain; means over documents.",
            header=("policy", *(f"{ratio:g}" for ratio in RATIOS)),
            rows=tuple(
                (
                    NAMES[policy],
                    *(
                        pair(
                            over_documents(evidence.at(model, policy, ratio, "in place all")),
                            over_documents(evidence.at(model, policy, ratio, "packed all")),
                        )
                        for ratio in RATIOS
                    ),
                )
                for policy in evidence.policies(model)
            ),
        )
        for model in evidence.models
    )


def freed(
    evidence: Evidence, model: str, policy: str, tables: str, block_size: int
) -> tuple[float, float]:
    """Return reclaim at one half, in place and packed: means over documents."""
    some = evidence.halves.get((model, policy, tables, block_size), [])
    contexts = [Context(row.model, row.document, row.tokens) for row in some]
    in_place = [row.physical_reclaim for row in some]
    packed = [row.packed_reclaim for row in some]
    return (
        over_documents(dict(zip(contexts, in_place, strict=True))),
        over_documents(dict(zip(contexts, packed, strict=True))),
    )


def _mean(lies: dict[Context, Lie], figure: Callable[[Lie], float]) -> float:
    return over_documents({context: figure(lie) for context, lie in lies.items()})


def _lies(evidence: Evidence, model: str) -> Iterator[tuple[str, dict[Context, Lie]]]:
    for policy in evidence.policies(model):
        if (model, policy) in evidence.lies:
            yield policy, evidence.lies[model, policy]


def sharing(evidence: Evidence) -> tuple[Table, ...]:
    """Return where the evicted entries went, under each layout."""
    return tuple(
        Table(
            title=f"Where the savings went, {model_name(model)}",
            text=(
                "Shares of all entries, one half retained, B = 16, means over documents: what "
                "comes back in place, what is lost to the size of a block (dead in every row of "
                "the table, in a block that stays), and what is lost to sharing (another row of "
                "the table keeps the slot; never where each row has a table). In each layout they "
                "add up to what was evicted. Behind the slash: packed, a share of blocks. The "
                "last column says as how many independent rows all of them behave, over all "
                "contexts together."
            ),
            header=(
                "policy",
                "evicted",
                *(f"{LAYOUTS[tables]}: {what}" for tables in LAYOUTS for what in _parts(tables)),
                "effective rows",
            ),
            rows=tuple(
                (NAMES[policy], *_losses(evidence, model, policy, lies))
                for policy, lies in _lies(evidence, model)
            ),
        )
        for model in evidence.models
    )


def _parts(tables: str) -> tuple[str, ...]:
    parts = ("in place / packed", "block size", "sharing")
    return parts[:2] if tables == "head" else parts


def _losses(evidence: Evidence, model: str, policy: str, lies: dict[Context, Lie]) -> Iterator[str]:
    yield plain(_mean(lies, lambda lie: lie.whole.evicted))
    for tables in LAYOUTS:
        reclaimed, *lost = losses(lies, tables)
        yield pair(reclaimed, freed(evidence, model, policy, tables, BLOCK_SIZE)[1])
        yield from map(plain, lost[: len(_parts(tables)) - 1])
    yield rounded(effective_rows(merge(lie.censuses["all"] for lie in lies.values())))


def losses(lies: dict[Context, Lie], tables: str) -> tuple[float, float, float]:
    """Return what came free, what block size lost and what sharing lost: means over documents."""
    each = {context: losses_of(lie.censuses[tables]) for context, lie in lies.items()}
    reclaimed, granularity, unshared = (
        over_documents({context: one[place] for context, one in each.items()}) for place in range(3)
    )
    return reclaimed, granularity, unshared


def shapes(evidence: Evidence) -> tuple[Table, ...]:
    """Return how evicted tokens lie, and what closed forms make of it."""
    return tuple(
        table
        for model in evidence.models
        for table in (_structure(evidence, model), _forms(evidence, model))
    )


def _structure(evidence: Evidence, model: str) -> Table:
    lags = tuple(f"lag {lag}" for lag in LAGS)
    return Table(
        title=f"Runs, correlations and agreement, {model_name(model)}",
        text=(
            "One half retained; means over documents. Run: mean length of a run of evicted tokens, "
            "and what it is where each token is evicted by itself. Lag: correlation of the evicted "
            "indicator with itself, so many tokens on, mean over rows. *Older*: the same without "
            "the last tokens that the policy always keeps. Block: as many independent tokens as a "
            "block of 16 behaves like, one table per head. Rows: as many independent rows as those "
            "of a layer, and all, behave like. Phi: correlation of two rows' masks, of one layer "
            "and of two layers."
        ),
        header=(
            "policy",
            "run",
            "by itself",
            *lags,
            "older: run",
            "older: by itself",
            *(f"older: {lag}" for lag in lags),
            "block",
            "rows, layer",
            "rows, all",
            "phi, layer",
            "phi, layers",
        ),
        rows=tuple(
            (NAMES[policy], *_structure_cells(lies)) for policy, lies in _lies(evidence, model)
        ),
    )


def _structure_cells(lies: dict[Context, Lie]) -> Iterator[str]:
    for part in (
        {context: lie.whole for context, lie in lies.items()},
        {context: lie.older for context, lie in lies.items()},
    ):
        yield rounded(over_documents({context: one.run for context, one in part.items()}))
        yield rounded(
            over_documents({context: one.independent_run for context, one in part.items()})
        )
        for place in range(len(LAGS)):
            yield plain(
                over_documents({context: one.correlations[place] for context, one in part.items()})
            )
    merged = {name: merge(lie.censuses[name] for lie in lies.values()) for name in LAYOUTS}
    yield rounded(effective_tokens_per_block(merged["head"]))
    yield rounded(effective_rows(merged["layer"]))
    yield rounded(effective_rows(merged["all"]))
    yield plain(_mean(lies, lambda lie: lie.agreement.within))
    yield plain(_mean(lies, lambda lie: lie.agreement.across))


def _forms(evidence: Evidence, model: str) -> Table:
    rows = []
    for policy, lies in _lies(evidence, model):
        if not all(lie.forms for lie in lies.values()):
            continue
        measured = (freed(evidence, model, policy, "head", size)[0] for size in BLOCK_SIZES)
        rows.append((NAMES[policy], "measured", *map(small, measured)))
        for form, words in FORMS.items():
            values = [_form(lies, size, form) for size in BLOCK_SIZES]
            if not all(map(math.isnan, values)):
                rows.append(("", words, *map(small, values)))
    return Table(
        title=f"Closed forms, {model_name(model)}",
        text=(
            "Reclaim in place, one table per head, one half retained, beside what closed forms "
            "expect of the same rows; means over documents. None of them is a bound. The window is "
            "what a policy always keeps at the end (64 tokens by SnapKV's scores, half of H2O's "
            "budget; StreamingLLM's window and its sinks are its whole mask). The runs are the "
            "row's own, so that form is fitted; the clusters are of SnapKV's kernel, 5, or of a "
            "chunk."
        ),
        header=("policy", "", *(f"B = {size}" for size in BLOCK_SIZES)),
        rows=tuple(rows),
    )


def _form(lies: dict[Context, Lie], size: int, form: str) -> float:
    each = {context: getattr(lie.forms[size], form) for context, lie in lies.items()}
    return over_documents(each)


def allocator(evidence: Evidence) -> tuple[Table, ...]:
    """Return what vLLM's own pool gives back and admits, beside our counts."""
    rows = evidence.admission
    wrong = sum(
        (row.free_blocks, row.admission_count) != (row.free_blocks_vllm, row.admitted_vllm)
        for row in rows
    )
    said = (
        f"In {wrong} of all {len(rows):,} rows of admission.csv (policies, ratios, layouts, block "
        "sizes, in place and packed) the two differ."
    )
    return tuple(_allocator(evidence, model, said) for model in evidence.models)


def _allocator(evidence: Evidence, model: str, said: str) -> Table:
    some = {
        (row.policy, row.tables, row.state): row
        for row in evidence.admission
        if (row.model, row.ratio, row.block_size) == (model, HALF, BLOCK_SIZE)
    }
    shown = [(tables, state) for tables in ("all", "head") for state in STATES]
    pools = {row.tables: f"{row.pool_blocks:,}" for row in some.values()}
    return Table(
        title=f"vLLM's pool, {model_name(model)}",
        text=(
            f"The contexts as running requests fill the pool ({pools.get('all', '?')} blocks where "
            f"one table is for all, {pools.get('head', '?')} per head), one half retained, B = 16. "
            "Blocks that are free then, and new requests of "
            f"{REQUEST_TOKENS} tokens that get their blocks: by `take_census` and "
            f"`admission_count` / by vLLM's own `BlockPool`. {said}"
        ),
        header=(
            "policy",
            *(
                f"{LAYOUTS[tables]}, {state}: {what}"
                for tables, state in shown
                for what in ("free", "admitted")
            ),
        ),
        rows=tuple(
            (
                NAMES[policy],
                *(
                    cell
                    for tables, state in shown
                    for cell in _side_by_side(some.get((policy, tables, state)))
                ),
            )
            for policy in evidence.policies(model)
        ),
    )


def _side_by_side(row: AdmissionRow | None) -> tuple[str, str]:
    if row is None:
        return "", ""
    return (
        f"{row.free_blocks:,} / {row.free_blocks_vllm:,}",
        f"{row.admission_count:,} / {row.admitted_vllm:,}",
    )
