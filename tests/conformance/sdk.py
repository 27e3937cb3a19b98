"""The openai SDK, asking a server of ours."""

from __future__ import annotations

import openai

from tests.running_server import RunningServer


def openai_client(
    server: RunningServer, strict: bool = True, api_key: str = "x", max_retries: int = 0
) -> openai.OpenAI:
    """A client that asks again `max_retries` times; a strict one refuses what the SDK's models do not fit."""
    return openai.OpenAI(
        base_url=server.url + "/v1",
        api_key=api_key,
        max_retries=max_retries,
        timeout=20,
        _strict_response_validation=strict,
    )
