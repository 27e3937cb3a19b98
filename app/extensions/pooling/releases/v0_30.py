"""Changes of vLLM 0.30 to pooling."""

from app.core.versions.change import Change, Rules

POOLING_RULES = "app.extensions.pooling.rules.PoolingRules"
SCORES = ("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank")

CHANGES = (
    Change(
        area="Pooling",
        before="The usage of scores counts both texts of each pair, and a token between them.",
        after="The usage counts each text once.",
        forms=(Rules(POOLING_RULES, {"counts_pairs": True}),),
        routes=SCORES,
    ),
)
