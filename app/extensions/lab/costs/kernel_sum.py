"""Cost of a model's steps on a device: a sum over kernels (docs/how-timing-works.md, "Kernels")."""

from msgspec import Struct

from app.core.engine.profile import CostConstants
from app.extensions.lab.costs.adjustments import NO_ADJUSTMENT, Adjustment
from app.extensions.lab.costs.devices import Device
from app.extensions.lab.costs.engine_options import EngineOptions
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
SEND_US = 20
"""Latency of sending a batch from a stage of a pipeline to the next."""
EAGER_LAYER_US = 250
"""Time to launch the kernels of a layer without a CUDA graph."""
DELAY_TOKENS = 2048
"""Tokens of the prompt whose time is compared with its share of a step."""
ELEMENTWISE_BYTES = 22
"""Bytes that the operations element by element move in a layer, for each number of a token."""


class KernelSum(Struct, frozen=True, kw_only=True):
    """Costs of one model on `devices` devices of a kind."""

    shape: ModelShape
    weights: Format
    kernels: Kernels
    device: Device
    options: EngineOptions
    cache_bytes: float
    """Size of a number in the KV cache."""
    adjustment: Adjustment = NO_ADJUSTMENT
    """Correction for the version, the device and the format."""

    @property
    def devices(self) -> int:
        """Devices that share each product."""
        return self.options.tensor_parallel_size

    def constants(self, engine: EngineOverhead) -> CostConstants:
        """Returns the costs of steps, including the overhead of the engine.

        A step of the profile is a step of all ranks, or a round through all stages of a pipeline.
        """
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
        parts = self.options.parallel_batches
        context_bytes = layers * shape.cached_numbers(self.devices) * self.cache_bytes
        return CostConstants(
            base=engine.base + layers * (engine.layer_us + casts * engine.cast_us) * US,
            products=tuple((count, self._step(count)) for count in TOKENS),
            outputs=tuple((count, self._output(max(1, count / parts))) for count in SEQUENCES),
            per_sequence=engine.sequence / self.options.data_parallel_size,
            decodes=layers * attention.decode_us * US,
            per_decode=layers * attention.sequence_us * US / parts,
            per_context=context_bytes / cache_rate / parts,
            prefills=layers * attention.prefill_us * US,
            per_attention=layers * pair_operations / (device.flops * attention.compute) / parts,
            window=shape.window,
            window_share=shape.sliding_share,
            slowdown=engine.slowdown * (1 - link_share),
            tau=engine.tau,
        )

    def delay_per_token(self) -> float:
        """Returns the seconds that a token of a lone prompt takes beyond its share of a step.

        A prompt is not split between ranks or stages: it takes as long as on a single one, while
        the others can compute other prompts.
        """
        tokens = DELAY_TOKENS
        return max(0.0, self._layers(tokens) - self._step(tokens)) / tokens

    def _step(self, tokens: int) -> float:
        """Returns the seconds of all that depends on the tokens of a step alone."""
        options = self.options
        stage_tokens = max(1, tokens / options.pipeline_parallel_size)
        rank_tokens = max(1, stage_tokens / options.data_parallel_size)
        seconds = self._layers(rank_tokens, stage_tokens)
        sent_bytes = 2 * rank_tokens * self.shape.hidden_size
        hops = options.pipeline_parallel_size - 1
        seconds += hops * (SEND_US * US + sent_bytes / self.device.link)
        if self.options.enforce_eager:
            launches = self.shape.num_hidden_layers * EAGER_LAYER_US * US
            seconds = max(seconds, launches)
        return seconds

    def _layers(self, tokens: float, expert_tokens: float | None = None) -> float:
        """Returns the seconds of all layers, whose experts compute the tokens of all ranks."""
        shape = self.shape
        if expert_tokens is None:
            expert_tokens = tokens
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
            seconds += sparse_layers * self._experts(expert_tokens)
        shared_width = shape.shared_expert_intermediate_size
        if shared_width:
            seconds += sparse_layers * self._network(tokens, shared_width / self.devices)
        adjustment = self.adjustment
        share = large_share(expert_tokens)
        seconds *= adjustment.decode + (adjustment.prefill - adjustment.decode) * share
        return max(0.0, seconds + shape.num_hidden_layers * adjustment.launch_us * US)

    def _all_reduces(self, tokens: float) -> float:
        """Returns the seconds of a layer's two sums over the devices."""
        size = 2 * tokens * self.shape.hidden_size
        return 2 * self.kernels.all_reduce.seconds(size, self.devices, self.device.link)

    def _network(self, tokens: float, inner_width: float) -> float:
        """Returns the seconds of a layer's feed-forward network.

        A device has `inner_width` numbers of a token between its products.
        """
        width = self.shape.hidden_size
        into = self._product(tokens, (self.shape.matrices - 1) * inner_width, width)
        return into + self._product(tokens, width, inner_width)

    def _output(self, sequences: float) -> float:
        columns = self.shape.vocab_size / self.devices
        return self._product(sequences, columns, self.shape.hidden_size, "bf16")

    def _product(
        self, rows: float, columns: float, depth: float, weights: Format | None = None
    ) -> float:
        """Returns the seconds of a product, by default in the format of the model's weights.

        In a model in MXFP4 only the experts have this format.
        """
        if weights is None:
            weights = "bf16" if self.weights == "mxfp4" else self.weights
        return self.kernels.products[weights].seconds(
            rows, columns, depth, weight_bytes=BYTES[weights], rates=self._rates(weights)
        )

    def _experts(self, tokens: float) -> float:
        """Returns the seconds of a layer's router and experts."""
        shape = self.shape
        width = shape.hidden_size
        constants = self.kernels.experts[self.weights]
        layer = ExpertLayer(
            width=width,
            inner_width=shape.moe_intermediate_size / self.options.expert_slices,
            experts=shape.num_experts,
            experts_per_row=shape.num_experts_per_tok,
            ranks=self.options.expert_ranks,
        )
        seconds = constants.seconds(
            tokens,
            layer,
            weight_bytes=BYTES[self.weights],
            rates=self._rates(self.weights),
        )
        share = large_share(tokens)
        seconds *= 1 + (constants.prefill - 1) * share
        seconds += constants.routed_ns * NS * tokens * width / EXPERT_WIDTH * share
        if self.options.data_parallel_size > 1:
            # Rows are gathered from all ranks, and their sums are scattered to them.
            group = self.options.tensor_parallel_size * self.options.data_parallel_size
            size = 2 * tokens * width
            seconds += self.kernels.all_reduce.seconds(size, group, self.device.link)
        router_bytes = 2 * width * shape.num_experts + 2 * tokens * (width + shape.num_experts)
        return seconds + ROUTER_US * US + router_bytes / self.device.bandwidth

    def _rates(self, weights: Format) -> Rates:
        flops = self.device.flops_8bit or self.device.flops
        if weights in ("bf16", "mxfp4"):  # mxfp4 is unpacked before it is computed with
            flops = self.device.flops
        elif weights == "nvfp4":
            flops *= 2
        return Rates(self.device.bandwidth, flops, self.kernels.multiprocessors)


def large_share(tokens: float) -> float:
    """Returns how much a step is like a large one: 0 for decodes, 1 for prefills."""
    return min(1.0, max(0.0, (tokens - SMALL_TOKENS) / (LARGE_TOKENS - SMALL_TOKENS)))
