"""The worker's part of vLLM's OffloadingConnector, without memory: when its transfers end.

Time is counted in turns, as by the engine. A transfer takes its bytes divided by `BANDWIDTH`, after
earlier ones in the same direction. Start with `OffloadWorker`.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingWorkerMetadata,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from fidelity.judge_steps.load import BANDWIDTH, BLOCK_BYTES, Load


def extra_config(load: Load) -> dict[str, Any]:
    """Returns the connector's options for the tier of a load.

    Since 0.27, vLLM rounds the size of a chunk up to a page.
    """
    alignment = CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT
    chunk_bytes = -(-load.chunk_blocks * BLOCK_BYTES // alignment) * alignment
    return {
        "cpu_bytes_to_use": load.tier_chunks * chunk_bytes,
        "block_size": load.chunk_blocks * load.block_size,
        "eviction_policy": load.tier_policy,
        "store_threshold": load.store_threshold,
    }


def order_transfers(manager: Any) -> None:
    """Makes a transfer end for the chunks in the order of the prompt.

    vLLM keeps them in a set, so their order changes with the process. Up to 0.30, this order
    decides which of them is evicted first.
    """
    places: dict[bytes, int] = {}
    prepare_store = manager.prepare_store
    prepare_load = manager.prepare_load

    def note(keys: Iterable[bytes]) -> None:
        first = len(places) + max(places.values(), default=0)
        places.update((key, first + place) for place, key in enumerate(keys))

    def prepare_ordered_store(*arguments: Any) -> Any:
        output = prepare_store(*arguments)
        if output is not None:
            note(output.keys_to_store)
        return output

    def prepare_ordered_load(keys: Iterable[bytes], *arguments: Any) -> Any:
        note(keys)
        return prepare_load(keys, *arguments)

    manager.prepare_store = prepare_ordered_store
    manager.prepare_load = prepare_ordered_load
    manager.complete_store = partial(_complete_in_order, manager.complete_store, places)
    manager.complete_load = partial(_complete_in_order, manager.complete_load, places)


def _complete_in_order(
    complete: Callable[..., None],
    places: Mapping[bytes, int],
    keys: Iterable[bytes],
    *arguments: Any,
) -> None:
    complete(sorted(keys, key=places.__getitem__), *arguments)


def _places_of(job: Any) -> tuple[Any, Any]:
    """Returns where a transfer reads and writes. Up to 0.24, one field has both."""
    if hasattr(job, "transfer_spec"):
        source, target = job.transfer_spec
        return source, target
    return job.src_spec, job.dst_spec


class Lane:
    """Transfers in one direction."""

    def __init__(self) -> None:
        self.jobs: dict[int, float] = {}
        """End of each transfer, by its number."""
        self._free_turn = 0.0

    def add(self, number: int, blocks: int, turn: int) -> None:
        """Starts a transfer."""
        self._free_turn = max(turn, self._free_turn) + blocks * BLOCK_BYTES / BANDWIDTH
        self.jobs[number] = self._free_turn

    def take_ended(self, turn: int) -> list[int]:
        """Removes and returns the transfers that are over."""
        ended = [number for number, end in self.jobs.items() if end <= turn]
        for number in ended:
            del self.jobs[number]
        return ended


class OffloadWorker:
    """Runs the transfers that the scheduler's part of the connector asks for."""

    def __init__(self) -> None:
        self._loads = Lane()
        self._stores = Lane()
        self._unsent: list[list[tuple[int, int]]] = []
        """Stores of each step under way: number and blocks. They start when the step is over."""
        self._requests: dict[int, str] = {}
        """Request of each load."""

    @property
    def is_busy(self) -> bool:
        """True while a transfer is under way."""
        return bool(self._loads.jobs or self._stores.jobs or any(self._unsent))

    def receive(self, metadata: Any, turn: int, *, computes: bool) -> None:
        """Receives what a step asks for. A step that computes nothing has no end."""
        for number, job in metadata.load_jobs.items():
            self._requests[number] = job.req_id
            _, target = _places_of(job)
            self._loads.add(number, len(target.block_ids), turn)
        stores = []
        for number, job in metadata.store_jobs.items():
            source, _ = _places_of(job)
            stores.append((number, len(source.block_ids)))
        if computes:
            self._unsent.append(stores)
        elif self._unsent:
            self._unsent[-1] += stores
        else:
            self._send(stores, turn)

    def end_step(self, turn: int) -> None:
        """Starts to store what the oldest step under way has computed."""
        if self._unsent:
            self._send(self._unsent.pop(0), turn)

    def take_ended(self, turn: int) -> tuple[set[str], OffloadingWorkerMetadata]:
        """Returns the requests whose loads are over, and all transfers that are over."""
        metadata = OffloadingWorkerMetadata()
        names = set()
        for number in self._loads.take_ended(turn):
            names.add(self._requests.pop(number))
            metadata.mark_completed(number)
        for number in self._stores.take_ended(turn):
            metadata.mark_completed(number)
        return names, metadata

    def _send(self, stores: list[tuple[int, int]], turn: int) -> None:
        for number, blocks in stores:
            self._stores.add(number, blocks, turn)
