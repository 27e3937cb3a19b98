"""Settings of the index of KV blocks."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from msgspec import Meta

from config import Settings
from config.declaration import (
    SIMULATED,
    About,
    Count,
    Duration,
    Port,
    Section,
    understood_by,
    zmq_address,
)

DEFAULT_BIND = "tcp://*:5557"
"""Address of an indexer without one in its settings."""
HUB = "hub"
"""Item of kv-index-tokenizers for all models without another source."""


def pairs(items: Sequence[str], form: str) -> dict[str, str]:
    """Parses items such as `gpu=1.0`; returns name -> value.

    Raises:
        ValueError: An item has no name or no value; the message names `form`.
    """
    values = {}
    for item in items:
        name, _, value = item.partition("=")
        if not name.strip() or not value.strip():
            raise ValueError(f"{item!r} is not {form}")
        values[name.strip()] = value.strip()
    return values


def tier_weights(items: Sequence[str]) -> dict[str, float]:
    """Parses items such as `gpu=1.0`; returns tier -> weight.

    Raises:
        ValueError: A weight is not finite, or below 0.
    """
    weights: dict[str, float] = {}
    for tier, text in pairs(items, "TIER=WEIGHT").items():
        try:
            weight = float(text)
        except ValueError:
            raise ValueError(f"{tier}={text} must have the form TIER=WEIGHT") from None
        if not 0 <= weight < float("inf"):
            raise ValueError(f"the weight in {tier}={text} must be a non-negative number")
        weights[tier.lower()] = weight
    return weights


def tokenizer_sources(items: Sequence[str]) -> tuple[dict[str, str], str | None, bool]:
    """Parses `kv-index-tokenizers`.

    Returns model -> source of its tokenizer, a folder with other tokenizers (or None), and True if
    the hub has all others.

    Raises:
        ValueError: An item has another form, or is a second folder.
    """
    folders = [item for item in items if "=" not in item and item != HUB]
    if len(folders) > 1:
        raise ValueError(
            f"only one folder is allowed, but a second one was specified: {folders[1]!r}"
        )
    sources = pairs([item for item in items if "=" in item], "MODEL=SOURCE")
    folder = next(iter(folders), None)
    return sources, folder, HUB in items


class KVIndexSettings(Section, frozen=True, kw_only=True):
    """The index of the KV blocks of pods."""

    role: Annotated[Literal["server", "indexer"], SIMULATED] = "server"
    """Role of this process: a simulated vLLM server (server) or only the index and its routes
    (indexer)."""
    kv_index: bool = False
    """Let the server maintain an index of KV blocks. An indexer always maintains an index."""
    kv_index_bind: Annotated[str, zmq_address()] = ""
    """Address of the bound ZMQ SUB socket that receives events from pods. If this setting is empty,
    an indexer without kv-index-pods listens on tcp://*:5557, and all other processes use only the
    addresses in kv-index-pods."""
    kv_index_pods: tuple[str, ...] = ()
    """Event publishers on the pods: tcp://host:port, dns://name:port, or file:path (a file with one
    publisher per line; changes are detected). The index connects to each of these publishers. An
    entry can be followed by options, each preceded by a semicolon, as in
    ;replay=tcp://host:port;pod=name;model=name."""
    kv_index_topic: str = "kv@"
    """Prefix of the topics to subscribe to at the kv-index-bind address."""
    kv_index_replay_port: Port | None = None
    """Replay port for pods whose entries in kv-index-pods do not specify a replay address. Rank k
    uses this port number plus k."""
    kv_index_backend: Literal["memory", "cost-aware", "redis"] = "memory"
    """Storage backend for the index. If the value is memory, the index is kept in memory, and the
    number of its blocks is limited. If the value is cost-aware, the index is kept in memory, and
    its size in bytes is limited. If the value is redis, the index is stored in Redis or Valkey,
    which several indexers can share."""
    kv_index_size: Count | None = None
    """Capacity of the index: the number of block copies (memory backend) or the size in MiB
    (cost-aware backend). Copies of a block in different tiers or pods count separately. If this
    setting is empty, the index takes at most 3/16 of server-memory and holds at most 10,000,000
    copies or 2,048 MiB; in a server of a model, it takes a third of that. A full index evicts the
    least recently used blocks."""
    kv_index_redis_url: Annotated[str, About(env=("KV_INDEX_REDIS_URL",), secret=True)] = (
        "redis://127.0.0.1:6379"
    )
    """URL of the server for the redis backend, with the scheme redis, rediss, valkey, valkeys, or
    unix."""
    kv_index_ttl: Duration = 0.0
    """Time after which the redis backend removes an unused block. The value 0 disables expiry."""
    kv_index_block_size: Annotated[int, Meta(ge=1, le=1024), About(unit="tokens")] = 16
    """Number of tokens per index block. Engines can use other block sizes."""
    kv_index_hash_seed: str = ""
    """Seed for block keys."""
    kv_index_tier_weights: Annotated[
        tuple[str, ...], understood_by(tier_weights, "must be a list of TIER=WEIGHT")
    ] = ("gpu=1.0", "cpu=0.8")
    """Weights of storage tiers in scores, each specified as TIER=WEIGHT. Tiers that are not listed
    have a weight of 0.5."""
    kv_index_routed_lifetime: Duration = 2.0
    """Maximum time for which the blocks of a routed prompt count as cached before their events
    arrive."""
    kv_index_tokenizers: Annotated[
        tuple[str, ...],
        understood_by(
            tokenizer_sources, "must be a list of MODEL=SOURCE, with one folder and hub at most"
        ),
    ] = ()
    """Tokenizers for the pods' models, each specified as MODEL=SOURCE, where SOURCE is a folder, a
    file, or the name of a model on the Hugging Face Hub. An item without = is a folder of
    tokenizers for other models, stored by model name or in the layout of the Hugging Face cache. If
    the list contains hub, tokenizers for all other models are downloaded from the Hugging Face
    Hub."""
    kv_index_chat_answer: Literal["scores", "templated"] = "scores"
    """Format of the response from /score_chat_completions. If the value is scores, the response
    contains only the scores. If the value is templated, the response contains podScores and
    templated_messages, as in llm-d's kv-cache manager up to 0.4."""

    @property
    def bind_address(self) -> str:
        """The address that pods connect to; empty without one."""
        if self.kv_index_bind or self.role != "indexer" or self.kv_index_pods:
            return self.kv_index_bind
        return DEFAULT_BIND

    def conflicts(self, settings: Settings) -> Iterator[tuple[str, str]]:
        """Yields the conflicts with several ranks."""
        if len(settings.server.ranks) == 1:
            return
        if self.kv_index_bind:
            yield (
                "kv-index-bind",
                "must be empty when this server has several ranks: they cannot share a port",
            )
        if self.role == "indexer":
            yield "role", "has no ranks: data-parallel-size must be 1"
