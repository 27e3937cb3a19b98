"""OffloadingConnector with a P2P tier: pods copy blocks from the CPU memory of one another.

`PeerDialect` reads the parameters, `PeerReads` copies the blocks. A failed read is never an error:
the pod computes what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from app.core.base.clock.timer_wheel import ScheduledCall
from app.core.engine.request import EngineRequest
from app.extensions.handoff.dialects import GOOD_ENDS, EarlyDialect
from app.extensions.handoff.late_reads import Found, LateRead, LateReads, Locate
from app.extensions.handoff.messages import MAX_KEYS, Lookup, Source, checked_source, number_in
from app.extensions.handoff.reads import RemoteRead

DECODER = "remote_decoder"
PREFILLER = "remote_prefiller"
KV_SOURCE = "remote_kv_source"


class PeerRead(LateRead):
    """A read of the leading blocks of a prompt."""

    __slots__ = ("blocks", "keys")

    def __init__(self, locate: Locate, number: str, since_s: float) -> None:
        super().__init__(locate, number, since_s)
        self.keys: list[bytes] | None = None
        """Hashes of the blocks to look up; None to wait for the prefill of the whole prompt."""
        self.blocks: int | None = None
        """Number of blocks that the peer has; None for all of the prompt."""


class PeerReads(LateReads):
    """The reads of one engine from its peers."""

    def _new_read(self, locate: Locate) -> LateRead:
        return PeerRead(locate, self._new_number(), self._now())

    def abandon(self, read: RemoteRead) -> None:
        """Ends a read whose request has ended. A peer that was only asked holds nothing."""
        if isinstance(read, PeerRead) and read.keys is not None:
            self._end(read)
        else:
            super().abandon(read)

    def _request(self, read: RemoteRead) -> None:
        source = read.source
        if not isinstance(read, PeerRead) or read.keys is None or source is None:
            super()._request(read)
        elif not read.is_over:
            lookup = Lookup(source.request_id, read.keys)
            self._ask(source, lookup, partial(self._looked_up, read))

    def _looked_up(self, read: PeerRead, answer: str) -> None:
        """Copies the blocks that the peer has; `answer` is their number, or a problem."""
        if read.is_over:
            return
        blocks = number_in(answer)
        if blocks is None:
            self._fail(read, answer)
            return
        read.blocks = blocks
        read.ready_s = self._now()
        if read.blocks:
            read.ready_s += read.transfer_s
        self._wheel.add(read.ready_s, ScheduledCall(partial(self._finish, read, is_complete=True)))


class PeerDialect(EarlyDialect):
    """`remote_decoder` marks a prefill, `remote_prefiller` or `remote_kv_source` a reader.

    With `remote_prefiller` the pod waits for all blocks of the prompt. With `remote_kv_source` it
    asks the peer which blocks it has.
    """

    good_ends = GOOD_ENDS
    hold_s = 60.0
    """vLLM's `unbound_store_timeout_s`."""
    wait_s = 30.0
    """vLLM's timeout of a load."""
    holds_blocks = False
    loads_parts = True
    read_class = PeerReads

    def transfer_id(self, request: EngineRequest) -> str:
        """Returns the router's id of a prefill."""
        return _text(_role(request, DECODER), "kv_request_id")

    def reads(self, request: EngineRequest) -> bool:
        """Returns whether the request names its peer completely."""
        return _source_of(request) is not None

    def problem(self, request: EngineRequest) -> str:
        """Returns which parameter is incomplete; without it, this pod computes the prompt."""
        params = request.source or {}
        if DECODER in params and not self.transfer_id(request):
            return (
                f"{DECODER} requires kv_request_id: the blocks of this prompt are not "
                "offered to other pods"
            )
        for name in (PREFILLER, KV_SOURCE):
            if params.get(name) is not None and not self.reads(request):
                return (
                    f"{name} requires kv_request_id, remote_host, and remote_port: "
                    "this pod computes the prompt"
                )
        return ""

    def locate(self, request: EngineRequest, take_source: Found) -> None:
        """Reads the address of the peer."""
        take_source(_source_of(request), "")

    def prepare(self, read: RemoteRead, request: EngineRequest, keys: list[bytes]) -> None:
        """Lets a symmetric reader look up its blocks."""
        params = request.source or {}
        if isinstance(read, PeerRead) and params.get(PREFILLER) is None:
            read.keys = keys[:MAX_KEYS]


def _role(request: EngineRequest, name: str) -> Mapping[str, object]:
    role = (request.source or {}).get(name)
    if isinstance(role, Mapping):
        return role
    return {}


def _text(role: Mapping[str, object], name: str) -> str:
    value = role.get(name)
    if isinstance(value, str):
        return value
    return ""


def _source_of(request: EngineRequest) -> Source | None:
    """Returns the peer; `remote_prefiller` takes precedence over `remote_kv_source`."""
    params = request.source or {}
    name = KV_SOURCE
    if params.get(PREFILLER) is not None:
        name = PREFILLER
    role = _role(request, name)
    port = role.get("remote_port")
    if isinstance(port, str):
        port = number_in(port)
    request_id = _text(role, "kv_request_id")
    return checked_source(role.get("remote_host"), port, engine_id="", request_id=request_id)
