"""The journal names the rule that answered."""

from typing import Any

from tests.application import app_of
from tests.extensions.scripts.test_run_time import rule, rules, said


def test_the_journal_names_a_rule_of_the_run_time() -> None:
    client = app_of("--force-dummy-tokenizer", "--journal", "4").test_client()
    [other] = rules(client, "", "PUT", {"rules": [rule("other")]})
    assert said(client) == "other"
    journal: Any = client.get("/admin/journal?limit=1").json
    assert journal["entries"][0]["rule"] == f"script at run time: rule {other['id']} (other)"
