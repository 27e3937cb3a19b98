"""What can be wrong with a script, and with one answer of it."""

from __future__ import annotations


class ScriptError(ValueError):
    """A file that cannot be used. Its text is one line with the file, the rule's number and the key."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class ScriptFailure(Exception):
    """A rule fits a request and cannot answer it; one sentence that names file and rule."""
