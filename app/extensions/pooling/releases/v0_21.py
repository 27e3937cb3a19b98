"""Changes of vLLM 0.21 to pooling."""

from app.core.versions.change import Change, Rules

POOLING_RULES = "app.extensions.pooling.rules.PoolingRules"

CHANGES = (
    Change(
        area="Pooling",
        before="A request of `/pooling` may choose each task that the model supports.",
        after="`/pooling` has one task. `--pooler-config.task` chooses it.",
        forms=(Rules(POOLING_RULES, {"task_choice": "supported"}),),
        routes=("/pooling",),
    ),
)
