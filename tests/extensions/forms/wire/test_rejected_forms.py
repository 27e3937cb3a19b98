"""The fast path compiles no schema: that would hold the hub."""

import json
from typing import Any

from tests.hostile.raw_client import get, post
from tests.running_server import running_server


def test_schema_of_a_rejected_chat_is_not_compiled() -> None:
    with running_server() as server:

        def status(title: str, **fields: Any) -> int:
            schema = {"type": "object", "title": title, "properties": {"a": {"type": "boolean"}}}
            body = {
                "messages": [{"role": "user", "content": "Hello!"}],
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": schema},
                },
            }
            return post(server.port, {**body, **fields}, "/v1/chat/completions").status

        def compiled_bytes() -> int:
            memory = json.loads(get(server.port, "/admin/memory").body)
            return int(memory["caches"]["schemas"]["size_bytes"])

        assert [status("first") for _ in range(3)] == [200] * 3
        size_before = compiled_bytes()
        assert [status("second", model="unknown") for _ in range(3)] == [404] * 3
        assert compiled_bytes() == size_before
        assert [status("second") for _ in range(3)] == [200] * 3
        assert compiled_bytes() > size_before
