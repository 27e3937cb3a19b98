"""Cost of a model's steps on a device: a sum over kernels (docs/how-timing-works.md, "Kernels").

research/README.md has the formulas.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from app.core.engine.profile import CostConstants
from app.extensions.costs.adjustment import Adjustment
from app.extensions.costs.adjustments import NO_ADJUSTMENT
from app.extensions.costs.engine_options import TRITON, EngineOptions
from app.extensions.costs.kernels import (
    BYTES,
    EIGHT_BITS,
    NS,
    UNPACKED,
    US,
    EngineOverhead,
    ExpertLayer,
    Experts,
    Format,
    Kernels,
    Rates,
)
from app.extensions.costs.layer_shapes import LatentShape
from app.extensions.costs.shapes import CostShape
from vllm_facts.accelerator import Device

ProductSeconds: TypeAlias = Callable[[float, float, float], float]
"""Rows, columns and depth of a product -> seconds."""

TOKENS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, *range(128, 4096, 128), *range(4096, 16385, 256))
"""Tokens of a step for which the products are computed; between them the cost is linear."""
SEQUENCES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Sequences of a step for which the output layer is computed."""
ROUTER_US = 2.5
HOT_TOKENS = 8192
"""Tokens of a step at which a device gets hot."""
SMALL_TOKENS = 512
"""Most tokens of a step that costs like decodes, whose tokens choose different experts: vLLM's
largest CUDA graph by default.
"""
LARGE_TOKENS = 768
"""Tokens of a step from which on it costs as prefill: tokens of a prompt choose alike."""
SMALL_DRAFTED_TOKENS = 128
"""The same as `SMALL_TOKENS` with drafts, which choose like the tokens before them."""
LARGE_DRAFTED_TOKENS = 512
"""The same as `LARGE_TOKENS` with drafts. Of four rules, this one had the smallest error on the
runs with drafts that are not held out (`benchmarks.drafts`).
"""
SEND_US = 20
"""Latency of sending a batch from a stage of a pipeline to the next."""
DENSE_LAUNCH_US = 450
"""Time to launch the kernels of a layer in a step of prompts. It is at most 0.5 ms, the time of a
layer for 513 tokens, without a graph, on the recorded server (Qwen3-14B on H100).
"""
EXPERT_LAUNCH_US = 800
"""The same for a layer with experts, which has about twice the kernels; H200 showed 840.

In eager mode, the host launches as many kernels in each step. Steps of one sequence showed 910 us
in layers of gpt-oss-120b on GB10, and 390 us in layers of Qwen3-14B-AWQ on A100
(`benchmarks/people_runs.csv`).
"""
DELAY_TOKENS = 2048
"""Tokens of the prompt whose time is compared with its share of a step."""
ELEMENTWISE_BYTES = 22
"""Bytes that the operations element by element move in a layer, for each number of a token."""


