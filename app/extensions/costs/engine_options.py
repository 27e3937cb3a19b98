"""Options of `vllm serve` that decide what a computed profile costs and holds."""

from msgspec import Struct

from app.extensions.costs.shapes import CostShape, Quantization
from app.extensions.costs.speculation import Speculation
from config.declaration import ConfigError

AUTO_DTYPE = "auto"
KV_CACHE_DTYPES = (AUTO_DTYPE, "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2")
"""Values of `--kv-cache-dtype`."""
ONLINE_QUANTIZATIONS = ("fp8", "bitsandbytes")
"""Methods of `--quantization` that vLLM applies to 16-bit weights while it loads them."""
MAX_CAPTURE_SIZE = 512
"""vLLM's default of `--max-cudagraph-capture-size`, with `--max-num-seqs` of at least 256."""
AUTO_BACKEND = "auto"
TRITON = "triton"
MOE_BACKENDS = (AUTO_BACKEND, TRITON)
"""Values of `--moe-backend` whose costs are known."""
FP8_BYTES = 1
BF16_BYTES = 2


class UnequalPartsError(ConfigError):
    """Raised for an option that does not divide a model evenly among devices."""

    def __init__(self, flaw: str, *, option: str = "", advice: str = "") -> None:
        super().__init__(f"{flaw}; {advice}" if advice else flaw)
        self.flaw = flaw
        """The message without the advice at its end."""
        self.option = option
        self.advice = advice
        """Values that divide the model; empty if none is near."""


class CacheFormat(Struct, frozen=True):
    """Format of the numbers in the KV cache, and the reason for it."""

    bytes: int
    reason: str


class EngineOptions(Struct, frozen=True, kw_only=True):
    """Options of an engine, by their names in vLLM and with its defaults."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    """Ranks with attention of their own; all ranks share the experts of a mixture."""
    enable_expert_parallel: bool = False
    """Each device holds whole experts instead of a part of each expert."""
    kv_cache_dtype: str = AUTO_DTYPE
    gpu_memory_utilization: float | None = None
    """None is the default of the version."""
    enforce_eager: bool = False
    """No CUDA graphs."""
    max_cudagraph_capture_size: int = MAX_CAPTURE_SIZE
    """Most tokens of a step with a CUDA graph; the host launches each kernel of a larger step."""
    moe_backend: str = AUTO_BACKEND
    """Kernels of experts, one of `MOE_BACKENDS`."""
    has_tf32: bool = False
    """VLLM_FLOAT32_MATMUL_PRECISION is `high`: tensor cores compute products of float32."""
    quantization: str = ""
    """Empty is the method of the checkpoint."""
    vllm_version: str = ""
    """Empty is the newest version that is known."""
    speculative_config: Speculation | None = None

    @property
    def devices(self) -> int:
        """Devices of the engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def expert_ranks(self) -> int:
        """Groups of devices that hold different experts."""
        if not self.enable_expert_parallel:
            return 1
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def expert_slices(self) -> int:
        """Devices that share each expert."""
        return self.tensor_parallel_size * self.data_parallel_size // self.expert_ranks

    @property
    def parallel_batches(self) -> int:
        """Parts of a batch that different devices compute at a time.

        These are the ranks of data parallelism, and the stages of a pipeline.
        """
        return self.pipeline_parallel_size * self.data_parallel_size

    def check(self, shape: CostShape, origin: str) -> None:
        """Checks that the parallelism divides the model.

        Raises:
            UnequalPartsError: A size does not divide the model.
        """
        tensor = self.tensor_parallel_size
        heads = shape.num_attention_heads
        if tensor < 1 or heads % tensor:
            raise UnequalPartsError(
                f"tensor-parallel-size {tensor}: the {heads} attention heads of {origin}"
                " are not divisible by this size",
                option="tensor-parallel-size",
                advice=_nearest_divisors(heads, tensor),
            )
        layers = shape.num_hidden_layers
        stages = self.pipeline_parallel_size
        if not 1 <= stages <= layers:
            raise UnequalPartsError(
                f"pipeline-parallel-size {stages}: {origin} has only {layers} layers",
                option="pipeline-parallel-size",
            )
        if self.enable_expert_parallel and not shape.num_experts:
            raise UnequalPartsError(
                f"enable-expert-parallel: {origin} has no experts", option="enable-expert-parallel"
            )
        if shape.num_experts % self.expert_ranks:
            raise UnequalPartsError(
                f"enable-expert-parallel: the {shape.num_experts} experts of {origin}"
                f" cannot be divided evenly among {self.expert_ranks} devices",
                option="enable-expert-parallel",
                advice=_nearest_divisors(shape.num_experts, self.expert_ranks),
            )

    def weight_quantization(
        self, checkpoint: Quantization | None, origin: str
    ) -> Quantization | None:
        """Returns the quantization of the weights, of the checkpoint or of `--quantization`.

        Raises:
            ConfigError: The option contradicts the checkpoint, or vLLM cannot quantize so.
        """
        method = self.quantization
        if not method:
            return checkpoint
        if checkpoint is not None:
            stored = checkpoint.quant_method
            if method.removesuffix("_marlin") != stored.removesuffix("_marlin"):
                raise ConfigError(
                    f"quantization {method}: vLLM does not convert the weights of {origin} from"
                    f" {stored}"
                )
            return checkpoint
        if method not in ONLINE_QUANTIZATIONS:
            raise ConfigError(
                f"quantization {method}: {origin} has 16-bit weights, which vLLM converts only"
                f" to {' or '.join(ONLINE_QUANTIZATIONS)}"
            )
        return Quantization(quant_method=method)

    def cache_format(self, checkpoint: Quantization | None) -> CacheFormat:
        """Returns the format of keys and values by the rule of vLLM, whatever the device.

        An explicit `--kv-cache-dtype` decides. `auto` follows the checkpoint where its
        `quantization_config` declares a format of the cache, and is the dtype of the model
        otherwise.
        """
        if self.kv_cache_dtype != AUTO_DTYPE:
            size = FP8_BYTES if self.kv_cache_dtype.startswith("fp8") else BF16_BYTES
            return CacheFormat(size, f"{self.kv_cache_dtype}, as kv-cache-dtype says")
        if checkpoint is not None and checkpoint.has_8bit_cache:
            return CacheFormat(FP8_BYTES, "fp8, as the checkpoint says (kv-cache-dtype changes it)")
        return CacheFormat(BF16_BYTES, "16 bits, vLLM's default (kv-cache-dtype changes it)")


def _nearest_divisors(number: int, size: int) -> str:
    """Returns advice to use the divisors of `number` on both sides of `size`."""
    divisors = [count for count in range(1, number + 1) if number % count == 0]
    below = [count for count in divisors if count < size]
    above = [count for count in divisors if count > size]
    nearest = [str(count) for count in (*below[-1:], *above[:1])]
    return f"use {' or '.join(nearest)}"
