"""Messages before and after the releases that changed them."""

import json
from typing import Any

import pytest
from werkzeug.test import Client

from app.core.server.http.response import DONE
from tests.application import app_of
from tests.conformance.calls import parsed

PATH = "/v1/messages"
Body = dict[str, Any]
HELLO: Body = {
    "model": "understudy-tiny",
    "max_tokens": 3,
    "messages": [{"role": "user", "content": "hi"}],
}


def client_of(version: str) -> Client:
    flags = ("--enable-prompt-tokens-details=true", "--enable-kvcache=true", "--seed", "1")
    return app_of("--vllm-version", version, *flags).test_client()


def message_of(version: str, **fields: object) -> Body:
    answer = client_of(version).post(PATH, json=HELLO | fields)
    assert answer.status_code == 200, answer.text
    message: Body = json.loads(answer.data)
    return message


def test_usage_counts_cached_tokens_apart_since_024() -> None:
    text = "one two three " * 40
    fields = {"messages": [{"role": "user", "content": text}]}
    usages: list[Body] = []
    for version in ("0.23", "0.24"):
        client = client_of(version)
        client.post(PATH, json=HELLO | fields)
        usages.append(json.loads(client.post(PATH, json=HELLO | fields).data)["usage"])
    old, new = usages
    assert set(old) == {"input_tokens", "output_tokens"}
    cached = new["cache_creation_input_tokens"] + new["cache_read_input_tokens"]
    assert cached > 0
    assert old["input_tokens"] == new["input_tokens"] + cached


def test_start_of_a_stream_names_type_and_role_since_024() -> None:
    for version, names in (("0.23", set()), ("0.24", {"type", "role"})):
        stream = client_of(version).post(PATH, json=HELLO | {"stream": True})
        message = parsed(stream.data)[0]["message"]
        assert message.keys() & {"type", "role"} == names


def test_system_messages_are_an_error_before_023() -> None:
    fields = {"messages": [{"role": "system", "content": "s"}, *HELLO["messages"]]}
    answer = client_of("0.22").post(PATH, json=HELLO | fields)
    assert answer.status_code == 400
    assert "'user' or 'assistant'" in json.loads(answer.data)["error"]["message"]
    assert message_of("0.23", **fields)["type"] == "message"


def test_stop_sequences_are_named_since_029() -> None:
    letters = list("aeio")
    fields = {"stop_sequences": letters, "max_tokens": 60}
    old = message_of("0.28", **fields)
    new = message_of("0.29", **fields)
    assert old["stop_reason"] == "end_turn"
    assert "stop_sequence" not in old
    assert new["stop_reason"] == "stop_sequence"
    assert new["stop_sequence"] in letters


def test_system_messages_keep_their_places_since_031() -> None:
    system_turn = {"role": "system", "content": "be brief"}
    messages = [*HELLO["messages"], system_turn]
    differences = {}
    for version in ("0.30", "0.31"):
        client = client_of(version)
        separate = HELLO | {"system": "a", "messages": messages}
        joined = HELLO | {"system": "abe brief"}
        counts = [
            json.loads(client.post(f"{PATH}/count_tokens", json=body).data)["input_tokens"]
            for body in (separate, joined)
        ]
        differences[version] = counts[0] - counts[1]
    assert differences["0.30"] == 0
    assert differences["0.31"] > 0


def test_usage_counts_created_blocks_apart_since_026() -> None:
    fields = {"messages": [{"role": "user", "content": "one two three " * 40}]}
    old, new = (message_of(version, **fields)["usage"] for version in ("0.25", "0.26"))
    assert old["cache_creation_input_tokens"] == 0
    assert new["cache_creation_input_tokens"] > 0
    assert old["input_tokens"] == new["input_tokens"] + new["cache_creation_input_tokens"]


def test_start_of_a_stream_has_no_usage_before_013() -> None:
    for version, has_usage in (("0.12", False), ("0.13", True)):
        stream = client_of(version).post(PATH, json=HELLO | {"stream": True})
        assert stream.data.endswith(DONE)
        events = parsed(stream.data.removesuffix(DONE))
        assert ("usage" in events[0]["message"]) == has_usage


@pytest.mark.parametrize(("version", "is_done"), [("0.18", True), ("0.19", False)])
def test_streams_end_with_done_before_019(version: str, is_done: bool) -> None:
    stream = client_of(version).post(PATH, json=HELLO | {"stream": True})
    assert stream.data.endswith(DONE) == is_done


def test_thoughts_and_the_choice_of_no_tool_are_errors_before_017() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    answer = {"role": "assistant", "content": [thought, {"type": "text", "text": "Hi"}]}
    for fields in (
        {"messages": [*HELLO["messages"], answer, *HELLO["messages"]]},
        {"tool_choice": {"type": "none"}},
    ):
        for version, status in (("0.16", 400), ("0.17", 200)):
            assert client_of(version).post(PATH, json=HELLO | fields).status_code == status


def test_rules_fail_with_400_before_018() -> None:
    for version, status in (("0.17", 400), ("0.18", 500)):
        assert client_of(version).post(PATH, json=HELLO | {"top_p": 0}).status_code == status
