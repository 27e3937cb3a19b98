"""Changes of vLLM 0.29 to pooling."""

from app.core.versions.change import Change, Rules

POOLING_RULES = "app.extensions.pooling.rules.PoolingRules"

CHANGES = (
    Change(
        area="Pooling",
        before="The error of a task of `/pooling` names no field.",
        after="The error names `task`.",
        forms=(Rules(POOLING_RULES, {"names_task": False}),),
        routes=("/pooling",),
    ),
)
