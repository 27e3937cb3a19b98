"""Requests without a key do not fill the journal of a real server with an API key."""

import json
from typing import Any

import requests

from tests.hostile.raw_client import Wire, http_post
from tests.running_server import running_server

CHAT = "/v1/chat/completions"
KEY = "Authorization: Bearer key-of-the-test"


def test_requests_without_a_key_do_not_evict_keyed_journal_entries() -> None:
    chat = json.dumps({"messages": [{"role": "user", "content": "mine"}], "max_tokens": 2}).encode()
    typed = "Content-Type: application/json"
    with running_server("--journal", "3", "--api-key", "key-of-the-test") as server:
        with Wire(server.port) as client:
            assert client.send(http_post(CHAT, chat, typed, KEY)).answer().status == 200
            for _ in range(10):
                assert client.send(http_post(CHAT, chat, typed)).answer().status == 401
            assert client.send(http_post(CHAT, chat, typed, KEY)).answer().status == 200
        headers = {"Authorization": "Bearer key-of-the-test"}
        answer: Any = requests.get(
            f"{server.url}/admin/journal", headers=headers, timeout=20
        ).json()
    assert [entry["status"] for entry in answer["entries"]] == [200, 401, 401, 401, 200]
