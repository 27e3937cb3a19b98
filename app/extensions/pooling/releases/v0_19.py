"""Changes of vLLM 0.19 to pooling."""

from app.core.versions.change import Change, Rules

POOLING_RULES = "app.extensions.pooling.rules.PoolingRules"

CHANGES = (
    Change(
        area="Pooling",
        before="The default task of `/pooling` is `token_embed` or `token_classify`.",
        after="The default task is the one of the model's pooler, such as `embed`.",
        forms=(Rules(POOLING_RULES, {"task_choice": "token"}),),
        routes=("/pooling",),
    ),
)
