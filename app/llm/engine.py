"""The engine: requests go in, each step brings outputs.

It runs on the scheduler and the KV cache of the simulation, so steps, prefix hits, preemptions and KV events
are the same; here the blocks hold keys and values, and tokens are computed. Not for several threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Listed
from random import Random
from typing import Final

from msgspec import Struct

from app.engine.batch import Batch, SchedulerLimits
from app.engine.scheduler import Scheduler
from app.kvcache.cache import KVCache
from app.kvcache.events import KVEvent
from app.kvcache.hashing import BlockHasher
from app.kvcache.prompt import Prompt
from app.llm.detokenizer import Detokenizer
from app.llm.errors import QueueFull, RequestError
from app.llm.kv_store import DecodeRow
from app.llm.model_runner import Chunk, ModelRunner, StepLogits
from app.llm.requests import EngineOutput, EngineRequest, FinishReason
from app.llm.sampler import Sampled, logprobs_of, sample
from app.llm.sampling_params import SamplingParams
from app.llm.sequence import PagedBlocks, PriorityQueue, Sequence
from app.tokenization.huggingface import LocalTokenizer

NO_NUMBERS: Final = "The model's logits for this request are not numbers."


class EngineOptions(Struct, frozen=True, kw_only=True):
    """Sizes and limits; names are vLLM's where it has them."""

    num_blocks: int = 1024
    block_size: int = 16
    max_seq_length: int = 4096
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    enable_prefix_caching: bool = True
    max_queue_size: int = 1000
    seed: int | None = None
    prefix_caching_hash_algo: str = "sha256"
    hash_seed: str | None = None
    """The PYTHONHASHSEED of the vLLM whose block hashes these are to equal."""


class EngineStats(Struct):
    """Since the start, or since it was last set anew."""

    steps: int = 0
    step_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    requests: int = 0
    completed: int = 0
    failed: int = 0


