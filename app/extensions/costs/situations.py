"""The situation of a computed profile, which finds the nearest measurements."""

from app.extensions.costs.engine_options import MAX_CAPTURE_SIZE, EngineOptions
from app.extensions.costs.error_model import Situation
from app.extensions.costs.estimated_shapes import estimated_shape
from app.extensions.costs.storage_formats import read_storage
from app.extensions.costs.version_rules import nearest_measured
from vllm_facts.model_shape import family_of


def make_situation(config: object, device_name: str, options: EngineOptions) -> Situation:
    """Returns the situation of a model, by the content of its `config.json`, on a device.

    Raises:
        ConfigError: The model is unknown.
    """
    shape, _ = estimated_shape(config)
    quantization = options.weight_quantization(shape.quantization_config, "model config")
    storage = read_storage(quantization, "model config")
    version, _ = nearest_measured(options.vllm_version)
    return Situation(
        family=family_of(shape.architectures[0]),
        weights=storage.kernels or storage.kind,
        has_experts=shape.num_experts > 0,
        device=device_name.lower(),
        devices=options.devices,
        expert_parallel=options.enable_expert_parallel,
        data_parallel=options.data_parallel_size > 1,
        prompt_graphs=options.max_cudagraph_capture_size > MAX_CAPTURE_SIZE,
        version=version,
    )
