"""The journal names the rule that answered, or that none did."""

from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.application import app_of
from tests.extensions.scripts.test_run_time import reply_text, rule, rules
from tests.extensions.scripts.test_unmatched import RULES, chat, message_of, set_rules


@pytest.fixture
def client() -> FlaskClient:
    return app_of("--seed", "1", "--journal", "10").test_client()


def test_journal_names_the_runtime_rule_that_answered() -> None:
    client = app_of("--force-dummy-tokenizer", "--journal", "4").test_client()
    [other] = rules(client, "", "PUT", {"rules": [rule("other")]})
    assert reply_text(client) == "other"
    journal: Any = client.get("/admin/journal?limit=1").json
    assert journal["entries"][0]["rule"] == f"script at run time: rule {other['number']} (other)"


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
