"""vLLM's metrics of offloading, by their names in vLLM 0.32. Start with `OffloadCounters`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.core.base.metrics.spec import Spec, Values

if TYPE_CHECKING:
    from app.core.base.metrics.recorder import Recorder
    from app.extensions.kv_offload.cpu_tier import CpuTier

PREFIX = "kv_offload_"
TIERING = f"{PREFIX}tiering_"
LOAD = "CPU_to_GPU"
STORE = "GPU_to_CPU"
PRIMARY = "0:primary"
DISK = "1:fs"
"""Labels of the tiers in host memory and on disk."""
SIZES = (1e6, 5e6, 10e6, 20e6, 40e6, 60e6, 80e6, 100e6, 150e6, 200e6)
SYNC_DELAYS = (0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1)
ASYNC_DELAYS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)
ALLOCATIONS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)


def _counter(name: str, help: str, **labels: Values) -> Spec:
    return Spec(f"vllm:{PREFIX}{name}_total", "counter", help, extra=labels)


def _gauge(name: str, help: str, **labels: Values) -> Spec:
    return Spec(f"vllm:{PREFIX}{name}", "gauge", help, extra=labels)


def _histogram(name: str, help: str, bounds: tuple[float, ...], **labels: Values) -> Spec:
    return Spec(f"vllm:{PREFIX}{name}", "histogram", help, bounds, extra=labels)


FAMILIES = (
    _counter("load_bytes", "Bytes loaded from tiers to devices."),
    _counter("load_time", "Time of loads from tiers to devices, in seconds."),
    _histogram("load_size", "Bytes per load.", SIZES),
    _counter("store_bytes", "Bytes stored from devices to tiers."),
    _counter("store_time", "Time of stores from devices to tiers, in seconds."),
    _histogram("store_size", "Bytes per store.", SIZES),
    _histogram("lookup_sync_delay_seconds", "Duration of a lookup in the tiers.", SYNC_DELAYS),
    _histogram(
        "lookup_async_delay_seconds",
        "Time that a request waits for chunks that are being written.",
        ASYNC_DELAYS,
    ),
    _counter("allocation_failure", "Stores that found no room."),
    _gauge("cpu_cache_usage_perc", "Share of the host's tier that transfers use, from 0 to 1."),
    _gauge("cpu_cache_write_usage_perc", "Share of the host's tier that stores use, from 0 to 1."),
    _gauge("cpu_cache_read_usage_perc", "Share of the host's tier that loads use, from 0 to 1."),
    _histogram("cpu_allocation_size", "Chunks per store.", ALLOCATIONS),
    _counter("total_bytes", "Bytes per direction (deprecated).", transfer_type=(LOAD, STORE)),
    _counter("total_time", "Seconds per direction (deprecated).", transfer_type=(LOAD, STORE)),
    _histogram("size", "Bytes per transfer (deprecated).", SIZES, transfer_type=(LOAD, STORE)),
)
SKIPPED = (_counter("stores_skipped", "Chunks that too few requests have had to be stored."),)
"""Families of a tier with a threshold."""
_BOTH = (PRIMARY, DISK)
_SECOND = (DISK,)
DISK_FAMILIES = (
    _histogram(
        "tiering_lookup_sync_delay_seconds",
        "Duration of a lookup of a chunk.",
        SYNC_DELAYS,
        tier=_BOTH,
    ),
    _histogram(
        "tiering_lookup_async_delay_seconds",
        "Time until a lookup is answered.",
        ASYNC_DELAYS,
        tier=_SECOND,
    ),
    _counter("tiering_read_bytes", "Bytes read from the tier.", tier=_SECOND),
    _counter("tiering_read_time", "Time of reads from the tier, in seconds.", tier=_SECOND),
    _counter("tiering_write_bytes", "Bytes written to the tier.", tier=_SECOND),
    _counter("tiering_write_time", "Time of writes to the tier, in seconds.", tier=_SECOND),
    _counter("tiering_promotion_job_failures", "Reads that failed.", tier=_SECOND),
    _counter("tiering_cascade_job_failures", "Writes that failed.", tier=_SECOND),
    _counter("tiering_chunk_queries", "Lookups of chunks.", tier=_BOTH),
    _counter("tiering_chunk_hits", "Lookups that found the chunk.", tier=_BOTH),
    _counter("tiering_promotion_allocation_failures", "Reads that found no room in the host."),
    _gauge("tiering_primary_write_usage_perc", "Share of the host that reads use.", tier=_SECOND),
    _gauge("tiering_primary_read_usage_perc", "Share of the host that writes use.", tier=_SECOND),
    _gauge("tiering_active_promotion_jobs", "Reads under way.", tier=_SECOND),
    _gauge("tiering_active_cascade_jobs", "Writes under way.", tier=_SECOND),
)
"""Families of a server with a tier on disk."""


class OffloadCounters:
    """Counts the transfers of one rank."""

    def __init__(self, recorder: Recorder, *, has_disk: bool, has_threshold: bool) -> None:
        families = recorder.instruments
        families.add(FAMILIES)
        if has_threshold:
            families.add(SKIPPED)
        if has_disk:
            families.add(DISK_FAMILIES)
        self._families = families
        self._has_disk = has_disk
        self._has_threshold = has_threshold

    def moved(self, is_load: bool, size_bytes: float, seconds: float) -> None:
        """Counts a transfer between devices and host."""
        direction = "store"
        transfer_type = STORE
        if is_load:
            direction = "load"
            transfer_type = LOAD
        self._add(f"{PREFIX}{direction}_bytes", size_bytes)
        self._add(f"{PREFIX}{direction}_time", seconds)
        self._add(f"{PREFIX}total_bytes", size_bytes, transfer_type=transfer_type)
        self._add(f"{PREFIX}total_time", seconds, transfer_type=transfer_type)
        self._families.histogram(f"{PREFIX}{direction}_size").observe(size_bytes)
        sizes = self._families.histogram(f"{PREFIX}size", transfer_type=transfer_type)
        sizes.observe(size_bytes)

    def looked_up(self, host: tuple[int, int], disk: tuple[int, int], delay_s: float) -> None:
        """Counts the lookup of an admitted request: queried and found chunks of each tier.

        `delay_s` is the time until all found chunks are in the host.
        """
        # A lookup is a few dictionary accesses, which simulated time does not count.
        self._families.histogram(f"{PREFIX}lookup_sync_delay_seconds").observe(0.0)
        if delay_s:
            self._families.histogram(f"{PREFIX}lookup_async_delay_seconds").observe(delay_s)
        if not self._has_disk:
            return
        for tier, (queries, hits) in ((PRIMARY, host), (DISK, disk)):
            self._add(f"{TIERING}chunk_queries", queries, tier=tier)
            self._add(f"{TIERING}chunk_hits", hits, tier=tier)
            if queries:
                delays = self._families.histogram(f"{TIERING}lookup_sync_delay_seconds", tier=tier)
                delays.observe(0.0, queries)

    def offered(self, has_failed: bool, tier: CpuTier) -> None:
        """Counts new allocations of the tier; `has_failed` is the result of the latest one."""
        if has_failed:
            self._add(f"{PREFIX}allocation_failure", 1)
        self._families.histogram(f"{PREFIX}cpu_allocation_size").observe_all(tier.allocations)
        tier.allocations.clear()
        if self._has_threshold:
            self._families.counter(f"{PREFIX}stores_skipped_total").value = tier.skipped

    def used(self, tier: CpuTier) -> None:
        """Sets the shares of the host's tier that transfers use."""
        gauge = self._families.counter
        writing = tier.writing / tier.capacity
        reading = tier.reading / tier.capacity
        gauge(f"{PREFIX}cpu_cache_usage_perc").value = writing + reading
        gauge(f"{PREFIX}cpu_cache_write_usage_perc").value = writing
        gauge(f"{PREFIX}cpu_cache_read_usage_perc").value = reading

    def disk_began(self, is_read: bool, jobs: int, share: float) -> None:
        """Counts `jobs` more transfers of the disk under way, with their share of the host."""
        kind = "cascade"
        use = "read"
        if is_read:
            kind = "promotion"
            use = "write"
        gauge = self._families.counter
        gauge(f"{TIERING}active_{kind}_jobs", tier=DISK).value += jobs
        gauge(f"{TIERING}primary_{use}_usage_perc", tier=DISK).value += share

    def disk_reset(self) -> None:
        """Sets the transfers of the disk under way to none."""
        if not self._has_disk:
            return
        for kind, use in (("cascade", "read"), ("promotion", "write")):
            self._families.counter(f"{TIERING}active_{kind}_jobs", tier=DISK).value = 0
            self._families.counter(f"{TIERING}primary_{use}_usage_perc", tier=DISK).value = 0

    def disk_moved(self, is_read: bool, size_bytes: float, seconds: float) -> None:
        """Counts a transfer between host and disk."""
        direction = "read" if is_read else "write"
        self._add(f"{TIERING}{direction}_bytes", size_bytes, tier=DISK)
        self._add(f"{TIERING}{direction}_time", seconds, tier=DISK)

    def _add(self, name: str, amount: float, **labels: str) -> None:
        self._families.counter(f"{name}_total", **labels).value += amount
