"""Cost of drafts, and of steps that verify drafts (docs/engine-features.md).

A step with k drafts computes k + 1 tokens of each decode. Then the drafter proposes the next k: it
computes the tokens of the step first, and then one token of each sequence in each further pass.
"""

import math
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from app.core.engine.batch import Batch
from app.core.engine.profile import CostConstants, Points
from app.core.engine.step_cost import StepCost
from app.extensions.costs.drafters import Drafter
from app.extensions.costs.engine_options import BF16_BYTES
from app.extensions.costs.kernel_sum import SEQUENCES, TOKENS
from app.extensions.costs.speculation import Speculation
from vllm_facts.accelerator import Device

STEP_S = 0.3e-3
"""Time that vLLM adds to a step: sampling of verified tokens, and preparation of the drafter."""
SYNCHRONOUS_PASS_S = 0.2e-3
"""Time that a synchronous engine adds to a pass of the drafter: metadata and launch.

An asynchronous engine launches the passes while the device is still computing.
"""
DRAFT_S = 12e-6
"""Time to verify a draft: that of a sequence in an asynchronous engine, which also samples."""
VERIFIED_BYTES = 12
"""Bytes that the rejection sampler moves for each logit of a verified token."""
NGRAM_S = 20e-6
"""Time to look up the drafts of a sequence in its text, on the CPU."""
INDEPENDENT_DRAFT = 0.55
"""Share of a draft's experts that are chosen independently of the tokens before it.

Cohere measured that four tokens of a sequence use 2.5 times the experts of one, 31 % fewer than
independent choices (cohere.com/blog/mixture-of-experts-models-get-more-from-speculative-decoding).
"""
FIXED_PRODUCTS = ("weights", "expert_weights", "expert_share", "per_token", "p", "tile", "spill")
"""Constants of the products that a table of products replaces."""


class Drafting(Struct, frozen=True, kw_only=True):
    """Costs of a drafter beside those of its model."""

    drafter: Drafter
    draft: CostConstants | None
    """A pass of the drafter, without overhead; None without a drafting model."""
    device: Device
    devices: int
    """Devices that share each layer."""
    pass_s: float = 0.0
    """Time that the engine adds to a pass of the drafter."""

    def added_to(self, target: CostConstants) -> CostConstants:
        """Returns the costs of steps with drafts; `target` has the costs without."""
        count = self.drafter.speculation.draft_count
        fixed = CostConstants()
        changed = replace(
            target,
            **{name: getattr(fixed, name) for name in FIXED_PRODUCTS},
            base=target.base + STEP_S,
            products=self._products(target),
            products_scale=1.0,
            outputs=self._outputs(target),
            per_sequence=target.per_sequence + count * DRAFT_S,
            per_context=_overlapped(target.per_context, (count + 1) * target.per_attention),
        )
        draft = self.draft
        if draft is None:
            return replace(changed, per_sequence=changed.per_sequence + NGRAM_S)
        return replace(
            changed,
            base=changed.base + self.pass_s + draft.base + draft.decodes,
            per_context=changed.per_context + self.drafter.passes * draft.per_context,
            prefills=target.prefills + draft.prefills,
            per_attention=target.per_attention + draft.per_attention,
        )

    def _products(self, target: CostConstants) -> Points:
        """Returns the seconds of the model's products, and of the drafter's first pass."""
        models = [StepCost(_only_products(target))]
        if self.draft is not None:
            models.append(StepCost(_only_products(self.draft)))
        points = []
        for tokens in TOKENS:
            step: Batch[Any] = Batch(tokens=tokens)
            seconds = sum(model.seconds(step, 0.0, idle=False) for model in models)
            points.append((tokens, seconds + self._inputs_s(tokens, is_first=True)))
        return tuple(points)

    def _outputs(self, target: CostConstants) -> Points:
        """Returns the seconds that depend on the sequences of a step.

        These are the outputs of all verified tokens, and the drafter's further passes and outputs.
        """
        model = StepCost(CostConstants(outputs=target.outputs))
        count = self.drafter.speculation.draft_count
        columns = self.drafter.verified_columns / self.devices
        logit_s = VERIFIED_BYTES * columns / self.device.bandwidth
        points = []
        for sequences in SEQUENCES:
            rows = sequences * (count + 1)
            seconds = model.seconds(_decodes(rows), 0.0, idle=False) + logit_s * rows
            points.append((sequences, seconds + self._drafts_s(sequences)))
        return tuple(points)

    def _drafts_s(self, sequences: int) -> float:
        """Returns the seconds of the drafter's output after the first pass, and of its others."""
        draft = self.draft
        if draft is None:
            return 0.0
        drafter = self.drafter
        rows = sequences * drafter.rows
        output = StepCost(CostConstants(outputs=draft.outputs))
        seconds = output.seconds(_decodes(rows), 0.0, idle=False) + draft.per_decode * sequences
        if drafter.passes == 1:
            return seconds
        model = StepCost(replace(draft, per_context=0.0))
        pass_s = self.pass_s + model.seconds(_decodes(rows), 0.0, idle=False)
        pass_s += self._inputs_s(rows, is_first=False)
        return seconds + (drafter.passes - 1) * pass_s

    def _inputs_s(self, rows: int, *, is_first: bool) -> float:
        """Returns the seconds of the products that a plain layer does not have."""
        weights = self.drafter.input_weights(is_first=is_first) / self.devices
        reading = BF16_BYTES * weights / self.device.bandwidth
        computing = 2 * rows * weights / self.device.flops
        return _overlapped(reading, computing)


def independent_rows(speculation: Speculation | None) -> float:
    """Returns the share of a step's tokens that choose their experts independently.

    The first token of each sequence does, and a part of the drafts.
    """
    if speculation is None:
        return 1.0
    count = speculation.draft_count
    return (1 + INDEPENDENT_DRAFT * count) / (1 + count)


def _decodes(sequences: int) -> Batch[Any]:
    """Returns a step of one token of each sequence, without context."""
    return Batch(tokens=sequences, sequences=sequences)


def _only_products(constants: CostConstants) -> CostConstants:
    names = ("products", "products_scale", *FIXED_PRODUCTS)
    return CostConstants(**{name: getattr(constants, name) for name in names})


def _overlapped(reading: float, computing: float) -> float:
    """Returns the seconds of reading and computing, which overlap in part."""
    return math.hypot(reading, computing)
