"""Changes of vLLM 0.14 to KV events."""

from app.core.versions.change import Change, Rules

EVENT_RULES = "app.core.engine.kvcache.publishing.EventRules"
CHANGES = (
    Change(
        area="KV events",
        before="Stored blocks of KV events have no `lora_name`.",
        after="Stored blocks have `lora_name`.",
        forms=(Rules(EVENT_RULES, {"layout": "0.10.2"}),),
        options=("kv-events-config",),
    ),
)
