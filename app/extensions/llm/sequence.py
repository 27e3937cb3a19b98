"""One reply in the engine: its state, its blocks, and its detokenizer."""

from array import array
from collections.abc import Hashable
from dataclasses import dataclass

import tokenizers
from tokenizers.decoders import DecodeStream

from app.core.engine.batch import SequenceState
from app.core.engine.kvcache.cache import KVCache
from app.core.engine.kvcache.cached_sequence import CachedSequence
from app.core.engine.kvcache.hashing import Prompt
from app.extensions.llm.sampling_params import SamplingParams
from app.extensions.llm.sampling_state import SamplingState
from app.extensions.llm.wire import WireLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRequest:
    """Facts that the choices of a request have in common, with times in seconds."""

    request_id: Hashable
    priority: int
    max_output_tokens: int
    queued_s: float
    deadline_s: float
    """Latest time of the first step."""


class Sequence(SequenceState):
    """Choice `index` of `request`."""

    def __init__(
        self,
        request: QueuedRequest,
        index: int,
        prompt: Prompt,
        sampling: SamplingState,
        detokenizer: "Detokenizer | None",
    ) -> None:
        super().__init__(len(prompt.token_ids), request.max_output_tokens, request.priority)
        self.prompt = prompt
        self.request_id = request.request_id
        self.index = index
        self.sampling = sampling
        self.params = sampling.params
        self.prompt_ids = sampling.prompt_ids
        self.output_ids = sampling.output_ids
        self.detokenizer = detokenizer
        self.deadline_s = request.deadline_s
        self.stored = 0
        """Tokens whose keys and values are stored in the blocks."""
        self.prompt_logprobs: list[WireLogprob | None] = [None]
        self.queued_s = request.queued_s
        self.scheduled_s: float | None = None
        self.ended = False
        self.drafts: list[int] = []
        """Proposed next tokens, which the next step checks as far as it has room."""
        self.draft_limit = request.max_output_tokens
        self.lookup_ids = array("i")
        """Token ids of prompt and reply for `PromptLookup`, up to its latest draft."""

    def reply_ids(self, start: int, stop: int) -> list[int]:
        """Returns the ids of the reply from `start` to `stop` (exclusive)."""
        return self.output_ids[start:stop]


class PagedBlocks(KVCache):
    """The KV cache, which also counts the tokens of a sequence that are stored in its blocks."""

    def begin(self, sequence: CachedSequence, cached: int, count: int) -> None:
        """Assigns the `cached` blocks, whose tokens are stored already, and `count` new ones."""
        super().begin(sequence, cached, count)
        assert isinstance(sequence, Sequence)
        sequence.stored = cached * self.block_size

    def filled(self, sequence: CachedSequence, is_stored: bool = False) -> None:
        """Caches the computed blocks of a prompt.

        The last part of a prompt is cached at once, an earlier one when stored, as it may be
        dropped.
        """
        assert isinstance(sequence, Sequence)
        if is_stored or sequence.computed == sequence.prompt_tokens + sequence.written:
            super().filled(sequence)


class Detokenizer:
    """Text of a reply, token by token, without incomplete characters and stop strings."""

    def __init__(self, backend: tokenizers.Tokenizer, params: SamplingParams) -> None:
        self.stopped: str | None = None
        """The stop string that ended the reply."""
        self._backend = backend
        self._stops = params.stops
        self._include_stop = params.include_stop_str_in_output
        self._skips_special_tokens = params.skip_special_tokens
        self._stream = DecodeStream(skip_special_tokens=self._skips_special_tokens)
        self._ids: list[int] = []
        self._length = 0
        """Characters returned by the stream."""
        self._held_text = ""
        """Text held back, as a stop string may begin with it."""

    def add(self, token_id: int, may_stop: bool = True) -> str:
        """Returns the text that can be shown now. Without `may_stop` stop strings are ignored."""
        self._ids.append(token_id)
        try:
            text = self._stream.step(self._backend, token_id) or ""
        except Exception:  # the library raises this for text that does not extend its prefix
            self._stream = DecodeStream(skip_special_tokens=self._skips_special_tokens)
            text = self._stream.step(self._backend, token_id) or ""
        self._length += len(text)
        return self._visible(text, may_stop)

    def finish(self) -> str:
        """Returns the text held back, and any incomplete last character."""
        if self.stopped is not None:
            return ""
        text = self._backend.decode(self._ids, skip_special_tokens=self._skips_special_tokens)
        tail = self._visible(text[self._length :], may_stop=True)
        held_text = self._held_text
        self._held_text = ""
        return tail + held_text

    def _visible(self, text: str, may_stop: bool) -> str:
        """Returns what can be shown of the text held back and `text`."""
        if not self._stops:
            return text
        text = self._held_text + text
        self._held_text = ""
        if not may_stop:
            return text
        stops = []
        for stop in self._stops:
            position = text.find(stop)
            if position >= 0:
                stops.append((position, stop))
        if stops:
            position, self.stopped = min(stops)
            if self._include_stop:
                position += len(self.stopped)
            return text[:position]
        visible_length = len(text) - self._held_length(text)
        self._held_text = text[visible_length:]
        return text[:visible_length]

    def _held_length(self, text: str) -> int:
        """Returns the length of the longest end of `text` that a stop string begins with."""
        max_length = min(len(text), max(map(len, self._stops)) - 1)
        for length in range(max_length, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
