"""Changes of vLLM 0.26 to tiers of CPU blocks."""

from app.core.versions.change import Change, Rules

OFFLOAD_RULES = "app.extensions.kv_offload.options.OffloadRules"
CHANGES = (
    Change(
        area="Scheduler",
        before="A tier of CPU blocks never stores the blocks of a request that had no room in it "
        "before the request ended.",
        after="When the request has ended, the tier tries once more to store them.",
        forms=(Rules(OFFLOAD_RULES, {"offers_ended": False}),),
        options=("kv-transfer-config", "kv-offloading-size"),
    ),
)
