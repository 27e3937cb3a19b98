"""Tokens of the texts in traces, estimated from their characters."""

from contextlib import suppress

from config.untrusted import UntrustedDataError, decode_untrusted

CHARACTERS_PER_TOKEN = 4
TEXT_KEYS = ("content", "text", "parts")
"""Fields of messages, and of their parts, with texts."""


def estimated_tokens(value: object) -> int:
    """Returns the tokens of a text, a message or a list of messages; also of their JSON."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        with suppress(UntrustedDataError):  # a text that begins like JSON
            value = decode_untrusted(value)
    return -(-_characters(value) // CHARACTERS_PER_TOKEN)


def _characters(value: object) -> int:
    """Returns the number of characters in the texts of a value."""
    count = 0
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            count += len(item)
        elif isinstance(item, list):
            pending += item
        elif isinstance(item, dict):
            pending += [item[key] for key in TEXT_KEYS if key in item]
    return count
