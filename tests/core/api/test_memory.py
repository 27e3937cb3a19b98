"""GET /admin/memory: every cache is there, and none is larger than it may be."""

from app.core.server.flask.application import Understudy
from tests.application import app_of

NAMES = {
    "KV cache blocks",
    "KV events to publish",
    "KV events to replay",
    "block hashes",
    "chat templates",
    "plain chats",
    "plain prompts",
    "prompt tokens",
    "rate limits",
    "words",
}
"""Caches of the core."""


def sizes(app: Understudy) -> dict[str, dict[str, int]]:
    answer = app.test_client().get("/admin/memory").json
    assert answer is not None
    caches: dict[str, dict[str, int]] = answer["caches"]
    assert answer["size_bytes"] == sum(cache["size_bytes"] for cache in caches.values())
    return caches


def test_every_cache_is_told_with_its_bound_and_what_is_remembered_shows() -> None:
    app = app_of("--enable-kvcache", "--kv-index")
    before = sizes(app)
    assert set(before) >= NAMES
    for name, cache in before.items():
        assert 0 <= cache["size_bytes"] <= cache["limit_bytes"], name
    chat = {"messages": [{"role": "user", "content": "Remember me."}], "max_tokens": 4}
    assert app.test_client().post("/v1/chat/completions", json=chat).status_code == 200
    after = sizes(app)
    assert after["KV cache blocks"]["size_bytes"] >= before["KV cache blocks"]["size_bytes"]
    assert after["words"]["size_bytes"] > before["words"]["size_bytes"]
