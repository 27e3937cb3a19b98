"""The journal names the rule that answered, or that none did."""

from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.application import app_of
from tests.extensions.scripts.test_run_time import reply_text, rule, rules
from tests.extensions.scripts.test_unmatched import RULES, chat, message_of, set_rules
from vllm_understudy.journal import JournalEntry


@pytest.fixture
def client() -> FlaskClient:
    return app_of("--seed", "1", "--journal", "10").test_client()


def test_journal_names_the_runtime_rule_that_answered() -> None:
    client = app_of("--force-dummy-tokenizer", "--journal", "4").test_client()
    [other] = rules(client, "", "PUT", {"rules": [rule("other")]})
    assert reply_text(client) == "other"
    journal: Any = client.get("/admin/journal?limit=1").json
    assert journal["entries"][0]["rule"] == f"script at run time: rule {other['number']} (other)"


def test_journal_shows_a_scripted_tool_call_as_a_call(client: FlaskClient) -> None:
    call = {"name": "get_weather", "arguments": {"city": "Rome", "api_key": "sk-1234567890abcdef"}}
    set_rules(client, {"then": {"text": "Wait.", "tool_calls": [call]}})
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]
    body = {"messages": [{"role": "user", "content": "Is it warm?"}], "tools": tools}
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    journal: Any = client.get("/admin/journal").json
    [row] = journal["entries"]
    [shown] = row["tool_calls"]
    assert shown["name"] == "get_weather" and '"city": "Rome"' in shown["arguments"]
    entry = JournalEntry.from_row(row)
    assert str(entry).endswith(f" 'Is it warm?' -> 'Wait.', get_weather({shown['arguments']})")
    assert str(replace(entry, text="")).endswith(f" -> get_weather({shown['arguments']})")


def test_journal_contains_the_error_of_an_unmatched_request(client: FlaskClient) -> None:
    set_rules(client, {"name": "weather", "when": {"message": "x"}, "then": {"text": "a"}})
    message_of(chat(client, "the news"))
    entries: Any = client.get("/admin/journal").json
    [entry] = entries["entries"]
    assert entry["unmatched"]
    assert "rule 1 (weather)" in entry["error"]
    assert entry["rule"] is None


def test_empty_scope_selects_unscoped_rules_and_entries(client: FlaskClient) -> None:
    set_rules(client, {"then": {"text": "of one"}}, query="?scope=one")
    set_rules(client, {"then": {"text": "of all"}})
    chat(client, "first")
    chat(client, "second", X_Understudy_Scope="one")
    entries: Any = client.get("/admin/journal?scope=").json
    assert [entry["text"] for entry in entries["entries"]] == ["of all"]
    client.delete("/admin/journal?scope=")
    entries = client.get("/admin/journal").json
    assert [entry["text"] for entry in entries["entries"]] == ["of one"]
    rows: Any = client.delete(f"{RULES}?scope=").json
    assert [row["scope"] for row in rows["rules"]] == ["one"]
