"""Memory of an engine by its device and its model, as the workbench uses it."""

from app.extensions.costs.fit import shape_of
from app.extensions.costs.memory_verdict import (
    MemoryVerdict,
    ServerMemory,
    memory_verdicts,
    parallelism_verdict,
    smallest_weights,
)

__all__ = (
    "MemoryVerdict",
    "ServerMemory",
    "memory_verdicts",
    "parallelism_verdict",
    "shape_of",
    "smallest_weights",
)
