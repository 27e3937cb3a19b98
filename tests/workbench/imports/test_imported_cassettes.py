"""A cassette of VCR becomes a script for each of the APIs that it has recorded.

The command is that of `app.extensions.scripts`.
"""

import gzip
import json
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from app.core.cli import main
from app.extensions.recording.conversation import position_of
from tests.extensions.recording.recordings import chat
from tests.workbench.imports.test_imported_scripts import (
    CHOICE,
    COMMAND,
    imported,
    interaction,
    text,
    written,
)

PIXEL = "R0lGODlhAQABAIAAAP///wAAACwAAAAAAQABAAACAkQBADs="
"""A GIF file of one pixel in base64."""

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


RESPONSES = "https://api.openai.com/v1/responses"
ASKED = {"model": "m", "input": "Background?", "background": True}
QUEUED = {"object": "response", "id": "resp_1", "status": "queued", "output": []}
ENDED = {**RESPONSE, "id": "resp_1"}


def retrieval(received: object, response_id: str = "resp_1") -> dict[str, Any]:
    """An exchange that retrieves a response."""
    polled = interaction(f"{RESPONSES}/{response_id}", {}, {"string": json.dumps(received)})
    polled["request"]["method"] = "GET"
    return polled


def asked_in_background(received: str) -> dict[str, Any]:
    return interaction(RESPONSES, ASKED, {"string": received})


def text_of_background(document: object, folder: Path) -> str:
    client = imported(folder, document)
    answer = client.post("/v1/responses", json={**ASKED, "background": False}).get_json()
    content: str = answer["output"][-1]["content"][0]["text"]
    return content


def test_reply_to_a_background_request_is_the_one_that_was_retrieved_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = {**QUEUED, "status": "in_progress"}
    document = {
        "interactions": [
            asked_in_background(json.dumps(QUEUED)),
            retrieval(running),
            retrieval(ENDED),
        ]
    }
    assert text_of_background(document, tmp_path) == "From output."
    assert capsys.readouterr().err == "imported rules: 1; not carried over: 0\n"


@pytest.mark.parametrize("events", [["queued"], ["queued", "completed"]])
def test_reply_to_a_background_stream_is_whole(
    tmp_path: Path, events: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    responses = {"queued": QUEUED, "completed": ENDED}
    stream = [{"type": f"response.{name}", "response": responses[name]} for name in events]
    lines = "".join(f"data: {json.dumps(event)}\n\n" for event in stream)
    document = {"interactions": [asked_in_background(lines), retrieval(ENDED)]}
    assert text_of_background(document, tmp_path) == "From output."
    assert capsys.readouterr().err == "imported rules: 1; not carried over: 0\n"


def test_retrieval_without_its_request_or_with_another_reply_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = [{"type": "output_text", "text": "Another."}]
    other = {**ENDED, "output": [{"type": "message", "content": content}]}
    document = {
        "interactions": [
            asked_in_background(json.dumps(ENDED)),
            retrieval(other),
            retrieval(ENDED, "resp_2"),
        ]
    }
    assert text_of_background(document, tmp_path) == "From output."
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(".yaml: ")[2] for line in lines[:2]] == [
        f"interaction 2: left out: GET {RESPONSES}/resp_1 (a script cannot answer it)",
        f"interaction 3: left out: GET {RESPONSES}/resp_2 (a script cannot answer it)",
    ]
    assert lines[2:] == ["imported rules: 1; not carried over: 2"]


def test_background_request_that_never_ends_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = {"interactions": [asked_in_background(json.dumps(QUEUED)), retrieval(QUEUED)]}
    assert main([*COMMAND, written(tmp_path / "f.yaml", document)]) == 1
    first, second, total, _ = capsys.readouterr().err.splitlines()
    assert "interaction 1: left out: the response is not a reply: the status" in first
    assert f"interaction 2: left out: GET {RESPONSES}/resp_1" in second
    assert total == "imported rules: 0; not carried over: 2"


def test_download_from_another_server_is_ignored_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    download = interaction("https://www.example.org/a.pdf", {}, {"string": b"%PDF-1.4"})
    models = interaction("https://api.openai.com/v1/models", {}, {"string": "{}"})
    for exchange in (download, models):
        exchange["request"]["method"] = "GET"
    chat_exchange = interaction(
        "https://api.openai.com/v1/chat/completions",
        chat("Chat?"),
        {"string": json.dumps(CHOICE)},
    )
    client = imported(tmp_path, {"interactions": [download, models, chat_exchange]})
    assert text(client, "Chat?") == "From VCR."
    ignored, left_out, total = capsys.readouterr().err.splitlines()
    assert ignored.endswith(
        "interaction 1: ignored: GET https://www.example.org/a.pdf goes to another server"
    )
    assert "interaction 2: left out: GET https://api.openai.com/v1/models (" in left_out
    assert total == "imported rules: 1; not carried over: 1; ignored: 1"


def test_result_of_a_tool_with_only_an_image_is_matched(tmp_path: Path) -> None:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
    }
    call = {"type": "tool_use", "id": "t", "name": "screen", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    sent = {
        "model": "m",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "Look"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ],
    }
    uri = "https://api.anthropic.com/v1/messages"
    document = {"interactions": [interaction(uri, sent, {"string": json.dumps(MESSAGE)})]}
    answer = imported(tmp_path, document).post("/v1/messages", json=sent).get_json()
    assert answer["content"][0]["text"] == "From Claude."


def test_result_of_a_tool_with_many_images_is_read_in_linear_time() -> None:
    """A server that replays a recording by turns reads the requests of its clients so."""
    images = [{"type": "image", "source": {"data": str(number)}} for number in range(40_000)]
    result = {"type": "tool_result", "tool_use_id": "t", "content": images}
    begun_s = process_time()
    position = position_of("/v1/messages", {"messages": [{"role": "user", "content": [result]}]})
    assert position is not None
    assert process_time() - begun_s < 5  # comparing each with each takes minutes
