"""Changes of vLLM 0.20 to memory."""

from app.core.versions.change import Change, Rules

MEMORY = "app.extensions.costs.version_rules.MemoryUse"

CHANGES = (
    Change(
        area="Memory",
        before="CUDA graphs are not counted, and the default of `--gpu-memory-utilization` is 0.9.",
        after="CUDA graphs are counted, and the default is 0.92.",
        options=("model",),
        forms=(Rules(MEMORY, {"utilization": 0.9, "graphs_gib": 0.0}),),
    ),
    Change(
        area="Memory",
        before="Experts in NVFP4 take no memory beside their weights.",
        after="Experts in NVFP4 take 1 GiB more on a device.",
        options=("quantization", "moe-backend", "enable-expert-parallel"),
        forms=(Rules(MEMORY, {"packed_experts_gib": 0.0}),),
    ),
)
