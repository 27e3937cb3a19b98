"""Changes of vLLM 0.28 to the lookup of the states of linear attention."""

from app.core.versions.change import Change, Rules

SCHEDULER = "app.core.engine.batch.SchedulerRules"
CHANGES = (
    Change(
        area="Scheduler",
        before="With Mamba layers and a connector, the cached blocks of full attention count for a "
        "prompt, if the connector loads more tokens.",
        after="Only blocks count that all groups have.",
        forms=(Rules(SCHEDULER, {"reconciles_hits": False}),),
        options=("mamba-cache-mode", "kv-transfer-config"),
    ),
)
