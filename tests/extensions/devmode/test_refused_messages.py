"""Messages that arrive during a pause."""

import json

from tests.client import Client

MESSAGES = "/v1/messages"
HELLO = [{"role": "user", "content": "hi"}]
BODY = {"model": "base", "messages": HELLO, "max_tokens": 2}


def test_message_is_rejected_during_a_pause(paused: Client) -> None:
    answer = paused.post(MESSAGES, BODY)
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "overloaded_error"


def test_streamed_message_receives_one_error_event_during_a_pause(paused: Client) -> None:
    answer = paused.post(MESSAGES, BODY | {"stream": True})
    assert answer.status_code == 200
    [name, data] = [line for line in answer.text.splitlines() if line]
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "overloaded_error"


def test_count_tokens_is_served_during_a_pause(paused: Client) -> None:
    count = {"model": "base", "messages": HELLO}
    assert paused.post(f"{MESSAGES}/count_tokens", count).status_code == 200
