"""Two thousand random tool schemas, through the whole server: arguments that validate, or a clear 400."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.schema.witnessed import tool_parameters, valid
from tests.surface.conftest import Client, in_process

SCHEMAS = 2000
PER_REQUEST = 4
"""Tools of one request, of which one is called by name."""


def called(client: Client, schemas: list[Any], number: int) -> Any:
    """The answer to a request that has to call tool `number`."""
    tools = [
        {"type": "function", "function": {"name": f"tool_{k}", "parameters": schema}}
        for k, schema in enumerate(schemas)
    ]
    body = {
        "messages": [{"role": "user", "content": "Go."}],
        "tools": tools,
        "tool_choice": {"type": "function", "function": {"name": f"tool_{number}"}},
    }
    return client.post("/v1/chat/completions", body)


def test_two_thousand_schemas_get_arguments_that_validate_or_a_clear_400() -> None:
    rng = Random(20261120)
    refused = 0
    with in_process() as client:
        for _ in range(SCHEMAS // PER_REQUEST):
            schemas = [tool_parameters(rng)[0] for _ in range(PER_REQUEST)]
            for number, schema in enumerate(schemas):
                answer = called(client, schemas, number)
                if answer.status_code == 400:
                    refused += 1
                    error = answer.json()["error"]
                    assert error["type"] == "BadRequestError" and len(error["message"]) > 20
                    continue
                assert answer.status_code == 200, answer.text
                (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
                arguments = json.loads(call["function"]["arguments"])
                assert valid(schema, arguments), (schema, arguments)
    assert refused < SCHEMAS * 0.05, f"{refused} of {SCHEMAS} were refused"
