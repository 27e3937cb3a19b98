"""The parameters of vLLM's connectors, one class for each. Start with `Dialect`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from app.core.engine.request import EngineRequest
from app.core.protocol.common import KVTransferParams
from app.extensions.handoff.late_reads import Found, LateReads
from app.extensions.handoff.messages import Source, checked_source
from app.extensions.handoff.moriio import MoriioTransferParams, peer_of
from app.extensions.handoff.reads import MAX_WAIT_S, Reads, RemoteRead

GOOD_ENDS = ("stop", "length")
"""Finish reasons with which a prefill for NixlConnector holds its blocks."""
LENGTH_ONLY = ("length",)
"""Finish reason with which a prefill for another connector holds its blocks: it has one token."""


class Progress(NamedTuple):
    """Figures of a sequence with its first token, for its answer."""

    block_numbers: Sequence[int]
    first_token: int
    """Id of the first token of the reply."""
    stored_tokens: int
    """Prompt tokens from a store or from another engine."""


class Dialect(ABC):
    """How a connector names the blocks of a prefill."""

    good_ends: tuple[str, ...]
    """Finish reasons with which a prefill holds its blocks."""
    counts_transfers = False
    """True if vLLM has the metrics `vllm:nixl_*` with this connector."""
    holds_blocks = True
    """True if a prefill keeps its blocks in the cache; otherwise they are copied at its end."""
    loads_parts = False
    """True if a read brings whole blocks of the prompt, which the pod stores, too."""
    read_class: type[Reads] = Reads

    @abstractmethod
    def transfer_id(self, request: EngineRequest) -> str:
        """Returns the id of the blocks of a prefill; empty for a request without a handoff."""

    def reads(self, request: EngineRequest) -> bool:
        """Returns whether a request reads blocks of another engine."""
        return request.remote_prefill

    def takes_part(self, request: EngineRequest) -> bool:
        """Returns whether the connector does anything with a request."""
        return self.reads(request) or bool(self.transfer_id(request))

    def receiver(self, request: EngineRequest) -> Source | None:
        """Returns the engine whose store gets the computed prompt; by default none."""
        return None

    def complete(self, request: EngineRequest, progress: Progress) -> None:
        """Writes into the answer what is known with the first token: here the blocks."""
        address = cast("KVTransferParams | None", request.address)
        if address is not None and progress.block_numbers:
            address.remote_block_ids = (progress.block_numbers,)

    def problem(self, request: EngineRequest) -> str:
        """Returns why the parameters have no effect; by default an empty text."""
        return ""

    def announce(self, request: EngineRequest, engine_id: str, port: int) -> None:
        """Writes the engine and its port into the answer of a prefill, if the answer has them."""
        address = cast("KVTransferParams | None", request.address)
        if address is not None:
            address.remote_engine_id = engine_id
            address.remote_port = port


class EarlyDialect(Dialect, ABC):
    """A connector whose decodes may ask for the blocks before the prefill has ended."""

    hold_s: float | None = None
    """Time for which a prefill holds unread blocks, in seconds. If None, kv-lease-duration."""
    wait_s = MAX_WAIT_S
    """Time for which a decode waits for its prefill, in seconds."""
    read_class = LateReads

    def reads(self, request: EngineRequest) -> bool:
        """Returns whether a request reads blocks of another engine."""
        return bool((request.source or {}).get("do_remote_prefill"))

    @abstractmethod
    def locate(self, request: EngineRequest, take_source: Found) -> None:
        """Finds the blocks that the request names, now or later."""

    def lease_source(self, request: EngineRequest) -> Source | None:
        """Returns the blocks whose lease a waiting request extends; by default none."""
        return None

    def prepare(self, read: RemoteRead, request: EngineRequest, keys: list[bytes]) -> None:
        """Completes a read before it starts. `keys` are the hashes of the prompt's blocks."""


class NixlDialect(Dialect):
    """NixlConnector: the router passes the answer of the prefill to the decode."""

    good_ends = GOOD_ENDS
    counts_transfers = True

    def transfer_id(self, request: EngineRequest) -> str:
        """Returns the id in the answer."""
        address = cast("KVTransferParams | None", request.address)
        if address is None:
            return ""
        return address.remote_request_id


class MooncakeDialect(EarlyDialect):
    """MooncakeConnector: the router chooses the transfer id, and the answer has no parameters.

    The decode asks the bootstrap server of the prefill pod for the address of the engine.
    """

    good_ends = LENGTH_ONLY
    hold_s = 480.0
    """vLLM's VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT."""

    def __init__(self, find: Callable[[str, str, Callable[[str, int, str], None]], None]) -> None:
        """`find` looks up an engine at a bootstrap server.

        It calls its last argument with the host, the port, and the problem, which is empty if the
        engine was found.
        """
        self._find = find

    def transfer_id(self, request: EngineRequest) -> str:
        """Returns the router's id."""
        source = request.source or {}
        transfer_id = source.get("transfer_id")
        if not source.get("do_remote_decode") or not isinstance(transfer_id, str):
            return ""
        return transfer_id

    def locate(self, request: EngineRequest, take_source: Found) -> None:
        """Asks the bootstrap server that the request names."""
        source = request.source or {}
        engine_id = source.get("remote_engine_id")
        address = source.get("remote_bootstrap_addr")
        if not isinstance(engine_id, str) or not isinstance(address, str):
            take_source(None, "")
            return

        def take_address(host: str, port: int, problem: str) -> None:
            if problem:
                take_source(None, problem)
                return
            transfer_id = source.get("transfer_id")
            take_source(checked_source(host, port, engine_id=engine_id, request_id=transfer_id), "")

        self._find(address, engine_id, take_address)


class MoriioDialect(EarlyDialect):
    """MoRIIOConnector: the id of a request names both pods, or the parameters name the prefill.

    In mode READ the router passes the answer of the prefill to the decode. In mode WRITE it sends
    the request to both pods at once.
    """

    good_ends = LENGTH_ONLY
    hold_s = 60.0
    """vLLM's `defer_timeout`."""

    def transfer_id(self, request: EngineRequest) -> str:
        """Returns the router's id, or one that both pods derive from the id of the request."""
        address = cast("MoriioTransferParams | None", request.address)
        if address is None:
            return ""
        return address.transfer_id

    def announce(self, request: EngineRequest, engine_id: str, port: int) -> None:
        """Writes the engine and its port."""
        address = cast("MoriioTransferParams | None", request.address)
        if address is not None:
            address.remote_engine_id = engine_id
            address.remote_notify_port = port

    def locate(self, request: EngineRequest, take_source: Found) -> None:
        """Reads the address of the prefill pod."""
        host, port, transfer_id = peer_of(request.request_id, request.source or {})
        take_source(checked_source(host, port, engine_id="", request_id=transfer_id), "")
