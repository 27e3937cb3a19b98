"""Cost of a model's steps on a device as a sum over kernels (docs/fidelity.md, "Kernels")."""

from msgspec import Struct

from app.core.engine.profile import CostConstants
from app.extensions.lab.costs.devices import Device
from app.extensions.lab.costs.kernels import (
    BYTES,
    EIGHT_BITS,
    EXPERT_WIDTH,
    NS,
    US,
    EngineOverhead,
    ExpertLayer,
    Format,
    Kernels,
    Rates,
)
from app.extensions.lab.costs.shapes import ModelShape

TOKENS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, *range(128, 4096, 128), *range(4096, 16385, 256))
"""Tokens of a step for which the products are computed; between them the cost is linear."""
SEQUENCES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Sequences of a step for which the output layer is computed."""
ROUTER_US = 2.5
HOT_TOKENS = 8192
"""Tokens of a step at which a device gets hot."""
SMALL_TOKENS = 128
"""Most tokens of a step whose experts cost as in decodes."""
LARGE_TOKENS = 512
"""Tokens of a step from which on its experts cost as in prefills."""
ELEMENTWISE_BYTES = 22
"""Bytes that the operations element by element move in a layer, for each number of a token."""


class KernelSum(Struct, frozen=True, kw_only=True):
    """Costs of one model on `devices` devices of a kind."""

    shape: ModelShape
    weights: Format
    kernels: Kernels
    device: Device
    devices: int
    cache_bytes: float
    """Size of a number in the KV cache."""

    def constants(self, engine: EngineOverhead) -> CostConstants:
        """Returns the costs of steps, with those that the engine adds."""
        shape = self.shape
        device = self.device
        attention = self.kernels.attention
        layers = shape.num_hidden_layers
        cache_rate = device.bandwidth * attention.memory
        if self.cache_bytes < 2 and attention.fp8_rate:
            cache_rate = min(cache_rate, attention.fp8_rate)
        pair_operations = 4 * shape.num_attention_heads * shape.head_dim / self.devices
        casts = engine.casts if self.weights in EIGHT_BITS else 0
        # A hot device computes at a lower clock; its links to the others are as fast as before.
        link_share = layers * self._all_reduces(HOT_TOKENS) / self._layers(HOT_TOKENS)
        return CostConstants(
            base=engine.base + layers * (engine.layer_us + casts * engine.cast_us) * US,
            products=tuple((count, self._layers(count)) for count in TOKENS),
            outputs=tuple((count, self._output(count)) for count in SEQUENCES),
            per_sequence=engine.sequence,
            decodes=layers * attention.decode_us * US,
            per_decode=layers * attention.sequence_us * US,
            per_context=layers * shape.cached_numbers(self.devices) * self.cache_bytes / cache_rate,
            prefills=layers * attention.prefill_us * US,
            per_attention=layers * pair_operations / (device.flops * attention.compute),
            window=shape.window,
            window_share=shape.sliding_share,
            slowdown=engine.slowdown * (1 - link_share),
            tau=engine.tau,
        )

    def _layers(self, tokens: int) -> float:
        """Returns the seconds of all that depends on the tokens of a step alone."""
        shape = self.shape
        width = shape.hidden_size
        query_width = shape.num_attention_heads * shape.head_dim / self.devices
        layer = (
            self._product(tokens, query_width + shape.cached_numbers(self.devices), width)
            + self._product(tokens, width, query_width)
            + self._all_reduces(tokens)
            + ELEMENTWISE_BYTES * tokens * width / self.device.bandwidth
        )
        sparse_layers = shape.sparse_layers
        dense_layers = shape.num_hidden_layers - sparse_layers
        seconds = shape.num_hidden_layers * layer
        seconds += dense_layers * self._network(tokens, shape.intermediate_size / self.devices)
        if sparse_layers:
            seconds += sparse_layers * self._experts(tokens)
        shared_width = shape.shared_expert_intermediate_size
        if shared_width:
            seconds += sparse_layers * self._network(tokens, shared_width / self.devices)
        return seconds

    def _all_reduces(self, tokens: int) -> float:
        """Returns the seconds of a layer's two sums over the devices."""
        size = 2 * tokens * self.shape.hidden_size
        return 2 * self.kernels.all_reduce.seconds(size, self.devices, self.device.link)

    def _network(self, tokens: int, inner_width: float) -> float:
        """Returns the seconds of a layer's feed-forward network.

        A device has `inner_width` numbers of a token between its products.
        """
        width = self.shape.hidden_size
        into = self._product(tokens, (self.shape.matrices - 1) * inner_width, width)
        return into + self._product(tokens, width, inner_width)

    def _output(self, sequences: int) -> float:
        columns = self.shape.vocab_size / self.devices
        return self._product(sequences, columns, self.shape.hidden_size, "bf16")

    def _product(
        self, rows: int, columns: float, depth: float, weights: Format | None = None
    ) -> float:
        """Returns the seconds of a product, by default in the format of the model's weights.

        In a model in MXFP4 only the experts have this format.
        """
        if weights is None:
            weights = "bf16" if self.weights == "mxfp4" else self.weights
        return self.kernels.products[weights].seconds(
            rows, columns, depth, weight_bytes=BYTES[weights], rates=self._rates(weights)
        )

    def _experts(self, tokens: int) -> float:
        """Returns the seconds of a layer's router and experts."""
        shape = self.shape
        width = shape.hidden_size
        constants = self.kernels.experts[self.weights]
        layer = ExpertLayer(
            width=width,
            inner_width=shape.moe_intermediate_size / self.devices,
            experts=shape.num_experts,
            experts_per_row=shape.num_experts_per_tok,
        )
        seconds = constants.seconds(
            tokens,
            layer,
            weight_bytes=BYTES[self.weights],
            rates=self._rates(self.weights),
        )
        share = min(1.0, max(0.0, (tokens - SMALL_TOKENS) / (LARGE_TOKENS - SMALL_TOKENS)))
        seconds *= 1 + (constants.prefill - 1) * share
        seconds += constants.routed_ns * NS * tokens * width / EXPERT_WIDTH * share
        router_bytes = 2 * width * shape.num_experts + 2 * tokens * (width + shape.num_experts)
        return seconds + ROUTER_US * US + router_bytes / self.device.bandwidth

    def _rates(self, weights: Format) -> Rates:
        flops = self.device.flops_8bit or self.device.flops
        if weights in ("bf16", "mxfp4"):  # mxfp4 is unpacked before it is computed with
            flops = self.device.flops
        elif weights == "nvfp4":
            flops *= 2
        return Rates(self.device.bandwidth, flops, self.kernels.multiprocessors)
