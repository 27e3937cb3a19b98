"""Costs of an engine by its device and its model, as the workbench uses them."""

from app.extensions.costs.datasheet import profile_of
from app.extensions.costs.engine_options import (
    AUTO_BACKEND,
    AUTO_DTYPE,
    KV_CACHE_DTYPES,
    MAX_CAPTURE_SIZE,
    MOE_BACKENDS,
    EngineOptions,
)
from app.extensions.costs.error_model import (
    COVERAGE,
    NEAR,
    ErrorSpread,
    Evidence,
    Situation,
    known_errors,
)
from app.extensions.costs.lora import LoraCosts, lora_costs
from app.extensions.costs.measured_errors import MeasuredErrors, errors_like
from app.extensions.costs.power import DeviceWatts, Energy, energy_of, read_watts
from app.extensions.costs.power_constants import MEASURED
from app.extensions.costs.published_errors import published_errors
from app.extensions.costs.repacks import find_config
from app.extensions.costs.settings import read_version
from app.extensions.costs.shapes import cost_shape
from app.extensions.costs.situations import make_situation
from app.extensions.costs.speculation import Speculation, read_speculation, with_acceptance
from app.extensions.costs.version_rules import rules_of, version_of

__all__ = (
    "AUTO_BACKEND",
    "AUTO_DTYPE",
    "COVERAGE",
    "DeviceWatts",
    "Energy",
    "EngineOptions",
    "ErrorSpread",
    "Evidence",
    "KV_CACHE_DTYPES",
    "LoraCosts",
    "MAX_CAPTURE_SIZE",
    "MEASURED",
    "MOE_BACKENDS",
    "MeasuredErrors",
    "NEAR",
    "Situation",
    "Speculation",
    "cost_shape",
    "energy_of",
    "errors_like",
    "find_config",
    "known_errors",
    "lora_costs",
    "make_situation",
    "profile_of",
    "published_errors",
    "read_speculation",
    "read_version",
    "read_watts",
    "rules_of",
    "version_of",
    "with_acceptance",
)
