"""Changes of vLLM 0.33 to decisions."""

from app.core.protocol.coercion import JsonObject
from app.core.versions.change import Change, Rules

DECISIONS_RULES = "app.extensions.label_reads.rules.DecisionRules"


def first_decisions() -> JsonObject:
    """Returns the rules of the first versions with decisions."""
    from app.extensions.label_reads.protocol import DecisionRequest
    from app.extensions.label_reads.rules import ARCHITECTURES

    return {"request_type": DecisionRequest, "architectures": ARCHITECTURES}


CHANGES = (
    Change(
        area="Decisions",
        before="There is no `/v1/decisions`. `/v1/systemone` ignores unknown fields.",
        after="`POST /v1/decisions` answers predicates, choices, and scores about a text. "
        "`/v1/systemone` rejects unknown fields and has `joint`. Gemma 4 supports both.",
        forms=(Rules(DECISIONS_RULES, first_decisions),),
        routes=("/v1/decisions", "/v1/systemone"),
    ),
)
