"""The journal of a server with a console."""

from tests.application import app_of


def test_console_turns_the_journal_on() -> None:
    client = app_of("--seed", "1", "--console").test_client()
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    answer = client.get("/admin/journal").get_json()
    assert len(answer["entries"]) == 1
