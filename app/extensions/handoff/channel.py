"""The side channel of one engine on ZMQ: answers other engines, and asks them.

A ROUTER socket listens from the first prefill on; a DEALER socket connects to each peer that was
asked. All sockets are gevent's: they wait in greenlets, and sending never waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import zmq.green as zmq
from cachetools import LRUCache
from gevent import Greenlet

from app.core.base.background import BackgroundLoops
from app.core.base.clock.pause import pause_if_possible
from app.core.base.limited_log import LimitedLog
from app.core.engine.kvcache.publishing import is_ipv6
from app.core.engine.kvcache.sockets import IO_THREADS, MAX_REQUEST_BYTES, affinity, end_context
from app.extensions.handoff.green_sockets import GreenContext, peer_limit
from app.extensions.handoff.messages import (
    Answer,
    Question,
    SendAnswer,
    answer_decoder,
    encode,
    question_decoder,
)
from config.untrusted import UntrustedDataError, decode_untrusted

ANY_ADDRESS = "*"
LOCAL_NAMES = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "::1"}
"""Loopback hosts, with the addresses to listen at."""
MAX_RECONNECT_MS = 5_000
"""Maximum interval of attempts to reach a peer, in milliseconds."""
MAX_PEERS = 256
"""Maximum number of connected peers, or as many as open files allow.

The one that was asked longest ago is dropped.
"""
MAX_QUEUED = 1_000
"""Maximum number of messages that wait for one peer."""
PAUSE_EVERY = 32
"""Questions that are answered between two pauses."""
log = logging.getLogger(__name__)


class Peer(NamedTuple):
    """A connection to the side channel of another engine."""

    socket: zmq.Socket[bytes]
    greenlet: Greenlet[[], None]


class SideChannel:
    """Listens at `port` of `host`, or at any free port if that one is occupied."""

    def __init__(self, host: str, port: int, loops: BackgroundLoops) -> None:
        self._address = LOCAL_NAMES.get(host, ANY_ADDRESS)
        self.port = port
        """The configured port, and, once open, the one in use."""
        self._loops = loops
        self._warnings = LimitedLog(log)
        self._respond: Callable[[Question, SendAnswer], str]
        self._take_answer: Callable[[Answer], None]
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._listener: zmq.Socket[bytes] | None = None
        self._greenlet: Greenlet[[], None] | None = None
        self._peers: LRUCache[tuple[str, int], Peer] = LRUCache(MAX_PEERS)

    def serve(
        self, respond: Callable[[Question, SendAnswer], str], take_answer: Callable[[Answer], None]
    ) -> None:
        """Sets the functions that answer a question, and that receive answers."""
        self._respond = respond
        self._take_answer = take_answer

    def start(self) -> None:
        """Does nothing: the first prefill opens the listener."""

    def open(self) -> None:
        """Starts to listen, once."""
        if self._listener is not None:
            return
        socket = self._new_socket(zmq.ROUTER, self._endpoint(self._address, self.port))
        try:
            socket.bind(self._endpoint(self._address, self.port))
        except zmq.ZMQError as error:
            port = self.port
            self.port = socket.bind_to_random_port(f"tcp://{_bracketed(self._address)}")
            log.warning(
                "side channel: cannot listen on port %d: %s; listening on port %d instead",
                port,
                error,
                self.port,
            )
        self._listener = socket
        self._greenlet = self._loops.spawn("side channel", self._listen, socket)

    def send(self, host: str, port: int, question: Question) -> bool:
        """Sends without waiting; returns False if the peer cannot be addressed."""
        try:
            peer = self._peer(host, port)
            peer.socket.send_multipart([b"", encode(question)], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def forget(self, host: str, port: int) -> None:
        """Drops the connection to a peer that does not answer, and its waiting messages."""
        peer = self._peers.pop((host, port), None)
        if peer is not None:
            _close(peer)

    def close(self) -> None:
        """Closes all sockets. Blocks that are still held end with the process."""
        for peer in self._peers.values():
            _close(peer)
        self._peers.clear()
        if self._listener is not None and self._greenlet is not None:
            _close(Peer(self._listener, self._greenlet))
            self._listener = None
        if self._context is not None:
            end_context(self._context)
            self._context = None

    def _peer(self, host: str, port: int) -> Peer:
        """Returns the connection to a peer.

        Raises:
            ZMQError: the address is invalid, or no file descriptors are left.
        """
        peer: Peer | None = self._peers.get((host, port))
        if peer is not None:
            return peer
        while len(self._peers) >= peer_limit(MAX_PEERS):
            _close(self._peers.popitem()[1])
        endpoint = self._endpoint(host, port)
        socket = self._new_socket(zmq.DEALER, endpoint)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError:
            socket.close(linger=0)
            raise
        receiver = self._loops.spawn("side channel of a peer", self._receive, socket)
        peer = Peer(socket, receiver)
        self._peers[host, port] = peer
        return peer

    def _new_socket(self, kind: int, endpoint: str) -> zmq.Socket[bytes]:
        if self._context is None:
            self._context = GreenContext(IO_THREADS)
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.sndhwm = MAX_QUEUED
        socket.rcvhwm = MAX_QUEUED
        socket.maxmsgsize = MAX_REQUEST_BYTES
        socket.reconnect_ivl_max = MAX_RECONNECT_MS
        socket.ipv6 = is_ipv6(endpoint)
        socket.affinity = affinity(self._context, endpoint)
        return socket

    @staticmethod
    def _endpoint(host: str, port: int) -> str:
        return f"tcp://{_bracketed(host)}:{port}"

    def _listen(self, socket: zmq.Socket[bytes]) -> None:
        answered = 0
        while True:
            frames = socket.recv_multipart()
            if len(frames) != 3 or frames[1]:
                continue
            try:
                question = decode_untrusted(frames[2], decoder=question_decoder)
            except UntrustedDataError as error:
                self._warnings.warning("side channel: ignoring an invalid request: %s", error)
                continue
            try:
                reply = partial(_reply, socket, frames[0], question.number)
                reply(self._respond(question, reply))
            except Exception:  # one request must not stop the others
                self._warnings.warning(
                    "side channel: a request could not be answered", exc_info=True
                )
            answered += 1
            if answered % PAUSE_EVERY == 0:
                pause_if_possible()

    def _receive(self, socket: zmq.Socket[bytes]) -> None:
        while True:
            frames = socket.recv_multipart()
            try:
                self._take_answer(decode_untrusted(frames[-1], decoder=answer_decoder))
            except UntrustedDataError as error:
                self._warnings.warning("side channel: ignoring an invalid response: %s", error)
            except Exception:  # one response must not stop the others
                self._warnings.warning(
                    "side channel: a response could not be processed", exc_info=True
                )


def _reply(socket: zmq.Socket[bytes], peer: bytes, number: int, problem: str) -> None:
    """Sends the answer to a question without waiting; a question of number 0 gets none."""
    if number:
        answer = encode(Answer(number, problem))
        try:
            socket.send_multipart([peer, b"", answer], zmq.NOBLOCK)
        except (
            zmq.ZMQError
        ) as error:  # a late answer belongs to a request that ends: it must not fail
            log.warning("side channel: a response could not be sent: %s", error)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _close(peer: Peer) -> None:
    peer.greenlet.kill(block=False)
    peer.socket.close(linger=0)
