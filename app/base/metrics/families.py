"""The table of an engine's families: names, labels, label values and buckets of vLLM 0.32
(vllm-api.md 11).

The recorder, the fake metrics and the exposition use it. Every series exists from the start, at
zero, so that rates are right from the first event on.
"""

from collections import Counter as Tally
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from sys import getsizeof
from typing import Literal, cast, get_args

from app.base.metrics.instruments import Counter, Family, Gauge, Histogram, Instrument

Kind = Literal["counter", "gauge", "histogram"]
Bounds = tuple[float, ...]
Values = tuple[str, ...]
SERVER = ("model_name", "engine")

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


# Bounds of families that a setting adds.
BLOCK_LIFE = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800),
)
TRANSFER_TIMES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)
TRANSFER_BYTES = tuple(float(2**power) for power in range(11, 34, 2))
DESCRIPTORS = (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000)
ADAPTER_TIMES = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


@dataclass(frozen=True, slots=True)
class Spec:
    """One row of the table.

    `bounds`: a histogram's; None for bounds that follow the context length. `base`: labels that
    identify the server. `extra`: further labels with their values. `alias_of`: family with the same
    numbers. `value`: initial value of the series.
    """

    name: str
    kind: Kind
    help: str
    bounds: Bounds | None = None
    base: Values = SERVER
    extra: Mapping[str, Values] = field(default_factory=dict)
    alias_of: str | None = None
    value: float = 0


def _spec(
    kind: Kind,
    name: str,
    help: str,
    bounds: Bounds | None = None,
    base: Values = SERVER,
    alias_of: str | None = None,
    **extra: Values,
) -> Spec:
    return Spec(f"vllm:{name}", kind, help, bounds, base, extra, alias_of)


_counter, _gauge, _histogram = (partial(_spec, kind) for kind in get_args(Kind))

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
    _gauge("gpu_cache_usage_perc", "Other name of vllm:kv_cache_usage_perc.",
           alias_of="vllm:kv_cache_usage_perc"),
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
    _histogram("request_prompt_tokens", "Prompt tokens per request."),
    _histogram("request_generation_tokens", "Generated tokens per request."),
    _histogram("iteration_tokens_total", "Tokens computed per engine step.", ITERATION_TOKENS),
    _histogram("request_max_num_generation_tokens", "Generated tokens of each request's longest choice."),
    _histogram("max_num_generation_tokens", "Other name of vllm:request_max_num_generation_tokens.",
               alias_of="vllm:request_max_num_generation_tokens"),
    _histogram("request_params_n", "Choices asked for per request (n).", (1, 2, 5, 10, 20)),
    _histogram("request_params_max_tokens", "Token limit in force per request (max_tokens)."),
    _histogram("time_to_first_token_seconds", "From arrival to first token.", FIRST_TOKEN),
    _histogram("inter_token_latency_seconds", "Between two outputs of a request.", INTER_TOKEN),
    _histogram("time_per_output_token_seconds", "Other name of vllm:inter_token_latency_seconds.",
               INTER_TOKEN, alias_of="vllm:inter_token_latency_seconds"),
    _histogram("request_time_per_output_token_seconds", "Mean per token after the first, per request.",
               INTER_TOKEN),
    _histogram("e2e_request_latency_seconds", "From arrival to end of a request.", REQUEST_LATENCY),
    _histogram("request_queue_time_seconds", "In the waiting list, per request.",
               REQUEST_LATENCY),
    _histogram("request_inference_time_seconds", "From leaving the waiting list to last token.",
               REQUEST_LATENCY),
    _histogram("request_prefill_time_seconds", "From leaving the waiting list to first token.",
               REQUEST_LATENCY),
    _histogram("request_decode_time_seconds", "From first token to last token.", REQUEST_LATENCY),
    _histogram("request_num_preemptions", "Preemptions per request.", (1, 2, 3, 4, 5, 10, 20)),
    _histogram("request_prefill_kv_computed_tokens", "Prompt tokens per request that were not cached."),
    _counter("tool_call_parser_invocations_total",
             "Runs of the tool call parser: one per whole choice, one per delta of a stream.",
             base=("model_name",), mode=("streaming", "non_streaming"), outcome=("tool_call", "no_tool_call"),
             request_type=("chat_completions", "responses", "other")),
    _histogram("sleep_mode_operation_duration_seconds", "Duration of sleep and wake operations.",
               SLEEP_OPERATION, base=(), operation=SLEEP_OPERATIONS),
    _gauge("sleep_mode_operations_in_flight", "Sleep and wake operations under way.", base=(),
           operation=SLEEP_OPERATIONS),
)

