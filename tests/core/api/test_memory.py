"""GET /admin/memory: every cache is there, and none is larger than it may be."""

from tests.application import app_of, check_caches

NAMES = {
    "KV cache blocks",
    "KV events to publish",
    "KV events to replay",
    "block hashes",
    "chat templates",
    "plain chats",
    "plain prompts",
    "texts with tools",
    "tools",
}
"""Caches of the core."""
OF_TEXTS = {"parts of texts", "words"}
"""Caches of the embedded tokenizer, which the first text loads."""


def test_memory_report_contains_the_size_and_limit_of_every_core_cache() -> None:
    app = app_of("--enable-kvcache")
    sizes_before = check_caches(app, NAMES)
    chat = {"messages": [{"role": "user", "content": "Remember me."}], "max_tokens": 4}
    assert app.test_client().post("/v1/chat/completions", json=chat).status_code == 200
    after = check_caches(app, NAMES | OF_TEXTS)
    assert after["KV cache blocks"]["size_bytes"] >= sizes_before["KV cache blocks"]["size_bytes"]
    assert after["words"]["size_bytes"] > 0
