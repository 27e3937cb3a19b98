"""The model: a decoder of the Llama family, run over all tokens of a step at once."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from app.llm.attention import StepAttention
from app.llm.config import Checkpoint, ModelConfig
from app.llm.errors import ModelLoadError


class Linear:
    """x W' + b, optionally fused with the next operation. `weight` is [out, in].

    `packed` reorders the weights for oneDNN, which makes products on CPUs two to three times faster.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, packed: bool = False) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()) if packed else weight
        self.bias, self.packed = bias, packed

    def __call__(self, x: torch.Tensor, operation: str = "none") -> torch.Tensor:
        """`operation` is "none", or "swish" for silu."""
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, operation, [], "")
        product = F.linear(x, self.weight, self.bias)
        return F.silu(product) if operation == "swish" else product

    def fused(self, x: torch.Tensor, other: torch.Tensor, operation: str) -> torch.Tensor:
        """Returns (x W' + b) * other for the operation "mul", and with + for "add"."""
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise.binary(x, other, self.weight, self.bias, operation)
        return self(x).mul_(other) if operation == "mul" else self(x).add_(other)


def packing_works(dtype: torch.dtype) -> bool:
    """Returns True when oneDNN's layers, private to torch, exist and compute the same as `F.linear`."""
    generator = torch.Generator().manual_seed(0)
    weight, x, other = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((24, 40), (5, 40), (5, 24))
    )
    try:
        packed, plain = Linear(weight, other[0], packed=True), Linear(weight, other[0])
        pairs = [(packed(x, operation), plain(x, operation)) for operation in ("none", "swish")]
        pairs += [(packed.fused(x, other, it), plain.fused(x, other, it)) for it in ("mul", "add")]
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    return all(torch.allclose(a.float(), b.float(), rtol=tolerance, atol=tolerance) for a, b in pairs)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalizes in float32, as in the models' training."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))).to(x.dtype).mul_(weight)


class Rope:
    """Rotary embeddings of neighbouring pairs, applied in place."""

    def __init__(self, config: ModelConfig, length: int, device: torch.device) -> None:
        half = range(0, config.head_dim, 2)
        plain = (config.rope_theta ** -(pair / config.head_dim) for pair in half)
        frequencies = torch.tensor([config.rope_scaling.frequency(it) for it in plain], dtype=torch.float32)
        angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
        self._turns = torch.polar(torch.ones_like(angles), angles).to(device)

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        return self._turns[positions].unsqueeze(1)

    @staticmethod
    def turn(x: torch.Tensor, turns: torch.Tensor) -> None:
        """Rotates `x` [tokens, heads, head_dim] in place."""
        if x.dtype == torch.float32:
            torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(turns)
            return
        wide = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous()).mul_(turns)
        x.copy_(torch.view_as_real(wide).flatten(-2))


