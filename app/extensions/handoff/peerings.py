"""The engines of a server that hand over KV caches, with their side channels."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, cast
from uuid import uuid4

from msgspec import Struct

from app.core.engine.engine import Engine
from app.core.engine.kvcache.stores import ConnectorStore, store_of
from app.core.protocol.common import KVTransferParams
from app.extensions.data_parallel.side_server import ClientLimits
from app.extensions.handoff.bootstrap import (
    BootstrapServer,
    RankRegistration,
    Registration,
)
from app.extensions.handoff.channel import LOCAL_NAMES, SideChannel
from app.extensions.handoff.dialects import Dialect, MooncakeDialect, MoriioDialect, NixlDialect
from app.extensions.handoff.engine import HandoffEngine
from app.extensions.handoff.engine_directory import EngineDirectory
from app.extensions.handoff.handoffs import Peering
from app.extensions.handoff.lmcache import ChunkStore, LMCacheDialect, lmcache_answer
from app.extensions.handoff.moriio import (
    Heartbeats,
    MoriioTransferParams,
    transfer_id_of,
    zmq_address,
)
from app.extensions.handoff.moriio import Registration as Heartbeat
from app.extensions.handoff.peers import PeerDialect
from app.extensions.handoff.push import NixlPushDialect, push_params
from app.extensions.handoff.settings import HandoffSettings
from app.extensions.handoff.union import union_of
from config import Settings

if TYPE_CHECKING:
    from app.core.base.background import BackgroundLoops
    from app.core.server.flask.application import BackgroundService

ALL_ADDRESSES = "0.0.0.0"
LISTENING = ("moriio", "nixl-push", "p2p", "lmcache")
"""Connectors whose pods may get a message before their first prefill."""
LMCACHE = ("lmcache", "lmcache-mp")


class OpenChannel:
    """Opens a side channel at the start, for peers that ask before the first prefill."""

    def __init__(self, channel: SideChannel) -> None:
        self._channel = channel

    def start(self) -> None:
        """Opens the channel."""
        self._channel.open()

    def close(self) -> None:
        """Does nothing: the channel closes itself."""


class MooncakePod:
    """The bootstrap server of a prefill pod, or the registration of a further rank there."""

    def __init__(self, settings: Settings, rank: int, engine_id: str, channel: SideChannel) -> None:
        self._settings = settings
        self._rank = rank
        self._engine_id = engine_id
        self._channel = channel
        self._service: BackgroundService | None = None

    def start(self) -> None:
        """Opens the side channel, and announces it."""
        self._channel.open()
        port = self._settings.section(HandoffSettings).mooncake_bootstrap_port
        registration = Registration(
            engine_id=self._engine_id,
            dp_rank=self._rank,
            tp_rank=0,
            pp_rank=0,
            addr=f"tcp://{host_of(self._settings)}:{self._channel.port}",
        )
        host = LOCAL_NAMES.get(self._settings.kvcache.kv_side_channel_host, ALL_ADDRESSES)
        if self._rank == 0:
            limits = ClientLimits.from_settings(self._settings.server)
            self._service = BootstrapServer(host, port, registration, limits=limits)
        else:
            self._service = RankRegistration(f"127.0.0.1:{port}", registration)
        self._service.start()

    def close(self) -> None:
        """Closes the bootstrap server."""
        if self._service is not None:
            self._service.close()


class Peerings:
    """Makes the engine of each rank, with a side channel at the port of the rank."""

    def __init__(self, settings: Settings, loops: BackgroundLoops) -> None:
        self._settings = settings
        self._loops = loops
        self._options = settings.section(HandoffSettings)
        self._channels: dict[int, SideChannel] = {}

    def engine_maker(self, rank: int) -> Callable[..., Engine]:
        """Returns what makes the engine of a rank."""
        options = self._settings.kvcache
        channel = SideChannel(
            options.kv_side_channel_host, options.kv_side_channel_port + rank, self._loops
        )
        self._channels[rank] = channel
        model = self._settings.model.served_names[0]
        store_dialect = None
        if self._options.kv_store in LMCACHE:
            store_dialect = LMCacheDialect(self._options.lmcache_receiver)
        peering = Peering(
            channel,
            partial(self._engine_id, rank),
            model=model,
            rank=rank,
            dialect=self._dialect(),
            store=self._store(),
            store_dialect=store_dialect,
        )
        return partial(HandoffEngine, peering=peering)

    def _store(self) -> ConnectorStore | None:
        """Returns the store of LMCache's connectors, or of the second part of a MultiConnector."""
        options = self._settings.kvcache
        name = self._options.kv_store or options.kv_connector
        if name in LMCACHE:
            return ChunkStore(
                options.block_size,
                self._options.lmcache_chunk_size,
                keeps_partial_chunks=name == "lmcache",
                role=self._options.kv_role,
            )
        if self._options.kv_store and not self._settings.get("kv-offload-size", 0.0):
            return store_of(name, options.block_size)
        return None

    @property
    def services(self) -> Sequence[BackgroundService]:
        """The side channels, and the services that announce them to routers."""
        services: list[BackgroundService] = list(self._channels.values())
        connector = self._settings.kvcache.kv_connector
        for rank, channel in self._channels.items():
            if connector == "mooncake" and self._options.kv_role != "kv_consumer":
                engine_id = self._engine_id(rank)
                services.append(MooncakePod(self._settings, rank, engine_id, channel))
            if connector in LISTENING or self._options.kv_store == "lmcache":
                services.append(OpenChannel(channel))
            if connector == "moriio" and self._options.moriio_proxy and rank == 0:
                services.append(self._heartbeats())
        return services

    @property
    def replaces_answers(self) -> bool:
        """True if answers have other fields than NixlConnector's."""
        return self._settings.kvcache.kv_connector != "nixl" or bool(self._options.kv_store)

    def transfer_address(
        self, params: Mapping[str, object], request_id: str, address: KVTransferParams | None
    ) -> KVTransferParams | None:
        """Returns `kv_transfer_params` of an answer: those of both parts of a MultiConnector.

        `address` is the answer of NixlConnector, None for a request that is not a prefill.
        """
        answer: Struct | None = None
        connector = self._settings.kvcache.kv_connector
        if connector in LMCACHE:
            answer = lmcache_answer(connector, params)
        elif address is not None:
            answer = self._handoff_params(params, request_id, address)
        if self._options.kv_store in LMCACHE:
            answer = union_of(answer, lmcache_answer(self._options.kv_store, params))
        return cast("KVTransferParams | None", answer)

    def _handoff_params(
        self, params: Mapping[str, object], request_id: str, address: KVTransferParams
    ) -> Struct | None:
        connector = self._settings.kvcache.kv_connector
        if connector == "nixl":
            return address
        if connector == "nixl-push":
            return push_params(address)
        if connector == "moriio":
            return self._moriio_params(params, request_id, address)
        return None

    def _moriio_params(
        self, params: Mapping[str, object], request_id: str, address: KVTransferParams
    ) -> MoriioTransferParams:
        settings = self._settings
        return MoriioTransferParams(
            remote_block_ids=address.remote_block_ids,
            remote_engine_id="",
            remote_host=host_of(settings),
            remote_handshake_port=self._options.moriio_handshake_port,
            remote_notify_port=settings.kvcache.kv_side_channel_port,
            remote_dp_size=settings.server.data_parallel_size,
            remote_dp_size_local=settings.server.data_parallel_size,
            tp_size=settings.model.tensor_parallel_size,
            transfer_id=transfer_id_of(request_id, params),
        )

    def _dialect(self) -> Dialect:
        connector = self._settings.kvcache.kv_connector
        if connector == "mooncake":
            return MooncakeDialect(EngineDirectory().find)
        if connector == "moriio":
            return MoriioDialect()
        if connector == "nixl-push":
            return NixlPushDialect()
        if connector == "p2p":
            return PeerDialect()
        if connector in LMCACHE:
            return LMCacheDialect(self._options.lmcache_receiver)
        return NixlDialect()

    def _heartbeats(self) -> Heartbeats:
        settings = self._settings
        host = host_of(settings)
        address = zmq_address(
            host, self._options.moriio_handshake_port, settings.kvcache.kv_side_channel_port
        )
        registration = Heartbeat(
            type="P" if self._options.kv_role == "kv_producer" else "D",
            http_address=f"{host}:{settings.server.port}",
            zmq_address=address,
            dp_size=settings.server.data_parallel_size,
            tp_size=settings.model.tensor_parallel_size,
            transfer_mode="READ" if self._options.moriio_read_mode else "WRITE",
        )
        return Heartbeats(self._options.moriio_proxy, registration, self._loops)

    @cached_property
    def _server_id(self) -> str:
        """The configured id, or one that no other server has, not even one with the same seed."""
        return self._options.kv_engine_id or str(uuid4())

    def _engine_id(self, rank: int) -> str:
        if self._settings.server.data_parallel_size > 1:
            return f"{self._server_id}_dp{rank}"
        return self._server_id


def host_of(settings: Settings) -> str:
    """Returns the host where other pods find this one."""
    host = settings.kvcache.kv_side_channel_host
    return host or settings.server.pod_ip or socket.gethostname()
