"""The engine: takes requests, and returns outputs from each step.

The engine shares scheduler and KV cache with the simulation, so steps, prefix hits, preemptions and
KV events are the same. Here the blocks hold keys and values, and tokens are computed.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable
from collections.abc import Sequence as Listed
from functools import cached_property
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field

from app.engine.core.batch import Batch, SchedulerLimits
from app.engine.core.scheduler import Scheduler
from app.engine.core.waiting_queue import WaitingQueue
from app.engine.core.wire import EndReason, EngineCoreOutput, EngineSizes, TextForm
from app.engine.kvcache.cache import EventHashes
from app.engine.kvcache.hashing import BlockHasher
from app.llm.attention import Chunk
from app.llm.errors import ModelLoadError, QueueFull, RequestError
from app.llm.model_runner import ModelRunner, StepLogits
from app.llm.sampler import NO_NUMBERS, Sampled, SamplingState, logprobs_of, sample
from app.llm.sampling_params import SamplingParams
from app.llm.sequence import Detokenizer, PagedBlocks, Sequence
from app.llm.speculation import PromptLookup
from app.llm.step_times import MOST_DROPS, OUTLIER, StepTimes
from app.llm.threads import CROWDED
from app.text.huggingface import LocalTokenizer

if TYPE_CHECKING:
    import torch

    from app.llm.structured_output import FormMatcher, Forms


class EngineOptions(EngineSizes, frozen=True, kw_only=True):
    max_seq_length: int = 4096
    kv_events: bool = False
    """True to keep events of blocks for `take_events`."""
    form_cpu_s: float | None = None
    """Most seconds of CPU time to compile a structured output in the sandbox; None: no sandbox."""

    def __post_init__(self) -> None:
        """Raises ModelLoadError for a size with which no request could ever run."""
        least = {"num_blocks": 2, "block_size": 1, "max_seq_length": 2, "max_queue_size": 0}
        least |= {"max_num_seqs": 1, "max_num_batched_tokens": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise ModelLoadError(
                    f"{name} should be at least {number}, got {getattr(self, name)}."
                )


class EngineStats(Struct):
    """Counts since the start, or since they were cleared."""

    steps: int = 0
    step_s: float = 0.0
    prompt_tokens: int = 0
    """Computed prompt tokens, without tokens found in the cache."""
    generated_tokens: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the cache, counted as in vLLM."""
    prefix_hits: int = 0
    drafts: int = 0
    """Checked drafts: a sequence has one in a step, of several tokens."""
    draft_tokens: int = 0
    accepted: Counter[int] = field(default_factory=Counter)
    """Right tokens of drafts, by position from 0."""
    requests: int = 0
    completed: int = 0
    failed: int = 0


class Output(NamedTuple):
    """One choice, and the tokens, text and end that a step adds to it."""

    sequence: Sequence
    said: EngineCoreOutput
    """Message to the worker, still without its `key` and `at_s`."""


