"""Scheduling, steps, and the KV cache of an engine, as the workbench uses them.

With `costs` and `memory`, the one place where the workbench imports the engine of a server.
"""

from app.core.engine.batch import (
    Batch,
    Blocks,
    Drafts,
    LoRASlots,
    OffloadTiers,
    Phase,
    S,
    SchedulerLimits,
    SchedulerRules,
    SequenceState,
)
from app.core.engine.kvcache.block_pool import BlockPool
from app.core.engine.kvcache.counted_blocks import CountedBlocks
from app.core.engine.profile import (
    CostConstants,
    EngineLimits,
    FrontCosts,
    Profile,
    read_profile,
    shipped_profiles,
)
from app.core.engine.scheduler import Scheduler
from app.core.engine.step_cost import CostModel, PrefillTime, StepCost, least_seconds
from app.core.engine.step_loop import StepLoop
from app.core.engine.waiting_queue import WaitingQueue
from app.core.profiles import AUTO
from app.extensions.handoff.links import Links, transferred_blocks
from app.extensions.kv_offload.cpu_tier import CpuTier
from app.extensions.kv_offload.offloads import Offloads, StoredChunk
from app.extensions.kv_offload.options import OffloadOptions, chunk_count
from app.extensions.kv_offload.tiers import Tiers

__all__ = (
    "AUTO",
    "Batch",
    "BlockPool",
    "Blocks",
    "CostConstants",
    "CostModel",
    "CountedBlocks",
    "CpuTier",
    "Drafts",
    "EngineLimits",
    "FrontCosts",
    "Links",
    "LoRASlots",
    "OffloadOptions",
    "OffloadTiers",
    "Offloads",
    "Phase",
    "PrefillTime",
    "Profile",
    "S",
    "Scheduler",
    "SchedulerLimits",
    "SchedulerRules",
    "SequenceState",
    "StepCost",
    "StepLoop",
    "StoredChunk",
    "Tiers",
    "WaitingQueue",
    "chunk_count",
    "least_seconds",
    "read_profile",
    "shipped_profiles",
    "transferred_blocks",
)
