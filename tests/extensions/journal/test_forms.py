"""The journal of a server whose replies have a form."""

from tests.extensions.journal.test_journal import chat, client_of, entries


def test_journal_text_contains_no_tool_calls() -> None:
    client = client_of("--journal", "10")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    answer = chat(client, "call", tools=[tool], tool_choice="required", max_tokens=300)
    assert answer["choices"][0]["message"]["tool_calls"]
    assert [entry["text"] for entry in entries(client)] == [""]
