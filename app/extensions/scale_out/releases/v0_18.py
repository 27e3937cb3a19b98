"""Changes of vLLM 0.18 to the routes of scale-out."""

from app.core.versions.change import Change, Rules

SCALE_OUT_RULES = "app.extensions.scale_out.rules.ScaleOutRules"
CHANGES = (
    Change(
        area="Scale-out",
        before="A rendered chat is a list of its messages and its prompts. Prompts have their "
        "text, `prompt_token_ids` and `cache_salt`.",
        after="A rendered request is a body for `/inference/v1/generate`.",
        forms=(Rules(SCALE_OUT_RULES, {"renders_texts": True}),),
        routes=("/v1/chat/completions/render", "/v1/completions/render"),
    ),
)
