"""Changes of vLLM 0.17 to KV events."""

from app.core.versions.change import Change, Rules

EVENT_RULES = "app.core.engine.kvcache.publishing.EventRules"
CHANGES = (
    Change(
        area="KV events",
        before="Stored blocks of KV events have no `extra_keys`.",
        after="Stored blocks have `extra_keys`.",
        forms=(Rules(EVENT_RULES, {"layout": "0.14"}),),
        options=("kv-events-config",),
    ),
)
