"""Changes of vLLM 0.19 to KV events."""

from app.core.versions.change import Change, Rules

EVENT_RULES = "app.core.engine.kvcache.publishing.EventRules"
CHANGES = (
    Change(
        area="KV events",
        before="Extra keys of KV events have images without their offsets.",
        after="Extra keys have the offsets of images.",
        forms=(Rules(EVENT_RULES, {"layout": "0.17"}),),
        options=("kv-events-config",),
    ),
)
