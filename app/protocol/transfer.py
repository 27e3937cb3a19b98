"""`kv_transfer_params` without the object around them, as llm-d's simulator took them up to version 0.5."""

from __future__ import annotations

from app.protocol.coercion import JsonObject
from app.protocol.decoding import Request


class FlatTransfer(Request, kw_only=True):
    """Not vLLM's: fields that otherwise stand in `kv_transfer_params`. Any type is taken, as vLLM does."""

    do_remote_decode: object = None
    do_remote_prefill: object = None
    remote_block_ids: object = None
    remote_engine_id: object = None
    remote_host: object = None
    remote_port: object = None

    def transfer(self, given: JsonObject | None) -> JsonObject | None:
        """`kv_transfer_params` with these beside what is `given` there, which wins."""
        if self.do_remote_decode is None and self.do_remote_prefill is None:
            return given
        own = {name: getattr(self, name) for name in FlatTransfer.__struct_fields__}
        return {name: value for name, value in own.items() if value is not None} | (given or {})
