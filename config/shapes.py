"""Data sheets of devices, and shapes of models: the facts that a computed profile is made of."""

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from config.declaration import ConfigError

UNKNOWN_PARTS: Mapping[str, str] = {
    "kv_lora_rank": "latent attention",
    "vision_config": "an encoder of images",
    "audio_config": "an encoder of audio",
    "linear_num_key_heads": "linear attention",
    **dict.fromkeys(
        ("mamba_d_state", "mamba_expand", "ssm_state_size", "state_size"), "state-space layers"
    ),
}
"""Field of a `config.json` -> part of the model whose cost is not known."""
KNOWN_LAYERS = frozenset(("full_attention", "sliding_attention"))


class Device(Struct, frozen=True):
    """An accelerator.

    Operations are per second and dense; sheets often have twice as many, with sparsity.
    """

    name: str
    bandwidth: float
    """Memory bandwidth, in bytes per second."""
    flops: float
    """Operations per second in bf16."""
    flops_8bit: float | None
    """Operations per second in fp8; None without fp8 arithmetic."""
    memory: float
    """Bytes for a process: the sheet's memory, less the share of driver and error correction."""
    link: float
    """Bytes per second to the server's other devices, in one direction:

    half of the sheet's figure.
    """
    sheet: str
    max_num_batched_tokens: int
    max_num_seqs: int
    """vLLM's defaults for a server on this device:

    those of large ones from 70 GiB on, but for A100.
    """


GIB, TERA = 1 << 30, 1e12
_LARGE, _SMALL = (8192, 1024), (2048, 256)
# Memory in TB/s, bf16 and fp8 in TFLOPS, memory in GiB, link in TB/s, defaults of a step.
_FIGURES = {
    "h100": ("H100 SXM 80 GB", 3.35, 989.4, 1978.9, 79.2, 0.45, _LARGE),
    "h200": ("H200 SXM 141 GB", 4.8, 989.4, 1978.9, 139.8, 0.45, _LARGE),
    "a100": ("A100 SXM 80 GB", 2.039, 312, None, 79.2, 0.3, _SMALL),
    "l40s": ("L40S 48 GB", 0.864, 362, 733, 44.4, 0.032, _SMALL),
    "mi300x": ("MI300X 192 GB", 5.3, 1307.4, 2614.9, 191.9, 0.448, _LARGE),
    "b200": ("B200 SXM 180 GB", 8, 2250, 4500, 178.4, 0.9, _LARGE),
}
_SHEETS = {
    "h100": "NVIDIA H100 Tensor Core GPU, data sheet: 3.35 TB/s, BF16 1,979 and FP8 3,958 TFLOPS with"
    " sparsity, NVLink 900 GB/s",
    "h200": "NVIDIA H200 Tensor Core GPU, data sheet: 4.8 TB/s, 141 GB, arithmetic and NVLink as H100 SXM",
    "a100": "NVIDIA A100 Tensor Core GPU, data sheet: 2,039 GB/s, BF16 312 TFLOPS, NVLink 600 GB/s",
    "l40s": "NVIDIA L40S, data sheet: 864 GB/s, BF16 362 and FP8 733 TFLOPS, PCIe Gen4 x16 64 GB/s",
    "mi300x": "AMD Instinct MI300X, data sheet: 5.3 TB/s, BF16 1,307.4 and FP8 2,614.9 TFLOPS, Infinity"
    " Fabric 896 GB/s",
    "b200": "NVIDIA DGX B200, data sheet (eight of them): 64 TB/s, FP8 72 PFLOPS with sparsity and BF16"
    " half of it, 1,440 GB, NVLink 14.4 TB/s",
}
DEVICES: Mapping[str, Device] = {
    key: Device(
        name,
        read * TERA,
        bf16 * TERA,
        fp8 and fp8 * TERA,
        size * GIB,
        link * TERA,
        _SHEETS[key],
        *step,
    )
    for key, (name, read, bf16, fp8, size, link, step) in _FIGURES.items()
}


Size: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 24)]

_OF_THREE = (
    *(
        "Llama",
        "Mistral",
        "Mixtral",
        "Qwen2",
        "Qwen2Moe",
        "Qwen3",
        "Qwen3Moe",
        "Gemma",
        "Gemma2",
        "Gemma3",
    ),
    *("GptOss", "Granite", "GraniteMoe", "MiniMaxM2", "Olmo2", "Olmoe", "Phi3", "SmolLM3"),
)
_OF_TWO = ("GPTNeoX", "Phi", "Starcoder2")
MATRICES: Mapping[str, int] = {
    f"{name}ForCausalLM": count for count, names in ((3, _OF_THREE), (2, _OF_TWO)) for name in names
}
"""Architecture -> matrices of a layer's feed-forward network, beside attention over keys and
values.
"""


class _Scheme(Struct):
    num_bits: Annotated[int, Meta(ge=1, le=16)] = 8
    group_size: int | None = None


class _Group(Struct):
    weights: _Scheme
    input_activations: _Scheme | None = None


class Quantization(Struct):
    """Fields of `quantization_config` in use."""

    quant_method: str
    bits: Annotated[int, Meta(ge=2, le=8)] = 4
    group_size: int = 0
    quant_algo: str = ""
    config_groups: dict[str, _Group] = {}
    kv_cache_scheme: _Scheme | None = None
    weight_block_size: list[int] | None = None