BLOCK_TIMES = (
    _histogram("kv_block_lifetime_seconds", "From filling to eviction of a block.", BLOCK_LIFE),
    _histogram("kv_block_idle_before_evict_seconds", "From the last use of a block to its eviction.",
               BLOCK_LIFE),
    _histogram("kv_block_reuse_gap_seconds", "Between two uses of a block.", BLOCK_LIFE),
)
"""Families that only `kv-cache-metrics` adds."""
TRANSFERS = (
    _histogram("nixl_xfer_time_seconds", "Duration of a transfer of KV caches.", TRANSFER_TIMES),
    _histogram("nixl_post_time_seconds", "Time to post a transfer.", (0.001, *TRANSFER_TIMES)),
    _histogram("nixl_bytes_transferred", "Bytes per transfer of KV caches.", TRANSFER_BYTES),
    _histogram("nixl_num_descriptors", "Descriptors per transfer of KV caches.", DESCRIPTORS),
    _counter("nixl_num_failed_transfers_total", "Transfers of KV caches that failed."),
    _counter("nixl_num_failed_notifications_total", "Notifications that could not be sent."),
    _counter("nixl_num_kv_expired_reqs_total", "Requests whose KV cache nobody fetched in time."),
    _counter("nixl_num_notifications_after_expiry_total", "Notifications that came too late."),
)
"""Families of vLLM's NIXL connector (vllm-api.md 11.3)."""
ADAPTERS = (
    _gauge("num_gpu_loaded_lora_adapters", "Adapters on the GPU."),
    _gauge("num_cpu_loaded_lora_adapters", "Adapters in CPU memory."),
    _gauge("max_gpu_lora_adapters", "Adapters that the GPU has room for (max-loras)."),
    _histogram("lora_adapter_load_seconds",
               "Duration of a transition: load to CPU memory, activate on the GPU.",
               ADAPTER_TIMES, transition=("load", "activate")),
)
"""Families with the places of adapters, for routers (vllm#54830); in vLLM after 0.32."""
LATE = (
    Spec("understudy_late_requests_total", "counter",
         "Requests that the scheduler saw too late, as their reading took long."),
    Spec("understudy_late_seconds_total", "counter", "How late they were, all together."),
)
ABORTED = (
    Spec("understudy_aborted_requests_total", "counter",
         "Sequences that their clients left, or that were ended by their ids."),
)
# fmt: on


def drafts(positions: int) -> tuple[Spec, ...]:
    """Families of speculative decoding with up to `positions` tokens per draft."""
    places = tuple(map(str, range(positions)))
    by_place = "Tokens of drafts that were right, by their place."
    return (
        _counter("spec_decode_num_drafts_total", "Drafts that were checked."),
        _counter("spec_decode_num_draft_tokens_total", "Tokens of drafts that were checked."),
        _counter("spec_decode_num_accepted_tokens_total", "Tokens of drafts that were right."),
        _counter("spec_decode_num_accepted_tokens_per_pos_total", by_place, position=places),
    )


