"""Settings of the handoff: roles and ports of vLLM's connectors."""

from typing import Annotated, Literal

from msgspec import Meta

from config.declaration import About, Port, Section, zmq_address

RECEIVER = (
    r"^([\w.-]{1,253}:"
    r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?$"
)
"""A host and a port from 1 to 65535, or an empty text."""


class HandoffSettings(Section, frozen=True, kw_only=True):
    """Prefill and decode pods with a side channel."""

    kv_engine_id: str = ""
    """Engine ID that is used in kv_transfer_params. If there are several ranks, each rank appends
    _dp and its number to the ID. If this setting is empty, a random ID is used."""
    kv_store: Literal["", "example", "offloading", "lmcache", "lmcache-mp"] = ""
    """The store to use in addition to the nixl, nixl-push, mooncake, moriio, or p2p connector, as
    in vLLM's MultiConnector."""
    kv_role: Literal["kv_both", "kv_producer", "kv_consumer"] = "kv_both"
    """Role of this pod in KV transfers. With the mooncake connector, a pod with the kv_consumer
    role does not run a bootstrap server. With the moriio connector, a router treats a pod with the
    kv_producer role as a prefill pod and all other pods as decode pods."""
    lmcache_chunk_size: Annotated[
        int, Meta(ge=1), About(env=("LMCACHE_CHUNK_SIZE",), unit="tokens")
    ] = 256
    """With lmcache or lmcache-mp, the number of tokens per chunk in the store."""
    lmcache_receiver: Annotated[
        str, Meta(pattern=RECEIVER, description="must be HOST:PORT, with a port up to 65535")
    ] = ""
    """With lmcache, the address of the side channel on the pod that receives a copy of each
    prompt."""
    mooncake_bootstrap_port: Annotated[Port, About(env=("VLLM_MOONCAKE_BOOTSTRAP_PORT",))] = 8998
    """With mooncake, the port on which routers and decode pods discover the engines of a prefill
    pod."""
    moriio_proxy: Annotated[str, zmq_address()] = ""
    """With moriio, the ZMQ address of the router that receives heartbeats. If this setting is
    empty, no heartbeats are sent."""
    moriio_handshake_port: Port = 6301
    """With moriio, the handshake port reported in heartbeats and responses. The server does not
    listen on this port. Notifications use the port that kv-side-channel-port specifies."""
    moriio_read_mode: bool = False
    """With moriio, report READ as the transfer mode so that routers wait for the prefill before
    they send the decode request. If this setting is false, WRITE is reported as the transfer
    mode."""
