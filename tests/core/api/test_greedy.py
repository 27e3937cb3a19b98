"""Which requests sample greedily: only those with temperature 0, as vLLM raises lower ones."""

from typing import Any

import pytest

from tests.client import Client

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
}


@pytest.mark.parametrize("path", BODIES)
def test_several_choices_are_accepted_with_a_temperature_just_above_zero(
    client: Client, path: str
) -> None:
    body = {**BODIES[path], "n": 2, "max_tokens": 3}
    assert client.post(path, {**body, "temperature": 1e-6}).status_code == 200
    refused = client.post(path, {**body, "temperature": 0})
    assert refused.status_code == 400
    assert "greedy sampling" in refused.json()["error"]["message"]
