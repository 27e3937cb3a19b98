"""The policies of an engine, chosen once at its start."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from app.core.engine.batch import Blocks, S, SchedulerLimits
from app.core.engine.scheduling_policy import SchedulingPolicy
from app.shared.step_policies.deferred_frees import DeferredFrees
from app.shared.step_policies.older_rules import EarlyAdapters, MissedSequences, PassedOver
from app.shared.step_policies.prefill_spacing import PrefillSpacing
from app.shared.step_policies.speculative_decoding import Drafts, Speculation, SpeculativeDecoding

if TYPE_CHECKING:
    from app.core.engine.profile import SpeculationRates


def policies_of(
    limits: SchedulerLimits,
    blocks: Blocks[S],
    speculation: Speculation | None = None,
) -> list[SchedulingPolicy[S]]:
    """Returns the policies for these limits, in their order.

    The policies of `blocks` come before these, and are not in the list.
    """
    rules = limits.rules
    policies: list[SchedulingPolicy[S]] = []
    if rules.spaces_prefill and limits.prefill_schedule_interval > 1:
        policies.append(PrefillSpacing(limits.prefill_schedule_interval))
    if speculation is not None:
        policies.append(SpeculativeDecoding(speculation, limits))
    if limits.defers_frees:
        keeps_tokens = any(policy.keeps_tokens for policy in blocks.policies)
        policies.append(DeferredFrees(rules, keeps_tokens=keeps_tokens))
    if not rules.forgets_passes:
        always = bool(policies or blocks.policies or limits.long_prefill_token_threshold)
        policies.append(PassedOver(always=always))
    if not rules.holds_last_adapters:
        policies.append(EarlyAdapters())
    if limits.by_priority and not rules.visits_all_after_victims:
        policies.append(MissedSequences())
    return policies


def simulated_policies(
    limits: SchedulerLimits,
    blocks: Blocks[Any],
    rates: SpeculationRates | None,
    rng: Random,
) -> list[SchedulingPolicy[Any]]:
    """Returns the policies of a simulated engine; `rng` decides which drafts are right."""
    drafts = None if rates is None else Drafts(rates.acceptance, rng)
    return policies_of(limits, blocks, drafts)
