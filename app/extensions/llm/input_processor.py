"""Conversion of requests to sequences: token ids of prompts, and the state of sampling."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING

from app.core.engine.choice_request import TextForm
from app.core.text.huggingface import LocalTokenizer
from app.extensions.llm.errors import RequestError
from app.extensions.llm.sampling_params import SamplingParams
from app.extensions.llm.sampling_state import SamplingState
from app.extensions.llm.sequence import Detokenizer, PagedBlocks, QueuedRequest, Sequence

if TYPE_CHECKING:
    from app.extensions.llm.engine_options import EngineOptions
    from app.extensions.llm.step import ModelSizes
    from app.extensions.llm.structured_output import FormMatcher, Forms


class InputProcessor:
    """Checks requests to a model, and makes their sequences."""

    def __init__(
        self,
        tokenizer: LocalTokenizer | None,
        cache: PagedBlocks,
        config: ModelSizes,
        options: EngineOptions,
        eos_token_ids: frozenset[int],
        random: Random,
    ) -> None:
        """`random` draws the seeds of requests without one."""
        self.tokenizer = tokenizer
        self.eos_token_ids = eos_token_ids
        if tokenizer is not None:
            self.eos_token_ids = eos_token_ids | tokenizer.eos_token_ids
        cache_tokens = cache.capacity * options.block_size
        self.max_tokens = min(options.max_seq_length, config.max_position, cache_tokens)
        """Maximum tokens of a prompt and its reply."""
        self._cache = cache
        self._vocab_size = config.vocab_size
        self._form_cpu_s = options.form_cpu_s
        self._random = random

    def prompt_ids(self, prompt: str | Listed[int], params: SamplingParams) -> list[int]:
        """Returns the token ids of a prompt.

        Raises:
            RequestError: The model cannot serve the prompt or the parameters.
        """
        if isinstance(prompt, str):
            ids = self.encode(prompt)
        else:
            ids = list(prompt)
        self._check(ids, params)
        return ids

    def max_output_tokens(self, ids: Listed[int], params: SamplingParams) -> int:
        """Returns the maximum tokens of a reply to the prompt `ids`."""
        limit = self.max_tokens - len(ids)
        if params.max_tokens is not None:
            limit = min(params.max_tokens, limit)
        return limit

    def choices(
        self,
        request: QueuedRequest,
        ids: list[int],
        params: SamplingParams,
        *,
        cache_salt: str | None,
        form: FormMatcher | None,
    ) -> list[Sequence]:
        """Returns the `params.n` choices of a request with the prompt `ids`.

        Raises:
            RequestError: The structured output is invalid.
        """
        # Log probabilities of a prompt need the computation of all its tokens.
        reads_cache = params.prompt_logprobs is None
        choices = []
        for index in range(params.n):
            detokenizer = None
            if self.tokenizer is not None:
                detokenizer = Detokenizer(self.tokenizer.backend, params)
            sequence = Sequence(
                request,
                index,
                prompt=self._cache.make_prompt(ids, salt=cache_salt, reads=reads_cache),
                sampling=self._sampling(ids, params, index, form),
                detokenizer=detokenizer,
            )
            choices.append(sequence)
        return choices

    def compile(self, form: TextForm) -> FormMatcher:
        """Compiles the `form` for `LLMEngine.add_request`. Thread-safe.

        Raises:
            RequestError: The structured output is invalid.
        """
        if self.tokenizer is None:
            raise RequestError(
                "The model has no tokenizer, so structured outputs are not supported."
            )
        return self._forms.matcher(form)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of `text`. Raises RequestError without a tokenizer."""
        if self.tokenizer is None:
            raise RequestError("The model has no tokenizer, so prompts must consist of token IDs.")
        return self.tokenizer.encode(text, add_special_tokens)

    def _check(self, ids: Listed[int], params: SamplingParams) -> None:
        vocab_size = self._vocab_size
        if not ids:
            raise RequestError("The prompt is empty.")
        if min(ids) < 0 or max(ids) >= vocab_size:
            raise RequestError(
                f"The prompt contains a token ID outside the vocabulary of {vocab_size} tokens."
            )
        if len(ids) >= self.max_tokens:
            raise RequestError(
                f"The prompt has {len(ids)} tokens; "
                f"the model accepts at most {self.max_tokens - 1}."
            )
        params.check_vocabulary(vocab_size)
        if params.stops and self.tokenizer is None:
            raise RequestError("The model has no tokenizer, so stop strings are not supported.")

    def _sampling(
        self, ids: Listed[int], params: SamplingParams, index: int, form: FormMatcher | None
    ) -> SamplingState:
        if form is None and params.form is not None:
            form = self.compile(params.form)
        banned_ids = frozenset(params.stop_token_ids)
        # A complete structured output must end, so the end token is never ignored with one.
        if not params.ignore_eos or form is not None:
            banned_ids |= self.eos_token_ids
        bad_words: list[list[int]] = []
        for word in params.bad_words:
            bad_words += self._bad_word_ids(word)
        seed = params.seed
        if seed is None:
            seed = self._random.getrandbits(64)
        else:
            seed += index
        return SamplingState(
            params,
            prompt_ids=ids,
            output_ids=[],
            seed=seed,
            banned_ids=banned_ids,
            form=form,
            bad_words=bad_words,
        )

    def _bad_word_ids(self, word: str) -> list[list[int]]:
        """Returns the ids of a word at the start of a text and within a text.

        The latter count only if they are as many tokens, as in vLLM.
        """
        text = word.lstrip()
        first = self.encode(text, add_special_tokens=False)
        within = self.encode(" " + text, add_special_tokens=False)
        if not first:
            return []
        if within[:1] == first[:1] or len(within) != len(first):
            return [first]
        return [first, within]

    @cached_property
    def _forms(self) -> Forms:
        from app.extensions.llm.structured_output import Forms  # takes part of a second

        assert self.tokenizer is not None
        return Forms(
            self.tokenizer,
            vocab_size=self._vocab_size,
            eos_token_ids=self.eos_token_ids,
            cpu_limit_s=self._form_cpu_s,
        )
