"""Loads for two schedulers, and the steps that a scheduler makes of a load.

vLLM's environment imports this module, too: it needs only msgspec. Start with `Load`.
"""

from msgspec import Struct
from msgspec.structs import fields, replace

STOP_TOKEN = 1001
"""Token that ends a reply before `max_tokens`; no other reply or prompt contains it."""
TOKEN_COUNT = 1000
"""Prompts and replies consist of the tokens 0 to 999."""
MIN_MODEL_LENGTH = 64
SPARE_TOKENS = 8
"""The model's length is that of the longest request and these."""
COMMANDS = ("reset", "reset-running", "pause", "keep", "resume", "load", "unload")
"""Commands of an operator: empty the prefix cache, also under running requests; admit no more
requests; compute nothing at all; go on; load an adapter, also in place; unload an adapter.
"""
MAX_ADAPTER = 4
"""Adapters 1 to 4 are loaded at the start."""
REMOTE = "remote"
STORE = "store"
"""Connectors: another engine computes prompts, or a store has the blocks of earlier prompts."""
OFFLOAD = "offload"
"""vLLM's OffloadingConnector, with a tier of CPU blocks."""
BLOCK_BYTES = 128
BANDWIDTH = 1 << 20
"""Bytes that a tier loads in the time of a step, and stores: more than a step ever moves.

vLLM's workers end stores early whose blocks are needed again. No store takes so long here.
"""
FAILED = -1
"""`lost_block` of a transfer that fails as a whole."""
FAILURES_SINCE = (0, 30)
"""First release in which a transfer may fail as a whole. Before, all its blocks are lost."""
FAILS_AT_ABORTS = (0, 26)
"""Release whose OffloadingConnector raises an exception at the abort of a request in its prompt."""
OPTIONS_SINCE = {
    "watermark": (0, 24),
    "prefill_schedule_interval": (0, 24),
    "is_threshold_adaptive": (0, 31),
    "max_num_active_seqs": (0, 31),
}
"""Options of loads that older releases of vLLM do not have, with their first releases."""


class Group(Struct, frozen=True):
    """A KV cache group: layers of one kind, which have a block table of their own."""

    kind: str
    """`full_attention`, `sliding_window` or `mamba`."""
    window: int | None = None
    """Sliding window in tokens."""


class Image(Struct, frozen=True):
    """An image in a prompt: `length` tokens from `start` on. Equal images have equal names."""

    name: str
    start: int
    length: int


class Plan(Struct, kw_only=True):
    """One choice of a request, as it is sent."""

    name: str
    request: int
    """Number of the request, in order of arrival; its choices have the same number."""
    choice: int = 0
    step: int
    """Number of steps after which the request arrives."""
    prompt: list[int]
    output_tokens: int
    """Length of the reply, including the token that stops it; 0 for a pooling request."""
    max_tokens: int
    priority: int = 0
    adapter: int = 0
    """Number of the adapter; 0 is the base model."""
    salt: str | None = None
    is_remote: bool = False
    """True if another engine computes the prompt, and sends its cache."""
    transfer_steps: int = 0
    """Number of steps until the cache has arrived."""
    lost_block: int | None = None
    """First block of the transfer that does not arrive, or `FAILED`."""
    images: list[Image] = []
    """In order."""

    def draft_count(self, index: int, max_drafts: int) -> int:
        """Returns the drafts that n-grams find after `index` tokens of the reply."""
        return (self.request * 31 + index * 7) % (max_drafts + 1)

    def accepted_count(self, index: int, drafts: int) -> int:
        """Returns the number of right drafts after `index` tokens of the reply."""
        return (self.request * 13 + index * 5) // 3 % (drafts + 1)

    def reply_token(self, index: int) -> int:
        """Returns a token of the reply; the first one has index 0."""
        if index + 1 == self.output_tokens and self.output_tokens < self.max_tokens:
            return STOP_TOKEN
        return (self.request * 7919 + index + 1) % TOKEN_COUNT

    def tokens(self, count: int) -> list[int]:
        """Returns the first `count` tokens of prompt and reply."""
        length = len(self.prompt)
        reply = [self.reply_token(index) for index in range(max(0, count - length))]
        return self.prompt[:count] + reply


