"""Settings of the KV index, and parsers for its lists of pairs."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from config.declaration import ZMQ_ADDRESS, About, Count, Duration, Port, Section, understood_by


def pairs(items: Sequence[str], form: str) -> dict[str, str]:
    """Parses items such as `gpu=1.0`; returns name -> value. `form` words the ValueError."""
    found = [(item, *map(str.strip, item.partition("=")[::2])) for item in items]
    for item, name, value in found:
        if not name or not value:
            raise ValueError(f"{item!r} is not {form}")
    return {name: value for _, name, value in found}


def tier_weights(items: Sequence[str]) -> dict[str, float]:
    """Parses tier -> weight. ValueError unless weights are finite and at least 0."""
    weights: dict[str, float] = {}
    for tier, text in pairs(items, "tier=weight").items():
        try:
            weights[tier.lower()] = weight = float(text)
        except ValueError:
            raise ValueError(f"{tier}={text} is not tier=weight") from None
        if not 0 <= weight < float("inf"):
            raise ValueError(f"{tier}={text} is not a tier and a weight of 0 or more")
    return weights


def tokenizer_sources(items: Sequence[str]) -> tuple[dict[str, str], str | None, bool]:
    """Parses model -> source of its tokenizer; a folder with more; True if the hub has all others.

    ValueError for another form.
    """
    folders = [item for item in items if "=" not in item and item != HUB]
    if len(folders) > 1:
        raise ValueError(f"{folders[1]!r} is a second folder")
    sources = pairs([item for item in items if "=" in item], "model=source")
    return sources, folders[0] if folders else None, HUB in items


HUB = "hub"
"""Item of kv-index-tokenizers for all models without another source."""


class KVIndexSettings(Section, frozen=True, kw_only=True):
    """The index of the KV blocks of pods."""

    role: Literal["server", "indexer"] = "server"
    """A simulated vLLM, or an indexer: only the index and its routes."""
    kv_index: bool = False
    """Keep an index of KV blocks beside the simulation; an indexer always does."""
    kv_index_bind: Annotated[str, ZMQ_ADDRESS] = ""
    """Address at which the index listens for events (ZMQ SUB, bound), for pods that connect to it. Empty is
    tcp://*:5557 for an indexer that is given no kv-index-pods, and nowhere otherwise."""
    kv_index_pods: tuple[str, ...] = ()
    """Publishers of pods, for the index to connect to: tcp://host:port, file:path (one a line, watched),
    dns://name:port. Options after semicolons: replay=tcp://host:port, pod=name, model=name."""
    kv_index_topic: str = "kv@"
    """Topics that kv-index-bind listens to begin with this."""
    kv_index_replay_port: Port | None = None
    """Port of the pods that answers requests for replays, where kv-index-pods names none; of rank 0, those of
    other ranks follow."""
    kv_index_backend: Literal["memory", "cost-aware", "redis"] = "memory"
    """Storage of the index: memory bounded in blocks, memory bounded in bytes, or Redis (Valkey), which
    several indexers can share."""
    kv_index_size: Count | None = None
    """Most copies of blocks (a block in a tier of a pod) that backend memory keeps, 10,000,000 when empty; or
    MiB that backend cost-aware takes, 2,048 when empty."""
    kv_index_redis_url: Annotated[str, About(env=("KV_INDEX_REDIS_URL",), secret=True)] = (
        "redis://127.0.0.1:6379"
    )
    """Address of backend redis: redis://, rediss://, valkey://, valkeys:// or unix://."""
    kv_index_ttl: Duration = 0.0
    """Time without a use after which backend redis forgets a block; 0 never."""
    kv_index_block_size: Annotated[int, Meta(ge=1, le=1024), About(unit="tokens")] = 16
    """Tokens of a block of the index; blocks of engines may differ."""
    kv_index_hash_seed: str = ""
    """Seed of the block keys."""
    kv_index_tier_weights: Annotated[
        tuple[str, ...], understood_by(tier_weights, "must be a list of tier=weight")
    ] = ("gpu=1.0", "cpu=0.8")
    """Weight of a block in a score by its storage tier, as tier=weight; 0.5 for other tiers."""
    kv_index_tokenizers: Annotated[
        tuple[str, ...],
        About(path=True),
        understood_by(tokenizer_sources, "must be a list of model=source, with one folder and hub at most"),
    ] = ()
    """Tokenizers of models that pods serve: model=folder, file or name on the hub; a folder with those of
    further models, by path or as in the hub's cache; and hub, which fetches all others."""
    kv_index_chat_answer: Literal["scores", "templated"] = "scores"
    """Answer of /score_chat_completions: the scores alone, or podScores and templated_messages as llm-d's
    kv-cache manager up to 0.4."""
