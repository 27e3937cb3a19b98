"""Where other servers can fetch what this one has computed (simulator.md sections 17 and 18)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct


class KVTransferParams(Struct, kw_only=True):
    """`kv_transfer_params` of an answer: where the cache of a prefill is, for the server that decodes."""

    do_remote_prefill: bool = True
    do_remote_decode: bool = False
    remote_engine_id: str
    remote_block_ids: Sequence[int]
    remote_host: str
    remote_port: int
    tp_size: int = 1


class EncodedItem(Struct):
    """Where the encoding of an image, a sound or a film is."""

    peer_host: str
    peer_port: int
    size_bytes: int
    nixl_agent_metadata_b64: str


ECTransferParams = Mapping[str, EncodedItem]
"""`ec_transfer_params` of an encoder's answer: where each item's encoding is, by the item's hash."""
