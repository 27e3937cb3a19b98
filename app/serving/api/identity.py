"""Identity of requests and answers: ids, names in answers, and the address of a prefill's cache."""

import time
from collections.abc import Callable
from random import Random
from zlib import crc32

from msgspec import UNSET, Struct, UnsetType

from app.serving.http.context import RequestContext
from app.serving.protocol.common import KVTransferParams
from app.serving.protocol.validation import GenerationRequest
from config import VLLM_VERSION
from config.settings import ServerSettings, Settings


class ResponseMeta(Struct, frozen=True):
    """Identity of one answer. `created` is Unix seconds."""

    id: str
    created: int
    model: str
    fingerprint: str | None
    joint: str = ""
    """Separator between `id` and a prompt's number, where each prompt has its own id in the engine.
    """

    @property
    def signature(self) -> str | UnsetType:
        return UNSET if self.fingerprint is None else self.fingerprint

    def engine_id(self, prompt: int) -> str:
        """Returns a prompt's id in the engine, which also aborts the prompt."""
        return f"{self.id}{self.joint}{prompt}" if self.joint else self.id


class ResponseOptions(Struct, frozen=True, kw_only=True):
    n: int
    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    token_id_names: bool = False
    """`return_tokens_as_token_ids`: log probabilities name tokens `token_id:N`."""
    prompt_details: bool = False
    metrics: bool = False


class Identity:
    """Makes the heads of answers.

    `rng` draws ids; other servers find this one's cache at `host`.
    """

    def __init__(
        self, settings: Settings, host: str, rng: Random, now: Callable[[], float] = time.time
    ) -> None:
        self.engine_id = f"{rng.getrandbits(128):032x}"
        self.host, self.cache, self.devices = (
            host,
            settings.kvcache,
            settings.model.tensor_parallel_size,
        )
        self._rng, self._now, self._fingerprint = rng, now, system_fingerprint(settings)

    def response_meta(
        self, prefix: str, context: RequestContext, own_id: str, model: str
    ) -> ResponseMeta:
        """Returns the head of an answer; its id is the header's, else the body's (`own_id`), else
        random.
        """
        request_id = context.headers.get("x-request-id")
        if request_id is None:
            request_id = own_id or f"{self._rng.getrandbits(64):016x}"
        # Even the only prompt of a text completion has a number.
        joint = "-" if prefix == "cmpl" else ""
        return ResponseMeta(
            f"{prefix}-{request_id}", int(self._now()), model, self._fingerprint, joint
        )

    def now_s(self) -> int:
        return int(self._now())

    def fresh_id(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"


def system_fingerprint(settings: Settings) -> str | None:
    mode, model = settings.api.fingerprint_mode, settings.model
    if mode in ("none", "custom"):
        return settings.api.fingerprint_value if mode == "custom" else None
    sizes = {"tp": model.tensor_parallel_size, "dp": settings.server.data_parallel_size}
    groups = [f"{name}{size}" for name, size in sizes.items() if mode == "full" and size > 1]
    made_of = f"{model.model} {model.max_model_len}".encode()
    return "-".join(["vllm", VLLM_VERSION, *groups, f"{crc32(made_of):08x}"])


def pod_headers(server: ServerSettings) -> dict[str, str]:
    """Returns headers that name the answering pod to a gateway (simulator.md 2.2)."""
    headers = {"x-inference-namespace": server.pod_namespace} if server.pod_namespace else {}
    if server.pod_name:
        headers |= {"x-inference-pod": server.pod_name, "x-inference-port": str(server.port)}
    return headers


def address_of(
    asked: GenerationRequest, identity: Identity, meta: ResponseMeta, prompt_tokens: int
) -> KVTransferParams | None:
    """Returns where the decode side finds the cache, as vLLM's NixlConnector; None unless it is
    wanted.
    """
    wanted = asked.kv_transfer_params
    if not identity.cache.transfers or not wanted or not wanted.get("do_remote_decode"):
        return None
    return KVTransferParams(
        remote_engine_id=identity.engine_id,
        remote_block_ids=(tuple(range(1, -(-prompt_tokens // identity.cache.block_size) + 1)),),
        remote_request_id=f"{meta.engine_id(0)}-{identity.fresh_id()[:8]}",
        remote_host=identity.host,
        remote_port=identity.cache.kv_side_channel_port,
        tp_size=identity.devices,
        remote_num_tokens=prompt_tokens,
    )
