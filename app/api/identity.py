"""Who asks and who answers: request ids, and the names that answers carry."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from zlib import crc32

from app.api.response_meta import ResponseMeta
from app.http.context import RequestContext
from config.settings import ModelSettings, ServerSettings


class Identity:
    """Makes the heads of answers. `rng` draws ids, `now` is Unix seconds.

    `engine_id` and `host` tell others where to find this server's cache.
    """

    def __init__(
        self, model: ModelSettings, host: str, rng: Random, now: Callable[[], float] = time.time
    ) -> None:
        self.engine_id = f"{rng.getrandbits(128):032x}"
        self.host = host
        self._rng = rng
        self._now = now
        made_of = f"{model.model} {model.max_model_len}".encode()
        self._fingerprint = f"vllm-{model.vllm_version}-{crc32(made_of):08x}"

    def head(self, prefix: str, context: RequestContext, own_id: str, model: str) -> ResponseMeta:
        """The head of an answer: the id is the header's, the body's (`own_id`), if any, or a fresh one."""
        request_id = context.headers.get("x-request-id")
        if request_id is None:
            request_id = own_id or self.fresh_id()
        return ResponseMeta(f"{prefix}-{request_id}", self.now_s(), model, self._fingerprint)

    def now_s(self) -> int:
        """Unix seconds."""
        return int(self._now())

    def fresh_id(self) -> str:
        """16 random hex digits, for the id of an answer."""
        return f"{self._rng.getrandbits(64):016x}"


def pod_headers(server: ServerSettings) -> dict[str, str]:
    """What tells a gateway which pod answered (simulator.md 2.2)."""
    headers = {}
    if server.pod_name:
        headers["x-inference-pod"] = server.pod_name
        headers["x-inference-port"] = str(server.port)
    if server.pod_namespace:
        headers["x-inference-namespace"] = server.pod_namespace
    return headers
