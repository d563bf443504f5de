"""Measure how much memory a KV-cache eviction gives back to a paged LLM server.

Give a keep-mask (True where a token's KV stays) and a block size, or a `BlockPool`:

>>> from kvreclaim import report
>>> report([1, 1, 0, 0, 0, 1, 0, 1], 2).physical_reclaim
0.25
"""

from kvreclaim import importance, masks, policies, runtimes
from kvreclaim._version import __version__ as __version__
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
from kvreclaim.files import SavedMasks, census_of_file, load_masks, mask_names, save_masks
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
from kvreclaim.reports import Report, report
from kvreclaim.signature import Signature

__all__ = [
    "NEVER",
    "BlockPool",
    "Census",
    "CombinedBytes",
    "CompactionCost",
    "CompactionPlan",
    "Comparison",
    "PageReclaim",
    "Placement",
    "PoolUsage",
    "Report",
    "Request",
    "SavedMasks",
    "SavingsBreakdown",
    "Signature",
    "StepSaving",
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
    "capacity_gain",
    "census_of_file",
    "combine",
    "compacted_reclaim",
    "compaction_cost",
    "compaction_plan",
    "compare",
    "effective_rows",
    "effective_tokens_per_block",
    "entry_bytes_for",
    "entry_bytes_mla",
    "external_fragmentation",
    "fragmentation",
    "free_runs",
    "growth_blocks",
    "importance",
    "load_masks",
    "logical_saving",
    "mask_names",
    "masks",
    "memory_waste",
    "merge",
    "moved_tokens_per_block",
    "num_moves_for",
    "packed_reclaim",
    "page_reclaim",
    "physical_reclaim",
    "place",
    "policies",
    "pool_usage",
    "reclaim_curve",
    "reclaim_efficiency",
    "report",
    "runtimes",
    "save_masks",
    "savings_breakdown",
    "slots_per_move",
    "step_saving",
    "take_census",
    "take_census_packed",
    "take_censuses",
    "timeline",
    "unsafe_free",
]
