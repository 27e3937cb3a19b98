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
from app.engine.scheduler import Scheduler, WaitingQueue
from app.engine.wire import TextForm
from app.kvcache.cache import KVCache
from app.kvcache.events import KVEvent
from app.kvcache.hashing import BlockHasher
from app.llm.errors import ModelLoadError, QueueFull, RequestError
from app.llm.kv_store import DecodeRow
from app.llm.model_runner import Chunk, ModelRunner, StepLogits
from app.llm.preprocessor import RequestPreprocessor
from app.llm.requests import EngineOutput, EngineRequest, FinishReason, TokenLogprobs
from app.llm.sampler import Form, logprobs_of, sample
from app.llm.sampling_params import SamplingParams
from app.llm.sequence import PagedBlocks, Sequence
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
    kv_events: bool = False
    """Whether `take_events` tells of blocks; whoever wants them has to take them."""
    int_hashes: bool = True
    """Events carry hashes as numbers of 64 bits, else as bytes."""
    form_cpu_s: float | None = None
    """Forms are tried out first, in a process that may take so long for each; None: they are trusted."""

    def __post_init__(self) -> None:
        """ModelLoadError for a size with which nothing would ever run."""
        least = {"num_blocks": 2, "block_size": 1, "max_seq_length": 2, "max_queue_size": 0}
        least |= {"max_num_seqs": 1, "max_num_batched_tokens": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise ModelLoadError(f"{name} should be at least {number}, got {getattr(self, name)}.")


class EngineStats(Struct):
    """Since the start, or since it was last set anew."""

    steps: int = 0
    step_s: float = 0.0
    prompt_tokens: int = 0
    """Computed: without what was found in the cache."""
    generated_tokens: int = 0
    prefix_queries: int = 0
    """Tokens of prompts that were looked for in the cache, and that were found, as vLLM counts them."""
    prefix_hits: int = 0
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
        self.watch: Callable[[Batch[Sequence]], None] | None = None
        """Told of each step that was made, before it runs."""
        self._now = now
        algorithm = options.prefix_caching_hash_algo
        random = Random(options.seed)
        hasher = BlockHasher(algorithm, options.block_size, options.hash_seed, random)  # type: ignore[arg-type]
        self.cache = KVCache(
            options.num_blocks,
            hasher,
            caching=options.enable_prefix_caching,
            events=options.kv_events,
            int_hashes=options.int_hashes,
        )
        room = self.cache.capacity * options.block_size
        length = min(options.max_seq_length, runner.config.max_position, room)
        self._preprocessor = RequestPreprocessor(
            tokenizer, self.cache, runner.vocab_size, length, random, now, options.form_cpu_s
        )
        limits = SchedulerLimits(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            by_priority=True,
        )
        self._waiting: WaitingQueue[Sequence] = WaitingQueue(by_priority=True)
        self.scheduler: Scheduler[Sequence] = Scheduler(limits, PagedBlocks(self.cache), self._waiting)
        self._choices: dict[str, list[Sequence]] = {}
        """The choices of each request that are not over."""
        self.halted = False
        """Nothing is computed: weights or cache are put away."""
        self.step_tokens = 0
        """Of the last step: tokens written, and prompts that it completed."""

    @property
    def max_tokens(self) -> int:
        """Most tokens of a prompt and its reply."""
        return self._preprocessor.max_tokens

    @property
    def has_work(self) -> bool:
        return bool(self._choices)

    @property
    def idle(self) -> bool:
        """Whether a step would compute nothing."""
        return self.halted or self.scheduler.idle

    @property
    def num_waiting(self) -> int:
        return len(self._waiting.members)

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

    def add(self, request: EngineRequest, form: Form | None = None) -> None:
        """The same, of a request that is made; `form` is its own, compiled, if it has one choice."""
        if request.request_id in self._choices:
            raise RequestError(f"The request id {request.request_id} is in use.")
        self._preprocessor.check(request)
        if len(self._waiting.members) + request.params.n > max(self.options.max_queue_size, request.params.n):
            raise QueueFull(
                f"{len(self._waiting.members)} requests wait, of at most {self.options.max_queue_size}."
            )
        eos, count = self.eos_token_ids, request.params.n
        choices = [self._preprocessor.sequence(request, index, eos, form) for index in range(count)]
        self.stats.requests += 1
        self._choices[request.request_id] = choices
        queued_s = self._now()
        for sequence in choices:
            sequence.queued_s = queued_s
            self.scheduler.add(sequence)

    def compile(self, form: TextForm) -> Form:
        """What `add` takes as form; may be called by other threads. RequestError for one that cannot be."""
        return self._preprocessor.compile(form, self.eos_token_ids)

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
        batch = None if self.halted else self.scheduler.schedule()
        if batch is None:
            return outputs
        if self.watch is not None:
            self.watch(batch)
        started = self._now()
        for sequence in batch.admitted:
            self._begun(sequence, started)
        decodes, chunks = self._parts(batch)
        prompts = sum(it.prompt_tokens - it.cached_tokens for it in batch.prefilled if not it.output_ids)
        self.step_tokens = prompts + len(batch.decodes) + len(batch.prefilled)
        outputs += self._compute(batch, decodes, chunks)
        self.stats.steps += 1
        self.stats.step_s += self._now() - started
        return outputs

    def preempt_all(self) -> None:
        """What runs gives its blocks back, and goes on as soon as it may, computed anew."""
        for sequence in list(self.scheduler.running):
            self.scheduler.remove(sequence)
            sequence.computed, sequence.written = 0, len(sequence.output_ids)
            sequence.preemptions += 1
            self.scheduler.preemptions += 1
            self._waiting.add(sequence)

    def clear_stats(self) -> None:
        self.stats = EngineStats()

    def take_events(self) -> list[KVEvent]:
        """What happened to the blocks since the last call."""
        return self.cache.take_events()

    def reset_prefix_cache(self) -> bool:
        """Forget all that is cached; False while requests run."""
        return self.cache.reset()

    def _expire(self) -> list[EngineOutput]:
        """Whoever has waited for too long waits no more."""
        now = self._now()
        late = [it for it in self._waiting.members if it.deadline_s is not None and it.deadline_s <= now]
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

    def _begun(self, sequence: Sequence, now_s: float) -> None:
        if not sequence.preemptions:
            sequence.scheduled_s = now_s
            if sequence.prompt.looks_up:
                self.stats.prefix_queries += sequence.prompt_tokens
                self.stats.prefix_hits += sequence.cached_tokens

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
        sequences.sort(key=logits.rows.__getitem__)
        sampled = sample(logits.of(sequences), [it.sampling for it in sequences])
        pairs = list(zip(sequences, sampled, strict=True))
        outputs = self._fail_spoiled([it for it, one in pairs if one.token_id is None and not one.error])
        for sequence, one in pairs:
            if one.token_id is not None and not sequence.ended:
                outputs.append(self._said(sequence, one.token_id, one.logprobs))
            elif one.error and not sequence.ended:
                outputs.append(self._failed(sequence, one.error, is_refused=True))
        self.scheduler.complete(batch)
        for sequence in [it for it in self.scheduler.running if it.ended]:
            self.scheduler.remove(sequence)
        return outputs

    def _note_prompt(self, chunk: Chunk, logits: StepLogits) -> None:
        sequence = chunk.key
        assert isinstance(sequence, Sequence)
        if not sequence.output_ids:
            self.stats.prompt_tokens += len(chunk.tokens)
        sequence.stored = chunk.end
        count = sequence.request.params.prompt_logprobs
        if count is None or chunk.key not in logits.prompts:
            return
        # The logits of a place are about the token behind it; after a preemption some are known.
        ids, first, known = sequence.request.prompt_ids, chunk.start + 1, len(sequence.prompt_logprobs)
        rows, tokens = logits.logits[logits.prompts[chunk.key]], ids[first : chunk.end + 1]
        new = range(known - first, len(tokens))
        if new:
            told = logprobs_of(rows[new.start : new.stop], tokens[new.start :], [count] * len(new))
            sequence.prompt_logprobs += told

    def _said(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None) -> EngineOutput:
        """A token has come for it."""
        self.stats.generated_tokens += 1
        sequence.output_ids.append(token)
        self.cache.write(sequence.key, [token])
        output = self._output(sequence, [token])
        if logprobs is not None:
            output.logprobs = [logprobs]
        if len(sequence.output_ids) == 1 and sequence.request.params.prompt_logprobs is not None:
            output.prompt_logprobs = sequence.prompt_logprobs
        reason = self._ended_by(sequence, token, output)
        if reason is None and sequence.sampling.form is not None:
            sequence.sampling.form.add(token)
        return output if reason is None else self._end(sequence, output, reason)

    def _ended_by(self, sequence: Sequence, token: int, output: EngineOutput) -> FinishReason | None:
        """Why it is over with this token, if it is; adds the text to `output`."""
        params, detokenizer = sequence.request.params, sequence.detokenizer
        enough = len(sequence.output_ids) >= params.min_tokens
        # A form that is complete has no other token left.
        if (enough or sequence.sampling.form is not None) and token in sequence.sampling.banned_ids:
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

    def _fail_spoiled(self, broken: list[Sequence]) -> list[EngineOutput]:
        """The logits of `broken` are no numbers: it is over with them, and with all who began with a block of
        theirs that holds such keys or values. Nobody else finds these, neither by hash nor by place."""
        if not broken:
            return []
        spoiled = self.runner.cleanse({block for sequence in broken for block in sequence.blocks})
        if spoiled:
            self.cache.discard()
        sharing = [it for it in self.scheduler.running if not (it in broken or spoiled.isdisjoint(it.blocks))]
        return [self._failed(sequence, NO_NUMBERS) for sequence in (*broken, *sharing)]

    def _failed(self, sequence: Sequence, error: str, is_refused: bool = False) -> EngineOutput:
        output = self._output(sequence, [])
        output.error, output.is_refused = error, is_refused
        return self._end(sequence, output, "error")

    def _output(self, sequence: Sequence, token_ids: list[int]) -> EngineOutput:
        return EngineOutput(
            request_id=sequence.request.request_id,
            index=sequence.index,
            token_ids=token_ids,
            prompt_tokens=sequence.prompt_tokens,
            cached_tokens=sequence.cached_tokens,
            created_tokens=sequence.created_tokens,
            first=len(sequence.output_ids) == len(token_ids),
            queued_s=sequence.queued_s,
            scheduled_s=sequence.scheduled_s,
            preemptions=sequence.preemptions,
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
