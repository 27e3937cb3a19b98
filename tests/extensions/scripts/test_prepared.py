"""Bodies of constant replies that are rendered once."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from app.core.server.http.response import Response
from app.core.server.http.route import PlainHandler
from app.extensions.scripts import prepared
from tests.application import app_of, request
from tests.extensions.scripts.requests import Books

CHAT = "/v1/chat/completions"
LIMIT_BYTES = 20_000
VARIABLE = re.compile(rb'"(id|created)":("[^"]*"|\d+)')


def plain_chats(path: Path) -> tuple[PlainHandler, Any]:
    """The handler of plain chats of a server with a script, and its HTTP client."""
    app = app_of("--seed=1", "--script", str(path))
    [route] = [route for route in app.take_direct_routes() if route.path == CHAT]
    assert route.plain is not None
    return route.plain, app.test_client()


def answer(plain: PlainHandler, **fields: Any) -> bytes:
    """The body of the answer to a plain chat."""
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    recognised = plain.recognise(body)
    assert recognised is not None
    response = plain.answer(request(CHAT, "POST", body=body), recognised)
    assert isinstance(response, Response) and isinstance(response.body, bytes)
    return response.body


def test_memory_of_prepared_replies_is_limited(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "LIMIT_BYTES", LIMIT_BYTES)
    plain, client = plain_chats(books.write(f"rules: [{{then: {{text: {'word ' * 40}}}}}]"))
    sizes: list[int] = []
    for max_tokens in range(1, 60):
        bodies = [answer(plain, max_tokens=max_tokens) for _ in range(3)]
        assert len({VARIABLE.sub(b"", body) for body in bodies}) == 1
        caches: Any = client.get("/admin/memory").json["caches"]
        sizes.append(caches["scripted replies"]["size_bytes"])
    assert LIMIT_BYTES / 2 < max(sizes) <= LIMIT_BYTES
    assert min(sizes[30:]) < LIMIT_BYTES / 2


@pytest.mark.parametrize(
    "action",
    [
        "{text: a, reasoning: b}",
        "{text: a, delays: {first_token: 1ms}}",
        "{text: a, usage: {prompt_tokens: 1}}",
        "{tool_calls: [{name: f, unchecked: true}]}",
        "pass",
    ],
)
def test_replies_with_more_than_a_text_are_not_prepared(books: Books, action: str) -> None:
    plain, client = plain_chats(books.write(f"rules: [{{then: {action}}}]"))
    for _ in range(3):
        recognised = plain.recognise(b'{"messages":[{"role":"user","content":"hi"}]}')
        assert recognised is not None
        plain.answer(request(CHAT, "POST"), recognised)
    caches: Any = client.get("/admin/memory").json["caches"]
    assert caches["scripted replies"]["size_bytes"] == 0
