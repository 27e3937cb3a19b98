"""Rules with content blocks and counts of tokens: wrong values, sizes, and other APIs."""

from itertools import product
from typing import Any

import pytest
from flask.testing import FlaskClient

from app.extensions.scripts.reader import convert_script
from app.extensions.scripts.rules import ScriptError
from tests.application import app_of
from tests.extensions.scripts.test_run_time import RULES, rules
from tests.hostile_files import VALUES

KINDS = ("text", "thinking", "compaction", "tool_use", "server_tool_use", "unknown")
FIELDS = ("text", "thinking", "content", "input", "citations", "signature", "id", "name")
MESSAGES = "/v1/messages"


def rule(**then: object) -> dict[str, object]:
    """A rule for messages."""
    return {"when": {"api": "messages"}, "then": then}


def asked(**fields: object) -> dict[str, Any]:
    """A request for a message."""
    return {
        "model": "understudy-tiny",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "Hi"}],
        **fields,
    }


@pytest.fixture
def client() -> FlaskClient:
    return app_of("--seed", "1").test_client()


@pytest.mark.parametrize(
    ("document", "flaw"),
    [
        (rule(blocks=[{}]), "blocks.0: type must be a text"),
        (rule(blocks=[{"type": 3}]), "blocks.0: type must be a text"),
        (rule(blocks=[{"type": "text", "text": float("nan")}]), "blocks: must be JSON"),
        (rule(blocks=[{"type": "text", "text": "\ud800"}]), "blocks: must be JSON"),
        (rule(blocks=[{"type": "text", "text": "a" * (1 << 20)}]), "must not exceed 1 MiB"),
        (rule(blocks=[{"type": "text"}], text="a"), "text and blocks cannot be combined"),
        (rule(blocks=[]), "has no reply"),
        ({"then": {"blocks": [{"type": "text"}]}}, "blocks needs when: {api: messages}"),
        (rule(input_tokens=1), "input_tokens needs when: {api: count_tokens}"),
        ({"when": {"api": "count_tokens"}, "then": {"input_tokens": -1}}, "input_tokens"),
    ],
)
def test_wrong_blocks_and_counts_are_rejected_with_their_place(
    client: FlaskClient, document: dict[str, object], flaw: str
) -> None:
    from app.extensions.scripts.script_file import RuleState

    with pytest.raises(ScriptError) as error:
        script = convert_script({"rules": [document]}, "a.yaml")
        RuleState("a.yaml", 1, script.rules[0], uid=1, now_s=0.0)
    assert flaw in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_with_values_of_any_type_are_sent_unchanged(client: FlaskClient, kind: str) -> None:
    for field, value in product(FIELDS, VALUES):
        block = {"type": kind, field: value}
        answer = client.put(RULES, json=rule(blocks=[block]))
        if answer.status_code != 200:
            continue
        whole = client.post(MESSAGES, json=asked())
        stream = client.post(MESSAGES, json=asked(stream=True))
        assert whole.get_json()["content"] == [block]
        assert stream.get_data(as_text=True).endswith('data: {"type":"message_stop"}\n\n')


def test_deep_block_is_sent_or_rejected(client: FlaskClient) -> None:
    deep: object = "x"
    for _ in range(400):
        deep = [deep]
    answer = client.put(RULES, json=rule(blocks=[{"type": "result", "content": deep}]))
    assert answer.status_code in (200, 400)
    assert client.post(MESSAGES, json=asked()).status_code == 200


def test_rule_without_blocks_does_not_answer_what_vllm_rejects(client: FlaskClient) -> None:
    rules(client, "", "POST", {"then": {"text": "Anything."}})
    refused = asked(tools=[{"type": "web_search_20250305", "name": "web_search"}])
    assert client.post(MESSAGES, json=refused).status_code == 400
    rules(client, "", "POST", rule(blocks=[{"type": "text", "text": "Recorded."}]))
    answer = client.post(MESSAGES, json=refused).get_json()
    assert answer["content"] == [{"type": "text", "text": "Recorded."}]
    assert client.post(MESSAGES, json={**refused, "max_tokens": "x"}).status_code == 400


def test_faults_and_replies_for_other_apis_leave_counts_alone(client: FlaskClient) -> None:
    rules(client, "", "POST", {"then": {"fault": {"action": "error", "status": 503}}})
    count = client.post(f"{MESSAGES}/count_tokens", json=asked())
    assert count.status_code == 200
    rules(client, "", "PUT", {"when": {"api": "count_tokens"}, "then": {"input_tokens": 7}})
    count = client.post(f"{MESSAGES}/count_tokens", json=asked())
    assert count.get_json()["input_tokens"] == 7


@pytest.mark.parametrize(
    "messages", [None, 3, "x", [3], [{"role": "user", "content": [3, None, [], {"type": []}]}]]
)
def test_malformed_requests_keep_vllms_error_beside_recorded_blocks(
    client: FlaskClient, messages: object
) -> None:
    body = asked(messages=messages, tools=[3, None, {"type": "x"}])
    before = client.post(MESSAGES, json=body)
    rules(client, "", "POST", rule(blocks=[{"type": "text", "text": "Recorded."}]))
    after = client.post(MESSAGES, json=body)
    assert before.status_code == 400
    assert after.status_code in (200, 400)
    if after.status_code == 400:
        assert after.get_json() == before.get_json()
