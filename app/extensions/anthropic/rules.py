"""Rules of Messages that differ between versions of vLLM."""

from msgspec import Struct


class MessageRules(Struct, frozen=True, kw_only=True):
    """The defaults are the rules of the newest version."""

    has_anthropic_types: bool = True
    """Errors have Anthropic's types, and follow the end of an open block in a stream."""
    probes_model_template: bool = True
    """The model's own chat template decides whether system turns stay in place. Otherwise, only the
    one of `--chat-template` does, and system turns are joined without it."""
    ends_with_done: bool = False
    """Streams end with `[DONE]`."""
