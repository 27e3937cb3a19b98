"""A console shows the last requests, so it enables the journal."""

from tests.extensions.journal.test_journal import chat, client_of, entries


def test_console_enables_the_journal() -> None:
    client = client_of("--console")
    chat(client, "hello")
    assert len(entries(client)) == 1
