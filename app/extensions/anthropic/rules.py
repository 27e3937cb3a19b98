"""Rules of Messages that differ between versions of vLLM."""

from msgspec import Struct


class MessageRules(Struct, frozen=True, kw_only=True):
    """The defaults are the rules of the newest version."""

    has_anthropic_types: bool = True
    """Errors have Anthropic's types, and follow the end of an open block in a stream."""
