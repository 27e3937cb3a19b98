"""Changes of vLLM 0.16 to the KV cache."""

from app.core.versions.change import Change, Rules

CACHE = "app.extensions.costs.version_rules.CacheRules"

CHANGES = (
    Change(
        area="KV cache",
        before="With `--enable-prefix-caching`, a sequence has one block in each group of layers "
        "with states.",
        after="A sequence has a second block there, for the state at the end of a block.",
        forms=(Rules(CACHE, {"keeps_state_ends": False}),),
        options=("enable-prefix-caching",),
    ),
)
