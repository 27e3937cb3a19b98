"""Tokenizers: text to token ids and back, conversations to prompts.

`load_tokenizer` returns one of three kinds behind the `Tokenizer` interface: the embedded default, a
`tokenizer.json` from a folder or the hub, or a remote vLLM render service.
"""

from app.text.base import (
    PLAIN_CHAT,
    ChatOptions,
    ChatTemplateError,
    Message,
    TokenIdError,
    Tokenizer,
    TokenizerError,
    TokenizerInputError,
    TokenizerLoadError,
    TokenizerServiceError,
)
from app.text.huggingface import LocalTokenizer, default_tokenizer, load_tokenizer

__all__ = [
    "PLAIN_CHAT",
    "ChatOptions",
    "ChatTemplateError",
    "LocalTokenizer",
    "Message",
    "TokenIdError",
    "Tokenizer",
    "TokenizerError",
    "TokenizerInputError",
    "TokenizerLoadError",
    "TokenizerServiceError",
    "default_tokenizer",
    "load_tokenizer",
]
