"""Changes of vLLM 0.26 to the KV cache."""

from app.core.versions.change import Change

CHANGES = (
    Change(
        area="KV cache",
        before="Layers with a sliding window keep the tokens of one step beside their window.",
        after="These layers keep the tokens of all steps that run at a time.",
        options=("disable-hybrid-kv-cache-manager",),
    ),
)
