"""Costs of single kernels on a device (docs/how-timing-works.md, "Kernels").

Products of matrices, experts, attention and all-reduce each have a fixed time, a share of memory
bandwidth and a share of arithmetic. Times are in seconds unless named `us`; rates in bytes or
operations per second.
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from math import ceil, sqrt
from statistics import NormalDist
from typing import Literal, TypeAlias

from msgspec import Struct

from app.extensions.costs.layer_shapes import LatentShape

US = 1e-6
NS = 1e-9
TILE = 128
"""Rows and columns of a tile of a matrix product."""
MAX_UNFINISHED_WAVE = 3
"""Greatest additional share of work in an unfinished wave of tiles."""
LATENT_P = 8
"""Exponent of the norm of reading and computing in latent attention: nearly the greater one."""
POPULARITY_EXPONENT = 0.65
"""Routers prefer some experts: the popularity of an expert falls with its rank to this power.

With it, as many experts are in use as the public tables with drawn loads show beside tables with
balanced loads (research/README.md).
"""
EXPERT_WIDTH = 4096
"""Width, in numbers, of the rows that the constants of experts describe."""

Format: TypeAlias = Literal["bf16", "fp8", "fp8-block", "nvfp4", "mxfp4", "int4", "int8"]
BYTES: Mapping[Format, float] = {
    "bf16": 2,
    "fp8": 1,
    "fp8-block": 1,
    "nvfp4": 0.5625,
    "mxfp4": 0.53125,
    "int4": 0.5625,
    "int8": 1.02,
}
"""Bytes of a weight, with its share of scales; fp8-block has a scale for each 128 x 128 weights,
int4 one of 16 bits for each 32, and int8 one with a zero for each 128.
"""
EIGHT_BITS: frozenset[Format] = frozenset(("fp8", "fp8-block", "nvfp4"))
"""Formats whose activations are cast before each product, on devices with such arithmetic."""
UNPACKED: frozenset[Format] = frozenset(("bf16", "mxfp4", "int4", "int8"))
"""Formats that every device computes with in 16 bits."""


class Rates(Struct, frozen=True):
    """Rates of a device for one format, from its data sheet."""

    bandwidth: float
    flops: float
    multiprocessors: int


class Product(Struct, frozen=True):
    """A product of matrices: t0 + the p-norm of reading and computing."""

    t0_us: float
    memory: float
    """Share of the bandwidth."""
    compute: float
    """Share of the arithmetic."""
    p: float
    tile: float
    """Weight of the missing rows of a tile."""
    wave: float
    """Weight of an unfinished wave of tiles."""

    def seconds(
        self, rows: float, columns: float, depth: float, *, weight_bytes: float, rates: Rates
    ) -> float:
        """Returns the seconds of (rows x depth) by (depth x columns)."""
        read_bytes = weight_bytes * columns * depth + 2 * rows * (columns + depth)
        waves = ceil(rows / TILE) * ceil(columns / TILE) / rates.multiprocessors
        unfinished = 1 + self.wave * min(ceil(waves) / waves - 1, MAX_UNFINISHED_WAVE)
        operations = 2 * (rows + self.tile * (-rows % TILE)) * columns * depth * unfinished
        reading = read_bytes / (rates.bandwidth * self.memory)
        computing = operations / (rates.flops * self.compute)
        return self.t0_us * US + norm(reading, computing, self.p)


class ExpertLayer(Struct, frozen=True, kw_only=True):
    """Sizes of the experts of a layer."""

    width: int
    """Numbers of a row."""
    inner_width: float
    """Numbers of a row within an expert, on one device."""
    experts: int
    experts_per_row: int
    ranks: int = 1
    """Devices that hold different experts; the one with the most work decides."""
    matrices: int = 3
    """Matrices of an expert."""
    independent_rows: float = 1.0
    """Share of the rows that choose their experts independently; the others repeat choices."""

    def busiest_experts(self, used: float) -> float:
        """Returns how many of the `used` experts the busiest device has."""
        mean = used / self.ranks
        # Each expert is used or not: where nearly all are used, the devices hardly differ.
        unused_share = 1 - used / self.experts
        expected_max = mean + deviations_of_maximum(self.ranks) * sqrt(mean * unused_share)
        return min(expected_max, used, self.experts / self.ranks)

    def busiest_rows(self, rows: float) -> float:
        """Returns how many of the `rows`, counted once for each expert, the busiest device has."""
        mean = rows / self.ranks
        expected_max = mean + deviations_of_maximum(self.ranks) * sqrt(mean * (1 - 1 / self.ranks))
        return min(expected_max, rows)


class Experts(Struct, frozen=True):
    """The experts of a layer, as a product; two constants are for large steps (prefills)."""

    t0_us: float
    memory: float
    """Share of the bandwidth."""
    compute: float
    """Share of the arithmetic."""
    p: float
    token_ns: float = 0.0
    """For each row of `EXPERT_WIDTH` numbers."""
    prefill: float = 1.0
    """Factor of large steps."""
    routed_ns: float = 0.0
    """For each expert of a row in large steps, whatever its width: routing and gathering.

    In proportion to the width, the constant of each model was another one.
    """

    def seconds(
        self, rows: float, layer: ExpertLayer, *, weight_bytes: float, rates: Rates
    ) -> float:
        """Returns the seconds for rows; only the independent rows choose experts."""
        width = layer.width
        choices = max(1.0, rows * layer.independent_rows)
        used_experts = layer.busiest_experts(
            expected_experts(choices, layer.experts, layer.experts_per_row)
        )
        weights = layer.matrices * width * layer.inner_width
        chosen = layer.busiest_rows(rows * layer.experts_per_row)
        activation_bytes = 2 * chosen * (2 * width + layer.matrices * layer.inner_width)
        read_bytes = weight_bytes * used_experts * weights + activation_bytes
        operations = 2 * chosen * weights
        reading = read_bytes / (rates.bandwidth * self.memory)
        computing = operations / (rates.flops * self.compute)
        seconds = self.t0_us * US + norm(reading, computing, self.p)
        return seconds + self.token_ns * NS * rows * width / EXPERT_WIDTH


class Attention(Struct, frozen=True):
    """Attention of a layer."""

    decode_us: float
    """Fixed time of decodes."""
    memory: float
    """Share of the bandwidth."""
    fp8_rate: float
    """Most bytes per second of fp8 keys and values; 0 where fp8 is unknown."""
    sequence_us: float
    """Time of each decode."""
    compute: float
    """Share of the arithmetic."""
    prefill_us: float
    """Fixed time of prefills."""


class LatentAttention(Struct, frozen=True, kw_only=True):
    """Attention of a layer whose heads share a compressed vector, without its products."""

    decode_us: float
    """Fixed time of decodes."""
    memory: float
    """Share of the bandwidth, with 16-bit numbers in the cache."""
    fp8_memory: float
    """The same with fp8."""
    decode_compute: float
    """Share of the arithmetic in decodes, where each head reads the whole vector."""
    sequence_us: float
    """Time of each decode."""
    compute: float
    """Share of the arithmetic in prefills."""
    prefill_us: float
    """Fixed time of prefills."""
    index_memory: float = 1.0
    """Share of the bandwidth of choosing the tokens that a query sees."""
    least_heads: int = 1
    """Heads that a device computes for chosen tokens of a prompt, even if it has fewer."""

    def chosen_seconds(self, latent: LatentShape, heads: float, rates: Rates) -> float:
        """Returns the seconds for a token of a prompt that sees chosen tokens.

        The kernel computes with all places of the list of chosen tokens, also with empty ones.
        """
        heads = max(heads, self.least_heads)
        operations = 2 * heads * (latent.cached + latent.rank) * latent.top_tokens
        return operations / (rates.flops * self.compute)

    def token_seconds(
        self, latent: LatentShape, *, heads: float, number_bytes: float, rates: Rates
    ) -> float:
        """Returns the seconds for each token in the context of a decode."""
        share = self.memory
        if number_bytes < 2:
            share = self.fp8_memory
        read_bytes = latent.token_bytes(number_bytes) - latent.stored_index_bytes
        operations = 2 * heads * (latent.cached + latent.rank)
        return norm(
            read_bytes / (rates.bandwidth * share),
            operations / (rates.flops * self.decode_compute),
            LATENT_P,
        )

    def index_seconds(self, latent: LatentShape, rates: Rates) -> float:
        """Returns the seconds for each token that is ranked for a query."""
        return latent.index_bytes / (rates.bandwidth * self.index_memory)


class Recurrence(Struct, frozen=True, kw_only=True):
    """A layer with a state of fixed size, without its products."""

    decode_us: float
    """Fixed time of decodes."""
    memory: float
    """Share of the bandwidth of reading and writing the states of decodes."""
    compute: float
    """Share of the arithmetic of prompts."""
    prefill_us: float
    """Fixed time of prefills."""


class AllReduce(Struct, frozen=True):
    """Sum over 2, 4 or 8 devices, at once or in a ring."""

    once_us: tuple[float, float, float]
    """Fixed times."""
    ring_us: tuple[float, float, float]
    once: tuple[float, float, float] = (3.5, 6.0, 6.7)
    """Factors of the transfer."""
    ring: tuple[float, float, float] = (1.61, 2.07, 2.05)
    """At 8 devices of Hopper the switch sums."""

    def seconds(self, size: float, devices: int, link: float) -> float:
        """Returns the seconds for `size` bytes over `link` bytes per second; 0 for one device."""
        if devices == 1:
            return 0.0
        index = min(2, max(0, ceil(devices / 2).bit_length() - 1))
        return min(
            self.once_us[index] * US + size * self.once[index] / link,
            self.ring_us[index] * US + size * self.ring[index] / link,
        )


class EngineOverhead(Struct, frozen=True, kw_only=True):
    """Times that vLLM adds to the kernels, by its generation."""

    base: float
    sequence: float
    front: float = 4.8e-3
    layer_us: float = 6.0
    casts: int = 4
    """Casts of activations to 8 bits in a layer."""
    expert_casts: int = 4
    """The same in a layer with experts, whose kernels cast what they read where all are fused."""
    cast_us: float = 2.3
    slowdown: float = 0.17
    tau: float = 0.038


class Kernels(Struct, frozen=True, kw_only=True):
    """The constants of a device."""

    multiprocessors: int
    products: Mapping[Format, Product]
    experts: Mapping[Format, Experts]
    attention: Attention
    all_reduce: AllReduce
    latent: LatentAttention | None = None
    sparse_latent: LatentAttention | None = None
    """Latent attention that sees chosen tokens alone."""
    recurrence: Recurrence | None = None
    triton_experts: Mapping[Format, Experts] = {}
    """Experts with `--moe-backend triton`, where that is not vLLM's choice for the device."""
    scaled: str = ""
    """The device whose constants are taken, where this device has no table; empty for its own."""
    unpacked: frozenset[Format] = UNPACKED
    """Formats whose weights become numbers of 16 bits before they are multiplied."""
    derived: frozenset[Format] = frozenset()
    """Formats of products without a table of this device; others gave their constants."""
    derived_experts: frozenset[Format] = frozenset()
    """The same of experts."""
    engine: EngineOverhead | None = None
    """Overhead where it depends on the device: Blackwell has fused all-reduce and norms."""


