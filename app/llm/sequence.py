"""One reply in the engine: its state, its blocks, its construction from a request, and its detokenizer."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Listed
from random import Random
from threading import Lock
from typing import TYPE_CHECKING

import tokenizers
from tokenizers.decoders import DecodeStream

from app.engine.core.wire import TextForm, WireLogprob
from app.engine.kvcache.cache import CachedSequence, KVCache
from app.engine.kvcache.prompt import Prompt
from app.llm.errors import RequestError
from app.llm.sampler import Form, SamplingState
from app.llm.sampling_params import SamplingParams
from app.text.huggingface import LocalTokenizer

if TYPE_CHECKING:
    from app.llm.structured_output import Forms


class Sequence(CachedSequence):
    """Choice `index` of the request `request_id`."""

    adapter: str | None = None
    """The engine has no LoRA adapters."""
    __slots__ = (
        *("deadline_s", "detokenizer", "ended", "index", "key", "output_ids", "params", "prompt_ids"),
        *("prompt_logprobs", "queued_s", "request_id", "sampling", "scheduled_s", "stored"),
    )

    def __init__(
        self,
        request_id: str,
        index: int,
        prompt: Prompt,
        *,
        priority: int,
        output_tokens: int,
        detokenizer: Detokenizer | None,
        sampling: SamplingState,
        deadline_s: float | None,
    ) -> None:
        super().__init__(prompt, len(prompt.token_ids), output_tokens, priority)
        self.request_id, self.index = request_id, index
        self.key = f"{request_id} {index}"
        self.params = sampling.params
        self.prompt_ids = sampling.prompt_ids
        self.detokenizer = detokenizer
        self.deadline_s = deadline_s
        """Time at which the sequence stops waiting for its first step."""
        self.sampling = sampling
        self.output_ids = sampling.output_ids
        self.stored = 0
        """Tokens whose keys and values are stored in the blocks."""
        self.prompt_logprobs: list[WireLogprob | None] = [None]
        self.queued_s = 0.0
        self.scheduled_s: float | None = None
        """Time of the first admission."""
        self.ended = False

    @property
    def token_ids(self) -> list[int]:
        return [*self.prompt_ids, *self.output_ids]

    def reply_ids(self, start: int, stop: int) -> Listed[int]:
        return self.output_ids[start:stop]

    def part(self, start: int, end: int) -> Listed[int]:
        """Returns the tokens from `start` to `end` (exclusive)."""
        return (self.prompt_ids if end <= len(self.prompt_ids) else self.token_ids)[start:end]


class PagedBlocks(KVCache):
    """The KV cache, which also notes how many tokens of a sequence are stored in its blocks."""

    def begin(self, sequence: CachedSequence, found: int, count: int) -> None:
        super().begin(sequence, found, count)
        assert isinstance(sequence, Sequence)
        sequence.stored = found * self.block_size


class RequestPreprocessor:
    """Makes sequences from requests. Texts, stop strings and structured outputs need a `tokenizer`.

    `random` draws seeds for requests without one; `max_tokens` limits a prompt with its reply.
    """

    def __init__(
        self,
        tokenizer: LocalTokenizer | None,
        cache: KVCache,
        vocab_size: int,
        max_tokens: int,
        random: Random,
        now: Callable[[], float],
        form_cpu_s: float | None = None,
    ) -> None:
        self.max_tokens = max_tokens
        self._tokenizer, self._cache, self._vocab_size = tokenizer, cache, vocab_size
        self._random, self._now, self._form_cpu_s = random, now, form_cpu_s
        self._forms: Forms | None = None
        self._lock = Lock()

    def check(self, ids: Listed[int], params: SamplingParams) -> None:
        vocabulary = self._vocab_size
        if not ids:
            raise RequestError("The prompt is empty.")
        if min(ids) < 0 or max(ids) >= vocabulary:
            raise RequestError(f"The prompt has a token id outside the vocabulary of {vocabulary}.")
        if len(ids) >= self.max_tokens:
            raise RequestError(f"The prompt has {len(ids)} tokens, the model takes {self.max_tokens - 1}.")
        params.check_vocabulary(vocabulary)
        if params.stops and self._tokenizer is None:
            raise RequestError("The model has no tokenizer, so stop strings cannot be found.")

    def sequence(
        self,
        request_id: str,
        index: int,
        ids: Listed[int],
        params: SamplingParams,
        *,
        priority: int,
        cache_salt: str | None,
        max_wait_s: float | None,
        eos_token_ids: frozenset[int],
        form: Form | None,
    ) -> Sequence:
        """Returns a choice of a request; `form` is its structured output if already compiled."""
        room = self.max_tokens - len(ids)
        return Sequence(
            request_id,
            index,
            # Log probabilities of a prompt need the computation of all its tokens.
            self._cache.make_prompt(ids, salt=cache_salt, reads=params.prompt_logprobs is None),
            priority=priority,
            output_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            detokenizer=None if self._tokenizer is None else Detokenizer(self._tokenizer.backend, params),
            sampling=self._sampling(ids, params, index, eos_token_ids, form),
            deadline_s=None if max_wait_s is None else self._now() + max_wait_s,
        )

    def _sampling(
        self,
        ids: Listed[int],
        params: SamplingParams,
        index: int,
        eos_token_ids: frozenset[int],
        form: Form | None,
    ) -> SamplingState:
        if form is None and params.form is not None:
            form = self.compile(params.form, eos_token_ids)
        # A complete structured output must end, so the end token is never ignored with one.
        eos = frozenset() if params.ignore_eos and form is None else eos_token_ids
        seed = self._random.getrandbits(64) if params.seed is None else params.seed + index
        return SamplingState(
            params,
            ids,
            output_ids=[],
            random=Random(seed),
            banned_ids=eos | frozenset(params.stop_token_ids),
            form=form,
            bad_words=[word_ids for word in params.bad_words for word_ids in self._tokens_of(word)],
        )

    def compile(self, form: TextForm, eos_token_ids: frozenset[int]) -> Form:
        """Compiles a structured output. Thread-safe. Raises RequestError for a wrong one."""
        if self._tokenizer is None:
            raise RequestError("The model has no tokenizer, so no text can have a form.")
        with self._lock:
            if self._forms is None:
                from app.llm.structured_output import Forms  # takes part of a second

                self._forms = Forms(self._tokenizer, self._vocab_size, eos_token_ids, self._form_cpu_s)
        return self._forms.matcher(form)

    def _tokens_of(self, word: str) -> list[list[int]]:
        """Returns the tokens of a word at the start of a text and, if they are as many, within a text."""
        if self._tokenizer is None:
            raise RequestError("The model has no tokenizer, so words have no tokens.")
        first, within = (self._tokenizer.encode(space + word.lstrip(), False) for space in ("", " "))
        differs = within[:1] != first[:1] and len(within) == len(first)
        return [ids for ids in ([first, within] if differs else [first]) if ids]


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
        text = self._step(token_id)
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

    def _step(self, token_id: int) -> str:
        try:
            return self._stream.step(self._backend, token_id) or ""
        except Exception:  # the library raises this for text that does not extend its prefix
            self._stream = DecodeStream(skip_special_tokens=self._skip)
            return self._stream.step(self._backend, token_id) or ""

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
        safe = len(text) - self._beginning(text)
        self._held = text[safe:]
        return text[:safe]

    def _beginning(self, text: str) -> int:
        """Returns the number of characters at the end of `text` that may begin a stop string."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        return next((n for n in range(longest, 0, -1) if self._begins(text[-n:])), 0)

    def _begins(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self._stops)
