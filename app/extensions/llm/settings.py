"""Settings of the real engine."""

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from config import Settings
from config.declaration import About, Duration, Json, NonEmpty, Section


class LlmSettings(Section, frozen=True, kw_only=True):
    """The real engine."""

    dtype: Literal["auto", "float32", "float", "bfloat16", "float16", "half", "int8"] = "auto"
    """Data type of the model in the llm engine. The int8 type uses 8-bit weights and is supported
    only on CPUs."""
    batch_invariant: Annotated[bool, About(env=("VLLM_BATCH_INVARIANT",))] = False
    """If a request to the llm engine sets a seed, make its reply bit-for-bit independent of other
    requests, at the cost of speed."""
    engine_threads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """Number of PyTorch threads that the llm engine uses on a CPU. If this setting is empty,
    OMP_NUM_THREADS is used. If OMP_NUM_THREADS is not set either, the server determines the fastest
    number of threads at startup."""
    engine_step_time: Duration = 0.2
    """Target duration of a step of the llm engine that processes part of a prompt. Long prompts
    are processed in chunks, in the same steps that generate tokens for other requests. If the value
    is 0, the size of these chunks is limited only by max-num-batched-tokens."""
    generation_config: NonEmpty = "auto"
    """Source of the default sampling parameters and the default maximum reply length in the llm
    engine: the model's generation_config.json (auto), vLLM's defaults (vllm), or the
    generation_config.json in a folder."""
    override_generation_config: Json | None = None
    """Values, such as {"temperature": 0.5}, that replace or extend those from generation-config in
    the llm engine."""

    def conflicts(self, settings: Settings) -> Iterator[tuple[str, str]]:
        """Yields the settings of the core that a real engine does not support."""
        if not settings.engine.is_real:
            return
        if settings.steps.device not in ("", "auto", "cuda", "mps", "cpu"):
            yield "device", "must be auto, cuda, mps, or cpu: engine is llm"
        from vllm_facts.speculative import prompt_lookup_of  # few servers have a real engine

        try:
            prompt_lookup_of(settings.engine)
        except ValueError as error:
            yield (
                "speculative-config",
                f"must be prompt lookup, the only method of engine llm: {error}",
            )
        if settings.kvcache.kv_connector not in ("", "none"):
            yield "kv-connector", "must be none: engine is llm, which has no connector"
        if not settings.steps.enable_chunked_prefill:
            rule = "must be true: engine is llm, which computes long prompts in several steps"
            yield "enable-chunked-prefill", rule
        if settings.model.tensor_parallel_size != 1:
            yield "tensor-parallel-size", "must be 1: engine is llm, which computes on one device"
