"""Changes of vLLM 0.26 to the KV cache."""

from app.core.versions.change import Change, Rules

STEPS = "app.extensions.costs.version_rules.StepDefaults"

CHANGES = (
    Change(
        area="KV cache",
        before="Layers with a sliding window keep the tokens of one step beside their window.",
        after="These layers keep the tokens of all steps that run at a time.",
        forms=(Rules(STEPS, {"keeps_steps_in_flight": False}),),
    ),
)
