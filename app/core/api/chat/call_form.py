"""Form of the chunks of tool calls."""

from typing import NamedTuple


class CallForm(NamedTuple):
    """Form of the chunks of tool calls, which differs between vLLM's parsers."""

    null_content: bool = True
    """A chunk with calls has the content null."""
    is_joined: bool = False
    """Name and first arguments are one item."""
    null_id: bool = False
    """Arguments after the first ones have the id null."""
    text_end: bool = False
    """The chunk of the finish reason has an empty content where the reply is text."""
