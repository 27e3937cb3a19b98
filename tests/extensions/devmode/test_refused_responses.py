"""Streams of the Responses API that arrive during a pause."""

from tests.client import Client


def test_streamed_response_fails_after_its_first_events_during_a_pause(paused: Client) -> None:
    answer = paused.post("/v1/responses", {"input": "hi", "max_output_tokens": 2, "stream": True})
    names = [line for line in answer.text.splitlines() if line.startswith("event: ")]
    assert names == [
        "event: response.created",
        "event: response.in_progress",
        "event: response.failed",
    ]
