"""Changes of vLLM 0.23 to memory."""

from app.core.versions.change import Change, Rules

MEMORY = "app.extensions.costs.version_rules.MemoryUse"

CHANGES = (
    Change(
        area="Memory",
        before="Experts in NVFP4 take 1 GiB more than their weights on a device.",
        after="Experts in NVFP4 take no memory beside their weights.",
        options=("quantization", "moe-backend", "enable-expert-parallel"),
        forms=(Rules(MEMORY, {"packed_experts_gib": 1.0}),),
    ),
)