class ModelShape(Struct, kw_only=True):
    """Fields of `config.json` in use, by their names."""

    architectures: Annotated[list[str], Meta(min_length=1)]
    hidden_size: Size
    num_hidden_layers: Annotated[int, Meta(ge=1, le=1000)]
    num_attention_heads: Annotated[int, Meta(ge=1, le=1024)]
    vocab_size: Size
    max_position_embeddings: Size
    intermediate_size: Size
    num_key_value_heads: Annotated[int, Meta(ge=1, le=1024)] = 0
    head_dim: Annotated[int, Meta(ge=1, le=1024)] = 0
    tie_word_embeddings: bool = False
    num_experts: Annotated[int, Meta(ge=0, le=4096)] = 0
    num_local_experts: Annotated[int, Meta(ge=0, le=4096)] = 0
    num_experts_per_tok: Annotated[int, Meta(ge=1, le=4096)] = 1
    moe_intermediate_size: Size = 0
    shared_expert_intermediate_size: Annotated[int, Meta(ge=0, le=1 << 24)] = 0
    decoder_sparse_step: Annotated[int, Meta(ge=1)] = 1
    mlp_only_layers: list[int] = []
    sliding_window: Annotated[int, Meta(ge=0, le=1 << 30)] = 0
    layer_types: list[str] = []
    quantization_config: Quantization | None = None

    def __post_init__(self) -> None:
        """Fills in absent fields.

        Raises ValueError, with the rule, for fields that contradict others.
        """
        heads = self.num_attention_heads
        if not self.head_dim and self.hidden_size % heads:
            rule = "must be a multiple of num_attention_heads"
            raise ValueError(
                f"hidden_size ({self.hidden_size}) {rule} ({heads}), or head_dim be given"
            )
        if self.num_key_value_heads > heads:
            rule = "must not be more than num_attention_heads"
            raise ValueError(f"num_key_value_heads ({self.num_key_value_heads}) {rule}")
        self.head_dim = self.head_dim or self.hidden_size // heads
        self.num_key_value_heads = self.num_key_value_heads or heads
        self.num_experts = self.num_experts or self.num_local_experts
        self.moe_intermediate_size = self.moe_intermediate_size or self.intermediate_size
        if self.num_experts and self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"num_experts_per_tok ({self.num_experts_per_tok}) is more than the experts"
            )

    def cached_numbers(self, devices: int) -> int:
        """Keys and values of a token in a layer, on one of `devices`; too few heads are replicated."""
        return 2 * -(-self.num_key_value_heads // devices) * self.head_dim

    @property
    def sparse_layers(self) -> int:
        """Number of layers with experts."""
        step, dense = self.decoder_sparse_step, set(self.mlp_only_layers)
        layers = range(self.num_hidden_layers if self.num_experts else 0)
        return sum((layer + 1) % step == 0 for layer in layers if layer not in dense)

    @property
    def sliding_share(self) -> float:
        """Share of the layers whose attention sees `sliding_window` tokens."""
        sliding = self.layer_types.count("sliding_attention") if self.sliding_window else 0
        return sliding / max(1, len(self.layer_types))

    @property
    def window(self) -> int:
        """Sliding window of `sliding_share` of the layers, in tokens; 0 without."""
        return self.sliding_window if self.sliding_share else 0

    @property
    def matrices(self) -> int:
        return MATRICES[self.architectures[0]]

    @property
    def table_weights(self) -> int:
        """Weights of the embedding and of the output, which may share one table."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)

    def weights(self) -> tuple[int, int]:
        """Returns two counts over all layers:

        weights that every token needs, and weights of one expert.
        """
        matrices, width, layers = self.matrices, self.hidden_size, self.num_hidden_layers
        sparse = self.sparse_layers
        projected = self.num_attention_heads * self.head_dim
        attention = (
            width * (projected + 2 * self.num_key_value_heads * self.head_dim) + projected * width
        )
        beside = width * self.num_experts + matrices * width * self.shared_expert_intermediate_size
        shared = layers * attention + (layers - sparse) * matrices * width * self.intermediate_size
        expert = sparse * matrices * width * self.moe_intermediate_size
        return shared + sparse * beside, expert


def model_shape(document: object, named: str = "model config") -> ModelShape:
    """Converts the content of a `config.json`; `named` begins the message of a ConfigError."""
    name = None
    if isinstance(document, dict):
        document = {field: value for field, value in document.items() if value is not None}
        given = document.get("architectures")
        name = given[0] if isinstance(given, list) and given else None
        _check_parts(
            document, f"{named}: {{}}: {name} has {{}}, and the cost of its kernels is not known"
        )
    if (
        isinstance(name, str) and name not in MATRICES
    ):  # before other fields: their names may differ
        same = next((known for known in MATRICES if known.lower() == name.lower()), None)
        kinds = ", ".join(known.removesuffix("ForCausalLM") for known in MATRICES)
        hint = (
            f"; did you mean {same}?" if same else f"; known are {kinds}, each of them ForCausalLM"
        )
        raise ConfigError(
            f"{named}: architectures: {name} is none that a data sheet can tell of{hint}"
        )
    try:
        return msgspec.convert(document, ModelShape)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{named}: {error}") from None


def _check_parts(document: Mapping[str, object], rule: str) -> None:
    """Raises ConfigError for parts of a model whose cost is not known; `rule` takes field and part."""
    text = document.get("text_config")
    for fields in (document, text if isinstance(text, dict) else {}):
        for field, part in UNKNOWN_PARTS.items():
            if fields.get(field):
                raise ConfigError(rule.format(field, part))
        layers = fields.get("layer_types")
        for kind in layers if isinstance(layers, list) else ():
            if isinstance(kind, str) and kind not in KNOWN_LAYERS:
                raise ConfigError(rule.format("layer_types", f"layers of {kind}"))
    if text:
        raise ConfigError(rule.format("text_config", "an encoder beside its text model"))
