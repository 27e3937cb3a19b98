"""Fields of answers about caches that other engines take over: of prompts, and of media."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from app.core.protocol.common import KVTransferParams, UsageOverrides

if TYPE_CHECKING:
    from app.core.api.chat.media import BuiltPrompt, MediaReader
    from app.core.api.identity import Identity, ResponseMeta
    from app.core.api.writer import ResponseWriter
    from app.core.protocol.validation import GenerationRequest


def describe_transfers(
    request: GenerationRequest,
    meta: ResponseMeta,
    prompts: Sequence[BuiltPrompt],
    *,
    identity: Identity,
    media: Callable[[], MediaReader] | None,
    writer: ResponseWriter,
) -> None:
    """Passes the response's fields about cache transfers and media to the writer.

    `media` returns what knows the location of encoded media.
    """
    transfer = request.kv_transfer_params
    features = prompts[-1].features
    if transfer:
        writer.transfer = _address_of(request, identity, meta, len(prompts[0].ids))
        # The answer repeats how many of the prompt's tokens the prefill side had cached.
        cached_tokens = transfer.get("remote_prefill_cached_tokens")
        if transfer.get("do_remote_prefill") and isinstance(cached_tokens, int):
            writer.usage = UsageOverrides(cached_tokens=cached_tokens)
    if features and media is not None:
        writer.encoded_media = media().encoded(features["mm_hashes"])


def _address_of(
    request: GenerationRequest, identity: Identity, meta: ResponseMeta, prompt_tokens: int
) -> KVTransferParams | None:
    """Returns where the decode side finds the cache, as vLLM's NixlConnector.

    Returns None unless the request asks for it. A connector may replace the result.
    """
    cache = identity.cache
    params = request.kv_transfer_params or {}
    address = None
    if cache.transfers and params.get("do_remote_decode"):
        num_blocks = -(-prompt_tokens // cache.block_size)
        address = KVTransferParams(
            remote_engine_id=identity.engine_id,
            remote_block_ids=(tuple(range(1, num_blocks + 1)),),
            remote_request_id=f"{meta.engine_id(0)}-{identity.fresh_id()[:8]}",
            remote_host=identity.host,
            remote_port=cache.kv_side_channel_port,
            tp_size=identity.devices,
            remote_num_tokens=prompt_tokens,
        )
    if identity.transfer_address is not None:
        return identity.transfer_address(params, meta.engine_id(0), address)
    return address
