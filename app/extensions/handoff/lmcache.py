"""LMCacheConnectorV1 and LMCacheMPConnector: a store of chunks, and its `kv_transfer_params`.

Start with `LMCacheDialect`. Neither connector has leases: prompts go to the store, and requests
load the chunks that the store has.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from msgspec import UNSET, Struct, UnsetType

from app.core.engine.kvcache.hashing import Prompt
from app.core.engine.kvcache.stores import DIGEST_BYTES, ConnectorStore
from app.core.engine.request import EngineRequest
from app.extensions.handoff.dialects import GOOD_ENDS, Dialect, Progress
from app.extensions.handoff.messages import Source, checked_source

FIRST_TOKEN = "ret_first_tok"
EXTRA_TOKENS = "num_lmcache_extra_cached_tokens"
DISAGG_SPEC = "disagg_spec"
SPEC_FIELDS = ("req_id", "receiver_host", "receiver_init_port", "receiver_alloc_port")
"""Fields that vLLM reads of a `disagg_spec`."""


class StoreAnswer(Struct, kw_only=True):
    """`kv_transfer_params` of an answer that names no pod."""

    @property
    def remote_host(self) -> str:
        """An empty host."""
        return ""

    @property
    def remote_port(self) -> int:
        """No port."""
        return 0


class FirstTokenAnswer(StoreAnswer, kw_only=True):
    """The answer of LMCacheConnectorV1 to `ret_first_tok`."""

    first_tok: int | None = None


class CachedTokensAnswer(StoreAnswer, kw_only=True):
    """The answer of LMCacheMPConnector, an empty object unless the request asks for the number."""

    num_lmcache_extra_cached_tokens: int | UnsetType = UNSET


class ChunkStore(ConnectorStore):
    """LMCache's store: whole chunks by the hash of their last block.

    LMCacheConnectorV1 also keeps the last chunk of a prompt, which may be shorter.
    """

    tier = "external_unspecified"

    def __init__(
        self, block_size: int, chunk_tokens: int, *, keeps_partial_chunks: bool, role: str
    ) -> None:
        """`role` is `kv_producer`, `kv_consumer` or `kv_both`.

        With LMCacheConnectorV1, a producer finds nothing, and a consumer keeps nothing.
        """
        super().__init__(block_size)
        self._blocks_per_chunk = max(1, chunk_tokens // block_size)
        self._keeps_partial_chunks = keeps_partial_chunks
        self._finds = role != "kv_producer" or not keeps_partial_chunks
        self._keeps = role != "kv_consumer" or not keeps_partial_chunks

    def keys(self, prompt: Prompt) -> list[bytes]:
        """Returns the keys of a prompt's chunks in order."""
        step = self._blocks_per_chunk
        keys = list((prompt.hashes or ())[step - 1 :: step])
        is_partial = len(prompt.token_ids) % (step * self.block_size) > 0
        if self._keeps_partial_chunks and prompt.hashes is not None and is_partial:
            keys.append(self._partial_key(prompt, prompt.hashes))
        return keys

    def _partial_key(self, prompt: Prompt, hashes: Sequence[bytes]) -> bytes:
        """Returns the key of a prompt's last chunk.

        The hash of the last whole block stands for all tokens, salts and media before its end.
        """
        blocks = len(hashes)
        last_ids = array("q", prompt.token_ids[blocks * self.block_size :]).tobytes()
        extra_keys = repr(prompt.keys.hashed(blocks, blocks + 1)).encode()
        last_hash = (hashes or [b""])[-1]
        return blake2b(last_ids + extra_keys, key=last_hash[:64], digest_size=DIGEST_BYTES).digest()

    def find(self, prompt: Prompt, cached: int) -> int:
        """See `ConnectorStore`."""
        if not self._finds:
            return 0
        chunk_tokens = self._blocks_per_chunk * self.block_size
        tokens = self.count(self.keys(prompt)) * chunk_tokens
        return max(0, min(tokens, len(prompt.token_ids) - 1) - cached)

    def keep(self, prompt: Prompt) -> None:
        """Stores the chunks of a prompt."""
        if self._keeps:
            self.receive(self.keys(prompt))


class LMCacheDialect(Dialect):
    """A prompt is copied to the receiver in its `disagg_spec`, or to the configured one."""

    good_ends = GOOD_ENDS
    holds_blocks = False

    def __init__(self, receiver: str = "") -> None:
        """`receiver` gets the other prompts: a host and a port, or an empty text."""
        host, _, port = receiver.rpartition(":")
        self._receiver: Source | None = None
        if port:
            self._receiver = checked_source(host, int(port), engine_id="", request_id=receiver)

    def transfer_id(self, request: EngineRequest) -> str:
        """Returns an empty id: no decode reads blocks."""
        return ""

    def reads(self, request: EngineRequest) -> bool:
        """Returns False: prompts are found in the store."""
        return False

    def takes_part(self, request: EngineRequest) -> bool:
        """Returns whether the request has a receiver, or an answer to be completed."""
        return request.address is not None or self.receiver(request) is not None

    def problem(self, request: EngineRequest) -> str:
        """Returns whether a `disagg_spec` is incomplete."""
        if DISAGG_SPEC in (request.source or {}) and self.receiver(request) is None:
            fields = ", ".join(SPEC_FIELDS)
            return f"{DISAGG_SPEC} requires {fields}: the prompt is not copied"
        return ""

    def announce(self, request: EngineRequest, engine_id: str, port: int) -> None:
        """Does nothing: the answer names no pod."""

    def receiver(self, request: EngineRequest) -> Source | None:
        """Returns the pod whose store gets the chunks of the prompt."""
        params = request.source or {}
        if DISAGG_SPEC not in params:
            return self._receiver
        spec = params[DISAGG_SPEC]
        if not isinstance(spec, Mapping) or any(name not in spec for name in SPEC_FIELDS):
            return None
        port = spec["receiver_init_port"]
        if isinstance(port, list) and port:
            port = port[0]
        request_id = str(spec["req_id"])
        return checked_source(spec["receiver_host"], port, engine_id="", request_id=request_id)

    def complete(self, request: EngineRequest, progress: Progress) -> None:
        """Writes the first token, and the tokens from the store, into the answer."""
        # A MultiConnector may have added the fields of another connector.
        fields = getattr(request.address, "__struct_fields__", ())
        if "first_tok" in fields:
            setattr(request.address, "first_tok", progress.first_token)  # noqa: B010
        if EXTRA_TOKENS in fields and EXTRA_TOKENS in (request.source or {}):
            setattr(request.address, EXTRA_TOKENS, progress.stored_tokens)


def lmcache_answer(connector: str, params: Mapping[str, object]) -> StoreAnswer | None:
    """Returns the answer of `lmcache` or `lmcache-mp`; it is complete with the first token."""
    if connector == "lmcache-mp":
        return CachedTokensAnswer()
    if FIRST_TOKEN in params:
        return FirstTokenAnswer()
    return None
