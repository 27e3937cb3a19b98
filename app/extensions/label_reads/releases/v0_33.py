"""What vLLM 0.33 changed in decisions."""

from app.core.versions.change import Change, Rules
from app.extensions.label_reads.protocol import DecisionRequest
from app.extensions.label_reads.rules import ARCHITECTURES, DecisionRules

CHANGES = (
    Change(
        area="Decisions",
        before="There is no `/v1/decisions`. `/v1/systemone` ignores unknown fields.",
        after="`POST /v1/decisions` answers predicates, choices, and scores about a text. "
        "`/v1/systemone` rejects unknown fields and has `joint`. Gemma 4 supports both.",
        forms=(
            Rules(
                DecisionRules,
                {"request_type": DecisionRequest, "architectures": ARCHITECTURES},
            ),
        ),
        routes=("/v1/decisions", "/v1/systemone"),
    ),
)