# vLLM's labels and defaults; vLLM prints "None" for a value that is not set.
_UNSET = (
    *(
        "cache_hit_alignment_tokens",
        "effective_attention_block_size",
        "hash_block_size",
        "kv_cache_layout",
    ),
    *(
        "kv_cache_max_concurrency",
        "kv_cache_memory_bytes",
        "kv_cache_size_tokens",
        "kv_offloading_size",
    ),
    *("mamba_block_size", "mamba_page_size_padded", "num_cpu_blocks", "num_gpu_blocks"),
    *("num_gpu_blocks_override", "prefix_match_unit", "skip_page_size_padded", "sliding_window"),
)
CACHE_CONFIG: Mapping[str, str] = dict.fromkeys(_UNSET, "None") | {
    "_block_size_resolved": "True",
    "block_size": "16",
    "cache_dtype": "auto",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "enable_prefix_caching": "True",
    "gpu_memory_utilization": "0.92",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_offloading_backend": "native",
    "kv_sharing_fast_prefill": "False",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_ssm_cache_dtype": "auto",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "replayssm_buffer_len": "16",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}


def token_bounds(max_model_len: int) -> Bounds:
    """Returns 1, 2, 5, 10, 20, 50 ... up to the context length in tokens; none for 0."""
    steps = (step * 10**power for power in range(len(str(max_model_len))) for step in (1, 2, 5))
    return tuple(float(step) for step in steps if step <= max_model_len)


def engine_table(
    cache_config: Mapping[str, str], block_times: bool = False, older_names: bool = False
) -> tuple[Spec, ...]:
    """Returns the families that every engine has; `BLOCK_TIMES` and `older_names` on demand.

    `cache_config` overrides labels of vllm:cache_config_info.
    """
    labels = {label: (value,) for label, value in {**CACHE_CONFIG, **cache_config}.items()}
    help = "Always 1; its labels are the settings of the KV cache."
    named = (spec for spec in TABLE if older_names or not spec.alias_of)
    info = Spec("vllm:cache_config_info", "gauge", help, base=("engine",), extra=labels, value=1)
    return (*named, *(BLOCK_TIMES if block_times else ()), info)


class EngineFamilies:
    """The families of one engine by name, with their series at initial values.

    `server` has the values of the labels in `SERVER`; `now` returns Unix seconds.
    """

    def __init__(
        self,
        table: Iterable[Spec],
        server: Mapping[str, str],
        now: Callable[[], float],
        max_model_len: int = 0,
    ) -> None:
        self.by_name: dict[str, Family[Instrument]] = {}
        self._base: dict[str, dict[str, str]] = {}
        self._server, self._now = server, now
        self._token_bounds = token_bounds(max_model_len)
        self.add(table)

    def add(self, table: Iterable[Spec]) -> None:
        for spec in table:
            if spec.name in self.by_name:
                continue
            base = self._base[spec.name] = {label: self._server[label] for label in spec.base}
            create: Callable[[], Instrument] = Counter if spec.kind == "counter" else Gauge
            if spec.kind == "histogram":
                create = partial(
                    Histogram, self._token_bounds if spec.bounds is None else spec.bounds
                )
            family = self.by_name[spec.name] = Family(
                spec.name, spec.help, create, spec.kind, self._now
            )
            if spec.alias_of:
                for labels, instrument in self.by_name[spec.alias_of].children():
                    family.add(instrument, labels)
                continue
            for values in product(*spec.extra.values()):
                instrument = family.labels(**base, **dict(zip(spec.extra, values, strict=True)))
                if isinstance(instrument, Gauge):
                    instrument.value = spec.value

    def counter(self, name: str, **labels: str) -> Counter:
        """Returns the counter or gauge of `vllm:{name}` or `name`, with the server's labels and
        `labels`.
        """
        return cast(Counter, self._one(name, labels))

    def histogram(self, name: str, **labels: str) -> Histogram:
        return cast(Histogram, self._one(name, labels))

    def _one(self, name: str, labels: Mapping[str, str]) -> Instrument:
        family = self.by_name.get(f"vllm:{name}") or self.by_name[name]
        return family.labels(**self._base[family.name], **labels)

    def render(self) -> str:
        return "".join(family.render() for family in self.by_name.values())


AdapterStage = Literal["waiting", "running"]
MOST_SERIES = 64
"""Most combinations of adapters that are shown; readers use the latest only."""
LIMIT_BYTES = 2**18
"""Most memory of the combinations, in bytes:

clients choose the names. The latest one is always kept.
"""
ENTRY_BYTES = 256
"""Memory of a combination without its two texts, in bytes."""


class LoraRequests:
    """vllm:lora_requests_info: one series per combination of running and waiting adapters.

    The value of a series is the Unix time at which its combination was last current. The series
    with the latest time is the present state (vllm-api.md 11.1). `most` is `max-loras`; `now`
    returns Unix seconds.
    """

    def __init__(self, most: int, now: Callable[[], float]) -> None:
        self._most, self._now = str(most), now
        self._stages: dict[Hashable, AdapterStage] = {}
        self._counters: dict[AdapterStage, Tally[str]] = {"running": Tally(), "waiting": Tally()}
        self._held: dict[tuple[str, str], float] = {}
        """Maps running and waiting names, joined by commas, to the time they were last current."""
        self.size_bytes = 0
        self.limit_bytes = LIMIT_BYTES
        self._note()

    def move(self, owner: Hashable, adapter: str, stage: AdapterStage | None) -> None:
        """Notes that `owner`, a request with `adapter`, began to wait or to run; None:

        that it ended.
        """
        before = self._stages.pop(owner, None)
        if stage is not None:
            self._stages[owner] = stage
        for changed, delta in ((before, -1), (stage, 1)):
            if changed is not None:
                counter = self._counters[changed]
                counter[adapter] += delta
                if not counter[adapter]:
                    del counter[adapter]
                self._note()

    def render(self) -> str:
        help = "Unix time of the latest change; the labels are what runs and waits since then."
        family: Family[Gauge] = Family("vllm:lora_requests_info", help, Gauge, "gauge", self._now)
        for (running, waiting), held_s in self._held.items():
            adapters = {"running_lora_adapters": running, "waiting_lora_adapters": waiting}
            family.labels(max_lora=self._most, **adapters).value = held_s
        return family.render()

    def _note(self) -> None:
        """Makes the present combination the latest, and drops the oldest beyond the limits."""
        latest = ",".join(self._counters["running"]), ",".join(self._counters["waiting"])
        if self._held.pop(latest, None) is None:
            self.size_bytes += _entry_bytes(latest)
        self._held[latest] = self._now()
        while (
            len(self._held) > MOST_SERIES
            or self.size_bytes > self.limit_bytes
            and len(self._held) > 1
        ):
            first = next(iter(self._held))
            del self._held[first]
            self.size_bytes -= _entry_bytes(first)


def _entry_bytes(key: tuple[str, str]) -> int:
    return ENTRY_BYTES + getsizeof(key[0]) + getsizeof(key[1])
