"""Which bodies are batches of conversations."""

import json

import pytest

from app.core.protocol.decoding import decode
from app.core.server.http.errors import ApiError
from app.core.server.http.response import JSON
from app.extensions.chat_batch.protocol import BatchChatRequest

HELLO = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        *(
            ({"messages": messages}, "Bad Request", "body.messages")
            for messages in ([], {}, "hi", 5, None)
        ),
        *(({"messages": [HELLO, one]}, "Bad Request", "body.messages.1") for one in ([], HELLO[0])),
        ({"tool_choice": "auto"}, "Bad Request", "body.tool_choice"),
        ({"use_beam_search": True}, "BadRequestError", "use_beam_search"),
        ({"n": 2}, "BadRequestError", "n"),
        ({"messages": [HELLO] * 1025}, "BadRequestError", "messages"),
        ({"stream_options": {"include_usage": True}}, "BadRequestError", "stream_options"),
        (
            {"kv_transfer_params": {"prompt_token_ids": [1]}},
            "BadRequestError",
            "kv_transfer_params.prompt_token_ids",
        ),
    ],
)
def test_invalid_batch_of_conversations_is_rejected(
    fields: dict[str, object], kind: str, param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        decode(json.dumps({"messages": [HELLO], **fields}).encode(), JSON, BatchChatRequest)
    error = caught.value
    assert (error.status, error.type, error.param) == (400, kind, param)
