"""Tokenization of prompts for any model, within a time limit."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from sys import getsizeof

import gevent

from app.core.base.caches import ComputedMemo, Memo
from app.core.base.clock.pause import pause_if_possible
from app.core.base.fair_slots import FairSlots
from app.core.base.overload import SlotsBusyError
from app.core.text.base import PLAIN_CHAT, ChatOptions, Message, Tokenizer
from app.core.text.huggingface import LocalTokenizer
from app.extensions.kv_index.metrics import IndexMetrics

WORKERS = 5
"""Number of prompts that are tokenized at a time."""
LONG_WORKERS = 2
"""The same for long prompts, which take up to seconds: short ones do not wait for them."""
LONG_PROMPT = 1 << 14
"""Characters above which a prompt is long."""
PACKED_PER_PAUSE = 1 << 17
"""Token ids that are packed without a pause, in about 3 ms."""
MAX_WAITING = 1_000
"""Maximum number of prompts that wait for the workers of their length."""
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
        self._workers_of_long_prompts = FairSlots(LONG_WORKERS, MAX_WAITING)

    def encode(self, model: str, text: str, add_special_tokens: bool = True) -> Sequence[int]:
        """Returns the token ids of a text."""
        tokenizer = self._get_tokenizer(model)
        with self._time_limit():
            return self._encode(model, tokenizer, text, add_special_tokens)

    def encode_chat(
        self, model: str, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT
    ) -> Sequence[int]:
        """Returns the token ids of a conversation."""
        tokenizer = self._get_tokenizer(model)
        with self._time_limit():
            if tokenizer.longest_token is None:  # a remote tokenizer: one call renders and encodes
                with self._workers:
                    return tokenizer.encode_chat(messages, options)
            text = self._render_chat(tokenizer, messages, options)
            return self._encode(model, tokenizer, text, options.add_special_tokens)

    def render_chat(
        self, model: str, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT
    ) -> str:
        """Returns the text of a conversation."""
        tokenizer = self._get_tokenizer(model)
        with self._time_limit():
            return self._render_chat(tokenizer, messages, options)

    @contextmanager
    def _time_limit(self) -> Iterator[None]:
        """Limits the time of the block, which may wait for workers."""
        try:
            with gevent.Timeout(self._timeout_s, TimeoutError):
                yield
        except SlotsBusyError:
            raise TokenizationBusyError("Too many prompts are waiting for the tokenizer.") from None
        except TimeoutError:
            raise TokenizationTimeoutError(
                f"The prompt was not tokenized within {self._timeout_s:g} seconds."
            ) from None

    def _encode(
        self, model: str, tokenizer: Tokenizer, text: str, add_special_tokens: bool
    ) -> Sequence[int]:
        """Returns token ids, cached for local tokenizers; a remote tokenizer is always called."""
        started_s = time.monotonic()
        workers = self._workers if len(text) <= LONG_PROMPT else self._workers_of_long_prompts
        ids: Sequence[int]
        with workers:
            if isinstance(tokenizer, LocalTokenizer):
                key = (model, add_special_tokens, text)
                cached = self.prompts.get(key)
                if cached is None:
                    cached = _packed(tokenizer.encode(text, add_special_tokens))
                    self.prompts.put(key, cached, getsizeof(text) + getsizeof(cached))
                ids = cached[:]
            else:
                ids = tokenizer.encode(text, add_special_tokens)
        self._metrics.record_tokenization(tokenizer.name, time.monotonic() - started_s, len(ids))
        return ids

    def _render_chat(
        self, tokenizer: Tokenizer, messages: Sequence[Message], options: ChatOptions
    ) -> str:
        started_s = time.monotonic()
        with self._workers:
            text = tokenizer.render_chat(messages, options)
        self._metrics.record_rendering(tokenizer.name, time.monotonic() - started_s)
        return text


def _packed(ids: list[int]) -> array[int]:
    """Returns token ids as 32-bit numbers; pauses, because a million take 25 ms."""
    packed = array("I")
    for start in range(0, len(ids), PACKED_PER_PAUSE):
        if start:
            pause_if_possible()
        packed.fromlist(ids[start : start + PACKED_PER_PAUSE])
    return packed
