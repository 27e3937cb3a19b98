"""The `vllm:` families of vLLM 0.32 (vllm-api.md 11.1): a table of names, labels, label values and buckets.

Every series exists from the start, at zero, so that rates are right from the first event on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Literal, TypeVar

from app.metrics.instruments import Counter, Family, Gauge, Histogram, Instrument

InstrumentT = TypeVar("InstrumentT", bound=Instrument)
Kind = Literal["counter", "gauge", "histogram"]
Bounds = tuple[float, ...]
Values = tuple[str, ...]

REQUEST_LATENCY = (
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
INTER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SLEEP_OPERATION = (0.01, 0.1, 1, 10, 30, 60, 120, 300, 600)

FINISHED = ("stop", "length", "abort", "error", "repetition")
REJECTIONS = ("max_num_queued_reqs", "max_num_queued_tokens")
PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
CACHE_TIERS = ("device", "host", "p2p", "disk", "external_unspecified")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
SLEEP_OPERATIONS = ("sleep", "release_kv_cache_memory", "wake")


@dataclass(frozen=True, slots=True)
class Spec:
    """One row of the table.

    `bounds` are a histogram's, None for those that follow the context length; `base` names the labels that
    say which server it is; `extra` gives the further labels with their values; `alias_of` is the family
    whose numbers another name repeats.
    """

    name: str
    kind: Kind
    help: str
    bounds: Bounds | None = ()
    base: Values = ("model_name", "engine")
    extra: Mapping[str, Values] = field(default_factory=dict)
    alias_of: str | None = None


def _counter(name: str, help: str, base: Values = ("model_name", "engine"), **extra: Values) -> Spec:
    return Spec(f"vllm:{name}", "counter", help, base=base, extra=extra)


def _gauge(name: str, help: str, base: Values = ("model_name", "engine"), **extra: Values) -> Spec:
    return Spec(f"vllm:{name}", "gauge", help, base=base, extra=extra)


def _seconds(name: str, help: str, bounds: Bounds) -> Spec:
    return Spec(f"vllm:{name}_seconds", "histogram", help, bounds)


def _tokens(name: str, help: str, bounds: Bounds | None = None) -> Spec:
    return Spec(f"vllm:{name}", "histogram", help, bounds)


def _alias(name: str, kind: Kind, modern: str, bounds: Bounds | None = ()) -> Spec:
    return Spec(f"vllm:{name}", kind, f"Other name of vllm:{modern}.", bounds, alias_of=f"vllm:{modern}")


# fmt: off
TABLE: tuple[Spec, ...] = (
    _counter("estimated_flops_per_gpu_total", "Estimated floating point operations, per GPU."),
    _counter("estimated_read_bytes_per_gpu_total", "Estimated bytes read from memory, per GPU."),
    _counter("estimated_write_bytes_per_gpu_total", "Estimated bytes written to memory, per GPU."),
    _gauge("num_requests_running", "Requests that hold a place in the batch."),
    _gauge("num_requests_waiting", "Requests that wait for a place in the batch."),
    _gauge("num_requests_waiting_by_reason",
           "Waiting requests by cause: capacity = no place, deferred = a passing constraint.",
           reason=("capacity", "deferred")),
    _gauge("engine_sleep_state",
           "1 for the present state; weights_offloaded is sleep level 1, discard_all level 2.",
           sleep_state=SLEEP_STATES),
    _gauge("kv_cache_usage_perc", "Used share of the KV cache, from 0 to 1."),
    _alias("gpu_cache_usage_perc", "gauge", "kv_cache_usage_perc"),
    _counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache."),
    _counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache."),
    _counter("external_prefix_cache_queries_total", "Prompt tokens looked up in the caches of others."),
    _counter("external_prefix_cache_hits_total", "Prompt tokens found in the caches of others."),
    _counter("mm_cache_queries_total", "Images and other media looked up in the media cache."),
    _counter("mm_cache_hits_total", "Images and other media found in the media cache."),
    _counter("num_preemptions_total", "Times that a running request lost its place."),
    _counter("prompt_tokens_total", "Prompt tokens of all prefills, cached tokens included."),
    _counter("prompt_tokens_by_source_total", "Prompt tokens by where their KV came from.",
             source=PROMPT_SOURCES),
    _counter("prompt_tokens_cached_total", "Prompt tokens that needed no prefill."),
    _counter("prompt_tokens_cached_by_source_total", "Cached prompt tokens by the tier that held them.",
             source=CACHE_TIERS),
    _counter("generation_tokens_total", "Tokens generated."),
    _counter("request_success_total", "Requests that ended, by reason; those that clients left are none.",
             finished_reason=FINISHED),
    _counter("admission_rejections_total", "Requests turned away by a limit of the waiting list.",
             base=("model_name",), reason=REJECTIONS),
    _tokens("request_prompt_tokens", "Prompt tokens per request."),
    _tokens("request_generation_tokens", "Generated tokens per request."),
    _tokens("iteration_tokens_total", "Tokens computed per engine step.", ITERATION_TOKENS),
    _tokens("request_max_num_generation_tokens", "Generated tokens of each request's longest choice."),
    _alias("max_num_generation_tokens", "histogram", "request_max_num_generation_tokens", None),
    _tokens("request_params_n", "Choices asked for per request (n).", (1, 2, 5, 10, 20)),
    _tokens("request_params_max_tokens", "Token limit in force per request (max_tokens)."),
    _seconds("time_to_first_token", "From arrival to first token.", FIRST_TOKEN),
    _seconds("inter_token_latency", "Between two outputs of a request.", INTER_TOKEN),
    _alias("time_per_output_token_seconds", "histogram", "inter_token_latency_seconds", INTER_TOKEN),
    _seconds("request_time_per_output_token", "Mean per token after the first, per request.", INTER_TOKEN),
    _seconds("e2e_request_latency", "From arrival to end of a request.", REQUEST_LATENCY),
    _seconds("request_queue_time", "In the waiting list, per request.", REQUEST_LATENCY),
    _seconds("request_inference_time", "From leaving the waiting list to last token.", REQUEST_LATENCY),
    _seconds("request_prefill_time", "From leaving the waiting list to first token.", REQUEST_LATENCY),
    _seconds("request_decode_time", "From first token to last token.", REQUEST_LATENCY),
    _tokens("request_num_preemptions", "Preemptions per request.", (1, 2, 3, 4, 5, 10, 20)),
    _tokens("request_prefill_kv_computed_tokens", "Prompt tokens per request that were not cached."),
    _counter("tool_call_parser_invocations_total",
             "Runs of the tool call parser: one per whole choice, one per delta of a stream.",
             base=("model_name",), mode=("streaming", "non_streaming"), outcome=("tool_call", "no_tool_call"),
             request_type=("chat_completions", "responses", "other")),
    Spec("vllm:sleep_mode_operation_duration_seconds", "histogram", "Duration of sleep and wake operations.",
         SLEEP_OPERATION, base=(), extra={"operation": SLEEP_OPERATIONS}),
    _gauge("sleep_mode_operations_in_flight", "Sleep and wake operations under way.", base=(),
           operation=SLEEP_OPERATIONS),
)
# fmt: on


BLOCK_LIFE = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800),
)
BLOCK_TIMES = {
    "kv_block_lifetime_seconds": "From filling to eviction of a block.",
    "kv_block_idle_before_evict_seconds": "From the last use of a block to its eviction.",
    "kv_block_reuse_gap_seconds": "Between two uses of a block.",
}
"""Families that are there with `kv-cache-metrics` only."""

# vLLM's labels and defaults; "None" is how it prints a value that is not set.
CACHE_CONFIG: Mapping[str, str] = {
    "_block_size_resolved": "True",
    "block_size": "16",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "effective_attention_block_size": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "enable_prefix_caching": "True",
    "gpu_memory_utilization": "0.92",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_max_concurrency": "None",
    "kv_cache_memory_bytes": "None",
    "kv_cache_size_tokens": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "auto",
    "num_cpu_blocks": "None",
    "num_gpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}


def _histogram_of(name: str, help: str) -> Spec:
    return Spec(f"vllm:{name}", "histogram", help, BLOCK_LIFE)


_BLOCK_TABLE = tuple(_histogram_of(name, help) for name, help in BLOCK_TIMES.items())
_BASES = {spec.name: spec.base for spec in (*TABLE, *_BLOCK_TABLE)}
"""The labels of each family that say which server it is."""


def token_bounds(max_model_len: int) -> Bounds:
    """1, 2, 5, 10, 20, 50 ... up to the context length in tokens; none for 0."""
    steps = (step * 10**power for power in range(len(str(max_model_len))) for step in (1, 2, 5))
    return tuple(float(step) for step in steps if step <= max_model_len)


def _create(spec: Spec, max_model_len: int) -> Callable[[], Instrument]:
    if spec.kind == "histogram":
        bounds = token_bounds(max_model_len) if spec.bounds is None else spec.bounds
        return partial(Histogram, bounds)
    return Counter if spec.kind == "counter" else Gauge


def _label_sets(spec: Spec, server: Mapping[str, str]) -> Iterator[dict[str, str]]:
    base = {label: server[label] for label in spec.base}
    for values in product(*spec.extra.values()):
        yield {**base, **dict(zip(spec.extra, values, strict=True))}


def _info_labels(cache_config: Mapping[str, str]) -> dict[str, str]:
    """Every label of the gauge but `engine`: vLLM's defaults with `cache_config` over them.

    Raises ValueError for a label that vLLM does not have.
    """
    if unknown := cache_config.keys() - CACHE_CONFIG.keys():
        raise ValueError(f"not a label of vllm:cache_config_info: {', '.join(sorted(unknown))}")
    return {**CACHE_CONFIG, **cache_config}


def _info(cache_config: Mapping[str, str]) -> Spec:
    labels = {label: (value,) for label, value in _info_labels(cache_config).items()}
    help = "Always 1; its labels are the settings of the KV cache."
    return _gauge("cache_config_info", help, ("engine",), **labels)


def build_families(
    server: Mapping[str, str],
    max_model_len: int,
    cache_config: Mapping[str, str],
    now: Callable[[], float],
    block_times: bool = False,
    older_names: bool = False,
) -> dict[str, Family[Instrument]]:
    """All families by name, with their series at zero; `BLOCK_TIMES` and `older_names` only on demand.

    `server` gives the values of the labels `model_name` and `engine`; `cache_config` overrides labels of
    vllm:cache_config_info (ValueError for one that vLLM does not have); `now` gives Unix seconds.
    """
    named = TABLE if older_names else tuple(spec for spec in TABLE if not spec.alias_of)
    table = (*named, *(_BLOCK_TABLE if block_times else ()), _info(cache_config))
    return families_of(table, server, max_model_len, now)


def families_of(
    table: Iterable[Spec], server: Mapping[str, str], max_model_len: int, now: Callable[[], float]
) -> dict[str, Family[Instrument]]:
    """The families of `table` by name, with their series at zero; arguments as for `build_families`."""
    families: dict[str, Family[Instrument]] = {}
    for spec in table:
        create = _create(spec, max_model_len)
        family = families[spec.name] = Family(spec.name, spec.help, create, spec.kind, now)
        if spec.alias_of:
            for labels, instrument in families[spec.alias_of].children():
                family.add(instrument, labels)
        else:
            for labels in _label_sets(spec, server):
                family.labels(**labels)
    return families


class EngineFamilies:
    """The families of one engine, found by name and labels; arguments as for `build_families`."""

    def __init__(
        self,
        server: Mapping[str, str],
        max_model_len: int,
        cache_config: Mapping[str, str],
        now: Callable[[], float],
        block_times: bool = False,
        older_names: bool = False,
    ) -> None:
        self._server = server
        self._families = build_families(server, max_model_len, cache_config, now, block_times, older_names)
        for _, info in self._families["vllm:cache_config_info"].children():
            assert isinstance(info, Gauge)
            info.set(1)

    def one(self, kind: type[InstrumentT], name: str, **labels: str) -> InstrumentT:
        """The instrument of `vllm:{name}` with the labels that its family has of the server, and `labels`."""
        family = self._families[f"vllm:{name}"]
        own = {label: self._server[label] for label in _BASES[family.name]}
        instrument = family.labels(**own, **labels)
        assert isinstance(instrument, kind)
        return instrument

    def render(self) -> str:
        """Their text."""
        return "".join(family.render() for family in self._families.values())