class Input(Struct, kw_only=True):
    """An abort of a request, or a command of an operator, after a number of steps."""

    step: int
    abort: str = ""
    command: str = ""
    adapter: int = 0
    """Adapter that the command loads or unloads."""


class Load(Struct, kw_only=True):
    """Requests, and the options of the scheduler that serves them."""

    number: int
    kind: str
    block_size: int
    blocks: int
    """Number of blocks, including the null block."""
    max_num_seqs: int
    max_num_batched_tokens: int
    is_asynchronous: bool
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    is_threshold_adaptive: bool = False
    watermark: float = 0.0
    prefill_schedule_interval: int = 1
    by_priority: bool = False
    caches_prefixes: bool = False
    hash_algorithm: str = "sha256_cbor"
    max_loras: int = 0
    is_pooling: bool = False
    drafter: str = ""
    """Method of speculative decoding: `ngram` or `draft_model`."""
    max_drafts: int = 0
    max_num_active_seqs: int | None = None
    groups: list[Group] = []
    """KV cache groups; empty for full attention alone."""
    retention_interval: int | None = None
    """Distance in tokens of the positions that groups without full attention keep in the cache."""
    connector: str = ""
    tier_chunks: int = 0
    """Capacity of the tier."""
    chunk_blocks: int = 1
    tier_policy: str = "lru"
    store_threshold: int = 0
    encoder_budget: int = 0
    """Maximum embeddings of images that a step computes; 0 without images."""
    encoder_cache_size: int = 0
    """Embeddings of images that the encoder cache has room for."""
    disable_chunked_mm_input: bool = False
    plans: list[Plan]
    inputs: list[Input] = []

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens of a request: drafts do not reach the end of the model."""
        tokens = max([len(plan.prompt) + plan.max_tokens for plan in self.plans], default=0)
        return max(tokens + SPARE_TOKENS + 4 * self.max_drafts, MIN_MODEL_LENGTH)

    @property
    def depth(self) -> int:
        """Maximum number of steps under way."""
        return 2 if self.is_asynchronous else 1


def load_for(load: Load, release: tuple[int, int]) -> Load:
    """Returns a load without what a release does not have, or what it does not survive."""
    defaults = {
        field.name: field.default
        for field in fields(Load)
        if release < OPTIONS_SINCE.get(field.name, release)
    }
    plans = load.plans
    if release < FAILURES_SINCE:
        plans = [
            replace(plan, lost_block=0) if plan.lost_block == FAILED else plan for plan in plans
        ]
    inputs = load.inputs
    if release == FAILS_AT_ABORTS and load.connector == OFFLOAD:
        inputs = [item for item in inputs if not item.abort]
    return replace(load, **defaults, plans=plans, inputs=inputs)


class Step(Struct, array_like=True):
    """One step that computes tokens, and what happened since the one before it."""

    tokens: list[tuple[str, int]] = []
    """Computed tokens of each request, in the order of the batch."""
    admitted: list[tuple[str, int]] = []
    """Admitted requests, each with the tokens that it did not have to compute."""
    preempted: list[str] = []
    """Sorted names: vLLM reports a set."""
    free: int = 0
    """Free blocks after the step was made."""
    sampled: list[tuple[str, int]] = []
    """Requests that received tokens, in order, each with their number; 0 for a pooling request."""
    finished: list[str] = []
    events: list[object] = []
    """KV events, and results of commands, sorted.

    vLLM stores the blocks of a reply in the order of the batch, Understudy after those of prompts.
    """
    tables: list[tuple[str, list[list[int]]]] = []
    """Block tables of the requests in the batch, by cache group; 0 is a block that was freed.

    Noted for loads with cache groups only.
    """
    encoded: list[tuple[str, list[int]]] = []
    """Images that the step encodes: their numbers in the prompt of each request."""


class Steps(Struct):
    """All steps of a load."""

    steps: list[Step]
    seconds: float = 0.0
    """CPU time in the scheduler."""
    error: str = ""
    """Last line of an exception, or why the scheduler did not serve all requests."""
