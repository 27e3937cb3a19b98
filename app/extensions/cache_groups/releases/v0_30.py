"""Changes of vLLM 0.30 to the states of linear attention."""

from app.core.versions.change import Change, Rules

SCHEDULER = "app.core.engine.batch.SchedulerRules"
CHANGES = (
    Change(
        area="Scheduler",
        before="With Mamba layers and asynchronous steps, a request keeps states that it does not "
        "need until it ends.",
        after="The request frees each of these states as soon as it does not need the state.",
        forms=(Rules(SCHEDULER, {"frees_all_skipped_states": False}),),
        options=("mamba-cache-mode",),
    ),
)
