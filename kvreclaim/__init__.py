"""Measure how much memory a KV-cache eviction gives back to a paged LLM server.

Give a keep-mask (True where a token's KV stays) and a block size, or a `BlockPool`:

>>> from kvreclaim import report
>>> report([1, 1, 0, 0, 0, 1, 0, 1], 2).physical_reclaim
0.25
"""

import importlib
import typing

from kvreclaim._version import __version__ as __version__

if typing.TYPE_CHECKING:
    from kvreclaim import bounds, importance, masks, policies, runtimes
    from kvreclaim.admission import (
        Request,
        admission_count,
        admit,
        admit_sectors,
        admit_sglang,
        admit_tensorrt_llm,
        admit_vllm_v0,
        admit_vllm_v1,
        block_usage,
        growth_blocks,
    )
    from kvreclaim.census import Census, merge, take_census, take_census_packed, take_censuses
    from kvreclaim.compaction import (
        CompactionCost,
        CompactionPlan,
        apply_plan,
        blocks_for_moves,
        compaction_cost,
        compaction_plan,
        num_moves_for,
        reclaim_curve,
    )
    from kvreclaim.comparison import Comparison, compare
    from kvreclaim.files import (
        SavedMasks,
        census_of_file,
        load_masks,
        mask_names,
        open_masks,
        save_masks,
    )
    from kvreclaim.frontier import (
        Frontier,
        Selection,
        evict_at_price,
        evict_for_blocks,
        finish_cost,
        frontier_excess,
        max_free_blocks,
        reclaim_frontier,
    )
    from kvreclaim.lifetimes import NEVER, Timeline, timeline
    from kvreclaim.metrics import (
        CombinedBytes,
        PoolUsage,
        SavingsBreakdown,
        StepSaving,
        capacity_gain,
        combine,
        compacted_reclaim,
        effective_rows,
        effective_tokens_per_block,
        fragmentation,
        logical_saving,
        memory_waste,
        moved_tokens_per_block,
        packed_reclaim,
        physical_reclaim,
        pool_usage,
        reclaim_efficiency,
        savings_breakdown,
        slots_per_move,
        step_saving,
    )
    from kvreclaim.placement import (
        PageReclaim,
        Placement,
        admit_contiguous,
        external_fragmentation,
        free_runs,
        page_reclaim,
        place,
        unsafe_free,
    )
    from kvreclaim.pool import BlockPool, block_size_from_bytes, entry_bytes_for, entry_bytes_mla
    from kvreclaim.replicates import (
        FigureSummary,
        Replicates,
        paired_differences,
        summarize_reports,
    )
    from kvreclaim.reports import Report, report
    from kvreclaim.signature import Signature
    from kvreclaim.statistics import (
        Summary,
        design_effect,
        paired_difference,
        reclaim_interval,
        summarize,
        summarize_ratio,
    )

__all__ = [
    "NEVER",
    "BlockPool",
    "Census",
    "CombinedBytes",
    "CompactionCost",
    "CompactionPlan",
    "Comparison",
    "FigureSummary",
    "Frontier",
    "PageReclaim",
    "Placement",
    "PoolUsage",
    "Replicates",
    "Report",
    "Request",
    "SavedMasks",
    "SavingsBreakdown",
    "Selection",
    "Signature",
    "StepSaving",
    "Summary",
    "Timeline",
    "admission_count",
    "admit",
    "admit_contiguous",
    "admit_sectors",
    "admit_sglang",
    "admit_tensorrt_llm",
    "admit_vllm_v0",
    "admit_vllm_v1",
    "apply_plan",
    "block_size_from_bytes",
    "block_usage",
    "blocks_for_moves",
    "bounds",
    "capacity_gain",
    "census_of_file",
    "combine",
    "compacted_reclaim",
    "compaction_cost",
    "compaction_plan",
    "compare",
    "design_effect",
    "effective_rows",
    "effective_tokens_per_block",
    "entry_bytes_for",
    "entry_bytes_mla",
    "evict_at_price",
    "evict_for_blocks",
    "external_fragmentation",
    "finish_cost",
    "fragmentation",
    "free_runs",
    "frontier_excess",
    "growth_blocks",
    "importance",
    "load_masks",
    "logical_saving",
    "mask_names",
    "masks",
    "max_free_blocks",
    "memory_waste",
    "merge",
    "moved_tokens_per_block",
    "num_moves_for",
    "open_masks",
    "packed_reclaim",
    "page_reclaim",
    "paired_difference",
    "paired_differences",
    "physical_reclaim",
    "place",
    "policies",
    "pool_usage",
    "reclaim_curve",
    "reclaim_efficiency",
    "reclaim_frontier",
    "reclaim_interval",
    "report",
    "runtimes",
    "save_masks",
    "savings_breakdown",
    "slots_per_move",
    "step_saving",
    "summarize",
    "summarize_ratio",
    "summarize_reports",
    "take_census",
    "take_census_packed",
    "take_censuses",
    "timeline",
    "unsafe_free",
]

# A name is imported when it is first asked for: to import all of them takes longer than numpy does.
_NAMES: typing.Final = {
    "admission": (
        "Request admission_count admit admit_sectors admit_sglang admit_tensorrt_llm "
        "admit_vllm_v0 admit_vllm_v1 block_usage growth_blocks"
    ),
    "census": "Census merge take_census take_census_packed take_censuses",
    "compaction": (
        "CompactionCost CompactionPlan apply_plan blocks_for_moves compaction_cost "
        "compaction_plan num_moves_for reclaim_curve"
    ),
    "comparison": "Comparison compare",
    "files": "SavedMasks census_of_file load_masks mask_names open_masks save_masks",
    "frontier": (
        "Frontier Selection evict_at_price evict_for_blocks finish_cost frontier_excess "
        "max_free_blocks reclaim_frontier"
    ),
    "lifetimes": "NEVER Timeline timeline",
    "metrics": (
        "CombinedBytes PoolUsage SavingsBreakdown StepSaving capacity_gain combine "
        "compacted_reclaim effective_rows effective_tokens_per_block fragmentation "
        "logical_saving memory_waste moved_tokens_per_block packed_reclaim "
        "physical_reclaim pool_usage reclaim_efficiency savings_breakdown slots_per_move "
        "step_saving"
    ),
    "placement": (
        "PageReclaim Placement admit_contiguous external_fragmentation free_runs "
        "page_reclaim place unsafe_free"
    ),
    "pool": "BlockPool block_size_from_bytes entry_bytes_for entry_bytes_mla",
    "replicates": "FigureSummary Replicates paired_differences summarize_reports",
    "reports": "Report report",
    "signature": "Signature",
    "statistics": (
        "Summary design_effect paired_difference reclaim_interval summarize summarize_ratio"
    ),
}
_HOMES: typing.Final = {name: module for module, names in _NAMES.items() for name in names.split()}


if not typing.TYPE_CHECKING:  # a type checker would take every name for one that is there

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            value = getattr(importlib.import_module(f"kvreclaim.{_HOMES[name]}"), name)
        elif name in __all__:
            value = importlib.import_module(f"kvreclaim.{name}")
        else:
            raise AttributeError(f"module 'kvreclaim' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