class LLMEngine:
    """Serves one model. Not thread-safe, except `compile`.

    Without a `tokenizer` prompts are token ids, and replies have no text.
    """

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
        """Called with each step before it runs."""
        self._now = now
        algorithm, random = options.prefix_caching_hash_algo, Random(options.seed)
        hasher = BlockHasher(algorithm, options.block_size, options.hash_seed, random)
        event_hashes: EventHashes = None
        if options.kv_events:
            event_hashes = "int" if options.int_hashes else "bytes"
        self.cache = PagedBlocks(
            options.num_blocks,
            hasher,
            caching=options.enable_prefix_caching,
            event_hashes=event_hashes,
        )
        room = self.cache.capacity * options.block_size
        self.max_tokens = min(options.max_seq_length, runner.config.max_position, room)
        """Most tokens of a prompt and its reply."""
        self._random = random
        """Draws seeds for requests without one."""
        limits = SchedulerLimits(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            by_priority=True,
        )
        self._waiting: WaitingQueue[Sequence] = WaitingQueue(by_priority=True)
        config = options.speculative_config
        lookup = None if config is None else PromptLookup(config)
        self.scheduler: Scheduler[Sequence] = Scheduler(limits, self.cache, self._waiting, lookup)
        if options.step_time_s:
            self.scheduler.prefill_limit = self._prefill_limit
        self._times = StepTimes(options.step_time_s)
        self._begun_s, self._expected_s, self._drops = 0.0, 0.0, 0
        """When the latest step began, its expected time, and how many steps in a row have dropped a
        part.
        """
        self.on_layer: Callable[[], object] = lambda: None
        """Called before each layer of a step, which may take seconds."""
        self._choices: dict[Hashable, list[Sequence]] = {}
        """Unfinished choices by request id."""
        self.halted = False
        """True while weights or cache are freed, and steps compute nothing."""
        self.step_tokens = 0
        """Tokens generated by the last step, plus the computed tokens of prompts completed in it.
        """

    @property
    def has_work(self) -> bool:
        return bool(self._choices)

    @property
    def idle(self) -> bool:
        """True when a step would compute nothing."""
        return self.halted or self.scheduler.idle

    def add_request(
        self,
        request_id: Hashable,
        prompt: str | Listed[int],
        params: SamplingParams | None = None,
        priority: int = 0,
        max_wait_s: float | None = None,
        *,
        is_limited: bool = True,
        cache_salt: str | None = None,
        form: FormMatcher | None = None,
    ) -> None:
        """Adds a request of `params.n` choices. Raises RequestError, and QueueFull if `is_limited`
        and too many wait.

        The request ends with `timeout` after waiting `max_wait_s` seconds for its first step.
        `form` is the compiled structured output of its only choice.
        """
        if request_id in self._choices:
            raise RequestError(f"The request id {request_id} is in use.")
        ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        params = SamplingParams() if params is None else params
        self._check(ids, params)
        num_waiting, most = len(self._waiting.members), self.options.max_queue_size
        if is_limited and num_waiting + params.n > max(most, params.n):
            raise QueueFull(f"{num_waiting} requests wait, of at most {most}.")
        queued_s, room = self._now(), self.max_tokens - len(ids)
        choices = [
            Sequence(
                request_id,
                index,
                # Log probabilities of a prompt need the computation of all its tokens.
                self.cache.make_prompt(ids, salt=cache_salt, reads=params.prompt_logprobs is None),
                self._sampling(ids, params, index, form),
                priority=priority,
                output_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
                detokenizer=Detokenizer(self.tokenizer.backend, params) if self.tokenizer else None,
                queued_s=queued_s,
                deadline_s=math.inf if max_wait_s is None else queued_s + max_wait_s,
            )
            for index in range(params.n)
        ]
        self.stats.requests += 1
        self._choices[request_id] = choices
        for sequence in choices:
            self._waiting.add(sequence)

    def _check(self, ids: Listed[int], params: SamplingParams) -> None:
        vocabulary = self.runner.config.vocab_size
        if not ids:
            raise RequestError("The prompt is empty.")
        if min(ids) < 0 or max(ids) >= vocabulary:
            raise RequestError(f"The prompt has a token id outside the vocabulary of {vocabulary}.")
        if len(ids) >= self.max_tokens:
            raise RequestError(
                f"The prompt has {len(ids)} tokens, the model takes {self.max_tokens - 1}."
            )
        params.check_vocabulary(vocabulary)
        if params.stops and self.tokenizer is None:
            raise RequestError("The model has no tokenizer, so stop strings cannot be found.")

    def _sampling(
        self, ids: Listed[int], params: SamplingParams, index: int, form: FormMatcher | None
    ) -> SamplingState:
        if form is None and params.form is not None:
            form = self.compile(params.form)
        # A complete structured output must end, so the end token is never ignored with one.
        ends = frozenset() if params.ignore_eos and form is None else self.eos_token_ids
        bad_words = []
        for word in params.bad_words:
            # At the start of a text and, if they are as many tokens, within a text.
            first, within = (self.encode(space + word.lstrip(), False) for space in ("", " "))
            differs = within[:1] != first[:1] and len(within) == len(first)
            bad_words += [
                word_ids for word_ids in ([first, within] if differs else [first]) if word_ids
            ]
        seed = self._random.getrandbits(64) if params.seed is None else params.seed + index
        banned_ids = ends | frozenset(params.stop_token_ids)
        return SamplingState(params, ids, [], seed, banned_ids, form, bad_words)

    def compile(self, form: TextForm) -> FormMatcher:
        """Compiles the `form` for `add`. Thread-safe. Raises RequestError for a wrong one."""
        if self.tokenizer is None:
            raise RequestError("The model has no tokenizer, so no text can have a form.")
        return self._forms.matcher(form)

    @cached_property
    def _forms(self) -> Forms:
        from app.llm.structured_output import Forms  # takes part of a second

        assert self.tokenizer is not None
        size, limit_s = self.runner.config.vocab_size, self.options.form_cpu_s
        return Forms(self.tokenizer, size, self.eos_token_ids, limit_s)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        if self.tokenizer is None:
            raise RequestError("The model has no tokenizer, so texts have no tokens.")
        return self.tokenizer.encode(text, add_special_tokens)

    def abort(self, request_id: Hashable) -> bool:
        """Ends a request without another output. Returns False for an unknown or ended one."""
        choices = self._choices.pop(request_id, [])
        for sequence in choices:
            sequence.ended = True
            self.scheduler.remove(sequence)
        return bool(choices)

    def step(self) -> list[Output]:
        """Computes one step, if any request can run, and returns the additions to each choice."""
        started, outputs = self._now(), list[Output]()
        waiting = self._waiting.members
        for sequence in [it for it in waiting if it.deadline_s <= started and not it.preemptions]:
            self.scheduler.remove(sequence)
            output = Output(sequence, self._output(sequence))
            self._end(*output, "timeout")
            outputs.append(output)
        batch = None if self.halted else self.scheduler.schedule()
        if batch is None:
            return outputs
        if self.watch is not None:
            self.watch(batch)
        for sequence in batch.admitted:
            if not sequence.preemptions:
                sequence.scheduled_s = started
                prompt = sequence.prompt
                if prompt is not None and prompt.reads and prompt.hashes is not None:
                    self.stats.prefix_queries += sequence.prompt_tokens
                    self.stats.prefix_hits += sequence.cached_tokens
        decodes, chunks = self._parts(batch)
        prompts = sum(
            it.prompt_tokens - it.cached_tokens for it in batch.prefilled if not it.output_ids
        )
        computed = self._timed(batch, decodes, chunks)
        self.step_tokens = prompts + sum(len(output.said.ids) for output in computed)
        outputs += computed
        self.stats.steps += 1
        self.stats.step_s += self._now() - started
        return outputs

    def preempt_all(self) -> None:
        """Preempts all running sequences, which are computed anew when scheduled again."""
        for sequence in list(self.scheduler.running):
            self.scheduler.remove(sequence)
            sequence.computed, sequence.written = 0, len(sequence.output_ids)
            sequence.preemptions += 1
            self.scheduler.preemptions += 1
            self._waiting.add(sequence)

    def _parts(self, batch: Batch[Sequence]) -> tuple[list[Chunk], list[Chunk]]:
        decodes = []
        for it in batch.decodes:
            count, _ = batch.drafts.get(it, (0, 0))
            tokens = [it.output_ids[-1], *it.drafts[:count]]
            decodes.append(Chunk(it, tokens, it.stored, it.block_numbers(), drafts=count))
        decoding, sampling, chunks = set(batch.decodes), set(batch.prefilled), []
        for it in self.scheduler.running:
            if it not in decoding and it.computed > (start := it.stored):
                asked = it.params.prompt_logprobs is not None and not it.output_ids
                logits = asked and start < it.prompt_tokens - 1
                ids = (
                    it.prompt_ids
                    if it.computed <= it.prompt_tokens
                    else [*it.prompt_ids, *it.output_ids]
                )
                part, blocks = ids[start : it.computed], it.block_numbers()
                chunks.append(Chunk(it, part, start, blocks, it in sampling, prompt_logits=logits))
        return decodes, chunks

    def _prefill_limit(self) -> int:
        """Returns the prompt tokens of the next step:

        what fits into `step_time_s`, or half after a drop.
        """
        scheduler, halves = self.scheduler, self._drops not in (0, MOST_DROPS)
        start = scheduler.prefilling[0].computed if scheduler.prefilling else 0
        return max(1, self._times.most_tokens(*scheduler.decoding, start) >> halves)

    def _timed(
        self, batch: Batch[Sequence], decodes: list[Chunk], chunks: list[Chunk]
    ) -> list[Output]:
        """Computes a step, on as many threads as help, and learns from its time."""
        device, kind, count = (
            self.runner.device,
            0 if chunks else batch.tokens.bit_length(),
            len(chunks),
        )
        pairs, self._begun_s = batch.attention + batch.context, self._now()
        self._expected_s = self._times.seconds(batch.tokens, pairs)
        device.use_threads(kind)
        waited = device.waited_s()
        outputs = self._compute(batch, decodes, chunks)
        took_s = self._now() - self._begun_s
        crowded = device.waited_s() - waited > CROWDED * took_s
        self._drops = self._drops + 1 if len(chunks) < count else 0
        if self._drops:  # all layers would have taken longer
            took_s = max(took_s, OUTLIER * self._expected_s)
        if expected_s := self._expected_s if count else 1.0:
            device.governor.add(kind, took_s / expected_s, crowded)
        self._times.add(batch.tokens, pairs, took_s, count > 0)
        return outputs

    def _is_late(self, done: float) -> bool:
        self.on_layer()
        seconds = self._now() - self._begun_s
        return self._drops < MOST_DROPS and self._times.is_late(done, seconds, self._expected_s)

    def _compute(
        self, batch: Batch[Sequence], decodes: list[Chunk], chunks: list[Chunk]
    ) -> list[Output]:
        logits = self.runner.run(decodes, chunks, self._is_late)
        for chunk in (*decodes, *chunks):
            chunk.sequence.stored = chunk.end
        for sequence in self.scheduler.prefilling:
            sequence.computed = sequence.stored  # its part may have been dropped
            self.cache.filled(sequence, is_stored=True)
        self.stats.prompt_tokens += sum(
            len(it.tokens) for it in chunks if not it.sequence.output_ids
        )
        for chunk, rows in logits.prompts:
            _note_prompt(chunk, rows)
        outputs = self._sample(logits)
        if any(said.error == NO_NUMBERS for _, said in outputs):
            # Nothing may read their keys, except requests that share them already and fail
            # likewise.
            self.cache.discard()
        for chunk, output in zip(logits.sampled, outputs, strict=True):
            if chunk.drafts:
                self._note_drafts(chunk, max(0, len(output.said.ids) - 1))
        self.scheduler.complete(batch)
        for sequence in [it for it in self.scheduler.running if it.ended]:
            self.scheduler.remove(sequence)
        return outputs

    def _sample(self, logits: StepLogits) -> list[Output]:
        """Samples the next token of each sequence, and while it is the next draft also the token
        after it.

        So a token is sampled in the state that all tokens before it have left, as without drafts.
        """
        outputs = [Output(it.sequence, self._output(it.sequence)) for it in logits.sampled]
        firsts = accumulate((1 + it.drafts for it in logits.sampled), initial=0)
        going = list(zip(firsts, logits.sampled, outputs, strict=False))
        while going:
            places = [row for row, _, _ in going]
            rows = (
                logits.next_token
                if len(places) == len(logits.next_token)
                else logits.next_token[places]
            )
            sampled = sample(rows, [chunk.sequence.sampling for _, chunk, _ in going])
            right = []
            for (row, chunk, output), one in zip(going, sampled, strict=True):
                self._say(*output, one)
                position = len(output.said.ids)
                drafted = position <= chunk.drafts and not output.said.finish
                if drafted and one.token_id == chunk.tokens[position]:
                    right.append((row + 1, chunk, output))
            going = right
        return outputs

    def _note_drafts(self, chunk: Chunk, accepted: int) -> None:
        sequence, stats = chunk.sequence, self.stats
        stats.drafts += 1
        stats.draft_tokens += chunk.drafts
        stats.accepted.update(range(accepted))
        sequence.stored -= chunk.drafts - accepted
        sequence.draft_limit = (
            2 * accepted + 3
        )  # text that only seems to repeat itself soon costs little
        self.scheduler.accept(sequence, accepted)

    def _say(self, sequence: Sequence, said: EngineCoreOutput, one: Sampled) -> None:
        """Adds a sampled token, or the error that ends the choice, to the output of its step."""
        if (token := one.token_id) is None:
            said.error, said.is_refused = one.error, one.error != NO_NUMBERS
            self._end(sequence, said, "error")
            return
        self.stats.generated_tokens += 1
        sequence.output_ids.append(token)
        self.cache.append(sequence, 1)
        said.ids.append(token)
        said.texts.append("")
        if one.logprobs is not None:
            said.logprobs = [*(said.logprobs or ()), one.logprobs]
        if len(sequence.output_ids) == 1 and sequence.params.prompt_logprobs is not None:
            said.prompt_logprobs = sequence.prompt_logprobs
        reason = self._ended_by(sequence, token, said)
        if reason is not None:
            self._end(sequence, said, reason)
        elif sequence.sampling.form is not None:
            sequence.sampling.form.add(token)

    def _ended_by(self, sequence: Sequence, token: int, said: EngineCoreOutput) -> EndReason | None:
        """Returns the finish reason if the choice ends with this token; adds the token's text to
        `said`.
        """
        params, detokenizer = sequence.params, sequence.detokenizer
        enough = len(sequence.output_ids) >= params.min_tokens
        # A complete structured output allows only the end.
        if (enough or sequence.sampling.form is not None) and token in sequence.sampling.banned_ids:
            said.stop_reason = token if token in params.stop_token_ids else None
            if detokenizer is not None:
                shown = detokenizer.add(token) if params.include_stop_str_in_output else ""
                said.texts[-1] = shown + detokenizer.finish()
            return "stop"
        last = len(sequence.output_ids) >= sequence.output_tokens
        if detokenizer is not None:
            text = detokenizer.add(token, enough)
            said.texts[-1] = text + detokenizer.finish() if last else text
            if detokenizer.stopped is not None:
                said.stop_reason = detokenizer.stopped
                return "stop"
        return "length" if last else None

    def _output(self, sequence: Sequence) -> EngineCoreOutput:
        said = EngineCoreOutput(key=0)
        if not sequence.output_ids and sequence.scheduled_s is not None:
            said.queued_s, said.scheduled_s = sequence.queued_s, sequence.scheduled_s
            said.cached_tokens, said.created_tokens = (
                sequence.cached_tokens,
                sequence.created_tokens,
            )
        return said

    def _end(self, sequence: Sequence, said: EngineCoreOutput, reason: EndReason) -> None:
        said.finish, said.preemptions = reason, sequence.preemptions
        sequence.ended = True
        request_id = sequence.request_id
        left = [it for it in self._choices.get(request_id, ()) if not it.ended]
        if left:
            self._choices[request_id] = left
            return
        self._choices.pop(request_id, None)
        if reason in ("stop", "length"):
            self.stats.completed += 1
        else:
            self.stats.failed += 1


def _note_prompt(chunk: Chunk, logits: torch.Tensor) -> None:
    # After a preemption some are known already.
    sequence, first = chunk.sequence, chunk.start + 1
    tokens, known = (
        sequence.prompt_ids[first : chunk.end + 1],
        len(sequence.prompt_logprobs) - first,
    )
    new = tokens[known:]
    if new:
        counts = [sequence.params.prompt_logprobs or 0] * len(new)
        sequence.prompt_logprobs += logprobs_of(logits[known : len(tokens)], new, counts)
