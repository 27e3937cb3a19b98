"""Fields of answers about KV caches that other engines take over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.core.protocol.common import KVTransferParams, UsageOverrides

if TYPE_CHECKING:
    from app.core.api.identity import Identity, ResponseMeta
    from app.core.api.writer import ResponseWriter
    from app.core.protocol.validation import GenerationRequest


def describe_transfer(
    request: GenerationRequest,
    meta: ResponseMeta,
    prompt_tokens: int,
    *,
    identity: Identity,
    writer: ResponseWriter,
) -> None:
    """Passes the response's fields about the transfer of a cache to the writer."""
    transfer = request.kv_transfer_params or {}
    writer.transfer = _address_of(request, identity, meta, prompt_tokens)
    # The answer repeats how many of the prompt's tokens the prefill side had cached.
    cached_tokens = transfer.get("remote_prefill_cached_tokens")
    if transfer.get("do_remote_prefill") and isinstance(cached_tokens, int):
        writer.usage = UsageOverrides(cached_tokens=cached_tokens)


def _address_of(
    request: GenerationRequest, identity: Identity, meta: ResponseMeta, prompt_tokens: int
) -> KVTransferParams | None:
    """Returns where the decode side finds the cache, as vLLM's NixlConnector.

    Returns None unless the request asks for it.
    """
    cache = identity.cache
    params = request.kv_transfer_params
    if not cache.transfers or not params or not params.get("do_remote_decode"):
        return None
    num_blocks = -(-prompt_tokens // cache.block_size)
    return KVTransferParams(
        remote_engine_id=identity.engine_id,
        remote_block_ids=(tuple(range(1, num_blocks + 1)),),
        remote_request_id=f"{meta.engine_id(0)}-{identity.fresh_id()[:8]}",
        remote_host=identity.host,
        remote_port=cache.kv_side_channel_port,
        tp_size=identity.devices,
        remote_num_tokens=prompt_tokens,
    )
