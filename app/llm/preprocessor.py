"""From a request to a sequence that the scheduler takes, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from threading import Lock
from typing import TYPE_CHECKING

from app.engine.wire import TextForm
from app.kvcache.cache import KVCache
from app.llm.detokenizer import Detokenizer
from app.llm.errors import RequestError
from app.llm.requests import EngineRequest
from app.llm.sampler import Form, SamplingState
from app.llm.sampling_params import SamplingParams
from app.llm.sequence import Sequence
from app.tokenization.huggingface import LocalTokenizer

if TYPE_CHECKING:
    from app.llm.structured_output import Forms


class RequestPreprocessor:
    """`tokenizer` None: no texts, no stop strings, no forms. `random` gives seeds to who brings none."""

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
        """Of a prompt and its reply."""
        self._tokenizer, self._cache, self._vocab_size = tokenizer, cache, vocab_size
        self._random, self._now, self._form_cpu_s = random, now, form_cpu_s
        self._forms: Forms | None = None
        self._lock = Lock()

    def check(self, request: EngineRequest) -> None:
        """RequestError for what cannot be served."""
        ids, vocabulary = request.prompt_ids, self._vocab_size
        if not ids:
            raise RequestError("The prompt is empty.")
        if min(ids) < 0 or max(ids) >= vocabulary:
            raise RequestError(f"The prompt has a token id outside the vocabulary of {vocabulary}.")
        if len(ids) >= self.max_tokens:
            raise RequestError(f"The prompt has {len(ids)} tokens, the model takes {self.max_tokens - 1}.")
        request.params.check_vocabulary(vocabulary)
        if request.params.stops and self._tokenizer is None:
            raise RequestError("The model has no tokenizer, so stop strings cannot be found.")

    def sequence(
        self, request: EngineRequest, index: int, eos_token_ids: frozenset[int], form: Form | None
    ) -> Sequence:
        """A choice of a request; with its `form`, if that is compiled already."""
        params, ids = request.params, request.prompt_ids
        room = self.max_tokens - len(ids)
        wait = request.max_wait_s
        # For log probabilities of the prompt all of it has to be computed.
        reads = params.prompt_logprobs is None
        prompt = self._cache.prompt(ids, salt=request.cache_salt, reads=reads)
        return Sequence(
            request,
            index,
            output_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            prompt=prompt,
            detokenizer=self._detokenizer(params),
            sampling=self._sampling(request, index, eos_token_ids, form),
            deadline_s=None if wait is None else self._now() + wait,
        )

    def _sampling(
        self, request: EngineRequest, index: int, eos_token_ids: frozenset[int], form: Form | None
    ) -> SamplingState:
        params = request.params
        if form is None and params.form is not None:
            form = self.compile(params.form, eos_token_ids)
        # A form ends where it is complete: with it an end is never ignored.
        eos = frozenset() if params.ignore_eos and form is None else eos_token_ids
        seed = self._random.getrandbits(64) if params.seed is None else params.seed + index
        return SamplingState(
            params,
            request.prompt_ids,
            output_ids=[],
            random=Random(seed),
            banned_ids=eos | frozenset(params.stop_token_ids),
            form=form,
            bad_words=[ids for word in params.bad_words for ids in self._tokens_of(word)],
        )

    def _detokenizer(self, params: SamplingParams) -> Detokenizer | None:
        if self._tokenizer is None:
            return None
        return Detokenizer(
            self._tokenizer.backend,
            params.stops,
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
        )

    def compile(self, form: TextForm, eos_token_ids: frozenset[int]) -> Form:
        """RequestError for a form that cannot be. Others may run meanwhile, in other threads."""
        if self._tokenizer is None:
            raise RequestError("The model has no tokenizer, so no text can have a form.")
        with self._lock:
            if self._forms is None:
                from app.llm.structured_output import Forms  # takes part of a second

                self._forms = Forms(self._tokenizer, self._vocab_size, eos_token_ids, self._form_cpu_s)
        return self._forms.matcher(form)

    def _tokens_of(self, word: str) -> list[list[int]]:
        """Of a word at the start of a text and, where that takes as many, within one, as vLLM has it."""
        if self._tokenizer is None:
            raise RequestError("The model has no tokenizer, so words have no tokens.")
        first, within = (self._tokenizer.encode(space + word.lstrip(), False) for space in ("", " "))
        differs = within[:1] != first[:1] and len(within) == len(first)
        return [ids for ids in ([first, within] if differs else [first]) if ids]
