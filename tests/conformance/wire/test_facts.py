"""Every recorded exchange again:

the same status, keys in the same order, kinds, words and token counts.
"""

import json
import re
from typing import Any

import pytest
import requests

from research.derive_facts import facts
from tests.conformance.recording import TOKENIZER
from tests.conformance.test_facts import FACTS
from tests.running_server import RunningServer


@pytest.mark.parametrize("recorded", FACTS, ids=[fact["name"] for fact in FACTS])
def test_response_has_the_same_shape_as_that_of_vllm(
    recorded: dict[str, Any], publishing: RunningServer
) -> None:
    assert facts_text(facts({**recorded, **answer(publishing, recorded)})) == facts_text(recorded)


def answer(server: RunningServer, recorded: dict[str, Any]) -> dict[str, Any]:
    """What `server` answers to the request of an exchange, as a recording has it."""
    request = recorded["request"]
    body = request if request is None or isinstance(request, str) else json.dumps(request)
    got = requests.request(
        recorded["method"],
        server.url + recorded["path"],
        data=body,
        headers=recorded["request_headers"],
        timeout=20,
    )
    headers = {name.lower(): value for name, value in got.headers.items()}
    return {"status": got.status_code, "headers": headers, "body": got.content.decode()}


def facts_text(exchange: dict[str, Any]) -> str:
    """Facts as text, which has an order; numbers of tokens only with the recorded tokenizer."""
    text = json.dumps(exchange, indent=1)
    return text if TOKENIZER.exists() else re.sub(r'"tokens: .*"', '"tokens"', text)
