"""The recorder as it would be without rows: every event is counted when it happens, number by number."""

from __future__ import annotations

from collections.abc import Callable

from app.base.metrics.families import ABORTED, EngineFamilies, engine_table
from app.base.metrics.recorder import FinishedSequence


class DirectRecorder:
    """The events of `Recorder` that it notes as rows, with the same arguments."""

    def __init__(self, now: Callable[[], float]) -> None:
        server = {"model_name": "tiny", "engine": "0"}
        self._families = EngineFamilies((*engine_table({}), *ABORTED), server, now, 2048)
        self._families.gauge("engine_sleep_state", sleep_state="awake").set(1)
        self._step = 0
        self._step_tokens = 0

    def decoded(self, tokens: int, gap_s: float, at_s: float) -> None:
        self._inc("generation_tokens_total", tokens)
        self._observe("inter_token_latency_seconds", gap_s, tokens)
        self._computed(tokens, at_s)

    def prefilled(
        self, ttft_s: float, prompt_tokens: int, cached_tokens: int, at_s: float, tokens: int
    ) -> None:
        self._inc("generation_tokens_total", tokens)
        self._computed(prompt_tokens - cached_tokens + tokens, at_s)
        self._observe("time_to_first_token_seconds", ttft_s)
        self._inc("prompt_tokens_total", prompt_tokens)
        self._inc("prompt_tokens_cached_total", cached_tokens)
        self._inc("prompt_tokens_by_source_total", prompt_tokens - cached_tokens, source="local_compute")
        self._inc("prompt_tokens_by_source_total", cached_tokens, source="local_cache_hit")
        self._inc("prompt_tokens_cached_by_source_total", cached_tokens, source="device")

    def sequence_finished(self, row: FinishedSequence) -> None:
        self._inc("request_success_total", 1, finished_reason=row.reason)
        self._observe("request_queue_time_seconds", row.queue_s)
        self._observe("request_prefill_time_seconds", row.prefill_s)
        self._observe("request_decode_time_seconds", row.decode_s)
        self._observe("e2e_request_latency_seconds", row.e2e_s)
        self._observe("request_inference_time_seconds", row.prefill_s + row.decode_s)
        after_first = row.generation_tokens - 1
        mean_s = row.decode_s / after_first if after_first > 0 else 0
        self._observe("request_time_per_output_token_seconds", mean_s)
        self._observe("request_num_preemptions", row.preemptions)
        self._observe("request_prompt_tokens", row.prompt_tokens)
        self._observe("request_prefill_kv_computed_tokens", row.prompt_tokens - row.cached_tokens)
        self._observe("request_generation_tokens", row.generation_tokens)
        if row.max_tokens:
            self._observe("request_params_max_tokens", row.max_tokens)
        if row.choices:
            self._observe("request_params_n", row.choices)
            self._observe("request_max_num_generation_tokens", row.longest)

    def render(self) -> str:
        self._flush_step()
        return self._families.render()

    def _computed(self, tokens: int, at_s: float) -> None:
        step = int(at_s * 1000)
        if step != self._step:
            self._flush_step()
            self._step = step
        self._step_tokens += tokens

    def _flush_step(self) -> None:
        if self._step_tokens:
            self._observe("iteration_tokens_total", self._step_tokens)
            self._step_tokens = 0

    def _inc(self, name: str, amount: int, **labels: str) -> None:
        self._families.counter(name, **labels).inc(amount)

    def _observe(self, name: str, value: float, count: int = 1) -> None:
        self._families.histogram(name).observe(value, count)