class KernelSum(Struct, frozen=True, kw_only=True):
    """Costs of one model on `devices` devices of a kind."""

    shape: CostShape
    weights: Format
    """Format of the experts, or of all products in a dense model."""
    attention_weights: Format
    network_weights: Format
    """Format of dense networks and shared experts."""
    kernels: Kernels
    device: Device
    options: EngineOptions
    cache_bytes: float
    """Size of a number in the KV cache."""
    adjustment: Adjustment = NO_ADJUSTMENT
    """Correction for the version, the device and the format."""
    independent_rows: float = 1.0
    """Share of the tokens of a step that choose their experts independently."""

    @property
    def devices(self) -> int:
        """Devices that share each product."""
        return self.options.tensor_parallel_size

    @property
    def has_default_experts(self) -> bool:
        """True where the options have the kernels of experts that vLLM chooses for the device."""
        uses_triton = self.options.moe_backend == TRITON
        return not uses_triton or self.weights not in self.kernels.triton_experts

    def constants(self, engine: EngineOverhead) -> CostConstants:
        """Returns the costs of steps, including the overhead of the engine.

        A step of the profile is a step of all ranks, or a round through all stages of a pipeline.
        """
        shape = self.shape
        layers = shape.layers
        casts = 0
        if self.weights in EIGHT_BITS - self.kernels.unpacked:
            casts = engine.expert_casts if shape.sparse_layers else engine.casts
        # A hot device computes at a lower clock; its links to the others are as fast as before.
        link_share = layers * self._all_reduces(HOT_TOKENS) / self._layers(HOT_TOKENS)
        parts = self.options.parallel_batches
        constants = CostConstants(
            base=engine.base + layers * (engine.layer_us + casts * engine.cast_us) * US,
            products=tuple((count, self._step(count)) for count in TOKENS),
            outputs=tuple((count, self._output(max(1, count / parts))) for count in SEQUENCES),
            per_sequence=engine.sequence / self.options.data_parallel_size,
            slowdown=engine.slowdown * (1 - link_share),
            tau=engine.tau,
        )
        attention = self._attention(parts)
        if shape.latent is not None:
            attention = self._latent_attention(shape.latent, parts)
        constants = replace(constants, **attention)
        return self._with_states(constants, parts)

    def _attention(self, parts: int) -> dict[str, float]:
        """Returns the costs of attention with keys and values of each head."""
        shape = self.shape
        device = self.device
        attention = self.kernels.attention
        layers = shape.attention_layers
        cache_rate = device.bandwidth * attention.memory
        if self.cache_bytes < 2 and attention.fp8_rate:
            cache_rate = min(cache_rate, attention.fp8_rate)
        pair_operations = shape.pair_operations / self.devices
        context_bytes = layers * shape.cached_numbers(self.devices) * self.cache_bytes
        return {
            "decodes": layers * attention.decode_us * US,
            "per_decode": layers * attention.sequence_us * US / parts,
            "per_context": context_bytes / cache_rate / parts,
            "prefills": layers * attention.prefill_us * US,
            "per_attention": layers * pair_operations / (device.flops * attention.compute) / parts,
            "window": shape.window,
            "window_share": shape.sliding_share,
        }

    def _latent_attention(self, latent: LatentShape, parts: int) -> dict[str, float]:
        """Returns the costs of latent attention.

        Where a query sees chosen tokens alone, these are the window of the profile, and ranking all
        tokens is the share without a window.
        """
        shape = self.shape
        kernel = self.kernels.sparse_latent if latent.top_tokens else self.kernels.latent
        assert kernel is not None  # without these constants there is no sum over kernels
        layers = shape.attention_layers
        rates = self._rates("bf16")
        seen = kernel.token_seconds(
            latent,
            heads=shape.num_attention_heads / self.devices,
            number_bytes=self.cache_bytes,
            rates=rates,
        )
        ranked = 0.0
        pair_operations = shape.pair_operations / self.devices
        if latent.top_tokens:
            ranked = kernel.index_seconds(latent, rates)
            # Of a prompt all tokens are ranked; `_attention_products` has the rest.
            pair_operations = 2 * latent.index_heads * latent.index_width
        return {
            "decodes": layers * kernel.decode_us * US,
            "per_decode": layers * kernel.sequence_us * US / parts,
            "per_context": layers * (seen + ranked) / parts,
            "prefills": layers * kernel.prefill_us * US,
            "per_attention": layers * pair_operations / (rates.flops * kernel.compute) / parts,
            "window": latent.top_tokens,
            "window_share": seen / (seen + ranked) if latent.top_tokens else 0.0,
        }

    def _with_states(self, constants: CostConstants, parts: int) -> CostConstants:
        """Adds the costs of layers with a state."""
        recurrent = self.shape.recurrent
        kernel = self.kernels.recurrence
        if recurrent is None or kernel is None:
            return constants
        layers = self.shape.recurrent_layers
        moved_bytes = 2 * recurrent.sequence_bytes / self.devices
        moving = moved_bytes / (self.device.bandwidth * kernel.memory)
        return replace(
            constants,
            decodes=constants.decodes + layers * kernel.decode_us * US,
            per_decode=constants.per_decode + layers * moving / parts,
            prefills=constants.prefills + layers * kernel.prefill_us * US,
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
            launch_us = prompt_launch_us(has_experts=self.shape.sparse_layers > 0)
            seconds = max(seconds, self.shape.layers * launch_us * US)
        return seconds

    def _layers(self, tokens: float, expert_tokens: float | None = None) -> float:
        """Returns the seconds of all layers, whose experts compute the tokens of all ranks."""
        shape = self.shape
        if expert_tokens is None:
            expert_tokens = tokens
        layer = (
            self._mixing(tokens)
            + self._all_reduces(tokens)
            + ELEMENTWISE_BYTES * tokens * shape.hidden_size / self.device.bandwidth
        )
        sparse_layers = shape.sparse_layers
        seconds = shape.layers * layer
        seconds += shape.dense_layers * self._network(
            tokens, shape.intermediate_size / self.devices
        )
        if sparse_layers:
            seconds += sparse_layers * self._experts(expert_tokens)
        shared_width = shape.shared_expert_intermediate_size
        if shared_width:
            seconds += sparse_layers * self._network(tokens, shared_width / self.devices)
        adjustment = self.adjustment
        share = self._large_share(expert_tokens)
        seconds *= adjustment.decode + (adjustment.prefill - adjustment.decode) * share
        seconds += shape.layers * adjustment.launch_us * US
        if tokens > self.options.max_cudagraph_capture_size:
            launch_us = adjustment.prompt_launch_us
            if launch_us is None:
                launch_us = prompt_launch_us(has_experts=sparse_layers > 0)
            seconds = max(seconds, shape.layers * launch_us * US)
        if adjustment.step_launch_us is not None:
            seconds = max(seconds, shape.layers * adjustment.step_launch_us * US)
        return max(0.0, seconds)

    def _mixing(self, tokens: float) -> float:
        """Returns the seconds of the products of attention or state, of an average layer."""
        shape = self.shape
        recurrent = shape.recurrent
        if recurrent is None:
            return self._attention_products(tokens)
        width = shape.hidden_size
        weights = self.attention_weights
        state = self._product(tokens, recurrent.columns / self.devices, width, weights)
        state += self._product(tokens, width, recurrent.inner_width / self.devices, weights)
        kernel = self.kernels.recurrence
        if kernel is not None:
            operations = tokens * recurrent.token_operations / self.devices
            scan = operations / (self.device.flops * kernel.compute)
            state += scan * self._large_share(tokens)
        seconds = shape.recurrent_layers * state
        seconds += shape.attention_layers * self._attention_products(tokens)
        return seconds / shape.layers

    def _attention_products(self, tokens: float) -> float:
        shape = self.shape
        width = shape.hidden_size
        weights = self.attention_weights
        if shape.latent is not None:
            heads = shape.num_attention_heads / self.devices
            seconds = latent_products(
                partial(self._product, weights=weights),
                partial(self._product, weights="bf16"),
                latent=shape.latent,
                rows=tokens,
                width=width,
                heads=heads,
            )
            kernel = self.kernels.sparse_latent
            if shape.latent.top_tokens and kernel is not None:
                chosen = kernel.chosen_seconds(shape.latent, heads, self._rates("bf16"))
                seconds += tokens * chosen * self._large_share(tokens)
            return seconds
        query_width = shape.num_attention_heads * shape.head_dim / self.devices
        columns = query_width + shape.cached_numbers(self.devices)
        if shape.attn_output_gate:
            columns += query_width
        into = self._product(tokens, columns, width, weights)
        return into + self._product(tokens, width, query_width, weights)

    def _all_reduces(self, tokens: float) -> float:
        """Returns the seconds of a layer's two sums over the devices."""
        size = 2 * tokens * self.shape.hidden_size
        return 2 * self.kernels.all_reduce.seconds(size, self.devices, self.device.link)

    def _network(self, tokens: float, inner_width: float) -> float:
        """Returns the seconds of a layer's feed-forward network.

        A device has `inner_width` numbers of a token between its products.
        """
        width = self.shape.hidden_size
        weights = self.network_weights
        columns = (self.shape.matrices - 1) * inner_width
        into = self._product(tokens, columns, width, weights)
        return into + self._product(tokens, width, inner_width, weights)

    def _output(self, sequences: float) -> float:
        columns = self.shape.vocab_size / self.devices
        return self._product(sequences, columns, self.shape.hidden_size, "bf16")

    def _product(self, rows: float, columns: float, depth: float, weights: Format) -> float:
        """Returns the seconds of a product with weights of a format."""
        return self.kernels.products[weights].seconds(
            rows, columns, depth, weight_bytes=BYTES[weights], rates=self._rates(weights)
        )

    def _experts(self, tokens: float) -> float:
        """Returns the seconds of a layer's router and experts."""
        shape = self.shape
        width = shape.hidden_size
        constants = self._expert_kernels()
        layer = ExpertLayer(
            width=width,
            inner_width=shape.moe_intermediate_size / self.options.expert_slices,
            experts=shape.num_experts,
            experts_per_row=shape.num_experts_per_tok,
            ranks=self.options.expert_ranks,
            matrices=shape.matrices,
            independent_rows=self.independent_rows,
        )
        seconds = constants.seconds(
            tokens,
            layer,
            weight_bytes=BYTES[self.weights],
            rates=self._rates(self.weights),
        )
        share = self._large_share(tokens)
        seconds *= 1 + (constants.prefill - 1) * share
        seconds += constants.routed_ns * NS * tokens * shape.num_experts_per_tok * share
        if self.options.data_parallel_size > 1:
            # Rows are gathered from all ranks, and their sums are scattered to them.
            group = self.options.tensor_parallel_size * self.options.data_parallel_size
            size = 2 * tokens * width
            seconds += self.kernels.all_reduce.seconds(size, group, self.device.link)
        return seconds + ROUTER_US * US + self._router(tokens)

    def _router(self, tokens: float) -> float:
        """Returns the seconds of the product that gives the logits of the experts.

        A product of float32 without tensor cores takes a good part of a prompt's time. It has the
        efficiency of bf16, with tiles that are small enough to occupy the device.
        """
        width = self.shape.hidden_size
        experts = self.shape.num_experts
        bandwidth = self.device.bandwidth
        if not self.shape.has_float32_router:
            return (2 * width * experts + 2 * tokens * (width + experts)) / bandwidth
        flops = self.device.flops / 2 if self.options.has_tf32 else self.device.flops_32bit
        rates = Rates(bandwidth, flops, self.kernels.multiprocessors)
        product = replace(self.kernels.products["bf16"], tile=0.0, wave=0.0)
        cast_bytes = 6 * tokens * width
        seconds = product.seconds(tokens, experts, width, weight_bytes=4, rates=rates)
        return seconds + cast_bytes / bandwidth

    def _expert_kernels(self) -> Experts:
        """Returns the constants of the experts with the backend of the options."""
        if self.has_default_experts:
            return self.kernels.experts[self.weights]
        return self.kernels.triton_experts[self.weights]

    def _large_share(self, tokens: float) -> float:
        """Returns how much a step is like a large one: 0 for decodes, 1 for prefills."""
        small = SMALL_TOKENS
        large = LARGE_TOKENS
        if self.independent_rows < 1:
            small = SMALL_DRAFTED_TOKENS
            large = LARGE_DRAFTED_TOKENS
        return min(1.0, max(0.0, (tokens - small) / (large - small)))

    def _rates(self, weights: Format) -> Rates:
        kernels = self.kernels
        return sheet_rates(self.device, weights, kernels.multiprocessors, unpacked=kernels.unpacked)


def sheet_rates(
    device: Device,
    weights: Format,
    multiprocessors: int,
    *,
    unpacked: frozenset[Format] = UNPACKED,
) -> Rates:
    """Returns the rates of a device for products with weights of a format."""
    flops = device.flops_8bit or device.flops
    if weights in unpacked:
        flops = device.flops
    elif weights == "nvfp4":
        flops *= 2
    return Rates(device.bandwidth, flops, multiprocessors)


def latent_products(
    product: ProductSeconds,
    heads_product: ProductSeconds,
    *,
    latent: LatentShape,
    rows: float,
    width: int,
    heads: float,
) -> float:
    """Returns the seconds of a layer's products with latent attention.

    Each device compresses for itself. `heads_product` multiplies by the weights between the
    compressed vector and the heads, which are kept in 16 bits.
    """
    into = product(rows, latent.query_rank + latent.cached, width)
    query_depth = latent.query_rank or width
    queries = product(rows, heads * (latent.key + latent.rope), query_depth)
    keys = heads_product(rows, latent.rank, heads * latent.key)
    values = heads_product(rows, heads * latent.value, latent.rank)
    out = product(rows, width, heads * latent.value)
    index = 0.0
    if latent.top_tokens:
        index = product(rows, latent.index_heads * latent.index_width, query_depth)
        index += heads_product(rows, latent.index_heads + latent.index_width, width)
    return into + queries + keys + values + out + index


def prompt_launch_us(*, has_experts: bool) -> float:
    """Returns the time to launch a layer's kernels for prompts, where no server showed it."""
    if has_experts:
        return EXPERT_LAUNCH_US
    return DENSE_LAUNCH_US
