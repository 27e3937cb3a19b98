"""Tokenization of prompts for any model, within a time limit."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from sys import getsizeof
from typing import TypeVar

import gevent

from app.core.base.caches import ComputedMemo, Memo
from app.core.base.fair_slots import FairSlots
from app.core.base.overload import SlotsBusyError
from app.core.text.base import PLAIN_CHAT, ChatOptions, Message, Tokenizer
from app.core.text.huggingface import LocalTokenizer
from app.extensions.kv_index.metrics import IndexMetrics

T = TypeVar("T")

WORKERS = 5
"""Number of prompts that are tokenized at a time."""
MAX_WAITING = 1_000
"""Maximum number of prompts that wait."""
PROMPTS_LIMIT_BYTES = 48 << 20
"""Memory limit of prompts with remembered token ids, in bytes."""


class TokenizationTimeoutError(Exception):
    """Raised when a prompt was not tokenized in time."""


class TokenizationBusyError(Exception):
    """Raised when too many prompts wait for tokenization."""


class Tokenization:
    """Converts prompts to token ids, and remembers the latest prompts. Greenlets may share it.

    Every method may raise TokenizerError (no tokenizer for the model, or an unusable prompt),
    `TokenizationTimeoutError` and `TokenizationBusyError`.
    """

    def __init__(
        self,
        get_tokenizer: Callable[[str], Tokenizer],
        metrics: IndexMetrics,
        timeout_s: float,
    ) -> None:
        """Creates a tokenization with the tokenizers of `TokenizerLibrary.get`.

        `timeout_s` limits one prompt, without loading its tokenizer.
        """
        self._get_tokenizer = get_tokenizer
        self._metrics = metrics
        self._timeout_s = timeout_s
        self.prompts: Memo[tuple[str, bool, str], array[int]] = ComputedMemo(PROMPTS_LIMIT_BYTES)
        """Model, special tokens or not, and text -> token ids."""
        self._workers = FairSlots(WORKERS, MAX_WAITING)

    def encode(self, model: str, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of a text."""
        tokenizer = self._get_tokenizer(model)
        return self._run(lambda: self._encode(model, tokenizer, text, add_special_tokens))

    def encode_chat(
        self, model: str, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT
    ) -> list[int]:
        """Returns the token ids of a conversation."""
        tokenizer = self._get_tokenizer(model)
        if tokenizer.longest_token is None:  # a remote tokenizer: one call renders and tokenizes
            return self._run(lambda: tokenizer.encode_chat(messages, options))

        def render_and_encode() -> list[int]:
            text = self._render_chat(tokenizer, messages, options)
            return self._encode(model, tokenizer, text, options.add_special_tokens)

        return self._run(render_and_encode)

    def render_chat(
        self, model: str, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT
    ) -> str:
        """Returns the text of a conversation."""
        tokenizer = self._get_tokenizer(model)
        return self._run(lambda: self._render_chat(tokenizer, messages, options))

    def _run(self, work: Callable[[], T]) -> T:
        """Runs `work` when a worker is free, within the time limit."""
        try:
            with gevent.Timeout(self._timeout_s, TimeoutError), self._workers:
                return work()
        except SlotsBusyError:
            raise TokenizationBusyError("Too many prompts are waiting for the tokenizer.") from None
        except TimeoutError:
            raise TokenizationTimeoutError(
                f"The prompt was not tokenized within {self._timeout_s:g} seconds."
            ) from None

    def _encode(
        self, model: str, tokenizer: Tokenizer, text: str, add_special_tokens: bool
    ) -> list[int]:
        """Returns token ids, cached for local tokenizers; a remote tokenizer is always called."""
        started_s = time.monotonic()
        if isinstance(tokenizer, LocalTokenizer):
            key = (model, add_special_tokens, text)
            cached = self.prompts.get(key)
            if cached is None:
                cached = array("I", tokenizer.encode(text, add_special_tokens))
                self.prompts.put(key, cached, getsizeof(text) + getsizeof(cached))
            ids = cached.tolist()
        else:
            ids = tokenizer.encode(text, add_special_tokens)
        self._metrics.record_tokenization(tokenizer.name, time.monotonic() - started_s, len(ids))
        return ids

    def _render_chat(
        self, tokenizer: Tokenizer, messages: Sequence[Message], options: ChatOptions
    ) -> str:
        started_s = time.monotonic()
        text = tokenizer.render_chat(messages, options)
        self._metrics.record_rendering(tokenizer.name, time.monotonic() - started_s)
        return text
