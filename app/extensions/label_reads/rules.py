"""Rules of decisions that differ between versions of vLLM."""

from msgspec import Struct

from app.extensions.label_reads.protocol import DecisionRequest, JointDecisionRequest

ARCHITECTURES = frozenset(
    ("Qwen3ForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration")
)
"""Architectures for which the first versions with decisions support them."""


class DecisionRules(Struct, frozen=True, kw_only=True):
    """The defaults are the rules of the newest version."""

    request_type: type[DecisionRequest] = JointDecisionRequest
    """Type of the body of POST /v1/systemone."""
    architectures: frozenset[str] = ARCHITECTURES | {
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
    }
    """Architectures for which vLLM supports decisions."""
