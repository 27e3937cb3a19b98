"""A cassette of VCR becomes a script for each of the APIs that it has recorded."""

import gzip
import json
from pathlib import Path

from tests.extensions.recording.recordings import chat
from tests.extensions.recording.test_imported_scripts import (
    CHOICE,
    imported,
    interaction,
    text,
)

MESSAGE = {
    "type": "message",
    "stop_reason": "end_turn",
    "content": [{"type": "text", "text": "From Claude."}],
}
RESPONSE = {
    "object": "response",
    "status": "completed",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "From output."}]}],
}


def test_imported_cassette_answers_requests_of_all_three_apis(
    tmp_path: Path,
) -> None:
    gzipped = {"string": gzip.compress(json.dumps(CHOICE).encode())}
    body = {"model": "m", "messages": [{"role": "user", "content": "Messages?"}]}
    document = {
        "version": 1,
        "interactions": [
            interaction(
                "https://api.openai.com/v1/chat/completions",
                chat("Chat?"),
                gzipped,
                headers={"Content-Encoding": ["gzip"]},
            ),
            interaction(
                "https://api.anthropic.com/v1/messages",
                {**body, "max_tokens": 9},
                {"string": json.dumps(MESSAGE)},
            ),
            interaction(
                "https://api.openai.com/v1/responses",
                {"model": "m", "input": "Responses?"},
                {"string": json.dumps(RESPONSE)},
            ),
        ],
    }
    client = imported(tmp_path, document)
    assert text(client, "Chat?") == "From VCR."
    answer = client.post("/v1/messages", json={**body, "max_tokens": 99}).get_json()
    assert answer["content"][0]["text"] == "From Claude."
    answer = client.post("/v1/responses", json={"model": "m", "input": "Responses?"}).get_json()
    assert answer["output"][-1]["content"][0]["text"] == "From output."
