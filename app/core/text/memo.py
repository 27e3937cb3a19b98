"""Token ids of prompts by their raw bytes, for the fast path, which must not wait.

Known prompts are looked up, short new ones tokenized at once: `MAX_PROMPT_BYTES` take less than a
millisecond.
"""

from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct

from app.core.base.caches import LimitedDict, RecentKeys
from app.core.base.clock.pause import TurnOverError
from app.core.text.base import PLAIN_CHAT, Tokenizer, TokenizerError

LIMIT_BYTES = 8 << 20
MAX_PROMPT_BYTES = 2048
ENTRY_BYTES = 300
"""Memory of an entry beside its bytes and ids; measured."""
ID_BYTES = 40
"""Memory of a token id and its place in a list, an upper bound: small ids are shared."""


class PromptMemo(LimitedDict[bytes, list[int]]):
    """Token ids of prompts of one kind, remembered from their second use.

    Most prompts are never repeated: keeping each would evict an entry outside the processor's
    caches, which takes more time than half of the tokenization. For one loop, and not for threads.
    """

    def __init__(
        self, encode: Callable[[bytes], list[int] | None], limit_bytes: int = LIMIT_BYTES
    ) -> None:
        """Creates an empty memo.

        `encode` returns the token ids of a new prompt; None for a prompt that is not supported.
        """
        super().__init__(limit_bytes)
        self._encode = encode
        self._seen = RecentKeys()

    def ids(self, key: bytes) -> list[int] | None:
        """Returns the token ids of a prompt, read-only.

        Returns None for a prompt that is long or not supported, and while the loop has no time.
        """
        known_ids = self.get(key)
        if known_ids is not None or len(key) > MAX_PROMPT_BYTES:
            return known_ids
        try:
            ids = self._encode(key)
        except (TokenizerError, TurnOverError):
            return None
        if self._seen.has(key) and ids is not None:
            self.add(key, ids, ENTRY_BYTES + len(key) + ID_BYTES * len(ids))
        return ids


def text_memo(tokenizer: Tokenizer) -> PromptMemo:
    """Returns a memo whose keys are texts in UTF-8."""
    return PromptMemo(lambda key: tokenizer.encode(key.decode(), True))


class TextMessage(Struct, forbid_unknown_fields=True):
    """A message of a plain chat."""

    role: Literal["system", "user", "assistant"]
    content: str


def chat_memo(tokenizer: Tokenizer) -> PromptMemo:
    """Returns a memo whose keys are JSON arrays of messages, which have only text."""
    decode = msgspec.json.Decoder(list[TextMessage]).decode

    def encode(key: bytes) -> list[int] | None:
        if tokenizer.is_time_dependent:
            return None
        try:
            messages = decode(key)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return tokenizer.encode_chat(msgspec.to_builtins(messages), PLAIN_CHAT)

    return PromptMemo(encode)
