"""Shapes of models with a known memory but an unknown cost: their layers count as plain ones.

`check` knows more architectures than the costs do. An estimate for such a model
beats a refusal, and is marked.
"""

from functools import cache

from app.extensions.costs.shapes import CostShape, cost_shape, memory_shape
from app.extensions.costs.text_configs import has_known_cost
from config.declaration import ConfigError
from vllm_facts.known_models import known_models

ESTIMATE = "an estimate: the layers of {architecture} count as plain ones, with {matrices} matrices"


def estimated_shape(config: object, origin: str = "model config") -> tuple[CostShape, str]:
    """Returns the shape of a model, and a text where its cost is an estimate.

    Raises:
        ConfigError: The architecture is unknown, or a field is wrong; the message begins with
            `origin`.
    """
    try:
        return cost_shape(config, origin), ""
    except ConfigError:
        shape = _known_shape(config, origin)
        if shape is None:
            raise
    architecture = shape.architectures[0]
    return shape, ESTIMATE.format(architecture=architecture, matrices=shape.matrices)


def _known_shape(config: object, origin: str) -> CostShape | None:
    """Returns the shape for memory; None for an unknown architecture, or one with a cost."""
    try:
        shape = memory_shape(config, origin)
    except ConfigError:
        return None
    return shape if shape.architectures[0] in _uncosted_architectures() else None


@cache
def _uncosted_architectures() -> frozenset[str]:
    """Returns the architectures of known models without a known cost."""
    return frozenset(
        memory_shape(config).architectures[0]
        for config in known_models().values()
        if not has_known_cost(config)
    )
