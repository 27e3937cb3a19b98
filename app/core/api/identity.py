"""Identity of requests and answers: ids, and names in answers."""

import time
from random import Random
from typing import TYPE_CHECKING
from zlib import crc32

from msgspec import UNSET, Struct, UnsetType

from app.core.server.http.context import RequestContext
from app.core.versions.chain import simulated_version
from app.core.versions.shape import NEWEST_SHAPE, Shape
from config.settings import ApiSettings, KVCacheSettings, ModelSettings, ServerSettings

if TYPE_CHECKING:
    from app.core.api.weight_spans import Weights
    from app.core.protocol.common import TransferAddress


class ResponseMeta(Struct, frozen=True):
    """Identity of one answer. `created` is Unix seconds."""

    id: str
    created: int
    model: str
    fingerprint: str | None
    joint: str = ""
    """Separator between `id` and a prompt's number; empty where the engine's id has no number."""

    @property
    def signature(self) -> str | UnsetType:
        """The fingerprint, or UNSET, which omits the field."""
        if self.fingerprint is None:
            return UNSET
        return self.fingerprint

    def engine_id(self, prompt: int) -> str:
        """Returns a prompt's id in the engine, which also aborts the prompt."""
        if self.joint:
            return f"{self.id}{self.joint}{prompt}"
        return self.id


class ResponseOptions(Struct, frozen=True, kw_only=True):
    """Content of a response that all families share."""

    n: int
    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    token_id_names: bool = False
    """`return_tokens_as_token_ids`: log probabilities name tokens `token_id:N`."""
    prompt_details: bool = False
    metrics: bool = False
    weights: "Weights | None" = None
    """The weights whose versions the choices show; None shows null."""
    shape: Shape = NEWEST_SHAPE
    """Fields of answers that the version of vLLM has."""


class Identity:
    """Makes the identities of answers.

    `rng` draws ids. Other servers find the cache of this server at `host`.
    """

    def __init__(
        self,
        cache: KVCacheSettings,
        *,
        host: str,
        devices: int,
        fingerprint: str | None,
        rng: Random,
    ) -> None:
        self.engine_id = f"{rng.getrandbits(128):032x}"
        self.host = host
        self.cache = cache
        self.devices = devices
        self.transfer_address: TransferAddress | None = None
        """Returns the answer of another connector than NixlConnector; None for NixlConnector."""
        self._rng = rng
        self._fingerprint = fingerprint

    def response_meta(
        self, prefix: str, context: RequestContext, body_id: str, model: str
    ) -> ResponseMeta:
        """Returns the identity of an answer.

        Its id is the header's, else the body's, unless that is empty, else random.
        """
        request_id = context.headers.get("x-request-id")
        if request_id is None:
            request_id = body_id or f"{self._rng.getrandbits(64):016x}"
        return ResponseMeta(
            id=f"{prefix}-{request_id}",
            created=int(time.time()),
            model=model,
            fingerprint=self._fingerprint,
            # Even the only prompt of a text completion has a number.
            joint="-" if prefix == "cmpl" else "",
        )

    def now_s(self) -> int:
        """Returns the time in Unix seconds."""
        return int(time.time())

    def fresh_id(self) -> str:
        """Draws an id."""
        return f"{self._rng.getrandbits(64):016x}"

    def fresh_call_id(self) -> str:
        """Draws the id of a tool call."""
        return f"chatcmpl-tool-{self._rng.getrandbits(64):016x}"


def system_fingerprint(api: ApiSettings, model: ModelSettings, ranks: int) -> str | None:
    """Returns the fingerprint of answers, as the settings choose it.

    `ranks` is the number of data-parallel ranks.
    """
    mode = api.fingerprint_mode
    if mode == "none":
        return None
    if mode == "custom":
        return api.fingerprint_value
    parts = ["vllm", simulated_version(api).release]
    if mode == "full":
        sizes = {"tp": model.tensor_parallel_size, "dp": ranks}
        parts += [f"{name}{size}" for name, size in sizes.items() if size > 1]
    checksum = crc32(f"{model.model} {model.max_model_len}".encode())
    return "-".join([*parts, f"{checksum:08x}"])


def pod_headers(server: ServerSettings) -> dict[str, str]:
    """Returns headers that name the answering pod to a gateway."""
    headers = {}
    if server.pod_namespace:
        headers["x-inference-namespace"] = server.pod_namespace
    if server.pod_name:
        headers["x-inference-pod"] = server.pod_name
        headers["x-inference-port"] = str(server.port)
    return headers
