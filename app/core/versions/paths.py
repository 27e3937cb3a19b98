"""Paths of the routes that releases changed together."""

COMPLETIONS = ("/v1/completions",)
CHATS = ("/v1/chat/completions", "/v1/chat/completions/batch")
GENERATING = (*COMPLETIONS, *CHATS)
INVOCATIONS = "/invocations"
"""Answers with the routes of chats and completions, which already play the older version. It reads
requests under its own path."""
REPLYING = (*GENERATING, INVOCATIONS, "/v1/responses", "/v1/messages")
"""All routes with sampled replies, except the routes of scale-out."""
POOLING = (
    *("/v1/embeddings", "/pooling", "/classify"),
    *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
)
"""The routes of models that do not generate, without Cohere's embeddings."""
OPENAI = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
"""The routes of OpenAI's API with such replies, without batches."""
VALIDATED = (
    *GENERATING,
    INVOCATIONS,
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/score",
    "/score",
    "/v1/rerank",
    "/rerank",
    "/v2/rerank",
    "/v2/embed",
    "/pooling",
    "/classify",
    "/tokenize",
    "/detokenize",
    "/inference/v1/generate",
    "/server_info",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
)
"""Routes whose requests have a schema."""
STORED = ("/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel")
"""Routes of stored responses."""
