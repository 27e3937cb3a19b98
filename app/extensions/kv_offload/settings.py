"""Settings of the tiers that keep KV blocks outside of the devices."""

from typing import Annotated, Literal

from msgspec import Meta

from config.declaration import SIMULATED, About, Count, NotNegative, Section

Size = Annotated[float, Meta(ge=0), About(simulated=True, unit="GiB")]
Switch = Annotated[bool, SIMULATED]
Bandwidth = Annotated[float, Meta(gt=0), About(simulated=True, unit="GB/s")]


class KvOffloadSettings(Section, frozen=True, kw_only=True):
    """Tiers of KV blocks in host memory and on disk, as of vLLM's OffloadingConnector."""

    kv_offload_size: Size = 0.0
    """Size of the host memory tier, shared by all devices in a rank. If the value is 0, the
    offloading connector stores blocks without a limit and loads them immediately."""
    kv_offload_policy: Annotated[Literal["lru", "arc"], SIMULATED] = "lru"
    """Eviction policy for the host memory tier."""
    kv_offload_blocks_per_chunk: Annotated[Count, SIMULATED] = 1
    """Number of blocks that are stored and evicted together."""
    kv_offload_block_size: Annotated[NotNegative, About(simulated=True, unit="tokens")] = 0
    """Number of tokens per chunk. Overrides kv-offload-blocks-per-chunk. The value must be a
    multiple of block-size."""
    kv_offload_prompt_only: Switch = True
    """Store only prompt blocks. If this setting is false, reply blocks are also stored."""
    kv_offload_store_threshold: Annotated[NotNegative, SIMULATED] = 0
    """Number of requests that must contain a chunk before it is stored."""
    kv_offload_full_events: Switch = False
    """Publish complete events for stored blocks (self_describing_kv_events in vLLM). If this
    setting is false, an event contains only the hash of the last block in a chunk."""
    kv_offload_bytes_per_token: Annotated[NotNegative, About(simulated=True, unit="bytes")] = 0
    """Size of the keys and values for one token across all devices. If the value is 0, the size in
    the profile is used. Without a profile, the size for Llama 3.1 8B (131072) is used."""
    kv_offload_bandwidth: Bandwidth = 50.0
    """Bandwidth between devices and host memory, in each direction."""
    kv_offload_disk_size: Size = 0.0
    """Size of the simulated disk tier, which receives a copy of each stored chunk. Nothing is
    written to a real disk. If the value is 0, there is no disk tier."""
    kv_offload_disk_bandwidth: Bandwidth = 6.0
    """Bandwidth between host memory and disk, in each direction."""
    kv_offload_disk_events: Switch = False
    """Publish events for the disk tier (enable_kv_events in vLLM)."""
