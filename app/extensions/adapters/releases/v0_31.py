"""Changes of vLLM 0.31 to the routes of adapters."""

from app.core.versions.change import Change, Rules

RULES = "app.extensions.adapters.rules.AdapterRules"
CHANGES = (
    Change(
        area="Adapters",
        before="An adapter may have the name of the base model, which answers under this name.",
        after="The name of the base model is an error.",
        forms=(Rules(RULES, {"protects_models": False}),),
        routes=("/v1/load_lora_adapter",),
        options=("enable-lora",),
    ),
)
