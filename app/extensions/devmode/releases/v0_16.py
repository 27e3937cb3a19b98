"""Changes of vLLM 0.16 to the routes for developers."""

from app.core.protocol.coercion import JsonObject
from app.core.versions.change import Change, Rules

ACTION_RULES = "app.extensions.devmode.engine_actions.ActionRules"


def waiting() -> JsonObject:
    """Returns the query that has no mode."""
    from app.extensions.devmode.engine_actions import WaitingPauseQuery

    return {"pause_query": WaitingPauseQuery}


CHANGES = (
    Change(
        area="Development",
        before="`/pause` has `wait_for_inflight_requests`.",
        after="`/pause` has `mode`.",
        forms=(Rules(ACTION_RULES, waiting),),
        routes=("/pause",),
    ),
)
