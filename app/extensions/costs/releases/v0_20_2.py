"""Changes of vLLM 0.20.2 to the KV cache."""

from app.core.versions.change import Change, Rules

CACHE = "app.extensions.costs.version_rules.CacheRules"

CHANGES = (
    Change(
        area="KV cache",
        before="The size of the KV cache in the log divides the blocks evenly among the groups "
        "of layers.",
        after="The size in the log is that of requests of the maximum length.",
        options=("model",),
        forms=(Rules(CACHE, {"logs_by_group": True}),),
    ),
)
