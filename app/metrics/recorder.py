"""The one thing that serving knows about metrics: a method per event, numbers in seconds and tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from app.metrics.families import BLOCK_TIMES, FINISHED, REJECTIONS, build
from app.metrics.loras import LoraRequests

FinishReason = Literal["stop", "length", "abort", "error", "repetition"]
RejectionReason = Literal["max_num_queued_reqs", "max_num_queued_tokens"]


STEPS_PER_S = 1000
"""Engine steps that a second of simulated decoding may have."""


class Recorder:
    """Counts what happens to sequences, with the meaning of vLLM's families (vllm-api.md 11.2).

    A sequence is one choice of one prompt: a prompt with n = 3 is three sequences, each of which waits,
    runs, is prefilled, decoded and finished, as in vLLM. Only `completed` is called once per prompt.

    `now` gives Unix seconds for the `_created` series; with `max_loras` adapters are told of. ValueError: see
    `families.build`.
    """

    def __init__(
        self,
        model_name: str,
        max_model_len: int,
        cache_config: Mapping[str, str],
        engine: str = "0",
        now: Callable[[], float] = time.time,
        max_loras: int | None = None,
        block_times: bool = False,
    ) -> None:
        self._loras = None if max_loras is None else LoraRequests(max_loras, now)
        self._server = {"model_name": model_name, "engine": engine}
        self._families = build(self._server, max_model_len, cache_config, now, block_times)
        self._block_times = {name: self._one(name) for name in BLOCK_TIMES if block_times}
        self._generated = self._one("generation_tokens_total")
        self._inter_token = self._one("inter_token_latency_seconds")
        self._iteration = self._one("iteration_tokens_total")
        self._step = 0
        self._step_tokens = 0
        self._bind_gauges()
        self._bind_prefill()
        self._bind_end()

    def _one(self, name: str, **labels: str) -> Any:
        return self._families[f"vllm:{name}"].labels(**self._server, **labels)

    def _bind_gauges(self) -> None:
        self._running = self._one("num_requests_running")
        self._waiting = self._one("num_requests_waiting")
        self._waiting_for_capacity = self._one("num_requests_waiting_by_reason", reason="capacity")
        self._cache_usage = self._one("kv_cache_usage_perc")
        self._queries = self._one("prefix_cache_queries_total")
        self._hits = self._one("prefix_cache_hits_total")
        self._one("engine_sleep_state", sleep_state="awake").set(1)
        for _, info in self._families["vllm:cache_config_info"].children():
            info.set(1)

    def _bind_prefill(self) -> None:
        self._ttft = self._one("time_to_first_token_seconds")
        self._prompt = self._one("prompt_tokens_total")
        self._cached = self._one("prompt_tokens_cached_total")
        self._computed = self._one("prompt_tokens_by_source_total", source="local_compute")
        self._local_hit = self._one("prompt_tokens_by_source_total", source="local_cache_hit")

    def _bind_end(self) -> None:
        rejections = self._families["vllm:admission_rejections_total"]
        model = self._server["model_name"]
        self._rejected = {reason: rejections.labels(model_name=model, reason=reason) for reason in REJECTIONS}
        success = "request_success_total"
        self._success = {reason: self._one(success, finished_reason=reason) for reason in FINISHED}
        self._prompt_tokens = self._one("request_prompt_tokens")
        self._generation_tokens = self._one("request_generation_tokens")
        self._kv_computed = self._one("request_prefill_kv_computed_tokens")
        self._max_tokens = self._one("request_params_max_tokens")
        self._preemptions = self._one("request_num_preemptions")
        self._e2e = self._one("e2e_request_latency_seconds")
        self._queue = self._one("request_queue_time_seconds")
        self._inference = self._one("request_inference_time_seconds")
        self._prefill = self._one("request_prefill_time_seconds")
        self._decode = self._one("request_decode_time_seconds")
        self._mean_tpot = self._one("request_time_per_output_token_seconds")
        self._n = self._one("request_params_n")
        self._longest = self._one("request_max_num_generation_tokens")

    def waiting(self, delta: int, adapter: str | None = None) -> None:
        """So many sequences, which need `adapter`, entered (or, negative, left) the waiting list."""
        self._waiting.add(delta)
        self._waiting_for_capacity.add(delta)
        if adapter is not None and self._loras is not None:
            self._loras.waiting(adapter, delta)

    def running(self, delta: int, adapter: str | None = None) -> None:
        """So many sequences, which need `adapter`, took (or, negative, gave back) a place."""
        self._running.add(delta)
        if adapter is not None and self._loras is not None:
            self._loras.running(adapter, delta)

    def cache_used(self, share: float) -> None:
        """So much of the KV cache is in use, from 0 to 1."""
        self._cache_usage.value = share

    def looked_up(self, tokens: int, found: int) -> None:
        """A prompt of `tokens` tokens was looked up in the prefix cache, and `found` of them were there."""
        self._queries.inc(tokens)
        self._hits.inc(found)

    def block_lifetime(self, seconds: float) -> None:
        """From a block's filling to its eviction."""
        self._block_times["kv_block_lifetime_seconds"].observe(seconds)

    def block_idle_before_evict(self, seconds: float) -> None:
        """From a block's last use to its eviction."""
        self._block_times["kv_block_idle_before_evict_seconds"].observe(seconds)

    def block_reuse_gap(self, seconds: float) -> None:
        """Between two uses of a block."""
        self._block_times["kv_block_reuse_gap_seconds"].observe(seconds)

    def parsed_tools(self, streaming: bool, found: bool, times: int = 1) -> None:
        """The parser of tool calls looked at a reply, or at an event of a stream, and `found` a call."""
        labels = {
            "mode": "streaming" if streaming else "non_streaming",
            "outcome": "tool_call" if found else "no_tool_call",
            "request_type": "chat_completions",
            "model_name": self._server["model_name"],
        }
        self._families["vllm:tool_call_parser_invocations_total"].labels(**labels).inc(times)

    def sleeping(self, level: int | None) -> None:
        """Asleep at `level` (0, 1 or 2), or awake when None."""
        states = {"awake": level in (None, 0), "weights_offloaded": level == 1, "discard_all": level == 2}
        for state, holds in states.items():
            self._one("engine_sleep_state", sleep_state=state).set(int(holds))

    def slept(self, operation: Literal["sleep", "wake"], seconds: float) -> None:
        """A sleep or wake operation took so long."""
        family = self._families["vllm:sleep_mode_operation_duration_seconds"]
        family.labels(operation=operation).observe(seconds)

    def rejected(self, reason: RejectionReason) -> None:
        """A request was turned away by a limit of the waiting list. KeyError for another reason."""
        self._rejected[reason].inc()

    def decoded(self, tokens: int, gap_s: float, at_s: float) -> None:
        """`tokens` after a sequence's first came, the last at `at_s`, each `gap_s` after the one before."""
        # Once per token of every stream: the counters are reached without a call each.
        self._generated.value += tokens
        self._inter_token.observe(gap_s, tokens)
        if int(at_s * STEPS_PER_S) == self._step:
            self._step_tokens += tokens
        else:
            self._computed_at(at_s, tokens)

    def prefilled(
        self, ttft_s: float, prompt_tokens: int, cached_tokens: int, at_s: float, tokens: int = 1
    ) -> None:
        """A sequence's first token came at `at_s`, `ttft_s` after its arrival; cached tokens count, too.

        `tokens` is 0 for a reply that is empty.
        """
        self._generated.inc(tokens)
        self._computed_at(at_s, prompt_tokens - cached_tokens + tokens)
        self._ttft.observe(ttft_s)
        self._prompt.inc(prompt_tokens)
        self._cached.inc(cached_tokens)
        self._computed.inc(prompt_tokens - cached_tokens)
        self._local_hit.inc(cached_tokens)

    def _computed_at(self, at_s: float, tokens: int) -> None:
        """What is computed in the same millisecond counts as one engine step."""
        step = int(at_s * STEPS_PER_S)
        if step != self._step:
            self._flush_step()
            self._step = step
        self._step_tokens += tokens

    def _flush_step(self) -> None:
        if self._step_tokens:
            self._iteration.observe(self._step_tokens)
            self._step_tokens = 0

    def finished(
        self,
        reason: FinishReason,
        *,
        prompt_tokens: int,
        generation_tokens: int,
        cached_tokens: int,
        max_tokens: int | None,
        queue_s: float,
        prefill_s: float,
        decode_s: float,
        e2e_s: float,
        preemptions: int = 0,
    ) -> None:
        """A sequence ended; all its histograms are observed now, whatever the reason (KeyError: unknown).

        `max_tokens` is the limit in force (vLLM fills it in when the client gave none); `queue_s` is waiting,
        `prefill_s` from the place to the first token, `decode_s` from the first token to the last, `e2e_s`
        from arrival to now. What did not happen, as when it was aborted while it waited, is 0.
        """
        self._success[reason].inc()
        self._e2e.observe(e2e_s)
        self._queue.observe(queue_s)
        self._prefill.observe(prefill_s)
        self._inference.observe(prefill_s + decode_s)
        self._decode.observe(decode_s)
        self._mean_tpot.observe(decode_s / (generation_tokens - 1) if generation_tokens > 1 else 0)
        self._preemptions.observe(preemptions)
        self._prompt_tokens.observe(prompt_tokens)
        self._kv_computed.observe(prompt_tokens - cached_tokens)
        self._generation_tokens.observe(generation_tokens)
        if max_tokens:
            self._max_tokens.observe(max_tokens)

    def completed(self, n: int, longest: int) -> None:
        """The last of a prompt's `n` sequences finished; the longest had `longest` generated tokens."""
        self._n.observe(n)
        self._longest.observe(longest)

    def render(self) -> str:
        """The text of all `vllm:` families."""
        self._flush_step()
        families = "".join(family.render() for family in self._families.values())
        return families if self._loras is None else families + self._loras.family.render()
