"""MoRIIOConnector: its parameters, and its heartbeats to a router."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence

import gevent
import zmq.green as zmq
from gevent import Greenlet
from msgspec import Struct, msgpack

from app.core.base.background import BackgroundLoops
from app.core.engine.kvcache.sockets import IO_THREADS, end_context
from app.extensions.handoff.green_sockets import GreenContext
from app.extensions.handoff.messages import number_in

PING_INTERVAL_S = 3.0
"""Seconds between two heartbeats, as in vLLM."""
PREFILL_ADDRESS = re.compile(r"___prefill_addr_(.+?)___decode_addr_")
"""The address of the prefill pod in the id of a request, as vllm-router writes it."""
log = logging.getLogger(__name__)


class MoriioTransferParams(Struct, kw_only=True):
    """`kv_transfer_params` of a prefill's answer, in vLLM's order."""

    do_remote_prefill: bool = True
    do_remote_decode: bool = False
    remote_block_ids: Sequence[Sequence[int]]
    """Block ids by group of layers; there is one group."""
    remote_engine_id: str
    remote_host: str
    remote_handshake_port: int
    remote_notify_port: int
    remote_dp_rank: int = 0
    remote_dp_rank_override: bool = True
    remote_dp_size: int = 1
    remote_dp_size_local: int = 1
    tp_size: int = 1
    transfer_id: str

    @property
    def remote_port(self) -> int:
        """The port of the side channel, under the name that other connectors use."""
        return self.remote_notify_port


class Registration(Struct, kw_only=True):
    """A heartbeat, with which a router discovers a pod."""

    type: str
    """`P` for a prefill pod, `D` for a decode pod."""
    http_address: str
    zmq_address: str
    dp_size: int
    tp_size: int
    transfer_mode: str
    """`READ` or `WRITE`."""


def zmq_address(host: str, handshake_port: int, notify_port: int) -> str:
    """Returns the address that heartbeats and the ids of requests carry."""
    return f"host:{host},handshake:{handshake_port},notify:{notify_port}"


def transfer_id_of(request_id: str, params: Mapping[str, object]) -> str:
    """Returns the router's id of a transfer, or vLLM's substitute for a router without ids."""
    transfer_id = params.get("transfer_id")
    if isinstance(transfer_id, str) and transfer_id:
        return transfer_id
    return f"sidecar-{request_id}"


def peer_of(request_id: str, params: Mapping[str, object]) -> tuple[object, object, str]:
    """Returns host and port of the prefill pod, which may be invalid, and the id of the transfer.

    The id of the request takes precedence over the parameters.
    """
    transfer_id = transfer_id_of(request_id, params)
    match = PREFILL_ADDRESS.search(request_id)
    if match is None:
        return params.get("remote_host"), params.get("remote_notify_port"), transfer_id
    fields: dict[str, str] = {}
    for part in match[1].split(","):
        key, _, value = part.partition(":")
        fields[key.strip()] = value.strip()
    return fields.get("host"), number_in(fields.get("notify", "")), transfer_id


class Heartbeats:
    """Registers this pod with a router, every `PING_INTERVAL_S` seconds."""

    def __init__(self, endpoint: str, registration: Registration, loops: BackgroundLoops) -> None:
        self._loops = loops
        self._endpoint = endpoint
        self._message = msgpack.encode(registration)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._greenlet: Greenlet[..., None] | None = None

    def start(self) -> None:
        """Connects, and begins to send."""
        self._context = GreenContext(IO_THREADS)
        self._socket = socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(self._endpoint)
        self._greenlet = self._loops.spawn("MoRIIO heartbeats", self._send, socket)

    def close(self) -> None:
        """Ends the heartbeats; the router drops this pod a few seconds later."""
        if self._greenlet is not None:
            self._greenlet.kill()
        if self._context is not None and self._socket is not None:
            self._socket.close()
            end_context(self._context)
            self._context = None

    def _send(self, socket: zmq.Socket[bytes]) -> None:
        is_reachable = True
        while True:
            try:
                socket.send(self._message, zmq.NOBLOCK)
                is_reachable = True
            except zmq.Again:
                if is_reachable:
                    log.warning(
                        "MoRIIO: the router at %s does not accept heartbeats", self._endpoint
                    )
                is_reachable = False
            gevent.sleep(PING_INTERVAL_S)
