"""NixlPushConnector: the decode pod registers its request, and the prefill pod sends the blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from app.core.engine.request import EngineRequest
from app.core.protocol.common import KVTransferParams
from app.extensions.handoff.dialects import GOOD_ENDS, EarlyDialect
from app.extensions.handoff.late_reads import Found
from app.extensions.handoff.messages import Source, checked_source

RANDOM_SUFFIX = re.compile(r"-[0-9a-f]{8}$", re.IGNORECASE)
"""The part of an engine's request id that differs between two pods with the same request."""


class PushTransferParams(Struct, kw_only=True):
    """`kv_transfer_params` of a prefill's answer, in vLLM's order."""

    do_remote_prefill: bool = True
    do_remote_decode: bool = False
    remote_block_ids: Sequence[Sequence[int]]
    """Block ids by group of layers; there is one group."""
    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int
    tp_size: int = 1
    dcp_size: int = 1
    pp_size: int = 1
    remote_num_tokens: int
    transfer_mode: str = "push"


def push_params(params: KVTransferParams) -> PushTransferParams:
    """Returns the answer of NixlPushConnector with the values of NixlConnector's answer."""
    names = PushTransferParams.__struct_fields__
    values = {name: getattr(params, name) for name in names if name != "transfer_mode"}
    return PushTransferParams(**values)


class NixlPushDialect(EarlyDialect):
    """NixlPushConnector: both pods get the request with the same `X-Request-Id`.

    The router may send the request to both pods at once, or pass the answer of the prefill to the
    decode. Either way, the id of the request names the blocks, as in vLLM.
    """

    good_ends = GOOD_ENDS
    counts_transfers = True

    def transfer_id(self, request: EngineRequest) -> str:
        """Returns the id of the request without the random part."""
        if request.address is None:
            return ""
        return request.request_id

    def locate(self, request: EngineRequest, take_source: Found) -> None:
        """Reads the address of the prefill pod."""
        take_source(self._source(request), "")

    def lease_source(self, request: EngineRequest) -> Source | None:
        """Returns the blocks if the parameters name them: vLLM sends heartbeats to that id only."""
        params = request.source or {}
        request_id = params.get("remote_request_id")
        if not isinstance(request_id, str):
            return None
        if RANDOM_SUFFIX.sub("", request_id) != request.request_id:
            return None
        return self._source(request)

    def _source(self, request: EngineRequest) -> Source | None:
        params: Mapping[str, object] = request.source or {}
        engine_id = params.get("remote_engine_id")
        if type(params.get("tp_size")) is not int or not engine_id:
            return None
        return checked_source(
            params.get("remote_host"),
            params.get("remote_port"),
            engine_id=engine_id,
            request_id=request.request_id,
        )
