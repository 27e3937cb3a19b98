"""Tags in a text that comes bit by bit."""

from __future__ import annotations


def overlap(text: str, tag: str) -> int:
    """Characters at the end of `text` with which `tag` may have begun."""
    longest = min(len(text), len(tag) - 1)
    return next((n for n in range(longest, 0, -1) if tag.startswith(text[-n:])), 0)


def cut(text: str, tag: str) -> tuple[str, str, bool]:
    """What is before and behind `tag`, and True; without it what surely is not of it, the rest, and False."""
    before, found, behind = text.partition(tag)
    if found:
        return before, behind, True
    safe = len(text) - overlap(text, tag)
    return text[:safe], text[safe:], False
