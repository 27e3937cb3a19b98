"""Where the cache of a prefill can be fetched: the `kv_transfer_params` of an answer (simulator.md 17)."""

from __future__ import annotations

from app.api.identity import Identity
from app.protocol.common import KVTransferParams
from app.protocol.validation.sampling import GenerationRequest

BLOCK_TOKENS = 16
SIDE_CHANNEL_PORT = 5600
"""Where a real server's transfer connector would listen."""


def address_of(asked: GenerationRequest, identity: Identity, prompt_tokens: int) -> KVTransferParams | None:
    """What the decode side is to be given; None unless `asked` wants its decode done elsewhere."""
    wanted = asked.kv_transfer_params
    if not wanted or not wanted.get("do_remote_decode"):
        return None
    return KVTransferParams(
        remote_engine_id=identity.engine_id,
        remote_block_ids=tuple(range(1, -(-prompt_tokens // BLOCK_TOKENS) + 1)),
        remote_host=identity.host,
        remote_port=SIDE_CHANNEL_PORT,
    )
