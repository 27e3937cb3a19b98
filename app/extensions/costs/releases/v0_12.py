"""Changes of vLLM 0.12 to memory."""

from app.core.versions.change import Change, Rules

MEMORY = "app.extensions.costs.version_rules.MemoryUse"

CHANGES = (
    Change(
        area="Memory",
        before="The profiling run of a model that reads images of any size computes its longest "
        "video.",
        after="The profiling run computes a shorter video, which leaves more memory to the KV "
        "cache.",
        options=("limit-mm-per-prompt", "mm-processor-kwargs"),
        forms=(Rules(MEMORY, {"encoder_gib": 5.4}),),
    ),
)
