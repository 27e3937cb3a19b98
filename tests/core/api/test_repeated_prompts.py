"""How much of its prompt an answer may repeat."""

import pytest

from tests.application import app_of

CHARACTERS = 2000
CHOICES = 600
"""Together, the choices repeat more than a stream may."""


@pytest.mark.parametrize(("stream", "status"), [(False, 200), (True, 400)])
def test_long_prompt_repeated_in_every_choice_is_rejected_only_in_streams(
    stream: bool, status: int
) -> None:
    client = app_of("--force-dummy-tokenizer").test_client()
    chat = {
        "messages": [{"role": "user", "content": "a" * CHARACTERS}],
        "n": CHOICES,
        "max_tokens": 1,
        "return_prompt_text": True,
        "stream": stream,
    }
    response = client.post("/v1/chat/completions", json=chat)
    assert response.status_code == status
