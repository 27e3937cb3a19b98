"""The openai SDK, asking a server of ours."""

from __future__ import annotations

import openai

from tests.running_server import RunningServer


def openai_client(server: RunningServer, strict: bool = True) -> openai.OpenAI:
    """A client that asks once; a strict one refuses what does not fit the SDK's models."""
    return openai.OpenAI(
        base_url=server.url + "/v1",
        api_key="x",
        max_retries=0,
        timeout=20,
        _strict_response_validation=strict,
    )
