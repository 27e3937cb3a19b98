"""Recorder of engine metrics: a method per event, with numbers in seconds and tokens.

Events per token and per sequence are stored as rows of numbers. Rows are counted in blocks, or at a
scrape: a third of the cost of counting each event, and little memory.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import compress
from operator import add, sub
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import astuple

from app.core.base.metrics.families import EngineFamilies, engine_table
from app.core.base.metrics.instruments import Family, Instrument
from app.core.base.metrics.table import (
    ABORTED,
    CACHE_CONFIG,
    FINISHED,
    LATE,
)

if TYPE_CHECKING:
    from app.core.base.metrics.lora_requests import AdapterStage, LoraRequests

ROWS_PER_FOLD = 512
"""Rows of one kind that are counted together, in at most a millisecond."""
STREAMING = "streaming"
STREAMED_CALL = (STREAMING, True)
"""Key of `ParserRuns` for a token of a tool call."""
STEPS_PER_S = 1000
"""Engine steps per second of decoding that has none: tokens of a millisecond are one step."""

FinishReason = Literal["stop", "length", "abort", "error", "repetition"]
RejectionReason = Literal["max_num_queued_reqs", "max_num_queued_tokens"]
ParserRuns: TypeAlias = Tally[tuple[str, bool]]
"""Runs of the tool call parser, by mode and whether the run finds a call."""


class PhaseSeconds(NamedTuple):
    """Durations of a sequence's phases in seconds, as in vLLM's metrics; 0 for one not reached.

    The queue begins when the scheduler sees the sequence, the decode ends with the last token.
    """

    queue_s: float
    prefill_s: float
    decode_s: float


def phase_seconds(
    queued_s: float,
    scheduled_s: float | None,
    first_s: float | None,
    last_s: float,
    now_s: float,
) -> tuple[float, float, float]:
    """Returns the `PhaseSeconds` of a sequence that has ended, or still runs, at `now_s`.

    `last_s` is the moment of the last token; it counts only after a first one. Every timed sequence
    calls this function, and a plain tuple takes half the time.
    """
    if scheduled_s is None:
        return max(0.0, now_s - queued_s), 0.0, 0.0
    queue_s = max(0.0, scheduled_s - queued_s)
    if first_s is None:
        return queue_s, 0.0, 0.0
    return queue_s, max(0.0, first_s - scheduled_s), max(0.0, last_s - first_s)


class FinishedSequence(Struct, frozen=True, gc=False):
    """The numbers of a finished sequence; 0 for phases that it did not reach.

    `max_tokens` is the limit in force (vLLM sets one when the client gives none). `queue_s` is the
    wait, `prefill_s` the time from leaving the queue to the first token, `decode_s` from the first
    token to the last, `e2e_s` from arrival to the end. Only the last sequence of a prompt has
    `choices`, their number, and `longest`, the tokens of the longest; other sequences have 0.
    """

    reason: FinishReason
    prompt_tokens: int
    generation_tokens: int
    cached_tokens: int
    max_tokens: int | None
    queue_s: float
    prefill_s: float
    decode_s: float
    e2e_s: float
    preemptions: int = 0
    choices: int = 0
    longest: int = 0


class LatencyTally:
    """Counts latencies in tenths of a millisecond, for percentiles without buckets."""

    PER_S = 10_000

    def __init__(self) -> None:
        self.ttft: Tally[int] = Tally()
        self.inter_token: Tally[int] = Tally()
        """Gaps between the tokens of a sequence."""

    def add_first_tokens(self, latencies_s: Iterable[float]) -> None:
        """Counts times to first tokens."""
        self.ttft.update([int(latency_s * self.PER_S + 0.5) for latency_s in latencies_s])

    def add_gaps(self, gaps_s: Iterable[float], tokens: int = 1) -> None:
        """Counts `tokens` after each gap."""
        per_s = self.PER_S
        if tokens == 1:
            self.inter_token.update([int(gap_s * per_s + 0.5) for gap_s in gaps_s])
        else:
            self.inter_token.update({int(gap_s * per_s + 0.5): tokens for gap_s in gaps_s})


class Distribution(Struct, frozen=True):
    """A histogram: inclusive upper `bounds` in seconds, and a count per bucket.

    The last bucket is above all bounds.
    """

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float


class Figures(Struct, frozen=True, kw_only=True):
    """The numbers of /metrics: current gauges, and counters since the start of the server."""

    running: float
    waiting: float
    cache_usage: float
    """Share from 0 to 1."""
    preemptions: float
    generated: float
    prompt: float
    """Prompt tokens, cached ones included."""
    cached: float
    queries: float
    """Tokens looked up in the prefix cache."""
    hits: float
    finished: Mapping[str, float]
    e2e: Distribution


class RecorderOptions(Struct, frozen=True, kw_only=True):
    """Families that a recorder has on demand.

    `max_loras` adds a family of adapters, `block_times` the lifetimes of KV cache blocks, and
    `older_names` aliases. `transfers` adds the families of fetched caches before the first fetch.
    With `steps` the engine reports its steps (`Recorder.step`); without, tokens computed in the
    same millisecond count as one step. `beside` is the recorder of another engine of the server,
    whose families get the series of this one, too.
    """

    max_loras: int | None = None
    block_times: bool = False
    older_names: bool = False
    transfers: bool = False
    steps: bool = False
    beside: Recorder | None = None


class Recorder:
    """Counts the events of sequences, with the meaning of vLLM's families.

    A sequence is one choice of one prompt: a prompt with n = 3 is three sequences. Each waits,
    runs, is prefilled, decoded and finished, as in vLLM.

    `now` returns Unix seconds for the `_created` series.
    """

    def __init__(
        self,
        model_name: str,
        max_model_len: int,
        cache_config: Mapping[str, str],
        engine: str = "0",
        now: Callable[[], float] = time.time,
        options: RecorderOptions = RecorderOptions(),  # noqa: B008 (immutable)
    ) -> None:
        self.read_load: Callable[[], tuple[int, int, float]] = _no_load
        """Returns running and waiting sequences, and the used share of the KV cache (0 to 1)."""
        self.tally: LatencyTally | None = None
        """Also counts each latency, while set."""
        self.adapter_series: LoraRequests | None = None
        beside = options.beside
        families: dict[str, Family[Instrument]] | None = None
        if beside is not None:
            families = beside.families
            self.adapter_series = beside.adapter_series
        elif options.max_loras is not None:
            from app.core.base.metrics.lora_requests import LoraRequests

            self.adapter_series = LoraRequests(options.max_loras, now)
        table = [*engine_table(cache_config, options.block_times, options.older_names), *ABORTED]
        if options.steps:
            table += LATE
        server = {"model_name": model_name, "engine": engine}
        self._families = EngineFamilies(
            table, server, now, max_model_len=max_model_len, families=families
        )
        self.families: dict[str, Family[Instrument]] = self._families.by_name
        """Families by name; recorders of several engines may share them."""
        if options.transfers:
            from app.core.base.metrics.optional_families import TRANSFERS

            self._families.add(TRANSFERS)
        self._counter = self._families.counter
        self._histogram = self._families.histogram
        self._block_size = int(cache_config.get("block_size", CACHE_CONFIG["block_size"]))
        self._queries = self._counter("prefix_cache_queries_total")
        self._hits = self._counter("prefix_cache_hits_total")
        self._external_queries = self._counter("external_prefix_cache_queries_total")
        self._external_hits = self._counter("external_prefix_cache_hits_total")
        self._preemptions = self._counter("num_preemptions_total")
        self._generated = self._counter("generation_tokens_total")
        self._inter_token = self._histogram("inter_token_latency_seconds")
        self._iterations = self._histogram("iteration_tokens_total")
        self._has_steps = options.steps
        self.sleeping(None)
        # Rows since the last fold.
        self._step_tokens: list[int] = []
        self._computed: list[tuple[int, float]] = []
        """Tokens of prefills, and further tokens of outputs, with times in seconds."""
        # Decoded tokens are no rows: two numbers take less time and memory.
        self._gaps_s: list[float] = []
        self._moments_s: list[float] = []
        self._joined: dict[int, int] = {}
        """Number of further tokens with the same gap, by index in `_gaps_s`."""
        self._prefills: list[tuple[float, int, int]] = []
        """TTFT in seconds, prompt tokens and cached tokens."""
        self._finished: list[FinishedSequence] = []
        self._at_once: list[tuple[FinishedSequence, float]] = []
        """Sequences without delays, and the time in seconds when all of their tokens came."""
        self._fetched = 0
        """Prompt tokens with a fetched cache."""
        self._loaded = 0
        """Prompt tokens from a connector's store."""
        self.parser_runs: ParserRuns = Tally()
        """Runs of the tool call parser since the last fold."""

    @property
    def instruments(self) -> EngineFamilies:
        """The families with the labels of this engine; an extension may add some."""
        return self._families

    def adapter_moved(self, sequence: Hashable, adapter: str, stage: AdapterStage | None) -> None:
        """Counts a sequence with an adapter that starts to wait or to run; None: that ends."""
        if self.adapter_series is not None:
            self.adapter_series.move(sequence, adapter, stage)

    def step(self, tokens: int) -> None:
        """Counts the tokens of an engine step."""
        self._step_tokens.append(tokens)
        if len(self._step_tokens) >= ROWS_PER_FOLD:
            self._fold_steps()

    def late(self, seconds: float) -> None:
        """Counts a request that the scheduler saw `seconds` too late."""
        self._families.add(LATE)
        for spec, amount in zip(LATE, (1, seconds), strict=True):
            self._counter(spec.name).value += amount

    def preempted(self, sequences: int = 1) -> None:
        """Counts preempted sequences."""
        self._preemptions.value += sequences

    def looked_up(self, tokens: int, hits: int) -> None:
        """Counts prompt tokens that were looked up in the prefix cache, and its hits."""
        self._queries.value += tokens
        self._hits.value += hits

    def fetched(self, tokens: int, seconds: float) -> None:
        """Counts `tokens` of a prompt whose cache was fetched from another engine in `seconds`.

        The next `prefilled` counts the tokens as cached.
        """
        from app.core.base.metrics.optional_families import TRANSFERS, transfer_values

        self._families.add(TRANSFERS)
        self._fetched += tokens
        self._external_queries.value += tokens
        self._external_hits.value += tokens
        for name, value in transfer_values(tokens, seconds, self._block_size):
            self._histogram(name).observe(value)

    def looked_up_in_store(self, tokens: int, hits: int, tier: str) -> None:
        """Counts prompt tokens that were looked up in a connector's store."""
        self._external_queries.value += tokens
        self._external_hits.value += hits
        if hits:
            self._counter("prompt_tokens_cached_by_source_total", source=tier).value += hits

    def loaded(self, tokens: int) -> None:
        """Counts tokens loaded from the store. The next `prefilled` counts them as cached."""
        self._loaded += tokens

    def sleeping(self, level: int | None) -> None:
        """Sets the sleep level (0, 1 or 2); None: awake."""
        states = {
            "awake": level in (None, 0),
            "weights_offloaded": level == 1,
            "discard_all": level == 2,
        }
        for state, is_current in states.items():
            self._counter("engine_sleep_state", sleep_state=state).value = int(is_current)

    def slept(
        self, operation: Literal["sleep", "release_kv_cache_memory", "wake"], seconds: float
    ) -> None:
        """Counts a sleep or wake operation and its duration."""
        self._histogram("sleep_mode_operation_duration_seconds", operation=operation).observe(
            seconds
        )

    def rejected(self, reason: RejectionReason) -> None:
        """Counts a request that a limit of the waiting queue rejected."""
        self._counter("admission_rejections_total", reason=reason).value += 1

    def decoded(self, tokens: int, gap_s: float, at_s: float) -> None:
        """Counts `tokens` after a sequence's first one.

        Each comes `gap_s` after the previous one, the last at `at_s`.
        """
        # Runs once per token of every stream.
        gaps_s = self._gaps_s
        if tokens > 1:
            self._joined[len(gaps_s)] = tokens - 1
            self._computed.append((tokens - 1, at_s))
        gaps_s.append(gap_s)
        self._moments_s.append(at_s)
        if len(gaps_s) >= ROWS_PER_FOLD:
            self._fold_tokens()

    def generated(self, tokens: int) -> None:
        """Counts further tokens of a step; vLLM observes one gap per step."""
        self._generated.value += tokens

    def prefilled(
        self, ttft_s: float, prompt_tokens: int, cached_tokens: int, at_s: float, tokens: int = 1
    ) -> None:
        """Counts a sequence's first token, at `at_s`; an empty reply has 0 `tokens`.

        `ttft_s` is the time since arrival. `prompt_tokens` include cached ones.
        """
        self._generated.value += tokens
        self._computed.append((prompt_tokens - cached_tokens + tokens, at_s))
        self._prefills.append((ttft_s, prompt_tokens, cached_tokens))
        if len(self._prefills) >= ROWS_PER_FOLD:
            self._fold_tokens()
            self._fold_prefills()

    def aborted(self) -> None:
        """Counts a sequence that its client abandoned, or that was aborted by id.

        vLLM's families exclude it.
        """
        self._counter(ABORTED[0].name).value += 1

    def replied_at_once(self, row: FinishedSequence, at_s: float) -> None:
        """Counts a finished sequence whose tokens all came at `at_s`, its arrival."""
        rows = self._at_once
        rows.append((row, at_s))
        if len(rows) >= ROWS_PER_FOLD:
            self._fold_at_once()

    def sequence_finished(self, row: FinishedSequence) -> None:
        """Counts a finished sequence."""
        self._finished.append(row)
        if len(self._finished) >= ROWS_PER_FOLD:
            self._fold_finished()

    def figures(self) -> Figures:
        """Returns the current numbers."""
        self.fold()
        count = self._counter
        e2e = self._histogram("e2e_request_latency_seconds")
        finished = {
            reason: count("request_success_total", finished_reason=reason).value
            for reason in FINISHED
        }
        finished["abort"] += count(ABORTED[0].name).value
        return Figures(
            running=count("num_requests_running").value,
            waiting=count("num_requests_waiting").value,
            cache_usage=count("kv_cache_usage_perc").value,
            preemptions=self._preemptions.value,
            generated=self._generated.value,
            prompt=count("prompt_tokens_total").value,
            cached=count("prompt_tokens_cached_total").value,
            queries=self._queries.value,
            hits=self._hits.value,
            finished=finished,
            e2e=Distribution(e2e.bounds, tuple(e2e.counts), e2e.sum),
        )

    def render(self) -> str:
        """Returns all families in the Prometheus text format."""
        self.fold()
        adapters = "" if self.adapter_series is None else self.adapter_series.render()
        return self._families.render() + adapters

    def fold(self) -> None:
        """Counts all stored rows, and reads the load. Call it before reading any number."""
        running, waiting, usage = self.read_load()
        self._counter("num_requests_running").value = running
        self._counter("num_requests_waiting").value = waiting
        self._counter("num_requests_waiting_by_reason", reason="capacity").value = waiting
        self._counter("kv_cache_usage_perc").value = usage
        self._fold_steps()
        self._fold_at_once()
        self._fold_tokens()
        self._fold_prefills()
        self._fold_finished()
        for (mode, has_call), times in self.parser_runs.items():
            counter = self._counter(
                "tool_call_parser_invocations_total",
                request_type="chat_completions",
                mode=mode,
                outcome="tool_call" if has_call else "no_tool_call",
            )
            counter.value += times
        self.parser_runs.clear()

    def _fold_steps(self) -> None:
        rows = self._step_tokens
        self._step_tokens = []
        self._iterations.observe_all(rows)

    def _fold_at_once(self) -> None:
        rows = self._at_once
        self._at_once = []
        if not rows:
            return
        gaps = 0
        for row, at_s in rows:
            tokens = row.generation_tokens
            self._computed.append((row.prompt_tokens + tokens, at_s))
            self._prefills.append((0.0, row.prompt_tokens, 0))
            self._finished.append(row)
            self._generated.value += tokens
            gaps += max(0, tokens - 1)
        if gaps:
            self._inter_token.observe(0.0, gaps)
            if self.tally is not None:
                self.tally.add_gaps((0.0,), gaps)
        self._fold_tokens()
        self._fold_prefills()
        self._fold_finished()

    def _fold_finished(self) -> None:
        rows = self._finished
        self._finished = []
        if not rows:
            return
        (
            reasons,
            prompt,
            generated,
            cached,
            limits,
            queue,
            prefill,
            decode,
            e2e,
            preemptions,
            choices,
            longest,
        ) = zip(*map(astuple, rows), strict=True)
        for reason, count in Tally(reasons).items():
            self._counter("request_success_total", finished_reason=reason).value += count
        gaps = [
            decode_s / (tokens - 1) if tokens > 1 else 0.0
            for decode_s, tokens in zip(decode, generated, strict=True)
        ]
        columns: dict[str, Sequence[float]] = {
            "request_prompt_tokens": prompt,
            "request_generation_tokens": generated,
            "request_prefill_kv_computed_tokens": list(map(sub, prompt, cached)),
            "request_num_preemptions": preemptions,
            "request_queue_time_seconds": queue,
            "request_prefill_time_seconds": prefill,
            "request_decode_time_seconds": decode,
            "request_inference_time_seconds": list(map(add, prefill, decode)),
            "request_time_per_output_token_seconds": gaps,
            "e2e_request_latency_seconds": e2e,
            "request_params_max_tokens": list(filter(None, limits)),
            "request_params_n": list(filter(None, choices)),
            "request_max_num_generation_tokens": list(compress(longest, choices)),
        }
        for name, values in columns.items():
            self._histogram(name).observe_all(values)

    def _fold_tokens(self) -> None:
        if not self._has_steps:
            steps = Tally([int(at_s * STEPS_PER_S) for at_s in self._moments_s])
            for tokens, at_s in self._computed:
                steps[int(at_s * STEPS_PER_S)] += tokens
            self._iterations.observe_all(steps.values())
        gaps_s = self._gaps_s
        joined = self._joined
        self._generated.value += len(gaps_s) + sum(joined.values())
        if joined:
            for index, gap_s in enumerate(gaps_s):
                self._inter_token.observe(gap_s, 1 + joined.get(index, 0))
        else:
            self._inter_token.observe_all(gaps_s)
        if self.tally is not None:
            self.tally.add_gaps(gaps_s)
            for index, more_tokens in joined.items():
                self.tally.add_gaps((gaps_s[index],), more_tokens)
        self._computed.clear()
        gaps_s.clear()
        self._moments_s.clear()
        joined.clear()

    def _fold_prefills(self) -> None:
        rows = self._prefills
        self._prefills = []
        if not rows:
            return
        ttfts_s, prompts, cached = zip(*rows, strict=True)
        prompt_tokens = sum(prompts)
        cached_tokens = sum(cached)
        fetched = self._fetched
        loaded = self._loaded
        self._fetched = 0
        self._loaded = 0
        local = cached_tokens - fetched - loaded
        self._histogram("time_to_first_token_seconds").observe_all(ttfts_s)
        if self.tally is not None:
            self.tally.add_first_tokens(ttfts_s)
        count = self._counter
        by_source = "prompt_tokens_by_source_total"
        count("prompt_tokens_total").value += prompt_tokens
        count("prompt_tokens_cached_total").value += cached_tokens
        count(by_source, source="local_compute").value += prompt_tokens - cached_tokens
        count(by_source, source="external_kv_transfer").value += fetched + loaded
        count(by_source, source="local_cache_hit").value += local
        count("prompt_tokens_cached_by_source_total", source="p2p").value += fetched
        count("prompt_tokens_cached_by_source_total", source="device").value += local


def _no_load() -> tuple[int, int, float]:
    return 0, 0, 0.0
