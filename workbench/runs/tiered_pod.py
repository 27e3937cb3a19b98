"""A simulated engine whose KV blocks are also stored in tiers."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.engine.steps import Batch, CostModel, CountedBlocks
from workbench.runs.kv_tiers import TieredBlocks, TierUse, tier_options
from workbench.runs.pod import Pod, PodContext
from workbench.runs.prefix_blocks import OfflineRequest, PrefixBlocks


class TieredPod(Pod):
    """A pod with the tiers of its context. Without room for a block, it is as any other pod."""

    def __init__(self, context: PodContext, cost: CostModel, seed: str) -> None:
        super().__init__(context, cost, seed)
        self._tiers = context.tiers
        self.tiers: TieredBlocks | None = None
        if isinstance(self.blocks, TieredBlocks):
            self.tiers = self.blocks
            self.tiers.attach(self)

    def make_blocks(self, context: PodContext) -> CountedBlocks | PrefixBlocks:
        """Returns the block pool."""
        profile = context.profile
        limits = profile.engine
        if profile.kv_bytes_per_token is not None:
            block_bytes = limits.block_size * profile.kv_bytes_per_token
            options = tier_options(context.tiers, context.tier_rules, block_bytes, context.rules)
            if options is not None:
                return TieredBlocks(limits.num_gpu_blocks, limits.block_size, options)
        return super().make_blocks(context)

    def tier_uses(self) -> Sequence[TierUse]:
        """See `Pod`."""
        return () if self.tiers is None else self.tiers.uses(self._tiers)

    def has_connector(self) -> bool:
        """See `Pod`."""
        return isinstance(self.blocks, TieredBlocks)

    def transfer_s(self, sequence: OfflineRequest) -> float:
        """Returns the seconds until the blocks are loaded."""
        return sequence.load_s

    def step_over(self, batch: Batch[OfflineRequest], first_s: float, gap_s: float) -> None:
        """See `Pod`; also starts to store what the step has computed."""
        super().step_over(batch, first_s, gap_s)
        if self.tiers is not None:
            self.tiers.step_over()