@lru_cache(maxsize=8192)
def expected_experts(rows: float, experts: int, experts_per_row: int) -> float:
    """Returns how many experts some row chooses, on average, with rows that choose independently.

    The expert of rank i is chosen in proportion to i ** -`POPULARITY_EXPONENT`.
    """
    shares = expert_shares(experts, experts_per_row)
    return float(sum(1 - (1 - share) ** rows for share in shares))


@cache
def expert_shares(experts: int, experts_per_row: int) -> tuple[float, ...]:
    """Returns the share of the rows that choose each expert, the most popular one first.

    The shares add up to `experts_per_row`; none exceeds 1.
    """
    weights: list[float] = [rank**-POPULARITY_EXPONENT for rank in range(1, experts + 1)]
    remaining_weight = sum(weights)
    remaining_choices = float(experts_per_row)
    shares = []
    for weight in weights:
        share = min(1.0, remaining_choices * weight / remaining_weight)
        shares.append(share)
        remaining_choices -= share
        remaining_weight -= weight
    return tuple(shares)


@cache
def deviations_of_maximum(count: int) -> float:
    """Returns the expected maximum of `count` normal values, in standard deviations (Blom)."""
    if count == 1:
        return 0.0
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def norm(reading: float, computing: float, p: float) -> float:
    """Returns the p-norm of two times; 0 if both are 0."""
    maximum = max(reading, computing)
    if not maximum:
        return 0.0
    return float(maximum * ((reading / maximum) ** p + (computing / maximum) ** p) ** (1 / p))
