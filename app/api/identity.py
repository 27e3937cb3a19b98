"""Who asks and who answers: request ids, names that answers carry, and where the cache of a prefill is."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from zlib import crc32

from msgspec import UNSET, Struct, UnsetType

from app.http.context import RequestContext
from app.protocol.common import KVTransferParams
from app.protocol.validation import GenerationRequest
from config.settings import ModelSettings, ServerSettings, Settings

SIDE_CHANNEL_PORT = 5600
"""Where a real server's transfer connector listens."""


class ResponseMeta(Struct, frozen=True):
    """Identity of one answer. `created` is Unix seconds."""

    id: str
    created: int
    model: str
    fingerprint: str | None
    joint: str = ""
    """What stands between `id` and the number of a prompt where the engine knows each by an id of its own."""

    @property
    def signature(self) -> str | UnsetType:
        """`system_fingerprint` of a chunk."""
        return UNSET if self.fingerprint is None else self.fingerprint

    def engine_id(self, prompt: int) -> str:
        """The id by which the engine knows a prompt: the one that can be aborted."""
        return f"{self.id}{self.joint}{prompt}" if self.joint else self.id


JOINTS = {"cmpl": "-"}
"""`joint` by the prefix of the id: the only prompt of a text completion has a number, too."""


class ResponseOptions(Struct, frozen=True, kw_only=True):
    """What a request asked to see in its answer, whatever its API family."""

    n: int
    include_usage: bool = False
    """A stream ends with its usage."""
    continuous_usage: bool = False
    """Every chunk carries the usage so far."""
    token_ids: bool = False
    """`return_token_ids`"""
    token_id_names: bool = False
    """`return_tokens_as_token_ids`: log probabilities call tokens `token_id:N`."""
    prompt_details: bool = False
    """`enable-prompt-tokens-details` of the server"""
    metrics: bool = False
    """`enable-per-request-metrics` of the server"""


class Identity:
    """Makes the heads of answers. `rng` draws ids, `now` is Unix seconds.

    `engine_id`, `host` and `port` tell others where to find this server's cache.
    """

    def __init__(
        self,
        model: ModelSettings,
        host: str,
        rng: Random,
        now: Callable[[], float] = time.time,
        port: int = SIDE_CHANNEL_PORT,
        fingerprint: str | None = None,
        block_size: int = 16,
        transfers: bool = True,
    ) -> None:
        """Without `transfers` no cache leaves this server: there is no connector for it."""
        self.engine_id = f"{rng.getrandbits(128):032x}"
        self.host, self.port = host, port
        self.block_size, self.transfers = block_size, transfers
        self.devices = model.tensor_parallel_size
        self._rng = rng
        self._now = now
        self._fingerprint = fingerprint

    def head(self, prefix: str, context: RequestContext, own_id: str, model: str) -> ResponseMeta:
        """The head of an answer: the id is the header's, the body's (`own_id`), if any, or a fresh one."""
        request_id = context.headers.get("x-request-id")
        if request_id is None:
            request_id = own_id or self.fresh_id()
        own = f"{prefix}-{request_id}"
        return ResponseMeta(own, self.now_s(), model, self._fingerprint, JOINTS.get(prefix, ""))

    def now_s(self) -> int:
        return int(self._now())

    def fresh_id(self) -> str:
        """16 random hex digits, for the id of an answer."""
        return f"{self._rng.getrandbits(64):016x}"


def system_fingerprint(settings: Settings) -> str | None:
    """What answers tell of the server that gave them, as `fingerprint-mode` wants it."""
    mode, model = settings.api.fingerprint_mode, settings.model
    if mode in ("none", "custom"):
        return settings.api.fingerprint_value if mode == "custom" else None
    sizes = {"tp": model.tensor_parallel_size, "dp": settings.server.data_parallel_size}
    groups = [f"{name}{size}" for name, size in sizes.items() if mode == "full" and size > 1]
    made_of = f"{model.model} {model.max_model_len}".encode()
    return "-".join(["vllm", model.vllm_version, *groups, f"{crc32(made_of):08x}"])


def pod_headers(server: ServerSettings) -> dict[str, str]:
    """What tells a gateway which pod answered (simulator.md 2.2)."""
    headers = {}
    if server.pod_name:
        headers["x-inference-pod"] = server.pod_name
        headers["x-inference-port"] = str(server.port)
    if server.pod_namespace:
        headers["x-inference-namespace"] = server.pod_namespace
    return headers


def address_of(
    asked: GenerationRequest, identity: Identity, meta: ResponseMeta, prompt_tokens: int
) -> KVTransferParams | None:
    """What the decode side is to be given; None unless `asked` wants its decode done elsewhere.

    The same as vLLM's NixlConnector tells after a reply of one token, whose keys and values are not computed.
    """
    wanted = asked.kv_transfer_params
    if not identity.transfers or not wanted or not wanted.get("do_remote_decode"):
        return None
    return KVTransferParams(
        remote_engine_id=identity.engine_id,
        remote_block_ids=(tuple(range(1, -(-prompt_tokens // identity.block_size) + 1)),),
        remote_request_id=f"{meta.engine_id(0)}-{identity.fresh_id()[:8]}",
        remote_host=identity.host,
        remote_port=identity.port,
        tp_size=identity.devices,
        remote_num_tokens=prompt_tokens,
    )
