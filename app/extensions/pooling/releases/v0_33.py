"""What vLLM 0.33 changed in pooling."""

from app.core.versions.change import Change, Rules

POOLING_RULES = "app.extensions.pooling.rules.PoolingRules"
CHANGES = (
    Change(
        area="Pooling",
        before="Models with `--pooler-config.task token_embed` answer `/v1/embeddings` and "
        "`/v2/embed` with the 501 status.",
        after="`/v1/embeddings` of these models returns a vector for each token, or for each chunk "
        "of a text with `late_chunking_params`. They have no `/v2/embed`.",
        forms=(Rules(POOLING_RULES, {"embeds_tokens": False}),),
        routes=("/v1/embeddings", "/v2/embed"),
    ),
)
