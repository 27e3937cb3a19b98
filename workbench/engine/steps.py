"""Scheduling, steps, and the KV cache of an engine, as the workbench uses them.

With `costs` and `memory`, the one place where the workbench imports the engine of a server.
"""

from app.core.engine.batch import (
    Batch,
    Blocks,
    LoRASlots,
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
from app.core.engine.schedulers import make_scheduler
from app.core.engine.scheduling_policy import SchedulingPolicy
from app.core.engine.step_cost import CostModel, PrefillTime, StepCost, least_seconds
from app.core.engine.step_loop import StepLoop
from app.core.engine.waiting_queue import WaitingQueue
from app.core.profiles import AUTO
from app.extensions.handoff.links import Links, transferred_blocks
from app.extensions.kv_offload.cpu_tier import CpuTier
from app.extensions.kv_offload.offloads import Offloads, StoredChunk
from app.extensions.kv_offload.options import OffloadOptions, chunk_count
from app.extensions.kv_offload.tiers import Tiers
from app.shared.step_policies.choice import policies_of
from app.shared.step_policies.encoder_budget import (
    EncoderBudget,
    EncoderItem,
    EncoderLimits,
    EncoderSeconds,
)
from app.shared.step_policies.speculative_decoding import Drafts

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
    "EncoderBudget",
    "EncoderItem",
    "EncoderLimits",
    "EncoderSeconds",
    "EngineLimits",
    "FrontCosts",
    "Links",
    "LoRASlots",
    "OffloadOptions",
    "Offloads",
    "Phase",
    "PrefillTime",
    "Profile",
    "S",
    "Scheduler",
    "SchedulerLimits",
    "SchedulerRules",
    "SchedulingPolicy",
    "SequenceState",
    "StepCost",
    "StepLoop",
    "StoredChunk",
    "Tiers",
    "WaitingQueue",
    "chunk_count",
    "least_seconds",
    "make_scheduler",
    "policies_of",
    "read_profile",
    "shipped_profiles",
    "transferred_blocks",
)
