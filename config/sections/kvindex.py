"""The index of which pod has which KV blocks."""

from dataclasses import dataclass
from typing import Literal

from config.fields import setting
from config.kinds import Duration
from config.kv_index_values import tier_weights, tokenizer_sources
from config.rules import at_least, between, not_negative, positive, understood_by


@dataclass(frozen=True, slots=True, kw_only=True)
class KVIndexSettings:
    """The index of which pod has which KV blocks."""

    role: Literal["server", "indexer"] = setting(
        "server", help="A simulated vLLM, or an indexer: only the index and its routes."
    )
    kv_index: bool = setting(
        False, help="Keep an index of KV blocks beside the simulation; an indexer always does."
    )
    kv_index_bind: str = setting(
        "",
        help="Where the index listens for events (ZMQ SUB, bound), for pods that connect to it. Empty is "
        "tcp://*:5557 for an indexer that is given no kv-index-pods, and nowhere otherwise.",
    )
    kv_index_pods: tuple[str, ...] = setting(
        (),
        help="Where pods publish, for the index to connect to: tcp://host:port, file:path (one a line, "
        "watched), dns://name:port. Options after semicolons: replay=tcp://host:port, pod=name, model=name.",
    )
    kv_index_topic: str = setting("kv@", help="Topics that kv-index-bind listens to begin with this.")
    kv_index_replay_port: int | None = setting(
        None,
        help="Port of the pods that answers requests for replays, where nothing else is told.",
        rule=between(1, 65535),
    )
    kv_index_pod_grace: Duration = setting(
        30.0, help="Time without a connection after which a pod's blocks are forgotten.", rule=not_negative()
    )
    kv_index_refresh_interval: Duration = setting(
        5.0, help="How often files and names of kv-index-pods are looked at.", rule=positive()
    )
    kv_index_backend: Literal["memory", "cost-aware", "redis"] = setting(
        "memory",
        help="What keeps the index: memory bounded in blocks, memory bounded in bytes, or Redis (Valkey), "
        "which several indexers can share.",
    )
    kv_index_size: int = setting(
        10_000_000,
        unit="copies",
        help="Most copies of blocks (a block in a tier of a pod) that backend memory keeps.",
        rule=at_least(1),
    )
    kv_index_memory_mb: int = setting(
        2048, unit="MiB", help="Most memory that backend cost-aware takes.", rule=at_least(1)
    )
    kv_index_redis_url: str = setting(
        "redis://127.0.0.1:6379",
        env=("KV_INDEX_REDIS_URL",),
        secret=True,
        help="Address of backend redis: redis://, rediss://, valkey://, valkeys:// or unix://.",
    )
    kv_index_redis_timeout: Duration = setting(
        1.0, help="Time that Redis may take to answer.", rule=positive()
    )
    kv_index_redis_prefix: str = setting(
        "understudy", help="What the keys of backend redis begin with; indexers that share it agree on it."
    )
    kv_index_ttl: Duration = setting(
        0.0,
        help="Time after which backend redis forgets what nobody has touched; 0 never.",
        rule=not_negative(),
    )
    kv_index_repeats: Literal["copies", "reports"] = setting(
        "copies",
        help="What a block that is announced again means: one more copy, as vLLM means it, or that it is "
        "still there, as engines mean it that report hits.",
    )
    kv_index_max_message_mb: int = setting(
        16, unit="MiB", help="Larger messages of pods are not read.", rule=between(1, 128)
    )
    kv_index_block_size: int = setting(
        16,
        unit="tokens",
        help="Tokens of a block of the index; those of engines may differ.",
        rule=between(1, 1024),
    )
    kv_index_hash: Literal["d", "e"] = setting(
        "e", help="Generation of llm-d's block keys that the index computes; e (XXH64) is the fastest."
    )
    kv_index_hash_seed: str = setting("", help="Seed of those keys.")
    kv_index_tier_weights: tuple[str, ...] = setting(
        ("gpu=1.0", "cpu=0.8"),
        help="What a block counts by the tier that it is in, as tier=weight.",
        rule=understood_by(tier_weights, "must be a list of tier=weight"),
    )
    kv_index_unknown_tier_weight: float = setting(
        0.5, help="What a block in another tier counts.", rule=not_negative()
    )
    kv_index_shards: int = setting(
        4, unit="queues", help="Queues of events; the events of a pod stay in one.", rule=between(1, 1024)
    )
    kv_index_tokenizers: tuple[str, ...] = setting(
        (),
        path=True,
        help="Tokenizers of models that pods serve, as model=folder, file or name on the hub.",
        rule=understood_by(tokenizer_sources, "must be a list of model=source"),
    )
    kv_index_tokenizer_dir: str | None = setting(
        None,
        path=True,
        help="Folder in which tokenizers of further models are looked for, by path or as in the hub's cache.",
    )
    kv_index_fetch_tokenizers: bool = setting(
        False, help="Fetch the tokenizers of all other models from the hub."
    )
    kv_index_tokenizer_workers: int = setting(
        5, unit="threads", help="Prompts that are tokenized at the same time.", rule=between(1, 64)
    )
    kv_index_tokenizer_timeout: Duration = setting(
        10.0, help="Time that a prompt may take to be tokenized, with loading the tokenizer.", rule=positive()
    )
    kv_index_chat_answer: Literal["scores", "templated"] = setting(
        "scores",
        help="Answer of /score_chat_completions: the scores alone, or podScores and templated_messages as "
        "llm-d's kv-cache manager up to 0.4.",
    )
