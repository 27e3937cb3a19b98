"""The families of vLLM's NIXL connector (vllm-api.md 11.3): what caches of remote prefills take to come here.

They are there once a cache was fetched, or from the start where transfers are expected, as vLLM has them with
that connector only. No bytes move here, so their number is that of a usual model: 32 layers with 8 heads of
128 numbers of 16 bits for keys and as many for values, as Llama 3.1 8B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.metrics.families import Spec, families_of
from app.metrics.instruments import Family, Histogram, Instrument

LAYERS, HEADS, HEAD_SIZE, NUMBER_BYTES = 32, 8, 128, 2
PARTS = 2 * LAYERS
"""Keys and values of each layer: a block has a descriptor for each."""
TOKEN_BYTES = PARTS * HEADS * HEAD_SIZE * NUMBER_BYTES
POST_S = 1e-6
"""To post one descriptor."""

TIMES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)
BYTES = tuple(float(2**power) for power in range(11, 34, 2))
DESCRIPTORS = (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000)

TABLE = (
    Spec("vllm:nixl_xfer_time_seconds", "histogram", "Duration of a transfer of KV caches.", TIMES),
    Spec("vllm:nixl_post_time_seconds", "histogram", "Time to post a transfer.", (0.001, *TIMES)),
    Spec("vllm:nixl_bytes_transferred", "histogram", "Bytes per transfer of KV caches.", BYTES),
    Spec("vllm:nixl_num_descriptors", "histogram", "Descriptors per transfer of KV caches.", DESCRIPTORS),
    Spec("vllm:nixl_num_failed_transfers_total", "counter", "Transfers of KV caches that failed."),
    Spec("vllm:nixl_num_failed_notifications_total", "counter", "Notifications that could not be sent."),
    Spec("vllm:nixl_num_kv_expired_reqs_total", "counter", "Requests whose KV cache nobody fetched in time."),
    Spec("vllm:nixl_num_notifications_after_expiry_total", "counter", "Notifications that came too late."),
)


class Transfers:
    """Counts fetched caches."""

    def __init__(self, server: Mapping[str, str], block_size: int, now: Callable[[], float]) -> None:
        """`server` and `now` as for `EngineFamilies`; blocks of so many tokens."""
        self._block_size = block_size
        self._families = families_of(TABLE, server, 0, now)
        self._seconds, self._post, self._bytes, self._descriptors = (
            _only(self._families[spec.name]) for spec in TABLE[:4]
        )

    def fetched(self, tokens: int, seconds: float) -> None:
        """The cache of so many tokens came in so many seconds."""
        descriptors = PARTS * -(-tokens // self._block_size)
        self._seconds.observe(seconds)
        self._post.observe(POST_S * descriptors)
        self._bytes.observe(TOKEN_BYTES * tokens)
        self._descriptors.observe(descriptors)

    def render(self) -> str:
        """Their text."""
        return "".join(family.render() for family in self._families.values())


def _only(family: Family[Instrument]) -> Histogram:
    [(_, instrument)] = family.children()
    assert isinstance(instrument, Histogram)
    return instrument
