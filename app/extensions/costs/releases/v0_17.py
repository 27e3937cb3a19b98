"""Changes of vLLM 0.17 to memory."""

from app.core.versions.change import Change, Rules

MEMORY = "app.extensions.costs.version_rules.MemoryUse"

CHANGES = (
    Change(
        area="Memory",
        before="The sampler of the profiling run sorts all logits, and experts copy their "
        "activations once.",
        after="The sampler takes less than half of this memory. Experts copy their activations "
        "twice, and the communication of two devices takes more memory.",
        options=("model",),
        forms=(
            Rules(
                MEMORY,
                {
                    "logit_bytes": 38.3,
                    "outside_gib": 0.13,
                    "outside_pair_gib": 0.55,
                    "outside_many_gib": 2.3,
                    "expert_copies": 1,
                },
            ),
        ),
    ),
    Change(
        area="Memory",
        before="On Hopper, experts in MXFP4 have the layout of Triton's kernels.",
        after="They have the layout of Marlin's kernels, which pads them.",
        options=("quantization", "moe-backend", "enable-expert-parallel"),
        forms=(Rules(MEMORY, {"has_marlin_on_hopper": False}),),
    ),
)
