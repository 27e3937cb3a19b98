"""Which routes there are, by task."""

from __future__ import annotations

import pytest

from app.serving.api.pooling import COHERE, ROUTES, served_routes
from app.wiring.factory import create_app
from config.settings import ModelSettings, Settings
from tests.conformance.calls import CHAT, TEXT
from tests.pooling.calls import BASE, CLASSIFY, EMBED, POOL

PATHS = ROUTES["pooling"]


@pytest.mark.parametrize(
    ("task", "more", "expected"),
    [
        ("pooling", {}, set(ROUTES["pooling"])),
        ("score", {}, set(ROUTES["score"])),
        ("classify", {}, {POOL, CLASSIFY}),
        ("generate", {}, {CHAT, TEXT}),
        ("embed", {"mm_encoder_only": True}, set(ROUTES["embed"]) - {EMBED, COHERE}),
    ],
)
def test_a_task_has_the_routes_that_vllm_gives_it(
    task: str, more: dict[str, bool], expected: set[str]
) -> None:
    client = create_app(Settings(model=ModelSettings(task=task, **more))).test_client()
    told = {path: client.post(path, json={}) for path in (*PATHS, CHAT, TEXT)}
    assert {path for path, answer in told.items() if answer.status_code != 404} == expected
    assert all(told[path].json == {"detail": "Not Found"} for path in told.keys() - expected)


def test_embeddings_may_stand_beside_chat_and_completions() -> None:
    """As llm-d-inference-sim has them; the reply of a chat is none the shorter for it."""
    model = ModelSettings(embeddings_with_chat=True)
    assert served_routes(model) == (EMBED,)
    client = create_app(Settings(model=model)).test_client()
    answer = client.post(EMBED, json=BASE[EMBED])
    assert answer.status_code == 200 and answer.json["usage"]["completion_tokens"] == 0
    chat = client.post(CHAT, json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3})
    assert chat.json["usage"]["completion_tokens"] == 3
    assert client.post(POOL, json=BASE[POOL]).status_code == 404
