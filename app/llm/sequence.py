"""One reply in the engine: its state, its blocks, and its detokenizer."""

from array import array
from collections.abc import Hashable

import tokenizers
from tokenizers.decoders import DecodeStream

from app.engine.core.batch import SequenceState
from app.engine.core.wire import WireLogprob
from app.engine.kvcache.cache import KVCache
from app.engine.kvcache.cached_sequence import CachedSequence
from app.engine.kvcache.hashing import Prompt
from app.llm.sampler import SamplingState
from app.llm.sampling_params import SamplingParams


class Detokenizer:
    """Text of a reply, token by token, without incomplete characters and stop strings."""

    def __init__(self, backend: tokenizers.Tokenizer, params: SamplingParams) -> None:
        self.stopped: str | None = None
        """The stop string that was found."""
        self._backend = backend
        self._stops = params.stops
        self._include_stop = params.include_stop_str_in_output
        self._skip = params.skip_special_tokens
        self._stream = DecodeStream(skip_special_tokens=self._skip)
        self._ids: list[int] = []
        self._length = 0
        """Characters returned by the stream."""
        self._held = ""
        """Text held back, as a stop string may begin with it."""

    def add(self, token_id: int, may_stop: bool = True) -> str:
        """Returns the text that can be shown now. Without `may_stop` stop strings are ignored."""
        self._ids.append(token_id)
        try:
            text = self._stream.step(self._backend, token_id) or ""
        except Exception:  # the library raises this for text that does not extend its prefix
            self._stream = DecodeStream(skip_special_tokens=self._skip)
            text = self._stream.step(self._backend, token_id) or ""
        self._length += len(text)
        return self._checked(text, may_stop)

    def finish(self) -> str:
        """Returns the text held back, and any incomplete last character."""
        if self.stopped is not None:
            return ""
        whole = self._backend.decode(self._ids, skip_special_tokens=self._skip)
        tail = self._checked(whole[self._length :], may_stop=True)
        held, self._held = self._held, ""
        return tail + held

    def _checked(self, text: str, may_stop: bool) -> str:
        if not self._stops:
            return text
        text = self._held + text
        if not may_stop:
            self._held = ""
            return text
        found = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            place, self.stopped = min(found)
            self._held = ""
            return text[: place + len(self.stopped)] if self._include_stop else text[:place]
        # The end of the text that a stop string may begin with is held back.
        longest = min(len(text), max(map(len, self._stops)) - 1)
        sizes = range(longest, 0, -1)
        held = next(
            (n for n in sizes if any(stop.startswith(text[-n:]) for stop in self._stops)), 0
        )
        safe = len(text) - held
        self._held = text[safe:]
        return text[:safe]


class Sequence(SequenceState):
    """Choice `index` of the request `request_id`."""

    def __init__(
        self,
        request_id: Hashable,
        index: int,
        prompt: Prompt,
        sampling: SamplingState,
        *,
        priority: int,
        output_tokens: int,
        detokenizer: Detokenizer | None,
        queued_s: float,
        deadline_s: float,
    ) -> None:
        """Before `deadline_s` the sequence waits for its first step."""
        super().__init__(len(prompt.token_ids), output_tokens, priority)
        self.prompt = prompt
        self.request_id, self.index = request_id, index
        self.sampling, self.params = sampling, sampling.params
        self.prompt_ids, self.output_ids = sampling.prompt_ids, sampling.output_ids
        self.detokenizer, self.deadline_s = detokenizer, deadline_s
        self.stored = 0
        """Tokens whose keys and values are stored in the blocks."""
        self.prompt_logprobs: list[WireLogprob | None] = [None]
        self.queued_s = queued_s
        self.scheduled_s: float | None = None
        self.ended = False
        self.drafts: list[int] = []
        """Proposed next tokens, which the next step checks as far as it has room."""
        self.draft_limit = output_tokens
        self.known_ids = array("i")
        """Token ids of prompt and reply for `PromptLookup`, up to its latest draft."""

    def reply_ids(self, start: int, stop: int) -> list[int]:
        return self.output_ids[start:stop]


class PagedBlocks(KVCache):
    """The KV cache, which also notes how many tokens of a sequence are stored in its blocks."""

    def begin(self, sequence: CachedSequence, cached: int, count: int) -> None:
        super().begin(sequence, cached, count)
        assert isinstance(sequence, Sequence)
        sequence.stored = cached * self.block_size

    def filled(self, sequence: CachedSequence, is_stored: bool = False) -> None:
        """Caches the last part of a prompt at once, an earlier one when stored, as it may be
        dropped.
        """
        assert isinstance(sequence, Sequence)
        if is_stored or sequence.computed == sequence.prompt_tokens + sequence.written:
            super().filled(sequence)
