"""Cost of a model's steps on a device as a sum over kernels (docs/fidelity.md, "Kernels").

Products of matrices, experts, attention and all-reduce each have a fixed time, a share of memory
bandwidth and a share of arithmetic. They were fitted to public tables of single operators
(aiconfigurator, Apache-2.0); what the engine adds was fitted to measured servers. No constant
belongs to a model.

Times are in seconds unless named `us`; rates in bytes or operations per second.
"""

from collections.abc import Mapping
from math import ceil
from typing import Literal, TypeAlias

from msgspec import Struct

from config.profile import CostConstants
from config.shapes import Device, ModelShape

US, NS = 1e-6, 1e-9
TILE = 128
"""Rows and columns of a tile of a matrix product."""
Format: TypeAlias = Literal["bf16", "fp8", "fp8-block", "nvfp4", "mxfp4"]
BYTES: Mapping[Format, float] = {
    "bf16": 2,
    "fp8": 1,
    "fp8-block": 1,
    "nvfp4": 0.5625,
    "mxfp4": 0.53125,
}
"""Bytes of a weight, with its share of scales; fp8-block has a scale for each 128 x 128 weights."""
EIGHT_BITS = frozenset(("fp8", "fp8-block", "nvfp4"))
"""Formats whose activations are cast before each product."""
TOKENS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, *range(128, 4096, 128), *range(4096, 16385, 256))
"""Tokens of a step for which the products are computed; between them the cost is linear."""
SEQUENCES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Sequences of a step for which the output layer is computed."""
ROUTER_US = 2.5
HOT_TOKENS = 8192
"""Tokens of a step at which a device gets hot."""


class Rates(Struct, frozen=True):
    """Rates of a device for one format, from its data sheet."""

    bandwidth: float
    flops: float
    multiprocessors: int


class Product(Struct, frozen=True):
    """A product of matrices: t0 + the p-norm of reading and computing.

    `tile` is the weight of missing rows of a tile, `wave` of an unfinished wave of tiles.
    """

    t0_us: float
    memory: float
    compute: float
    p: float
    tile: float
    wave: float

    def seconds(self, rows: int, wide: float, deep: float, weight_bytes: float, at: Rates) -> float:
        """Seconds of (rows x deep) by (deep x wide)."""
        read = weight_bytes * wide * deep + 2 * rows * (wide + deep)
        waves = ceil(rows / TILE) * ceil(wide / TILE) / at.multiprocessors
        unfinished = 1 + self.wave * min(ceil(waves) / waves - 1, 3)
        computed = 2 * (rows + self.tile * (-rows % TILE)) * wide * deep * unfinished
        parts = read / (at.bandwidth * self.memory), computed / (at.flops * self.compute)
        return self.t0_us * US + norm(*parts, self.p)


class Experts(Struct, frozen=True):
    """The experts of a layer, as a product; two constants are of steps with more than 512 tokens."""

    t0_us: float
    memory: float
    compute: float
    p: float
    token_ns: float = 0.0
    """For each row of 4,096 numbers."""
    prefill: float = 1.0
    """Factor of such steps."""
    routed_ns: float = 0.0
    """For each row of 4,096 numbers in such steps:

    routing, gathering and summing, on every device.
    """

    def seconds(
        self,
        rows: int,
        width: float,
        inner: float,
        chosen: tuple[int, int],
        weight_bytes: float,
        at: Rates,
    ) -> float:
        """Seconds for rows that choose uniformly; `chosen` counts all experts, and the experts of a
        row.
        """
        experts, of_row = chosen
        needed, weights = experts * (1 - (1 - of_row / experts) ** rows), 3 * width * inner
        read = weight_bytes * needed * weights + 2 * rows * of_row * (2 * width + 3 * inner)
        computed = 2 * rows * of_row * weights
        parts = read / (at.bandwidth * self.memory), computed / (at.flops * self.compute)
        return self.t0_us * US + norm(*parts, self.p) + self.token_ns * NS * rows * width / 4096


class Attention(Struct, frozen=True):
    """Attention of a layer:

    fixed times of decodes, of each decode, and of prefills; shares of the rates.
    """

    decode_us: float
    memory: float
    fp8_rate: float
    """Most bytes per second of fp8 keys and values; 0 where fp8 is unknown."""
    sequence_us: float
    compute: float
    prefill_us: float


class AllReduce(Struct, frozen=True):
    """Sum over 2, 4 or 8 devices:

    fixed times in us and factors of the transfer, at once or in a ring.
    """

    once_us: tuple[float, float, float]
    ring_us: tuple[float, float, float]
    once: tuple[float, float, float] = (3.5, 6.0, 6.7)
    ring: tuple[float, float, float] = (1.61, 2.07, 2.05)
    """At 8 devices of Hopper the switch sums."""

    def seconds(self, size: float, devices: int, link: float) -> float:
        """Seconds for `size` bytes over `link` bytes per second; 0 for one device."""
        if devices == 1:
            return 0.0
        at = min(2, max(0, ceil(devices / 2).bit_length() - 1))
        return min(
            self.once_us[at] * US + size * self.once[at] / link,
            self.ring_us[at] * US + size * self.ring[at] / link,
        )


class EngineOverhead(Struct, frozen=True):
    """Times that vLLM adds to the kernels, by its generation."""

    base: float
    sequence: float
    front: float = 4.8e-3
    layer_us: float = 6.0
    casts: int = 4
    """Casts of activations to 8 bits in a layer."""
    cast_us: float = 2.3
    slowdown: float = 0.17
    tau: float = 0.038


class Kernels(Struct, frozen=True):
    """The constants of a device."""

    multiprocessors: int
    products: Mapping[Format, Product]
    experts: Mapping[Format, Experts]
    attention: Attention
    all_reduce: AllReduce
    engine: EngineOverhead | None = None
    """Overhead where it depends on the device: Blackwell has fused all-reduce and norms."""
    follows_cache_scheme: bool = False
    """Keys and values have the 8 bits of the checkpoint's scheme; before Blackwell they stay at 16.
    """


ASYNCHRONOUS = EngineOverhead(0.6e-3, 12e-6)
SYNCHRONOUS = EngineOverhead(1.2e-3, 40e-6)
"""vLLM up to 0.13, which schedules a step when the one before has ended."""
FUSED = EngineOverhead(0.16e-3, 28e-6, 50e-3, layer_us=5.2, casts=0, slowdown=0.09)
HOPPER = {"prefill": 1.6, "routed_ns": 120.0}
"""Prefill with experts at measured servers, beside tables of operators, which load all experts
alike.
"""
_RING = (7.0, 10.2, 16.3)

KERNELS: Mapping[str, Kernels] = {
    "h100": Kernels(
        132,
        {
            "bf16": Product(3.6, 0.85, 0.81, 3.9, 0.18, 0.16),
            "fp8": Product(5.3, 0.836, 0.60, 14, 0.49, 0.60),
            "fp8-block": Product(14.5, 0.77, 0.52, 8, 1.0, 0.70),
        },
        {
            "bf16": Experts(31, 0.80, 0.55, 1.8, 9, **HOPPER),
            "mxfp4": Experts(33, 0.99, 0.46, 1.03, **HOPPER),
            "fp8-block": Experts(80, 0.99, 0.25, 1.25, **HOPPER),
        },
        Attention(10, 0.90, 2.6e12, 0.045, 0.66, 15),
        AllReduce((4.3, 4.7, 5.4), _RING),
    ),
    "h200": Kernels(
        132,
        {
            "bf16": Product(4.0, 0.835, 0.79, 3.9, 0.12, 0.12),
            "fp8": Product(5.3, 0.80, 0.64, 8, 0.34, 0.70),
            "fp8-block": Product(14.2, 0.68, 0.515, 8, 1.0, 0.66),
        },
        {
            "bf16": Experts(34, 0.80, 0.59, 1.6, 9, **HOPPER),
            "mxfp4": Experts(33, 0.69, 0.46, 1.03, **HOPPER),
            "fp8-block": Experts(80, 0.99, 0.25, 1.25, **HOPPER),
        },
        Attention(10, 0.87, 2.7e12, 0.045, 0.66, 15),
        AllReduce((4.4, 4.7, 5.2), _RING),
    ),
    "b200": Kernels(
        148,
        {
            "bf16": Product(3.2, 0.83, 0.756, 3.3, 0.90, 0.30),
            "fp8": Product(6.0, 0.70, 0.45, 8, 0.30, 0.40),
            "fp8-block": Product(10.4, 0.66, 0.37, 8, 0.64, 0.84),
            "nvfp4": Product(6.1, 0.61, 0.55, 2.3, 1.0, 0.69),
        },
        {
            "mxfp4": Experts(23.8, 1.0, 0.59, 1.06, prefill=0.3, routed_ns=60),
            "fp8-block": Experts(56, 0.94, 0.35, 1.9, prefill=1.2, routed_ns=60),
        },
        Attention(9, 0.90, 6.9e12, 0.018, 0.40, 15),
        AllReduce((7.0, 7.3, 8.0), (11.2, 16.3, 26.1), ring=(1.8, 2.3, 2.5)),
        FUSED,
        follows_cache_scheme=True,
    ),
    "a100": Kernels(
        108,
        {"bf16": Product(5.4, 0.794, 0.83, 2.1, 0.36, 0.13)},
        {},
        Attention(18, 0.72, 0, 0.06, 0.52, 20),
        AllReduce((5.1, 5.6, 6.6), (10.5, 15.3, 24.5), ring=(1.61, 2.07, 2.36)),
    ),
    "l40s": Kernels(
        142,
        {
            "bf16": Product(0, 0.789, 0.645, 2.5, 0.46, 0.01),
            "fp8": Product(2.2, 0.884, 0.613, 1.0, 0.37, 0),
        },
        {},
        Attention(9.6, 0.91, 0, 0.021, 0.42, 15),
        # Over PCIe, where neither way is faster than the other.
        AllReduce((5.2, 12.6, 23), (5.2, 12.6, 23), (2.0, 12.5, 27.3), (1.67, 12.5, 27.3)),
    ),
}


class KernelSum(Struct, frozen=True):
    """Costs of one model on `devices` of a kind."""

    shape: ModelShape
    weights: Format
    kernels: Kernels
    device: Device
    devices: int
    cache_bytes: float
    """Size of a number in the KV cache."""

    def constants(self, engine: EngineOverhead) -> CostConstants:
        shape, device, attention = self.shape, self.device, self.kernels.attention
        layers = shape.num_hidden_layers
        rate = device.bandwidth * attention.memory
        if self.cache_bytes < 2 and attention.fp8_rate:
            rate = min(rate, attention.fp8_rate)
        pair_ops = 4 * shape.num_attention_heads * shape.head_dim / self.devices
        casts = engine.casts if self.weights in EIGHT_BITS else 0
        # A hot device computes at a lower clock; its links to the others are as fast as before.
        summed = layers * self._all_reduces(HOT_TOKENS) / self._layers(HOT_TOKENS)
        return CostConstants(
            base=engine.base + layers * (engine.layer_us + casts * engine.cast_us) * US,
            products=tuple((count, self._layers(count)) for count in TOKENS),
            outputs=tuple((count, self._output(count)) for count in SEQUENCES),
            per_sequence=engine.sequence,
            decodes=layers * attention.decode_us * US,
            per_decode=layers * attention.sequence_us * US,
            per_context=layers * shape.cached_numbers(self.devices) * self.cache_bytes / rate,
            prefills=layers * attention.prefill_us * US,
            per_attention=layers * pair_ops / (device.flops * attention.compute),
            window=shape.window,
            window_share=shape.sliding_share,
            slowdown=engine.slowdown * (1 - summed),
            tau=engine.tau,
        )

    def _layers(self, tokens: int) -> float:
        """Seconds of all that depends on the tokens of a step alone."""
        shape, devices, width = self.shape, self.devices, self.shape.hidden_size
        projected = shape.num_attention_heads * shape.head_dim / devices
        layer = (
            self._product(tokens, projected + shape.cached_numbers(devices), width)
            + self._product(tokens, width, projected)
            + self._all_reduces(tokens)
            + 22 * tokens * width / self.device.bandwidth  # element by element
        )
        layers, sparse = shape.num_hidden_layers, shape.sparse_layers
        seconds = layers * layer
        seconds += (layers - sparse) * self._network(tokens, shape.intermediate_size / devices)
        if sparse:
            seconds += sparse * self._experts(tokens)
        if shared := shape.shared_expert_intermediate_size:
            seconds += sparse * self._network(tokens, shared / devices)
        return seconds

    def _all_reduces(self, tokens: int) -> float:
        """Seconds of a layer's two sums over the devices."""
        size = 2 * tokens * self.shape.hidden_size
        return 2 * self.kernels.all_reduce.seconds(size, self.devices, self.device.link)

    def _network(self, tokens: int, inner: float) -> float:
        """Seconds of a layer's feed-forward network with `inner` numbers on a device."""
        width = self.shape.hidden_size
        into = self._product(tokens, (self.shape.matrices - 1) * inner, width)
        return into + self._product(tokens, width, inner)

    def _output(self, sequences: int) -> float:
        shape = self.shape
        return self._product(sequences, shape.vocab_size / self.devices, shape.hidden_size, "bf16")

    def _product(self, rows: int, wide: float, deep: float, kind: Format | None = None) -> float:
        """Seconds in the format of the weights, unless `kind` is given; MXFP4 is for experts only."""
        kind = kind or ("bf16" if self.weights == "mxfp4" else self.weights)
        return self.kernels.products[kind].seconds(rows, wide, deep, BYTES[kind], self._at(kind))

    def _experts(self, tokens: int) -> float:
        """Seconds of a layer's router and experts."""
        shape, its = self.shape, self.kernels.experts[self.weights]
        width, inner = shape.hidden_size, shape.moe_intermediate_size / self.devices
        chosen = shape.num_experts, shape.num_experts_per_tok
        seconds = its.seconds(
            tokens, width, inner, chosen, BYTES[self.weights], self._at(self.weights)
        )
        share = min(1.0, max(0.0, (tokens - 128) / 384))
        seconds *= 1 + (its.prefill - 1) * share
        seconds += its.routed_ns * NS * tokens * width / 4096 * share
        routed = 2 * width * shape.num_experts + 2 * tokens * (width + shape.num_experts)
        return seconds + ROUTER_US * US + routed / self.device.bandwidth

    def _at(self, kind: Format) -> Rates:
        device, flops = self.device, self.device.flops_8bit or self.device.flops
        if kind in ("bf16", "mxfp4"):  # mxfp4 is unpacked before it is computed with
            flops = device.flops
        return Rates(
            device.bandwidth, flops * (2 if kind == "nvfp4" else 1), self.kernels.multiprocessors
        )


def norm(one: float, other: float, p: float) -> float:
    most = max(one, other)
    return float(most * ((one / most) ** p + (other / most) ** p) ** (1 / p)) if most else 0.0
