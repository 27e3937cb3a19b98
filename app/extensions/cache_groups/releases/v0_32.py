"""Changes of vLLM 0.32 to the states of linear attention."""

from app.core.versions.change import Change, Rules

SCHEDULER = "app.core.engine.batch.SchedulerRules"
CHANGES = (
    Change(
        area="Scheduler",
        before="With Mamba layers, a prompt of whole blocks is computed to its end in one piece.",
        after="The piece ends before the last block, where a repeated prompt can go on.",
        forms=(Rules(SCHEDULER, {"checkpoints_before_end": False}),),
        options=("mamba-cache-mode",),
    ),
    Change(
        area="Scheduler",
        before="With Mamba layers, a request starts from a state that an earlier step has cached.",
        after="The request waits while a request whose prompt it repeats is in the steps after its "
        "prompt.",
        forms=(Rules(SCHEDULER, {"shares_known_states": True}),),
        options=("mamba-cache-mode",),
    ),
)