class Builder:
    """Reads tensors, with a check of their shapes, into the engine's dtype and device."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device):
        self.config, self._weights = checkpoint.config, checkpoint.weights
        self._interleaved, self._dtype, self._device = checkpoint.interleaved, dtype, device

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        if name not in self._weights:
            raise ModelLoadError(f"The weights lack the tensor {name}.")
        tensor = self._weights[name]()
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(
                f"The tensor {name} is {list(tensor.shape)}, the configuration says {list(shape)}."
            )
        return tensor.to(device=self._device, dtype=self._dtype)

    def bias(self, name: str, size: int) -> torch.Tensor | None:
        return self.tensor(name, size) if name in self._weights else None

    def turned(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        """Returns a tensor whose rotary pairs are neighbours: (0, half, 1, half + 1, ...) of each head."""
        if self._interleaved:
            return tensor
        shape = tensor.shape
        return tensor.reshape(heads, 2, -1, *shape[1:]).transpose(1, 2).reshape(shape)


class Layer:
    """Attention and a gated MLP, each with a norm before and a residual connection."""

    def __init__(self, number: int, build: Builder, packed: bool) -> None:
        self.number, self.config = number, (config := build.config)
        layer, hidden, inner = f"model.layers.{number}", config.hidden_size, config.intermediate_size
        name, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        self.attention_norm = build.tensor(f"{layer}.input_layernorm.weight", hidden)
        self.mlp_norm = build.tensor(f"{layer}.post_attention_layernorm.weight", hidden)
        matrices, biases = [], []
        for part, heads in (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads)):
            rows = heads * config.head_dim
            matrix = build.tensor(f"{name}.{part}_proj.weight", rows, hidden)
            bias = build.bias(f"{name}.{part}_proj.bias", rows)
            matrices.append(matrix if part == "v" else build.turned(matrix, heads))
            if bias is not None:
                biases.append(bias if part == "v" else build.turned(bias, heads))
        self.qkv = Linear(torch.cat(matrices), torch.cat(biases) if len(biases) == 3 else None, packed)
        self.head_norms: list[torch.Tensor] = []
        """Norms of queries and of keys; Qwen3 alone has them."""
        if config.architecture == "qwen3":
            norms = (build.tensor(f"{name}.{part}_norm.weight", config.head_dim) for part in "qk")
            self.head_norms = [build.turned(norm, 1) for norm in norms]
        output = build.tensor(f"{name}.o_proj.weight", hidden, config.num_heads * config.head_dim)
        self.output = Linear(output, build.bias(f"{name}.o_proj.bias", hidden), packed)
        self.gate = Linear(build.tensor(f"{mlp}.gate_proj.weight", inner, hidden), packed=packed)
        self.up = Linear(build.tensor(f"{mlp}.up_proj.weight", inner, hidden), packed=packed)
        self.down = Linear(build.tensor(f"{mlp}.down_proj.weight", hidden, inner), packed=packed)

    def __call__(self, x: torch.Tensor, turns: torch.Tensor, attention: StepAttention) -> torch.Tensor:
        config, eps = self.config, self.config.rms_norm_eps
        heads = self.qkv(rms_norm(x, self.attention_norm, eps)).view(len(x), -1, config.head_dim)
        turning = heads[:, : config.num_heads + config.num_kv_heads]
        queries, kv = heads[:, : config.num_heads], heads[:, config.num_heads :]
        if self.head_norms:
            keys = kv[:, : config.num_kv_heads]
            for part, norm in zip((queries, keys), self.head_norms, strict=True):
                part.copy_(rms_norm(part, norm, eps))
        Rope.turn(turning, turns)
        x = self.output.fused(attention(self.number, queries, kv).reshape(len(x), -1), x, "add")
        y = rms_norm(x, self.mlp_norm, eps)
        return self.down.fused(self.up.fused(y, self.gate(y, "swish"), "mul"), x, "add")


class Decoder:
    """Turns token ids into hidden states, and hidden states into logits."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        length: int,
        dtype: torch.dtype,
        device: torch.device,
        packed: bool = False,
    ) -> None:
        self.config = config = checkpoint.config
        build = Builder(checkpoint, dtype, device)
        shape = config.vocab_size, config.hidden_size
        self.embedding = build.tensor("model.embed_tokens.weight", *shape)
        self.layers = [Layer(number, build, packed) for number in range(config.num_layers)]
        self.norm = build.tensor("model.norm.weight", config.hidden_size)
        head = self.embedding if config.tied else build.tensor("lm_head.weight", *shape)
        self.head = Linear(head, packed=packed)
        self.rope = Rope(config, length, device)

    def __call__(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attention: StepAttention,
        on_layer: Callable[[], object],
    ) -> torch.Tensor:
        """Returns the last hidden states of all tokens of a step; calls `on_layer` before each layer."""
        x, turns = F.embedding(tokens, self.embedding), self.rope.at(positions)
        for layer in self.layers:
            on_layer()
            x = layer(x, turns, attention)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head(rms_norm(hidden, self.norm, self.config.rms_norm_eps)).float()