class LLMEngine:
    """`tokenizer` None: prompts are token ids, and replies have no text."""

    def __init__(
        self,
        runner: ModelRunner,
        tokenizer: LocalTokenizer | None,
        options: EngineOptions,
        eos_token_ids: frozenset[int] = frozenset(),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.runner, self.tokenizer, self.options = runner, tokenizer, options
        self.eos_token_ids = eos_token_ids | (tokenizer.eos_token_ids if tokenizer else frozenset())
        self.stats = EngineStats()
        self._now = now
        self._random = Random(options.seed)
        algorithm = options.prefix_caching_hash_algo
        hasher = BlockHasher(algorithm, options.block_size, options.hash_seed, self._random)  # type: ignore[arg-type]
        self.cache = KVCache(options.num_blocks, hasher, caching=options.enable_prefix_caching)
        limits = SchedulerLimits(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            by_priority=True,
        )
        self._waiting = PriorityQueue()
        self.scheduler: Scheduler[Sequence] = Scheduler(limits, PagedBlocks(self.cache), self._waiting)
        self._choices: dict[str, list[Sequence]] = {}
        """The choices of each request that are not over."""

    @property
    def max_tokens(self) -> int:
        """Most tokens of a prompt and its reply."""
        return min(self.options.max_seq_length, self.cache.capacity * self.cache.block_size)

    @property
    def has_work(self) -> bool:
        return bool(self._choices)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self.scheduler.running)

    def add_request(
        self,
        request_id: str,
        prompt: str | Listed[int],
        params: SamplingParams | None = None,
        priority: int = 0,
        max_wait_s: float | None = None,
    ) -> None:
        """RequestError for what cannot be served, QueueFull when too many wait."""
        ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        params = SamplingParams() if params is None else params
        self.add(
            EngineRequest(
                request_id=request_id, prompt_ids=ids, params=params, priority=priority, max_wait_s=max_wait_s
            )
        )

    def add(self, request: EngineRequest) -> None:
        """The same, of a request that is made."""
        self._check(request)
        if len(self._waiting) + request.params.n > max(self.options.max_queue_size, request.params.n):
            raise QueueFull(f"{len(self._waiting)} requests wait, of at most {self.options.max_queue_size}.")
        self.stats.requests += 1
        choices = [self._sequence(request, index) for index in range(request.params.n)]
        self._choices[request.request_id] = choices
        for sequence in choices:
            self.scheduler.add(sequence)

    def encode(self, text: str) -> list[int]:
        if self.tokenizer is None:
            raise RequestError("The model has no tokenizer: prompts are token ids.")
        return self.tokenizer.encode(text, True)

    def abort(self, request_id: str) -> bool:
        """It ends without another word; False when it was over."""
        choices = self._choices.pop(request_id, [])
        for sequence in choices:
            sequence.ended = True
            self.scheduler.remove(sequence)
        return bool(choices)

    def step(self) -> list[EngineOutput]:
        """Compute one step; what it adds to each choice. Empty when there is nothing to compute."""
        outputs = self._expire()
        batch = self.scheduler.schedule()
        if batch is None:
            return outputs
        started = self._now()
        decodes, chunks = self._parts(batch)
        outputs += self._compute(batch, decodes, chunks)
        self.stats.steps += 1
        self.stats.step_s += self._now() - started
        return outputs

    def take_events(self) -> list[KVEvent]:
        """What happened to the blocks since the last call."""
        return self.cache.take_events()

    def reset_prefix_cache(self) -> bool:
        """Forget all that is cached; False while requests run."""
        return self.cache.reset()

    # A request comes.

    def _check(self, request: EngineRequest) -> None:
        ids, vocabulary = request.prompt_ids, self.runner.vocab_size
        if request.request_id in self._choices:
            raise RequestError(f"The request id {request.request_id} is in use.")
        if not ids:
            raise RequestError("The prompt is empty.")
        if min(ids) < 0 or max(ids) >= vocabulary:
            raise RequestError(f"The prompt has a token id outside the vocabulary of {vocabulary}.")
        if len(ids) >= self.max_tokens:
            raise RequestError(f"The prompt has {len(ids)} tokens, the model takes {self.max_tokens - 1}.")
        request.params.check_vocabulary(vocabulary)
        if request.params.stops and self.tokenizer is None:
            raise RequestError("The model has no tokenizer, so stop strings cannot be found.")

    def _sequence(self, request: EngineRequest, index: int) -> Sequence:
        params, ids = request.params, request.prompt_ids
        room = self.max_tokens - len(ids)
        seed = self._random.getrandbits(64) if params.seed is None else params.seed + index
        ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.eos_token_ids)
        wait = request.max_wait_s
        prompt = self.cache.prompt(ids, salt=request.cache_salt)
        if params.prompt_logprobs is not None:  # all of it has to be computed
            prompt = Prompt(ids, None, prompt.keys)
        return Sequence(
            request,
            index,
            output_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            prompt=prompt,
            detokenizer=self._detokenizer(params),
            banned_ids=ends,
            deadline_s=None if wait is None else self._now() + wait,
            random=Random(seed),
        )

    def _detokenizer(self, params: SamplingParams) -> Detokenizer | None:
        if self.tokenizer is None:
            return None
        return Detokenizer(
            self.tokenizer.backend,
            params.stops,
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
        )

    def _expire(self) -> list[EngineOutput]:
        """Whoever has waited for too long waits no more."""
        now = self._now()
        late = [it for it in self._waiting.sequences if it.deadline_s is not None and it.deadline_s <= now]
        late = [it for it in late if not it.preemptions]
        outputs = []
        for sequence in late:
            self.scheduler.remove(sequence)
            outputs.append(self._end(sequence, self._output(sequence, []), "timeout"))
        return outputs

    # A step.

    def _parts(self, batch: Batch[Sequence]) -> tuple[list[DecodeRow], list[Chunk]]:
        """The batch as the runner takes it."""
        decoding = set(batch.decodes)
        decodes = [
            DecodeRow(it, it.output_ids[-1], it.prompt_tokens + len(it.output_ids) - 1, it.blocks)
            for it in batch.decodes
        ]
        sampling = set(batch.prefilled)
        chunks = []
        for it in self.scheduler.running:
            if it not in decoding and it.computed > it.stored:
                start, asked = it.stored, it.request.params.prompt_logprobs is not None
                logits = asked and start < it.prompt_tokens - 1 and not it.output_ids
                tokens = it.part(start, it.computed)
                chunk = Chunk(it, tokens, start, it.blocks, samples=it in sampling, prompt_logits=logits)
                chunks.append(chunk)
        return decodes, chunks

    def _compute(
        self, batch: Batch[Sequence], decodes: list[DecodeRow], chunks: list[Chunk]
    ) -> list[EngineOutput]:
        logits = self.runner.run(decodes, chunks)
        for chunk in chunks:
            self._note_prompt(chunk, logits)
        for sequence in batch.decodes:
            sequence.stored += 1
        sequences = [*batch.decodes, *batch.prefilled]
        if not sequences:
            self.scheduler.complete(batch)
            return []
        rows = logits.logits[[logits.rows[it] for it in sequences]]
        sampled = sample(rows, [it.sampling for it in sequences])
        outputs = [self._said(it, token) for it, token in zip(sequences, sampled, strict=True)]
        self.scheduler.complete(batch)
        for sequence in sequences:
            if sequence.ended and sequence.running:
                self.scheduler.remove(sequence)
        return outputs

    def _note_prompt(self, chunk: Chunk, logits: StepLogits) -> None:
        sequence = chunk.key
        assert isinstance(sequence, Sequence)
        if not sequence.output_ids:
            self.stats.prompt_tokens += len(chunk.tokens)
            if chunk.start == sequence.cached_tokens:
                self.stats.cached_tokens += chunk.start
        sequence.stored = chunk.end
        count = sequence.request.params.prompt_logprobs
        if count is None or chunk.key not in logits.prompts:
            return
        ids, rows = sequence.request.prompt_ids, logits.logits[logits.prompts[chunk.key]]
        for place, row in enumerate(rows, chunk.start + 1):
            if place == len(sequence.prompt_logprobs) and place < len(ids):
                sequence.prompt_logprobs.append(logprobs_of(row, ids[place], count))

    def _said(self, sequence: Sequence, sampled: Sampled) -> EngineOutput:
        """A token has come for it."""
        token = sampled.token_id
        if token is None:
            return self._spoiled(sequence)
        self.stats.generated_tokens += 1
        sequence.output_ids.append(token)
        self.cache.write(sequence.key, [token])
        output = self._output(sequence, [token])
        if sampled.logprobs is not None:
            output.logprobs = [sampled.logprobs]
        if len(sequence.output_ids) == 1 and sequence.request.params.prompt_logprobs is not None:
            output.prompt_logprobs = sequence.prompt_logprobs
        reason = self._ended_by(sequence, token, output)
        return output if reason is None else self._end(sequence, output, reason)

    def _ended_by(self, sequence: Sequence, token: int, output: EngineOutput) -> FinishReason | None:
        """Why it is over with this token, if it is; adds the text to `output`."""
        params, detokenizer = sequence.request.params, sequence.detokenizer
        enough = len(sequence.output_ids) >= params.min_tokens
        if enough and token in sequence.sampling.banned_ids:
            named = token in params.stop_token_ids
            output.stop_reason = token if named else None
            if detokenizer is not None:
                shown = detokenizer.add(token) if params.include_stop_str_in_output else ""
                output.text = shown + detokenizer.finish()
            return "stop"
        last = len(sequence.output_ids) >= sequence.output_tokens
        if detokenizer is not None:
            output.text = detokenizer.add(token, enough)
            if last:
                output.text += detokenizer.finish()
            if detokenizer.stopped is not None:
                output.stop_reason = detokenizer.stopped
                return "stop"
        return "length" if last else None

    def _spoiled(self, sequence: Sequence) -> EngineOutput:
        """Its logits are no numbers. What it left must not reach others: neither by hash nor by place."""
        self.runner.cleanse(sequence.blocks)
        self.cache.discard()
        output = self._output(sequence, [])
        output.error = NO_NUMBERS
        return self._end(sequence, output, "error")

    def _output(self, sequence: Sequence, token_ids: list[int]) -> EngineOutput:
        return EngineOutput(
            request_id=sequence.request.request_id,
            index=sequence.index,
            token_ids=token_ids,
            prompt_tokens=sequence.prompt_tokens,
            cached_tokens=sequence.cached_tokens,
        )

    def _end(self, sequence: Sequence, output: EngineOutput, reason: FinishReason) -> EngineOutput:
        output.finish_reason = reason
        sequence.ended = True
        request_id = sequence.request.request_id
        left = [it for it in self._choices.get(request_id, ()) if not it.ended]
        if left:
            self._choices[request_id] = left
            return output
        self._choices.pop(request_id, None)
        if reason in ("stop", "length"):
            self.stats.completed += 1
        else:
            self.stats.failed += 1
        return output
